"""Index photographs by file and search them by a sentence or a picture.

A file with the same size and time, or else the same content, as in the index is not encoded again. Rows are written
every `BLOCK` pictures, so a killed call loses at most the block it was encoding, and the same call continues.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from tellapart.data.encoding import BATCH, encode_batches
from tellapart.data.images import load_image
from tellapart.data.parts import WHOLE, Part
from tellapart.data.pictures import stamp_of
from tellapart.data.records import Dataset, Record
from tellapart.data.rows import read_grid
from tellapart.errors import DataError, RecipeError, StoreError
from tellapart.huggingface.hub import locate
from tellapart.index.base import ALL, ROWS, File, Hit, Made, Photo, Recall, Store, Vector, Where
from tellapart.index.lance import LanceStore
from tellapart.index.listing import (
    absolute,
    bad_name,
    clock_seconds,
    describe,
    is_in_part,
    list_pictures,
    match_captions,
    taken_at,
)
from tellapart.index.milvus import MilvusStore, is_address
from tellapart.index.retriever import Reader
from tellapart.shipped import find_model

# Pictures that are encoded before they are written.
BLOCK = 64
# Results that are compared to measure approximate search, and queries; fewer photographs need no approximate search.
RECALL_FIRST, RECALL_QUERIES, FEWEST = 10, 100, 256
# Reciprocal rank fusion (Cormack et al. 2009): 1 / (FUSION + rank), summed over both lists; and the length of a list.
FUSION, FUSED = 60, 100
# Of captions, only those with this share of the best one's score count, and words that say nothing are left out: else a
# photograph whose caption shares an "a" with the query would come before one that shows what is asked for.
SHARE = 0.5
# fmt: off
EMPTY_WORDS = frozenset(
    {
        "a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "has", "have", "he", "her", "his", "in", "is",
        "it", "its", "of", "on", "or", "she", "some", "that", "the", "their", "there", "they", "this", "to", "up",
        "with",
    }
)
# fmt: on
# What a sentence is compared with.
IN = ("both", "pictures", "captions")

OnProgress = Callable[[int, int], None]


@dataclass
class Changes:
    """What a call of `PhotoIndex.add` did, in photographs.

    Attributes:
        added: new ones. updated: encoded again, since their content changed. removed: those whose files are gone.
        unchanged: not encoded again.
        captioned: photographs that the file of captions has captions for. unmatched: its ids that are no photograph.
        skipped: why each of the others could not be read.
    """

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0
    captioned: int = 0
    unmatched: int = 0
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Found:
    """A photograph that was found.

    Attributes:
        path: of its file.
        similarity: to the query, by the retriever.
        by: what found it: `picture`, `caption` or `both`.
        taken: when it was taken, as `2024-05-31T18:30:00`.
        caption: its caption in the index; empty if it has none.
    """

    path: str
    similarity: float
    by: str
    taken: str
    caption: str


class PhotoIndex:
    """An index of photographs; made by `open_index`.

    Args:
        store: its rows.
        reader: the retriever, if it is open already; else it is opened from where the index says it was.

    Example:
        >>> index = tellapart.open_index("photos.lance", retriever="runs/coco-dcl-1a2b3c4d")    # doctest: +SKIP
        >>> index.add(["holiday/", "dog.jpg"]).added                                             # doctest: +SKIP
        412
        >>> [found.path for found in index.search("two dogs on a beach", 3)]                     # doctest: +SKIP
        >>> index.search(Path("dog.jpg"), path="holiday/*", after=datetime(2024, 5, 1))          # doctest: +SKIP
    """

    def __init__(self, store: Store, reader: Reader | None = None) -> None:
        self.store = store
        if reader is not None:
            self.__dict__["reader"] = _checked(store, reader)

    @cached_property
    def reader(self) -> Reader:
        """The retriever that made the index."""
        folder = Path(self.store.made.folder)
        if not folder.exists():
            raise StoreError(
                f"{self.store.place}: the retriever that made this index, '{self.store.made.name}', is no longer at "
                f"{folder}; give its place with --retriever"
            )
        return _checked(self.store, Reader(folder))

    def __len__(self) -> int:
        return len(self.store)

    # --- change -----------------------------------------------------------------------------------------------

    def add(
        self,
        paths: Sequence[str | Path],
        captions: str | Path | Mapping[str, Sequence[str]] | None = None,
        part: Part = WHOLE,
        on_progress: OnProgress | None = None,
    ) -> Changes:
        """Bring the index up to date with pictures and folders of pictures.

        New and changed pictures are encoded, and those whose files are gone leave the index. Pictures of the index that
        are not below the given folders stay.

        Args:
            paths: picture files, or folders. In folders, hidden files are left out and links to folders not followed.
            captions: captions of the pictures: a file (docs/metrics.md has the forms), or captions by path. Ids are
                paths, paths below one of the folders, or names of files that are there once.
            part: only this part of the pictures; other processes do the others.
            on_progress: called with the pictures that are written and those to encode.
        """
        listed = list_pictures(paths)
        known = {
            file.path: file for file in self.store.files(listed.folders, listed.named) if is_in_part(file.path, part)
        }
        missing = [path for path in listed.missing if is_in_part(path, part) and path not in known]
        if missing:
            raise DataError(f"{missing[0]}: this picture does not exist; check the path")
        for folder in listed.empty:
            lost = [path for path in known if path.startswith(f"{folder}/")]
            if lost or part == WHOLE:
                remedy = (
                    f"to remove its {len(lost):,} pictures from the index, use --delete" if lost else "check the path"
                )
                raise DataError(f"{folder}: no picture is in this folder; {remedy}")
        changes = Changes(skipped=[str(bad_name(path)) for path in listed.bad_names if is_in_part(path, part)])
        said, changes.unmatched = match_captions(captions, listed)
        mine = [path for path in listed.files if is_in_part(path, part)]
        self._remove_gone(known, set(mine), changes)
        to_encode = self._refresh(mine, known, said, changes)
        changes.captioned = sum(path in said for path in mine)
        self._encode(to_encode, known, said, changes, on_progress)
        if changes.added or changes.updated or changes.removed:
            self.store.tidy()
        return changes

    def delete(self, paths: Sequence[str | Path]) -> int:
        """Remove pictures, or all pictures below folders, from the index; gives how many. No file is touched."""
        named = [absolute(path) for path in paths]
        found = list(dict.fromkeys(file.path for file in self.store.files(named, named)))
        self.store.remove(found)
        if found:
            self.store.tidy()
        return len(found)

    def build_approximate(self) -> Recall:
        """Make approximate search possible, and measure how much of the exact results it finds."""
        photos = len(self.store)
        if photos < FEWEST:
            raise DataError(
                f"{self.store.place}: holds {photos} photographs, and approximate search needs at least {FEWEST}; "
                "exact search is fast for so few"
            )
        self.store.build_approximate()
        with_caption = self.store.has_captions()
        sample = self.store.sample(RECALL_QUERIES, with_caption)
        if with_caption:  # sentences are what people search with, and lie elsewhere than pictures
            queries = self.reader.read_texts([one.file.caption.split("\n")[0] for one in sample])
        else:
            queries = np.stack([one.vector for one in sample])
        shares = [self._recall(query) for query in queries]
        of = "captions" if with_caption else "photographs"
        found = Recall(recall=float(np.mean(shares)), first=RECALL_FIRST, queries=len(queries), of=of, photos=photos)
        self.store.write_note("recall", found)
        return found

    def _recall(self, query: Vector) -> float:
        exact, found = (
            {hit.path for hit in self.store.nearest(query, RECALL_FIRST, ALL, approximate)}
            for approximate in (False, True)
        )
        return len(exact & found) / len(exact)

    # --- search -----------------------------------------------------------------------------------------------

    @property
    def recall(self) -> Recall | None:
        """How good approximate search was when it was built; `None` if it was not."""
        return self.store.note("recall", Recall)

    def search(
        self,
        query: str | Path | Image.Image,
        count: int = 10,
        *,
        path: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        compare: str = "both",
        approximate: bool = False,
    ) -> list[Found]:
        """The photographs that fit a sentence or a picture best, best first.

        Args:
            query: a sentence (`str`), a picture file (`Path`) or a picture.
            count: number of photographs.
            path: pattern of the path, see `Where`.
            after, before: taken at this time or later, and before this time.
            compare: what a sentence is compared with: `pictures` by the retriever, the words of `captions`, or `both`,
                whose ranks are then combined. Without captions in the index `both` is `pictures`.
            approximate: search approximately, which is faster in very large indexes; see `recall`.
        """
        if compare not in IN:
            raise RecipeError(f"'{compare}' is not something to compare with; give {', '.join(IN)}")
        if count < 1:
            raise RecipeError(f"{count} photographs cannot be found; give 1 or more")
        if len(self.store) == 0:
            raise DataError(
                f"{self.store.place}: this index is empty; add pictures: tellapart index PHOTOS --to {self.store.place}"
            )
        if approximate and self.recall is None:
            raise DataError(
                f"{self.store.place}: approximate search is not built; build it: "
                f"tellapart index --approximate --to {self.store.place}"
            )
        where = Where(path, *(None if date is None else clock_seconds(date) for date in (after, before)))
        if compare == "captions" and not (isinstance(query, str) and self.store.has_captions()):
            problem = "has no captions" if isinstance(query, str) else "is asked with a picture"
            raise DataError(f"{self.store.place}: {problem}; search without --in captions, or index with --captions")
        text = query if isinstance(query, str) else None
        return self.find(self._vector(query), text, count, where, compare, approximate)

    def find(
        self,
        vector: Vector,
        text: str | None = None,
        count: int = 10,
        where: Where = ALL,
        compare: str = "both",
        approximate: bool = False,
    ) -> list[Found]:
        """As `search`, with the vector of the query; the retriever is not asked.

        Args:
            vector: of the sentence or picture.
            text: the sentence, if it is to be compared with captions too.
            count, where, compare, approximate: see `search`.
        """
        texts = text is not None and compare != "pictures" and self.store.has_captions()
        depth = max(count, FUSED) if texts else count
        pictures = [] if compare == "captions" else self.store.nearest(vector, depth, where, approximate)
        words = self.store.worded(_telling_words(str(text)), depth, where) if texts else []
        if compare == "both":
            words = [hit for hit in words if abs(hit.score) >= SHARE * abs(words[0].score)]
        return self._fuse(pictures, words, vector)[:count]

    def _vector(self, query: str | Path | Image.Image) -> Vector:
        if isinstance(query, str):
            if not query.strip():
                raise DataError("the query is blank; describe the photograph in a few words")
            vector: Vector = self.reader.read_texts([query])[0]
            return vector
        picture = load_image(query, at_least=self.reader.encoder.size) if isinstance(query, Path) else query
        return self.reader.read_picture(picture.convert("RGB"))

    def _fuse(self, pictures: list[Hit], words: list[Hit], vector: Vector) -> list[Found]:
        """Combine two rankings by the ranks in each."""
        scores: defaultdict[str, float] = defaultdict(float)
        for hits in (pictures, words):
            for rank, hit in enumerate(hits):
                scores[hit.path] += 1 / (FUSION + rank)
        similarity = {hit.path: hit.score for hit in pictures}
        only_words = [hit.path for hit in words if hit.path not in similarity]
        similarity |= {one.file.path: float(one.vector @ vector) for one in self.store.read(only_words)}
        by_words = {hit.path for hit in words}
        unique = {hit.path: hit for hit in (*pictures, *words) if hit.path in similarity}
        found = [
            Found(
                path,
                similarity[path],
                "picture" if path not in by_words else "caption" if path in only_words else "both",
                datetime.fromtimestamp(hit.taken, UTC).replace(tzinfo=None).isoformat(),
                hit.caption,
            )
            for path, hit in unique.items()
        ]
        return sorted(found, key=lambda one: (-scores[one.path], -one.similarity))

    # --- steps of `add` ---------------------------------------------------------------------------------------

    def _remove_gone(self, known: dict[str, File], here: set[str], changes: Changes) -> None:
        gone = [path for path in known if path not in here]
        self.store.remove(gone)
        changes.removed = len(gone)

    def _refresh(
        self, paths: list[str], known: dict[str, File], said: Mapping[str, str], changes: Changes
    ) -> list[str]:
        """Write new times and captions of pictures with the same content; gives the pictures to encode."""
        to_encode, touched = [], []
        for path in paths:
            before = known.get(path)
            if before is None:
                to_encode.append(path)
                continue
            size, time = stamp_of(path)
            now = replace(before, size=size, time=time, caption=said.get(path, before.caption))
            if (now.size, now.time) != (before.size, before.time) and describe(path).content != before.content:
                to_encode.append(path)
                continue
            changes.unchanged += 1
            if now != before:
                touched.append(now)
        for start in range(0, len(touched), ROWS):
            files = {file.path: file for file in touched[start : start + ROWS]}
            photos = [replace(one, file=files[one.file.path]) for one in self.store.read(list(files))]
            self.store.put(photos)
        if touched:
            self.store.tidy()
        return to_encode

    def _encode(
        self,
        paths: list[str],
        known: dict[str, File],
        said: Mapping[str, str],
        changes: Changes,
        on_progress: OnProgress | None,
    ) -> None:
        """Encode pictures and write them, a block at a time."""
        if not paths:
            return
        described: dict[str, tuple[File, int]] = {}
        dataset = Dataset("photographs", Path(), tuple(Record(path, path, "test", ()) for path in paths))

        def batches() -> Iterator[Sequence[Record]]:
            """A picture is described before it is decoded: if it changes in between, it looks changed later."""
            for start in range(0, len(paths), BATCH):
                records = dataset.records[start : start + BATCH]
                for record in records:
                    file = describe(record.id)
                    before = known.get(record.id)
                    caption = said.get(record.id, before.caption if before is not None else "")
                    described[record.id] = replace(file, caption=caption), taken_at(record.id, file)
                yield records

        encoder = self.reader.encoder
        block: list[Photo] = []
        broken: list[str] = []
        done = 0

        def write() -> None:
            self.store.put(block)
            self.store.remove([path for path in broken if path in known])
            for one in block:
                if one.file.path in known:
                    changes.updated += 1
                else:
                    changes.added += 1
            block.clear()
            broken.clear()
            if on_progress is not None:
                on_progress(done, len(paths))

        for number, (features, skipped) in enumerate(encode_batches(dataset, batches(), encoder)):
            records = dataset.records[number * BATCH : (number + 1) * BATCH]
            reasons = {row["id"]: row["reason"] for row in skipped}
            readable = [row for row, record in enumerate(records) if record.id not in reasons]
            if readable:
                grid = read_grid(features, np.array(readable), with_last=encoder.identity.class_token)
                for row, vector in zip(readable, self.reader.read_features(grid), strict=True):
                    block.append(Photo(*described.pop(records[row].id), vector))
            changes.skipped += reasons.values()
            broken += reasons
            done += len(records)
            if len(block) >= BLOCK:
                write()
        write()


def open_index(place: str | Path, retriever: str | Path | None = None, must_exist: bool = False) -> PhotoIndex:
    """Open an index of photographs, or make a new one.

    Args:
        place: a folder of LanceDB files, such as `photos.lance`, or a collection of a Milvus server,
            `http://HOST:19530/COLLECTION`.
        retriever: a retriever's run or model folder, or a folder of CLIP or SigLIP; by default the shipped one. An
            index that exists knows its own; another one is an error.
        must_exist: raise an error if there is no index yet.
    """
    store: Store | None = MilvusStore.open(str(place)) if is_address(str(place)) else LanceStore.open(Path(place))
    if store is not None:
        return PhotoIndex(store, None if retriever is None else Reader(find_model(locate(retriever))))
    if must_exist:
        raise StoreError(f"{place}: no index is here; make it: tellapart index PHOTOS --to {place}")
    reader = Reader(find_model(locate(retriever or "shipped/retriever")))
    made = reader.made
    if is_address(str(place)):
        return PhotoIndex(MilvusStore.create(str(place), made), reader)
    return PhotoIndex(LanceStore.create(Path(place), made), reader)


def check_pictures(paths: Sequence[str | Path], place: str) -> None:
    """Raise if there is neither an index at a place nor a picture for a new one, so that no empty index is made."""
    if not is_address(place) and not Path(place).exists() and not list_pictures(paths).files:
        raise DataError(f"{paths[0]}: no picture is here; check the path")


def _checked(store: Store, reader: Reader) -> Reader:
    """The retriever, if it is the one that made the index."""
    made, given = store.made, reader.made
    if made.retriever == given.retriever:
        return reader
    same = made.name == given.name and made.encoder.name == given.encoder.name
    raise StoreError(
        f"{store.place}: was made by another retriever ({_named(made)}, from {made.folder}) than {reader.folder} "
        f"({_named(given)}{', with other weights' if same else ''}); use that one, or make another index"
    )


def _named(made: Made) -> str:
    return f"{made.name} {made.retriever[:8]} on {made.encoder.name}"


def _telling_words(query: str) -> str:
    """The query without empty words such as "the"; the whole query if it has no others.

    >>> _telling_words("Two dogs on a beach"), _telling_words("it is")
    ('Two dogs beach', 'it is')
    """
    return " ".join(word for word in query.split() if word.lower() not in EMPTY_WORDS) or query
