"""The file of answers: the trial on its first line, then one line for each answer, flushed before it is confirmed.

A changed answer is a further line; the last one of a rater, picture and question counts. So two tabs of one rater never
count twice. A process that is killed can leave at most an unfinished last line, of an answer that was not confirmed; it
is removed when the file is opened again.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from tellapart.errors import DataError
from tellapart.files import Stored, check_json, check_output, lock, parse_json, read_text
from tellapart.judging.trial import FORMAT, QUESTIONS, Choice, Trial, rater_key

# Key of the first line; no other file of tellapart has it.
MARK = "judge"

T = TypeVar("T")

# (rater's key, id of the picture, question) -> what was chosen.
Latest: TypeAlias = dict[tuple[str, str, str], Choice]


class _Header(Stored):
    """The first line."""

    judge: Trial


class Answer(Stored):
    """One answer: a rater, a picture, a question, and what was chosen as it stood on the page."""

    rater: str
    item: str
    question: str
    choice: Choice
    time: str


class Answers:
    """An open file of answers; only one process may write it. Use `with`.

    Args:
        path: the file; if it is new or empty, it begins with the trial.
        trial: what is judged. If the file exists, it must be made from the same.

    Example:
        >>> with Answers(Path("answers.jsonl"), trial) as answers:                        # doctest: +SKIP
        ...     answers.put("Anna", "dog.jpg", "fluency", "left")
    """

    def __init__(self, path: Path, trial: Trial) -> None:
        self.path = path
        self._held = ExitStack()
        self._turn = threading.Lock()
        if not self._held.enter_context(lock(path, wait=False)):
            self._held.close()
            raise DataError(f"{path}: another 'tellapart judge' writes this file; stop it, or choose another --out")
        try:
            mend(path)
            if path.stat().st_size == 0:
                self._handle = self._open()
                self._append({MARK: trial.model_dump(mode="json")})
            else:
                self._handle = self._open()
            self.trial, rows = read_answers(path)
            if self.trial.made_from != trial.made_from:
                raise DataError(f"{path}: has answers about other captions; choose another --out")
            self._latest = latest_answers(rows)
            self._names = {rater_key(row.rater): row.rater for row in rows}
        except BaseException:
            self._held.close()
            raise

    def _open(self) -> int:
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        self._held.callback(os.close, handle)
        return handle

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others write the file."""
        self._held.close()

    def put(self, rater: str, item: str, question: str, choice: Choice) -> None:
        """Store an answer. When this returns, it is on the disk; the same answer again is not written twice."""
        key = (rater_key(rater), item, question)
        with self._turn:
            if self._latest.get(key) == choice:
                return
            # A rater keeps the spelling of the first answer.
            name = self._names.setdefault(key[0], rater)
            row = Answer(rater=name, item=item, question=question, choice=choice, time=_now())
            self._append(row.model_dump(mode="json"))
            self._latest[key] = choice

    def of(self, rater: str) -> dict[str, dict[str, Choice]]:
        """The answers of a rater that count: id of the picture -> question -> choice."""
        found: dict[str, dict[str, Choice]] = {}
        with self._turn:
            for (who, item, question), choice in self._latest.items():
                if who == rater_key(rater):
                    found.setdefault(item, {})[question] = choice
        return found

    def _append(self, row: dict[str, Any]) -> None:
        """Write a line and flush it; if that fails, the file is as it was before."""
        line = (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8")
        size = os.fstat(self._handle).st_size
        try:
            left = memoryview(line)
            while left:
                left = left[os.write(self._handle, left) :]
            os.fsync(self._handle)
        except OSError:
            os.ftruncate(self._handle, size)
            raise


def existing_trial(path: Path, inputs: list[Path]) -> Trial | None:
    """The trial of a file of answers; `None` if it is new. It is an error if answers cannot be written to the file."""
    if path.is_file():
        begun = path.read_bytes()
        if begun and b"\n" not in begun and begun.startswith(f'{{"{MARK}": '.encode()):
            return None  # killed while it wrote the first line
    check_output(path, MARK, inputs=inputs)
    return read_answers(path)[0] if path.exists() and path.stat().st_size else None


def mend(path: Path) -> None:
    """Remove an unfinished last line, which a killed process left; tell it."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole == len(data):
        return
    with open(path, "r+b") as handle:
        if _is_row(data[whole:]):  # complete, but saved by an editor without an end of line
            handle.seek(0, os.SEEK_END)
            handle.write(b"\n")
        else:
            print(f"{path}: removed an unfinished last line; the answer was not confirmed", file=sys.stderr)
            handle.truncate(whole)
        handle.flush()
        os.fsync(handle.fileno())


def read_answers(path: Path) -> tuple[Trial, list[Answer]]:
    """The trial and all answers of a file, in order; an unfinished last line is ignored."""
    lines = read_text(path, "file of answers").split("\n")
    if lines[-1] and not _is_row(lines[-1].encode("utf-8")):
        lines.pop()
    if not lines or not _is_row(lines[0].encode("utf-8")) or MARK not in parse_json(lines[0]):
        raise DataError(f"{path}: is not a file of answers; give the file that 'tellapart judge --out' wrote")
    trial = _checked(_Header, path, 1, lines[0]).judge
    if trial.format != FORMAT:
        raise DataError(f"{path}: answers of format {trial.format} are unknown; this version reads {FORMAT}")
    known = {item.id for item in trial.items}
    answers = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        answer = _checked(Answer, path, number, line)
        if answer.item not in known or answer.question not in QUESTIONS:
            raise DataError(f"{path}: line {number} is about something that was not asked; remove the line")
        answers.append(answer)
    return trial, answers


def latest_answers(rows: list[Answer]) -> Latest:
    """The answers that count: the last one of each rater, picture and question."""
    return {(rater_key(row.rater), row.item, row.question): row.choice for row in rows}


def _checked(schema: type[T], path: Path, number: int, line: str) -> T:
    return check_json(
        line, schema, f"{path}: line {number} is damaged", "restore the file, or remove the line", DataError
    )


def _is_row(line: bytes) -> bool:
    try:
        return isinstance(parse_json(line.decode("utf-8")), dict)
    except ValueError:
        return False


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
