"""All caption metrics in one call, under the names the COCO caption tool prints."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tellapart.errors import DataError
from tellapart.metrics.bleu import ORDERS, bleu_scores
from tellapart.metrics.cider import cider_scores
from tellapart.metrics.diversity import caption_diversity
from tellapart.text import plain_words

FAMILIES = ("bleu", "cider", "diversity")


@dataclass(frozen=True)
class Scores:
    """Figures of one set of captions.

    corpus:    metric → figure over all images
    per_image: metric → image id → figure (Bleu_1…4 at sentence level, CIDEr); the diversity figures have none
    """

    corpus: dict[str, float]
    per_image: dict[str, dict[str, float]]


def tokenize(captions: Sequence[str]) -> list[str]:
    """Each caption as lower-case words joined by single blanks, without punctuation.

    Letters and digits are kept, an apostrophe inside a word vanishes ("dog's" → "dogs"), all else separates
    words. These are not the Penn Treebank (PTB) tokens of the COCO caption tool: figures by these tokens
    differ slightly from published ones. Pass PTB tokens with `tokenized=True` to get those exactly.
    """
    return [" ".join(plain_words(caption)) for caption in captions]


def evaluate(
    references: Mapping[str, Sequence[str]],
    candidates: Mapping[str, str],
    *,
    tokenized: bool = False,
    training_captions: Iterable[str] | None = None,
    metrics: Sequence[str] | None = None,
) -> Scores:
    """Score one candidate per image id against that image's references.

    references, candidates: by image id, with the same ids in both
    tokenized:         the captions, training captions too, are tokens joined by blanks: take them as they are
    training_captions: for `novel`, which is left out without them
    metrics:           families to compute, of "bleu", "cider" and "diversity"; all of them when None
    """
    families = _known_families(metrics)
    _check_ids(references, candidates)
    ids = list(candidates)
    texts = [candidates[i] for i in ids]
    reference_texts = [list(references[i]) for i in ids]
    if not tokenized:
        texts = tokenize(texts)
        reference_texts = [tokenize(group) for group in reference_texts]

    corpus: dict[str, float] = {}
    per_image: dict[str, dict[str, float]] = {}
    if "bleu" in families:
        bleu = bleu_scores(reference_texts, texts)
        for n in range(ORDERS):
            corpus[f"Bleu_{n + 1}"] = float(bleu.corpus[n])
            per_image[f"Bleu_{n + 1}"] = dict(zip(ids, bleu.per_image[:, n].tolist(), strict=True))
    if "cider" in families:
        cider = cider_scores(reference_texts, texts)
        corpus["CIDEr"] = cider.corpus
        per_image["CIDEr"] = dict(zip(ids, cider.per_image.tolist(), strict=True))
    if "diversity" in families:
        training = training_captions
        if training is not None and not tokenized:
            training = tokenize(list(training))
        diversity = caption_diversity(texts, training)
        corpus["distinct"] = diversity.distinct
        if diversity.novel is not None:
            corpus["novel"] = diversity.novel
        corpus["vocabulary"] = float(diversity.vocabulary)
        corpus["mean_length"] = diversity.mean_length
    return Scores(corpus=corpus, per_image=per_image)


def _known_families(metrics: Sequence[str] | None) -> Sequence[str]:
    if metrics is None:
        return FAMILIES
    for name in metrics:
        if name not in FAMILIES:
            # Lower case, for the likeliest slip is a metric's printed name: "CIDEr", "Bleu_4".
            close = difflib.get_close_matches(name.lower(), FAMILIES, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise DataError(f"unknown metric family '{name}' (known: {', '.join(FAMILIES)}){hint}")
    return metrics


def _check_ids(references: Mapping[str, Sequence[str]], candidates: Mapping[str, str]) -> None:
    """Every image has one candidate and at least one reference, or the message says which has not."""
    if not candidates:
        raise DataError("no candidates to evaluate; give one caption per image id")
    unknown = [i for i in candidates if i not in references]
    if unknown:
        raise DataError(f"{_some(unknown)} without references; add references or drop these candidates")
    missing = [i for i in references if i not in candidates]
    if missing:
        # Scoring only the captioned images would quietly make the test set easier.
        raise DataError(f"{_some(missing)} without a candidate; caption them or drop their references")
    for i, group in references.items():
        if isinstance(group, str):
            raise DataError(f"image id '{i}': references are one string; give a list of captions")
        if not group:
            raise DataError(f"image id '{i}' has an empty list of references; add some or drop it")


def _some(ids: Sequence[str]) -> str:
    """Subject and verb of a message, "image id 'a' is" or "4 image ids ('a', 'b', 'c', …) are"."""
    if len(ids) == 1:
        return f"image id '{ids[0]}' is"
    names = ", ".join(f"'{i}'" for i in ids[:3]) + (", …" if len(ids) > 3 else "")
    return f"{len(ids)} image ids ({names}) are"
