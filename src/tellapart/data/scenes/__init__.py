"""The embedded data set: drawn scenes with five captions each, many of them near-duplicates.

About half of the scenes are single; the others form families of two to four that differ from the family's first scene
in exactly one attribute. Everything is determined by (`VERSION`, seed, split, number).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tellapart.data.scenes.chance import likely, pick, seeded
from tellapart.data.scenes.drawing import render
from tellapart.data.scenes.grammar import write_captions
from tellapart.data.scenes.world import Group, Scene, content, sample_scene, sample_variant
from tellapart.encoders.base import usable_cores
from tellapart.errors import DataError
from tellapart.files import Stored, check_output, lock, read_model, temporary_path, write_text

__all__ = [
    "VERSION",
    "Group",
    "Scene",
    "SceneRecord",
    "make_scenes",
    "render",
    "scenes_digest",
    "write_scenes",
]

VERSION = 1
# A family has three scenes on average, so one family per three single scenes makes half of the scenes related.
FAMILY_SHARE = 0.25
FAMILY_SIZES = (2, 3, 4)


@dataclass(frozen=True)
class SceneRecord:
    id: str
    split: str
    family: str
    varies: str | None
    """The attribute that differs from the family's first scene; None for that one and for single scenes."""
    scene: Scene
    captions: tuple[str, ...]


class _SceneFile(Stored):
    """`dataset.json` of rendered scenes, besides what a reader of Karpathy's layout checks."""

    digest: str


def make_scenes(train: int, val: int, test: int, seed: int = 0) -> list[SceneRecord]:
    """Make scenes for each split; no family and no content is in two splits."""
    seen: set[object] = set()
    # Test scenes are made first, so that they do not depend on the number of training scenes.
    splits = {
        split: make_split(split, many, seed, seen) for split, many in (("test", test), ("val", val), ("train", train))
    }
    return [*splits["train"], *splits["val"], *splits["test"]]


def make_split(split: str, many: int, seed: int, seen: set[object]) -> list[SceneRecord]:
    """`seen` has the contents of all scenes made so far; the new ones are added."""
    records: list[SceneRecord] = []
    number = 0
    while len(records) < many:
        family = f"{split}-family-{number:05d}"
        for varies, scene in make_family(f"{VERSION}/{seed}/{family}", seen)[: many - len(records)]:
            id = f"{split}-{len(records):05d}"
            captions = write_captions(seeded(VERSION, seed, id, "captions"), scene)
            records.append(SceneRecord(id, split, family, varies, scene, captions))
        number += 1
    return records


def make_family(name: str, seen: set[object]) -> list[tuple[str | None, Scene]]:
    rng = seeded(name)
    base = sample_scene(rng)
    while content(base) in seen:
        base = sample_scene(rng)
    seen.add(content(base))
    family: list[tuple[str | None, Scene]] = [(None, base)]
    size = pick(rng, FAMILY_SIZES) if likely(rng, FAMILY_SHARE) else 1
    while len(family) < size:
        found = sample_variant(rng, base, lambda scene: content(scene) not in seen)
        if found is None:
            break
        seen.add(content(found[1]))
        family.append(found)
    return family


def scenes_digest(records: Sequence[SceneRecord]) -> str:
    """Identifies the data set: equal digests mean equal scenes, captions, families and splits."""
    data = {"version": VERSION, "records": [asdict(record) for record in records]}
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def write_scenes(
    folder: Path,
    train: int,
    val: int,
    test: int,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the scenes in Karpathy's layout; returns the path of `dataset.json`.

    An interrupted call can be repeated: finished images are kept, and `dataset.json` is written last. Several processes
    may write the same scenes at once.
    """
    records = make_scenes(train, val, test, seed)
    digest = scenes_digest(records)
    target = folder / "dataset.json"
    images = folder / "images"
    if not (images / ".digest").exists():
        check_output(target, "dataset", "digest", "images")
    if target.exists() and read_model(target, _SceneFile, "data set").digest == digest:
        return target
    with lock(folder / ".lock"):
        _keep_images_of(digest, images, target, records)
    # Pillow draws and compresses outside of Python's lock, so threads share the work.
    with ThreadPoolExecutor(usable_cores()) as pool:
        try:
            work = pool.map(lambda one: write_image(images / f"{one.id}.png", one.scene), records)
            for done, _ in enumerate(work, start=1):
                if on_progress is not None:
                    on_progress(done, len(records))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    data = {"dataset": f"scenes-v{VERSION}", "digest": digest, "images": karpathy_images(records)}
    write_text(target, json.dumps(data))
    return target


def _keep_images_of(digest: str, images: Path, target: Path, records: Sequence[SceneRecord]) -> None:
    """Remove images that an earlier call made for another digest, and their `dataset.json`."""
    mark = images / ".digest"
    made_for = mark.read_text(encoding="utf-8") if mark.exists() else None
    if made_for == digest:
        return
    found = [path for record in records if (path := images / f"{record.id}.png").exists()]
    if found and made_for is None:
        raise DataError(f"{found[0]}: exists and was not written by tellapart; choose another folder")
    target.unlink(missing_ok=True)
    for path in found:
        path.unlink()
    write_text(mark, digest)


def write_image(path: Path, scene: Scene) -> None:
    if path.exists():
        return
    temporary = temporary_path(path)
    try:
        render(scene).save(temporary, format="PNG", compress_level=1)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def karpathy_images(records: Sequence[SceneRecord]) -> list[dict[str, object]]:
    images: list[dict[str, object]] = []
    sentid = 0
    for imgid, record in enumerate(records):
        sentences: list[dict[str, object]] = []
        for caption in record.captions:
            tokens = re.findall(r"[a-z]+", caption.lower())
            sentences.append({"raw": caption, "tokens": tokens, "imgid": imgid, "sentid": sentid})
            sentid += 1
        images.append(
            {
                "filename": f"{record.id}.png",
                "filepath": "images",
                "imgid": imgid,
                "split": record.split,
                "family": record.family,
                "varies": record.varies,
                "sentids": [sentence["sentid"] for sentence in sentences],
                "sentences": sentences,
            }
        )
    return images
