"""Our own comparison: which objective, or which decoding, tells images apart without saying what is not there?

All arms start from the same model and share data order, dropout, updates, schedule, rate and checkpoint rule. They
differ in the objective, or, for the last one, in the decoding.
"""

from __future__ import annotations

from tellapart.studies.base import Arm, Study
from tellapart.studies.columns import CAPTION_SCORES, SAYING
from tellapart.studies.papers.cl import adversarial, continued, contrastive, from_mle, mle


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
)
