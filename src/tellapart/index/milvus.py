"""An index on a Milvus server (extra `milvus`), for collections beyond one machine: `http://HOST:19530/COLLECTION`.

Two collections: `COLLECTION` has the rows, `COLLECTION_about` has what made the index. Milvus keeps one search
structure per vector: `FLAT` at first, and `IVF_FLAT` for approximate search, which is exact when all clusters are
searched. Words of captions are ranked by the server's BM25 (Milvus 2.5 or later).
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from pydantic import ValidationError

from tellapart.errors import MissingExtraError, StoreError, TellapartError, shorten
from tellapart.files import Stored
from tellapart.index.base import (
    FILE_COLUMNS,
    FORMAT,
    MAX_CAPTION,
    MAX_PATH,
    ROWS,
    File,
    Hit,
    Made,
    NoteType,
    Photo,
    Store,
    Vector,
    Where,
    blocks,
    escape_like,
    partitions,
    probes,
    row_id,
)

_PHOTO_COLUMNS = [*FILE_COLUMNS, "taken", "vector"]
_SECONDS = 30.0
# As many clusters as Milvus can have: all of them are searched.
EVERY = 65_536


def is_address(place: str) -> bool:
    """Whether an index is on a server."""
    return place.startswith(("http://", "https://"))


class MilvusStore(Store):
    """Rows in a collection of a Milvus server. Use `open` or `create`.

    The token of the server, if it needs one, is in the environment variable `MILVUS_TOKEN` (`user:password`, or a key).
    """

    def __init__(self, client: Any, address: str, collection: str) -> None:
        self.place = f"{address}/{collection}"
        self.collection = collection
        self._client = client
        self._about = f"{collection}_about"

    @classmethod
    def open(cls, place: str) -> MilvusStore | None:
        """The index at an address, or `None` if there is none yet; a collection of others is an error."""
        store = cls(*_connect(place))
        with store._working():
            names = [store._client.has_collection(name) for name in (store._about, store.collection)]
        if not names[0]:
            if names[1]:
                raise StoreError(f"{store.place}: exists and is not an index of tellapart; choose another collection")
            return None
        made = store.note("index", Made)
        if made is None:  # killed before it was written
            return None
        if made.format != FORMAT:
            raise StoreError(f"{store.place}: index format {made.format} is unknown; this version reads {FORMAT}")
        store.made = made
        store._make_collection()  # killed before it was made
        return store

    @classmethod
    def create(cls, place: str, made: Made) -> MilvusStore:
        """A new index."""
        store = cls(*_connect(place))
        store.made = made
        store._make_about()
        store.write_note("index", made)
        store._make_collection()
        return store

    def _make_about(self) -> None:
        from pymilvus import DataType

        client = self._client
        with self._working():
            if client.has_collection(self._about):
                return
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
            schema.add_field("text", DataType.VARCHAR, max_length=MAX_CAPTION)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=2)  # every collection must have one
            index = client.prepare_index_params()
            index.add_index("vector", index_type="FLAT", metric_type="IP")
            self._create(self._about, schema, index)

    def _make_collection(self) -> None:
        from pymilvus import DataType, Function, FunctionType

        client = self._client
        with self._working():
            if client.has_collection(self.collection):
                client.load_collection(self.collection)
                return
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
            schema.add_field("path", DataType.VARCHAR, max_length=MAX_PATH)
            schema.add_field("content", DataType.VARCHAR, max_length=64)
            for name in ("size", "time", "taken"):
                schema.add_field(name, DataType.INT64)
            schema.add_field("caption", DataType.VARCHAR, max_length=MAX_CAPTION, enable_analyzer=True)
            schema.add_field("words", DataType.SPARSE_FLOAT_VECTOR)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self.made.width)
            rank = {"input_field_names": ["caption"], "output_field_names": ["words"]}
            schema.add_function(Function(name="words", function_type=FunctionType.BM25, **rank))
            index = client.prepare_index_params()
            index.add_index("vector", index_type="FLAT", metric_type="IP")
            index.add_index("words", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25")
            self._create(self.collection, schema, index)

    def _create(self, name: str, schema: Any, index: Any) -> None:
        try:
            self._client.create_collection(name, schema=schema, index_params=index, consistency_level="Strong")
        except Exception:
            if not self._client.has_collection(name):
                raise  # else another part has just made it

    def __len__(self) -> int:
        return self._count("")

    def _count(self, condition: str) -> int:
        with self._working():
            return int(self._client.query(self.collection, filter=condition, output_fields=["count(*)"])[0]["count(*)"])

    def files(self, folders: Sequence[str], paths: Sequence[str]) -> Iterator[File]:
        for folder in folders:
            inside = folder.rstrip("/") + "/"
            for row in self._all(f"path like {_pattern(escape_like(inside) + '%')}", FILE_COLUMNS):
                if row["path"].startswith(inside):
                    yield File.of(row)
        for some in blocks(paths):
            for row in self._all(_with_ids(some), FILE_COLUMNS):
                yield File.of(row)

    def put(self, photos: Sequence[Photo]) -> None:
        for start in range(0, len(photos), ROWS):
            rows = [
                {
                    "id": row_id(one.file.path),
                    "taken": one.taken,
                    "vector": np.asarray(one.vector, np.float32).tolist(),
                    **{name: getattr(one.file, name) for name in FILE_COLUMNS},
                }
                for one in photos[start : start + ROWS]
            ]
            with self._working():
                self._client.upsert(self.collection, rows)

    def remove(self, paths: Sequence[str]) -> None:
        for some in blocks(paths):
            with self._working():
                self._client.delete(self.collection, filter=_with_ids(some))

    def read(self, paths: Sequence[str]) -> list[Photo]:
        found: list[Photo] = []
        for some in blocks(paths):
            with self._working():
                rows = self._client.query(self.collection, filter=_with_ids(some), output_fields=_PHOTO_COLUMNS)
            found += map(_as_photo, rows)
        return found

    def with_id(self, id: str) -> Photo | None:
        with self._working():
            rows = self._client.query(self.collection, filter=f"id == {_text(id)}", output_fields=_PHOTO_COLUMNS)
        return _as_photo(rows[0]) if rows else None

    def sample(self, count: int, with_caption: bool) -> list[Photo]:
        condition = 'caption != ""' if with_caption else ""
        with self._working():
            rows = self._client.query(self.collection, filter=condition, output_fields=_PHOTO_COLUMNS, limit=count)
        return [_as_photo(row) for row in rows]

    def has_captions(self) -> bool:
        return self._count('caption != ""') > 0

    def nearest(self, vector: Vector, count: int, where: Where, approximate: bool) -> list[Hit]:
        clusters = self._clusters()
        parameters = {} if clusters is None else {"nprobe": probes(clusters) if approximate else EVERY}
        query = np.asarray(vector, np.float32).tolist()
        return self._search(query, "vector", count, where, {"metric_type": "IP", "params": parameters})

    def worded(self, text: str, count: int, where: Where) -> list[Hit]:
        return self._search(text, "words", count, where, {"metric_type": "BM25"})

    def _search(self, query: Any, field: str, count: int, where: Where, parameters: dict[str, Any]) -> list[Hit]:
        with self._working():
            (found,) = self._client.search(
                self.collection,
                data=[query],
                anns_field=field,
                limit=count,
                filter=_condition(where),
                search_params=parameters,
                output_fields=["path", "taken", "caption"],
            )
        rows = [(row["entity"], float(row["distance"])) for row in found]
        return [Hit(row["path"], row["taken"], row["caption"], score) for row, score in rows]

    def build_approximate(self) -> None:
        clusters = partitions(len(self))
        with self._working():
            client = self._client
            client.release_collection(self.collection)
            client.drop_index(self.collection, "vector")
            index = client.prepare_index_params()
            index.add_index("vector", index_type="IVF_FLAT", metric_type="IP", params={"nlist": clusters})
            client.create_index(self.collection, index)
            client.load_collection(self.collection)
        self.write_note("clusters", _Clusters(clusters=clusters))

    def _clusters(self) -> int | None:
        found = self.note("clusters", _Clusters)
        return None if found is None else found.clusters

    def tidy(self) -> None:
        with self._working():
            self._client.flush(self.collection)

    def note(self, name: str, schema: type[NoteType]) -> NoteType | None:
        with self._working():
            rows = self._client.query(self._about, filter=f"id == {_text(name)}", output_fields=["text"])
        if not rows:
            return None
        try:
            return schema.model_validate_json(rows[0]["text"], strict=True)
        except ValidationError:
            raise StoreError(
                f"{self.place}: what made this index is not readable; drop the collections {self.collection} and "
                f"{self._about} and index again"
            ) from None

    def write_note(self, name: str, value: Stored) -> None:
        with self._working():
            text = json.dumps(value.model_dump(mode="json"))
            self._client.upsert(self._about, [{"id": name, "text": text, "vector": [0.0, 0.0]}])

    def _all(self, condition: str, fields: list[str]) -> Iterator[dict[str, Any]]:
        with self._working():
            rows = self._client.query_iterator(self.collection, batch_size=ROWS, filter=condition, output_fields=fields)
        while True:
            with self._working():
                batch = rows.next()
            if not batch:
                break
            yield from batch
        rows.close()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Turn errors of the client into one line."""
        try:
            yield
        except TellapartError:
            raise
        except Exception as error:
            raise StoreError(f"{self.place}: the server refused or failed ({_reason(error)}); try again") from None


class _Clusters(Stored):
    """How many clusters approximate search has."""

    clusters: int


def _connect(place: str) -> tuple[Any, str, str]:
    """A client, the address without names and passwords, and the collection."""
    try:
        from pymilvus import MilvusClient
    except ImportError:
        raise MissingExtraError("pymilvus", "milvus") from None
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # errors are reported once, by the caller
    try:
        parts = urlsplit(place)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    names = parts.path.strip("/").split("/") if host else []
    if not host or not 1 <= len(names) <= 2 or not all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,200}", n) for n in names):
        raise StoreError(
            f"{shorten(place)}: is not the address of a collection; write http://HOST:19530/COLLECTION, with letters, "
            "digits and _ in the name (a database may stand before it: HOST:19530/DATABASE/COLLECTION)"
        )
    address = f"{parts.scheme}://{host}:{port or 19530}"
    token = os.environ.get("MILVUS_TOKEN") or (f"{parts.username}:{parts.password}" if parts.username else "")
    database = {"db_name": names[0]} if len(names) == 2 else {}
    try:
        client = MilvusClient(uri=address, token=token, timeout=_SECONDS, **database)
    except Exception as error:
        raise StoreError(
            f"{address}: no Milvus server answers there ({_reason(error)}); check the address, and MILVUS_TOKEN"
        ) from None
    return client, "/".join([address, *names[:-1]]), names[-1]


def _reason(error: Exception) -> str:
    return shorten(str(getattr(error, "message", None) or error))


def _as_photo(row: dict[str, Any]) -> Photo:
    return Photo(File.of(row), row["taken"], np.asarray(row["vector"], np.float32))


def _text(value: str) -> str:
    r"""A text as Milvus' filters write it."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _pattern(like: str) -> str:
    """A LIKE pattern as Milvus' filters write it; a line break, which they cannot have, becomes any character."""
    return _text(re.sub(r"[\x00-\x1f]", "_", like))


def _with_ids(paths: Sequence[str]) -> str:
    return f"id in [{', '.join(_text(row_id(path)) for path in paths)}]"


def _condition(where: Where) -> str:
    pattern = where.like()
    parts = [f"path like {_pattern(pattern)}" if pattern is not None else None]
    parts.append(f"taken >= {where.after}" if where.after is not None else None)
    parts.append(f"taken < {where.before}" if where.before is not None else None)
    return " and ".join(part for part in parts if part)
