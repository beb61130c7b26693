"""Base of objectives that compare the target with a frozen reference."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from pydantic import BaseModel, Field

from tellapart.data.batches import Batch, BatchSource, Kind
from tellapart.decoding.base import Decodable
from tellapart.objectives.base import Needs, Objective, Progress, Roles, Total, log_prob_of_rows, pair_log_prob
from tellapart.settings import Section
from tellapart.text import UNKNOWN, Vocabulary

# Lower edges of the histogram bins over G; values below the first edge have their own bin.
EDGES = (-16, -8, -4, -2, -1, 0, 1, 2, 4, 8, 16)
# A pair is easy if the classifier h is right with at least this probability.
EASY = 0.9


class PairLogProbs(NamedTuple):
    """ln p of P true pairs, and of K mismatched captions for each, under the target and the reference.

    Attributes:
        target_positive: `[P]`, with gradient.
        reference_positive: `[P]`.
        target_negative: `[P, K]`, with gradient.
        reference_negative: `[P, K]`.
        kept: `[P, K]`, which of the mismatched captions count; at least one per row.
    """

    target_positive: torch.Tensor
    reference_positive: torch.Tensor
    target_negative: torch.Tensor
    reference_negative: torch.Tensor
    kept: torch.Tensor

    @property
    def ratios(self) -> tuple[torch.Tensor, torch.Tensor]:
        """G⁺ `[P]` and G⁻ `[P, K]`, eq. 7, in float32."""
        return (
            self.target_positive.float() - self.reference_positive.float(),
            self.target_negative.float() - self.reference_negative.float(),
        )


def mean_kept(values: torch.Tensor, kept: torch.Tensor | None = None) -> torch.Tensor:
    """Mean of each row `[P, K]` over the kept entries; `None` keeps all.

    >>> mean_kept(torch.tensor([[1.0, 3.0]]), torch.tensor([[True, False]]))
    tensor([1.])
    """
    if kept is None:
        return values.mean(dim=1)
    return (values * kept).sum(dim=1) / kept.sum(dim=1)


def comparable(one: Vocabulary, other: Vocabulary) -> Callable[[str], bool]:
    """A function that tells whether two captioners score the same sentence when given the same caption.

    With equal vocabularies they always do: unknown words and cuts are the same. With different vocabularies, both must
    know all words and read the same ones. If one of them uses pieces of words, the caption must not be cut by either.

    Example:
        >>> test = comparable(Vocabulary(["a", "red", "car"]), Vocabulary(["a", "car"]))
        >>> test("a car"), test("a red car")
        (True, False)
    """
    in_words = type(one) is Vocabulary and type(other) is Vocabulary
    same_rule = one.normaliser == other.normaliser if in_words else type(one) is type(other)
    if same_rule and one.tokens == other.tokens and one.max_words == other.max_words:
        return lambda caption: True

    def test(caption: str) -> bool:
        rows = [vocabulary.encode(caption) for vocabulary in (one, other)]
        if any(UNKNOWN in row for row in rows):
            return False
        if in_words:
            return one.words(caption) == other.words(caption)
        return all(len(row) - 1 < limit for row, limit in zip(rows, (one.max_words, other.max_words), strict=True))

    known: dict[str, bool] = {}
    return lambda caption: known[caption] if caption in known else known.setdefault(caption, test(caption))


class AgainstReferenceSettings(Section):
    """Settings of `AgainstReference`."""

    negatives: int = Field(5, ge=1, le=10_000, description="K: mismatched captions to draw for each true pair")


class AgainstReference(Objective):
    """Base of objectives that compare ln p under the target with ln p under a frozen reference, pair by pair.

    A subclass implements `loss`, a function of the log probabilities of true pairs and of their K negatives. See
    `Contrastive`, `Pairwise` and `Difference`.

    The reference can be any captioner or ensemble, also with other image features. Both score the caption's string,
    each with its own tokens and end token. Captions that they cannot both score (`comparable`) are left out: a
    mismatched caption from the mean over its row, a true caption with its whole row. A row without any mismatched
    caption is left out too.

    If training is longer than one epoch, the reference scores all true pairs once before the first step, in record
    order and in fixed batches, so that resuming is bit-exact. Mismatched pairs are drawn anew in every step and scored
    then.

    Logged besides `loss`, as means over pairs:

    - `log_ratio_positive`, `log_ratio_negative`: G, eq. 7; `told_apart`: share of negatives with G⁻ < G⁺;
    - `h_positive`, `h_negative`: h, eq. 8, the probability that the pair is a true one;
    - `easy_…`, `hard_…`, `mistaken_…` with `positive` and `negative`: shares of the paper's three kinds of pairs
      (sec. 4.2). With q = h for a true pair and q = 1 − h for a mismatched one, a pair is *easy* if q ≥ 0.9 (its
      gradient is at most a tenth), *mistaken* if q < 1/2, and *hard* in between;
    - `G_positive_bin_e`, `G_negative_bin_e`: histogram, the share of pairs with G from e up to the next edge (`EDGES`;
      below the first: `_bin_-inf`);
    - `left_out`: the share of pairs that were left out.

    Args:
        settings: an instance of `Settings`.
        roles: the target, usually a captioner that starts from the reference's weights; `reference`, a frozen captioner
            or ensemble trained by likelihood.
    """

    Settings: ClassVar[type[BaseModel]] = AgainstReferenceSettings
    settings: AgainstReferenceSettings

    def __init__(self, settings: AgainstReferenceSettings, roles: Roles) -> None:
        super().__init__(settings, roles)
        self._comparable = comparable(self.target.vocabulary, self.reference.vocabulary)

    @property
    def reference(self) -> Decodable:
        """The frozen captioner or ensemble that the target is compared with."""
        reference: Decodable = self.frozen["reference"]
        return reference

    @classmethod
    def needs(cls, settings: BaseModel) -> Needs:
        assert isinstance(settings, AgainstReferenceSettings)
        return Needs({"reference": "captioner"}, settings.negatives)

    @property
    def nu(self) -> float:
        """ν of the classifier h."""
        return 1.0

    @abstractmethod
    def loss(self, scores: PairLogProbs) -> torch.Tensor:
        """The loss of each true pair with its negatives, `[P]`."""

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        scores, left_out = self.scores(batch, progress)
        loss = Total(self.loss(scores).sum(), len(scores.target_positive))
        return {"loss": loss, **log_ratio_figures(scores, self.nu), "left_out": left_out}

    def scores(self, batch: Batch, progress: Progress) -> tuple[PairLogProbs, Total]:
        """ln p of all pairs that can be compared, and the share of those that are left out."""
        count = len(batch.pairs.of(Kind.POSITIVE))
        given = (
            pair_log_prob(self.target, batch, Kind.POSITIVE),
            self._reference_positive(batch, progress),
            self._table(pair_log_prob(self.target, batch, Kind.NEGATIVE), count),
            self._table(self._reference_log_prob(batch, Kind.NEGATIVE), count),
        )
        same = [self._comparable(batch.captions[row]) for row in batch.pairs.caption_row.tolist()]
        fits = torch.tensor(same, dtype=torch.bool, device=batch.pairs.kind.device)
        positive = fits[batch.pairs.of(Kind.POSITIVE)]
        kept = self._table(fits[batch.pairs.of(Kind.NEGATIVE)], count)
        missing = (~positive).sum() + (~kept).sum()
        left_out = Total(missing.float(), positive.numel() + kept.numel())
        if missing:
            rows = (positive & kept.any(dim=1)).nonzero().squeeze(1)
            return PairLogProbs(*(values[rows] for values in (*given, kept))), left_out
        return PairLogProbs(*given, kept), left_out

    def _table(self, negative: torch.Tensor, count: int) -> torch.Tensor:
        """Values of the negatives as `[P, K]`; the batch may hold more than K if another objective needs them."""
        drawn = len(negative) // max(1, count)
        return negative.view(count, drawn)[:, : self.settings.negatives]

    def _reference_positive(self, batch: Batch, progress: Progress) -> torch.Tensor:
        """The reference's ln p of the true pairs: of all at once if training is longer than one epoch."""
        source = batch.source
        if source is None or batch.places is None or progress.steps <= len(source):
            return self._reference_log_prob(batch, Kind.POSITIVE)
        key = ("positive_log_prob", id(self.reference))
        known = source.once(key, lambda: self._all_reference_log_probs(source))
        return known[batch.places[batch.pairs.caption_row[batch.pairs.of(Kind.POSITIVE)]]]

    def _all_reference_log_probs(self, source: BatchSource) -> torch.Tensor:
        """The reference's ln p of all true pairs of a split, in the order of its captions."""
        parts = (part.to(self.target.device) for part in source.positives())
        return torch.cat([self.processes.gather(self._reference_log_prob(part, Kind.POSITIVE)) for part in parts])

    @torch.no_grad()
    def _reference_log_prob(self, batch: Batch, kind: Kind) -> torch.Tensor:
        """The reference's ln p of the pairs of one kind; computed once per step."""
        reference, rows = self.reference, batch.pairs.of(kind)
        return batch.once(("reference", id(reference), kind), lambda: log_prob_of_rows(reference, batch, rows))


@torch.no_grad()
def log_ratio_figures(scores: PairLogProbs, nu: float = 1.0) -> dict[str, Total]:
    """The figures of G and h that `AgainstReference` logs, as totals that add up over batches and processes."""
    positive, table = scores.ratios
    negative = table[scores.kept]
    figures = {"told_apart": Total((table < positive[:, None])[scores.kept].sum().float(), len(negative))}
    for kind, ratio, sign in (("positive", positive, 1), ("negative", negative, -1)):
        right = torch.sigmoid(sign * (ratio - math.log(nu)))
        easy, mistaken = right >= EASY, right < 0.5
        bins = torch.bucketize(ratio, ratio.new_tensor(EDGES), right=True)
        filled = torch.bincount(bins, minlength=len(EDGES) + 1).float()
        shares = {
            f"log_ratio_{kind}": ratio.sum(),
            f"h_{kind}": (right if sign > 0 else 1 - right).sum(),
            f"easy_{kind}": easy.sum().float(),
            f"hard_{kind}": (~easy & ~mistaken).sum().float(),
            f"mistaken_{kind}": mistaken.sum().float(),
            **{f"G_{kind}_bin_{edge}": n for edge, n in zip(("-inf", *EDGES), filled.unbind(), strict=True)},
        }
        figures |= {name: Total(total, len(ratio)) for name, total in shares.items()}
    return figures
