"""Blocks, commands and tables of README and docs, for the tests that check or run them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- run(?:: (\w+))? -->\n\Z")
INLINE = re.compile(r"(?<!`)`(tellapart [^`]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        place: file and line, for messages.
        language: as written after the fence.
        text: its content, without indentation.
        run: whether a comment before it says `run`; then a test executes it.
        mark: the word after `run:`, for blocks that a test of their own executes.
    """

    place: str
    language: str
    text: str
    run: bool
    mark: str | None


@dataclass(frozen=True)
class Command:
    """A command line of the docs, as words."""

    place: str
    words: tuple[str, ...]


def pages() -> list[Path]:
    """Every page that has commands: those of the root, of docs/ and of the shipped models."""
    return [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "models").rglob("README.md")),
    ]


def blocks(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        indent, language, content = match.groups()
        mark = MARK.search(text[: match.start()])
        lines = [line.removeprefix(indent) for line in content.splitlines()]
        found.append(
            Block(_place(path, text, match.start()), language, "\n".join(lines), mark is not None, mark and mark[1])
        )
    return found


def _place(path: Path, text: str, at: int) -> str:
    return f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, at) + 1}"


def commands(path: Path) -> Iterator[Command]:
    """The command lines in blocks of shell, and `tellapart …` in running text and tables."""
    for block in blocks(path):
        if block.language in ("", "sh", "bash"):
            for line in shell_lines(block.text):
                yield from split(line, block.place)
    text = path.read_text(encoding="utf-8")
    for match in INLINE.finditer(FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)):
        yield from split(match[1].replace("\\|", "|").replace("\n", " "), path.name)


def shell_lines(text: str) -> list[str]:
    """Lines of a block that are commands; a line that ends with a backslash goes on in the next."""
    joined = re.sub(r"\\\n\s*", " ", text)
    return [line for line in joined.splitlines() if re.match(PROGRAMS, line)]


PROGRAMS = r"(tellapart|torchrun|srun|make|pip|git|\.|(\S*/)?python3?|(\S*/)?pip-audit) "


def split(line: str, place: str) -> Iterator[Command]:
    """The commands of a line: those joined by && or |, and those inside `bash -c`."""
    words: list[str] = []
    for word in [*shlex.split(line, comments=True), ";"]:
        if word in ("&&", "|", "&", ";"):
            if words:
                yield Command(place, tuple(words))
            if "bash" in words:
                yield from split(words[-1].replace("$((SLURM_PROCID + 1))", "1"), place)
            words = []
        else:
            words.append(word)


def tellapart_words(command: Command) -> tuple[str, ...] | None:
    """The words after `tellapart` (or `-m tellapart.cli`) of a command, or None if it is another program."""
    for program in ("tellapart", "tellapart.cli"):
        if program in command.words and "bash" not in command.words:
            return command.words[command.words.index(program) + 1 :]
    return None


def table_rows(path: Path, header: str) -> list[list[str]]:
    """Rows of all tables with this header line, as cells."""
    rows, inside = [], False
    for line in path.read_text(encoding="utf-8").splitlines():
        inside = line == header or (inside and line.startswith("|"))
        if inside and line != header and not line.startswith("|---"):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows
