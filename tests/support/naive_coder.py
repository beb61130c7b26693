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


def naive_branches(model: TwoBranches, items: torch.Tensor, of: str) -> list[torch.Tensor]:
    instance = naive_pool(model, items, 0, of)
    found = [instance / instance.norm()]
    if model.concepts:
        query = naive_pool(model, items, 1, of)
        query = query / query.norm()
        asked = model.ask_image if of == "regions" else model.ask_text
        concepts = model.graph()
        logits = [model.settings.smoothness * float(query @ asked.weight @ concept) for concept in concepts]
        weights = torch.tensor(logits).softmax(dim=0)
        mixed = sum((w * concept for w, concept in zip(weights, concepts, strict=True)), torch.zeros(concepts.shape[1]))
        found.append(mixed / mixed.norm())
    return found
