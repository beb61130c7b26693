"""Validation figures of generated captions or of retrieval, to choose the best checkpoint during training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tellapart.captioners.base import Captioner
from tellapart.data.prepare import Prepared
from tellapart.decoding.search import decode_rows
from tellapart.decoding.settings import DecodingSettings
from tellapart.evaluation.retrieval import rank_split
from tellapart.metrics import evaluate
from tellapart.retrievers.base import Retriever

# Images that are enough to learn the names of the figures.
FEW = 10
FAMILIES = ("bleu", "cider", "diversity")


def measure_captions(
    captioner: Captioner, prepared: Prepared, images: int, decoding: DecodingSettings
) -> dict[str, float]:
    """Caption the first validation images and score the captions: BLEU, CIDEr-D, diversity.

    Args:
        captioner: in eval mode.
        prepared: data and features.
        images: number of images.
        decoding: how captions are generated.
    """
    records = [record for record in prepared.dataset.split("val") if record.captions][:images]
    rows = [prepared.dataset.row(record.id) for record in records]
    said = decode_rows(captioner, prepared.store, rows, decoding)
    return evaluate(
        {record.id: record.captions for record in records},
        {record.id: one.caption for record, one in zip(records, said, strict=True)},
        metrics=FAMILIES,
    ).corpus


def measure_retrieval(retriever: Retriever, prepared: Prepared, images: int | None = None) -> dict[str, float]:
    """Rank the validation split both ways: R@1, R@5, R@10, ranks and R@sum, as fractions; R@sum of each branch alone.

    Args:
        retriever: in eval mode.
        prepared: data and features.
        images: only the first so many images; by default all.
    """
    return rank_split(retriever, prepared, "val", images=images).figures()


@dataclass(frozen=True)
class ValidationMeasure:
    """The further figures of a validation, and a quick way to learn their names.

    Attributes:
        whole: measures the figures.
        quick: gives figures of the same names from a few images, to check `training.monitor` before the first step.
    """

    whole: Callable[[], dict[str, float]]
    quick: Callable[[], dict[str, float]]

    def __call__(self) -> dict[str, float]:
        return self.whole()


def together(measures: Sequence[ValidationMeasure]) -> ValidationMeasure:
    """All the figures of several measures."""
    return ValidationMeasure(
        lambda: {name: figure for one in measures for name, figure in one.whole().items()},
        lambda: {name: figure for one in measures for name, figure in one.quick().items()},
    )
