"""All commands, in the order of the help."""

# ruff: noqa: I001

from tellapart.cli import photos, serve, train, recipes, measure
from tellapart.cli.base import app

__all__ = ["app", "measure", "photos", "recipes", "serve", "train"]
