"""The public names: a change here is a change of the API and belongs in the change log."""

from __future__ import annotations

import inspect

import pytest

import tellapart

NAMES = [
    "__version__",
    "Caption",
    "Captioner",
    "Comparison",
    "Evaluation",
    "Objective",
    "PhotoIndex",
    "Recipe",
    "RetrievalEvaluation",
    "Retriever",
    "Run",
    "TellapartError",
    "Vocabulary",
    "caption",
    "compare",
    "compare_retrieval",
    "contrastive_loss",
    "evaluate",
    "evaluate_people",
    "evaluate_retrieval",
    "load_captioner",
    "load_retriever",
    "open_index",
    "open_run",
    "prepare",
    "run_study",
    "train",
    "write_gallery",
    "write_report",
]


def test_the_names_are_these() -> None:
    assert tellapart.__all__ == NAMES
    assert dir(tellapart) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES[1:])
def test_every_name_is_there_and_explained(name: str) -> None:
    found = getattr(tellapart, name)
    assert found.__name__ == name
    assert inspect.isclass(found) == name[0].isupper()
    assert inspect.getdoc(found), f"{name} has no docstring"


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'tellapart' has no attribute 'trian'"):
        _ = tellapart.trian  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="trian"):
        from tellapart import trian  # type: ignore[attr-defined]  # noqa: F401


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert tellapart.__version__ == version("tellapart")
