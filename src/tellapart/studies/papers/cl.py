"""Tables 1 to 6 of "Contrastive Learning for Image Captioning" (Dai and Lin, NIPS 2017).

Every table has an extra row as a control: the MLE model trained further by MLE, with all settings of CL except the
objective, because more training alone also changes a model. Tables 4 to 6 are measured on the validation split, as in
the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tellapart.errors import RecipeError, did_you_mean
from tellapart.studies.base import TREATMENT, Arm, Study, quote
from tellapart.studies.columns import CAPTION_SCORES, DISTINCTIVENESS, MEAN_RANK, Column

NAMES = {
    "adaptive": "AdaptiveAttention",
    "neuraltalk": "NeuralTalk2",
    "updown": "UpDown",
    "transformer": "Transformer",
    "meshed": "M²",
}

Figures = Mapping[str, float]


def name_of(captioner: str) -> str:
    """A captioner's name in the tables."""
    if captioner not in NAMES:
        raise RecipeError(f"there is no captioner '{captioner}' to study{did_you_mean(captioner, NAMES)}")
    return NAMES[captioner]


# --- The paper's figures ----------------------------------------------------------------------------------------------


def _scores(*values: float, prefix: str = "") -> Figures:
    return {f"{prefix}{column.figure}": value for column, value in zip(CAPTION_SCORES, values, strict=True)}


def _recalls(r1: float, r5: float, r50: float, r500: float, rouge: float, cider: float) -> Figures:
    percent = {f"self_retrieval_R@{k}": r / 100 for k, r in zip((1, 5, 50, 500), (r1, r5, r50, r500), strict=True)}
    return {**percent, "ROUGE_L": rouge, "CIDEr": cider}


_TABLE1 = {
    "neuraltalk-mle": _recalls(0.02, 0.32, 3.02, 27.50, 0.652, 0.827),
    "adaptive-mle": _recalls(0.10, 0.96, 11.76, 78.46, 0.689, 1.004),
    "adaptive-cl": _recalls(0.32, 1.18, 11.84, 80.96, 0.695, 1.029),
}
# Scores on the server with 5 and with 40 captions per image.
_C5 = {
    "Google NIC": (0.713, 0.542, 0.407, 0.309, 0.254, 0.530, 0.943),
    "Hard-Attention": (0.705, 0.528, 0.383, 0.277, 0.241, 0.516, 0.865),
    "AdaptiveAttention": (0.735, 0.569, 0.429, 0.323, 0.258, 0.541, 1.001),
    "AdaptiveAttention + CL": (0.742, 0.577, 0.436, 0.326, 0.260, 0.544, 1.010),
    "PG-BCMR": (0.754, 0.591, 0.445, 0.332, 0.257, 0.550, 1.013),
    "ATT-FCN (ensemble)": (0.731, 0.565, 0.424, 0.316, 0.250, 0.535, 0.943),
    "MSM (ensemble)": (0.739, 0.575, 0.436, 0.330, 0.256, 0.542, 0.984),
    "AdaptiveAttention (ensemble)": (0.746, 0.582, 0.443, 0.335, 0.264, 0.550, 1.037),
}
_C40 = {
    "Google NIC": (0.895, 0.802, 0.694, 0.587, 0.346, 0.682, 0.946),
    "Hard-Attention": (0.881, 0.779, 0.658, 0.537, 0.322, 0.654, 0.893),
    "AdaptiveAttention": (0.906, 0.823, 0.717, 0.607, 0.347, 0.689, 1.004),
    "AdaptiveAttention + CL": (0.910, 0.831, 0.728, 0.617, 0.350, 0.695, 1.029),
    "ATT-FCN (ensemble)": (0.900, 0.815, 0.709, 0.599, 0.335, 0.682, 0.958),
    "MSM (ensemble)": (0.919, 0.842, 0.740, 0.632, 0.350, 0.700, 1.003),
    "AdaptiveAttention (ensemble)": (0.918, 0.842, 0.740, 0.633, 0.359, 0.706, 1.051),
}
_TABLE2: Mapping[str, Figures] = {
    label: {**_scores(*values, prefix="C5 "), **(_scores(*_C40[label], prefix="C40 ") if label in _C40 else {})}
    for label, values in _C5.items()
} | {"Att2in (ensemble)": {"C5 Bleu_4": 0.344, "C5 METEOR": 0.268, "C5 ROUGE_L": 0.559, "C5 CIDEr": 1.123}}
_TABLE3 = {
    "adaptive-mle": _scores(0.065, 0.026, 0.011, 0.005, 0.029, 0.093, 0.126),
    "adaptive-cl": _scores(0.072, 0.028, 0.013, 0.006, 0.032, 0.101, 0.144),
}
_TABLE3_MORE = {
    "Google NIC": _scores(0.055, 0.019, 0.007, 0.003, 0.038, 0.081, 0.004),
    "Hard-Attention": _scores(0.106, 0.015, 0.000, 0.000, 0.026, 0.140, 0.049),
    "CSMN": _scores(0.079, 0.032, 0.015, 0.008, 0.037, 0.120, 0.133),
}
_TABLE4 = {
    "adaptive-mle": _scores(0.733, 0.572, 0.433, 0.327, 0.260, 0.540, 1.042),
    "adaptive-il": _scores(0.706, 0.544, 0.408, 0.307, 0.253, 0.530, 1.004),
    "adaptive-gan": _scores(0.629, 0.437, 0.290, 0.190, 0.212, 0.458, 0.700),
    "adaptive-cl-positive": _scores(0.735, 0.573, 0.437, 0.334, 0.262, 0.545, 1.059),
    "adaptive-cl-negative": _scores(0.539, 0.411, 0.299, 0.212, 0.246, 0.479, 0.603),
    "adaptive-cl": _scores(0.755, 0.598, 0.460, 0.353, 0.271, 0.559, 1.142),
}
_TABLE5 = {
    "neuraltalk-mle": _scores(0.697, 0.525, 0.389, 0.291, 0.238, 0.516, 0.882),
    "neuraltalk-cl": _scores(0.708, 0.536, 0.399, 0.300, 0.242, 0.524, 0.905),
    "neuraltalk-cl-adaptive": _scores(0.716, 0.547, 0.411, 0.311, 0.249, 0.533, 0.956),
    "adaptive-mle": _TABLE4["adaptive-mle"],
    "adaptive-cl": _TABLE4["adaptive-cl"],
}
_TABLE6 = {
    "adaptive-mle": _TABLE4["adaptive-mle"],
    "adaptive-round-1": _TABLE4["adaptive-cl"],
    "adaptive-round-2": _scores(0.756, 0.598, 0.460, 0.353, 0.272, 0.559, 1.142),
}

# --- Arms -------------------------------------------------------------------------------------------------------------


def mle(captioner: str, control: str | None = None) -> Arm:
    """The MLE model that all other arms of a captioner start from; compared with a control that is trained further."""
    return Arm(f"{captioner}-mle", f"{name_of(captioner)}, MLE", f"{captioner}-mle", control=control)


def from_mle(captioner: str, key: str, label: str, recipe: str, **more: Any) -> Arm:
    """An arm that starts from the MLE model; by default its control is MLE continued."""
    values = {"start": f"{captioner}-mle", "control": f"{captioner}-continued", **more}
    return Arm(f"{captioner}-{key}", f"{name_of(captioner)}, {label}", recipe, **values)


def continued(captioner: str) -> Arm:
    """The control: likelihood with all other settings of CL."""
    return from_mle(captioner, "continued", "MLE continued (control)", "adaptive-mle-continued", control=None)


def contrastive(captioner: str, reference: str | None = None) -> Arm:
    """CL from the MLE model. The reference is the same MLE model, or another captioner's."""
    roles = {"reference": f"{reference or captioner}-mle"}
    return from_mle(captioner, f"cl-{reference}" if reference else "cl", "CL", "adaptive-cl", roles=roles)


# The generator of a GAN has the settings of the other arms; its evaluator, which is new, needs its own.
GAN_DEVIATIONS = {
    "training.steps": "the evaluator alone is trained first, then the captioner for as many updates as the others",
    "training.validate_every": "once, at the end",
    "training.phase_learning_rates": "the evaluator is new",
    "training.learning_rate": "policy gradients are noisy",
}


def adversarial(captioner: str) -> Arm:
    """The MLE model as the generator of a GAN."""
    return from_mle(captioner, "gan", "GAN", "adaptive-gan", deviations=GAN_DEVIATIONS)


def _other(captioner: str) -> str:
    return "neuraltalk" if captioner != "neuraltalk" else "adaptive"


def _mle_and_cl(captioner: str) -> tuple[Arm, ...]:
    return _compared_mle(captioner), continued(captioner), contrastive(captioner)


def _compared_mle(captioner: str) -> Arm:
    return mle(captioner, control=f"{captioner}-continued")


def _table1(captioner: str) -> tuple[Arm, ...]:
    return quote(_TABLE1 if captioner == "adaptive" else {}, mle(_other(captioner)), *_mle_and_cl(captioner))


def _table3(captioner: str) -> tuple[Arm, ...]:
    return quote(_TABLE3, *_mle_and_cl(captioner))


def _table4(captioner: str) -> tuple[Arm, ...]:
    # CL(P) draws one negative, for logging.
    like_cl = {"roles": {"reference": f"{captioner}-mle"}}
    only_positive = ("objective.negative=false", "objective.negatives=1")
    only_negative = ("objective.positive=false",)
    return quote(
        _TABLE4,
        _compared_mle(captioner),
        continued(captioner),
        from_mle(captioner, "il", "IL", "adaptive-il"),
        adversarial(captioner),
        from_mle(captioner, "cl-positive", "CL(P)", "adaptive-cl", changes=only_positive, **like_cl),
        from_mle(captioner, "cl-negative", "CL(N)", "adaptive-cl", changes=only_negative, **like_cl),
        replace(contrastive(captioner), label=f"{name_of(captioner)}, CL (full)"),
    )


def _table5(captioner: str) -> tuple[Arm, ...]:
    def pair(target: str, reference: str) -> Arm:
        arm = contrastive(target, reference if reference != target else None)
        return replace(arm, label=f"target {name_of(target)}, reference {name_of(reference)}")

    # In the paper's order: the weaker captioner alone, with itself, with the stronger one; then the stronger one.
    weak, strong = (_other(captioner), captioner) if captioner != "neuraltalk" else (captioner, _other(captioner))
    return quote(
        _TABLE5,
        *(_compared_mle(weak), continued(weak), pair(weak, weak), pair(weak, strong)),
        *(_compared_mle(strong), continued(strong), pair(strong, strong)),
    )


# A round ends when the target is no longer better on the validation split; it is the reference of the next round. The
# control follows the same rule.
_UNTIL_BEST = (
    "training.keep=best",
    "training.monitor=CIDEr",
    "training.monitor_best=highest",
    "training.validate_captions=200",
    "training.patience=2",
)
_VALIDATIONS = 10


def _table6(captioner: str) -> tuple[Arm, ...]:
    def arm(key: str, run: int, label: str, recipe: str, **more: Any) -> Arm:
        """Start from the run before; a searched learning rate is that of the first run."""
        start = f"{captioner}-mle" if run == 1 else f"{captioner}-{key}-{run - 1}"
        rate = None if run == 1 else f"{captioner}-{key}-1"
        rule: dict[str, Any] = {"changes": _UNTIL_BEST, "validations": _VALIDATIONS, "rate_of": rate}
        return Arm(f"{captioner}-{key}-{run}", f"run {run}: {label}", recipe, start=start, **rule, **more)

    arms = [replace(mle(captioner, f"{captioner}-continued-1"), label=f"run 0: {name_of(captioner)}, MLE")]
    for run in (1, 2):
        control = arm("continued", run, "MLE continued (control)", "adaptive-mle-continued")
        # Each line of runs continues its own model.
        treatment = TREATMENT if run == 1 else (*TREATMENT, "start")
        label = f"CL, reference from run {run - 1}"
        target = arm("round", run, label, "adaptive-cl", control=control.key, treatment=treatment)
        arms += [control, replace(target, roles={"reference": target.start or ""})]
    return quote(_TABLE6, *arms)


# Recipes with the paper's own sizes and settings.
PAPER = {
    "adaptive-mle": "cl-adaptive-mle",
    "neuraltalk-mle": "cl-neuraltalk-mle",
    "adaptive-mle-continued": "cl-continued",
    "adaptive-cl": "cl-adaptive",
    "adaptive-il": "cl-il",
    "adaptive-gan": "cl-gan",
}


def _study(table: int, title: str, arms: Callable[[str], tuple[Arm, ...]], data: str, **more: Any) -> Study:
    values = {
        "columns": (*CAPTION_SCORES, *DISTINCTIVENESS),
        "split": "val" if table > 3 else "test",
        "paper": PAPER if table != 3 else {},  # InstaPIC's recipes differ in the data
        **more,
    }
    source = f"Dai and Lin, NIPS 2017, Table {table} ({data})"
    return Study(f"cl-table{table}", title, arms, source=source, **values)


STUDIES = (
    _study(
        1,
        "Are captions that find their image better captions?",
        _table1,
        "COCO test, 5,000 images",
        columns=(
            *(Column(f"self_retrieval_R@{k}", f"R@{k}", "percent") for k in (1, 5, 10, 50, 500)),
            MEAN_RANK,
            *CAPTION_SCORES[-2:],
        ),
        remark="Recall depends on the number of images ranked: by chance, R@1 is 1 / images.",
    ),
    _study(
        2,
        "CL on the COCO server: 5 and 40 captions per image",
        _mle_and_cl,
        "COCO server",
        columns=tuple(
            Column(f"{count} {column.figure}", f"{count} {column.heading}")
            for count in ("C5", "C40")
            for column in CAPTION_SCORES
        ),
        remark="C5 compares with the first 5 captions of an image, C40 with the first 40. C40 needs more than 5 "
        "captions for every image.",
        more_quoted=_TABLE2,
        measure="tellapart.studies.measure_server:ServerMeasure",
    ),
    _study(3, "CL on social media posts: InstaPIC", _table3, "InstaPIC-1.1M test", more_quoted=_TABLE3_MORE),
    _study(4, "CL against its parts and other methods", _table4, "COCO validation"),
    _study(5, "Which target, which reference?", _table5, "COCO validation"),
    _study(
        6,
        "Does it help to replace the reference?",
        _table6,
        "COCO validation",
        remark="A round ends when the CIDEr of the target on validation captions has not improved for two validations.",
    ),
)
