"""All commands, in the order of the help."""

# ruff: noqa: I001

from tellapart.cli import photos, serve, train, recipes, measure
from tellapart.cli.base import PlainCommand, app

__all__ = ["app", "measure", "photos", "recipes", "serve", "train"]

for command in (*app.registered_commands, *recipes.recipes_app.registered_commands):
    command.cls = PlainCommand
