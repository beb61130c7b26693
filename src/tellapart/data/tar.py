"""Read members of uncompressed tar files in place. Nothing is unpacked, so nothing can be written outside a folder."""

from __future__ import annotations

import tarfile
import threading
from functools import lru_cache
from pathlib import Path, PurePosixPath

from tellapart.errors import DataError
from tellapart.files import check_regular, is_utf8

# name -> (offset, size) in bytes
Members = dict[str, tuple[int, int]]

_indexing = threading.Lock()


def tar_members(path: Path) -> Members:
    """Offset and size of each file in a tar; indexed again only when the tar has changed."""
    check_regular(path, "tar")
    about = path.stat()
    with _indexing:  # otherwise every thread of a pool would index the same new shard
        return _index(str(path), about.st_mtime_ns, about.st_size)


def member_bytes(path: Path, name: str) -> bytes:
    """One member's content. Each call opens the tar, so that threads do not share a file position."""
    place = tar_members(path).get(name)
    if place is None:
        raise FileNotFoundError(f"{path}: has no member '{name}'")
    offset, size = place
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(size)


def split_tar_path(path: Path) -> tuple[Path, str] | None:
    """Split `shards/0.tar/a.jpg` into the tar and the member's name; None if the path is not inside a tar."""
    for parent in path.parents:
        if parent.suffix == ".tar" and parent.is_file():
            return parent, path.relative_to(parent).as_posix()
    return None


@lru_cache(maxsize=256)
def _index(path: str, mtime: int, size: int) -> Members:
    """`mtime` and `size` are part of the cache key, so that a changed file is indexed again."""
    members: Members = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if member.isdir():
                    continue
                where = f"{path}: the member {member.name!r}"
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts:
                    raise DataError(f"{where} points outside the tar's folder; pack it again with plain names")
                if not member.isreg() or member.issparse():
                    raise DataError(f"{where} is not a plain file; pack it again without links")
                if not is_utf8(member.name):
                    raise DataError(f"{where} has a name that is not UTF-8 text; pack it again")
                if str(name) in members:
                    raise DataError(f"{where} occurs twice; names must be unique")
                members[str(name)] = member.offset_data, member.size
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read as an uncompressed tar ({error}); decompress it, or fetch it again"
        ) from None
    return members
