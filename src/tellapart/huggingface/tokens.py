"""The tokens of a Hugging Face tokenizer as a `Vocabulary`, and their files in a model folder."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tellapart.errors import DataError, MissingExtraError, StoreError, TellapartError
from tellapart.files import read_json, read_text, write_json, write_text
from tellapart.huggingface.folders import first_line, is_failure, load, load_config, need_transformers
from tellapart.text import END, PAD, SPECIALS, START, UNKNOWN, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# A model with more tokens than this is damaged.
MOST_TOKENS = 10_000_000
# Every tokenizer has one of these files.
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "sentencepiece.bpe.model")

_APOSTROPHE = re.compile(r"(?<=\w) ' (?=\w)")


class HuggingFaceTokens(Vocabulary):
    """The tokens of a tokenizer, with its pad, start, end and unknown tokens in rows 0 to 3.

    All other tokens follow in their order. A tokenizer may lack some of the four, or use one token for several (GPT-2's
    `<|endoftext|>` is all of them). Then the end token comes first, then the start token, which may be the same. A row
    without a token is a placeholder, which is never written.

    Args:
        tokenizer: splits a sentence into pieces and joins them.
        size: number of tokens of the model; it may be rounded up and exceed that of the tokenizer.
        start: id of the token that starts a caption.
        end: id of the token that ends a caption.
        pad: id of the padding token, if there is one.
        unknown: id of the token for unknown text, if there is one.
        max_words: maximum number of *tokens*; longer captions are cut.

    Attributes:
        ids: the tokenizer's id of each row; that of the start token for placeholders.
        impossible: rows that are never written.
        max_words: maximum number of tokens.

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
        if size > MOST_TOKENS:
            raise StoreError(f"the model has {size} tokens, more than {MOST_TOKENS}; check vocab_size in config.json")
        for token in (start, end, pad, unknown):
            if token is not None and not (isinstance(token, int) and 0 <= token < size):
                raise StoreError(
                    f"the token id {token!r} is not one of the model's {size} tokens; "
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
        """From a folder of transformers.

        Args:
            folder: where the tokenizer is.
            size: number of tokens of the model.
            start: id of the token that starts a caption; `None` for that of the tokenizer.
            end: id of the token that ends a caption; `None` for that of the tokenizer.
        """
        found = read_tokenizer(folder)
        start, end = (ids[0] if isinstance(ids, list) and ids else ids for ids in (start, end))
        start = first_known(start, found.cls_token_id, found.bos_token_id)
        end = first_known(end, found.eos_token_id, found.sep_token_id)
        if start is None or end is None:
            missing = "starts" if start is None else "ends"
            raise StoreError(
                f"{folder}: neither the model nor its tokenizer says which token {missing} a caption; "
                f"set {'decoder_start_token_id' if start is None else 'eos_token_id'} in config.json"
            )
        return cls(found.backend_tokenizer, size, start, end, found.pad_token_id, found.unk_token_id)

    def words(self, sentence: str) -> list[str]:
        """The pieces of a sentence, at most `max_words`."""
        return [self.tokens[row] for row in self.encode(sentence)[:-1]]

    def encode(self, sentence: str) -> list[int]:
        """Rows of the pieces of a sentence, then the end token."""
        ids = self.tokenizer.encode(sentence.strip(), add_special_tokens=False).ids
        # Special tokens in the text of a caption are dropped.
        rows = [self._row_of_id[token] for token in ids if token in self._row_of_id]
        return [*rows[: self.max_words], END]

    def decode(self, rows: Iterable[int]) -> str:
        """Join the pieces up to the end token, without special tokens."""
        said = []
        for row in rows:
            if row == END:
                break
            if row not in self.impossible:
                said.append(self.ids[row])
        sentence: str = self.tokenizer.decode(said, skip_special_tokens=True)
        # WordPiece splits "dog's" into three pieces and joins them with spaces.
        return _APOSTROPHE.sub("'", sentence).strip() if self._word_pieces else sentence.strip()

    def save(self, path: Path) -> None:
        """Write `path`, and `huggingface/tokenizer.json` beside it."""
        write_text(_tokenizer_file(path), self.tokenizer.to_str(pretty=True))
        write_json(path, {"size": self.size, "max_words": self.max_words, **self._special})

    @classmethod
    def load(cls, path: Path) -> HuggingFaceTokens:
        stored = read_json(path, "vocabulary")
        if not isinstance(stored, dict) or not all(value is None or type(value) is int for value in stored.values()):
            raise DataError(f"{path}: not a vocabulary of a Hugging Face model; save the model again")
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtraError("tokenizers", "hf") from None
        text = read_text(_tokenizer_file(path), "tokenizer")
        try:
            return cls(Tokenizer.from_str(text), **stored)
        except TypeError:
            raise DataError(f"{path}: not a vocabulary of a Hugging Face model; save the model again") from None
        except StoreError as error:
            raise DataError(f"{path}: {error}") from None
        except BaseException as error:
            if not is_failure(error):
                raise
            reason = first_line(error)
            raise DataError(f"{_tokenizer_file(path)}: not a tokenizer ({reason}); save the model again") from None


def read_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a folder with transformers; its `backend_tokenizer` is that of `tokenizers`.

    Only the `backend_tokenizer` is used. Chat templates in the folder are never rendered.
    """
    import transformers

    # Without any of these files, transformers would make an empty tokenizer.
    if not any((folder / file).exists() for file in TOKENIZER_FILES):
        raise StoreError(f"{folder}: no tokenizer is here ({', '.join(TOKENIZER_FILES)}); get it with the model")
    try:
        found = load(transformers.AutoTokenizer, folder)
        if not hasattr(found, "backend_tokenizer"):
            raise TypeError(f"{type(found).__name__} is not based on 'tokenizers'")
    except TellapartError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        reason = first_line(error)
        # transformers does not always say that sentencepiece is missing.
        lacking = any(folder.glob("*.model")) and importlib.util.find_spec("sentencepiece") is None
        advice = "try 'pip install sentencepiece', or get" if lacking else "get"
        raise StoreError(f"{folder}: its tokenizer cannot be read ({reason}); {advice} the model again") from None
    return found


def first_known(*ids: int | None) -> int | None:
    """The first id that is not `None`."""
    return next((one for one in ids if one is not None), None)


def _tokenizer_file(path: Path) -> Path:
    return path.parent / "huggingface" / "tokenizer.json"


def write_config(config: Any, folder: Path) -> None:
    """Write a model's configuration into its model folder."""
    config.to_json_file(folder / "huggingface" / "config.json", use_diff=False)


def read_parts(folder: Path) -> tuple[HuggingFaceTokens, Any]:
    """Read the tokens and the configuration from the model folder of a Hugging Face model."""
    need_transformers()
    if not (folder / "huggingface" / "config.json").exists():
        raise StoreError(f"{folder}: huggingface/config.json is missing; save the model again")
    config = load_config(folder / "huggingface")
    return HuggingFaceTokens.load(folder / "vocabulary.json"), config
