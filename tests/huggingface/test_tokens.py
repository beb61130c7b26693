"""A tokenizer's tokens in our row order: what goes in comes out, and what cannot be said never is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.huggingface import CORPUS, byte_pairs, word_pieces
from tellapart.errors import DataError, StoreError
from tellapart.huggingface.tokens import HuggingFaceTokens
from tellapart.text import END, PAD, START, UNKNOWN


@pytest.fixture
def pieces(tmp_path: Path) -> HuggingFaceTokens:
    """Of a tokenizer as BERT's, for a model with three tokens more."""
    tokenizer = word_pieces()
    tokenizer.save_pretrained(tmp_path)
    return HuggingFaceTokens.from_pretrained(tmp_path, len(tokenizer) + 3, None, None)


@pytest.fixture
def pairs(tmp_path: Path) -> HuggingFaceTokens:
    """Of a tokenizer as GPT-2's, whose one special token is everything."""
    tokenizer = byte_pairs()
    tokenizer.save_pretrained(tmp_path)
    return HuggingFaceTokens.from_pretrained(tmp_path, len(tokenizer), None, [tokenizer.eos_token_id])


def test_the_four_special_rows(pieces: HuggingFaceTokens, pairs: HuggingFaceTokens) -> None:
    named = {name: word_pieces().convert_tokens_to_ids(f"[{name}]") for name in ("PAD", "CLS", "SEP", "UNK")}
    assert pieces.ids[:4] == list(named.values())
    assert sorted(pieces.ids) == list(range(len(pieces)))
    assert pieces.impossible == [PAD, START]
    end = byte_pairs().eos_token_id
    assert pairs.ids[:4] == [end] * 4
    assert sorted(pairs.ids[4:]) == [token for token in range(pairs.size) if token != end]
    assert pairs.impossible == [PAD, START, UNKNOWN]
    assert len(pairs) == pairs.size + 3


@pytest.mark.parametrize("kind", ["pieces", "pairs"])
def test_sentences_come_back(kind: str, request: pytest.FixtureRequest) -> None:
    tokens: HuggingFaceTokens = request.getfixturevalue(kind)
    for sentence in [*CORPUS, "two balls", ""]:
        rows = tokens.encode(sentence)
        assert rows[-1] == END
        assert not set(rows[:-1]) & {PAD, START, END, UNKNOWN}
        assert tokens.decode([*rows, PAD, 7]) == sentence
        assert tokens.encode(tokens.decode(rows)) == rows
        assert tokens.words(sentence) == [tokens.tokens[row] for row in rows[:-1]]


def test_a_tokenizers_own_rule(pieces: HuggingFaceTokens, pairs: HuggingFaceTokens) -> None:
    assert pieces.decode(pieces.encode("  A RED House ")) == "a red house"
    assert pairs.decode(pairs.encode("A RED House 🐈")) == "A RED House 🐈"
    assert pieces.encode("a 🐈 dog")[1] == UNKNOWN
    assert pieces.decode(pieces.encode("the dog's ball")) == "the dog's ball"


def test_special_tokens_in_text_are_dropped(pieces: HuggingFaceTokens, pairs: HuggingFaceTokens) -> None:
    assert pieces.encode("a [SEP] dog [PAD] [CLS]") == pieces.encode("a dog")
    assert pairs.encode("a<|endoftext|> dog") == pairs.encode("a dog")
    assert pieces.decode([START, PAD, *pieces.encode("a dog")]) == "a dog"


def test_long_captions_are_cut(pairs: HuggingFaceTokens) -> None:
    pairs.max_words = 20
    rows = pairs.encode("a red house " * 20)
    assert len(rows) == 21
    assert rows[-1] == END


def test_save_and_load(pieces: HuggingFaceTokens, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "vocabulary.json"
    pieces.save(path)
    loaded = HuggingFaceTokens.load(path)
    assert (loaded.ids, loaded.tokens, loaded.max_words) == (pieces.ids, pieces.tokens, pieces.max_words)
    assert [loaded.encode(sentence) for sentence in CORPUS] == [pieces.encode(sentence) for sentence in CORPUS]
    tokenizer = tmp_path / "model" / "huggingface" / "tokenizer.json"
    tokenizer.write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer\.json: not a tokenizer"):
        HuggingFaceTokens.load(path)
    tokenizer.unlink()
    with pytest.raises(DataError, match=r"tokenizer\.json: this tokenizer does not exist"):
        HuggingFaceTokens.load(path)
    pieces.save(path)
    stored = json.loads(path.read_text())
    for wrong in ('{"words": []}', '{"words": 3}', "[]", json.dumps({**stored, "max_words": "9"})):
        path.write_text(wrong)
        with pytest.raises(DataError, match="not a vocabulary of a Hugging Face model"):
            HuggingFaceTokens.load(path)
    path.write_text(json.dumps({**stored, "end": stored["size"]}))
    with pytest.raises(DataError, match=r"vocabulary\.json: the token id \d+ is not one of the model's \d+ tokens"):
        HuggingFaceTokens.load(path)
    path.write_text(json.dumps({**stored, "size": 10**12}))
    with pytest.raises(DataError, match=r"vocabulary\.json: the model has 10{12} tokens, more than 10000000"):
        HuggingFaceTokens.load(path)


def test_a_tokenizer_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no tokenizer is here \(tokenizer\.json"):
        HuggingFaceTokens.from_pretrained(tmp_path, 10, 0, 1)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(StoreError, match="its tokenizer cannot be read"):
        HuggingFaceTokens.from_pretrained(tmp_path, 10, 0, 1)
    tokenizer = word_pieces()
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(StoreError, match=rf"has {len(tokenizer)} tokens, the model only 10"):
        HuggingFaceTokens.from_pretrained(tmp_path, 10, 0, 1)
    tokenizer.sep_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(StoreError, match="says which token ends a caption; set eos_token_id"):
        HuggingFaceTokens.from_pretrained(tmp_path, len(tokenizer), 0, None)
