"""evaluate(): names, ids, tokens, errors."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from tellapart.errors import DataError, MissingExtraError
from tellapart.metrics import (
    DocumentFrequencies,
    bleu_scores,
    cider_scores,
    evaluate,
    rouge_scores,
    spice,
    tokenize,
)

WITHOUT_METEOR = ["bleu", "rouge", "cider", "diversity"]

REFERENCES = {
    "one": ["A dog runs over the grass.", "The dog's running on grass!"],
    "two": ["A red bus on a street.", "A double-decker bus."],
    "three": ["Two men play chess.", "Men at a chess board."],
}
CANDIDATES = {"three": "Two men play chess.", "one": "A dog runs on grass", "two": "A red bus."}


@pytest.fixture
def meteor(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A METEOR that takes no time; the list is what it has been asked."""
    asked: list[object] = []

    def meteor_scores(references: list[list[str]], candidates: list[str]) -> SimpleNamespace:
        asked.append((references, candidates))
        return SimpleNamespace(corpus=0.25, per_image=np.arange(len(candidates), dtype=np.float64))

    _put_meteor(monkeypatch, meteor_scores)
    return asked


def _put_meteor(monkeypatch: pytest.MonkeyPatch, meteor_scores: Callable[..., object]) -> None:
    module = ModuleType("tellapart.metrics.meteor")
    module.meteor_scores = meteor_scores  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


QUALITY = ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr"]
DIVERSITY = ["distinct", "novel", "vocabulary", "mean_length", "bad_endings"]


def test_keys_and_values() -> None:
    scores = evaluate(REFERENCES, CANDIDATES, training_captions=["two men play chess"], metrics=WITHOUT_METEOR)
    assert list(scores.corpus) == QUALITY + DIVERSITY
    assert list(scores.per_image) == QUALITY
    assert scores.not_reported == {}
    references = [tokenize(REFERENCES[i]) for i in CANDIDATES]
    candidates = tokenize(list(CANDIDATES.values()))
    bleu, cider = bleu_scores(references, candidates), cider_scores(references, candidates)
    rouge = rouge_scores(references, candidates)
    assert scores.corpus["Bleu_4"] == bleu.corpus[3]
    assert scores.corpus["CIDEr"] == cider.corpus
    assert scores.corpus["ROUGE_L"] == rouge.corpus
    assert scores.per_image["CIDEr"] == dict(zip(CANDIDATES, cider.per_image, strict=True))
    assert scores.per_image["ROUGE_L"] == dict(zip(CANDIDATES, rouge.per_image, strict=True))
    assert scores.per_image["Bleu_2"] == dict(zip(CANDIDATES, bleu.per_image[:, 1], strict=True))
    assert scores.corpus["distinct"] == 1.0
    assert scores.corpus["novel"] == pytest.approx(2 / 3)
    assert scores.corpus["vocabulary"] == 11
    assert scores.corpus["mean_length"] == 4
    assert scores.corpus["bad_endings"] == 0
    cut = evaluate(REFERENCES, {**CANDIDATES, "two": "a red bus on a"}, metrics=WITHOUT_METEOR)
    assert cut.corpus["bad_endings"] == pytest.approx(1 / 3)


def test_all_that_can_be_computed(meteor: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spice, "_folder", lambda: None)
    scores = evaluate(REFERENCES, CANDIDATES)
    figures = ["distinct", "vocabulary", "mean_length", "bad_endings"]
    assert list(scores.corpus) == [*QUALITY[:4], "METEOR", *QUALITY[4:], *figures]
    assert scores.corpus["METEOR"] == 0.25
    assert scores.per_image["METEOR"] == {"three": 0.0, "one": 1.0, "two": 2.0}
    # It sees tokens, as the tool's METEOR does.
    assert meteor == [([tokenize(REFERENCES[i]) for i in CANDIDATES], tokenize(list(CANDIDATES.values())))]
    assert list(scores.not_reported) == ["SPICE"]


def test_meteor_without_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def meteor_scores(references: object, candidates: object) -> None:
        raise MissingExtraError("pycocoevalcap", "metrics")

    _put_meteor(monkeypatch, meteor_scores)
    scores = evaluate(REFERENCES, CANDIDATES)
    assert "METEOR" not in scores.corpus
    assert "METEOR" not in scores.per_image
    assert scores.not_reported["METEOR"].startswith("pycocoevalcap is not installed")
    # Several captions per image: no oracle by what is not there.
    several = evaluate(REFERENCES, {i: [caption, "a dog"] for i, caption in CANDIDATES.items()})
    assert "oracle_CIDEr" in several.corpus
    assert "oracle_METEOR" not in several.corpus
    # Asked for by name, it is an error.
    with pytest.raises(MissingExtraError, match="tellapart"):
        evaluate(REFERENCES, CANDIDATES, metrics=["bleu", "meteor"])


def test_several_candidates_per_image() -> None:
    several = {i: [caption, caption, "A dog runs over the grass."] for i, caption in CANDIDATES.items()}
    scores = evaluate(REFERENCES, several, metrics=WITHOUT_METEOR, training_captions=["a dog runs over the grass"])
    one = evaluate(REFERENCES, CANDIDATES, metrics=WITHOUT_METEOR, training_captions=["a dog runs over the grass"])
    # The quality figures are those of the first caption.
    assert {name: scores.corpus[name] for name in one.corpus} == one.corpus
    assert {name: scores.per_image[name] for name in one.per_image} == one.per_image
    assert scores.per_image["distinct_within"] == dict.fromkeys(several, 2 / 3)
    assert scores.corpus["novel_within"] == pytest.approx(2 / 3)
    assert {
        "Div_1",
        "Div_2",
        "mBLEU_4_corpus",
        "SelfCIDEr_Luo",
        "oracle_Bleu_4",
        "oracle_CIDEr",
    } <= scores.corpus.keys()
    assert scores.per_image["oracle_CIDEr"]["one"] > scores.per_image["CIDEr"]["one"]
    assert "Div_1" not in evaluate(REFERENCES, several, metrics=["bleu"]).corpus


def test_a_list_of_one_candidate_is_that_candidate() -> None:
    listed = {i: [caption] for i, caption in CANDIDATES.items()}
    assert evaluate(REFERENCES, listed, metrics=WITHOUT_METEOR) == evaluate(
        REFERENCES, CANDIDATES, metrics=WITHOUT_METEOR
    )


def test_numbers_of_candidates_differ() -> None:
    with pytest.raises(DataError, match=r"'one' has 1 candidates and 'three' has 2; give the same number"):
        evaluate(REFERENCES, {**CANDIDATES, "three": ["a", "b"]})
    with pytest.raises(DataError, match=r"'two' has an empty list of candidates; caption it"):
        evaluate(REFERENCES, {**CANDIDATES, "two": []})


def test_a_table_of_document_frequencies() -> None:
    table = DocumentFrequencies.count([["a dog"], ["the grass", "a bus"], ["chess"], ["men"]])
    scores = evaluate(REFERENCES, CANDIDATES, metrics=["cider", "bleu"], frequencies=table)
    references = [tokenize(REFERENCES[i]) for i in CANDIDATES]
    candidates = tokenize(list(CANDIDATES.values()))
    assert scores.corpus["CIDEr"] == cider_scores(references, candidates, frequencies=table).corpus
    assert scores.corpus["Bleu_4"] == bleu_scores(references, candidates).corpus[3]


@pytest.mark.parametrize(
    "odd",
    [
        "a\u00a0dog\u00a0runs",
        "a dog\nruns",
        "a dog runs 😀",
        "",
        "?!.",
        "😀",
        "\x00",
        "|||||",
        "dog " * 5000,
        "<",
        "a" * 10_000,
    ],
)
def test_odd_captions(odd: str) -> None:
    scores = evaluate(
        {"odd": [odd, "A dog runs."], "only": [odd], "two": REFERENCES["two"]},
        {"odd": "a dog runs", "only": odd, "two": odd},
        metrics=WITHOUT_METEOR,
    )
    assert all(math.isfinite(value) for value in scores.corpus.values())
    assert scores.per_image["Bleu_1"]["odd"] == pytest.approx(1.0)
    assert scores.per_image["CIDEr"]["odd"] > 0


def test_novelty_needs_training_captions() -> None:
    assert "novel" not in evaluate(REFERENCES, CANDIDATES, metrics=WITHOUT_METEOR).corpus


def test_training_captions_go_through_the_same_tokens() -> None:
    # A generator too: training captions may be streamed.
    training = (caption.upper() + " !" for caption in CANDIDATES.values())
    assert evaluate(REFERENCES, CANDIDATES, training_captions=training, metrics=WITHOUT_METEOR).corpus["novel"] == 0.0


def test_ids_and_order_do_not_matter() -> None:
    turned = {i: CANDIDATES[i] for i in reversed(CANDIDATES)}
    assert (
        evaluate(REFERENCES, turned, metrics=WITHOUT_METEOR).per_image
        == evaluate(REFERENCES, CANDIDATES, metrics=WITHOUT_METEOR).per_image
    )


def test_tokenized_captions_are_taken_as_they_are() -> None:
    references = {"a": ["A DOG, CAN'T"], "b": ["x"]}
    candidates = {"a": "a dog ca n't", "b": "x"}
    assert evaluate(references, candidates, metrics=WITHOUT_METEOR).per_image["Bleu_1"]["a"] == pytest.approx(1.0)
    assert evaluate(references, candidates, tokenized=True, metrics=WITHOUT_METEOR).per_image["Bleu_1"]["a"] < 1e-6


def test_only_the_families_asked_for() -> None:
    assert list(evaluate(REFERENCES, CANDIDATES, metrics=["cider"]).corpus) == ["CIDEr"]
    assert "CIDEr" not in evaluate(REFERENCES, CANDIDATES, metrics=["diversity", "bleu"]).corpus


@pytest.mark.parametrize(("name", "meant"), [("cidr", "cider"), ("CIDEr", "cider"), ("Bleu_4", "bleu")])
def test_unknown_family_with_a_guess(name: str, meant: str) -> None:
    with pytest.raises(DataError, match=f"'{name}'.*bleu, .*, diversity.*did you mean '{meant}'"):
        evaluate(REFERENCES, CANDIDATES, metrics=["bleu", name])


def test_unknown_family_without_a_guess() -> None:
    with pytest.raises(DataError, match=r"'xyz' \(known: bleu, meteor, rouge, cider, spice, diversity\)$"):
        evaluate(REFERENCES, CANDIDATES, metrics=["xyz"])


def test_candidate_without_references() -> None:
    with pytest.raises(DataError, match="'four' is without references; add"):
        evaluate(REFERENCES, {**CANDIDATES, "four": "a cat"})


def test_references_without_candidate() -> None:
    with pytest.raises(DataError, match=r"2 image ids \('one', 'two'\) are without a candidate; caption"):
        evaluate(REFERENCES, {"three": "two men"})


def test_no_candidates() -> None:
    with pytest.raises(DataError, match="no candidates"):
        evaluate(REFERENCES, {})
    with pytest.raises(DataError, match="no candidates"):
        evaluate({}, {})


def test_references_of_the_wrong_kind() -> None:
    with pytest.raises(DataError, match=r"'one'.*one string"):
        evaluate({**REFERENCES, "one": "a dog"}, CANDIDATES)
    with pytest.raises(DataError, match=r"'one'.*empty list"):
        evaluate({**REFERENCES, "one": []}, CANDIDATES)


def test_empty_captions_score_zero() -> None:
    scores = evaluate(REFERENCES, {**CANDIDATES, "one": "", "two": " ?! "}, metrics=WITHOUT_METEOR)
    for metric in scores.per_image.values():
        # BLEU has a numerator of 1e-15 instead of 0.
        assert metric["one"] == pytest.approx(0.0, abs=1e-9)
        assert metric["two"] == pytest.approx(0.0, abs=1e-9)
        assert metric["three"] > 0
    silent = evaluate(REFERENCES, dict.fromkeys(REFERENCES, ""), metrics=WITHOUT_METEOR)
    assert set(silent.corpus.values()) == {0.0}
