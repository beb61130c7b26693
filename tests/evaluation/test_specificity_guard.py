"""Validation ranks of greedy captions against naive loops, and the warning about captions that please the teacher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.close import assert_close
from support.tiny import make_captioner, make_data, make_retriever
from tellapart.data.scenes import make_split
from tellapart.evaluation import specificity_guard
from tellapart.evaluation.specificity_guard import START, SpecificityGuard, measure_specificity
from tellapart.evaluation.true_listener import TrueListener
from tellapart.text import END, UNKNOWN
from tellapart.text import START as FIRST


@torch.no_grad()
def greedy(captioner: Any, grid: torch.Tensor) -> str:
    state = captioner.start(captioner.encode(grid), torch.tensor([0]))
    words, token = [], FIRST
    for _ in range(captioner.vocabulary.max_words):
        log_probs, state = captioner.step(state, torch.tensor([token]))
        log_probs[0, UNKNOWN] = -torch.inf
        token = int(log_probs[0].argmax())
        if token == END:
            break
        words.append(captioner.vocabulary.tokens[token])
    return " ".join(words)


@torch.no_grad()
def test_ranks_equal_naive_loops() -> None:
    captioner, start, (_, store) = make_captioner(3, name="meshed-memory"), make_captioner(4), make_data()
    retriever, listener, rows = make_retriever(2), make_retriever(5), list(range(12))
    judges = {"retriever": (retriever, store), "listener": (listener, store)}
    found = measure_specificity(captioner, store, rows, judges, start)
    captions = [greedy(captioner, torch.from_numpy(store.grid([row]))) for row in rows]
    assert len(set(captions)) > 1
    assert found["distinct"] == len(set(captions)) / 12
    for judge, prefix in ((retriever, ""), (listener, "listener_")):
        scores = judge.similarity(judge.embed_images(torch.from_numpy(store.grid(rows))), judge.embed_texts(captions))
        ranks = [1 + sum(int(scores[k, t] >= scores[t, t]) for k in rows if k != t) for t in rows]
        assert_close(found[f"{prefix}mean_rank"], sum(ranks) / 12)
        assert found[f"{prefix}R@1"] == sum(rank == 1 for rank in ranks) / 12
    words = [caption.split() for caption in captions]
    count = sum(len(said) for said in words)
    assert_close(found["greedy_words"], count / 12)
    assert_close(found["greedy_repeated"], sum(w in said[:i] for said in words for i, w in enumerate(said)) / count)
    total, tokens = 0.0, 0
    for row, caption in zip(rows, captions, strict=True):
        said = start.tokenize([caption])
        memory = start.encode(torch.from_numpy(store.grid([row])))
        total, tokens = total + float(start.log_prob(memory, said, torch.tensor([0]))), tokens + said.shape[1]
    assert_close(found["greedy_fluency"], total / tokens)


def test_the_true_listener_is_asked_on_scenes() -> None:
    """It knows the first scenes of the split, as many as are captioned; a caption without claims has no truth."""
    records = make_split("val", 12, seed=0, seen=set())
    listener = TrueListener([one.scene for one in records], [one.family for one in records]).first(5)
    captioner, (_, store) = make_captioner(3), make_data()
    judges = {"retriever": (make_retriever(2), store)}
    found = measure_specificity(captioner, store, range(5), judges, true_listener=listener)
    captions = [greedy(captioner, torch.from_numpy(store.grid([row]))) for row in range(5)]
    expected = listener.figures(captions)
    for name in ("true_listener_mean_rank", "true_listener_R@1"):
        assert_close(found[name], sum(expected[name]) / 5)
    told = [value for value in expected["truth"] if value == value]
    assert found.get("truth") == (sum(told) / len(told) if told else None)


@pytest.mark.parametrize(
    ("own", "other", "warned"), [(20.0, 50.0, True), (20.0, 40.0, False), (30.0, 50.0, False), (20.0, 35.0, False)]
)
def test_a_warning_if_only_the_teacher_is_pleased(
    own: float,
    other: float,
    warned: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = iter([(30.0, 40.0), (own, other)])

    def measure(*_: Any) -> dict[str, float]:
        return dict(zip(("mean_rank", "listener_mean_rank"), next(figures), strict=True))

    monkeypatch.setattr(specificity_guard, "measure_specificity", measure)
    judges: Any = {"retriever": None, "listener": None}
    SpecificityGuard(make_captioner(), make_data()[1], [0], judges, tmp_path).begin()
    again = SpecificityGuard(make_captioner(), make_data()[1], [0], judges, tmp_path)
    again.begin()  # in a later session: the start is kept
    assert again.at_start() == {"mean_rank": 30.0, "listener_mean_rank": 40.0, "only_teacher": 0.0}
    assert json.loads((tmp_path / START).read_text())["figures"]["mean_rank"] == 30.0
    assert again() == {"mean_rank": own, "listener_mean_rank": other, "only_teacher": float(warned)}
    assert ("warning: since the start" in capsys.readouterr().err) == warned
