"""The coupled banks against Python lists, the momentum encoder against its equation; both come back bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tellapart.captioners.words import WordLogits
from tellapart.objectives.memory import NO_IMAGE, KeyQueue, MomentumBank, MomentumEncoder
from tellapart.text import Vocabulary


@pytest.mark.parametrize("sizes", [[3], [3, 3, 3], [2, 0, 5, 1, 4], [5, 5], [12], [3, 17, 2], [0]])
def test_the_queue_equals_a_list(sizes: list[int]) -> None:
    """Ragged batches, wrap-around, a batch larger than the capacity."""
    generator = torch.Generator().manual_seed(len(sizes))
    queue = KeyQueue(capacity=5, width=2)
    slots: list[tuple[list[float], int]] = [([0.0, 0.0], NO_IMAGE)] * 5
    place = 0
    for size in sizes:
        keys = torch.randn(size, 2, generator=generator)
        images = torch.randint(0, 4, (size,), generator=generator)
        queue.enqueue(keys, images)
        for one in zip(keys.tolist(), images.tolist(), strict=True):
            slots[place % 5] = one
            place += 1
        assert queue.keys.tolist() == [slot[0] for slot in slots]
        assert queue.images.tolist() == [slot[1] for slot in slots]
        assert queue.pointer == place % 5
        assert queue.filled == min(place, 5)
        expected = [[slot[1] != NO_IMAGE and slot[1] != image for slot in slots] for image in range(5)]
        assert queue.negatives(torch.arange(5)).tolist() == expected


def test_the_bank_has_a_queue_for_images_and_one_for_texts() -> None:
    bank = MomentumBank(4, 2)
    bank.enqueue(torch.eye(2), torch.tensor([7, 8]), torch.ones(3, 2), torch.tensor([7, 7, 8]))
    assert bank.images.images.tolist() == [7, 8, NO_IMAGE, NO_IMAGE]
    assert bank.texts.images.tolist() == [7, 7, 8, NO_IMAGE]
    assert bank.images.keys[:2].tolist() == torch.eye(2).tolist()


def test_the_bank_resumes_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(0)

    def step(size: int) -> tuple[torch.Tensor, ...]:
        texts = torch.randn(2 * size, 3, generator=generator), torch.arange(size).repeat_interleave(2)
        return torch.randn(size, 3, generator=generator), torch.arange(size), *texts

    batches = [step(size) for size in (4, 3, 6, 1)]
    whole = MomentumBank(7, 3)
    for batch in batches:
        whole.enqueue(*batch)
    before = MomentumBank(7, 3)
    for batch in batches[:2]:
        before.enqueue(*batch)
    after = MomentumBank(7, 3)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    for batch in batches[2:]:
        after.enqueue(*batch)
    names = {f"{queue}.{part}" for queue in ("images", "texts") for part in ("keys", "images", "enqueued")}
    assert set(whole.state_dict()) == names
    for name, value in whole.state_dict().items():
        assert torch.equal(after.state_dict()[name], value)


def test_keys_are_stored_without_gradient_and_in_float32() -> None:
    queue = KeyQueue(3, 2)
    queue.enqueue(torch.ones(2, 2, dtype=torch.bfloat16, requires_grad=True), torch.tensor([0, 1]))
    assert queue.keys.dtype == torch.float32
    assert not queue.keys.requires_grad


def test_what_does_not_fit_is_refused() -> None:
    queue = KeyQueue(3, 2)
    with pytest.raises(ValueError, match=r"2 keys of width 2 .* \[3, 2\]"):
        queue.enqueue(torch.zeros(3, 2), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="image numbers must be at least 0"):
        queue.enqueue(torch.zeros(1, 2), torch.tensor([-1]))
    with pytest.raises(ValueError, match="at least 1"):
        MomentumBank(0, 2)


def encoder() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), WordLogits(4, Vocabulary(["a"])))


def test_the_momentum_encoder_follows_its_source() -> None:
    source = encoder()
    follower = MomentumEncoder(source, momentum=0.9)
    expected = {name: value.clone() for name, value in follower.encoder.state_dict().items()}
    for _ in range(3):
        with torch.no_grad():
            for parameter in source.parameters():
                parameter.add_(torch.randn(parameter.shape))
        source(torch.randn(5, 3))  # moves the running statistics
        follower.update(source)
        for name, value in source.state_dict().items():
            if value.is_floating_point():
                expected[name] = 0.9 * expected[name] + 0.1 * value
            else:
                expected[name] = value.clone()
    assert int(expected["1.num_batches_tracked"]) == 3
    for name, value in follower.encoder.state_dict().items():
        torch.testing.assert_close(value, expected[name])
    impossible = follower.encoder[3].impossible
    assert torch.equal(impossible, source[3].impossible)  # infinities stay what they are


def test_nothing_changes_where_the_source_does_not() -> None:
    source = encoder()
    follower = MomentumEncoder(source)
    follower.update(source)
    for name, value in source.state_dict().items():
        assert torch.equal(follower.encoder.state_dict()[name], value)


def test_it_is_saved_and_stays_out_of_training() -> None:
    source = encoder()
    holder = nn.ModuleDict({"source": source, "follower": MomentumEncoder(source)})
    holder.train()
    assert source.training
    assert not holder["follower"].encoder[2].training
    assert not any(parameter.requires_grad for parameter in holder["follower"].parameters())
    assert all(parameter.requires_grad for parameter in source.parameters())
    again = nn.ModuleDict({"source": encoder(), "follower": MomentumEncoder(encoder())})
    with torch.no_grad():
        holder["follower"].encoder[0].weight.add_(1)
    again.load_state_dict(holder.state_dict())
    for name, value in holder.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)


def test_a_tied_weight_stays_tied() -> None:
    source = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    source[1].weight = source[0].weight
    follower = MomentumEncoder(source, momentum=0.5)
    with torch.no_grad():
        source[0].weight.add_(1)
    follower.update(source)
    assert follower.encoder[0].weight is follower.encoder[1].weight
    torch.testing.assert_close(follower.encoder[0].weight, source[0].weight - 0.5)


def test_a_momentum_beyond_one_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        MomentumEncoder(nn.Linear(1, 1), momentum=1.5)
