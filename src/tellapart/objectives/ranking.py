"""The ranking loss that makes the specificity paper's image retriever: a hinge on random negatives, both ways."""

from __future__ import annotations

import torch
from pydantic import Field
from torch.nn import functional

from tellapart.data.batches import Batch, Kind
from tellapart.errors import RecipeError
from tellapart.objectives.base import Progress, RetrievalObjective, Roles, Total
from tellapart.retrievers.base import Raw, inner_products
from tellapart.settings import Section


def choose_negatives(allowed: torch.Tensor, count: int, noise: torch.Tensor) -> torch.Tensor:
    """Which candidates are an anchor's negatives: `count` drawn from those allowed, all of them if there are fewer.

    Args:
        allowed: `[anchors, candidates]`, whether a candidate belongs to another image.
        count: negatives for each anchor.
        noise: `[anchors, candidates]`, independent and uniform; those with the lowest are taken.

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
        positive: `[anchors]`, s: the similarity with what belongs to the anchor.
        scores: `[anchors, candidates]`, the similarity with each candidate.
        chosen: `[anchors, candidates]`, which candidates are the negatives.
        margin: how much higher s must be.

    Example:
        >>> scores = torch.tensor([[0.5, 0.2, 0.9]])
        >>> ranking_hinge_loss(torch.tensor([0.5]), scores, torch.tensor([[False, True, True]]), 0.2)
        tensor([0.6000])
    """
    return (functional.relu(margin - positive[:, None] + scores) * chosen).sum(dim=1)


class RankingHingeSettings(Section):
    """Settings of `RankingHinge`."""

    margin: float = Field(0.2, ge=0)
    negatives: int = Field(30, ge=1, description="drawn anew for each pair and direction at each step, from the batch")


class RankingHinge(RetrievalObjective):
    """SentEval's ranking loss, with which the specificity paper trains its image retriever.

    ::

        L = Σ_(I,c) [ Σ_k max(0, α − s(I, c) + s(I, c_k)) + Σ_k max(0, α − s(I, c) + s(I_k, c)) ]

    with s the cosine of the projections, α = 0.2, and 30 random negatives each way: c_k are captions of other images,
    I_k other images. They are drawn without replacement from the whole batch over all processes, never from the pair's
    own image; a smaller batch gives all it has. The sum is divided by the number of pairs. Any retriever with index
    vectors can be trained; they are normalised, however the retriever reads them afterwards.

    A step in parts (`training.accumulate`) draws its negatives from each part: there it is not the step it would be
    in one go, as with every loss that contrasts within a batch.

    Logged: `told_apart`, the share of negatives that score below the pair; `similarity_positive` and
    `similarity_negative`, the mean cosines.

    Args:
        settings: see `RankingHingeSettings`.
        roles: the retriever that is trained.

    Example:
        >>> objective = RankingHinge(RankingHingeSettings(), retriever)   # doctest: +SKIP
    """

    name = "ranking-hinge"
    Settings = RankingHingeSettings
    settings: RankingHingeSettings

    def __init__(self, settings: RankingHingeSettings, roles: Roles) -> None:
        super().__init__(settings, roles)
        if not self.target.has_index_vectors:
            raise RecipeError(
                f"objective: {self.name} compares one vector per item, and the {self.target.name} retriever has none; "
                "take another objective or retriever"
            )

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        pairs = batch.pairs.of(Kind.POSITIVE)
        captions = [batch.captions[row] for row in batch.pairs.caption_row[pairs].tolist()]
        images = self._vectors(self.target.embed_images(batch.features[self.target.encoder.name]))
        texts = self._vectors(self.target.embed_texts(captions))
        image_of_text = batch.pairs.image_row[pairs]
        positive = (images[image_of_text] * texts).sum(dim=1)

        # Items are known by their place in the gathered batch: an image of another process is another image.
        counts = self.processes.gather(torch.tensor([[len(images), len(texts)]], device=images.device))
        first_image, first_text = counts[: self.processes.rank].sum(dim=0).tolist()
        own = image_of_text + first_image
        owners = self.processes.gather(own)
        all_images = self.processes.gather(images, gradient=True)
        all_texts = self.processes.gather(texts, gradient=True)

        # Drawn for all pairs alike in every process, of which each takes its own.
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
