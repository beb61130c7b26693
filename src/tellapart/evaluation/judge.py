"""Rank images for captions under a judge: one way for `evaluate`, `compare`, `self-retrieval` and studies.

A judge is a captioner, which ranks images by p(caption | image), an ensemble of captioners, or a retriever, which ranks
them by similarity. A listener is a second judge, which had no part in any training. Ranks are kept in the folder
`ranks/` of the judge's run and found again, whoever asks for them; an interrupted ranking continues.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tellapart.data.parts import WHOLE, Part
from tellapart.data.prepare import Prepared
from tellapart.data.records import Dataset
from tellapart.decoding.ensemble import Ensemble
from tellapart.errors import DataError, RunError
from tellapart.evaluation.retrieval import rank_captions_under
from tellapart.evaluation.self_retrieval import FORMAT, KS, SHOWN, SelfRetrieval, self_retrieval_part
from tellapart.files import REBUILD, Stored, check_folder, digest_of, find_or_make
from tellapart.metrics import RankSummary, summarize_ranks
from tellapart.progress import ProgressLine
from tellapart.run import Run


@dataclass(frozen=True)
class Judge:
    """The run, or the runs of captioners as an ensemble, that ranks images for captions."""

    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        for run in self.runs[1:]:
            if run.recipe.trains != "captioner":
                raise RunError(f"{run.folder}: only captioners make an ensemble; give one retriever")
            self.check_data(run.data.dataset, str(run.folder))

    @property
    def name(self) -> str:
        return " + ".join(run.recipe.name for run in self.runs)

    @property
    def is_retriever(self) -> bool:
        return self.runs[0].recipe.trains == "retriever"

    @property
    def data(self) -> Prepared:
        """The images with the features that the judge reads."""
        return self.runs[0].data

    @cached_property
    def model(self) -> Any:
        models = [run.model for run in self.runs]
        return models[0] if len(models) == 1 else Ensemble(models)

    @cached_property
    def digest(self) -> str:
        """Identifies the weights, for a retriever its settings, and for captioners the version of their ranking."""
        models = [[run.model_digest, run.recipe.retriever] for run in self.runs]
        return digest_of(models if self.is_retriever else [FORMAT, *models])

    @property
    def folder(self) -> Path:
        """Where its ranks are kept."""
        return self.runs[0].folder / "ranks"

    def check_data(self, dataset: Dataset, whose: str) -> None:
        """Refuse captions of other data than the judge's."""
        if dataset.digest != self.data.dataset.digest:
            raise RunError(
                f"{self.runs[0].folder} has other data than {whose}; use a judge or listener trained on the same data"
            )


class RankFile(Stored):
    """A file in `ranks/`."""

    score_name: Literal["log_prob", "similarity"]
    ranks: list[int]
    scores: list[float | None]
    first: list[list[int]]
    saved: dict[str, float]

    def check(self, path: Path, images: int, shown: int) -> None:
        """Raise an error unless the file has the ranks of this many images."""
        whole = len(self.ranks) == len(self.scores) == len(self.first) == images
        widths = {len(found) for found in self.first}
        whole = whole and len(widths) == 1 and min(widths) >= shown
        inside = all(1 <= rank <= images for rank in self.ranks)
        if not whole or not inside or not all(0 <= place < images for found in self.first for place in found):
            raise DataError(f"{path}: is damaged (its ranks are not those of {images} images); {REBUILD}")


@dataclass(frozen=True)
class CaptionRanks:
    """Ranks of the images that captions were written for; one caption per image.

    Attributes:
        ranks: `[captions]`, from 1; images that score as high as the true one go before it.
        scores: `[captions]`, of each caption with its own image: ln p, or a retriever's similarity.
        score_name: `log_prob` or `similarity`.
        first: `[captions, shown]`, positions of the best images, best first.
        saved: share of the work that was saved, by kind.
    """

    ranks: NDArray[np.int64]
    scores: NDArray[np.float64]
    score_name: str
    first: NDArray[np.int64]
    saved: dict[str, float] = field(default_factory=dict)

    def summary(self) -> RankSummary:
        """Recall at 1, 5, 10, 50 and 500, up to the number of images, with chance beside; mean and median rank."""
        images = len(self.ranks)
        return summarize_ranks(self.ranks, images, [k for k in KS if k <= images])


def rank_captions(
    judge: Judge, ids: Sequence[str], captions: Sequence[str], *, shown: int = 0, part: Part = WHOLE
) -> CaptionRanks | None:
    """Rank these images for each caption; caption t belongs to image t.

    Args:
        judge: who ranks.
        ids: the images, records of the judge's data.
        captions: one per image, whoever wrote them.
        shown: also give the first images that each caption finds (captioners only; this costs up to three times the
            work).
        part: the blocks of images that this process ranks; other processes rank the others.

    Returns:
        The ranks; `None` while blocks of other parts are missing.
    """
    if judge.is_retriever:
        shown = 0
        if part != WHOLE:
            raise RunError(f"{judge.runs[0].folder}: ranking under a retriever is fast and has no parts; drop --part")
    basis: dict[str, Any] = {
        "judge": judge.digest,
        "data": judge.data.dataset.digest,
        "pictures": judge.data.pictures_digest(),
        "captions": list(zip(ids, captions, strict=True)),
    }
    # A ranking that shows images also serves where none are shown.
    wanted = {count: {**basis, "shown": count} for count in sorted({shown, SHOWN}, reverse=True) if count >= shown}
    paths = {count: judge.folder / f"{digest_of(made_from)[:16]}.json" for count, made_from in wanted.items()}
    found = next((count for count, path in paths.items() if path.exists()), shown)
    path = paths[found]
    blocks = path.with_suffix("")
    ranked = None
    if not path.exists() and not judge.is_retriever:
        check_folder(judge.folder)
        ranked = _rank_under_captioner(judge, ids, captions, shown, blocks, part)
        if ranked is None and not path.exists():  # it exists if another part has just found all blocks
            return None

    def make() -> dict[str, Any]:
        if ranked is None:
            return _rank_under_retriever(judge, ids, captions)
        saved = {"shared": ranked.shared, "pruned": ranked.pruned}
        return _content(judge, ranked.ranks, ranked.log_probs, "log_prob", ranked.first, saved)

    content = find_or_make(path, wanted[found], make, RankFile)
    content.check(path, len(ids), min(shown, len(ids)))
    shutil.rmtree(blocks, ignore_errors=True)
    return CaptionRanks(
        np.array(content.ranks, dtype=np.int64),
        np.array([-np.inf if score is None else score for score in content.scores]),
        content.score_name,
        np.array(content.first, dtype=np.int64).reshape(len(ids), -1)[:, :shown],
        content.saved,
    )


def _rank_under_retriever(judge: Judge, ids: Sequence[str], captions: Sequence[str]) -> dict[str, Any]:
    rows = [judge.data.dataset.row(id) for id in ids]
    line = ProgressLine(f"ranking under {judge.name}", " images")
    ranked = rank_captions_under(judge.model, judge.data, rows, captions, line.update)
    return _content(judge, ranked.ranks, ranked.similarities, "similarity", np.zeros((len(ids), 0)), {})


def _rank_under_captioner(
    judge: Judge, ids: Sequence[str], captions: Sequence[str], shown: int, blocks: Path, part: Part
) -> SelfRetrieval | None:
    """Finished blocks of images are kept in a folder until all are there."""
    dataset, store = judge.data.dataset, judge.data.store
    store.check(dataset, judge.model.encoder)
    line = ProgressLine(f"ranking under {judge.name}", " pairs")
    targets = ProgressLine(f"scoring captions under {judge.name}", " pairs")
    rows = [dataset.row(id) for id in ids]
    return self_retrieval_part(judge.model, store, rows, captions, blocks, part, shown, line.update, targets.update)


def _content(
    judge: Judge,
    ranks: NDArray[np.int64],
    scores: NDArray[np.float64],
    score_name: str,
    first: NDArray[Any],
    saved: dict[str, float],
) -> dict[str, Any]:
    """What a file of ranks holds."""
    return {
        "judge": judge.name,
        "score_name": score_name,
        "ranks": ranks.tolist(),
        "scores": [score if np.isfinite(score) else None for score in scores.tolist()],
        "first": first.tolist(),
        "saved": saved,
    }
