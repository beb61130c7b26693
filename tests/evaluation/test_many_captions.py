"""n captions per image in several ways: figures, curves, diversity at equal quality, the command."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tellapart import cli
from tellapart.decoding.settings import DecodingSettings
from tellapart.errors import DataError, RunError
from tellapart.evaluation import run_captions as captions_module
from tellapart.evaluation.many_captions import (
    ManyCaptions,
    ManyCaptionsScorer,
    WayFigures,
    decoding_ways,
    diversity_at,
    many_captions,
    matched_differences,
    shared_quality,
)
from tellapart.evaluation.run_captions import run_captions
from tellapart.evaluation.similar_images import consensus_captions
from tellapart.files import read_json
from tellapart.metrics import candidate_scores, tokenize
from tellapart.metrics.cider import cider_scores
from tellapart.run import Run
from tellapart.training import train

OPTIONS = {"captions": 4, "best": 2, "temperatures": (0.5, 1.5), "metrics": ("bleu", "cider")}

# --- curves ---------------------------------------------------------------------------------------------------------


def naive_diversity(level: float, points: list[tuple[float, float]]) -> float:
    """The highest point of the broken line at this quality."""
    found = []
    for (a, at_a), (b, at_b) in pairwise(points):
        if min(a, b) <= level <= max(a, b):
            found += [at_a, at_b] if a == b else [at_a + (level - a) / (b - a) * (at_b - at_a)]
    return max(found)


@pytest.mark.parametrize("seed", range(5))
def test_a_curve_between_its_points(seed: int) -> None:
    """Also where quality does not fall evenly, and for several curves at once."""
    drawn = np.random.default_rng(seed)
    quality, diversity = drawn.integers(0, 5, (3, 6)) / 4, drawn.random((3, 6))
    ends = np.stack([quality.min(axis=1), quality.max(axis=1)], axis=1)
    levels = ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * drawn.random((3, 7))
    for lower in (False, True):
        sign = -1 if lower else 1
        expected = [
            [sign * naive_diversity(level, list(zip(q, sign * d, strict=True))) for level in row]
            for row, q, d in zip(levels, quality, diversity, strict=True)
        ]
        np.testing.assert_allclose(diversity_at(levels, quality, diversity, lower), expected, atol=1e-12)


def test_beyond_the_ends_of_a_curve_its_end_counts() -> None:
    found = diversity_at(np.array([2.0, -1.0]), np.array([1.0, 0.5]), np.array([0.1, 0.7]))
    assert found.tolist() == pytest.approx([0.1, 0.7])
    assert diversity_at(np.array([2.0, -1.0]), np.array([1.0]), np.array([0.3])).tolist() == [0.3, 0.3]


def arm(run: Run | None, quality: np.ndarray, diversity: np.ndarray) -> ManyCaptions:
    """A made-up measurement: `[images, temperatures]`."""
    ways = {}
    for place, heat in enumerate((0.5, 1, 1.5)):
        names = {"best_2_mean_CIDEr": quality, "best_2_Div_1": diversity, "best_2_mBLEU_4_sentence": 1 - diversity}
        per_image = {name: values[:, place] for name, values in names.items()}
        ways[f"sample-{heat:g}"] = WayFigures({name: float(v.mean()) for name, v in per_image.items()}, per_image)
    ids = [str(image) for image in range(len(quality))]
    return ManyCaptions(run, ids, np.arange(len(quality)), 2, ways)  # type: ignore[arg-type]


def test_diversity_at_equal_quality() -> None:
    """On the same curve, hotter samples are no gain; a curve that is higher by 0.1 gains 0.1."""
    noise = np.random.default_rng(0).normal(0, 0.02, (200, 1))
    line = np.array([[1.0, 0.8, 0.4]]) + noise
    on_line = lambda quality: 1.2 - quality + noise * 2  # noqa: E731
    control = arm(None, line, on_line(line))
    hotter = line - 0.15
    same = matched_differences([control], [arm(None, hotter, on_line(hotter))], figures=["Div_1"])["Div_1"]
    assert abs(same.difference) < 1e-9
    better = arm(None, hotter, on_line(hotter) + 0.1)
    found = matched_differences([control], [better], figures=["Div_1", "mBLEU_4_sentence"])
    assert found["Div_1"].difference == pytest.approx(0.1)
    assert found["mBLEU_4_sentence"].difference == pytest.approx(-0.1)
    assert found["Div_1"].low <= 0.1 <= found["Div_1"].high
    assert found["Div_1"].p_value < 0.05
    seeds = matched_differences([control, control], [better, better], figures=["Div_1"])["Div_1"]
    assert (seeds.difference, seeds.resampled) == (pytest.approx(0.1), "seeds and images")
    assert shared_quality(control, better) == pytest.approx((line.mean(axis=0)[2], hotter.mean(axis=0)[0]))


def test_curves_that_do_not_meet(mle: Run) -> None:
    low, high = np.full((5, 3), 0.2) + np.arange(3) / 100, np.full((5, 3), 0.8) + np.arange(3) / 100
    one, other = arm(mle, low, low), arm(mle, high, high)
    assert shared_quality(one, other) is None
    with pytest.raises(DataError, match="add temperatures"):
        matched_differences([one], [other])


# --- of a run -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    data = {
        "source": "scenes",
        "scenes": {"train": 12, "val": 4, "test": 6},
        "min_count": 1,
        "prepared": str(folder / "prepared"),
    }
    training = {"steps": 3, "images_per_batch": 4, "validate_every": 3, "log_every": 3}
    mle = {
        "name": "mle",
        "data": data,
        "captioner": {"name": "neuraltalk", "hidden": 8, "embedding": 8},
        "objective": {"name": "likelihood"},
        "training": training,
        "decoding": {"max_words": 5, "block_repeats": True},
    }
    ranking = {
        "name": "ranking",
        "data": data,
        "retriever": {"name": "ranking", "words": 6, "hidden": 6, "embedding": 8},
        "objective": {"name": "ranking-hinge", "negatives": 2},
        "training": training,
    }
    for recipe in (mle, ranking):
        (folder / f"{recipe['name']}.yaml").write_text(json.dumps(recipe))
    return folder


@pytest.fixture(scope="module")
def mle(place: Path) -> Run:
    return train(place / "mle.yaml", runs=place / "runs")


def test_ways_keep_the_limits_on_words() -> None:
    own = DecodingSettings(method="sample", temperature=0.3, max_words=7, block_repeats=True, samples=2)
    ways = decoding_ways(own, 6, [1, 0.5, 1.0])
    assert list(ways) == ["beam", "diverse", "sample-0.5", "sample-1"]
    assert {way.rows_per_image for way in ways.values()} == {6}
    assert {(way.samples, way.max_words, way.block_repeats) for way in ways.values()} == {(6, 7, True)}
    assert ways["sample-0.5"].temperature == 0.5
    assert ways["diverse"].group_count == 6
    for wrong in ({"captions": 1}, {"temperatures": []}):
        with pytest.raises(DataError):
            decoding_ways(own, **wrong)  # type: ignore[arg-type]


def test_figures_are_those_of_the_captions(mle: Run) -> None:
    found = ManyCaptionsScorer(**OPTIONS).measure(mle)  # type: ignore[arg-type]
    assert list(found.ways) == ["beam", "diverse", "sample-0.5", "sample-1.5"]
    ways = decoding_ways(mle.recipe.decoding, 4, (0.5, 1.5))
    references = [tokenize(list(record.captions)) for record in mle.data.dataset.split("test")]
    for way in ("diverse", "sample-1.5"):
        path = mle.folder / f"many-captions/test-4-{way}.jsonl"
        rows = run_captions(mle, "test", decoding=ways[way], path=path)
        assert [row["id"] for row in rows] == found.ids
        captions = [row["captions"] for row in rows]
        best = consensus_captions(mle.data, "test", captions, 2)
        for prefix, texts in (("", captions), ("best_2_", best)):
            tokens = [tokenize(list(group)) for group in texts]
            expected = candidate_scores(tokens, references, oracle=("bleu", "cider"))
            figures = found.ways[way].figures
            for name, value in expected.corpus.items():
                assert figures[prefix + name] == pytest.approx(value)
            slots = [[group[slot] for group in tokens] for slot in range(len(tokens[0]))]
            each = [cider_scores(references, slot).per_image.mean() for slot in slots]
            assert figures[f"{prefix}mean_CIDEr"] == pytest.approx(np.mean(each))
            assert found.ways[way].per_image[f"{prefix}Div_2"].mean() == pytest.approx(
                expected.corpus["Div_2"], abs=1e-5
            )
    assert found.curve("Div_1", of_best=False) == [
        (heat, of.figures["mean_CIDEr"], of.figures["Div_1"]) for heat, of in found.samples.items()
    ]


def test_found_again_and_continued(mle: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**OPTIONS, "images": 5}
    decoded: list[int] = []
    own = captions_module.decode_store

    def decode(captioner: object, store: object, rows: list[int], *others: object) -> object:
        decoded.extend(rows)
        if len(decoded) > 7:
            raise KeyboardInterrupt
        return own(captioner, store, rows, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(captions_module, "BLOCK", 2)
    with monkeypatch.context() as patched:
        patched.setattr(captions_module, "decode_store", decode)
        with pytest.raises(KeyboardInterrupt):
            ManyCaptionsScorer(**options).measure(mle)  # type: ignore[arg-type]
    count: list[int] = []
    monkeypatch.setattr(
        captions_module, "decode_store", lambda c, s, rows, *o: (count.extend(rows), own(c, s, rows, *o))[1]
    )
    found = ManyCaptionsScorer(**options).measure(mle)  # type: ignore[arg-type]
    assert len(count) == 4 * 5 - 7, "seven of twenty image–way pairs were there"
    count.clear()
    again = ManyCaptionsScorer(**options).measure(mle)  # type: ignore[arg-type]
    assert not count
    assert {way: of.figures for way, of in again.ways.items()} == {way: of.figures for way, of in found.ways.items()}
    assert found.ids == [record.id for record in mle.data.dataset.split("test")][:5]


def test_what_cannot_be_measured(place: Path, mle: Run) -> None:
    ranking = train(place / "ranking.yaml", runs=place / "runs")
    with pytest.raises(RunError, match="a retriever writes no captions"):
        many_captions({"ranking": ranking})
    with pytest.raises(DataError, match="the best 5 of 4 captions"):
        ManyCaptionsScorer(captions=4)
    with pytest.raises(DataError, match="add 'cider'"):
        ManyCaptionsScorer(metrics=["bleu"])


# --- the command ----------------------------------------------------------------------------------------------------


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Status, and what is printed on both streams."""
    monkeypatch.setattr("sys.argv", ["tellapart", "evaluate-diversity", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    streams = capsys.readouterr()
    return int(ended.value.code or 0), streams.out + streams.err


def test_command(
    place: Path, mle: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = train(place / "mle.yaml", "seed=1", runs=place / "runs")
    options = ("--captions-per-image", 4, "--best", 2, "--temperatures", "0.5,1.5", "--no-meteor", "--out", tmp_path)
    status, text = command(monkeypatch, capsys, f"one={mle.folder}", f"two={other.folder}", *options)
    assert status == 0
    content = read_json(tmp_path / "diversity.json")
    assert list(content["runs"]) == ["one", "two"]
    assert list(content["runs"]["two"]) == ["beam", "diverse", "sample-0.5", "sample-1.5"]
    assert f"{content['runs']['two']['diverse']['best_2_Div_2']:.4f}" in text
    assert list(content["at_equal_quality"]) == ["two"]
    page = (tmp_path / "diversity.html").read_text()
    assert page.count("<svg") == 1
    assert "SelfCIDEr_Luo" in page
    # One run has nothing to be compared with.
    status, text = command(monkeypatch, capsys, mle.folder, *options)
    assert (status, "difference from" in text) == (0, False)
    for arguments, why in (
        ([tmp_path / "nowhere"], "this is not a run folder"),
        ([mle.folder, mle.folder], "names two runs"),
        ([mle.folder, "--control", "three"], "no run has this label"),
        ([mle.folder, "--temperatures", "hot"], "give numbers with commas"),
        ([mle.folder, "--temperatures", "0"], "temperature"),
    ):
        status, text = command(monkeypatch, capsys, *arguments, "--captions-per-image", 5, "--out", tmp_path)
        assert (status, why in text) == (2, True), text
