"""The reference tool side by side: its stored scores of our own captions, of COCO captions, and on random ones."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tellapart.metrics import bleu_scores, cider_scores, evaluate, rouge_scores

FAMILIES = ["bleu", "rouge", "cider"]


def test_our_own_captions_from_raw_text(own_scores: dict[str, Any]) -> None:
    images = own_scores["images"]
    scores = evaluate(
        {str(i): image["references"] for i, image in enumerate(images)},
        {str(i): image["candidate"] for i, image in enumerate(images)},
        metrics=FAMILIES,
    )
    for name in ("ROUGE_L", "CIDEr"):
        assert scores.corpus[name] == pytest.approx(own_scores["corpus"][name], abs=1e-9)
        for i, image in enumerate(images):
            assert scores.per_image[name][str(i)] == pytest.approx(image[name], abs=1e-9)
    for n in range(4):
        assert scores.corpus[f"Bleu_{n + 1}"] == pytest.approx(own_scores["corpus"]["Bleu"][n], abs=1e-9)
        for i, image in enumerate(images):
            assert scores.per_image[f"Bleu_{n + 1}"][str(i)] == pytest.approx(image["Bleu"][n], abs=1e-9)


def test_coco_captions_given_the_same_tokens(parity: Any) -> None:
    scores = evaluate(
        {str(i): group for i, group in enumerate(parity.reference_tokens)},
        {str(i): text for i, text in enumerate(parity.candidate_tokens)},
        tokenized=True,
        metrics=FAMILIES,
    )
    for name, values in parity.per_image.items():
        found = list(scores.per_image[name].values())
        np.testing.assert_allclose(found, values, rtol=0, atol=parity.tolerance[name], err_msg=name)
    for name, value in parity.corpus.items():
        assert scores.corpus[name] == pytest.approx(value, abs=parity.tolerance[name])


def test_coco_captions_from_raw_text(parity: Any) -> None:
    scores = evaluate(
        {str(i): group for i, group in enumerate(parity.references)},
        {str(i): text for i, text in enumerate(parity.candidates)},
        metrics=FAMILIES,
    )
    for name, value in parity.corpus.items():
        assert scores.corpus[name] == pytest.approx(value, abs=2e-4)


def test_coco_captions_by_the_tool_itself(parity: Any) -> None:
    # Where stored scores are rounded the tool's own are not: all figures to nine decimals.
    references, candidates = parity.reference_tokens[:1000], parity.candidate_tokens[:1000]
    _assert_equal_to_the_tool(references, candidates)


# Few words, so that n-grams repeat; some odd white space, on which the scorers disagree among themselves.
WORDS = st.sampled_from(["a", "dog", "the", "cat", "on", "1\u00a01/2", "ß", "|||||"])
CAPTIONS = st.lists(WORDS, max_size=14).map(" ".join)
ODD = CAPTIONS | st.text(alphabet="ab \u00a0\t\n", max_size=8)
REFERENCES = st.lists(ODD, min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(REFERENCES, ODD), min_size=1, max_size=6))
def test_random_captions(images: list[tuple[list[str], str]]) -> None:
    _assert_equal_to_the_tool([group for group, _ in images], [candidate for _, candidate in images])


def _assert_equal_to_the_tool(references: list[list[str]], candidates: list[str]) -> None:
    bleu_tool = pytest.importorskip("pycocoevalcap.bleu.bleu")
    rouge_tool = pytest.importorskip("pycocoevalcap.rouge.rouge")
    cider_tool = pytest.importorskip("pycocoevalcap.cider.cider")
    groups, said = dict(enumerate(references)), {i: [c] for i, c in enumerate(candidates)}
    with contextlib.redirect_stdout(io.StringIO()):
        corpus, per_image = bleu_tool.Bleu(4).compute_score(groups, said)
    bleu = bleu_scores(references, candidates)
    np.testing.assert_allclose(bleu.corpus, corpus, rtol=0, atol=1e-9)
    np.testing.assert_allclose(bleu.per_image, np.transpose(per_image), rtol=0, atol=1e-9)

    corpus, per_image = rouge_tool.Rouge().compute_score(groups, said)
    rouge = rouge_scores(references, candidates)
    np.testing.assert_allclose(rouge.per_image, per_image, rtol=0, atol=1e-9)
    assert rouge.corpus == pytest.approx(corpus, abs=1e-9)

    if not any(reference.split() for group in references for reference in group):
        return  # the tool's CIDEr wants at least one word in all references
    corpus, per_image = cider_tool.Cider().compute_score(groups, said)
    cider = cider_scores(references, candidates)
    np.testing.assert_allclose(cider.per_image, per_image, rtol=0, atol=1e-9)
    assert cider.corpus == pytest.approx(corpus, abs=1e-9)
