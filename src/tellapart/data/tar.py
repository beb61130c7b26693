"""Members of uncompressed tar files, read in place: nothing is unpacked, so nothing can land where it should not."""

from __future__ import annotations

import tarfile
import threading
from functools import lru_cache
from pathlib import Path, PurePosixPath

from tellapart.errors import DataError

# name -> (where its bytes begin, how many there are)
Members = dict[str, tuple[int, int]]

_indexing = threading.Lock()


def tar_members(path: Path) -> Members:
    """Where each plain file of a tar begins and how long it is; read again only when the file has changed."""
    about = path.stat()
    with _indexing:  # else every thread of a pool would index the same new shard
        return _index(str(path), about.st_mtime_ns, about.st_size)


def member_bytes(path: Path, name: str) -> bytes:
    """One member's content. Each call opens the file anew, so that threads share no position in it."""
    place = tar_members(path).get(name)
    if place is None:
        raise FileNotFoundError(f"{path}: has no member '{name}'")
    offset, size = place
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(size)


def split_tar_path(path: Path) -> tuple[Path, str] | None:
    """`shards/0.tar/a.jpg` as the tar and the member's name; None when the path leads into no tar file."""
    for parent in path.parents:
        if parent.suffix == ".tar" and parent.is_file():
            return parent, path.relative_to(parent).as_posix()
    return None


@lru_cache(maxsize=256)
def _index(path: str, mtime: int, size: int) -> Members:
    """`mtime` and `size` are there to tell a changed file from the one indexed before."""
    members: Members = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if member.isdir():
                    continue
                where = f"{path}: the member {member.name!r}"
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts:
                    raise DataError(f"{where} leaves the tar's folder; pack it again with plain names")
                if not member.isreg() or member.issparse():
                    raise DataError(f"{where} is no plain file; pack it again without links")
                if not _is_utf8(member.name):
                    raise DataError(f"{where} has a name that is not UTF-8 text; pack it again")
                if str(name) in members:
                    raise DataError(f"{where} is there twice; names must be unique")
                members[str(name)] = member.offset_data, member.size
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise DataError(
            f"{path}: not an uncompressed tar that can be read ({error}); decompress it, or fetch it again"
        ) from None
    return members


def _is_utf8(name: str) -> bool:
    """Whether a name was UTF-8: tarfile keeps bytes that are not as halves of characters."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
