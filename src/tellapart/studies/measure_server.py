"""The COCO server (CL's Table 2): its result files, and scores against 5 and 40 captions per image."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tellapart.data.coco_ids import coco_ids, server_results
from tellapart.data.records import Record
from tellapart.errors import DataError
from tellapart.files import write_json
from tellapart.metrics import evaluate
from tellapart.studies.columns import CAPTION_SCORES
from tellapart.studies.measure_captions import CaptionMeasure
from tellapart.studies.result import ArmResult, Result

CAPTIONS_PER_IMAGE = {"C5": 5, "C40": 40}


class ServerMeasure(CaptionMeasure):
    """Captions as usual; also C5 and C40, and a result file per arm and seed, named as the server expects.

    The server knows images by their COCO ids. If images have none, no result file is written, and a line says so.
    """

    def finish(self, rows: Sequence[ArmResult], folder: Path) -> dict[str, Any]:
        split = self.study.split
        records = rows[0].seeds[0].run.data.dataset.split(split)
        try:
            ids, problem = coco_ids(records), ""
        except DataError as error:
            ids, problem = [], f"No result files for the COCO server: {error}."
            print(problem, file=sys.stderr, flush=True)
        for row in rows:
            for seed, one in enumerate(row.seeds):
                captions = [item["caption"] for item in one.evaluation.rows]
                if ids:
                    algorithm = row.arm.key if seed == 0 else f"{row.arm.key}-seed{seed}"
                    path = folder / "server" / f"captions_{split}2014_{algorithm}_results.json"
                    write_json(path, server_results(ids, captions))
                one.figures.update(server_figures(records, captions))
        return super().finish(rows, folder) | ({"no_server_files": problem} if problem else {})

    def conclusion(self, result: Result) -> list[str]:
        problem = result.more.get("no_server_files")
        return [*super().conclusion(result), *([problem] if problem else [])]


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
