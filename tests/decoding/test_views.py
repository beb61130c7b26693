"""A captioner that reads a picture and its mirror image: the mean of the words' probabilities, sides swapped."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from support.tiny import IDENTITY, WORDS, make_captioner, make_data, names
from tellapart.data.features import FeatureStore
from tellapart.decoding.ensemble import Ensemble
from tellapart.decoding.search import decode, decode_store
from tellapart.decoding.settings import DecodingSettings
from tellapart.decoding.views import BothViews
from tellapart.evaluation.self_retrieval import self_retrieval
from tellapart.evaluation.specificity_guard import fluency
from tellapart.text import END, START, Vocabulary

SIDES = Vocabulary([*WORDS, "left", "right"])


def both_stores() -> FeatureStore:
    _, store = make_data()
    other = np.random.default_rng(7).normal(size=store._features.shape).astype(np.float16)
    mirrored = FeatureStore(other, IDENTITY, store.records)
    return FeatureStore(store._features, IDENTITY, store.records, mirrored=mirrored)


@torch.no_grad()
def word_by_word(captioner: Any, store: FeatureStore, row: int, caption: str, ended: bool = True) -> float:
    """ln p of a caption: each word's probability under both pictures, the mirrored one asked for the other side."""
    swapped = {"left": "right", "right": "left"}
    said = caption.split()
    pictures = ((store, said), (store.mirrored, [swapped.get(word, word) for word in said]))
    total = 0.0
    for place in range(len(said) + ended):
        mean = 0.0
        for picture, words in pictures:
            assert picture is not None
            rows = [SIDES.tokens.index(word) for word in words]
            state = captioner.start(captioner.encode(torch.from_numpy(picture.grid([row]))), torch.tensor([0]))
            for token in [START, *rows[:place]]:
                log_probs, state = captioner.step(state, torch.tensor([token]))
            mean += float(log_probs[0, [*rows, END][place]].exp()) / 2
        total += math.log(mean)
    return total


@pytest.mark.parametrize("name", names("captioner"))
@torch.no_grad()
def test_it_is_the_mean_of_both_word_by_word(name: str) -> None:
    captioner, store = make_captioner(1, SIDES, name), both_stores()
    captions = ["a tree left", "right near left", "two", ""]
    naive = [word_by_word(captioner, store, 5, caption) for caption in captions]
    both = BothViews(captioner)
    memory = both.encode(torch.from_numpy(store.views([5])))
    tokens = both.tokenize(captions)
    image = torch.zeros(len(tokens), dtype=torch.long)
    assert both.log_prob(memory, tokens, image).tolist() == pytest.approx(naive, rel=1e-4)

    state, token, stepped = both.start(memory, image), torch.full_like(image, START), torch.zeros(len(tokens))
    for word in tokens.unbind(dim=1):
        log_probs, state = both.step(state, token)
        assert torch.allclose(log_probs.logsumexp(dim=1), torch.zeros(len(tokens)), atol=1e-5)
        stepped += torch.where(word > 0, log_probs.gather(1, word[:, None])[:, 0], 0.0)
        token = word
    assert stepped.tolist() == pytest.approx(naive, rel=1e-4)


def test_captions_ranks_and_fluency_from_a_store_read_both() -> None:
    captioner, store = make_captioner(1, SIDES), both_stores()
    rows = [3, 4, 5, 8]
    for row, [said] in zip(rows, decode_store(captioner, store, rows, DecodingSettings(beam=2)), strict=True):
        assert said.log_prob == pytest.approx(word_by_word(captioner, store, row, said.caption, said.ended), rel=1e-4)
    captions = ["a tree left", "right near left", "two", "a red house"]
    naive = [word_by_word(captioner, store, row, caption) for row, caption in zip(rows, captions, strict=True)]
    assert self_retrieval(captioner, store, rows, captions).log_probs.tolist() == pytest.approx(naive, rel=1e-4)
    tokens = sum(len(caption.split()) + 1 for caption in captions)
    assert fluency(captioner, store, rows, captions) == pytest.approx(sum(naive) / tokens, rel=1e-4)


def test_the_same_picture_twice_changes_nothing_but_for_sides() -> None:
    _, store = make_data()
    twice = FeatureStore(store._features, IDENTITY, store.records, mirrored=store)
    ensemble = Ensemble([make_captioner(1), make_captioner(2)])  # their words name no side
    settings = DecodingSettings(beam=3, guidance=0.5)
    plain = decode(ensemble, torch.from_numpy(store.grid([0, 1])), settings)
    both = decode_store(ensemble, twice, [0, 1], settings)
    for [one], [other] in zip(plain, both, strict=True):
        assert one.caption == other.caption
        assert one.log_prob == pytest.approx(other.log_prob, rel=1e-5)
