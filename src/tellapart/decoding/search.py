"""Batched beam search, plain and diverse, and `decode` for all methods. A beam of one is greedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from tellapart.captioners.packed import unchanging_weights
from tellapart.data.features import FeatureStore
from tellapart.decoding.base import Caption, Decodable, Decoded, length_limit, make_captions, normalise
from tellapart.decoding.constraints import forbid
from tellapart.decoding.guidance import guide
from tellapart.decoding.sampling import sample
from tellapart.decoding.settings import DecodingSettings
from tellapart.decoding.views import read_both
from tellapart.text import END, PAD, START

__all__ = ["BLOCK", "Caption", "beam_search", "decode", "decode_rows", "decode_store", "n_best"]

# Largest numbers of images and of captions decoded at once: fast enough, with little memory.
BLOCK = 64
ROWS = 1024
# Parts of a row of words that are laid over each other to find the best; see `_best_words`.
PARTS = 16


def decode(
    captioner: Decodable, features: torch.Tensor, settings: DecodingSettings, numbers: Sequence[int] | None = None
) -> list[list[Caption]]:
    """Caption each image by `settings.method`, `settings.samples` captions each.

    A beam gives the best caption first; samples come in the order drawn. `log_prob` is always the model's ln p of the
    caption.

    Args:
        captioner: any captioner or `Ensemble`, in eval mode.
        features: `[images, regions, width]`.
        settings: the decoding section of a recipe.
        numbers: for sampling, the seed of each image; by default its index. With the same number and settings an
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
    """Caption these rows of a feature store, a block of images at a time; see `decode`.

    If the store has mirrored images, the captioner reads both (`BothViews`).
    """
    captioner = read_both(captioner, store)
    captions: list[list[Caption]] = []
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        features = torch.from_numpy(store.views(block)).to(captioner.device)
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
    return [captions[0] for captions in decode_store(captioner, store, rows, settings, on_progress)]


def beam_search(captioner: Decodable, features: torch.Tensor, settings: DecodingSettings) -> list[Caption]:
    """The best caption found for each image; see `n_best`."""
    return [captions[0] for captions in n_best(captioner, features, settings)]


@torch.no_grad()
@unchanging_weights()
def n_best(
    captioner: Decodable, features: torch.Tensor, settings: DecodingSettings, early_stop: bool = True
) -> list[list[Caption]]:
    """The best captions found for each image, `settings.samples` of them, by ln p / tokens^length_penalty.

    All images and beams advance together, one `step` for each word. The first word is searched once for each image,
    since its beams do not differ yet. A caption ends when its end token is among the image's `beam` best
    continuations. Captions cut at the length limit come after those that ended.

    Log probabilities only fall, so ln p so far, normalised for the longest caption, is an upper bound of a caption's
    score. Captions that can no longer enter the list of their image are pruned. In a diverse beam all captions of an
    image stay until all can be pruned, since later groups avoid their words. Pruning does not change the result.

    **Diverse** (Vijayakumar et al. 2018, "Diverse beam search"): the beam is split into groups, searched one after the
    other at every word. Group g maximises the score with a Hamming penalty for the words of earlier groups::

        Θ_g(y_1…y_t) = Θ_g(y_1…y_t₋₁) + ln p(y_t | y_1…y_t₋₁, I) - λ |{captions of groups < g that continue with y_t}|

    Ended captions are ranked without the penalty, and the best of all groups come before any second best. The first
    group is a plain beam search.

    With guidance, p is the guided probability (`Guided`), except in the `log_prob` of the captions found.

    Args:
        captioner: any captioner or `Ensemble`, in eval mode.
        features: `[images, regions, width]`.
        settings: `beam`, `groups`, `diversity`, `length_penalty`, `guidance`, `samples` and the limits on words.
        early_stop: prune; false is for tests.
    """
    captioner = guide(captioner, settings.guidance)
    images, longest = len(features), length_limit(captioner, settings)
    memory = captioner.encode(features)
    search = _Search.begin(images, longest, settings, features.device)
    state = captioner.start(memory, search.image)
    token = torch.full((images,), START, device=features.device)
    finished: list[Decoded] = []
    for length in range(longest + 1):
        log_probs, state = captioner.step(state, token)
        forbid(log_probs, token, search.said(length), settings)
        if length == 0 and settings.group_count > 1:
            each = search.image.repeat_interleave(settings.group_count)
            log_probs, state = log_probs[each], captioner.select(state, each)
        candidates = search.candidates(log_probs, settings)
        search = search.collect_ended(candidates, length, settings)
        if length == longest:
            break
        search, rows = search.extend(candidates, length)
        if early_stop:
            search = search.prune(settings)
        running = search.running > -torch.inf
        state, token = captioner.select(state, rows[running]), search.words[..., length][running]
        done = ~running.flatten(1).any(dim=1)
        if bool(done.any()):
            finished.append(search.at(done).captions())
            search = search.at(~done)
            if not len(token):
                break
    return make_captions(captioner, memory, images, Decoded.join([*finished, search.captions()]), settings)


@dataclass(frozen=True)
class _Candidates:
    """The likeliest continuations of each group, `[images, groups, candidates]`, best first.

    Attributes:
        log_prob: the model's ln p of the whole caption.
        penalty: sum of its diversity penalties so far.
        caption: index of the caption that is continued.
        word: the next word.
        width: number of captions kept; among the candidates there are always that many without an end token.
    """

    log_prob: torch.Tensor
    penalty: torch.Tensor
    caption: torch.Tensor
    word: torch.Tensor
    width: int


@dataclass(frozen=True)
class _Search:
    """The state of the search: captions `[images, groups, captions]`, best first; ln p is without penalties.

    Attributes:
        image: index of the image of each entry of the first dimension.
        running: ln p of unfinished captions, each a row of the next step; -inf for empty places.
        penalty: sum of their diversity penalties.
        words: their words, `[..., longest]`.
        score: normalised ln p of ended captions; -inf for empty places.
        ended: their ln p.
        ended_words: their words.
    """

    image: torch.Tensor
    running: torch.Tensor
    penalty: torch.Tensor
    words: torch.Tensor
    score: torch.Tensor
    ended: torch.Tensor
    ended_words: torch.Tensor

    @staticmethod
    def begin(images: int, longest: int, settings: DecodingSettings, device: torch.device) -> _Search:
        groups = settings.group_count
        per_group = -(-settings.samples // groups)  # rounded up
        free = torch.full((images, groups, per_group), -torch.inf, device=device)
        words = torch.full((images, groups, per_group, longest), PAD, device=device)
        zero = torch.zeros(images, groups, 1, device=device)
        return _Search(torch.arange(images, device=device), zero, zero, words[:, :, :1], free, free, words)

    def at(self, images: torch.Tensor) -> _Search:
        return _Search(*(column[images] for column in vars(self).values()))

    def said(self, length: int) -> torch.Tensor:
        """The words of all running captions so far, `[rows, length]`: a row for each row of the next step."""
        words: torch.Tensor = self.words[self.running > -torch.inf][:, :length]
        return words

    def candidates(self, log_probs: torch.Tensor, settings: DecodingSettings) -> _Candidates:
        """The best continuations, from `[rows, vocabulary]` log probabilities, one row for each running caption."""
        images, groups, captions = self.running.shape
        vocabulary, width = log_probs.shape[1], settings.beam // groups
        running = self.running > -torch.inf
        best = min(2 * width, captions * vocabulary)
        if groups == 1:
            # The best of all are among the best of each caption: `width` that go on and one that ends.
            of_each, word = _best_words(log_probs, min(width + 1, vocabulary))
            best = min(best, captions * of_each.shape[1])
            gained = of_each.new_full((*running.shape, of_each.shape[1]), -torch.inf)
            gained[running] = self.running[running][:, None] + of_each
            words = word.new_full(gained.shape, PAD)
            words[running] = word
            log_prob, chosen = gained.flatten(2).topk(best, dim=2)
            caption = chosen // of_each.shape[1]
            return _Candidates(log_prob, torch.zeros_like(log_prob), caption, words.flatten(2).gather(2, chosen), width)
        own = self.running[running][:, None] + log_probs
        if len(own) < running.numel():
            own = own.new_full((*running.shape, vocabulary), -torch.inf).masked_scatter_(running[..., None], own)
        own = own.view(images, groups, captions, vocabulary)
        penalty = self.penalty[..., None].expand_as(own).clone()
        used_before = own.new_zeros(images, vocabulary)
        chosen = own.new_zeros(images, groups, best, dtype=torch.long)
        for group in range(groups):  # in order: a group avoids the words of earlier groups
            penalty[:, group] += settings.diversity * used_before[:, None]
            score, chosen[:, group] = (own[:, group] - penalty[:, group]).flatten(1).topk(best, dim=1)
            word = chosen[:, group] % vocabulary
            kept = _first_words(word, width)
            counted = (score.gather(1, kept) > -torch.inf).to(own.dtype)
            used_before.scatter_add_(1, word.gather(1, kept), counted)
        log_prob, cost = (values.flatten(2).gather(2, chosen) for values in (own, penalty))
        return _Candidates(log_prob, cost, chosen // vocabulary, chosen % vocabulary, width)

    def collect_ended(self, candidates: _Candidates, length: int, settings: DecodingSettings) -> _Search:
        """Add the captions that end after `length` words to the lists of the best."""
        # Candidates after the first `width` only replace those that end.
        first = slice(0, candidates.width)
        log_prob, word = candidates.log_prob[..., first], candidates.word[..., first]
        log_prob = log_prob.masked_fill(word != END, -torch.inf)
        scores = torch.cat([self.score, normalise(log_prob, length + 1, settings.length_penalty)], dim=2)
        score, kept = scores.topk(self.score.shape[2], dim=2)
        ended = torch.cat([self.ended, log_prob], dim=2).gather(2, kept)
        words = torch.cat([self.ended_words, _pick(self.words, candidates.caption[..., first])], dim=2)
        return replace(self, score=score, ended=ended, ended_words=_pick(words, kept))

    def extend(self, candidates: _Candidates, length: int) -> tuple[_Search, torch.Tensor]:
        """Add the next words; also returns, for each caption, the row of the last step that it continues."""
        order = _first_words(candidates.word, candidates.width)
        caption, word, running, penalty = (
            column.gather(2, order)
            for column in (candidates.caption, candidates.word, candidates.log_prob, candidates.penalty)
        )
        words = _pick(self.words, caption)
        words[..., length] = word
        row = (self.running > -torch.inf).flatten().cumsum(0).view(self.running.shape) - 1
        running = running.masked_fill(word == END, -torch.inf)
        return replace(self, running=running, penalty=penalty, words=words), row.gather(2, caption)

    def prune(self, settings: DecodingSettings) -> _Search:
        """Drop running captions that can no longer enter the lists of the best."""
        bound = normalise(self.running, self.words.shape[3] + 1, settings.length_penalty)
        dropped = bound <= self.score[..., -1:]
        if settings.group_count > 1:  # later groups avoid the words of earlier ones: drop all of an image, or none
            dropped = dropped.all(dim=2, keepdim=True).all(dim=1, keepdim=True)
        return replace(self, running=self.running.masked_fill(dropped, -torch.inf))

    def captions(self) -> Decoded:
        """The lists of the best; if too few have ended, running captions fill the lists."""
        places = self.score.shape[2]
        log_prob = torch.cat([self.ended, self.running], dim=2)
        words = torch.cat([self.ended_words, self.words], dim=2)
        # Ended ones come first, each kind in its own order.
        taken = torch.argsort((log_prob == -torch.inf).int(), dim=2, stable=True)[..., :places]
        log_prob = log_prob.gather(2, taken)
        there = log_prob > -torch.inf
        return Decoded(
            image=self.image[:, None, None].expand_as(there)[there],
            rank=torch.arange(places, device=there.device).expand_as(there)[there],
            tokens=_pick(words, taken)[there],
            log_prob=log_prob[there],
            ended=(taken < places)[there],
        )


def _best_words(log_probs: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` best of each row, best first, and where they are: `topk`, twice as fast for many words.

    A row is cut into `PARTS`, laid over each other. The best words are in the columns with the largest maxima, or among
    the few words that are left.
    """
    rows, words = log_probs.shape
    columns = words // PARTS
    if columns < PARTS * count:
        best, where = log_probs.topk(count, dim=1)
        return best, where
    laid_over = log_probs[:, : columns * PARTS].reshape(rows, PARTS, columns)
    column = laid_over.amax(dim=1).topk(count, dim=1).indices
    first_of_part = torch.arange(0, columns * PARTS, columns, device=column.device)
    rest = torch.arange(columns * PARTS, words, device=column.device).expand(rows, -1)
    word = torch.cat([(column[:, None] + first_of_part[:, None]).flatten(1), rest], dim=1)
    best, where = log_probs.gather(1, word).topk(count, dim=1)
    return best, word.gather(1, where)


def _first_words(word: torch.Tensor, width: int) -> torch.Tensor:
    """Indices of the first `width` candidates that are not an end token; end tokens only if there are too few."""
    return torch.argsort((word == END).int(), dim=-1, stable=True)[..., :width]


def _pick(words: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
    """The words of these captions: `[..., captions, longest]` by `[..., chosen]`."""
    return words.gather(-2, captions[..., None].expand(*captions.shape, words.shape[-1]))
