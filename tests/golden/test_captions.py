"""The shipped captioner says what it said when it was shipped, on any CPU."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tellapart.describing import load
from tellapart.files import read_json
from tellapart.models import model_digest
from tellapart.shipped import is_shipped
from tellapart.telling_apart.tell import tell_apart


def load_make() -> ModuleType:
    """The script that writes the golden captions."""
    spec = importlib.util.spec_from_file_location("golden_make", Path(__file__).with_name("make.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def equal_words(one: str, other: str) -> int:
    """Number of words in the longest common subsequence.

    >>> equal_words("a red car on a road", "a car on the road")
    4
    """
    words = other.split()
    row = [0] * (len(words) + 1)
    for word in one.split():
        above = row
        row = [0]
        for place, candidate in enumerate(words):
            row.append(above[place] + 1 if word == candidate else max(above[place + 1], row[place]))
    return row[-1]


@pytest.mark.skipif(not is_shipped("shipped"), reason="no captioner is shipped in models/captioner yet")
def test_the_shipped_captioner_says_what_it_said() -> None:
    pytest.importorskip("skimage")
    make = load_make()
    golden = read_json(make.GOLDEN, "file of golden captions")
    remedy = f"run {Path(sys.executable).name} tests/golden/make.py, and read what it wrote"
    assert golden["model"] == model_digest(Path("shipped")), f"another model is shipped; {remedy}"
    captions = make.shipped_captions()
    assert captions.keys() == golden["captions"].keys()
    words = sum(len(caption.split()) for caption in golden["captions"].values())
    equal = sum(equal_words(captions[name], golden["captions"][name]) for name in captions)
    assert equal >= 0.99 * words, (captions, golden["captions"])


@pytest.mark.skipif(not is_shipped("shipped"), reason="no captioner is shipped in models/captioner yet")
def test_the_readme_shows_what_it_says() -> None:
    root = Path(__file__).parents[2]
    samples = root / "src" / "tellapart" / "samples"
    names = ("photographs/astronaut", "photographs/cat", "alike/coffee-whole", "alike/coffee-close")
    readme = (root / "README.md").read_text(encoding="utf-8")
    for one in load().caption([samples / f"{name}.jpg" for name in names]):
        assert one.caption in readme
    told = {Path(one.id).stem: one.caption for one in tell_apart([samples]).pictures}
    shown = re.findall(r"\*told apart:\*+ ([^|]+) \|", readme)
    assert [caption.replace("*", "") for caption in shown] == [told["coffee-whole"], told["coffee-close"]]
