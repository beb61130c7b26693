"""Score candidate captions by fluency, by listeners and by truth, and choose one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

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
        doubts = [
            doubt(
                [
                    (own[row, word.first : word.end].sum().item(), without[row, word.first : word.end].sum().item())
                    for word in words
                    if is_content(word.text)
                ],
                settings.least_word,
            )
            for row, words in enumerate(words_of(self.captioner, tokens))
        ]
        columns = iter(zip(fluency, likelihood, retrieval, doubts, strict=True))
        return [[Scored(one, *next(columns)) for one in several] for several in candidates]

    @torch.no_grad()
    def ranks(self, task: Task, captions: Sequence[str]) -> list[int]:
        """The rank of the picture for each caption among it and all its distractors, from 1; ties count against it.

        By the retriever's similarity, or without one by the captioner's ln p(caption | picture).
        """
        pictures = [task.picture, *task.others]
        if self.retriever is not None:
            images = take(self._images, torch.tensor(pictures, device=self.retriever.device))
            scores = self.retriever.similarity(images, self.retriever.embed_texts(captions)).t()
        else:
            tokens = self.captioner.tokenize(captions)
            each = tokens.repeat_interleave(len(pictures), dim=0)
            scores = self._log_probs(each, pictures * len(captions)).sum(dim=1).view(len(captions), -1)
        rounding = 1e-6 * scores.abs().amax(dim=1, keepdim=True)
        ranks: list[int] = (scores[:, 1:] >= scores[:, :1] - rounding).sum(dim=1).add(1).tolist()
        return ranks

    @torch.no_grad()
    def distinguishing_words(self, task: Task, caption: str, settings: TellApartSettings) -> list[str]:
        """The content words of a caption that are likelier for this picture than for its distractors."""
        others = task.others[: settings.distractors]
        if not others:
            return []
        tokens = self.captioner.tokenize([caption])
        pictures = [task.picture, *others]
        own, *rest = self._log_probs(tokens.expand(len(pictures), -1), pictures)
        gain = own - (torch.stack(rest).logsumexp(dim=0) - math.log(len(rest)))
        (words,) = words_of(self.captioner, tokens)
        gains = [gain[word.first : word.end].sum().item() for word in words]
        return marked_words(words, gains, math.log(settings.marked))

    def _log_probs(self, tokens: torch.Tensor, pictures: Sequence[int]) -> torch.Tensor:
        """ln p of each token `[rows, tokens]`, for one picture a row."""
        images = torch.tensor(pictures, dtype=torch.long, device=tokens.device)
        parts = [
            self.captioner.log_prob(self._memory, tokens[rows], images[rows], per_token=True)
            for rows in (slice(start, start + ROWS) for start in range(0, max(1, len(tokens)), ROWS))
        ]
        return torch.cat(parts)

    def _under_captioner(self, tokens: torch.Tensor, own: torch.Tensor, others: Sequence[Sequence[int]]) -> list[float]:
        """ln p(picture | caption) ∝ p(caption | picture), of each row, among the picture and these others."""
        rows = [row for row, several in enumerate(others) for _ in several]
        scores = self._log_probs(tokens[rows], [place for several in others for place in several]).sum(dim=1)
        found, first = [], 0
        for mine, several in zip(own, others, strict=True):
            found.append(log_choice(torch.cat([mine[None], scores[first : first + len(several)]])))
            first += len(several)
        return found

    def _under_retriever(
        self, tasks: Sequence[Task], candidates: Sequence[Sequence[Candidate]], settings: TellApartSettings
    ) -> list[float | None]:
        """ln p(picture | caption) ∝ exp(similarity / temperature), of each candidate; `None` without a retriever."""
        if self.retriever is None:
            return [None] * sum(map(len, candidates))
        found: list[float | None] = []
        for task, several in zip(tasks, candidates, strict=True):
            pictures = [task.picture, *task.others[: settings.distractors]]
            images = take(self._images, torch.tensor(pictures, device=self.retriever.device))
            texts = self.retriever.embed_texts([one.text for one in several])
            similarity = self.retriever.similarity(images, texts) / settings.retrieval_temperature
            found += [log_choice(column) for column in similarity.t()]
        return found


def log_choice(scores: torch.Tensor) -> float:
    """ln of the softmax of the first score.

    >>> round(log_choice(torch.tensor([0.0, 0.0, 0.0, 0.0])), 4)   # one of four
    -1.3863
    """
    return float(scores.float().log_softmax(dim=0)[0])


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
