"""An ensemble is the mean of probabilities, and decodes like any captioner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from support import naive_decoding as naive
from support.tiny import IDENTITY
from tellapart.captioners.adaptive import AdaptiveAttention
from tellapart.captioners.base import Captioner
from tellapart.decoding.ensemble import Ensemble
from tellapart.decoding.search import decode, n_best
from tellapart.decoding.settings import DecodingSettings
from tellapart.errors import RecipeError
from tellapart.text import START, Vocabulary

Make = Callable[..., Captioner]
TINY = Vocabulary(("a", "red", "house"))


@pytest.fixture
def members(make_sharp: Make) -> list[Captioner]:
    return [make_sharp(seed=seed, words=TINY, sharp=4.0) for seed in range(3)]


def test_the_mean_of_probabilities(members: list[Captioner], features: torch.Tensor) -> None:
    ensemble, token, images = Ensemble(members), torch.tensor([START] * 3), torch.arange(3)
    with torch.no_grad():
        state = ensemble.start(ensemble.encode(features), images)
        states = [one.start(one.encode(features), images) for one in members]
        for rows in ([0, 1, 2], [2, 2, 0]):
            chosen = torch.tensor(rows)
            state = ensemble.select(state, chosen)
            states = [one.select(own, chosen) for one, own in zip(members, states, strict=True)]
            found, state = ensemble.step(state, token)
            stepped = [one.step(own, token) for one, own in zip(members, states, strict=True)]
            states = [own for _, own in stepped]
            assert torch.allclose(found.exp(), sum(log_probs.exp() for log_probs, _ in stepped) / 3, atol=1e-6)
            token = torch.tensor([4, 5, 6])


def test_a_wide_beam_equals_exhaustive_search(members: list[Captioner], features: torch.Tensor) -> None:
    settings = DecodingSettings(beam=7 * 3**3, samples=5, max_words=3)
    ensemble = Ensemble(members)
    with torch.no_grad():
        found = n_best(ensemble, features, settings)
        expected = naive.exhaustive(ensemble, features, 3, settings)  # type: ignore[arg-type]
    for said, listed in zip(found, expected, strict=True):
        naive.assert_apart(listed, 5, settings)
        assert [one.caption for one in said] == [TINY.decode(words) for words, _ in listed[:5]]
        expected_scores = [score for _, score in listed[:5]]
        assert [one.log_prob for one in said] == pytest.approx(expected_scores, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("method", ["beam", "diverse", "sample"])
def test_a_captioner_with_itself_is_itself(make_sharp: Make, features: torch.Tensor, method: str) -> None:
    model = make_sharp(seed=3)
    settings = DecodingSettings(method=method, samples=3, max_words=6, remove_repeats=True)
    alone = decode(model, features, settings)
    for ensemble in (Ensemble([model]), Ensemble([model, model])):
        together = decode(ensemble, features, settings)
        assert [[one.caption for one in said] for said in together] == [[one.caption for one in said] for said in alone]
        assert together[0][0].log_prob == pytest.approx(alone[0][0].log_prob, rel=1e-5, abs=1e-4)


def test_attention_is_averaged(make_captioner: Make, features: torch.Tensor) -> None:
    members = [make_captioner(seed=seed) for seed in range(2)]
    ensemble = Ensemble(members)
    tokens, images = ensemble.tokenize(["a red house"]), torch.tensor([1])
    found = ensemble.traces(ensemble.encode(features), tokens, images).attention
    each = [one.traces(one.encode(features), tokens, images).attention for one in members]
    assert torch.allclose(found, (each[0] + each[1]) / 2)


def test_incompatible_captioners(make_captioner: Make) -> None:
    one = make_captioner(words=TINY)

    def with_words(vocabulary: Vocabulary) -> Captioner:
        return make_captioner(words=vocabulary)

    with pytest.raises(RecipeError, match=r"captioner 2 has 'blue' where the first has 'red' \(word 5 of 7 and 7\)"):
        Ensemble([one, with_words(Vocabulary(("a", "blue", "house")))])
    with pytest.raises(RecipeError, match=r"captioner 3 has nothing where the first has 'house'"):
        Ensemble([one, one, with_words(Vocabulary(("a", "red")))])
    with pytest.raises(RecipeError, match=r"captioner 2 splits sentences by 'plain' up to 9 words"):
        Ensemble([one, with_words(Vocabulary(("a", "red", "house"), max_words=9))])
    assert isinstance(one, AdaptiveAttention)
    with pytest.raises(RecipeError, match="captioner 2 reads features of other"):
        Ensemble([one, AdaptiveAttention(one.settings, TINY, replace(IDENTITY, name="other"))])
    with pytest.raises(RecipeError, match="at least one captioner"):
        Ensemble([])
