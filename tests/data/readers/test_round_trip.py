"""What is written in a layout is read back equal, whatever people write in captions."""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tellapart.data.readers import read_dataset
from tellapart.data.records import SPLITS, Record

# Letters, marks, emoji, quotes, separators such as U+2028; no control characters, no halves of characters.
CAPTION = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=30).filter(
    lambda text: text == text.strip() and not text.startswith("\ufeff")
)


@st.composite
def some_records(draw: st.DrawFn) -> list[Record]:
    """In the order train, val, test, in which lists are read."""
    captions = draw(st.lists(st.lists(CAPTION, min_size=1, max_size=3), min_size=1, max_size=5))
    splits = sorted((draw(st.sampled_from(SPLITS)) for _ in captions), key=SPLITS.index)
    return [
        Record(f"p{n}", f"p{n}.jpg", split, tuple(said))
        for n, (said, split) in enumerate(zip(captions, splits, strict=True))
    ]


def write_karpathy(folder: Path, records: Sequence[Record]) -> Path:
    images = [
        {"filename": r.image, "split": r.split, "sentences": [{"raw": caption} for caption in r.captions]}
        for r in records
    ]
    path = folder / "data.json"
    path.write_text(json.dumps({"images": images}, ensure_ascii=False), encoding="utf-8")
    return path


def write_jsonl(folder: Path, records: Sequence[Record]) -> Path:
    rows = [{"id": r.id, "image": r.image, "split": r.split, "captions": r.captions} for r in records]
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def write_separated(folder: Path, records: Sequence[Record], suffix: str) -> Path:
    path = folder / f"data{suffix}"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if suffix == ".tsv" else ",")
        writer.writerow(("id", "image", "split", "caption"))
        writer.writerows((r.id, r.image, r.split, caption) for r in records for caption in r.captions)
    return path


def write_tokens(folder: Path, records: Sequence[Record]) -> Path:
    folder = folder / "tokens"
    folder.mkdir()
    lines = [f"{r.image}#{n}\t{caption}\n" for r in records for n, caption in enumerate(r.captions)]
    (folder / "Flickr8k.token.txt").write_text("".join(lines), encoding="utf-8")
    for split in SPLITS:
        names = "".join(f"{r.image}\n" for r in records if r.split == split)
        (folder / f"Flickr_8k.{split}Images.txt").write_text(names, encoding="utf-8")
    return folder


@settings(max_examples=60, deadline=None)
@given(some_records())
def test_records_come_back(records: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for source in (
            write_karpathy(folder, records),
            write_jsonl(folder, records),
            write_separated(folder, records, ".csv"),
            write_separated(folder, records, ".tsv"),
            write_tokens(folder, records),
        ):
            assert list(read_dataset(source)) == records, source.name
