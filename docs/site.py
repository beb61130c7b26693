"""Hooks of mkdocs: files of the root and the notebook become pages of the site, and links between them stay right."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]

# Files outside docs/, and the pages they become. README.md is the home page: nothing is written twice.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "security.md",
    "models/captioner/README.md": "shipped-captioner.md",
    "models/retriever/README.md": "shipped-retriever.md",
    "docs/tour.ipynb": "tour.md",
    "CITATION.cff": "CITATION.cff",
}
NOTEBOOK = ROOT / "docs" / "tour.ipynb"
# A link whose text is the name of a file: on GitHub that says where it leads, on the site a title does.
NAMED_LINK = re.compile(r"\[[\w/.-]+\.md\]\(([\w/.-]+\.md)(#[\w-]*)?\)")
# A target of a link or a picture, in Markdown or HTML.
TARGET = re.compile(r'(\]\(|(?:src|href|srcset)=")([^)"#\s]+)')


def on_config(config: Any) -> Any:
    """The pages of docs/results/, which are drawn from scores, follow results.md in the navigation."""
    drawn = [f"results/{path.name}" for path in sorted((ROOT / "docs" / "results").glob("*.md"))]
    for entry in config["nav"]:
        if "Results" in entry:
            entry["Results"] = ["results.md", *drawn]
    return config


def on_files(files: Files, config: Any) -> Files:
    for name, page in PAGES.items():
        source = ROOT / name
        if source == NOTEBOOK:
            text = notebook_page(source)  # its link to itself is a download
        else:
            text = with_links(source.read_text(encoding="utf-8"), Path(name).parent)
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Pages of docs/ may link to files of the root, as they do on GitHub."""
    folder = Path("docs", page.file.src_uri).parent
    return with_wide_lists(markdown if page.file.generated_by else with_links(markdown, folder))


def with_wide_lists(text: str) -> str:
    """Lists as Python-Markdown needs them, where GitHub needs less.

    What belongs to an item is indented by four spaces, and a blank line follows an item of several blocks.
    """
    lines: list[str] = []
    item, blocks, fence = 0, False, False
    for line in text.splitlines():
        fence ^= line.startswith("```")
        begin = None if fence else re.match(r"(- |\d+\. )", line)
        if begin:
            if blocks and lines[-1]:
                lines.append("")
            item, blocks = len(begin[1]), False
        elif line and not line.startswith(" " * max(item, 1)):
            item = 0
        elif line and item:
            blocks = blocks or not lines[-1]
            line = " " * (4 - item) + line
        lines.append(line)
    return "\n".join(lines)


def with_links(text: str, folder: Path) -> str:
    """A text of this folder with the targets that are pages of the site as the site calls them."""
    text = NAMED_LINK.sub(lambda found: f"[{_title(found[1], folder)}]({found[1]}{found[2] or ''})", text)
    return TARGET.sub(lambda found: found[1] + _target(found[2], folder), text)


def _title(target: str, folder: Path) -> str:
    path = ROOT / folder / target
    headings = re.findall(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE) if path.is_file() else []
    return headings[0] if headings else target


def _target(target: str, folder: Path) -> str:
    """Where a file is on the site, seen from a page of this folder; anything else as it is."""
    path = (ROOT / folder / target).resolve()
    if ":" in target or not path.is_relative_to(ROOT):
        return target
    name = path.relative_to(ROOT).as_posix()
    place = PAGES.get(name) or (name.removeprefix("docs/") if name.startswith("docs/") else None)
    if place is None:
        return target
    return Path(os.path.relpath(place, folder.relative_to("docs") if folder.parts[:1] == ("docs",) else ".")).as_posix()


def notebook_page(path: Path) -> str:
    """A notebook as Markdown: its text, its code and the outputs that are stored in it."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(f"![output](data:image/png;base64,{''.join(data['image/png']).strip()})")
            else:
                text = output.get("text") or data.get("text/plain", "")
                parts.append(f"```{{.text .output}}\n{''.join(text).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"
