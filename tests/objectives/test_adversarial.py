"""The conditional GAN against naive loops: the evaluator's three terms, sampling with rollouts, the policy gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from support.tiny import WORDS, names
from tellapart.captioners.base import Captioner
from tellapart.data.batches import Batch, BatchSource, Kind
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset
from tellapart.objectives.adversarial import (
    Adversarial,
    AdversarialSettings,
    Evaluator,
    evaluator_terms,
    policy_gradient_loss,
    sample_with_rollouts,
)
from tellapart.objectives.base import Progress, Roles
from tellapart.text import END, PAD, START, Vocabulary

Make = Callable[..., Any]
Data = tuple[Dataset, FeatureStore]
PROGRESS = Progress(5, 10)
LIMIT = 4
SETTINGS = AdversarialSettings(noise=4, width=6, negatives=2, rollouts=3, evaluator_warmup_steps=3)


@pytest.fixture
def objective(make_captioner: Make) -> Adversarial:
    """Captions of at most four words, some cut there; noise that matters; an evaluator with opinions."""
    made = Adversarial(SETTINGS, Roles(make_captioner(seed=1, words=Vocabulary(WORDS, max_words=LIMIT))))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in (*made.evaluator.parameters(), *made.noise.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return made.eval()


@pytest.fixture
def batch(tiny_data: Data) -> Batch:
    return BatchSource(*tiny_data, "train", images_per_batch=4, negatives=2, seed=2).at(0)


# --- the evaluator --------------------------------------------------------------------------------------------------


def test_the_three_terms_equal_a_naive_loop_in_value_and_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    given = [(2 * torch.randn(n, generator=generator, dtype=torch.float64)).requires_grad_() for n in (3, 5, 7)]
    for number, (term, scores) in enumerate(zip(evaluator_terms(*given), given, strict=True)):
        expected = torch.zeros((), dtype=torch.float64)
        for score in scores:
            r = 1 / (1 + torch.exp(-score))
            expected = expected - torch.log(r if number == 0 else 1 - r)
        torch.testing.assert_close(term.sum().double(), expected, atol=1e-6, rtol=1e-6)
        found, wanted = (torch.autograd.grad(one, scores)[0] for one in (term.sum(), expected))
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-6)


def naive_score(evaluator: Evaluator, features: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """⟨f(I), g(c)⟩ of one image and one caption, the LSTM gate by gate."""
    mean = features.mean(dim=0)
    normal = (mean - mean.mean()) / (mean.var(unbiased=False) + 1e-5).sqrt()
    normal = normal * evaluator.normalise.weight + evaluator.normalise.bias
    image = evaluator.image.weight @ normal + evaluator.image.bias
    lstm = evaluator.sentence
    hidden = cell = torch.zeros(lstm.hidden_size)
    for token in tokens:
        gates = lstm.weight_ih_l0 @ evaluator.word.weight[token] + lstm.bias_ih_l0
        gates = gates + lstm.weight_hh_l0 @ hidden + lstm.bias_hh_l0
        take, keep, candidate, show = gates.chunk(4)
        cell = keep.sigmoid() * cell + take.sigmoid() * candidate.tanh()
        hidden = show.sigmoid() * cell.tanh()
    return image @ hidden


def test_the_objectives_terms_equal_single_pairs(objective: Adversarial, batch: Batch) -> None:
    """True, generated and mismatched captions one by one; generated ones drawn one by one, too."""
    totals = objective(batch, PROGRESS, "evaluator")
    features = batch.features["tiny"]
    tokens = [objective.target.vocabulary.encode(batch.captions[row]) for row in batch.pairs.caption_row.tolist()]
    chance = batch.uniform("words", 1, LIMIT + 1)
    noisy = objective._with_noise(batch).detach()
    wanted: dict[str, list[torch.Tensor]] = {"real": [], "generated": [], "mismatched": []}
    for pair, (row, kind) in enumerate(zip(batch.pairs.image_row.tolist(), batch.pairs.kind.tolist(), strict=True)):
        score = naive_score(objective.evaluator, features[row], tokens[pair])
        wanted["real" if kind == Kind.POSITIVE else "mismatched"].append(score)
    for image in range(len(batch.ids)):
        said = naive_caption(objective.target, noisy[image], [], chance[image, 0])
        wanted["generated"].append(naive_score(objective.evaluator, features[image], said))
    for name, scores in wanted.items():
        assert totals[name].count == totals[f"r_{name}"].count == len(scores)
        r = torch.stack(scores).sigmoid()
        expected = -torch.log(r if name == "real" else 1 - r).sum()
        torch.testing.assert_close(totals[name].sum, expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(totals[f"r_{name}"].sum, r.sum().detach(), atol=1e-4, rtol=1e-4)
        parameters = list(objective.evaluator.parameters())
        gradients = zip(*(torch.autograd.grad(v, parameters) for v in (totals[name].sum, expected)), strict=True)
        for one, other in gradients:
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    assert set(objective.losses("evaluator")) == {"real", "generated", "mismatched"}


def test_scores_are_independent_of_padding_and_batch(objective: Adversarial, features: torch.Tensor) -> None:
    tokens = torch.tensor([[5, 6, 7, END], [6, END, PAD, PAD], [END, PAD, PAD, PAD]])
    image = torch.tensor([2, 0, 1])
    together = objective.evaluator(features, tokens, image)
    for row in range(3):
        kept = tokens[row][tokens[row] != PAD]
        torch.testing.assert_close(
            objective.evaluator(features, kept[None], image[row][None]), together[row][None], atol=1e-5, rtol=1e-5
        )


# --- sampling -------------------------------------------------------------------------------------------------------


def naive_caption(model: Captioner, features: torch.Tensor, prefix: list[int], chance: torch.Tensor) -> list[int]:
    """One caption of one image: the prefix, then words drawn by `chance`, one run from the start."""
    memory = model.encode(features[None])
    state, token, said = model.start(memory, torch.tensor([0])), START, []
    for position in range(len(chance) - 1):
        log_probs, state = model.step(state, torch.tensor([token]))
        token = prefix[position] if position < len(prefix) else _drawn(log_probs[0].exp(), float(chance[position]))
        said.append(token)
        if token == END:
            return said
    return [*said, END]


def _drawn(weights: torch.Tensor, chance: float) -> int:
    reached = 0.0
    for word, weight in enumerate(weights.tolist()):
        reached += weight
        if reached > chance:
            return word
    raise AssertionError("weights that do not reach 1")


@pytest.mark.parametrize("name", names("captioner"))
@pytest.mark.parametrize("rollouts", [0, 1, 3])
def test_samples_and_rollouts_equal_single_runs(make_captioner: Make, name: str, rollouts: int) -> None:
    model = make_captioner(seed=4, name=name, words=Vocabulary(WORDS, max_words=LIMIT))
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(16, 4, 6, generator=generator)
    time = LIMIT + 1
    chance = torch.rand(16, 1 + time * rollouts, time, generator=generator)
    sample = sample_with_rollouts(model, features, chance)
    lengths = set()
    with torch.no_grad():
        for image in range(16):
            said = naive_caption(model, features[image], [], chance[image, 0])
            lengths.add(len(said))
            assert [token for token in sample.tokens[image].tolist() if token != PAD] == said
            assert sample.chosen[image].tolist() == [at < min(len(said), LIMIT) for at in range(time)]
            assert sample.going_on[image].tolist() == [at < len(said) for at in range(time)]
            for length in range(time):
                for number in range(rollouts):
                    row = [token for token in sample.rollouts[image, length, number].tolist() if token != PAD]
                    if length >= len(said):
                        assert not row
                        continue
                    own = chance[image, 1 + length * rollouts + number]
                    assert row == naive_caption(model, features[image], said[:length], own)
    assert max(lengths) == time, "one is cut"
    assert min(lengths) < time, "one is not"


# --- the generator --------------------------------------------------------------------------------------------------


def test_the_generators_loss_equals_a_naive_loop(objective: Adversarial, batch: Batch) -> None:
    """Word by word: ln p of what was drawn, times what the evaluator thinks of rollouts after it and before it."""
    totals = objective(batch, PROGRESS, "generator")
    target, evaluator, rollouts = objective.target, objective.evaluator, SETTINGS.rollouts
    chance = batch.uniform("words", 1 + (LIMIT + 1) * rollouts, LIMIT + 1)
    z = 2 * batch.uniform("z", 4) - 1
    expected, reward = torch.zeros(()), torch.zeros(())
    for image in range(len(batch.ids)):
        plain = batch.features["tiny"][image]
        noisy = plain + objective.noise.weight @ z[image]
        with torch.no_grad():
            said = naive_caption(target, noisy, [], chance[image, 0])
            values = []
            for length in range(len(said)):
                own = chance[image, 1 + length * rollouts : 1 + (length + 1) * rollouts]
                ends = [naive_caption(target, noisy, said[:length], one) for one in own]
                values.append(torch.stack([naive_score(evaluator, plain, end).sigmoid() for end in ends]).mean())
            values.append(naive_score(evaluator, plain, said).sigmoid())
        reward = reward + values[-1]
        state, token = target.start(target.encode(noisy[None]), torch.tensor([0])), START
        for position, word in enumerate(said[:LIMIT]):
            log_probs, state = target.step(state, torch.tensor([token]))
            expected = expected - log_probs[0, word] * (values[position + 1] - values[position])
            token = word
    assert totals["loss"].count == len(batch.ids)
    torch.testing.assert_close(totals["reward"].sum, reward, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(totals["loss"].sum, expected, atol=1e-4, rtol=1e-4)
    parameters = [*target.parameters(), *objective.noise.parameters()]
    found, wanted = (torch.autograd.grad(loss, parameters) for loss in (totals["loss"].sum, expected))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    assert not any(gradient.requires_grad for gradient in found)


def test_the_expected_gradient_is_that_of_the_expected_reward(make_captioner: Make) -> None:
    """All captions of at most two words, each with its probability and its exact values: no sampling, no noise."""
    model = make_captioner(seed=6, words=Vocabulary(("a", "b"), max_words=2))
    memory = model.encode(torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(7)))

    def captions(prefix: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
        if len(prefix) == 2:
            yield (*prefix, END)
            return
        yield (*prefix, END)
        for word in range(END + 1, len(model.vocabulary)):
            yield from captions((*prefix, word))

    every = list(dict.fromkeys(captions()))
    generator = torch.Generator().manual_seed(8)
    rewards = {caption: float(torch.rand((), generator=generator)) for caption in every}
    tokens = torch.tensor([[*caption, *[PAD] * (3 - len(caption))] for caption in every])
    log_prob = model.log_prob(memory, tokens, torch.zeros(len(every), dtype=torch.long), per_token=True)
    chosen = tokens != PAD
    chosen[:, 2] = False  # the end of a caption of two words is no choice
    p = (log_prob * chosen).sum(dim=1).exp()
    assert p.sum().item() == pytest.approx(1, abs=1e-5)

    def value(prefix: tuple[int, ...]) -> float:
        after = [n for n, caption in enumerate(every) if caption[: len(prefix)] == prefix]
        weights = p[after].detach()
        return float((weights * torch.tensor([rewards[every[n]] for n in after])).sum() / weights.sum())

    values = torch.tensor([[value(caption[: min(t, len(caption))]) for t in range(4)] for caption in every])
    expected_reward = torch.stack([p[n] * rewards[caption] for n, caption in enumerate(every)]).sum()
    surrogate = (p.detach() * policy_gradient_loss(log_prob, values, chosen)).sum()
    parameters = list(model.parameters())
    found = torch.autograd.grad(surrogate, parameters, retain_graph=True)
    wanted = torch.autograd.grad(-expected_reward, parameters)
    assert max(gradient.abs().max().item() for gradient in wanted) > 1e-3
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-3)


def test_the_evaluator_is_trained_alone_at_first(objective: Adversarial, batch: Batch) -> None:
    objective.train()
    early, late = (objective(batch, Progress(step, 10), "generator") for step in (2, 3))
    assert early.keys() == late.keys()
    assert [total.count for total in early.values()] == [0, 0]
    assert [total.count for total in late.values()] == [len(batch.ids)] * 2
    assert objective.target.training, "sampling leaves the mode as it was"
    assert objective(batch, Progress(0, 10), "evaluator")["real"].count > 0
    objective.eval()
    assert objective(batch, Progress(0, 10), "generator")["reward"].count == len(batch.ids)


def test_the_generator_begins_as_the_captioner_it_was(make_captioner: Make, batch: Batch) -> None:
    made = Adversarial(SETTINGS, Roles(make_captioner(seed=1)))
    assert torch.equal(made._with_noise(batch), batch.features["tiny"])
    made(batch, PROGRESS, "generator")["loss"].sum.backward()
    assert made.noise.weight.grad is not None
    assert made.noise.weight.grad.abs().max() > 0, "the noise is learnt to be used"


def test_each_phase_has_its_own_parameters(objective: Adversarial) -> None:
    evaluator, generator = ({id(p) for p in module.parameters()} for module in objective.phases().values())
    assert not evaluator & generator
    assert evaluator | generator == {id(p) for p in objective.parameters()}


def test_an_empty_share(objective: Adversarial, tiny_data: Data, batch: Batch) -> None:
    source = BatchSource(*tiny_data, "train", 4, negatives=2, world=5, rank=4)
    empty = source.at(1)
    assert not empty.ids
    for phase in ("evaluator", "generator"):
        totals = objective(empty, PROGRESS, phase)
        assert totals.keys() == objective(batch, PROGRESS, phase).keys()
        assert all(total.count == 0 and total.sum == 0 for total in totals.values())
