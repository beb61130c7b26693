"""Tables 1 to 6 of "Contrastive Learning for Image Captioning" (Dai and Lin, NIPS 2017).

Every table has a row the paper lacks: the likelihood model trained on by likelihood for as many updates as CL, since
more training alone also changes a model. Tables 4 to 6 are measured on the validation split, as in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping

from tellapart.errors import RecipeError, did_you_mean
from tellapart.studies.base import Column, Model, Study

NAMES = {
    "adaptive": "AdaptiveAttention",
    "neuraltalk": "NeuralTalk2",
    "updown": "UpDown",
    "transformer": "Transformer",
    "meshed": "M²",
}
PAPER = "Dai and Lin, NIPS 2017"
QUALITY = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr")
HEADINGS = ("B-1", "B-2", "B-3", "B-4", "METEOR", "ROUGE-L", "CIDEr")

_CAPTIONING = tuple(Column(figure, heading) for figure, heading in zip(QUALITY, HEADINGS, strict=True))
_DISTINCTIVENESS = (
    Column("self_retrieval_R@1", "R@1", "percent"),
    Column("self_retrieval_R@5", "R@5", "percent"),
    Column("self_retrieval_R@10", "R@10", "percent"),
    Column("self_retrieval_mean_rank", "mean rank", "number", more_is_better=False),
    Column("under_judge_R@1", "R@1 under MLE", "percent"),
    Column("distinct", "distinct", "percent"),
)
_RECALLS = tuple(Column(f"self_retrieval_R@{k}", f"R@{k}", "percent") for k in (1, 5, 10, 50, 500))


def name_of(captioner: str) -> str:
    """What a table calls a captioner."""
    if captioner not in NAMES:
        raise RecipeError(f"there is no captioner '{captioner}' to study{did_you_mean(captioner, NAMES)}")
    return NAMES[captioner]


def _figures(*values: float) -> Mapping[str, float]:
    return dict(zip(QUALITY, values, strict=True))


def _recalls(r1: float, r5: float, r50: float, r500: float, rouge: float, cider: float) -> Mapping[str, float]:
    percent = {f"self_retrieval_R@{k}": r / 100 for k, r in zip((1, 5, 50, 500), (r1, r5, r50, r500), strict=True)}
    return {**percent, "ROUGE_L": rouge, "CIDEr": cider}


# Table 4, and in part 5 and 6: AdaptiveAttention on COCO's validation images.
_BASE = _figures(0.733, 0.572, 0.433, 0.327, 0.260, 0.540, 1.042)
_FULL = _figures(0.755, 0.598, 0.460, 0.353, 0.271, 0.559, 1.142)


def mle(captioner: str, quoted: Mapping[str, float] | None = None) -> Model:
    """The likelihood model, where everything begins."""
    return Model(f"{captioner}-mle", f"{name_of(captioner)}, MLE", f"{captioner}-mle", quoted=quoted or {})


def continued(captioner: str) -> Model:
    """The control: likelihood for as many updates as CL."""
    start = f"{captioner}-mle"
    label = f"{name_of(captioner)}, MLE continued (control)"
    return Model(f"{captioner}-continued", label, "adaptive-mle-continued", start, control=start, searched=True)


def contrastive(
    captioner: str, reference: str | None = None, quoted: Mapping[str, float] | None = None, label: str | None = None
) -> Model:
    """CL from the likelihood model, against itself or another captioner."""
    reference = reference or captioner
    return Model(
        f"{captioner}-cl" if reference == captioner else f"{captioner}-cl-{reference}",
        label or f"{name_of(captioner)}, CL",
        "adaptive-cl",
        f"{captioner}-mle",
        {"reference": f"{reference}-mle"},
        control=f"{captioner}-continued",
        searched=reference == captioner,
        rate_of=None if reference == captioner else f"{captioner}-cl",
        quoted=quoted or {},
    )


def _table1(captioner: str) -> tuple[Model, ...]:
    first = "neuraltalk" if captioner != "neuraltalk" else "adaptive"
    quoted = captioner == "adaptive"
    return (
        mle(first, _recalls(0.02, 0.32, 3.02, 27.50, 0.652, 0.827) if quoted else None),
        mle(captioner, _recalls(0.10, 0.96, 11.76, 78.46, 0.689, 1.004) if quoted else None),
        continued(captioner),
        contrastive(captioner, quoted=_recalls(0.32, 1.18, 11.84, 80.96, 0.695, 1.029) if quoted else None),
    )


def _pair(captioner: str) -> tuple[Model, ...]:
    return mle(captioner), continued(captioner), contrastive(captioner)


def _table3(captioner: str) -> tuple[Model, ...]:
    if captioner != "adaptive":
        return _pair(captioner)
    return (
        mle(captioner, _figures(0.065, 0.026, 0.011, 0.005, 0.029, 0.093, 0.126)),
        continued(captioner),
        contrastive(captioner, quoted=_figures(0.072, 0.028, 0.013, 0.006, 0.032, 0.101, 0.144)),
    )


def _table4(captioner: str) -> tuple[Model, ...]:
    start, control = f"{captioner}-mle", f"{captioner}-continued"
    quoted = {
        "mle": _BASE,
        "il": _figures(0.706, 0.544, 0.408, 0.307, 0.253, 0.530, 1.004),
        "gan": _figures(0.629, 0.437, 0.290, 0.190, 0.212, 0.458, 0.700),
        "positive": _figures(0.735, 0.573, 0.437, 0.334, 0.262, 0.545, 1.059),
        "negative": _figures(0.539, 0.411, 0.299, 0.212, 0.246, 0.479, 0.603),
        "full": _FULL,
    }
    if captioner != "adaptive":
        quoted = {key: {} for key in quoted}
    name = name_of(captioner)
    # One part of CL alone learns at the rate that was found for the whole: the comparison is about the parts.
    # CL(P) has no use for negatives: one is drawn, to be logged.
    parts = [
        ("positive", "CL(P)", ("objective.negative=false", "objective.negatives=1")),
        ("negative", "CL(N)", ("objective.positive=false",)),
    ]
    return (
        mle(captioner, quoted["mle"]),
        continued(captioner),
        Model(
            f"{captioner}-il",
            f"{name}, IL",
            "adaptive-il",
            start,
            control=control,
            searched=True,
            quoted=quoted["il"],
        ),
        Model(f"{captioner}-gan", f"{name}, GAN", "adaptive-gan", start, control=control, quoted=quoted["gan"]),
        *(
            Model(
                f"{captioner}-cl-{part}",
                f"{name}, {label}",
                "adaptive-cl",
                start,
                {"reference": start},
                changes,
                control=control,
                rate_of=f"{captioner}-cl",
                quoted=quoted[part],
            )
            for part, label, changes in parts
        ),
        contrastive(captioner, quoted=quoted["full"], label=f"{name}, CL (full)"),
    )


def _table5(captioner: str) -> tuple[Model, ...]:
    other = "neuraltalk" if captioner != "neuraltalk" else "adaptive"
    quoted: dict[tuple[str, str | None], Mapping[str, float]] = {
        ("neuraltalk", None): _figures(0.697, 0.525, 0.389, 0.291, 0.238, 0.516, 0.882),
        ("neuraltalk", "neuraltalk"): _figures(0.708, 0.536, 0.399, 0.300, 0.242, 0.524, 0.905),
        ("neuraltalk", "adaptive"): _figures(0.716, 0.547, 0.411, 0.311, 0.249, 0.533, 0.956),
        ("adaptive", None): _BASE,
        ("adaptive", "adaptive"): _FULL,
    }

    def pair(target: str, reference: str) -> Model:
        label = f"target {name_of(target)}, reference {name_of(reference)}"
        return contrastive(target, reference, quoted.get((target, reference)), label)

    # The paper's order: the weaker model, alone, with itself, with the stronger one; then the stronger one.
    weak, strong = (other, captioner) if captioner != "neuraltalk" else (captioner, other)
    return (
        mle(weak, quoted.get((weak, None))),
        continued(weak),
        pair(weak, weak),
        pair(weak, strong),
        mle(strong, quoted.get((strong, None))),
        continued(strong),
        pair(strong, strong),
    )


# In each round the reference stays until the target is best on the validation split; that target is the next reference.
_SATURATED = (
    "training.keep=best",
    "training.monitor=CIDEr",
    "training.monitor_best=highest",
    "training.validate_captions=200",
    "training.patience=2",
)


def _table6(captioner: str) -> tuple[Model, ...]:
    name, runs = name_of(captioner), 2
    quoted = (_BASE, _FULL, _figures(0.756, 0.598, 0.460, 0.353, 0.272, 0.559, 1.142))
    if captioner != "adaptive":
        quoted = ({}, {}, {})
    models = [Model(f"{captioner}-mle", f"run 0: {name}, MLE", f"{captioner}-mle", quoted=quoted[0])]
    for run in range(1, runs + 1):
        before = f"{captioner}-mle" if run == 1 else f"{captioner}-continued-{run - 1}"
        control = f"{captioner}-continued-{run}"
        models.append(
            Model(
                control,
                f"run {run}: MLE continued (control)",
                "adaptive-mle-continued",
                before,
                searched=run == 1,
                rate_of=None if run == 1 else f"{captioner}-continued-1",
            )
        )
        before = f"{captioner}-mle" if run == 1 else f"{captioner}-round-{run - 1}"
        label = f"run {run}: CL, reference from run {run - 1}"
        models.append(
            Model(
                f"{captioner}-round-{run}",
                label,
                "adaptive-cl",
                before,
                {"reference": before},
                _SATURATED,
                control=control,
                searched=run == 1,
                rate_of=None if run == 1 else f"{captioner}-round-1",
                quoted=quoted[run],
            )
        )
    return tuple(models)


def _server(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix} {name}": value for name, value in values.items()}


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
_ON_SERVER = {
    label: _server("C5", _figures(*values)) | (_server("C40", _figures(*_C40[label])) if label in _C40 else {})
    for label, values in _C5.items()
} | {"Att2in (ensemble)": {"C5 Bleu_4": 0.344, "C5 METEOR": 0.268, "C5 ROUGE_L": 0.559, "C5 CIDEr": 1.123}}

STUDIES = {
    study.name: study
    for study in (
        Study(
            "cl-table1",
            "Are captions that find their image better captions?",
            _table1,
            (*_RECALLS, Column("self_retrieval_mean_rank", "mean rank", "number", False), *_CAPTIONING[-2:]),
            "test",
            f"{PAPER}, Table 1 (COCO test, 5,000 images)",
            "Recall depends on the number of images ranked; chance is 1 / images at R@1.",
        ),
        Study(
            "cl-table2",
            "CL on the COCO server: five references and forty",
            _pair,
            tuple(
                Column(f"{references} {column.figure}", f"{references} {column.heading}")
                for references in ("C5", "C40")
                for column in _CAPTIONING
            ),
            "test",
            f"{PAPER}, Table 2 (COCO server)",
            "C5 takes the first five references of an image, C40 the first forty, where it has more than five.",
            _ON_SERVER,
        ),
        Study(
            "cl-table3",
            "CL on posts of people: InstaPIC",
            _table3,
            (*_CAPTIONING, *_DISTINCTIVENESS),
            "test",
            f"{PAPER}, Table 3 (InstaPIC-1.1M test)",
            more_quoted={
                "Google NIC": _figures(0.055, 0.019, 0.007, 0.003, 0.038, 0.081, 0.004),
                "Hard-Attention": _figures(0.106, 0.015, 0.000, 0.000, 0.026, 0.140, 0.049),
                "CSMN": _figures(0.079, 0.032, 0.015, 0.008, 0.037, 0.120, 0.133),
            },
        ),
        Study(
            "cl-table4",
            "CL against its parts and its rivals",
            _table4,
            (*_CAPTIONING, *_DISTINCTIVENESS),
            "val",
            f"{PAPER}, Table 4 (COCO validation)",
        ),
        Study(
            "cl-table5",
            "Which target, which reference?",
            _table5,
            (*_CAPTIONING, *_DISTINCTIVENESS),
            "val",
            f"{PAPER}, Table 5 (COCO validation)",
        ),
        Study(
            "cl-table6",
            "Is it worth replacing the reference?",
            _table6,
            (*_CAPTIONING, *_DISTINCTIVENESS),
            "val",
            f"{PAPER}, Table 6 (COCO validation)",
            "A round ends when the target's CIDEr on validation captions has not risen for two validations.",
        ),
    )
}
