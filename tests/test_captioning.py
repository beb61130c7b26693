"""Captioning one's own pictures: files, folders, broken ones, and the command that prints the rows."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from support.pictures import WORDS, TinyEncoder, save_model, use_tiny_encoder
from tellapart import captioning, shipped
from tellapart.captioners.adaptive import AdaptiveAttention, AdaptiveAttentionSettings
from tellapart.captioners.base import load_captioner
from tellapart.captioning import caption, caption_split
from tellapart.cli import main
from tellapart.data.images import load_image
from tellapart.decoding.settings import DecodingSettings
from tellapart.encoders import open_encoder
from tellapart.encoders.base import EncoderIdentity
from tellapart.errors import DataError, RecipeError, RunError, StoreError
from tellapart.text import Vocabulary


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_tiny_encoder(monkeypatch)
    return save_model(tmp_path / "model", TinyEncoder.identity)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    (folder / "inner").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in ("b.png", "a.jpg", "inner/c.webp"):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / name)
    return folder


def test_a_row_for_a_picture(model: Path, pictures: Path) -> None:
    (row,) = caption([pictures / "a.jpg"], model)
    assert list(row) == ["id", "caption", "log_prob", "ended"]
    assert row["id"] == str(pictures / "a.jpg")
    assert set(row["caption"].split()) <= set(WORDS)
    assert row["log_prob"] < 0
    assert isinstance(row["ended"], bool)


def test_rows_are_the_models_own_probabilities(model: Path, pictures: Path) -> None:
    (row,) = caption([pictures / "b.png"], model, DecodingSettings(beam=2, max_words=5))
    captioner = load_captioner(model)
    encoder = TinyEncoder()
    features = torch.from_numpy(encoder.encode([encoder.squeeze(load_image(pictures / "b.png"))]))
    tokens = captioner.tokenize([row["caption"]])
    if not row["ended"]:
        tokens = tokens[:, :-1]
    expected = captioner.log_prob(captioner.encode(features), tokens, torch.tensor([0]))
    assert row["log_prob"] == pytest.approx(expected.item(), rel=1e-5, abs=1e-4)


def test_files_and_folders_in_the_order_given(model: Path, pictures: Path) -> None:
    rows = caption([pictures / "inner" / "c.webp", str(pictures)], str(model))
    names = ["inner/c.webp", "a.jpg", "b.png", "inner/c.webp"]
    assert [row["id"] for row in rows] == [str(pictures / name) for name in names]
    assert rows[0] == {**rows[3], "log_prob": pytest.approx(rows[3]["log_prob"], rel=1e-5)}
    assert len({round(row["log_prob"], 4) for row in rows}) == 3, "it looks at the pictures"


def test_many_pictures_go_in_blocks(model: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = caption([pictures], model)
    monkeypatch.setattr(captioning, "BLOCK", 2)
    progress: list[tuple[int, int]] = []
    rows = caption([pictures], model, on_progress=lambda *done: progress.append(done))
    assert progress == [(2, 3), (3, 3)]
    assert [(row["id"], row["caption"]) for row in rows] == [(row["id"], row["caption"]) for row in whole]


def test_the_decoding_is_followed(model: Path, pictures: Path) -> None:
    rows = caption([pictures], model, DecodingSettings(beam=1, max_words=1))
    assert all(len(row["caption"].split()) <= 1 for row in rows)


def test_a_broken_picture_is_skipped_with_on_skip(model: Path, pictures: Path) -> None:
    (pictures / "b.png").write_bytes(b"no picture")
    skipped: list[DataError] = []
    rows = caption([pictures], model, on_skip=skipped.append)
    assert [Path(row["id"]).name for row in rows] == ["a.jpg", "c.webp"]
    (error,) = skipped
    assert "b.png: not a picture" in str(error)
    with pytest.raises(DataError, match=r"b\.png: not a picture"):
        caption([pictures], model)


def test_nothing_readable_gives_no_rows(model: Path, tmp_path: Path) -> None:
    skipped: list[DataError] = []
    assert caption([tmp_path / "nowhere.jpg"], model, on_skip=skipped.append) == []
    assert len(skipped) == 1


def test_what_cannot_be_captioned(model: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no image was given"):
        caption([], model)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: no picture found"):
        caption([tmp_path / "empty"], model)
    with pytest.raises(RunError, match="empty: no model is here"):
        caption([tmp_path / "a.jpg"], tmp_path / "empty")


def test_another_encoder_is_refused(model: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TinyEncoder, "identity", EncoderIdentity("tiny", "1", "quarters", regions=4, width=3))
    with pytest.raises(StoreError, match="was trained on features of another tiny"):
        caption([pictures], model)


def test_the_real_encoder(tmp_path: Path, pictures: Path) -> None:
    model = save_model(tmp_path / "real", open_encoder("efficientnet-lite0").identity)
    rows = caption([pictures], model, DecodingSettings(beam=2, max_words=4))
    assert len({row["log_prob"] for row in rows}) == 3


# --- the command ----------------------------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["tellapart", "caption", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_the_command_prints_json_lines(
    model: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (pictures / "b.png").write_bytes(b"no picture")
    assert run(monkeypatch, pictures, "--model", model, "--beam", 2) == 0
    printed = capsys.readouterr()
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert rows == caption([pictures], model, DecodingSettings(beam=2), on_skip=lambda _: None)
    assert len(rows) == 2
    assert "skipped: " in printed.err
    assert "b.png: not a picture" in printed.err


def test_the_command_writes_a_file(
    model: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "captions.jsonl"
    assert run(monkeypatch, pictures / "a.jpg", pictures / "b.png", "--model", model, "--out", out) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.endswith(f"wrote {out}: 2 rows\n")
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [Path(row["id"]).name for row in rows] == ["a.jpg", "b.png"]
    assert all(list(row) == ["id", "caption", "log_prob", "ended"] for row in rows)


def test_the_command_fails_when_nothing_was_captioned(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path / "nowhere.jpg", "--model", model) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "nowhere.jpg: this picture does not exist" in printed.err
    assert "100 %" not in printed.err
    assert printed.err.endswith("tellapart: no image could be read\n")


def test_pictures_of_other_formats_and_hidden_ones(
    model: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("x.HEIC", "inner/y.heic", "z.gif"):
        (pictures / name).write_bytes(b"")
    (pictures / ".thumbs").mkdir()
    for name in (".thumbs/a.jpg", "._a.jpg", ".thumbs/z.gif"):
        (pictures / name).write_bytes((pictures / "a.jpg").read_bytes())
    assert run(monkeypatch, pictures, "--model", model) == 0
    printed = capsys.readouterr()
    assert [Path(json.loads(line)["id"]).name for line in printed.out.splitlines()] == ["a.jpg", "b.png", "c.webp"]
    assert "3 files are not read (.heic, .gif): convert them to JPEG or PNG\n" in printed.err


# --- the shipped model ------------------------------------------------------------------------------------------------


@pytest.fixture
def ships(model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny model as the shipped captioner."""
    folder = model.parent / "shipped"
    folder.mkdir()
    model.rename(folder / "captioner")
    monkeypatch.setattr(shipped, "shipped_models", lambda: folder)
    return folder / "captioner"


def test_without_a_model_the_shipped_one_is_used(
    ships: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, pictures / "a.jpg") == 0
    row = json.loads(capsys.readouterr().out)
    assert [row] == caption([pictures / "a.jpg"]) == caption([pictures / "a.jpg"], ships)


def test_when_no_model_is_shipped(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shipped, "shipped_models", lambda: tmp_path / "none")
    assert run(monkeypatch, pictures / "a.jpg") == 2
    told = capsys.readouterr().err
    assert "no captioner comes with this copy of tellapart; install it again, or train a captioner" in told


def test_the_decoding_of_an_exported_model(model: Path, pictures: Path) -> None:
    description = json.loads((model / "model.json").read_text(encoding="utf-8"))
    description["decoding"] = {"beam": 1, "max_words": 2}
    (model / "model.json").write_text(json.dumps(description), encoding="utf-8")
    assert all(len(row["caption"].split()) <= 2 for row in caption([pictures], model))
    description["decoding"] = {"beam": 0}
    (model / "model.json").write_text(json.dumps(description), encoding="utf-8")
    with pytest.raises(RecipeError, match=r"decoding\.beam"):
        caption([pictures], model)


def test_a_line_for_each_picture_on_a_terminal(
    model: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {row["id"]: row["caption"] for row in caption([pictures], model)}
    monkeypatch.chdir(pictures)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run(monkeypatch, "a.jpg", "inner/c.webp", "--model", model) == 0
    printed = capsys.readouterr()
    names = {"a.jpg       ": "a.jpg", "inner/c.webp": "inner/c.webp"}
    expected = [f"{shown}  {said[str(pictures / name)]}" for shown, name in names.items()]
    assert printed.out.splitlines() == expected
    assert "captioning" not in printed.err, "the lines show the progress"


# --- many pictures ----------------------------------------------------------------------------------------------------


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Seven pictures, the fourth broken, in blocks of two."""
    monkeypatch.setattr(captioning, "BLOCK", 2)
    folder = tmp_path / "many"
    folder.mkdir()
    rng = np.random.default_rng(5)
    for number in range(7):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    (folder / "3.png").write_bytes(b"no picture")
    return folder


def test_an_interrupted_call_continues(
    model: Path, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = caption([many], model, on_skip=lambda _: None)
    out, decoded = tmp_path / "rows" / "captions.jsonl", []
    decode = captioning.decode

    def stop_at_third(*arguments: object) -> object:
        decoded.append(len(arguments))
        if len(decoded) == 3:
            raise KeyboardInterrupt
        return decode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(captioning, "decode", stop_at_third)
    assert run(monkeypatch, many, "--model", model, "--out", out) == 130
    assert "the same command continues" in capsys.readouterr().err
    assert not out.exists()
    (unfinished,) = out.parent.iterdir()
    assert sorted(path.name for path in unfinished.iterdir()) == ["images-000000000.json", "images-000000002.json"]
    assert run(monkeypatch, many, "--model", model, "--out", out) == 0
    assert len(decoded) == 3 + 2, "only the blocks that were missing"
    assert [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] == whole
    assert list(out.parent.iterdir()) == [out]
    assert "3.png: not a picture" in capsys.readouterr().err, "also of a block that was found"


def test_pieces_of_other_pictures_are_not_used(model: Path, many: Path, tmp_path: Path) -> None:
    out = tmp_path / "captions.jsonl"
    count = captioning.caption_to_file([many], out, model, on_skip=lambda _: None)
    assert count == 6
    first = out.read_text(encoding="utf-8")
    Image.new("RGB", (8, 8), "red").save(many / "0.png")
    assert captioning.caption_to_file([many], out, model, on_skip=lambda _: None) == 6
    assert out.read_text(encoding="utf-8") != first
    with pytest.raises(DataError, match=r"3\.png: not a picture"):
        captioning.caption_to_file([many], out, model)


def test_blocks_come_one_after_the_other(model: Path, many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than one block is read ahead of the one that is given."""
    opened: list[str] = []
    load = captioning.load_image
    monkeypatch.setattr(captioning, "load_image", lambda path, **o: (opened.append(path.name), load(path, **o))[1])
    blocks = captioning.caption_blocks([many], model)
    first = next(blocks)
    assert (first.done, first.images, len(first.rows)) == (2, 7, 2)
    assert len(opened) <= 4
    rest = list(blocks)
    assert [len(block.rows) for block in rest] == [1, 2, 1]
    assert len(rest[0].skipped) == 1


# --- outputs --------------------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captioning, "decode", lambda *_: pytest.fail("captioned before the outputs were checked"))
    monkeypatch.setattr(captioning, "decode_store", lambda *_: pytest.fail("captioned before the outputs were checked"))


@pytest.mark.usefixtures("no_decoding")
@pytest.mark.parametrize(
    ("out", "told"),
    [
        ("pictures/a.jpg", r"a\.jpg: is an input and is not overwritten; choose another --out"),
        ("pictures/inner/c.webp", r"c\.webp: exists and was not written by tellapart; choose another --out"),
        ("notes.txt", r"notes\.txt: exists and was not written by tellapart"),
        ("model/model.json", r"model\.json: exists and was not written by tellapart"),
        ("pictures", r"pictures: is an input and is not overwritten"),
        ("model", r"model: this is a folder, and a file is needed"),
        ("notes.txt/new/rows.jsonl", r"notes\.txt: this is a file, and a folder is needed"),
        ("rows.csv", r"rows\.csv: the ending tells what is written; use one of \.jsonl, _results\.json"),
        ("/dev/full", r"/dev/full: exists and was not written by tellapart"),
    ],
)
def test_an_output_that_is_the_users_is_refused_at_once(
    model: Path,
    pictures: Path,
    tmp_path: Path,
    out: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    before = contents(tmp_path)
    images = [pictures / "a.jpg", pictures]
    assert run(monkeypatch, *images, "--model", model, "--out", tmp_path / out) == 2
    assert re.search(rf"^tellapart: .*{told}", capsys.readouterr().err)
    assert contents(tmp_path) == before


@pytest.mark.usefixtures("no_decoding")
def test_the_data_set_is_not_overwritten(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.jsonl"
    row = {"id": "a", "image": "a.png", "caption": "a house", "log_prob": 0, "ended": True}
    data.write_text(json.dumps(row), encoding="utf-8")
    assert run(monkeypatch, "--data", data, "--model", model, "--out", data) == 2
    assert "data.jsonl: is an input and is not overwritten" in capsys.readouterr().err
    assert json.loads(data.read_text(encoding="utf-8")) == row


def test_captions_are_written_again(
    model: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "captions.jsonl"
    for images in ([pictures], [pictures / "a.jpg"]):
        assert run(monkeypatch, *images, "--model", model, "--out", out) == 0
    assert len(out.read_text(encoding="utf-8").splitlines()) == 1
    before = out.read_bytes()
    assert run(monkeypatch, tmp_path / "nowhere.jpg", "--model", model, "--out", out) == 2
    assert out.read_bytes() == before, "without captions nothing is written"


def test_overlays_replace_overlays_and_nothing_else(model: Path, pictures: Path, tmp_path: Path) -> None:
    looks = tmp_path / "looks"
    (looks / "2023-notes").mkdir(parents=True)
    (looks / "0001-b").mkdir()
    for name in ("2023-notes/letter.txt", "0001-b/letter.txt", "README.md"):
        (looks / name).write_text("mine", encoding="utf-8")
    for _ in range(2):
        caption([pictures / "a.jpg"], model, overlay=looks)
    assert (looks / "0001-a" / "sheet.png").exists()
    assert sorted(path.name for path in looks.iterdir()) == ["0001-a", "0001-b", "2023-notes", "README.md"]
    assert (looks / "0001-b" / "letter.txt").read_text(encoding="utf-8") == "mine"


@pytest.mark.usefixtures("no_decoding")
@pytest.mark.parametrize("name", ["0001-a/notes.txt", "0003-a/sheet.txt", "0002-b-2/01-mine.png", "0001-a"])
def test_overlays_are_not_written_over_the_users_files(model: Path, pictures: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / "looks" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine", encoding="utf-8")
    told = rf"{name.partition('/')[0]}: was not written by tellapart \(it holds {file.name}\); choose another --overlay"
    with pytest.raises(DataError, match=told):
        caption([pictures], model, overlay=tmp_path / "looks")
    with pytest.raises(DataError, match=r"a\.jpg: this is a file, and a folder is needed"):
        caption([pictures], model, overlay=pictures / "a.jpg")
    assert file.read_text(encoding="utf-8") == "mine"
    assert contents(tmp_path / "looks") == {name: b"mine"}


# --- decoding options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["beam", "diverse", "sample"])
def test_several_captions_for_each_picture(model: Path, pictures: Path, method: str) -> None:
    rows = caption([pictures], model, DecodingSettings(method=method, samples=3))
    assert all(list(row) == ["id", "caption", "log_prob", "ended"] for row in rows)
    assert [Path(row["id"]).name for row in rows] == ["a.jpg"] * 3 + ["b.png"] * 3 + ["c.webp"] * 3
    if method == "beam":
        assert len({row["caption"] for row in rows[:3]}) == 3


def test_a_picture_has_its_samples_whatever_else_is_captioned(model: Path, pictures: Path) -> None:
    settings = DecodingSettings(method="sample", samples=4, seed=3)
    alone = caption([pictures / "b.png"], model, settings)
    among_others = caption([pictures], model, settings)[4:8]
    assert [row["caption"] for row in among_others] == [row["caption"] for row in alone]


def test_models_speak_as_one(model: Path, pictures: Path, tmp_path: Path) -> None:
    alone = caption([pictures], model)
    twice = caption([pictures], [model, model])
    assert [row["caption"] for row in twice] == [row["caption"] for row in alone]
    other = AdaptiveAttention(AdaptiveAttentionSettings(hidden=6), Vocabulary(("a", "dog")), TinyEncoder.identity)
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(RecipeError, match="ensemble: captioner 2 has 'dog' where the first has 'red'"):
        caption([pictures], [model, tmp_path / "other"])


def test_the_command_takes_decoding_options(
    model: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--method", "sample", "--samples", 2, "--temperature", 0.7, "--top-p", 0.9, "--seed", 5]
    others = ["--set", "max_words=4", "--set", "block_repeats=true"]
    overlay = tmp_path / "overlay"
    assert run(monkeypatch, pictures, "--model", model, "--model", model, *options, *others, "--overlay", overlay) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    settings = DecodingSettings(
        method="sample", samples=2, temperature=0.7, top_p=0.9, seed=5, max_words=4, block_repeats=True
    )
    assert rows == caption([pictures], [model, model], settings)
    names = ["0001-a", "0001-a-2", "0002-b", "0002-b-2", "0003-c", "0003-c-2"]
    assert sorted(path.name for path in overlay.iterdir()) == names
    words = rows[1]["caption"].split()
    assert len(list((overlay / "0001-a-2").iterdir())) == len(words) + 1


def test_the_command_says_what_cannot_be(
    model: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, pictures, "--model", model, "--samples", 9) == 2
    assert "decoding: a beam of 3 cannot give 9 samples" in capsys.readouterr().err
    assert run(monkeypatch, pictures, "--model", model, "--set", "max_word=4") == 2
    assert "decoding.max_word: there is no such key; did you mean 'max_words'?" in capsys.readouterr().err


def test_a_split_of_a_data_set(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same captions as of its pictures; several models are an ensemble; the rows are what `evaluate` reads."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    rows = []
    for number in range(3):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
        split = "test" if number else "train"
        rows.append({"id": str(number), "image": f"{number}.png", "split": split, "caption": "a red house"})
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = captioning.caption_split("data.jsonl", model)
    assert [row["id"] for row in said] == ["1", "2"]
    assert [row["caption"] for row in said] == [row["caption"] for row in caption(["1.png", "2.png"], model)]
    settings = DecodingSettings(method="sample", samples=3)
    assert len(captioning.caption_split("data.jsonl", [model, model], decoding=settings)) == 6


# --- COCO's server ----------------------------------------------------------------------------------------------------


@pytest.fixture
def test2014(tmp_path: Path) -> Path:
    """Two images as COCO names them, in a list of images without captions."""
    folder = tmp_path / "coco" / "test2014"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in (16, 1):
        picture = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        picture.save(folder / f"COCO_test2014_{number:012}.jpg")
    images = [{"id": number, "file_name": f"COCO_test2014_{number:012}.jpg"} for number in (16, 1)]
    (tmp_path / "coco" / "annotations").mkdir()
    info = tmp_path / "coco" / "annotations" / "image_info_test2014.json"
    info.write_text(json.dumps({"images": images}), encoding="utf-8")
    return info


def test_a_result_file_for_the_server(
    model: Path, test2014: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "coco" / "test2014"
    out = tmp_path / "captions_test2014_tiny_results.json"
    said = {int(row["id"][-16:-4]): row["caption"] for row in caption([folder], model)}
    assert run(monkeypatch, folder, "--model", model, "--out", out) == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found == [{"image_id": number, "caption": said[number]} for number in (1, 16)]
    assert run(monkeypatch, "--data", test2014, "--model", model, "--out", out) == 0
    assert json.loads(out.read_text(encoding="utf-8")) == [found[1], found[0]], "in the order of the list"


@pytest.mark.usefixtures("no_decoding")
def test_what_the_server_would_refuse_is_refused_at_once(
    model: Path,
    pictures: Path,
    test2014: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "coco" / "test2014"
    (tmp_path / "rows_results.json").write_text('[{"id": "a", "caption": "mine"}]', encoding="utf-8")
    for arguments, told in (
        ([folder, pictures / "b.png", pictures / "a.jpg"], "b.png: this image has no COCO id"),
        (["--data", pictures], "a.jpg: this image has no COCO id"),
        ([folder, folder], "has the COCO id 1, and so has"),
        ([folder, "--samples", 2, "--beam", 2], "takes one caption per image; set samples to 1"),
        (["--data", test2014, "--samples", 2, "--beam", 2], "takes one caption per image; set samples to 1"),
        ([test2014], "this is not an image; caption the images of a data set with --data"),
        ([folder, "--out", "rows_results.json"], "rows_results.json: exists and was not written by tellapart"),
    ):
        assert run(monkeypatch, "--model", model, "--out", "new_results.json", *arguments) == 2
        assert told in capsys.readouterr().err
        assert not Path("new_results.json").exists()


def test_the_server_needs_every_image(
    model: Path, test2014: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "coco" / "test2014"
    (folder / "COCO_test2014_000000000001.jpg").write_bytes(b"no picture")
    assert run(monkeypatch, folder, "--model", model, "--out", "a_results.json") == 0
    assert "a_results.json: has no captions of 1 of 2 images; COCO's server takes only" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"skipped\.jsonl: 1 of 2 images cannot be read, and COCO's server"):
        caption_split(str(test2014), model, server=True)
