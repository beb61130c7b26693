"""Measure the run of a retriever: both directions, all images and folds, example queries, paired differences.

Everything is written into the run folder, with what it was made from, and found again on the next call:
`retrieval.json` (figures and shown queries), `retrieval_images.jsonl` and `retrieval_captions.jsonl` (ranks); of other
splits than the test one, `retrieval-val.json` and so on. Until they are written, the vectors of images and captions are
kept beside them in blocks, as `retrieval-unfinished-DIGEST`, so that an interrupted call continues.
"""

from __future__ import annotations

import glob
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tellapart.data.blocks import remove_blocks
from tellapart.data.prepare import Prepared
from tellapart.errors import DataError, RunError
from tellapart.evaluation.retrieval import (
    RERANKED,
    RankedSplit,
    first_captions,
    first_images,
    rank_split,
    shown_queries,
)
from tellapart.evaluation.retriever_ensemble import check_members, rank_ensemble
from tellapart.files import Stored, check_output, digest_of, find_or_make, read_models, write_jsonl
from tellapart.metrics import PairedDifference, RetrievalRanks, summarize_retrieval
from tellapart.metrics.bootstrap import CorpusStatistic, paired_bootstraps_over_seeds
from tellapart.metrics.ranks import KS
from tellapart.models import add_measured
from tellapart.progress import ProgressLine
from tellapart.run import Run

# In the name of kept vectors, between the name of the file of figures and a digest of what they are made from.
UNFINISHED = "-unfinished-"


class RankRow(Stored):
    """A row of `retrieval_images.jsonl`, or with a caption of `retrieval_captions.jsonl`."""

    id: str
    caption: str = ""
    rank: int = Field(ge=1, le=2**31)
    rank_in_fold: int = Field(1, ge=1, le=2**31)


class ShownText(RankRow):
    retrieved: list[str]


class FoundText(Stored):
    id: str
    caption: str


class ShownImage(RankRow):
    retrieved: list[FoundText]


class ShownQueries(Stored):
    texts: list[ShownText]
    images: list[ShownImage]


class RetrievalFile(Stored):
    """`retrieval.json`."""

    figures: dict[str, int | float]
    reranked: bool = False
    folds: dict[str, int | float]
    shown: ShownQueries


@dataclass(frozen=True)
class RetrievalEvaluation:
    """The measured figures of one retriever on one split. Shares are fractions; ranks count from 1.

    Attributes:
        folder: where the files are.
        split: which images.
        figures: figure -> value among all images and captions, the chance levels beside.
        folds: the same as means over the folds; empty without folds.
        images: one row per image: id, rank (the best of its captions) and, if it is in a fold, rank_in_fold.
        captions: one row per caption: id (its image), caption, rank and, if it is in a fold, rank_in_fold.
        shown: `texts` and `images`: example queries, half of them right at rank 1, with the first five results.
        reranked: whether only the first `RERANKED` items by coarse vectors were compared pair by pair.
    """

    folder: Path
    split: str
    figures: dict[str, float]
    folds: dict[str, float]
    images: list[dict[str, Any]]
    captions: list[dict[str, Any]]
    shown: dict[str, list[dict[str, Any]]]
    reranked: bool = False

    @property
    def how_reranked(self) -> str:
        """How a retriever's ranks were cut short, because it compares pair by pair; empty if they were not.

        An item that coarse vectors do not find has a rank above `RERANKED`, and no other has one.
        """
        if not self.reranked:
            return ""
        found = [100 * np.mean(ranks <= RERANKED) for ranks in (self.ranks.image_to_text, self.ranks.text_to_image)]
        return (
            f"Only the first {RERANKED} items by mean vectors are compared pair by pair; a right one is among them for "
            f"{found[0]:.1f} % of the images and {found[1]:.1f} % of the captions."
        )

    @property
    def ranks(self) -> RetrievalRanks:
        """The ranks among all images and captions."""
        places = {row["id"]: place for place, row in enumerate(self.images)}
        return RetrievalRanks(
            np.array([row["rank"] for row in self.images]),
            np.array([row["rank"] for row in self.captions]),
            np.bincount([places[row["id"]] for row in self.captions], minlength=len(places)),
        )


def evaluate_retrieval(
    run: Run,
    split: str = "test",
    fold_size: int | None = None,
    out: str | Path | None = None,
    exact: bool | None = None,
    ensemble: Sequence[Run] = (),
) -> RetrievalEvaluation:
    """Measure a retriever, or find what an earlier call measured.

    Args:
        run: a finished training of a retriever.
        split: the images.
        fold_size: also give the means over folds of this many consecutive images (COCO's "1K": 1,000). Images that are
            too few for another fold are in none.
        out: folder for the files; by default the run's.
        exact: for retrievers that compare pair by pair (SCAN): compare all pairs, however many. By default, galleries
            of more than 10 million pairs are searched by coarse vectors first and the best 100 compared.
        ensemble: more trainings of retrievers on the same data: ranks are by the mean of all similarities. Then `out`
            must be given.

    Example:
        >>> measured = evaluate_retrieval(open_run("runs/flickr8k-ranking-1a2b3c4d"))   # doctest: +SKIP
        >>> measured.figures["text_to_image_R@1"], measured.figures["R@sum"]            # doctest: +SKIP
        (0.21, 2.93)
    """
    folder = run.folder if out is None else Path(out)
    if ensemble:
        if folder in (one.folder for one in (run, *ensemble)):
            raise RunError(
                f"{folder}: holds the files of one training; give the ensemble a folder of its own with --out"
            )
        check_members([run, *ensemble])
    check_output(_path(folder, split), "made_from", "figures", reuse=True)
    check_output(_path(folder, split, "_images"), "id", "rank", reuse=True)
    check_output(_path(folder, split, "_captions"), "id", "caption", "rank", reuse=True)
    retriever = run.retriever

    def make() -> dict[str, Any]:
        name = " + ".join(one.recipe.name for one in (run, *ensemble))
        embedding = ProgressLine(f"embedding with {name}", " items")
        ranking = ProgressLine(f"ranking with {name}", " images")
        _remove_vectors(path, but=vectors)
        lines = embedding.update, ranking.update
        if ensemble:
            ranked = rank_ensemble([run, *ensemble], split, fold_size, *lines)
        else:
            ranked = rank_split(retriever, run.data, split, fold_size, *lines, exact=exact, path=vectors)
        content = _write_rows(folder, name, split, ranked)
        if folder == run.folder:
            add_measured(run.folder, split, content["figures"])
        _remove_vectors(path)
        return content

    settings = retriever.settings.model_dump(mode="json")
    embedded = [run.model_digest, run.data.dataset.digest, run.data.pictures_digest(), settings, split]
    made_from = [*embedded, fold_size]
    if exact is not None:
        made_from.append(exact)
    if ensemble:
        members = [
            [one.model_digest, one.data.pictures_digest(), one.retriever.settings.model_dump(mode="json")]
            for one in ensemble
        ]
        made_from.append(digest_of(members))
    path = _path(folder, split)
    read = [list(retriever.vocabulary.tokens), retriever.encoder.as_dict()]
    vectors = path.with_name(f"{path.stem}{UNFINISHED}{digest_of([embedded, read])[:16]}")
    found = find_or_make(path, made_from, make, RetrievalFile)
    records = [record for record in run.data.dataset.split(split) if record.captions]  # others are not ranked
    images = _read_rows(_path(folder, split, "_images"), [(record.id, None) for record in records], path)
    captions = [(record.id, caption) for record in records for caption in record.captions]
    texts = _read_rows(_path(folder, split, "_captions"), captions, path)
    shown = found.shown.model_dump(exclude_unset=True)
    return RetrievalEvaluation(folder, split, found.figures, found.folds, images, texts, shown, found.reranked)


def _remove_vectors(path: Path, but: Path | None = None) -> None:
    """Remove the kept vectors of this file of figures, also those that calls with other weights or data have left.

    Call it only where this process makes the file.
    """
    for ending in (".blocks", ".npy"):
        for table in path.parent.glob(f"{glob.escape(path.stem)}{UNFINISHED}*{ending}"):
            if but is None or table.stem != but.name:
                remove_blocks(table.with_suffix(""))


def _read_rows(path: Path, items: Sequence[tuple[str, str | None]], figures: Path) -> list[dict[str, Any]]:
    """The ranks of these images or captions, as `_write_rows` wrote them."""
    remedy = f"remove {figures} and run the same command again"
    rows = [row.model_dump(exclude_unset=True) for row in read_models(path, RankRow, "file of ranks", remedy)]
    if [(row["id"], row.get("caption")) for row in rows] != list(items):
        raise DataError(f"{path}: is damaged (it does not have the ranks of all queries); {remedy}")
    return rows


def compare_retrieval(
    compared: RetrievalEvaluation, control: RetrievalEvaluation, prepared: Prepared
) -> dict[str, PairedDifference]:
    """Differences (compared − control) of every figure on the same images, with 95 % intervals and p values.

    The bootstrap draws images with all their captions; near-duplicates of one family are drawn together.

    Args:
        compared: one retriever's ranks.
        control: the other's, on the same images and captions.
        prepared: their data.
    """
    return compare_seeds([compared], [control], prepared)


def compare_seeds(
    compared: Sequence[RetrievalEvaluation],
    control: Sequence[RetrievalEvaluation],
    prepared: Prepared,
    figures: Collection[str] | None = None,
) -> dict[str, PairedDifference]:
    """The same for retrievers that were trained several times: trainings are drawn too, paired by seed.

    Args:
        compared: one retriever's ranks, by seed.
        control: the other's, on the same images and captions, in the same order of seeds.
        prepared: their data.
        figures: which ones; by default all.
    """
    first = compared[0]
    expected = _items(first)
    for one in (*compared[1:], *control):
        if _items(one) != expected:
            raise RunError(f"{one.folder}: was measured on other images than {first.folder}; compare the same data")
    records = {record.id: record for record in prepared.dataset}
    families = [records[row["id"]].family or row["id"] for row in first.images]
    groups = np.unique(families, return_inverse=True)[1]
    sides = [[_statistics(one.ranks, figures) for one in side] for side in (control, compared)]
    return paired_bootstraps_over_seeds(sides[0], sides[1], groups=groups)


def _items(measured: RetrievalEvaluation) -> list[tuple[str, str | None]]:
    """The ranked images and captions."""
    return [(row["id"], row.get("caption")) for row in (*measured.images, *measured.captions)]


def _statistics(ranks: RetrievalRanks, figures: Collection[str] | None = None) -> dict[str, CorpusStatistic]:
    """Figures (`None`: all) as functions of sums over images; a caption counts for its image."""
    owner = np.repeat(np.arange(len(ranks.captions_of)), ranks.captions_of)

    def of_captions(values: NDArray[Any]) -> NDArray[np.float64]:
        return np.bincount(owner, values, minlength=len(ranks.captions_of)).astype(np.float64)

    images, captions = ranks.image_to_text, ranks.text_to_image
    hits = [(images <= k).astype(np.float64) for k in KS] + [of_captions(captions <= k) for k in KS]
    counts = [np.ones(len(images))] * len(KS) + [ranks.captions_of.astype(np.float64)] * len(KS)
    names = [f"{direction}_R@{k}" for direction in ("image_to_text", "text_to_image") for k in KS]
    ratios = dict(zip(names, zip(hits, counts, strict=True), strict=True))
    ratios["image_to_text_mean_rank"] = (images.astype(np.float64), counts[0])
    ratios["text_to_image_mean_rank"] = (of_captions(captions), counts[-1])
    statistics = {name: CorpusStatistic(np.stack(pair, axis=1), _ratios) for name, pair in ratios.items()}
    columns = [column for name in names for column in ratios[name]]
    statistics["R@sum"] = CorpusStatistic(np.stack(columns, axis=1), _ratios)
    return {name: statistic for name, statistic in statistics.items() if figures is None or name in figures}


def _ratios(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of ratios of neighbouring columns."""
    return np.asarray((sums[..., 0::2] / sums[..., 1::2]).sum(axis=-1))


def _path(folder: Path, split: str, part: str = "") -> Path:
    ending = "" if split == "test" else f"-{split}"
    return folder / f"retrieval{part}{ending}.json{'l' if part else ''}"


def _write_rows(folder: Path, name: str, split: str, ranked: RankedSplit) -> dict[str, Any]:
    """Write the ranks of images and captions; gives the content of the file of figures."""
    gallery, ranks = ranked.gallery, ranked.ranks
    owners = [gallery.ids[image] for image in gallery.image_of_caption]
    images = [{"id": id, "rank": rank} for id, rank in zip(gallery.ids, ranks.image_to_text.tolist(), strict=True)]
    texts = zip(owners, gallery.captions, ranks.text_to_image.tolist(), strict=True)
    captions = [{"id": id, "caption": caption, "rank": rank} for id, caption, rank in texts]
    for rows, direction in ((images, "image_to_text"), (captions, "text_to_image")):
        within = [rank for fold in ranked.folds for rank in getattr(fold, direction).tolist()]
        for row, rank in zip(rows, within, strict=False):
            row["rank_in_fold"] = rank
    write_jsonl(_path(folder, split, "_images"), images)
    write_jsonl(_path(folder, split, "_captions"), captions)
    return {
        "retriever": name,
        "split": split,
        "images": len(images),
        "captions": len(captions),
        "figures": ranked.figures(),
        "reranked": ranked.scores.reranked,
        "fold_count": len(ranked.folds),
        "folds": summarize_retrieval(ranked.folds).figures() if ranked.folds else {},
        "shown": _shown(ranked, images, captions),
    }


def _shown(
    ranked: RankedSplit, images: list[dict[str, Any]], captions: list[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Example queries of each direction with their results."""
    texts, pictures = shown_queries(ranked.ranks.text_to_image), shown_queries(ranked.ranks.image_to_text)
    found_images = first_images(ranked, texts)
    found_captions = first_captions(ranked, pictures)
    return {
        "texts": [
            {**captions[query], "retrieved": [images[place]["id"] for place in found]}
            for query, found in zip(texts, found_images, strict=True)
        ],
        "images": [
            {
                **images[query],
                "retrieved": [{"id": captions[place]["id"], "caption": captions[place]["caption"]} for place in found],
            }
            for query, found in zip(pictures, found_captions, strict=True)
        ],
    }
