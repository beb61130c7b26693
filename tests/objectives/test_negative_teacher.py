"""UNKT's terms against loops over single captions, tokens, layers, heads and words, on values and gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from support.close import assert_close
from support.tiny import WORDS, make_captioner, make_data
from tellapart.captioners.base import Captioner, Grouping
from tellapart.data.batches import Batch, BatchSource, Kind
from tellapart.decoding.ensemble import Ensemble
from tellapart.errors import RecipeError
from tellapart.objectives.base import Needs, Progress, Roles, Total
from tellapart.objectives.composed import Composed, ComposedSettings
from tellapart.objectives.contrastive import Contrastive, ContrastiveSettings
from tellapart.objectives.negative_teacher import (
    NegativeTeacher,
    NegativeTeacherSettings,
    exp_minus_kl,
    hard_unlikelihood,
    log_one_minus,
    progressive_weight,
    soft_unlikelihood,
)
from tellapart.text import END, START, Vocabulary

MIDDLE = Progress(5, 10)
NO_ATTENTION = {"self_attention": False, "cross_attention": False}


def make(captioner: str = "transformer", **settings: Any) -> NegativeTeacher:
    chosen = NegativeTeacherSettings(**settings)
    roles = NegativeTeacher.needs(chosen).roles
    frozen = {"negative_teacher": make_captioner(2, name=captioner)} if roles else {}
    return NegativeTeacher(chosen, Roles(make_captioner(1, name=captioner), **frozen))


def make_batch(negatives: int = 0, images: int = 5, **settings: Any) -> Batch:
    """Images with one to four captions of unequal lengths."""
    return BatchSource(*make_data(), "train", images, negatives=negatives, seed=2, **settings).at(0)


def assert_same(objective: NegativeTeacher, found: dict[str, Total], expected: dict[str, list[torch.Tensor]]) -> None:
    """Means over tokens, and their gradients."""
    parameters = [parameter for parameter in objective.target.parameters() if parameter.requires_grad]
    for name, values in expected.items():
        total = torch.stack(values).sum()
        weight = objective.weight(MIDDLE)
        weight = 1 - weight if name == "nll" else weight
        assert found[name].count == found[f"loss_{name}"].count == len(values), name
        assert_close(found[name].sum, total, name)
        assert_close(found[f"loss_{name}"].sum, weight * total, name)
        pair = [
            torch.autograd.grad(one, parameters, retain_graph=True, materialize_grads=True)
            for one in (found[f"loss_{name}"].sum, weight * total)
        ]
        assert_close(*pair, f"gradients of {name}", rounding=2e-4)


# --- naive loops ------------------------------------------------------------------------------------------------------


def step_by_step(captioner: Captioner, features: torch.Tensor, words: list[int]) -> list[torch.Tensor]:
    """The distribution of each word, from `step`."""
    state, token, found = captioner.start(captioner.encode(features[None]), torch.tensor([0])), START, []
    for word in words:
        log_probs, state = captioner.step(state, torch.tensor([token]))
        found.append(log_probs[0].exp())
        token = word
    return found


def greedy(captioner: Captioner, features: torch.Tensor) -> list[int]:
    state, token, words = captioner.start(captioner.encode(features[None]), torch.tensor([0])), START, []
    for _ in range(captioner.vocabulary.max_words):
        log_probs, state = captioner.step(state, torch.tensor([token]))
        token = int(log_probs[0].argmax())
        words.append(token)
        if token == END:
            return words
    return [*words, END]


def true_pairs(objective: NegativeTeacher, batch: Batch) -> list[tuple[torch.Tensor, list[int]]]:
    """Features and tokens of each true pair."""
    return [
        (
            batch.features["tiny"][batch.pairs.image_row[pair]],
            objective.target.vocabulary.encode(batch.captions[batch.pairs.caption_row[pair]]),
        )
        for pair in batch.pairs.of(Kind.POSITIVE).tolist()
    ]


def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """KL(P ‖ Q), number by number."""
    total = torch.zeros(())
    for one, other in zip(p, q, strict=True):
        if float(one) > 0:
            total = total + one * (one / other).log()
    return total


def naive_attention(model: Any, features: torch.Tensor, words: list[int]) -> list[list[list[torch.Tensor]]]:
    """Layer -> token -> the rows of attention weights of all heads, over words and over regions; by hand."""
    memory = model.encode(features[None])
    states = model._embed(torch.tensor([[START, *words[:-1]]]), 0)
    heads, width = model.settings.heads, model.settings.width // model.settings.heads
    grouping, found = Grouping.of(torch.tensor([0]), 1), []
    for layer, image in zip(model._layers(), memory.layers, strict=True):
        rows: list[list[torch.Tensor]] = [[] for _ in words]
        normal = layer.around_attention.before(states)[0]
        query, key = layer.attention.query(normal), layer.attention.key(normal)
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            for place in range(len(words)):
                scores = [query[place, part] @ key[other, part] / math.sqrt(width) for other in range(place + 1)]
                rows[place].append(torch.stack(scores).softmax(dim=0))
        own = layer.attention(normal[None], layer.attention.keys_and_values(normal[None]), causal=True)
        after = layer.around_attention.after(states, own)
        query = layer.look.query(layer.around_look.before(after))[0]
        for keys, _ in image:
            for head in range(heads):
                for place in range(len(words)):
                    part = query[place, head * width : (head + 1) * width]
                    rows[place].append((keys[0, head] @ part / math.sqrt(width)).softmax(dim=0))
        found.append(rows)
        states, _ = layer(states, image, grouping)
    return found


def naive(objective: NegativeTeacher, pairs: list[tuple[torch.Tensor, list[int]]]) -> dict[str, Any]:
    """L_pred, L_hid and L_att of each token of these captions."""
    target, teacher = objective.target, objective.frozen["negative_teacher"]
    found: dict[str, list[torch.Tensor]] = {"prediction": [], "hidden": [], "attention": []}
    for features, words in pairs:
        student = step_by_step(target, features, words)
        with torch.no_grad():
            negative = step_by_step(teacher, features, words)
        for p_s, p_n in zip(student, negative, strict=True):
            terms = [-p_n[k] * (1 - p_s[k]).log() for k in range(len(p_s)) if p_n[k] > 0]
            found["prediction"].append(torch.stack(terms).sum())
        row = torch.tensor([words])
        layers = []
        for model in (teacher, target):
            traces = model.traces(model.encode(features[None]), row, torch.tensor([0]))
            layers.append([layer[0] for layer in traces.layers])
        for place in range(len(words)):
            each = [
                torch.exp(-kl(n[place].detach().softmax(dim=0), s[place].softmax(dim=0)))
                for n, s in zip(*layers, strict=True)
            ]
            found["hidden"].append(torch.stack(each).sum())
        if objective.settings.attention:
            maps = [naive_attention(model, features, words) for model in (teacher, target)]
            for place in range(len(words)):
                each = []
                for of_teacher, of_target in zip(*maps, strict=True):
                    rows = zip(of_teacher[place], of_target[place], strict=True)
                    each.append(torch.stack([torch.exp(-kl(n.detach(), s)) for n, s in rows]).mean())
                found["attention"].append(torch.stack(each).sum())
    return found


# --- the terms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("captioner", ["transformer", "meshed-memory"])
def test_all_terms_of_transformers(captioner: str) -> None:
    objective, batch = make(captioner, lambda_max=0.6), make_batch()
    found = objective(batch, MIDDLE)
    pairs = true_pairs(objective, batch)
    likelihood = [
        -p[word].log()
        for features, words in pairs
        for p, word in zip(step_by_step(objective.target, features, words), words, strict=True)
    ]
    assert_same(objective, found, {"nll": likelihood, **naive(objective, pairs)})
    assert set(objective.losses()) == {"loss_nll", "loss_prediction", "loss_hidden", "loss_attention"}
    assert float(found["lambda"].sum) / found["lambda"].count == pytest.approx(objective.weight(MIDDLE))


@pytest.mark.parametrize("captioner", ["neuraltalk", "adaptive-attention", "updown"])
def test_prediction_and_hidden_states_of_lstms(captioner: str) -> None:
    objective, batch = make(captioner, **NO_ATTENTION), make_batch()
    found, expected = objective(batch, MIDDLE), naive(objective, true_pairs(objective, batch))
    del expected["attention"]
    assert_same(objective, found, expected)


@pytest.mark.parametrize("kept", [0, 1])
def test_one_kind_of_attention_alone(kept: int) -> None:
    """Self-attention comes first among the rows of a token, and has as many heads as attention to the image."""
    names = ("self_attention", "cross_attention")
    objective = make(prediction="none", hidden=False, **{names[1 - kept]: False})
    batch, expected = make_batch(images=2), []
    for features, words in true_pairs(objective, batch):
        maps = [
            naive_attention(model, features, words)
            for model in (objective.frozen["negative_teacher"], objective.target)
        ]
        for place in range(len(words)):
            each = []
            for of_teacher, of_target in zip(*maps, strict=True):
                rows = list(zip(of_teacher[place], of_target[place], strict=True))[2 * kept : 2 * kept + 2]
                each.append(torch.stack([torch.exp(-kl(n.detach(), s)) for n, s in rows]).mean())
            expected.append(torch.stack(each).sum())
    assert_same(objective, objective(batch, MIDDLE), {"attention": expected})


def test_temperature_of_both_models() -> None:
    objective, batch = make(temperature=2.0, hidden=False, **NO_ATTENTION), make_batch()
    target, teacher, expected = objective.target, objective.frozen["negative_teacher"], []
    for features, words in true_pairs(objective, batch):
        student, negative = (step_by_step(model, features, words) for model in (target, teacher))
        for p_s, p_n in zip(student, negative, strict=True):
            p_s, p_n = p_s.sqrt() / p_s.sqrt().sum(), (p_n.sqrt() / p_n.sqrt().sum()).detach()
            expected.append(-(p_n * (1 - p_s).log()).sum())
    assert_close(objective(batch, MIDDLE)["prediction"].sum, torch.stack(expected).sum())


def test_hard_targets_are_the_teachers_greedy_captions_with_their_own_prefix() -> None:
    objective, batch = make(prediction="hard", hidden=False, **NO_ATTENTION), make_batch()
    expected = []
    for features in batch.features["tiny"][: len(batch.ids)]:
        words = greedy(objective.frozen["negative_teacher"], features)
        said = step_by_step(objective.target, features, words)
        expected += [-(1 - p[word]).log() for p, word in zip(said, words, strict=True)]
    assert_same(objective, objective(batch, MIDDLE), {"prediction": expected})


def test_random_targets_are_captions_of_other_images() -> None:
    settings = {"prediction": "random", "hidden": False, **NO_ATTENTION}
    assert NegativeTeacher.needs(NegativeTeacherSettings(**settings)) == Needs({}, negatives=1)
    for negatives in (1, 3):  # the first of each pair, if another objective needs more
        objective, batch = make(**settings), make_batch(negatives)
        rows = batch.pairs.of(Kind.NEGATIVE).tolist()[::negatives]
        expected = []
        for row in rows:
            words = objective.target.vocabulary.encode(batch.captions[batch.pairs.caption_row[row]])
            said = step_by_step(objective.target, batch.features["tiny"][batch.pairs.image_row[row]], words)
            expected += [-(1 - p[word]).log() for p, word in zip(said, words, strict=True)]
        assert_same(objective, objective(batch, MIDDLE), {"prediction": expected})


def test_unlikelihood_of_the_most_frequent_words_but_the_true_one() -> None:
    objective = make(prediction="unlikelihood", frequent=3, hidden=False, **NO_ATTENTION)
    assert not objective.frozen
    batch, expected = make_batch(), []
    for features, words in true_pairs(objective, batch):
        for p, word in zip(step_by_step(objective.target, features, words), words, strict=True):
            expected.append(torch.stack([torch.zeros(()), *(-(1 - p[k]).log() for k in (4, 5, 6) if k != word)]).sum())
    assert_same(objective, objective(batch, MIDDLE), {"prediction": expected})


def test_distillation_goes_towards_the_teacher() -> None:
    objective, batch = make(prediction="distillation", hidden=False, **NO_ATTENTION), make_batch()
    expected = []
    for features, words in true_pairs(objective, batch):
        models = (objective.target, objective.frozen["negative_teacher"])
        for p_s, p_t in zip(*(step_by_step(model, features, words) for model in models), strict=True):
            expected.append(torch.stack([-p_t[k].detach() * p_s[k].log() for k in range(len(p_s)) if p_t[k] > 0]).sum())
    assert_same(objective, objective(batch, MIDDLE), {"prediction": expected})


def test_the_teachers_own_captions_as_prefix() -> None:
    """The likelihood still reads the true captions."""
    objective, batch = make(prefix="teacher"), make_batch()
    teacher = objective.frozen["negative_teacher"]
    pairs = [(features, greedy(teacher, features)) for features in batch.features["tiny"][: len(batch.ids)]]
    found = objective(batch, MIDDLE)
    assert_same(objective, found, naive(objective, pairs))
    assert_close(found["nll"].sum, make()(make_batch(), MIDDLE)["nll"].sum)


def test_neighbours_and_padding_change_nothing() -> None:
    """A batch equals its images one by one."""
    objective = make("meshed-memory")
    whole = objective(make_batch(images=6), MIDDLE)
    single = [objective(BatchSource(*make_data(), "train", 1).at(step, shuffle=False), MIDDLE) for step in range(6)]
    for name in whole:
        assert whole[name].count == sum(one[name].count for one in single)
        assert_close(whole[name].sum, sum(one[name].sum.detach() for one in single), name)


def test_an_equal_teacher_is_as_near_as_can_be() -> None:
    same = Roles(make_captioner(1, name="transformer"), negative_teacher=make_captioner(1, name="transformer"))
    found = NegativeTeacher(NegativeTeacherSettings(), same)(make_batch(), MIDDLE)
    layers = 2
    for name in ("hidden", "attention"):
        assert float(found[name].sum) == pytest.approx(layers * found[name].count, rel=1e-5)


def test_the_teacher_is_frozen_and_the_student_learns_in_every_part() -> None:
    objective = make("transformer").train()
    totals = objective(make_batch(), MIDDLE)
    torch.stack([totals[name].sum for name in objective.losses()]).sum().backward()
    teacher = objective.frozen["negative_teacher"]
    assert not teacher.training
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(parameter.grad is not None for parameter in objective.target.parameters())
    assert not [path for path, _ in objective.named_parameters() if not path.startswith("target.")]


def test_an_empty_share_has_the_same_names() -> None:
    for settings in ({}, {"prediction": "random"}, {"prediction": "none", **NO_ATTENTION}):
        objective = make(**settings)
        empty = make_batch(1, images=1, rank=1, world=2)
        assert not empty.ids
        found = objective(empty, MIDDLE)
        assert list(found) == list(objective(make_batch(1), MIDDLE))
        assert all(total.count == 0 for total in found.values())


# --- stable forms -----------------------------------------------------------------------------------------------------


def test_sure_students_have_exact_losses_and_bounded_gradients() -> None:
    logits = torch.tensor([[0.0, 60.0, -torch.inf, 1.0]], requires_grad=True)
    expected = [-math.exp(-60), math.log(math.exp(-60) + math.exp(-59)), 0.0, -math.exp(-59)]
    found = log_one_minus(logits)
    assert found[0].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-30)
    hard_unlikelihood(logits, torch.tensor([1])).sum().backward()
    assert logits.grad is not None
    # Towards the words that are left, by their shares.
    shares = [1 / (1 + math.e), -1.0, 0.0, math.e / (1 + math.e)]
    assert (-logits.grad[0]).tolist() == pytest.approx(shares, abs=1e-5)


def test_words_that_cannot_occur_give_no_nan() -> None:
    student = torch.tensor([[0.3, -torch.inf, 1.0]], requires_grad=True)
    soft_unlikelihood(student, torch.tensor([[0.1, -torch.inf, 0.2]])).sum().backward()
    assert student.grad is not None
    assert student.grad.isfinite().all()
    masked = torch.tensor([[0.0, -torch.inf]], requires_grad=True)
    exp_minus_kl(torch.tensor([[0.0, -torch.inf]]), masked.log_softmax(dim=1)).sum().backward()
    assert masked.grad is not None
    assert masked.grad.isfinite().all()


# --- λ ----------------------------------------------------------------------------------------------------------------


def test_lambda_at_its_named_points() -> None:
    points = {0: 0.0, 25: 0.4, 50: 0.8, 125: 0.8 * 0.5 * (1 + math.cos(math.pi / 4)), 200: 0.4}
    for step, expected in points.items():
        assert progressive_weight(Progress(step, 200), 0.8, 0.25) == pytest.approx(expected)
    assert progressive_weight(Progress(0, 10), 1.0, 0.0) == 1.0
    assert progressive_weight(Progress(5, 10), 1.0, 1.0) == 0.5
    fixed = make(schedule="fixed", lambda_max=0.5)
    assert {fixed.weight(Progress(step, 10)) for step in range(11)} == {0.5}


def test_without_weight_there_is_only_likelihood() -> None:
    found = make()(make_batch(), Progress(0, 10))
    assert_close(found["loss_nll"].sum, found["nll"].sum)
    assert all(not found[f"loss_{name}"].sum.detach().any() for name in ("prediction", "hidden", "attention"))


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_lstms_have_no_attention_maps() -> None:
    with pytest.raises(
        RecipeError, match=r"objective\.self_attention: L_att needs the attention maps of a Transformer"
    ):
        make("adaptive-attention")


def test_a_teacher_with_other_words_or_another_shape() -> None:
    target = make_captioner(1, name="transformer")

    def check(match: str, teacher: Any, **settings: Any) -> None:
        with pytest.raises(RecipeError, match=match):
            NegativeTeacher(NegativeTeacherSettings(**settings), Roles(target, negative_teacher=teacher))

    reversed_words = Vocabulary([*reversed(WORDS)])
    check(r"roles\.negative_teacher: its words are not", make_captioner(2, reversed_words, "transformer"))
    check("its words are not", make_captioner(2, Vocabulary(WORDS, max_words=5), "transformer"))
    check("L_hid compares layer by layer, and the shapes differ", make_captioner(2, name="transformer", layers=3))
    wide = make_captioner(2, name="transformer", width=16)
    check("L_hid compares", wide)
    more_heads = make_captioner(2, name="transformer", heads=4)
    check("L_att compares", more_heads)
    check("objective.self_attention: .* and the updown captioner has none", make_captioner(2, name="updown"))
    check("an ensemble has no single", Ensemble([wide, more_heads]))
    # Probabilities of the same words can be compared whatever the shape.
    chosen = NegativeTeacherSettings(hidden=False, **NO_ATTENTION)
    assert NegativeTeacher(chosen, Roles(target, negative_teacher=make_captioner(2)))(make_batch(), MIDDLE)


def test_settings_without_a_term() -> None:
    with pytest.raises(ValueError, match="all terms are off"):
        NegativeTeacherSettings(prediction="none", hidden=False, **NO_ATTENTION)
    with pytest.raises(ValueError, match="prefix: no term compares"):
        NegativeTeacherSettings(prediction="hard", hidden=False, prefix="teacher", **NO_ATTENTION)
    with pytest.raises(RecipeError, match="needs a negative_teacher"):
        NegativeTeacher(NegativeTeacherSettings(), Roles(make_captioner(name="transformer")))


# --- with others ------------------------------------------------------------------------------------------------------


def test_composes_with_contrastive_learning() -> None:
    settings = ComposedSettings(parts={"negative-teacher": {"weight": 2.0}, "contrastive": {"negatives": 2}})
    models = {
        role: make_captioner(seed, name="transformer") for role, seed in (("negative_teacher", 2), ("reference", 3))
    }
    assert Composed.needs(settings) == Needs({"negative_teacher": "captioner", "reference": "captioner"}, 2)
    composed = Composed(settings, Roles(make_captioner(1, name="transformer"), **models))
    found = composed(make_batch(2), MIDDLE)
    reference = Contrastive(
        ContrastiveSettings(negatives=2), Roles(make_captioner(1, name="transformer"), reference=models["reference"])
    )
    for name, part in (("negative-teacher", make()), ("contrastive", reference)):
        for total, value in part(make_batch(2), MIDDLE).items():
            assert_close(found[f"{name}/{total}"].sum, value.sum, total)
    assert composed.losses()["negative-teacher/loss_hidden"] == 2.0
