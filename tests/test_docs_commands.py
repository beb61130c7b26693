"""Every command and every piece of Python in README and docs is checked against the real program; some are run."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shutil
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from pydantic import BaseModel

import tellapart
from support.docs import ROOT, Block, Command, blocks, commands, pages, shell_lines, split, tellapart_words
from tellapart import registry
from tellapart.cli import main
from tellapart.cli.commands import app
from tellapart.decoding.settings import DecodingSettings
from tellapart.recipe import Recipe
from tellapart.recipe_files import COMPONENTS, recipes_folder
from tellapart.studies.base import find_study
from tellapart.studies.run import arm_of
from tellapart.telling_apart.settings import TellApartSettings

PROGRAM = typer.main.get_command(app)
# Words that stand for a number or a part in running text.
STANDS_FOR = {"N": "2", "K": "2", "T": "0.5", "B": "smoke", "i/n": "1/2"}
SECTIONS = ("data", "captioner", "retriever", "objective", "roles", "start", "negatives", "training", "decoding")
PYTHON = [block for page in pages() for block in blocks(page) if block.language == "python"]
MARKED = [block for page in pages() for block in blocks(page) if block.run and not block.mark]
YAML = [block for page in pages() for block in blocks(page) if block.language == "yaml"]
COMMANDS = [command for page in pages() for command in commands(page)]


def name_of(value: Block | Command) -> str:
    return value.place if isinstance(value, Block) else f"{value.place} {' '.join(value.words)[:60]}"


# --- command lines ----------------------------------------------------------------------------------------------------


def parsed(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The names of the command and its parameters; an unknown command, option or value is an error."""
    group, names = PROGRAM, []
    while hasattr(group, "commands"):
        if not words or words[0].startswith("-") or words[0] not in group.commands:
            named = [word for word in words if not word.startswith("-")]
            complete = group.invoke_without_command and not named
            assert complete, f"'{' '.join(words)}' names no command"
            break
        names.append(words[0])
        group, words = group.commands[words[0]], words[1:]
    if "--help" in words or hasattr(group, "commands"):
        return names, {}
    return names, group.make_context(names[-1], list(words)).params


@pytest.mark.parametrize("command", [one for one in COMMANDS if tellapart_words(one) is not None], ids=name_of)
def test_the_command_exists_with_these_options(command: Command) -> None:
    words = [word.strip("[]") for word in tellapart_words(command) or ()]
    words = [STANDS_FOR.get(word, word) for word in words if set(word) - set("….")]
    if not words or words[0] in ("COMMAND", "--help"):
        return
    short = command.place.endswith(".md")  # running text may leave out what it is not about
    try:
        names, given = parsed(words)
    except Exception as error:
        if short and re.search("Missing|requires an argument", str(error)):
            return
        raise AssertionError(f"{command.place}: {' '.join(words)}: {error}") from error
    check_settings(names, given)


def check_settings(names: list[str], given: dict[str, Any]) -> None:
    """Recipes, studies and keys that a command names exist."""
    if names == ["train"] or names[:2] == ["recipes", "show"]:
        recipe = str(given.get("recipe") or given.get("name") or "")
        check_recipe(recipe, [one for one in given.get("overrides") or [] if "=" in one])
    elif names == ["study"] and given["name"] not in (None, "NAME"):
        study = find_study(given["name"])
        arms = {arm.key for arm in study.arms(given["captioner"] or study.captioner)}
        for override in given["set_"] or []:
            arm = arm_of(override)
            assert arm is None or arm in arms, f"{study.name} has no arm {arm}"
            check_key(override.removeprefix(f"{arm}:").partition("=")[0])
        for cross in given["cross"] or []:
            check_key(cross.partition("=")[0])
    elif names in (["caption"], ["tell-apart"]):
        settings = DecodingSettings if names == ["caption"] else TellApartSettings
        for override in given["set_"] or []:
            assert override == "KEY=VALUE" or override.partition("=")[0] in settings.model_fields, override


def check_recipe(recipe: str, overrides: list[str]) -> None:
    """A shipped recipe loads with these overrides; a recipe or run of the user has these keys."""
    keys = [override.partition("=")[0] for override in overrides if override != "KEY=VALUE"]
    for key in keys:
        check_key(key)
    if "/" in recipe and recipe.endswith(".yaml"):
        assert (recipes_folder() / recipe).is_file(), f"there is no recipe {recipe}"
        # Runs, folders and encoders that only a user has are left out; their keys are checked above.
        kept = [one for one in overrides if not re.search(r"\.from=|retriever\.text=|=.*[A-Z]{3}|encoder=.*:", one)]
        Recipe.load(recipe, kept)


def check_key(key: str) -> None:
    """A dotted key of a recipe: of its sections, or of any component."""
    section, *rest = key.split(".")
    assert section in Recipe.model_fields, f"recipes have no '{section}' ({key})"
    if section in ("start", "roles"):
        assert rest[(section == "roles") :] in ([], ["from"]), key
    elif section in COMPONENTS and rest:
        known = [registry.find(section, name).Settings for name in registry.names(section)]
        assert rest[0] == "name" or any(rest[0] in settings.model_fields for settings in known), f"no component: {key}"
    elif rest:
        kind = Recipe.model_fields[section].annotation
        for part in rest:
            fields = kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}
            assert part in fields, f"there is no key {key}"
            kind = fields[part].annotation


@pytest.mark.parametrize(
    "line", ["capture photo.jpg", "caption --beem 3", "caption --beam three", "score photo.jpg", "recipes list"]
)
def test_wrong_commands_are_found(line: str) -> None:
    with pytest.raises(Exception, match=r"names no command|No such option|[Ii]nvalid|Missing|valid integer"):
        parsed(line.split())


@pytest.mark.parametrize("key", ["trainin.steps", "training.step", "objective.nothing", "data.scenes.no", "start.of"])
def test_wrong_keys_are_found(key: str) -> None:
    with pytest.raises(AssertionError):
        check_key(key)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_keys_of_recipes_in_running_text_exist(page: Path) -> None:
    sections = "|".join(SECTIONS)
    for key in re.findall(rf"`((?:{sections})\.[a-z_.]+)(?:=[^`]*)?`", page.read_text(encoding="utf-8")):
        if not key.endswith((".md", ".py", ".yaml", ".json", ".jsonl", ".html", ".")):
            check_key(key)


@pytest.mark.parametrize("command", [one for one in COMMANDS if tellapart_words(one) is None], ids=name_of)
def test_other_programs_are_given_what_exists(command: Command) -> None:
    program, *words = command.words
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        for target in (word for word in words if "=" not in word):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"no target '{target}'"
    elif program == "pip" or program.endswith("/pip"):
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "optional-dependencies"
        ]
        for names in re.findall(r"(?:tellapart|\.)\[([\w,]+)\]", " ".join(words)):
            assert names == "EXTRA" or set(names.split(",")) <= set(extras), f"no extra '{names}'"
    elif program.endswith(("python", "python3")) and words[0].endswith(".py"):
        source = (ROOT / words[0]).read_text(encoding="utf-8")
        for option in (word for word in words if word.startswith("--")):
            assert f'"{option}"' in source, f"{words[0]} has no option {option}"


# --- Python and YAML --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", PYTHON, ids=name_of)
def test_names_in_python_exist(block: Block) -> None:
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tellapart"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                found = hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}")
                assert found, f"{node.module} has no {alias.name}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tellapart":
            assert node.attr in (*tellapart.__all__, "metrics"), f"tellapart.{node.attr}"
        elif isinstance(node, ast.Call) and (called := _public(node.func)) is not None:
            try:
                inspect.signature(called).bind(
                    *(None for one in node.args if not isinstance(one, ast.Starred)),
                    **{one.arg: None for one in node.keywords if one.arg is not None},
                )
            except TypeError as error:
                raise AssertionError(f"{block.place}: {ast.unparse(node)}: {error}") from error


def _public(function: ast.expr) -> Any:
    """What `tellapart.NAME` in a call is, if it is a public name."""
    if (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "tellapart"
    ):
        return getattr(tellapart, function.attr, None)
    return None


@pytest.mark.parametrize("block", YAML, ids=name_of)
def test_keys_in_yaml_exist(block: Block) -> None:
    content = yaml.safe_load(block.text)
    for section, value in content.items():
        if section == "extends":
            assert (recipes_folder() / value).is_file()
        elif section not in ("budgets", "roles") and isinstance(value, dict):
            for key in value:
                check_key(f"{section}.{key}")
        else:
            assert section in (*Recipe.model_fields, "budgets")


# --- run --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user may have it: `photo.jpg`, and `holiday/` with three pictures."""
    skimage = pytest.importorskip("skimage", reason="scikit-image (of the dev extra) brings the photographs")
    from PIL import Image

    data, folder = Path(skimage.__file__).parent / "data", tmp_path_factory.mktemp("photographs")
    (folder / "holiday").mkdir()
    for name, target in {
        "chelsea.png": "photo.jpg",
        "coffee.png": "holiday/coffee.jpg",
        "motorcycle_left.png": "holiday/motorcycle-1.jpg",
        "motorcycle_right.png": "holiday/motorcycle-2.jpg",
    }.items():
        Image.open(data / name).convert("RGB").save(folder / target)
    return folder


def run_block(block: Block) -> None:
    if block.language == "python":
        exec(compile(block.text, block.place, "exec"), {"__name__": "__main__"})
        return
    for line in shell_lines(block.text):
        (command,) = split(line, block.place)
        words = tellapart_words(command)
        assert words is not None, f"{block.place}: only commands of tellapart are run"
        sys.argv = ["tellapart", *words]
        with pytest.raises(SystemExit) as done:
            main()
        assert done.value.code in (0, None), f"{block.place}: {line}: status {done.value.code}"


@pytest.mark.parametrize("block", MARKED, ids=name_of)
def test_marked_blocks_run(block: Block, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "photos.lance" in block.text:
        pytest.importorskip("lancedb", reason="the extra index")
    shutil.copytree(photographs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tellapart"])
    run_block(block)


def test_the_comparison_of_the_readme_runs(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it stands there, but each training at the smoke budget."""
    (block,) = (block for block in blocks(ROOT / "README.md") if block.mark == "compare")
    shutil.copytree(photographs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tellapart, "train", partial(tellapart.train, budget="smoke"))
    run_block(block)
    assert "difference=" in capsys.readouterr().out
    assert (tmp_path / "comparison" / "report.html").is_file()
