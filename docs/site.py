"""Hooks of mkdocs: files of the root and the notebook become pages of the site, and links between them stay right."""

from __future__ import annotations

import json
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
}
NOTEBOOK, TOUR = "docs/tour.ipynb", "tour.md"
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
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=with_links(text, Path(source).parent)))
    text = with_links(notebook_page(ROOT / NOTEBOOK), Path("docs"))
    files.append(File.generated(config, TOUR, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Pages of docs/ may link to files of the root, as they do on GitHub."""
    return markdown if page.file.generated_by else with_links(markdown, Path("docs"))


def with_links(text: str, folder: Path) -> str:
    """A text of this folder with the targets that are pages of the site as the site calls them."""
    text = NAMED_LINK.sub(lambda found: f"[{_title(found[1], folder)}]({found[1]}{found[2] or ''})", text)
    return TARGET.sub(lambda found: found[1] + _target(found[2], folder), text)


def _title(target: str, folder: Path) -> str:
    path = ROOT / folder / target
    headings = re.findall(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE) if path.is_file() else []
    return headings[0] if headings else target


def _target(target: str, folder: Path) -> str:
    if ":" in target or target.startswith("/"):
        return target
    path = (ROOT / folder / target).resolve()
    if not path.is_relative_to(ROOT):
        return target
    name = path.relative_to(ROOT).as_posix()
    if name == NOTEBOOK:
        return TOUR
    return PAGES.get(name) or (name.removeprefix("docs/") if path.exists() else target)


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
