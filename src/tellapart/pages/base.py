"""What all pages share: templates, figures as text, pictures and plots inside the page."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from textwrap import fill
from types import ModuleType
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from tellapart.data.images import jpeg_without_metadata, load_image
from tellapart.data.records import Dataset
from tellapart.metrics import Interval

THUMBNAIL = 176
# Letters in a line above a small plot.
TITLE = 34


def render(template: str, **values: Any) -> str:
    """A template of `pages/templates`, filled in; what it asks for must be given."""
    environment = Environment(
        loader=PackageLoader("tellapart", "pages/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = shown
    environment.filters["interval"] = shown_interval
    return environment.get_template(template).render(**values)


def shown(value: float | None, kind: str) -> str:
    """A figure as people read it."""
    if value is None:
        return "–"
    if kind == "percent":
        # A chance of one in thousands is not none.
        return f"{100 * value:.{2 if 0 < value < 0.01 else 1}f} %"
    if kind == "points":  # of a share, where a heading says that it is in percent
        return f"{100 * value:.1f}"
    digits = {"figure": 3, "number": 2, "count": 0}[kind]
    return f"{value:.{digits}f}"


def shown_interval(interval: Interval, kind: str) -> str:
    """An interval below the figure that it is of.

    >>> shown_interval(Interval(0.5, 0.421, 0.579), "percent")
    '42.1–57.9'
    """
    if kind == "percent":
        return f"{100 * interval.low:.1f}–{100 * interval.high:.1f}"
    return f"{shown(interval.low, kind)}–{shown(interval.high, kind)}"


class Pictures:
    """Pictures of a data set as data addresses, each read once."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._made: dict[str, str] = {}

    def __getitem__(self, id: str) -> str:
        if id not in self._made:
            record = self.dataset.records[self.dataset.row(id)]
            self._made[id] = data_address(load_image(self.dataset.path(record)))
        return self._made[id]


def data_address(image: Image.Image, side: int = 2 * THUMBNAIL) -> str:
    """A picture, made small, as a data address."""
    return "data:image/jpeg;base64," + base64.b64encode(jpeg_without_metadata(image, side, 82)).decode("ascii")


# Kinds of pairs in the journal of a contrastive training -> their names in curves.
PAIRS = {
    "positive": "true pairs, G⁺",
    "negative": "mismatched captions, G⁻",
    "image_negative": "mismatched images, G⁻",
}


def curves(journals: Mapping[str, list[dict[str, Any]]]) -> str:
    """Loss curves of trainings, and G⁺ and G⁻ of contrastive ones, as inline SVG.

    Args:
        journals: label -> the rows of its `metrics.jsonl`.
    """
    contrastive = {label: rows for label, rows in journals.items() if rows and "log_ratio_positive" in rows[0]}
    with plotting() as pyplot:
        panels = len(journals) + len(contrastive)
        columns = min(4, panels)
        lines = -(-panels // columns)
        figure, axes = pyplot.subplots(lines, columns, figsize=(2.9 * columns, 2.4 * lines), squeeze=False)
        places = iter(axes.ravel())
        for label, rows in journals.items():
            axis = next(places)
            for split, style in (("train", "-"), ("val", "o--")):
                logged = [row for row in rows if row["split"] == split]
                steps, losses = ([row[key] for row in logged] for key in ("step", "loss"))
                axis.plot(steps, losses, style, markersize=3, linewidth=1.4, label=split)
            axis.set_title(fill(f"{label}: loss", TITLE))
        for label, rows in contrastive.items():
            axis = next(places)
            logged = [row for row in rows if row["split"] == "train"]
            steps = [row["step"] for row in logged]
            for kind, name in PAIRS.items():
                if f"log_ratio_{kind}" in rows[0]:
                    ratios = [row.get(f"log_ratio_{kind}", math.nan) for row in logged]
                    axis.plot(steps, ratios, label=name)
            axis.set_title(fill(f"{label}: log ratio to reference", TITLE))
        for axis in axes.ravel()[:panels]:
            axis.legend(frameon=False, fontsize=8)
            axis.set_xlabel("step")
        for axis in places:
            axis.set_visible(False)
        return as_svg(figure)


@contextmanager
def plotting() -> Iterator[ModuleType]:
    """matplotlib's pyplot, drawing SVG in the pages' style."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    style: dict[Any, Any] = {"font.size": 9, "axes.titlesize": 9, "svg.hashsalt": "t", "text.parse_math": False}
    with pyplot.rc_context({**style, "axes.spines.top": False, "axes.spines.right": False}):
        yield pyplot


def as_svg(figure: Any) -> str:
    """A figure as SVG to stand in a page; the figure is closed."""
    from matplotlib import pyplot

    figure.tight_layout()
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    pyplot.close(figure)
    drawn = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    # Black and white follow the page, which is dark on a dark screen.
    return drawn.replace("#000000", "currentColor").replace("#ffffff", "var(--paper, #ffffff)")
