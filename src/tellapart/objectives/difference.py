"""The CL paper's initial attempt: differences of probabilities instead of log ratios. An ablation."""

from __future__ import annotations

import torch

from tellapart.objectives.reference import AgainstReference, AgainstReferenceSettings, Scores, mean_kept


def difference_loss(
    target_positive: torch.Tensor,
    reference_positive: torch.Tensor,
    target_negative: torch.Tensor,
    reference_negative: torch.Tensor,
    kept: torch.Tensor | None = None,
) -> torch.Tensor:
    """−D⁺ + mean_k D⁻_k of each true pair, `[P]`, with D = p_target − p_reference.

    Args:
        target_positive: ln p of the true pairs under the target, `[P]`.
        reference_positive: the same under the reference, `[P]`.
        target_negative: ln p of K mismatched captions for each true pair's image, `[P, K]`.
        reference_negative: the same under the reference, `[P, K]`.
        kept: which negatives count, `[P, K]`; by default all.

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
    """The literal difference loss (eq. 5–6), which CL replaces.

    ::

        D = p_target(c|I) − p_reference(c|I)                         (5)
        L' = Σ_t D⁺_t − Σ_t D⁻_t                                     (6), maximised; here the mean over true pairs of
                                                                     −D⁺ + mean_k D⁻_k, with T_n = T_m and K draws of Y

    It is here to show why the paper leaves it: probabilities of captions are tiny (10⁻⁸), so that likely, short
    captions have all the influence and Adam's ε drowns the others, and easy pairs weigh as much as hard and mistaken
    ones. The reference shifts the loss, not its gradient. See `AgainstReference` for what it remembers, leaves out and
    logs; h is that of CL at ν = 1.

    Args:
        settings: see `DifferenceSettings`.
        roles: the captioner that is trained, usually from the reference's weights, and `reference`, a frozen captioner
            or ensemble trained by likelihood.

    Example:
        >>> objective = Difference(DifferenceSettings(), target, reference)   # doctest: +SKIP
        >>> objective(batch, Progress(0, 100))["loss"]                        # doctest: +SKIP
    """

    name = "contrastive-difference"
    Settings = DifferenceSettings
    settings: DifferenceSettings

    def loss(self, scores: Scores) -> torch.Tensor:
        return difference_loss(
            scores.target_positive,
            scores.reference_positive,
            scores.target_negative,
            scores.reference_negative,
            scores.kept,
        )
