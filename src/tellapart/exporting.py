"""Make a model folder to give away from a run: packed weights, and a card with figures, recipe, terms and failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from pydantic import Field

from tellapart.decoding.search import decode_rows
from tellapart.errors import RunError
from tellapart.evaluation.evaluate import ImageRow, ScoreFile
from tellapart.evaluation.evaluate_retrieval import RankRow, RetrievalFile
from tellapart.evaluation.retrieval import embed_rows
from tellapart.files import new_folder, read_model, read_models, read_text, write_json, write_text
from tellapart.models import Model, card_opening, check_replaceable, model_description, write_model
from tellapart.run import Run, open_run
from tellapart.weights import WeightType, pack, unpack

# int8 weights are chosen if at least this share of the captions (of a retriever, of the pictures found) is the same.
SAME = 0.99
# Pictures that this is measured on.
PICTURES = 500
# Failures shown in a card.
FAILURES = 6

# By the name of a data set.
TERMS = {
    "coco": "COCO (Lin et al. 2014, Chen et al. 2015): its captions are under CC BY 4.0; its pictures are from Flickr, "
    "under the terms that their photographers chose and Flickr's terms of use.",
    "flickr8k": "Flickr8k (Hodosh et al. 2013): for non-commercial research and education only; its pictures are from "
    "Flickr, under the terms that their photographers chose.",
    "flickr30k": "Flickr30k (Young et al. 2014): for non-commercial research and education only; its pictures are from "
    "Flickr, under the terms that their photographers chose.",
    "scenes": "The built-in scenes are drawn by tellapart and are under its licence, Apache-2.0.",
}

LIMITS = {
    "captioner": (
        "It describes what its training data show, in their words. Of other pictures it says something that looks like "
        "them, in the same confident tone: drawings, screens, documents, rare animals and medical pictures are "
        "described wrongly.",
        "It cannot read text, name persons or places, or count reliably. It may take the sex, age or activity of "
        "people from habits of its training data. Check a caption before you publish it, and before anyone relies on "
        "it as alternative text.",
    ),
    "retriever": (
        "It compares pictures and sentences like those of its training data; words that it has not seen are skipped. "
        "A similarity is no probability: only compare those of the same sentence or the same picture.",
    ),
}


class _Scores(ScoreFile):
    """`scores.json` with what a card tells about it."""

    images: int
    judge: str | None = None
    listener: str | None = None


class _Retrieval(RetrievalFile):
    images: int
    captions: int


class _Failure(ImageRow):
    """A row of `per_image.jsonl` whose caption can be judged."""

    CIDEr: float | None = Field(None)


@dataclass(frozen=True)
class Export:
    """A model folder that was made from a run.

    Attributes:
        folder: where it is.
        kind: `captioner` or `retriever`.
        weights: how they are kept.
        same: share of the captions (of a retriever, of the first pictures found) that the run's own weights give too.
        pictures: the number of pictures that this was measured on.
        bytes: size of the weights.
    """

    folder: Path
    kind: str
    weights: WeightType
    same: float
    pictures: int
    bytes: int


def export(
    run: Run | str | Path,
    to: str | Path,
    weights: WeightType | None = None,
    notes: str | Path | None = None,
) -> Export:
    """Write the model of a run as a folder to give away: small, with a card of what is known about it.

    Args:
        run: a finished training whose test split was measured (`tellapart evaluate`, `tellapart evaluate-retrieval`).
        to: a new folder, or a model folder, which is replaced.
        weights: how to keep them. By default int8, if that leaves at least 99 % of the captions as they are on
            validation pictures (of a retriever: of the pictures that captions find first), else float16.
        notes: a Markdown file that is put at the end of the card.

    Example:
        >>> export("runs/coco-adaptive-mle-1a2b3c4d", "models/captioner").weights        # doctest: +SKIP
        'float16'
    """
    run = run if isinstance(run, Run) else open_run(run)
    folder = Path(to)
    check_replaceable(folder)
    added = "" if notes is None else read_text(Path(notes), "file of notes").strip()
    measured = _measured(run)
    chosen, same, pictures = _choose(run, weights)
    model: Model = run.model
    with new_folder(folder) as new:
        write_model(model, new, chosen)
        model.write_encoder(new)
        size = (new / "model.safetensors").stat().st_size
        made = Export(folder, model.kind, chosen, same, pictures, size)
        description = model_description(model)
        if model.kind == "captioner":
            description["decoding"] = run.recipe.decoding.model_dump(mode="json")
        write_json(new / "model.json", description)
        card = [*card_opening(description), *_card(run, made, measured)]
        if added:
            card += ["## Notes", "", added, ""]
        write_text(new / "README.md", "\n".join(card))
    return made


# --- weights ----------------------------------------------------------------------------------------------------------


def _choose(run: Run, wanted: WeightType | None) -> tuple[WeightType, float, int]:
    """How to keep the weights, the share of results that stay the same, and the number of pictures compared."""
    dataset = run.data.dataset
    split = next(name for name in ("val", "test", "train") if any(record.split == name for record in dataset))
    records = [record for record in dataset.split(split) if record.captions][:PICTURES]
    rows = [dataset.row(record.id) for record in records]
    captions = [record.captions[0] for record in records]
    expected = _results(run, run.model, rows, captions)
    tried: tuple[WeightType, ...] = ("int8", "float16") if wanted is None else (wanted,)
    for kind in tried:
        model = deepcopy(run.model)
        model.load_state_dict(unpack(pack(model.state_dict(), kind)))
        found = _results(run, model, rows, captions)
        same = sum(one == other for one, other in zip(found, expected, strict=True)) / max(1, len(rows))
        if same >= SAME:
            break
    return kind, same, len(rows)


@torch.no_grad()
def _results(run: Run, model: Any, rows: Sequence[int], captions: Sequence[str]) -> list[Any]:
    """A captioner's caption of each picture; of a retriever, the picture that each caption finds first."""
    if run.recipe.trains == "captioner":
        return [one.caption for one in decode_rows(model, run.data.store, rows, run.recipe.decoding)]
    similarity = model.similarity(embed_rows(model, run.data.store, rows), model.embed_texts(captions))
    return list(similarity.argmax(dim=0).tolist())


# --- the card ---------------------------------------------------------------------------------------------------------


def _measured(run: Run) -> _Scores | _Retrieval:
    """What was measured on the test split."""
    captions = run.recipe.trains == "captioner"
    path = run.folder / ("scores.json" if captions else "retrieval.json")
    command = f"tellapart {'evaluate' if captions else 'evaluate-retrieval'} {run.folder}"
    if not path.exists():
        raise RunError(f"{path}: this run was not measured, and its card needs the figures; first: {command}")
    if captions:
        return read_model(path, _Scores, "file of results")
    return read_model(path, _Retrieval, "file of results")


def _card(run: Run, made: Export, measured: _Scores | _Retrieval) -> list[str]:
    """The sections of a card after its opening."""
    name = run.data.dataset.name
    what = "captions are" if made.kind == "captioner" else "pictures that a caption finds first are"
    lines = ["## Measured", ""]
    lines += _figures(measured, name)
    lines += [
        "",
        f"Weights are kept as {made.weights} ({made.bytes / 1e6:.1f} MB). With them {made.same:.1%} of the {what} the "
        f"same as with the float32 weights of the training, on {made.pictures:,} pictures of the validation split.",
        "",
        "## Data and terms",
        "",
        TERMS.get(_family(name), f"Trained on {name}. Its owner's terms apply; the notes below tell them, if any."),
        "",
        "## Limits",
        "",
        *LIMITS[made.kind],
        "",
    ]
    lines += _failures(run, made.kind)
    lines += ["## Recipe", "", "```yaml", _recipe(run), "```", ""]
    return lines


def _figures(measured: _Scores | _Retrieval, name: str) -> list[str]:
    if isinstance(measured, _Retrieval):
        about = f"On the test split of {name}: {measured.images:,} pictures, {measured.captions:,} captions."
        rows = [f"| {figure} | {value:.4f} |" for figure, value in measured.figures.items()]
        return [about, "", "| figure | value |", "|---|---|", *rows]
    about = f"On the test split of {name}: {measured.images:,} pictures."
    if measured.listener is not None:
        about += f" The listener is {measured.listener}."
    if measured.judge is not None:
        about += f" The judge is {measured.judge}."
    rows = []
    for figure, value in measured.corpus.items():
        low, high = measured.intervals.get(figure, (None, None))
        rows.append(f"| {figure} | {value:.4f} | {'' if low is None else f'{low:.4f} to {high:.4f}'} |")
    return [about, "", "| figure | value | 95 % interval |", "|---|---|---|", *rows]


def _failures(run: Run, kind: str) -> list[str]:
    """The worst results on the test split, without the captions of the data set: those have terms of their own."""
    if kind == "retriever":
        ranks = [row.rank for row in read_models(run.folder / "retrieval_captions.jsonl", RankRow, "file of ranks")]
        shares = [(most, sum(rank > most for rank in ranks) / len(ranks)) for most in (1, 10, 100, 1000)]
        lines = [
            f"- {share:.1%} of the captions do not find their picture among the first {most:,}"
            for most, share in shares
        ]
        return ["## Failures", "", *lines, ""]
    judged = [
        row
        for row in read_models(run.folder / "per_image.jsonl", _Failure, "file of figures")
        if row.CIDEr is not None and not row.captions
    ]
    worst = sorted(judged, key=lambda row: (row.CIDEr or 0.0, row.id))[:FAILURES]
    lines = ["## Failures", "", "Captions of the test split with the lowest CIDEr:", ""]
    lines += ["| picture | the model |", "|---|---|"]
    lines += [f"| {_cell(row.id)} | {_cell(row.caption) or '(empty)'} |" for row in worst]
    return [*lines, ""]


def _family(name: str) -> str:
    """A data set's name without its sizes or year.

    >>> _family("scenes-v4-12-4-6-seed0"), _family("coco")
    ('scenes', 'coco')
    """
    return name.lower().partition("-")[0].partition("_")[0]


def _cell(text: str) -> str:
    """A text in a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def _recipe(run: Run) -> str:
    """The recipe with names instead of the paths of this machine."""
    content = run.recipe.resolved()
    content["data"] = {**content["data"], "source": _name(content["data"]["source"])}
    content["data"].pop("prepared")
    for section in (content.get("start"), *content.get("roles", {}).values()):
        if isinstance(section, dict):
            section["from"] = _names(section["from"])
    kept: Mapping[str, Any] = {key: value for key, value in content.items() if value not in (None, {}, "")}
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=100).rstrip()


def _names(places: Any) -> Any:
    return [_name(place) for place in places] if isinstance(places, list | tuple) else _name(places)


def _name(place: str) -> str:
    return Path(place).name
