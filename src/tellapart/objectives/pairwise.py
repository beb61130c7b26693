"""A pairwise form of contrastive learning, in the style of direct preference optimisation (Rafailov et al. 2023)."""

from __future__ import annotations

import torch
from pydantic import Field
from torch.nn import functional

from tellapart.objectives.reference import AgainstReference, AgainstReferenceSettings, PairLogProbs, mean_kept


def pairwise_loss(
    positive_ratio: torch.Tensor, negative_ratio: torch.Tensor, beta: float = 1.0, kept: torch.Tensor | None = None
) -> torch.Tensor:
    """−mean_k ln σ(β (G⁺ − G⁻_k)) of each true pair, `[P]`.

    Args:
        positive_ratio: G of the true pairs, eq. 7 of the CL paper, `[P]`.
        negative_ratio: G of K mismatched pairs for each true pair, `[P, K]`.
        beta: β, the steepness.
        kept: which negatives count, `[P, K]`; by default all.

    Example:
        >>> pairwise_loss(torch.tensor([0.0]), torch.tensor([[0.0, 0.0]]))   # ln 2
        tensor([0.6931])
    """
    apart = positive_ratio.float()[:, None] - negative_ratio.float()
    return -mean_kept(functional.logsigmoid(beta * apart), kept)


class PairwiseSettings(AgainstReferenceSettings):
    """Settings of `Pairwise`."""

    beta: float = Field(1.0, gt=0, description="β: steepness of the sigmoid over differences of log ratios")


class Pairwise(AgainstReference):
    """Pairwise contrastive learning: the true caption should gain more over the reference than a mismatched one.

    ::

        L = −mean_t mean_k ln σ(β (G⁺_t − G⁻_tk)),   G = ln p_target − ln p_reference      (eq. 7 of the CL paper)

    This is the loss of direct preference optimisation, with the true caption as the preferred answer to the image; it
    is not in the CL paper. `Contrastive` (eq. 9) classifies each pair as true or mismatched; this loss only ranks two
    captions of one image, or two images of one caption (`contrast`, see `AgainstReference`). So it does not keep p of
    true pairs from falling: add likelihood with `Composed` if quality drops. See `AgainstReference` for what is logged
    and left out; h is that of CL with ν = 1.

    Args:
        settings: see `PairwiseSettings`.
        roles: see `AgainstReference`.

    Example:
        >>> objective = Pairwise(PairwiseSettings(beta=0.5), Roles(target, reference=mle))   # doctest: +SKIP
        >>> objective(batch, Progress(0, 100))["loss"]                                       # doctest: +SKIP
    """

    name = "contrastive-pairwise"
    Settings = PairwiseSettings
    settings: PairwiseSettings

    def loss(self, scores: PairLogProbs) -> torch.Tensor:
        return pairwise_loss(*scores.ratios, self.settings.beta, scores.kept)
