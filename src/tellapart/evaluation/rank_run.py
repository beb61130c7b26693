"""Self-retrieval of a run as a command: whose captions, who ranks, which images; kept, shared out and found again."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tellapart.data.features import WHOLE, Part
from tellapart.data.records import Record
from tellapart.errors import DataError, RunError
from tellapart.evaluation.caption_files import match_ids, read_captions
from tellapart.evaluation.evaluate import caption_records, caption_rows, judge_digest, rank_captions_by_similarity
from tellapart.evaluation.self_retrieval import self_retrieval_part
from tellapart.files import digest_of, read_json, read_jsonl, write_json, write_jsonl
from tellapart.metrics import RankSummary
from tellapart.models import model_digest
from tellapart.progress import ProgressLine
from tellapart.run import Run


@dataclass(frozen=True)
class RankedRun:
    """What `rank_run` measured.

    Attributes:
        folder: holds `ranks.jsonl` (id, caption, rank, and log_prob or, under a retriever, similarity) and
            `self_retrieval.json` (the figures).
        figures: recalls with chance beside, mean and median rank, and the share of the work that was saved.
    """

    folder: Path
    figures: dict[str, float]


def rank_run(
    run: Run,
    captions: Path | None = None,
    under: Run | None = None,
    split: str = "test",
    images: int | None = None,
    part: Part = WHOLE,
    out: Path | None = None,
) -> RankedRun | None:
    """Let captions look for their images, and write `ranks.jsonl` and `self_retrieval.json`.

    Args:
        run: whose captions are ranked, and who ranks them.
        captions: a file of captions instead (JSON, JSONL, COCO results); of several per image the first is taken.
        under: another run that ranks them, such as the likelihood model that a contrastive one started from, or a
            retriever: it ranks by similarity.
        split: the images.
        images: only the first so many.
        part: the blocks of images this process ranks; others do the others, all with the same `out`.
        out: folder for the files; by default `self-retrieval` or `self-retrieval-under-RUN` in the run's folder.

    Returns:
        The figures; `None` while other parts are missing.

    Example:
        >>> ranked = rank_run(open_run("runs/cl"), under=open_run("runs/mle"))   # doctest: +SKIP
        >>> ranked.figures["R@1"], ranked.figures["chance_R@1"]                  # doctest: +SKIP
        (0.58, 0.001)
    """
    judge = under or run
    prepared = judge.data
    if run.data.dataset.digest != prepared.dataset.digest:
        raise RunError(f"{judge.folder} has other data than {run.folder}; rank under a run on the same data")
    records = prepared.dataset.split(split)[:images]
    if captions is None and run.recipe.trains == "retriever":
        raise RunError(
            f"{run.folder}: a retriever writes no captions; give a captioner's run, and the retriever as under"
        )
    folder = out or run.folder / ("self-retrieval" if under is None else f"self-retrieval-under-{under.folder.name}")
    said = _said(run, records, folder) if captions is None else _read(captions, records, split)
    made_from = digest_of(
        {
            "judge": judge_digest(judge),
            "data": prepared.dataset.digest,
            "captions": [[record.id, caption] for record, caption in zip(records, said, strict=True)],
        }
    )
    if (found := _found(folder, made_from)) is not None:
        return found
    label = f"self-retrieval {run.recipe.name} under {judge.recipe.name}"
    work = folder / f"blocks-{made_from[:16]}"
    if judge.recipe.trains == "retriever":
        if part != WHOLE:
            raise RunError(f"{judge.folder}: ranking under a retriever is quick and not shared out; leave out the part")
        by_similarity = rank_captions_by_similarity(judge, records, said, label)
        figures = _recalls(by_similarity.summary())
        scores = {"similarity": by_similarity.similarities.tolist(), "rank": by_similarity.ranks.tolist()}
    else:
        captioner = judge.captioner
        prepared.store.check(prepared.dataset, captioner.encoder)
        line = ProgressLine(label, " pairs")
        rows = [prepared.dataset.row(record.id) for record in records]
        ranked = self_retrieval_part(captioner, prepared.store, rows, said, work, part, on_progress=line.update)
        if ranked is None:
            return _found(folder, made_from)  # of another part that found all, and has just cleared them away
        figures = {**_recalls(ranked.summary()), "shared": ranked.shared, "pruned": ranked.pruned}
        scores = {"log_prob": ranked.log_probs.tolist(), "rank": ranked.ranks.tolist()}
    (folder / "self_retrieval.json").unlink(missing_ok=True)  # no files of different captions side by side
    write_jsonl(folder / "ranks.jsonl", _rows(records, said, scores))
    figures = {"images": len(records), **figures}
    content = {"made_from": made_from, "judge": judge.recipe.name, "split": split, "figures": figures}
    write_json(folder / "self_retrieval.json", content)
    shutil.rmtree(work, ignore_errors=True)
    return RankedRun(folder, figures)


def _found(folder: Path, made_from: str) -> RankedRun | None:
    """What an earlier call measured on the same captions."""
    path = folder / "self_retrieval.json"
    if not path.exists() or (found := read_json(path, "file of figures"))["made_from"] != made_from:
        return None
    return RankedRun(folder, found["figures"])


def _said(run: Run, records: list[Record], folder: Path) -> list[str]:
    """Captions by the run's own model and decoding; kept, so that other parts and later calls find them."""
    prepared = run.data
    ids = [record.id for record in records]
    made_from = [model_digest(run.folder), prepared.dataset.digest, run.recipe.decoding.model_dump(), ids]
    path = folder / f"captions-{digest_of(made_from)[:16]}.jsonl"
    if not path.exists():
        write_jsonl(path, caption_rows(ids, caption_records(run, prepared, records)))
    return [row["caption"] for row in read_jsonl(path, "caption file")]


def _read(path: Path, records: list[Record], split: str) -> list[str]:
    """Captions of a file, in the records' order; those of other images are left aside."""
    captions = read_captions(path)
    try:
        said = {id: captions[named][0] for named, id in match_ids(captions, records).items()}
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    for record in records:
        if record.id not in said:
            raise DataError(f"{path}: '{record.id}' of split '{split}' has no caption; check --split, or use --images")
    return [said[record.id] for record in records]


def _rows(records: list[Record], said: list[str], scores: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Rows of `ranks.jsonl`: id, caption, and what the judge gave each caption."""
    columns = zip(records, said, *scores.values(), strict=True)
    return [
        {"id": record.id, "caption": caption, **dict(zip(scores, own, strict=True))}
        for record, caption, *own in columns
    ]


def _recalls(summary: RankSummary) -> dict[str, float]:
    figures: dict[str, float] = {}
    for k, recall in summary.recalls.items():
        figures |= {f"R@{k}": recall, f"chance_R@{k}": summary.chance[k]}
    return {**figures, "mean_rank": summary.mean, "median_rank": summary.median}
