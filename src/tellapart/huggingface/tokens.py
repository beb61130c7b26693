"""The tokens of a Hugging Face tokenizer in the row order that everything here relies on, and their model folder."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.errors import DataError, MissingExtraError, StoreError
from tellapart.files import read_json, read_text, write_json, write_text
from tellapart.huggingface.folders import need_transformers, quiet
from tellapart.text import END, PAD, SPECIALS, START, UNKNOWN, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# One of them is there, whatever the kind of tokenizer.
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "sentencepiece.bpe.model")

_APOSTROPHE = re.compile(r"(?<=\w) ' (?=\w)")


class HuggingFaceTokens(Vocabulary):
    """A tokenizer's tokens, with its own pad, start, end and unknown tokens in rows 0 to 3.

    All other tokens follow in their own order. A tokenizer may lack some of the four or use one token for several
    (GPT-2's `<|endoftext|>` is all of them): the end token comes first, then the start token, which may be the same;
    a row that no token is left for is a placeholder that is never said.

    Args:
        tokenizer: splits a sentence into pieces and joins them again.
        size: how many tokens the model has; more than the tokenizer, where the model's number was rounded up.
        start: id of the token that captions begin with.
        end: id of the token that ends them.
        pad: id of the padding token, if there is one.
        unknown: id of the token for what has no piece, if there is one.
        max_words: longer captions are cut to this many *tokens*.

    Attributes:
        ids: the tokenizer's id of each row; that of the start token for placeholders.
        impossible: the rows that are never said.
        max_words: longer captions are cut to this many tokens.

    Example:
        >>> tokens = HuggingFaceTokens(tokenizer, size=5, start=3, end=2, unknown=4)   # doctest: +SKIP
        >>> tokens.encode("a red dog"), tokens.ids                                     # doctest: +SKIP
        ([4, 3, 5, 2], [3, 3, 2, 4, 0, 1])
        >>> tokens.decode([4, 5, 2, 0])                                                # doctest: +SKIP
        'a dog'
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        size: int,
        start: int,
        end: int,
        pad: int | None = None,
        unknown: int | None = None,
        max_words: int = 40,
    ) -> None:
        if tokenizer.get_vocab_size() > size:
            raise StoreError(
                f"the tokenizer has {tokenizer.get_vocab_size()} tokens, the model only {size}; "
                "use the tokenizer the model was trained with"
            )
        self.tokenizer = tokenizer
        self.size = size
        self.max_words = max_words
        pad = None if pad in (start, end) else pad
        unknown = None if unknown in (start, end, pad) else unknown
        special = (pad, start, end, unknown)
        others = [token for token in range(size) if token not in special]
        self.ids = [*(start if token is None else token for token in special), *others]
        self.impossible = [PAD, START] if unknown is not None else [PAD, START, UNKNOWN]
        self.tokens = [*SPECIALS, *(tokenizer.id_to_token(token) or f"<{token}>" for token in others)]
        self._word_pieces = type(tokenizer.decoder).__name__ == "WordPiece"
        self._special = {"pad": pad, "start": start, "end": end, "unknown": unknown}
        self._row_of_id = {token: row for row, token in enumerate(self.ids) if row not in (*self.impossible, END)}

    @classmethod
    def from_pretrained(cls, folder: Path, size: int, start: Any, end: Any) -> HuggingFaceTokens:
        """The tokenizer in a folder of transformers.

        Args:
            folder: where it is.
            size: how many tokens the model has.
            start: id of the token that captions begin with; where the model does not say, that of the tokenizer.
            end: likewise, of the token that ends them.
        """
        found = read_tokenizer(folder)
        start, end = (ids[0] if isinstance(ids, list) else ids for ids in (start, end))
        start = _first(start, found.cls_token_id, found.bos_token_id)
        end = _first(end, found.eos_token_id, found.sep_token_id)
        if start is None or end is None:
            missing = "starts" if start is None else "ends"
            raise StoreError(
                f"{folder}: neither the model nor its tokenizer says which token {missing} a caption; "
                f"set {'decoder_start_token_id' if start is None else 'eos_token_id'} in config.json"
            )
        return cls(found.backend_tokenizer, size, start, end, found.pad_token_id, found.unk_token_id)

    def words(self, sentence: str) -> list[str]:
        """The sentence's pieces, cut to `max_words` of them."""
        return [self.tokens[row] for row in self.encode(sentence)[:-1]]

    def encode(self, sentence: str) -> list[int]:
        """Rows of the sentence's pieces, then the end token."""
        ids = self.tokenizer.encode(sentence.strip(), add_special_tokens=False).ids
        # A caption that spells out the end token, or one that is never said, does not mean it.
        rows = [self._row_of_id[token] for token in ids if token in self._row_of_id]
        return [*rows[: self.max_words], END]

    def decode(self, rows: Iterable[int]) -> str:
        """The sentence of the pieces up to the end token; special tokens are left out."""
        said = []
        for row in rows:
            if row == END:
                break
            if row not in self.impossible:
                said.append(self.ids[row])
        sentence: str = self.tokenizer.decode(said, skip_special_tokens=True)
        # WordPiece splits "dog's" in three and joins them by blanks.
        return _APOSTROPHE.sub("'", sentence).strip() if self._word_pieces else sentence.strip()

    def save(self, path: Path) -> None:
        """Write `path`, and `huggingface/tokenizer.json` beside it."""
        write_text(_tokenizer_file(path), self.tokenizer.to_str(pretty=True))
        write_json(path, {"size": self.size, "max_words": self.max_words, **self._special})

    @classmethod
    def load(cls, path: Path) -> HuggingFaceTokens:
        stored = read_json(path, "vocabulary")
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtraError("tokenizers", "hf") from None
        text = read_text(_tokenizer_file(path), "tokenizer")
        try:
            return cls(Tokenizer.from_str(text), **stored)
        except TypeError:
            raise DataError(f"{path}: not a vocabulary of a Hugging Face captioner; save the model again") from None
        except Exception as error:  # tokenizers raises nothing narrower
            if type(error) is not Exception:
                raise
            raise DataError(f"{_tokenizer_file(path)}: not a tokenizer ({error}); save the model again") from None


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer in a folder of transformers, as transformers has it; `backend_tokenizer` is what it is made of."""
    import transformers

    # Without them transformers makes an empty tokenizer of what the model's configuration says.
    if not any((folder / file).exists() for file in TOKENIZER_FILES):
        raise StoreError(f"{folder}: no tokenizer is here ({', '.join(TOKENIZER_FILES)}); get it with the model")
    try:
        with quiet():
            found: Any = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        if not hasattr(found, "backend_tokenizer"):
            raise TypeError(f"{type(found).__name__} is not made of 'tokenizers'")
    except Exception as error:  # transformers raises many kinds for files that are not what they should be
        reason = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        # transformers does not always say that this is what it lacks.
        lacking = any(folder.glob("*.model")) and importlib.util.find_spec("sentencepiece") is None
        advice = "try 'pip install sentencepiece', or get" if lacking else "get"
        raise StoreError(f"{folder}: its tokenizer cannot be read ({reason}); {advice} the model again") from None
    return found


def _first(*ids: int | None) -> int | None:
    return next((one for one in ids if one is not None), None)


def _tokenizer_file(path: Path) -> Path:
    return path.parent / "huggingface" / "tokenizer.json"


def write_config(config: Any, folder: Path) -> None:
    """Put a model's configuration into its model folder, where `read_parts` finds it."""
    config.to_json_file(folder / "huggingface" / "config.json", use_diff=False)


def read_parts(folder: Path) -> tuple[HuggingFaceTokens, Any]:
    """The tokens and the configuration in the model folder of a captioner or retriever from Hugging Face."""
    need_transformers()
    import transformers

    vocabulary = HuggingFaceTokens.load(folder / "vocabulary.json")
    if not (folder / "huggingface" / "config.json").exists():
        raise StoreError(f"{folder}: huggingface/config.json is missing; save the model again")
    with quiet():
        return vocabulary, transformers.AutoConfig.from_pretrained(str(folder / "huggingface"), local_files_only=True)
