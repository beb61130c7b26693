"""From a data source to records and their features, done once and found again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tellapart import registry
from tellapart.data.features import FeatureStore, write_store
from tellapart.data.readers import read_dataset
from tellapart.data.records import Dataset
from tellapart.recipe import DataSettings

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Prepared:
    """Records and their features, row for row."""

    dataset: Dataset
    store: FeatureStore
    folder: Path


def prepare(settings: DataSettings, on_progress: OnProgress | None = None) -> Prepared:
    """Read (or render) the data, encode its images, or find what an earlier call has made.

    Args:
        settings: the recipe's `data` section.
        on_progress: called with what is being done, how many are done, and of how many.
    """

    def report(what: str) -> Callable[[int, int], None]:
        return lambda done, of: on_progress(what, done, of) if on_progress is not None else None

    root = Path(settings.prepared)
    dataset = open_dataset(settings, report("rendering scenes"))
    encoder = registry.find("encoder", settings.encoder)()
    folder = root / f"{dataset.name}-{dataset.digest[:8]}" / settings.encoder
    return Prepared(dataset, write_store(folder, dataset, encoder, report("encoding images")), folder)


def open_dataset(settings: DataSettings, on_progress: Callable[[int, int], None] | None = None) -> Dataset:
    """The records alone."""
    if settings.source != "scenes":
        return read_dataset(Path(settings.source))
    from tellapart.data.scenes import VERSION, write_scenes

    sizes = settings.scenes
    name = f"scenes-v{VERSION}-{sizes.train}-{sizes.val}-{sizes.test}-seed{sizes.seed}"
    path = write_scenes(
        Path(settings.prepared) / name, sizes.train, sizes.val, sizes.test, sizes.seed, on_progress=on_progress
    )
    return read_dataset(path)
