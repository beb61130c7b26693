"""Guidance: the next word is chosen by what the picture adds to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import naive_decoding as naive
from support.close import assert_close
from tellapart.captioners.base import Captioner, Traces
from tellapart.decoding.ensemble import Ensemble
from tellapart.decoding.guidance import Guided, guide
from tellapart.decoding.search import decode, n_best
from tellapart.decoding.settings import DecodingSettings
from tellapart.encoders.base import EncoderIdentity
from tellapart.settings import Section
from tellapart.text import PAD, START, Vocabulary

Make = Callable[..., Captioner]
TINY = Vocabulary(("a", "red", "house"))


@torch.no_grad()
def test_a_step_equals_a_naive_loop(make_any: Make, features: torch.Tensor) -> None:
    """Of every captioner, from the equation, word by word; no picture is zeros."""
    model, guidance = make_any(words=TINY), 0.7
    nothing = torch.zeros_like(features[0])
    guided = Guided(model, guidance)
    images, said = [2, 0, 2], [[START, 4], [START, 6], [START, 5]]
    state = guided.start(guided.encode(features), torch.tensor([0, 1, 2]))
    state = guided.select(state, torch.tensor(images))
    for length in range(2):
        log_probs, state = guided.step(state, torch.tensor([words[length] for words in said]))
        for row, image in enumerate(images):
            scores = []
            for picture in (features[image], nothing):
                own = model.start(model.encode(picture[None]), torch.tensor([0]))
                for word in said[row][: length + 1]:
                    next_word, own = model.step(own, torch.tensor([word]))
                scores.append(next_word[0].tolist())
            possible = [word for word in range(len(TINY)) if word not in (PAD, START)]
            chosen = {word: scores[0][word] + guidance * (scores[0][word] - scores[1][word]) for word in possible}
            total = math.log(sum(math.exp(score) for score in chosen.values()))
            expected = [chosen[word] - total if word in chosen else -math.inf for word in range(len(TINY))]
            assert log_probs[row].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)


@torch.no_grad()
def test_no_guidance_is_the_captioner(make_sharp: Make, features: torch.Tensor) -> None:
    model = make_sharp(seed=3)
    assert guide(model, 0.0) is model
    guided, rows = Guided(model, 0.0), torch.tensor([0, 1, 2])
    tokens = model.tokenize(["a red house", "two", "a car near a tree"])
    memory, own = guided.encode(features), model.encode(features)
    for per_token in (False, True):
        assert_close(guided.log_prob(memory, tokens, rows, per_token), model.log_prob(own, tokens, rows, per_token))
    assert_close(guided.own_log_prob(memory, tokens, rows), model.log_prob(own, tokens, rows))


@torch.no_grad()
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_a_wide_beam_equals_exhaustive_search(make_sharp: Make, features: torch.Tensor, guidance: float) -> None:
    """Captions are the best by the guided score; their `log_prob` is the captioner's own."""
    settings = DecodingSettings(beam=7 * 3**3, samples=5, max_words=3, guidance=guidance)
    model = make_sharp(seed=2, words=TINY, sharp=8.0)
    found = n_best(model, features, settings)
    expected = naive.exhaustive(Guided(model, guidance), features, 3, settings)  # type: ignore[arg-type]
    for image, (said, listed) in enumerate(zip(found, expected, strict=True)):
        naive.assert_apart(listed, 5, settings)
        assert [one.caption for one in said] == [TINY.decode(words) for words, _ in listed[:5]]
        tokens = naive.token_rows([words for words, _ in listed[:5]])
        own = model.log_prob(model.encode(features[image][None]), tokens, torch.zeros(5, dtype=torch.long))
        assert [one.log_prob for one in said] == pytest.approx(own.tolist(), rel=1e-5, abs=1e-4)
    plain = n_best(model, features, settings.model_copy(update={"guidance": 0.0}))
    assert [[one.caption for one in said] for said in plain] != [[one.caption for one in said] for said in found]


@pytest.mark.parametrize(
    "settings",
    [
        {"beam": 4, "samples": 4, "length_penalty": 0.5},
        {"beam": 4, "samples": 4, "remove_repeats": True},
        {"method": "diverse", "beam": 4, "groups": 2, "samples": 4},
        {"method": "sample", "samples": 4, "temperature": 0.8, "top_p": 0.9},
    ],
)
def test_every_method_and_ensembles(make_sharp: Make, features: torch.Tensor, settings: dict[str, Any]) -> None:
    """Pruning changes nothing, an ensemble of one model is this model, and `log_prob` is the captioner's own."""
    model = make_sharp(seed=3)
    chosen = DecodingSettings(**settings, max_words=6, guidance=0.8)
    alone = decode(model, features, chosen)
    together = decode(Ensemble([model, model]), features, chosen)
    assert [[one.caption for one in said] for said in together] == [[one.caption for one in said] for said in alone]
    if chosen.method != "sample":
        assert n_best(model, features, chosen, early_stop=False) == alone
    for image, said in enumerate(alone):
        for one in said:
            tokens = model.tokenize([one.caption])[:, : None if one.ended else -1]
            own = model.log_prob(model.encode(features[image][None]), tokens, torch.tensor([0])).item()
            assert one.log_prob == pytest.approx(own, rel=1e-4, abs=1e-4)


# Probabilities of the words, after those of padding, start, end and unknown, without a picture.
USUAL = torch.tensor([0, 0, 0.2, 0.2, 0.5, 0.1])


class OneWord(Captioner):
    """Says one word; its logits are the usual ones and the picture's first region."""

    name = "one-word"
    Settings = Section

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        return USUAL.log() + features[:, 0]

    def hidden(self, memory: torch.Tensor, tokens: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        return memory[image_of_row].repeat_interleave((tokens != PAD).sum(dim=1), dim=0)

    def output(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def start(self, memory: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        return memory[image_of_row]

    def step(self, state: torch.Tensor, token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return state.log_softmax(dim=1), state

    def select(self, state: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return state[rows]

    def traces(self, memory: torch.Tensor, tokens: torch.Tensor, image_of_row: torch.Tensor) -> Traces:
        raise NotImplementedError


@pytest.mark.parametrize(("guidance", "word"), [(0.0, "animal"), (0.2, "animal"), (1.0, "dog")])
def test_guidance_changes_the_word(guidance: float, word: str) -> None:
    """An animal is likely in any picture, a dog in this one.

    p(animal) is 0.5 here and 0.5 without a picture; p(dog) is 0.3 here and 0.1 without. A dog wins where
    (0.3 / 0.5)^(1 + γ) (0.5 / 0.1)^γ > 1: 0.6 · 3^γ > 1, γ > 0.465.
    """
    model = OneWord(Section(), Vocabulary(("animal", "dog")), EncoderIdentity("tiny", "0", "none", regions=1, width=6))
    picture = torch.tensor([[[0.0, 0.0, *(math.log(p) for p in (0.1 / 0.2, 0.1 / 0.2, 0.5 / 0.5, 0.3 / 0.1))]]])
    ((one,),) = decode(model, picture, DecodingSettings(beam=1, max_words=1, guidance=guidance))
    assert (one.caption, one.ended) == (word, False)
    assert one.log_prob == pytest.approx(math.log({"animal": 0.5, "dog": 0.3}[word]))
