"""A conditional GAN for captions (Dai et al., ICCV 2017), a baseline of contrastive learning."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import BaseModel, Field
from torch import nn
from torch.nn import functional

from tellapart.captioners.base import Captioner
from tellapart.data.batches import Batch, Kind
from tellapart.decoding.sampling import draw
from tellapart.objectives.base import Needs, Objective, Progress, Roles, Total
from tellapart.objectives.own_captions import PLAIN_SAMPLING, without_dropout
from tellapart.settings import MAX_WIDTH, Section
from tellapart.text import END, PAD, START


def evaluator_terms(
    real: torch.Tensor, generated: torch.Tensor, mismatched: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """−ln r of true captions, −ln(1 − r) of generated and of mismatched ones, with r = σ(score).

    Args:
        real: scores (before the sigmoid) of images with their captions.
        generated: scores of images with generated captions.
        mismatched: scores of images with captions of other images.

    Example:
        >>> zero = torch.zeros(1)
        >>> evaluator_terms(zero, zero, zero)[0]   # ln 2
        tensor([0.6931])
    """
    return (
        functional.softplus(-real.float()),
        functional.softplus(generated.float()),
        functional.softplus(mismatched.float()),
    )


def policy_gradient_loss(log_prob: torch.Tensor, value: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """A loss with the gradient of REINFORCE, one value per caption `[captions]`.

    ::

        L = −Σ_t ln π(w_t | w_<t) · (V_t − V_{t−1})

    V_t is the expected reward after the first t words. V_{t−1} is a baseline: it does not depend on word t, so it makes
    the gradient less noisy without changing its expectation.

    Args:
        log_prob: ln π of each word, `[captions, words]`.
        value: V_0 … V_T, `[captions, words + 1]`; detached.
        chosen: which words the generator sampled, `[captions, words]`; false at padding.

    Example:
        >>> policy_gradient_loss(torch.tensor([[-1.0, -2.0]]), torch.tensor([[0.2, 0.5, 0.4]]), torch.ones(1, 2) > 0)
        tensor([0.1000])
    """
    advantage = (value[:, 1:] - value[:, :-1]).detach().float()
    return -(log_prob.float() * advantage * chosen).sum(dim=1)


@dataclass(frozen=True)
class Sample:
    """Captions sampled from a generator, with rollouts from each prefix.

    Attributes:
        tokens: words, end token, padding, `[images, T]`.
        chosen: which tokens were sampled, `[images, T]`; not the end token of a caption cut at the length limit.
        rollouts: `[images, T, rollouts, T]`: the first 0, 1, … T − 1 words of the caption, with new endings.
        going_on: whether the caption continues after its first 0, 1, … T − 1 words, `[images, T]`; otherwise
            `rollouts` holds padding.
    """

    tokens: torch.Tensor
    chosen: torch.Tensor
    rollouts: torch.Tensor
    going_on: torch.Tensor


@torch.no_grad()
def sample_with_rollouts(captioner: Captioner, features: torch.Tensor, chance: torch.Tensor) -> Sample:
    """Sample a caption for each image and, from each of its prefixes, other endings.

    All rows advance together, one word per step. After the t-th word of a caption, its rollouts from there join the
    batch with copies of its state. So no prefix is computed twice, and the only loop is over time.

    Args:
        captioner: the generator, in eval mode.
        features: `[images, regions, width]`.
        chance: random numbers in [0, 1), `[images, 1 + T · rollouts, T]`, where T is the maximum length with the end
            token: for the caption, then for the rollouts from each prefix.
    """
    images, device = len(features), features.device
    time = chance.shape[2]
    rollouts = (chance.shape[1] - 1) // time
    slots = chance.shape[1]  # rows of an image: its caption, then `rollouts` for each prefix
    chance = chance.reshape(images * slots, time)
    said = torch.full((images * slots, time), PAD, device=device)
    going_on = torch.zeros(images, time, dtype=torch.bool, device=device)

    image = torch.arange(images, device=device)
    running = image * slots
    token = torch.full((images,), START, device=device)
    state = captioner.start(captioner.encode(features), image)
    for length in range(time):
        # Branch the captions that continue: copy the state, the last word and all words before.
        trunks = (running % slots == 0).nonzero().squeeze(1)
        going_on[running[trunks] // slots, length] = True
        trunks = trunks.repeat_interleave(rollouts)
        first = 1 + length * rollouts
        fresh = running[trunks] + first + torch.arange(rollouts, device=device).repeat(len(trunks) // max(1, rollouts))
        said[fresh] = said[running[trunks]]
        rows = torch.cat([torch.arange(len(running), device=device), trunks])
        running, token, state = torch.cat([running, fresh]), token[rows], captioner.select(state, rows)
        if length == time - 1:  # length limit: end all captions
            said[running, length] = END
            break
        log_probs, state = captioner.step(state, token)
        token = draw(log_probs, chance[running, length], PLAIN_SAMPLING)
        said[running, length] = token
        still = (token != END).nonzero().squeeze(1)
        running, token, state = running[still], token[still], captioner.select(state, still)
        if not len(running):
            break
    said = said.view(images, slots, time)
    tokens = said[:, 0]
    chosen = tokens != PAD
    chosen[:, -1] = False
    return Sample(tokens, chosen, said[:, 1:].reshape(images, time, rollouts, time), going_on)


class Evaluator(nn.Module):
    """r(I, c) = σ(⟨f(I), g(c)⟩): the probability that a person wrote this caption for this image.

    f is a linear map of the mean image features, g the last state of an LSTM over the caption and its end token.

    Args:
        words: size of the vocabulary.
        features: width of the image features.
        width: width of the embeddings and the LSTM.
    """

    def __init__(self, words: int, features: int, width: int) -> None:
        super().__init__()
        self.normalise = nn.LayerNorm(features)
        self.image = nn.Linear(features, width)
        self.word = nn.Embedding(words, width)
        self.sentence = nn.LSTM(width, width, batch_first=True)

    def forward(self, features: torch.Tensor, tokens: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        """Scores before the sigmoid, `[rows]`.

        Args:
            features: `[images, regions, width]`.
            tokens: words, end token, padding, `[rows, time]`; at least one token per row.
            image_of_row: `[rows]`.
        """
        if not len(tokens):
            return features.new_zeros(0)
        images = self.image(self.normalise(features.mean(dim=1)))
        lengths = (tokens != PAD).sum(dim=1).cpu()
        words = nn.utils.rnn.pack_padded_sequence(self.word(tokens), lengths, batch_first=True, enforce_sorted=False)
        _, (last, _) = self.sentence(words)
        scores: torch.Tensor = (images[image_of_row] * last[0]).sum(dim=1)
        return scores


class AdversarialSettings(Section):
    """Settings of `Adversarial`."""

    noise: int = Field(100, ge=1, le=MAX_WIDTH, description="width of the generator's noise z ~ U(-1, 1)")
    width: int = Field(512, ge=1, le=MAX_WIDTH, description="width of the evaluator's embeddings")
    negatives: int = Field(1, ge=1, le=10_000, description="number of mismatched captions to draw for each true pair")
    generated_weight: float = Field(1.0, ge=0, description="α: weight of generated captions in the evaluator's loss")
    mismatched_weight: float = Field(1.0, ge=0, description="β: weight of mismatched captions in the evaluator's loss")
    rollouts: int = Field(3, ge=1, le=1_000, description="endings to sample for each prefix of a generated caption")
    evaluator_warmup_steps: int = Field(0, ge=0, description="first steps, in which only the evaluator is trained")


class Adversarial(Objective):
    """A GAN: a generator of captions, and an evaluator that tells them from those of people, trained in turn.

    ::

        r(I, c) = σ(⟨f(I), g(c)⟩)
        L_E = −mean ln r(I, true) − α mean ln(1 − r(I, generated)) − β mean ln(1 − r(I, mismatched))
        V_t = mean over rollouts of r(I, w_1 … w_t and an end drawn from the generator)
        L_G = −Σ_t ln p(w_t | w_<t, I, z) (V_t − V_{t−1}),   z ~ U(−1, 1)

    This is the baseline "GAN" in Table 4 of the CL paper, after Dai et al., "Towards Diverse and Natural Image
    Descriptions via a Conditional GAN". Use it for comparisons with `Contrastive`, which is simpler and more stable.
    A step has two phases: `evaluator`, then `generator` by REINFORCE with rollouts. Both are pretrained: the generator
    is a captioner trained by `Likelihood`, and only the evaluator is trained in the first `evaluator_warmup_steps`.

    Differences from the paper: any captioner can be the generator, so the noise is a linear map of z added to the image
    regions. The map starts at zero, so that the generator starts as the given captioner; a saved captioner has z = 0,
    the mean of the noise. V_{t−1} is subtracted from each reward as a baseline, which keeps the expected gradient.
    Captions are sampled without dropout.

    Logged: `evaluator/real`, `…/generated`, `…/mismatched` (the three terms), and the mean r of each kind as
    `…/r_real` and so on; `generator/loss` and `generator/reward`, the mean r of generated captions. The generator's
    loss does not measure quality; only its gradient has a meaning.

    Args:
        settings: see `AdversarialSettings`.
        roles: the target, a captioner: the generator.

    Example:
        >>> objective = Adversarial(AdversarialSettings(evaluator_warmup_steps=50), Roles(target))   # doctest: +SKIP
        >>> objective(batch, Progress(0, 100), "evaluator")["real"]                                  # doctest: +SKIP
    """

    name = "adversarial"
    Settings = AdversarialSettings
    settings: AdversarialSettings

    def __init__(self, settings: AdversarialSettings, roles: Roles) -> None:
        super().__init__(settings, roles)
        target = self.target
        self.evaluator = Evaluator(len(target.vocabulary), target.encoder.width, settings.width)
        self.noise = nn.Linear(settings.noise, target.encoder.width, bias=False)
        nn.init.zeros_(self.noise.weight)

    @classmethod
    def needs(cls, settings: BaseModel) -> Needs:
        assert isinstance(settings, AdversarialSettings)
        return Needs(negatives=settings.negatives)

    def phases(self) -> dict[str, nn.Module]:
        return {
            "evaluator": self.evaluator,
            "generator": nn.ModuleDict({"captioner": self.target, "noise": self.noise}),
        }

    def losses(self, phase: str = "train") -> dict[str, float]:
        if phase == "generator":
            return {"loss": 1.0}
        return {
            "real": 1.0,
            "generated": self.settings.generated_weight,
            "mismatched": self.settings.mismatched_weight,
        }

    def forward(self, batch: Batch, progress: Progress, phase: str = "evaluator") -> dict[str, Total]:
        if phase == "generator":
            return self._generator(batch, progress)
        return self._evaluator(batch)

    def _evaluator(self, batch: Batch) -> dict[str, Total]:
        features = batch.features[self.target.encoder.name]
        pairs = batch.pairs
        captions = self.target.tokenize(batch.captions)[pairs.caption_row]
        with torch.no_grad():
            said = self._sample(self._with_noise(batch), batch, rollouts=0).tokens
        scores = {
            "real": self._evaluate(features, captions, pairs.image_row, pairs.of(Kind.POSITIVE)),
            "generated": self.evaluator(features, said, torch.arange(len(said), device=said.device)),
            "mismatched": self._evaluate(features, captions, pairs.image_row, pairs.of(Kind.NEGATIVE)),
        }
        terms = zip(scores, evaluator_terms(*scores.values()), strict=True)
        totals = {name: Total(term.sum(), len(term)) for name, term in terms}
        shares = {f"r_{name}": Total(score.detach().sigmoid().sum(), len(score)) for name, score in scores.items()}
        return {**totals, **shares}

    def _generator(self, batch: Batch, progress: Progress) -> dict[str, Total]:
        images = len(batch.ids)
        pretraining = self.training and progress.step < self.settings.evaluator_warmup_steps
        if not images or pretraining:
            nothing = Total(torch.zeros((), device=batch.pairs.kind.device), 0)
            return {"loss": nothing, "reward": nothing}
        features = self._with_noise(batch)
        sample = self._sample(features.detach(), batch, self.settings.rollouts)
        image = torch.arange(images, device=features.device)
        value = self._values(batch.features[self.target.encoder.name], sample)
        log_prob = self.target.log_prob(self.target.encode(features), sample.tokens, image, per_token=True)
        loss = policy_gradient_loss(log_prob, value, sample.chosen)
        return {"loss": Total(loss.sum(), images), "reward": Total(value[:, -1].sum(), images)}

    def _with_noise(self, batch: Batch) -> torch.Tensor:
        """The image regions plus the map of z; z is the same for all regions of an image."""
        noise = 2 * batch.uniform("z", self.settings.noise) - 1
        features: torch.Tensor = batch.features[self.target.encoder.name] + self.noise(noise)[:, None]
        return features

    def _sample(self, features: torch.Tensor, batch: Batch, rollouts: int) -> Sample:
        time = self.target.vocabulary.max_words + 1
        if not len(batch.ids):
            nothing = torch.zeros(0, time, dtype=torch.long, device=features.device)
            return Sample(nothing, nothing > 0, nothing.view(0, time, 1, time)[:, :, :rollouts], nothing > 0)
        chance = batch.uniform("words", 1 + time * rollouts, time)
        with torch.no_grad(), without_dropout(self.target):
            return sample_with_rollouts(self.target, features, chance)

    @torch.no_grad()
    def _values(self, features: torch.Tensor, sample: Sample) -> torch.Tensor:
        """V_0 … V_T of each caption, `[images, T + 1]`; after its end, the value of the whole caption."""
        images, time, rollouts, _ = sample.rollouts.shape
        image = torch.arange(images, device=features.device)
        whole: torch.Tensor = self.evaluator(features, sample.tokens, image).sigmoid()
        value = whole[:, None].repeat(1, time + 1)
        of_image, length = sample.going_on.nonzero().unbind(dim=1)
        ends = sample.rollouts[of_image, length].flatten(0, 1)
        judged = self.evaluator(features, ends, of_image.repeat_interleave(rollouts)).sigmoid()
        value[of_image, length] = judged.view(-1, rollouts).mean(dim=1)
        return value

    def _evaluate(
        self, features: torch.Tensor, captions: torch.Tensor, image_row: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        scores: torch.Tensor = self.evaluator(features, captions[rows], image_row[rows])
        return scores
