"""The file of answers: nothing that was confirmed is lost, nothing counts twice."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tellapart.errors import DataError
from tellapart.judging.answers import Answers, existing_trial, latest_answers, read_answers
from tellapart.judging.trial import Choice, Trial

CHANGES: tuple[Choice, ...] = ("left", "left", "right", "right", "tie")


def test_answers_are_there_again(tmp_path: Path, trial: Trial) -> None:
    path = tmp_path / "answers.jsonl"
    with Answers(path, trial) as answers:
        answers.put("Anna", "red.jpg", "fluency", "left")
        answers.put("Ben", "red.jpg", "fluency", "tie")
        answers.put("anna", "red.jpg", "relevance", "right")
    with Answers(path, trial) as answers:
        assert answers.trial == trial
        assert answers.of("ANNA") == {"red.jpg": {"fluency": "left", "relevance": "right"}}
        assert answers.of("Ben") == {"red.jpg": {"fluency": "tie"}}
        assert answers.of("Carla") == {}
    assert {row.rater for row in read_answers(path)[1]} == {"Anna", "Ben"}


def test_the_last_answer_counts_and_the_same_one_is_not_written_twice(tmp_path: Path, trial: Trial) -> None:
    path = tmp_path / "answers.jsonl"
    with Answers(path, trial) as answers:
        for choice in CHANGES:
            answers.put("Anna", "red.jpg", "fluency", choice)
        assert answers.of("Anna") == {"red.jpg": {"fluency": "tie"}}
    rows = read_answers(path)[1]
    assert [row.choice for row in rows] == ["left", "right", "tie"]
    assert latest_answers(rows) == {("anna", "red.jpg", "fluency"): "tie"}


def test_an_answer_does_not_say_whose_caption_was_chosen(tmp_path: Path, trial: Trial) -> None:
    path = tmp_path / "answers.jsonl"
    with Answers(path, trial) as answers:
        answers.put("Anna", "red.jpg", "fluency", "left")
    row = path.read_text().splitlines()[1]
    assert not any(name in row for name in ("plain", "special", '"a"', '"b"'))


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_torn_last_line_is_removed(
    tmp_path: Path, trial: Trial, cut: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "answers.jsonl"
    with Answers(path, trial) as answers:
        answers.put("Anna", "red.jpg", "fluency", "left")
        whole = path.read_bytes()
        answers.put("Anna", "red.jpg", "relevance", "right")
    path.write_bytes(path.read_bytes()[: len(whole) + cut])
    assert len(read_answers(path)[1]) == 1  # a report may read it meanwhile
    with Answers(path, trial) as answers:
        assert path.read_bytes() == whole
        answers.put("Anna", "red.jpg", "relevance", "tie")
    assert [row.choice for row in read_answers(path)[1]] == ["left", "tie"]
    assert "unfinished last line" in capsys.readouterr().err


def test_a_complete_row_without_an_end_of_line_is_kept(tmp_path: Path, trial: Trial) -> None:
    path = tmp_path / "answers.jsonl"
    with Answers(path, trial) as answers:
        answers.put("Anna", "red.jpg", "fluency", "left")
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    with Answers(path, trial) as answers:
        answers.put("Ben", "red.jpg", "fluency", "left")
    assert len(read_answers(path)[1]) == 2


def test_a_torn_first_line_begins_anew(tmp_path: Path, trial: Trial) -> None:
    path = tmp_path / "answers.jsonl"
    Answers(path, trial).close()
    path.write_bytes(path.read_bytes()[:100])
    assert existing_trial(path, []) is None
    with Answers(path, trial) as answers:
        answers.put("Anna", "red.jpg", "fluency", "left")
    assert existing_trial(path, []) == trial


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "answers.jsonl"
    with Answers(path, trial) as answers:
        answers.put("Anna", "red.jpg", "fluency", "left")
        whole, write = path.read_bytes(), os.write

        def half(handle: int, data: bytes) -> int:
            write(handle, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space"):
            answers.put("Anna", "red.jpg", "fluency", "right")
        monkeypatch.undo()
        assert path.read_bytes() == whole
        assert answers.of("Anna") == {"red.jpg": {"fluency": "left"}}


def test_only_one_process_may_write(tmp_path: Path, trial: Trial) -> None:
    path = tmp_path / "answers.jsonl"
    with Answers(path, trial), pytest.raises(DataError, match="another 'tellapart judge'"):
        Answers(path, trial)
    Answers(path, trial).close()  # free again


def test_files_of_others_stay_as_they_are(tmp_path: Path, trial: Trial) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"id": "1", "caption": "a dog"}\n')
    with pytest.raises(DataError, match="not written by tellapart"):
        existing_trial(path, [])
    with pytest.raises(DataError, match="not a file of answers"):
        read_answers(path)
    answers = tmp_path / "answers.jsonl"
    Answers(answers, trial).close()
    with pytest.raises(DataError, match="other captions"):
        Answers(answers, trial.model_copy(update={"made_from": "other"}))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is damaged"),
        ('{"rater": "Anna"}', "line 2 is damaged"),
        ('{"rater": "A", "item": "?", "question": "fluency", "choice": "tie", "time": ""}', "not asked"),
        ('{"rater": "A", "item": "red.jpg", "question": "taste", "choice": "tie", "time": ""}', "not asked"),
        ('{"rater": "A", "item": "red.jpg", "question": "fluency", "choice": "a", "time": ""}', "line 2 is damaged"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, trial: Trial, line: str, message: str) -> None:
    path = tmp_path / "answers.jsonl"
    Answers(path, trial).close()
    with open(path, "a") as handle:
        handle.write(f"{line}\n\n")
    with pytest.raises(DataError, match=message):
        read_answers(path)
