"""Validation figures of generated captions or of retrieval, to choose the best checkpoint during training."""

from __future__ import annotations

from tellapart.captioners.base import Captioner
from tellapart.data.prepare import Prepared
from tellapart.decoding.search import decode_rows
from tellapart.decoding.settings import DecodingSettings
from tellapart.evaluation.retrieval import rank_split
from tellapart.metrics import evaluate, summarize_retrieval
from tellapart.retrievers.base import Retriever

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


def measure_retrieval(retriever: Retriever, prepared: Prepared) -> dict[str, float]:
    """Rank the whole validation split both ways: R@1, R@5, R@10, ranks and R@sum, as fractions.

    Args:
        retriever: in eval mode.
        prepared: data and features.
    """
    return summarize_retrieval(rank_split(retriever, prepared, "val").ranks).figures()
