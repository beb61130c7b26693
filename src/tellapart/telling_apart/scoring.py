"""Score candidate captions by fluency, by listeners and by truth, and choose one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from tellapart.decoding.base import Decodable
from tellapart.retrievers.base import Retriever, take
from tellapart.telling_apart.candidates import Candidate, Task
from tellapart.telling_apart.settings import TellApartSettings
from tellapart.telling_apart.words import is_content, marked_words, words_of
from tellapart.text import PAD

# Captions that go through the captioner at once: their logits are `[tokens, vocabulary]`.
ROWS = 128


@dataclass(frozen=True)
class Scored:
    """A candidate with its scores; each is at most 0, and higher is better.

    Attributes:
        candidate: the caption.
        fluency: ln p(caption | picture) per token.
        likelihood: ln p(picture | caption) among the picture and its distractors, under the captioner; 0 if that was
            not asked for.
        retrieval: the same under the retriever; `None` without one.
        truth: how little its content words fit the picture, see `doubt`.
    """

    candidate: Candidate
    fluency: float
    likelihood: float
    retrieval: float | None
    truth: float

    def total(self, settings: TellApartSettings) -> float:
        """The weighted sum of the scores."""
        return (
            settings.fluency * self.fluency
            + settings.likelihood_weight(self.retrieval is not None) * self.likelihood
            + settings.retrieval * (self.retrieval or 0.0)
            + settings.truth * self.truth
        )


def choose(scored: Sequence[Scored], settings: TellApartSettings) -> Scored:
    """The candidate with the highest total; of equal ones the first."""
    return max(scored, key=lambda one: one.total(settings))


class Scorer:
    """Scores captions of the pictures of a block.

    Args:
        captioner: the plain model.
        features: its features of all pictures, `[pictures, regions, width]`.
        retriever: a second listener.
        retriever_features: its features of all pictures.
    """

    def __init__(
        self,
        captioner: Decodable,
        features: torch.Tensor,
        retriever: Retriever | None = None,
        retriever_features: torch.Tensor | None = None,
    ) -> None:
        self.captioner = captioner
        self.retriever = retriever
        # No picture, features of zeros as in guidance, is the last image of the memory.
        self._no_picture = len(features)
        with torch.no_grad():
            self._memory = captioner.encode(torch.cat([features, features.new_zeros(1, *features.shape[1:])]))
            self._images: Any = None
            if retriever is not None:
                assert retriever_features is not None
                self._images = retriever.embed_images(retriever_features)

    @torch.no_grad()
    def score(
        self, tasks: Sequence[Task], candidates: Sequence[Sequence[Candidate]], settings: TellApartSettings
    ) -> list[list[Scored]]:
        """Score the candidates of each task.

        The listeners choose between the picture and its nearest `settings.distractors`.
        """
        texts = [one.text for several in candidates for one in several]
        owners = [task for task, several in zip(tasks, candidates, strict=True) for _ in several]
        tokens = self.captioner.tokenize(texts)
        own = self._log_probs(tokens, [task.picture for task in owners])
        without = self._log_probs(tokens, [self._no_picture] * len(owners))
        lengths = (tokens != PAD).sum(dim=1)
        fluency = (own.sum(dim=1) / lengths).tolist()
        others = [task.others[: settings.distractors] for task in owners]
        asked = settings.likelihood_weight(self.retriever is not None) > 0
        likelihood = self._under_captioner(tokens, own.sum(dim=1), others) if asked else [0.0] * len(texts)
        retrieval = self._under_retriever(tasks, candidates, settings)
        doubts = self._doubts(tokens, own, without, settings.least_word)
        columns = iter(zip(fluency, likelihood, retrieval, doubts, strict=True))
        return [[Scored(one, *next(columns)) for one in several] for several in candidates]

    @torch.no_grad()
    def ranks(self, tasks: Sequence[Task], captions: Sequence[Sequence[str]]) -> list[list[int]]:
        """The rank of each task's picture for each of its captions, among it and all its distractors.

        Ranks are from 1, and ties count against the picture. They are by the retriever's similarity, or without one by
        the captioner's ln p(caption | picture).

        Args:
            tasks: the pictures.
            captions: those of each task.
        """
        pictures = [[task.picture, *task.others] for task in tasks]
        compare = self._log_likelihoods if self.retriever is None else self._similarities
        return [_ranks_of_first(scores) for scores in compare(captions, pictures)]

    @torch.no_grad()
    def distinguishing_words(
        self, tasks: Sequence[Task], captions: Sequence[str], settings: TellApartSettings
    ) -> list[list[str]]:
        """The content words of each task's caption that are likelier for its picture than for its distractors.

        Args:
            tasks: the pictures; one without distractors has no such words.
            captions: one for each task.
            settings: how many distractors count, and which words are marked.
        """
        found: list[list[str]] = [[] for _ in tasks]
        asked = [row for row, task in enumerate(tasks) if task.others]
        if not asked:
            return found
        tokens = self.captioner.tokenize([captions[row] for row in asked])
        pictures = [[tasks[row].picture, *tasks[row].others[: settings.distractors]] for row in asked]
        parts = self._log_probs_of_each(tokens, pictures)
        for row, part, words in zip(asked, parts, words_of(self.captioner, tokens), strict=True):
            gain = part[0] - (part[1:].logsumexp(dim=0) - math.log(len(part) - 1))
            gains = [gain[word.first : word.end].sum().item() for word in words]
            found[row] = marked_words(words, gains, math.log(settings.marked))
        return found

    def _log_probs(self, tokens: torch.Tensor, pictures: Sequence[int]) -> torch.Tensor:
        """ln p of each token `[rows, tokens]`, for one picture a row."""
        images = torch.tensor(pictures, dtype=torch.long, device=tokens.device)
        parts = [
            self.captioner.log_prob(self._memory, tokens[rows], images[rows], per_token=True)
            for rows in (slice(start, start + ROWS) for start in range(0, max(1, len(tokens)), ROWS))
        ]
        return torch.cat(parts)

    def _log_probs_of_each(self, tokens: torch.Tensor, pictures: Sequence[Sequence[int]]) -> tuple[torch.Tensor, ...]:
        """ln p of each token of every caption for each of its pictures, `[pictures, tokens]`."""
        rows = [row for row, several in enumerate(pictures) for _ in several]
        found = self._log_probs(tokens[rows], [place for several in pictures for place in several])
        return torch.split(found, [len(several) for several in pictures])

    def _log_likelihoods(
        self, captions: Sequence[Sequence[str]], pictures: Sequence[Sequence[int]]
    ) -> list[torch.Tensor]:
        """ln p of each task's captions given its pictures, `[captions, pictures]`."""
        tokens = self.captioner.tokenize([text for several in captions for text in several])
        shown = [own for own, several in zip(pictures, captions, strict=True) for _ in several]
        rows = iter(part.sum(dim=1) for part in self._log_probs_of_each(tokens, shown))
        return [torch.stack([next(rows) for _ in several]) for several in captions]

    def _similarities(self, captions: Sequence[Sequence[str]], pictures: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Similarity of each task's captions with its pictures, `[captions, pictures]`."""
        assert self.retriever is not None
        texts = self.retriever.embed_texts([text for several in captions for text in several])
        counts = [len(several) for several in captions]
        rows = torch.arange(sum(counts), device=self.retriever.device)
        found = []
        for own, shown in zip(torch.split(rows, counts), pictures, strict=True):
            images = take(self._images, torch.tensor(shown, device=self.retriever.device))
            found.append(self.retriever.similarity(images, take(texts, own)).t())
        return found

    def _under_captioner(self, tokens: torch.Tensor, own: torch.Tensor, others: Sequence[Sequence[int]]) -> list[float]:
        """ln p(picture | caption) ∝ p(caption | picture), of each row, among the picture and these others."""
        scores = [part.sum(dim=1) for part in self._log_probs_of_each(tokens, others)]
        # Where a row has fewer others, those that it lacks have probability 0.
        padded = pad_sequence(scores, batch_first=True, padding_value=-torch.inf)
        return log_choice(torch.cat([own[:, None], padded], dim=1))

    def _under_retriever(
        self, tasks: Sequence[Task], candidates: Sequence[Sequence[Candidate]], settings: TellApartSettings
    ) -> list[float] | list[None]:
        """ln p(picture | caption) ∝ exp(similarity / temperature), of each candidate; `None` without a retriever."""
        if self.retriever is None:
            return [None] * sum(map(len, candidates))
        found: list[float] = []
        for task, several in zip(tasks, candidates, strict=True):  # a task at a time: it may have a thousand candidates
            pictures = [task.picture, *task.others[: settings.distractors]]
            (similarity,) = self._similarities([[one.text for one in several]], [pictures])
            found += log_choice(similarity / settings.retrieval_temperature)
        return found

    def _doubts(self, tokens: torch.Tensor, own: torch.Tensor, without: torch.Tensor, least: float) -> list[float]:
        """`doubt` of the content words of each caption.

        Args:
            tokens: of the captions.
            own: ln p of each token for the caption's picture.
            without: the same for no picture.
            least: see `doubt`.
        """
        # Moved at once: with a GPU, reading a number for each word would wait for it each time.
        given, alone = (log_probs.double().cpu().numpy() for log_probs in (own, without))
        found = []
        for row, words in enumerate(words_of(self.captioner, tokens)):
            places = [slice(word.first, word.end) for word in words if is_content(word.text)]
            found.append(doubt([(given[row, at].sum(), alone[row, at].sum()) for at in places], least))
        return found


def log_choice(scores: torch.Tensor) -> list[float]:
    """ln of the softmax of the first score of each row.

    >>> [round(found, 4) for found in log_choice(torch.zeros(1, 4))]   # one of four
    [-1.3863]
    """
    found: list[float] = scores.float().log_softmax(dim=1)[:, 0].tolist()
    return found


def _ranks_of_first(scores: torch.Tensor) -> list[int]:
    """The rank of the first score of each row, from 1; scores that are equal but for rounding go before it."""
    rounding = 1e-6 * scores.abs().amax(dim=1, keepdim=True)
    ranks: list[int] = (scores[:, 1:] >= scores[:, :1] - rounding).sum(dim=1).add(1).tolist()
    return ranks


def doubt(words: Sequence[tuple[float, float]], least: float) -> float:
    """How little content words fit a picture; 0 if all fit, else below.

    A word fits if the picture makes it likelier than no picture does, and if its probability is at least `least`::

        truth = −Σ_w (max(0, ln p(w | no picture) − ln p(w | I)) + max(0, ln least − ln p(w | I)))

    Args:
        words: ln p of each content word given the picture, and given none.
        least: a probability.

    Example:
        >>> doubt([(math.log(0.5), math.log(0.1)), (math.log(0.01), math.log(0.02))], least=0.001).__round__(4)
        -0.6931
    """
    return -sum(max(0.0, without - own) + max(0.0, math.log(least) - own) for own, without in words)
