"""The layer diagram of docs/architecture.md, drawn from the imports as they are: python tests/support/layers.py"""

from __future__ import annotations

import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]


def layers() -> list[list[str]]:
    """The layers of the linter's contract, from the top; packages on one layer do not import each other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    rows = project["tool"]["importlinter"]["contracts"][0]["layers"]
    return [[name.strip().removeprefix("tellapart.") for name in row.split("|")] for row in rows]


def diagram() -> str:
    """Each package or module with those that it imports directly, as a block of text."""
    graph = grimp.build_graph("tellapart")
    order = [name for row in layers() for name in row]
    imported: dict[str, set[str]] = {name: set() for name in order}
    for module in graph.modules:
        own = module.split(".")[1] if "." in module else ""
        if own in imported:
            targets = graph.find_modules_directly_imported_by(module)
            imported[own] |= {target.split(".")[1] for target in targets if "." in target} - {own}
    lines = []
    for row in layers():
        for name in row:
            below = [other for other in order if other in imported[name]]
            lines.append(f"{name:12} -> {', '.join(below)}" if below else name)
    return "\n".join(lines)


if __name__ == "__main__":
    print(diagram())
