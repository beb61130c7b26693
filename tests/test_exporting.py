"""From a run to a folder to give away: weights in fewer bytes, the same captions, a card without gaps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tellapart import cli, exporting, shipped
from tellapart.captioners.base import load_captioner
from tellapart.captioning import caption
from tellapart.errors import RunError
from tellapart.evaluation.evaluate import evaluate
from tellapart.evaluation.evaluate_retrieval import evaluate_retrieval
from tellapart.exporting import Export, export
from tellapart.models import model_digest
from tellapart.retrievers.base import load_retriever
from tellapart.run import Run
from tellapart.training import train

DATA: dict[str, Any] = {"source": "scenes", "scenes": {"train": 8, "val": 4, "test": 3}, "min_count": 1}
TRAINING = {"steps": 12, "images_per_batch": 6, "validate_every": 12, "log_every": 6, "learning_rate": 0.01}
SECTIONS = ("## Measured", "## Data and terms", "## Limits", "## Failures", "## Recipe")


def train_tiny(folder: Path, name: str, **sections: Any) -> Run:
    data = {**DATA, "prepared": str(folder / "prepared")}
    recipe = {"name": name, "data": data, "training": TRAINING, **sections}
    (folder / f"{name}.yaml").write_text(json.dumps(recipe))
    return train(folder / f"{name}.yaml", runs=folder / "runs")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def captioner(place: Path) -> Run:
    run = train_tiny(
        place,
        "tiny-captioner",
        captioner={"name": "adaptive-attention", "hidden": 24, "embedding": 16, "attention": 8},
        objective={"name": "likelihood"},
        decoding={"max_words": 6, "beam": 2},
    )
    evaluate(run, metrics=["cider"], retrieval_images=3)
    return run


@pytest.fixture(scope="module")
def retriever(place: Path) -> Run:
    run = train_tiny(
        place,
        "tiny-retriever",
        retriever={"name": "ranking", "words": 8, "hidden": 8, "embedding": 8},
        objective={"name": "ranking-hinge", "negatives": 2},
    )
    evaluate_retrieval(run)
    return run


def size(folder: Path) -> int:
    return (folder / "model.safetensors").stat().st_size


@pytest.mark.parametrize("weights", ["float16", "int8"])
def test_the_same_captions_from_fewer_bytes(captioner: Run, tmp_path: Path, weights: Any) -> None:
    made = export(captioner, tmp_path / "model", weights)
    captioner.captioner.save_pretrained(tmp_path / "whole")
    assert made == Export(tmp_path / "model", "captioner", weights, made.same, 4, size(made.folder))
    assert size(made.folder) < size(tmp_path / "whole") * (0.52 if weights == "float16" else 0.35)
    pictures = sorted(captioner.data.dataset.root.rglob("*.png"))[:2]
    rows, whole = caption(pictures, made.folder), caption(pictures, captioner.folder)
    if weights == "float16":
        assert [row["caption"] for row in rows] == [row["caption"] for row in whole], "with the decoding of the recipe"
    loaded = load_captioner(made.folder)
    assert all(weight.dtype == torch.float32 for weight in loaded.parameters())
    assert rows[0]["log_prob"] == pytest.approx(whole[0]["log_prob"], rel=0.05)


def test_the_card_has_no_gaps(captioner: Run, tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("Ask us before you use it on the moon.", encoding="utf-8")
    made = export(captioner, tmp_path / "model", notes=notes)
    card = (made.folder / "README.md").read_text(encoding="utf-8")
    assert [section for section in (*SECTIONS, "## Notes") if section in card] == [*SECTIONS, "## Notes"]
    assert "tiny-captioner" in card
    scores = json.loads((captioner.folder / "scores.json").read_text(encoding="utf-8"))
    assert f"| CIDEr | {scores['corpus']['CIDEr']:.4f} | " in card
    assert "on the moon" in card
    assert "drawn by tellapart" in card
    assert str(tmp_path) not in card
    assert str(captioner.folder.parent) not in card, "no path of this machine"
    assert "None" not in card
    rows = [json.loads(line) for line in (captioner.folder / "per_image.jsonl").read_text().splitlines()]
    worst = min(rows, key=lambda row: (row["CIDEr"], row["id"]))
    assert f"| {worst['id']} | {worst['caption'] or '(empty)'} |" in card
    people = [caption for record in captioner.data.dataset.split("test") for caption in record.captions]
    said = {row["caption"] for row in rows}
    assert not any(f" {caption} " in card for caption in people if caption not in said), "they have their own terms"


def test_a_retriever(retriever: Run, tmp_path: Path) -> None:
    made = export(retriever, tmp_path / "model")
    assert made.kind == "retriever"
    assert made.weights in ("int8", "float16")
    loaded = load_retriever(made.folder)
    features = torch.from_numpy(retriever.data.store.grid([0, 1, 2]))
    own, whole = loaded.embed_images(features), retriever.retriever.embed_images(features)
    torch.testing.assert_close(own, whole, rtol=0.1, atol=0.05)
    card = (made.folder / "README.md").read_text(encoding="utf-8")
    assert all(section in card for section in SECTIONS)
    assert "| text_to_image_R@1 | " in card
    ranks = [row["rank"] for row in evaluate_retrieval(retriever).captions]
    missed = sum(rank > 1 for rank in ranks) / len(ranks)
    assert f"- {missed:.1%} of the captions do not find their picture among the first 1\n" in card


@pytest.mark.parametrize(("changed", "expected"), [(0, ("int8", 1.0, 4)), (1, ("float16", 1.0, 4))])
def test_int8_is_chosen_by_what_it_changes(
    captioner: Run, monkeypatch: pytest.MonkeyPatch, changed: int, expected: Any
) -> None:
    """A stand-in for decoding changes so many captions with int8 weights, and none with others."""

    def results(run: Run, model: Any, rows: list[int], captions: list[str]) -> list[bool]:
        whole = zip(run.model.parameters(), model.parameters(), strict=True)
        close = all(torch.equal(one.half(), two.half()) for one, two in whole)
        return [not close and place < changed for place in range(len(rows))]

    monkeypatch.setattr(exporting, "_results", results)
    assert exporting._choose(captioner, None) == expected


def test_a_run_without_figures(captioner: Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(captioner.folder, copy)
    (copy / "scores.json").unlink()
    with pytest.raises(RunError, match=r"scores\.json: this run was not measured, .* first: tellapart evaluate "):
        export(Run(copy, captioner.recipe), tmp_path / "model")
    assert not (tmp_path / "model").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match=r"mine: is not a model folder \(it holds letter\.txt\)"):
        export(captioner, tmp_path / "mine")


def test_damaged_files(captioner: Run, tmp_path: Path) -> None:
    export(captioner, tmp_path / "model", "int8")
    for name, damage, told in (
        ("model.safetensors", lambda content: content[: len(content) // 2], r"model\.safetensors cannot be read"),
        ("model.safetensors", lambda content: content.replace(b"::scale", b"::scalf"), "the weights do not fit"),
        ("model.json", lambda content: content[:-20], "model description is damaged"),
        ("vocabulary.json", lambda content: content[:-20], "vocabulary is damaged"),
    ):
        folder = tmp_path / "damaged"
        shutil.copytree(tmp_path / "model", folder)
        (folder / name).write_bytes(damage((folder / name).read_bytes()))
        with pytest.raises(Exception, match=told) as caught:
            load_captioner(folder)
        assert str(folder) in str(caught.value)
        shutil.rmtree(folder)


def test_the_command(
    captioner: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: Any) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["tellapart", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = capsys.readouterr()
        return int(caught.value.code or 0), printed.out, printed.err

    status, out, _ = run("export", captioner.folder, "--to", tmp_path / "models" / "captioner", "--weights", "float16")
    assert status == 0
    assert "captioner, float16, " in out
    assert "of the captions of 4 pictures are as in the run" in out
    status, _, err = run("export", captioner.folder, "--to", tmp_path / "other", "--weights", "int4")
    assert status == 2
    assert "'int4' is not a way to keep weights; give float32, float16, int8" in err
    # And it is found where shipped models are.
    monkeypatch.setattr(shipped, "shipped_models", lambda: tmp_path / "models")
    assert model_digest(Path("shipped")) == model_digest(tmp_path / "models" / "captioner")
    assert load_captioner("shipped").vocabulary.tokens == captioner.captioner.vocabulary.tokens
    with pytest.raises(RunError, match="no retriever comes with this copy of tellapart"):
        load_retriever("shipped/retriever")
