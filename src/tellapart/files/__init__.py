"""Atomic writes, reads with clear errors, digests, and derived files that are made once.

Files are written under a temporary name in the same folder, `.tellapart-` and 16 hex digits, and then renamed.
Nothing else is removed or replaced unless tellapart wrote it; `check_output` is the rule.
"""

from tellapart.files.cache import cache_folder, cache_hint
from tellapart.files.derived import Pieces, find_or_make, find_or_make_arrays, find_or_make_rows
from tellapart.files.digests import digest_of, digest_of_file
from tellapart.files.locks import lock
from tellapart.files.outputs import GENERATOR, check_ending, check_folder, check_output, is_result
from tellapart.files.reading import (
    REBUILD,
    Stored,
    check_json,
    check_regular,
    is_utf8,
    parse_json,
    read_json,
    read_jsonl,
    read_model,
    read_models,
    read_text,
)
from tellapart.files.temporary import is_temporary, remove_old_temporary_files, remove_temporary_files, temporary_path
from tellapart.files.writing import new_file, new_folder, write_json, write_jsonl, write_text

__all__ = [
    "GENERATOR",
    "REBUILD",
    "Pieces",
    "Stored",
    "cache_folder",
    "cache_hint",
    "check_ending",
    "check_folder",
    "check_json",
    "check_output",
    "check_regular",
    "digest_of",
    "digest_of_file",
    "find_or_make",
    "find_or_make_arrays",
    "find_or_make_rows",
    "is_result",
    "is_temporary",
    "is_utf8",
    "lock",
    "new_file",
    "new_folder",
    "parse_json",
    "read_json",
    "read_jsonl",
    "read_model",
    "read_models",
    "read_text",
    "remove_old_temporary_files",
    "remove_temporary_files",
    "temporary_path",
    "write_json",
    "write_jsonl",
    "write_text",
]
