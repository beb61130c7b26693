"""Pooling against naive loops; padding, order and batch composition never change a value."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tellapart.retrievers.pooling import (
    GeneralizedPooling,
    disturb_words,
    drop_regions,
    max_pool,
    mean_pool,
    pack_items,
    position_encodings,
)
from tellapart.text import END, PAD, UNKNOWN

Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def make_pooling() -> GeneralizedPooling:
    torch.manual_seed(0)
    return GeneralizedPooling(position_width=6, hidden=4)


def pools() -> list[Pool]:
    return [mean_pool, max_pool, make_pooling()]


def ragged(rows: int = 6, items: int = 7, width: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Scattered masks of different sizes; the second row has one item."""
    generator = torch.Generator().manual_seed(rows)
    mask = torch.rand(rows, items, generator=generator) < 0.6
    mask[0] = True
    mask[1] = torch.arange(items) == 3
    mask[:, 3] = True
    return torch.randn(rows, items, width, generator=generator), mask


def naive_weights(pooling: GeneralizedPooling, count: int) -> torch.Tensor:
    """θ of a set of `count` items, the GRU written out."""
    width, gru = pooling.position_width, pooling.gru
    hidden = gru.hidden_size
    encodings = [
        torch.tensor(
            [
                (math.sin, math.cos)[column % 2](place / 10000 ** ((column - column % 2) / width))
                for column in range(width)
            ],
            dtype=gru.weight_ih_l0.dtype,
        )
        for place in range(count)
    ]
    states = [torch.zeros(count, hidden, dtype=gru.weight_ih_l0.dtype) for _ in range(2)]
    for direction, (suffix, order) in enumerate((("", range(count)), ("_reverse", reversed(range(count))))):
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        w_in, w_state, b_in, b_state = (getattr(gru, name + suffix) for name in names)
        state = torch.zeros(hidden, dtype=w_in.dtype)
        found = {}
        for place in order:
            from_input, from_state = w_in @ encodings[place] + b_in, w_state @ state + b_state
            reset = torch.sigmoid(from_input[:hidden] + from_state[:hidden])
            update = torch.sigmoid(from_input[hidden : 2 * hidden] + from_state[hidden : 2 * hidden])
            new = torch.tanh(from_input[2 * hidden :] + reset * from_state[2 * hidden :])
            state = (1 - update) * new + update * state
            found[place] = state
        states[direction] = torch.stack([found[place] for place in range(count)])
    scores = ((states[0] + states[1]) / 2 @ pooling.score.weight[0]) / pooling.temperature
    return scores.exp() / scores.exp().sum()


def naive_pool(pooling: GeneralizedPooling, items: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    rows = []
    for row in range(len(items)):
        there = [items[row, item] for item in range(items.shape[1]) if mask[row, item]]
        theta = naive_weights(pooling, len(there))
        columns = []
        for column in range(items.shape[2]):
            ordered = sorted((item[column] for item in there), key=torch.Tensor.item, reverse=True)
            columns.append(sum(weight * value for weight, value in zip(theta, ordered, strict=True)))
        rows.append(torch.stack(columns))
    return torch.stack(rows)


def test_generalized_pooling_equals_the_naive_loop_in_value_and_gradient() -> None:
    pooling = make_pooling().double()
    items, mask = ragged()
    items = items.double().requires_grad_()
    found, expected = pooling(items, mask), naive_pool(pooling, items, mask)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(5))
    inputs = [items, *pooling.parameters()]
    for one, other in zip(
        torch.autograd.grad((weights * found).sum(), inputs),
        torch.autograd.grad((weights * expected).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("pool", "naive"), [(mean_pool, torch.mean), (max_pool, torch.amax)])
def test_mean_and_maximum_equal_the_naive_loop(pool: Pool, naive: Callable[..., torch.Tensor]) -> None:
    items, mask = ragged()
    items.requires_grad_()
    found = pool(items, mask)
    expected = torch.stack([naive(row[there], dim=0) for row, there in zip(items, mask, strict=True)])
    torch.testing.assert_close(found, expected)
    (one,), (other,) = (torch.autograd.grad(values.square().sum(), items) for values in (found, expected))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", range(3))
def test_values_are_independent_of_padding_order_and_batch(kind: int) -> None:
    pool = pools()[kind]
    items, mask = ragged()
    whole = pool(items, mask)
    for row in range(len(items)):
        alone = items[row : row + 1, mask[row]]
        torch.testing.assert_close(pool(alone, torch.ones(alone.shape[:2], dtype=torch.bool))[0], whole[row])
    rubbish = items.masked_fill(~mask[..., None], 1e6)
    assert torch.equal(pool(rubbish, mask), whole)
    shuffled = torch.randperm(items.shape[1], generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(pool(items[:, shuffled], mask[:, shuffled]), whole)
    longer = torch.cat([items, torch.full((len(items), 4, 3), 9.0)], dim=1)
    torch.testing.assert_close(pool(longer, torch.cat([mask, torch.zeros(len(items), 4) > 0], dim=1)), whole)


@pytest.mark.parametrize("kind", range(3))
def test_no_items_give_zeros_and_finite_gradients(kind: int) -> None:
    items, mask = ragged()
    mask[2] = False
    items.requires_grad_()
    pooled = pools()[kind](items, mask)
    assert pooled[2].tolist() == [0.0, 0.0, 0.0]
    (gradient,) = torch.autograd.grad(pooled.square().sum(), items)
    assert gradient.isfinite().all()
    assert not gradient[~mask].any()
    assert pools()[kind](items[:0], mask[:0]).shape == (0, 3)
    # Captions of which none has a word; an empty share whose regions were packed.
    assert pools()[kind](items[:, :0], mask[:, :0]).tolist() == [[0.0] * 3] * 6
    assert pools()[kind](items[:0, :0], mask[:0, :0]).shape == (0, 3)


def test_weights_are_made_once_for_each_number_of_items() -> None:
    pooling = make_pooling()
    weights = pooling.weights(torch.tensor([3, 1, 3, 0]), longest=4)
    torch.testing.assert_close(weights.sum(dim=1), torch.tensor([1.0, 1.0, 1.0, 0.0]))
    assert torch.equal(weights[0], weights[2])
    assert weights[1].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert weights[3].tolist() == [0.0] * 4
    seen = []
    pooling.gru.register_forward_pre_hook(lambda module, given: seen.append(given[0].batch_sizes[0].item()))
    pooling(*ragged(rows=40))
    assert seen == [len(ragged(rows=40)[1].sum(dim=1).unique())]


def test_the_gradient_by_finite_differences() -> None:
    pooling = make_pooling()
    items, mask = ragged(rows=2, items=4)
    items = items.double().requires_grad_()
    # The weights are constant in the items, so that float32 ones do not disturb the differences.
    assert torch.autograd.gradcheck(lambda values: pooling(values, mask), items, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_items(dtype: torch.dtype) -> None:
    items, mask = ragged()
    for pool in pools():
        torch.testing.assert_close(pool(items.to(dtype), mask).float(), pool(items, mask), atol=3e-2, rtol=3e-2)


def test_position_encodings_are_even() -> None:
    assert position_encodings(3, 4)[0].tolist() == [0.0, 1.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="must be even"):
        GeneralizedPooling(position_width=5)


def test_a_fifth_of_the_regions_is_dropped_and_one_always_stays() -> None:
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(200, 49, dtype=torch.bool)
    mask[:, 40:] = False
    kept = drop_regions(mask, 0.2, generator)
    assert not (kept & ~mask).any()
    assert kept.sum() / mask.sum() == pytest.approx(0.8, abs=0.02)
    assert torch.equal(kept, drop_regions(mask, 0.2, torch.Generator().manual_seed(0)))
    assert drop_regions(mask, 1.0, generator).sum(dim=1).tolist() == [1] * 200
    assert not (drop_regions(mask, 1.0, generator) & ~mask).any()
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    assert not drop_regions(nothing, 0.5, generator).any()
    assert drop_regions(nothing[:0], 0.5, generator).shape == (0, 3)


@pytest.mark.parametrize("pool", pools(), ids=["mean", "max", "gpo"])
def test_packed_items_are_the_same_sets(pool: Pool) -> None:
    items, mask = ragged()
    mask[0] = False
    mask[0, 2:4] = True
    packed, fits = pack_items(items, mask)
    assert packed.shape[1] == int(mask.sum(dim=1).max()) < items.shape[1]
    assert fits.sum(dim=1).tolist() == mask.sum(dim=1).tolist()
    torch.testing.assert_close(pool(packed, fits), pool(items, mask))
    for row in range(len(items)):
        assert torch.equal(packed[row][fits[row]], items[row][mask[row]])
    assert pack_items(items[:0], mask[:0])[0].shape == (0, 0, 3)
    assert pack_items(items, torch.zeros_like(mask))[0].shape == (6, 0, 3)


def test_a_fifth_of_the_words_is_disturbed() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.full((400, 22), PAD)
    lengths = torch.randint(1, 21, (400,), generator=generator)
    for row, length in enumerate(lengths.tolist()):
        rows[row, :length] = torch.arange(10, 10 + length)
        rows[row, length] = END
    said = disturb_words(rows, 1000, 0.2, generator)
    assert said.shape == rows.shape
    words = (rows > UNKNOWN).sum()
    left_out = words - ((said != PAD) & (said != END)).sum()
    assert left_out / words == pytest.approx(0.08, abs=0.015)
    assert (said == UNKNOWN).sum() / words == pytest.approx(0.1, abs=0.015)
    assert ((said == END).sum(dim=1) == 1).all()
    for row, before in zip(said.tolist(), lengths.tolist(), strict=True):
        end = row.index(END)
        assert 1 <= end <= before
        assert set(row[end + 1 :]) <= {PAD}
        kept = [word for word in row[:end] if 10 <= word < 10 + before]
        assert len(kept) >= 0.2 * end - 1  # what stays is in order, but for the rare word put in by chance
    assert torch.equal(disturb_words(rows, 1000, 0.0), rows)


def test_a_caption_never_loses_all_its_words() -> None:
    row = torch.tensor([[7, END, PAD]])
    for seed in range(50):
        said = disturb_words(row, 9, 1.0, torch.Generator().manual_seed(seed))
        assert said[0, 1:].tolist() == [END, PAD]
        assert said[0, 0] >= UNKNOWN
    assert disturb_words(row[:0], 9).shape == (0, 3)
    with pytest.raises(ValueError, match="special tokens"):
        disturb_words(row, 4)
