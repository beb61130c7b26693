"""Specificity training against naive loops: the four losses, what the retriever reads, and what is logged."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from support.close import assert_close
from support.tiny import WORDS, make_captioner, make_data, make_retriever
from tellapart.data.batches import BatchSource
from tellapart.data.neighbours import nearest_images
from tellapart.data.records import Dataset
from tellapart.errors import DataError, RecipeError
from tellapart.objectives.base import Needs, Progress, Roles, Start
from tellapart.objectives.composed import Composed, ComposedSettings
from tellapart.objectives.specificity import (
    LOSSES,
    LSTMS,
    Specificity,
    SpecificitySettings,
    contrastive_similarity_loss,
    similarity_loss,
)
from tellapart.text import END, START, Vocabulary

PROGRESS = Progress(5, 10)
LIMIT = 4
REVERSED = Vocabulary([*reversed(WORDS[:-1]), "green"])


def make(name: str = "adaptive-attention", end: float = -0.5, **settings: Any) -> Specificity:
    """Captions of at most four words; the retriever and the reference have words of their own."""
    chosen = SpecificitySettings(**{"top": 0.5, **settings})
    target = make_captioner(1, Vocabulary(WORDS, max_words=LIMIT), name)
    with torch.no_grad():
        target.predict.bias[END] += end
    models = {
        "retriever": make_retriever(2, REVERSED),
        "reference": make_captioner(3, REVERSED, "neuraltalk"),
    }
    return Specificity(chosen, Roles(target, **{role: models[role] for role in Specificity.needs(chosen).roles}))


def make_source(split: str = "train", images: int = 6, captioned_only: bool = False, **settings: Any) -> BatchSource:
    return BatchSource(*make_data(), split, images, seed=2, captioned_only=captioned_only, **settings)


def without_captions(dataset: Dataset) -> Dataset:
    return replace(dataset, records=tuple(replace(record, captions=()) for record in dataset))


# --- the four losses --------------------------------------------------------------------------------------------------


def naive_loss(name: str, c: list[float], own: list[float], contrast: list[float]) -> float:
    """Equations 2 to 5 of one example, number by number."""

    def product(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    def cosine(a: list[float], b: list[float]) -> float:
        return product(a, b) / (math.sqrt(product(a, a)) * math.sqrt(product(b, b)))

    if name == "dp":
        return -product(c, own)
    if name == "cos":
        return -cosine(c, own)
    if name == "cdp":
        return max(0.0, product(c, contrast) - product(c, own))
    return max(0.0, cosine(c, contrast) - cosine(c, own))


def loss_of(name: str, c: torch.Tensor, own: torch.Tensor, contrast: torch.Tensor) -> torch.Tensor:
    similarity, contrastive = LOSSES[name]
    if not contrastive:
        return similarity_loss(similarity(c, own))
    return contrastive_similarity_loss(similarity(c, own), similarity(c, contrast))


@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients_of_the_losses(name: str) -> None:
    """Gradients by central differences of the naive loop, in double precision."""
    rng = np.random.default_rng(0)
    captions, own, contrast = (rng.normal(size=(7, 5)) for _ in range(3))
    c = torch.tensor(captions, dtype=torch.float32, requires_grad=True)
    found = loss_of(name, c, torch.tensor(own), torch.tensor(contrast))
    found.sum().backward()
    expected = [naive_loss(name, *(x.tolist() for x in rows)) for rows in zip(captions, own, contrast, strict=True)]
    assert_close(found, np.array(expected))
    assert any(value == 0 for value in expected) == any(value == 0 for value in found.tolist()) == LOSSES[name][1]
    step, slopes = 1e-5, np.empty_like(captions)
    for row, column in np.ndindex(*captions.shape):
        values = []
        for sign in (1, -1):
            moved = captions[row].copy()
            moved[column] += sign * step
            values.append(naive_loss(name, moved.tolist(), own[row].tolist(), contrast[row].tolist()))
        slopes[row, column] = (values[0] - values[1]) / (2 * step)
    assert_close(c.grad, slopes)


# --- the objective ----------------------------------------------------------------------------------------------------


def greedy(objective: Specificity, features: torch.Tensor) -> list[int]:
    captioner = objective.target
    state = captioner.start(captioner.encode(features[None]), torch.tensor([0]))
    words, token = [], START
    for _ in range(LIMIT):
        log_probs, state = captioner.step(state, torch.tensor([token]))
        token = int(log_probs[0].argmax())
        if token == END:
            break
        words.append(token)
    return words


@torch.no_grad()
def naive(objective: Specificity, source: BatchSource, step: int) -> dict[str, float]:
    """The figures of a batch by naive loops: greedy words as a string, read by the retriever."""
    batch, retriever = source.at(step), objective.frozen["retriever"]
    pooled = source.store.pooled(source.rows)
    count = max(1, round(objective.settings.top * len(source.rows)))
    nearest = nearest_images(pooled, count)
    chance = batch.uniform("similar image")
    sums: dict[str, list[float]] = {
        name: [] for name in ("loss", "similarity", "contrast", "closer", "empty", "words", "repeated", "doubled")
    }
    for row, id in enumerate(batch.ids):
        features = batch.features["tiny"][row]
        words = greedy(objective, features)
        sums["empty"].append(float(not words))
        sums["words"].append(len(words))
        sums["repeated"] += [float(word in words[:place]) for place, word in enumerate(words)]
        sums["doubled"] += [float(place > 0 and word == words[place - 1]) for place, word in enumerate(words)]
        if not words:
            continue
        number = [record.id for record in source.records].index(id)
        other = nearest[number, int(float(chance[row]) * count)]
        grid = torch.from_numpy(source.store.grid([source.rows[other]]))
        text = " ".join(objective.target.vocabulary.tokens[word] for word in words)
        c = retriever.embed_texts([text])[0].tolist()
        i, contrast = (retriever.embed_images(one)[0].tolist() for one in (features[None], grid))
        name = objective.settings.loss
        sums["loss"].append(naive_loss(name, c, i, contrast))
        alone = {"cdp": "dp", "ccos": "cos"}.get(name, name)
        sums["similarity"].append(-naive_loss(alone, c, i, contrast))
        sums["contrast"].append(-naive_loss(alone, c, contrast, i))
        sums["closer"].append(float(sums["similarity"][-1] > sums["contrast"][-1]))
    return {name: sum(values) / len(values) for name, values in sums.items()}


@pytest.mark.parametrize("loss", LOSSES)
def test_figures_equal_naive_loops(loss: str) -> None:
    objective, source = make(loss=loss), make_source(images=4)
    for step in range(2):  # the second batch is smaller
        found = objective(source.at(step), PROGRESS)
        expected = naive(objective, source, step)
        for name, total in found.items():
            assert_close(total.sum / total.count, expected[name], name)
    assert ("contrast" in found) == LOSSES[loss][1]


def test_words_without_a_place_in_the_retriever_are_zero_vectors() -> None:
    """The captioner says "two", which the retriever does not know."""
    objective = make(loss="dp")
    said = objective._speak(make_source().at(0))
    objective.target.predict.bias.data[objective.target.vocabulary.tokens.index("two")] += 50.0
    again = objective._speak(make_source().at(0))
    assert not torch.equal(said.tokens, again.tokens)
    retriever = objective.frozen["retriever"]
    found = objective.words.embed_word_weights(again.weights, again.lengths)
    assert_close(found, retriever.embed_texts(["zzz zzz zzz zzz"] * len(found)))


def test_dot_products_are_of_raw_projections() -> None:
    """Otherwise DP would be Cos, as in the official code."""
    batch = make_source().at(0)
    dp, cos = (make(loss=loss)(batch, PROGRESS)["loss"] for loss in ("dp", "cos"))
    assert cos.sum.abs() <= cos.count
    assert (dp.sum - cos.sum).abs() > 0.1


@pytest.mark.parametrize("name", ["neuraltalk", "adaptive-attention", "updown", "transformer", "meshed-memory"])
def test_gradients_reach_every_captioner_but_not_the_retriever(name: str) -> None:
    objective, batch = make(name, loss="cos"), make_source().at(0)
    total = objective(batch, PROGRESS)["loss"]
    total.sum.backward()
    gradients = [p.grad for p in objective.target.parameters() if p.grad is not None]
    assert max(float(gradient.abs().max()) for gradient in gradients) > 1e-4
    assert all(p.grad is None for p in objective.frozen["retriever"].parameters())


def test_captions_without_words_are_counted_and_have_no_loss() -> None:
    objective = make(end=100.0, fluency=True)
    found = objective(make_source().at(0), PROGRESS)
    assert (found["loss"].count, float(found["loss"].sum)) == (0, 0.0)
    assert (found["empty"].count, float(found["empty"].sum)) == (6, 6.0)


def test_an_empty_share_has_the_same_names() -> None:
    for settings in ({}, {"loss": "dp"}, {"fluency": True}):
        objective = make(**settings)
        source = BatchSource(*make_data(), "train", 1, rank=1, world=2, captioned_only=False)
        assert not source.at(0).ids
        empty = objective(source.at(0), PROGRESS)
        assert set(empty) == set(objective(make_source().at(0), PROGRESS))
        assert all(total.count == 0 for total in empty.values())


def test_fluency_is_the_mean_log_probability_of_tokens_under_the_reference() -> None:
    objective, batch = make(fluency=True), make_source().at(0)
    found, reference = objective(batch, PROGRESS)["fluency"], objective.frozen["reference"]
    expected, count = 0.0, 0
    for features in batch.features["tiny"]:
        words = [objective.target.vocabulary.tokens[word] for word in greedy(objective, features)]
        tokens = reference.tokenize([" ".join(words)])
        memory = reference.encode(features[None])
        expected += float(reference.log_prob(memory, tokens, torch.tensor([0])))
        count += len(words) + 1
    assert found.count == count
    assert_close(found.sum, expected)


def test_gumbel_noise_is_new_each_step_and_the_same_for_an_image_in_any_share() -> None:
    objective = make(decoding="gumbel", loss="cos")
    whole = objective._speak(make_source().at(0)).tokens
    shares = [
        objective._speak(BatchSource(*make_data(), "train", 6, seed=2, rank=rank, world=2).at(0)).tokens
        for rank in (0, 1)
    ]
    assert torch.equal(torch.cat(shares), whole)
    other_epoch = make_source().at(1)
    assert not torch.equal(objective._speak(other_epoch).tokens, whole)


# --- similar images ---------------------------------------------------------------------------------------------------


def test_similar_images_are_uniform_in_the_nearest_share() -> None:
    source = make_source()
    batch, count = source.at(0), 3
    nearest = nearest_images(source.store.pooled(source.rows), count)
    for row, number in enumerate(source.numbers(batch.ids).tolist()):
        drawn = []
        for chance in (0.0, 0.32, 0.34, 0.65, 0.67, 1 - 2**-24):
            grid = source.similar(batch, torch.full((len(batch.ids),), chance), 0.5, "tiny")[row].numpy()
            match = [k for k in range(len(source.rows)) if np.array_equal(source.store.grid([source.rows[k]])[0], grid)]
            drawn += match
        assert drawn == np.repeat(nearest[number], 2).tolist()
        assert number not in drawn


def test_similar_images_are_found_before_the_first_step() -> None:
    sources = {split: make_source(split) for split in ("train", "val")}
    make().before_training(Start(sources, 10))
    for source in sources.values():
        assert ("nearest", 0.5) in source._memo
    plain = {split: make_source(split) for split in ("train", "val")}
    make(loss="dp").before_training(Start(plain, 10))
    assert not any(source._memo for source in plain.values())


def test_similar_images_need_a_second_image() -> None:
    dataset, store = make_data()
    alone = Dataset("one", dataset.root, (dataset.records[0],))
    with pytest.raises(DataError, match="has one; add images"):
        BatchSource(alone, store, "train", 1, captioned_only=False).nearest(0.01)


# --- pictures without captions ----------------------------------------------------------------------------------------


def test_captions_are_not_needed() -> None:
    """Figures and gradients are those of the same pictures with captions."""
    dataset, store = make_data()
    bare = BatchSource(without_captions(dataset), store, "train", 4, seed=2, bucket_batches=2, captioned_only=False)
    assert len(bare.records) == len(make_source().records)
    for step in range(2):
        captioned = make_source(images=4).at(step)
        assert bare.at(step).captions == []
        assert bare.at(step).ids == captioned.ids
        results = []
        for batch in (bare.at(step), captioned):
            objective = make(loss="cos")
            totals = objective(batch, PROGRESS)
            totals["loss"].sum.backward()
            gradients = [p.grad for p in objective.target.parameters() if p.grad is not None]
            results.append(({name: (float(t.sum.detach()), t.count) for name, t in totals.items()}, gradients))
        (found, own), (expected, other) = results
        assert found.keys() == expected.keys()
        for name, total in found.items():
            assert_close(total[0], expected[name][0])
            assert total[1] == expected[name][1]
        assert any(one.abs().max() > 0 for one in own)
        for one, two in zip(own, other, strict=True):
            assert_close(one, two)
    assert Specificity.needs(SpecificitySettings()) == Needs({"retriever": "retriever"}, captions=False)
    composed = ComposedSettings(parts={"specificity": {}, "likelihood": {}})
    assert Composed.needs(composed).captions


def test_other_objectives_leave_pictures_without_captions_out() -> None:
    dataset, store = make_data()
    half = replace(dataset, records=(replace(dataset.records[0], captions=()), *dataset.records[1:]))
    sizes = [len(BatchSource(half, store, "train", 4, captioned_only=only).records) for only in (True, False)]
    assert sizes == [5, 6]


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LSTMS)
def test_only_the_lstms_are_trained(name: str) -> None:
    objective = make(name, update="lstm", loss="cos")
    total = objective(make_source().at(0), PROGRESS)["loss"]
    total.sum.backward()
    trained = {path.split(".")[1] for path, p in objective.named_parameters() if p.grad is not None}
    assert trained == set(LSTMS[name])
    everything = make(name, loss="cos")
    assert all(p.requires_grad for p in everything.target.parameters())


def test_a_captioner_without_lstm_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"objective\.update: the transformer captioner has no LSTM"):
        make("transformer", update="lstm")


def test_retrievers() -> None:
    target = make_captioner()
    words = make_retriever(2, name="coder")
    for loss in ("cos", "ccos"):
        objective = Specificity(SpecificitySettings(loss=loss, top=0.5), Roles(target, retriever=words))
        total = objective(make_source().at(0), PROGRESS)["similarity"]
        assert 0 < abs(float(total.sum)) <= total.count
    for loss in ("dp", "cdp"):
        with pytest.raises(RecipeError, match=f"objective.loss: {loss} needs embeddings that are not normalised"):
            Specificity(SpecificitySettings(loss=loss), Roles(target, retriever=words))
    with pytest.raises(RecipeError, match="the scan retriever has no vector"):
        Specificity(SpecificitySettings(), Roles(target, retriever=make_retriever(name="scan")))


def test_composes_with_likelihood_contrast_and_self_critical_training() -> None:
    parts: dict[str, dict[str, Any]] = {
        "specificity": {"loss": "ccos", "top": 0.5, "weight": 2.0},
        "likelihood": {"weight": 0.5},
        "contrastive": {"negatives": 2},
        "self-critical": {"samples": 2, "reward": {"cider": 1.0}},
    }
    settings = ComposedSettings(parts=parts)
    models = {"retriever": make_retriever(2), "reference": make_captioner(2)}
    composed = Composed(settings, Roles(make_captioner(1), **models))
    assert Composed.needs(settings) == Needs({"retriever": "retriever", "reference": "captioner"}, 2, captions=True)
    found = composed(make_source(negatives=2, captioned_only=True).at(0), PROGRESS)
    alone = Specificity(SpecificitySettings(top=0.5), Roles(make_captioner(1), retriever=models["retriever"]))
    expected = alone(make_source(negatives=2, captioned_only=True).at(0), PROGRESS)
    for name, total in expected.items():
        assert_close(found[f"specificity/{name}"].sum, total.sum)
    assert {name.split("/")[0] for name in composed.losses()} == set(parts)
