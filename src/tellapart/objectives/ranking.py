"""The ranking loss of the specificity paper's image retriever: a hinge loss on random negatives, in both directions."""

from __future__ import annotations

import torch
from pydantic import Field
from torch.nn import functional

from tellapart.data.batches import Batch, Kind
from tellapart.errors import RecipeError
from tellapart.objectives.base import Progress, RetrievalObjective, Roles, Total, captions_of
from tellapart.retrievers.base import Raw, inner_products
from tellapart.settings import Section


def choose_negatives(allowed: torch.Tensor, count: int, noise: torch.Tensor) -> torch.Tensor:
    """Choose negatives at random: `count` of the allowed candidates for each anchor, or all if there are fewer.

    Args:
        allowed: `[anchors, candidates]`, whether a candidate belongs to another image.
        count: number of negatives for each anchor.
        noise: `[anchors, candidates]`, independent and uniform; the candidates with the lowest values are chosen.

    Example:
        >>> choose_negatives(torch.tensor([[True, False, True]]), 1, torch.tensor([[0.9, 0.1, 0.2]]))
        tensor([[False, False,  True]])
    """
    count = min(count, allowed.shape[1])
    if count == 0:
        return allowed
    order = noise.masked_fill(~allowed, torch.inf).topk(count, dim=1, largest=False).indices
    return torch.zeros_like(allowed).scatter_(1, order, True) & allowed


def ranking_hinge_loss(
    positive: torch.Tensor, scores: torch.Tensor, chosen: torch.Tensor, margin: float
) -> torch.Tensor:
    """Σ_k max(0, margin − s + s_k) over each anchor's negatives, `[anchors]`.

    Args:
        positive: `[anchors]`, s: similarity of the anchor with its partner.
        scores: `[anchors, candidates]`, similarity with each candidate.
        chosen: `[anchors, candidates]`, which candidates are negatives.
        margin: α.

    Example:
        >>> scores = torch.tensor([[0.5, 0.2, 0.9]])
        >>> ranking_hinge_loss(torch.tensor([0.5]), scores, torch.tensor([[False, True, True]]), 0.2)
        tensor([0.6000])
    """
    return (functional.relu(margin - positive[:, None] + scores) * chosen).sum(dim=1)


class RankingHingeSettings(Section):
    """Settings of `RankingHinge`."""

    margin: float = Field(0.2, ge=0, description="α: wanted difference of the similarities")
    negatives: int = Field(30, ge=1, le=10_000, description="negatives from the batch for each pair and direction")


class RankingHinge(RetrievalObjective):
    """SentEval's ranking loss, used by the specificity paper to train its image retriever.

    ::

        L = Σ_(I,c) [ Σ_k max(0, α − s(I, c) + s(I, c_k)) + Σ_k max(0, α − s(I, c) + s(I_k, c)) ]

    Here s is the cosine, c_k are captions of other images and I_k are other images. The paper uses α = 0.2 and 30
    random negatives in each direction. They are drawn without replacement from the whole batch over all processes,
    never from the pair's own image. The sum is divided by the number of pairs. Any retriever with index vectors can be
    trained; they are normalised.

    With `training.accumulate`, negatives are drawn within each part of the batch, so that the step differs from one on
    the whole batch.

    Related: `CoderObjective` with `loss: triplet` uses the hardest negatives of the batch instead of random ones.

    Logged: `told_apart`, the share of negatives with a lower similarity than the pair; `similarity_positive` and
    `similarity_negative`, the mean cosines.

    Args:
        settings: see `RankingHingeSettings`.
        roles: the target, a retriever.

    Example:
        >>> objective = RankingHinge(RankingHingeSettings(), Roles(retriever))   # doctest: +SKIP
    """

    name = "ranking-hinge"
    Settings = RankingHingeSettings
    settings: RankingHingeSettings

    def __init__(self, settings: RankingHingeSettings, roles: Roles) -> None:
        super().__init__(settings, roles)
        if not self.target.has_index_vectors:
            raise RecipeError(
                f"objective: {self.name} compares one vector per item, and the {self.target.name} retriever has none; "
                "use another objective or retriever"
            )

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        pairs = batch.pairs.of(Kind.POSITIVE)
        images = self._vectors(self.target.embed_images(batch.features[self.target.encoder.name]))
        texts = self._vectors(self.target.embed_texts(captions_of(batch, pairs)))
        image_of_text = batch.pairs.image_row[pairs]
        positive = (images[image_of_text] * texts).sum(dim=1)

        # Images are identified by their place in the gathered batch.
        counts = self.processes.gather(torch.tensor([[len(images), len(texts)]], device=images.device))
        first_image, first_text = counts[: self.processes.rank].sum(dim=0).tolist()
        own = image_of_text + first_image
        owners = self.processes.gather(own)
        all_images = self.processes.gather(images, gradient=True)
        all_texts = self.processes.gather(texts, gradient=True)

        # Every process draws the noise of all pairs and uses its own part.
        noise = torch.rand(len(all_texts), len(all_texts) + len(all_images), generator=batch.generator(self.name))
        noise = noise[first_text : first_text + len(texts)].to(images.device)
        total, figures = torch.zeros(len(texts), device=images.device), []
        for scores, allowed, drawn in (
            (inner_products(images, all_texts)[image_of_text], own[:, None] != owners, noise[:, : len(all_texts)]),
            (inner_products(texts, all_images), own[:, None] != _places(all_images), noise[:, len(all_texts) :]),
        ):
            chosen = choose_negatives(allowed, self.settings.negatives, drawn)
            total = total + ranking_hinge_loss(positive, scores, chosen, self.settings.margin)
            figures.append((scores.detach()[chosen], (scores < positive[:, None])[chosen]))
        negative, below = (torch.cat(values) for values in zip(*figures, strict=True))
        return {
            "loss": Total(total.sum(), len(texts)),
            "told_apart": Total(below.sum().float(), len(below)),
            "similarity_positive": Total(positive.detach().sum(), len(positive)),
            "similarity_negative": Total(negative.sum(), len(negative)),
        }

    def _vectors(self, raw: Raw) -> torch.Tensor:
        return functional.normalize(self.target.index_vectors(raw).float(), dim=1)


def _places(rows: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(rows), device=rows.device)
