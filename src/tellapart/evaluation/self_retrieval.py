"""Self-retrieval: does a caption find its own image? (CL paper, sec. 4.1.)

Each caption c_t queries all images, ranked by p(c_t | I_j) under a captioner: the one that wrote the captions, or
another one as an independent judge. A generic caption fits many images and ranks its own one low.

The ranks are exact, as if all captions × images were scored, but most scores need not be computed (`tree_scores`):

- equal captions are scored once;
- captions with a common prefix share its states;
- ln p can only fall as a caption grows, so an image whose ln p is below the true image's final score is dropped.
  The true images' scores are therefore computed first, in one pass over N pairs.

Scores within `tolerance` of the true image's are ties, and ties count against the caption: smaller differences depend
on batching, not on the model. The tolerance is proportional to |ln p|, as the rounding of float32 is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from tellapart.data.features import FeatureStore
from tellapart.data.neighbours import nearest_images
from tellapart.data.parts import WHOLE, Part
from tellapart.decoding.base import Decodable
from tellapart.decoding.views import read_both
from tellapart.errors import DataError
from tellapart.evaluation.prefix_tree import PrefixTree
from tellapart.evaluation.tree_scores import Reached, TreeScorer, pair_scores
from tellapart.files import REBUILD, Pieces, Stored, digest_of, read_model
from tellapart.metrics import RankSummary, summarize_ranks
from tellapart.models import weights_digest
from tellapart.text import END, PAD

KS = (1, 5, 10, 50, 500)
SHOWN = 5
# Images per progress update, and per file of an unfinished ranking.
SHARD = 32
# Pairs per file of those that are scored first.
PAIRS = 1024
# Scores that differ by less than this share of |ln p| are equal: 8 units of float32's precision, about 1e-6. Between
# teacher forcing and stepping up to 1.8 units were measured. The words of a likely caption have ln p near 0 but logits
# as large as others, and rounding follows the logits: |ln p| below 10 counts as 10.
ROUNDING = 8 * float(np.finfo(np.float32).eps)
SMALLEST = 10.0
# An image is dropped only if its score is lower by so many tolerances: it is then lower whatever the batching.
MARGIN = 10
# Version of ranks and of the files of an unfinished ranking; a change of the tolerance may change ranks.
FORMAT = 2

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class SelfRetrieval:
    """Ranks of the true images (1 is best), the first few images each caption retrieves, and the work it took.

    Attributes:
        ranks: `[captions]`; a tie counts against.
        log_probs: `[captions]`, ln p(caption | its own image).
        first: `[captions, shown]`, positions of the best images, best first.
        images: how many images were ranked.
        tokens: of all captions, end tokens included: steps for one image without any saving.
        prefixes: different prefixes among them: steps for one image, with sharing.
        steps: (prefix, image) that were run, of `prefixes × images`.
    """

    ranks: NDArray[np.int64]
    log_probs: NDArray[np.float64]
    first: NDArray[np.int64]
    images: int
    tokens: int
    prefixes: int
    steps: int

    @property
    def shared(self) -> float:
        """Share of the work that equal captions and equal beginnings save."""
        return 1 - self.prefixes / self.tokens

    @property
    def pruned(self) -> float:
        """Share of the rest that dropping images saves."""
        return 1 - self.steps / (self.prefixes * self.images)

    def summary(self) -> RankSummary:
        """Recall at 1, 5, 10, 50 and 500, as far as there are so many images, with chance beside; mean and median."""
        return summarize_ranks(self.ranks, self.images, [k for k in KS if k <= self.images])


def self_retrieval(
    captioner: Decodable,
    store: FeatureStore,
    rows: Sequence[int],
    captions: Sequence[str],
    shown: int = 0,
    on_progress: OnProgress | None = None,
) -> SelfRetrieval:
    """Rank all images for every caption; caption t belongs to image `rows[t]`.

    Args:
        captioner: whose p(c | I) ranks the images; in eval mode.
        store: features of the images.
        rows: the images' rows in the store.
        captions: one caption per image.
        shown: also give this many best images of each caption; this costs part of what dropping images saves.
        on_progress: called with pairs done and pairs in all.

    Example:
        >>> found = self_retrieval(captioner, store, rows, captions)     # doctest: +SKIP
        >>> found.summary().recalls[1], found.shared, found.pruned       # doctest: +SKIP
        (0.512, 0.63, 0.86)
    """
    found = self_retrieval_part(captioner, store, rows, captions, shown=shown, on_progress=on_progress)
    assert found is not None  # the whole is one part
    return found


def self_retrieval_part(
    captioner: Decodable,
    store: FeatureStore,
    rows: Sequence[int],
    captions: Sequence[str],
    folder: Path | None = None,
    part: Part = WHOLE,
    shown: int = 0,
    on_progress: OnProgress | None = None,
    on_targets: OnProgress | None = None,
) -> SelfRetrieval | None:
    """As `self_retrieval`, but finished blocks are kept: an interrupted call continues, processes can share the work.

    Args:
        captioner, store, rows, captions, shown: as for `self_retrieval`.
        folder: gets a folder `ranking-DIGEST` of finished blocks; the digest covers weights, captions and features.
            Without it nothing is kept.
        part: which blocks this call ranks; all by default.
        on_progress: called with pairs done and pairs in all, of this part.
        on_targets: the same for the pairs that are scored first.

    Returns:
        The ranks; `None` while blocks of other parts are missing.
    """
    study = _Study(captioner, store, rows, captions, shown)
    kept = Pieces(None if folder is None else folder / f"ranking-{study.digest()[:16]}")
    targets = kept.find("targets", study.check_targets) or kept.keep("targets", study.targets(kept, on_targets))
    starts = range(0, len(rows), SHARD)
    mine = starts[part.index :: part.of]
    missing = [start for start in mine if kept.find(_shard_name(start), study.check_block) is None]
    of = len(captions) * sum(len(study.shard(start)) for start in mine)
    done = of - len(captions) * sum(len(study.shard(start)) for start in missing)
    if on_progress is not None and missing:
        on_progress(done, of)  # where it begins: found blocks do not count for the rate
    for start in missing:
        kept.keep(_shard_name(start), study.rank(study.shard(start), targets))
        done += len(captions) * len(study.shard(start))
        if on_progress is not None:
            on_progress(done, of)
    together = _Together(study)
    for start in starts:
        block = kept.find(_shard_name(start), study.check_block)
        if block is None:
            return None
        together.add(block)
    return together.ranks(targets)


def tolerance(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """How close to each of these ln p another one is a tie: `ROUNDING` times |ln p|, which counts as 10 at least.

    >>> np.round(tolerance(np.array([-0.1, -10.0, -200.0, -np.inf])), 6).tolist()
    [1e-05, 1e-05, 0.000191, 1e-05]
    """
    return ROUNDING * np.maximum(SMALLEST, np.abs(np.where(np.isfinite(scores), scores, 0.0)))


class _Targets(Stored):
    """`targets.json` of an unfinished ranking."""

    own: list[float]
    floor: list[float]


class _Scores(Stored):
    """`pairs-N.json` of an unfinished ranking: ln p of the pairs that are scored first."""

    scores: list[float]


class _Block(Stored):
    """`images-N.json` of an unfinished ranking."""

    before: list[int]
    steps: int
    caption: list[int] = Field([])
    image: list[int] = Field([])
    score: list[float] = Field([])


class _Study:
    """All captions against all images. A caption is identified by its place among the distinct ones, in token order."""

    def __init__(
        self, captioner: Decodable, store: FeatureStore, rows: Sequence[int], captions: Sequence[str], shown: int
    ) -> None:
        if len(rows) != len(captions) or not len(rows):
            raise DataError(f"{len(captions)} captions for {len(rows)} images; every image needs one, and one at least")
        self.captioner = read_both(captioner, store)
        self.store = store
        self.rows = np.asarray(rows, dtype=np.int64)
        self.shown = min(shown, len(rows))
        said = [tuple(row[: row.index(END)]) for row in captioner.tokenize(captions).tolist()]
        self.distinct = sorted(set(said))
        place = {tokens: number for number, tokens in enumerate(self.distinct)}
        self.caption_of_image = np.array([place[tokens] for tokens in said])
        # Images sorted by their caption.
        self.by_caption = np.argsort(self.caption_of_image, kind="stable")
        self.owners = np.bincount(self.caption_of_image)
        self.first_owner = self.owners.cumsum() - self.owners
        self.tokens = sum(map(len, said)) + len(said)
        self.tree = PrefixTree.of(self.distinct)

    def digest(self) -> str:
        return digest_of(
            {
                "format": FORMAT,
                "weights": weights_digest(self.captioner.state_dict()),
                "captioner": [self.captioner.name, self.captioner.settings.model_dump(mode="json")],
                "captions": [self.distinct, self.caption_of_image.tolist()],
                "store": [
                    self.store.records,
                    self.store.encoder.as_dict(),
                    self.store.pictures_digest(self.rows.tolist()),
                ],
                "rows": self.rows.tolist(),
                "shown": self.shown,
            }
        )

    def check_targets(self, path: Path) -> dict[str, Any]:
        """Read the file of targets and check that it fits."""
        found = read_model(path, _Targets, "piece of a ranking")
        if len(found.own) != len(self.rows) or len(found.floor) != len(self.distinct):
            raise DataError(f"{path}: is damaged (it is of another ranking); {REBUILD}")
        return found.model_dump()

    def check_scores(self, path: Path, pairs: int) -> dict[str, Any]:
        """Read a file of scores of pairs and check that it fits."""
        found = read_model(path, _Scores, "piece of a ranking")
        if len(found.scores) != pairs:
            raise DataError(f"{path}: is damaged (it is of another ranking); {REBUILD}")
        return found.model_dump()

    def check_block(self, path: Path) -> dict[str, Any]:
        """Read the file of a block of images and check that it fits."""
        found = read_model(path, _Block, "piece of a ranking")
        whole = len(found.before) == len(self.rows) and len(found.caption) == len(found.image) == len(found.score)
        inside = all(0 <= one < len(self.distinct) for one in found.caption)
        if not whole or not inside or not all(0 <= one < len(self.rows) for one in (*found.image, *found.before)):
            raise DataError(f"{path}: is damaged (it is of another ranking); {REBUILD}")
        return found.model_dump()

    def shard(self, start: int) -> NDArray[np.int64]:
        return np.arange(start, min(start + SHARD, len(self.rows)))

    def targets(self, kept: Pieces, on_progress: OnProgress | None = None) -> dict[str, Any]:
        """What is computed first: ln p of each caption with its own image, and the floor of each distinct caption.

        A caption's floor is the lowest score of its own images. If the first k images are shown, it is at most the k-th
        best score among its own images and the images most similar to them.
        """
        images = len(self.rows)
        caption, image = self.caption_of_image, np.arange(images)
        if self.shown:
            alike = image[:, None]
            if images > 1:
                near = nearest_images(self.store.pooled(self.rows.tolist()), min(3 * self.shown, images - 1))
                alike = np.concatenate([alike, near], axis=1)
            pairs = np.unique(self.caption_of_image[alike[:, :1]] + alike * len(self.distinct))
            near_image, near_caption = np.divmod(pairs, len(self.distinct))
            caption, image = np.concatenate([caption, near_caption]), np.concatenate([image, near_image])
        scores = self._pair_scores(caption, image, kept, on_progress)
        own = scores[:images]
        floor = np.full(len(self.distinct), np.inf)
        np.minimum.at(floor, self.caption_of_image, own)
        if self.shown:
            caption, image, scores = caption[images:], image[images:], scores[images:]
            best = _first(caption, image, scores, self.shown)
            np.minimum.at(floor, caption[best], scores[best])
        return {"own": own.tolist(), "floor": (floor - MARGIN * tolerance(floor)).tolist()}

    def _pair_scores(
        self, caption: NDArray[np.int64], image: NDArray[np.int64], kept: Pieces, on_progress: OnProgress | None
    ) -> NDArray[np.float64]:
        """ln p of single pairs; finished pieces are kept."""
        rows = [torch.tensor([*tokens, END]) for tokens in self.distinct]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD).to(self.captioner.device)
        scores = np.empty(len(caption))
        for start in range(0, len(caption), PAIRS):
            here, name = slice(start, min(start + PAIRS, len(caption))), f"pairs-{start:09d}"
            found = kept.find(name, partial(self.check_scores, pairs=len(caption[here])))
            if found is None:
                if on_progress is not None:
                    on_progress(start, len(caption))
                values = pair_scores(self.captioner, self.store, self.rows, padded, caption[here], image[here])
                found = kept.keep(name, {"scores": values.tolist()})
            scores[here] = found["scores"]
        if on_progress is not None:
            on_progress(len(caption), len(caption))
        return scores

    def rank(self, shard: NDArray[np.int64], targets: dict[str, Any]) -> dict[str, Any]:
        """For each caption the number of these images that rank before its own, and the best of them."""
        own, floor = np.array(targets["own"]), np.array(targets["floor"])
        features = torch.from_numpy(self.store.views(self.rows[shard].tolist()))
        reached = TreeScorer(self.captioner, self.tree, floor).scores(features)
        self._check_own(shard, own, reached)
        caption, image, score = reached.caption, shard[reached.image], reached.score
        # Each score is compared with that of every image its caption belongs to.
        times = self.owners[caption]
        pair = np.repeat(np.arange(len(caption)), times)
        which = np.arange(len(pair)) - np.repeat(times.cumsum() - times, times)
        true = self.by_caption[self.first_owner[caption[pair]] + which]
        before = (score[pair] >= (own - tolerance(own))[true]) & (image[pair] != true)
        found: dict[str, Any] = {
            "before": np.bincount(true[before], minlength=len(own)).tolist(),
            "steps": reached.steps,
        }
        if self.shown:
            best = _first(caption, image, score, self.shown)
            found |= {"caption": caption[best].tolist(), "image": image[best].tolist(), "score": score[best].tolist()}
        return found

    def _check_own(self, shard: NDArray[np.int64], own: NDArray[np.float64], reached: Reached) -> None:
        """Check that stepping gives the true images the scores of teacher forcing; dropping images relies on it."""
        stepped = np.full(len(self.rows), -np.inf)
        mine = self.caption_of_image[shard[reached.image]] == reached.caption
        stepped[shard[reached.image[mine]]] = reached.score[mine]
        before, now, apart = own[shard], stepped[shard], np.zeros(len(shard))
        np.subtract(before, now, where=before != now, out=apart)  # -inf - -inf counts as 0
        if (np.abs(apart) > MARGIN / 2 * tolerance(before)).any():
            raise DataError(
                f"{self.captioner.name}: stepping and teacher forcing differ by {np.abs(apart).max():.2g} in the log "
                "probability of a caption, too much for exact ranks; run it in float32 on another device"
            )


class _Together:
    """The ranks, from one block of images after another."""

    def __init__(self, study: _Study) -> None:
        self.study = study
        self.before = np.zeros(len(study.rows), dtype=np.int64)
        self.steps = 0
        none = np.zeros(0, dtype=np.int64)
        self.best = none, none, np.zeros(0)  # the first images so far: captions, images, scores

    def add(self, block: dict[str, Any]) -> None:
        self.before += np.array(block["before"], dtype=np.int64)
        self.steps += block["steps"]
        if self.study.shown:
            caption, image, score = (
                np.concatenate([before, np.array(block[name], dtype=before.dtype)])
                for before, name in zip(self.best, ("caption", "image", "score"), strict=True)
            )
            best = _first(caption, image, score, self.study.shown)
            self.best = caption[best], image[best], score[best]

    def ranks(self, targets: dict[str, Any]) -> SelfRetrieval:
        study = self.study
        first = np.zeros((len(study.rows), 0), dtype=np.int64)
        if study.shown:  # each caption has so many by now, caption by caption
            first = self.best[1].reshape(len(study.distinct), study.shown)[study.caption_of_image]
        return SelfRetrieval(
            ranks=1 + self.before,
            log_probs=np.array(targets["own"]),
            first=first,
            images=len(study.rows),
            tokens=study.tokens,
            prefixes=len(study.tree),
            steps=self.steps,
        )


def _shard_name(start: int) -> str:
    return f"images-{start:09d}"


def _first(
    caption: NDArray[np.int64], image: NDArray[np.int64], score: NDArray[np.float64], count: int
) -> NDArray[np.int64]:
    """Which pairs are the `count` best of their caption: caption by caption, best first, equal ones by image."""
    order = np.lexsort([image, -score, caption])
    place = np.arange(len(order)) - np.searchsorted(caption[order], caption[order])
    return order[place < count]
