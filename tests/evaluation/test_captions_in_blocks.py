"""Captions of a split are written in blocks: an interrupted call continues, damaged blocks are made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.tiny import make_captioner, make_data
from tellapart.data.prepare import Prepared
from tellapart.decoding.search import decode_store
from tellapart.decoding.settings import DecodingSettings
from tellapart.evaluation import run_captions as module
from tellapart.evaluation.run_captions import run_captions
from tellapart.files import read_jsonl
from tellapart.recipe import Recipe
from tellapart.run import Run

DATASET, STORE = make_data()
IDS = [record.id for record in DATASET.split("train")]
DECODING = DecodingSettings(beam=2, samples=2)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(module, "BLOCK", 2)
    captioner = make_captioner(seed=1)
    captioner.save_pretrained(tmp_path / "run")
    recipe = Recipe.load("scenes/adaptive-mle.yaml", budget="smoke")
    run = Run(tmp_path / "run", recipe.model_copy(update={"decoding": DECODING}))
    vars(run).update(data=Prepared(DATASET, STORE, tmp_path), model=captioner)
    return run


def decoded(monkeypatch: pytest.MonkeyPatch, at_most: int | None = None) -> list[int]:
    """The rows that are decoded from now on; after so many blocks the user presses Ctrl-C."""
    rows: list[int] = []

    def decode(captioner: Any, store: Any, block: list[int], *others: Any) -> Any:
        if at_most is not None and len(rows) >= 2 * at_most:
            raise KeyboardInterrupt
        rows.extend(block)
        return decode_store(captioner, store, block, *others)

    monkeypatch.setattr(module, "decode_store", decode)
    return rows


def unfinished(run: Run) -> list[Path]:
    return sorted(run.folder.glob("captions-train-unfinished-*/*"))


def expected() -> list[list[str]]:
    said = decode_store(make_captioner(seed=1), STORE, [DATASET.row(id) for id in IDS], DECODING)
    return [[one.caption for one in several] for several in said]


def test_interrupted_captioning_continues(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded(monkeypatch, at_most=2)
    with pytest.raises(KeyboardInterrupt):
        run_captions(run, "train")
    assert len(unfinished(run)) == 2
    assert not (run.folder / "captions-train.jsonl").exists()
    rows = decoded(monkeypatch)
    found = run_captions(run, "train")
    assert rows == [DATASET.row(id) for id in IDS[4:]], "the last block only"
    assert [group["captions"] for group in found] == expected()
    assert not unfinished(run)
    assert len(read_jsonl(run.folder / "captions-train.jsonl")) == 2 * len(IDS)
    assert run_captions(run, "train") == found
    assert len(rows) == 2


@pytest.mark.parametrize("content", ["", "{", '{"rows": []}', '{"rows": [{"id": "99"}]}'])
def test_a_damaged_block_is_made_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    decoded(monkeypatch, at_most=2)
    with pytest.raises(KeyboardInterrupt):
        run_captions(run, "train")
    unfinished(run)[0].write_text(content, encoding="utf-8")
    rows = decoded(monkeypatch)
    assert [group["captions"] for group in run_captions(run, "train")] == expected()
    assert rows == [DATASET.row(id) for id in IDS[:2] + IDS[4:]]
    assert "it is made again" in capsys.readouterr().err


def test_blocks_of_other_settings_are_not_taken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded(monkeypatch, at_most=2)
    with pytest.raises(KeyboardInterrupt):
        run_captions(run, "train")
    other = Run(run.folder, run.recipe.model_copy(update={"decoding": DecodingSettings(beam=3)}))
    vars(other).update(data=run.data, model=run.model)
    rows = decoded(monkeypatch)
    run_captions(other, "train")
    assert len(rows) == len(IDS)
