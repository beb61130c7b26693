"""What runs a model to measure it: caption a split, score the captions, and let each caption look for its image.

Everything is written into the run folder, with what it was made from, and found again on the next call:
`captions.jsonl`, `per_image.jsonl`, `scores.json`; of other splits than the test one, `captions-val.jsonl` and so on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from tellapart.data.prepare import Prepared
from tellapart.data.records import Record
from tellapart.decoding.search import Caption, decode_rows
from tellapart.evaluation.retrieval import RankedCaptions, rank_captions_under
from tellapart.evaluation.self_retrieval import KS, SHOWN, SelfRetrieval, self_retrieval
from tellapart.files import digest_of, read_json, read_jsonl, write_json, write_jsonl
from tellapart.metrics import evaluate, summarize_ranks
from tellapart.models import add_measured, model_digest
from tellapart.progress import ProgressLine
from tellapart.run import Run

# Counts changes of what is measured or how: figures of another count are measured again.
MEASURED_BY = 2


@dataclass(frozen=True)
class Evaluation:
    """The measured figures of one run on one split.

    Attributes:
        corpus: metric -> figure over the split; recalls and mean rank of self-retrieval among them.
        rows: one per image: id, caption, log_prob, ended, CIDEr, Bleu_4; and, for images in the self-retrieval study,
            rank and retrieved (ids of the first images its caption finds).
        not_reported: metric -> why it could not be computed here.
    """

    corpus: dict[str, float]
    rows: list[dict[str, Any]]
    not_reported: dict[str, str] = field(default_factory=dict)

    def values(self, metric: str) -> np.ndarray:
        """One metric of every image that has it, in row order."""
        return np.array([row[metric] for row in self.rows if metric in row], dtype=np.float64)

    @property
    def retrieval_rows(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if "rank" in row]


def evaluate_run(run: Run, split: str = "test", retrieval_images: int | None = None) -> Evaluation:
    """Measure a run, or find what an earlier call measured.

    Args:
        run: a finished training.
        split: the images to caption.
        retrieval_images: take only the first so many images into the self-retrieval study (its cost is quadratic).
    """
    prepared = run.data
    records = prepared.dataset.split(split)
    made_from = digest_of(
        {
            "model": model_digest(run.folder),
            "data": prepared.dataset.digest,
            "decoding": run.recipe.decoding.model_dump(),
            "split": split,
            "retrieval_images": retrieval_images,
            "measured_by": MEASURED_BY,
        }
    )
    ending = "" if split == "test" else f"-{split}"
    scores_path, per_image_path = run.folder / f"scores{ending}.json", run.folder / f"per_image{ending}.jsonl"
    if scores_path.exists() and (found := read_json(scores_path, "scores"))["made_from"] == made_from:
        measured = Evaluation(found["corpus"], read_jsonl(per_image_path), found["not_reported"])
        ranks = measured.values("rank")
        return replace(measured, corpus=measured.corpus | retrieval_figures(ranks, len(ranks)))

    captions = caption_records(run, prepared, records)
    training = [caption for record in prepared.dataset.split("train") for caption in record.captions]
    scores = evaluate(
        {record.id: record.captions for record in records},
        {record.id: said.caption for record, said in zip(records, captions, strict=True)},
        training_captions=training,
    )
    judged = records[:retrieval_images]
    said = [caption.caption for caption in captions[: len(judged)]]
    found_images = rank_captions(run, prepared, judged, said, f"self-retrieval {run.recipe.name}", SHOWN)
    # All together and the scores last: an interrupted call leaves no files of different models side by side.
    scores_path.unlink(missing_ok=True)
    rows: list[dict[str, Any]] = caption_rows([r.id for r in records], captions)
    write_jsonl(run.folder / f"captions{ending}.jsonl", rows)
    for row in rows:
        row.update({metric: figures[row["id"]] for metric, figures in scores.per_image.items()})
    for row, rank, first in zip(rows, found_images.ranks.tolist(), found_images.first.tolist(), strict=False):
        row.update(rank=rank, retrieved=[judged[position].id for position in first])
    corpus = {**scores.corpus, **retrieval_figures(found_images.ranks, found_images.images)}
    write_jsonl(per_image_path, rows)
    add_measured(run.folder, split, corpus)
    written = {"made_from": made_from, "split": split, "images": len(records), "corpus": corpus}
    write_json(scores_path, {**written, "not_reported": scores.not_reported})
    return Evaluation(corpus, rows, scores.not_reported)


def retrieval_figures(ranks: np.ndarray, images: int) -> dict[str, float]:
    """Self-retrieval figures by name, with the chance level beside."""
    summary = summarize_ranks(ranks, images, [k for k in KS if k <= images])
    figures = {f"self_retrieval_R@{k}": share for k, share in summary.recalls.items()}
    return {
        **figures,
        "self_retrieval_mean_rank": summary.mean,
        "self_retrieval_chance_R@1": summary.chance[1],
        "self_retrieval_images": images,
    }


def caption_rows(ids: list[str], captions: list[Caption]) -> list[dict[str, Any]]:
    """Rows of `captions.jsonl`: id, caption, log_prob, ended."""
    return [{"id": id, **asdict(caption)} for id, caption in zip(ids, captions, strict=True)]


def caption_records(run: Run, prepared: Prepared, records: list[Record]) -> list[Caption]:
    """Captions of these records by the run's model and its recipe's decoding."""
    captioner = run.captioner
    prepared.store.check(prepared.dataset, captioner.encoder)
    line = ProgressLine(f"captioning {run.recipe.name}", " images")
    rows = [prepared.dataset.row(record.id) for record in records]
    return decode_rows(captioner, prepared.store, rows, run.recipe.decoding, line.update)


def judge_digest(judge: Run) -> str:
    """Names who ranks: the weights and, for a retriever, how it reads them."""
    weights = model_digest(judge.folder)
    return weights if judge.recipe.trains == "captioner" else digest_of([weights, judge.recipe.retriever])


def rank_captions_by_similarity(judge: Run, records: list[Record], captions: list[str], label: str) -> RankedCaptions:
    """Rank these images for each caption under a retriever, by the features it reads."""
    prepared = judge.data
    rows = [prepared.dataset.row(record.id) for record in records]
    line = ProgressLine(label, " images")
    return rank_captions_under(judge.retriever, prepared, rows, captions, line.update)


def rank_captions(
    run: Run, prepared: Prepared, records: list[Record], captions: list[str], label: str, shown: int = 0
) -> SelfRetrieval:
    """Rank these images for each caption under the run's model, whoever wrote the captions; show the first few."""
    rows = [prepared.dataset.row(record.id) for record in records]
    line = ProgressLine(label, " pairs")
    return self_retrieval(run.captioner, prepared.store, rows, captions, shown, line.update)
