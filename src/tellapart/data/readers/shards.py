"""WebDataset shards: uncompressed tar files in which a picture and its text have the same name."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from tellapart.data.images import SUFFIXES
from tellapart.data.readers.checks import SPLIT_NAMES, caption_of, split_in_name
from tellapart.data.readers.folder import has_pictures
from tellapart.data.records import Dataset, Record
from tellapart.data.tar import member_bytes, tar_members
from tellapart.errors import DataError, quote
from tellapart.files import parse_json


def matches(source: Path) -> bool:
    if not source.is_dir():
        return source.suffix == ".tar" and source.exists()
    # A tar beside pictures is more likely a backup than the data set.
    return any(source.glob("*.tar")) and not has_pictures(source)


def read(source: Path) -> Dataset:
    """Read a `.tar`, or a folder of them in order of name: `000012.jpg` with `000012.txt` or `000012.json`.

    A `.txt` holds captions, one per line; a `.json` has `caption` or `captions`, and optionally `split`. Otherwise the
    split is inferred from the shard's name, or is `test`. Pictures stay packed: an image is `shard.tar/000012.jpg`.
    """
    if not source.is_dir():
        return Dataset(source.stem, source.parent, tuple(_read_shard(source)))
    records = [record for shard in sorted(source.glob("*.tar")) for record in _read_shard(shard)]
    return Dataset(source.resolve().name, source, tuple(records))


def _read_shard(shard: Path) -> list[Record]:
    samples: dict[str, dict[str, str]] = {}
    for name in tar_members(shard):
        path = PurePosixPath(name)
        stem, _, suffix = path.name.partition(".")
        if not stem:  # hidden files, which some systems add to archives
            continue
        kind = "image" if f".{suffix.lower()}" in SUFFIXES else suffix.lower()
        key = str(path.with_name(stem))
        members = samples.setdefault(key, {})
        if kind in members:
            raise DataError(f"{shard}: '{members[kind]}' and '{name}' are both the {kind} of '{key}'; keep one")
        members[kind] = name
    split = split_in_name(shard.name) or "test"
    records = [_record(shard, key, members, split) for key, members in samples.items() if _is_sample(members)]
    if not records:
        raise DataError(f"{shard}: no picture found; pictures end in {', '.join(sorted(SUFFIXES))}")
    return records


def _is_sample(members: dict[str, str]) -> bool:
    return not members.keys().isdisjoint(("image", "txt", "json"))


def _record(shard: Path, key: str, members: dict[str, str], split: str) -> Record:
    if "image" not in members:
        raise DataError(f"{shard}: '{key}' has a caption but no picture; add the picture or remove the caption")
    captions: list[str] = []
    if "json" in members:
        where = f"{shard}/{members['json']}"
        about = _parse(_text(shard, members["json"]), where)
        if "split" in about:
            named = about["split"]
            if not isinstance(named, str) or named not in SPLIT_NAMES:
                raise DataError(f"{where}: split is {quote(named)}; it must be one of {', '.join(SPLIT_NAMES)}")
            split = SPLIT_NAMES[named]
        said = about.get("captions", about.get("caption", []))
        # A .txt has the same captions; the .json beside it often has none.
        if "txt" not in members:
            captions = [caption_of(one, where) for one in (said if isinstance(said, list) else [said])]
    if "txt" in members:
        lines = [line.strip() for line in _text(shard, members["txt"]).split("\n")]
        captions = [line for line in lines if line] or [caption_of("", f"{shard}/{members['txt']}")]
    return Record(key, f"{shard.name}/{members['image']}", split, tuple(captions))


def _text(shard: Path, name: str) -> str:
    try:
        return member_bytes(shard, name).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{shard}/{name}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from None


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        content = parse_json(text)
    except ValueError as error:
        raise DataError(f"{where}: not valid JSON ({error}); fix or replace it") from None
    if not isinstance(content, dict):
        raise DataError(f"{where}: not an object with 'caption' or 'captions'")
    return content
