"""Columns of the studies' tables. This module must not import torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A figure in a study's table: its name, its heading, and its format (see `pages.base.shown`)."""

    figure: str
    heading: str
    kind: str = "figure"

    @property
    def scale(self) -> int:
        """What differences are multiplied with: those of shares are in percentage points."""
        return 100 if self.kind in ("percent", "points") else 1

    @property
    def lower_is_better(self) -> bool:
        """Of ranks, of captions that stop in the middle, and of how much the captions of an image repeat each other.

        >>> Column("under_judge_mean_rank", "mean rank").lower_is_better, Column("CIDEr", "CIDEr").lower_is_better
        (True, False)
        """
        return self.figure.endswith("mean_rank") or self.figure == "bad_endings" or "mBLEU" in self.figure


# Captions.
CAPTION_SCORES = tuple(
    Column(figure, heading)
    for figure, heading in (
        ("Bleu_1", "B-1"),
        ("Bleu_2", "B-2"),
        ("Bleu_3", "B-3"),
        ("Bleu_4", "B-4"),
        ("METEOR", "METEOR"),
        ("ROUGE_L", "ROUGE-L"),
        ("CIDEr", "CIDEr"),
    )
)
MEAN_RANK = Column("self_retrieval_mean_rank", "mean rank", "number")
# Captions that find their image first, by who reads them; then what they say of scenes, whose content is known.
CAPTION_HEADLINES = (
    Column("self_retrieval_R@1", "R@1, own model", "percent"),
    Column("under_judge_R@1", "R@1, frozen start", "percent"),
    Column("under_listener_R@1", "R@1, independent retriever", "percent"),
    Column("true_listener_R@1", "R@1, true listener", "percent"),
    Column("truth", "truth", "percent"),
    Column("difference_named", "difference named", "percent"),
    Column("CIDEr", "CIDEr"),
)
DISTINCTIVENESS = (
    *(Column(f"self_retrieval_R@{k}", f"R@{k}", "percent") for k in (1, 5, 10)),
    MEAN_RANK,
    Column("under_judge_R@1", "R@1, frozen start", "percent"),
    Column("distinct", "distinct", "percent"),
)
# What captions say besides: how much, in how many words, how often the same; and whether they stop in the middle.
SAYING = (
    Column("claims", "claims", "number"),
    Column("mean_length", "words", "number"),
    Column("distinct", "distinct", "percent"),
    Column("bad_endings", "bad endings", "percent"),
)

# Retrieval.
DIRECTIONS = {"image_to_text": "image→text", "text_to_image": "text→image"}
RECALLS = tuple(
    Column(f"{direction}_R@{k}", f"{name} R@{k}", "points")
    for direction, name in DIRECTIONS.items()
    for k in (1, 5, 10)
)
RECALL_SUM = Column("R@sum", "R@sum", "points")
RETRIEVAL_HEADLINES = (RECALLS[0], RECALLS[3], RECALL_SUM)
SPREAD = tuple(Column(f"{direction}_negative_SD", f"SD of negatives, {name}") for direction, name in DIRECTIONS.items())
SPEEDS = (
    Column("images_per_second", "images embedded / s", "count"),
    Column("captions_per_second", "captions embedded / s", "count"),
    Column("pairs_per_second", "pairs compared / s", "count"),
)
