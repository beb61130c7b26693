"""What the COCO server takes and how it scores: result files, and figures against five references and against forty."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.data.records import Record
from tellapart.files import write_json
from tellapart.metrics import evaluate

if TYPE_CHECKING:
    from tellapart.studies.result import Row

REFERENCES = {"C5": 5, "C40": 40}
METRICS = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr")


def server_results(records: Sequence[Record], captions: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a result file: `{"image_id": int, "caption": str}`; ids that are no numbers are counted from 1.

    >>> server_results([Record("000042", "a.jpg", "test", ())], ["a dog"])
    [{'image_id': 42, 'caption': 'a dog'}]
    """
    numbers = all(record.id.isdigit() for record in records)
    ids = [int(record.id) if numbers else position for position, record in enumerate(records, start=1)]
    return [{"image_id": id, "caption": caption} for id, caption in zip(ids, captions, strict=True)]


def server_figures(records: Sequence[Record], captions: Sequence[str]) -> dict[str, float]:
    """Figures against the first five references of each image, and against the first forty where it has more than five.

    The server's own references are hidden; these are the data's.
    """
    said = {record.id: caption for record, caption in zip(records, captions, strict=True)}
    figures: dict[str, float] = {}
    for name, count in REFERENCES.items():
        if name != "C5" and any(len(record.captions) <= REFERENCES["C5"] for record in records):
            continue
        references = {record.id: record.captions[:count] for record in records}
        corpus = evaluate(references, said).corpus
        figures |= {f"{name} {metric}": corpus[metric] for metric in METRICS if metric in corpus}
    return figures


def add_server_figures(rows: Sequence[Row], split: str, folder: Path) -> None:
    """Write each model's result file, named as the server wants it, and add C5 and C40 to its figures."""
    for row in rows:
        for seed, one in enumerate(row.seeds):
            records = one.run.data.dataset.split(split)
            captions = [item["caption"] for item in one.evaluation.rows]
            algorithm = row.model.key if seed == 0 else f"{row.model.key}-seed{seed}"
            path = folder / "server" / f"captions_{split}2014_{algorithm}_results.json"
            write_json(path, server_results(records, captions))
            one.figures.update(server_figures(records, captions))
