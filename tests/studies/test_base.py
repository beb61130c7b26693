"""All studies: how they are found, and what every study must have."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from tellapart.data.records import Dataset
from tellapart.data.settings import DataSettings
from tellapart.errors import RecipeError
from tellapart.studies import papers
from tellapart.studies.base import all_studies, find_study
from tellapart.studies.columns import Column
from tellapart.studies.measure import measure_of
from tellapart.studies.run import recipe_family

MODULES = [found.name for found in iter_modules(papers.__path__)]


def test_a_new_file_is_enough_to_add_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy_paper.py").write_text(
        "from tellapart.studies.base import Arm, Study\n"
        "arms = (Arm('mle', 'MLE', 'adaptive-mle'),)\n"
        "STUDIES = (Study('toy', 'A toy', lambda captioner: arms, columns=(), split='test', source='us'),)\n"
    )
    monkeypatch.setattr(papers, "__path__", [*papers.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "tellapart.studies.papers.toy_paper", raising=False)
    assert find_study("toy").title == "A toy"
    with pytest.raises(RecipeError, match="there is no study 'toyy'; did you mean 'toy'"):
        find_study("toyy")


def test_names_are_unique() -> None:
    names = [study.name for module in MODULES for study in import_module(f"{papers.__name__}.{module}").STUDIES]
    assert len(set(names)) == len(names) == len(all_studies())


def test_listing_does_not_import_torch() -> None:
    code = "import sys, tellapart.studies.base as base; base.all_studies(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", all_studies())
def test_every_study_is_complete(name: str) -> None:
    study = find_study(name)
    assert measure_of(study).trains in ("captioner", "retriever")
    keys = [arm.key for arm in study.arms("adaptive")]
    assert len(set(keys)) == len(keys)
    assert all(isinstance(column, Column) for column in study.columns)
    assert study.split in ("val", "test")
    figures = {column.figure for column in study.columns}
    assert study.axis is None or set(study.axis.drawn) <= figures


@pytest.mark.parametrize(
    ("name", "family"),
    [("coco", "coco"), ("flickr8k-small", "flickr8k"), ("own-photos", "flickr8k"), ("paper-clips", "flickr8k")],
)
def test_recipes_are_those_of_the_data_s_name(name: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that have no recipes for a study, such as `own`, are not taken."""
    monkeypatch.setattr("tellapart.studies.run.open_dataset", lambda settings: Dataset(name, Path(), ()))
    assert recipe_family(DataSettings(source="anything")) == family
