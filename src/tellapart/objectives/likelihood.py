"""Maximum likelihood: the usual first stage of training a captioner; with label smoothing and scheduled sampling."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field

from tellapart.captioners.base import Captioner, Grouping
from tellapart.data.batches import Batch, Kind
from tellapart.objectives.base import Objective, Progress, Total, captions_of, pair_log_prob
from tellapart.settings import ADDED, Section
from tellapart.text import PAD


class LikelihoodSettings(Section):
    """Settings of `Likelihood`."""

    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="probability spread evenly over all words", json_schema_extra=ADDED
    )
    sampling_start: float = Field(
        0.0,
        ge=0,
        le=1,
        description="scheduled sampling: probability of reading an own word, at the first step",
        json_schema_extra=ADDED,
    )
    sampling_end: float = Field(
        0.0, ge=0, le=1, description="the same at the last step, linear in between", json_schema_extra=ADDED
    )


class Likelihood(Objective):
    """Maximum likelihood estimation (MLE), eq. 1 of the CL paper.

    Use it to train a captioner from scratch; the other objectives usually start from its result. It minimises the
    negative log likelihood of true pairs per token::

        L = - Σ_t ln p(c_t | I_t) / Σ_t |c_t|

    where ln p sums over the caption's tokens and its end token, and |c| counts them.

    *Label smoothing* (Szegedy et al. 2016) spreads ε of each token's probability over the V words that can occur (all
    but padding and start), which keeps the model from being too sure::

        - (1 - ε) ln p(w) - ε/V Σ_v ln p(v)

    Then `nll`, the negative log likelihood without smoothing, is logged too; runs with different ε compare by it.

    *Scheduled sampling* (Bengio et al. 2015) lets the model read words of its own in training, as it does when it
    captions. A word that the model reads is replaced with probability p by a word drawn from the model's distribution
    at this place; p changes linearly from `sampling_start` to `sampling_end` over the training. The target stays the
    true word. This is the form in two passes (Mihaylova and Martins 2019; Duckworth et al. 2019): the first one,
    without gradient, reads the true words and gives the distributions; the second reads the mixture. So each pass runs
    over all words at once, but a drawn word follows the true words before it, not the mixture. Validation reads the
    true words.

    Related: `Contrastive` makes the captions of an MLE model distinctive; `Composed` adds likelihood to other losses.
    There, plain likelihood shares its forward pass with the other parts; with smoothing or sampling it has its own.

    Args:
        settings: see `LikelihoodSettings`.
        roles: the target, a captioner.

    Example:
        >>> Likelihood(LikelihoodSettings(), Roles(captioner))(batch, Progress(0, 100))["loss"]   # doctest: +SKIP
    """

    name = "likelihood"
    Settings = LikelihoodSettings
    settings: LikelihoodSettings

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        sampled = self._sampled_share(progress)
        if self.settings.label_smoothing or sampled:
            return self._own_pass(batch, sampled)
        log_prob = pair_log_prob(self.target, batch, Kind.POSITIVE)
        captions = captions_of(batch, batch.pairs.of(Kind.POSITIVE))
        tokens = sum(len(self.target.vocabulary.encode(caption)) for caption in captions)
        return {"loss": Total(-log_prob.sum(), tokens)}

    def _sampled_share(self, progress: Progress) -> float:
        """The probability of reading an own word."""
        start, end = self.settings.sampling_start, self.settings.sampling_end
        return start + (end - start) * progress.fraction if self.training else 0.0

    def _own_pass(self, batch: Batch, sampled: float) -> dict[str, Total]:
        """Likelihood with smoothing, sampling or both."""
        smoothing, rows = self.settings.label_smoothing, batch.pairs.of(Kind.POSITIVE)
        if not len(rows):  # an empty part of a batch
            nothing = Total(torch.zeros((), device=self.target.device), 0)
            return {"loss": nothing, "nll": nothing} if smoothing else {"loss": nothing}
        tokens, image_of_row = self.target.tokenize(captions_of(batch, rows)), batch.pairs.image_row[rows]
        memory = self.target.encode(batch.features[self.target.encoder.name])
        read = tokens
        if sampled:
            noise = _noise(batch, image_of_row, self.target.vocabulary.max_words + 1)[:, : tokens.shape[1]]
            read = mixed_with_own_words(self.target, memory, tokens, image_of_row, sampled, noise)
        true = tokens[tokens != PAD]
        logits = self.target.output(self.target.hidden(memory, read, image_of_row))
        loss, nll = smoothed_cross_entropy(logits.float(), true, smoothing)
        totals = {"loss": Total(loss.sum(), len(true)), "nll": Total(nll.sum(), len(true))}
        return totals if smoothing else {"loss": totals["loss"]}


def smoothed_cross_entropy(
    logits: torch.Tensor, words: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropy with smoothed labels, and the plain one, of each token `[tokens]`.

    Args:
        logits: `[tokens, vocabulary]`; -inf for words that cannot occur, the same in each row.
        words: the true words, `[tokens]`.
        smoothing: probability that is spread evenly over the words that can occur.
    """
    log_probs = logits.log_softmax(dim=1)
    nll = -log_probs.gather(1, words[:, None]).squeeze(1)
    if not smoothing:
        return nll, nll
    impossible = log_probs[0] == -torch.inf
    of_all_words = -log_probs.masked_fill(impossible, 0.0).sum(dim=1) / (~impossible).sum()
    return (1 - smoothing) * nll + smoothing * of_all_words, nll


@torch.no_grad()
def mixed_with_own_words(
    captioner: Captioner,
    memory: Any,
    tokens: torch.Tensor,
    image_of_row: torch.Tensor,
    share: float,
    noise: torch.Tensor,
) -> torch.Tensor:
    """Token rows in which words are replaced by words drawn from the captioner's teacher-forced distributions.

    Given as `tokens` to `Captioner.hidden`, they are what the captioner reads; it reads each token except the last one.

    Args:
        captioner: reads the true words to get the distributions.
        memory: from its `encode`.
        tokens: the true words, `[rows, tokens]`.
        image_of_row: the image of each row, `[rows]`.
        share: probability of replacing a word.
        noise: in [0, 1), `[rows, tokens, 2]`: whether a word is replaced, and by which one.
    """
    real = tokens != PAD
    probabilities = captioner.output(captioner.hidden(memory, tokens, image_of_row)).float().softmax(dim=1)
    replace, choice = noise[real].unbind(dim=1)
    mixed = tokens.clone()
    mixed[real] = torch.where(replace < share, drawn_words(probabilities, choice), tokens[real])
    return mixed


def drawn_words(probabilities: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Draw a word from each row of probabilities `[rows, vocabulary]` by one number in [0, 1) each, `[rows]`."""
    below = probabilities.cumsum(dim=1)
    # The factor keeps the product below the total when it is rounded; a word of probability 0 is never drawn.
    chosen = noise * (1 - 1e-6) * below[:, -1]
    return torch.searchsorted(below, chosen[:, None], right=True).squeeze(1)


def _noise(batch: Batch, image_of_row: torch.Tensor, longest: int) -> torch.Tensor:
    """Noise for each row `[rows, longest, 2]`, independent of how the batch is divided over processes."""
    grouping = Grouping.of(image_of_row, len(batch.ids))
    # One draw for each caption of an image: the number of captions may differ between the parts of a batch.
    of_caption = [batch.uniform(f"scheduled sampling {caption}", longest, 2) for caption in range(grouping.size)]
    return torch.stack(of_caption, dim=1).flatten(0, 1)[grouping.place]
