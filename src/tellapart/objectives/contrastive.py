"""Contrastive Learning (CL) for image captioning (Dai and Lin, NIPS 2017)."""

from __future__ import annotations

import math

import torch
from pydantic import Field, model_validator
from torch.nn import functional

from tellapart.objectives.reference import AgainstReference, AgainstReferenceSettings, PairLogProbs, mean_kept


def contrastive_terms(
    positive_ratio: torch.Tensor, negative_ratio: torch.Tensor, nu: float = 1.0, kept: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The two terms of eq. 9, negated, `[P]` each: −ln h(G⁺) and −ν · mean_k ln(1 − h(G⁻_k)).

    Computed as ln h(G) = logsigmoid(G − ln ν) and ln(1 − h(G)) = logsigmoid(ln ν − G), which is stable.

    Args:
        positive_ratio: G of the true pairs, `[P]`.
        negative_ratio: G of K mismatched pairs for each true pair, `[P, K]`.
        nu: ν = T_n / T_m.
        kept: which negatives count, `[P, K]`; by default all.
    """
    positive_term = -functional.logsigmoid(positive_ratio - math.log(nu))
    negative_term = -nu * mean_kept(functional.logsigmoid(math.log(nu) - negative_ratio), kept)
    return positive_term, negative_term


def contrastive_loss(
    target_positive: torch.Tensor,
    reference_positive: torch.Tensor,
    target_negative: torch.Tensor,
    reference_negative: torch.Tensor,
    nu: float = 1.0,
    positive: bool = True,
    negative: bool = True,
) -> torch.Tensor:
    """The CL loss, eq. 7–10, to be minimised; mean over true pairs.

    ::

        G = ln p_target − ln p_reference                                  (7)
        h = 1 / (1 + ν exp(−G))                                           (3, 8)
        J = mean_t [ ln h(G⁺_t) + ν mean_k ln(1 − h(G⁻_tk)) ]             (9, 10), with T_n = ν T_m

    Args:
        target_positive: ln p of the true pairs under the target, `[P]`.
        reference_positive: the same under the frozen reference, `[P]`.
        target_negative: ln p of K mismatched captions for each true pair's image, `[P, K]`.
        reference_negative: the same under the reference, `[P, K]`.
        nu: ν = T_n / T_m; the paper uses 1.
        positive: keep the first term; with it alone the loss is CL(P).
        negative: keep the second term; with it alone the loss is CL(N).

    Example:
        >>> same = torch.tensor([-9.0])
        >>> round(contrastive_loss(same, same, same[:, None], same[:, None]).item(), 4)   # 2 ln 2
        1.3863
    """
    if not (positive or negative):
        raise ValueError("contrastive_loss needs the positive term, the negative term, or both")
    positive_ratio = target_positive.float() - reference_positive.float()
    negative_ratio = target_negative.float() - reference_negative.float()
    terms = zip(contrastive_terms(positive_ratio, negative_ratio, nu), (positive, negative), strict=True)
    return torch.stack([term for term, keep in terms if keep]).sum(dim=0).mean()


class ContrastiveSettings(AgainstReferenceSettings):
    """Settings of `Contrastive`."""

    nu: float = Field(1.0, gt=0, description="ν = T_n / T_m: weight of mismatched against true pairs")
    positive: bool = Field(True, description="use the positive term; alone it is CL(P)")
    negative: bool = Field(True, description="use the negative term; alone it is CL(N)")

    @model_validator(mode="after")
    def _has_a_term(self) -> ContrastiveSettings:
        if not (self.positive or self.negative):
            raise ValueError("set positive, negative, or both to true")
        return self


class Contrastive(AgainstReference):
    """Contrastive Learning: raise ln p of true pairs and lower that of mismatched ones, relative to a reference.

    Use it after `Likelihood` to make captions distinctive: a caption that fits any image gains nothing, since its gain
    on its own image is a loss on others. The positive term keeps the quality, the negative term makes captions
    distinctive. See `contrastive_loss` for the equations and `AgainstReference` for what is logged and left out.

    The paper's mismatched pairs are captions of other images. With `contrast: images` they are the caption with other
    images, as in self-retrieval; with `both`, the negative term is the mean of both (see `AgainstReference`).

    Related: `Pairwise` compares a true and a mismatched pair directly (DPO); `Difference` is the paper's first
    attempt, for ablations; `Introspective` contrasts images and needs no reference. Combine it with likelihood by
    `Composed`.

    Args:
        settings: see `ContrastiveSettings`.
        roles: see `AgainstReference`.

    Example:
        >>> objective = Contrastive(ContrastiveSettings(negatives=5), Roles(target, reference=mle))   # doctest: +SKIP
        >>> objective(batch, Progress(0, 100))["loss"]                                                # doctest: +SKIP
    """

    name = "contrastive"
    Settings = ContrastiveSettings
    settings: ContrastiveSettings

    @property
    def nu(self) -> float:
        return self.settings.nu

    def loss(self, scores: PairLogProbs) -> torch.Tensor:
        first, second = contrastive_terms(*scores.ratios, self.nu, scores.kept)
        if not self.settings.negative:
            return first
        return first + second if self.settings.positive else second
