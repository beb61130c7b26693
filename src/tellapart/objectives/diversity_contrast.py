"""Losses that align images and texts: DCL of CODER (Wang et al., ECCV 2022), the triplet loss and InfoNCE.

All are functions of cosine similarities for one direction of retrieval. Their arguments are, for each anchor, the
similarity with its partner, the similarities with candidates, and which candidates are negatives. They return one
value per anchor, `[A]`, so that the caller can sum and count over processes. `both_directions` makes the arguments from
one matrix. With positives from momentum keys and candidates from a queue, the same functions give losses with a bank.

Candidates of the anchor's own image are not negatives: `other_images` masks them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional

# log(1 + S) is infinite at S = −1; below this value the positive term is constant.
LOWEST_COSINE = -1 + 1e-4
# Used instead of an SD of 0; any value far below ε gives the same diversity.
SMALLEST_DEVIATION = 1e-12


class Anchors(NamedTuple):
    """One direction of retrieval.

    Attributes:
        positives: similarity of each anchor with its partner, `[A]`.
        similarity: similarities with the candidates, `[A, C]`.
        negatives: which candidates are negatives, `[A, C]`.
    """

    positives: torch.Tensor
    similarity: torch.Tensor
    negatives: torch.Tensor


def other_images(anchor_images: torch.Tensor, candidate_images: torch.Tensor) -> torch.Tensor:
    """Which candidates belong to another image than the anchor, `[A, C]`, by image numbers.

    >>> other_images(torch.tensor([7, 8]), torch.tensor([7, 7, 8]))
    tensor([[False, False,  True],
            [ True,  True, False]])
    """
    return anchor_images[:, None] != candidate_images[None]


def both_directions(
    similarity: torch.Tensor,
    image_row: torch.Tensor,
    text_row: torch.Tensor,
    images: torch.Tensor,
    text_images: torch.Tensor,
) -> tuple[Anchors, Anchors]:
    """The anchors of image-to-text and text-to-image retrieval; in both, each true pair is an anchor.

    Args:
        similarity: similarity of all images with all texts, `[I, T]`.
        image_row: the image of each true pair, `[P]`.
        text_row: the text of each true pair, `[P]`.
        images: number of each image, `[I]`.
        text_images: number of the image that each text describes, `[T]`.

    Example:
        >>> similarity = torch.tensor([[0.9, 0.8, 0.1], [0.2, 0.0, 0.7]])
        >>> rows, columns, numbers = torch.tensor([0, 0, 1]), torch.arange(3), torch.tensor([5, 6])
        >>> to_text, to_image = both_directions(similarity, rows, columns, numbers, numbers[rows])
        >>> to_text.positives, to_image.similarity.shape
        (tensor([0.9000, 0.8000, 0.7000]), torch.Size([3, 2]))
    """
    positives = similarity[image_row, text_row]
    negatives = other_images(images, text_images)
    return (
        Anchors(positives, similarity[image_row], negatives[image_row]),
        Anchors(positives, similarity.T[text_row], negatives.T[text_row]),
    )


# --- diversity, eq. 3 -------------------------------------------------------------------------------------------------


@torch.no_grad()
def deviations(similarity: torch.Tensor, negatives: torch.Tensor) -> torch.Tensor:
    """SD of each anchor's similarities with its negatives, `[A]`, in float32 and without gradient; see `diversity`.

    >>> deviations(torch.tensor([[0.9, 0.5, -0.5], [0.1, 0.8, 0.1]]), torch.tensor([[False, True, True]] * 2))
    tensor([0.5000, 0.3500])
    """
    count = negatives.sum(dim=1).clamp(min=1)
    # In two passes, since E(S²) − E(S)² loses precision for nearly equal similarities.
    values = similarity.float().masked_fill(~negatives, 0.0)
    mean = values.sum(dim=1) / count
    apart = (values - mean[:, None]).masked_fill(~negatives, 0.0)
    return (apart.square().sum(dim=1) / count).sqrt()


def unscaled_diversity(similarity: torch.Tensor, negatives: torch.Tensor, epsilon: float = 0.1) -> torch.Tensor:
    """1/σ(ε/SD) = 1 + exp(−ε/SD) of each anchor, `[A]`, in float32 and without gradient; see `diversity`.

    It is in [1, 2). An anchor with fewer than two negatives has SD = 0 and so the value 1.
    """
    return 1 + torch.exp(-epsilon / deviations(similarity, negatives).clamp(min=SMALLEST_DEVIATION))


def diversity(
    similarity: torch.Tensor,
    negatives_mask: torch.Tensor,
    epsilon: float = 0.1,
    largest: torch.Tensor | None = None,
) -> torch.Tensor:
    """Diversity of the similarities of an anchor's negatives, eq. 3, `[A]`, in (0.5, 1], without gradient.

    ::

        SD(v_i)  = √(E(S_ij²) − E(S_ij)²)  over the negatives j
        div(v_i) = 1/σ(ε/SD(v_i)) = 1 + exp(−ε/SD(v_i)),  divided by the largest of all anchors

    An anchor with negatives of similar similarity has a low diversity: it is ambiguous, and DCL gives more weight to
    its negatives.

    Args:
        similarity: `[A, C]`.
        negatives_mask: which candidates are negatives, `[A, C]`.
        epsilon: ε.
        largest: the largest `unscaled_diversity` over all processes; by default that of these anchors.

    Example:
        >>> similarity = torch.tensor([[0.9, 0.5, -0.5], [0.1, 0.8, 0.1]])
        >>> diversity(similarity, torch.tensor([[False, True, True], [True, False, True]]))
        tensor([1.0000, 0.5498])
    """
    unscaled = unscaled_diversity(similarity, negatives_mask, epsilon)
    if not len(unscaled):
        return unscaled
    return unscaled / (unscaled.max() if largest is None else largest)


def mean_diversity(of_batch: torch.Tensor, of_bank: torch.Tensor, bank_negatives: torch.Tensor) -> torch.Tensor:
    """The mean of an anchor's diversities in the batch and in the bank, `[A]` (sec. 3.3, below eq. 6).

    If the bank holds fewer than two negatives of an anchor, as at the first step, only the batch counts.

    >>> mean_diversity(torch.tensor([0.6, 0.6]), torch.ones(2), torch.tensor([[True, True], [True, False]]))
    tensor([0.8000, 0.6000])
    """
    return torch.where(bank_negatives.sum(dim=1) > 1, (of_batch + of_bank) / 2, of_batch)


# --- losses, one value per anchor -----------------------------------------------------------------------------------


def dcl_loss(
    positives: torch.Tensor | None,
    similarity: torch.Tensor,
    negatives: torch.Tensor,
    diversity: torch.Tensor | None = None,
    mu: float = 0.1,
    gamma: float = 0.3,
    positive_weight: float = 1.0,
) -> torch.Tensor:
    """Diversity-sensitive contrastive loss (DCL) of each anchor, eq. 5, or its implicit form, eq. 4, `[A]`.

    ::

        l_n = μ log(1 + Σ_q exp((S_nq − γ) / (μ div_n))) − w log(1 + S_nn),   q over the negatives of n

    The mean over anchors is one direction, l_DCL; the sum of both directions is L_DCL.

    In the paper both terms have the factor μ, so w = μ = 0.1. Then the positive term is so weak that the two modalities
    drift apart. So w is a setting, 1 by default.

    Related: `triplet_loss` uses only the hardest negative, `info_nce` weighs all negatives by a softmax.

    Args:
        positives: S_nn, cosines `[A]`: with the partner in the batch, or with its momentum key. `None` for anchors
            without a partner, such as the entries of a bank (eq. 6 read literally).
        similarity: S_nq, cosines with the candidates, `[A, C]`.
        negatives: which candidates are negatives, `[A, C]`; an anchor may have none.
        diversity: div_n, `[A]`, from `diversity`; `None` gives the implicit form (div = 1).
        mu: μ, temperature.
        gamma: γ, margin.
        positive_weight: w; as written in the paper it is `mu`.

    Example:
        >>> similarity = torch.tensor([[0.5, 0.3], [0.3, 0.5]])
        >>> negatives = other_images(torch.arange(2), torch.arange(2))
        >>> dcl_loss(similarity.diagonal(), similarity, negatives)   # 0.1 ln 2 − ln 1.5
        tensor([-0.3362, -0.3362])
    """
    scale = similarity.new_ones(len(similarity), dtype=torch.float32) if diversity is None else diversity.float()
    logits = ((similarity.float() - gamma) / (mu * scale)[:, None]).masked_fill(~negatives, -torch.inf)
    # log(1 + Σ exp) is a log-sum-exp with an extra logit of 0; it is finite without negatives too.
    apart = mu * torch.logsumexp(functional.pad(logits, (1, 0)), dim=1)
    if positives is None:
        return apart
    return apart - positive_weight * torch.log1p(positives.float().clamp(min=LOWEST_COSINE))


def triplet_loss(
    positives: torch.Tensor,
    similarity: torch.Tensor,
    negatives: torch.Tensor,
    margin: float = 0.2,
    hardest: bool = True,
) -> torch.Tensor:
    """Triplet loss of each anchor (VSE++, Faghri et al. 2018), `[A]`; the sum of both directions is BTR.

    ::

        l_n = max_q [α − S_nn + S_nq]₊      or, over all negatives,      l_n = Σ_q [α − S_nn + S_nq]₊

    Args:
        positives: S_nn, `[A]`.
        similarity: S_nq, `[A, C]`.
        negatives: which candidates are negatives, `[A, C]`; an anchor without any has loss 0.
        margin: α.
        hardest: use only the most similar negative; otherwise the sum over all.

    Example:
        >>> similarity = torch.tensor([[0.5, 0.4, 0.6]])
        >>> triplet_loss(similarity[:, 0], similarity, torch.tensor([[False, True, True]]))
        tensor([0.3000])
    """
    cost = (margin - positives.float()[:, None] + similarity.float()).relu().masked_fill(~negatives, 0.0)
    return functional.pad(cost, (1, 0)).amax(dim=1) if hardest else cost.sum(dim=1)


def info_nce(
    positives: torch.Tensor, similarity: torch.Tensor, negatives: torch.Tensor, temperature: float = 0.05
) -> torch.Tensor:
    """InfoNCE loss of each anchor (van den Oord et al. 2018), `[A]`; the sum of both directions is BIN.

    ::

        l_n = −log ( exp(S_nn/τ) / (exp(S_nn/τ) + Σ_q exp(S_nq/τ)) )

    Args:
        positives: S_nn, `[A]`.
        similarity: S_nq, `[A, C]`.
        negatives: which candidates are negatives, `[A, C]`; an anchor without any has loss 0.
        temperature: τ.

    Example:
        >>> info_nce(torch.tensor([0.5]), torch.tensor([[0.5, 0.9]]), torch.tensor([[True, False]]))   # ln 2
        tensor([0.6931])
    """
    # As log(1 + Σ exp((S_nq − S_nn)/τ)), whose gradient is not a difference of nearly equal numbers.
    logits = (similarity.float() - positives.float()[:, None]) / temperature
    return torch.logsumexp(functional.pad(logits.masked_fill(~negatives, -torch.inf), (1, 0)), dim=1)


# --- all losses of CODER, eq. 8 ---------------------------------------------------------------------------------------


def coder_weights(instance: float = 3.0, concept_twice: bool = False) -> dict[str, float]:
    """The weights of CODER's four losses, eq. 8: L = λ L_DCL^I + L_M-DCL^I + L_DCL^C + L_PGC.

    Args:
        instance: λ.
        concept_twice: use L_DCL^C = L_DCL(V, W) + L_DCL(W, V) as written in the paper. L_DCL already contains both
            directions, so each counts twice; by default it counts once.

    Example:
        >>> coder_weights()
        {'instance': 3.0, 'memory': 1.0, 'concept': 1.0, 'prototypes': 1.0}
    """
    return {
        "instance": instance,
        "memory": 1.0,
        "concept": 2.0 if concept_twice else 1.0,
        "prototypes": 1.0,
    }
