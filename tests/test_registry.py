"""Every name of the table leads to a class that a recipe can use."""

from __future__ import annotations

import inspect

import pytest
from pydantic import BaseModel, ValidationError

from support import tiny
from tellapart import registry
from tellapart.captioners.base import Captioner
from tellapart.encoders import open_encoder
from tellapart.errors import RecipeError
from tellapart.objectives.base import Objective
from tellapart.retrievers.base import Retriever

ENTRIES = [(kind, name) for kind, table in registry.TABLE.items() for name in table]
BASES = {"captioner": Captioner, "retriever": Retriever, "objective": Objective}
COMPONENTS = [(kind, name) for kind, name in ENTRIES if kind in BASES]


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_every_entry_is_a_class_where_the_table_says(kind: str, name: str) -> None:
    found = registry.find(kind, name)
    assert inspect.isclass(found)
    assert f"{found.__module__}:{found.__name__}" == registry.TABLE[kind][name]
    assert not inspect.isabstract(found)


@pytest.mark.parametrize(("kind", "name"), COMPONENTS)
def test_components_know_their_name_and_settings(kind: str, name: str) -> None:
    found = registry.find(kind, name)
    assert issubclass(found, BASES[kind])
    assert found.name == name
    assert issubclass(found.Settings, BaseModel)
    required = [key for key, field in found.Settings.model_fields.items() if field.is_required()]
    assert not required, "every setting has a default"
    found.Settings()  # raises unless the defaults fit together
    with pytest.raises(ValidationError, match="no_such_setting"):
        found.Settings(no_such_setting=1)


@pytest.mark.parametrize("kind", ["captioner", "retriever", "objective"])
def test_contract_tests_have_tiny_settings_for_every_name(kind: str) -> None:
    for name in tiny.names(kind):
        tiny.tiny_settings(kind, name)


@pytest.mark.parametrize("name", [name for name in registry.names("encoder") if name.startswith("efficientnet")])
def test_encoders_know_their_name(name: str) -> None:
    assert open_encoder(name).identity.name == name


def test_names_are_in_table_order() -> None:
    assert registry.names("objective") == list(registry.TABLE["objective"])
    assert "contrastive" in registry.names("objective")


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("objective", "contrastiv", "there is no objective 'contrastiv'; did you mean 'contrastive'?"),
        ("captioner", "adaptive_attention", "did you mean 'adaptive-attention'?"),
        ("encoder", "xyz", "there is no encoder 'xyz'; known: blip, clip, clip-tokens, clip-vit-b16"),
    ],
)
def test_an_unknown_name_is_answered_with_a_likely_one(kind: str, name: str, told: str) -> None:
    with pytest.raises(RecipeError) as caught:
        registry.find(kind, name)
    assert told in str(caught.value)
