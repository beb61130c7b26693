"""Tables that are made block by block: kept, continued, mended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tellapart.data.blocks import open_blocks

STARTS = range(0, 10, 4)  # blocks of 4, 4 and 2 rows


def fill(path: Path | None, made_from: str = "this", blocks: int = 3) -> tuple[np.ndarray | None, list[int]]:
    """Make at most so many blocks; gives the table, if it is whole, and the blocks that were made."""
    made = []
    with open_blocks(path, made_from, (10, 3), np.int32, STARTS) as table:
        for number in table.missing[:blocks]:
            rows = table.rows(number)
            table.keep(number, np.arange(3 * rows.start, 3 * rows.stop).reshape(-1, 3))
            made.append(number)
        return (None if table.missing else np.array(table.values())), made


EXPECTED = np.arange(30).reshape(10, 3)


@pytest.mark.parametrize("kept", [True, False])
def test_a_table_is_whole_when_all_blocks_are_made(tmp_path: Path, kept: bool) -> None:
    table, made = fill(tmp_path / "new" / "table" if kept else None)
    assert made == [0, 1, 2]
    assert table is not None
    assert np.array_equal(table, EXPECTED)
    if kept:
        assert np.array_equal(np.load(tmp_path / "new" / "table.npy"), EXPECTED)
        assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["table.blocks", "table.npy"]


def test_it_is_for_reading_only(tmp_path: Path) -> None:
    for path in (tmp_path / "table", None):
        with open_blocks(path, "", (2,), np.float32, [0]) as table:
            table.keep(0, np.ones(2))
            with pytest.raises(ValueError, match="read-only"):
                table.values()[0] = 5


def test_the_missing_blocks_are_made_later(tmp_path: Path) -> None:
    assert fill(tmp_path / "table", blocks=1) == (None, [0])
    table, made = fill(tmp_path / "table")
    assert made == [1, 2]
    assert table is not None
    assert np.array_equal(table, EXPECTED)
    assert fill(tmp_path / "table")[1] == []


def test_half_a_mark_does_not_count(tmp_path: Path) -> None:
    """As after a power cut; the marks of the next blocks are not lost with it."""
    fill(tmp_path / "table", blocks=2)
    marks = tmp_path / "table.blocks"
    marks.write_bytes(marks.read_bytes()[:-3])
    assert fill(tmp_path / "table", blocks=1)[1] == [1]
    assert fill(tmp_path / "table")[1] == [2]


def test_a_damaged_block_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path / "table")
    array = tmp_path / "table.npy"
    content = bytearray(array.read_bytes())
    content[-1] ^= 1
    array.write_bytes(content)
    table, made = fill(tmp_path / "table")
    assert made == [2]
    assert table is not None
    assert np.array_equal(table, EXPECTED)
    assert "1 of 3 blocks are damaged; they are made again" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"no numbers", b"\x93NUMPY\x01\x00", None])
def test_a_damaged_array_is_made_again(
    tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "table")
    array = tmp_path / "table.npy"
    array.write_bytes(array.read_bytes()[:-8] if content is None else content)
    table, made = fill(tmp_path / "table")
    assert made == [0, 1, 2]
    assert table is not None
    assert np.array_equal(table, EXPECTED)
    assert "table.npy: is damaged; it is made again" in capsys.readouterr().err


def test_damaged_marks(tmp_path: Path) -> None:
    for content in (b"", b"\xff\xfe", b"{}\n0 1"):
        fill(tmp_path / "table")
        (tmp_path / "table.blocks").write_bytes(content)
        assert fill(tmp_path / "table")[1] == [0, 1, 2]


def test_a_table_of_something_else_is_not_used(tmp_path: Path) -> None:
    fill(tmp_path / "table", "one")
    assert fill(tmp_path / "table", "other")[1] == [0, 1, 2]
