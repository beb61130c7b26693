"""MLE, label smoothing and scheduled sampling against loops over single captions, tokens and words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from support.close import assert_close
from support.tiny import make_captioner as make_any
from support.tiny import make_data, names
from tellapart.captioners.adaptive import AdaptiveAttention
from tellapart.captioners.base import Captioner
from tellapart.data.batches import Batch, BatchSource, Kind
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset
from tellapart.objectives.base import Progress, Roles, Total
from tellapart.objectives.likelihood import Likelihood, LikelihoodSettings, drawn_words, mixed_with_own_words
from tellapart.text import PAD, START


def test_loss_is_the_mean_over_tokens_with_end_tokens(
    tiny_data: tuple[Dataset, FeatureStore], make_captioner: Callable[..., AdaptiveAttention]
) -> None:
    dataset, store = tiny_data
    model = make_captioner(seed=3)
    batch = BatchSource(dataset, store, "train", images_per_batch=5, negatives=2).at(0)
    totals = Likelihood(LikelihoodSettings(), Roles(model))(batch, Progress(0, 1))
    total, count = torch.zeros(()), 0
    for pair in batch.pairs.of(Kind.POSITIVE).tolist():
        memory = model.encode(batch.features["tiny"][batch.pairs.image_row[pair]][None])
        tokens = model.tokenize([batch.captions[batch.pairs.caption_row[pair]]])
        for value in model.log_prob(memory, tokens, torch.tensor([0]), per_token=True)[0]:
            total = total - value
            count += 1
    assert totals["loss"].count == count
    torch.testing.assert_close(totals["loss"].sum, total, atol=1e-4, rtol=1e-5)
    found = torch.autograd.grad(totals["loss"].sum, list(model.parameters()))
    expected = torch.autograd.grad(total, list(model.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def tiny_batch(step: int = 0) -> Batch:
    """Five images with one to four captions of unequal lengths each."""
    return BatchSource(*make_data(), "train", images_per_batch=5, negatives=2).at(step)


def likelihood(
    model: Captioner, batch: Batch, step: int = 0, train: bool = True, **settings: float
) -> dict[str, Total]:
    """The totals at a step of a training of ten."""
    objective = Likelihood(LikelihoodSettings(**settings), Roles(model)).train(train)
    batch.forget()
    return objective(batch, Progress(step, 10))


def gradients(loss: torch.Tensor, model: Captioner) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def single_pairs(model: Captioner, batch: Batch) -> list[tuple[object, torch.Tensor]]:
    """The memory and the token row of each true pair, one by one."""
    pairs = batch.pairs.of(Kind.POSITIVE).tolist()
    return [
        (
            model.encode(batch.features["tiny"][batch.pairs.image_row[pair]][None]),
            model.tokenize([batch.captions[batch.pairs.caption_row[pair]]])[0],
        )
        for pair in pairs
    ]


# --- label smoothing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names("captioner"))
def test_label_smoothing_against_a_loop(name: str) -> None:
    model, batch, smoothing = make_any(seed=3, name=name), tiny_batch(), 0.3
    totals = likelihood(model, batch, label_smoothing=smoothing)
    words = [word for word in range(len(model.vocabulary)) if word not in (PAD, START)]
    expected, plain, count = torch.zeros(()), torch.zeros(()), 0
    for memory, tokens in single_pairs(model, batch):
        state, before = model.start(memory, torch.tensor([0])), START
        for token in tokens.tolist():
            log_probs, state = model.step(state, torch.tensor([before]))
            expected = expected - (1 - smoothing) * log_probs[0, token]
            for word in words:
                expected = expected - smoothing / len(words) * log_probs[0, word]
            plain = plain - log_probs[0, token]
            count, before = count + 1, token
    assert totals["loss"].count == totals["nll"].count == count
    assert_close(totals["loss"].sum, expected)
    assert_close(totals["nll"].sum, plain)
    assert_close(gradients(totals["loss"].sum, model), gradients(expected, model))


def test_the_plain_likelihood_is_logged_beside_the_smoothed_loss() -> None:
    model, batch = make_any(seed=3), tiny_batch()
    plain = likelihood(model, batch)
    assert set(plain) == {"loss"}
    for train in (True, False):
        smoothed = likelihood(model, batch, train=train, label_smoothing=0.1)
        assert_close(smoothed["nll"].sum, plain["loss"].sum)
        assert abs(smoothed["loss"].sum.item() / smoothed["nll"].sum.item() - 1) > 1e-4


# --- scheduled sampling ---------------------------------------------------------------------------------------------


def test_no_sampling_is_the_plain_likelihood() -> None:
    """Bit for bit, and with the same forward pass: at the first step of a ramp and in validation."""
    model, batch = make_any(seed=3), tiny_batch()
    plain = likelihood(model, batch)["loss"]
    ramp = likelihood(model, batch, 0, sampling_end=1.0)["loss"]
    validation = likelihood(model, batch, 5, train=False, sampling_start=1.0, sampling_end=1.0)["loss"]
    for other in (ramp, validation):
        assert torch.equal(other.sum, plain.sum)
        assert other.count == plain.count


@pytest.mark.parametrize("name", names("captioner"))
def test_sampling_against_a_loop(name: str) -> None:
    """A model that is sure of its words: each drawn word is the most probable one, so the loop needs no chance."""
    model, batch = make_any(seed=3, name=name), tiny_batch()
    with torch.no_grad():
        model.predict.weight.mul_(1e5)
    found = likelihood(model, batch, sampling_start=1.0, sampling_end=1.0)["loss"]
    expected, count, replaced = torch.zeros(()), 0, 0
    for memory, tokens in single_pairs(model, batch):
        state, before, own = model.start(memory, torch.tensor([0])), START, []
        for token in tokens.tolist():  # reads the true words
            log_probs, state = model.step(state, torch.tensor([before]))
            assert log_probs.max() > -1e-3, "sure of its word"
            own.append(int(log_probs.argmax()))
            before = token
        state, before = model.start(memory, torch.tensor([0])), START
        for token, said in zip(tokens.tolist(), own, strict=True):  # reads its own words
            log_probs, state = model.step(state, torch.tensor([before]))
            expected = expected - log_probs[0, token]
            count, replaced, before = count + 1, replaced + (said != token), said
    assert replaced > count / 2
    assert found.count == count
    assert_close(found.sum, expected)
    assert_close(gradients(found.sum, model), gradients(expected, model))
    teacher_forced = likelihood(model, batch)["loss"].sum.item()
    assert abs(found.sum.item() / teacher_forced - 1) > 0.01


def test_the_share_of_own_words_grows_over_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch, shares = make_any(seed=3), tiny_batch(), []

    def recorded(*arguments: object) -> torch.Tensor:
        shares.append(arguments[4])
        return mixed_with_own_words(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("tellapart.objectives.likelihood.mixed_with_own_words", recorded)
    for step in range(0, 10, 5):
        likelihood(model, batch, step, sampling_start=0.1, sampling_end=0.3)
    assert shares == pytest.approx([0.1, 0.2])


def test_words_are_replaced_at_the_given_rate_and_padding_never() -> None:
    model = make_any(seed=3)
    tokens = model.tokenize(["a red house", "two"]).repeat(500, 1)
    memory, image_of_row = model.encode(torch.randn(1, 4, 6)), torch.zeros(len(tokens), dtype=torch.long)
    noise = torch.rand(*tokens.shape, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        probabilities = model.forward(memory, tokens, image_of_row).softmax(dim=2)
    kept = probabilities.gather(2, tokens[..., None]).squeeze(2)[tokens != PAD]  # a drawn word may be the true one
    mixed = mixed_with_own_words(model, memory, tokens, image_of_row, 0.25, noise)
    assert torch.equal(mixed == PAD, tokens == PAD)
    assert not (mixed == START).any()
    changed = (mixed != tokens)[tokens != PAD].float().mean()
    assert float(changed) == pytest.approx(0.25 * float((1 - kept).mean()), abs=0.03)


def test_words_are_drawn_by_their_probabilities() -> None:
    probabilities = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.2, 0.0]).expand(7, -1)
    noise = torch.tensor([0.0, 0.49, 0.51, 0.79, 0.81, 0.99, 1 - 2**-24])
    assert drawn_words(probabilities, noise).tolist() == [1, 1, 3, 3, 4, 4, 4]


def test_an_empty_share_of_a_batch() -> None:
    source = BatchSource(*make_data(), "train", 5, seed=7, rank=1, world=2)
    batch = next(source.at(step) for step in range(4) if not source.at(step).ids)
    for settings in ({"label_smoothing": 0.1}, {"sampling_start": 0.5, "sampling_end": 0.5}):
        totals = likelihood(make_any(), batch, **settings)
        assert all(total.count == 0 and float(total.sum) == 0 for total in totals.values())
        assert set(totals) == ({"loss", "nll"} if "label_smoothing" in settings else {"loss"})
