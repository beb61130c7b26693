"""From pictures to captions that tell them apart: the function, the command, and mistakes."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tellapart import cli, shipped
from tellapart.errors import DataError, RunError
from tellapart.telling_apart import tell
from tellapart.telling_apart.settings import TellApartSettings
from tellapart.telling_apart.tell import ToldPicture, tell_apart

Models = tuple[Path, Path]
SETTINGS = TellApartSettings(threshold=0.85, samples=4, retrieval=2.0, likelihood=1.0)


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["tellapart", "tell-apart", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def test_similar_pictures_are_told_apart(models: Models, photos: Path) -> None:
    (photos / "broken.jpg").write_bytes(b"no picture")
    skipped: list[DataError] = []
    told = tell_apart([photos], *models, SETTINGS, on_skip=skipped.append)
    assert told.groups[0] == [
        ToldPicture(str(photos / "blue.png"), 1, "a blue house", ["blue"], 1, "a house", 2, 2, "beam"),
        ToldPicture(str(photos / "red.png"), 1, "a red house", ["red"], 1, "a house", 2, 2, "beam"),
    ]
    (alone,) = told.groups[1]
    assert (alone.caption, alone.rank, alone.of, alone.words, alone.group) == ("a house", 1, 1, [], 2)
    assert told.ranked_by == "retriever"
    assert [str(error) for error in skipped] == told.skipped
    assert "broken.jpg: not a picture in a known format" in told.skipped[0]


def test_words_that_all_captions_share_are_not_marked(models: Models, photos: Path) -> None:
    nothing = {"contrast": (), "samples": 0, "fluency": 0.0, "retrieval": 0.0, "likelihood": 0.0, "truth": 0.0}
    told = tell_apart([photos / "red.png", photos / "green.jpg"], *models, TellApartSettings(one_group=True, **nothing))
    assert [(one.caption, one.words) for one in told.pictures] == [("a house", []), ("a house", [])]


def test_without_a_retriever_the_captioner_ranks(models: Models, photos: Path) -> None:
    told = tell_apart([photos / "red.png", photos / "blue.png"], models[0], None, SETTINGS)
    assert told.ranked_by == "captioner"
    assert [(one.caption, one.rank) for one in told.pictures] == [("a red house", 1), ("a blue house", 1)]


def test_images_of_pillow_and_repeated_files(models: Models, photos: Path) -> None:
    red, blue = photos / "red.png", photos / "blue.png"
    told = tell_apart([red, Image.open(blue), str(red)], [models[0], models[0]], None, SETTINGS)
    assert [(one.id, one.caption) for one in told.pictures] == [
        (str(red), "a red house"),
        ("picture 2", "a blue house"),
    ]


def test_blocks_and_large_groups_change_nothing(models: Models, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        Image.new("RGB", (8, 8), (40 * number, 90, 200 - 40 * number)).save(photos / f"{number}.png")
    for settings in (SETTINGS, SETTINGS.model_copy(update={"one_group": True})):
        whole = tell_apart([photos], *models, settings)
        assert settings.one_group == (len(whole.groups) == 1)
        with monkeypatch.context() as patched:
            patched.setattr(tell, "BLOCK", 2)
            assert tell_apart([photos], *models, settings) == whole


def test_an_interrupted_call_continues(models: Models, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished blocks are kept until the end, unless a picture has changed."""
    monkeypatch.setattr(tell, "BLOCK", 1)
    done: list[int] = []

    def stop(count: int, of: int) -> None:
        done.append(count)
        if len(done) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tell_apart([photos], *models, SETTINGS, on_progress=stop)
    kept = list((photos.parent / "cache" / "tell-apart").rglob("*.json"))
    assert len(kept) == 1
    text = kept[0].read_text().replace("a blue house", "a house that was kept")
    kept[0].write_text(text)
    told = tell_apart([photos], *models, SETTINGS)
    assert "a house that was kept" in [one.caption for one in told.pictures]
    assert not list((photos.parent / "cache" / "tell-apart").rglob("*.json"))
    assert "a blue house" in [one.caption for one in tell_apart([photos], *models, SETTINGS).pictures]


def test_captions_of_anyone_take_part(models: Models, photos: Path, tmp_path: Path) -> None:
    path = tmp_path / "captions.jsonl"
    path.write_text('{"image": "red.png", "captions": ["A red, red house!"]}\n')
    only = {"contrast": (), "samples": 0, "fluency": 0.0, "truth": 0.0, "likelihood": 0.0}
    told = tell_apart([photos], *models, SETTINGS.model_copy(update=only), candidates=path)
    assert [(one.caption, one.source, one.words) for one in told.groups[0]] == [
        ("a blue house", "beam", ["blue"]),
        ("A red, red house!", "given", ["red"]),
    ]


@pytest.mark.parametrize(
    ("images", "told"),
    [
        ([], "no image was given"),
        (["nowhere.jpg"], r"no image could be read: nowhere\.jpg: this picture does not exist"),
    ],
)
def test_no_picture(models: Models, images: list[str], told: str) -> None:
    with pytest.raises(DataError, match=told):
        tell_apart(images, *models)


@pytest.mark.parametrize("one_group", [True, False])
def test_the_same_picture_twice_counts_once(models: Models, photos: Path, one_group: bool) -> None:
    """It is not told from itself; a copy has the row of the first one and says so."""
    (photos / "again.jpg").write_bytes((photos / "red.png").read_bytes())
    (photos / "blue.png").unlink()
    red, again, green = photos / "red.png", photos / "again.jpg", photos / "green.jpg"
    settings = SETTINGS.model_copy(update={"one_group": one_group})
    told = tell_apart([green, red, Image.open(red), again], *models, settings)
    rows = {one.id: one for one in told.pictures}
    assert {one.of for one in told.pictures} == {2 if one_group else 1}
    for copy in ("picture 3", str(again)):
        assert rows[copy] == replace(rows[str(red)], id=copy, same_as=str(red))
    assert rows[str(red)].same_as is rows[str(green)].same_as is None
    assert rows[str(red)].rank == 1
    assert len(told.groups) == (1 if one_group else 2)


def test_candidates_are_read_before_the_work(models: Models, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tell, "_look", lambda *_: pytest.fail("encoded before the candidates were read"))
    with pytest.raises(DataError, match=r"nowhere\.jsonl: this caption file does not exist"):
        tell_apart([photos], *models, candidates="nowhere.jsonl")


def test_shipped_models_are_the_default(models: Models, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "shipped_models", lambda: models[0].parent)
    named, by_default = tell_apart([photos], *models, SETTINGS), tell_apart([photos], settings=SETTINGS)
    assert by_default == named


def test_no_model(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "shipped_models", lambda: tmp_path / "none")
    with pytest.raises(RunError, match="no captioner comes with this copy of tellapart"):
        tell_apart([photos])
    with pytest.raises(DataError, match="give a list of images"):
        tell_apart(str(photos))


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_rows(
    models: Models, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "broken.jpg").write_bytes(b"")
    options = ["--model", models[0], "--retriever", models[1], "--threshold", "0.85", "--set", "retrieval=2"]
    assert command(monkeypatch, photos, *options) == 0
    printed = capsys.readouterr()
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert [row["caption"] for row in rows] == ["a blue house", "a red house", "a house"]
    assert "skipped: " in printed.err
    assert "broken.jpg" in printed.err


def test_the_command_writes_a_page_and_sidecars(
    models: Models, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = photos.parent / "page.html"
    assert command(monkeypatch, photos, "--model", models[0], "--one-group", "--out", page, "--sidecars") == 0
    printed = capsys.readouterr()
    assert re.fullmatch(
        rf"wrote {page}\n3 of 3 pictures are like others; plain captions find [0-3] of them, distinctive ones [0-3]\n",
        printed.out,
    )
    assert "wrote 3 sidecars, such as " in printed.err
    assert page.read_text(encoding="utf-8").count("<figure") == 3
    assert {path.name for path in photos.glob("*.xmp")} == {"red.xmp", "blue.xmp", "green.xmp"}
    assert command(monkeypatch, photos, "--model", models[0], "--one-group", "--out", page, "--sidecars") == 0


def test_the_command_without_similar_pictures(
    models: Models, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "again.png").write_bytes((photos / "red.png").read_bytes())
    (photos / "x.gif").write_bytes(b"")
    page = photos.parent / "PAGE.HTML"
    assert command(monkeypatch, photos, "--model", models[0], "--threshold", "1", "--out", page) == 0
    printed = capsys.readouterr()
    told = "no similar pictures: plain captions kept; 1 more is the same as another one"
    assert printed.out == f"wrote {page}\n{told}\n"
    assert "1 file is not read (.gif)" in printed.err
    assert page.read_text(encoding="utf-8").count("<figure") == 3
    assert command(monkeypatch, photos, "--model", models[0], "--threshold", "1", "--out", page) == 0


def test_sidecars_alone_print_the_rows_too(
    models: Models, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, photos / "red.png", "--model", models[0], "--sidecars") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["caption"] == "a house"
    assert f"wrote 1 sidecar, {photos / 'red.xmp'}" in printed.err


def test_the_command_names_what_cannot_be_read(
    models: Models, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "broken.jpg").write_bytes(b"no picture")
    page = photos.parent / "page.html"
    images = [photos / "nothere.jpg", photos / "broken.jpg"]
    assert command(monkeypatch, *images, "--model", models[0], "--out", page) == 2
    told = capsys.readouterr().err
    assert "nothere.jpg: this picture does not exist" in told
    assert "broken.jpg: not a picture" in told
    assert told.endswith("tellapart: no image could be read\n")
    assert "100 %" not in told
    assert not page.exists()


def test_a_cache_folder_that_cannot_be_used(
    models: Models, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos.parent / "cache-file").write_text("mine")
    monkeypatch.setenv("TELLAPART_CACHE", str(photos.parent / "cache-file"))
    assert command(monkeypatch, photos, "--model", models[0], "--one-group") == 2
    assert "this is in the cache folder, choose another one with the environment variable TELLAPART_CACHE" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "page.txt"], "page.txt: the ending tells what is written"),
        (["--out", "photos/red.png"], "red.png: the ending tells what is written"),
        (["--one-group", "--group-size", "5"], "--one-group cannot be combined"),
        (["--endpoint", "http://localhost:1/v1"], "--endpoint and --endpoint-model go together"),
        (["--endpoint", "file:///etc/passwd", "--endpoint-model", "x"], "is not an address"),
        (["--set", "truht=1"], "truht: there is no such key; did you mean 'truth'?"),
        (["--threshold", "3"], "threshold: Input should be less than or equal to 1"),
        (["--candidates", "nowhere.jsonl"], "nowhere.jsonl: this caption file does not exist"),
        (["--retriever", "photos"], "no model is here"),
        (["--sidecars"], "red.xmp: exists and was not written by tellapart"),
    ],
)
def test_mistakes(
    models: Models,
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(photos.parent)
    monkeypatch.setenv("COLUMNS", "200")
    (photos / "red.xmp").write_text("<mine/>")
    assert command(monkeypatch, "photos", "--model", models[0], *options) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert "Traceback" not in printed.err
    assert (photos / "red.xmp").read_text() == "<mine/>"
    assert {path.name for path in photos.iterdir()} == {"red.png", "blue.png", "green.jpg", "red.xmp"}
