"""In every study, at every budget, an arm differs from its control in the treatment only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tellapart.data.settings import DataSettings
from tellapart.errors import RecipeError
from tellapart.recipe_files import BUDGETS, recipes_folder
from tellapart.studies.base import Arm, Study, all_studies, cross, find_study
from tellapart.studies.rates import Search
from tellapart.studies.run import ArmTrainer
from tellapart.studies.treatment import check_treatment, describe

FAMILIES = ("scenes", "flickr8k", "coco")
CAPTIONERS = ("adaptive", "neuraltalk")


def families(study: Study) -> tuple[str, ...]:
    return ("instapic",) if study.name == "cl-table3" else ("scenes",) if "scenes" in study.name else FAMILIES


def trainer(study: Study, family: str, budget: str, *overrides: str) -> ArmTrainer:
    return ArmTrainer(
        study=study,
        recipes=recipes_folder() / family,
        data=DataSettings(source="scenes"),
        budget=budget,
        runs=Path(),
        use={},
        overrides=overrides,
    )


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", all_studies())
def test_arms_differ_from_their_control_in_the_treatment_only(name: str, budget: str) -> None:
    study = find_study(name)
    for family in families(study):
        for captioner in CAPTIONERS[:1] if study.name.startswith("coder-") else CAPTIONERS:
            arms = study.arms(captioner)
            found = trainer(study, family, budget).treatments(arms)
            compared = [arm for arm in arms if arm.control is not None and arm.key in found]
            for arm in compared:
                assert found[arm.key], f"{arm.key} does not differ from its control"
                # What is not the treatment is listed with a reason.
                for difference in found[arm.key]:
                    treated = any(f"{difference.key}.".startswith(f"{part}.") for part in arm.treatment)
                    assert treated != bool(difference.why)


def test_a_change_to_one_arm_reaches_it_only_and_must_not_be_a_confound() -> None:
    study = find_study("cl-table4")
    arms = study.arms("adaptive")
    changes = (
        "training.learning_rate=0.5",
        "adaptive-mle:training.epochs=3",
        "adaptive-mle:training.learning_rate=0.25",
    )
    changed = trainer(study, "flickr8k", "laptop", *changes)
    changed.treatments(arms)
    recipes = {arm.key: changed.recipe(arm, 0, {}, {}, plan=True).training for arm in arms}
    assert (recipes["adaptive-mle"].epochs, recipes["adaptive-mle"].learning_rate) == (3, 0.25)
    others = [recipe for key, recipe in recipes.items() if key != "adaptive-mle"]
    assert all((other.epochs, other.learning_rate) == (None, 0.5) for other in others)
    with pytest.raises(RecipeError, match="must differ in objective"):
        trainer(study, "flickr8k", "laptop", "adaptive-cl:training.steps=7").treatments(arms)


@pytest.mark.parametrize(
    "confound",
    [
        "captioner.dropout=0.3",
        "training.learning_rate=0.00002",
        "training.steps=17",
        "training.images_per_batch=3",
        "training.schedule=constant",
        "training.keep=best",
        "training.captions_per_image=1",
        "decoding.beam=5",
    ],
)
def test_a_planted_confound_is_found(confound: str) -> None:
    study = find_study("cl-table4")
    arms = study.arms("adaptive")
    planted = tuple(
        replace(arm, changes=(*arm.changes, confound)) if arm.key == "adaptive-continued" else arm for arm in arms
    )
    trained = trainer(study, "flickr8k", "laptop")
    trained.treatments(arms)
    key = confound.split("=")[0]
    with pytest.raises(RecipeError, match=f"must differ in objective, roles, negatives only.*\n  - {key}"):
        trained.treatments(planted)


def test_the_old_control_with_dropout_is_refused_in_every_cl_study() -> None:
    """As it was: the control kept the dropout of the MLE recipe, CL did not."""
    for name in (name for name in all_studies() if name.startswith("cl-")):
        study = find_study(name)
        arms = tuple(
            replace(arm, changes=(*arm.changes, "captioner.dropout=0.4")) if "continued" in arm.key else arm
            for arm in study.arms("adaptive")
        )
        with pytest.raises(RecipeError, match=r"captioner\.dropout: 0, control 0\.4"):
            trainer(study, families(study)[0], "laptop").treatments(arms)


def test_another_start_is_a_difference() -> None:
    arms = find_study("cl-table5").arms("adaptive")
    by_key = {arm.key: arm for arm in arms}
    trained = trainer(find_study("cl-table5"), "scenes", "laptop")
    recipe = trained.recipe(by_key["adaptive-cl"], 0, {}, {}, plan=True)
    other = by_key["neuraltalk-continued"]
    with pytest.raises(RecipeError, match="start: adaptive-mle, control neuraltalk-mle"):
        check_treatment(by_key["adaptive-cl"], recipe, other, trained.recipe(other, 0, {}, {}, plan=True))


def test_a_searched_rate_is_a_listed_deviation() -> None:
    study = find_study("cl-table4")
    trained = trainer(study, "flickr8k", "laptop")
    inside = Search({1e-5: 0.1, 1e-4: 0.3, 1e-3: 0.2})
    edge = Search({1e-5: 0.4, 1e-4: 0.3, 1e-3: 0.2})
    arms = study.arms("adaptive")
    every = {arm.key: inside for arm in arms}
    found = trained.treatments(arms, {**every, "adaptive-continued": edge})
    text = describe(found["adaptive-cl"])
    assert "training.learning_rate: 0.0001, control 1e-05 (each arm's best of 3 by validation CIDEr)" in text
    found = trained.treatments(arms, {**every, "adaptive-cl": edge})
    assert "at the edge of those tried" in describe(found["adaptive-cl"])


def test_factors_are_crossed_with_arm_and_control_alike() -> None:
    study = find_study("cl-table4")
    factors = {"captioner.dropout": ("0.0", "0.3"), "training.learning_rate": ("1e-5", "1e-4")}
    arms = cross(study.arms("adaptive"), factors)
    by_key = {arm.key: arm for arm in arms}
    assert len(arms) == 1 + 4 * (len(study.arms("adaptive")) - 1)
    assert by_key["adaptive-cl-0.3-1e-5"].control == "adaptive-continued-0.3-1e-5"
    assert by_key["adaptive-cl-0.3-1e-5"].roles == {"reference": "adaptive-mle"}
    trained = trainer(study, "flickr8k", "laptop")
    found = trained.treatments(arms)
    assert not any(d.key in factors for key in found if "gan" not in key for d in found[key])
    recipe = trained.recipe(by_key["adaptive-cl-0.3-1e-5"], 0, {}, {}, plan=True)
    assert recipe.captioner is not None
    assert (recipe.captioner["dropout"], recipe.training.learning_rate) == (0.3, 1e-5)


def test_rounds_are_crossed_as_a_whole() -> None:
    arms = {arm.key: arm for arm in cross(find_study("cl-table6").arms("adaptive"), {"captioner.dropout": ("0.1",)})}
    second = arms["adaptive-round-2-0.1"]
    assert (second.start, second.roles["reference"]) == ("adaptive-round-1-0.1", "adaptive-round-1-0.1")
    assert arms["adaptive-round-1-0.1"].start == "adaptive-mle"


def test_at_the_paper_budget_photographs_use_the_papers_recipes() -> None:
    study = find_study("cl-table4")
    arms = {arm.key: arm for arm in study.arms("adaptive")}
    recipe = trainer(study, "coco", "paper").recipe(arms["adaptive-cl"], 0, {}, {}, plan=True)
    training = recipe.training
    assert (training.epochs, training.learning_rate, training.optimiser) == (10, 1e-6, "adam")
    assert training.images_per_batch == 20
    assert recipe.objective["negatives"] == 5
    start = trainer(study, "coco", "paper").recipe(arms["adaptive-mle"], 0, {}, {}, plan=True)
    assert (start.training.epochs, start.data.max_words, start.data.normaliser) == (20, 18, "alphabetic")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_round_can_end_before_its_last_update_at_every_budget(family: str, budget: str) -> None:
    study = find_study("cl-table6")
    for arm in study.arms("adaptive")[1:]:
        training = trainer(study, family, budget).recipe(arm, 0, {}, {}, plan=True).training
        assert training.patience is not None
        assert (training.keep, training.monitor) == ("best", "CIDEr")
        if training.steps is None:
            assert training.epochs is not None
            assert training.epochs > training.patience + 1  # validated after each epoch
        else:
            assert training.validate_every is not None
            assert training.steps > (training.patience + 1) * training.validate_every


def test_arms_need_no_control_to_be_listed() -> None:
    only = (Arm("adaptive-mle", "MLE", "adaptive-mle"),)
    assert trainer(find_study("cl-table4"), "scenes", "smoke").treatments(only) == {}
