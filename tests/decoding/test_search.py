"""Beam search against exhaustive search, and its promises about ends, unknown words and batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from tellapart.captioners.adaptive import AdaptiveAttention
from tellapart.decoding.search import beam_search
from tellapart.recipe import DecodingSettings
from tellapart.text import END, PAD, UNKNOWN, Vocabulary

Make = Callable[..., AdaptiveAttention]
TINY = Vocabulary(("a", "red", "house"))


def exhaustive(
    model: AdaptiveAttention, features: torch.Tensor, longest: int, unknown: bool
) -> list[tuple[str, float]]:
    """The likeliest ended caption of up to `longest` words for each image, by scoring all of them."""
    words = [w for w in range(len(TINY)) if w > END and (unknown or w != UNKNOWN)]
    rows = [
        [*caption, END, *[PAD] * (longest - len(caption))]
        for length in range(longest + 1)
        for caption in itertools.product(words, repeat=length)
    ]
    tokens = torch.tensor(rows)
    memory = model.encode(features)
    best = []
    for image in range(len(features)):
        scores = model.log_prob(memory, tokens, torch.full((len(tokens),), image))
        row = int(scores.argmax())
        best.append((TINY.decode(tokens[row].tolist()), scores[row].item()))
    return best


@pytest.mark.parametrize("unknown", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_wide_beam_equals_exhaustive_search(
    make_captioner: Make, features: torch.Tensor, seed: int, unknown: bool
) -> None:
    model = make_captioner(seed=seed, words=TINY)
    with torch.no_grad():
        model.predict.weight *= 6  # sharp enough that captions of several words win
        found = beam_search(model, features, DecodingSettings(beam=4**3, max_words=3, block_unknown=not unknown))
        expected = exhaustive(model, features, 3, unknown)
    assert [one.caption for one in found] == [caption for caption, _ in expected]
    assert [one.log_prob for one in found] == pytest.approx([score for _, score in expected], abs=1e-5)
    assert all(one.ended for one in found)


def test_a_beam_of_one_is_greedy(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner(seed=5)
    with torch.no_grad():
        model.predict.weight *= 6
        found = beam_search(model, features, DecodingSettings(beam=1, max_words=6, block_unknown=False))
        for image, one in enumerate(found):
            state = model.start(model.encode(features), torch.tensor([image]))
            token, said, total = torch.tensor([1]), [], 0.0
            for _ in range(7):
                log_probs, state = model.step(state, token)
                if len(said) == 6 and log_probs.argmax() != END:
                    break
                token = log_probs.argmax(dim=1)
                total += log_probs[0, token].item()
                if token == END:
                    break
                said.append(int(token))
            assert one.caption == model.vocabulary.decode(said)
            assert one.ended == (token.item() == END)
            assert one.log_prob == pytest.approx(total, abs=1e-5)


def test_the_reported_score_is_the_models_own(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner(seed=2)
    with torch.no_grad():
        model.predict.weight *= 4
        found = beam_search(model, features, DecodingSettings(beam=4, max_words=12))
        tokens = model.tokenize([one.caption for one in found])
        scores = model.log_prob(model.encode(features), tokens, torch.arange(len(found)))
    assert all(one.ended for one in found)
    assert [one.log_prob for one in found] == pytest.approx(scores.tolist(), abs=1e-5)


def test_a_caption_that_never_ends_is_cut_and_says_so(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner(seed=2)
    with torch.no_grad():
        model.predict.bias[END] = -1e4
        found = beam_search(model, features, DecodingSettings(beam=3, max_words=4))
    assert [one.ended for one in found] == [False] * 3
    assert all(len(one.caption.split()) == 4 for one in found)


def test_unknown_is_never_said(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner(seed=2)
    with torch.no_grad():
        model.predict.bias[UNKNOWN] = 20.0
        blocked = beam_search(model, features, DecodingSettings(beam=3, max_words=5))
        free = beam_search(model, features, DecodingSettings(beam=3, max_words=5, block_unknown=False))
    assert not any("<unk>" in one.caption for one in blocked)
    assert all("<unk>" in one.caption for one in free)


def test_images_do_not_disturb_each_other(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner(seed=4)
    with torch.no_grad():
        model.predict.weight *= 4
    settings = DecodingSettings(beam=3, max_words=8)
    together = beam_search(model, features, settings)
    alone = [beam_search(model, features[i : i + 1], settings)[0] for i in range(3)]
    assert [one.caption for one in together] == [one.caption for one in alone]
