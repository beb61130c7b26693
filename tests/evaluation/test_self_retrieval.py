"""Self-retrieval against all pairs: the savings never change a rank."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.tiny import WORDS, make_captioner, make_data, names
from tellapart.captioners.base import Captioner
from tellapart.cli import measure as commands
from tellapart.data.features import FeatureStore
from tellapart.data.parts import Part
from tellapart.data.prepare import Prepared
from tellapart.decoding.ensemble import Ensemble
from tellapart.decoding.search import decode_rows
from tellapart.decoding.settings import DecodingSettings
from tellapart.errors import DataError, RunError, StoreError
from tellapart.evaluation import judge, tree_scores
from tellapart.evaluation import self_retrieval as module
from tellapart.evaluation import self_retrieval_study as command
from tellapart.evaluation.judge import Judge, rank_captions
from tellapart.evaluation.prefix_tree import PrefixTree
from tellapart.evaluation.self_retrieval import (
    ROUNDING,
    SMALLEST,
    self_retrieval,
    self_retrieval_part,
    tolerance,
)
from tellapart.evaluation.self_retrieval_study import self_retrieval_study
from tellapart.evaluation.tree_scores import TreeScorer
from tellapart.files import read_json, read_jsonl, write_jsonl
from tellapart.metrics import rank_of_true
from tellapart.recipe import Recipe
from tellapart.run import Run
from tellapart.text import END

DATASET, STORE = make_data()
# Equal ones, shared beginnings, one that is the beginning of others, none at all, unknown words, equal ones of these.
CAPTIONS = [
    "a red house",
    "two",
    "a red house",
    "a red house near a tree",
    "",
    "a red zebra",
    "a red giraffe",
    "a",
    "two blue car",
    "",
    "tree",
    "a red car",
]
ROWS = [3, 0, 5, 7, 11, 2, 9, 1, 4, 6, 8, 10]


def sharp_captioner(name: str = "adaptive-attention", seed: int = 1, sharpness: float = 4.0) -> Captioner:
    """A tiny captioner that is as sure of itself as a trained one, and for which images matter."""
    captioner: Captioner = make_captioner(seed=seed, name=name)
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        predict: Any = captioner.predict
        predict.weight *= sharpness
        predict.bias[END] += 3  # captions end
    return captioner


@torch.no_grad()
def all_pairs(captioner: Captioner, store: FeatureStore, rows: list[int], captions: list[str]) -> NDArray[np.float64]:
    """ln p of every caption against every image, by teacher forcing."""
    tokens, scores = captioner.tokenize(captions), []
    for row in rows:
        memory = captioner.encode(torch.from_numpy(store.grid([row])))
        of_tokens = captioner.log_prob(memory, tokens, torch.zeros(len(tokens), dtype=torch.long), per_token=True)
        scores.append(of_tokens.double().sum(dim=1).numpy())
    return np.stack(scores, axis=1)


def are_apart(scores: NDArray[np.float64]) -> bool:
    """No two images are so close for a caption that rounding could change their order."""
    ordered = np.sort(scores, axis=1)
    return bool((np.diff(ordered, axis=1) > 1e-4 * np.maximum(1, np.abs(ordered[:, :-1]) / 10)).all())


def own_captions(captioner: Captioner) -> list[str]:
    """What it says of the images: such captions fit their own image, so that others can be dropped."""
    settings = DecodingSettings(method="sample", max_words=6, block_unknown=False)
    return [said.caption for said in decode_rows(captioner, STORE, ROWS, settings)]


class Spy:
    """Counts the rows of each step, and the images of each encoding."""

    def __init__(self, captioner: Captioner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        self.encoded: list[int] = []
        step, encode = captioner.step, captioner.encode

        def counting_step(state: Any, token: torch.Tensor) -> Any:
            self.rows.append(len(token))
            return step(state, token)

        def counting_encode(features: torch.Tensor) -> Any:
            self.encoded.append(len(features))
            return encode(features)

        monkeypatch.setattr(captioner, "step", counting_step)
        monkeypatch.setattr(captioner, "encode", counting_encode)


# --- the same ranks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(2**23, 16, 32), (96, 2, 5)])
@pytest.mark.parametrize("name", names("captioner"))
def test_equals_all_pairs(name: str, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_scores, "LOG_PROBS", sizes[0])
    monkeypatch.setattr(tree_scores, "IMAGES", sizes[1])
    monkeypatch.setattr(module, "SHARD", sizes[2])
    captioner = sharp_captioner(name)
    for captions in (CAPTIONS, own_captions(captioner)):
        scores = all_pairs(captioner, STORE, ROWS, captions)
        assert are_apart(scores)
        ranks = rank_of_true(scores, np.arange(len(ROWS)))
        assert len(set(ranks.tolist())) > 2  # or the test would say little
        found = self_retrieval(captioner, STORE, ROWS, captions)
        assert found.ranks.tolist() == ranks.tolist()
        np.testing.assert_allclose(found.log_probs, np.diag(scores), rtol=1e-5, atol=1e-5)
        shown = self_retrieval(captioner, STORE, ROWS, captions, shown=5)
        assert shown.ranks.tolist() == ranks.tolist()
        assert shown.first.tolist() == np.argsort(-scores, axis=1)[:, :5].tolist()


@pytest.mark.parametrize("name", names("captioner"))
def test_images_below_the_floor_are_dropped_and_no_others(name: str) -> None:
    captioner = sharp_captioner(name)
    distinct = sorted({tuple(captioner.vocabulary.encode(caption)[:-1]) for caption in CAPTIONS})
    tree = PrefixTree.of(distinct)
    said = [" ".join(captioner.vocabulary.tokens[token] for token in tokens) for tokens in distinct]
    scores = all_pairs(captioner, STORE, ROWS, said)
    steps = []
    for floors in (np.full(len(distinct), -np.inf), np.quantile(scores, 0.7, axis=1), 0.4 * scores.max(axis=1)):
        reached = TreeScorer(captioner, tree, floors).scores(torch.from_numpy(STORE.grid(ROWS)))
        found = np.full(scores.shape, -np.inf)
        found[reached.caption, reached.image] = reached.score
        expected = np.where(scores >= floors[:, None], scores, -np.inf)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
        steps.append(reached.steps)
    assert steps[0] >= steps[1] > steps[2]


@pytest.mark.parametrize("kind", ["gpt2", "blip", "git"])
def test_captioners_of_hugging_face_too(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="transformers is in the extra 'hf'")
    from support import huggingface

    captions = [*huggingface.CORPUS, "a red house"]
    # The tokenizer is trained, and the order of its pieces differs from run to run: scores may come out too close.
    for seed in range(20):
        captioner = huggingface.make_captioner(huggingface.make_folder(tmp_path / str(seed), kind, seed), kind)
        identity = captioner.encoder
        features = np.random.default_rng(seed).normal(size=(6, identity.regions + 1, identity.width))
        store = FeatureStore(features.astype(np.float16), identity, "tiny")
        scores = all_pairs(captioner, store, list(range(6)), captions)
        if are_apart(scores):
            break
    assert are_apart(scores)
    monkeypatch.setattr(tree_scores, "LOG_PROBS", 6 * len(captioner.vocabulary))
    found = self_retrieval(captioner, store, range(6), captions, shown=2)
    assert found.ranks.tolist() == rank_of_true(scores, np.arange(6)).tolist()
    assert found.first.tolist() == np.argsort(-scores, axis=1)[:, :2].tolist()


@settings(max_examples=25, deadline=None)
@example("transformer", 71, 2.0, ["", "", "a", "blue"], 0)
@given(
    name=st.sampled_from(sorted(names("captioner"))),
    seed=st.integers(0, 1000),
    sharpness=st.floats(0.5, 5),  # sharper ones have logits so large that their rounding counts
    captions=st.lists(
        st.lists(st.sampled_from([*WORDS[:4], "zebra"]), max_size=5).map(" ".join), min_size=1, max_size=12
    ),
    shown=st.integers(0, 13),
)
def test_dropping_images_never_changes_a_rank(
    name: str, seed: int, sharpness: float, captions: list[str], shown: int
) -> None:
    captioner = sharp_captioner(name, seed, sharpness)
    rows = ROWS[: len(captions)]
    scores = all_pairs(captioner, STORE, rows, captions)
    found = self_retrieval(captioner, STORE, rows, captions, shown)
    ranks = rank_of_true(scores, np.arange(len(rows)))
    # float32 errs in proportion: sharp captioners have ln p of -50 and less.
    own = np.diag(scores)[:, None]
    close = (np.abs(scores - own) < 1e-4 * np.maximum(1, np.abs(own) / 10)).sum(axis=1) - 1
    assert (np.abs(found.ranks - ranks) <= close).all()
    first = np.sort(scores, axis=1)[:, ::-1][:, :shown]
    np.testing.assert_allclose(np.take_along_axis(scores, found.first, axis=1), first, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("shard", [32, 1])
def test_images_that_look_the_same_count_against(shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARD", shard)
    found = self_retrieval(sharp_captioner(sharpness=1.0), STORE, [4, 4, 4], ["a", "two", "red car"])
    assert found.ranks.tolist() == [3, 3, 3]


def test_a_captioner_that_does_not_look_is_last_everywhere() -> None:
    blind = FeatureStore(np.zeros((12, 5, 6), dtype=np.float16), STORE.encoder, STORE.records)
    found = self_retrieval(sharp_captioner(sharpness=1.0), blind, ROWS, CAPTIONS)
    assert found.ranks.tolist() == [12] * 12


def with_error(captioner: Captioner, error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stepping err in proportion to ln p, as another batching or device does."""
    step = captioner.step

    def erring_step(state: Any, token: torch.Tensor) -> Any:
        log_probs, state = step(state, token)
        return log_probs.double() * (1 + error), state

    monkeypatch.setattr(captioner, "step", erring_step)


LONG = ["tree tree two blue car car near a", "blue blue blue red two two car house", "near near two tree a a red red"]


@pytest.mark.parametrize("error", [4e-7, -4e-7])
@pytest.mark.parametrize(
    ("captions", "sharpness", "sizes"),
    [(["", "a", ""], 1.0, (0, 10)), (LONG, 1.0, (20, 50)), (LONG, 40.0, (100, 1000))],
)
def test_ties_of_small_and_large_scores(
    captions: list[str],
    sharpness: float,
    sizes: tuple[float, float],
    error: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    captioner = sharp_captioner(sharpness=sharpness)
    with_error(captioner, error, monkeypatch)
    found = self_retrieval(captioner, STORE, [4, 4, 4], captions)
    assert ((np.abs(found.log_probs) > sizes[0]) & (np.abs(found.log_probs) < sizes[1])).all()
    assert found.ranks.tolist() == [3, 3, 3]


@pytest.mark.parametrize("sharpness", [0.05, 1.0, 10.0, 40.0])
def test_dropping_equals_an_exhaustive_ranking_with_the_same_tolerance(sharpness: float) -> None:
    captioner = sharp_captioner(sharpness=sharpness)
    rows = [*ROWS[:4], *ROWS[:3], *ROWS[4:6]]  # three images twice
    captions = [*LONG, *LONG, *LONG]
    found = self_retrieval(captioner, STORE, rows, captions)
    scores = all_pairs(captioner, STORE, rows, captions)
    own = np.diag(scores)
    limit = own - ROUNDING * np.maximum(10, np.abs(own))
    apart = np.abs(scores - limit[:, None]) > 0.5 * ROUNDING * np.maximum(10, np.abs(own))[:, None]
    assert apart.all()  # no decision rests on rounding
    assert found.ranks.tolist() == (scores >= limit[:, None]).sum(axis=1).tolist()
    assert (found.ranks > 1)[[0, 1, 2, 4, 5, 6]].all()  # the other copy is a tie


def test_tolerance_is_in_proportion_to_the_score() -> None:
    found = tolerance(np.array([0.0, -1.0, -10.0, -20.0, -2000.0, -np.inf]))
    np.testing.assert_allclose(found / ROUNDING, [10, 10, 10, 20, 2000, 10], rtol=1e-12)
    assert 9e-7 < ROUNDING < 1e-6


def test_a_large_score_may_err_more_than_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    large = sharp_captioner(sharpness=40.0)
    with_error(large, 2e-6, monkeypatch)
    errors = 2e-6 * np.abs(self_retrieval(large, STORE, ROWS[:3], LONG).log_probs)
    assert (errors > 5 * ROUNDING * SMALLEST).all(), "too much for a small score"
    with_error(large, 1e-5, monkeypatch)
    with pytest.raises(DataError, match="stepping and teacher forcing"):
        self_retrieval(large, STORE, ROWS[:3], LONG)


def test_one_image() -> None:
    found = self_retrieval(sharp_captioner(), STORE, [4], ["a red house"], shown=5)
    assert found.ranks.tolist() == [1]
    assert found.first.tolist() == [[0]]
    assert found.summary().recalls == {1: 1.0}


def test_summary_has_recalls_chance_mean_and_median() -> None:
    found = self_retrieval(sharp_captioner(), STORE, ROWS, CAPTIONS)
    summary = found.summary()
    assert set(summary.recalls) == {1, 5, 10}  # 50 and 500 need so many images
    assert summary.chance[1] == pytest.approx(1 / 12)
    assert summary.mean == found.ranks.mean()
    assert summary.median == np.median(found.ranks)


def test_what_cannot_be_ranked() -> None:
    with pytest.raises(DataError, match="1 captions for 2 images"):
        self_retrieval(sharp_captioner(), STORE, [1, 2], ["a"])
    with pytest.raises(DataError, match="0 captions for 0 images"):
        self_retrieval(sharp_captioner(), STORE, [], [])


def test_a_diverged_model_is_told() -> None:
    captioner = sharp_captioner()
    with torch.no_grad():
        next(captioner.parameters()).fill_(torch.nan)
    with pytest.raises(DataError, match="not a number"):
        self_retrieval(captioner, STORE, ROWS, CAPTIONS)


def test_a_captioner_whose_steps_say_something_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    captioner = sharp_captioner()
    step = captioner.step

    def other_step(state: Any, token: torch.Tensor) -> Any:
        log_probs, state = step(state, token)
        return log_probs - 0.01, state

    monkeypatch.setattr(captioner, "step", other_step)
    with pytest.raises(DataError, match="stepping and teacher forcing"):
        self_retrieval(captioner, STORE, ROWS, CAPTIONS)


# --- the work saved -------------------------------------------------------------------------------------------------


def prefixes(captions: list[str]) -> set[tuple[str, ...]]:
    known = [[word if word in WORDS else "?" for word in caption.split()] for caption in captions]
    return {tuple(words[:length]) for words in known for length in range(len(words) + 1)}


@pytest.mark.parametrize("name", names("captioner"))
def test_each_prefix_is_run_once_an_image(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    captioner = sharp_captioner(name)
    distinct = sorted({tuple(captioner.vocabulary.encode(caption)[:-1]) for caption in CAPTIONS})
    tree = PrefixTree.of(distinct)
    assert len(tree) == len(prefixes(CAPTIONS))
    spy = Spy(captioner, monkeypatch)
    reached = TreeScorer(captioner, tree, np.full(len(distinct), -np.inf)).scores(torch.from_numpy(STORE.grid(ROWS)))
    assert sum(spy.rows) == reached.steps == len(tree) * len(ROWS)
    assert len(reached.score) == len(distinct) * len(ROWS)


def test_the_work_is_told_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    captioner = sharp_captioner()
    spy = Spy(captioner, monkeypatch)
    found = self_retrieval(captioner, STORE, ROWS, CAPTIONS)
    assert found.steps == sum(spy.rows)
    assert found.tokens == sum(len(caption.split()) + 1 for caption in CAPTIONS)
    assert found.prefixes == len(prefixes(CAPTIONS))
    assert found.shared == pytest.approx(1 - found.prefixes / found.tokens)
    assert found.pruned == pytest.approx(1 - sum(spy.rows) / (found.prefixes * 12))


@pytest.mark.parametrize(("log_probs", "images"), [(12 * 7, 16), (12 * 40, 3), (1, 16)])
def test_memory_is_bounded(log_probs: int, images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_scores, "LOG_PROBS", log_probs)
    monkeypatch.setattr(tree_scores, "IMAGES", images)
    captioner = sharp_captioner()
    spy = Spy(captioner, monkeypatch)
    self_retrieval(captioner, STORE, ROWS, CAPTIONS, shown=5)
    assert max(spy.rows) <= max(1, log_probs // len(captioner.vocabulary))
    assert max(spy.encoded) <= max(images, log_probs // len(captioner.vocabulary))


def test_prefix_tree() -> None:
    captions = [(), (4,), (4, 5), (4, 6, 4), (7, 4)]
    tree = PrefixTree.of(captions)
    said = {0: ()}
    for node in range(1, len(tree)):
        said[node] = (*said[int(tree.parent[node])], int(tree.token[node]))
        parent = int(tree.parent[node])
        assert tree.first_child[parent] <= node < tree.first_child[parent] + tree.children[parent]
    assert sorted(said.values()) == sorted({row[:length] for row in captions for length in range(len(row) + 1)})
    assert {said[node]: int(number) for node, number in enumerate(tree.caption) if number >= 0} == {
        row: number for number, row in enumerate(captions)
    }
    lowest = tree.lowest(np.array([-1.0, -5.0, -2.0, -3.0, -4.0]))
    below = {node: [n for n, row in enumerate(captions) if row[: len(words)] == words] for node, words in said.items()}
    assert lowest.tolist() == [min([-1.0, -5.0, -2.0, -3.0, -4.0][n] for n in below[node]) for node in range(len(tree))]
    assert len(PrefixTree.of([()])) == 1


# --- interrupted and shared out -------------------------------------------------------------------------------------


def same(one: Any, other: Any) -> None:
    assert one.ranks.tolist() == other.ranks.tolist()
    assert one.first.tolist() == other.first.tolist()
    assert (one.images, one.tokens, one.prefixes) == (other.images, other.tokens, other.prefixes)
    assert one.steps == other.steps


@pytest.mark.parametrize("parts", [2, 3, 20])
def test_parts_make_the_whole(parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARD", 2)
    captioner = sharp_captioner()
    for index in reversed(range(parts)):
        found = self_retrieval_part(captioner, STORE, ROWS, CAPTIONS, tmp_path, Part(index, parts), shown=3)
        assert (found is None) == (index > 0)
    same(found, self_retrieval(captioner, STORE, ROWS, CAPTIONS, shown=3))


def test_an_interrupted_ranking_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARD", 2)
    captioner = sharp_captioner()

    def stop(done: int, of: int) -> None:
        assert of == 12 * 12
        if done == 4 * 2 * 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        self_retrieval_part(captioner, STORE, ROWS, CAPTIONS, tmp_path, on_progress=stop)
    spy = Spy(captioner, monkeypatch)
    found = self_retrieval_part(captioner, STORE, ROWS, CAPTIONS, tmp_path)
    assert found is not None
    assert sum(spy.encoded) == 2 * 2  # two blocks of two images were left; the true images' scores are known
    same(found, self_retrieval(captioner, STORE, ROWS, CAPTIONS))


def test_what_was_kept_of_another_study_is_not_taken(tmp_path: Path) -> None:
    self_retrieval_part(sharp_captioner(seed=1), STORE, ROWS, CAPTIONS, tmp_path)
    for captioner, captions in ((sharp_captioner(seed=2), CAPTIONS), (sharp_captioner(seed=1), CAPTIONS[::-1])):
        found = self_retrieval_part(captioner, STORE, ROWS, captions, tmp_path)
        assert found is not None
        same(found, self_retrieval(captioner, STORE, ROWS, captions))
    assert len(list(tmp_path.iterdir())) == 3
    pictures = STORE.pictures.copy()
    pictures["content"][ROWS[0]] = 1
    changed = FeatureStore(STORE._features, STORE.encoder, STORE.records, pictures=pictures)
    self_retrieval_part(sharp_captioner(seed=1), changed, ROWS, CAPTIONS, tmp_path)
    assert len(list(tmp_path.iterdir())) == 4, "nor what was kept of other pictures"


# --- the command ----------------------------------------------------------------------------------------------------


class TinyRun(Run):
    """A run of a tiny captioner that always says the same."""

    def __init__(self, folder: Path, captioner: Captioner) -> None:
        recipe = Recipe.load("scenes/adaptive-mle.yaml", [f"name={folder.name}"], "smoke")
        super().__init__(folder, recipe)
        vars(self).update(data=Prepared(DATASET, STORE, folder), model=captioner)
        captioner.save_pretrained(folder)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two runs, by folder."""

    def captions(run: Run, split: str, images: int | None = None) -> list[dict[str, Any]]:
        records = DATASET.split(split)[:images]
        return [{"id": record.id, "captions": [said]} for record, said in zip(records, CAPTIONS, strict=False)]

    monkeypatch.setattr(command, "run_captions", captions)
    found = {
        str(tmp_path / name): TinyRun(tmp_path / name, sharp_captioner(seed=seed)) for seed, name in enumerate("ab")
    }
    monkeypatch.setattr("tellapart.run.open_run", lambda folder: found[str(folder)])
    return found


TRAIN = [DATASET.row(record.id) for record in DATASET.split("train")]


def test_the_command(
    runs: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.self_retrieval(tmp_path / "a", split="train")
    printed = capsys.readouterr().out
    out = tmp_path / "a" / "self-retrieval"
    rows = read_jsonl(out / "ranks.jsonl")
    expected = self_retrieval(runs[str(tmp_path / "a")].captioner, STORE, TRAIN, CAPTIONS[: len(TRAIN)])
    assert [row["rank"] for row in rows] == expected.ranks.tolist()
    assert [row["id"] for row in rows] == [record.id for record in DATASET.split("train")]
    figures = read_json(out / "self_retrieval.json")["figures"]
    assert figures["R@1"] == expected.summary().recalls[1]
    assert figures["chance_R@1"] == pytest.approx(1 / len(TRAIN))
    assert {"mean_rank", "median_rank", "shared", "pruned"} < set(figures)
    assert all(name in printed for name in figures)
    assert [path.suffix for path in (tmp_path / "a" / "ranks").iterdir()] == [".json"], "finished blocks are removed"
    monkeypatch.setattr(judge, "self_retrieval_part", None)  # a second call finds it all
    commands.self_retrieval(tmp_path / "a", split="train")
    assert capsys.readouterr().out == printed


def test_captions_of_a_file_under_another_run(runs: dict[str, Any], tmp_path: Path) -> None:
    a, b = runs.values()
    path = tmp_path / "said.jsonl"
    said = [{"id": record.id, "caption": "a red house"} for record in DATASET.split("train")]
    write_jsonl(path, reversed(said))
    ranked = self_retrieval_study(a, captions=path, under=[b], split="train", images=4)
    assert ranked is not None
    assert ranked.folder == a.folder / "self-retrieval-under-b"
    expected = self_retrieval(b.captioner, STORE, TRAIN[:4], ["a red house"] * 4)
    assert [row["rank"] for row in read_jsonl(ranked.folder / "ranks.jsonl")] == expected.ranks.tolist()
    write_jsonl(path, said[1:])
    with pytest.raises(DataError, match=r"said\.jsonl: '0' has no caption; every image of split 'train' needs one"):
        self_retrieval_study(a, captions=path, split="train")


def test_the_command_in_parts(
    runs: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARD", 2)
    commands.self_retrieval(tmp_path / "a", split="train", part="2/2", out=tmp_path / "out")
    assert "part 2/2 is ranked" in capsys.readouterr().out
    assert not (tmp_path / "out" / "self_retrieval.json").exists()
    commands.self_retrieval(tmp_path / "a", split="train", part="1/2", out=tmp_path / "out")
    assert "mean_rank" in capsys.readouterr().out
    with pytest.raises(StoreError, match="'3/2' is not a part"):
        commands.self_retrieval(tmp_path / "a", part="3/2")


def test_outputs_are_checked_before_the_ranking(
    runs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "self_retrieval_part", lambda *_: pytest.fail("ranked before the outputs were checked"))
    a, _ = runs.values()
    rows = [{"id": record.id, "caption": "a house", "log_prob": 0.0, "rank": 1} for record in DATASET.split("train")]
    write_jsonl(tmp_path / "out" / "ranks.jsonl", rows)
    with pytest.raises(DataError, match=r"ranks\.jsonl: is an input and is not overwritten"):
        self_retrieval_study(a, captions=tmp_path / "out" / "ranks.jsonl", split="train", out=tmp_path / "out")
    (tmp_path / "out" / "self_retrieval.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(DataError, match=r"self_retrieval\.json: exists and was not written by tellapart"):
        self_retrieval_study(a, split="train", out=tmp_path / "out")
    with pytest.raises(DataError, match=r"ranks\.jsonl: this is a file, and a folder is needed"):
        self_retrieval_study(a, split="train", out=tmp_path / "out" / "ranks.jsonl")
    (a.folder / "ranks").write_text("mine", encoding="utf-8")
    with pytest.raises(DataError, match=r"ranks: this is a file, and a folder is needed"):
        self_retrieval_study(a, split="train", out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_ensemble_as_the_judge(runs: dict[str, Any]) -> None:
    a, b = runs.values()
    found = self_retrieval_study(a, under=[a, b], split="train")
    assert found is not None
    assert found.folder.name == "self-retrieval-under-a+b"
    both = Ensemble([a.captioner, b.captioner])
    expected = self_retrieval(both, STORE, TRAIN, CAPTIONS[: len(TRAIN)])
    assert [row["rank"] for row in read_jsonl(found.folder / "ranks.jsonl")] == expected.ranks.tolist()


def test_ranks_are_shared_by_all_who_ask(runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    a, _ = runs.values()
    ids = [record.id for record in DATASET.split("train")]
    shown = rank_captions(Judge((a,)), ids, CAPTIONS[: len(ids)], shown=judge.SHOWN)
    monkeypatch.setattr(judge, "self_retrieval_part", None)
    again = rank_captions(Judge((a,)), ids, CAPTIONS[: len(ids)])
    assert shown is not None
    assert again is not None
    assert again.ranks.tolist() == shown.ranks.tolist()
    assert again.first.shape == (len(ids), 0)


def test_other_data_is_refused(runs: dict[str, Any]) -> None:
    a, b = runs.values()
    vars(b)["data"] = Prepared(SimpleNamespace(digest="other"), STORE, Path())  # type: ignore[arg-type]
    with pytest.raises(RunError, match="has other data than"):
        self_retrieval_study(a, under=[b])
