"""Introspective learning (IL), a rival of contrastive learning: the target is its own reference."""

from __future__ import annotations

import torch
from pydantic import Field
from torch.nn import functional

from tellapart.data.batches import Batch, Kind
from tellapart.errors import RecipeError
from tellapart.objectives.base import Objective, Progress, Total, pair_log_prob
from tellapart.settings import Section


def introspective_loss(
    positive: torch.Tensor, distractor: torch.Tensor, weight: float = 1.0, margin: float = 1.0
) -> torch.Tensor:
    """−ln p(c|I) + λ max(0, M − ln p(c|I) + ln p(c|I_j)) of each true pair, `[P]`.

    Args:
        positive: ln p of the captions given their own images, `[P]`.
        distractor: ln p of the same captions given other images, `[P]`.
        weight: λ.
        margin: M.

    Example:
        >>> introspective_loss(torch.tensor([-4.0, -4.0]), torch.tensor([-9.0, -4.5]))
        tensor([4.0000, 4.5000])
    """
    positive, distractor = positive.float(), distractor.float()
    return weight * functional.relu(margin - positive + distractor) - positive


class IntrospectiveSettings(Section):
    """Settings of `Introspective`."""

    weight: float = Field(1.0, ge=0, description="λ: of the margin, beside the likelihood")
    margin: float = Field(1.0, ge=0, description="M: ln p of a caption given its image over that given the distractor")


class Introspective(Objective):
    """Introspective learning: a caption should be likelier given its own image than given a distractor image.

    ::

        L = mean over true pairs (c, I) of −ln p(c|I) + λ max(0, M − ln p(c|I) + ln p(c|I_j))

    The CL paper trains Table 4's rival "IL" so, after the introspective speaker of Vedantam et al. (2017). Both
    likelihoods are the target's own and the gradient flows through both. I_j is fixed: chosen once for each image, the
    image of the same split that looks most like it (cosine of pooled features); neither paper says how to choose it.

    Logged beside `loss`: `log_prob` (mean ln p(c|I)), `log_margin` (mean of ln p(c|I) − ln p(c|I_j)) and `margin_met`,
    the share of true pairs for which that is at least M.

    Args:
        settings: see `IntrospectiveSettings`.
        roles: the captioner that is trained.

    Example:
        >>> Introspective(IntrospectiveSettings(margin=2.0), target)(batch, Progress(0, 100))   # doctest: +SKIP
    """

    name = "introspective"
    Settings = IntrospectiveSettings
    settings: IntrospectiveSettings

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        source = batch.source
        if source is None:
            raise RecipeError("the introspective objective takes distractors from the batch's source; it has none")
        positive = pair_log_prob(self.target, batch, Kind.POSITIVE)
        distracted = batch.once("distracted", lambda: source.distracted(batch))
        distractor = pair_log_prob(self.target, distracted, Kind.DISTRACTOR)
        loss = introspective_loss(positive, distractor, self.settings.weight, self.settings.margin)
        apart = (positive - distractor).detach()
        met = (apart >= self.settings.margin).float()
        figures = {"log_prob": positive.detach(), "log_margin": apart, "margin_met": met}
        return {name: Total(values.sum(), len(values)) for name, values in {"loss": loss, **figures}.items()}
