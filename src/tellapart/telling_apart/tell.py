"""`tellapart.tell_apart`: group similar pictures, and caption each so that it can be told from the others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import TypeAdapter, ValidationError

from tellapart.captioners.base import load_captioner
from tellapart.captioning import expand_images
from tellapart.data.images import Picture, check_name, open_picture
from tellapart.data.rows import pooled_of
from tellapart.decoding.base import Decodable
from tellapart.decoding.ensemble import Ensemble
from tellapart.decoding.settings import DecodingSettings
from tellapart.describing import Models, own_decoding
from tellapart.encoders.base import ImageEncoder, accelerator
from tellapart.errors import DataError
from tellapart.files import Pieces, cache_folder, digest_of, digest_of_file, read_json
from tellapart.huggingface.hub import find_usable
from tellapart.models import model_digest, open_own_encoder
from tellapart.progress import ProgressLine
from tellapart.retrievers.base import Retriever, load_retriever
from tellapart.shipped import is_shipped
from tellapart.telling_apart.candidates import Candidate, Task, propose, read_candidates
from tellapart.telling_apart.endpoint import Endpoint
from tellapart.telling_apart.groups import group_alike, others_nearest_first, unit_vectors
from tellapart.telling_apart.scoring import Scorer, choose
from tellapart.telling_apart.settings import TellApartSettings
from tellapart.telling_apart.words import without_shared

# Pictures encoded at once, and pictures told apart at once; a group is never split over two blocks.
ENCODED, BLOCK = 64, 16

SHIPPED_RETRIEVER = "shipped/retriever"


@dataclass(frozen=True)
class ToldPicture:
    """A picture with its plain caption and the one that tells it apart.

    Attributes:
        id: its path; of a Pillow image its number, `picture 1`.
        group: number of its group, from 1.
        caption: the distinctive caption.
        words: its words that are likelier for this picture than for the others of its group, and that not all their
            captions have.
        rank: the picture's rank in its group for this caption, from 1.
        plain: the likeliest caption.
        plain_rank: the picture's rank for that one.
        of: number of pictures in the group.
        source: where the caption comes from: plain, beam, sample, contrast, guidance or given.
        same_as: id of an earlier picture with the same pixels, whose captions and ranks these are; else `None`. Both
            count as one in `of` and in the ranks.
    """

    id: str
    group: int
    caption: str
    words: list[str]
    rank: int
    plain: str
    plain_rank: int
    of: int
    source: str
    same_as: str | None = None

    def row(self) -> dict[str, Any]:
        """Plain data, for JSONL and tables."""
        return asdict(self)


@dataclass(frozen=True)
class ToldApart:
    """The result of `tell_apart`.

    Attributes:
        groups: groups of similar pictures, then pictures that are like no other.
        skipped: why pictures could not be read.
        ranked_by: what the ranks are from: `retriever` or `captioner`.
    """

    groups: list[list[ToldPicture]]
    skipped: list[str]
    ranked_by: Literal["retriever", "captioner"]

    @property
    def pictures(self) -> list[ToldPicture]:
        """All pictures, group by group."""
        return [picture for group in self.groups for picture in group]

    def write(self, path: str | Path) -> None:
        """Write a page (`.html`), JSONL or CSV, by the ending of the file; see docs/tell-apart.md."""
        from tellapart.telling_apart.output import write_told_apart

        write_told_apart(self, Path(path))


@torch.no_grad()
def tell_apart(
    images: Sequence[Picture],
    model: Models = "shipped",
    retriever: str | Path | None = SHIPPED_RETRIEVER,
    settings: TellApartSettings | None = None,
    *,
    candidates: str | Path | None = None,
    endpoint: Endpoint | None = None,
    on_skip: Callable[[DataError], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ToldApart:
    """Caption pictures so that each can be told from similar ones.

    Similar pictures are grouped. For each picture many candidate captions are made and scored: by fluency, by whether
    a listener picks the picture out of its group, and by whether each word fits the picture. docs/tell-apart.md has
    the equations. An interrupted call continues when it is made again.

    Args:
        images: image files, folders of them, or pictures of another kind (`tellapart.data.images.Picture`).
        model: a captioner's run or model folder; a list of them is an ensemble. By default the shipped one.
        retriever: a retriever's run or model folder, which judges the candidates and ranks the pictures. By default the
            shipped one. If there is none, or with `None`, the captioner's likelihood does both.
        settings: groups, candidates and weights.
        candidates: a file with more captions, whoever wrote them (JSONL rows with `image` and `captions`).
        endpoint: a server that gives more captions. The pictures are sent to it.
        on_skip: called with the error of each image that cannot be read; by default it is only listed in the result.
        on_progress: called with the numbers of pictures done and of all pictures.

    Example:
        >>> told = tellapart.tell_apart(["beach-1.jpg", "beach-2.jpg"], "runs/captioner")        # doctest: +SKIP
        >>> [(one.caption, one.words) for one in told.pictures]                                  # doctest: +SKIP
        [('two children with a red bucket on a beach', ['red', 'bucket']), ('a dog runs on a beach', ['dog', 'runs'])]
    """
    settings = settings or TellApartSettings()
    album = _Album(images)
    # Before the work: a mistake in the file is told at once.
    captions_of = dict(zip(album.ids, read_candidates(Path(candidates), album.ids), strict=True)) if candidates else {}
    models = _Models(model, retriever)
    skipped, pooled, first = _look(album, models.encoder, on_skip)
    if not album.pictures:
        reasons = "" if on_skip is not None else f": {'; '.join(skipped[:3])}"
        raise DataError(f"no image could be read{reasons}")
    given: list[list[str]] = [[] for _ in album.ids]
    for place, id in enumerate(album.ids):
        given[first[place]] += captions_of.get(id, [])
    unit = unit_vectors(pooled)
    # The same picture twice cannot be told apart: the first stands for both.
    whole = sorted(set(first))
    alike = (
        [list(range(len(whole)))]
        if settings.one_group
        else group_alike(unit[whole], settings.threshold, settings.group_size)
    )
    groups = [[whole[place] for place in group] for group in alike]
    groups.sort(key=lambda group: (len(group) == 1, group[0]))
    made_from = {
        "models": models.digest(),
        "settings": settings.model_dump(mode="json"),
        "given": given,
        "endpoint": None if endpoint is None else [endpoint.address, endpoint.model, endpoint.count],
        "groups": groups,
        "pictures": album.digests(),
    }
    pieces = Pieces(
        None if made_from["pictures"] is None else cache_folder() / "tell-apart" / digest_of(made_from)[:16]
    )
    told: list[list[ToldPicture]] = []
    for number, block in enumerate(_blocks(groups)):
        found = pieces.find(f"{number}", _read_piece)
        if found is None:
            if endpoint is not None:
                for place in (place for group in block if len(group) > 1 for place in group):
                    given[place] = [*given[place], *endpoint.captions(album.open(place))]
            rows = _tell_block(models, album, block, unit, settings, given, first=len(told) + 1)
            found = pieces.keep(f"{number}", {"groups": [[one.row() for one in group] for group in rows]})
        told += [[ToldPicture(**row) for row in group] for group in found["groups"]]
        if on_progress is not None:
            on_progress(sum(map(len, told)), len(whole))
    pieces.remove()
    return ToldApart(_with_copies(told, album.ids, first), skipped, models.ranked_by)


def _with_copies(
    told: Sequence[Sequence[ToldPicture]], ids: Sequence[str], first: Sequence[int]
) -> list[list[ToldPicture]]:
    """The groups with the pictures that are the same as another one, each after it."""
    copies: dict[str, list[str]] = {}
    for place, original in enumerate(first):
        if place != original:
            copies.setdefault(ids[original], []).append(ids[place])
    return [
        [row for one in group for row in (one, *(replace(one, id=id, same_as=one.id) for id in copies.get(one.id, [])))]
        for group in told
    ]


# --- pictures ---------------------------------------------------------------------------------------------------------


class _Album:
    """The pictures, opened when they are needed; those that cannot be read are dropped."""

    def __init__(self, images: Sequence[Picture]) -> None:
        if isinstance(images, str | Path):
            raise DataError(f"{images}: give a list of images, such as [{str(images)!r}]")
        self.pictures: list[Picture] = []
        for one in images:
            self.pictures += expand_images([one]) if isinstance(one, str | Path) else [one]
        if not self.pictures:
            raise DataError("no image was given; give image files or folders")
        # The same file twice cannot be told apart.
        named = {
            one if isinstance(one, Path) else f"picture {number}": one for number, one in enumerate(self.pictures, 1)
        }
        self.ids, self.pictures = list(map(str, named)), list(named.values())

    def open(self, place: int, at_least: int | None = None) -> Image.Image:
        picture = self.pictures[place]
        if isinstance(picture, Path):
            check_name(picture)
        return open_picture(picture, at_least, self.ids[place])

    def keep(self, places: Sequence[int]) -> None:
        """Drop all other pictures."""
        self.ids, self.pictures = [self.ids[place] for place in places], [self.pictures[place] for place in places]

    def digests(self) -> list[list[str]] | None:
        """Ids and digests of the files; `None` if a picture is not a file."""
        if not all(isinstance(one, Path) for one in self.pictures):
            return None
        return [[id, digest_of_file(Path(id))] for id in self.ids]


def _look(
    album: _Album, encoder: ImageEncoder, on_skip: Callable[[DataError], None] | None
) -> tuple[list[str], NDArray[np.float32], list[int]]:
    """Why pictures cannot be read; of the others pooled features, and the place of the first one of the same pixels."""
    line = ProgressLine("looking for similar pictures", " images")
    skipped: list[str] = []
    readable: list[int] = []
    pooled: list[NDArray[np.float32]] = []
    place_of: dict[bytes, int] = {}
    first: list[int] = []
    for start in range(0, len(album.ids), ENCODED):
        opened: list[Image.Image] = []
        for place in range(start, min(start + ENCODED, len(album.ids))):
            try:
                opened.append(encoder.squeeze(album.open(place, encoder.size)))
                seen = hashlib.sha256(opened[-1].tobytes()).digest()
                first.append(place_of.setdefault(seen, len(readable)))
                readable.append(place)
            except DataError as error:
                skipped.append(str(error))
                if on_skip is not None:
                    on_skip(error)
        if opened:
            pooled.append(pooled_of(encoder.encode(opened), encoder.identity.class_token))
        if readable:
            line.update(min(start + ENCODED, len(album.ids)), len(album.ids))
    album.keep(readable)
    return skipped, np.concatenate(pooled) if pooled else np.zeros((0, encoder.identity.width), np.float32), first


# --- models -----------------------------------------------------------------------------------------------------------


class _Models:
    """The captioner and the retriever with their encoders."""

    def __init__(self, model: Models, retriever: str | Path | None) -> None:
        device = accelerator() or "cpu"
        named = [model] if isinstance(model, str | Path) else model
        self.folders = [find_usable(one, "captioner") for one in named]
        captioners = [load_captioner(folder).to(device) for folder in self.folders]
        self.captioner: Decodable = captioners[0] if len(captioners) == 1 else Ensemble(captioners)
        self.decoding = own_decoding(self.folders)
        self.encoder = open_own_encoder(captioners[0], self.folders[0])
        self.retriever: Retriever | None = None
        self._retriever_encoder = self.encoder
        if retriever is not None and (retriever != SHIPPED_RETRIEVER or is_shipped(SHIPPED_RETRIEVER)):
            folder = find_usable(retriever, "retriever")
            self.retriever = load_retriever(folder).to(device)
            self.folders.append(folder)
            if self.retriever.encoder != self.captioner.encoder:
                self._retriever_encoder = open_own_encoder(self.retriever, folder)

    @property
    def ranked_by(self) -> Literal["retriever", "captioner"]:
        return "captioner" if self.retriever is None else "retriever"

    def digest(self) -> list[str]:
        """Identifies the weights and how plain captions are found."""
        return [*map(model_digest, self.folders), digest_of(self.decoding.model_dump(mode="json"))]

    def features(self, album: _Album, places: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Features of pictures for the captioner and for the retriever."""
        encoders = [self.encoder, *([] if self._retriever_encoder is self.encoder else [self._retriever_encoder])]
        side = max(encoder.size for encoder in encoders)
        parts: list[list[torch.Tensor]] = [[] for _ in encoders]
        for start in range(0, len(places), ENCODED):
            opened = [album.open(place, side) for place in places[start : start + ENCODED]]
            for encoder, part in zip(encoders, parts, strict=True):
                part.append(torch.from_numpy(encoder.encode([encoder.squeeze(one) for one in opened])))
        found = [torch.cat(part).to(self.captioner.device) for part in parts]
        return found[0], found[-1]


# --- blocks -----------------------------------------------------------------------------------------------------------


def _blocks(groups: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Groups with at least `BLOCK` pictures in all; the last block may have fewer."""
    block: list[list[int]] = []
    for group in groups:
        block.append(group)
        if sum(map(len, block)) >= BLOCK:
            yield block
            block = []
    if block:
        yield block


def _tell_block(
    models: _Models,
    album: _Album,
    groups: Sequence[Sequence[int]],
    unit: NDArray[np.float32],
    settings: TellApartSettings,
    given: Sequence[Sequence[str]],
    first: int,
) -> list[list[ToldPicture]]:
    """Tell the pictures of some groups apart; the first of them has the number `first`."""
    places = [place for group in groups for place in group]
    at = {place: number for number, place in enumerate(places)}
    features, retriever_features = models.features(album, places)
    scorer = Scorer(models.captioner, features, models.retriever, retriever_features)
    tasks = [
        Task(at[place], tuple(at[other] for other in others_nearest_first(unit, group, place)))
        for group in groups
        for place in group
    ]
    found: list[ToldPicture] = []
    numbers = [number for number, group in enumerate(groups, start=first) for _ in group]
    for part in _parts(tasks):
        told = tell_tasks(
            scorer,
            features,
            [tasks[row] for row in part],
            settings,
            models.decoding,
            # Samples depend on the name of a picture, not on the other pictures.
            numbers=[int(digest_of(album.ids[places[row]])[:8], 16) for row in part],
            given=[given[places[row]] if tasks[row].others else [] for row in part],
        )
        for row, one in zip(part, told, strict=True):
            found.append(
                ToldPicture(
                    id=album.ids[places[row]],
                    group=numbers[row],
                    caption=one.best.text,
                    words=one.words,
                    rank=one.rank,
                    plain=one.plain.text,
                    plain_rank=one.plain_rank,
                    of=1 + len(tasks[row].others),
                    source=one.best.source,
                )
            )
    rows = iter(found)
    return [_without_shared_words([next(rows) for _ in group]) for group in groups]


def _without_shared_words(group: Sequence[ToldPicture]) -> list[ToldPicture]:
    words = without_shared([one.caption for one in group], [one.words for one in group])
    return [replace(one, words=own) for one, own in zip(group, words, strict=True)]


@dataclass(frozen=True)
class Told:
    """The captions of a picture among its distractors, with its ranks for both and the words that tell it apart."""

    plain: Candidate
    plain_rank: int
    best: Candidate
    rank: int
    words: list[str]


def tell_tasks(
    scorer: Scorer,
    features: torch.Tensor,
    tasks: Sequence[Task],
    settings: TellApartSettings,
    decoding: DecodingSettings,
    numbers: Sequence[int],
    given: Sequence[Sequence[str]] = (),
) -> list[Told]:
    """Caption pictures so that each can be told from its distractors: see `propose` for the arguments.

    All tasks have distractors, or none has. A picture without any keeps its plain caption.
    """
    alone = not tasks[0].others
    own = settings.model_copy(update={"contrast": (), "guidance": (), "samples": 0}) if alone else settings
    candidates = propose(scorer.captioner, features, tasks, own, decoding, numbers, given)
    scores = scorer.score(tasks, candidates, own)
    plain = [scored[0].candidate for scored in scores]
    best = plain if alone else [choose(scored, own).candidate for scored in scores]
    pairs = list(zip(plain, best, strict=True))
    ranks = scorer.ranks(tasks, [[one.text for one in pair] for pair in pairs])
    words = scorer.distinguishing_words(tasks, [one.text for one in best], settings)
    return [
        Told(first, first_rank, chosen, rank, marked)
        for (first, chosen), (first_rank, rank), marked in zip(pairs, ranks, words, strict=True)
    ]


def _parts(tasks: Sequence[Task]) -> Iterator[range]:
    """Rows of at most `BLOCK` tasks in a row, all with distractors or all without."""
    start = 0
    for row in range(1, len(tasks) + 1):
        if row == len(tasks) or row - start == BLOCK or bool(tasks[row].others) != bool(tasks[start].others):
            yield range(start, row)
            start = row


_PIECE = TypeAdapter(dict[Literal["groups"], list[list[ToldPicture]]])


def _read_piece(path: Path) -> dict[str, Any]:
    """A finished block."""
    piece = read_json(path)
    try:
        _PIECE.validate_python(piece)
    except ValidationError as error:
        raise DataError(f"{path}: is damaged ({error.error_count()} mistakes)") from None
    found: dict[str, Any] = piece
    return found
