"""Base of objectives that compare the target with a frozen reference."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import BaseModel, Field

from tellapart.data.batches import Batch, BatchSource, Kind
from tellapart.decoding.base import Decodable
from tellapart.objectives.base import Needs, Objective, Progress, Roles, Start, Total, log_prob_of_rows, pair_log_prob
from tellapart.objectives.reference_scores import reference_scores
from tellapart.progress import OnProgress
from tellapart.settings import Section
from tellapart.text import UNKNOWN, Vocabulary

# Lower edges of the histogram bins over G; values below the first edge have their own bin.
EDGES = (-16, -8, -4, -2, -1, 0, 1, 2, 4, 8, 16)
# The contrasts of a recipe, as kinds of pairs.
CONTRASTS = {
    "captions": (Kind.NEGATIVE,),
    "images": (Kind.IMAGE_NEGATIVE,),
    "both": (Kind.NEGATIVE, Kind.IMAGE_NEGATIVE),
}
# A pair is easy if the classifier h is right with at least this probability.
EASY = 0.9


class PairLogProbs(NamedTuple):
    """ln p of P true pairs, and of K mismatched ones for each, under the target and the reference.

    The mismatched pairs are other captions for the image, (c', I), or the caption with other images, (c, I').

    Attributes:
        target_positive: `[P]`, with gradient.
        reference_positive: `[P]`.
        target_negative: `[P, K]`, with gradient.
        reference_negative: `[P, K]`.
        kept: `[P, K]`, which of the mismatched pairs count; at least one per row.
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

    negatives: int = Field(5, ge=1, le=10_000, description="K: mismatched pairs to draw for each true pair")
    contrast: Literal["captions", "images", "both"] = Field(
        "captions",
        description="mismatched pairs are other captions for the image (the paper), other images for the caption, "
        "or both, K of each",
    )


class AgainstReference(Objective):
    """Base of objectives that compare ln p under the target with ln p under a frozen reference, pair by pair.

    A subclass implements `loss`, a function of the log probabilities of true pairs and of their K negatives. See
    `Contrastive`, `Pairwise` and `Difference`.

    The negatives of a true pair (c, I) are, by `contrast`:

    - `captions`, as in the paper: (c'_k, I), captions of other images. It asks: which caption is of this image?
    - `images`: (c, I'_k), other images. It asks the question of self-retrieval: which image is the caption of?
    - `both`: K of each. The loss is the mean of the two losses. So the positive term and ν keep their weight, and each
      negative term has half of its own; for `Contrastive`::

          −ln h(G⁺) − ν · ½ [ mean_k ln(1 − h(G(c'_k, I))) + mean_k ln(1 − h(G(c, I'_k))) ]

    The reference can be any captioner or ensemble, also with other image features. Both score the caption's string,
    each with its own tokens and end token. Captions that they cannot both score (`comparable`) are left out: a
    mismatched caption from the mean over its row, a true caption with its whole row. A row without any mismatched
    caption is left out too, where these are contrasted.

    If training is longer than one epoch, the reference scores all true pairs once before the first step, in record
    order and in fixed batches, so that resuming is bit-exact. The scores are kept in a file (`reference_scores`) that
    other trainings with the same reference and data find. Mismatched pairs are drawn anew in every step and scored
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

    These are the figures of mismatched captions. Those of mismatched images are called `image_negative` instead of
    `negative`, and `told_apart_images`.

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
        counts = [settings.negatives * (kind in CONTRASTS[settings.contrast]) for kind in CONTRASTS["both"]]
        return Needs({"reference": "captioner"}, *counts)

    @property
    def nu(self) -> float:
        """ν of the classifier h."""
        return 1.0

    @abstractmethod
    def loss(self, scores: PairLogProbs) -> torch.Tensor:
        """The loss of each true pair with its negatives, `[P]`."""

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        tables, left_out = self.scores(batch, progress)
        losses = torch.stack([self.loss(table) for table in tables.values()]).mean(dim=0)
        totals = {"loss": Total(losses.sum(), len(losses))}
        for kind, table in tables.items():
            totals |= log_ratio_figures(table, self.nu, kind)
        return {**totals, "left_out": left_out}

    def scores(self, batch: Batch, progress: Progress) -> tuple[dict[Kind, PairLogProbs], Total]:
        """ln p of all pairs that can be compared, by the kind of negative, and the share of those that are left out.

        Both kinds have the same true pairs.
        """
        count = len(batch.pairs.of(Kind.POSITIVE))
        same = [self._comparable(batch.captions[row]) for row in batch.pairs.caption_row.tolist()]
        fits = torch.tensor(same, dtype=torch.bool, device=batch.pairs.kind.device)
        positive = fits[batch.pairs.of(Kind.POSITIVE)]
        given = pair_log_prob(self.target, batch, Kind.POSITIVE), self._reference_positive(batch, progress)
        tables = {
            kind: PairLogProbs(
                *given,
                self._table(pair_log_prob(self.target, batch, kind), count),
                self._table(self._reference_negative(batch, kind), count),
                self._table(fits[batch.pairs.of(kind)], count),
            )
            for kind in CONTRASTS[self.settings.contrast]
        }
        used = torch.stack([positive, *(table.kept.any(dim=1) for table in tables.values())]).all(dim=0)
        missing = (~positive).sum() + sum((~table.kept).sum() for table in tables.values())
        left_out = Total(missing.float(), len(positive) + sum(table.kept.numel() for table in tables.values()))
        if missing:
            rows = used.nonzero().squeeze(1)
            tables = {kind: PairLogProbs(*(values[rows] for values in table)) for kind, table in tables.items()}
        return tables, left_out

    def _table(self, negative: torch.Tensor, count: int) -> torch.Tensor:
        """Values of the negatives as `[P, K]`; the batch may hold more than K if another objective needs them."""
        drawn = len(negative) // max(1, count)
        return negative.view(count, drawn)[:, : self.settings.negatives]

    def _reference_positive(self, batch: Batch, progress: Progress) -> torch.Tensor:
        """The reference's ln p of the true pairs: of all at once if training is longer than one epoch."""
        source = batch.source
        if source is None or batch.places is None or progress.steps <= len(source):
            return self._reference_log_prob(batch, Kind.POSITIVE)
        rows = batch.pairs.of(Kind.POSITIVE)
        places = batch.places[batch.pairs.caption_row[rows]]
        known = self._all_reference_log_probs(source)[places]
        if batch.mirrored is None:
            return known
        of_mirrored = self._all_reference_log_probs(source, mirrored=True)[places]
        return torch.where(batch.mirrored[batch.pairs.image_row[rows]], of_mirrored, known)

    def before_training(self, start: Start) -> None:
        for split, source in start.sources.items():
            if start.steps > len(source):
                for mirrored in (False, True) if source.mirrored else (False,):
                    about = start.folders.get("reference"), split, start.on_progress, mirrored
                    self._all_reference_log_probs(source, *about)

    def _all_reference_log_probs(
        self,
        source: BatchSource,
        folder: Path | None = None,
        split: str = "",
        on_progress: OnProgress | None = None,
        mirrored: bool = False,
    ) -> torch.Tensor:
        """The reference's ln p of all true pairs of a split, in the order of its captions."""

        def show(done: int, of: int) -> None:
            if on_progress is not None:
                on_progress(f"scoring true pairs ({split}{', mirrored' if mirrored else ''})", done, of)

        key = ("positive_log_prob", id(self.reference), mirrored)
        about = self.reference, source, self.processes, folder, show, mirrored
        return source.once(key, lambda: reference_scores(*about))

    def _reference_negative(self, batch: Batch, kind: Kind) -> torch.Tensor:
        """The reference's ln p of the mismatched pairs of one kind; both kinds are scored in one pass."""
        kinds = batch.pairs.kind[batch.pairs.of(*CONTRASTS["both"])]
        return self._reference_log_prob(batch, *CONTRASTS["both"])[kinds == kind]

    @torch.no_grad()
    def _reference_log_prob(self, batch: Batch, *kinds: Kind) -> torch.Tensor:
        """The reference's ln p of the pairs of these kinds; computed once per step."""
        reference, rows = self.reference, batch.pairs.of(*kinds)
        return batch.once(("reference", id(reference), kinds), lambda: log_prob_of_rows(reference, batch, rows))


@torch.no_grad()
def log_ratio_figures(scores: PairLogProbs, nu: float = 1.0, negatives: Kind = Kind.NEGATIVE) -> dict[str, Total]:
    """The figures of G and h that `AgainstReference` logs, as totals that add up over batches and processes.

    Args:
        scores: the pairs.
        nu: ν of h.
        negatives: their kind, for the names of the figures.
    """
    positive, table = scores.ratios
    negative = table[scores.kept]
    told_apart = "told_apart_images" if negatives is Kind.IMAGE_NEGATIVE else "told_apart"
    figures = {told_apart: Total((table < positive[:, None])[scores.kept].sum().float(), len(negative))}
    for kind, ratio, sign in (("positive", positive, 1), (negatives.name.lower(), negative, -1)):
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
