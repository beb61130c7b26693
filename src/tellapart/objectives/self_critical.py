"""Self-critical sequence training: the captioner's own samples, rewarded by a metric."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, model_validator

from tellapart.data.batches import Batch
from tellapart.decoding.sampling import draw
from tellapart.metrics.endings import ends_badly
from tellapart.objectives.base import Needs, Objective, Processes, Progress, Roles, Start, Total
from tellapart.objectives.own_captions import PLAIN_SAMPLING, sample_tokens, without_dropout
from tellapart.objectives.rewards import REWARDS, CaptionTables, Given, RewardSettings, Samples
from tellapart.text import END, PAD


def mean_of_others(reward: torch.Tensor) -> torch.Tensor:
    """The mean reward of the other samples of the same image: `[images, n]` -> `[images, n]`, for n ≥ 2.

    >>> mean_of_others(torch.tensor([[1.0, 2.0, 6.0]]))
    tensor([[4.0000, 3.5000, 1.5000]])
    """
    return (reward.sum(dim=1, keepdim=True) - reward) / (reward.shape[1] - 1)


def self_critical_loss(
    log_prob: torch.Tensor, reward: torch.Tensor, baseline: torch.Tensor, scored: torch.Tensor
) -> torch.Tensor:
    """−(r − b) Σ_t ln p(w_t | w_<t, I) of each sample, `[images, n]`.

    Args:
        log_prob: ln p of each token, `[images, n, time]`.
        reward: r, `[images, n]`; detached.
        baseline: b, `[images, n]` or `[images, 1]`; detached.
        scored: which tokens were sampled, `[images, n, time]`.

    Example:
        >>> words = torch.tensor([[[-1.0, -2.0], [-3.0, 0.0]]])
        >>> self_critical_loss(words, torch.tensor([[1.0, 0.5]]), torch.tensor([[0.5, 1.0]]), words < 0)
        tensor([[ 1.5000, -1.5000]])
    """
    advantage = (reward - baseline).detach().float()
    return -advantage * (log_prob.float() * scored).sum(dim=2)


class SelfCriticalSettings(RewardSettings):
    """Settings of `SelfCritical`."""

    samples: int = Field(5, ge=1, le=1_000, description="n: captions to sample for each image")
    baseline: Literal["others", "greedy"] = Field(
        "others", description="mean reward of the image's other samples, or reward of its greedy caption (Rennie)"
    )

    @model_validator(mode="after")
    def _enough_samples(self) -> SelfCriticalSettings:
        if self.baseline == "others" and self.samples < 2:
            raise ValueError(
                "samples: one sample has no others to compare with; give at least 2, or set baseline to greedy"
            )
        return self


class SelfCritical(Objective):
    """Self-critical training: a sample that scores better than the baseline becomes likelier, a worse one less likely.

    ::

        c_1 … c_n ~ p(·|I),   r_k = Σ_i weight_i · reward_i(c_k, I)
        L = −Σ_images Σ_k (r_k − b_k) Σ_t ln p(w_kt | w_k<t, I) / number of sampled tokens

    After Rennie et al., "Self-critical Sequence Training for Image Captioning" (2017). Its gradient is that of the
    expected reward (REINFORCE). The baseline b_k does not depend on c_k, so it only makes the gradient less noisy:

    - `others`: the mean reward of the image's other n − 1 samples (Luo, "A Better Variant of Self-Critical Sequence
      Training", 2020).
    - `greedy`: the reward of the image's greedy caption, as in the first paper.

    The sum over tokens has the end token, if it was sampled. A caption of `max_words` words is over, and its end is not
    scored. As in the public code the sum is divided by the number of tokens of the whole batch, not by that of
    captions.

    Rewards, see `tellapart.objectives.rewards`: `cider`, `cider_between`, `similarity` and `margin` (with a frozen
    `retriever`), `own_likelihood` (with a frozen `reference`). Combine with likelihood by `Composed`.

    The samples are drawn without dropout, and scored without dropout again, with gradient: so ln p is that of the
    distribution they were drawn from. (The public code has dropout in both.)

    Logged besides `loss`: the mean `reward`, each `reward_NAME` without its weight, `baseline`, `advantage`
    (mean |r − b|), `log_prob` (per token), `words` (per caption), `distinct` (different captions of an image / n), and
    `bad_endings`, the share of samples that stop in the middle (`tellapart.metrics.endings`). With the greedy baseline
    also `greedy_bad_endings`. The loss does not measure quality: watch `reward`.

    Args:
        settings: see `SelfCriticalSettings`.
        roles: the target, a captioner, and the frozen models that the rewards need.

    Example:
        >>> objective = SelfCritical(SelfCriticalSettings(samples=5), Roles(target))   # doctest: +SKIP
        >>> objective(batch, Progress(0, 100))["reward"]                               # doctest: +SKIP
    """

    name = "self-critical"
    Settings = SelfCriticalSettings
    settings: SelfCriticalSettings

    def __init__(self, settings: SelfCriticalSettings, roles: Roles) -> None:
        super().__init__(settings, roles)
        self.tables = CaptionTables(self.target, settings.end_token)
        given = Given(settings, self.frozen, self.tables)
        self.rewards = {name: REWARDS[name](given) for name in settings.weights}

    @classmethod
    def needs(cls, settings: BaseModel) -> Needs:
        assert isinstance(settings, SelfCriticalSettings)
        needs = [REWARDS[name].needs(settings) for name in settings.weights]
        roles = {role: kind for need in needs for role, kind in need.roles.items()}
        return Needs(roles, image_negatives=max(need.image_negatives for need in needs))

    def join(self, processes: Processes) -> None:
        super().join(processes)
        self.tables.show_progress = processes.rank == 0

    def before_training(self, start: Start) -> None:
        for split, source in start.sources.items():
            for reward in self.rewards.values() if source.records else ():
                if split == "train" and start.steps:
                    reward.prepare(source)
                reward.find(source)

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        images, each = len(batch.ids), self.settings.samples
        if self.training and batch.source is not None:
            for reward in self.rewards.values():
                reward.prepare(batch.source)
        if not images:
            nothing = Total(torch.zeros((), device=self.target.device), 0)
            return dict.fromkeys(self._names(), nothing)
        with without_dropout(self.target):
            memory = self.target.encode(batch.features[self.target.encoder.name][:images])
            tokens, scored = self._sample(batch, memory)
            image = torch.arange(images, device=tokens.device).repeat_interleave(each)
            log_prob = self.target.log_prob(memory, tokens.flatten(0, 1), image, per_token=True).view_as(scored)
            greedy = self._greedy(batch, memory) if self.settings.baseline == "greedy" else None
        samples = self._samples(batch, tokens)
        rewards = self._rewards(samples)
        total = self._weighted(rewards)
        # The same reward is a baseline for all samples of the image, or each has its own.
        baseline = mean_of_others(total) if greedy is None else self._weighted(self._rewards(greedy))
        baseline = baseline.expand_as(total)
        loss = self_critical_loss(log_prob, total, baseline, scored)
        count, words = int(scored.sum()), (tokens != PAD) & (tokens != END)
        means = {
            "reward": total,
            **{f"reward_{name}": values for name, values in rewards.items()},
            "baseline": baseline,
            "advantage": (total - baseline).abs(),
            "words": words.sum(dim=2).float(),
            "distinct": _distinct(tokens),
            "bad_endings": _bad_endings(samples),
        }
        if greedy is not None:
            means["greedy_bad_endings"] = _bad_endings(greedy)
        return {
            "loss": Total(loss.sum(), count),
            **{name: Total(values.sum(), values.numel()) for name, values in means.items()},
            "log_prob": Total((log_prob.detach() * scored).sum(), count),
        }

    def _names(self) -> list[str]:
        """The names of the totals."""
        names = ["loss", "reward", *(f"reward_{name}" for name in self.rewards), "baseline", "advantage", "words"]
        greedy = ["greedy_bad_endings"] if self.settings.baseline == "greedy" else []
        return [*names, "distinct", "bad_endings", *greedy, "log_prob"]

    def _sample(self, batch: Batch, memory: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """n captions of each image; what is drawn for an image does not depend on the processes."""
        each = self.settings.samples
        chance = batch.uniform("self-critical", each, self.target.vocabulary.max_words).flatten(0, 1)
        return sample_tokens(
            self.target,
            memory,
            len(batch.ids),
            each,
            lambda log_probs, rows, length: draw(log_probs, chance[rows, length], PLAIN_SAMPLING),
        )

    def _greedy(self, batch: Batch, memory: Any) -> Samples:
        """The caption of each image that takes the likeliest word every time."""
        tokens, _ = sample_tokens(
            self.target, memory, len(batch.ids), 1, lambda log_probs, rows, length: log_probs.argmax(dim=1)
        )
        return self._samples(batch, tokens)

    def _samples(self, batch: Batch, tokens: torch.Tensor) -> Samples:
        return Samples(batch, tokens, self.target.detokenize(tokens.flatten(0, 1)))

    @torch.no_grad()
    def _rewards(self, samples: Samples) -> dict[str, torch.Tensor]:
        """Each reward, without its weight, `[images, n]`."""
        return {name: reward(samples) for name, reward in self.rewards.items()}

    def _weighted(self, rewards: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack([self.settings.reward[name] * values for name, values in rewards.items()]).sum(dim=0)


def _distinct(tokens: torch.Tensor) -> torch.Tensor:
    """Different captions of each image / n, `[images]`."""
    same = (tokens[:, :, None] == tokens[:, None]).all(dim=3)
    # A caption counts if no caption before it is the same.
    first = ~same.tril(diagonal=-1).any(dim=2)
    return first.float().mean(dim=1)


def _bad_endings(samples: Samples) -> torch.Tensor:
    """1 for each caption that stops in the middle, else 0."""
    bad = [float(ends_badly(caption)) for caption in samples.captions]
    return torch.tensor(bad, device=samples.tokens.device)
