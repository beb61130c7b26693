"""Turn a data source into records and features; both are made once and reused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tellapart.data.features import FeatureStore
from tellapart.data.halves import keep_half
from tellapart.data.parts import WHOLE, Part
from tellapart.data.readers import read_dataset
from tellapart.data.records import Dataset
from tellapart.data.settings import DataSettings
from tellapart.data.unlabelled import hold_out
from tellapart.data.write_features import write_store
from tellapart.encoders import open_encoder
from tellapart.encoders.base import ImageEncoder, MirroredEncoder, accelerator
from tellapart.errors import StoreError
from tellapart.progress import OnProgress, show_slow


@dataclass(frozen=True)
class Prepared:
    """A data set and its feature store: record r has row r."""

    dataset: Dataset
    store: FeatureStore
    folder: Path

    def pictures_digest(self, *splits: str) -> str:
        """Digest of the content of the pictures in these splits, by default of all pictures.

        It is the same after the files were touched, copied or moved.
        """
        if not splits:
            return self.store.pictures_digest()
        return self.store.pictures_digest([row for row, one in enumerate(self.dataset) if one.split in splits])


def prepare(
    settings: DataSettings,
    on_progress: OnProgress | None = None,
    encoder: ImageEncoder | None = None,
    dataset: Dataset | None = None,
) -> Prepared:
    """Read (or render) the data and encode its images, or reuse the result of an earlier call.

    Args:
        settings: the recipe's `data` section.
        on_progress: called with the name of the task, the number done and the total.
        encoder: computes the features; by default `settings.encoder`.
        dataset: the data set, if it has been read already.
    """
    prepared = prepare_part(settings, WHOLE, on_progress, encoder, dataset)
    assert prepared is not None, "no part can be missing when all are written"
    return prepared


def prepare_part(
    settings: DataSettings,
    part: Part,
    on_progress: OnProgress | None = None,
    encoder: ImageEncoder | None = None,
    dataset: Dataset | None = None,
) -> Prepared | None:
    """Like `prepare`, but encode only one part of the images; `None` while parts of other processes are missing."""

    def report(what: str) -> Callable[[int, int], None]:
        return lambda done, of: on_progress(what, done, of) if on_progress is not None else None

    # First, since a mistake in its name should not wait for a large data set to be read.
    encoder = encoder or open_encoder(settings.encoder, device=accelerator())
    dataset = dataset or show_slow(
        on_progress,
        "reading captions",
        lambda: open_dataset(settings, report("rendering scenes")),
        lambda read: sum(len(record.captions) for record in read.records),
    )
    kept = encoder.identity.folder + ("" if settings.store == "float16" else f"-{settings.store}")
    folder = Path(settings.prepared) / f"{dataset.name}-{dataset.digest[:8]}" / kept

    read = dataset

    def write(folder: Path, encoder: ImageEncoder, what: str) -> FeatureStore | None:
        return write_store(
            folder,
            read,
            encoder,
            part=part,
            max_skipped=settings.max_skipped,
            kind=settings.store,
            on_progress=report(what),
        )

    store = write(folder, encoder, "encoding images")
    if settings.mirrored:
        mirrored = write(folder / "mirrored", MirroredEncoder(encoder), "encoding mirrored images")
        if store is None or mirrored is None:
            return None
        _add_mirrored(store, mirrored, dataset)
    if store is None:
        return None
    dataset = replace(dataset, skipped=store.skipped)
    if settings.half is not None:
        dataset = keep_half(dataset, settings.half, settings.half_seed)
    return Prepared(dataset, store, folder)


def _add_mirrored(store: FeatureStore, mirrored: FeatureStore, dataset: Dataset) -> None:
    """Give a store its mirrored pictures. A picture that could not be read for one of the two is skipped."""
    store.skipped |= mirrored.skipped
    differs = (store.pictures["content"] != mirrored.pictures["content"]).any(axis=1)
    for row in differs.nonzero()[0].tolist():
        if dataset.records[row].id not in store.skipped:
            raise StoreError(
                f"{dataset.path(dataset.records[row])}: this picture has changed after it was encoded; "
                "if it is missing, restore it, and run the same command again"
            )
    store.mirrored = mirrored


def open_dataset(settings: DataSettings, on_progress: Callable[[int, int], None] | None = None) -> Dataset:
    """Read (or render) the data set, without features."""
    if settings.source != "scenes":
        dataset = read_dataset(Path(settings.source))
        return dataset if settings.held_out is None else hold_out(dataset, settings.held_out)
    from tellapart.data.scenes import VERSION, write_scenes

    sizes = settings.scenes
    name = f"scenes-v{VERSION}-{sizes.train}-{sizes.val}-{sizes.test}-seed{sizes.seed}"
    path = write_scenes(
        Path(settings.prepared) / name, sizes.train, sizes.val, sizes.test, sizes.seed, on_progress=on_progress
    )
    return read_dataset(path)
