"""Introspective learning (IL), a baseline of contrastive learning: the target is compared with itself."""

from __future__ import annotations

import torch
from pydantic import Field
from torch.nn import functional

from tellapart.data.batches import Batch, Kind
from tellapart.errors import RecipeError
from tellapart.objectives.base import Objective, Progress, Start, Total, pair_log_prob
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

    weight: float = Field(1.0, ge=0, description="λ: weight of the margin term")
    margin: float = Field(1.0, ge=0, description="M: wanted difference of ln p(c|I) and ln p(c|I_j)")


class Introspective(Objective):
    """Introspective learning: a caption should be likelier given its own image than given a distractor image.

    ::

        L = mean over true pairs (c, I) of −ln p(c|I) + λ max(0, M − ln p(c|I) + ln p(c|I_j))

    This is the baseline "IL" in Table 4 of the CL paper, after the introspective speaker of Vedantam et al. (2017).
    Both likelihoods are the target's and have gradients. The distractor I_j of an image is fixed: the most similar
    image of the same split (cosine of pooled features). Neither paper says how to choose it.

    Related: `Contrastive` contrasts captions instead of images, relative to a frozen reference.

    Logged besides `loss`: `log_prob` (mean ln p(c|I)), `log_margin` (mean of ln p(c|I) − ln p(c|I_j)) and `margin_met`,
    the share of true pairs for which the difference is at least M.

    Args:
        settings: see `IntrospectiveSettings`.
        roles: the target, a captioner.

    Example:
        >>> objective = Introspective(IntrospectiveSettings(margin=2.0), Roles(target))   # doctest: +SKIP
        >>> objective(batch, Progress(0, 100))["loss"]                                    # doctest: +SKIP
    """

    name = "introspective"
    Settings = IntrospectiveSettings
    settings: IntrospectiveSettings

    def before_training(self, start: Start) -> None:
        for source in start.sources.values():
            if source.records:
                source.distractors()

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        source = batch.source
        if source is None:
            raise RecipeError("the introspective objective needs distractors; give batches made by a BatchSource")
        positive = pair_log_prob(self.target, batch, Kind.POSITIVE)
        distracted = batch.once("distracted", lambda: source.distracted(batch))
        distractor = pair_log_prob(self.target, distracted, Kind.DISTRACTOR)
        loss = introspective_loss(positive, distractor, self.settings.weight, self.settings.margin)
        apart = (positive - distractor).detach()
        met = (apart >= self.settings.margin).float()
        figures = {"log_prob": positive.detach(), "log_margin": apart, "margin_met": met}
        return {name: Total(values.sum(), len(values)) for name, values in {"loss": loss, **figures}.items()}
