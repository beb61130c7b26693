"""Contrast while decoding: the next word is likely for this picture and unlikely for its distractors."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from support import naive_decoding as naive
from support.close import assert_close
from tellapart.captioners.base import Captioner
from tellapart.decoding.contrast import IMPLAUSIBLE, Contrasted
from tellapart.decoding.ensemble import Ensemble
from tellapart.decoding.guidance import Guided
from tellapart.decoding.search import n_best
from tellapart.decoding.settings import DecodingSettings
from tellapart.text import PAD, START, Vocabulary

Make = Callable[..., Captioner]
TINY = Vocabulary(("a", "red", "house"))
ALL = [[1, 2], [0, 2], [0, 1]]


def naive_step(
    model: Captioner,
    picture: torch.Tensor,
    distractors: list[torch.Tensor],
    said: list[int],
    strength: float,
    least: float,
) -> list[float]:
    """ln p_λ of every word after `said`, from the equation."""

    def log_probs(features: torch.Tensor) -> list[float]:
        state = model.start(model.encode(features[None]), torch.tensor([0]))
        for word in said:
            next_word, state = model.step(state, torch.tensor([word]))
        values: list[float] = next_word[0].tolist()
        return values

    own, others = log_probs(picture), [log_probs(one) for one in distractors]
    possible = [word for word in range(len(TINY)) if word not in (PAD, START)]
    highest = max(math.exp(own[word]) for word in possible)
    scores = {}
    for word in possible:
        if not others or strength == 0:
            scores[word] = own[word]
        elif math.exp(own[word]) < least * highest:
            scores[word] = own[word] - IMPLAUSIBLE
        else:
            mean = sum(math.exp(one[word]) for one in others) / len(others)
            scores[word] = own[word] - strength * math.log(mean)
    total = math.log(sum(math.exp(score) for score in scores.values()))
    return [scores[word] - total if word in scores else -math.inf for word in range(len(TINY))]


@torch.no_grad()
@pytest.mark.parametrize(("strength", "least"), [(0.6, 0.0), (0.9, 0.3), (0.0, 0.3)])
def test_a_step_equals_a_naive_loop(make_any: Make, features: torch.Tensor, strength: float, least: float) -> None:
    """Of every captioner, word by word; the images have two, one and no distractors, and rows come in any order."""
    model, distractors = make_any(words=TINY, sharp=3.0), [[2, 1], [0], []]
    contrasted = Contrasted(model, features, distractors, strength, least)
    images, said = [2, 0, 1, 0], [[START, 4], [START, 6], [START, 5], [START, 4]]
    state = contrasted.start(contrasted.encode(features), torch.tensor([0, 1, 2]))
    state = contrasted.select(state, torch.tensor(images))
    for length in range(2):
        log_probs, state = contrasted.step(state, torch.tensor([words[length] for words in said]))
        for row, image in enumerate(images):
            others = [features[place] for place in distractors[image]]
            expected = naive_step(model, features[image], others, said[row][: length + 1], strength, least)
            assert log_probs[row].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("strength", "distractors"), [(0.0, ALL), (0.7, [[], [], []])])
def test_no_contrast_is_plain_decoding(
    make_sharp: Make, features: torch.Tensor, strength: float, distractors: list[list[int]]
) -> None:
    """With λ = 0, and in groups of one."""
    model, settings = make_sharp(seed=3), DecodingSettings(beam=4, samples=4, max_words=6)
    plain, found = (
        n_best(model, features, settings),
        n_best(Contrasted(model, features, distractors, strength), features, settings),
    )
    assert [[one.caption for one in said] for said in found] == [[one.caption for one in said] for said in plain]
    for said, expected in zip(found, plain, strict=True):
        assert [one.log_prob for one in said] == pytest.approx([one.log_prob for one in expected], rel=1e-4, abs=1e-4)


def test_the_order_of_the_batch_does_not_matter(make_sharp: Make, features: torch.Tensor) -> None:
    model, settings = make_sharp(seed=3), DecodingSettings(beam=3, samples=3, max_words=6)
    found = n_best(Contrasted(model, features, ALL, 0.7), features, settings)
    turned = n_best(Contrasted(model, features.flip(0), [[1, 2], [2, 0], [1, 0]], 0.7), features.flip(0), settings)
    assert [[one.caption for one in said] for said in turned[::-1]] == [[one.caption for one in said] for said in found]
    alone = n_best(Contrasted(model, features[1:], [[1, 0]], 0.7), features[:1], settings)
    assert [one.caption for one in alone[0]] == [one.caption for one in found[0]]
    plain = n_best(model, features, settings)
    assert [[one.caption for one in said] for said in plain] != [[one.caption for one in said] for said in found]


@torch.no_grad()
def test_a_wide_beam_equals_exhaustive_search(make_sharp: Make, features: torch.Tensor) -> None:
    """Captions are the best by the contrast; their `log_prob` is the captioner's own."""
    settings = DecodingSettings(beam=7 * 3**3, samples=5, max_words=3)
    model = make_sharp(seed=2, words=TINY, sharp=8.0)
    contrasted = Contrasted(model, features, ALL, 0.5, plausibility=0.0)
    found = n_best(contrasted, features, settings)
    expected = naive.exhaustive(contrasted, features, 3, settings)  # type: ignore[arg-type]
    for image, (said, listed) in enumerate(zip(found, expected, strict=True)):
        naive.assert_apart(listed, 5, settings)
        assert [one.caption for one in said] == [TINY.decode(words) for words, _ in listed[:5]]
        tokens = naive.token_rows([words for words, _ in listed[:5]])
        own = model.log_prob(model.encode(features[image][None]), tokens, torch.zeros(5, dtype=torch.long))
        assert [one.log_prob for one in said] == pytest.approx(own.tolist(), rel=1e-5, abs=1e-4)


@torch.no_grad()
def test_with_guidance_and_ensembles(make_sharp: Make, features: torch.Tensor) -> None:
    """An ensemble of one model is this model; without guidance a guided captioner is too."""
    model, settings = make_sharp(seed=3), DecodingSettings(beam=3, max_words=6)
    alone = n_best(Contrasted(model, features, ALL, 0.7), features, settings)
    for same in (Ensemble([model, model]), Guided(model, 0.0)):
        found = n_best(Contrasted(same, features, ALL, 0.7), features, settings)
        assert [one.caption for (one,) in found] == [one.caption for (one,) in alone]
    tokens = model.tokenize(["a red house", "two", "a car near a tree"])
    contrasted, rows = Contrasted(model, features, ALL, 0.7), torch.tensor([0, 1, 2])
    memory = contrasted.encode(features)
    assert_close(contrasted.own_log_prob(memory, tokens, rows), model.log_prob(model.encode(features), tokens, rows))
    per_token = contrasted.log_prob(memory, tokens, rows, per_token=True)
    assert_close(per_token.sum(dim=1), contrasted.log_prob(memory, tokens, rows))


def test_a_step_does_not_forbid_what_the_settings_need(make_sharp: Make, features: torch.Tensor) -> None:
    """If only the end is plausible and it is forbidden, there is still a caption."""
    settings = DecodingSettings(beam=2, min_words=5, max_words=6)
    for (one,) in n_best(Contrasted(make_sharp(sharp=30.0), features, ALL, 0.7, 0.9), features, settings):
        assert len(one.caption.split()) >= 5


def test_as_many_images_as_lists(make_sharp: Make, features: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="3 images and distractors of 2"):
        Contrasted(make_sharp(), features, [[1], [0]], 0.5).encode(features)
