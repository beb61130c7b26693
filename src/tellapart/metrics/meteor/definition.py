"""The alignment of METEOR 1.5, one pair of captions at a time, as plain as it can be written.

Idea: words and phrases of the candidate are matched with those of the reference in four ways: equal words (module 0),
equal stems (1), synonyms (2), paraphrases (3). Of all matches an alignment takes those that cover most, in the fewest
chunks (runs that are contiguous in both captions), searched for from left to right with a beam.

`beam.py` does the same for many pairs at once and is what usually runs. This is what it must agree with, and what
takes over where a caption is too long for it.

Reference: Denkowski & Lavie, "Meteor Universal", WMT 2014. The paper leaves the search open; the order of matches, the
halved count of inexact ones and the way distances add up are those of the published program, found out by its results.
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
        """What the search counts: words covered on both sides, inexact ones half, without fractions on either side."""
        if self.module == EXACT:
            return 2
        return self.length // 2 + self.candidate_length // 2

    @property
    def distance(self) -> int:
        return abs(self.start - self.candidate_start)


class _Path(NamedTuple):
    """A partial alignment. `used` are bit masks over words; `end` is where the open chunk ends in the candidate."""

    gain: int
    chunks: int
    distance: int
    end: int | None
    used: int
    candidate_used: int
    matches: tuple[Match, ...]


def find_matches(lexicon: Lexicon, reference: Sequence[int], candidate: Sequence[int]) -> list[list[Match]]:
    """All matches, by the place where they start in the reference, in the order in which the search tries them."""
    found: list[list[Match]] = [[] for _ in reference]
    stems, sets = lexicon.stems, lexicon.synonym_sets
    for start, word in enumerate(reference):
        modules = [[place for place, other in enumerate(candidate) if other == word]]
        if reference != candidate:  # of equal captions equal words are enough
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
    """Matches whose words nothing else could match, by start."""
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
    """What a partial alignment may become at one word of the reference: each match in turn, then none."""
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
        # A match's own distance counts against what is tried after it, not against itself: so does the program.
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
