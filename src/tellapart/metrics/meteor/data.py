"""METEOR's word data: paraphrases, synonyms, irregular forms, function words and abbreviations.

They are read from the installed `pycocoevalcap` (extra `metrics`), whose paraphrase table is 272 MB of text. It is
converted to arrays once and stored in one file of the cache folder. Phrases are identified by a 64-bit hash of their
words. All 2,616,378 phrases have different hashes, and other words have one of them with a probability of 10⁻¹³.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tellapart.errors import DataError, MissingExtraError
from tellapart.files import cache_folder, digest_of, new_file

LONGEST_PHRASE = 7
# Increase it when the arrays below change their meaning: files of another format are ignored.
_FORMAT = 2
_FILTER_BITS = 25
_BUCKET_BITS = 20
_BYTES_AT_ONCE = 1 << 22
_BASE = 0x9E3779B97F4A7C15
# From a digest, since a random generator may change with its version and invalidate cached files.
_BYTE_TERMS = [int.from_bytes(hashlib.sha256(bytes([byte])).digest()[:8], "little") for byte in range(256)]

# Endings that WordNet strips to find a base form, in its order: nouns, verbs, adjectives.
_ENDINGS = (
    *(("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh")),
    *(("men", "man"), ("ies", "y")),
    *(("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    *(("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
)


@dataclass(frozen=True)
class WordData:
    """Word lists, and the paraphrase table as arrays. Pair k of the table is `source[k]` → `target[k]`, phrase numbers.

    hashes:       [phrases] sorted; a phrase's number is its position here
    filter:       bit h >> (64 - 25) is set for every hash h, which rules out most non-phrases quickly
    first, count: [phrases] the pairs that start from a phrase are first … first + count - 1
    into_first:   [phrases + 1] the pairs that lead to phrase p are into[into_first[p] : into_first[p + 1]]
    """

    synsets: dict[str, list[int]]
    base_forms: dict[str, list[str]]
    function_words: frozenset[str]
    abbreviations: dict[str, bool]
    hashes: NDArray[np.uint64]
    filter: NDArray[np.uint8]
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    first: NDArray[np.int32]
    count: NDArray[np.int32]
    into: NDArray[np.int32]
    into_first: NDArray[np.int32]

    def synonym_sets(self, word: str) -> frozenset[int]:
        """The WordNet synonym sets of a word and of its base forms."""
        return frozenset(self.synsets.get(word, ())).union(*(self.synsets.get(base, ()) for base in self._bases(word)))

    def _bases(self, word: str) -> Sequence[str]:
        if word in self.base_forms:
            return self.base_forms[word]
        if len(word) > 2 and not word.endswith("ss"):
            for ending, replacement in _ENDINGS:
                base = word.removesuffix(ending) + replacement
                if word.endswith(ending) and base in self.synsets:
                    return (base,)
        return ()

    def phrase_numbers(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The number of the phrase with each hash, or -1."""
        numbers = np.full(len(hashes), -1, dtype=np.int64)
        bit = hashes >> np.uint64(64 - _FILTER_BITS)
        maybe = np.flatnonzero(self.filter[bit >> np.uint64(3)] >> (bit & np.uint64(7)).astype(np.uint8) & 1)
        wanted = hashes[maybe]
        place = self._bucket_first.take((wanted >> np.uint64(64 - _BUCKET_BITS)).view(np.int64))
        # A bucket has few phrases: go through those of all hashes at once.
        while len(maybe):
            found = self.hashes.take(place, mode="clip")
            equal = np.flatnonzero(found == wanted)
            numbers[maybe.take(equal)] = place.take(equal)
            before = np.flatnonzero((found < wanted) & (place < len(self.hashes)))
            maybe, wanted, place = maybe.take(before), wanted.take(before), place.take(before) + 1
        return numbers

    @cached_property
    def _bucket_first(self) -> NDArray[np.int64]:
        """The first phrase whose hash has these upper bits, or larger ones: much faster than a binary search."""
        bucket = (self.hashes >> np.uint64(64 - _BUCKET_BITS)).view(np.int64)
        count = np.bincount(bucket, minlength=1 << _BUCKET_BITS)
        return np.cumsum(count) - count


def hash_word(word: str) -> tuple[int, int]:
    """The hash of a space and a word, and the factor for the hash of what follows.

    The hash of bytes b is Σ term(b[k])·base^k mod 2^64, with a well-mixed term for each byte. So hashes of parts add up
    to that of the whole, and a long table is hashed in one sweep. Every word of a phrase has a space before it.
    """
    value, power = 0, 1
    for byte in b" " + word.encode():
        value = (value + _BYTE_TERMS[byte] * power) % 2**64
        power = power * _BASE % 2**64
    return value, power


def load_word_data() -> WordData:
    """Read the cached file; make it first if it is missing, damaged or of another format."""
    folder = _source_folder()
    table, jar = folder / "data" / "paraphrase-en.gz", folder / "meteor-1.5.jar"
    try:
        made_from = {"format": _FORMAT, "table": table.stat().st_size, "jar": jar.stat().st_size}
    except FileNotFoundError as error:
        raise DataError(f"{error.filename}: METEOR's word data are missing; install pycocoevalcap again") from None
    digest = digest_of(made_from)[:16]
    path = cache_folder() / f"meteor-{digest}.safetensors"
    data = _read(path, digest)
    if data is None:
        _write(path, digest, _read_lists(jar), _read_table(table))
        data = _read(path, digest)
        if data is None:
            raise DataError(f"{path}: the file just written cannot be read; check the disk, or set TELLAPART_CACHE")
    return data


def _source_folder() -> Path:
    spec = find_spec("pycocoevalcap")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("pycocoevalcap", "metrics")
    return Path(next(iter(spec.submodule_search_locations))) / "meteor"


def _read(path: Path, digest: str) -> WordData | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            if (file.metadata() or {}).get("digest") != digest:
                return None
            names = file.keys()  # a method, though the file is not a mapping
            arrays = {name: file.get_tensor(name) for name in names}
        lists = json.loads(arrays.pop("lists").tobytes())
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
    return WordData(
        synsets=lists["synsets"],
        base_forms=lists["base_forms"],
        function_words=frozenset(lists["function_words"]),
        abbreviations=lists["abbreviations"],
        **arrays,
    )


def _write(path: Path, digest: str, lists: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    from safetensors.numpy import save_file

    text = json.dumps(lists, ensure_ascii=False, separators=(",", ":"))
    arrays["lists"] = np.frombuffer(text.encode(), dtype=np.uint8)
    with new_file(path) as temporary:
        save_file(arrays, temporary, metadata={"digest": digest})


def _read_lists(jar: Path) -> dict[str, Any]:
    with zipfile.ZipFile(jar) as archive:

        def lines(name: str) -> list[str]:
            return archive.read(name).decode("utf-8").split("\n")

        synsets = lines("synonym/english.synsets")
        irregular = lines("synonym/english.exceptions")
        function_words = [word for word in lines("function/english.words") if word]
        prefixes = lines("nonbreaking/english.prefixes")
    base_forms: dict[str, list[str]] = {}
    for base, forms in zip(irregular[::2], irregular[1::2], strict=False):
        for form in forms.split():
            base_forms.setdefault(form, []).append(base)
    return {
        # Names of several words are joined by "_", which does not occur in captions.
        "synsets": {
            word: [int(number) for number in numbers.split()]
            for word, numbers in zip(synsets[::2], synsets[1::2], strict=False)
            if "_" not in word
        },
        "base_forms": base_forms,
        "function_words": function_words,
        "abbreviations": {
            line.split()[0]: "#NUMERIC_ONLY#" in line for line in prefixes if line.strip() and not line.startswith("#")
        },
    }


def _read_table(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of the paraphrase table."""
    sources, targets = map(np.concatenate, zip(*_hash_pairs(path), strict=True))
    # The pairs of a phrase are contiguous in the table.
    begins = np.flatnonzero(np.concatenate([[True], sources[1:] != sources[:-1]]))
    count_of_begins = np.diff(begins, append=len(sources))
    ahead = len(begins)
    both = np.concatenate([sources[begins], targets])
    order = np.argsort(both)
    both = both[order]
    is_new = np.concatenate([[True], both[1:] != both[:-1]])
    hashes = both[is_new]
    number = np.empty(len(both), dtype=np.int32)
    number[order] = np.cumsum(is_new) - 1
    source, target = number[:ahead], number[ahead:]
    first, count = np.zeros((2, len(hashes)), dtype=np.int32)
    first[source] = begins
    count[source] = count_of_begins
    set_bits = np.zeros(1 << _FILTER_BITS, dtype=bool)
    set_bits[hashes >> np.uint64(64 - _FILTER_BITS)] = True
    return {
        "hashes": hashes,
        "filter": np.packbits(set_bits, bitorder="little"),
        "source": np.repeat(source, count_of_begins),
        "target": target,
        "first": first,
        "count": count,
        "into": (order[order >= ahead] - ahead).astype(np.int32),
        "into_first": np.cumsum(np.bincount(target + 1, minlength=len(hashes) + 1)).astype(np.int32),
    }


def _hash_pairs(path: Path) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
    """The hashes of phrases and of their paraphrases, many pairs at a time.

    Three lines are a pair: probability, phrase, paraphrase. The line end before a phrase is hashed as the space before
    its first word.
    """
    terms = np.array(_BYTE_TERMS, dtype=np.uint64)
    terms[ord("\n")] = terms[ord(" ")]
    powers = np.cumprod(np.full(2 * _BYTES_AT_ONCE, _BASE, dtype=np.uint64))
    inverses = np.cumprod(np.full(2 * _BYTES_AT_ONCE, pow(_BASE, -1, 2**64), dtype=np.uint64))
    with gzip.open(path, "rb") as file:
        rest = b"\n"
        while block := file.read(_BYTES_AT_ONCE):
            text = np.frombuffer(rest + block, dtype=np.uint8)
            ends = np.flatnonzero(text == ord("\n"))
            ends = ends[: (len(ends) - 1) // 3 * 3 + 1]
            sums = np.cumsum(terms[text] * powers[: len(text)])
            hashes = np.diff(sums[ends] - terms[text[ends]] * powers[ends]) * inverses[ends[:-1]]
            yield hashes[1::3], hashes[2::3]
            rest = text[ends[-1] :].tobytes()
