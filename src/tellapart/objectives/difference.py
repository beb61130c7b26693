"""The CL paper's first attempt: differences of probabilities instead of log ratios. An ablation."""

from __future__ import annotations

import torch

from tellapart.objectives.reference import AgainstReference, AgainstReferenceSettings, PairLogProbs, mean_kept


def difference_loss(
    target_positive: torch.Tensor,
    reference_positive: torch.Tensor,
    target_negative: torch.Tensor,
    reference_negative: torch.Tensor,
    kept: torch.Tensor | None = None,
) -> torch.Tensor:
    """−D⁺ + mean_k D⁻_k of each true pair, `[P]`, with D = p_target − p_reference.

    The arguments are those of `contrastive_loss`; `kept`, `[P, K]`, says which negatives count, by default all.

    Example:
        >>> half, tenth = torch.tensor([0.5]).log(), torch.tensor([0.1]).log()
        >>> difference_loss(half, tenth, half[:, None], half[:, None])
        tensor([-0.4000])
    """
    positive = target_positive.float().exp() - reference_positive.float().exp()
    negative = target_negative.float().exp() - reference_negative.float().exp()
    return mean_kept(negative, kept) - positive


class DifferenceSettings(AgainstReferenceSettings):
    """Settings of `Difference`."""


class Difference(AgainstReference):
    """The difference loss (eq. 5–6) that CL replaces.

    ::

        D = p_target(c|I) − p_reference(c|I)                         (5)
        L' = Σ_t D⁺_t − Σ_t D⁻_t                                     (6), maximised; here the mean over true pairs of
                                                                     −D⁺ + mean_k D⁻_k, with T_n = T_m and K draws of Y

    Use it only as an ablation of `Contrastive`. Probabilities of captions are tiny (10⁻⁸), so that short, likely
    captions dominate and Adam's ε hides the others; and easy pairs weigh as much as hard and mistaken ones. The
    reference shifts the loss but not its gradient. See `AgainstReference` for what is logged and left out; h is that of
    CL with ν = 1.

    Args:
        settings: see `DifferenceSettings`.
        roles: see `AgainstReference`.

    Example:
        >>> objective = Difference(DifferenceSettings(), Roles(target, reference=mle))   # doctest: +SKIP
        >>> objective(batch, Progress(0, 100))["loss"]                                   # doctest: +SKIP
    """

    name = "contrastive-difference"
    Settings = DifferenceSettings
    settings: DifferenceSettings

    def loss(self, scores: PairLogProbs) -> torch.Tensor:
        return difference_loss(*scores)
