"""Base of retrievers with a table of word vectors: reading captions, `bind`, and word vectors from a file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import nn

from tellapart.encoders.base import EncoderIdentity
from tellapart.errors import DataError, RecipeError
from tellapart.retrievers.base import BoundWords, Raw, Retriever
from tellapart.text import PAD, SPECIALS, UNKNOWN, Vocabulary


class WordRetriever(Retriever):
    """Base of retrievers with a table of word vectors.

    A subclass implements `embed_words`; `embed_texts` and `bind` are built on it. An unknown word is a zero vector in
    its place; the end token is not read.

    Args:
        settings, vocabulary, encoder: see `Model`.
        width: width of the word vectors.
        frozen: do not train the word vectors.

    Attributes:
        word: the word vectors, one for each token of the vocabulary.
    """

    def __init__(
        self, settings: BaseModel, vocabulary: Vocabulary, encoder: EncoderIdentity, width: int, frozen: bool = False
    ) -> None:
        super().__init__(settings, vocabulary, encoder)
        self.word = nn.Embedding(len(vocabulary), width)
        # The standard deviation of GloVe vectors.
        nn.init.normal_(self.word.weight, std=0.4)
        self.word.weight.requires_grad_(not frozen)
        known = torch.ones(len(vocabulary), 1)
        known[: len(SPECIALS)] = 0
        self.register_buffer("known", known, persistent=False)
        self.known: torch.Tensor

    @abstractmethod
    def embed_words(self, vectors: torch.Tensor, lengths: torch.Tensor) -> Raw:
        """Raw embeddings of sentences.

        Args:
            vectors: word vectors `[rows, tokens, width]`; values beyond a sentence's length must not matter.
            lengths: number of words in each sentence, `[rows]`; may be 0.
        """

    @classmethod
    def files(cls, settings: BaseModel) -> dict[str, Path]:
        path = getattr(settings, "word_vectors", None)
        return {} if path is None else {"retriever.word_vectors": Path(path)}

    def word_table(self) -> torch.Tensor:
        """Word vectors of the vocabulary, `[vocabulary, width]`; zero for `<unk>` and other special tokens."""
        return self.word.weight * self.known

    def embed_texts(self, captions: Sequence[str]) -> Raw:
        tokens = self.tokens_of(captions)
        return self.embed_words(self.word(tokens) * self.known[tokens], (tokens != PAD).sum(dim=1))

    def tokens_of(self, captions: Sequence[str]) -> torch.Tensor:
        """Token rows `[captions, longest]`: words, then padding."""
        return pad_rows([self.vocabulary.encode(caption)[:-1] for caption in captions]).to(self.device)

    def bind(self, vocabulary: Vocabulary) -> BoundWords:
        if type(vocabulary) is not Vocabulary:
            raise RecipeError(
                f"the {self.name} retriever reads whole words, and this captioner writes pieces of words; "
                "use a captioner with a vocabulary of words"
            )
        return _BoundTable(self, vocabulary)

    @torch.no_grad()
    def load_words(self, path: Path) -> None:
        """Load word vectors from a file in GloVe's text format.

        A word that is not in the file keeps its random vector, or becomes zero if the word vectors are frozen.
        """
        found = read_word_vectors(path, set(self.vocabulary.tokens[len(SPECIALS) :]), self.word.embedding_dim)
        if not self.word.weight.requires_grad:
            self.word.weight.zero_()
        for row, token in enumerate(self.vocabulary.tokens):
            if row >= len(SPECIALS) and token in found:
                self.word.weight[row] = found[token]


class _BoundTable(BoundWords):
    """A word table in the order of a captioner's vocabulary."""

    def __init__(self, retriever: WordRetriever, vocabulary: Vocabulary) -> None:
        self.retriever = retriever
        own = {token: row for row, token in enumerate(retriever.vocabulary.tokens)}
        # Special tokens are zero vectors; UNKNOWN is used for words that the retriever does not know.
        rows = [own.get(token, UNKNOWN) for token in vocabulary.tokens]
        rows[: len(SPECIALS)] = range(len(SPECIALS))
        self._rows = torch.tensor(rows)

    def embed_word_weights(self, weights: torch.Tensor, lengths: torch.Tensor) -> Raw:
        limit = self.retriever.vocabulary.max_words  # `embed_texts` cuts at the same length
        table = self.retriever.word_table()[self._rows.to(weights.device)]
        return self.retriever.embed_words(weights[:, :limit].to(table.dtype) @ table, lengths.clamp(max=limit))


def pad_rows(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Pad token rows to one tensor, `[rows, longest]`; the list may be empty.

    >>> pad_rows([[4, 5], [6]])
    tensor([[4, 5],
            [6, 0]])
    """
    longest = max(map(len, rows), default=0)
    padded = [[*row, *[PAD] * (longest - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long).reshape(len(rows), longest)


def read_word_vectors(path: Path, wanted: Container[str], width: int) -> dict[str, torch.Tensor]:
    """Read the vectors of these words from a file in GloVe's text format: one word per line, then its numbers.

    The file is read line by line. word2vec's text format, with a first line of two numbers, works too.
    """
    found: dict[str, torch.Tensor] = {}
    try:
        with open(path, encoding="utf-8") as handle:
            for number, line in enumerate(handle, start=1):
                # From the right: some words in large GloVe files contain spaces.
                word, *numbers = line.rstrip().rsplit(" ", width)
                if number == 1 and len(numbers) == 1 and word.isdecimal():
                    continue
                if len(numbers) != width:
                    raise DataError(
                        f"{path}: line {number} does not hold {width} numbers; set retriever.words to their width"
                    )
                if word in wanted:
                    found[word] = _vector(numbers, path, number)
    except FileNotFoundError:
        raise DataError(f"{path}: this file of word vectors does not exist; check retriever.word_vectors") from None
    except IsADirectoryError:
        raise DataError(f"{path}: this is a folder; retriever.word_vectors is a text file such as GloVe's") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None
    if not found:
        raise DataError(
            f"{path}: holds no vector of {width} numbers for any word of the training captions; "
            "use another file, or set retriever.words to the width of its vectors"
        )
    return found


def _vector(numbers: list[Any], path: Path, line: int) -> torch.Tensor:
    try:
        vector = torch.tensor([float(number) for number in numbers])
    except ValueError:
        vector = torch.tensor([torch.nan])
    if not vector.isfinite().all():
        raise DataError(f"{path}: line {line} does not hold finite numbers; fix or remove it")
    return vector
