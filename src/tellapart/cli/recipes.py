"""`recipes`: list, show, copy and check recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tellapart.cli.base import BudgetOption, app
from tellapart.errors import RecipeError

recipes_app = typer.Typer(help="List, show, copy and check recipes.", invoke_without_command=True)
app.add_typer(recipes_app, name="recipes", rich_help_panel="Data and training")


@recipes_app.callback()
def recipes(context: typer.Context) -> None:
    """List the shipped recipes."""
    if context.invoked_subcommand is not None:
        return
    from tellapart.recipe_files import read_recipe, recipes_folder, shipped_recipes
    from tellapart.terminal import print_table

    folder = recipes_folder()
    listed = [
        [path.relative_to(folder).as_posix(), read_recipe(path).get("description", "")] for path in shipped_recipes()
    ]
    print_table(["recipe", ""], listed)
    print(
        "\n'tellapart recipes show NAME' prints one with every default; 'tellapart recipes copy NAME' writes a "
        "file to edit; 'tellapart train NAME' trains it."
    )


@recipes_app.command()
def show(
    recipe: Annotated[Path, typer.Argument(help="A recipe's file or its name in the list.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Dotted keys, e.g. training.steps=100.")] = None,
    budget: BudgetOption = None,
) -> None:
    """Print a recipe as it would be run, every default written out."""
    from tellapart.recipe import Recipe

    print(Recipe.load(recipe, overrides or [], budget).to_yaml(), end="")


@recipes_app.command()
def copy(
    recipe: Annotated[Path, typer.Argument(help="A recipe's file or its name in the list.")],
    file: Annotated[
        Path | None,
        typer.Argument(help="File to write, or '-' to print; by default the recipe's file name, here."),
    ] = None,
) -> None:
    """Copy a recipe into one file to edit: what it extends is filled in, defaults are left out."""
    from tellapart.files import check_folder, write_text
    from tellapart.recipe import copy_recipe

    text, file = copy_recipe(recipe), file or Path(recipe.name)
    if str(file) == "-":
        print(text, end="")
        return
    if file.exists():
        raise RecipeError(f"{file}: already exists; name another file, or delete this one first")
    check_folder(file.parent)
    write_text(file, text)
    print(f"wrote {file}; 'tellapart train {file}' trains it")


@recipes_app.command()
def check(
    recipes: Annotated[list[Path] | None, typer.Argument(help="Recipe files; all shipped ones by default.")] = None,
) -> None:
    """Check recipes at every budget without running them; every mistake is listed."""
    from tellapart.recipe import Recipe
    from tellapart.recipe_files import BUDGETS, shipped_recipes

    wrong: dict[str, None] = {}
    paths = recipes or shipped_recipes()
    for path in paths:
        for budget in BUDGETS:
            try:
                Recipe.load(path, budget=budget)
            except RecipeError as error:
                wrong[str(error)] = None
    if wrong:
        raise RecipeError("\n".join(wrong))
    print(f"{len(paths)} recipes are valid at the budgets {', '.join(BUDGETS)}.")
