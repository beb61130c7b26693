"""All caption metrics in one call, under the names the COCO caption tool prints.

| family | keys |
|---|---|
| bleu | `Bleu_1` … `Bleu_4` |
| meteor | `METEOR` (needs the data of pycocoevalcap) |
| rouge | `ROUGE_L` |
| cider | `CIDEr` (what the tool prints under this name is CIDEr-D) |
| spice | `SPICE` (needs Java 8 or 11 and CoreNLP) |
| diversity | `distinct`, `novel`, `vocabulary`, `mean_length`, `bad_endings`; of several captions also `Div_1`, … |
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tellapart.errors import DataError, LimitError, MissingExtraError
from tellapart.metrics.bleu import ORDERS, Bleu, BleuScores
from tellapart.metrics.cider import Cider, DocumentFrequencies
from tellapart.metrics.diversity import ORACLE, candidate_scores, caption_diversity
from tellapart.metrics.endings import bad_endings
from tellapart.metrics.image_scores import ImageScores
from tellapart.metrics.ngrams import Captions, count_ngrams, number_captions
from tellapart.metrics.ptb import tokenize
from tellapart.metrics.rouge import rouge_of, rouge_scores
from tellapart.metrics.spice import spice_scores, why_no_spice

FAMILIES = ("bleu", "meteor", "rouge", "cider", "spice", "diversity")


@dataclass(frozen=True)
class Scores:
    """Scores of one set of captions.

    corpus:       metric → score over all images
    per_image:    metric → image id → score (Bleu_1…4 at sentence level); only for metrics defined per image
    not_reported: metric → why it could not be computed, in one line
    """

    corpus: dict[str, float] = field(default_factory=dict)
    per_image: dict[str, dict[str, float]] = field(default_factory=dict)
    not_reported: dict[str, str] = field(default_factory=dict)


def evaluate(
    references: Mapping[str, Sequence[str]],
    candidates: Mapping[str, str | Sequence[str]],
    *,
    tokenized: bool = False,
    training_captions: Iterable[str] | None = None,
    metrics: Sequence[str] | None = None,
    frequencies: DocumentFrequencies | None = None,
) -> Scores:
    """Score one or several candidates per image id against that image's references.

    Given several captions per image, the same number for each, quality is measured on the first one. The diversity
    family then also has the figures over all of them (Div-n, mBLEU, SelfCIDEr, the best caption by each metric).

    Args:
        references, candidates: by image id, with the same ids in both
        tokenized:         all captions are already tokens joined by spaces
        training_captions: for `novel`, which is omitted without them
        metrics:           families to compute: "bleu", "meteor", "rouge", "cider", "spice", "diversity"; None for all
                           that can be computed here (`Scores.not_reported` says why others cannot)
        frequencies:       document frequencies for CIDEr; by default those of the references

    Example:
        >>> references = {"1": ["A dog runs."], "2": ["A red bus."]}
        >>> round(evaluate(references, {"1": "a dog", "2": "A bus"}, metrics=["bleu"]).corpus["Bleu_1"], 3)
        0.607
    """
    families = _known_families(metrics)
    _check_ids(references, candidates)
    ids = list(candidates)
    said = _captions_per_image(candidates)
    groups = [references[i] for i in ids]
    training = None if training_captions is None else list(training_captions)
    if not tokenized:
        # All at once, which is faster than image by image.
        tokens = iter(tokenize([caption for captions in (*said, *groups) for caption in captions]))
        said = [list(islice(tokens, len(captions))) for captions in said]
        groups = [list(islice(tokens, len(group))) for group in groups]
        training = None if training is None else tokenize(training)
    scores = Scores()
    first = [captions[0] for captions in said]
    _add_quality(scores, ids, groups, first, families, frequencies, required=metrics is not None)
    if "diversity" in families:
        _add_diversity(scores, ids, groups, said, families, frequencies, training)
    return scores


def _add_quality(
    scores: Scores,
    ids: Sequence[str],
    groups: Sequence[Sequence[str]],
    first: Sequence[str],
    families: Sequence[str],
    frequencies: DocumentFrequencies | None,
    required: bool,
) -> None:
    """The scores of one caption per image, in the order of the COCO tool.

    Args:
        scores: gets them.
        ids: of the images.
        groups: their references.
        first: their captions.
        families: to compute.
        frequencies: for CIDEr.
        required: whether a metric whose data are missing is an error.
    """

    def add(metric: str, corpus: float, per_image: NDArray[np.float64]) -> None:
        scores.corpus[metric] = corpus
        scores.per_image[metric] = dict(zip(ids, per_image.tolist(), strict=True))

    # BLEU and CIDEr share the n-gram counts.
    captions = number_captions(groups, first, None if frequencies is None else frequencies.vocabulary())
    bleu, cider = _by_ngrams(captions, families, frequencies)
    if bleu is not None:
        for n in range(ORDERS):
            add(f"Bleu_{n + 1}", float(bleu.corpus[n]), bleu.per_image[:, n])
    if "meteor" in families:
        try:
            # Imported here: its tables are large.
            from tellapart.metrics.meteor import meteor_scores

            meteor = meteor_scores(groups, first)
            add("METEOR", meteor.corpus, meteor.per_image)
        except (MissingExtraError, LimitError) as error:
            if required:
                raise
            scores.not_reported["METEOR"] = str(error)
    if "rouge" in families:
        rouge = rouge_of(captions) if captions.single_blanks else rouge_scores(groups, first)
        add("ROUGE_L", rouge.corpus, rouge.per_image)
    if cider is not None:
        add("CIDEr", cider.corpus, cider.per_image)
    if "spice" in families:
        reason = why_no_spice()
        if reason is None:
            spice = spice_scores(groups, first)
            add("SPICE", spice.corpus, spice.per_image)
        else:
            scores.not_reported["SPICE"] = reason


def _add_diversity(
    scores: Scores,
    ids: Sequence[str],
    groups: Sequence[Sequence[str]],
    said: Sequence[Sequence[str]],
    families: Sequence[str],
    frequencies: DocumentFrequencies | None,
    training: list[str] | None,
) -> None:
    """The diversity of each image's first caption over the images and, if it has several, of these among each other.

    Args:
        scores: gets the figures; it has those of quality.
        ids, groups, families, frequencies: see `_add_quality`.
        said: the captions of each image.
        training: the training captions, for `novel`.
    """
    first = [captions[0] for captions in said]
    diversity = caption_diversity(first, training)
    scores.corpus["distinct"] = diversity.distinct
    if diversity.novel is not None:
        scores.corpus["novel"] = diversity.novel
    scores.corpus["vocabulary"] = float(diversity.vocabulary)
    scores.corpus["mean_length"] = diversity.mean_length
    scores.corpus["bad_endings"] = bad_endings(first)
    if len(said[0]) > 1:
        # The best of n captions, by each metric that is reported for the first.
        best_by = [family for family in families if family in ORACLE and family.upper() not in scores.not_reported]
        several = candidate_scores(said, groups, frequencies=frequencies, training_captions=training, oracle=best_by)
        scores.corpus.update(several.corpus)
        for metric, figures in several.per_image.items():
            scores.per_image[metric] = dict(zip(ids, figures.tolist(), strict=True))


def _by_ngrams(
    captions: Captions, families: Sequence[str], frequencies: DocumentFrequencies | None
) -> tuple[BleuScores | None, ImageScores | None]:
    """BLEU and CIDEr-D, as requested, from one count of the n-grams."""
    if "bleu" not in families and "cider" not in families:
        return None, None
    bleu = Bleu(captions) if "bleu" in families else None
    cider = Cider(captions, "cider-d", frequencies) if "cider" in families else None
    for ngrams in count_ngrams(captions):
        if bleu is not None:
            bleu.add(ngrams)
        if cider is not None:
            cider.add(ngrams)
    return None if bleu is None else bleu.scores(), None if cider is None else cider.scores()


def _captions_per_image(candidates: Mapping[str, str | Sequence[str]]) -> Sequence[Sequence[str]]:
    """Each image's captions; all of the same length, at least one."""
    if {str}.issuperset(map(type, candidates.values())):
        return list(zip(cast(Mapping[str, str], candidates).values()))
    said = [list(one) if isinstance(one, list | tuple) else [cast(str, one)] for one in candidates.values()]
    for i, captions in zip(candidates, said, strict=True):
        if not all(isinstance(caption, str) for caption in captions):
            raise DataError(f"image id '{i}': a candidate is not text; give a caption or a list of captions")
        if not captions:
            raise DataError(f"image id '{i}' has an empty list of candidates; caption it or drop its references")
        if len(captions) != len(said[0]):
            raise DataError(
                f"image id '{i}' has {len(captions)} candidates and '{next(iter(candidates))}' has {len(said[0])}; "
                "give the same number for every image"
            )
    return said


def _all_text(groups: Iterable[Iterable[object]]) -> bool:
    """Whether all are plain strings; much faster than to look for the one that is not."""
    return {str}.issuperset(map(type, chain.from_iterable(groups)))


def _known_families(metrics: Sequence[str] | None) -> Sequence[str]:
    if metrics is None:
        return FAMILIES
    if isinstance(metrics, str):
        metrics = [metrics]
    for name in metrics:
        if name not in FAMILIES:
            # Lower case, since a likely mistake is a metric's printed name: "CIDEr", "Bleu_4".
            close = difflib.get_close_matches(name.lower(), FAMILIES, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise DataError(f"unknown metric family '{name}' (known: {', '.join(FAMILIES)}){hint}")
    return metrics


def _check_ids(references: Mapping[str, Sequence[str]], candidates: Mapping[str, str | Sequence[str]]) -> None:
    """Raise unless every image has candidates and at least one reference."""
    if not candidates:
        raise DataError("no candidates to evaluate; give one caption per image id")
    same = references.keys() == candidates.keys()  # much faster than to look for the differences
    unknown = [] if same else [i for i in candidates if i not in references]
    if unknown:
        raise DataError(f"{_some(unknown)} without references; add references or drop these candidates")
    missing = [] if same else [i for i in references if i not in candidates]
    if missing:
        # Scoring only the captioned images would make the test set easier.
        raise DataError(f"{_some(missing)} without a candidate; caption them or drop their references")
    if (
        not {str}.intersection(map(type, references.values()))
        and all(references.values())
        and _all_text(references.values())
    ):
        return
    for i, group in references.items():
        if isinstance(group, str):
            raise DataError(f"image id '{i}': references are one string; give a list of captions")
        if not all(isinstance(caption, str) for caption in group):
            raise DataError(f"image id '{i}': a reference is not text; give a list of captions")
        if not group:
            raise DataError(f"image id '{i}' has an empty list of references; add some or drop it")


def _some(ids: Sequence[str]) -> str:
    """Subject and verb of a message, "image id 'a' is" or "4 image ids ('a', 'b', 'c', …) are"."""
    if len(ids) == 1:
        return f"image id '{ids[0]}' is"
    names = ", ".join(f"'{i}'" for i in ids[:3]) + (", …" if len(ids) > 3 else "")
    return f"{len(ids)} image ids ({names}) are"
