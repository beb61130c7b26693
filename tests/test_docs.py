"""The documentation as a whole: the site builds, nothing is left out of it, and what pages name exists."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import torch
import yaml

pytest.importorskip("grimp", reason="comes with import-linter, a dev dependency")

import tellapart
from support import house, tiny
from support.docs import ROOT, blocks, pages, table_rows
from support.notebook import read_notebook, run_cells
from tellapart import registry
from tellapart.data.batches import BatchSource
from tellapart.objectives.base import Progress, Roles
from tellapart.recipe import Recipe
from tellapart.text import PAD, START

DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def entries(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [entry for part in (nav.values() if isinstance(nav, dict) else nav) for entry in entries(part)]


# --- the site ---------------------------------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation_once() -> None:
    made = {"index.md", "contributing.md", "changes.md", "security.md", "shipped-captioner.md", "shipped-retriever.md"}
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} | made | {"tour.md"}
    drawn = {name for name in there if name.startswith("results/")}  # added by docs/site.py
    assert sorted(entries(CONFIG["nav"])) == sorted(there - drawn)


class Loaded(HTMLParser):
    """What a browser loads for a page (scripts, styles, pictures, frames), and the links that one may follow."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed"):
            self.found += [given.get("src", ""), given.get("srcset", "")]
        if tag == "link" and given.get("rel") != "canonical":
            self.found.append(given.get("href", ""))
        if tag == "a":
            self.links.append(given.get("href", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocstrings", reason="mkdocs-material and mkdocstrings-python are in the extra dev")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds_without_warnings(site: Path) -> None:
    built = {path.stem for path in site.rglob("*.html")}
    assert {Path(entry).stem for entry in entries(CONFIG["nav"])} <= built


def loaded(page: Path) -> Loaded:
    parser = Loaded()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def test_links_and_pictures_are_there(site: Path) -> None:
    for page in site.rglob("*.html"):
        found = loaded(page)
        for target in (*found.found, *found.links):
            name = unquote(target.partition("#")[0].partition("?")[0])
            if name and page.name != "404.html" and not re.match(r"(\w+:|//)", name):
                assert (page.parent / name).exists(), f"{page.name}: {target}"


def test_lists_and_tables_are_understood(site: Path) -> None:
    """GitHub takes more Markdown than the site does: no list item, table or fence is left as text."""
    for page in site.rglob("*.html"):
        text = re.sub(r"<(pre|script|code)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for paragraph in re.findall(r"<(?:p|li)>((?:(?!</?(?:p|li)\b).)*)", text, re.DOTALL):
            assert not re.search(r"\n\s*(- |\| |\d\. )|```|\|---", paragraph), f"{page.name}: {paragraph[:200]}"


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        found = loaded(page).found
        assert found
        assert not [one for one in found if re.match(r"(https?:)?//", one)], page
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert not re.search(r"(url\(|@import\s*)[\"']?(https?:)?//", text), style


# --- what pages name --------------------------------------------------------------------------------------------------

# The pages under Methods in the site, and one of the how-to pages, which has equations too.
NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("- Methods:")[2].partition("- Reference:")[0]
METHODS = [*(name for name in re.findall(r"([\w-]+)\.md", NAV) if name != "methods"), "tell-apart"]


def defined(path: Path) -> set[str]:
    """Functions and classes of a file, and `Class.method`."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


@pytest.mark.parametrize("name", METHODS)
def test_the_code_of_each_equation_exists(name: str) -> None:
    rows = table_rows(DOCS / f"{name}.md", "| equation | code | file |")
    assert rows, "a page of a method says where its equations are in the code"
    for _, code, file in rows:
        path = ROOT / "src" / "tellapart" / file.strip("`")
        assert path.is_file(), file
        assert code.strip("`") in defined(path), f"{file} has no {code}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_named_on_a_page_exist(page: Path) -> None:
    """Benchmarks, tests and modules; whether links lead anywhere is checked when the site is built."""
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:benchmarks|tests|src)/[\w/.-]+\.py)`", text):
        assert (ROOT / name).is_file(), name
    packages = "|".join(path.name for path in (ROOT / "src" / "tellapart").iterdir() if path.is_dir())
    for name in re.findall(rf"`((?:{packages})/[\w/]+\.py)`", text):
        assert (ROOT / "src" / "tellapart" / name).is_file() or "NAME" in name or name in EXAMPLES, name


def test_what_the_readme_claims_is_on_the_results_page() -> None:
    """Three measured numbers, each with its figures in docs/results.md."""
    results = (DOCS / "results.md").read_text(encoding="utf-8")
    rows = table_rows(ROOT / "README.md", "| measured | |")
    assert len(rows) == 3
    for claim, _ in rows:
        figures = re.findall(r"\d[\d.]*", claim)
        assert figures
        for figure in figures:
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.]*\d)", results), f"{claim}: {figure}"


# Files that a page tells to write.
EXAMPLES = ("objectives/margin.py",)


@pytest.mark.parametrize(("page", "package"), [("api.md", tellapart), ("api-metrics.md", tellapart.metrics)])
def test_the_api_pages_have_every_public_name(page: str, package: Any) -> None:
    listed = re.findall(r"^::: ([\w.]+)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    names = [place.rpartition(".")[2] for place in listed]
    assert sorted(names) == sorted(set(package.__all__) - {"__version__"})
    for place in listed:
        module, _, name = place.rpartition(".")
        assert getattr(importlib.import_module(module), name) is getattr(package, name)


@pytest.mark.parametrize("scheme", house.COLOURS)
def test_the_map_is_drawn_from_the_layers(scheme: str) -> None:
    stored = house.path_of(scheme).read_text(encoding="utf-8")
    assert stored == house.draw(scheme), "run: PYTHONPATH=tests python tests/support/house.py"


def test_every_box_of_the_map_is_described() -> None:
    names = [name for _, names in house.floors() for name in names]
    assert set(names) <= set(house.WORDS), "describe new packages in tests/support/house.py"


# --- the notebook -----------------------------------------------------------------------------------------------------


def test_the_notebook_runs_and_shows_its_outputs() -> None:
    """Numbers may differ in their last digits on another machine, so they are compared without digits."""
    notebook = read_notebook()
    stored = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    found = run_cells(notebook)
    assert [_texts(outputs) for outputs in found] == [_texts(outputs) for outputs in stored]


def _texts(outputs: list[dict[str, Any]]) -> list[str]:
    texts = ["".join(one.get("text", [])) or " ".join(one["data"]) for one in outputs]
    return [re.sub(r"[\d.]+", "#", text) for text in texts]


# --- the classes that pages tell to write -----------------------------------------------------------------------------


@pytest.fixture
def written(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type:
    """The class of the page, written to a file and registered as the page says; its recipe loads."""
    kind = request.param
    page = blocks(DOCS / f"add-a{'n' if kind == 'objective' else ''}-{kind}.md")
    (code,) = (block.text for block in page if block.mark == kind)
    recipe = next(block.text for block in page if block.language == "yaml" and "extends" in block.text)
    registering = next(block.text for block in page if "registry.TABLE" in block.text)
    (place,) = re.findall(r'= "(\w+:\w+)"', registering)
    name = yaml.safe_load(recipe)[kind]["name"]
    (tmp_path / f"{place.partition(':')[0]}.py").write_text(code, encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(registry.TABLE[kind], name, place)
    assert Recipe.load(tmp_path / "recipe.yaml", budget="smoke").component(kind)[0].name == name
    found: type = registry.find(kind, name)
    return found


@pytest.mark.parametrize("written", ["objective"], indirect=True)
def test_the_objective_of_the_page_is_its_equation(written: Any) -> None:
    objective = written(written.Settings(margin=2.0, negatives=2), Roles(tiny.make_captioner()))
    batch = BatchSource(*tiny.make_data(), "train", 4, negatives=2).at(0)
    total = objective(batch, Progress(0, 1))["loss"]
    total.sum.backward()
    assert total.count > 0
    loss = sys.modules[written.__module__].margin_loss
    true, other = torch.tensor([-3.0, -9.0]), torch.tensor([[-4.0, -9.0], [-2.0, -30.0]])
    expected = [(max(0, 2 - 1) + max(0, 2 - 6)) / 2, (max(0, 2 + 7) + max(0, 2 - 21)) / 2]
    torch.testing.assert_close(loss(true, other, 2.0), torch.tensor(expected))


@pytest.mark.parametrize("written", ["captioner"], indirect=True)
def test_the_captioner_of_the_page_steps_as_it_is_forced(written: Any, features: torch.Tensor) -> None:
    captioner = written(written.Settings(hidden=8), tiny.Vocabulary(tiny.WORDS), tiny.IDENTITY).eval()
    tokens = captioner.tokenize(["a red house", "two", ""])
    rows = torch.tensor([0, 2, 1])
    memory = captioner.encode(features)
    forced = captioner.log_prob(memory, tokens, rows, per_token=True)
    state, token, stepped = captioner.start(memory, rows), torch.full((3,), START), torch.zeros_like(forced)
    for place in range(tokens.shape[1]):
        log_probs, state = captioner.step(state, token)
        token = tokens[:, place]
        stepped[:, place] = log_probs.gather(1, token[:, None]).squeeze(1).masked_fill(token == PAD, 0)
    torch.testing.assert_close(stepped, forced)
    assert captioner.traces(memory, tokens, rows).hidden.shape == (3, tokens.shape[1], 8)


@pytest.mark.parametrize("written", ["retriever"], indirect=True)
def test_the_retriever_of_the_page_is_independent_of_padding(written: Any, features: torch.Tensor) -> None:
    retriever = written(written.Settings(words=5, embedding=6), tiny.Vocabulary(tiny.WORDS), tiny.IDENTITY).eval()
    images, captions = retriever.embed_images(features), ["a red house near a tree", "two", ""]
    together = retriever.similarity(images, retriever.embed_texts(captions))
    alone = [retriever.similarity(images, retriever.embed_texts([caption])) for caption in captions]
    torch.testing.assert_close(together, torch.cat(alone, dim=1))
    retriever.bind(tiny.Vocabulary(tiny.WORDS)).embed_word_weights(torch.rand(1, 3, 8 + 4), torch.tensor([2]))
