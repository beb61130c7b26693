"""A pairwise form of contrastive learning, in the style of direct preference optimisation (Rafailov et al. 2023)."""

from __future__ import annotations

import torch
from pydantic import Field
from torch.nn import functional

from tellapart.objectives.reference import AgainstReference, AgainstReferenceSettings, Scores, mean_kept


def pairwise_loss(
    positive_ratio: torch.Tensor, negative_ratio: torch.Tensor, beta: float = 1.0, kept: torch.Tensor | None = None
) -> torch.Tensor:
    """−mean_k ln σ(β (G⁺ − G⁻_k)) of each true pair, `[P]`.

    Args:
        positive_ratio: G of the true pairs, eq. 7 of the CL paper, `[P]`.
        negative_ratio: G of K mismatched captions for each true pair's image, `[P, K]`.
        beta: β: how sharply a difference is judged.
        kept: which negatives count, `[P, K]`; by default all.

    Example:
        >>> pairwise_loss(torch.tensor([0.0]), torch.tensor([[0.0, 0.0]]))   # ln 2
        tensor([0.6931])
    """
    apart = positive_ratio.float()[:, None] - negative_ratio.float()
    return -mean_kept(functional.logsigmoid(beta * apart), kept)


class PairwiseSettings(AgainstReferenceSettings):
    """Settings of `Pairwise`."""

    beta: float = Field(1.0, gt=0, description="β: how sharply a difference of log ratios is judged")


class Pairwise(AgainstReference):
    """Contrastive learning by comparison: of an image, the true caption should gain more on the reference than a
    mismatched one.

    ::

        L = −mean_t mean_k ln σ(β (G⁺_t − G⁻_tk)),   G = ln p_target − ln p_reference      (eq. 7 of the CL paper)

    This is beyond the paper. Where CL (eq. 9) asks of each pair whether it is a true one, this asks which of two is: it
    is the loss of direct preference optimisation, with the true caption as the preferred answer to the image. What both
    captions of an image gain or lose together does not matter to it, so nothing holds p of true pairs itself up; add
    likelihood by the `composed` objective if quality falls. See `AgainstReference` for what it remembers, leaves out
    and logs; h is that of CL at ν = 1.

    Args:
        settings: see `PairwiseSettings`.
        roles: the captioner that is trained, usually from the reference's weights, and `reference`, a frozen captioner
            or ensemble trained by likelihood.

    Example:
        >>> objective = Pairwise(PairwiseSettings(beta=0.5), target, reference)   # doctest: +SKIP
        >>> objective(batch, Progress(0, 100))["loss"]                            # doctest: +SKIP
    """

    name = "contrastive-pairwise"
    Settings = PairwiseSettings
    settings: PairwiseSettings

    def loss(self, scores: Scores) -> torch.Tensor:
        return pairwise_loss(*scores.ratios, self.settings.beta, scores.kept)
