"""SCAN against a naive loop over images, texts, words and regions, in value and gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from tellapart.retrievers.scan import cross_attention


def naive(
    regions: torch.Tensor, words: torch.Tensor, mask: torch.Tensor, sharpness: float, aggregation: str, peak: float
) -> torch.Tensor:
    rows = []
    for image in regions:
        row = []
        for text, there in zip(words, mask, strict=True):
            said = [word for word, real in zip(text, there, strict=True) if real]
            if not said:
                row.append(regions.sum() * 0)
                continue
            seen = [[torch.relu(region @ word) for word in said] for region in image]
            norms = [torch.sqrt(sum(value**2 for value in values) + 1e-16) for values in seen]  # type: ignore[arg-type]
            relevances = []
            for j, word in enumerate(said):
                logits = torch.stack([sharpness * seen[i][j] / norms[i] for i in range(len(image))])
                attended = (logits.softmax(dim=0)[:, None] * image).sum(dim=0)
                relevances.append(functional.cosine_similarity(word, attended, dim=0))
            if aggregation == "mean":
                row.append(sum(relevances, torch.zeros(())) / len(relevances))
            else:
                row.append(torch.logsumexp(peak * torch.stack(relevances), dim=0) / peak)
        rows.append(torch.stack(row))
    return torch.stack(rows)


@pytest.mark.parametrize("aggregation", ["mean", "logsumexp"])
def test_it_equals_the_naive_loop(aggregation: str) -> None:
    torch.manual_seed(0)
    raw = [torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((3, 4, 5), (4, 6, 5))]
    regions, words = (functional.normalize(part, dim=2) for part in raw)
    mask = torch.arange(6) < torch.tensor([6, 1, 3, 0])[:, None]
    found, expected = (
        function(regions, words, mask, 9.0, aggregation, 6.0)  # type: ignore[operator]
        for function in (cross_attention, naive)
    )
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-6)
    weights = torch.randn(3, 4, dtype=torch.float64)
    for one, other in zip(
        *(torch.autograd.grad((value * weights).sum(), raw, retain_graph=True) for value in (found, expected)),
        strict=True,
    ):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_orthogonal_words_have_finite_gradients() -> None:
    """A word that no region is like: all products are 0, and so is what it sees of them."""
    regions = torch.eye(3)[None, :2].clone().requires_grad_()
    words = torch.eye(3)[None, 2:].clone().requires_grad_()
    similarity = cross_attention(regions, words, torch.ones(1, 1, dtype=torch.bool))
    assert similarity.item() == 0
    similarity.sum().backward()
    assert regions.grad is not None
    assert words.grad is not None
    assert torch.isfinite(regions.grad).all()
    assert math.isfinite(float(words.grad.sum()))
