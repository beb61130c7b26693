"""From files as people have them to records. Each reader checks what it reads and says what is wrong with it.

| source | reader |
|---|---|
| `scenes` | the embedded set (rendered on first use, see `prepare`) |
| `captions_{train,val}{2014,2017}.json`, or a folder with `annotations/captions_*.json` | `read_coco` |
| the same folder with `splits/*.txt`: lists that name the images of each split (m-RNN's) | `read_coco` |
| any other `.json` file: `{"images": [{"filename", "split", "sentences": [{"raw"}]}]}` | `read_karpathy` |
| a folder with `Flickr8k.token.txt` or `results_20130124.token`, and split lists | `read_tokens` |
| a folder with `json/insta-caption-train.json` (InstaPIC-1.1M) | `read_instapic` |
| a `.csv`, `.tsv`, `.jsonl` or `.parquet` file with image and caption columns | `read_table` |
| a `.tar` file, or a folder of them (WebDataset) | `read_shards` |
| any other folder: every picture in it, with the lines of `NAME.txt` as captions where there are any | `read_folder` |
"""

from __future__ import annotations

from pathlib import Path

from tellapart.data.readers.coco import is_coco_file, is_coco_folder, read_coco
from tellapart.data.readers.folder import has_pictures, read_folder
from tellapart.data.readers.instapic import is_instapic, read_instapic
from tellapart.data.readers.karpathy import read_karpathy
from tellapart.data.readers.shards import read_shards
from tellapart.data.readers.table import TABLES, read_table
from tellapart.data.readers.tokens import is_tokens, read_tokens
from tellapart.data.records import Dataset
from tellapart.errors import DataError

__all__ = [
    "read_coco",
    "read_dataset",
    "read_folder",
    "read_instapic",
    "read_karpathy",
    "read_shards",
    "read_table",
    "read_tokens",
]

GIVE = "give a Karpathy .json file, a folder of pictures, or 'scenes'; docs/data.md lists every layout"


def read_dataset(source: Path) -> Dataset:
    """Read a data set in any of the layouts above; which one is seen from the names of its files."""
    if source.is_dir():
        return _read_folder(source)
    if source.suffix == ".json":
        return read_coco(source) if is_coco_file(source) else read_karpathy(source)
    if not source.exists():
        raise DataError(f"{source}: does not exist; {GIVE}")
    if source.suffix in TABLES:
        return read_table(source)
    if source.suffix == ".tar":
        return read_shards(source)
    raise DataError(f"{source}: this kind of file is not read; {GIVE}")


def _read_folder(folder: Path) -> Dataset:
    if is_coco_folder(folder):
        return read_coco(folder)
    if is_instapic(folder):
        return read_instapic(folder)
    if is_tokens(folder):
        return read_tokens(folder)
    # A tar beside photographs is somebody's backup, not the data set.
    if any(folder.glob("*.tar")) and not has_pictures(folder):
        return read_shards(folder)
    return read_folder(folder)
