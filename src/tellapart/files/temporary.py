"""Temporary names: `.tellapart-`, the process that writes, and random digits. Those of killed processes are removed."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

# The process that writes, and 8 random digits.
_TEMPORARY = re.compile(r"\.tellapart-([0-9a-f]{8})[0-9a-f]{8}")
# Older temporary files are no longer being written, whatever machine their process is on.
_DAY = 24 * 60 * 60


def temporary_path(path: Path) -> Path:
    """A new hidden name in the same folder; no two calls give the same one."""
    return path.with_name(f".tellapart-{os.getpid():08x}{secrets.token_hex(4)}")


def is_temporary(path: Path) -> bool:
    """Whether the name is one of `temporary_path`."""
    return _TEMPORARY.fullmatch(path.name) is not None


def remove_temporary_files(folder: Path) -> None:
    """Remove the unfinished files and folders of killed processes; call it only if no other process writes here."""
    for path in folder.iterdir():
        if is_temporary(path):
            _remove(path)


def remove_old_temporary_files(folder: Path) -> None:
    """Remove the temporary files of killed processes; other processes may write here.

    Only names of `temporary_path` count. They must be unchanged for a day, and their process must not run on this
    machine. A file that cannot be removed stays.
    """
    with suppress(OSError):
        for path in folder.iterdir():
            name = _TEMPORARY.fullmatch(path.name)
            if name is not None and not _is_running(int(name[1], 16)):
                with suppress(OSError):
                    if time.time() - path.lstat().st_mtime > _DAY:
                        _remove(path)


def _is_running(process: int) -> bool:
    """Whether a process of this number runs on this machine, also if it is another user's."""
    if os.name == "nt":
        return True  # on Windows there is no harmless way to ask
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return process != 0


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
