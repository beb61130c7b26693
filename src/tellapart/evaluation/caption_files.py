"""Score files of captions, whoever wrote them, against a data set's references.

    {"391895": "a man on a bike", ...}                        a JSON object; a list of captions instead of one is fine
    {"id": "391895", "caption": "a man on a bike"}            JSONL rows, one a line, as `tellapart caption` writes them
    [{"image_id": 391895, "caption": "a man on a bike"}, …]   COCO's result format

Rows of the same image are several captions of it, the first the best. The figures of a single caption are those of each
image's first one; from two captions per image on, those among them (metrics/diversity.py) come beside.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tellapart.data.images import SUFFIXES
from tellapart.data.prepare import open_dataset
from tellapart.data.records import Dataset, Record
from tellapart.data.settings import DataSettings
from tellapart.errors import DataError
from tellapart.files import is_utf8, read_json, read_jsonl, write_json, write_jsonl
from tellapart.metrics import Interval, PairedDifference, evaluate, tokenize
from tellapart.metrics.bootstrap import CorpusStatistic, confidence_intervals, mean_statistic, paired_bootstraps
from tellapart.metrics.diversity import ORACLE, candidate_scores
from tellapart.metrics.ngrams import ORDERS
from tellapart.progress import ProgressLine

SAMPLES = 10_000
SEED = 0
# Captions tokenised between two signs of life.
_BLOCK = 20_000

# COCO's file names: the year's first form, and that of 2017.
_COCO_NAME = re.compile(r"(?:COCO_(?:train|val|test)\d{4}_)?(\d{12})", re.ASCII)
_WHOLE_NUMBER = re.compile(r"0|[1-9]\d{0,11}", re.ASCII)


@dataclass(frozen=True)
class CaptionEvaluation:
    """The measured figures of one file of captions.

    Attributes:
        path: the file.
        captions: record id -> captions, in the split's order.
        corpus: figure over the split, by name.
        intervals: 95 % bootstrap intervals of those that can be resampled.
        rows: one per image: id, caption (or captions), and its figures.
        not_reported: metric -> why it could not be computed here.
        against: the other file's evaluation, if there is one.
        differences: figure -> this file minus the other one, with interval and p value.
    """

    path: Path
    captions: dict[str, list[str]]
    corpus: dict[str, float]
    intervals: dict[str, Interval]
    rows: list[dict[str, Any]]
    not_reported: dict[str, str] = field(default_factory=dict)
    against: CaptionEvaluation | None = None
    differences: dict[str, PairedDifference] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            "captions": self.path.name,
            "images": len(self.captions),
            "captions_per_image": len(next(iter(self.captions.values()))),
            "corpus": self.corpus,
            "intervals": {name: [interval.low, interval.high] for name, interval in self.intervals.items()},
            "not_reported": self.not_reported,
            "bootstrap": {"samples": SAMPLES, "seed": SEED},
        }
        if self.against is not None:
            content["against"] = {
                "captions": self.against.path.name,
                "corpus": self.against.corpus,
                "differences": {name: asdict(difference) for name, difference in self.differences.items()},
            }
        return content


def evaluate_captions(
    path: Path,
    data: str | None,
    split: str = "test",
    against: Path | None = None,
    out: Path | None = None,
    metrics: Sequence[str] | None = None,
) -> CaptionEvaluation:
    """Score a file of anyone's captions, and write `scores.json` and `per_image.jsonl`.

    Args:
        path: the captions; every image of the split needs as many as the others.
        data: the data set with the references, in any layout of docs/data.md.
        split: the images.
        against: another file of captions of the same images, for paired differences.
        out: folder for the two files; by default the captions' own.
        metrics: families of figures, as in `tellapart.metrics.evaluate`; by default all that can be computed here.
    """
    folder = path.parent if out is None else out
    rows, scores = folder / "per_image.jsonl", folder / "scores.json"
    for file in (path, *([] if against is None else [against])):
        if not file.exists():
            raise DataError(f"{file}: this caption file does not exist; give a run folder or a file of captions")
        if file.resolve() in (rows.resolve(), scores.resolve()):
            raise DataError(f"{file}: the figures would be written over this file; name another folder with --out")
    if data is None:
        raise DataError(f"{path}: name the data set that holds the references with --data")
    if (folder / "run.json").exists():
        # A run's own scores are found again by what they were made from; these are not.
        raise DataError(f"{folder}: a run folder keeps the run's own scores; name another one with --out")
    dataset = open_dataset(DataSettings(source=data))
    measure = _Measure(dataset, split, metrics)
    captions = measure.read(path)
    others = None if against is None else measure.read(against)
    found = measure.evaluate(path, captions)
    if against is not None and others is not None:
        found = measure.compare(found, measure.evaluate(against, others))
    # The scores last, and old ones first gone: an interrupted call leaves no files of different captions side by side.
    scores.unlink(missing_ok=True)
    write_jsonl(rows, found.evaluation.rows)
    write_json(scores, {"data": dataset.name, "split": split, **found.evaluation.to_json()})
    return found.evaluation


def table(evaluation: CaptionEvaluation) -> str:
    """The figures as plain text: name, figure, 95 % interval; with another file its figure, the difference and p."""
    other = evaluation.against
    lines = [["", evaluation.path.name, "95 % interval"]]
    if other is not None:
        lines[0] += [other.path.name, "difference", "95 % interval", "p"]
    for name, figure in evaluation.corpus.items():
        line = [name, f"{figure:.4f}", _interval(evaluation.intervals.get(name))]
        if other is not None:
            line.append(f"{other.corpus[name]:.4f}" if name in other.corpus else "–")
            difference = evaluation.differences.get(name)
            if difference is None:
                line += ["–", "–", "–"]
            else:
                interval = f"[{difference.low:+.4f}, {difference.high:+.4f}]"
                line += [f"{difference.difference:+.4f}", interval, f"{difference.p_value:.4f}"]
        lines.append(line)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rows = [
        [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))] for line in lines
    ]
    missing = [f"{name} is not reported: {why}" for name, why in evaluation.not_reported.items()]
    return "\n".join([*("  ".join(row).rstrip() for row in rows), *missing])


def _interval(interval: Interval | None) -> str:
    return "–" if interval is None else f"[{interval.low:.4f}, {interval.high:.4f}]"


# --- files ------------------------------------------------------------------------------------------------------------


def read_captions(path: Path) -> dict[str, list[str]]:
    """Captions by id, as the file writes it: a JSON object, JSONL rows, or COCO's result format.

    Every image has the same number of captions, or it is a `DataError`.
    """
    rows: Any = read_json(path, "caption file") if path.suffix == ".json" else read_jsonl(path, "caption file")
    if isinstance(rows, dict):
        rows = [{"id": id, "caption": caption} for id, caption in rows.items()]
    if not isinstance(rows, list):
        raise DataError(f"{path}: not a list of captions; docs/metrics.md shows the forms")
    captions: dict[str, list[str]] = {}
    for number, row in enumerate(rows, start=1):
        id, texts = _row(row)
        if id is None or not texts:
            raise DataError(f"{path}: row {number} needs 'id' (or 'image_id') and 'caption'; docs/metrics.md has forms")
        if not all(map(is_utf8, (id, *texts))):
            raise DataError(f"{path}: row {number} has signs that no UTF-8 file can hold; write it anew")
        captions.setdefault(id, []).extend(texts)
    if not captions:
        raise DataError(f"{path}: no caption is in this file")
    first = next(iter(captions))
    for id, texts in captions.items():
        if len(texts) != len(captions[first]):
            raise DataError(
                f"{path}: '{id}' has {_counted(len(texts), 'caption')} where '{first}' has {len(captions[first])}; "
                "give every image the same number"
            )
    return captions


def _row(row: Any) -> tuple[str | None, list[str]]:
    """Id and captions of one row; None or nothing where they are missing or of another kind."""
    if not isinstance(row, dict):
        return None, []
    id = row.get("image_id", row.get("id"))
    texts = row.get("caption", row.get("captions"))
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return None, []
    return (str(id) if isinstance(id, str | int) and not isinstance(id, bool) else None), texts


def match_ids(ids: Iterable[str], records: Sequence[Record]) -> dict[str, str]:
    """Which record each id of a caption file means; ids that mean none are left out.

    An id means the record of that id; else the one whose id it ends with, after a slash, with or without the picture's
    ending (`tellapart caption holiday/` writes `holiday/beach.jpg`); else the one of the same COCO number (391895 is
    COCO_val2014_000000391895.jpg). Two ids that mean one record are a `DataError`.

    >>> records = [Record("beach.jpg", "beach.jpg", "test", ()), Record("a/beach.jpg", "a/beach.jpg", "test", ())]
    >>> match_ids(["holiday/beach.jpg", "holiday/a/beach.jpg", "sea.jpg"], records)
    {'holiday/beach.jpg': 'beach.jpg', 'holiday/a/beach.jpg': 'a/beach.jpg'}
    """
    known = {record.id for record in records}
    numbered: dict[str, set[str]] = {}
    for record in records:
        if (number := _coco_number(record.id)) is not None:
            numbered.setdefault(number, set()).add(record.id)
    meant: dict[str, str] = {}
    by: dict[str, str] = {}
    for id in ids:
        found = id if id in known else _by_ending(id, known) or _by_number(id, numbered)
        if found is None:
            continue
        if found in by:
            raise DataError(f"'{by[found]}' and '{id}' both mean the image '{found}'; give each image one id")
        meant[id] = found
        by[found] = id
    return meant


def _by_ending(id: str, known: set[str]) -> str | None:
    """The longest known id that this path ends with."""
    parts = PurePosixPath(id).parts
    for start in range(len(parts)):
        ending = PurePosixPath(*parts[start:])
        for form in (ending, ending.with_suffix("") if ending.suffix.lower() in SUFFIXES else ending):
            if str(form) in known:
                return str(form)
    return None


def _by_number(id: str, numbered: Mapping[str, set[str]]) -> str | None:
    found = numbered.get(_coco_number(id) or "", set())
    return next(iter(found)) if len(found) == 1 else None


def _coco_number(id: str) -> str | None:
    """391895 for "391895", "000000391895.jpg" and "val2014/COCO_val2014_000000391895.jpg"; None for other names."""
    name = PurePosixPath(id).name
    stem = PurePosixPath(name).stem if PurePosixPath(name).suffix.lower() in SUFFIXES else name
    if match := _COCO_NAME.fullmatch(stem):
        return str(int(match[1]))
    return id if _WHOLE_NUMBER.fullmatch(id) else None


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


# --- figures ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    """An evaluation, and what its figures are resampled from."""

    evaluation: CaptionEvaluation
    statistics: dict[str, CorpusStatistic]


class _Measure:
    """Captions of one split: its references and training captions are tokenised once for all files."""

    def __init__(self, dataset: Dataset, split: str, metrics: Sequence[str] | None) -> None:
        self._records = dataset.split(split)
        self._split = split
        self._metrics = metrics
        for record in self._records:
            if not record.captions:
                raise DataError(
                    f"{dataset.name}: '{record.id}' has no reference caption; write one or remove the image"
                )
        self._training_captions = [text for record in dataset if record.split == "train" for text in record.captions]
        families = np.array([record.family or record.id for record in self._records])
        self._families: NDArray[np.int64] = np.unique(families, return_inverse=True)[1]

    # Not before the files of captions were read: a mistake in them is told at once.
    @cached_property
    def _references(self) -> list[list[str]]:
        return _tokenize_groups([record.captions for record in self._records], "references")

    @cached_property
    def _training(self) -> list[str] | None:
        """Tokenised training captions, for novelty; None where there are none or they are what is measured on."""
        if not self._training_captions or self._split == "train":
            return None
        return _tokenize(self._training_captions, "training captions")

    def read(self, path: Path) -> dict[str, list[str]]:
        """Captions by record id, of all images of the split."""
        captions = read_captions(path)
        try:
            meant = match_ids(captions, self._records)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        unknown = [id for id in captions if id not in meant]
        if unknown:
            such = f" ({len(unknown)} such ids)" if len(unknown) > 1 else ""
            raise DataError(f"{path}: '{unknown[0]}'{such} is not in split '{self._split}'; check --split")
        found = {meant[id]: texts for id, texts in captions.items()}
        missing = [record.id for record in self._records if record.id not in found]
        if missing:
            # Scoring only what is captioned would quietly make the test set easier.
            which = f"'{missing[0]}' has" if len(missing) == 1 else f"{len(missing)} images ('{missing[0]}', …) have"
            raise DataError(f"{path}: {which} no caption; every image of split '{self._split}' needs one")
        return {record.id: found[record.id] for record in self._records}

    def evaluate(self, path: Path, captions: dict[str, list[str]]) -> _Found:
        ids = list(captions)
        tokens = _tokenize_groups(list(captions.values()), "captions")
        first = [texts[0] for texts in tokens]
        scores = evaluate(
            dict(zip(ids, self._references, strict=True)),
            dict(zip(ids, first, strict=True)),
            tokenized=True,
            training_captions=self._training,
            metrics=self._metrics,
        )
        corpus = dict(scores.corpus)
        per_image = {name: np.array([values[id] for id in ids]) for name, values in scores.per_image.items()}
        statistics = {name: _around(corpus[name], values) for name, values in per_image.items()}
        statistics |= _bleu_statistics(self._references, first) if "Bleu_4" in corpus else {}
        statistics |= self._counted(first, corpus)
        if len(tokens[0]) > 1 and "distinct" in corpus:
            several = candidate_scores(
                tokens,
                self._references,
                training_captions=self._training,
                oracle=[name for name in ORACLE if any(metric.lower().startswith(name) for metric in corpus)],
                on_progress=ProgressLine("measuring several captions per image", " captions").update,
            )
            corpus |= several.corpus
            per_image |= several.per_image
            statistics |= {name: mean_statistic(values) for name, values in several.per_image.items()}
        intervals: dict[str, Interval] = {}
        if self._families.max() > 0:
            intervals = confidence_intervals(statistics, SAMPLES, SEED, self._families)
        rows = []
        for row, (id, texts) in enumerate(captions.items()):
            said = {"caption": texts[0]} if len(texts) == 1 else {"captions": texts}
            rows.append({"id": id, **said, **{name: float(values[row]) for name, values in per_image.items()}})
        return _Found(CaptionEvaluation(path, captions, corpus, intervals, rows, scores.not_reported), statistics)

    def compare(self, found: _Found, other: _Found) -> _Found:
        """The same evaluation with its differences from another one."""
        differences: dict[str, PairedDifference] = {}
        if self._families.max() > 0:
            differences = paired_bootstraps(other.statistics, found.statistics, SAMPLES, SEED, self._families)
        evaluation = replace(found.evaluation, against=other.evaluation, differences=differences)
        return _Found(evaluation, found.statistics)

    def _counted(self, captions: Sequence[str], corpus: Mapping[str, float]) -> dict[str, CorpusStatistic]:
        """Of the diversity figures, those that are means; distinct captions and words are no sums over images."""
        words = [tuple(caption.split()) for caption in captions]
        values = {"mean_length": np.array([len(caption) for caption in words])}
        if self._training is not None:
            known = {tuple(caption.split()) for caption in self._training} | {()}
            values["novel"] = np.array([caption not in known for caption in words])
        return {name: mean_statistic(value) for name, value in values.items() if name in corpus}


def _bleu_statistics(references: Sequence[Sequence[str]], captions: Sequence[str]) -> dict[str, CorpusStatistic]:
    """Corpus BLEU-1…4 as functions of what is summed over images: correct and all n-grams, both lengths (bleu.py)."""
    columns = np.empty((len(captions), 2 * ORDERS + 2))
    for image, (texts, caption) in enumerate(zip(references, captions, strict=True)):
        words, others = caption.split(), [text.split() for text in texts]
        for n in range(ORDERS):
            allowed: Counter[tuple[str, ...]] = Counter()
            for other in others:
                allowed |= Counter(zip(*(other[i:] for i in range(n + 1)), strict=False))
            said = Counter(zip(*(words[i:] for i in range(n + 1)), strict=False))
            columns[image, n] = (said & allowed).total()
            columns[image, ORDERS + n] = said.total()
        closest = min((abs(len(other) - len(words)), len(other)) for other in others)[1]
        columns[image, -2:] = len(words), closest
    return {f"Bleu_{n + 1}": CorpusStatistic(columns, partial(_bleu, n=n)) for n in range(ORDERS)}


def _bleu(sums: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """BLEU-(n + 1) of summed columns."""
    precision = (sums[..., : n + 1] + 1e-15) / (sums[..., ORDERS : ORDERS + n + 1] + 1e-9)
    ratio = (sums[..., -2] + 1e-15) / (sums[..., -1] + 1e-9)
    return np.asarray(np.prod(precision, axis=-1) ** (1 / (n + 1)) * np.exp(np.minimum(0.0, 1.0 - 1.0 / ratio)))


def _around(figure: float, values: NDArray[np.float64]) -> CorpusStatistic:
    """A corpus figure that varies as the mean of the images' figures does, for want of something better."""
    shift = figure - float(values.mean())
    mean = mean_statistic(values)
    return CorpusStatistic(mean.columns, lambda sums: mean.combine(sums) + shift)


def _tokenize(captions: Sequence[str], what: str) -> list[str]:
    line = ProgressLine(f"tokenising {what}", " captions")
    tokens: list[str] = []
    for start in range(0, len(captions), _BLOCK):
        tokens += tokenize(captions[start : start + _BLOCK])
        if len(captions) > _BLOCK:
            line.update(len(tokens), len(captions))
    return tokens


def _tokenize_groups(groups: Sequence[Sequence[str]], what: str) -> list[list[str]]:
    """The same for the captions of each image."""
    tokens = iter(_tokenize([caption for group in groups for caption in group], what))
    return [[next(tokens) for _ in group] for group in groups]
