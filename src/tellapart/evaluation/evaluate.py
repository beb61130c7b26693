"""Measure captions: those of a run, those of a file that anyone wrote, or people's; all in the same way.

Files written, into the run folder or beside the captions, or into a folder of choice:

- `captions.jsonl` (of a run): id, caption, log_prob, ended;
- `per_image.jsonl`: every image's captions and figures;
- `scores.json`: figures with 95 % intervals, and what they were made from.

Of other splits than the test split they are `captions-val.jsonl` and so on. What was measured before is found again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from tellapart.data.prepare import Prepared, open_dataset, prepare
from tellapart.data.records import Dataset
from tellapart.data.settings import DataSettings
from tellapart.errors import DataError, RunError
from tellapart.evaluation.caption_files import captions_of_images
from tellapart.evaluation.caption_scorer import SAMPLES, SEED, CaptionScorer, Measured, mean_of_measured
from tellapart.evaluation.judge import Judge, rank_captions
from tellapart.evaluation.people import PEOPLE, leave_one_out
from tellapart.evaluation.run_captions import run_captions
from tellapart.evaluation.self_retrieval import FORMAT as SELF_RETRIEVAL_FORMAT
from tellapart.evaluation.self_retrieval import KS, SHOWN
from tellapart.evaluation.similar_images import cider_between_similar, clip_scores_under, consensus_captions
from tellapart.evaluation.true_listener import FORMAT as TRUE_LISTENER_FORMAT
from tellapart.evaluation.true_listener import open_true_listener
from tellapart.files import (
    REBUILD,
    Stored,
    check_output,
    find_or_make,
    read_models,
    write_json,
    write_jsonl,
)
from tellapart.metrics import Interval, PairedDifference, summarize_ranks
from tellapart.models import add_measured
from tellapart.run import Run, open_run

# The ranks in a row of `per_image.jsonl`, and what the figures made of them are called.
RANKS = {"rank": "self_retrieval", "rank_under_judge": "under_judge", "rank_under_listener": "under_listener"}
# One of these is in every row of `per_image.jsonl`, unless only few figures are measured.
FIGURES = "CIDEr|Bleu_1|METEOR|ROUGE_L|SPICE|CIDErBtw|rank|rank_under_judge|rank_under_listener"


class ScoreFile(Stored):
    """`scores.json`."""

    corpus: dict[str, int | float]
    intervals: dict[str, tuple[float, float]]
    not_reported: dict[str, str]


class ImageRow(Stored):
    """A row of `per_image.jsonl`; its other keys are figures."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float]

    id: str
    caption: str = ""
    captions: list[str] = Field([], min_length=1)
    rank: int = Field(1, ge=1, le=2**31)
    rank_under_judge: int = Field(1, ge=1, le=2**31)
    rank_under_listener: int = Field(1, ge=1, le=2**31)
    retrieved: list[str] = Field([])


@dataclass(frozen=True)
class Evaluation:
    """The measured figures of captions of one split.

    Attributes:
        label: the run folder or the file.
        folder: where the results are.
        split: which images.
        corpus: figure over the split, by name.
        intervals: 95 % bootstrap intervals of those that can be resampled.
        rows: one per image: id, caption (or captions), its figures and, if it was ranked, rank and retrieved.
        not_reported: metric -> why it could not be computed here.
        against: the evaluation that this one is compared with, if any.
        differences: figure -> this one minus the other, with interval and p value.
    """

    label: str
    folder: Path
    split: str
    corpus: dict[str, float]
    intervals: dict[str, Interval]
    rows: list[dict[str, Any]]
    not_reported: dict[str, str] = field(default_factory=dict)
    against: Evaluation | None = None
    differences: dict[str, PairedDifference] = field(default_factory=dict)

    @property
    def captions(self) -> dict[str, list[str]]:
        """Captions by image id."""
        return {row["id"]: row["captions"] if "captions" in row else [row["caption"]] for row in self.rows}

    def values(self, name: str) -> NDArray[np.float64]:
        """One figure of every image that has it, in row order."""
        return np.array([row[name] for row in self.rows if name in row], dtype=np.float64)

    @property
    def ranked_rows(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if "rank" in row]


@dataclass(frozen=True)
class _Source:
    """Captions of one split, where they come from and where results go."""

    label: str
    folder: Path
    settings: DataSettings  # of the data
    dataset: Dataset
    split: str
    captions: list[list[str]]
    prepared: Callable[[], Prepared]  # gives the images with features, encoded now if they are not
    run: Run | None = None  # that wrote the captions
    references: str | None = None  # digest of the references, where they are not all captions of the data

    def path(self, name: str) -> Path:
        return _path(self.folder, name, self.split)


def evaluate(
    what: Run | str | Path,
    data: str | None = None,
    *,
    split: str = "test",
    against: Run | str | Path | None = None,
    under: Sequence[Run | str | Path] = (),
    listener: Run | str | Path | None = None,
    retrieval_images: int | None = None,
    consensus: int | None = None,
    similar: int | None = None,
    metrics: Sequence[str] | None = None,
    out: str | Path | None = None,
) -> Evaluation:
    """Measure a run's captions or a file of anyone's captions, or find what an earlier call measured.

    Args:
        what: a run of a captioner, its folder, or a file of captions.
        data: for a file: the data set with people's captions, in any layout of docs/data.md.
        split: the images.
        against: another run or file of the same images, for paired differences.
        under: a judge that also ranks images for the captions: a run of a captioner or retriever; several runs of
            captioners are an ensemble.
        listener: another run of a retriever or captioner that also ranks images for the captions: one that had no part
            in the training of any captioner. It may read features of another encoder.
        retrieval_images: rank only the first so many images (the work grows with their square).
        consensus: with several captions per image, keep this many by consensus re-ranking first.
        similar: also measure CIDErBtw with this many similar images.
        metrics: families of figures, as in `tellapart.metrics.evaluate`; by default all that can be computed here.
        out: folder for the results; by default the run folder, or the folder of the captions.

    Example:
        >>> found = evaluate("captions.jsonl", "dataset_flickr8k.json", against="runs/mle")      # doctest: +SKIP
        >>> found.corpus["CIDEr"], found.differences["CIDEr"].p_value                            # doctest: +SKIP
    """
    judges = open_judges(under, listener)
    source = _open(what, data, split, out, differences=against is not None)
    other = None if against is None else _open(against, data, split, None, source)
    if other is not None and other.dataset.digest != source.dataset.digest:
        raise RunError(f"{other.label} has other data than {source.label}; compare captions of the same images")
    for judge in judges.values():
        judge.check_data(source.dataset, source.label)
    options = _Options(judges, retrieval_images, consensus, similar, metrics)
    scorer = CaptionScorer(source.dataset, split, metrics)
    found = _measure(source, scorer, options)
    if other is None:
        return found
    control = _measure(other, scorer, options, keep=other.run is not None)
    differences = scorer.differences(measured_again(found, scorer), measured_again(control, scorer))
    write_json(
        source.path("differences.json"),
        {
            "captions": found.label,
            "against": control.label,
            "differences": {name: asdict(difference) for name, difference in differences.items()},
        },
    )
    return _with(found, against=control, differences=differences)


def evaluate_people(
    run: Run | str | Path,
    *,
    split: str = "test",
    choice: int = 0,
    under: Sequence[Run | str | Path] = (),
    listener: Run | str | Path | None = None,
    retrieval_images: int | None = None,
    similar: int | None = None,
    metrics: Sequence[str] | None = None,
    out: str | Path | None = None,
) -> Evaluation:
    """Measure what people wrote as if a model had: of each image one caption, with its other captions as references.

    There is no model of its own, so there is no self-retrieval; judge, listener and true listener rank as ever.

    Args:
        run: gives the data and, by default, the folder for the results.
        split: the images; each needs at least two captions.
        choice: which caption of an image is measured: this number, from 0, modulo the number of its captions.
        under, listener, retrieval_images, similar, metrics: as for `evaluate`.
        out: folder for the results; by default `people` in the run folder.

    Example:
        >>> people = evaluate_people("runs/mle", under=["runs/mle"], listener="runs/ranking")    # doctest: +SKIP
        >>> people.corpus["under_listener_R@1"], people.corpus["true_listener_R@1"]              # doctest: +SKIP
    """
    judges = open_judges(under, listener)
    run = run if isinstance(run, Run) else open_run(run)
    folder = run.folder / PEOPLE if out is None else Path(out)
    _check_outputs(folder, split, differences=False)
    captions, others = leave_one_out(run.data.dataset, split, choice)
    for judge in judges.values():
        judge.check_data(run.data.dataset, str(run.folder))
    source = _Source(
        PEOPLE,
        folder,
        run.recipe.data,
        run.data.dataset,
        split,
        [[caption] for caption in captions],
        lambda: run.data,
        references=others.digest,
    )
    options = _Options(judges, retrieval_images, None, similar, metrics)
    return _measure(source, CaptionScorer(others, split, metrics), options)


@dataclass(frozen=True)
class _Options:
    judges: Mapping[str, Judge]  # who ranks, besides the captions' own model: key of the rank in a row -> judge
    retrieval_images: int | None
    consensus: int | None
    similar: int | None
    metrics: Sequence[str] | None

    def made_from(self) -> list[Any]:
        digests = {key: judge.digest for key, judge in self.judges.items()}
        judge = digests.pop("rank_under_judge", None)
        others = [digests] if digests else []
        return [judge, self.retrieval_images, self.consensus, self.similar, self.metrics, *others]

    def name(self, key: str) -> str | None:
        return self.judges[key].name if key in self.judges else None


def open_judge(under: Sequence[Run | str | Path]) -> Judge:
    """The judge made of these runs or run folders."""
    return Judge(tuple(run if isinstance(run, Run) else open_run(run) for run in under))


def open_judges(under: Sequence[Run | str | Path], listener: Run | str | Path | None) -> dict[str, Judge]:
    """The judge and the listener, if they are given, by the key of their ranks."""
    judges = {"rank_under_judge": open_judge(under)} if under else {}
    return judges if listener is None else {**judges, "rank_under_listener": open_judge([listener])}


# --- where captions come from -----------------------------------------------------------------------------------------


def _open(
    what: Run | str | Path,
    data: str | None,
    split: str,
    out: str | Path | None,
    beside: _Source | None = None,
    differences: bool = False,
) -> _Source:
    """The captions of a run or a file; `beside` gives the data where they are compared with others.

    Raises at once if the results cannot be written, `differences.json` among them if asked for.
    """
    if isinstance(what, Run) or Path(what).is_dir():
        run = what if isinstance(what, Run) else open_run(what)
        if data is not None and beside is None:
            raise RunError(f"{run.folder}: a run has its own data; --data is for files of captions")
        folder = run.folder if out is None else Path(out)
        _check_outputs(folder, split, differences=differences)
        captions = [group["captions"] for group in run_captions(run, split)]
        return _Source(
            str(run.folder), folder, run.recipe.data, run.data.dataset, split, captions, lambda: run.data, run
        )
    path = Path(what)
    folder = path.parent if out is None else Path(out)
    if not path.exists():
        raise DataError(f"{path}: this caption file does not exist; give a run folder or a file of captions")
    if beside is None and (folder / "run.json").exists():
        raise DataError(f"{folder}: a run folder keeps the run's own scores; name another one with --out")
    _check_outputs(folder if beside is None else beside.folder, split, path, differences=differences or bool(beside))
    if beside is not None:
        settings, dataset, prepared = beside.settings, beside.dataset, beside.prepared
    elif data is not None:
        settings = DataSettings(source=data)
        dataset, prepared = open_dataset(settings), lambda: prepare(settings)
    else:
        raise DataError(f"{path}: name the data set that holds the references with --data")
    captions = captions_of_images(path, dataset.split(split), split)
    return _Source(str(path), folder, settings, dataset, split, captions, prepared)


def _check_outputs(folder: Path, split: str, *inputs: Path, differences: bool) -> None:
    """Raise unless the files of an evaluation can be written into the folder."""
    scores = _path(folder, "scores.json", split)
    check_output(scores, "made_from", "corpus", inputs=inputs, reuse=True)
    # Rows of captions without figures are someone's captions.
    marks = () if scores.exists() else ("id", "caption|captions", FIGURES)
    check_output(_path(folder, "per_image.jsonl", split), *marks, inputs=inputs, reuse=True)
    if differences:
        check_output(_path(folder, "differences.json", split), "captions", "against", "differences", inputs=inputs)


def _path(folder: Path, name: str, split: str) -> Path:
    """The path of a result; other splits than `test` are in its name."""
    stem, dot, ending = name.partition(".")
    return folder / (name if split == "test" else f"{stem}-{split}{dot}{ending}")


# --- figures ----------------------------------------------------------------------------------------------------------


def _measure(source: _Source, scorer: CaptionScorer, options: _Options, keep: bool = True) -> Evaluation:
    """The evaluation of these captions; found or kept in the source's folder unless `keep` is false."""
    rows: list[dict[str, Any]] = []

    def make() -> dict[str, Any]:
        found, measured = _figures(source, scorer, options)
        rows.extend(found)
        if keep:
            write_jsonl(source.path("per_image.jsonl"), rows)
            if source.run is not None and source.folder == source.run.folder:
                add_measured(source.run.folder, source.split, measured.corpus)
        return _score_file(source, scorer, options, rows, measured)

    path = source.path("scores.json")
    if keep:
        content = find_or_make(path, _made_from(source, options), make, ScoreFile)
    else:
        content = ScoreFile.model_validate(make(), strict=False)
    if not content.intervals.keys() <= content.corpus.keys():
        raise DataError(f"{path}: is damaged (it has intervals of unknown figures); {REBUILD}")
    intervals = {name: Interval(content.corpus[name], low, high) for name, (low, high) in content.intervals.items()}
    if not rows:
        rows = _read_rows(source.path("per_image.jsonl"), [record.id for record in scorer.records], path)
    return Evaluation(source.label, source.folder, source.split, content.corpus, intervals, rows, content.not_reported)


def _figures(source: _Source, scorer: CaptionScorer, options: _Options) -> tuple[list[dict[str, Any]], Measured]:
    """Measure the captions: the rows of `per_image.jsonl`, and the figures."""
    captions = source.captions
    if options.consensus is not None:
        captions = consensus_captions(source.prepared(), source.split, captions, options.consensus)
    measured = scorer.measure(captions)
    rows = [_caption_row(record.id, texts) for record, texts in zip(scorer.records, captions, strict=True)]
    references = [record.captions for record in scorer.records]
    _add_ranks(source, captions, references, measured, rows, options)
    _add_true_listener(source, captions, measured, options)
    if options.similar is not None:
        first = [texts[0] for texts in captions]
        measured.add("CIDErBtw", cider_between_similar(source.prepared(), source.split, first, options.similar))
    for name, values in measured.per_image.items():
        for row, value in zip(rows, values.tolist(), strict=True):
            if np.isfinite(value):
                row[name] = value
    return rows, measured


def _score_file(
    source: _Source, scorer: CaptionScorer, options: _Options, rows: list[dict[str, Any]], measured: Measured
) -> dict[str, Any]:
    """The content of `scores.json`."""
    intervals = scorer.intervals(measured)
    return {
        "captions": Path(source.label).name,
        "data": source.dataset.name,
        "split": source.split,
        "images": len(rows),
        "captions_per_image": len(rows[0].get("captions", [""])),
        "judge": options.name("rank_under_judge"),
        "listener": options.name("rank_under_listener"),
        "corpus": measured.corpus,
        "intervals": {name: [interval.low, interval.high] for name, interval in intervals.items()},
        "not_reported": measured.not_reported,
        "bootstrap": {"samples": SAMPLES, "seed": SEED},
    }


def _made_from(source: _Source, options: _Options) -> list[Any]:
    """What decides the figures."""
    made_from: list[Any] = [source.dataset.digest, source.split, source.captions, options.made_from()]
    if source.run is not None:
        made_from += [source.run.model_digest, {"self_retrieval": SELF_RETRIEVAL_FORMAT}]
    if source.references is not None:
        made_from.append(source.references)
    made_from += [judge.data.pictures_digest() for judge in options.judges.values()]
    if source.run is not None or options.consensus is not None or options.similar is not None:
        made_from.append(source.prepared().pictures_digest())
    if source.settings.source == "scenes":
        made_from.append({"true_listener": TRUE_LISTENER_FORMAT})
    return made_from


def _read_rows(path: Path, ids: list[str], scores: Path) -> list[dict[str, Any]]:
    """The rows of these images, as an earlier call wrote them."""
    remedy = f"remove {scores} and run the same command again"
    rows = [row.model_dump(exclude_unset=True) for row in read_models(path, ImageRow, "file of figures", remedy)]
    whole = all(("caption" in row) != ("captions" in row) and set(row.get("retrieved", [])) <= set(ids) for row in rows)
    if [row["id"] for row in rows] != ids or not whole:
        raise DataError(f"{path}: is damaged (it does not have the rows of all images); {remedy}")
    return rows


def _caption_row(id: str, captions: Sequence[str]) -> dict[str, Any]:
    return {"id": id, "caption": captions[0]} if len(captions) == 1 else {"id": id, "captions": list(captions)}


def _add_ranks(
    source: _Source,
    captions: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    measured: Measured,
    rows: list[dict[str, Any]],
    options: _Options,
) -> None:
    """Ranks under the model that wrote the captions, the judge and the listener, into the rows and the figures."""
    first = [texts[0] for texts in captions][: options.retrieval_images]
    ids = [row["id"] for row in rows][: len(first)]
    own = {} if source.run is None else {"rank": Judge((source.run,))}
    for key, judge in {**own, **options.judges}.items():
        ranking = rank_captions(judge, ids, first, shown=SHOWN if key == "rank" else 0)
        assert ranking is not None  # all parts were ranked
        for row, rank in zip(rows, ranking.ranks.tolist(), strict=False):
            row[key] = rank
        if key == "rank":
            for row, found in zip(rows, ranking.first.tolist(), strict=False):
                row["retrieved"] = [ids[position] for position in found]
        _add_rank_figures(measured, RANKS[key], _column(rows, key))
        if key == "rank_under_judge" and judge.is_retriever:
            for name, values in clip_scores_under(judge, ids, first, references[: len(first)]).items():
                measured.add(name, np.concatenate([values, np.full(len(rows) - len(values), np.nan)]))


def _add_true_listener(
    source: _Source, captions: Sequence[Sequence[str]], measured: Measured, options: _Options
) -> None:
    """What the true listener makes of each image's first caption, if the data are the embedded scenes."""
    listener = open_true_listener(source.settings, source.dataset, source.split)
    if listener is None:
        return
    for name, values in listener.figures([texts[0] for texts in captions], options.retrieval_images).items():
        # A small split may have no near-duplicates, and captions may claim nothing.
        if np.isfinite(values).any():
            measured.add(name, values)
    images = int(np.isfinite(measured.per_image["true_listener_mean_rank"]).sum())
    measured.corpus |= {"true_listener_chance_R@1": 1 / images, "true_listener_images": images}


def _column(rows: Sequence[dict[str, Any]], key: str) -> NDArray[np.float64]:
    """One entry of every row, NaN where it is missing."""
    return np.array([row.get(key, np.nan) for row in rows], dtype=np.float64)


def _add_rank_figures(measured: Measured, name: str, ranks: NDArray[np.float64]) -> None:
    """Recalls, with chance beside, and mean rank; ranks are NaN for images that were not ranked."""
    ranked = ranks[np.isfinite(ranks)].astype(np.int64)
    images = len(ranked)
    summary = summarize_ranks(ranked, images, [k for k in KS if k <= images])
    for k, recall in summary.recalls.items():
        hits = np.where(np.isfinite(ranks), ranks <= k, np.nan)
        measured.statistics[f"{name}_R@{k}"] = mean_of_measured(hits)
        measured.corpus[f"{name}_R@{k}"] = recall
    measured.statistics[f"{name}_mean_rank"] = mean_of_measured(ranks)
    measured.corpus[f"{name}_mean_rank"] = summary.mean
    measured.corpus[f"{name}_chance_R@1"] = summary.chance[1]
    measured.corpus[f"{name}_images"] = images


def measured_again(evaluation: Evaluation, scorer: CaptionScorer) -> Measured:
    """A measurement with what it is resampled from, from an evaluation that may have been read from its files."""
    per_image = {
        name: _column(evaluation.rows, name)
        for name in evaluation.corpus
        if any(name in row for row in evaluation.rows)
    }
    measured = Measured(dict(evaluation.corpus), per_image, evaluation.not_reported)
    measured.statistics |= scorer.statistics(list(evaluation.captions.values()), measured.corpus, per_image)
    for key, name in RANKS.items():
        ranks = _column(evaluation.rows, key)
        if np.isfinite(ranks).any():
            _add_rank_figures(measured, name, ranks)
    return measured


def _with(evaluation: Evaluation, **changes: Any) -> Evaluation:
    return Evaluation(**{**vars(evaluation), **changes})
