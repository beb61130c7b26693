"""What the thread of the models does: captions with their words, vectors, and telling pictures apart."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from tellapart.data.rows import pooled_of
from tellapart.decoding.search import decode
from tellapart.describing import Describer
from tellapart.encoders.base import ImageEncoder
from tellapart.files import digest_of
from tellapart.index.base import Vector
from tellapart.index.photos import PhotoIndex
from tellapart.index.retriever import Reader
from tellapart.serve.pictures import Opened
from tellapart.serve.uploads import Upload
from tellapart.shipped import find_model, shipped_name
from tellapart.telling_apart.candidates import Task
from tellapart.telling_apart.groups import others_nearest_first, unit_vectors
from tellapart.telling_apart.scoring import Scorer
from tellapart.telling_apart.settings import TellApartSettings
from tellapart.telling_apart.tell import Told, tell_tasks
from tellapart.telling_apart.words import without_shared, words_of
from tellapart.text import UNKNOWN

Features = NDArray[np.float32]


@dataclass(frozen=True)
class WordRead:
    """A word of a caption for a picture.

    Attributes:
        word: as it was written.
        log_probability: ln p(word | words before, picture).
        attention: over the grid of regions, row by row; `None` for captioners without it.
        known: false for a word that the captioner does not know.
        distinguishing: whether it tells the picture from others.
    """

    word: str
    log_probability: float
    attention: list[float] | None
    known: bool = True
    distinguishing: bool = False


@dataclass(frozen=True)
class CaptionRead:
    """A caption for a picture: ln p(caption | picture), with the end of the caption, and its words."""

    log_probability: float
    words: list[WordRead]


@dataclass(frozen=True)
class Captioned:
    """An upload with its caption."""

    upload: Upload
    log_probability: float
    words: list[WordRead]


@dataclass(frozen=True)
class ToldUpload:
    """The captions of a picture among those of its group, with their words."""

    told: Told
    of: int
    plain_words: list[WordRead]
    words: list[WordRead]


class Group:
    """Uploads to tell apart from each other and from distractors of the collection.

    Args:
        models: the models.
        uploads: the pictures to caption.
        distractors: features of others, for the captioner and for the retriever.
        settings: how they are told apart.
    """

    def __init__(
        self,
        models: Models,
        uploads: Sequence[Upload],
        distractors: Sequence[tuple[Features, Features]],
        settings: TellApartSettings,
    ) -> None:
        self.models, self.uploads, self.settings = models, uploads, settings
        self._features = [one.features for one in uploads] + [own for own, _ in distractors]
        self._retriever_features = [one.retriever_features for one in uploads] + [other for _, other in distractors]

    @cached_property
    def features(self) -> torch.Tensor:
        return self.models.tensor(self._features)

    @cached_property
    def scorer(self) -> Scorer:
        models = self.models
        features = models.tensor(self._retriever_features)
        return Scorer(models.describer.captioner, self.features, models.reader.retriever, features)

    @cached_property
    def tasks(self) -> list[Task]:
        unit = unit_vectors(self.models.pooled(self._features))
        whole = range(len(self._features))
        return [Task(place, tuple(others_nearest_first(unit, whole, place))) for place in range(len(self.uploads))]


@dataclass(frozen=True)
class Member:
    """A picture of a group."""

    group: Group
    place: int


class Models:
    """The captioner and the retriever, with one image encoder each or one for both.

    Args:
        models: the captioner's folders.
        retriever: the retriever's folder; by default that of the index, or the shipped one.
        index: the collection.
    """

    def __init__(self, models: Sequence[Path], retriever: Path | None = None, index: PhotoIndex | None = None) -> None:
        self.describer = Describer(list(models))
        self.reader = index.reader if index is not None else Reader(find_model(retriever or "shipped/retriever"))
        own = self.describer.encoder
        other = own if self.reader.retriever.encoder == own.identity else self.reader.encoder
        self.encoders: tuple[ImageEncoder, ...] = (own,) if other is own else (own, other)
        captioner = self.describer.captioner
        regions = captioner.encoder.regions - captioner.encoder.class_token
        side = math.isqrt(regions)
        self.grid = (side, side) if side * side == regions else None

    def tensor(self, features: Sequence[Features]) -> torch.Tensor:
        return torch.from_numpy(np.stack(features)).to(self.describer.captioner.device)

    def pooled(self, features: Sequence[Features]) -> Features:
        """One vector for each picture, by which similar ones are grouped; from the captioner's features."""
        return pooled_of(np.stack(features), self.describer.encoder.identity.class_token)

    def about(self) -> dict[str, dict[str, Any]]:
        """What the models are, without the folders they are in."""
        captioner, retriever = self.describer.captioner, self.reader.retriever
        return {
            "captioner": {
                "name": captioner.name,
                "encoder": captioner.encoder.name,
                "models": len(self.describer.models),
                "shipped": all(shipped_name(folder) for folder in self.describer.models),
            },
            "retriever": {
                "name": retriever.name,
                "encoder": retriever.encoder.name,
                "models": 1,
                "shipped": shipped_name(self.reader.folder) is not None,
            },
        }

    # --- kinds of work: a list of items gives a list of results -------------------------------------------------------

    def encode(self, squeezed: Sequence[tuple[Image.Image, ...]]) -> list[tuple[Features, Features]]:
        """Features of pictures for the captioner and for the retriever."""
        grids = [encoder.encode([one[number] for one in squeezed]) for number, encoder in enumerate(self.encoders)]
        return list(zip(grids[0], grids[-1], strict=True))

    @torch.no_grad()
    def caption(self, asked: Sequence[tuple[Opened, bool]]) -> list[Captioned]:
        """Caption pictures; those that ask for it, with their words."""
        pictures = [picture for picture, _ in asked]
        grids = self.encode([one.squeezed for one in pictures])
        describer = self.describer
        several = decode(describer.captioner, self.tensor([own for own, _ in grids]), describer.decoding)
        captions = [one[0] for one in several]
        pairs = [(own, one.caption) for (own, _), one in zip(grids, captions, strict=True)]
        wanted = [pair for pair, (_, with_words) in zip(pairs, asked, strict=True) if with_words]
        read = iter(self.read_captions(wanted) if wanted else [])
        found = []
        for (picture, with_words), (own, other), caption in zip(asked, grids, captions, strict=True):
            own = own.copy()  # so that an upload does not keep the whole batch in memory
            other = own if len(self.encoders) == 1 else other.copy()
            seen = hashlib.sha256(picture.squeezed[0].tobytes()).digest()
            upload = Upload(picture.name, caption.caption, own, other, seen)
            found.append(Captioned(upload, caption.log_prob, next(read).words if with_words else []))
        return found

    @torch.no_grad()
    def read_captions(self, pairs: Sequence[tuple[Features, str]]) -> list[CaptionRead]:
        """Read captions, each for its own picture, word by word."""
        captioner = self.describer.captioner
        texts = [text for _, text in pairs]
        tokens = captioner.tokenize(texts)
        memory = captioner.encode(self.tensor([features for features, _ in pairs]))
        rows = torch.arange(len(pairs), device=tokens.device)
        scores = captioner.log_prob(memory, tokens, rows, per_token=True).double().cpu().numpy()
        attention = None
        if self.grid is not None:
            traced = captioner.traces(memory, tokens, rows).attention
            # The class token, the last region, has no place in the picture.
            attention = None if traced is None else traced[:, :, : math.prod(self.grid)].double().cpu().numpy()
        known = (tokens != UNKNOWN).cpu().numpy()
        found = []
        for row, (text, words) in enumerate(zip(texts, words_of(captioner, tokens), strict=True)):
            written = captioner.vocabulary.words(text)
            spelled = written if len(written) == len(words) else [word.text for word in words]
            read = [
                WordRead(
                    own,
                    float(scores[row, word.first : word.end].sum()),
                    None if attention is None else attention[row, word.first : word.end].mean(0).round(4).tolist(),
                    bool(known[row, word.first : word.end].all()),
                )
                for own, word in zip(spelled, words, strict=True)
            ]
            found.append(CaptionRead(float(scores[row].sum()), read))
        return found

    def read_texts(self, texts: Sequence[str]) -> list[Vector]:
        """Vectors of sentences."""
        return list(self.reader.read_texts(texts))

    def read_uploads(self, uploads: Sequence[Upload]) -> list[Vector]:
        """Vectors of uploads, from their features as an index keeps them; they are kept with the uploads."""
        features = np.stack([one.retriever_features for one in uploads]).astype(np.float16).astype(np.float32)
        vectors = list(self.reader.read_features(features))
        for one, vector in zip(uploads, vectors, strict=True):
            one.vector = vector.copy()
        return vectors

    @torch.no_grad()
    def tell(self, members: Sequence[Member]) -> list[ToldUpload]:
        """Caption pictures so that each can be told from the others of its group."""
        found: list[ToldUpload | None] = [None] * len(members)
        for group in dict.fromkeys(member.group for member in members):
            places = [place for place, member in enumerate(members) if member.group is group]
            for place, told in zip(places, _tell(group, [members[place].place for place in places]), strict=True):
                found[place] = told
        return [one for one in found if one is not None]


def _tell(group: Group, places: Sequence[int]) -> list[ToldUpload]:
    """Tell some pictures of a group apart from all others of it."""
    models, tasks = group.models, [group.tasks[place] for place in places]
    uploads = [group.uploads[place] for place in places]
    # As the command does: the same picture has the same samples in any group.
    numbers = [int(digest_of(one.name)[:8], 16) for one in uploads]
    told = tell_tasks(group.scorer, group.features, tasks, group.settings, models.describer.decoding, numbers)
    plain = models.read_captions([(one.features, each.plain.text) for one, each in zip(uploads, told, strict=True)])
    best = models.read_captions([(one.features, each.best.text) for one, each in zip(uploads, told, strict=True)])
    in_plain = group.scorer.distinguishing_words(tasks, [one.plain.text for one in told], group.settings)
    return [
        ToldUpload(one, 1 + len(task.others), mark(plain_read.words, marked), mark(best_read.words, one.words))
        for task, one, plain_read, best_read, marked in zip(tasks, told, plain, best, in_plain, strict=True)
    ]


def without_shared_marks(told: Sequence[ToldUpload]) -> list[ToldUpload]:
    """The pictures of a group, without the marks of words that all its captions have: they tell nothing apart."""
    plain = without_shared([one.told.plain.text for one in told], [_marked(one.plain_words) for one in told])
    best = without_shared([one.told.best.text for one in told], [_marked(one.words) for one in told])
    return [
        replace(one, plain_words=mark(one.plain_words, in_plain), words=mark(one.words, in_best))
        for one, in_plain, in_best in zip(told, plain, best, strict=True)
    ]


def _marked(words: Sequence[WordRead]) -> list[str]:
    return [word.word for word in words if word.distinguishing]


def mark(words: Sequence[WordRead], distinguishing: Sequence[str]) -> list[WordRead]:
    """Words, those that tell a picture apart marked."""
    return [replace(word, distinguishing=word.word in distinguishing) for word in words]
