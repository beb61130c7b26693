"""SigLIP's texts: what its tokenizer does, rebuilt without sentencepiece, cut and padded to all positions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.dual_encoders import config_of, siglip_tokenizer
from support.huggingface import CORPUS, transformers
from tellapart.errors import StoreError
from tellapart.huggingface.siglip_tokens import siglip_tokens
from tellapart.huggingface.tokens import read_tokenizer
from tellapart.text import END, UNKNOWN

# A unigram model's pieces with their log probabilities; the first ones are special, as those of SigLIP.
PIECES = ["<pad>", "</s>", "<unk>", "▁a", "▁red", "▁house", "▁dog", "s", "▁", "h", "o", "u", "e", "d", "r", "re"]
SCORES = [0.0, 0.0, 0.0, -2.0, -3.0, -3.0, -3.0, -4.0, -4.5, -5.0, -5.0, -5.0, -5.0, -5.0, -5.0, -5.5]
SPECIAL = {0: 3, 1: 3, 2: 2}  # control, control, unknown


def write_sentencepiece(folder: Path, kind: int = 1, **settings: Any) -> Path:
    """A folder with a tokenizer as the first SigLIP's."""
    from transformers.convert_slow_tokenizer import import_protobuf

    model: Any = import_protobuf()
    proto = model.ModelProto()
    for number, (piece, score) in enumerate(zip(PIECES, SCORES, strict=True)):
        proto.pieces.add(piece=piece, score=score, type=SPECIAL.get(number, 1))
    proto.trainer_spec.model_type = kind
    proto.trainer_spec.unk_id, proto.trainer_spec.bos_id = 2, -1
    proto.trainer_spec.eos_id, proto.trainer_spec.pad_id = 1, 0
    (folder / "spiece.model").write_bytes(proto.SerializeToString())
    told = {"tokenizer_class": "SiglipTokenizer", "model_input_names": ["input_ids"], **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    config_of("siglip", len(PIECES)).save_pretrained(folder)
    return folder


TEXTS = [
    "a red house",
    "A red, RED house's dogs.",
    "  a\tred \n dog !",
    "",
    "...",
    "hour of zebras",
    "a red house a red house a red house",
    "a▁dog",
]


def test_case_and_punctuation_are_dropped_and_all_positions_filled(tmp_path: Path) -> None:
    tokens = siglip_tokens(write_sentencepiece(tmp_path), size=len(PIECES), positions=8)
    found = {text: tokens.tokenizer.encode(text).tokens for text in TEXTS}
    end = "</s>"
    assert found == {
        "a red house": ["▁a", "▁red", "▁house", *[end] * 5],
        "A red, RED house's dogs.": ["▁a", "▁red", "▁red", "▁house", "s", "▁dog", "s", end],
        "  a\tred \n dog !": ["▁a", "▁red", "▁dog", *[end] * 5],
        "": [end] * 8,
        "...": [end] * 8,
        "hour of zebras": ["▁", "h", "o", "u", "r", "▁", "o", end],
        "a red house a red house a red house": ["▁a", "▁red", "▁house", "▁a", "▁red", "▁house", "▁a", end],
        "a▁dog": ["▁a", "▁dog", *[end] * 6],
    }
    assert tokens.encode("a zed")[-4:] == [UNKNOWN, *(tokens.ids.index(PIECES.index(piece)) for piece in "ed"), END]
    assert tokens.decode(tokens.encode("A red dog!")) == "a red dog"


def test_case_stays_where_the_settings_say_so(tmp_path: Path) -> None:
    tokens = siglip_tokens(write_sentencepiece(tmp_path, do_lower_case=False), size=len(PIECES), positions=6)
    assert tokens.tokenizer.encode("a RED dog").tokens == ["▁a", "▁", "RED", "▁dog", "</s>", "</s>"]
    assert tokens.tokenizer.encode("a RED dog").ids[2] == 2, "unknown"


def test_it_is_what_transformers_has(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip(
        "sentencepiece", reason="transformers reads the first SigLIP's tokenizer with it"
    )
    write_sentencepiece(tmp_path)
    with (tmp_path / "spiece.model").open("wb") as file:  # one that also normalises characters, as SigLIP's does
        ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS * 5), model_writer=file, vocab_size=34, minloglevel=2, **ids
        )
    own = transformers.SiglipTokenizer.from_pretrained(tmp_path)
    tokens = siglip_tokens(tmp_path, size=34, positions=8)
    texts = [*TEXTS, *CORPUS, "ﬁne ｄｏｇｓ\u00a0near ½ Ärger", "\u200b— a…b"]
    asked = own(texts, padding="max_length", truncation=True, max_length=8)["input_ids"]
    assert [tokens.tokenizer.encode(text).ids for text in texts] == asked


@pytest.mark.parametrize("lower", [True, False])
def test_the_second_siglip_reads_lower_case(lower: bool, tmp_path: Path) -> None:
    """Its tokenizer is Gemma's, in which transformers leaves `do_lower_case` without effect."""
    siglip_tokenizer().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "GemmaTokenizer", "padding_side": "right", "do_lower_case": lower}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    config_of("siglip", 100).save_pretrained(tmp_path)
    own = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(own).__name__ == "GemmaTokenizer"
    tokens = siglip_tokens(tmp_path, size=100, positions=12)
    texts = ["A Red house, near a DOG", "", "two blue cars and a dog on the beach near a house"]
    read = [text.lower() if lower else text for text in texts]
    asked = own(read, padding="max_length", truncation=True, max_length=12)["input_ids"]
    assert [tokens.tokenizer.encode(text).ids for text in texts] == asked
    assert {row[-1] for row in asked} == {own.pad_token_id, own.eos_token_id}


def test_tokenizers_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_sentencepiece(tmp_path, kind=2)
    with pytest.raises(StoreError, match=r"spiece\.model: not a unigram model"):
        siglip_tokens(folder, 20, 8)
    (folder / "spiece.model").write_bytes(b"nonsense")
    with pytest.raises(StoreError, match=r"spiece\.model: not a SentencePiece model \(.*\); get the model again"):
        siglip_tokens(folder, 20, 8)
    (folder / "spiece.model").unlink()
    with pytest.raises(StoreError, match=r"spiece\.model is missing, which its tokenizer needs"):
        siglip_tokens(folder, 20, 8)
    write_sentencepiece(folder, pad_token=None)
    with pytest.raises(StoreError, match="its tokenizer has no padding token"):
        siglip_tokens(folder, 20, 8)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GemmaTokenizer"}')
    (folder / "tokenizer.model").write_bytes(b"nonsense")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(StoreError, match=r"its tokenizer cannot be read .* try 'pip install sentencepiece', or get"):
        read_tokenizer(folder)
