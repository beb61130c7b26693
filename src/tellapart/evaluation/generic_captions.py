"""The most generic and the most specific captions of a data set, and how generic anyone's captions are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tellapart.evaluation.entropy_sums import Entropies
from tellapart.evaluation.retrieval_entropy import RetrievalEntropy, percentiles_among
from tellapart.evaluation.true_listener import TrueListener
from tellapart.files import check_output

# A higher correlation of entropy and length is told as a warning.
LONG = 0.2

Row = dict[str, Any]


def caption_rows(found: RetrievalEntropy) -> list[Row]:
    """All captions of the split, the most generic first; of equal ones in record order.

    A row has `id` (the image), `caption`, `entropy` (in nats), `percentile` (from 0, specific, to 1, generic),
    `retriever` (its name) and `seen` (whether that retriever was trained on the caption).
    """
    gallery, percentiles = found.gallery, found.percentiles()
    names = [judge.name for judge in found.judges]
    return [
        {
            "id": gallery.ids[gallery.image_of_caption[place]],
            "caption": gallery.captions[place],
            "entropy": round(float(found.entropies[place]), 5),
            "percentile": round(float(percentiles[place]), 5),
            "retriever": names[found.judge[place]],
            "seen": bool(found.seen[place]),
        }
        for place in np.argsort(-percentiles, kind="stable").tolist()
    ]


def sentence_rows(found: RetrievalEntropy, sentences: Sequence[str]) -> list[Row]:
    """Anyone's captions, in their order: `caption`, `entropy`, and `percentile` among the captions of the split.

    There is no percentile if the split has no captions.
    """
    entropies, percentiles = found.of_others(sentences)
    rows: list[Row] = [
        {"caption": sentence, "entropy": round(float(entropy), 5)}
        for sentence, entropy in zip(sentences, entropies, strict=True)
    ]
    if len(found.entropies):
        for row, percentile in zip(rows, percentiles, strict=True):
            row["percentile"] = round(float(percentile), 5)
    return rows


def both_ends(rows: Sequence[Row], count: int) -> tuple[list[Row], list[Row]]:
    """The most generic rows, and the most specific ones, most specific first; each wording once.

    >>> rows = [{"caption": text} for text in ("a dog", "A dog", "a cat", "two grey cats on a red sofa")]
    >>> [[row["caption"] for row in end] for end in both_ends(rows, 2)]
    [['a dog', 'a cat'], ['two grey cats on a red sofa']]
    """
    first = _distinct(rows, count, set())
    taken = {_wording(row) for row in first}
    return first, _distinct(reversed(rows), count, taken)


def _distinct(rows: Iterable[Row], count: int, taken: set[str]) -> list[Row]:
    found: dict[str, Row] = {}
    for row in rows:
        if len(found) == count:
            break
        if (wording := _wording(row)) not in taken:
            found.setdefault(wording, row)
    return list(found.values())


def _wording(row: Row) -> str:
    return " ".join(row["caption"].lower().split())


def length_correlation(found: RetrievalEntropy) -> float:
    """Spearman's correlation of how generic a caption is with its number of words; 0 if all have equally many."""
    words = np.array([len(caption.split()) for caption in found.gallery.captions], np.float64)
    return _rank_correlation(found.percentiles(), words)


def describe_truth(found: RetrievalEntropy, listener: TrueListener) -> str:
    """Whether captions of high entropy are generic in truth: on scenes it is known how many of them a caption fits."""
    fitting = listener.fitting(found.gallery.captions)
    percentiles = found.percentiles()
    generic, specific = (np.exp(np.log(fitting[half]).mean()) for half in (percentiles >= 0.5, percentiles < 0.5))
    return (
        f"Correlation of entropy with the number of scenes in which a caption is right: "
        f"{_rank_correlation(percentiles, fitting):+.2f}. The generic half fits {generic:.1f} scenes (geometric mean), "
        f"the specific half {specific:.1f}."
    )


def _rank_correlation(percentiles: Entropies, values: Entropies) -> float:
    """Spearman's correlation; 0 if all values are equal."""
    ranks = percentiles_among(values, values)
    if ranks.std() == 0 or percentiles.std() == 0:
        return 0.0
    return float(np.corrcoef(percentiles, ranks)[0, 1])


def describe_judges(found: RetrievalEntropy) -> str:
    """Who judged, whether a retriever judged captions that it was trained on, and whether long captions look generic.

    A generic caption is short. If long captions have a high entropy, the retriever is more often unsure about them
    than they are generic.
    """
    names = " and ".join(judge.name for judge in found.judges)
    count, seen = len(found.seen), int(found.seen.sum())
    if not count:
        without = f"{found.images} images without captions, judged by {names}: how generic a caption is among them."
        return "\n".join([without, *_describe_trainings(found)])
    lines = [f"{count} captions compared with {found.images} images by {names}."]
    lines += _describe_trainings(found)
    if seen:
        lines.append(
            f"Warning: not cross-fitted. {seen} captions were judged by a retriever that was trained on them, so they "
            "look more specific than they are. Train a retriever with data.half=1 and one with data.half=2, and give "
            "both."
        )
    elif all(judge.is_run for judge in found.judges):
        lines.append("No caption was judged by a retriever that was trained on it.")
    correlation = length_correlation(found)
    lines.append(f"Correlation of entropy with the number of words: {correlation:+.2f}.")
    if correlation > LONG:
        lines.append(
            "Warning: long captions have a high entropy, and they are rarely generic. This retriever is unsure about "
            "them; take a better one."
        )
    return "\n".join(lines)


def _describe_trainings(found: RetrievalEntropy) -> list[str]:
    """What the retrievers were trained on that are model folders: of these it is not known caption by caption."""
    lines = []
    for judge in found.judges:
        if judge.trained_on is not None and not judge.is_run:
            lines.append(
                f"{judge.name} was trained on {judge.trained_on}; captions of that training look more specific than "
                "they are."
            )
        elif not judge.is_run:
            lines.append(f"It is not known what {judge.name} was trained on.")
    return lines


def check_rows(path: Path, inputs: Iterable[str | Path]) -> None:
    """Raise unless the rows can be written to this file."""
    check_output(path, "caption", "entropy", inputs=inputs)
