"""Models of Hugging Face in every command: from a folder, or from the hub (a stand-in) if the user asks for it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from support.dual_encoders import make_folder as make_dual
from support.huggingface import make_captioner, make_folder
from tellapart.captioning import caption
from tellapart.cli import main
from tellapart.describing import load
from tellapart.errors import RecipeError, RunError, StoreError
from tellapart.huggingface import hub
from tellapart.index.retriever import open_retriever
from tellapart.models import read_description
from tellapart.telling_apart.tell import tell_apart

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BLIP, CLIP = "someone/tiny-blip", "someone/tiny-clip"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of tiny models, as on the hub: with files that are never to be downloaded."""
    place = tmp_path_factory.mktemp("hub")
    found = {BLIP: make_folder(place / "blip", "blip"), CLIP: make_dual(place / "clip", "clip")}
    for folder in found.values():
        (folder / "modeling_own.py").write_text("raise SystemExit")
        (folder / "pytorch_model.bin").write_bytes(b"pickle")
        (folder / "onnx").mkdir()
        (folder / "onnx" / "config.json").write_text("{}")
    return found


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(3):
        pixels = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    return tmp_path / "photos"


@dataclass
class Hub:
    """Stands in for huggingface_hub: serves folders, and notes what was asked for."""

    folders: dict[str, Path]
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def model_info(self, id: str, revision: str | None = None) -> Any:
        self.asked.append((id, revision))
        if id not in self.folders:
            raise OSError("404 Client Error")
        names = [path.relative_to(self.folders[id]).as_posix() for path in self.folders[id].rglob("*")]
        siblings = [type("File", (), {"rfilename": name}) for name in names]
        return type("Info", (), {"sha": COMMIT, "siblings": siblings})

    def snapshot_download(self, id: str, revision: str | None = None, **options: Any) -> str:
        if options.get("local_files_only"):
            raise OSError("not in the cache")
        assert revision == COMMIT, "the commit is pinned"
        target = Path(options["local_dir"])
        for path in self.folders[id].rglob("*"):
            name = path.relative_to(self.folders[id]).as_posix()
            if path.is_file() and any(fnmatch(name, pattern) for pattern in options["allow_patterns"]):
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target / name)
        return str(target)


@pytest.fixture
def online(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    import huggingface_hub

    served = Hub(folders)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: served)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", served.snapshot_download)
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    return served


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["tellapart", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_folder_captions_as_the_model_itself(folders: dict[str, Path], photos: Path, online: Hub) -> None:
    rows = caption([photos], folders[BLIP])
    assert len(rows) == 3
    own = make_captioner(folders[BLIP], "blip")
    picture = Image.open(photos / "0.png")
    encoder = own.open_encoder()
    features = torch.from_numpy(encoder.encode([encoder.squeeze(picture)]))
    tokens = own.tokenize(["a red house near a tree"])
    with torch.no_grad():
        expected = own.log_prob(own.encode(features), tokens, torch.zeros_like(tokens[:, 0])).item()
    describer = load(folders[BLIP])
    assert describer.score(picture, "a red house near a tree").log_prob == pytest.approx(expected, rel=1e-4)
    assert describer.models == load(folders[BLIP]).models, "made once"
    assert not online.asked


def test_a_folder_of_clip_says_how_generic_a_caption_is(
    folders: dict[str, Path],
    photos: Path,
    online: Hub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("a red house\n")
    asked = ("retrieval-entropy", photos, "--retriever", folders[CLIP], "--captions", "mine.txt")
    assert run(monkeypatch, *asked) == 0
    told = capsys.readouterr().out
    assert "3 images without captions, judged by clip" in told
    assert "It is not known what clip was trained on." in told


def test_a_named_model_is_downloaded_once_and_only_if_asked_for(
    photos: Path, online: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "caption", photos, "--model", BLIP) == 2
    assert f"{BLIP}: there is no such folder; if it is the name of a model on the Hugging Face hub, add --download" in (
        capsys.readouterr().err
    )
    assert not online.asked
    assert run(monkeypatch, "caption", photos, "--model", BLIP, "--download") == 0
    first = capsys.readouterr().out
    assert len(first.splitlines()) == 3
    assert online.asked == [(BLIP, None)]
    assert run(monkeypatch, "caption", photos, "--model", BLIP) == 0
    assert capsys.readouterr().out == first
    assert run(monkeypatch, "caption", photos, "--model", BLIP, "--download") == 0
    assert len(online.asked) == 1, "what is here is not asked for again"


def test_the_commit_is_recorded_and_no_code_is_downloaded(online: Hub, tmp_path: Path) -> None:
    folder = hub.locate(BLIP, download=True)
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not {name for name in names if name.endswith((".py", ".bin"))}
    assert not (folder / "onnx").exists()
    assert json.loads((folder / "downloaded.json").read_text())["revision"] == COMMIT
    description = read_description(hub.find_usable(BLIP, "captioner"))
    assert description["history"] == {"recipe": BLIP, "hub": f"{BLIP}@{COMMIT}"}
    assert hub.locate(f"{BLIP}@{COMMIT}") == folder, "by its commit too"


def test_a_revision_is_asked_for(online: Hub) -> None:
    hub.locate(f"{BLIP}@refs/pr/3", download=True)
    assert online.asked == [(BLIP, "refs/pr/3")]
    assert hub.locate(f"{BLIP}@refs/pr/3").name.endswith(COMMIT)
    with pytest.raises(RunError, match="add --download"):
        hub.locate(BLIP)


def test_telling_apart_with_both_from_the_hub(online: Hub, photos: Path) -> None:
    for name in (BLIP, CLIP):
        hub.locate(name, download=True)
    told = tell_apart([photos], BLIP, CLIP)
    assert told.ranked_by == "retriever"
    assert len(told.pictures) == 3
    assert load(BLIP, CLIP).similarities([photos / "0.png"], "a red house")[0] == pytest.approx(0, abs=1)
    assert open_retriever(hub.locate(CLIP)).name == "hf-clip"


@pytest.mark.parametrize(
    ("named", "kind", "message"),
    [
        (CLIP, "captioner", r"holds a model of type 'clip'; a captioner is BLIP, GIT or an encoder-decoder"),
        (BLIP, "retriever", r"holds a model of type 'blip'; a retriever is CLIP or SigLIP"),
        ("someone/nothing", "captioner", r"someone/nothing: the model cannot be read .*check its name and the conn"),
    ],
)
def test_another_model_is_one_line(online: Hub, named: str, kind: str, message: str) -> None:
    with pytest.raises((RecipeError, StoreError), match=message):
        hub.find_usable(named, kind, download=True)


def test_a_model_without_safetensors_is_refused(online: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    for name in ("config.json", "pytorch_model.bin"):
        (folder / name).write_text("{}")
    online.folders = {"someone/old": folder}
    with pytest.raises(StoreError, match=r"someone/old: holds no weights in safetensors .* a revision that has them"):
        hub.locate("someone/old", download=True)


def test_download_needs_a_name(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "caption", photos, "--download") == 2
    assert "name one with --model" in " ".join(capsys.readouterr().err.split())


def test_folders_of_tellapart_are_left_alone(tmp_path: Path) -> None:
    assert hub.find_usable("shipped", "captioner") == hub.find_model("shipped")
    (tmp_path / "runs").mkdir()
    assert hub.find_usable(tmp_path / "runs", "captioner") == tmp_path / "runs"
    assert hub.locate("nowhere") == Path("nowhere")
