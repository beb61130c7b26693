"""Batched beam search, plain and diverse, and the one entry to all ways of decoding. A beam of one is greedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from tellapart.data.features import FeatureStore
from tellapart.decoding.base import Caption, Decodable, Found, make_captions, most_words, normalised
from tellapart.decoding.constraints import forbid
from tellapart.decoding.sampling import sample
from tellapart.decoding.settings import DecodingSettings
from tellapart.text import END, PAD, START

__all__ = ["BLOCK", "Caption", "beam_search", "decode", "decode_rows", "decode_store", "n_best"]

# Images decoded at once, and captions under way at once: enough to keep a processor busy, few enough for its memory.
BLOCK = 64
ROWS = 1024


def decode(
    captioner: Decodable, features: torch.Tensor, settings: DecodingSettings, numbers: Sequence[int] | None = None
) -> list[list[Caption]]:
    """Captions of each image by the method the settings name, `settings.samples` of them.

    A beam gives the best first; samples come in the order drawn. `log_prob` is always the model's own ln p of what is
    said, whatever the method.

    Args:
        captioner: any captioner or `Ensemble`, in eval mode.
        features: `[images, regions, width]`.
        settings: the decoding section of a recipe.
        numbers: what names each image to the sampler (by default its place here): with the same number and seed an
            image has the same samples in any batch.

    Example:
        >>> settings = DecodingSettings(method="sample", samples=5, top_p=0.9)   # doctest: +SKIP
        >>> decode(captioner, features, settings)[0][0].caption                  # doctest: +SKIP
        'a red house near two trees'
    """
    numbers = range(len(features)) if numbers is None else numbers
    images_at_once = max(1, ROWS // settings.rows_per_image)
    captions: list[list[Caption]] = []
    for first in range(0, len(features), images_at_once):
        block = slice(first, first + images_at_once)
        if settings.method == "sample":
            captions += sample(captioner, features[block], settings, numbers[block])
        else:
            captions += n_best(captioner, features[block], settings)
    return captions


def decode_store(
    captioner: Decodable,
    store: FeatureStore,
    rows: Sequence[int],
    settings: DecodingSettings,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[list[Caption]]:
    """All the captions of these rows of a feature store (see `decode`), a block of images at a time."""
    captions: list[list[Caption]] = []
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        features = torch.from_numpy(store.grid(block)).to(captioner.device)
        captions += decode(captioner, features, settings, block)
        if on_progress is not None:
            on_progress(len(captions), len(rows))
    return captions


def decode_rows(
    captioner: Decodable,
    store: FeatureStore,
    rows: Sequence[int],
    settings: DecodingSettings,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Caption]:
    """One caption for each of these rows of a feature store: the best of the beam, or the first sample."""
    return [said[0] for said in decode_store(captioner, store, rows, settings, on_progress)]


def beam_search(captioner: Decodable, features: torch.Tensor, settings: DecodingSettings) -> list[Caption]:
    """The best caption found for each image; see `n_best`."""
    return [said[0] for said in n_best(captioner, features, settings)]


@torch.no_grad()
def n_best(
    captioner: Decodable, features: torch.Tensor, settings: DecodingSettings, early_stop: bool = True
) -> list[list[Caption]]:
    """The best captions found for each image, `settings.samples` of them, by ln p / tokens^length_penalty.

    All images and beams advance together, one `step` a word; the prefix is never run again, and the first word, where
    the beams do not differ yet, is looked for once an image. A caption ends when its end token is among the image's
    `beam` best continuations. Captions cut at the length limit come after all that ended.

    Log probabilities only fall, so ln p now, divided as for the longest caption, is the most that a running caption
    can reach. One that cannot enter its image's list any more leaves the batch (in a diverse beam it stays as long as
    its image does: later groups avoid its words). The captions found are the same.

    **Diverse** (Vijayakumar et al. 2018, "Diverse beam search"): the beam is cut into groups, one after the other at
    every word. Group g chooses by the score augmented with the Hamming diversity to the groups before it::

        Θ_g(y_1…y_t) = Θ_g(y_1…y_t₋₁) + ln p(y_t | y_1…y_t₋₁, I) - λ |{captions of groups < g that go on with y_t}|

    Ended captions are ranked by the model's own ln p, and the best of every group come before the second best of any.
    The first group is a plain beam search.

    Args:
        captioner: any captioner or `Ensemble`, in eval mode.
        features: `[images, regions, width]`.
        settings: `beam`, `groups`, `diversity`, `length_penalty`, `samples` and the limits on what is said.
        early_stop: false runs every caption to the length limit, for tests: the captions are the same.
    """
    images, longest = len(features), most_words(captioner, settings)
    memory = captioner.encode(features)
    search = _Search.begin(images, longest, settings, features.device)
    state = captioner.start(memory, search.image)
    token = torch.full((images,), START, device=features.device)
    found: list[Found] = []
    for length in range(longest + 1):
        log_probs, state = captioner.step(state, token)
        forbid(log_probs, token, length, settings)
        if length == 0 and settings.group_count > 1:
            each = search.image.repeat_interleave(settings.group_count)
            log_probs, state = log_probs[each], captioner.select(state, each)
        candidates = search.candidates(log_probs, settings)
        search = search.end(candidates, length, settings)
        if length == longest:
            break
        search, rows = search.go_on(candidates, length)
        if early_stop:
            search = search.without_the_hopeless(settings)
        running = search.running > -torch.inf
        state, token = captioner.select(state, rows[running]), search.said[..., length][running]
        finished = ~running.flatten(1).any(dim=1)
        if bool(finished.any()):
            found.append(search.at(finished).captions())
            search = search.at(~finished)
            if not len(token):
                break
    return make_captions(captioner, memory, images, Found.join([*found, search.captions()]), settings)


@dataclass(frozen=True)
class _Candidates:
    """The likeliest continuations of each group, `[images, groups, candidates]`, best first.

    Attributes:
        log_prob: the model's own, of the whole caption.
        penalty: what diversity has cost it so far.
        caption: the running caption that goes on.
        word: what it goes on with.
        width: how many go on; with twice as many candidates, so many are no ends.
    """

    log_prob: torch.Tensor
    penalty: torch.Tensor
    caption: torch.Tensor
    word: torch.Tensor
    width: int


@dataclass(frozen=True)
class _Search:
    """Where the search stands: captions `[images, groups, captions]`, best first; ln p is always the model's own.

    Attributes:
        image: which image each entry of the first dimension is.
        running: ln p of the captions under way, each a row of the next step; -inf for places nobody holds.
        penalty: what diversity has cost them.
        said: their words, `[..., longest]`.
        score: normalised ln p of ended captions; -inf for free places.
        ended: their ln p.
        ended_said: their words.
    """

    image: torch.Tensor
    running: torch.Tensor
    penalty: torch.Tensor
    said: torch.Tensor
    score: torch.Tensor
    ended: torch.Tensor
    ended_said: torch.Tensor

    @staticmethod
    def begin(images: int, longest: int, settings: DecodingSettings, device: torch.device) -> _Search:
        groups = settings.group_count
        handed_over = -(-settings.samples // groups)  # by each group, rounded up
        free = torch.full((images, groups, handed_over), -torch.inf, device=device)
        words = torch.full((images, groups, handed_over, longest), PAD, device=device)
        zero = torch.zeros(images, groups, 1, device=device)
        return _Search(torch.arange(images, device=device), zero, zero, words[:, :, :1], free, free, words)

    def at(self, images: torch.Tensor) -> _Search:
        return _Search(*(column[images] for column in vars(self).values()))

    def candidates(self, log_probs: torch.Tensor, settings: DecodingSettings) -> _Candidates:
        """The best continuations; the rows of `[rows, vocabulary]` are the captions under way."""
        images, groups, captions = self.running.shape
        vocabulary, width = log_probs.shape[1], settings.beam // groups
        running = self.running > -torch.inf
        own = self.running[running][:, None] + log_probs
        if len(own) < running.numel():
            own = own.new_full((*running.shape, vocabulary), -torch.inf).masked_scatter_(running[..., None], own)
        own = own.view(images, groups, captions, vocabulary)
        best = min(2 * width, captions * vocabulary)
        if groups == 1:
            log_prob, chosen = own.flatten(2).topk(best, dim=2)
            return _Candidates(log_prob, torch.zeros_like(log_prob), chosen // vocabulary, chosen % vocabulary, width)
        penalty = self.penalty[..., None].expand_as(own).clone()
        said_before = own.new_zeros(images, vocabulary)
        chosen = own.new_zeros(images, groups, best, dtype=torch.long)
        for group in range(groups):  # each group must know the words of those before it
            penalty[:, group] += settings.diversity * said_before[:, None]
            score, chosen[:, group] = (own[:, group] - penalty[:, group]).flatten(1).topk(best, dim=1)
            word = chosen[:, group] % vocabulary
            goes_on = _first_words(word, width)
            counted = (score.gather(1, goes_on) > -torch.inf).to(own.dtype)
            said_before.scatter_add_(1, word.gather(1, goes_on), counted)
        log_prob, cost = (values.flatten(2).gather(2, chosen) for values in (own, penalty))
        return _Candidates(log_prob, cost, chosen // vocabulary, chosen % vocabulary, width)

    def end(self, candidates: _Candidates, length: int, settings: DecodingSettings) -> _Search:
        """Take the captions that end after `length` words into the lists of the best."""
        # The candidates after the first `width` are there to go on in the place of those that end.
        first = slice(0, candidates.width)
        log_prob, word = candidates.log_prob[..., first], candidates.word[..., first]
        log_prob = log_prob.masked_fill(word != END, -torch.inf)
        scores = torch.cat([self.score, normalised(log_prob, length + 1, settings.length_penalty)], dim=2)
        score, kept = scores.topk(self.score.shape[2], dim=2)
        ended = torch.cat([self.ended, log_prob], dim=2).gather(2, kept)
        words = torch.cat([self.ended_said, _pick(self.said, candidates.caption[..., first])], dim=2)
        return replace(self, score=score, ended=ended, ended_said=_pick(words, kept))

    def go_on(self, candidates: _Candidates, length: int) -> tuple[_Search, torch.Tensor]:
        """Say the next word; also, for each caption, the row of the last step that it goes on from."""
        order = _first_words(candidates.word, candidates.width)
        caption, word, running, penalty = (
            column.gather(2, order)
            for column in (candidates.caption, candidates.word, candidates.log_prob, candidates.penalty)
        )
        said = _pick(self.said, caption)
        said[..., length] = word
        row = (self.running > -torch.inf).flatten().cumsum(0).view(self.running.shape) - 1
        running = running.masked_fill(word == END, -torch.inf)
        return replace(self, running=running, penalty=penalty, said=said), row.gather(2, caption)

    def without_the_hopeless(self, settings: DecodingSettings) -> _Search:
        """Let go of the running captions that cannot enter the lists any more."""
        reachable = normalised(self.running, self.said.shape[3] + 1, settings.length_penalty)
        hopeless = reachable <= self.score[..., -1:]
        if settings.group_count > 1:  # what a group says matters to those after it: all of an image go, or none
            hopeless = hopeless.all(dim=2, keepdim=True).all(dim=1, keepdim=True)
        return replace(self, running=self.running.masked_fill(hopeless, -torch.inf))

    def captions(self) -> Found:
        """The lists of the best; where fewer have ended than are asked for, what still runs fills the places."""
        places = self.score.shape[2]
        log_prob = torch.cat([self.ended, self.running], dim=2)
        said = torch.cat([self.ended_said, self.said], dim=2)
        # Ended ones come first, each kind in its own order.
        taken = torch.argsort((log_prob == -torch.inf).int(), dim=2, stable=True)[..., :places]
        log_prob = log_prob.gather(2, taken)
        there = log_prob > -torch.inf
        return Found(
            image=self.image[:, None, None].expand_as(there)[there],
            rank=torch.arange(places, device=there.device).expand_as(there)[there],
            tokens=_pick(said, taken)[there],
            log_prob=log_prob[there],
            ended=(taken < places)[there],
        )


def _first_words(word: torch.Tensor, width: int) -> torch.Tensor:
    """Places of the first `width` candidates that are no end; of ends only where there are too few others."""
    return torch.argsort((word == END).int(), dim=-1, stable=True)[..., :width]


def _pick(said: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
    """The words of these captions: `[..., captions, longest]` by `[..., chosen]`."""
    return said.gather(-2, captions[..., None].expand(*captions.shape, said.shape[-1]))
