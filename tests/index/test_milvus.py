"""What is special about an index on a Milvus server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("pymilvus", reason="comes with the extra 'milvus'")

import pymilvus

from tellapart.errors import MissingExtraError, StoreError
from tellapart.index.milvus import MilvusStore
from tellapart.index.photos import open_index


def test_a_collection_of_others_is_refused(milvus: str, model: Path) -> None:
    pymilvus.MilvusClient(milvus).create_collection("theirs", dimension=4)
    with pytest.raises(StoreError, match="theirs: exists and is not an index of tellapart; choose another collection"):
        open_index(f"{milvus}/theirs", model)


def test_two_parts_make_the_same_collection_at_once(
    milvus: str, model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = open_index(f"{milvus}/at_once", model).store.made
    answers = iter([False, True, False, True])  # not there when asked, there when made
    with monkeypatch.context() as patch:
        patch.setattr(pymilvus.MilvusClient, "has_collection", lambda *asked: next(answers))
        assert len(MilvusStore.create(f"{milvus}/at_once", made)) == 0
    assert open_index(f"{milvus}/at_once").add([photos]).added == 12


def test_damaged_notes_are_one_line(milvus: str, model: Path) -> None:
    open_index(f"{milvus}/damaged", model)
    row = {"id": "index", "text": "{", "vector": [0.0, 0.0]}
    pymilvus.MilvusClient(milvus).upsert("damaged_about", [row])
    with pytest.raises(StoreError, match="what made this index is not readable; drop the collections damaged and"):
        open_index(f"{milvus}/damaged")


@pytest.mark.parametrize("place", ["http://", "http://host", "http://host/a-b", "http://host:x/photos", "http://[/a"])
def test_addresses_that_are_none(place: str) -> None:
    with pytest.raises(StoreError, match="is not the address of a collection; write http://HOST:19530/COLLECTION"):
        open_index(place)


def test_without_pymilvus_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(MissingExtraError, match=r"pymilvus is not installed; .* pip install 'tellapart\[milvus"):
        open_index("http://localhost:19530/photos")
