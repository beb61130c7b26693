"""A retriever from recipe to figures: trained, resumed, started from, measured, compared, shown, and as a judge."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tellapart.cli import measure as commands
from tellapart.data.features import FeatureStore
from tellapart.data.parts import Part
from tellapart.data.prepare import Prepared
from tellapart.engine import loop
from tellapart.errors import DataError, RecipeError, RunError
from tellapart.evaluation import evaluate_retrieval as module
from tellapart.evaluation import retrieval
from tellapart.evaluation.compare import compare
from tellapart.evaluation.evaluate_retrieval import compare_retrieval, compare_seeds, evaluate_retrieval
from tellapart.evaluation.retrieval import rank_split
from tellapart.evaluation.self_retrieval_study import self_retrieval_study
from tellapart.evaluation.spread import measure_spread
from tellapart.files import read_json, read_jsonl
from tellapart.metrics import summarize_retrieval
from tellapart.models import model_folder
from tellapart.objectives.ranking import RankingHinge
from tellapart.pages.gallery import write_gallery
from tellapart.pages.report import comparison_table, write_report
from tellapart.retrievers.base import load_retriever
from tellapart.retrievers.ranking import Ranking
from tellapart.run import Run, open_run
from tellapart.training import resume, train

TRAINING = {"steps": 4, "images_per_batch": 4, "validate_every": 2, "log_every": 1, "keep": "best"}
FOLD = 4  # of the six test images
MONITOR = {"validate_retrieval": True, "monitor": "R@sum", "monitor_best": "highest"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with recipes of two retrievers and a captioner, on the same data."""
    folder = tmp_path_factory.mktemp("place")
    data = {
        "source": "scenes",
        "scenes": {"train": 8, "val": 4, "test": 6},
        "min_count": 1,
        "prepared": str(folder / "prepared"),
    }
    ranking = {
        "name": "ranking",
        "data": data,
        "retriever": {"name": "ranking", "words": 6, "hidden": 6, "embedding": 8},
        "objective": {"name": "ranking-hinge", "negatives": 2},
        "training": {**TRAINING, **MONITOR},
    }
    further = {
        "name": "further",
        "start": {"from": "ranking.yaml"},
        "retriever": {"reading": "dot"},
        "objective": ranking["objective"],
        "training": TRAINING,
    }
    mle = {
        "name": "mle",
        "data": data,
        "captioner": {"name": "adaptive-attention", "hidden": 8, "embedding": 8, "attention": 8},
        "objective": {"name": "likelihood"},
        "training": TRAINING,
        "decoding": {"max_words": 4},
    }
    for recipe in (ranking, further, mle):
        (folder / f"{recipe['name']}.yaml").write_text(json.dumps(recipe))
    return folder


@pytest.fixture(scope="module")
def ranking(place: Path) -> Run:
    return train(place / "ranking.yaml", runs=place / "runs")


@pytest.fixture(scope="module")
def mle(place: Path) -> Run:
    return train(place / "mle.yaml", runs=place / "runs")


# --- training -------------------------------------------------------------------------------------------------------


def test_validation_ranks_the_split_and_chooses_the_best(ranking: Run) -> None:
    rows = [row for row in read_jsonl(ranking.folder / "metrics.jsonl") if row["split"] == "val"]
    prepared = ranking.data
    best = max(rows, key=lambda row: row["R@sum"])
    assert model_folder(ranking.folder).name == f"step-{best['step']}"
    figures = summarize_retrieval(rank_split(ranking.retriever, prepared, "val").ranks).figures()
    for name in ("R@sum", "image_to_text_R@1", "text_to_image_R@5", "text_to_image_mean_rank"):
        assert best[name] == figures[name]


def test_a_monitor_that_is_not_measured(place: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no validation figure 'R@sum'.*R@sum needs training\.validate_retrieval"):
        train(place / "ranking.yaml", "training.validate_retrieval=false", out=tmp_path / "run")


def test_found_again_and_resumed(ranking: Run, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert train(place / "ranking.yaml", runs=place / "runs").folder == ranking.folder
    calls = 0

    def interrupted(self: RankingHinge) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RankingHinge, "after_step", interrupted)
        with pytest.raises((KeyboardInterrupt, loop.Interrupted)):
            train(place / "ranking.yaml", out=tmp_path / "run")
    resumed = resume(tmp_path / "run")
    one, other = (load_retriever(folder).state_dict() for folder in (ranking.folder, resumed.folder))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_started_from_another_retriever(ranking: Run, place: Path, mle: Run, tmp_path: Path) -> None:
    further = train(place / "further.yaml", "training.learning_rate=1e-12", runs=place / "runs")
    started, first = further.retriever, ranking.retriever
    assert started.settings.model_dump()["reading"] == "dot"
    assert started.vocabulary.tokens == first.vocabulary.tokens
    assert torch.allclose(started.state_dict()["text.weight"], first.state_dict()["text.weight"], atol=1e-6)
    # A captioner is no start for a retriever: the recipe would have both.
    with pytest.raises(RecipeError, match="captioner, retriever: a recipe trains one of them"):
        train(place / "further.yaml", f"start.from={mle.folder}", out=tmp_path / "run")


def test_word_vectors_are_part_of_what_a_run_is_made_from(place: Path, tmp_path: Path) -> None:
    words = tmp_path / "glove.txt"
    words.write_text("a 1 2 3 4 5 6\n")
    arguments = (place / "ranking.yaml", f"retriever.word_vectors={words}", "training.steps=1")
    train(*arguments, out=tmp_path / "run")
    words.write_text("a 6 5 4 3 2 1\n")
    with pytest.raises(RunError, match=r"holds another run \(changed: files\)"):
        train(*arguments, out=tmp_path / "run")
    with pytest.raises(RecipeError, match=r"retriever\.word_vectors: '.*none\.txt' is not a file"):
        train(place / "ranking.yaml", f"retriever.word_vectors={tmp_path / 'none.txt'}", out=tmp_path / "other")


def test_runs_of_the_other_kind_are_told_apart(ranking: Run, mle: Run) -> None:
    with pytest.raises(RunError, match=r"holds a retriever \(ranking\), and a captioner is needed here"):
        _ = ranking.captioner
    with pytest.raises(RunError, match=r"holds a captioner .*; to evaluate a captioner, use 'tellapart evaluate'"):
        evaluate_retrieval(mle)


# --- measuring ------------------------------------------------------------------------------------------------------


def test_figures_ranks_and_card(ranking: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = evaluate_retrieval(ranking, fold_size=FOLD)
    ranked = rank_split(ranking.retriever, ranking.data, fold_size=FOLD)
    assert 0 < len(ranked.folds) * FOLD < len(measured.images), "some images are in no fold"
    assert measured.figures == summarize_retrieval(ranked.ranks).figures()
    assert measured.folds == summarize_retrieval(ranked.folds).figures()
    assert [row["rank"] for row in measured.images] == ranked.ranks.image_to_text.tolist()
    assert [row["rank"] for row in measured.captions] == ranked.ranks.text_to_image.tolist()
    within = [rank for fold in ranked.folds for rank in fold.text_to_image.tolist()]
    assert [row["rank_in_fold"] for row in measured.captions[: len(within)]] == within
    assert not any("rank_in_fold" in row for row in measured.captions[len(within) :])
    assert measured.ranks.captions_of.tolist() == ranked.ranks.captions_of.tolist()
    assert measured.figures["R@sum"] == pytest.approx(
        sum(measured.figures[f"{d}_R@{k}"] for d in ("image_to_text", "text_to_image") for k in (1, 5, 10))
    )
    card = (model_folder(ranking.folder) / "README.md").read_text(encoding="utf-8")
    assert f"| R@sum | {measured.figures['R@sum']:.4f} |" in card.partition("## Measured on the test split")[2]
    monkeypatch.setattr(module, "rank_split", None)  # a second call finds it all
    assert evaluate_retrieval(ranking, fold_size=FOLD) == measured
    with pytest.raises(TypeError):
        evaluate_retrieval(ranking)  # other folds are measured anew


@contextmanager
def counted(stop: int | None = None) -> Iterator[list[int]]:
    """Gives the numbers of items that are embedded at a time; Ctrl-C after so many times."""
    embedded: list[int] = []

    def count(embed: Any) -> Any:
        def embed_some(self: Ranking, items: Any) -> Any:
            if len(embedded) == stop:
                raise KeyboardInterrupt
            if len(items):  # no items: only the width is wanted
                embedded.append(len(items))
            return embed(self, items)

        return embed_some

    with pytest.MonkeyPatch.context() as patch:
        for name in ("embed_images", "embed_texts"):
            patch.setattr(Ranking, name, count(getattr(Ranking, name)))
        yield embedded


def test_an_interrupted_call_continues(ranking: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished blocks of vectors are found again."""
    measured = evaluate_retrieval(ranking, "val", out=tmp_path / "straight")
    assert not list((tmp_path / "straight").glob("*unfinished*")), "removed when the figures are there"
    monkeypatch.setattr(retrieval, "BLOCK", 2)
    out = tmp_path / "out"
    with counted(stop=3), pytest.raises(KeyboardInterrupt):
        evaluate_retrieval(ranking, "val", out=out)
    (kept,) = out.glob("retrieval-val-unfinished-*.npy")
    evaluate_retrieval(ranking, "test", out=out)
    assert kept.exists(), "another split does not touch them"
    with counted() as embedded:
        found = evaluate_retrieval(ranking, "val", fold_size=2, out=out)
    assert sum(embedded) == len(measured.images) + len(measured.captions) - 3 * 2
    assert found.figures == measured.figures
    assert found.ranks.text_to_image.tolist() == measured.ranks.text_to_image.tolist()
    assert not list(out.glob("*unfinished*"))


@pytest.mark.parametrize("changed", ["weights", "pictures"])
def test_kept_vectors_of_other_weights_or_pictures_are_not_used(
    changed: str, ranking: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval, "BLOCK", 2)
    with counted(stop=3), pytest.raises(KeyboardInterrupt):
        evaluate_retrieval(ranking, out=tmp_path)
    run = Run(Path(shutil.copytree(ranking.folder, tmp_path / "run")), ranking.recipe)
    data, pictures = ranking.data, ranking.data.store.pictures.copy()
    if changed == "weights":
        other = load_retriever(run.folder)
        with torch.no_grad():
            other.image.bias.add_(1.0)
        save_file(other.state_dict(), model_folder(run.folder) / "model.safetensors")
    else:
        pictures["content"][0] += 1
    store = FeatureStore(data.store._features, data.store.encoder, data.dataset.digest, pictures=pictures)
    vars(run)["data"] = Prepared(data.dataset, store, data.folder)
    with counted() as embedded:
        measured = evaluate_retrieval(run, out=tmp_path)
    assert sum(embedded) == len(measured.images) + len(measured.captions)
    assert not list(tmp_path.glob("*unfinished*")), "those of the interrupted call are removed too"


def test_results_are_measured_again_when_pictures_change(ranking: Run, tmp_path: Path) -> None:
    run = Run(Path(shutil.copytree(ranking.folder, tmp_path / "run")), ranking.recipe)
    names = ("retrieval.json", "spread.json")

    def measure(pictures: np.ndarray) -> list[int]:
        data = ranking.data
        store = FeatureStore(data.store._features, data.store.encoder, data.dataset.digest, pictures=pictures)
        vars(run)["data"] = Prepared(data.dataset, store, data.folder)
        evaluate_retrieval(run)
        measure_spread(run)
        return [(run.folder / name).stat().st_mtime_ns for name in names]

    pictures = ranking.data.store.pictures.copy()
    first = measure(pictures)
    pictures["time"] += 1
    assert measure(pictures) == first
    pictures["content"][0] += 1
    assert all(now != before for now, before in zip(measure(pictures), first, strict=True))


def test_images_without_captions_are_left_out(ranking: Run, tmp_path: Path) -> None:
    run = Run(Path(shutil.copytree(ranking.folder, tmp_path / "run")), ranking.recipe)
    data = ranking.data
    first = data.dataset.split("test")[0]
    records = [replace(one, captions=()) if one.id == first.id else one for one in data.dataset.records]
    dataset = replace(data.dataset, records=tuple(records))
    store = FeatureStore(data.store._features, data.store.encoder, dataset.digest, pictures=data.store.pictures)
    vars(run)["data"] = Prepared(dataset, store, data.folder)
    measured = evaluate_retrieval(run)
    assert [row["id"] for row in measured.images] == [one.id for one in data.dataset.split("test") if one != first]
    assert first.id not in {row["id"] for row in measured.captions}


def test_another_split_into_another_folder(ranking: Run, tmp_path: Path) -> None:
    before = sorted(path.name for path in ranking.folder.iterdir())
    measured = evaluate_retrieval(ranking, "val", out=tmp_path / "out")
    assert sorted(path.name for path in ranking.folder.iterdir()) == before
    assert len(measured.images) == 4
    assert measured.folds == {}
    assert "rank_in_fold" not in measured.images[0]
    assert read_json(tmp_path / "out" / "retrieval-val.json")["split"] == "val"


def test_shown_queries(ranking: Run, tmp_path: Path) -> None:
    measured = evaluate_retrieval(ranking, out=tmp_path)
    ids = {row["id"] for row in measured.images}
    for query in measured.shown["texts"]:
        assert len(query["retrieved"]) == 5
        assert set(query["retrieved"]) <= ids
        assert (query["id"] in query["retrieved"]) == (query["rank"] <= 5)
        if query["rank"] <= 5:
            assert query["retrieved"].index(query["id"]) + 1 == query["rank"]
    for query in measured.shown["images"]:
        own = [item["id"] == query["id"] for item in query["retrieved"]]
        assert len(own) == 5
        if query["rank"] <= 5:
            assert own.index(True) + 1 == query["rank"]


def test_an_ensemble_ranks_by_the_mean_similarity(ranking: Run, place: Path, tmp_path: Path) -> None:
    other = train(place / "ranking.yaml", "seed=5", runs=place / "runs")
    dotted = train(place / "further.yaml", runs=place / "runs")
    runs = [ranking, other, dotted]
    measured = evaluate_retrieval(ranking, fold_size=FOLD, out=tmp_path, ensemble=runs[1:])

    gallery = rank_split(ranking.retriever, ranking.data).gallery
    similarities = []
    for run in runs:
        images = run.retriever.embed_images(torch.from_numpy(run.data.store.grid(gallery.rows)))
        with torch.no_grad():
            similarities.append(run.retriever.similarity(images, run.retriever.embed_texts(gallery.captions)))
    mean = torch.stack(similarities).double().mean(dim=0)
    for caption, row in enumerate(measured.captions):
        own = mean[gallery.image_of_caption[caption], caption]
        assert row["rank"] == 1 + int((mean[:, caption] > own + 1e-5).sum())
    alone = evaluate_retrieval(ranking, out=tmp_path / "alone")
    assert [row["rank"] for row in measured.captions] != [row["rank"] for row in alone.captions]
    assert read_json(tmp_path / "retrieval.json")["retriever"] == "ranking + ranking + further"
    assert measured.folds["R@sum"] > 0
    again = evaluate_retrieval(ranking, fold_size=FOLD, out=tmp_path, ensemble=runs[1:])
    assert again == measured
    assert evaluate_retrieval(ranking, fold_size=FOLD, out=tmp_path, ensemble=[other]) != measured


def test_an_ensemble_needs_a_folder_and_the_same_data(
    ranking: Run, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = train(place / "ranking.yaml", "seed=5", runs=place / "runs")
    with pytest.raises(RunError, match="holds the files of one training; give the ensemble a folder"):
        evaluate_retrieval(ranking, ensemble=[other])
    elsewhere = train(place / "ranking.yaml", "data.scenes.seed=3", runs=place / "runs")
    with pytest.raises(RunError, match="was trained on other data"):
        evaluate_retrieval(ranking, out=tmp_path, ensemble=[elsewhere])
    monkeypatch.setattr(Ranking, "has_index_vectors", False)
    with pytest.raises(RunError, match="compares pair by pair; only retrievers with vectors"):
        evaluate_retrieval(ranking, out=tmp_path, ensemble=[other])
    assert not list(tmp_path.iterdir())


# --- two runs -------------------------------------------------------------------------------------------------------


def test_paired_differences(ranking: Run, place: Path) -> None:
    other = train(place / "ranking.yaml", "seed=5", runs=place / "runs")
    one, two = evaluate_retrieval(ranking), evaluate_retrieval(other)
    prepared = ranking.data
    differences = compare_retrieval(two, one, prepared)
    for name in ("R@sum", "image_to_text_R@1", "text_to_image_R@10", "text_to_image_mean_rank"):
        found = differences[name]
        assert found.mean_a == pytest.approx(one.figures[name])
        assert found.mean_b == pytest.approx(two.figures[name])
        assert found.difference == pytest.approx(two.figures[name] - one.figures[name])
        assert found.low - 1e-9 <= found.difference <= found.high + 1e-9
    same = compare_retrieval(one, one, prepared)["R@sum"]
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    with pytest.raises(RunError, match="was measured on other images"):
        compare_retrieval(one, evaluate_retrieval(other, "val"), prepared)
    # Two trainings that are equal on both sides, and two that change places: the mean difference is 0.
    assert compare_seeds([one, two], [one, two], prepared, ["R@sum"])["R@sum"].p_value == 1
    crossed = compare_seeds([two, one], [one, two], prepared)["text_to_image_mean_rank"]
    change = differences["text_to_image_mean_rank"].difference
    assert crossed.resampled == "seeds and images"
    assert crossed.difference == pytest.approx(0, abs=1e-9)
    # Of two trainings, s / √2 is |change|, and 97.5 % of Student's t with one degree of freedom is 12.7.
    assert crossed.high - crossed.low == pytest.approx(2 * 12.7 * abs(change), rel=0.2)


def test_a_difference_is_drawn_over_images_with_their_captions(ranking: Run, tmp_path: Path) -> None:
    """A hit of an image with many captions weighs more: the ratio of sums, as over the whole split."""
    measured = evaluate_retrieval(ranking, out=tmp_path)
    ranks = measured.ranks
    statistic = module._statistics(ranks)["text_to_image_R@5"]
    owner = np.repeat(np.arange(len(ranks.captions_of)), ranks.captions_of)
    some = np.array([0, 2, 2, 4])
    drawn = np.concatenate([ranks.text_to_image[owner == image] <= 5 for image in some])
    assert statistic.combine(statistic.columns[some].sum(axis=0)) == pytest.approx(drawn.mean())


# --- the command and the page ---------------------------------------------------------------------------------------


def test_the_command_and_the_gallery(
    ranking: Run, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = train(place / "ranking.yaml", "seed=5", runs=place / "runs")
    commands.evaluate_retrieval(ranking.folder, "test", FOLD, other.folder, True, tmp_path)
    printed = capsys.readouterr().out
    measured = evaluate_retrieval(ranking, fold_size=FOLD, out=tmp_path)
    assert re.search(r"R@1 +R@5 +R@10 +median +mean rank", printed)
    assert re.search(rf"R@sum +{100 * measured.figures['R@sum']:.1f}\n", printed)
    assert "text→image, mean of folds" in printed
    assert f"{ranking.folder.name} against {other.folder.name} (paired bootstrap over images" in printed
    assert str(tmp_path / "gallery.html") in printed
    page = (tmp_path / "gallery.html").read_text(encoding="utf-8")
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("data:image/jpeg;base64,") == 5 * len(measured.shown["texts"]) + len(measured.shown["images"])
    assert page.count('class="own" alt="its own picture"') == sum(
        query["id"] in query["retrieved"] for query in measured.shown["texts"]
    )
    for query in measured.shown["texts"]:
        assert query["caption"] in page


def test_it_says_when_only_the_first_items_were_compared(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scan = {"name": "scan", "width": 6, "words": 6, "aggregation": "mean"}
    changes = {"name": "scan", "retriever": scan, "objective": {"name": "coder", "loss": "triplet"}}
    recipe = {**json.loads((place / "ranking.yaml").read_text()), **changes, "training": TRAINING}
    (tmp_path / "scan.yaml").write_text(json.dumps(recipe))
    run = train(tmp_path / "scan.yaml", out=tmp_path / "run")
    assert evaluate_retrieval(run).how_reranked == ""
    for module_, name, value in ((retrieval, "EXACT_PAIRS", 1), (retrieval, "RERANKED", 2), (module, "RERANKED", 2)):
        monkeypatch.setattr(module_, name, value)
    for again in range(2):  # the second time from the file
        commands.evaluate_retrieval(run.folder, "test", out=tmp_path / "out", gallery=not again)
        measured = evaluate_retrieval(run, out=tmp_path / "out")
        found = [100 * np.mean([row["rank"] <= 2 for row in rows]) for rows in (measured.images, measured.captions)]
        told = f"among them for {found[0]:.1f} % of the images and {found[1]:.1f} % of the captions."
        assert told in capsys.readouterr().out
    assert told in (tmp_path / "out" / "gallery.html").read_text(encoding="utf-8")


def test_outputs_of_the_users_are_refused_at_once(
    ranking: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "rank_split", lambda *_: pytest.fail("ranked before the outputs were checked"))
    for name in ("retrieval-val.json", "retrieval_images-val.jsonl", "retrieval_captions-val.jsonl"):
        mine = tmp_path / name
        mine.write_text('{"mine": 1}', encoding="utf-8")
        with pytest.raises(DataError, match=rf"{name}: exists and was not written by tellapart"):
            evaluate_retrieval(ranking, "val", out=tmp_path)
        assert mine.read_text(encoding="utf-8") == '{"mine": 1}'
        mine.unlink()
    (tmp_path / "gallery-val.html").write_text("<p>mine</p>", encoding="utf-8")
    with pytest.raises(DataError, match=r"gallery-val\.html: exists and was not written by tellapart"):
        commands.evaluate_retrieval(ranking.folder, "val", gallery=True, out=tmp_path)
    with pytest.raises(DataError, match=r"gallery-val\.html: this is a file, and a folder is needed"):
        evaluate_retrieval(ranking, "val", out=tmp_path / "gallery-val.html")
    assert [path.name for path in tmp_path.iterdir()] == ["gallery-val.html"]


def test_captions_in_the_gallery_are_only_text(ranking: Run, tmp_path: Path) -> None:
    measured = evaluate_retrieval(ranking, out=tmp_path)
    measured.shown["texts"][0]["caption"] = "<script>alert(1)</script>"
    page = write_gallery(ranking, measured).read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


# --- as a judge of captions -----------------------------------------------------------------------------------------


def ranks_of(ranking: Run, prepared: Prepared, rows: list[dict[str, Any]]) -> list[int]:
    """By the whole matrix."""
    retriever = ranking.retriever
    places = [prepared.dataset.row(row["id"]) for row in rows]
    with torch.no_grad():
        images = retriever.embed_images(torch.from_numpy(prepared.store.grid(places)))
        scores = retriever.similarity(images, retriever.embed_texts([row["caption"] for row in rows])).numpy()
    return [int((scores[:, t] >= scores[t, t] - 1e-6).sum()) for t in range(len(rows))]


def test_self_retrieval_under_a_retriever(ranking: Run, mle: Run, tmp_path: Path) -> None:
    ranked = self_retrieval_study(mle, under=[ranking])
    assert ranked is not None
    rows = read_jsonl(ranked.folder / "ranks.jsonl")
    assert ranked.folder.name == f"self-retrieval-under-{ranking.folder.name}"
    assert [row["rank"] for row in rows] == ranks_of(ranking, ranking.data, rows)
    assert {"id", "caption", "similarity", "rank"} == set(rows[0])
    assert ranked.figures["images"] == 6
    assert ranked.figures["mean_rank"] == pytest.approx(np.mean([row["rank"] for row in rows]))
    assert self_retrieval_study(mle, under=[ranking]) == ranked
    with pytest.raises(RunError, match="is fast and has no parts"):
        self_retrieval_study(mle, under=[ranking], part=Part(0, 2), out=tmp_path)
    with pytest.raises(RunError, match="a retriever writes no captions; give the run of a captioner"):
        self_retrieval_study(ranking)


def test_another_reading_is_another_judge(ranking: Run, mle: Run, tmp_path: Path) -> None:
    """The weights of a cosine and of a dot reader may be the same; the ranks are not mixed up."""
    folder = Path(shutil.copytree(ranking.folder, tmp_path / "dot"))
    text = (folder / "recipe.yaml").read_text().replace("reading: cosine", "reading: dot")
    (folder / "recipe.yaml").write_text(text.replace("../", str(ranking.folder.parent) + "/"))
    description = read_json(model_folder(folder) / "model.json")
    description["retriever"]["reading"] = "dot"
    (model_folder(folder) / "model.json").write_text(json.dumps(description))
    ranks = [
        self_retrieval_study(mle, under=[judge], out=tmp_path / "out") for judge in (ranking, open_run(folder), ranking)
    ]
    similarities = read_jsonl(tmp_path / "out" / "ranks.jsonl")
    assert all(-1 <= row["similarity"] <= 1 for row in similarities)
    assert ranks[0] == ranks[2]


def test_a_comparison_under_a_retriever(ranking: Run, mle: Run, place: Path, tmp_path: Path) -> None:
    other = train(place / "mle.yaml", "seed=3", runs=place / "runs")
    comparison = compare({"one": mle, "two": other}, control="one", judge=[ranking])
    assert comparison.judge == "ranking"
    prepared = ranking.data
    for row in comparison.rows:
        assert row.evaluation.values("rank_under_judge").tolist() == ranks_of(ranking, prepared, row.evaluation.rows)
        assert 0 <= row.evaluation.corpus["CLIPScore"] <= 2.5
    assert "… ranked by ranking" in comparison_table(comparison)[0]
    page = write_report(comparison, tmp_path).read_text(encoding="utf-8")
    assert "… ranked by ranking" in page
    assert "mean rank under ranking" in page
    assert read_json(tmp_path / "comparison.json")["judge"] == "ranking"
    own = compare({"one": mle, "two": other}, control="one")
    assert own.judge == "one"
    assert own.rows[0].evaluation.values("rank_under_judge").tolist() == own.rows[0].evaluation.values("rank").tolist()
