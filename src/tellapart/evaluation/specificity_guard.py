"""How well greedy captions find their image during training, by the teaching retriever and by an independent one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tellapart.captioners.base import Captioner
from tellapart.data.features import FeatureStore
from tellapart.decoding.search import decode_rows
from tellapart.decoding.settings import DecodingSettings
from tellapart.decoding.views import read_both
from tellapart.errors import RunError
from tellapart.evaluation.retrieval import AT_ONCE, PairScores
from tellapart.evaluation.true_listener import TrueListener
from tellapart.files import Stored, read_model, write_json
from tellapart.metrics import summarize_ranks
from tellapart.retrievers.base import Retriever
from tellapart.text import PAD

# Role -> what the names of its figures begin with.
PREFIXES = {"retriever": "", "listener": "listener_"}
# The true listener's figures; captions that claim nothing have no truth.
TRUE = ("true_listener_mean_rank", "true_listener_R@1", "truth")
START = "specificity-start.json"
# The figure that is 1 when captions please only the retriever that teaches.
ONLY_TEACHER = "only_teacher"


class StartFile(Stored):
    """`specificity-start.json`: the figures before the first step."""

    figures: dict[str, float]


def measure_specificity(
    captioner: Captioner,
    store: FeatureStore,
    rows: Sequence[int],
    judges: Mapping[str, tuple[Retriever, FeatureStore]],
    start: Captioner | None = None,
    true_listener: TrueListener | None = None,
) -> dict[str, float]:
    """Caption images by the likeliest words and rank the images for each caption under each judge.

    Gives `mean_rank` (from 1) and `R@1` under the `retriever`, `listener_mean_rank` and `listener_R@1` under the
    `listener`; on scenes `true_listener_mean_rank`, `true_listener_R@1` and `truth`; `distinct`, the share of captions
    that differ from all others; of these captions, `greedy_words` (per caption), `greedy_repeated` (share of words that
    come before in the same caption) and, with `start`, `greedy_fluency` (ln p per token under it).

    Args:
        captioner: in eval mode.
        store: the features that it reads.
        rows: the images' rows in every store.
        judges: role (`retriever`, `listener`) -> a retriever in eval mode, and the features that it reads.
        start: the captioner that training started from, in eval mode; it reads the same features.
        true_listener: knows the scenes of these rows.
    """
    greedy = DecodingSettings(beam=1, max_words=captioner.vocabulary.max_words)
    captions = [one.caption for one in decode_rows(captioner, store, rows, greedy)]
    figures = {}
    for role, (retriever, features) in judges.items():
        ranks = PairScores(retriever, features, rows, captions).ranks(np.arange(len(rows))).text_to_image
        summary = summarize_ranks(ranks, len(rows), [1])
        figures[f"{PREFIXES[role]}mean_rank"] = summary.mean
        figures[f"{PREFIXES[role]}R@1"] = summary.recalls[1]
    if true_listener is not None:
        found = true_listener.figures(captions)
        figures |= {name: float(np.nanmean(found[name])) for name in TRUE if not np.isnan(found[name]).all()}
    figures["distinct"] = len(set(captions)) / len(captions)
    figures["greedy_words"] = sum(len(caption.split()) for caption in captions) / len(captions)
    figures["greedy_repeated"] = repeated_words(captions)
    return figures if start is None else {**figures, "greedy_fluency": fluency(start, store, rows, captions)}


def repeated_words(captions: Sequence[str]) -> float:
    """The share of words that come before in the same caption.

    >>> repeated_words(["a dog and a dog", "a cat"])
    0.2857142857142857
    """
    words = [caption.split() for caption in captions]
    count = sum(map(len, words))
    return 1 - sum(len(set(said)) for said in words) / count if count else 0.0


@torch.no_grad()
def fluency(captioner: Captioner, store: FeatureStore, rows: Sequence[int], captions: Sequence[str]) -> float:
    """ln p per token of captions of these images under a captioner, the end token included.

    Args:
        captioner: in eval mode.
        store: the features that it reads.
        rows: the images' rows in the store.
        captions: one per image.
    """
    reader = read_both(captioner, store)
    total, count = 0.0, 0
    for start in range(0, len(rows), AT_ONCE):
        grid = torch.from_numpy(store.views(rows[start : start + AT_ONCE])).to(captioner.device)
        tokens = captioner.tokenize(captions[start : start + AT_ONCE])
        image = torch.arange(len(tokens), device=tokens.device)
        total += float(reader.log_prob(reader.encode(grid), tokens, image).double().sum())
        count += int((tokens != PAD).sum())
    return total / count


@dataclass
class SpecificityGuard:
    """Measures validation captions, and warns when they please the retriever that teaches, but not the listener.

    The figures before the first step are kept in the run folder. `only_teacher` is 1 if, since then, the mean rank
    under the retriever has improved and that under the listener has worsened, else 0.

    Args:
        captioner, store, rows, judges, start, true_listener: see `measure_specificity`.
        folder: the run folder.
    """

    captioner: Captioner
    store: FeatureStore
    rows: Sequence[int]
    judges: Mapping[str, tuple[Retriever, FeatureStore]]
    folder: Path
    start: Captioner | None = None
    true_listener: TrueListener | None = None

    def begin(self) -> None:
        """Measure the start, unless an earlier session did."""
        if not (self.folder / START).exists():
            write_json(self.folder / START, {"figures": self._measure()})

    def __call__(self) -> dict[str, float]:
        return self._with_warning(self._measure())

    def at_start(self) -> dict[str, float]:
        """The figures before the first step, under the names of a validation."""
        return self._with_warning(self._begun())

    def _with_warning(self, figures: dict[str, float]) -> dict[str, float]:
        if "listener" not in self.judges:
            return figures
        only_teacher = pleases_only_the_teacher(self._begun(), figures)
        if only_teacher:
            print(only_teacher, file=sys.stderr, flush=True)
        return {**figures, ONLY_TEACHER: float(bool(only_teacher))}

    def _begun(self) -> dict[str, float]:
        return read_model(self.folder / START, StartFile, "figures of the start", "remove it", RunError).figures

    def _measure(self) -> dict[str, float]:
        return measure_specificity(self.captioner, self.store, self.rows, self.judges, self.start, self.true_listener)


def pleases_only_the_teacher(start: Mapping[str, float], now: Mapping[str, float]) -> str:
    """A warning if the mean rank under the retriever is better than at the start and that under the listener worse.

    >>> start = {"mean_rank": 30.0, "listener_mean_rank": 40.0}
    >>> pleases_only_the_teacher(start, {"mean_rank": 20.0, "listener_mean_rank": 35.0})
    ''
    """
    own, other = (f"{PREFIXES[role]}mean_rank" for role in ("retriever", "listener"))
    if not (now[own] < start[own] and now[other] > start[other]):
        return ""
    return (
        f"warning: since the start the mean rank under the teaching retriever improved from {start[own]:.1f} to "
        f"{now[own]:.1f}, but under the independent listener it worsened from {start[other]:.1f} to {now[other]:.1f}: "
        "the captions may please only their teacher; train less, or add likelihood"
    )
