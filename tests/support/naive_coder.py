"""Pooling and the two branches of CODER, eq. 1–2, item by item and dimension by dimension."""

from __future__ import annotations

import torch

from tellapart.retrievers.two_branches import TwoBranches


def naive_pool(model: TwoBranches, items: torch.Tensor, branch: int, of: str) -> torch.Tensor:
    """One row of items `[n, width]` -> a vector."""
    if model.settings.pooling == "mean":
        return items.mean(dim=0)
    if model.settings.pooling == "max":
        return items.max(dim=0).values
    pool = getattr(model, f"pool_{of}")[branch]
    theta = pool.weights(torch.tensor([len(items)]), len(items))[0]
    pooled = torch.zeros(items.shape[1])
    for dimension in range(items.shape[1]):
        ordered = sorted(items[:, dimension].tolist(), reverse=True)
        pooled[dimension] = sum(weight * value for weight, value in zip(theta.tolist(), ordered, strict=True))
    return pooled


def naive_branches(model: TwoBranches, states: torch.Tensor, of: str) -> list[torch.Tensor]:
    """The branches of an image from its normalised regions, or of a caption from the states of its words."""
    items = model.region(states) + model.detail(states) if of == "regions" else states
    instance = naive_pool(model, items, 0, of)
    found = [instance / instance.norm()]
    if model.concepts:
        by_region = of == "regions"
        own = model.concept_region(states) + model.concept_detail(states) if by_region else model.concept_words(states)
        query = naive_pool(model, own, 1, of)
        query = query / query.norm()
        asked = model.ask_image if of == "regions" else model.ask_text
        concepts = model.graph()
        question = query @ asked.weight
        if not model.settings.literal_concepts:
            question = question / question.norm()
        logits = [model.settings.smoothness * float(question @ concept) for concept in concepts]
        weights = torch.tensor(logits).softmax(dim=0)
        mixed = sum((w * concept for w, concept in zip(weights, concepts, strict=True)), torch.zeros(concepts.shape[1]))
        found.append(mixed / mixed.norm())
    return found
