"""Word vectors from files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.tiny import IDENTITY
from tellapart.data.settings import DataSettings
from tellapart.errors import DataError
from tellapart.retrievers.ranking import Ranking, RankingSettings
from tellapart.retrievers.words import read_word_vectors

CAPTIONS = ["a red house", "a tree"]
DATA = DataSettings(source="scenes", min_count=1)
GLOVE = "the 1 2 3\na 0.5 -1 2e-1\n. . . 9 9 9\ntree 4 5 6\n"


def settings(path: Path, **changed: object) -> RankingSettings:
    return RankingSettings(words=3, hidden=2, embedding=2, word_vectors=str(path), **changed)  # type: ignore[arg-type]


def test_words_begin_as_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text(GLOVE, encoding="utf-8")
    torch.manual_seed(0)
    model = Ranking.make(settings(path), CAPTIONS, DATA, IDENTITY)
    assert isinstance(model, Ranking)
    row = dict(zip(model.vocabulary.tokens, model.word.weight, strict=True))
    assert row["a"].tolist() == pytest.approx([0.5, -1, 0.2])
    assert row["tree"].tolist() == [4, 5, 6]
    assert row["red"].abs().sum() > 0, "what the file lacks is learned"
    assert model.word.weight.requires_grad
    assert (model.word_table()[:4] == 0).all()
    model.save_pretrained(tmp_path / "model")
    path.unlink()
    assert torch.equal(Ranking.from_pretrained(tmp_path / "model").word.weight, model.word.weight)  # type: ignore[union-attr, arg-type]


def test_frozen_words_stay_and_unknown_ones_are_zero(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text(GLOVE, encoding="utf-8")
    model = Ranking.make(settings(path, freeze_words=True), CAPTIONS, DATA, IDENTITY)
    assert isinstance(model, Ranking)
    assert not model.word.weight.requires_grad
    known = model.word.weight.abs().sum(dim=1) > 0
    assert [token for token, known_ in zip(model.vocabulary.tokens, known, strict=True) if known_] == ["a", "tree"]


def test_the_first_line_of_a_word2vec_file_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text("2 3\na 1 2 3\ntree 4 5 6 \n", encoding="utf-8")
    assert set(read_word_vectors(tmp_path / "w.txt", {"a", "tree"}, 3)) == {"a", "tree"}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("a 1 2\n", r"glove\.txt: line 1 does not hold 3 numbers; set retriever\.words"),
        ("a 1 2 3\ntree 1 x 3\n", r"line 2 does not hold finite numbers"),
        ("a 1 2 nan\n", r"line 1 does not hold finite numbers"),
        ("a 1 2 3 4\n", r"for any word of the training captions; use another file, or set retriever\.words"),
        ("", r"for any word of the training captions"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "glove.txt").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=told):
        Ranking.make(settings(tmp_path / "glove.txt"), CAPTIONS, DATA, IDENTITY)


def test_no_file(tmp_path: Path) -> None:
    for path, told in ((tmp_path / "none.txt", "does not exist; check retriever.word_vectors"), (tmp_path, "a folder")):
        with pytest.raises(DataError, match=told):
            read_word_vectors(path, {"a"}, 3)
    (tmp_path / "latin.txt").write_bytes(b"\xe9 1 2 3\n")
    with pytest.raises(DataError, match="not UTF-8"):
        read_word_vectors(tmp_path / "latin.txt", {"a"}, 3)
