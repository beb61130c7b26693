"""Figures of generated captions while a training goes on, so that the best checkpoint can be the best captioner."""

from __future__ import annotations

from tellapart.captioners.base import Captioner
from tellapart.data.prepare import Prepared
from tellapart.decoding.search import decode_rows
from tellapart.metrics import evaluate
from tellapart.recipe import DecodingSettings

FAMILIES = ("bleu", "cider", "diversity")


def measure_captions(
    captioner: Captioner, prepared: Prepared, images: int, decoding: DecodingSettings
) -> dict[str, float]:
    """Caption the first so many validation images and score them: BLEU, CIDEr-D, diversity.

    Args:
        captioner: in eval mode.
        prepared: data and features.
        images: how many.
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
