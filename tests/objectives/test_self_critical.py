"""Self-critical training against naive loops: sampling, rewards, baselines, the loss and its gradient."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from support.close import assert_close
from support.tiny import WORDS, make_captioner, make_data, make_objective, make_retriever
from tellapart.captioners.base import Captioner
from tellapart.data.batches import Batch, BatchSource, Kind
from tellapart.data.neighbours import nearest_images
from tellapart.errors import RecipeError
from tellapart.metrics.token_cider import TokenReferences
from tellapart.objectives import rewards
from tellapart.objectives.base import Needs, Progress, Roles, Start
from tellapart.objectives.composed import Composed, ComposedSettings
from tellapart.objectives.rewards import REWARDS, CaptionTables, Samples
from tellapart.objectives.self_critical import SelfCritical, SelfCriticalSettings
from tellapart.text import END, PAD, START, UNKNOWN, Vocabulary

PROGRESS = Progress(5, 10)
LIMIT = 4
ALL = {"cider": 1.0, "cider_between": 0.5, "similarity": 2.0, "margin": 1.5, "own_likelihood": 0.25}


def make(seed: int = 1, limit: int = LIMIT, dropout: float = 0.0, **settings: Any) -> SelfCritical:
    """Captions of at most four words, some cut there; the reference and the retriever have words of their own."""
    chosen = SelfCriticalSettings(**settings)
    target = make_captioner(seed, Vocabulary(WORDS, max_words=limit), dropout=dropout)
    with torch.no_grad():
        target.predict.bias[END] += 1.0
    models = {
        "reference": make_captioner(2, Vocabulary([*reversed(WORDS[:-1]), "green"]), "neuraltalk"),
        "retriever": make_retriever(2),
    }
    roles = SelfCritical.needs(chosen).roles
    return SelfCritical(chosen, Roles(target, **{role: models[role] for role in roles})).eval()


def make_source(objective: SelfCritical, split: str = "train", images: int = 4, **settings: Any) -> BatchSource:
    others = objective.needs(objective.settings).image_negatives
    return BatchSource(*make_data(), split, images_per_batch=images, seed=2, image_negatives=others, **settings)


# --- naive loops from the equations ---------------------------------------------------------------------------------


@torch.no_grad()
def naive_sample(captioner: Captioner, features: torch.Tensor, chance: torch.Tensor | None) -> list[int]:
    """One caption of one image, word by word; without random numbers the likeliest words."""
    memory = captioner.encode(features[None])
    state = captioner.start(memory, torch.tensor([0]))
    said, token = [], START
    for length in range(captioner.vocabulary.max_words):
        log_probs, state = captioner.step(state, torch.tensor([token]))
        weights = log_probs[0].exp()
        if chance is None:
            token = int(weights.argmax())
        else:
            token, passed = -1, 0.0
            while passed <= float(chance[length]):
                token += 1
                passed += float(weights[token])
        said.append(token)
        if token == END:
            break
    return said


def naive_words(row: list[int], limit: int, end_token: bool) -> list[str]:
    """The words that the reward sees: tokens as words; a caption of the greatest length has no end."""
    words = [token for token in row if token not in (PAD, END)]
    return [str(token) for token in words] + (["end"] if end_token and len(words) < limit else [])


def naive_cider_d(said: list[str], references: list[list[str]], frequency: Counter[Any], images: int) -> float:
    """CIDEr-D by its formula."""

    def vector(words: list[str], n: int) -> dict[tuple[str, ...], float]:
        counts = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
        return {gram: k * (math.log(images) - math.log(max(1, frequency[gram]))) for gram, k in counts.items()}

    total = 0.0
    for reference in references:
        for n in range(1, 5):
            c, r = vector(said, n), vector(reference, n)
            scale = math.sqrt(sum(w * w for w in c.values())) * math.sqrt(sum(w * w for w in r.values()))
            dot = sum(min(c[gram], r[gram]) * r[gram] for gram in c if gram in r)
            penalty = math.exp(-((len(said) - len(reference)) ** 2) / (2 * 6**2))
            total += penalty * dot / scale if scale else 0.0
    return 10 * total / (4 * len(references))


class NaiveCider:
    """References and document frequencies of splits, with dictionaries."""

    def __init__(self, objective: SelfCritical, train: BatchSource, source: BatchSource) -> None:
        self.objective = objective
        self.references = self.read(source)
        training = self.read(train)
        self.images = len(training)
        self.frequency: Counter[Any] = Counter()
        for captions in training:
            grams = {tuple(c[i : i + n]) for c in captions for n in range(1, 5) for i in range(len(c) - n + 1)}
            self.frequency.update(grams)

    def read(self, source: BatchSource) -> list[list[list[str]]]:
        encode = self.objective.target.vocabulary.encode
        return [[self.words(encode(caption)) for caption in record.captions] for record in source.records]

    def words(self, row: list[int]) -> list[str]:
        return naive_words(row, self.objective.target.vocabulary.max_words, self.objective.settings.end_token)

    def score(self, row: list[int], image: int) -> float:
        said = ["never" if word == str(UNKNOWN) else word for word in self.words(row)]
        return naive_cider_d(said, self.references[image], self.frequency, self.images)


def naive_other_images(batch: Batch, image: int, count: int) -> list[int]:
    """The image rows drawn for the first true pair of an image."""
    true = [i for i, kind in enumerate(batch.pairs.kind.tolist()) if kind == Kind.POSITIVE]
    drawn = [
        row for row, kind in zip(batch.pairs.image_row, batch.pairs.kind, strict=True) if kind == Kind.IMAGE_NEGATIVE
    ]
    each = len(drawn) // len(true)
    place = next(k for k, i in enumerate(true) if batch.pairs.image_row[i] == image)
    return [int(row) for row in drawn[place * each : place * each + count]]


def naive_reward(objective: SelfCritical, name: str, batch: Batch, image: int, row: list[int]) -> float:
    settings, source = objective.settings, batch.source
    assert source is not None
    cider = NaiveCider(objective, source, source)
    number = int(batch.image_numbers()[image])
    if name == "cider":
        return cider.score(row, number)
    if name == "cider_between":
        pooled = source.store.pooled(source.rows)
        similar = nearest_images(pooled, min(settings.neighbours, len(pooled) - 1))[number]
        return -float(np.mean([cider.score(row, int(other)) for other in similar]))
    caption = objective.target.vocabulary.decode(row)
    rows = [image] if name == "similarity" else [image, *naive_other_images(batch, image, settings.others)]
    features = batch.features["tiny"]
    if name == "own_likelihood":
        reference = objective.frozen["reference"]
        tokens = reference.tokenize([caption])
        own, *others = (
            float(reference.log_prob(reference.encode(features[r : r + 1]), tokens, torch.tensor([0]))) for r in rows
        )
        return (own - sum(others) / len(others)) / tokens.shape[1]
    retriever = objective.frozen["retriever"]
    text = retriever.embed_texts([caption])
    own, *others = (float(retriever.similarity(retriever.embed_images(features[r : r + 1]), text)) for r in rows)
    if name == "similarity":
        return own
    return own - (max(others) if settings.hardest else sum(others) / len(others))


def naive_step(objective: SelfCritical, batch: Batch) -> tuple[torch.Tensor, dict[str, float], list[list[list[int]]]]:
    """The loss, the mean rewards and the samples of a batch, one caption after the other."""
    settings, target = objective.settings, objective.target
    chance = batch.uniform("self-critical", settings.samples, target.vocabulary.max_words)
    loss, tokens, sums, said = torch.zeros(()), 0, Counter[str](), []
    for image in range(len(batch.ids)):
        features = batch.features["tiny"][image]
        rows = [naive_sample(target, features, chance[image, k]) for k in range(settings.samples)]
        greedy = naive_sample(target, features, None)
        said.append(rows)

        def reward_of(row: list[int], image: int = image) -> dict[str, float]:
            return {name: naive_reward(objective, name, batch, image, row) for name in settings.weights}

        each = [reward_of(row) for row in rows]
        totals = [sum(settings.reward[name] * value for name, value in one.items()) for one in each]
        for one in each:
            sums.update(one)
        for k, row in enumerate(rows):
            if settings.baseline == "others":
                baseline = sum(totals[j] for j in range(len(rows)) if j != k) / (len(rows) - 1)
            else:
                baseline = sum(settings.reward[name] * value for name, value in reward_of(greedy).items())
            # A token row must have an end token; one that was not sampled is not scored.
            full = torch.tensor([row if row[-1] == END else [*row, END]])
            scores = target.log_prob(target.encode(features[None]), full, torch.tensor([0]), per_token=True)[0]
            loss = loss - (totals[k] - baseline) * scores[: len(row)].sum()
            tokens += len(row)
    captions = len(batch.ids) * settings.samples
    return loss / tokens, {name: sums[name] / captions for name in settings.weights}, said


# --- the objective --------------------------------------------------------------------------------------------------

CASES: dict[str, dict[str, Any]] = {
    "cider": {},
    "greedy": {"baseline": "greedy", "samples": 2},
    "greedy-one-sample": {"baseline": "greedy", "samples": 1},
    "no-end-token": {"end_token": False, "samples": 3},
    "all": {"reward": ALL, "others": 2, "neighbours": 2, "samples": 3},
    "mean-margin": {"reward": {"margin": 1.0}, "others": 3, "hardest": False, "samples": 2},
    "all-greedy": {"reward": ALL, "others": 1, "neighbours": 9, "samples": 2, "baseline": "greedy"},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("training", [True, False])
def test_the_loss_and_its_gradient_equal_a_naive_loop(case: str, training: bool) -> None:
    """In training there is dropout in the target, which neither the samples nor their scores have."""
    objective = make(**CASES[case], dropout=0.5 if training else 0.0)
    batch = make_source(objective, images=6).at(0)
    expected, rewards, said = naive_step(objective, batch)
    totals = objective.train(training)(batch, PROGRESS)
    assert objective.target.training == training
    lengths = [len(row) for rows in said for row in rows]
    assert totals["loss"].count == sum(lengths)
    assert {row[-1] == END for rows in said for row in rows} == {True, False}, "some captions end, some are cut"
    loss = totals["loss"].sum / totals["loss"].count
    scale = max(1.0, float(totals["advantage"].sum)) / totals["loss"].count
    assert abs(float((loss - expected).detach())) < 1e-4 * scale
    for name, value in rewards.items():
        assert totals[f"reward_{name}"].count == len(lengths)
        assert float(totals[f"reward_{name}"].sum) / len(lengths) == pytest.approx(value, rel=1e-4, abs=1e-5), name
    parameters = list(objective.target.parameters())
    found, wanted = (torch.autograd.grad(value, parameters, allow_unused=True) for value in (loss, expected))
    kept = [(one, other) for one, other in zip(found, wanted, strict=True) if other is not None]
    assert max(float(other.abs().max()) for _, other in kept) > 1e-4
    assert_close([one for one, _ in kept], [other for _, other in kept], case)


def test_the_figures() -> None:
    objective = make(samples=3, baseline="greedy", reward={"cider": 2.0, "similarity": 0.0})
    batch = make_source(objective).at(0)
    totals = objective(batch, PROGRESS)
    _, rewards, said = naive_step(objective, batch)
    means = {name: float(total.sum.detach()) / total.count for name, total in totals.items()}
    assert means["reward"] == pytest.approx(2 * rewards["cider"], rel=1e-4)
    assert "reward_similarity" not in means
    rows = [row for image in said for row in image]
    words = [[token for token in row if token != END] for row in rows]
    assert means["words"] == pytest.approx(sum(map(len, words)) / len(words))
    assert means["distinct"] == pytest.approx(sum(len(set(map(tuple, image))) / 3 for image in said) / len(said))
    decode = objective.target.vocabulary.decode
    bad = [decode(row).split()[-1:] == ["a"] for row in rows]  # the only such word of the vocabulary
    assert means["bad_endings"] == pytest.approx(sum(bad) / len(bad))
    assert 0 <= means["greedy_bad_endings"] <= 1
    assert means["log_prob"] < 0


def test_validation_has_references_of_its_own_and_frequencies_of_the_training_split() -> None:
    objective = make(samples=3)
    train, val = make_source(objective), make_source(objective, "val", images=3)
    objective.train()(make_source(objective, images=1, rank=1, world=2).at(0), PROGRESS)  # an empty share is enough
    batch = val.at(0)
    totals = objective.eval()(batch, PROGRESS)
    _, _, said = naive_step(objective, batch)
    naive = NaiveCider(objective, train, val)
    numbers = batch.image_numbers().tolist()
    expected = [naive.score(row, number) for number, rows in zip(numbers, said, strict=True) for row in rows]
    assert sum(expected) > 0
    assert float(totals["reward_cider"].sum) == pytest.approx(sum(expected), rel=1e-4)


def test_an_unknown_word_and_no_words_earn_nothing() -> None:
    objective = make(samples=2)
    batch = make_source(objective, images=2).at(0)
    source = batch.source
    assert source is not None
    source.pool.captions[:] = ["purple"] * len(source.pool.captions)  # unknown: <unk> in all references
    tokens = torch.tensor([[[UNKNOWN, END], [END, PAD]]] * 2)
    samples = Samples(batch, tokens, [""] * 4)
    assert objective.rewards["cider"](samples).tolist() == [[0.0, 0.0]] * 2


def test_one_sample_has_no_others() -> None:
    with pytest.raises(ValidationError, match="give at least 2, or set baseline to greedy"):
        SelfCriticalSettings(samples=1)


@pytest.mark.parametrize(
    ("reward", "message"),
    [({"cidr": 1.0}, "there is no reward 'cidr'"), ({"cider": 0.0}, "no reward has a weight"), ({}, "no reward")],
)
def test_rewards_that_cannot_be_used(reward: dict[str, float], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SelfCriticalSettings(reward=reward)


def test_what_is_needed_follows_the_weights() -> None:
    settings = {"others": 3}
    assert SelfCritical.needs(SelfCriticalSettings(**settings)) == Needs()
    zero = {"cider": 1.0, "similarity": 0.0, "own_likelihood": 0.0}
    assert SelfCritical.needs(SelfCriticalSettings(reward=zero, **settings)) == Needs()
    wanted = {
        "cider_between": Needs(),
        "similarity": Needs({"retriever": "retriever"}),
        "margin": Needs({"retriever": "retriever"}, image_negatives=3),
        "own_likelihood": Needs({"reference": "captioner"}, image_negatives=3),
    }
    for name, needs in wanted.items():
        assert SelfCritical.needs(SelfCriticalSettings(reward={name: 0.5}, **settings)) == needs
    assert set(REWARDS) == {"cider", *wanted}
    with pytest.raises(RecipeError, match="needs a retriever"):
        SelfCritical(SelfCriticalSettings(reward={"margin": 1.0}), Roles(make_captioner()))


def test_a_batch_made_by_hand_has_no_references() -> None:
    objective = make()
    batch = make_source(objective).at(0)
    batch.source = None
    with pytest.raises(RecipeError, match="made by a BatchSource"):
        objective(batch, PROGRESS)


def test_an_empty_share_has_the_same_names() -> None:
    for settings in ({}, {"baseline": "greedy"}):
        objective = make(**settings)
        full = objective(make_source(objective).at(0), PROGRESS)
        share = make_source(objective, images=1, rank=1, world=2).at(0)
        empty = objective(share, PROGRESS)
        assert empty.keys() == full.keys()
        assert all(total.count == 0 and float(total.sum) == 0 for total in empty.values())


def test_with_likelihood_as_parts_of_one_objective() -> None:
    parts = {"likelihood": {"weight": 0.5}, "self-critical": {"samples": 2, "reward": {"margin": 1.0}, "others": 2}}
    settings = ComposedSettings(parts=parts)
    assert Composed.needs(settings) == Needs({"retriever": "retriever"}, image_negatives=2)
    objective = make_objective("composed", **settings.model_dump())
    batch = BatchSource(*make_data(), "train", 4, image_negatives=2).at(0)
    totals = objective(batch, PROGRESS)
    assert objective.losses() == {"likelihood/loss": 0.5, "self-critical/loss": 1.0}
    alone = make_objective("self-critical", **parts["self-critical"])(batch, PROGRESS)
    assert_close(totals["self-critical/reward"].sum, alone["reward"].sum)


@pytest.mark.parametrize("baseline", ["others", "greedy"])
def test_some_steps_raise_the_reward(baseline: str) -> None:
    """The mean CIDEr-D of new samples is far higher than at the start."""
    objective = make(limit=8, samples=5, baseline=baseline)
    source = make_source(objective, images=6)
    optimiser = torch.optim.Adam(objective.target.parameters(), lr=0.02)

    def mean_reward() -> float:
        objective.eval()
        totals = [objective(source.at(1000 + step), PROGRESS)["reward"] for step in range(10)]
        return sum(float(total.sum) for total in totals) / sum(total.count for total in totals)

    with torch.no_grad():
        before = mean_reward()
    for step in range(60):
        total = objective.train()(source.at(step), PROGRESS)["loss"]
        optimiser.zero_grad()
        (total.sum / total.count).backward()
        optimiser.step()
    with torch.no_grad():
        after = mean_reward()
    assert after > 1.4 * before > 0


# --- kept tables ----------------------------------------------------------------------------------------------------


def test_tokens_and_frequencies_of_many_captions_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found again by the same captions and words, and made again where they are damaged."""
    read: list[int] = []
    real = CaptionTables._read

    def counted(tables: CaptionTables, source: BatchSource) -> dict[str, np.ndarray]:
        read.append(1)
        return real(tables, source)

    monkeypatch.setattr(CaptionTables, "_read", counted)

    def rewarded(split: str = "train", seed: int = 1, **settings: Any) -> tuple[list[float], int]:
        """Rewards of a batch, and how often captions were read for them."""
        objective = make(seed, **settings)
        source = make_source(objective, split)
        source.store.folder = tmp_path
        read.clear()
        objective.before_training(Start({split: source}, 10))
        figures = objective(source.at(0), PROGRESS)
        return [float(figures[name].sum) for name in ("reward", "advantage")], len(read)

    def kept() -> int:
        return len(list(tmp_path.iterdir()))

    expected = rewarded()
    assert (expected[1], kept()) == (1, 0), "these are few"
    monkeypatch.setattr(rewards, "KEPT_FROM", 3)
    assert rewarded() == expected
    assert kept() == 2
    monkeypatch.setattr(TokenReferences, "frequencies", lambda *given: pytest.fail("counted again"))
    assert rewarded() == (expected[0], 0), "found"
    monkeypatch.undo()
    monkeypatch.setattr(rewards, "KEPT_FROM", 3)
    monkeypatch.setattr(CaptionTables, "_read", counted)
    for number, changed in enumerate(({"split": "val"}, {"limit": LIMIT + 1}, {"end_token": False}), start=2):
        assert rewarded(**changed)[1] == 1, "other tokens are not taken for these"
        assert kept() == 2 * number
    (tokens, *_) = sorted(tmp_path.glob("reward-tokens-*"), key=lambda path: path.stat().st_mtime_ns)
    content = bytearray(tokens.read_bytes())
    content[content.index(b"NUMPY") + 200] ^= 1
    tokens.write_bytes(content)
    capsys.readouterr()
    assert rewarded() == expected
    assert f"{tokens}: is damaged (" in capsys.readouterr().err
    assert rewarded() == (expected[0], 0)
