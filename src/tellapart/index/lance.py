"""An index in a folder of LanceDB files (extra `index`).

The folder has `index.json` (what made it), `photos.lance/` (the rows) and `recall.json` once approximate search was
built. Every write is a new version of the table: a reader sees the version before or the version after, and a killed
process leaves at most files that no version names. Writers of several processes take turns.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tellapart.errors import MissingExtraError, StoreError, TellapartError, out_of_memory, shorten
from tellapart.files import Stored, check_folder, is_result, is_temporary, lock, read_model, write_json
from tellapart.index.base import (
    ALL,
    FILE_COLUMNS,
    FORMAT,
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
from tellapart.index.kept import COLUMNS, Kept

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

TABLE = "photos"
# Versions and files that are older are removed; searches that began with them are long over.
KEEP = timedelta(hours=1)
# Small files are merged after so many writes: each search opens all of them.
MERGE_AFTER = 100
# Vectors that are read at once.
VECTORS = 4096
# Vectors per cluster, and rounds, to find the clusters of approximate search.
CLUSTER_SAMPLE, CLUSTER_ROUNDS = 64, 20

_REMEDY = "if it is damaged, remove the folder and index again"


class LanceStore(Store):
    """Rows in LanceDB files. Use `open` or `create`."""

    def __init__(self, folder: Path, made: Made) -> None:
        lancedb = import_lancedb()
        self.folder = folder
        self.place = str(folder)
        self.made = made
        self._writes = 0
        self._kept = Kept(made.width)
        with self._working():
            # Look for a newer version before every read, so that an open index sees what others add.
            database = lancedb.connect(folder, read_consistency_interval=timedelta(0))
            if self._is_new():
                with lock(folder / ".lock"):
                    database.create_table(TABLE, schema=_schema(made.width), exist_ok=True)
            self._table = database.open_table(TABLE)
            if not any(index.columns == ["caption"] for index in self._table.list_indices()):
                with lock(folder / ".lock"):
                    self._index_words()
            found = self._table.schema
        if found.names != _schema(made.width).names or found.field("vector").type.list_size != made.width:
            raise StoreError(f"{folder}: the table of this index is not the one that index.json describes; {_REMEDY}")

    @classmethod
    def open(cls, folder: Path) -> LanceStore | None:
        """The index in this folder, or `None` if there is none yet; a folder of others is an error."""
        state = read_made(folder)
        return None if state is None else cls(folder, state)

    @classmethod
    def create(cls, folder: Path, made: Made) -> LanceStore:
        """A new index in a new or empty folder."""
        import_lancedb()
        check_folder(folder)
        write_json(folder / "index.json", made.model_dump(mode="json"))
        return cls(folder, made)

    def _is_new(self) -> bool:
        """Whether the table is not there yet; a process may have been killed while making it."""
        table = self.folder / f"{TABLE}.lance"
        return not any((table / "_versions").glob("*.manifest")) and not any((table / "data").glob("*"))

    def _index_words(self) -> None:
        from lancedb.index import FTS

        # Words as they are written, in lower case: no stemming, since captions may be in any language.
        self._table.create_index("caption", config=FTS(stem=False, remove_stop_words=False, ascii_folding=True))

    def __len__(self) -> int:
        with self._working():
            return int(self._table.count_rows())

    def files(self, folders: Sequence[str], paths: Sequence[str]) -> Iterator[File]:
        conditions = [f"path LIKE {_text(escape_like(folder.rstrip('/')) + '/%')}" for folder in folders]
        for condition in [*conditions, *map(_with_ids, blocks(paths))]:
            with self._working():
                batches = iter(self._table.search().where(condition).select(FILE_COLUMNS).to_batches())
            while True:
                with self._working():
                    batch = next(batches, None)
                if batch is None:
                    break
                for row in batch.to_pylist():
                    yield File(**row)

    def put(self, photos: Sequence[Photo]) -> None:
        for start in range(0, len(photos), ROWS):
            rows = _as_table(photos[start : start + ROWS], self.made.width)
            with self._writing():
                merge = self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
                merge.execute(rows)

    def remove(self, paths: Sequence[str]) -> None:
        for some in blocks(paths):
            with self._writing():
                self._table.delete(_with_ids(some))

    def read(self, paths: Sequence[str]) -> list[Photo]:
        found: list[Photo] = []
        for some in blocks(paths):
            with self._working():
                rows = self._table.search().where(_with_ids(some)).limit(len(some)).to_arrow()
            found += _as_photos(rows, self.made.width)
        return found

    def with_id(self, id: str) -> Photo | None:
        with self._working():
            rows = self._table.search().where(f"id = {_text(id)}").limit(1).to_arrow()
        return next(iter(_as_photos(rows, self.made.width)), None)

    def sample(self, count: int, with_caption: bool) -> list[Photo]:
        where = "caption != ''" if with_caption else None
        with self._working():
            rows = self._table.count_rows(where)
            # Rows at equal distances: neighbours in a folder are often alike.
            step = max(1, rows // count)
            query = self._table.search().select(["id"])
            ids = (query.where(where) if where else query).limit(rows).to_arrow()["id"].to_pylist()
            chosen = ids[::step][:count]
            listed = ", ".join(map(_text, chosen)) or "''"
            found = self._table.search().where(f"id IN ({listed})").limit(count).to_arrow()
        return _as_photos(found, self.made.width)

    def has_captions(self) -> bool:
        with self._working():
            return bool(self._table.count_rows("caption != ''") > 0)

    def nearest(self, vector: Vector, count: int, where: Where, approximate: bool) -> list[Hit]:
        with self._working():
            if not approximate and where == ALL:
                kept = self._kept.find(self._table.version, self._table.count_rows(), self._vectors)
                if kept is not None:
                    return kept.nearest(vector, count)
            query = self._table.search(vector, vector_column_name="vector").distance_type("dot")
            if approximate:
                query = query.nprobes(probes(partitions(self._table.count_rows())))
            else:
                query = query.bypass_vector_index()
            rows = self._found(query, count, where, "_distance")
        return [Hit(row["path"], row["taken"], row["caption"], 1 - row["_distance"]) for row in rows]

    def _vectors(self) -> Any:
        return self._table.search().select([*COLUMNS, "vector"]).limit(self._table.count_rows()).to_batches(VECTORS)

    def worded(self, text: str, count: int, where: Where) -> list[Hit]:
        with self._working():
            query = self._table.search(text, query_type="fts", fts_columns="caption")
            rows = self._found(query, count, where, "_score")
        return [Hit(row["path"], row["taken"], row["caption"], row["_score"]) for row in rows]

    def _found(self, query: Any, count: int, where: Where, score: str) -> list[dict[str, Any]]:
        condition = _condition(where)
        if condition:
            query = query.where(condition, prefilter=True)
        rows: list[dict[str, Any]] = query.limit(count).select(["path", "taken", "caption", score]).to_list()
        return rows

    def build_approximate(self) -> None:
        from lancedb.index import IvfFlat

        with self._writing():
            clusters = partitions(self._table.count_rows())
            config = IvfFlat("dot", clusters, max_iterations=CLUSTER_ROUNDS, sample_rate=CLUSTER_SAMPLE)
            self._table.create_index("vector", config=config, replace=True)

    def tidy(self) -> None:
        with self._writing():
            self._merge()

    def _merge(self) -> None:
        self._table.optimize(cleanup_older_than=KEEP)
        self._writes = 0

    def note(self, name: str, schema: type[NoteType]) -> NoteType | None:
        path = self.folder / f"{name}.json"
        return read_model(path, schema, "file of an index", _REMEDY, StoreError) if path.exists() else None

    def write_note(self, name: str, value: Stored) -> None:
        write_json(self.folder / f"{name}.json", value.model_dump(mode="json"))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with lock(self.folder / ".lock"), self._working():
            yield
            self._writes += 1
            if self._writes > MERGE_AFTER:
                self._merge()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Turn the errors of LanceDB, which has many kinds for a damaged file, into one line."""
        try:
            yield
        except TellapartError:
            raise
        except BaseException as error:
            # A panic of its Rust code is no `Exception`.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            if out_of_memory(error):
                raise
            raise StoreError(f"{self.place}: this index cannot be used ({shorten(str(error))}); {_REMEDY}") from None


def read_made(folder: Path) -> Made | None:
    """What made the index in a folder; `None` for a new or empty one, an error for one that is not an index."""
    about = folder / "index.json"
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder}: this is a file, and an index is a folder; choose another one")
    names = [path for path in folder.iterdir() if not is_temporary(path)] if folder.exists() else []
    if not names:
        return None
    ours = is_result(about, "retriever", "encoder", "width") and about.stat().st_size > 0
    if not ours and not (about.exists() and (folder / f"{TABLE}.lance").is_dir()):
        raise StoreError(f"{folder}: exists and is not an index of tellapart; choose another folder")
    made = read_model(about, Made, "description of an index", _REMEDY, StoreError)
    if made.format != FORMAT:
        raise StoreError(f"{folder}: index format {made.format} is unknown; this version reads {FORMAT}")
    return made


def import_lancedb() -> Any:
    """LanceDB, or an error with the extra to install."""
    # Rust code writes warnings to the standard error stream, among them some about our own, correct calls.
    os.environ.setdefault("LANCE_LOG", "error")
    try:
        import lancedb
    except ImportError:
        raise MissingExtraError("lancedb", "index") from None
    return lancedb


def _schema(width: int) -> pyarrow.Schema:
    import pyarrow as arrow

    text, number = arrow.string(), arrow.int64()
    fields = [("id", text), ("path", text), ("size", number), ("time", number), ("content", text)]
    fields += [("taken", number), ("caption", text), ("vector", arrow.list_(arrow.float32(), width))]
    return arrow.schema([arrow.field(name, kind, nullable=False) for name, kind in fields])


def _as_table(photos: Sequence[Photo], width: int) -> pyarrow.Table:
    import pyarrow as arrow

    columns: dict[str, Any] = {name: [getattr(one.file, name) for one in photos] for name in FILE_COLUMNS}
    columns |= {"id": [row_id(one.file.path) for one in photos], "taken": [one.taken for one in photos]}
    values = arrow.array(np.concatenate([one.vector for one in photos]).astype(np.float32, copy=False))
    columns["vector"] = arrow.FixedSizeListArray.from_arrays(values, width)
    schema = _schema(width)
    return arrow.table([columns[name] for name in schema.names], schema=schema)


def _as_photos(rows: pyarrow.Table, width: int) -> list[Photo]:
    vectors = rows["vector"].combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    plain = rows.select([*FILE_COLUMNS, "taken"]).to_pylist()
    return [Photo(File.of(row), row["taken"], vector) for row, vector in zip(plain, vectors, strict=True)]


def _text(value: str) -> str:
    """A text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def _with_ids(paths: Sequence[str]) -> str:
    return f"id IN ({', '.join(_text(row_id(path)) for path in paths)})"


def _condition(where: Where) -> str:
    pattern = where.like()
    parts = [f"path LIKE {_text(pattern)}" if pattern is not None else None]
    parts.append(f"taken >= {where.after}" if where.after is not None else None)
    parts.append(f"taken < {where.before}" if where.before is not None else None)
    return " AND ".join(part for part in parts if part)
