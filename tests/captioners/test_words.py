"""The fused log probability of a word is the plain one, on values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tellapart.captioners import words as module
from tellapart.captioners.words import WordLogits
from tellapart.text import END, PAD, START, Vocabulary

pytestmark = pytest.mark.numerical


def make_layer(words: int, width: int = 24) -> WordLogits:
    torch.manual_seed(0)
    layer = WordLogits(width, Vocabulary([f"word{number}" for number in range(words)]))
    with torch.no_grad():
        layer.weight *= 5
    return layer


@pytest.mark.parametrize("words", [12, 13, 83])
@pytest.mark.parametrize("rows", [0, 1, 31, 100])
def test_fused_equals_plain(words: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCT_ROWS", 40)  # several blocks, the last one shorter
    monkeypatch.setattr(module, "CACHED_ROWS", 7)
    layer = make_layer(words)
    hidden = torch.randn(rows, 24)
    said = torch.randint(END, len(layer.bias), (rows,))
    weights = torch.randn(rows)

    def gradients(log_prob: torch.Tensor, given: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad((weights * log_prob).sum(), [given, layer.weight, layer.bias]))

    one, other = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    fused = layer.log_prob(one, said)
    plain = layer(other).log_softmax(dim=1)[torch.arange(rows), said]
    torch.testing.assert_close(fused, plain)
    for found, expected in zip(gradients(fused, one), gradients(plain, other), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_without_gradient_and_after_it() -> None:
    layer, hidden, said = make_layer(40), torch.randn(9, 24), torch.arange(4, 13)
    with torch.no_grad():
        alone = layer.log_prob(hidden, said)
    assert not alone.requires_grad
    kept = layer.log_prob(hidden, said)
    torch.testing.assert_close(alone, kept.detach())
    first, second = (torch.autograd.grad(kept.sum(), layer.weight, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_frozen_parts_get_no_gradient() -> None:
    layer, said = make_layer(40), torch.arange(4, 13)
    layer.requires_grad_(False)
    hidden = torch.randn(9, 24, requires_grad=True)
    layer.log_prob(hidden, said).sum().backward()
    plain = hidden.detach().clone().requires_grad_()
    (-functional.cross_entropy(layer(plain), said, reduction="sum")).backward()
    torch.testing.assert_close(hidden.grad, plain.grad)
    assert layer.weight.grad is None


def test_large_logits_and_impossible_words() -> None:
    layer = make_layer(40)
    hidden = 1e4 * torch.randn(5, 24)
    scores = layer.log_prob(hidden, torch.tensor([PAD, START, END, 5, 6]))
    assert bool(scores[:2].isneginf().all())
    assert bool(scores[2:].isfinite().all())


def test_bfloat16_takes_the_plain_form() -> None:
    layer, hidden, said = make_layer(40), torch.randn(9, 24), torch.arange(4, 13)
    exact = layer.log_prob(hidden, said)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = layer.log_prob(hidden, said)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=0.02, atol=0.2)


@pytest.mark.parametrize("rows", [0, 1, 3 * module.CACHED_ROWS + 1])
def test_log_softmax_of_all_words(rows: int) -> None:
    layer, hidden = make_layer(83), torch.randn(rows, 24)
    with torch.no_grad():
        found = layer.log_softmax(hidden)
        torch.testing.assert_close(found, layer(hidden).log_softmax(dim=1))
        found[:, END] = 0.0  # the caller may overwrite it
    assert layer.log_softmax(hidden).requires_grad
