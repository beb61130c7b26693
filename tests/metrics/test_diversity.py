"""Diversity figures counted by hand, by loops, and as measured on m-RNN's captions."""

from __future__ import annotations

import gzip
import json
import math
import random
import zipfile
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tellapart.errors import DataError, MissingExtraError
from tellapart.metrics import DocumentFrequencies, bleu_scores, caption_diversity, cider_scores, rouge_scores, tokenize
from tellapart.metrics.diversity import candidate_scores, distinct_ngrams, self_cider
from tellapart.metrics.pairwise import CaptionPairs

PARITY = Path(__file__).resolve().parents[3] / "shared" / "data" / "metrics" / "mrnn1k_beam10.json.gz"
CAPTIONS = ["a dog runs", "a dog runs", "a cat", "the cat sleeps here"]

Sample = tuple[list[list[str]], list[list[str]]]


# --- over a test set --------------------------------------------------------------------------------------------------


def test_by_hand() -> None:
    figures = caption_diversity(CAPTIONS, ["a cat", "a red bus"])
    assert figures.distinct == 3 / 4
    assert figures.novel == 3 / 4
    assert figures.vocabulary == 7
    assert figures.mean_length == 12 / 4


def test_without_training_captions_novelty_is_unknown() -> None:
    assert caption_diversity(CAPTIONS).novel is None
    # An empty list is an answer, not a missing one: nothing was seen in training.
    assert caption_diversity(CAPTIONS, []).novel == 1.0


def test_white_space_makes_no_difference() -> None:
    figures = caption_diversity(["a  dog", "a dog "], [" a dog"])
    assert figures.distinct == 1 / 2
    assert figures.novel == 0.0


def test_empty_captions_gain_nothing() -> None:
    figures = caption_diversity(["", " "], ["a dog"])
    assert (figures.distinct, figures.novel, figures.vocabulary, figures.mean_length) == (0.0, 0.0, 0, 0.0)


def test_no_captions_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one caption"):
        caption_diversity([])


# --- among the captions of each image ---------------------------------------------------------------------------------


def sample(seed: int, images: int = 6) -> Sample:
    """Candidates and references of few words; one image repeats itself, one says next to nothing."""
    generator = random.Random(seed)
    words = ["a", "dog", "cat", "on", "the", "grass", "runs"]
    captions = generator.randint(2, 5)

    def caption(shortest: int) -> str:
        return " ".join(generator.choices(words, k=generator.randint(shortest, 10)))

    candidates = [[caption(0) for _ in range(captions)] for _ in range(images)]
    candidates[0] = ["a dog runs on the grass"] * captions
    candidates[1] = [""] * (captions - 1) + ["a"]
    return candidates, [[caption(1) for _ in range(generator.randint(1, 4))] for _ in range(images)]


def spread(values: np.ndarray) -> float:
    roots = [math.sqrt(value) if value > 1e-12 * max(values) else 0.0 for value in values]
    return -math.log(max(roots) / sum(roots), len(values)) if any(roots) else 0.0


@pytest.mark.parametrize("seed", range(5))
def test_equals_loops(seed: int) -> None:
    candidates, references = sample(seed)
    n, images = len(candidates[0]), len(candidates)
    known = [candidates[2][0], "a dog"]
    scores = candidate_scores(candidates, references, training_captions=known)
    table = DocumentFrequencies.count(references)
    expected: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        expected.setdefault(name, []).append(value)

    for texts in candidates:
        words = [text.split() for text in texts]
        total = sum(len(caption) for caption in words) + 1e-6
        add("Div_1", len({word for caption in words for word in caption}) / total)
        add("Div_2", len({pair for caption in words for pair in pairwise(caption)}) / total)
        said = [text for text in texts if text]
        add("distinct_within", len(set(said)) / n)
        add("novel_within", sum(text not in known for text in said) / n)
        plain, clipped = np.zeros((n, n)), np.zeros((n, n))
        pairs = CaptionPairs(texts, table)
        for i in range(n):
            for j in range(i, n):
                plain[i, j] = plain[j, i] = pairs.cider(np.array([i]), np.array([j]))[0, 0]
                clipped[i, j] = clipped[j, i] = pairs.cider_d(np.array([i]), np.array([j]))[0, 0]
        add("SelfCIDEr_Luo", spread(np.clip(np.linalg.eigvalsh(plain), 0, None)))
        add("SelfCIDEr_Wang", spread(np.linalg.svd(clipped)[1]))
        others = [bleu_scores([[*texts[:i], *texts[i + 1 :]]], [texts[i]]).per_image[0, 3] for i in range(n)]
        add("mBLEU_4_sentence", float(np.mean(others)))
    for image in range(images):
        slots = [[texts[i] for texts in candidates] for i in range(n)]
        for k in range(4):
            add(f"oracle_Bleu_{k + 1}", max(bleu_scores(references, slot).per_image[image, k] for slot in slots))
        add("oracle_CIDEr", max(cider_scores(references, slot).per_image[image] for slot in slots))
        add("oracle_ROUGE_L", max(rouge_scores(references, slot).per_image[image] for slot in slots))
    corpus = {name: float(np.mean(values)) for name, values in expected.items()}
    mutual = [
        bleu_scores([[*texts[:i], *texts[i + 1 :]] for texts in candidates], [texts[i] for texts in candidates])
        for i in range(n)
    ]
    corpus["mBLEU_4_corpus"] = float(np.mean([bleu.corpus[3] for bleu in mutual]))
    assert scores.corpus == pytest.approx(corpus, abs=1e-9)
    assert set(scores.per_image) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(scores.per_image[name], values, rtol=0, atol=1e-9, err_msg=name)


def test_all_the_same_and_nothing_in_common() -> None:
    table = DocumentFrequencies.count([[f"{word} is here now"] for word in "abcdefgh"])
    same, apart, silent = ["a dog runs fast"] * 4, [f"{w}1 {w}2 {w}3 {w}4" for w in "abcd"], [""] * 4
    for values in self_cider([same, apart, silent], table):
        # Captions that say nothing have nothing in common either, but must not gain by it.
        np.testing.assert_allclose(values, [0.0, 1.0, 0.0], rtol=0, atol=1e-12)
    references = [["a dog runs fast"], ["x"], ["y"]]
    scores = candidate_scores([same, apart, silent], references, oracle=["bleu"])
    np.testing.assert_allclose(scores.per_image["mBLEU_4_sentence"], [1.0, 0.0, 0.0], rtol=0, atol=1e-6)
    assert scores.per_image["distinct_within"].tolist() == [0.25, 1.0, 0.0]
    assert scores.per_image["oracle_Bleu_4"][0] == pytest.approx(1.0)
    assert distinct_ngrams([silent], 1).tolist() == [0.0]
    assert "novel_within" not in scores.corpus
    assert not any(name.startswith("oracle_CIDEr") for name in scores.corpus)


def test_progress_counts_the_captions() -> None:
    seen: list[tuple[int, int]] = []
    candidates = [["a", "b", "c"], ["d", "e", "f"]]
    candidate_scores(candidates, [["a b"], ["d e"]], oracle=[], on_progress=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_unmeasurable_captions() -> None:
    with pytest.raises(DataError, match="between 1 and 2 captions; give the same number"):
        candidate_scores([["a", "b"], ["a"]], [["a"], ["a"]])
    with pytest.raises(DataError, match="at least two"):
        candidate_scores([["a"], ["a"]], [["a"], ["a"]])
    with pytest.raises(DataError, match="at least two"):
        candidate_scores([], [])
    with pytest.raises(DataError, match="1 images have captions and 2 references"):
        candidate_scores([["a", "b"]], [["a"], ["a"]])
    with pytest.raises(DataError, match="no oracle by 'cidr'; did you mean 'cider'"):
        candidate_scores([["a", "b"]], [["a"]], oracle=["cidr"])


# --- as measured by others --------------------------------------------------------------------------------------------

EXPECTED = {
    5: {
        "Div_1": 0.29776760,
        "Div_2": 0.39805403,
        "mBLEU_4_corpus": 0.74610655,
        "mBLEU_4_sentence": 0.71238893,
        "SelfCIDEr_Luo": 0.61714034,
        "oracle_Bleu_4": 0.30799623,
        "oracle_CIDEr": 1.16222311,
        "oracle_ROUGE_L": 0.59199679,
    },
    10: {
        "Div_1": 0.18223141,
        "Div_2": 0.26481230,
        "mBLEU_4_corpus": 0.8601489,
        "mBLEU_4_sentence": 0.84287198,
        "SelfCIDEr_Luo": 0.58030508,
        "oracle_Bleu_4": 0.35464595,
        "oracle_CIDEr": 1.27658361,
        "oracle_ROUGE_L": 0.62504911,
    },
}
# Of the first five; of all ten it is 0.32800457, and takes as long again.
EXPECTED_METEOR = 0.30079464


@pytest.fixture(scope="module")
def beam10() -> Sample:
    """Ten captions each for 1,000 images, and references; all as PTB tokens."""
    if not PARITY.exists():
        pytest.skip(f"{PARITY.name} is not here: figures measured on these captions are needed")
    with gzip.open(PARITY, "rt", encoding="utf-8") as file:
        content = json.load(file)
    return [tokenize(texts) for texts in content["hyps"].values()], [tokenize(t) for t in content["refs"].values()]


@pytest.fixture(scope="module")
def val2014() -> DocumentFrequencies:
    """Of the references of COCO's 40,504 validation images, which come with the SPICE tool."""
    found = find_spec("pycocoevalcap")
    if found is None or not found.submodule_search_locations:
        pytest.skip("pycocoevalcap is not installed: its copy of COCO's captions is needed")
    with zipfile.ZipFile(Path(found.submodule_search_locations[0]) / "spice" / "spice-1.0.jar") as jar:
        annotations = json.loads(jar.read("coco/annotations/captions_val2014.json"))["annotations"]
    groups: dict[int, list[int]] = {}
    for row, annotation in enumerate(annotations):
        groups.setdefault(annotation["image_id"], []).append(row)
    tokens = tokenize([annotation["caption"] for annotation in annotations])
    return DocumentFrequencies.count([[tokens[row] for row in rows] for rows in groups.values()])


@pytest.mark.parametrize("captions", [5, 10])
def test_equals_the_figures_measured_by_others(beam10: Sample, val2014: DocumentFrequencies, captions: int) -> None:
    candidates, references = beam10
    scores = candidate_scores([texts[:captions] for texts in candidates], references, frequencies=val2014).corpus
    for name, value in EXPECTED[captions].items():
        assert scores[name] == pytest.approx(value, abs=1e-6), name


def test_equals_the_best_meteor_measured_by_others(beam10: Sample) -> None:
    candidates, references = beam10
    try:
        scores = candidate_scores([texts[:5] for texts in candidates], references, oracle=["meteor"]).corpus
    except MissingExtraError as error:
        pytest.skip(str(error))
    assert scores["oracle_METEOR"] == pytest.approx(EXPECTED_METEOR, abs=1e-6)
