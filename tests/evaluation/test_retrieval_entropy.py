"""Retrieval entropy: against the whole matrix, in any blocks, kept, continued, and cross-fitted by two halves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from tellapart import cli
from tellapart.data.halves import half_of
from tellapart.data.settings import DataSettings
from tellapart.errors import DataError, RunError
from tellapart.evaluation import entropy_sums
from tellapart.evaluation import retrieval_entropy as module
from tellapart.evaluation.entropy_sums import EntropySums, vector_entropies
from tellapart.evaluation.generic_captions import describe_judges, describe_truth
from tellapart.evaluation.retrieval_entropy import (
    EntropyJudge,
    RetrievalEntropy,
    caption_entropies,
    percentiles_among,
    retrieval_entropy,
)
from tellapart.evaluation.true_listener import open_true_listener
from tellapart.files import read_jsonl
from tellapart.run import Run
from tellapart.training import train


def vectors(count: int, width: int, seed: int, length: float = 1.0) -> NDArray[np.float32]:
    drawn = np.random.default_rng(seed).standard_normal((count, width))
    return (length * drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def naive(images: NDArray[np.float32], captions: NDArray[np.float32], temperature: float) -> NDArray[np.float64]:
    """H = −Σ p ln p, caption by caption in float64."""
    found = []
    for caption in captions.astype(np.float64):
        scores = images.astype(np.float64) @ caption / temperature
        weights = np.exp(scores - scores.max())
        p = weights / weights.sum()
        found.append(-sum(one * np.log(one) for one in p if one > 0))
    return np.array(found)


# --- the entropy of vectors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.01, 0.05, 1.0])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 7), (16, 5), (1024, 2048)])
def test_it_is_that_of_the_whole_matrix(
    temperature: float, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entropy_sums, "CAPTIONS", rows)
    monkeypatch.setattr(entropy_sums, "IMAGES", columns)
    images, captions = vectors(53, 24, 0), vectors(17, 24, 1)
    # A float32 score is wrong by about 1e-6 / τ, and so is H.
    np.testing.assert_allclose(
        vector_entropies(images, captions, temperature), naive(images, captions, temperature), atol=2e-6 / temperature
    )


def test_very_sharp_and_very_flat_captions() -> None:
    """Scores far beyond what exp can hold, in rising and in falling order."""
    images = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    for order in (images, images[::-1].copy()):
        found = vector_entropies(order, np.array([[1.0], [-1.0], [0.0]], np.float32), 1e-4)
        np.testing.assert_allclose(found, [0, 0, np.log(40)], atol=1e-6)


def test_the_order_of_images_and_captions_does_not_matter() -> None:
    images, captions = vectors(300, 16, 2), vectors(60, 16, 3)
    found = vector_entropies(images, captions)
    drawn = np.random.default_rng(4)
    one, other = drawn.permutation(300), drawn.permutation(60)
    np.testing.assert_allclose(vector_entropies(images[one], captions[other]), found[other], atol=1e-3)


def test_a_diverged_retriever_is_an_error() -> None:
    for value in (np.nan, np.inf):
        with pytest.raises(DataError, match="diverged"):
            EntropySums(1).add(torch.tensor([[0.0, value]]))


def test_percentiles_are_among_captions_of_one_judge() -> None:
    judge = np.array([0, 1, 0, 1, 0])
    found = RetrievalEntropy(np.array([1.0, 9.0, 2.0, 8.0, 2.0]), judge, judge == 5, []).percentiles()
    assert found.tolist() == pytest.approx([1 / 6, 3 / 4, 4 / 6, 1 / 4, 4 / 6])
    assert percentiles_among(np.array([5.0]), np.array([5.0, 5.0])).tolist() == [0.5]


# --- of a data set --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    data = {
        "source": "scenes",
        "scenes": {"train": 30, "val": 4, "test": 6},
        "min_count": 1,
        "prepared": str(folder / "prepared"),
    }
    training = {"steps": 3, "images_per_batch": 4, "validate_every": 3, "log_every": 3}
    ranking = {
        "name": "ranking",
        "data": data,
        "retriever": {"name": "ranking", "words": 6, "hidden": 6, "embedding": 8},
        "objective": {"name": "ranking-hinge", "negatives": 2},
        "training": training,
    }
    scan = {**ranking, "name": "scan", "retriever": {"name": "scan", "words": 6, "width": 8}}
    scan |= {"objective": {"name": "coder", "loss": "triplet"}}
    mle = {
        "name": "mle",
        "data": data,
        "captioner": {"name": "neuraltalk", "hidden": 8, "embedding": 8},
        "objective": {"name": "likelihood"},
        "training": training,
    }
    for recipe in (ranking, scan, mle):
        (folder / f"{recipe['name']}.yaml").write_text(json.dumps(recipe))
    return folder


@pytest.fixture(scope="module")
def runs(place: Path) -> list[Run]:
    """A retriever of all training images, and those of the two halves."""
    changes: list[list[str]] = [[], ["data.half=1"], ["data.half=2"]]
    return [train(place / "ranking.yaml", *change, runs=place / "runs") for change in changes]


def expected(run: Run, records: list, pool: list[int], temperature: float = 0.01) -> NDArray[np.float64]:  # type: ignore[type-arg]
    retriever, store = run.retriever, run.data.store
    with torch.no_grad():
        images = retriever.embed_images(torch.from_numpy(store.grid(pool)))
        texts = retriever.embed_texts([caption for record in records for caption in record.captions])
        scores = retriever.similarity(images, texts).double() / temperature
    p = scores.softmax(dim=0)
    return torch.special.entr(p).sum(dim=0).numpy()


def test_each_half_is_judged_by_the_retriever_of_the_other(runs: list[Run]) -> None:
    whole, first, second = runs
    trained = [[record.id for record in run.data.dataset.split("train")] for run in runs]
    assert set(trained[1]) | set(trained[2]) == set(trained[0])
    assert not set(trained[1]) & set(trained[2])
    records = whole.data.dataset.split("train")
    rows = [whole.data.dataset.row(record.id) for record in records]
    found = retrieval_entropy([first, second])
    assert found.cross_fitted
    assert found.images == 30
    by = [expected(run, records, rows) for run in (first, second)]
    half = np.array([half_of(record) for record in records for _ in record.captions])
    np.testing.assert_allclose(found.entropies, np.where(half == 2, by[0], by[1]), atol=1e-3)
    assert (found.judge == np.where(half == 2, 0, 1)).all()
    np.testing.assert_array_equal(caption_entropies([second, first]), found.entropies)


def test_one_retriever_is_not_cross_fitted(runs: list[Run]) -> None:
    whole, first, _ = runs
    assert retrieval_entropy([whole]).seen.all()
    alone = retrieval_entropy([first])
    half = [half_of(record) for record in whole.data.dataset.split("train") for _ in record.captions]
    assert alone.seen.tolist() == [one == 1 for one in half]
    assert retrieval_entropy([whole], split="test").cross_fitted, "it was not trained on these"


def test_what_a_start_was_trained_on_counts(place: Path, runs: list[Run]) -> None:
    recipe = {"name": "more", "start": {"from": str(runs[0].folder)}, "objective": {"name": "ranking-hinge"}}
    recipe |= {"data": {"half": 1}, "training": {"steps": 1, "images_per_batch": 4}}
    (place / "more.yaml").write_text(json.dumps(recipe))
    more = train(place / "more.yaml", runs=place / "runs")
    assert retrieval_entropy([more]).seen.all()


def test_pool_and_temperature(runs: list[Run]) -> None:
    whole = runs[0]
    records, dataset = whole.data.dataset.split("train"), whole.data.dataset
    judge = EntropyJudge.open(whole, None, "train", pool=7, temperature=0.3)
    assert len(set(judge.pool)) == 7
    assert judge.pool == sorted(judge.pool)
    assert set(judge.pool) <= {dataset.row(record.id) for record in records}
    assert set(judge.pool) < set(EntropyJudge.open(whole, None, "train", pool=8).pool)
    found = retrieval_entropy([whole], pool=7, temperature=0.3)
    assert found.images == 7
    np.testing.assert_allclose(found.entropies, expected(whole, records, judge.pool, 0.3), atol=1e-5)
    with pytest.raises(DataError, match="a pool of 31 images cannot be drawn from 30"):
        retrieval_entropy([whole], pool=31)
    with pytest.raises(DataError, match="temperature must be above 0"):
        retrieval_entropy([whole], temperature=0.0)


def test_a_retriever_that_compares_pair_by_pair(place: Path) -> None:
    scan = train(place / "scan.yaml", runs=place / "runs")
    dataset = scan.data.dataset
    records = dataset.split("test")
    rows = [dataset.row(record.id) for record in records]
    np.testing.assert_allclose(caption_entropies([scan], split="test"), expected(scan, records, rows), atol=1e-3)


def test_interrupted_and_continued(runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once = caption_entropies([runs[0]], folder=tmp_path / "once")
    monkeypatch.setattr(module, "BLOCK", 40)
    with monkeypatch.context() as patched:
        own, calls = EntropyJudge.entropies, []

        def stops(self: EntropyJudge, captions: list[str]) -> NDArray[np.float64]:
            calls.append(captions)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return own(self, captions)

        patched.setattr(EntropyJudge, "entropies", stops)
        with pytest.raises(KeyboardInterrupt):
            caption_entropies([runs[0]], folder=tmp_path / "stopped")
    shown: list[int] = []
    found = caption_entropies(
        [runs[0]],
        folder=tmp_path / "stopped",
        on_progress=lambda what, done, of: shown.append(done) if what.startswith("measuring") else None,
    )
    assert shown[0] == 80, "two blocks were there"
    np.testing.assert_allclose(found, once, atol=1e-3)
    shown.clear()
    np.testing.assert_array_equal(
        caption_entropies([runs[0]], folder=tmp_path / "stopped", on_progress=lambda *_: shown.append(0)), found
    )
    assert not shown, "all of it was there"


def test_a_captioner_and_other_data_are_refused(place: Path, runs: list[Run]) -> None:
    mle = train(place / "mle.yaml", runs=place / "runs")
    with pytest.raises(RunError, match="a captioner has no similarities"):
        retrieval_entropy([mle])
    with pytest.raises(RunError, match="at least one"):
        retrieval_entropy([])


# --- the command ----------------------------------------------------------------------------------------------------


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Status, and what is printed on both streams."""
    monkeypatch.setattr("sys.argv", ["tellapart", "retrieval-entropy", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    streams = capsys.readouterr()
    return int(ended.value.code or 0), streams.out + streams.err


def test_command_lists_both_ends(
    runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two = ("--retriever", runs[1].folder, "--retriever", runs[2].folder)
    files = ("--out", tmp_path / "rows.jsonl", "--gallery", tmp_path / "page.html")
    status, text = command(monkeypatch, capsys, "scenes", *two, "--show", 3, *files)
    assert status == 0
    assert "No caption was judged by a retriever that was trained on it" in text
    rows = read_jsonl(tmp_path / "rows.jsonl")
    found = retrieval_entropy(runs[1:])
    assert sorted(row["entropy"] for row in rows) == pytest.approx(sorted(found.entropies), abs=1e-5)
    assert [row["percentile"] for row in rows] == sorted((row["percentile"] for row in rows), reverse=True)
    assert {row["retriever"] for row in rows} == {run.folder.name for run in runs[1:]}
    assert not any(row["seen"] for row in rows)
    listed = text.splitlines()
    assert rows[0]["caption"] in listed[2]
    assert any(rows[-1]["caption"] in line for line in listed[listed.index("the most specific") :])
    page = (tmp_path / "page.html").read_text()
    assert page.count('<div class="query">') == 6
    assert page.count("data:image/jpeg") == 6 * 6, "its own picture, and the five that fit best"
    # The same files are written again, those of others are not.
    assert command(monkeypatch, capsys, "scenes", *two, *files)[0] == 0
    (tmp_path / "mine.jsonl").write_text('{"caption": "a dog"}\n')
    status, text = command(monkeypatch, capsys, "scenes", *two, "--out", tmp_path / "mine.jsonl")
    assert (status, "was not written by tellapart" in text) == (2, True)


def test_command_says_how_generic_anyones_captions_are(
    runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("a red square\n\n a circle \n")
    two = ("--retriever", runs[1].folder, "--retriever", runs[2].folder)
    asked = ("--captions", tmp_path / "mine.txt", "--out", tmp_path / "rows.jsonl", "--gallery", tmp_path / "p.html")
    status, text = command(monkeypatch, capsys, "scenes", *two, *asked)
    assert status == 0
    assert "a circle" in text
    rows = read_jsonl(tmp_path / "rows.jsonl")
    assert [row["caption"] for row in rows] == ["a red square", "a circle"]
    found = retrieval_entropy(runs[1:])
    for row in rows:
        by = [judge.entropies([row["caption"]])[0] for judge in found.judges]
        assert row["entropy"] == pytest.approx(np.mean(by), abs=1e-5)
        shares = [(found.entropies[found.judge == place] < one).mean() for place, one in enumerate(by)]
        assert row["percentile"] == pytest.approx(np.mean(shares), abs=0.02)
    assert "How generic are these?" in (tmp_path / "p.html").read_text()
    (tmp_path / "mine.txt").write_text("\n")
    assert "no caption is in this file" in command(monkeypatch, capsys, "scenes", *two, *asked)[1]


def test_command_warns_and_refuses(
    place: Path, runs: list[Run], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = command(monkeypatch, capsys, "scenes", "--retriever", runs[0].folder)
    assert status == 0
    assert "Warning: not cross-fitted" in text
    assert "data.half=1" in text
    for retriever, why in (
        (place / "nowhere", "no model is here; give a run folder or a model folder"),
        ("shipped/captioner", "and a retriever is needed here; use shipped/retriever"),
        (train(place / "mle.yaml", runs=place / "runs").folder, "a captioner has no similarities"),
    ):
        status, text = command(monkeypatch, capsys, "scenes", "--retriever", retriever)
        assert (status, why in text) == (2, True)
    status, text = command(monkeypatch, capsys, "scenes", "--retriever", runs[0].folder, "--pool", 1000)
    assert (status, "choose another --pool" in text) == (2, True)
    status, text = command(monkeypatch, capsys, place / "nodata", "--retriever", runs[0].folder)
    assert (status, "nodata" in text) == (2, True)


# --- model folders, and photographs without captions ----------------------------------------------------------------


@pytest.fixture
def exported(runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The retriever of all training images as a model folder; tables are kept in `cache`."""
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache")
    runs[0].retriever.save_pretrained(tmp_path / "exported")
    return tmp_path / "exported"


def test_a_model_folder_judges_as_its_run(runs: list[Run], exported: Path) -> None:
    whole, data = runs[0], runs[0].recipe.data
    found = retrieval_entropy([exported], data, "test")
    np.testing.assert_array_equal(found.entropies, retrieval_entropy([whole], split="test").entropies)
    files = sorted(path.name for path in exported.iterdir())
    assert files == ["README.md", "model.json", "model.safetensors", "vocabulary.json"], "nothing is written there"
    assert list((exported.parent / "cache" / "retrieval-entropy").glob("retrieval-entropy-*.npy"))
    # Its card names the data set, so training captions count as seen; a run of one half comes first for the others.
    assert retrieval_entropy([exported], data).seen.all()
    both = retrieval_entropy([exported, runs[1].folder], data)
    half = [half_of(record) for record in whole.data.dataset.split("train") for _ in record.captions]
    assert both.judge.tolist() == [0 if one == 1 else 1 for one in half]
    assert "exported was trained on scenes" in describe_judges(both)
    assert "Warning: not cross-fitted" in describe_judges(both)
    with pytest.raises(RunError, match="exported: a model folder names no data set"):
        retrieval_entropy([exported])


def test_what_a_model_folder_was_trained_on(runs: list[Run], exported: Path) -> None:
    described = json.loads((exported / "model.json").read_text())
    data = runs[0].recipe.data
    for trained_on, seen in (
        (described["history"]["trained_on"], True),
        (f"renamed ({runs[0].data.dataset.digest[:8]})", True),
        (f"{runs[0].data.dataset.name} (01234567), the generic captions", True),
        ("coco (01234567)", False),
        (None, False),
    ):
        described["history"]["trained_on"] = trained_on
        (exported / "model.json").write_text(json.dumps(described))
        found = retrieval_entropy([exported], data)
        assert found.seen.all() == seen
        told = describe_judges(found)
        assert ("Warning: not cross-fitted" in told) == seen
        assert (f"was trained on {trained_on};" in told) == (trained_on is not None)
        assert ("It is not known what exported was trained on." in told) == (trained_on is None)


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of three pictures, in an empty current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holiday").mkdir()
    for number, colour in enumerate(("red", "green", "blue")):
        Image.new("RGB", (48, 32), colour).save(tmp_path / "holiday" / f"{number}.jpg")
    return tmp_path / "holiday"


def test_captions_among_photographs_without_captions(
    runs: list[Run],
    exported: Path,
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = retrieval_entropy([exported, runs[1].folder], DataSettings(source=str(photographs)), captioned=False)
    assert (found.images, len(found.entropies)) == (3, 0)
    entropies, percentiles = found.of_others(["a red square"])
    by = [judge.entropies(["a red square"])[0] for judge in found.judges]
    assert entropies == pytest.approx([np.mean(by)])
    assert np.isnan(percentiles).all()
    (tmp_path / "mine.txt").write_text("a red square\n")
    asked = ("--captions", "mine.txt", "--out", "rows.jsonl", "--gallery", "page.html")
    for _ in range(2):  # the files are its own, so they are written again
        status, text = command(monkeypatch, capsys, "holiday", "--retriever", "exported", *asked)
        assert status == 0
    assert "3 images without captions, judged by exported" in text
    assert "exported was trained on scenes" in text
    assert "more generic than" not in text
    assert read_jsonl(tmp_path / "rows.jsonl") == [{"caption": "a red square", "entropy": round(by[0], 5)}]
    assert "more generic than" not in (tmp_path / "page.html").read_text()
    status, text = command(monkeypatch, capsys, "holiday", "--retriever", "exported")
    assert (status, "has a caption; give captions to rate (--captions FILE)" in text) == (2, True)
    status, text = command(monkeypatch, capsys, "holiday", "--retriever", "exported", "--store", "int4", *asked)
    assert (status, "--store: 'int4' is not a way to keep features" in text) == (2, True)


def test_pictures_without_captions_are_in_the_pool(exported: Path, photographs: Path) -> None:
    (photographs / "1.txt").write_text("a green field\n")
    found = retrieval_entropy([exported], DataSettings(source=str(photographs)))
    assert (found.images, found.gallery.captions) == (3, ["a green field"])


def test_the_shipped_retriever_is_the_default(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache")
    for number, caption in enumerate(("a red wall", "a green field", "the blue sky")):
        (photographs / f"{number}.txt").write_text(f"{caption}\n")
    status, text = command(monkeypatch, capsys, "holiday", "--out", "rows.jsonl")
    assert status == 0
    assert "3 captions compared with 3 images by shipped/retriever" in text
    assert "shipped/retriever was trained on coco" in text
    assert {row["retriever"] for row in read_jsonl(tmp_path / "rows.jsonl")} == {"shipped/retriever"}
    named = caption_entropies(["shipped/retriever"], DataSettings(source=str(photographs)))
    rows = sorted(read_jsonl(tmp_path / "rows.jsonl"), key=lambda row: row["id"])
    assert named == pytest.approx([row["entropy"] for row in rows], abs=1e-5)


def test_long_captions_with_a_high_entropy_are_told(runs: list[Run]) -> None:
    found = retrieval_entropy([runs[0]], split="test")
    words = np.array([len(caption.split()) for caption in found.gallery.captions], np.float64)
    for sign, warned in ((1.0, True), (-1.0, False)):
        text = describe_judges(replace(found, entropies=10 + sign * words))
        assert f"number of words: {sign:+.2f}" in text
        assert ("long captions have a high entropy" in text) == warned


def test_scenes_tell_whether_captions_are_generic_in_truth(runs: list[Run]) -> None:
    found = retrieval_entropy([runs[0]], split="test")
    data = runs[0].data
    listener = open_true_listener(runs[0].recipe.data, data.dataset, "test")
    assert listener is not None
    fitting = listener.fitting(found.gallery.captions)
    assert "+1.00" in describe_truth(replace(found, entropies=fitting), listener)
    assert "-1.00" in describe_truth(replace(found, entropies=-fitting), listener)
