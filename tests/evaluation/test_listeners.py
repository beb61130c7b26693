"""Several listeners in one evaluation, and people's captions as a row of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tellapart import cli
from tellapart.data.records import Dataset, Record
from tellapart.data.scenes.claims import check, read_claims
from tellapart.errors import DataError, RunError
from tellapart.evaluation import evaluate as module
from tellapart.evaluation.compare import Comparison, compare
from tellapart.evaluation.evaluate import Evaluation, evaluate, evaluate_people
from tellapart.evaluation.judge import Judge, rank_captions
from tellapart.evaluation.people import has_others, leave_one_out
from tellapart.evaluation.similar_images import clip_scores_under
from tellapart.evaluation.true_listener import open_true_listener
from tellapart.files import read_json
from tellapart.metrics import evaluate as metrics
from tellapart.metrics import summarize_ranks
from tellapart.pages.report import comparison_table, write_report
from tellapart.run import Run
from tellapart.training import train

TRAINING = {"steps": 4, "images_per_batch": 4, "log_every": 1}
SCENES = {"train": 8, "val": 4, "test": 12}
RANKING = {
    "retriever": {"name": "ranking", "words": 6, "hidden": 6, "embedding": 8},
    "objective": {"name": "ranking-hinge", "negatives": 2},
    "training": TRAINING,
}
MLE = {
    "captioner": {"name": "adaptive-attention", "hidden": 8, "embedding": 8, "attention": 8},
    "objective": {"name": "likelihood"},
    "training": TRAINING,
    "decoding": {"max_words": 8},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


def trained(place: Path, name: str, recipe: dict[str, Any], seed: int = 1, **data: Any) -> Run:
    source = {"source": "scenes", "scenes": SCENES, "min_count": 1, "prepared": str(place / "prepared")}
    encoder = {"encoder": "efficientnet-lite0@64"}
    path = place / f"{name}.yaml"
    path.write_text(json.dumps({"name": name, "seed": seed, "data": {**source, **encoder, **data}, **recipe}))
    return train(path, runs=place / "runs")


@pytest.fixture(scope="module")
def mle(place: Path) -> Run:
    return trained(place, "mle", MLE)


@pytest.fixture(scope="module")
def judge(place: Path) -> Run:
    return trained(place, "judge", RANKING)


@pytest.fixture(scope="module")
def listener(place: Path) -> Run:
    """Reads other features than the captioner and the judge."""
    return trained(place, "listener", RANKING, seed=2, encoder="efficientnet-lite0@32")


@pytest.fixture(scope="module")
def measured(mle: Run, judge: Run, listener: Run) -> Evaluation:
    return evaluate(mle, under=[judge], listener=listener)


def test_each_listener_has_its_ranks(measured: Evaluation, mle: Run, judge: Run, listener: Run) -> None:
    ids, captions = [row["id"] for row in measured.rows], [row["caption"] for row in measured.rows]
    for key, name, run in (
        ("rank", "self_retrieval", mle),
        ("rank_under_judge", "under_judge", judge),
        ("rank_under_listener", "under_listener", listener),
    ):
        ranking = rank_captions(Judge((run,)), ids, captions)
        assert ranking is not None
        assert measured.values(key).tolist() == ranking.ranks.tolist()
        summary = summarize_ranks(ranking.ranks, len(ids), [1, 5, 10])
        for k in (1, 5, 10):
            assert measured.corpus[f"{name}_R@{k}"] == summary.recalls[k]
        assert measured.corpus[f"{name}_mean_rank"] == summary.mean
        assert measured.intervals[f"{name}_mean_rank"].low <= summary.mean
    assert (measured.values("rank_under_judge") != measured.values("rank_under_listener")).any()


def test_the_true_listener_hears_the_first_captions(measured: Evaluation, mle: Run) -> None:
    true = open_true_listener(mle.recipe.data, mle.data.dataset, "test")
    assert true is not None
    figures = true.figures([row["caption"] for row in measured.rows])
    for name in ("true_listener_R@1", "true_listener_R@5", "true_listener_mean_rank", "truth", "claims"):
        assert measured.corpus[name] == pytest.approx(np.nanmean(figures[name]))
        assert measured.values(name).tolist() == figures[name][np.isfinite(figures[name])].tolist()
        interval = measured.intervals[name]
        assert interval.low <= interval.mean <= interval.high
    assert measured.corpus["true_listener_images"] == len(measured.rows)
    assert measured.corpus["true_listener_chance_R@1"] == 1 / len(measured.rows)
    for row, scene in zip(measured.rows, true.scenes, strict=True):
        assert row["claims"] == len(read_claims(row["caption"]))
        if row["claims"]:
            right = [check(claim, scene) for claim in read_claims(row["caption"])]
            assert row["truth"] == pytest.approx(np.mean(right))
    families = [record.family for record in mle.data.dataset.split("test")]
    several = [families.count(family) > 1 for family in families]
    assert any(several)
    assert [("difference_named" in row) for row in measured.rows] == several


def test_found_again(measured: Evaluation, mle: Run, judge: Run, listener: Run) -> None:
    evaluate(mle, under=[judge], listener=listener)  # other tests measure other figures into the same folder
    before = (mle.folder / "scores.json").stat().st_mtime_ns
    again = evaluate(mle.folder, under=[judge.folder], listener=listener.folder)
    assert (mle.folder / "scores.json").stat().st_mtime_ns == before
    assert again.corpus == measured.corpus
    assert again.rows == measured.rows
    assert read_json(mle.folder / "scores.json")["listener"] == "listener"
    other = evaluate(mle, under=[judge], listener=judge)
    assert other.values("rank_under_listener").tolist() == other.values("rank_under_judge").tolist()
    assert other.corpus["CLIPScore"] == measured.corpus["CLIPScore"]
    assert evaluate(mle, under=[judge], listener=listener).corpus == measured.corpus


def test_only_the_first_images(mle: Run, listener: Run, tmp_path: Path) -> None:
    few = evaluate(mle, listener=listener, retrieval_images=6, out=tmp_path)
    assert few.corpus["under_listener_images"] == few.corpus["true_listener_images"] == 6
    assert len(few.values("true_listener_R@1")) == 6
    assert len(few.values("claims")) == len(few.rows)


def test_paired_differences_of_all_listeners(mle: Run, judge: Run, listener: Run, tmp_path: Path) -> None:
    captions = tmp_path / "people.json"
    people = {record.id: record.captions[0] for record in mle.data.dataset.split("test")}
    captions.write_text(json.dumps(people))
    found = evaluate(mle, against=captions, under=[judge], listener=listener)
    assert found.against is not None
    for name in ("under_judge_R@1", "under_listener_mean_rank", "true_listener_R@1", "truth", "difference_named"):
        difference = found.differences[name]
        assert difference.difference == pytest.approx(found.corpus[name] - found.against.corpus[name])
    assert found.against.corpus["truth"] == 1.0
    assert found.differences["truth"].high < 0


def test_a_listener_of_other_data(mle: Run, place: Path) -> None:
    other = trained(place, "other", RANKING, scenes={**SCENES, "seed": 5})
    with pytest.raises(RunError, match=r"has other data than .* use a judge or listener trained on the same data"):
        evaluate(mle, listener=other)


# --- people -----------------------------------------------------------------------------------------------------------


def test_people_are_measured_against_their_other_captions(mle: Run, judge: Run, listener: Run, tmp_path: Path) -> None:
    """The same as a file of these captions, with a data set that does not have them."""
    dataset = mle.data.dataset
    for choice in (0, 2, 7):
        found = evaluate_people(mle, choice=choice, under=[judge], listener=listener, out=tmp_path / str(choice))
        said = {record.id: record.captions[choice % 5] for record in dataset.split("test")}
        assert {row["id"]: row["caption"] for row in found.rows} == said
        others = {
            record.id: [*record.captions[: choice % 5], *record.captions[choice % 5 + 1 :]]
            for record in dataset.split("test")
        }
        expected = metrics(others, said, metrics=("bleu", "rouge", "cider"))
        for name, figure in expected.corpus.items():
            assert found.corpus[name] == pytest.approx(figure)
        assert not any(name.startswith("self_retrieval") for name in found.corpus)
        assert not any("rank" in row or "retrieved" in row for row in found.rows)
        assert found.corpus["truth"] == 1.0
        for key, run in (("rank_under_judge", judge), ("rank_under_listener", listener)):
            ranking = rank_captions(Judge((run,)), list(said), list(said.values()))
            assert ranking is not None
            assert found.values(key).tolist() == ranking.ranks.tolist()


def test_a_caption_is_not_its_own_reference(
    mle: Run, judge: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all references are compared with, a caption that is one of them fits perfectly."""
    captions = tmp_path / "people.json"
    captions.write_text(json.dumps({record.id: record.captions[0] for record in mle.data.dataset.split("test")}))
    found = evaluate(mle, against=captions, under=[judge], out=tmp_path)
    assert found.against is not None
    compared = []

    def spy(judge: Judge, ids: Any, captions: list[str], references: list[Sequence[str]]) -> dict[str, Any]:
        compared.extend(zip(captions, references, strict=True))
        return clip_scores_under(judge, ids, captions, references)

    monkeypatch.setattr(module, "clip_scores_under", spy)
    people = evaluate_people(mle, under=[judge], out=tmp_path / "people")
    assert len(compared) == SCENES["test"]
    assert all(len(references) == 4 and caption not in references for caption, references in compared)
    for name in ("Bleu_4", "CIDEr", "ROUGE_L"):
        assert people.corpus[name] < found.against.corpus[name] - 1e-3
    assert found.against.corpus["ROUGE_L"] == pytest.approx(1.0)
    assert people.corpus["CLIPScore"] == pytest.approx(found.against.corpus["CLIPScore"])


def test_people_are_found_again(mle: Run, judge: Run) -> None:
    first = evaluate_people(mle, under=[judge], split="val")
    path = mle.folder / "people" / "scores-val.json"
    before = path.stat().st_mtime_ns
    again = evaluate_people(mle.folder, under=[judge.folder], split="val")
    assert (again.corpus, again.rows, again.label) == (first.corpus, first.rows, "people")
    assert path.stat().st_mtime_ns == before
    other = evaluate_people(mle, under=[judge], split="val", choice=1)
    assert path.stat().st_mtime_ns != before
    assert other.captions != first.captions


def test_images_with_one_caption() -> None:
    records = [Record("1", "1.jpg", "test", ("a dog", "a cat")), Record("2", "2.jpg", "test", ("a hen",))]
    dataset = Dataset("hens", Path(), tuple(records))
    with pytest.raises(DataError, match="hens: '2' has only 1 caption; people's captions can be measured only if"):
        leave_one_out(dataset, "test")
    with pytest.raises(DataError, match="caption number -1 does not exist"):
        leave_one_out(dataset, "test", -1)
    assert not has_others(dataset, "test")
    assert has_others(replace(dataset, skipped=frozenset({"2"})), "test")


# --- comparisons ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def comparison(mle: Run, judge: Run, listener: Run, place: Path) -> Comparison:
    other = trained(place, "other-mle", MLE, seed=3)
    return compare({"one": mle, "two": other}, control="one", judge=[judge], listener=listener.folder)


def test_a_comparison_with_a_listener(comparison: Comparison) -> None:
    assert (comparison.judge, comparison.listener) == ("judge", "listener")
    assert comparison.to_json()["listener"] == "listener"
    for name in ("under_listener_R@1", "under_listener_mean_rank", "true_listener_R@1", "truth"):
        found = comparison.differences["two"][name]
        assert found.mean_a == pytest.approx(comparison.row("one").evaluation.corpus[name])
        assert found.mean_b == pytest.approx(comparison.row("two").evaluation.corpus[name])


def test_people_are_a_row_of_a_comparison(comparison: Comparison, mle: Run, tmp_path: Path) -> None:
    assert list(comparison.evaluations) == ["one", "two", "people"]
    assert [row.label for row in comparison.rows] == ["one", "two"]
    people, control = comparison.evaluations["people"].corpus, comparison.row("one").evaluation.corpus
    found = comparison.differences["people"]
    assert "self_retrieval_R@1" not in found
    for name in ("Bleu_4", "CIDEr", "under_judge_R@1", "under_listener_R@1", "true_listener_R@1", "truth", "claims"):
        assert found[name].difference == pytest.approx(people[name] - control[name])
    assert found["truth"].low > 0
    assert comparison.people is not None
    assert comparison.people.folder == mle.folder / "people"
    headings, table = comparison_table(comparison)
    assert [row[0] for row in table] == ["one", "two", "people"]
    assert table[2][headings.index("Finds its image")] == "–"
    assert "people" in write_report(comparison, tmp_path).read_text(encoding="utf-8")
    written = read_json(tmp_path / "comparison.json")
    assert written["rows"]["people"] == people
    assert set(written["differences"]) == {"two", "people"}


def test_a_comparison_without_people(mle: Run) -> None:
    without = compare({"one": mle, "two": mle}, control="one", people=False)
    assert without.people is None
    assert list(without.to_json()["rows"]) == ["one", "two"]
    with pytest.raises(RunError, match="'people' is the label of people's captions"):
        compare({"one": mle, "people": mle}, control="one")


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    monkeypatch.setattr(sys, "argv", ["tellapart", *map(str, arguments)])
    with pytest.raises(SystemExit) as done:
        cli.main()
    printed = capsys.readouterr()
    assert done.value.code == 0, printed.err
    return printed.out


def test_the_commands(
    mle: Run,
    judge: Run,
    listener: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = call(monkeypatch, capsys, "evaluate", mle.folder, "--under", judge.folder, "--listener", listener.folder)
    for name in ("under_judge_R@1", "under_listener_R@1", "true_listener_R@1", "truth"):
        assert name in told
    named = [f"{label}={mle.folder}" for label in ("one", "two")]
    told = call(
        monkeypatch, capsys, "compare", *named, "--control", "one", "--listener", listener.folder, "--out", tmp_path
    )
    assert "people against one" in told
    assert read_json(tmp_path / "comparison.json")["listener"] == "listener"
    told = call(monkeypatch, capsys, "compare", *named, "--control", "one", "--no-people", "--out", tmp_path)
    assert "people" not in told
    beside = ["people", "--beside", mle.folder, "--choice", 1, "--listener", listener.folder, "--out", tmp_path]
    told = call(monkeypatch, capsys, "evaluate", *beside)
    assert "under_listener_R@1" in told
    assert "self_retrieval_R@1" not in told
    people = evaluate_people(mle, choice=1, listener=listener, out=tmp_path)
    assert read_json(tmp_path / "scores.json")["corpus"] == people.corpus


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["people"], "'people' needs a run that has the data"),
        (["captions.json", "--beside", "runs/mle"], "--beside is for people's captions"),
        (["people", "--beside", "runs/mle", "--data", "scenes"], "--beside cannot be combined"),
    ],
)
def test_mistakes_with_people(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tellapart", "evaluate", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as done:
        cli.main()
    assert done.value.code == 2
    assert told in capsys.readouterr().err
