"""Straight-through decoding against a naive loop of steps, and its gradient derived by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.close import assert_close
from support.tiny import IDENTITY, WORDS, make_captioner, names
from tellapart.objectives.own_captions import without_dropout
from tellapart.objectives.straight_through import SpokenCaptions, gumbel_noise, straight_through
from tellapart.text import END, PAD, START, Vocabulary

IMAGES, LIMIT = 6, 5
LENGTHS = (2, 5, 0, 3, 1, 5)  # with noise
TEMPERATURE = 0.7


def make(name: str, end: float = 0.0, **settings: Any) -> Any:
    return raise_end(make_captioner(4, Vocabulary(WORDS, max_words=LIMIT), name, **settings), end)


def raise_end(captioner: Any, by: float) -> Any:
    """The same captioner with likelier ends of captions."""
    with torch.no_grad():
        captioner.predict.bias[END] += by
    return captioner


def features(images: int = IMAGES) -> torch.Tensor:
    return 3 * torch.randn(images, IDENTITY.regions, IDENTITY.width, generator=torch.Generator().manual_seed(5))


def made_up_noise(captioner: Any) -> torch.Tensor:
    """Gumbel noise, except that the captions end after `LENGTHS` words."""
    shape = (IMAGES, LIMIT, len(captioner.vocabulary))
    noise = gumbel_noise(torch.rand(shape, generator=torch.Generator().manual_seed(6)))
    ends = torch.arange(LIMIT) >= torch.tensor(LENGTHS)[:, None]
    noise[:, :, END] = torch.where(ends, 50.0, -50.0)
    return noise


def speak(captioner: Any, noise: torch.Tensor | None = None) -> SpokenCaptions:
    return straight_through(captioner, captioner.encode(features()), IMAGES, noise, TEMPERATURE)


def naive(captioner: Any, noise: torch.Tensor | None) -> list[tuple[list[int], list[torch.Tensor]]]:
    """Words of each image and one_hot + p − p.detach() of each, by steps with gradient."""
    found = []
    for number, grid in enumerate(features()):
        state = captioner.start(captioner.encode(grid[None]), torch.tensor([0]))
        token, words, weights = START, [], []
        for length in range(LIMIT):
            log_probs, state = captioner.step(state, torch.tensor([token]))
            scores = log_probs[0] if noise is None else log_probs[0] + noise[number, length]
            token = int(scores.argmax())
            if token == END:
                break
            p = (scores if noise is None else scores / TEMPERATURE).softmax(dim=0)
            one_hot = torch.zeros_like(p)
            one_hot[token] = 1.0
            words.append(token)
            weights.append(one_hot + p - p.detach())
        found.append((words, weights))
    return found


def gradients(captioner: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    captioner.zero_grad()
    loss.backward()
    return {path: p.grad.clone() for path, p in captioner.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("name", names("captioner"))
def test_equals_steps_with_gradient(name: str, noisy: bool) -> None:
    captioner = make(name)
    noise = made_up_noise(captioner) if noisy else None
    spoken, expected = speak(captioner, noise), naive(captioner, noise)
    upstream = torch.randn(IMAGES, LIMIT, len(captioner.vocabulary), generator=torch.Generator().manual_seed(7))
    assert not noisy or tuple(len(words) for words, _ in expected) == LENGTHS
    assert any(words for words, _ in expected)
    with_words = [number for number, (words, _) in enumerate(expected) if words]
    assert spoken.image.tolist() == with_words
    assert spoken.lengths.tolist() == [len(expected[number][0]) for number in with_words]
    losses = []
    for row, number in enumerate(with_words):
        words, weights = expected[number]
        assert spoken.tokens[number, : len(words)].tolist() == words
        assert spoken.weights[row, : len(words)].argmax(dim=1).tolist() == words
        assert_close(spoken.weights[row, : len(words)], torch.stack(weights))
        losses += [(weight * upstream[row, place]).sum() for place, weight in enumerate(weights)]
    found = (spoken.weights * upstream[: len(with_words), : spoken.weights.shape[1]]).sum()
    one, other = gradients(captioner, found), gradients(captioner, torch.stack(losses).sum())
    assert one.keys() == other.keys()
    assert max(float(gradient.abs().max()) for gradient in other.values()) > 0.01
    assert_close(one, other)


def test_words_are_exactly_one_hot() -> None:
    spoken = speak(make("adaptive-attention"))
    assert set(spoken.weights.unique().tolist()) <= {0.0, 1.0}
    assert torch.equal(spoken.weights.sum(dim=(1, 2)).long(), spoken.lengths)


def test_gradient_by_hand() -> None:
    """∂L/∂b_k = Σ_t p_tk (r_tk − Σ_j p_tj r_tj), with r = ∂L/∂one-hot: the output bias is in no fed-back word."""
    captioner = make("updown")
    memory = captioner.encode(features())
    spoken = straight_through(captioner, memory, IMAGES)
    upstream = torch.randn(spoken.weights.shape, generator=torch.Generator().manual_seed(7))
    found = gradients(captioner, (spoken.weights * upstream).sum())["predict.bias"]
    expected = torch.zeros(len(captioner.vocabulary))
    for row, image in enumerate(spoken.image.tolist()):
        state = captioner.start(captioner.encode(features()[image : image + 1]), torch.tensor([0]))
        token = START
        for place in range(int(spoken.lengths[row])):
            log_probs, state = captioner.step(state, torch.tensor([token]))
            p, r = log_probs[0].detach().exp(), upstream[row, place]
            mean = float((p * r).sum())
            expected += torch.tensor([float(p[k]) * (float(r[k]) - mean) for k in range(len(p))])
            token = int(spoken.tokens[image, place])
    assert_close(found, expected)


def test_nothing_after_the_end_has_an_effect() -> None:
    captioner = make("neuraltalk")
    spoken = speak(captioner, made_up_noise(captioner))
    after = torch.arange(spoken.weights.shape[1]) >= spoken.lengths[:, None]
    assert after.any()
    assert not spoken.weights[after].any()
    assert all(not gradient.any() for gradient in gradients(captioner, spoken.weights[after].sum()).values())
    assert (spoken.tokens[:, 1:][spoken.tokens[:, :-1] == END] == PAD).all()


def test_captions_without_words_are_left_out() -> None:
    spoken = speak(make("adaptive-attention", end=100.0))
    assert spoken.tokens[:, 0].tolist() == [END] * IMAGES
    assert len(spoken.image) == len(spoken.lengths) == len(spoken.weights) == 0


def test_an_image_has_the_same_caption_in_any_batch() -> None:
    captioner = make("transformer")
    noise = made_up_noise(captioner)
    whole = speak(captioner, noise)
    for row, image in enumerate(whole.image.tolist()):
        part = slice(image, image + 1)
        alone = straight_through(captioner, captioner.encode(features()[part]), 1, noise[part], TEMPERATURE)
        assert torch.equal(alone.weights[0], whole.weights[row, : alone.weights.shape[1]])


def test_there_is_no_dropout() -> None:
    captioner = make("adaptive-attention", dropout=0.5)
    expected = speak(captioner)
    captioner.train()
    with without_dropout(captioner):
        found = speak(captioner)
    assert captioner.training
    assert torch.equal(found.tokens, expected.tokens)
