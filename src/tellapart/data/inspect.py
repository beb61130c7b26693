"""Inspect a data set before it is used: counts, captions, missing and broken pictures."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import fmean

from tellapart.data.images import image_bytes, load_image
from tellapart.data.records import SPLITS, Dataset, Record
from tellapart.errors import DataError
from tellapart.text import plain_words

THREADS = 4
QUANTILES = (5, 25, 50, 75, 95)

# Pictures are decoded at this size, which finds the same errors as full size and is faster.
DECODE_AT = 64


@dataclass(frozen=True)
class Published:
    """Published split sizes of a data set (train, val, test); None for a split that is not published."""

    name: str
    sizes: tuple[int, int, int | None]


# Key: part of the data set's name.
PUBLISHED = {
    "flickr8k": (Published("Flickr8k's own lists, Karpathy", (6_000, 1_000, 1_000)),),
    "flickr30k": (
        Published("Karpathy", (29_000, 1_014, 1_000)),
        Published("CODER", (29_783, 1_000, 1_000)),
    ),
    "coco": (
        Published("Karpathy", (113_287, 5_000, 5_000)),
        Published("CODER", (113_287, 1_000, 5_000)),
        Published("m-RNN, UNKT", (118_287, 4_000, 1_000)),
        Published("CL (122,585 in all)", (120_585, 2_000, None)),
        Published("COCO 2014", (82_783, 40_504, None)),
        Published("COCO 2017", (118_287, 5_000, None)),
    ),
    "instapic": (Published("CL (648,761 with validation)", (646_761, 2_000, 5_000)),),
}


@dataclass(frozen=True)
class Inspection:
    """The result of `inspect_dataset`. The last three are None if pictures were not checked.

    Attributes:
        images: number of images in each non-empty split.
        captions: number of captions in each of these splits.
        left_out: number of captioned images that the source puts in no split.
        captions_per_image: minimum, mean and maximum.
        words: words per caption (without punctuation): mean, quantiles in per cent, maximum; None without captions.
        repeated_captions: number of captions that are equal to an earlier one.
        sample: three captions from across the set, with the ids of their images.
        published: the published split sizes for this name, and whether this data set has them.
        missing: ids of images whose file does not exist.
        broken: ids of images that cannot be decoded, and why.
        identical: groups of ids whose files have the same bytes.
    """

    name: str
    images: dict[str, int]
    captions: dict[str, int]
    left_out: int
    captions_per_image: tuple[int, float, int]
    words: tuple[float, dict[int, int], int] | None
    repeated_captions: int
    sample: tuple[tuple[str, str], ...]
    published: tuple[tuple[Published, bool], ...]
    missing: tuple[str, ...] | None = None
    broken: tuple[tuple[str, str], ...] | None = None
    identical: tuple[tuple[str, ...], ...] | None = None


def inspect_dataset(
    dataset: Dataset, images: bool = True, on_progress: Callable[[int, int], None] | None = None
) -> Inspection:
    """Inspect a data set.

    Args:
        dataset: the data set.
        images: also decode every picture.
        on_progress: called with the pictures done and the number of pictures.

    Example:
        >>> inspect_dataset(read_dataset(Path("dataset_flickr8k.json"))).images      # doctest: +SKIP
        {'train': 6000, 'val': 1000, 'test': 1000}
    """
    counts = Counter(record.split for record in dataset)
    captions: Counter[str] = Counter()
    for record in dataset:
        captions[record.split] += len(record.captions)
    numbers = [len(record.captions) for record in dataset]
    said = [(record.id, caption) for record in dataset for caption in record.captions]
    missing, broken, identical = _check_pictures(dataset, on_progress) if images else (None, None, None)
    return Inspection(
        name=dataset.name,
        images={split: counts[split] for split in SPLITS if split in counts},
        captions={split: captions[split] for split in SPLITS if split in counts},
        left_out=dataset.left_out,
        captions_per_image=(min(numbers), fmean(numbers), max(numbers)) if numbers else (0, 0.0, 0),
        words=_words([caption for _, caption in said]),
        repeated_captions=len(said) - len({caption for _, caption in said}),
        sample=tuple(said[place] for place in sorted({0, len(said) // 2, len(said) - 1}) if said),
        published=_published(dataset.name, counts),
        missing=missing,
        broken=broken,
        identical=identical,
    )


def _words(captions: Sequence[str]) -> tuple[float, dict[int, int], int] | None:
    if not captions:
        return None
    lengths = sorted(len(plain_words(caption)) for caption in captions)
    quantiles = {percent: lengths[(len(lengths) - 1) * percent // 100] for percent in QUANTILES}
    return fmean(lengths), quantiles, lengths[-1]


def _published(name: str, counts: Counter[str]) -> tuple[tuple[Published, bool], ...]:
    plain = name.lower().replace("-", "").replace("_", "")
    known = next((sets for word, sets in PUBLISHED.items() if word in plain), ())
    sizes = [counts[split] for split in SPLITS]
    return tuple(
        (one, all(size == (expected or 0) for size, expected in zip(sizes, one.sizes, strict=True))) for one in known
    )


def _check_pictures(
    dataset: Dataset, on_progress: Callable[[int, int], None] | None
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...], tuple[tuple[str, ...], ...]]:
    """Missing, broken and identical pictures."""
    missing: list[str] = []
    broken: list[tuple[str, str]] = []
    same: dict[bytes, list[str]] = {}

    def check(record: Record) -> tuple[bytes | None, str | None]:
        return _check_picture(dataset, record)

    with ThreadPoolExecutor(THREADS) as pool:
        for done, (record, (digest, wrong)) in enumerate(
            zip(dataset.records, pool.map(check, dataset.records), strict=True), start=1
        ):
            if digest is not None:
                same.setdefault(digest, []).append(record.id)
            if wrong is not None:
                broken.append((record.id, wrong))
            elif digest is None:
                missing.append(record.id)
            if on_progress is not None:
                on_progress(done, len(dataset))
    return tuple(missing), tuple(broken), tuple(tuple(ids) for ids in same.values() if len(ids) > 1)


def _check_picture(dataset: Dataset, record: Record) -> tuple[bytes | None, str | None]:
    """The digest of a picture's file (None if unreadable) and what is wrong with it; both are None if it is missing."""
    path = dataset.path(record)
    try:
        digest = hashlib.sha256(image_bytes(path)).digest()
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    except (OSError, DataError) as error:
        return None, str(error)
    try:
        load_image(path, at_least=DECODE_AT)
    except DataError as error:
        return digest, str(error)
    return digest, None


def describe(found: Inspection, most: int = 10) -> str:
    """An inspection as text; long lists are cut after `most` entries."""
    lines = [f"{found.name}: {sum(found.images.values()):,} images, {sum(found.captions.values()):,} captions"]
    lines += [
        f"  {split:5} {count:>9,} images {found.captions[split]:>9,} captions" for split, count in found.images.items()
    ]
    if found.left_out:
        lines.append(f"  {found.left_out:,} captioned images are in no split and left out")
    lines += _describe_published(found)
    least, mean, largest = found.captions_per_image
    lines.append(f"captions per image: {least} to {largest}, mean {mean:.2f}")
    if found.words is not None:
        mean, quantiles, largest = found.words
        shown = ", ".join(f"{length} ({percent} %)" for percent, length in quantiles.items())
        lines.append(f"words per caption: mean {mean:.1f}; {shown}; longest {largest}")
        lines.append(f"captions that repeat another: {found.repeated_captions:,}")
    if found.missing is None or found.broken is None or found.identical is None:
        lines.append("pictures: not checked")
    else:
        lines += _listed("missing pictures", found.missing, most)
        lines += _listed("broken pictures", [f"{id}: {wrong}" for id, wrong in found.broken], most)
        lines += _listed("identical pictures", [" = ".join(ids) for ids in found.identical], most)
    lines += [f"sample: {id}: {caption}" for id, caption in found.sample]
    return "\n".join(lines)


def _describe_published(found: Inspection) -> list[str]:
    same = [one.name for one, equal in found.published if equal]
    if same:
        return [f"  the published split sizes ({'; '.join(same)})"]
    lines = []
    for one, _ in found.published:
        sizes = " / ".join("–" if size is None else f"{size:,}" for size in one.sizes)
        lines.append(f"  not the published split sizes of {one.name}: {sizes}")
    return lines


def _listed(what: str, entries: Sequence[str], most: int) -> list[str]:
    lines = [f"{what}: {len(entries):,}", *(f"  {entry}" for entry in entries[:most])]
    return [*lines, f"  … and {len(entries) - most:,} more"] if len(entries) > most else lines
