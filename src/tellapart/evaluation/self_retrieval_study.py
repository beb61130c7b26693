"""The self-retrieval study of the CL paper (sec. 4.1) as one command: captions look for their images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tellapart.data.parts import WHOLE, Part
from tellapart.evaluation.caption_files import captions_of_images
from tellapart.evaluation.evaluate import open_judge
from tellapart.evaluation.judge import CaptionRanks, rank_captions
from tellapart.evaluation.run_captions import run_captions
from tellapart.files import check_output, write_json, write_jsonl
from tellapart.run import Run


@dataclass(frozen=True)
class SelfRetrievalStudy:
    """What `self_retrieval_study` measured.

    Attributes:
        folder: holds `ranks.jsonl` (id, caption, score, rank) and `self_retrieval.json` (the figures).
        figures: recalls with chance beside, mean and median rank, and the share of the work that was saved.
    """

    folder: Path
    figures: dict[str, float]


def self_retrieval_study(
    run: Run,
    *,
    captions: Path | None = None,
    under: Sequence[Run | str | Path] = (),
    split: str = "test",
    images: int | None = None,
    part: Part = WHOLE,
    out: Path | None = None,
) -> SelfRetrievalStudy | None:
    """Let captions look for their images, and write `ranks.jsonl` and `self_retrieval.json`.

    Args:
        run: whose captions are ranked, and who ranks them.
        captions: a file of captions instead; of several per image the first is taken.
        under: another judge: a run of a captioner or retriever; several runs of captioners are an ensemble.
        split: the images.
        images: only the first so many.
        part: the blocks of images this process ranks; other processes rank the others.
        out: folder for the files; by default `self-retrieval` or `self-retrieval-under-RUN` in the run folder.

    Returns:
        The figures; `None` while other parts are missing.
    """
    judge = open_judge(under or [run])
    names = "+".join(one.folder.name for one in judge.runs)
    folder = out or run.folder / ("self-retrieval" if not under else f"self-retrieval-under-{names}")
    inputs = [] if captions is None else [captions]
    check_output(folder / "ranks.jsonl", "id", "caption", "log_prob|similarity", "rank", inputs=inputs)
    check_output(folder / "self_retrieval.json", "judge", "split", "figures", inputs=inputs)
    judge.check_data(run.data.dataset, str(run.folder))
    records = run.data.dataset.split(split)[:images]
    if captions is None:
        first = [group["captions"][0] for group in run_captions(run, split, images)]
    else:
        first = [texts[0] for texts in captions_of_images(captions, records, split, only_these=False)]
    ids = [record.id for record in records]
    ranking = rank_captions(judge, ids, first, part=part)
    if ranking is None:
        return None
    rows = [
        {"id": id, "caption": caption, ranking.score_name: score, "rank": rank}
        for id, caption, score, rank in zip(ids, first, ranking.scores.tolist(), ranking.ranks.tolist(), strict=True)
    ]
    write_jsonl(folder / "ranks.jsonl", rows)
    figures = {"images": float(len(ids)), **_recalls(ranking), **ranking.saved}
    write_json(folder / "self_retrieval.json", {"judge": judge.name, "split": split, "figures": figures})
    return SelfRetrievalStudy(folder, figures)


def _recalls(ranking: CaptionRanks) -> dict[str, float]:
    summary = ranking.summary()
    figures: dict[str, float] = {}
    for k, recall in summary.recalls.items():
        figures |= {f"R@{k}": recall, f"chance_R@{k}": summary.chance[k]}
    return {**figures, "mean_rank": summary.mean, "median_rank": summary.median}
