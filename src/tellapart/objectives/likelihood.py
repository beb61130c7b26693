"""Maximum likelihood: the usual first stage of training a captioner."""

from __future__ import annotations

from tellapart.data.batches import Batch, Kind
from tellapart.objectives.base import Objective, Progress, Total, captions_of, pair_log_prob
from tellapart.settings import Section


class LikelihoodSettings(Section):
    """Maximum likelihood has no settings."""


class Likelihood(Objective):
    """Maximum likelihood estimation (MLE), eq. 1 of the CL paper.

    Use it to train a captioner from scratch; the other objectives usually start from its result. It minimises the
    negative log likelihood of true pairs per token::

        L = - Σ_t ln p(c_t | I_t) / Σ_t |c_t|

    where ln p sums over the caption's tokens and its end token, and |c| counts them.

    Related: `Contrastive` makes the captions of an MLE model distinctive; `Composed` adds likelihood to other losses.

    Args:
        settings: none.
        roles: the target, a captioner.

    Example:
        >>> Likelihood(LikelihoodSettings(), Roles(captioner))(batch, Progress(0, 100))["loss"]   # doctest: +SKIP
    """

    name = "likelihood"
    Settings = LikelihoodSettings

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        log_prob = pair_log_prob(self.target, batch, Kind.POSITIVE)
        captions = captions_of(batch, batch.pairs.of(Kind.POSITIVE))
        tokens = sum(len(self.target.vocabulary.encode(caption)) for caption in captions)
        return {"loss": Total(-log_prob.sum(), tokens)}
