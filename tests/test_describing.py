"""`tellapart.load()`: pictures of any kind, captions, scores with each word's part; and scoring on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tellapart
from support.pictures import TinyEncoder, save_model, use_tiny_encoder
from support.tiny import make_retriever
from tellapart import cli, shipped
from tellapart.captioners.base import load_captioner
from tellapart.captioning import caption
from tellapart.decoding.settings import DecodingSettings
from tellapart.describing import Describer
from tellapart.errors import DataError, RunError
from tellapart.retrievers.ranking import Ranking
from tellapart.scoring import score_images
from tellapart.text import Vocabulary


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_tiny_encoder(monkeypatch)
    return save_model(tmp_path / "model", TinyEncoder.identity)


@pytest.fixture
def retriever(tmp_path: Path) -> Path:
    settings = make_retriever().settings
    torch.manual_seed(4)
    Ranking(settings, Vocabulary(("a", "red", "house")), TinyEncoder.identity).save_pretrained(tmp_path / "retriever")
    return tmp_path / "retriever"


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)


@pytest.fixture
def files(tmp_path: Path, pixels: np.ndarray) -> list[Path]:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, one in enumerate(pixels):
        Image.fromarray(one).save(folder / f"{number}.png")
    return sorted(folder.iterdir())


def test_pictures_of_any_kind_have_the_same_caption(model: Path, files: list[Path], pixels: np.ndarray) -> None:
    describer = tellapart.load(model)
    (row,) = caption(files[:1], model)
    kinds: list[Any] = [
        files[0],
        str(files[0]),
        files[0].read_bytes(),
        Image.open(files[0]),
        pixels[0],
        pixels[0] / 255,
        np.concatenate([pixels[0], np.full((8, 8, 1), 255, np.uint8)], axis=2),
    ]
    for kind in kinds:
        found = describer.caption(kind)
        assert str(found) == found.caption == row["caption"]
        assert found.log_prob == pytest.approx(row["log_prob"], rel=1e-4)
    assert [one.caption for one in describer.caption(kinds)] == [row["caption"]] * len(kinds)
    assert describer.caption([]) == []
    grey = describer.caption(np.zeros((4, 4)))
    assert grey.caption == describer.caption(Image.new("L", (4, 4))).caption


def test_many_pictures_and_another_decoding(model: Path, pixels: np.ndarray) -> None:
    describer = tellapart.load(model)
    found = describer.caption((pixels[number % 3] for number in range(70)), DecodingSettings(beam=1, max_words=2))
    assert len(found) == 70
    assert all(len(one.caption.split()) <= 2 for one in found)
    assert found[69].caption == found[0].caption


@pytest.mark.parametrize(
    ("picture", "told"),
    [
        (3.5, "picture 1: a float is not a picture"),
        (b"no picture", "picture 1: not a picture in a known format"),
        (np.zeros((2, 2, 5), np.uint8), r"picture 1: an array of shape \(2, 2, 5\) is not a picture"),
        (np.zeros((0, 2, 3), np.uint8), r"picture 1: an array of shape \(0, 2, 3\) is not a picture"),
        (np.full((2, 2, 3), 200.0), "floats of pixels must be from 0 to 1"),
        (np.full((2, 2, 3), np.nan), "floats of pixels must be from 0 to 1"),
        (np.zeros((2, 2, 3), np.int64), "pixels of type int64 are not read"),
        ("nowhere.jpg", "nowhere.jpg: this picture does not exist"),
    ],
)
def test_what_is_no_picture(model: Path, picture: Any, told: str) -> None:
    with pytest.raises(DataError, match=told):
        tellapart.load(model).caption([picture])


@pytest.mark.parametrize("nothing", [None, 3])
def test_what_is_neither_a_picture_nor_a_list(model: Path, nothing: Any) -> None:
    with pytest.raises(DataError, match=f"a {type(nothing).__name__} is not a picture; give a path"):
        tellapart.load(model).caption(nothing)


def test_a_missing_model_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="no model is here"):
        tellapart.load(tmp_path)
    monkeypatch.setattr(shipped, "shipped_models", lambda: tmp_path)
    with pytest.raises(RunError, match="no captioner comes with this copy of tellapart"):
        tellapart.load()


def test_a_score_is_the_sum_of_its_words(model: Path, files: list[Path]) -> None:
    describer, text = tellapart.load(model), "A red Zeppelin, a house"
    score = describer.score(files[0], text)
    assert [word.word for word in score.words] == ["a", "red", "zeppelin", "a", "house", "<end>"]
    assert [word.known for word in score.words] == [True, True, False, True, True, True]
    assert score.log_prob == pytest.approx(sum(word.log_prob for word in score.words), rel=1e-5)
    assert score.picture_adds == pytest.approx(sum(word.picture_adds for word in score.words), rel=1e-4, abs=1e-6)
    captioner, encoder = load_captioner(model), TinyEncoder()
    features = torch.from_numpy(encoder.encode([encoder.squeeze(Image.open(files[0]))]))
    both = torch.cat([features, torch.zeros_like(features)])
    with torch.no_grad():
        own, nothing = captioner.log_prob(
            captioner.encode(both), captioner.tokenize([text] * 2), torch.arange(2)
        ).tolist()
    assert score.log_prob == pytest.approx(own, rel=1e-5)
    assert score.picture_adds == pytest.approx(own - nothing, rel=1e-3, abs=1e-5)
    assert describer.score(files[0], "").words[0].word == "<end>"


def test_an_ensemble_and_another_score(model: Path, files: list[Path]) -> None:
    alone, twice = tellapart.load(model), Describer([model, model])
    assert twice.score(files[0], "a tree").log_prob == pytest.approx(alone.score(files[0], "a tree").log_prob, rel=1e-4)
    assert str(twice.caption(files[0])) == str(alone.caption(files[0]))


def test_telling_apart_is_given_these_models(
    model: Path, files: list[Path], retriever: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def stand_in(images: Any, model: Any, retriever: Any, **options: Any) -> str:
        given.update(images=images, model=model, retriever=retriever, **options)
        return "apart"

    monkeypatch.setattr(tellapart, "tell_apart", stand_in, raising=False)
    assert tellapart.load(model, retriever).tell_apart(files, weight=2) == "apart"
    assert given == {"images": files, "model": model, "retriever": retriever, "weight": 2}


def test_the_examples_of_the_pages(
    model: Path, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python blocks of the README and of the page, as they stand, with a tiny model as the shipped one."""
    (tmp_path / "models").mkdir()
    model.rename(tmp_path / "models" / "captioner")
    monkeypatch.setattr(shipped, "shipped_models", lambda: tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holiday").mkdir()
    for name in ("photo.jpg", "holiday/coffee.jpg", "a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(files[0].read_bytes())
    same = torch.tensor([-9.0])
    known = {
        **dict.fromkeys(("target_positive", "reference_positive", "positive_ratio"), same),
        **dict.fromkeys(("target_negative", "reference_negative", "negative_ratio"), same[:, None]),
        "cosines": torch.eye(2),
        "negatives": ~torch.eye(2, dtype=torch.bool),
    }
    root = Path(__file__).parents[1]
    pages = [(root / name).read_text(encoding="utf-8") for name in ("README.md", "docs/caption-your-photos.md")]
    blocks = [block.split("```")[0] for page in pages for block in page.split("```python\n")[1:]]
    executed = [block for block in blocks if "tellapart.train(" not in block]
    assert len(executed) == 4
    for block in executed:
        exec(block, dict(known))
    assert len(capsys.readouterr().out.splitlines()) == 7


# --- which of my pictures does this caption fetch? ------------------------------------------------------------------


def test_pictures_are_ranked_by_likelihood(model: Path, files: list[Path]) -> None:
    rows = score_images([files[0].parent], "a red house", model)
    assert [row["rank"] for row in rows] == [1, 2, 3]
    describer = tellapart.load(model)
    expected = {str(path): describer.score(path, "a red house").log_prob for path in files}
    assert [row["id"] for row in rows] == sorted(expected, key=lambda path: -expected[path])
    assert {row["id"]: row["log_prob"] for row in rows} == pytest.approx(expected, rel=1e-4)


def test_pictures_are_ranked_by_a_retriever(files: list[Path], retriever: Path, model: Path) -> None:
    rows = score_images([files[0].parent], "a red house", retriever=retriever)
    own = tellapart.load_retriever(retriever)
    encoder = TinyEncoder()
    features = torch.from_numpy(encoder.encode([encoder.squeeze(Image.open(path)) for path in files]))
    with torch.no_grad():
        expected = own.similarity(own.embed_images(features), own.embed_texts(["a red house"]))[:, 0].tolist()
    by_path = dict(zip(map(str, files), expected, strict=True))
    assert [row["similarity"] for row in rows] == pytest.approx(sorted(expected, reverse=True), rel=1e-4)
    assert {row["id"]: row["similarity"] for row in rows} == pytest.approx(by_path, rel=1e-4)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tellapart", "score", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = capsys.readouterr()
        return int(caught.value.code or 0), printed.out, printed.err

    return call


def test_the_command_prints_rows_in_a_pipe_and_tables_on_a_terminal(
    run: Any, model: Path, files: list[Path], retriever: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = files[0].parent
    (folder / "broken.png").write_bytes(b"no picture")
    status, out, err = run(folder, "--caption", "a red house", "--model", model)
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert rows == json.loads(json.dumps(score_images(files, "a red house", model)))
    assert "broken.png: not a picture" in err
    written = run(folder, "--caption", "a", "--model", model, "--out", tmp_path / "rows.jsonl")
    assert written[:2] == (0, "")
    assert written[2].endswith(f"wrote {tmp_path / 'rows.jsonl'}: 3 rows\n")
    assert len((tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()) == 3
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    _, out, _ = run(files[0], "--caption", "a red zeppelin", "--model", model)
    assert all(word in out for word in ("picture adds", "red", "zeppelin (unknown)", "<end>", "all"))
    _, out, _ = run(folder, "--caption", "a red house", "--retriever", retriever)
    assert "similarity" in out


def test_mistakes_of_the_command(run: Any, model: Path, files: list[Path], tmp_path: Path) -> None:
    status, _, err = run(files[0], "--caption", "a", "--model", model, "--retriever", model)
    assert status == 2
    assert "leave --model out" in " ".join(err.split())
    status, _, err = run(tmp_path / "nowhere.jpg", "--caption", "a", "--model", model)
    assert status == 2
    assert err.endswith("tellapart: no image could be read\n")
    status, _, err = run(files[0], "--caption", "a", "--retriever", model)
    assert status == 2
    assert "holds a captioner (adaptive-attention), and a retriever is needed here" in err
    status, _, err = run(files[0], "--caption", "a", "--model", model, "--out", tmp_path / "rows.csv")
    assert status == 2
    assert "rows.csv: the ending tells what is written; use .jsonl" in err
    status, _, err = run(files[0], "--caption", " ", "--model", model)
    assert status == 2
    assert "the caption has no words" in err


def test_the_shipped_model_of_another_kind(
    run: Any, model: Path, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "shipped_models", lambda: tmp_path / "shipped")
    (tmp_path / "shipped").mkdir()
    model.rename(tmp_path / "shipped" / "captioner")
    _, _, err = run(files[0], "--caption", "a", "--retriever", "shipped")
    assert err.endswith("and a retriever is needed here; use shipped/retriever\n")


def test_unknown_words_are_told(run: Any, model: Path, retriever: Path, files: list[Path]) -> None:
    asked = (files[0], "--caption", "a zeppelin, a red zeppelin")
    assert "the retriever does not know: zeppelin\n" in run(*asked, "--retriever", retriever)[2]
    assert "the captioner does not know: zeppelin\n" in run(*asked, "--model", model)[2]
    assert "know" not in run(files[0], "--caption", "a red house", "--retriever", retriever)[2]
