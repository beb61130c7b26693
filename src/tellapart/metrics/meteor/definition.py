"""The alignment of METEOR 1.5 in its simplest form, one pair of captions at a time.

Words and phrases of the candidate are matched with those of the reference in four ways: equal words (module 0), equal
stems (1), synonyms (2), paraphrases (3). An alignment takes the matches that cover most words in the fewest chunks
(runs that are contiguous in both captions), found by a beam search from left to right.

`beam.py` does the same for many pairs at once and is normally used. It is tested against this module, which handles
the captions that are too long for it.

Reference: Denkowski & Lavie, "Meteor Universal", WMT 2014. The paper does not define the search. The order of matches,
the half weight of inexact ones and the sum of distances follow the published program, as inferred from its results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tellapart.metrics.meteor.data import LONGEST_PHRASE
from tellapart.metrics.meteor.lexicon import Lexicon

BEAM = 40
EXACT, STEM, SYNONYM, PARAPHRASE = range(4)


class Match(NamedTuple):
    """Words `start … start + length - 1` of the reference with words `candidate_start …` of the candidate."""

    start: int
    length: int
    candidate_start: int
    candidate_length: int
    module: int

    @property
    def gain(self) -> int:
        """Words covered on both sides, inexact ones by half, rounded down on each side."""
        if self.module == EXACT:
            return 2
        return self.length // 2 + self.candidate_length // 2

    @property
    def distance(self) -> int:
        return abs(self.start - self.candidate_start)


class _Path(NamedTuple):
    """A partial alignment. `used` are bit masks over words; `end` is the end of the open chunk in the candidate."""

    gain: int
    chunks: int
    distance: int
    end: int | None
    used: int
    candidate_used: int
    matches: tuple[Match, ...]


def find_matches(lexicon: Lexicon, reference: Sequence[int], candidate: Sequence[int]) -> list[list[Match]]:
    """All matches by their start in the reference, in the order of the search."""
    found: list[list[Match]] = [[] for _ in reference]
    stems, sets = lexicon.stems, lexicon.synonym_sets
    for start, word in enumerate(reference):
        modules = [[place for place, other in enumerate(candidate) if other == word]]
        if reference != candidate:  # equal captions need only exact matches
            others = [(place, other) for place, other in enumerate(candidate) if other != word]
            modules.append([place for place, other in others if stems[other] == stems[word]])
            modules.append([place for place, other in others if sets[other] & sets[word]])
        found[start] += [Match(start, 1, place, 1, module) for module, places in enumerate(modules) for place in places]
    if reference != candidate:
        for start, length, place, other_length in _paraphrases(lexicon, reference, candidate):
            found[start].append(Match(start, length, place, other_length, PARAPHRASE))
        for place, other_length, start, length in _paraphrases(lexicon, candidate, reference):
            found[start].append(Match(start, length, place, other_length, PARAPHRASE))
    return found


def _paraphrases(lexicon: Lexicon, words: Sequence[int], others: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Phrases of `words` whose paraphrase is in `others`: start and length of both, in the order of the table."""
    data = lexicon.data
    places: dict[int, list[tuple[int, int]]] = {}
    for start, length, phrase in phrases(lexicon, others):
        places.setdefault(phrase, []).append((start, length))
    for start, length, phrase in phrases(lexicon, words):
        pairs = slice(data.first[phrase], data.first[phrase] + data.count[phrase])
        for target in data.target[pairs].tolist():
            for place, other_length in places.get(target, ()):
                yield start, length, place, other_length


def phrases(lexicon: Lexicon, words: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Start, length and number of every phrase of the table in a caption."""
    for start in range(len(words)):
        hashes, power = [0], 1
        for word in words[start : start + LONGEST_PHRASE]:
            hashes.append((hashes[-1] + power * lexicon.hashes[word][0]) % 2**64)
            power = power * lexicon.hashes[word][1] % 2**64
        numbers = lexicon.data.phrase_numbers(np.array(hashes[1:], dtype=np.uint64)).tolist()
        yield from ((start, length, number) for length, number in enumerate(numbers, start=1) if number >= 0)


def align(found: Sequence[Sequence[Match]], candidate_length: int) -> tuple[int, tuple[Match, ...]]:
    """The number of chunks and the matches of the best alignment."""
    certain = _certain(found, candidate_length)
    used = sum(_bits(match.start, match.length) for match in certain.values())
    candidate_used = sum(_bits(match.candidate_start, match.candidate_length) for match in certain.values())
    paths = [_Path(0, 0, 0, None, used, candidate_used, tuple(certain.values()))]
    for place in range(len(found)):
        paths = [
            child for path in _best(paths)[:BEAM] for child in _children(path, place, certain.get(place), found[place])
        ]
    best = _best([_closed(path) for path in _best(paths)[:BEAM]])[0]
    return best.chunks, best.matches


def _certain(found: Sequence[Sequence[Match]], candidate_length: int) -> dict[int, Match]:
    """Matches whose words have no other match, by start."""
    cover, candidate_cover = [0] * len(found), [0] * candidate_length
    for matches in found:
        for match in matches:
            for place in range(match.start, match.start + match.length):
                cover[place] += 1
            for place in range(match.candidate_start, match.candidate_start + match.candidate_length):
                candidate_cover[place] += 1
    certain = {}
    for matches in found:
        if len(matches) == 1:
            start, length, candidate_start, other_length, _ = matches[0]
            covers = cover[start : start + length] + candidate_cover[candidate_start : candidate_start + other_length]
            if max(covers) == 1:
                certain[start] = matches[0]
    return certain


def _children(path: _Path, place: int, certain: Match | None, matches: Sequence[Match]) -> Iterator[_Path]:
    """The continuations of a path at one word of the reference: each match in turn, then none."""
    if certain:
        yield _with(path, certain)
        return
    if path.used >> place & 1:
        yield path
        return
    distance = path.distance
    for match in matches:
        used = path.used | _bits(match.start, match.length)
        candidate_used = path.candidate_used | _bits(match.candidate_start, match.candidate_length)
        if path.used & _bits(match.start, match.length):
            continue
        if path.candidate_used & _bits(match.candidate_start, match.candidate_length):
            continue
        child = path._replace(
            distance=distance, used=used, candidate_used=candidate_used, matches=(*path.matches, match)
        )
        yield _with(child, match)
        # As in the program, a match's distance counts for the alternatives after it, not for itself.
        distance += match.distance
    yield _closed(path)._replace(distance=distance)


def _with(path: _Path, match: Match) -> _Path:
    breaks = path.end is not None and path.end != match.candidate_start
    return path._replace(
        gain=path.gain + match.gain,
        chunks=path.chunks + breaks,
        end=match.candidate_start + match.candidate_length,
    )


def _closed(path: _Path) -> _Path:
    return path._replace(chunks=path.chunks + (path.end is not None), end=None)


def _best(paths: list[_Path]) -> list[_Path]:
    return sorted(paths, key=lambda path: (-path.gain, path.chunks, path.distance))


def _bits(start: int, length: int) -> int:
    return ((1 << length) - 1) << start
