"""Retrieval entropy: how generic a caption is (UNKT, section 3.2).

A retriever turns a caption into a distribution over the images of a data set, by its similarities s_i with them:

    p_i = exp(s_i / τ) / Σ_j exp(s_j / τ),   H = −Σ_i p_i ln p_i = ln Z − Σ_i p_i s_i / τ

in nats. H is 0 if the caption finds one image, and ln(images) if it fits all of them equally well. `entropy_sums`
computes it.

A retriever remembers the captions it was trained on. So each caption is judged by the first of the given retrievers
that was not trained on it: two retrievers, each trained on one half of the images (`data.half`), judge all captions of
the training split (cross-fitting).

The image vectors and the entropies are kept in the folder of the retriever's run, those by a model folder in the cache
folder, and an interrupted call continues.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tellapart.data.blocks import open_blocks
from tellapart.data.halves import half_of
from tellapart.data.prepare import Prepared, prepare
from tellapart.data.settings import DataSettings
from tellapart.data.unlabelled import has_training_split
from tellapart.encoders.base import accelerator
from tellapart.errors import DataError, RunError
from tellapart.evaluation.entropy_sums import (
    TEMPERATURE,
    Entropies,
    EntropySums,
    vector_entropies,
)
from tellapart.evaluation.retrieval import AT_ONCE, Gallery, embed_rows
from tellapart.files import cache_folder, check_folder, digest_of
from tellapart.huggingface.hub import find_usable
from tellapart.models import model_digest, open_own_encoder
from tellapart.progress import OnProgress
from tellapart.recipe import Recipe
from tellapart.recipe_files import is_model_folder
from tellapart.retrievers.base import Raw, Retriever, inner_products, load_retriever, move
from tellapart.run import Run, open_run, read_state
from tellapart.shipped import find_model, shipped_name

# Captions, or images, in a block of a file.
BLOCK = 4096
# Version of the tables.
FORMAT = 1

Places = NDArray[np.int64]

# A retriever: a run or its folder, a model folder, `shipped/retriever`, or a folder of CLIP or SigLIP.
Named = Run | str | Path


@dataclass(frozen=True)
class RetrievalEntropy:
    """Retrieval entropies of the captions of a split, in record order, as `Gallery` lists them.

    Attributes:
        entropies: `[captions]`, in nats.
        judge: `[captions]`, the place of the retriever that judged each.
        seen: `[captions]`, whether that retriever was trained on it.
        judges: the retrievers.
    """

    entropies: Entropies
    judge: Places
    seen: NDArray[np.bool_]
    judges: Sequence[EntropyJudge]

    @property
    def gallery(self) -> Gallery:
        """The captions and their images."""
        return self.judges[0].gallery

    @property
    def images(self) -> int:
        """Number of images in the pool."""
        return len(self.judges[0].pool)

    @property
    def cross_fitted(self) -> bool:
        """Whether no caption was judged by a retriever that was trained on it."""
        return not self.seen.any()

    def percentiles(self) -> Entropies:
        """How generic each caption is, from 0 to 1: the share of captions with lower entropy, ties counted half.

        It is among captions of the same judge, because entropies of two retrievers are not on quite the same scale.
        """
        found = np.empty(len(self.entropies))
        for judge in np.unique(self.judge):
            own = self.judge == judge
            found[own] = percentiles_among(self.entropies[own], self.entropies[own])
        return found

    def of_others(self, captions: Sequence[str]) -> tuple[Entropies, Entropies]:
        """Entropies of anyone's captions, and their percentiles among those of the split: means over the retrievers.

        The percentiles are NaN if the split has no captions.

        Args:
            captions: any sentences; the retrievers should not have been trained on them.
        """
        entropies, percentiles = np.zeros(len(captions)), np.zeros(len(captions))
        # Without captions in the split all retrievers judge, and there are no percentiles.
        used = np.unique(self.judge) if len(self.judge) else range(len(self.judges))
        for judge in used:
            found = self.judges[judge].entropies(captions)
            entropies += found / len(used)
            own = self.entropies[self.judge == judge]
            percentiles += percentiles_among(found, own) / len(used) if len(own) else np.nan
        return entropies, percentiles


def percentiles_among(values: Entropies, others: Entropies) -> Entropies:
    """The share of `others` below each value, ties counted half.

    >>> percentiles_among(np.array([0.0, 2.0, 9.0]), np.array([1.0, 2.0])).tolist()
    [0.0, 0.75, 1.0]
    """
    ordered = np.sort(others)
    both = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    return np.asarray(both / (2 * len(ordered)))


def data_for(source: str, retriever: Named, store: str | None = None) -> DataSettings:
    """Settings of a data set for a retriever: those of its run, if that is the data set of its training.

    Args:
        source: as in `data.source`.
        retriever: a run has the folder for features; a model folder has none, so it is `prepared`.
        store: how features are kept, `float16` or `int8`; by default as in the run.
    """
    changes: dict[str, Any] = {} if store is None else {"store": store}
    run = _as_run(retriever)
    if run is None:
        return DataSettings(source=source, **changes)
    own = run.recipe.data.model_copy(update=changes)
    if source == own.source or ("scenes" not in (source, own.source) and _same_place(source, own.source)):
        return own
    return DataSettings(source=source, prepared=own.prepared, store=own.store, max_skipped=own.max_skipped)


def _same_place(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def caption_entropies(
    retrievers: Sequence[Named],
    data: DataSettings | None = None,
    split: str | None = None,
    *,
    temperature: float = TEMPERATURE,
    pool: int | None = None,
    folder: Path | None = None,
    on_progress: OnProgress | None = None,
) -> Entropies:
    """The retrieval entropy of every caption of a split, in record order; see `retrieval_entropy` for the arguments.

    Example:
        >>> caption_entropies(["runs/ranking-half-1", "runs/ranking-half-2"]).shape      # doctest: +SKIP
        (30000,)
    """
    return retrieval_entropy(
        retrievers, data, split, temperature=temperature, pool=pool, folder=folder, on_progress=on_progress
    ).entropies


def retrieval_entropy(
    retrievers: Sequence[Named],
    data: DataSettings | None = None,
    split: str | None = None,
    *,
    temperature: float = TEMPERATURE,
    pool: int | None = None,
    folder: Path | None = None,
    on_progress: OnProgress | None = None,
    captioned: bool = True,
) -> RetrievalEntropy:
    """Retrieval entropies of all captions of a split, each by the first retriever that was not trained on it.

    A caption that all were trained on is judged by the first, and `RetrievalEntropy.seen` says so.

    Args:
        retrievers: runs of retrievers, run or model folders, or `shipped/retriever`; for the captions they were trained
            on, two runs: one of each half.
        data: the data set; by default that of each run, a model folder has none. The encoder is each retriever's own,
            and a half is not taken.
        split: the captions and the images they are compared with; by default the training split, or of data without
            one, such as a folder, the test split.
        temperature: τ.
        pool: number of images to compare with, drawn from the split; by default all.
        folder: for the tables; by default the folder of each run. Those by a model folder, or in a folder that cannot
            be written, are in the cache folder.
        on_progress: called with the name of the work, the number done and the total.
        captioned: raise an error if no image of the split has a caption; otherwise there is nothing to measure but the
            captions of others (`RetrievalEntropy.of_others`).
    """
    judges = [EntropyJudge.open(one, data, split, temperature, pool, folder, on_progress) for one in retrievers]
    if not judges:
        raise RunError("retrieval entropy needs a retriever; give at least one, such as shipped/retriever")
    gallery = judges[0].gallery
    if captioned and not gallery.captions:
        judge = judges[0]
        raise DataError(
            f"{judge.prepared.dataset.name}: no image of the split '{judge.split}' has a caption; give captions to "
            "rate (--captions FILE), write those of photo.jpg into photo.txt, or take another split"
        )
    for judge in judges[1:]:
        if (judge.gallery.ids, judge.gallery.captions) != (gallery.ids, gallery.captions):
            raise RunError(f"{judge.folder}: its data has other captions than that of {judges[0].folder}")
    seen = np.stack([judge.seen for judge in judges])
    chosen = seen.argmin(axis=0)  # the first that has not seen it; the first of all if all have
    entropies = np.empty(len(chosen))
    for place, judge in enumerate(judges):
        own = np.flatnonzero(chosen == place)
        if len(own):
            entropies[own] = judge.kept_entropies([gallery.captions[caption] for caption in own])
    return RetrievalEntropy(entropies, chosen, seen[chosen, np.arange(len(chosen))], judges)


class EntropyJudge:
    """One retriever and the images it compares captions with; `open` makes one.

    Args:
        folder: of the retriever, a run or a model.
        name: of the retriever, for people.
        retriever: in eval mode.
        prepared: the data, with the features of the retriever's encoder.
        split, temperature, pool, tables, on_progress: as in `retrieval_entropy`, where `tables` is `folder`.

    Attributes:
        gallery: the captions of the split and their images.
        pool: rows of the images in the feature store.
        seen: `[captions]`, whether the retriever was trained on each caption of the split.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        retriever: Retriever,
        prepared: Prepared,
        split: str | None = None,
        temperature: float = TEMPERATURE,
        pool: int | None = None,
        tables: Path | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        if not temperature > 0:
            raise DataError(f"the temperature must be above 0, and it is {temperature}")
        prepared.store.check(prepared.dataset, retriever.encoder)
        self.folder, self.name, self.retriever = folder, name, retriever
        self.prepared, self.temperature = prepared, temperature
        self.split = split or ("train" if has_training_split(prepared.dataset) else "test")
        self.gallery = Gallery.of_split(prepared, self.split, captioned=False)
        self.pool = _pool(prepared, self.split, pool)
        self.seen = self._seen()
        self._tables = tables or _writable(folder)
        self._on_progress = on_progress

    @classmethod
    def open(
        cls,
        retriever: Named,
        data: DataSettings | None,
        split: str | None = None,
        temperature: float = TEMPERATURE,
        pool: int | None = None,
        folder: Path | None = None,
        on_progress: OnProgress | None = None,
    ) -> EntropyJudge:
        """See `retrieval_entropy` for the arguments."""
        run = _as_run(retriever)
        if run is not None:
            if run.recipe.trains != "retriever":
                raise RunError(f"{run.folder}: a captioner has no similarities; give the run of a retriever")
            place, name, model = run.folder, run.folder.name, run.retriever
        else:
            assert not isinstance(retriever, Run)
            named = find_model(retriever)
            place = find_usable(named, "retriever") if named.exists() else named
            name = shipped_name(place) or named.resolve().name
            model = load_retriever(place).to(accelerator() or "cpu")
        settings = data or (None if run is None else run.recipe.data)
        if settings is None:
            raise RunError(f"{name}: a model folder names no data set; give the data")
        encoder = open_own_encoder(model, place)
        settings = settings.model_copy(update={"encoder": encoder.identity.name, "half": None})
        prepared = prepare(settings, on_progress, encoder)
        return cls(place, name, model, prepared, split, temperature, pool, folder, on_progress)

    @property
    def trained_on(self) -> str | None:
        """What the card of a model says about its training data; `None` if it says nothing."""
        found = self.retriever.history.get("trained_on")
        return None if found is None else str(found)

    @property
    def is_run(self) -> bool:
        """Whether this is a run, of which it is known which captions it was trained on."""
        return (self.folder / "run.json").exists()

    def kept_entropies(self, captions: Sequence[str]) -> Entropies:
        """Entropies of these captions; kept in the folder and found again, and continued after an interruption."""
        made_from = {**self._made_from(), "captions": captions, "temperature": self.temperature}
        path = self._tables / f"retrieval-entropy-{digest_of(made_from)[:16]}"
        starts = range(0, len(captions), BLOCK)
        with open_blocks(path, made_from, (len(captions),), np.float64, starts) as blocks:
            if blocks.missing and self.retriever.has_index_vectors:
                _ = self._image_vectors  # now, so that the rate of what follows does not count it
            for number in list(blocks.missing):
                self._show("measuring retrieval entropy", blocks.done, len(captions))
                blocks.keep(number, self.entropies(captions[blocks.rows(number)]))
                self._show("measuring retrieval entropy", blocks.done, len(captions))
            return np.array(blocks.values())

    @torch.no_grad()
    def entropies(self, captions: Sequence[str]) -> Entropies:
        """Entropies of these captions over the pool."""
        retriever = self.retriever
        # By length, for little padding; the embeddings do not depend on it.
        order = np.array(sorted(range(len(captions)), key=lambda place: len(captions[place].split())), np.int64)
        parts = [order[start : start + AT_ONCE] for start in range(0, len(order), AT_ONCE)]
        embedded = (retriever.embed_texts([captions[place] for place in part]) for part in parts)
        found = np.empty(len(captions))
        if retriever.has_index_vectors:
            texts = [retriever.index_vectors(raw).float() for raw in embedded]
            if texts:
                found[order] = vector_entropies(self._image_vectors, torch.cat(texts), self.temperature)
            return found
        for part, raw in zip(parts, embedded, strict=True):
            sums = EntropySums(len(part), retriever.device)
            for images in self._raw_images:
                scores = retriever.similarity(move(images, retriever.device), raw)
                sums.add(scores.t().float() / self.temperature)
            found[part] = sums.entropies()
        return found

    @torch.no_grad()
    def first_images(self, captions: Sequence[str], count: int) -> list[list[str]]:
        """Ids of the images of the pool that fit each caption best, best first."""
        retriever = self.retriever
        raw = retriever.embed_texts(captions)
        if retriever.has_index_vectors:
            scores = inner_products(retriever.index_vectors(raw), self._image_vectors)
        else:
            parts = [retriever.similarity(move(images, retriever.device), raw) for images in self._raw_images]
            scores = torch.cat(parts).t()
        records = self.prepared.dataset.records
        best = scores.argsort(dim=1, descending=True, stable=True)[:, :count].tolist()
        return [[records[self.pool[place]].id for place in row] for row in best]

    @cached_property
    @torch.no_grad()
    def _image_vectors(self) -> torch.Tensor:
        """Index vectors of the pool, `[images, width]`; kept in the folder."""
        retriever = self.retriever

        def vectors(rows: slice) -> torch.Tensor:
            places = range(*rows.indices(len(self.pool)))[::AT_ONCE]
            ends = [min(start + AT_ONCE, rows.stop) for start in places]
            embedded = (self._embed_images(start, end) for start, end in zip(places, ends, strict=True))
            return torch.cat([retriever.index_vectors(raw).float().cpu() for raw in embedded])

        made_from, images = self._made_from(), len(self.pool)
        shape, starts = (images, vectors(slice(0, 1)).shape[1]), range(0, images, BLOCK)
        path = self._tables / f"image-vectors-{digest_of(made_from)[:16]}"
        with open_blocks(path, made_from, shape, np.float32, starts) as blocks:
            for number in list(blocks.missing):
                self._show("embedding images", blocks.done, images)
                blocks.keep(number, vectors(blocks.rows(number)).numpy())
                self._show("embedding images", blocks.done, images)
            return torch.from_numpy(np.array(blocks.values())).to(retriever.device)

    @cached_property
    @torch.no_grad()
    def _raw_images(self) -> list[Raw]:
        """Raw embeddings of the pool in parts, for a retriever that compares pair by pair."""
        starts = range(0, len(self.pool), AT_ONCE)
        return [move(self._embed_images(start, start + AT_ONCE), "cpu") for start in starts]

    def _embed_images(self, start: int, stop: int) -> Raw:
        return embed_rows(self.retriever, self.prepared.store, self.pool[start:stop])

    def _made_from(self) -> dict[str, Any]:
        """What decides the image vectors."""
        store = self.prepared.store
        mirrored = {} if store.mirrored is None else {"mirrored": True}
        return {
            "format": FORMAT,
            "retriever": [model_digest(self.folder), self.retriever.settings.model_dump(mode="json")],
            "images": [store.encoder.as_dict(), store.pictures_digest(self.pool), self.pool],
            **mirrored,
        }

    def _seen(self) -> NDArray[np.bool_]:
        """Whether the retriever, or the model it started from, was trained on each caption of the split.

        A model folder only names its data set, such as `coco (e173bd86)`. All training captions count as seen, also
        those of another version of a data set of this name.
        """
        dataset, gallery = self.prepared.dataset, self.gallery
        if not self.is_run:
            name, _, digest = (self.trained_on or "").rpartition(" (")
            same = name == dataset.name or digest.startswith(dataset.digest[:8])
            return np.full(len(gallery.captions), same and self.split == "train", np.bool_)
        trainings = _trainings(self.folder, dataset.digest) if self.split == "train" else []
        records = [dataset.records[dataset.row(id)] for id in gallery.ids]
        seen = [
            any(data.half is None or half_of(record, data.half_seed) == data.half for data in trainings)
            for record in records
        ]
        return np.array(seen, np.bool_)[gallery.image_of_caption]

    def _show(self, what: str, done: int, of: int) -> None:
        if self._on_progress is not None:
            self._on_progress(f"{what} with {self.name}", done, of)


def _trainings(folder: Path, dataset: str) -> list[DataSettings]:
    """What a run, and the runs it started from as far as they are there, were trained on of this data set."""
    found = []
    while (folder / "run.json").exists():
        recipe = Recipe.load(folder)
        if recipe.training.steps != 0 and read_state(folder).made_from.get("data") == dataset:
            found.append(recipe.data)
        if recipe.start is None:
            break
        folder = Path(recipe.start.places[0])
    return found


def _pool(prepared: Prepared, split: str, images: int | None) -> list[int]:
    """Rows of the images to compare with, in record order: all of the split, or so many by the digests of their ids."""
    ids = [record.id for record in prepared.dataset.split(split)]
    if images is not None:
        if not 0 < images <= len(ids):
            raise DataError(f"a pool of {images} images cannot be drawn from {len(ids)}; choose another --pool")
        drawn = set(sorted(ids, key=lambda id: digest_of(["pool", id]))[:images])
        ids = [id for id in ids if id in drawn]
    return [prepared.dataset.row(id) for id in ids]


def _as_run(retriever: Named) -> Run | None:
    """The run of a retriever; `None` if it is a model folder."""
    if isinstance(retriever, Run):
        return retriever
    folder = find_model(retriever)
    return open_run(folder) if (folder / "recipe.yaml").exists() else None


def _writable(folder: Path) -> Path:
    """This run folder; the cache folder for a model folder, and if files cannot be written here."""
    in_cache = cache_folder() / "retrieval-entropy"
    if is_model_folder(folder):
        return in_cache
    try:
        check_folder(folder)
    except DataError:
        return in_cache
    return folder
