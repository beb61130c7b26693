"""METEOR's data on each word, looked up once: stem, synonym sets, function word or not, hash."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tellapart.metrics.meteor.data import WordData, hash_word, load_word_data
from tellapart.metrics.meteor.normalise import normalise
from tellapart.metrics.meteor.stemmer import stem

_CAPTIONS_REMEMBERED = 200_000


class Lexicon(dict[str, int]):
    """Word → number. A new word is looked up and gets the next number."""

    def __init__(self, data: WordData) -> None:
        super().__init__()
        self.data = data
        self.stems: list[int] = []
        self.synonym_sets: list[frozenset[int]] = []
        self.is_function_word: list[bool] = []
        self.hashes: list[tuple[int, int]] = []
        self._stem_numbers: dict[str, int] = {}
        self._captions: dict[str, tuple[int, ...]] = {}
        # Caption → its phrases, in the form of `matches.py`.
        self.phrases: dict[str, bytes] = {}
        self._arrays = WordArrays(self)
        self._one_at_a_time = threading.Lock()

    def __missing__(self, word: str) -> int:
        self.stems.append(self._stem_numbers.setdefault(stem(word), len(self._stem_numbers)))
        self.synonym_sets.append(self.data.synonym_sets(word))
        self.is_function_word.append(word in self.data.function_words)
        self.hashes.append(hash_word(word))
        self[word] = number = len(self)
        return number

    def words_of(self, captions: Sequence[str]) -> list[tuple[int, ...]]:
        """Captions as word numbers. They are cached, since references are scored with every model."""
        with self._one_at_a_time:
            if len(self._captions) > _CAPTIONS_REMEMBERED:
                self._captions.clear()
                self.phrases.clear()
            remembered, number, abbreviations = self._captions, self.__getitem__, self.data.abbreviations
            for caption in captions:
                if caption not in remembered:
                    remembered[caption] = tuple(map(number, normalise(caption, abbreviations)))
            return [remembered[caption] for caption in captions]

    def arrays(self) -> WordArrays:
        """The same data as arrays, for all words seen so far."""
        with self._one_at_a_time:
            if len(self._arrays.stems) != len(self):
                self._arrays = WordArrays(self)
            return self._arrays


class WordArrays:
    """[words] each: number of the stem, whether a function word, hash (see `data.hash_word`), its phrase or -1.

    Word w is in the synonym sets `synonym_sets[synonym_first[w] : synonym_first[w + 1]]`.
    """

    def __init__(self, lexicon: Lexicon) -> None:
        self.stems: NDArray[np.int64] = np.array(lexicon.stems, dtype=np.int64)
        self.is_function_word: NDArray[np.int64] = np.array(lexicon.is_function_word, dtype=np.int64)
        self.hashes, self.powers = np.array(lexicon.hashes, dtype=np.uint64).reshape(-1, 2).T.copy()
        self.phrases = lexicon.data.phrase_numbers(self.hashes)
        self.synonym_sets: NDArray[np.int64] = np.fromiter(chain.from_iterable(lexicon.synonym_sets), np.int64)
        self.synonym_first = np.cumsum([0, *map(len, lexicon.synonym_sets)])


@lru_cache(maxsize=1)
def open_lexicon() -> Lexicon:
    """The lexicon of this process, shared by all calls."""
    return Lexicon(load_word_data())
