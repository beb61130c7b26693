"""What all objectives share that compare a target with a frozen reference: scores, what is left out, what is logged."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import BaseModel, Field

from tellapart.data.batches import Batch, BatchSource, Kind
from tellapart.decoding.base import Decodable
from tellapart.objectives.base import Needs, Objective, Progress, Roles, Total, pair_log_prob
from tellapart.settings import Section
from tellapart.text import UNKNOWN, Vocabulary

# Lower edges of the histogram's bins over G; what lies below them all is a bin of its own.
EDGES = (-16, -8, -4, -2, -1, 0, 1, 2, 4, 8, 16)
# The classifier h is right with at least this probability: the pair is easy.
EASY = 0.9


@dataclass(frozen=True)
class Scores:
    """ln p of P true pairs and of K mismatched captions for each, under both models.

    Attributes:
        target_positive: `[P]`, with gradient.
        reference_positive: `[P]`.
        target_negative: `[P, K]`, with gradient.
        reference_negative: `[P, K]`.
        kept: `[P, K]`, which of the mismatched captions count; at least one in a row.
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
    """The mean of each row `[P, K]` over the entries kept; `None` keeps all.

    >>> mean_kept(torch.tensor([[1.0, 3.0]]), torch.tensor([[True, False]]))
    tensor([1.])
    """
    if kept is None:
        return values.mean(dim=1)
    return (values * kept).sum(dim=1) / kept.sum(dim=1)


def comparable(one: Vocabulary, other: Vocabulary) -> Callable[[str], bool]:
    """A test whether two captioners score the same sentence when they are given the same caption.

    Equal vocabularies always do: a word unknown to one is unknown to both, and long captions are cut alike. Different
    ones do if no word is unknown to either and both read the same words. Where one of them reads pieces of words
    instead, words cannot be compared: there a caption is left out if it may have been cut.

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
    """What every comparison with a reference can be told."""

    negatives: int = Field(5, ge=1, description="K: mismatched captions drawn for each true pair")


class AgainstReference(Objective):
    """Base of objectives that compare, pair by pair, ln p under the target with ln p under a frozen reference.

    An objective gives `loss`, from the scores of true pairs and of their K negatives. The positive pass is shared by
    its negatives. The reference may be any captioner or ensemble, also of other image features: both score the
    caption's string, each with its own tokens and its own end token. A caption that they cannot both score
    (`comparable`) is left out: a mismatched one from the mean over the K of its row, a true one with its whole row, as
    is a row that has no mismatched one left.

    In a training of more than one epoch true pairs come again, and the reference scores all of them once, before the
    first step, in record order and in batches that do not depend on the step: what is remembered is the value of that
    one computation, the same bits after a resume. In a shorter training no true pair comes twice. Mismatched pairs
    are drawn anew at every step and scored as they come.

    Logged beside `loss`, each as a mean over pairs:

    - `log_ratio_positive`, `log_ratio_negative`: G, eq. 7; `told_apart`: the share of negatives with G⁻ < G⁺;
    - `h_positive`, `h_negative`: h, eq. 8, the probability that the pair is a true one;
    - `easy_…`, `hard_…`, `mistaken_…` with `positive` and `negative`: the shares of the paper's three kinds of pairs
      (sec. 4.2). With q = h for a true pair and q = 1 − h for a mismatched one, the probability of what the pair is: a
      pair is *easy* if q ≥ 0.9 (the logistic function saturates, its gradient is at most a tenth), *mistaken* if
      q < 1/2 (it is taken for the other kind), *hard* in between, as all pairs are while both models are the same;
    - `G_positive_bin_e`, `G_negative_bin_e`: a histogram, the share of pairs with G from e up to the next edge
      (`EDGES`; below them all: `_bin_-inf`);
    - `left_out`: the share of all pairs that cannot be compared.

    Args:
        settings: an instance of `Settings`.
        roles: the captioner that is trained, usually from the reference's weights, and `reference`, a frozen captioner
            or ensemble trained by likelihood.
    """

    Settings: ClassVar[type[BaseModel]] = AgainstReferenceSettings
    settings: AgainstReferenceSettings

    def __init__(self, settings: AgainstReferenceSettings, roles: Roles) -> None:
        super().__init__(settings, roles)
        self._comparable = comparable(self.target.vocabulary, self.reference.vocabulary)

    @property
    def reference(self) -> Decodable:
        """The frozen captioner, or ensemble of captioners, that the target is compared with."""
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
    def loss(self, scores: Scores) -> torch.Tensor:
        """The loss of each true pair with its negatives, `[P]`."""

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        scores, left_out = self.scores(batch, progress)
        loss = Total(self.loss(scores).sum(), len(scores.target_positive))
        return {"loss": loss, **log_ratio_figures(scores, self.nu), "left_out": left_out}

    def scores(self, batch: Batch, progress: Progress) -> tuple[Scores, Total]:
        """ln p of all pairs that can be compared, and the share of those that cannot."""
        count = len(batch.pairs.of(Kind.POSITIVE))
        given = (
            pair_log_prob(self.target, batch, Kind.POSITIVE),
            self._reference_positive(batch, progress),
            self._table(pair_log_prob(self.target, batch, Kind.NEGATIVE), count),
            self._table(self._ask(batch, Kind.NEGATIVE), count),
        )
        same = [self._comparable(batch.captions[row]) for row in batch.pairs.caption_row.tolist()]
        fits = torch.tensor(same, dtype=torch.bool, device=batch.pairs.kind.device)
        positive = fits[batch.pairs.of(Kind.POSITIVE)]
        kept = self._table(fits[batch.pairs.of(Kind.NEGATIVE)], count)
        missing = (~positive).sum() + (~kept).sum()
        left_out = Total(missing.float(), positive.numel() + kept.numel())
        if missing:
            rows = (positive & kept.any(dim=1)).nonzero().squeeze(1)
            return Scores(*(values[rows] for values in (*given, kept))), left_out
        return Scores(*given, kept), left_out

    def _table(self, negative: torch.Tensor, count: int) -> torch.Tensor:
        """Values of the negatives as `[P, K]`; a batch made for other parts may hold more of them."""
        drawn = len(negative) // max(1, count)
        return negative.view(count, drawn)[:, : self.settings.negatives]

    def _reference_positive(self, batch: Batch, progress: Progress) -> torch.Tensor:
        source = batch.source
        if source is None or batch.places is None or progress.steps <= len(source):
            return self._ask(batch, Kind.POSITIVE)
        known = source.once(("positive_log_prob", id(self.reference)), lambda: self._ask_all(source))
        return known[batch.places[batch.pairs.caption_row[batch.pairs.of(Kind.POSITIVE)]]]

    def _ask_all(self, source: BatchSource) -> torch.Tensor:
        """The reference's scores of all true pairs of a split, by their captions' places."""
        shares = (share.to(self.target.device) for share in source.positives())
        return torch.cat([self.processes.gather(self._ask(share, Kind.POSITIVE)) for share in shares])

    def _ask(self, batch: Batch, kind: Kind) -> torch.Tensor:
        """The reference's ln p of the pairs of one kind, at most once a step; its other pairs it is not asked for."""
        reference = self.reference
        return batch.once(("reference", id(reference), kind), lambda: _log_prob(reference, batch, kind))


@torch.no_grad()
def _log_prob(captioner: Decodable, batch: Batch, kind: Kind) -> torch.Tensor:
    rows = batch.pairs.of(kind)
    if not len(rows):
        return torch.zeros(0, device=captioner.device)
    captions = [batch.captions[row] for row in batch.pairs.caption_row[rows].tolist()]
    memory = captioner.encode(batch.features[captioner.encoder.name])
    return captioner.log_prob(memory, captioner.tokenize(captions), batch.pairs.image_row[rows])


@torch.no_grad()
def log_ratio_figures(scores: Scores, nu: float = 1.0) -> dict[str, Total]:
    """What `AgainstReference` logs of G and h, as totals that add up over batches and processes."""
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
