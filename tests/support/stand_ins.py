"""Small objectives of every shape the four papers need, to prove the loop before the real ones arrive."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from pydantic import BaseModel
from torch import nn
from torch.nn import functional

from support.tiny import IDENTITY, WORDS, make_captioner
from tellapart.captioners.base import Captioner
from tellapart.data.batches import Batch, Kind
from tellapart.objectives.base import Epoch, Frozen, Objective, Progress, Roles, Total, pair_log_prob
from tellapart.objectives.composed import Composed, ComposedSettings
from tellapart.objectives.contrastive import Contrastive, ContrastiveSettings
from tellapart.objectives.likelihood import Likelihood, LikelihoodSettings
from tellapart.text import PAD, SPECIALS, START

VOCABULARY = len(WORDS) + len(SPECIALS)
WIDTH = 8


class NoSettings(BaseModel):
    pass


class StandIn(Objective):
    Settings = NoSettings

    def __init__(self, target: Captioner) -> None:
        super().__init__(NoSettings(), Roles(target))

    def embed(self, target: nn.Module, batch: Batch) -> torch.Tensor:
        regions = target.encode(batch.features[IDENTITY.name]).regions  # type: ignore[operator]
        return functional.normalize(regions.mean(dim=1) + 0.01, dim=1)

    def first_words(self, batch: Batch) -> torch.Tensor:
        """Log probabilities of each image's first word `[images, vocabulary]`."""
        images = torch.arange(len(batch.ids))
        memory = self.target.encode(batch.features[IDENTITY.name])
        start = torch.full((len(images),), START)
        return self.target.step(self.target.start(memory, images), start)[0]


class Adversarial(StandIn):
    """Two phases with two optimisers: an evaluator learns to tell true words from the generator's."""

    def __init__(self, target: Captioner) -> None:
        super().__init__(target)
        torch.manual_seed(5)
        self.evaluator = nn.Linear(VOCABULARY + IDENTITY.width, 1)

    def phases(self) -> dict[str, nn.Module]:
        return {"evaluator": self.evaluator, "generator": self.target}

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        pooled = batch.features[IDENTITY.name].mean(dim=1)
        said = self.first_words(batch).exp()
        fake = self.evaluator(torch.cat([said, pooled], dim=1)).squeeze(1)
        if phase == "generator":
            return {"loss": Total(-functional.logsigmoid(fake).sum(), len(batch.ids))}
        tokens = torch.zeros(len(batch.ids), VOCABULARY)
        if batch.captions:
            words = self.target.tokenize(batch.captions)
            tokens.index_add_(0, batch.pairs.image_row, functional.one_hot(words, VOCABULARY).float().sum(dim=1))
            tokens[:, PAD] = 0
        true = self.evaluator(torch.cat([tokens, pooled], dim=1)).squeeze(1)
        fake = self.evaluator(torch.cat([said.detach(), pooled], dim=1)).squeeze(1)
        loss = -(functional.logsigmoid(true) + functional.logsigmoid(-fake)).sum()
        return {"loss": Total(loss, len(batch.ids)), "told_true": Total((true > 0).float().sum(), len(batch.ids))}


class MomentumBank(StandIn):
    """A momentum encoder and a memory bank of gathered keys."""

    def __init__(self, target: Captioner, size: int = 7) -> None:
        super().__init__(target)
        torch.manual_seed(6)
        self.head = nn.Linear(WIDTH, WIDTH)
        self.momentum = copy.deepcopy(target).requires_grad_(False)
        self.register_buffer("bank", functional.normalize(torch.randn(size, WIDTH), dim=1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))
        self.bank: torch.Tensor
        self.pointer: torch.Tensor
        self.fresh: list[torch.Tensor] = []

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        query = functional.normalize(self.head(self.embed(self.target, batch)), dim=1)
        with torch.no_grad():
            own = self.embed(self.momentum, batch)
            keys = self.processes.gather(own)
        if self.training:
            self.fresh.append(keys)
        positive = (query * own).sum(dim=1, keepdim=True)
        negative = query @ self.bank.clone().t()
        loss = functional.cross_entropy(
            torch.cat([positive, negative], dim=1), torch.zeros(len(query), dtype=torch.long), reduction="sum"
        )
        return {"loss": Total(loss, len(query))}

    @torch.no_grad()
    def after_step(self) -> None:
        for slow, fast in zip(self.momentum.parameters(), self.target.parameters(), strict=True):
            slow.lerp_(fast, 0.1)
        keys = torch.cat(self.fresh)
        self.fresh = []
        places = (self.pointer + torch.arange(len(keys))) % len(self.bank)
        self.bank[places] = keys
        self.pointer.copy_((self.pointer + len(keys)) % len(self.bank))


class WholeBatch(StandIn):
    """A contrast over the whole batch: gathered with gradient."""

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        images = self.embed(self.target, batch)
        everyone = self.processes.gather(images, gradient=True)
        alike = (images @ everyone.t() / 0.5).logsumexp(dim=1) - images[:, 0]
        return {"loss": Total(alike.sum(), len(images))}


class Clustering(StandIn):
    """Centres found anew before each epoch, from all images of the split."""

    def __init__(self, target: Captioner, centres: int = 3) -> None:
        super().__init__(target)
        self.register_buffer("centres", torch.zeros(centres, WIDTH))
        self.centres: torch.Tensor

    def epoch_start(self, epoch: Epoch) -> None:
        embedded = torch.cat([self.processes.gather(self.embed(self.target, batch)) for batch in epoch.batches()])
        chosen = embedded[torch.randperm(len(embedded))[: len(self.centres)]]
        for _ in range(3):
            # Soft members: rounding cannot flip a nearest centre.
            member = (-4 * torch.cdist(embedded, chosen)).softmax(dim=1)
            chosen = member.t() @ embedded / member.sum(dim=0)[:, None]
        self.centres.copy_(chosen)

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        distance = torch.cdist(self.embed(self.target, batch), self.centres)
        return {"loss": Total(distance.logsumexp(dim=1).sum(), len(batch.ids))}


class StraightThrough(StandIn):
    """Sampled words, one-hot forward and soft backward, judged by a frozen scorer."""

    def __init__(self, target: Captioner) -> None:
        super().__init__(target)
        torch.manual_seed(8)
        self.frozen = Frozen({"scorer": nn.Bilinear(VOCABULARY, IDENTITY.width, 1)})

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        images = torch.arange(len(batch.ids))
        memory = self.target.encode(batch.features[IDENTITY.name])
        state, token = self.target.start(memory, images), torch.full((len(images),), START)
        pooled = batch.features[IDENTITY.name].mean(dim=1)
        noise = batch.uniform("words", 3, VOCABULARY)
        reward = torch.zeros(len(images))
        for position in range(3):
            log_probs, state = self.target.step(state, token)
            gumbel = -torch.log(-torch.log(noise[:, position].clamp(1e-6, 1 - 1e-6)))
            soft = (log_probs + gumbel).softmax(dim=1)
            token = soft.argmax(dim=1)
            word = functional.one_hot(token, VOCABULARY).float() + soft - soft.detach()
            reward = reward + self.frozen["scorer"](word, pooled).squeeze(1)
        return {"loss": Total(-reward.sum(), len(images))}


class PerToken(StandIn):
    """Divides by tokens, not images: shares of a batch have very unequal counts."""

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        scores = pair_log_prob(self.target, batch, Kind.POSITIVE)
        tokens = int((self.target.tokenize(batch.captions) != PAD).sum()) if batch.captions else 0
        return {"loss": Total(-scores.sum(), tokens)}


def _contrastive(target: Captioner) -> Objective:
    return Contrastive(ContrastiveSettings(negatives=2), Roles(target, reference=make_captioner(seed=2)))


def _composed(target: Captioner) -> Objective:
    parts = {"likelihood": {"weight": 0.5}, "contrastive": {"negatives": 2}}
    return Composed(ComposedSettings(parts=parts), Roles(target, reference=make_captioner(seed=2)))


def _own_words(target: Captioner) -> Objective:
    settings = LikelihoodSettings(label_smoothing=0.1, sampling_start=0.4, sampling_end=0.6)
    return Likelihood(settings, Roles(target))


SHAPES: dict[str, Callable[[Captioner], Objective]] = {
    "two-phases": Adversarial,
    "momentum-bank": MomentumBank,
    "whole-batch": WholeBatch,
    "clustering": Clustering,
    "frozen-reference": _contrastive,
    "straight-through": StraightThrough,
    "composed": _composed,
    "per-token": PerToken,
    "own-words": _own_words,
}


def make(shape: str, dropout: float = 0.0) -> Objective:
    return SHAPES[shape](make_captioner(seed=1, dropout=dropout))
