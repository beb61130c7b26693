"""Our own comparisons: which objective, or which decoding, tells images apart without saying what is not there?

All arms start from the same model and share data order, dropout, updates, schedule, rate and checkpoint rule. They
differ in the objective, or, for some of `telling-apart-scenes`, in the decoding.
"""

from __future__ import annotations

from typing import Any

from tellapart.studies.base import Arm, Choice, Study
from tellapart.studies.columns import CAPTION_SCORES, SAYING
from tellapart.studies.papers.cl import adversarial, continued, contrastive, from_mle, mle
from tellapart.studies.papers.unkt import NO_ATTENTION, TRANSFORMERS, teacher


def _main_rows(captioner: str) -> tuple[Arm, ...]:
    """The start, the control, and contrast on both sides."""
    reference = {"roles": {"reference": f"{captioner}-mle"}}
    return (
        mle(captioner, control=f"{captioner}-continued"),
        continued(captioner),
        contrastive(captioner),
        *(
            from_mle(
                captioner,
                f"cl-{side}",
                f"CL ({side})",
                "adaptive-cl",
                changes=(f"objective.contrast={side}",),
                **reference,
            )
            for side in ("images", "both")
        ),
    )


def _all_rows(captioner: str) -> tuple[Arm, ...]:
    reference = {"roles": {"reference": f"{captioner}-mle"}}
    return (
        *_main_rows(captioner),
        from_mle(captioner, "cl-hard", "CL, hard negatives", "adaptive-cl-hard", **reference),
        from_mle(captioner, "cl-pairwise", "CL, pairwise", "adaptive-cl-pairwise", **reference),
        from_mle(captioner, "il", "IL", "adaptive-il"),
        adversarial(captioner),
        _decoded(captioner, "guided", "guidance 0.5", "decoding.guidance=0.5"),
        _decoded(captioner, "unnormalised", "no length penalty", "decoding.length_penalty=0.0"),
    )


def _decoded(captioner: str, key: str, label: str, change: str) -> Arm:
    """The control, decoded in another way."""
    label = f"MLE continued, {label}"
    return from_mle(captioner, key, label, "adaptive-mle-continued", changes=(change,), treatment=("decoding",))


_RETRIEVER = "roles.retriever.from=ranking.yaml"
_MARGIN = ("reward.cider=1.0", "reward.margin=2.0")


def _every_objective(captioner: str) -> tuple[Arm, ...]:
    """Each paper's method, self-critical training, and two mixtures of them."""
    reference = {"roles": {"reference": f"{captioner}-mle"}}
    generic = teacher(captioner)
    no_attention = () if captioner in TRANSFORMERS else NO_ATTENTION

    def arm(key: str, label: str, objective: str, *settings: str, **more: Any) -> Arm:
        changes = (f"objective.name={objective}", *settings)
        return from_mle(captioner, key, label, "adaptive-mle-continued", **{"changes": changes, **more})

    def mixture(key: str, label: str, parts: dict[str, tuple[str, ...]], **more: Any) -> Arm:
        settings = [f"objective.parts.{part}.{setting}" for part, given in parts.items() for setting in given]
        return arm(key, label, "composed", *settings, _RETRIEVER, **more)

    return (
        mle(captioner, control=f"{captioner}-continued"),
        continued(captioner),
        contrastive(captioner),
        arm("ccos", "CCos", "specificity", "objective.loss=ccos", _RETRIEVER),
        mixture("specificity", "CCos and likelihood", {"specificity": ("loss=ccos",), "likelihood": ("weight=0.01",)}),
        generic,
        arm(
            "unkt",
            "UNKT",
            "negative-teacher",
            "objective.lambda_max=0.5",
            *no_attention,
            roles={"negative_teacher": generic.key},
        ),
        arm("self-critical", "self-critical, CIDEr-D", "self-critical"),
        arm(
            "margin",
            "self-critical, CIDEr-D and margin",
            "self-critical",
            *(f"objective.{setting}" for setting in _MARGIN),
            _RETRIEVER,
        ),
        mixture(
            "margin-cl",
            "self-critical, CIDEr-D and margin, and CL",
            {"self-critical": _MARGIN, "contrastive": ("negatives=5", "weight=0.5")},
            **reference,
        ),
        mixture(
            "ccos-cl",
            "CCos, CL and likelihood",
            {"specificity": ("loss=ccos",), "contrastive": ("negatives=5",), "likelihood": ("weight=0.1",)},
            **reference,
        ),
    )


STUDIES = (
    Study(
        "telling-apart",
        "What makes captions tell images apart?",
        _main_rows,
        columns=(*SAYING, *CAPTION_SCORES),
        split="test",
        source="no paper; our own",
    ),
    Study(
        "telling-apart-scenes",
        "What makes captions tell scenes apart?",
        _all_rows,
        columns=(*SAYING, *CAPTION_SCORES),
        split="test",
        source="no paper; our own",
    ),
    Study(
        "every-objective",
        "Which objective makes captions the most distinctive without making them worse?",
        _every_objective,
        columns=(*SAYING, *CAPTION_SCORES),
        split="test",
        source="no paper; our own",
        remark="The methods of the papers with one start, as many updates each, and one rate unless rates are searched."
        " Specificity training stops after its last update here, as all rows do, and not where a retriever finds its"
        " captions best.",
        choice=Choice(
            "val", ("true_listener_R@1", "under_listener_R@1", "under_judge_R@1"), {"truth": 0.99, "CIDEr": 0.97}
        ),
    ),
)
