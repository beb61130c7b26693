"""Samples have the model's frequencies, whatever the settings, and depend on nothing but the seed and the image."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from support import naive_decoding as naive
from tellapart.captioners.base import Captioner
from tellapart.decoding.sampling import draw, sample
from tellapart.decoding.search import beam_search
from tellapart.decoding.settings import DecodingSettings
from tellapart.text import Vocabulary

Make = Callable[..., Captioner]
TINY = Vocabulary(("a", "red", "house"))


def check_frequencies(counts: Counter[Any], expected: dict[Any, float]) -> None:
    """Pearson's chi-square test: about one run in 10,000 of a right sampler would fail, and this one has its seed."""
    total = sum(counts.values())
    assert set(counts) <= set(expected), "only what has a probability is drawn"
    assert sum(expected.values()) == pytest.approx(1, abs=1e-5)
    # Rare outcomes are counted together: the test needs some of each.
    common = [outcome for outcome, chance in expected.items() if chance * total >= 5]
    cells = [(counts[outcome], expected[outcome] * total) for outcome in common]
    cells.append((total - sum(count for count, _ in cells), total - sum(mean for _, mean in cells)))
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells if mean > 1)
    freedom = len(cells) - 1
    # Wilson and Hilferty's approximation of the quantile.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"block_unknown": False},
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"top_k": 2},
        {"top_p": 0.7},
        {"temperature": 1.4, "top_k": 4, "top_p": 0.9},
        {"min_words": 1, "block_repeats": True, "temperature": 2.0},
        {"min_words": 3, "block_pairs": True, "temperature": 2.0},
    ],
    ids=str,
)
def test_captions_come_as_often_as_they_should(
    make_sharp: Make, features: torch.Tensor, others: dict[str, Any]
) -> None:
    check_captions(make_sharp(seed=1, words=TINY, sharp=2.0), features, others)


def test_every_captioner_is_sampled_as_it_should(make_any: Make, features: torch.Tensor) -> None:
    check_captions(make_any(seed=1, words=TINY, sharp=2.0), features[:1], {"temperature": 1.5, "top_p": 0.9})


def check_captions(model: Captioner, features: torch.Tensor, others: dict[str, Any]) -> None:
    settings = DecodingSettings(method="sample", samples=2000, max_words=3, seed=4, **others)
    with torch.no_grad():
        found = sample(model, features, settings)
        for image, said in enumerate(found):
            chances = naive.sampled(model, features[image], settings)
            expected = {(TINY.decode(words), ended): chance for (words, ended), chance in chances.items()}
            check_frequencies(Counter((one.caption, one.ended) for one in said), expected)


@pytest.mark.parametrize("others", [{}, {"temperature": 0.5}, {"top_k": 7}, {"top_p": 0.8}], ids=str)
def test_words_of_a_large_vocabulary_come_as_often_as_they_should(others: dict[str, Any]) -> None:
    settings = DecodingSettings(method="sample", block_unknown=False, **others)
    rng = np.random.default_rng(3)
    log_probs = torch.from_numpy(rng.normal(size=300)).float().log_softmax(0)
    words = draw(log_probs.expand(20_000, -1), torch.from_numpy(rng.random(20_000, dtype=np.float32)), settings)
    check_frequencies(Counter(words.tolist()), naive.distribution(log_probs.tolist(), (), settings))


def test_what_has_no_probability_is_never_drawn() -> None:
    log_probs = torch.tensor([[-torch.inf, 0.5, 0.5, -torch.inf]]).log_softmax(1)
    chance = torch.tensor([0.0, 0.49, 0.51, 1 - 2**-24, 1.0])
    assert draw(log_probs.expand(5, -1), chance, DecodingSettings()).tolist() == [1, 1, 2, 2, 2]


def test_the_nucleus_is_never_empty() -> None:
    log_probs = torch.tensor([[0.2, 0.5, 0.3]]).log()
    settings = DecodingSettings(method="sample", top_p=1e-9)
    assert draw(log_probs.expand(4, -1), torch.linspace(0, 0.99, 4), settings).tolist() == [1] * 4


def test_the_likeliest_word_alone_is_greedy(make_sharp: Make, features: torch.Tensor) -> None:
    model = make_sharp(seed=5)
    greedy = beam_search(model, features, DecodingSettings(beam=1, max_words=6))
    for others in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}):
        drawn = sample(model, features, DecodingSettings(method="sample", samples=2, max_words=6, **others))
        assert [[one.caption for one in said] for said in drawn] == [[one.caption] * 2 for one in greedy]


def test_the_seed_and_the_image_decide(make_sharp: Make, features: torch.Tensor) -> None:
    model = make_sharp(seed=2, sharp=1.0)

    def drawn(features: torch.Tensor, numbers: list[int] | None = None, **others: Any) -> list[list[str]]:
        settings = DecodingSettings(method="sample", max_words=6, **{"samples": 4, **others})
        return [[one.caption for one in said] for said in sample(model, features, settings, numbers)]

    once = drawn(features)
    assert drawn(features) == once
    assert drawn(features, seed=1) != once
    assert drawn(features, samples=6)[0][:4] == once[0], "more samples begin with the same ones"
    assert drawn(features[[2, 0]], [2, 0]) == [once[2], once[0]]
    assert drawn(features[[0, 0]], [0, 1])[0] != drawn(features[[0, 0]], [0, 1])[1], "each image has its own chance"
    assert len(set(once[0])) > 1
