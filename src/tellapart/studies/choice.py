"""Choose the best arm of a study on another split than the one it reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from tellapart.run import Run
from tellapart.studies.base import Arm, Choice, Study
from tellapart.studies.measure import Measure, measure_of


@dataclass(frozen=True)
class Chosen:
    """The arm that was chosen, and what the choice rests on.

    Attributes:
        split: where it was chosen.
        by: figure that decided.
        keeps: figure -> share of its control's that a candidate kept.
        key: arm.
        means: arm key -> figure -> mean over seeds, on that split.
        left_out: arm key -> why it was not a candidate.
    """

    split: str
    by: str
    keeps: Mapping[str, float]
    key: str
    means: Mapping[str, Mapping[str, float]]
    left_out: Mapping[str, str]

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def choose(
    study: Study, rule: Choice, arms: Sequence[Arm], trained: Sequence[Mapping[str, Run]], measure: Measure
) -> Chosen:
    """Measure all arms on the split of the rule, and take the best of those that keep what the control has.

    Args:
        study: the study.
        rule: how to choose.
        arms: of the study.
        trained: arm key -> run, of each seed.
        measure: how the study measures; its options are used here too.
    """
    there = measure_of(
        replace(study, split=rule.split), retrieval_images=measure.retrieval_images, listener=measure.listener
    )
    seeds = {arm.key: [there.measure(arm, arms, runs).figures for runs in trained] for arm in arms}
    means = {}
    for key, found in seeds.items():
        names = [name for name in found[0] if all(name in figures for figures in found)]
        means[key] = {name: sum(figures[name] for figures in found) / len(found) for name in names}
    return choose_by(rule, arms, means)


def choose_by(rule: Choice, arms: Sequence[Arm], means: Mapping[str, Mapping[str, float]]) -> Chosen:
    """The choice, given the mean figures of each arm.

    Only arms that are trained further are candidates. The control of the others is one of them: an objective that is
    not better than it is not chosen.

    >>> more, cl = Arm("more", "more", "m", start="mle"), Arm("cl", "CL", "c", start="mle", control="more")
    >>> figures = {"more": {"R": 0.5, "truth": 0.9}, "cl": {"R": 0.6, "truth": 0.8}}
    >>> choose_by(Choice("val", ("R",), {"truth": 0.95}), (more, cl), figures).left_out
    {'cl': 'truth 0.800, control 0.900'}
    """
    candidates = [arm for arm in arms if arm.start is not None]
    by = next(name for name in rule.figures if all(name in means[arm.key] for arm in candidates))
    left_out = {}
    for arm in candidates:
        own, control = means[arm.key], means[arm.control or arm.key]
        # A model that claims nothing has no truth to measure, so it has kept none.
        needed = {name: share * control[name] for name, share in rule.keeps.items() if name in control}
        lost = [name for name, least in needed.items() if own.get(name, 0.0) < least]
        if lost:
            left_out[arm.key] = ", ".join(
                f"{name} {own.get(name, 0.0):.3f}, control {control[name]:.3f}" for name in lost
            )
    best = max((arm.key for arm in candidates if arm.key not in left_out), key=lambda key: means[key][by])
    shown = (by, *(name for name in (*rule.figures, *rule.keeps) if name != by))
    figures = {arm.key: {name: means[arm.key][name] for name in shown if name in means[arm.key]} for arm in candidates}
    return Chosen(rule.split, by, rule.keeps, best, figures, left_out)
