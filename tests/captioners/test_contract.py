"""What every captioner must be: a distribution independent of padding, order and batch composition."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.close import assert_close
from support.tiny import IDENTITY, make_captioner, names, tiny_settings
from tellapart.captioners.base import Captioner
from tellapart.text import END, PAD, START, UNKNOWN

CAPTIONS = ["a red house", "two", "a blue car near a tree", "a red unknownword", ""]
IMAGES = torch.tensor([0, 2, 1, 0, 2])
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in names("captioner")},
    "transformer, norm first": ("transformer", {"normalise_first": True}),
    "meshed-memory, norm first": ("meshed-memory", {"normalise_first": True}),
}
LARGER = {"hidden": 32, "embedding": 16, "width": 32, "feedforward": 64}


@pytest.fixture(params=VARIANTS)
def model(request: pytest.FixtureRequest) -> Captioner:
    name, settings = VARIANTS[request.param]
    captioner = make_captioner(seed=3, name=name, **settings)
    with torch.no_grad():  # some begin at zero; there nothing could be told from it
        for parameter in captioner.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return captioner


def test_step_equals_forward(model: Captioner, features: torch.Tensor) -> None:
    tokens = model.tokenize(CAPTIONS)
    memory = model.encode(features)
    logits = model(memory, tokens, IMAGES)
    assert (logits[tokens == PAD] == 0).all()
    state = model.start(memory, IMAGES)
    token = torch.full((len(tokens),), START)
    for time in range(tokens.shape[1]):
        log_probs, state = model.step(state, token)
        real = tokens[:, time] != PAD
        expected = logits[:, time].log_softmax(dim=1)
        assert_close(log_probs[real], expected[real])
        token = tokens[:, time]


def test_select_reorders_and_repeats_rows(model: Captioner, features: torch.Tensor) -> None:
    state = model.start(model.encode(features), torch.tensor([0, 1, 2]))
    _, state = model.step(state, torch.tensor([4, 5, 6]))
    whole, _ = model.step(state, torch.tensor([7, 8, 9]))
    picked, _ = model.step(model.select(state, torch.tensor([2, 0, 2, 2])), torch.tensor([9, 7, 9, 9]))
    assert_close(picked, whole[[2, 0, 2, 2]])


def test_padding_composition_and_order_do_not_change_a_score(model: Captioner, features: torch.Tensor) -> None:
    tokens = model.tokenize(CAPTIONS)
    together = model.log_prob(model.encode(features), tokens, IMAGES)
    for row, (caption, image) in enumerate(zip(CAPTIONS, IMAGES.tolist(), strict=True)):
        alone = model.log_prob(model.encode(features[image][None]), model.tokenize([caption]), torch.tensor([0]))
        torch.testing.assert_close(alone[0], together[row], atol=1e-4, rtol=1e-5)
    wider = torch.nn.functional.pad(tokens, (0, 7), value=PAD)
    torch.testing.assert_close(model.log_prob(model.encode(features), wider, IMAGES), together, atol=1e-4, rtol=1e-5)
    order = torch.tensor([3, 1, 4, 0, 2])
    again = model.log_prob(model.encode(features), tokens[order], IMAGES[order])
    torch.testing.assert_close(again, together[order], atol=1e-4, rtol=1e-5)


def test_the_image_matters(model: Captioner, features: torch.Tensor) -> None:
    tokens = model.tokenize(["a red house"]).expand(3, -1)
    scores = model.log_prob(model.encode(features), tokens, torch.arange(3))
    assert len({round(score, 6) for score in scores.tolist()}) == 3


def test_probabilities_are_a_distribution_without_pad_and_start(model: Captioner, features: torch.Tensor) -> None:
    log_probs, _ = model.step(model.start(model.encode(features), torch.tensor([0, 1, 2])), torch.full((3,), START))
    torch.testing.assert_close(log_probs.exp().sum(dim=1), torch.ones(3))
    assert torch.isinf(log_probs[:, [PAD, START]]).all()
    assert torch.isfinite(log_probs[:, [END, UNKNOWN]]).all()


def test_the_end_token_counts(model: Captioner, features: torch.Tensor) -> None:
    memory, tokens = model.encode(features), model.tokenize(["a red house"])
    per_token = model.log_prob(memory, tokens, torch.tensor([1]), per_token=True)
    assert tokens[0, -1] == END
    assert per_token.shape == (1, 4)
    torch.testing.assert_close(per_token.sum(dim=1), model.log_prob(memory, tokens, torch.tensor([1])))
    assert (per_token < 0).all()


def test_traces_show_every_layer_and_where_it_looked(model: Captioner, features: torch.Tensor) -> None:
    tokens = model.tokenize(CAPTIONS)
    memory = model.encode(features)
    traces = model.traces(memory, tokens, IMAGES)
    real = tokens != PAD
    torch.testing.assert_close(traces.hidden[real], model.hidden(memory, tokens, IMAGES))
    for layer in traces.layers:
        assert layer.shape[:2] == tokens.shape
        assert (layer[~real] == 0).all()
        assert layer[real].abs().sum() > 0
    if traces.attention is not None:
        total = traces.attention.sum(dim=2) + (0 if traces.sentinel is None else traces.sentinel)
        torch.testing.assert_close(total, real.float())


def test_attention_of_every_layer_and_head(model: Captioner, features: torch.Tensor) -> None:
    """Only Transformers have it: distributions of real tokens over the words so far and over the regions."""
    tokens = model.tokenize(CAPTIONS)
    real = tokens != PAD
    traces = model.traces(model.encode(features), tokens, IMAGES)
    layers = len(traces.layers) if "transformer" in type(model).__module__ else 0
    assert len(traces.self_attention) == len(traces.cross_attention) == layers
    place = real.cumsum(dim=1)[real]
    for over_words, over_regions in zip(traces.self_attention, traces.cross_attention, strict=True):
        assert over_words.shape[::2] == (len(place), tokens.shape[1])
        assert over_regions.shape[::2] == (len(place), features.shape[1])
        for weights in (over_words, over_regions):
            torch.testing.assert_close(weights.exp().sum(dim=2), torch.ones(weights.shape[:2]))
        seen = (over_words > -torch.inf).sum(dim=2)
        assert (seen == place[:, None]).all(), "the words so far"
        (gradient,) = torch.autograd.grad(over_regions[:, 0, 0].sum(), model.word.weight, retain_graph=True)
        assert gradient.abs().max() > 0
    if layers:
        assert traces.attention is not None
        torch.testing.assert_close(traces.attention[real], traces.cross_attention[-1].exp().mean(dim=1))


def test_an_empty_share_of_a_batch(model: Captioner, features: torch.Tensor) -> None:
    nothing = torch.zeros(0, dtype=torch.long)
    for images in (features, features[:0]):
        memory = model.encode(images)
        assert model.log_prob(memory, model.tokenize([]), nothing).shape == (0,)
        log_probs, _ = model.step(model.start(memory, nothing), nothing)
        assert log_probs.shape == (0, len(model.vocabulary))


def test_gradients_are_those_of_finite_differences(model: Captioner, features: torch.Tensor) -> None:
    model = model.double()
    tokens = model.tokenize(CAPTIONS)
    some = [p for p in model.parameters() if p.numel() > 1]

    def score() -> torch.Tensor:
        # float32 inside log_prob would drown the differences
        logits = model(model.encode(features.double()), tokens, IMAGES).log_softmax(dim=-1)
        said = logits.gather(2, tokens[..., None]).squeeze(2)
        return said.masked_fill(tokens == PAD, 0.0).sum()

    score().backward()
    generator = torch.Generator().manual_seed(0)
    for parameter in some:
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            parameter.add_(1e-6 * direction)
            above = score()
            parameter.add_(-2e-6 * direction)
            below = score()
            parameter.add_(1e-6 * direction)
        expected = ((above - below) / 2e-6).item()
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert (gradient * direction).sum().item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", names("captioner"))
def test_it_overfits_twenty_captions(name: str) -> None:
    words = ("a", "red", "blue", "house", "tree", "car", "near", "two")
    rng = torch.Generator().manual_seed(0)
    features = torch.randn(10, 4, 6, generator=rng)
    captions = [
        " ".join(words[i] for i in torch.randint(8, (int(torch.randint(2, 7, (1,), generator=rng)),), generator=rng))
        for _ in range(20)
    ]
    larger = {key: size for key, size in LARGER.items() if key in tiny_settings("captioner", name)}
    model = make_captioner(seed=1, name=name, **larger).train()
    tokens, images = model.tokenize(captions), torch.arange(20) % 10
    optimiser = torch.optim.Adam(model.parameters(), lr=0.003 if hasattr(model.settings, "heads") else 0.01)
    for _ in range(300):
        loss = -model.log_prob(model.encode(features), tokens, images).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if loss.item() < 0.75:  # two captions an image: nothing beats one bit for each
            break
    assert loss.item() < 0.75
    model.eval()
    memory = model.encode(features)
    scores = torch.stack([model.log_prob(memory, tokens, torch.full((20,), image)) for image in range(10)])
    assert (scores.argmax(dim=0) == images).all(), "each caption is likeliest for its own image"


@pytest.mark.parametrize("name", names("captioner"))
def test_picture_dropout_sometimes_shows_no_picture(name: str) -> None:
    """In training a picture is replaced by features of zeros; otherwise nothing changes."""
    features = torch.randn(400, IDENTITY.regions, IDENTITY.width, generator=torch.Generator().manual_seed(1))
    captioner, plain = make_captioner(name=name, picture_dropout=0.3), make_captioner(name=name)
    seen: list[torch.Tensor] = []
    captioner.normalise.register_forward_hook(lambda module, given, result: seen.append(result))
    with torch.no_grad():
        captioner.encode(features)
        torch.testing.assert_close(seen[0], plain.normalise(features))
        captioner.train().encode(features)
        nothing = captioner.normalise.bias.expand(IDENTITY.regions, -1)
    dropped = (seen[1] == nothing).all(dim=(1, 2))
    assert 0.2 < dropped.float().mean() < 0.4
    torch.testing.assert_close(seen[1][~dropped], seen[0][~dropped])
