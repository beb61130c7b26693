"""evaluate(): names, ids, tokens, errors."""

from __future__ import annotations

from typing import Any

import pytest

from tellapart.errors import DataError
from tellapart.metrics import bleu_scores, cider_scores, evaluate, tokenize

REFERENCES = {
    "one": ["A dog runs over the grass.", "The dog's running on grass!"],
    "two": ["A red bus on a street.", "A double-decker bus."],
    "three": ["Two men play chess.", "Men at a chess board."],
}
CANDIDATES = {"three": "Two men play chess.", "one": "A dog runs on grass", "two": "A red bus."}


@pytest.mark.parametrize(
    ("caption", "tokens"),
    [
        ("A Dog, running.", "a dog running"),
        ("The dog's ball", "the dogs ball"),
        ("the dog\u2019s ball", "the dogs ball"),
        ("'quoted' dogs' toys", "quoted dogs toys"),
        ("black-and-white  photo", "black and white photo"),
        ("2 men, 10:30", "2 men 10 30"),
        ("snake_case\tand\nlines", "snake case and lines"),
        ("Cafe\u0301 in Zürich", "café in zürich"),
        (" ... ", ""),
        ("", ""),
    ],
)
def test_tokenize(caption: str, tokens: str) -> None:
    assert tokenize([caption]) == [tokens]


def test_keys_and_values() -> None:
    scores = evaluate(REFERENCES, CANDIDATES, training_captions=["two men play chess"])
    assert list(scores.corpus) == [
        *("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "CIDEr"),
        *("distinct", "novel", "vocabulary", "mean_length"),
    ]
    assert list(scores.per_image) == ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "CIDEr"]
    references = [tokenize(REFERENCES[i]) for i in CANDIDATES]
    candidates = tokenize(list(CANDIDATES.values()))
    bleu, cider = bleu_scores(references, candidates), cider_scores(references, candidates)
    assert scores.corpus["Bleu_4"] == bleu.corpus[3]
    assert scores.corpus["CIDEr"] == cider.corpus
    assert scores.per_image["CIDEr"] == dict(zip(CANDIDATES, cider.per_image, strict=True))
    assert scores.per_image["Bleu_2"] == dict(zip(CANDIDATES, bleu.per_image[:, 1], strict=True))
    assert scores.corpus["distinct"] == 1.0
    assert scores.corpus["novel"] == pytest.approx(2 / 3)
    assert scores.corpus["vocabulary"] == 11
    assert scores.corpus["mean_length"] == 4


def test_novelty_needs_training_captions() -> None:
    assert "novel" not in evaluate(REFERENCES, CANDIDATES).corpus


def test_training_captions_go_through_the_same_tokens() -> None:
    # A generator too: training captions may be streamed.
    training = (caption.upper() + " !" for caption in CANDIDATES.values())
    assert evaluate(REFERENCES, CANDIDATES, training_captions=training).corpus["novel"] == 0.0


def test_ids_and_order_do_not_matter() -> None:
    turned = {i: CANDIDATES[i] for i in reversed(CANDIDATES)}
    assert evaluate(REFERENCES, turned).per_image == evaluate(REFERENCES, CANDIDATES).per_image


def test_tokenized_captions_are_taken_as_they_are() -> None:
    references = {"a": ["A dog-house"], "b": ["x"]}
    candidates = {"a": "a dog house", "b": "x"}
    assert evaluate(references, candidates).per_image["Bleu_1"]["a"] == pytest.approx(1.0)
    assert evaluate(references, candidates, tokenized=True).per_image["Bleu_1"]["a"] < 1e-6


def test_only_the_families_asked_for() -> None:
    assert list(evaluate(REFERENCES, CANDIDATES, metrics=["cider"]).corpus) == ["CIDEr"]
    assert "CIDEr" not in evaluate(REFERENCES, CANDIDATES, metrics=["diversity", "bleu"]).corpus


@pytest.mark.parametrize(("name", "meant"), [("cidr", "cider"), ("CIDEr", "cider"), ("Bleu_4", "bleu")])
def test_unknown_family_with_a_guess(name: str, meant: str) -> None:
    with pytest.raises(DataError, match=f"'{name}'.*bleu, cider, diversity.*did you mean '{meant}'"):
        evaluate(REFERENCES, CANDIDATES, metrics=["bleu", name])


def test_unknown_family_without_a_guess() -> None:
    with pytest.raises(DataError, match=r"'xyz' \(known: bleu, cider, diversity\)$"):
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
    scores = evaluate(REFERENCES, {**CANDIDATES, "one": "", "two": " ?! "})
    for metric in scores.per_image.values():
        assert metric["one"] == metric["two"] == 0.0
        assert metric["three"] > 0
    silent = evaluate(REFERENCES, dict.fromkeys(REFERENCES, ""))
    assert set(silent.corpus.values()) == {0.0}


def test_equals_stored_scores_given_the_same_tokens(parity: dict[str, Any]) -> None:
    images = parity["images"]
    scores = evaluate(
        {str(i["id"]): i["refs_tok"] for i in images},
        {str(i["id"]): i["hyp_tok"] for i in images},
        tokenized=True,
        metrics=["bleu", "cider"],
    )
    for name, value in scores.corpus.items():
        assert value == pytest.approx(parity["corpus"][name], abs=1e-9)
    for i in images:
        assert scores.per_image["Bleu_4"][str(i["id"])] == pytest.approx(i["bleu"][3], abs=1e-9)
        assert scores.per_image["CIDEr"][str(i["id"])] == pytest.approx(i["cider"], abs=1e-9)
