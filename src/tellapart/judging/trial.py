"""What is judged: pictures with a caption by A and one by B, the questions, and what each rater sees where.

A rater never learns which caption is whose. Which one is on the left, and in which order the pictures come, depends on
the rater's name, the picture and the seed only. So a rater who comes back goes on with the same pages, and the file of
answers need not say whose caption was chosen: `judge-report` works it out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sys
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from tellapart.data.images import load_image
from tellapart.data.records import Dataset
from tellapart.errors import DataError, some
from tellapart.evaluation.caption_files import match_ids, read_captions
from tellapart.files import Stored, digest_of

FORMAT = 1
# Longest name of a rater.
LONGEST_NAME = 60

# The aspects of UNKT's Table 7, with the question that is asked.
QUESTIONS = {
    "informativeness": "Which caption tells you more about this picture?",
    "relevance": "Which caption fits this picture better?",
    "fluency": "Which caption reads more as if a person had written it?",
}

# What a rater chose: the caption on the left, none, or the one on the right.
Choice: TypeAlias = Literal["left", "tie", "right"]


class Item(Stored):
    """A picture, and what A and B say about it."""

    id: str
    a: str
    b: str

    @property
    def identical(self) -> bool:
        """Whether both captions are the same, up to spaces. That is a tie, and nobody is asked."""
        return self.a.split() == self.b.split()


class Trial(Stored):
    """A comparison of two systems; the first line of a file of answers.

    Attributes:
        names: of A and B, as the report calls them. Raters never see them.
        made_from: digest of the two caption files and the settings.
        seed: of orders and sides.
        secret: key of the raters' links; a new random one for each trial.
        items: the pictures.
    """

    format: int = FORMAT
    names: tuple[str, str]
    made_from: str
    seed: int
    secret: str
    items: tuple[Item, ...]

    def asked(self, rater: str) -> list[int]:
        """Places in `items` of the pictures to show, in this rater's order; identical captions are left out."""
        asked = [place for place, item in enumerate(self.items) if not item.identical]
        return sorted(asked, key=lambda place: self._chance("order", rater, self.items[place].id))

    def a_is_left(self, rater: str, item: str) -> bool:
        """Whether A's caption of this picture is on the left for this rater."""
        return self._chance("side", rater, item)[0] % 2 == 0

    def winner(self, rater: str, item: str, choice: Choice) -> Literal["a", "tie", "b"]:
        """Whose caption a rater chose."""
        if choice == "tie":
            return "tie"
        return "a" if (choice == "left") == self.a_is_left(rater, item) else "b"

    def link_key(self, rater: str) -> str:
        """What a rater's own link contains instead of the name."""
        return hmac.digest(self.secret.encode("ascii"), rater_key(rater).encode("utf-8"), "sha256").hex()[:24]

    @property
    def public_id(self) -> str:
        """Tells this trial from others, without anything of its key."""
        return digest_of(["trial", self.secret])[:16]

    def _chance(self, what: str, rater: str, item: str) -> bytes:
        # A digest, not a random generator: files of answers must mean the same in every later version.
        parts = "\0".join([str(self.seed), what, rater_key(rater), item])
        return hashlib.sha256(parts.encode("utf-8")).digest()


def rater_name(name: str) -> str:
    """A rater's name as it is written down: one line without spaces at its ends; a `DataError` if it is no name.

    >>> rater_name("  Anna  Maria ")
    'Anna Maria'
    """
    clean = " ".join(unicodedata.normalize("NFC", name).split())
    if not clean or len(clean) > LONGEST_NAME or not clean.isprintable():
        raise DataError(f"a rater's name has 1 to {LONGEST_NAME} letters; choose another one")
    return clean


def rater_key(name: str) -> str:
    """What makes two names the same rater: `anna` is `Anna`."""
    return rater_name(name).casefold()


def new_trial(
    a: tuple[str, Path],
    b: tuple[str, Path],
    dataset: Dataset,
    count: int | None = None,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Trial:
    """Match two caption files with pictures; what cannot be judged is left out, with a message.

    Args:
        a, b: name and file of each; of several captions of a picture the first counts.
        dataset: has the pictures.
        count: judge so many, drawn at random; by default all.
        seed: of the draw, the orders and the sides.
        on_progress: called with the pictures that were opened, and how many there are.
    """
    said = {place: _captions_by_record(path, dataset) for place, (_, path) in (("a", a), ("b", b))}
    both = [record for record in dataset if all(record.id in captions for captions in said.values())]
    if not both:
        raise DataError(
            f"{a[1]} and {b[1]}: no picture of {dataset.root} has a caption in both; check the files and --images"
        )
    for (_, path), captions in zip((a, b), said.values(), strict=True):
        alone = len(captions) - len(both)
        if alone:
            print(f"{path}: {alone:,} of its captions are left out, since the other file has none", file=sys.stderr)
    drawn = sorted(both, key=lambda record: hashlib.sha256(f"{seed}\0draw\0{record.id}".encode()).digest())
    items: list[Item] = []
    broken: list[str] = []
    wanted = len(drawn) if count is None else count
    for record in drawn:
        if len(items) == wanted:
            break
        try:
            load_image(dataset.path(record), at_least=64)
        except DataError as error:
            broken.append(str(error))
            continue
        items.append(Item(id=record.id, a=said["a"][record.id], b=said["b"][record.id]))
        if on_progress is not None:
            on_progress(len(items), min(wanted, len(drawn)))
    for reason in broken:
        print(f"left out: {reason}", file=sys.stderr)
    if all(item.identical for item in items):
        raise DataError(
            f"{a[1]} and {b[1]}: no two captions differ, or no picture can be read; there is nothing to judge"
        )
    return Trial(
        names=(a[0], b[0]),
        made_from=made_from(a[1], b[1], count, seed),
        seed=seed,
        secret=secrets.token_hex(16),
        items=tuple(items),
    )


def made_from(a: Path, b: Path, count: int | None, seed: int) -> str:
    """Digest of what a trial is made from: the captions, not the names of their files."""
    return digest_of([FORMAT, read_captions(a, ragged=True), read_captions(b, ragged=True), count, seed])


def _captions_by_record(path: Path, dataset: Dataset) -> dict[str, str]:
    """The first caption of each picture that the data set has."""
    captions = read_captions(path, ragged=True)
    try:
        record_of = match_ids(captions, dataset.records)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    unknown = [id for id in captions if id not in record_of]
    if unknown:
        print(f"{path}: {len(unknown):,} ids are no picture of {dataset.root} ({some(unknown)})", file=sys.stderr)
    blank = [id for id, texts in captions.items() if not texts[0].strip()]
    if blank:
        raise DataError(f"{path}: '{blank[0]}' has a blank caption; give it one or leave it out")
    return {record_of[id]: " ".join(texts[0].split()) for id, texts in captions.items() if id in record_of}


def names_of(files: Sequence[str]) -> list[tuple[str, Path]]:
    """Name and path of files given as FILE or NAME=FILE; without a name, the file's own without its ending.

    >>> names_of(["MLE=runs/a/captions.jsonl", "cl.jsonl"])
    [('MLE', PosixPath('runs/a/captions.jsonl')), ('cl', PosixPath('cl.jsonl'))]
    >>> names_of(["mle/captions.jsonl", "cl/captions.jsonl"])
    [('mle/captions', PosixPath('mle/captions.jsonl')), ('cl/captions', PosixPath('cl/captions.jsonl'))]
    """
    named = []
    for given in files:
        name, equals, path = given.partition("=")
        own = not equals or not name or Path(given).exists()
        named.append((Path(given).stem, Path(given)) if own else (name, Path(path)))
    if len({name for name, _ in named}) < len(named):
        named = [
            (f"{path.parent.name}/{path.stem}" if name == path.stem and path.parent.name else name, path)
            for name, path in named
        ]
    if len({name for name, _ in named}) < len(named):
        raise DataError(f"'{named[0][0]}' would name both systems; write them as NAME=FILE")
    return named
