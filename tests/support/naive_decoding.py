"""Slow and plain: what decoding should do, with loops, one image and one caption at a time."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch

from tellapart.captioners.base import Captioner
from tellapart.decoding.base import Decodable
from tellapart.decoding.settings import DecodingSettings
from tellapart.text import END, PAD, START, UNKNOWN

Words = tuple[int, ...]


def token_rows(captions: list[Words], ended: bool = True) -> torch.Tensor:
    """Words, the end token if they ended, padding."""
    longest = max(len(caption) for caption in captions) + 1
    rows = [[*caption, END if ended else PAD, *[PAD] * (longest - 1 - len(caption))] for caption in captions]
    return torch.tensor(rows)


class Model:
    """Next-word log probabilities of one image, by running the whole prefix again; remembered."""

    def __init__(self, captioner: Decodable, features: torch.Tensor) -> None:
        self.captioner = captioner
        self.memory = captioner.encode(features[None])
        self.known: dict[Words, list[float]] = {}

    def next(self, said: Words) -> list[float]:
        if said not in self.known:
            state = self.captioner.start(self.memory, torch.tensor([0]))
            for word in (START, *said):
                log_probs, state = self.captioner.step(state, torch.tensor([word]))
            self.known[said] = log_probs[0].double().tolist()
        return self.known[said]


def allowed(said: Words, word: int, settings: DecodingSettings) -> bool:
    if settings.block_unknown and word == UNKNOWN:
        return False
    if settings.block_pairs and said and (said[-1], word) in itertools.pairwise(said):
        return False
    if settings.block_repeats and said and said[-1] == word:
        return False
    return not (word == END and len(said) < settings.min_words)


def exhaustive(
    captioner: Captioner, features: torch.Tensor, longest: int, settings: DecodingSettings
) -> list[list[tuple[Words, float]]]:
    """All captions that may end, best first, for each image; scored by teacher forcing."""
    words = range(END + 1, len(captioner.vocabulary))
    captions = [
        said
        for length in range(settings.min_words, longest + 1)
        for said in itertools.product(words, repeat=length)
        if all(allowed(said[:place], word, settings) for place, word in enumerate(said))
    ]
    memory, tokens = captioner.encode(features), token_rows(captions)
    listed = []
    for image in range(len(features)):
        scores = captioner.log_prob(memory, tokens, torch.full((len(tokens),), image)).tolist()
        scored = list(zip(captions, scores, strict=True))
        listed.append(sorted(scored, key=lambda one: -one[1] / (len(one[0]) + 1) ** settings.length_penalty))
    return listed


def assert_apart(listed: list[tuple[Words, float]], count: int, settings: DecodingSettings) -> None:
    """The best `count` captions of `exhaustive` are so far apart that rounding cannot change their order."""
    scores = [score / (len(said) + 1) ** settings.length_penalty for said, score in listed[: count + 1]]
    assert all(better - worse > 1e-5 * max(1.0, -worse) for better, worse in itertools.pairwise(scores))


@dataclass
class Running:
    said: Words
    log_prob: float
    penalty: float = 0.0


def beams(captioner: Decodable, features: torch.Tensor, settings: DecodingSettings) -> list[tuple[Words, float, bool]]:
    """Beam search for one image, in groups, to the bitter end: (words, ln p, ended), as they should be listed."""
    model = Model(captioner, features)
    groups = settings.group_count
    width = settings.beam // groups
    running = [[Running((), 0.0)] for _ in range(groups)]
    ended: list[list[tuple[float, Words, float]]] = [[] for _ in range(groups)]
    for length in range(settings.max_words + 1):
        taken: dict[int, int] = {}
        for group in range(groups):
            candidates = []
            for one in running[group]:
                for word, log_prob in enumerate(model.next(one.said)):
                    if log_prob > -math.inf and allowed(one.said, word, settings):
                        penalty = one.penalty + settings.diversity * taken.get(word, 0)
                        candidates.append((one.said, word, one.log_prob + log_prob, penalty))
            candidates.sort(key=lambda c: -(c[2] - c[3]))
            for said, word, log_prob, _ in candidates[:width]:
                if word == END:
                    ended[group].append((log_prob / (len(said) + 1) ** settings.length_penalty, said, log_prob))
            going_on = [c for c in candidates if c[1] != END][:width]
            if length < settings.max_words:
                running[group] = [Running((*said, word), total, penalty) for said, word, total, penalty in going_on]
                for _, word, _, _ in going_on:
                    taken[word] = taken.get(word, 0) + 1
    chosen = []
    handed_over = math.ceil(settings.samples / groups)
    for group in range(groups):
        done = [(-score, said, total, True) for score, said, total in sorted(ended[group], reverse=True)]
        cut = [
            (-one.log_prob / len(one.said) ** settings.length_penalty, one.said, one.log_prob, False)
            for one in running[group]
        ]
        for rank, (cost, said, total, is_ended) in enumerate((done + cut)[:handed_over]):
            chosen.append((rank, not is_ended, cost, said, total))
    chosen = sorted(chosen)[: settings.samples]
    return [(said, total, not cut) for _, cut, _, said, total in sorted(chosen, key=lambda c: c[1:3])]


def distribution(log_probs: list[float], said: Words, settings: DecodingSettings) -> dict[int, float]:
    """What a word is drawn from: constraints, temperature, the k likeliest, the nucleus."""
    weights = {
        word: math.exp(value / settings.temperature)
        for word, value in enumerate(log_probs)
        if value > -math.inf and allowed(said, word, settings)
    }
    kept = sorted(weights, key=lambda word: -weights[word])[: settings.top_k]
    mass = sum(weights[word] for word in kept)
    if settings.top_p is not None:
        reached, nucleus = 0.0, []
        for word in kept:
            if reached < settings.top_p:
                nucleus.append(word)
            reached += weights[word] / mass
        kept = nucleus
        mass = sum(weights[word] for word in kept)
    return {word: weights[word] / mass for word in kept}


def sampled(
    captioner: Decodable, features: torch.Tensor, settings: DecodingSettings
) -> dict[tuple[Words, bool], float]:
    """The probability of each caption (words, ended) that sampling can give for one image."""
    model = Model(captioner, features)
    result: dict[tuple[Words, bool], float] = {}

    def go(said: Words, chance: float) -> None:
        words = distribution(model.next(said), said, settings)
        if len(said) == settings.max_words:
            ends = words.get(END, 0.0)
            result[said, True], result[said, False] = chance * ends, chance * (1 - ends)
            return
        for word, share in words.items():
            if word == END:
                result[said, True] = chance * share
            else:
                go((*said, word), chance * share)

    go((), 1.0)
    return {caption: chance for caption, chance in result.items() if chance > 0}
