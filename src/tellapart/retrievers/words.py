"""Retrievers that read a caption as word vectors: a table of words, and whatever makes a sentence of them.

What is shared here: captions to word vectors, reading weights over a captioner's words, and word vectors from a file.
"""

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

    Unknown words are zero vectors, which keep their place in the sentence; the end token is not read. An architecture
    gives `embed_words`; with it `embed_texts` and `bind` are here.

    Args:
        settings, vocabulary, encoder: as for every model.
        width: of the word vectors.
        frozen: whether the word vectors stay what they are.

    Attributes:
        word: the table, a row for each of the vocabulary's.
    """

    def __init__(
        self, settings: BaseModel, vocabulary: Vocabulary, encoder: EncoderIdentity, width: int, frozen: bool = False
    ) -> None:
        super().__init__(settings, vocabulary, encoder)
        self.word = nn.Embedding(len(vocabulary), width)
        # As wide as GloVe's: the first sentences then move the LSTM about as much as they would with those.
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
            vectors: word vectors `[rows, tokens, width]`; what stands beyond a sentence's length must not matter.
            lengths: `[rows]`, words in each sentence; may be 0.
        """

    def word_table(self) -> torch.Tensor:
        """The vector of each of the vocabulary's rows, `[vocabulary, width]`; zero for `<unk>` and other specials."""
        return self.word.weight * self.known

    def embed_texts(self, captions: Sequence[str]) -> Raw:
        tokens = self.tokens_of(captions)
        return self.embed_words(self.word(tokens) * self.known[tokens], (tokens != PAD).sum(dim=1))

    def tokens_of(self, captions: Sequence[str]) -> torch.Tensor:
        """Rows of the word table, `[captions, longest]`: words, then padding."""
        return pad_rows([self.vocabulary.encode(caption)[:-1] for caption in captions]).to(self.device)

    def bind(self, vocabulary: Vocabulary) -> BoundWords:
        if type(vocabulary) is not Vocabulary:
            raise RecipeError(
                f"the {self.name} retriever reads whole words, and this captioner says pieces of words; "
                "take a captioner with a vocabulary of words"
            )
        return _BoundTable(self, vocabulary)

    @torch.no_grad()
    def load_words(self, path: Path) -> None:
        """Take word vectors from a file in GloVe's text format.

        A word that the file lacks keeps its random vector, or is zero where the table is frozen: nothing would ever
        be learned about it.
        """
        found = read_word_vectors(path, set(self.vocabulary.tokens[len(SPECIALS) :]), self.word.embedding_dim)
        if not self.word.weight.requires_grad:
            self.word.weight.zero_()
        for row, token in enumerate(self.vocabulary.tokens):
            if row >= len(SPECIALS) and token in found:
                self.word.weight[row] = found[token]


class _BoundTable(BoundWords):
    """A word table reordered to a captioner's vocabulary."""

    def __init__(self, retriever: WordRetriever, vocabulary: Vocabulary) -> None:
        self.retriever = retriever
        own = {token: row for row, token in enumerate(retriever.vocabulary.tokens)}
        # Specials are zero rows of the table, and so stand in for words the retriever lacks.
        rows = [own.get(token, UNKNOWN) for token in vocabulary.tokens]
        rows[: len(SPECIALS)] = range(len(SPECIALS))
        self._rows = torch.tensor(rows)

    def embed_word_weights(self, weights: torch.Tensor, lengths: torch.Tensor) -> Raw:
        limit = self.retriever.vocabulary.max_words  # as `embed_texts` cuts
        table = self.retriever.word_table()[self._rows.to(weights.device)]
        return self.retriever.embed_words(weights[:, :limit].to(table.dtype) @ table, lengths.clamp(max=limit))


def pad_rows(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Token rows of different lengths as one tensor, `[rows, longest]`; there may be none.

    >>> pad_rows([[4, 5], [6]])
    tensor([[4, 5],
            [6, 0]])
    """
    longest = max(map(len, rows), default=0)
    padded = [[*row, *[PAD] * (longest - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long).reshape(len(rows), longest)


def read_word_vectors(path: Path, wanted: Container[str], width: int) -> dict[str, torch.Tensor]:
    """Vectors of these words from a file in GloVe's text format: a word and its numbers a line, parted by blanks.

    The file is read line by line; only what is wanted is kept. word2vec's text format, with a first line of two
    numbers, is read too.
    """
    found: dict[str, torch.Tensor] = {}
    try:
        with open(path, encoding="utf-8") as handle:
            for number, line in enumerate(handle, start=1):
                # From the right: some words of the larger GloVe files hold blanks.
                word, *numbers = line.rstrip().rsplit(" ", width)
                if number == 1 and len(numbers) == 1 and word.isdecimal():
                    continue
                if len(numbers) != width:
                    raise DataError(
                        f"{path}: line {number} has no {width} numbers; set retriever.words to the width of its vectors"
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
            f"{path}: has vectors of {width} numbers for none of the words in the training captions; "
            "take another file, or set retriever.words to the width of its vectors"
        )
    return found


def _vector(numbers: list[Any], path: Path, line: int) -> torch.Tensor:
    try:
        vector = torch.tensor([float(number) for number in numbers])
    except ValueError:
        vector = torch.tensor([torch.nan])
    if not vector.isfinite().all():
        raise DataError(f"{path}: line {line} holds something else than finite numbers; mend or remove it")
    return vector
