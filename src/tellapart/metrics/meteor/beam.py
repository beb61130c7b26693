"""The beam search of `definition.py` for many pairs of captions at once.

All pairs are processed in parallel, one word of the reference per step. A partial alignment ("path") is a few integers,
so a step is a few array operations on all paths of all pairs. The ranking criteria of a path are packed into one
number:

    bits:  pair | maximum gain - gain | chunks | distance

To rank the paths of each pair, the pair is left out and the order of creation put at the end, which breaks ties as a
stable sort would. Paths that cannot win any more are dropped. The matches of a path are not stored with it; those of
the best path are read back from the steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tellapart.metrics.meteor.definition import BEAM, EXACT
from tellapart.metrics.meteor.matches import Ints, Matches, expand

_PAIRS_AT_ONCE = 2048
_DISTANCE_BITS, _CHUNK_BITS, _GAIN_BITS, _ORDER_BITS = 16, 7, 7, 30
_PAIR_SHIFT = _DISTANCE_BITS + _CHUNK_BITS + _GAIN_BITS
_CHUNK = 1 << _DISTANCE_BITS
_GAIN = _CHUNK << _CHUNK_BITS
_NO_GAIN = ((1 << _GAIN_BITS) - 1) * _GAIN
_NO_PATH = np.iinfo(np.int64).max
# Pairs with up to so many paths are ranked together.
_WIDTHS = (8, 24)
_MOST_MATCHES_AT_A_WORD = (1 << _ORDER_BITS) // (_PAIRS_AT_ONCE * BEAM) - 1

Masks = NDArray[np.uint64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Alignments:
    """chunks: [pairs]. chosen: indices of the aligned matches. too_large: [pairs] whose numbers would overflow."""

    chunks: Ints
    chosen: Ints
    too_large: Flags


def align_all(matches: Matches, lengths: Ints) -> Alignments:
    """The best alignment of every pair, given its matches and the lengths of the references."""
    pairs = len(lengths)
    at_word = np.bincount(matches.pair << 6 | matches.start, minlength=pairs << 6)
    certain = _alone(matches, pairs)
    distance = np.abs(matches.start - matches.candidate_start)
    too_large = np.bincount(matches.pair, distance, minlength=pairs) >= _CHUNK
    too_large |= at_word.reshape(pairs, 64).max(axis=1, initial=0) > _MOST_MATCHES_AT_A_WORD

    # Sorted by length, so that short pairs do not wait for longer ones.
    order = np.argsort(lengths, kind="stable")
    order = order[~too_large[order]]
    first_match = np.searchsorted(matches.pair, np.arange(pairs + 1))
    chunks = np.zeros(pairs, dtype=np.int64)
    chosen = [np.flatnonzero(certain)]
    for begin in range(0, len(order), _PAIRS_AT_ONCE):
        some = order[begin : begin + _PAIRS_AT_ONCE]
        pair, place = expand(first_match[some], first_match[some + 1] - first_match[some])
        search = _AlignmentBeam(matches, pair, place, certain[place], len(some), int(lengths[some[-1]]))
        chunks[some], found = search.run()
        chosen.append(found)
    return Alignments(chunks, np.concatenate(chosen), too_large)


def _alone(matches: Matches, pairs: int) -> Flags:
    """Whether no other match covers a word of this one, on either side."""
    alone = np.ones(len(matches.pair), dtype=bool)
    for start, length in ((matches.start, matches.length), (matches.candidate_start, matches.candidate_length)):
        match, word = expand(matches.pair << 6 | start, length)
        shared = np.bincount(word, minlength=pairs << 6) > 1
        alone[match.compress(shared.take(word))] = False
    return alone


def _masks(start: Ints, length: Ints) -> Masks:
    one = np.uint64(1)
    return ((one << length.astype(np.uint64)) - one) << start.astype(np.uint64)


class _AlignmentBeam:
    """Beam search for some pairs whose references have at most `steps` words.

    rank, end:            [paths] see above; the end of the open chunk in the candidate, or -1
    used, candidate_used: [paths] bit masks of words
    """

    def __init__(self, matches: Matches, pair: Ints, place: Ints, certain: Flags, pairs: int, steps: int) -> None:
        self.pairs, self.steps = pairs, steps
        start, length = matches.start[place], matches.length[place]
        candidate_start, candidate_length = matches.candidate_start[place], matches.candidate_length[place]
        end = candidate_start + candidate_length
        masks, candidate_masks = _masks(start, length), _masks(candidate_start, candidate_length)
        step_and_pair = start * pairs + pair

        # Certain matches: their start and end in the candidate, by step and pair, and the words they use.
        self.certain_start, self.certain_end = np.full((2, steps * pairs), -1)
        self.certain_start[step_and_pair[certain]] = candidate_start[certain]
        self.certain_end[step_and_pair[certain]] = end[certain]
        self.used, self.candidate_used = np.zeros((2, pairs), dtype=np.uint64)
        np.bitwise_or.at(self.used, pair[certain], masks[certain])
        np.bitwise_or.at(self.candidate_used, pair[certain], candidate_masks[certain])

        # The others: those of one step and pair are contiguous.
        rest = np.flatnonzero(~certain)
        # Sorted by pair already, so by step, in bytes, which sort fastest.
        rest = rest[np.argsort(start[rest].astype(np.uint8), kind="stable")]
        self.count = np.bincount(step_and_pair[rest], minlength=steps * pairs)
        self.first = np.cumsum(self.count) - self.count
        self.place = place[rest]
        # One more at the end that uses no words: "match -1" means none.
        self.match_mask, self.match_candidate_mask = (
            np.append(m[rest], np.uint64(0)) for m in (masks, candidate_masks)
        )
        self.match_start, self.match_end = candidate_start[rest], np.append(end[rest], -1)
        exact = matches.module[self.place] == EXACT
        self.match_gain = np.where(exact, 2, length[rest] // 2 + candidate_length[rest] // 2) * _GAIN
        self.match_distance = np.abs(start[rest] - candidate_start[rest])

        # The most that a path can gain from a step on: the best match of each word.
        best = np.zeros((steps + 1, pairs), dtype=np.int64)
        np.maximum.at(best.ravel(), step_and_pair[rest], self.match_gain)
        self.to_gain = np.cumsum(best[::-1], axis=0)[::-1]

        self.rank = (np.arange(pairs) << _PAIR_SHIFT) + _NO_GAIN
        self.end = np.full(pairs, -1)

    def run(self) -> tuple[Ints, Ints]:
        """Chunks [pairs], and the places of the matches chosen."""
        steps = [self._step(step) for step in range(self.steps)]
        # After the last word, close the open chunk and rank the paths again.
        self.rank += (self.end >= 0) * _CHUNK
        path = self._ranked(self.rank, self.steps)
        # The first of each pair, by pair.
        pair = self.rank.take(path) >> _PAIR_SHIFT
        begin = _changes(pair)
        path = path.take(begin[np.argsort(pair.take(begin))])
        chunks = (self.rank[path] >> _DISTANCE_BITS) & ((1 << _CHUNK_BITS) - 1)
        chosen = [self.place[:0]]
        for parent, match in reversed(steps):
            found = match[path]
            chosen.append(self.place[found[found >= 0]])
            path = parent[path]
        return chunks, np.concatenate(chosen)

    def _step(self, step: int) -> tuple[Ints, Ints]:
        """Extend every path by each match that starts at this word, or by none, and keep the best.

        Returns, for each path kept, its parent and the match it has taken, or -1.
        """
        paths = np.arange(len(self.rank))
        place = (self.rank >> _PAIR_SHIFT) + step * self.pairs
        certain = self.certain_start.take(place)
        is_certain, is_open = certain >= 0, self.end >= 0
        covered = (self.used >> np.uint64(step) & np.uint64(1)).astype(bool)

        # Without a new match: take a certain one, skip a covered word, or close the chunk.
        breaks = is_open & np.where(is_certain, certain != self.end, ~covered)
        rank = self.rank + breaks * _CHUNK
        end = np.where(covered & ~is_certain, self.end, self.certain_end.take(place))

        parent, match = expand(self.first.take(place), self.count.take(place) * ~covered)
        clash = self.used.take(parent) & self.match_mask.take(match)
        clash |= self.candidate_used.take(parent) & self.match_candidate_mask.take(match)
        free = np.flatnonzero(clash == 0)
        if not len(free):
            kept = self._ranked(rank, step + 1)
            self.rank, self.end = rank.take(kept), end.take(kept)
            self.used, self.candidate_used = self.used.take(kept), self.candidate_used.take(kept)
            return kept, np.full(len(kept), -1)

        # A later child also has the distances of all earlier children of the same path.
        parent, match = parent.take(free), match.take(free)
        children = np.bincount(parent, minlength=len(paths))
        last = np.cumsum(children)
        tried = np.zeros(len(match) + 1, dtype=np.int64)
        np.cumsum(self.match_distance.take(match), out=tried[1:])
        tried_before = tried.take(last - children)
        old_end = self.end.take(parent)
        breaks = (old_end >= 0) & (old_end != self.match_start.take(match))
        child_rank = (
            (self.rank - tried_before).take(parent) + tried[:-1] + breaks * _CHUNK - self.match_gain.take(match)
        )

        # In order of creation: the children of a path, then the path without a match.
        child, childless = np.arange(len(parent)) + parent, last + paths
        parents, taken = np.empty(len(child) + len(paths), np.int64), np.full(len(child) + len(paths), -1)
        ranks = np.empty_like(parents)
        parents[child], parents[childless] = parent, paths
        ranks[child], ranks[childless] = child_rank, rank + (tried.take(last) - tried_before)
        taken[child] = match
        kept = self._ranked(ranks, step + 1)
        parents, taken = parents.take(kept), taken.take(kept)
        self.rank = ranks.take(kept)
        self.end = np.where(taken >= 0, self.match_end.take(taken), end.take(parents))
        self.used = self.used.take(parents) | self.match_mask.take(taken)
        self.candidate_used = self.candidate_used.take(parents) | self.match_candidate_mask.take(taken)
        return parents, taken

    def _ranked(self, ranks: Ints, step: int) -> Ints:
        """Indices of the paths to keep before a step: the best of each pair, best first.

        The paths of a pair are contiguous, and those kept are so again; pairs may change their order.
        """
        pair = ranks >> _PAIR_SHIFT
        begin = _changes(pair)
        count = np.append(begin[1:], len(ranks)) - begin
        if len(begin) == len(ranks):
            return begin
        keys = (ranks & ((1 << _PAIR_SHIFT) - 1)) << _ORDER_BITS | np.arange(len(ranks))
        to_gain = self.to_gain[step].take(pair.take(begin))
        found, shorter = [begin.compress(count == 1)], 1
        # NumPy sorts many short rows several times faster than one long one: a row for each pair.
        for width in (*_WIDTHS, int(count.max())):
            some = np.flatnonzero((count > shorter) & (count <= width))
            if len(some):
                row, path = expand(begin.take(some), count.take(some))
                rows = np.full((len(some), width), _NO_PATH)
                rows.ravel()[path + (np.arange(len(some)) * width - begin.take(some)).take(row)] = keys.take(path)
                rows.sort(axis=1)
                found.append(_in_reach(rows[:, :BEAM], to_gain.take(some)))
            shorter = width
        return np.concatenate(found)


def _changes(numbers: Ints) -> Ints:
    """Places of the numbers that differ from the one before, the first included."""
    return np.append(0, np.flatnonzero(numbers[1:] != numbers[:-1]) + 1)


def _in_reach(rows: Ints, to_gain: Ints) -> Ints:
    """Indices of the paths, from rows of sorted keys, that may still gain as much as the best of their row has.

    The others cannot win. Nor do they push a path that wins out of the beam, since they never rank before it.
    """
    limit = ((rows[:, 0] >> _ORDER_BITS) // _GAIN + 1) * _GAIN + to_gain
    within = rows < (limit << _ORDER_BITS)[:, np.newaxis]
    return rows.ravel().compress(within.ravel()) & ((1 << _ORDER_BITS) - 1)
