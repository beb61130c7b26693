"""Tables 1 to 3 of the specificity paper: captions that an image retriever understands.

Every table has an extra row as a control, which the paper lacks: the MLE model trained further by MLE, with all other
settings and the rule to stop of specificity training. Another row is the recommended recipe, which adds some
likelihood. In all rows a word equal to the one just before it is removed, as in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tellapart.studies.base import Arm, Study, quote
from tellapart.studies.columns import CAPTION_SCORES, SAYING, Column
from tellapart.studies.papers.cl import from_mle, mle

Figures = Mapping[str, float]

LOSSES = {"dp": "DP", "cos": "Cos", "cdp": "CDP", "ccos": "CCos"}

# --- The paper's figures ----------------------------------------------------------------------------------------------

_SAID = ("distinct", "novel")
_FOUND = ("under_judge_R@1", "under_judge_R@5", "under_judge_R@10")


def _specific(*values: float) -> Figures:
    """Diversity, novelty, vocabulary, R@1, R@5, R@10, mean rank."""
    distinct, novel, vocabulary, *recalls, rank = values
    percent = zip((*_SAID, *_FOUND), (distinct, novel, *recalls), strict=True)
    return {**{name: v / 100 for name, v in percent}, "vocabulary": vocabulary, "under_judge_mean_rank": rank}


def _scores(*values: float) -> Figures:
    """BLEU-1 to 4, ROUGE-L, METEOR, CIDEr, SPICE."""
    names = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "METEOR", "CIDEr", "SPICE")
    return dict(zip(names, values, strict=True))


def _within(distinct: float, novel: float) -> Figures:
    return {"distinct_within": distinct / 100, "novel_within": novel / 100}


_TABLE1 = {
    "mle": _specific(76.26, 69.08, 812, 10.82, 30.42, 43.32, 39.25),
    "dp": _specific(79.12, 76.66, 1029, 10.38, 31.38, 44.48, 33.70),
    "cos": _specific(79.16, 76.66, 1034, 10.04, 30.66, 43.54, 35.25),
    "cdp": _specific(84.48, 77.49, 1064, 12.80, 36.16, 49.67, 32.79),
    "ccos": _specific(84.37, 77.29, 1052, 12.53, 36.19, 50.00, 32.30),
}
_TABLE1_MORE = {
    "D-ME+DMSM": {"distinct": 0.47, "novel": 0.70},
    "Adv-samp": {"novel": 0.739, "vocabulary": 1616},
}
_TABLE2_MORE = {"CVAE": _within(11.8, 82.0), "GMM-CVAE": _within(59.4, 80.9), "AG-CVAE": _within(76.4, 79.5)}
_TABLE3 = {
    "mle": _scores(0.746, 0.579, 0.432, 0.320, 0.545, 0.262, 1.036, 0.197),
    "dp": _scores(0.725, 0.556, 0.409, 0.297, 0.527, 0.247, 0.953, 0.184),
    "cos": _scores(0.725, 0.556, 0.409, 0.297, 0.527, 0.247, 0.953, 0.184),
    "cdp": _scores(0.736, 0.564, 0.417, 0.306, 0.533, 0.251, 0.977, 0.188),
    "ccos": _scores(0.737, 0.565, 0.419, 0.307, 0.533, 0.253, 0.980, 0.188),
}
_TABLE3_MORE: Mapping[str, Figures] = {
    "D-ME+DMSM": {"Bleu_4": 0.257, "METEOR": 0.236},
    "Adv-samp": {"METEOR": 0.236, "SPICE": 0.166},
    "CVAE": _scores(0.698, 0.521, 0.372, 0.265, 0.506, 0.225, 0.834, 0.158),
    "GMM-CVAE": _scores(0.718, 0.538, 0.388, 0.278, 0.516, 0.238, 0.932, 0.170),
    "AG-CVAE": _scores(0.716, 0.537, 0.391, 0.286, 0.517, 0.239, 0.953, 0.172),
}

# --- Arms -------------------------------------------------------------------------------------------------------------

# In the paper's own recipes only; elsewhere all arms have the same rate and number of updates.
_PAPERS_OWN = {
    "training.learning_rate": "the paper's, of the losses without contrast",
    "training.steps": "the paper's, of the losses without contrast",
}
_NO_REPEATS = "decoding.remove_repeats=true"
# Ten captions of each image.
_CANDIDATES = ("decoding.beam=10", "decoding.samples=10")


def _arms(captioner: str, quoted: Mapping[str, Figures], *changes: str) -> tuple[Arm, ...]:
    control = f"{captioner}-specificity-continued"

    def arm(key: str, label: str, **more: Any) -> Arm:
        recipe = "specificity" if key == "recommended" else f"specificity-{key}"
        values = {"control": control, "changes": changes, **more}
        return from_mle(captioner, f"specificity-{key}", label, recipe, **values)

    start = replace(mle(captioner, control=control), changes=(_NO_REPEATS, *changes))
    arms = (
        start,
        arm("continued", "MLE continued (control)", control=None),
        *(arm(key, name, deviations={} if key in ("cdp", "ccos") else _PAPERS_OWN) for key, name in LOSSES.items()),
        arm("recommended", "CCos and likelihood"),
    )
    return quote(
        {(start.key if key == "mle" else f"{captioner}-specificity-{key}"): f for key, f in quoted.items()}, *arms
    )


# Recipes with the paper's own sizes and settings.
PAPER = {
    "updown-mle": "specificity-updown-mle",
    **{name: name for name in ("specificity", *(f"specificity-{key}" for key in ("continued", *LOSSES)))},
}


def _study(table: int, title: str, quoted: Mapping[str, Figures], *changes: str, **more: Any) -> Study:
    return Study(
        f"specificity-table{table}",
        title,
        lambda captioner: _arms(captioner, quoted, *changes),
        split="test",
        source=f"the specificity paper, Table {table} (COCO test, 5,000 images)",
        measure="tellapart.studies.measure_specificity:SpecificityMeasure",
        paper=PAPER,
        **more,
    )


STUDIES = (
    _study(
        1,
        "Does a retriever teach captions to be specific and diverse?",
        _TABLE1,
        columns=(
            Column("distinct", "diversity", "percent"),
            Column("novel", "novelty", "percent"),
            Column("vocabulary", "vocabulary", "count"),
            *(Column(f"under_judge_R@{k}", f"R@{k}, teaching retriever", "percent") for k in (1, 5, 10)),
            Column("under_judge_mean_rank", "mean rank, teaching retriever", "number"),
            *SAYING[:2],
            Column("repeated", "repeated words", "percent"),
            Column("fluency", "ln p per token, frozen start"),
            Column("only_teacher", "seeds that please only the teacher", "percent"),
        ),
        more_quoted=_TABLE1_MORE,
        remark="Repeated words are those that come before in the same caption. A seed pleases only the teacher if,"
        " since the start of training, the mean rank of validation captions has improved under the teaching retriever"
        " and worsened under the independent one. The paper's mean rank is counted from 0, ours from 1. Its recalls are"
        " those of its own retriever.",
    ),
    _study(
        2,
        "Are ten captions of an image diverse and novel?",
        {},
        *_CANDIDATES,
        columns=(
            Column("distinct_within", "diversity within candidates", "percent"),
            Column("novel_within", "novelty within candidates", "percent"),
        ),
        more_quoted=_TABLE2_MORE,
        remark="The paper quotes other models here and measures none of its own. Ours give the ten best of a beam of "
        "ten; the other figures are those of the first.",
    ),
    _study(
        3,
        "What does specificity cost in agreement with people's captions?",
        _TABLE3,
        columns=(*CAPTION_SCORES, Column("SPICE", "SPICE")),
        more_quoted=_TABLE3_MORE,
    ),
)
