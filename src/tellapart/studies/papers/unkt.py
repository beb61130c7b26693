"""Tables 1 to 6 and 8 and Figure 2 of the UNKT paper: does a negative teacher make captions diverse?

Every table has an extra row as a control, which the paper lacks: the MLE model trained further by MLE, with all other
settings of UNKT. Students start from the MLE model; the paper's start from scratch. The negative teacher is a row too.
Captions are sampled at temperature 1. Table 7, judgements by people, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tellapart.studies.base import Arm, Study, quote
from tellapart.studies.columns import Column
from tellapart.studies.papers.cl import from_mle, mle, name_of

Figures = Mapping[str, float]

# --- The paper's figures ----------------------------------------------------------------------------------------------

_ORACLE = ("Bleu_4", "Bleu_3", "Bleu_2", "Bleu_1", "CIDEr", "ROUGE_L", "METEOR")
_AMONG = ("Div_1", "Div_2", "SelfCIDEr_Luo", "mBLEU_4_corpus")


def _oracle(count: int, *values: float) -> Figures:
    """BLEU-4 to 1, CIDEr, ROUGE, METEOR of the best caption; SPICE is not measured here."""
    return {f"oracle_{count}_{name}": value / 100 for name, value in zip(_ORACLE, values, strict=True)}


def _among(*values: float | None) -> Figures:
    """Div-1, Div-2, SelfCIDEr, mBLEU of the best five."""
    return {f"best_5_{name}": v for name, v in zip(_AMONG, values, strict=True) if v is not None}


def _both(bleu: float, meteor: float, cider: float, div: float, self_cider: float, mutual: float) -> Figures:
    """A row of Tables 3 to 6 and 8: its quality looks like the best of 20, its diversity like that of the best five."""
    quality = {"oracle_20_Bleu_4": bleu, "oracle_20_METEOR": meteor, "oracle_20_CIDEr": cider}
    return {**{name: value / 100 for name, value in quality.items()}, **_among(div, None, self_cider, mutual)}


_UNKT = _both(54.5, 41.9, 174.2, 0.46, 0.85, 0.50)
_TABLE1 = {
    "transformer-unkt": {
        **_oracle(20, 54.5, 68.5, 80.0, 92.0, 174.2, 73.8, 41.9),
        **_oracle(100, 65.6, 75.5, 85.3, 94.9, 196.8, 78.4, 48.1),
    },
    "meshed-unkt": {
        **_oracle(20, 55.8, 69.1, 80.4, 92.3, 176.4, 74.2, 43.9),
        **_oracle(100, 66.1, 75.8, 85.5, 95.0, 197.5, 78.7, 48.7),
    },
}
_TABLE1_MORE: Mapping[str, Figures] = {
    "Div-BS": {
        **_oracle(20, 38.3, 53.8, 68.7, 83.7, 140.5, 65.3, 35.7),
        **_oracle(100, 40.2, 55.5, 69.8, 84.6, 144.8, 66.6, 37.2),
    },
    "POS": {
        **_oracle(20, 44.9, 59.3, 73.7, 87.4, 146.8, 67.8, 36.5),
        **_oracle(100, 55.0, 67.2, 78.7, 90.9, 166.1, 72.5, 40.9),
    },
    "AG-CVAE": {
        **_oracle(20, 47.1, 57.3, 69.8, 83.4, 125.9, 63.8, 30.9),
        **_oracle(100, 55.7, 65.4, 76.7, 88.3, 151.7, 69.0, 34.5),
    },
    "Seq-CVAE": {
        **_oracle(20, 44.5, 59.1, 72.7, 87.0, 144.8, 67.1, 35.6),
        **_oracle(100, 57.5, 69.1, 80.3, 92.2, 169.5, 73.3, 41.0),
    },
    "LNFMM": _oracle(100, 59.6, 69.5, 80.2, 92.0, 170.5, 72.9, 40.2),
    "COS-CVAE": {
        **_oracle(20, 50.0, 64.0, 77.1, 90.3, 162.4, 70.6, 38.7),
        **_oracle(100, 63.3, 73.9, 84.2, 94.2, 189.3, 77.0, 45.0),
    },
    "Transformer-DML": {
        **_oracle(20, 52.6, 66.3, 78.8, 91.5, 170.4, 72.6, 41.7),
        **_oracle(100, 64.9, 75.0, 84.9, 94.6, 195.3, 78.0, 47.4),
    },
}
_TABLE2 = {"transformer-unkt": _among(0.46, 0.63, 0.85, 0.50), "meshed-unkt": _among(0.45, 0.60, 0.83, 0.53)}
_TABLE2_MORE: Mapping[str, Figures] = {
    "LNFMM": _among(0.37, 0.50, None, 0.64),
    "COS-CVAE": _among(0.39, 0.57, 0.79, 0.53),
    "Seq-CVAE": _among(0.33, 0.48, None, 0.64),
    "Transformer-BS": _among(0.21, 0.29, 0.57, 0.78),
    "Transformer-DML": _among(0.43, 0.59, 0.83, 0.54),
}
_TABLE3 = {
    "transformer-unkt": _UNKT,
    "transformer-unkt-no-prediction": _both(55.3, 43.0, 175.5, 0.45, 0.83, 0.54),
    "transformer-unkt-no-attention": _both(54.9, 42.4, 174.8, 0.43, 0.82, 0.54),
    "transformer-unkt-no-hidden": _both(53.6, 40.4, 172.5, 0.41, 0.80, 0.57),
    "transformer-mle": _both(44.9, 36.4, 145.7, 0.22, 0.58, 0.79),
}
_TABLE4 = {
    "transformer-unkt-teacher": _both(39.2, 35.3, 138.2, 0.18, 0.55, 0.80),
    "transformer-unkt-positive-teacher": _both(42.3, 36.5, 144.2, 0.32, 0.63, 0.64),
}
_TABLE5 = {
    "transformer-unkt": _UNKT,
    "transformer-unkt-of-positive": _both(54.2, 41.5, 173.7, 0.31, 0.63, 0.65),
}
_TABLE6 = {
    "transformer-unkt": _UNKT,
    "transformer-unkt-hard": _both(54.4, 41.7, 174.0, 0.45, 0.83, 0.52),
    "transformer-unkt-random": _both(52.5, 39.2, 168.3, 0.38, 0.77, 0.61),
}
_TABLE8 = {
    "transformer-unkt": _UNKT,
    "transformer-unkt-fixed": _both(54.3, 41.6, 173.9, 0.43, 0.82, 0.55),
}

# --- Arms -------------------------------------------------------------------------------------------------------------

TRANSFORMERS = {"transformer": "unkt-negative-teacher", "meshed": "unkt-meshed-negative-teacher"}
NO_ATTENTION = ("objective.self_attention=false", "objective.cross_attention=false")


def _control(captioner: str) -> str:
    return f"{captioner}-unkt-continued"


def _start(captioner: str) -> tuple[Arm, ...]:
    """The MLE model, and the control."""
    continued = from_mle(captioner, "unkt-continued", "MLE continued (control)", "unkt-continued", control=None)
    return mle(captioner, control=_control(captioner)), continued


def teacher(captioner: str, positive: bool = False) -> Arm:
    """A model of the generic captions (D⁻), or of the specific ones (D⁺)."""
    recipe = TRANSFORMERS.get(captioner, f"{captioner}-mle")
    own = () if captioner in TRANSFORMERS else ("data.captions=generic", "roles.entropy.from=dcl.yaml")
    if not positive:
        return Arm(f"{captioner}-unkt-teacher", f"{name_of(captioner)}, likelihood on D⁻", recipe, changes=own)
    return Arm(
        f"{captioner}-unkt-positive-teacher",
        f"{name_of(captioner)}, likelihood on D⁺",
        recipe,
        changes=(*own, "data.captions=specific"),
        control=f"{captioner}-unkt-teacher",
        treatment=("data.captions",),
    )


def _student(captioner: str, key: str = "", label: str = "UNKT", *changes: str, **more: Any) -> Arm:
    """UNKT; LSTMs have no attention maps to compare."""
    all_changes = changes if captioner in TRANSFORMERS else (*NO_ATTENTION, *changes)
    values = {
        "control": _control(captioner),
        "roles": {"negative_teacher": f"{captioner}-unkt-teacher"},
        "changes": all_changes,
        **more,
    }
    recipe = values.pop("recipe", "unkt")
    return from_mle(captioner, f"unkt{key}", label, recipe, **values)


def _main(captioner: str) -> tuple[Arm, ...]:
    """UNKT of a captioner; of a Transformer also with memory."""
    captioners = ("transformer", "meshed") if captioner == "transformer" else (captioner,)
    return tuple(arm for one in captioners for arm in (*_start(one), teacher(one), _student(one)))


def _with(captioner: str, *arms: Arm) -> tuple[Arm, ...]:
    return (*_start(captioner), teacher(captioner), _student(captioner), *arms)


def _table3(captioner: str) -> tuple[Arm, ...]:
    attention = (_student(captioner, "-no-attention", "without L_att", *NO_ATTENTION),)
    return _with(
        captioner,
        _student(captioner, "-no-prediction", "without L_pred", "objective.prediction=none"),
        *(attention if captioner in TRANSFORMERS else ()),
        _student(captioner, "-no-hidden", "without L_hid", "objective.hidden=false"),
    )


def _table4(captioner: str) -> tuple[Arm, ...]:
    return teacher(captioner), teacher(captioner, positive=True)


def _table5(captioner: str) -> tuple[Arm, ...]:
    positive = teacher(captioner, positive=True)
    return _with(
        captioner,
        positive,
        _student(captioner, "-of-positive", "UNKT, teacher of D⁺", roles={"negative_teacher": positive.key}),
    )


def _table6(captioner: str) -> tuple[Arm, ...]:
    return _with(
        captioner,
        _student(captioner, "-hard", "UNKT, hard targets", "objective.prediction=hard"),
        _student(captioner, "-random", "UNKT, random targets", recipe="unkt-random"),
        _student(captioner, "-frequent", "UNKT, frequent words (eq. 2)", "objective.prediction=unlikelihood"),
        _student(captioner, "-distilled", "UNKT, towards the teacher (eq. 4)", "objective.prediction=distillation"),
    )


def _table8(captioner: str) -> tuple[Arm, ...]:
    fixed = ("objective.schedule=fixed", "objective.lambda_max=0.5")
    return _with(
        captioner,
        _student(captioner, "-fixed", "UNKT, λ = 0.5", *fixed),
        _student(captioner, "-smaller", "UNKT, λ_max = 0.1", "objective.lambda_max=0.1"),
    )


# Recipes with the paper's own sizes and settings.
PAPER = {
    "transformer-mle": "unkt-transformer-mle",
    "meshed-mle": "unkt-meshed-mle",
    **{name: name for name in ("unkt", "unkt-continued", "unkt-random", *TRANSFORMERS.values())},
}

# --- Studies ----------------------------------------------------------------------------------------------------------

_HEADINGS = {"Bleu_4": "B-4", "Bleu_3": "B-3", "Bleu_2": "B-2", "Bleu_1": "B-1", "ROUGE_L": "ROUGE-L"}


def _best_of(count: int, names: tuple[str, ...] = _ORACLE) -> tuple[Column, ...]:
    return tuple(Column(f"oracle_{count}_{name}", f"{_HEADINGS.get(name, name)}, best of {count}") for name in names)


_DIVERSITY = (
    Column("best_5_Div_1", "Div-1, best 5"),
    Column("best_5_Div_2", "Div-2, best 5"),
    Column("best_5_SelfCIDEr_Luo", "SelfCIDEr, best 5"),
    Column("best_5_mBLEU_4_corpus", "mBLEU-4 of the corpus, best 5"),
    Column("best_5_mean_CIDEr", "mean CIDEr, best 5"),
    Column("beam_best_5_Div_1", "Div-1, best 5 of a beam"),
)
_BOTH = (*_best_of(20, ("Bleu_4", "METEOR", "CIDEr")), *_DIVERSITY)


def _study(
    name: str,
    title: str,
    arms: Callable[[str], tuple[Arm, ...]],
    quoted: Mapping[str, Figures],
    columns: tuple[Column, ...] = _BOTH,
    **more: Any,
) -> Study:
    place = "Table " + name.removeprefix("table") if name.startswith("table") else "Figure 2"
    return Study(
        f"unkt-{name}",
        title,
        lambda captioner: quote(quoted, *arms(captioner)),
        columns=columns,
        split="test",
        source=f"the UNKT paper, {place} (COCO, 1,000 test images of the m-RNN split)",
        captioner="transformer",
        paper=PAPER,
        **{"measure": "tellapart.studies.measure_unkt:UnktMeasure", **more},
    )


_MANY = "tellapart.studies.measure_unkt:ManySamplesMeasure"

STUDIES = (
    _study(
        "table1",
        "How good is the best of many captions?",
        _main,
        _TABLE1,
        (*_best_of(20), *_best_of(100)),
        measure=_MANY,
        more_quoted=_TABLE1_MORE,
        remark="The best caption of an image is found by each metric on its own. A negative teacher is a row too.",
    ),
    _study("table2", "Are captions diverse?", _main, _TABLE2, _DIVERSITY, more_quoted=_TABLE2_MORE),
    _study("table3", "Which term of UNKT does what?", _table3, _TABLE3),
    _study(
        "table4",
        "Does retrieval entropy find generic captions?",
        _table4,
        _TABLE4,
        remark="Two models by likelihood: on the half of the captions with the highest and with the lowest entropy.",
    ),
    _study("table5", "Must the negative teacher be generic?", _table5, _TABLE5),
    _study("table6", "Soft, hard or random targets?", _table6, _TABLE6),
    _study("table8", "Must λ change?", _table8, _TABLE8),
    _study(
        "figure2",
        "How does the best caption grow with their number?",
        _main,
        {},
        tuple(Column(f"oracle_{count}_CIDEr", f"CIDEr, best of {count}") for count in (1, 5, 10, 20, 50, 100)),
        measure=_MANY,
    ),
)
