"""The map of docs/architecture.md, drawn from the layers: PYTHONPATH=tests python tests/support/house.py"""

from __future__ import annotations

from html import escape
from pathlib import Path

from support.layers import ROOT, layers

# The first package of each floor, from the top, and the floor's name. Imports go down only.
FLOORS = {
    "cli": "Commands",
    "telling_apart": "Your pictures",
    "pages": "Experiments",
    "engine": "The loop",
    "decoding": "Models",
    "data": "Data, figures",
    "settings": "Shared",
}
WORDS = {
    "cli": "parse, call, print",
    "demo": "the demo",
    "studies": "tables of papers",
    "judging": "people judge captions",
    "serve": "a page and a service",
    "telling_apart": "groups, distinctive captions",
    "scoring": "pictures for a caption",
    "captioning": "captions of pictures",
    "exporting": "a model to give away",
    "describing": "tellapart.load()",
    "index": "search by words or picture",
    "pages": "reports, galleries, plots",
    "training": "from a recipe to a run",
    "assembling": "objective, models, batches",
    "evaluation": "measure, rank, compare",
    "run": "a run folder",
    "recipe": "what an experiment is",
    "recipe_files": "read, extend, inherit",
    "engine": "steps, checkpoints, processes",
    "objectives": "what a step minimises",
    "decoding": "beams, samples, contrast",
    "huggingface": "BLIP, GIT, CLIP, SigLIP",
    "captioners": "p(caption | image)",
    "retrievers": "image–text similarity",
    "models": "model folders and cards",
    "weights": "fewer bytes",
    "data": "records, features, batches",
    "encoders": "pictures to regions",
    "metrics": "functions without torch",
    "settings": "strict settings",
    "text": "vocabulary",
    "progress": "progress bars",
    "terminal": "tables",
    "registry": "name to class",
    "shipped": "models that come with it",
    "samples": "photographs to try it",
    "files": "atomic writing, digests",
    "errors": "one message, no traceback",
}
# paper, ink, faint ink, floor, box, edge of a box
COLOURS = {
    "light": ("#ffffff", "#1d2b2a", "#566b69", "#e3f2f0", "#ffffff", "#5aa79d"),
    "dark": ("#1e2129", "#e8efee", "#a9bbb9", "#22373a", "#1a2228", "#4a938a"),
}
WIDTH, LABEL, COLUMNS, BOX, GAP = 760, 122, 3, 46, 8


def floors() -> list[tuple[str, list[str]]]:
    """Each floor with its packages, in the order of the layers."""
    found: list[tuple[str, list[str]]] = []
    for name in (name for row in layers() for name in row):
        if name in FLOORS:
            found.append((FLOORS[name], []))
        found[-1][1].append(name)
    return found


def draw(scheme: str) -> str:
    """The map as SVG, for light or dark pages."""
    paper, ink, faint, floor, box, edge = COLOURS[scheme]
    wide = (WIDTH - LABEL - 3 * GAP - (COLUMNS - 1) * GAP) / COLUMNS
    lines: list[str] = []
    y = GAP
    for title, names in floors():
        height = GAP + -(-len(names) // COLUMNS) * (BOX + GAP)
        lines.append(f'<rect x="{GAP}" y="{y}" width="{WIDTH - 2 * GAP}" height="{height}" rx="8" fill="{floor}"/>')
        lines.append(f'<text class="floor" x="{2 * GAP}" y="{y + height / 2 + 5:g}">{escape(title)}</text>')
        for place, name in enumerate(names):
            left, top = LABEL + GAP + place % COLUMNS * (wide + GAP), y + GAP + place // COLUMNS * (BOX + GAP)
            size = f'width="{wide:.1f}" height="{BOX}" rx="5"'
            lines.append(f'<rect x="{left:.1f}" y="{top}" {size} fill="{box}" stroke="{edge}"/>')
            lines.append(f'<text class="name" x="{left + 10:.1f}" y="{top + 19}">{escape(name)}</text>')
            lines.append(f'<text class="word" x="{left + 10:.1f}" y="{top + 36}">{escape(WORDS.get(name, ""))}</text>')
        y += height + GAP
    style = (
        f"text{{fill:{ink};font-family:system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}}"
        ".floor{font-size:14px;font-weight:600}"
        ".name{font:600 14px ui-monospace,'DejaVu Sans Mono',Menlo,monospace}"
        f".word{{font-size:12px;fill:{faint}}}"
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img" '
        'aria-label="The packages of tellapart, floor by floor; imports go down only">'
    )
    paper_line = f'<rect width="{WIDTH}" height="{y}" fill="{paper}"/>'
    return "\n".join([head, f"<style>{style}</style>", paper_line, *lines, "</svg>"]) + "\n"


def path_of(scheme: str) -> Path:
    return ROOT / "docs" / f"house-{scheme}.svg"


if __name__ == "__main__":
    for scheme in COLOURS:
        path_of(scheme).write_text(draw(scheme), encoding="utf-8")
