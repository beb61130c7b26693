"""The COCO server (CL's Table 2): its result files, and scores against 5 and 40 captions per image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tellapart.data.records import Record
from tellapart.files import write_json
from tellapart.metrics import evaluate
from tellapart.studies.columns import CAPTION_SCORES
from tellapart.studies.measure_captions import CaptionMeasure
from tellapart.studies.result import ArmResult

CAPTIONS_PER_IMAGE = {"C5": 5, "C40": 40}


class ServerMeasure(CaptionMeasure):
    """Captions as usual; also C5 and C40, and a result file per arm and seed, named as the server expects."""

    def finish(self, rows: Sequence[ArmResult], folder: Path) -> dict[str, Any]:
        split = self.study.split
        for row in rows:
            for seed, one in enumerate(row.seeds):
                records = one.run.data.dataset.split(split)
                captions = [item["caption"] for item in one.evaluation.rows]
                algorithm = row.arm.key if seed == 0 else f"{row.arm.key}-seed{seed}"
                path = folder / "server" / f"captions_{split}2014_{algorithm}_results.json"
                write_json(path, server_results(records, captions))
                one.figures.update(server_figures(records, captions))
        return super().finish(rows, folder)


def server_results(records: Sequence[Record], captions: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a result file: `{"image_id": int, "caption": str}`; without numeric ids, images are numbered from 1.

    >>> server_results([Record("000042", "a.jpg", "test", ())], ["a dog"])
    [{'image_id': 42, 'caption': 'a dog'}]
    """
    numbers = all(record.id.isdigit() for record in records)
    ids = [int(record.id) if numbers else position for position, record in enumerate(records, start=1)]
    return [{"image_id": id, "caption": caption} for id, caption in zip(ids, captions, strict=True)]


def server_figures(records: Sequence[Record], captions: Sequence[str]) -> dict[str, float]:
    """Scores against the first 5 captions of each image (C5), and the first 40 (C40) if all images have more than 5.

    The server's own captions are hidden; these are the data set's.
    """
    candidates = {record.id: caption for record, caption in zip(records, captions, strict=True)}
    figures: dict[str, float] = {}
    for name, count in CAPTIONS_PER_IMAGE.items():
        if name != "C5" and any(len(record.captions) <= CAPTIONS_PER_IMAGE["C5"] for record in records):
            continue
        corpus = evaluate({record.id: record.captions[:count] for record in records}, candidates).corpus
        figures |= {f"{name} {c.figure}": corpus[c.figure] for c in CAPTION_SCORES if c.figure in corpus}
    return figures
