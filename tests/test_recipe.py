"""Recipes: what is shipped is right, what is wrong is told all at once, and what is trained has one name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tellapart import recipe_files
from tellapart.errors import RecipeError
from tellapart.recipe import Recipe, copy_recipe
from tellapart.recipe_files import BUDGETS as BUDGET_NAMES
from tellapart.recipe_files import read_yaml, recipes_folder, shipped_recipes
from tellapart.shipped import shipped_model
from tellapart.training import train

RECIPES = recipes_folder()
SHIPPED = shipped_recipes()

BASE: dict[str, Any] = {
    "name": "base",
    "data": {"source": "scenes", "scenes": {"train": 40, "val": 8}, "max_words": 12},
    "captioner": {"name": "adaptive-attention", "hidden": 32, "dropout": 0.25},
    "objective": {"name": "likelihood"},
    "training": {"steps": 10},
}
CHILD: dict[str, Any] = {
    "name": "child",
    "start": {"from": "base.yaml"},
    "roles": {"reference": {"from": "base.yaml"}},
    "captioner": {"dropout": 0.0},
    "objective": {"name": "contrastive"},
    "training": {"steps": 5},
}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a recipe: some whole sections of the base replaced, some left out."""

    def make(
        file: str = "base", content: dict[str, Any] = BASE, leave_out: tuple[str, ...] = (), **changed: Any
    ) -> Path:
        kept = {key: value for key, value in {**content, **changed}.items() if key not in leave_out}
        path = tmp_path / f"{file}.yaml"
        path.write_text(yaml.safe_dump(kept, sort_keys=False), encoding="utf-8")
        return path

    return make


def mistakes(path: Path, *overrides: str) -> list[str]:
    """What loading complains of, one line a mistake; the count it announces must be theirs."""
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path, overrides)
    head, *lines = str(caught.value).split("\n")
    assert head.startswith(f"{path}: {len(lines)} mistake{'s' if len(lines) > 1 else ''}:")
    assert all(line.startswith("  - ") for line in lines)
    return [line.removeprefix("  - ") for line in lines]


# --- shipped recipes ------------------------------------------------------------------------------------------------


def test_some_recipes_are_shipped() -> None:
    assert len(SHIPPED) >= 4


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"contrastive": {"negatvies": 3}}, "objective.parts: contrastive.negatvies: .* did you mean 'negatives'"),
        ({"contrastive": {"nu": float("inf")}}, "objective.parts: contrastive.nu: Input should be a finite number"),
        ({"likelihood": {"weight": float("nan")}}, "objective.parts: likelihood.weight is not a number: nan"),
        ({"likelihod": {}}, "objective.parts: there is no objective 'likelihod'; did you mean 'likelihood'"),
    ],
)
def test_mistakes_in_a_composed_objective(write: Write, part: dict[str, Any], told: str) -> None:
    path = write("child", CHILD, objective={"name": "composed", "parts": part})
    write()
    assert any(re.match(told, line) for line in mistakes(path)), mistakes(path)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.relative_to(RECIPES).as_posix())
def test_shipped_recipes_load_and_round_trip(path: Path, tmp_path: Path) -> None:
    recipe = Recipe.load(path)
    assert recipe.description
    again = tmp_path / "again.yaml"
    again.write_text(recipe.to_yaml(), encoding="utf-8")
    assert Recipe.load(again) == recipe
    assert Recipe.load(again).digest == recipe.digest
    for kind in (recipe.trains, "objective"):
        cls, settings = recipe.component(kind)
        assert {"name": cls.name, **settings.model_dump(mode="json")} == getattr(recipe, kind)


def test_the_shipped_captioner_has_a_recipe() -> None:
    """It is the recipe on the card, but for how often was logged, and that of the command with all changes."""
    card = (shipped_model("captioner") / "README.md").read_text(encoding="utf-8")
    content = yaml.safe_load(card.split("```yaml\n")[1].split("```")[0])
    recipe = Recipe.load("coco/adaptive-dinov2-mle.yaml")
    content["training"]["log_every"] = recipe.training.log_every
    assert Recipe.model_validate(content).digest == recipe.digest
    changes = ["data.encoder=dinov2-small", "data.store=int8", "training.precision=bf16", "training.steps=9000"]
    changes += ["training.validate_every=4500", "training.validate_images=1000", "decoding.block_pairs=true"]
    assert Recipe.load("coco/adaptive-mle.yaml", changes).digest == recipe.digest


def test_the_shipped_retriever_has_a_recipe() -> None:
    """It is the recipe on the card, but for its start, which the card names by its run."""
    card = (shipped_model("retriever") / "README.md").read_text(encoding="utf-8")
    content = yaml.safe_load(card.split("```yaml\n")[1].split("```")[0])
    recipe = Recipe.load("coco/info-nce-dinov2.yaml")
    content["start"] = recipe.start.model_dump(by_alias=True, mode="json") if recipe.start else None
    assert Recipe.model_validate(content).digest == recipe.digest
    start = Recipe.load("coco/dcl-dinov2.yaml")
    changes = ["data.encoder=dinov2-small", "data.store=int8", "training.precision=bf16", "retriever.width=512"]
    changes += ["retriever.drop_regions=0.5", "retriever.caption_vectors=concepts", "training.learning_rate=2e-3"]
    changes += ["training.steps=4000"]
    assert Recipe.load("coco/dcl.yaml", changes).digest == start.digest


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("coco/info-nce.yaml", {"objective.instance_weight": 1}),
        ("coco/info-nce-dinov2.yaml", {"objective.instance_weight": 1}),
        ("coco/listener.yaml", {"objective.instance_weight": 1}),
        ("flickr8k/info-nce.yaml", {"objective.instance_weight": 1}),
        ("coco/adaptive-self-critical.yaml", {"training.learning_rate": 5e-5, "training.epochs": 40}),
        ("coco/adaptive-self-critical-margin.yaml", {"training.learning_rate": 5e-5, "training.epochs": 40}),
    ],
)
def test_paper_budgets_that_are_not_those_of_the_recipe_extended(name: str, expected: dict[str, float]) -> None:
    content = Recipe.load(name, budget="paper").model_dump(mode="json")
    assert {key: content[key.split(".")[0]][key.split(".")[1]] for key in expected} == expected


def test_shipped_names_are_unique() -> None:
    names = [Recipe.load(path).name for path in SHIPPED]
    assert len(set(names)) == len(names)


def extended(path: Path) -> list[Path]:
    """The files that a recipe extends, nearest first."""
    named = read_yaml(path).get("extends")
    return [] if named is None else [base := (path.parent / named).resolve(), *extended(base)]


def test_bases_are_used_and_chains_are_short() -> None:
    chains = [extended(path) for path in SHIPPED]
    assert max(map(len, chains)) <= 3
    bases = {path.resolve() for path in RECIPES.rglob("base/*.yaml")}
    assert bases
    assert bases <= {path for chain in chains for path in chain}
    assert not bases & {path.resolve() for path in SHIPPED}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.relative_to(RECIPES).as_posix())
def test_a_copy_in_another_folder_is_the_same_recipe(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = path.relative_to(RECIPES).as_posix()
    copy = tmp_path / "copies" / "mine.yaml"
    copy.parent.mkdir()
    copy.write_text(copy_recipe(name), encoding="utf-8")
    assert "extends" not in read_yaml(copy)
    assert next(iter(read_yaml(copy))) == "name"
    for budget in BUDGET_NAMES:
        assert Recipe.load(copy, budget=budget).resolved() == Recipe.load(name, budget=budget).resolved()


def test_a_copy_keeps_data_and_upstreams_that_are_beside_the_recipe(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data.json").touch()
    write(data={"source": "data.json"})
    write("child", CHILD)
    path = write("mine", {"extends": "child.yaml", "name": "mine", "data": {"source": "data.json"}})
    other = tmp_path / "other"
    other.mkdir()
    (other / "copy.yaml").write_text(copy_recipe(path), encoding="utf-8")
    monkeypatch.chdir(other)
    assert Recipe.load("copy.yaml") == Recipe.load(path)
    plain = {"extends": "mine.yaml", "objective": {"name": "likelihood"}, "roles": {"reference": None}}
    (other / "plain.yaml").write_text(copy_recipe(write("plain", plain)), encoding="utf-8")
    assert read_yaml(other / "plain.yaml")["roles"] == {}


def test_train_finds_a_shipped_recipe_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained: list[Recipe] = []
    monkeypatch.setattr("tellapart.training.run_recipe", lambda recipe, *_: trained.append(recipe))
    train("scenes/adaptive-cl-hard.yaml", "training.steps=3", budget="smoke")
    (recipe,) = trained
    assert (recipe.name, recipe.training.steps, recipe.budget) == ("scenes-cl-hard", 3, "smoke")
    assert [Path(role.places[0]) for role in recipe.roles.values()] == [
        RECIPES / "scenes" / file for file in ("adaptive-mle.yaml", "ranking.yaml")
    ]


def test_every_default_is_written_out(write: Write) -> None:
    resolved = yaml.safe_load(Recipe.load(write()).to_yaml())
    assert resolved["captioner"] == {
        "name": "adaptive-attention",
        "hidden": 32,
        "embedding": 256,
        "attention": 64,
        "dropout": 0.25,
        "picture_dropout": 0.0,
    }
    assert resolved["data"]["scenes"] == {"train": 40, "val": 8, "test": 480, "seed": 0}
    assert resolved["training"]["betas"] == [0.9, 0.999]
    assert resolved["start"] is None
    assert resolved["decoding"]["beam"] == 3


# --- overrides ------------------------------------------------------------------------------------------------------


def test_overrides(write: Write) -> None:
    recipe = Recipe.load(
        write(),
        [
            "seed=7",
            "description=a = b",
            "training.learning_rate=1e-4",
            "training.clip_norm=null",
            "training.betas=[0.5, 0.75]",
            "training.steps=1e3",
            "training.steps=20",
            "captioner.hidden=48",
            "objective.name=contrastive",
            f"roles.reference.from={write('other', name='other')}",
            "objective.negatives=3",
            "objective.positive=false",
            "data.scenes.train=11",
            "decoding.beam=1",
        ],
    )
    assert recipe.seed == 7
    assert recipe.description == "a = b"
    assert recipe.training.learning_rate == 0.0001
    assert recipe.training.clip_norm is None
    assert recipe.training.betas == (0.5, 0.75)
    assert recipe.training.steps == 20, "the last one wins"
    assert recipe.captioner["hidden"] == 48
    assert recipe.captioner["dropout"] == 0.25, "its neighbours stay"
    assert recipe.objective == {
        "name": "contrastive",
        "negatives": 3,
        "contrast": "captions",
        "nu": 1.0,
        "positive": False,
        "negative": True,
    }
    assert (recipe.data.scenes.train, recipe.data.scenes.val) == (11, 8)
    assert recipe.decoding.beam == 1, "a section the file does not have"


def test_epochs_instead_of_steps(write: Write) -> None:
    training = Recipe.load(write(), ["training.steps=null", "training.epochs=2"]).training
    assert (training.steps, training.epochs) == (None, 2)


def test_an_override_may_fill_a_section_that_is_null(write: Write) -> None:
    write()
    path = write("other", name="other", start=None, decoding=None)
    recipe = Recipe.load(path, ["start.from=base.yaml", "decoding.beam=2"])
    assert recipe.start is not None
    assert Path(recipe.start.from_).name == "base.yaml"
    assert recipe.decoding.beam == 2


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("training.steps", "'training.steps' is no override; write it as key=value"),
        ("=3", "'=3' is no override"),
        ("name.first=x", "'name.first=x': name is a value, not a section"),
        ("training.steps.more=3", "steps is a value, not a section"),
        ("training.betas=[1,", "the value is not valid YAML"),
    ],
)
def test_overrides_that_are_none(write: Write, override: str, told: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.load(write(), [override])
    assert told in str(caught.value)


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("trainig.steps=3", "trainig: there is no such key; did you mean 'training'?"),
        ("training.learning_rat=3", "training.learning_rat: there is no such key; did you mean 'learning_rate'?"),
        ("data.scenes.trian=3", "data.scenes.trian: there is no such key; did you mean 'train'?"),
        ("captioner.hiden=3", "captioner.hiden: there is no such key; did you mean 'hidden'?"),
        ("captioner.name=adaptive", "captioner.name: there is no captioner 'adaptive'"),
        ("captioner.name=null", "captioner.name is missing; choose one of: neuraltalk"),
        (
            "objective.name=contrastiv",
            "objective.name: there is no objective 'contrastiv'; did you mean 'contrastive'?",
        ),
        ("captioner.hidden=0", "captioner.hidden: Input should be greater than or equal to 1 (it is 0)"),
        ("training.steps=many", "training.steps: Input should be a valid integer"),
        ("training.steps=2.5", "training.steps: Input should be a valid integer"),
        ("training.learning_rate=-1", "training.learning_rate: Input should be greater than 0 (it is -1)"),
        ("training.learning_rate=nan", "training.learning_rate: Input should be"),
        ("training.betas=[0.9]", "training.betas.1: this key is missing"),
        (
            "training.schedule=cosin",
            "training.schedule: Input should be 'constant', 'step', 'cosine' or 'plateau' (it is 'c",
        ),
        ("training=5", "training: Input should be a valid dictionary"),
        ("captioner=adaptive", "captioner: Input should be a valid dictionary"),
        ("data.source=2014", "data.source: Input should be a valid string (it is 2014)"),
        ("name=a/b", "name: String should match pattern"),
        ("seed=-1", "seed: Input should be greater than or equal to 0 (it is -1)"),
        ("training.epochs=3", "training: give either epochs or steps"),
        ("training.steps=null", "training: give either epochs or steps"),
        ("training.monitor=CIDEr", "training: set monitor_best to lowest or highest, for the monitored CIDEr"),
        ("training.learning_rate=inf", "training.learning_rate: Input should be a finite number"),
    ],
)
def test_one_mistake(write: Write, override: str, told: str) -> None:
    found = mistakes(write(), override)
    assert len(found) == 1
    assert found[0].startswith(told)


def test_mistakes_across_settings_of_an_objective(write: Write) -> None:
    path = write(objective={"name": "contrastive", "positive": False, "negative": False})
    assert mistakes(path) == ["objective: set positive, negative, or both to true"]


@pytest.mark.parametrize("key", ["name", "data", "objective", "training"])
def test_a_missing_section(write: Write, key: str) -> None:
    assert mistakes(write(leave_out=(key,))) == [f"{key}: this key is missing"]


# --- what is trained ------------------------------------------------------------------------------------------------


def test_a_recipe_trains_a_captioner_or_a_retriever(write: Write) -> None:
    ranking = {"retriever": {"name": "ranking"}, "objective": {"name": "ranking-hinge"}}
    recipe = Recipe.load(write(leave_out=("captioner",), **ranking))
    assert recipe.trains == "retriever"
    assert recipe.captioner is None
    assert recipe.component("retriever")[1].embedding == 1000
    assert Recipe.load(write()).trains == "captioner"
    (told,) = mistakes(write(leave_out=("captioner",)))
    assert told.startswith("captioner: this key is missing; a recipe trains a captioner or")
    assert mistakes(write(**ranking))[0].startswith("captioner, retriever: a recipe trains one of them")
    assert mistakes(write(leave_out=("captioner",), retriever={"name": "rank"}, objective=ranking["objective"])) == [
        "retriever.name: there is no retriever 'rank'; did you mean 'ranking'?"
    ]


def test_an_objective_for_the_other_kind(write: Write) -> None:
    (told,) = mistakes(write(objective={"name": "ranking-hinge"}))
    assert told.startswith("objective.name: ranking-hinge trains a retriever, and this recipe has a captioner; choose")
    (told,) = mistakes(write(leave_out=("captioner",), retriever={"name": "ranking"}))
    assert told.startswith("objective.name: likelihood trains a captioner, and this recipe has a retriever; choose")
    (told,) = mistakes(write(objective={"name": "composed", "parts": {"ranking-hinge": {}}}))
    assert told.startswith("objective.parts: ranking-hinge: trains a retriever and cannot be composed")


def test_validation_for_the_other_kind(write: Write) -> None:
    (told,) = mistakes(write(), "training.validate_retrieval=true")
    assert told.startswith("training.validate_retrieval: not available when training a captioner")
    path = write(leave_out=("captioner",), retriever={"name": "ranking"}, objective={"name": "ranking-hinge"})
    (told,) = mistakes(path, "training.validate_captions=5")
    assert told.startswith("training.validate_captions: not available when training a retriever")


def test_a_retriever_that_starts_from_another(write: Write) -> None:
    ranking = {"retriever": {"name": "ranking", "hidden": 32}, "objective": {"name": "ranking-hinge"}}
    write(leave_out=("captioner",), **ranking)
    child = {key: value for key, value in CHILD.items() if key not in ("captioner", "roles")}
    path = write("child", child, objective=ranking["objective"], retriever={"reading": "dot"})
    found = Recipe.load(path).retriever
    assert found is not None
    assert (found["hidden"], found["reading"]) == (32, "dot")


def test_frozen_words_need_a_file(write: Write) -> None:
    path = write(
        leave_out=("captioner",),
        retriever={"name": "ranking", "freeze_words": True},
        objective={"name": "ranking-hinge"},
    )
    assert mistakes(path)[0].startswith("retriever: freeze_words needs word_vectors; set word_vectors")


def test_a_missing_key(write: Write) -> None:
    assert mistakes(write(data={"max_words": 3})) == [
        "data.source: this key is missing; give data.source=VALUE: 'scenes', a folder of pictures, or a data set "
        "(docs/data.md)"
    ]
    assert mistakes(write(start={"form": "x"})) == [
        "start.from: this key is missing",
        "start.form: there is no such key; did you mean 'from'?",
    ]


def test_all_mistakes_are_told_at_once(write: Write) -> None:
    path = write(
        leave_out=("name",),
        data={"source": "scenes", "max_word": 3, "min_count": 0},
        captioner={"name": "adaptive-attention", "hiden": 3, "dropout": 1.5},
        objective={"name": "contrast"},
        trainings={},
    )
    found = mistakes(path, "training.schedule=linear")
    keys = sorted(line.split(":")[0] for line in found)
    assert keys == [
        "captioner.dropout",
        "captioner.hiden",
        "data.max_word",
        "data.min_count",
        "name",
        "objective.name",
        "training.schedule",
        "trainings",
    ]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"name: [1,", "not valid YAML"),
        (b"name: \xff", "not UTF-8 text"),
        (b"- a\n- b\n", "a recipe must be a mapping of keys"),
        (b"", "a recipe must be a mapping of keys"),
        (b"name: !!python/object/apply:os.getcwd []", "not valid YAML"),
    ],
)
def test_files_that_are_no_recipe(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match=told) as caught:
        Recipe.load(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"nothing\.yaml: this recipe does not exist; 'tellapart recipes' lists"):
        Recipe.load(tmp_path / "nothing.yaml")
    with pytest.raises(RecipeError, match="this is a folder"):
        Recipe.load(tmp_path)


# --- upstreams ------------------------------------------------------------------------------------------------------


def test_what_a_recipe_starts_from_gives_data_and_captioner(write: Write, tmp_path: Path) -> None:
    base = Recipe.load(write())
    child = Recipe.load(write("child", CHILD))
    assert child.data == base.data
    assert child.captioner == {**base.captioner, "dropout": 0.0}
    assert child.objective["name"] == "contrastive"
    assert child.training.steps == 5
    assert child.start is not None
    assert Path(child.start.from_).resolve() == (tmp_path / "base.yaml").resolve()


def test_inherited_through_two_recipes(write: Write) -> None:
    write()
    write("child", CHILD)
    grandchild = Recipe.load(write("grandchild", CHILD, name="grandchild", start={"from": "child.yaml"}))
    assert grandchild.captioner["hidden"] == 32
    assert grandchild.data.max_words == 12


def test_one_key_of_an_inherited_section_leaves_its_neighbours(write: Write) -> None:
    write()
    child = Recipe.load(write("child", CHILD), ["data.scenes.train=20", "data.min_count=2"])
    assert (child.data.scenes.train, child.data.scenes.val) == (20, 8)
    assert (child.data.min_count, child.data.max_words) == (2, 12)


def test_the_start_gives_the_captioner_and_the_reference_does_not(write: Write) -> None:
    write()
    write("wide", name="wide", captioner={"name": "adaptive-attention", "hidden": 64})
    child = Recipe.load(write("child", CHILD, roles={"reference": {"from": "wide.yaml"}}, leave_out=("captioner",)))
    assert child.captioner["hidden"] == 32
    with pytest.raises(RecipeError, match="captioner: this key is missing"):
        Recipe.load(write("child", CHILD, roles={"reference": {"from": "wide.yaml"}}, leave_out=("start", "captioner")))


def test_a_run_folder_as_start(write: Write, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    write().rename(tmp_path / "runs" / "recipe.yaml")
    child = Recipe.load(write("child", CHILD, start={"from": "runs"}, roles={"reference": {"from": "runs"}}))
    assert child.captioner["hidden"] == 32
    assert child.start is not None
    assert Path(child.start.from_) == tmp_path / "runs"


def test_a_start_relative_to_the_current_folder(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    write().rename(tmp_path / "here" / "base.yaml")
    monkeypatch.chdir(tmp_path / "here")
    assert Recipe.load(write("child", CHILD)).captioner["hidden"] == 32


def test_a_start_that_does_not_exist(write: Write) -> None:
    write()
    path = write("child", CHILD, start={"from": "nowhere.yaml"})
    with pytest.raises(RecipeError, match=r"child\.yaml: start\.from: 'nowhere\.yaml' does not exist"):
        Recipe.load(path)


def test_recipes_that_start_from_each_other(write: Write) -> None:
    write("one", CHILD, start={"from": "two.yaml"}, leave_out=("roles",))
    two = write("two", CHILD, start={"from": "one.yaml"}, leave_out=("roles",))
    with pytest.raises(RecipeError, match=r"two\.yaml: this recipe starts from itself"):
        Recipe.load(two)
    itself = write("itself", CHILD, start={"from": "itself.yaml"}, leave_out=("roles",))
    with pytest.raises(RecipeError, match="starts from itself"):
        Recipe.load(itself)


# --- digest ---------------------------------------------------------------------------------------------------------


def test_the_digest_does_not_name_what_changes_no_weight(write: Write) -> None:
    data = "data.source=data.json"
    first = Recipe.load(write(), [data]).digest
    for override in (
        "name=other",
        "description=told differently",
        "data.source=elsewhere/data.json",
        "data.prepared=elsewhere",
        "decoding.beam=9",
        "captioner.embedding=256",  # the default, spelt out
    ):
        assert Recipe.load(write(), [data, override]).digest == first, override
    write()
    assert Recipe.load(write("child", CHILD, start={"from": "base.yaml"})).digest == (
        Recipe.load(write("child", CHILD, start={"from": str(write().resolve())})).digest
    )


def test_the_number_of_scenes_matters_for_scenes_only(write: Write) -> None:
    for source, matters in (("scenes", True), ("photographs.json", False)):
        digests = {
            Recipe.load(write(), [f"data.source={source}", f"data.scenes.train={count}"]).digest for count in (8, 9)
        }
        assert (len(digests) > 1) == matters


def test_the_digest_names_what_changes_weights(write: Write) -> None:
    overrides = [
        "seed=1",
        "training.steps=11",
        "training.learning_rate=0.5",
        "training.keep=best",
        "captioner.hidden=33",
        "captioner.dropout=0",
        "data.min_count=4",
        "data.normaliser=alphabetic",
        "data.scenes.seed=1",
        "data.store=int8",
    ]
    digests = [Recipe.load(write(), [override] if override else []).digest for override in ("", *overrides)]
    contrastive = ["objective.name=contrastive", f"roles.reference.from={write('other', name='other')}"]
    digests += [Recipe.load(write(), [*contrastive, f"objective.negatives={count}"]).digest for count in (5, 6)]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("scenes/adaptive-mle.yaml", "a282f7cb7ae0c1a6a68a0c7cfb8bfc10611a36159558c52272ab72e94e1bce92"),
        ("scenes/adaptive-mle-and-cl.yaml", "921fb37dad7ec20a2772d84b1f84090bcc25adc7758609a49f76b6a4244ed198"),
        ("flickr8k/adaptive-cl.yaml", "600f9c46f2beda6a90e6f0a47691a4bd8c1bd728d1a188f71b7ecd24ccf8952d"),
    ],
)
def test_new_settings_keep_the_keys_of_finished_runs(name: str, digest: str) -> None:
    """Digests of shipped recipes before `training.ema` and others existed. Mark a new setting `ADDED`, or, if you
    change what these recipes train, write the new digests here."""
    assert Recipe.load(name).digest == digest


def test_new_settings_count_once_they_are_set(write: Write) -> None:
    parts = "objective={name: composed, parts: {likelihood: {label_smoothing: %s}}}"
    overrides = [
        "seed=0",
        "training.ema=0.999",
        "training.plateau_patience=2",
        "objective.label_smoothing=0.1",
        "objective.sampling_end=0.25",
        parts % 0.0,
        parts % 0.1,
    ]
    digests = [Recipe.load(write(), [override]).digest for override in overrides]
    assert len(set(digests)) == len(digests)
    for spelt_out in ("training.ema=null", "training.plateau_patience=3", "objective.label_smoothing=0"):
        assert Recipe.load(write(), [spelt_out]).digest == digests[0]
    assert Recipe.load(write(), ["objective={name: composed, parts: {likelihood: {}}}"]).digest == digests[5]


def test_an_objective_that_needs_a_reference_says_so(write: Write) -> None:
    with pytest.raises(RecipeError, match=r"roles\.reference\.from: the contrastive objective needs a captioner here"):
        Recipe.load(write(), ["objective.name=contrastive"])


def test_a_role_that_nobody_has(write: Write) -> None:
    write()
    told = mistakes(write("child", CHILD), "roles.refrence.from=base.yaml")
    assert told == ["roles.refrence: the contrastive objective has no such role; did you mean 'reference'?"]
    told = mistakes(write("mle", name="mle"), "roles.teacher.from=base.yaml")
    assert told == ["roles.teacher: the likelihood objective has no such role; it uses none"]


def test_a_role_of_the_other_kind(write: Write) -> None:
    write()
    write("ranking", leave_out=("captioner",), retriever={"name": "ranking"}, objective={"name": "ranking-hinge"})
    (told,) = mistakes(write("child", CHILD), "roles.reference.from=ranking.yaml")
    assert "ranking.yaml trains a retriever, and a captioner is needed here" in told


def test_an_ensemble_as_a_role(write: Write) -> None:
    write()
    other = write("other", name="other")
    child = Recipe.load(write("child", CHILD), [f"roles.reference.from=[base.yaml, {other}]"])
    assert [Path(place).name for place in child.roles["reference"].places] == ["base.yaml", "other.yaml"]
    told = mistakes(write("child", CHILD, captioner=BASE["captioner"], data=BASE["data"]), "start.from=[a, b]")
    assert told == ["start.from: a target starts from one model; give one run or recipe"]


def test_an_unknown_encoder_is_told_when_the_recipe_is_checked(write: Write) -> None:
    told = mistakes(write(), "data.encoder=efficientnet-light0")
    assert told == ["data.encoder: there is no encoder 'efficientnet-light0'; did you mean 'efficientnet-lite0'?"]
    write()
    write("strange", name="strange", data={**BASE["data"], "encoder": "resnet"})
    (told,) = mistakes(write("child", CHILD), "roles.reference.from=strange.yaml")
    assert "strange.yaml: data.encoder: there is no encoder 'resnet'" in told


def test_model_folders_and_files_are_found_from_any_folder(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "clip").mkdir(parents=True)
    (tmp_path / "vectors.txt").write_text("a 1\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    path = write(
        leave_out=("captioner",),
        data={**BASE["data"], "encoder": "clip:models/clip"},
        retriever={"name": "ranking", "word_vectors": "vectors.txt"},
        objective={"name": "ranking-hinge"},
    )
    recipe = Recipe.load(path)
    assert recipe.data.encoder == f"clip:{tmp_path / 'models' / 'clip'}"
    assert recipe.retriever["word_vectors"] == str(tmp_path / "vectors.txt")
    # Names of models in the Hugging Face cache and of our own encoders stay as they are.
    for encoder in ("clip:openai/clip-vit-base-patch32", "efficientnet-lite0@64"):
        assert Recipe.load(path, [f"data.encoder={encoder}"]).data.encoder == encoder


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("timm:local-dir:models/resnet50", "timm:local-dir:{here}/models/resnet50"),
        ("timm:Local-Dir:./models/resnet50", "timm:Local-Dir:{here}/models/resnet50"),
        ("timm:local-dir:models/a:b", "timm:local-dir:{here}/models/a:b"),
        ("siglip:models/a:b", "siglip:{here}/models/a:b"),
        ("timm:local-dir:models/none", "timm:local-dir:models/none"),
        ("timm:local-dir:", "timm:local-dir:"),
        # Names of timm's models, also if a folder is called the same.
        ("timm:resnet50", "timm:resnet50"),
        ("timm:hf-hub:models/resnet50", "timm:hf-hub:models/resnet50"),
    ],
)
def test_folders_in_the_names_of_encoders(
    write: Write, tmp_path: Path, given: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("models/resnet50", "models/a:b", "resnet50"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    path = write(data={**BASE["data"], "encoder": given})
    assert Recipe.load(path).data.encoder == found.format(here=tmp_path)


# --- extends --------------------------------------------------------------------------------------------------------


def test_a_recipe_that_extends_another_says_what_differs(write: Write) -> None:
    write(budgets={"smoke": {"training": {"steps": 2}}})
    path = write("more", {"extends": "base.yaml", "name": "more", "training": {"learning_rate": 0.5}})
    more = Recipe.load(path, budget="smoke")
    assert (more.name, more.training.steps, more.training.learning_rate) == ("more", 2, 0.5)
    assert more.captioner["hidden"] == 32
    assert Recipe.load(path).training.steps == 10


def test_another_component_takes_no_settings_of_the_one_before(write: Write) -> None:
    write(budgets={"smoke": {"captioner": {"hidden": 4}, "training": {"steps": 1}}})
    path = write("other", {"extends": "base.yaml", "name": "other", "captioner": {"name": "neuraltalk"}})
    for budget, steps in (("laptop", 10), ("smoke", 1)):
        recipe = Recipe.load(path, budget=budget)
        assert recipe.captioner["hidden"] == 512
        assert recipe.training.steps == steps


def test_a_role_can_be_taken_back(write: Write) -> None:
    write()
    write("child", CHILD)
    likelihood = {"extends": "child.yaml", "objective": {"name": "likelihood"}, "roles": {"reference": None}}
    assert Recipe.load(write("plain", likelihood)).roles == {}


def test_upstreams_of_a_base_are_found_beside_the_recipe_and_then_beside_the_base(write: Write, tmp_path: Path) -> None:
    (tmp_path / "bases").mkdir()
    write("child", CHILD).rename(tmp_path / "bases" / "child.yaml")
    write().rename(tmp_path / "bases" / "base.yaml")
    path = write("mine", {"extends": "bases/child.yaml", "name": "mine"})
    assert Path(Recipe.load(path).roles["reference"].places[0]) == tmp_path / "bases" / "base.yaml"
    beside = write()
    assert Path(Recipe.load(path).roles["reference"].places[0]) == beside


def test_a_recipe_of_ones_own_extends_a_shipped_one(write: Write) -> None:
    mine = Recipe.load(write("mine", {"extends": "scenes/adaptive-cl.yaml", "objective": {"negatives": 10}}))
    assert mine.objective["negatives"] == 10
    assert mine.captioner == Recipe.load("scenes/adaptive-cl.yaml").captioner


def test_recipes_that_extend_each_other(write: Write) -> None:
    write("one", {"extends": "two.yaml"})
    with pytest.raises(RecipeError, match="extends itself"):
        Recipe.load(write("two", {"extends": "one.yaml"}))
    with pytest.raises(RecipeError, match=r"extends: 'nowhere\.yaml' does not exist"):
        Recipe.load(write("lost", {"extends": "nowhere.yaml"}))


def test_a_recipe_that_many_point_to_is_read_once(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight recipes that each name the next one three times: 3^8 readings if each name were followed."""
    write("r8", name="r8")
    for number in range(7, -1, -1):
        upstream = {"from": f"r{number + 1}.yaml"}
        write(f"r{number}", CHILD, name=f"r{number}", start=upstream, roles={"reference": upstream, "x": upstream})
    read: list[Path] = []
    plain = recipe_files.read_yaml
    monkeypatch.setattr(recipe_files, "read_yaml", lambda path: read.append(path) or plain(path))
    with pytest.raises(RecipeError, match="no such role"):
        Recipe.load(write("r0", CHILD, name="r0", start={"from": "r1.yaml"}, roles={"x": {"from": "r1.yaml"}}))
    assert len(read) <= 2 * 9


def test_a_recipe_cannot_be_changed(write: Write) -> None:
    recipe = Recipe.load(write())
    with pytest.raises(ValueError, match="frozen"):
        recipe.seed = 3  # type: ignore[misc]


# --- budgets --------------------------------------------------------------------------------------------------------

BUDGETS = {
    "smoke": {"training": {"steps": 2}, "data": {"scenes": {"train": 6}}},
    "paper": {"training": {"steps": None, "epochs": 9}, "captioner": {"hidden": 512}},
}


def test_a_budget_changes_what_it_says(write: Write) -> None:
    path = write(budgets=BUDGETS)
    laptop, smoke, paper = (Recipe.load(path, budget=budget) for budget in ("laptop", "smoke", "paper"))
    assert Recipe.load(path) == laptop
    assert (laptop.training.steps, smoke.training.steps, paper.training.steps) == (10, 2, None)
    assert paper.training.epochs == 9
    assert smoke.data.scenes.train == 6
    assert smoke.data.scenes.val == 8, "what a budget does not name stays"
    assert paper.captioner["hidden"] == 512
    assert Recipe.load(path, ["training.steps=3"], "smoke").training.steps == 3, "an override has the last word"
    assert len({recipe.digest for recipe in (laptop, smoke, paper)}) == 3


def test_what_a_recipe_starts_from_has_its_budget(write: Write) -> None:
    write(budgets=BUDGETS)
    child = Recipe.load(write("child", CHILD, budgets={"paper": {}}), budget="paper")
    assert child.budget == "paper"
    assert child.captioner["hidden"] == 512
    assert child.captioner["dropout"] == 0.0


def test_the_name_of_a_budget_is_not_what_is_trained(write: Write) -> None:
    """An empty budget is the same training, and a resolved recipe is what it was."""
    with pytest.raises(RecipeError, match="has no budget 'smoke'; it has: laptop"):
        Recipe.load(write(), budget="smoke")
    empty = write(budgets={"smoke": {}})
    assert Recipe.load(empty, budget="smoke").digest == Recipe.load(empty).digest
    smoke = Recipe.load(write(budgets=BUDGETS), budget="smoke")
    again = Recipe.load(write("resolved", smoke.resolved()))
    assert again == smoke


@pytest.mark.parametrize(
    ("budgets", "told"),
    [
        ({"smok": {}}, r"budgets\.smok: there is no such budget; did you mean 'smoke'\?"),
        ({"smoke": 3}, r"budgets: give each budget a mapping"),
        ([], r"budgets: give each budget a mapping"),
    ],
)
def test_mistakes_in_budgets(write: Write, budgets: Any, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        Recipe.load(write(budgets=budgets))
    with pytest.raises(RecipeError, match="there is no budget 'papers'; did you mean 'paper'"):
        Recipe.load(write(), budget="papers")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(RECIPES)))
def test_every_shipped_recipe_can_be_built_at_every_budget(path: Path) -> None:
    for budget in ("smoke", "laptop", "paper"):
        recipe = Recipe.load(path, budget=budget)
        assert recipe.component(recipe.trains)
        assert recipe.component("objective")
