"""Captioners of transformers, tiny ones: p(c|I) is the model's own, and they are captioners like all others."""

from __future__ import annotations

import copy
import itertools
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from support import huggingface as tiny
from support.close import assert_close
from support.huggingface import KINDS, make_folder, open_tower, tokenizers, transformers
from tellapart.captioners.base import Captioner, load_captioner, words_before
from tellapart.captioning import caption
from tellapart.data.settings import DataSettings
from tellapart.decoding.search import beam_search
from tellapart.decoding.settings import DecodingSettings
from tellapart.encoders import open_encoder
from tellapart.encoders.base import EncoderIdentity
from tellapart.errors import MissingExtraError, RecipeError, RunError, StoreError
from tellapart.huggingface.captioners import GitCaptioner, HuggingFaceCaptioner, HuggingFaceSettings
from tellapart.huggingface.towers import whole_model
from tellapart.models import write_model
from tellapart.recipe import Recipe
from tellapart.registry import find, names
from tellapart.text import END, PAD, START, UNKNOWN
from tellapart.training import run_recipe

CAPTIONS = ["a red house", "two", "the dog's ball near a tree", "a blue dog", ""]
IMAGES = torch.tensor([0, 2, 1, 0, 2])
EVERY = pytest.mark.parametrize("kind", KINDS)
SOME = pytest.mark.parametrize("kind", ["gpt2", "blip", "git"])  # one of each way in which they differ


def test_every_family_is_tested() -> None:
    families = {name for name in names("captioner") if name.startswith("hf-")}
    assert families == {f"hf-{family}" for family in KINDS.values()}, "add it to KINDS in tests/support/huggingface.py"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each kind, made once; nobody writes into them."""
    return {kind: make_folder(tmp_path_factory.mktemp("models") / kind, kind) for kind in KINDS}


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, HuggingFaceCaptioner]:
    return {kind: tiny.make_captioner(folder, kind) for kind, folder in folders.items()}


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return torch.randn(3, 3, tiny.SIZE, tiny.SIZE, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def features_of(folders: dict[str, Path], pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    return {kind: torch.from_numpy(open_tower(folders[kind], kind).run(pixels.numpy())) for kind in KINDS}


@pytest.fixture
def model(kind: str, models: dict[str, HuggingFaceCaptioner]) -> HuggingFaceCaptioner:
    return copy.deepcopy(models[kind])


@pytest.fixture
def features(kind: str, features_of: dict[str, torch.Tensor]) -> torch.Tensor:
    return features_of[kind]


def own_logits(model: HuggingFaceCaptioner, whole: Any, pixels: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """What transformers itself makes of one picture and one caption, in our rows, without padding and start tokens."""
    ids = model.ids[words_before(tokens[None])]
    with torch.no_grad():
        if isinstance(whole, transformers.VisionEncoderDecoderModel):
            logits = whole(pixel_values=pixels[None], decoder_input_ids=ids).logits
        else:
            logits = whole(pixel_values=pixels[None], input_ids=ids).logits
    logits = logits[0, -len(tokens) :, model.ids]  # GIT has logits of the image's tokens too
    logits[:, model.impossible] = -torch.inf
    return logits


# --- p(c|I) ---------------------------------------------------------------------------------------------------------


@EVERY
def test_log_prob_is_the_models_own(
    kind: str,
    model: HuggingFaceCaptioner,
    folders: dict[str, Path],
    features: torch.Tensor,
    pixels: torch.Tensor,
) -> None:
    whole = whole_model(KINDS[kind], folders[kind])
    tokens = model.tokenize(CAPTIONS)
    scores = model.log_prob(model.encode(features), tokens, IMAGES)
    for row, image in enumerate(IMAGES.tolist()):
        said = tokens[row][tokens[row] != PAD]
        logits = own_logits(model, whole, pixels[image], said)
        expected = logits.log_softmax(dim=1).gather(1, said[:, None]).sum()
        torch.testing.assert_close(scores[row], expected, atol=1e-4, rtol=1e-5)
    others = model.log_prob(model.encode(features), tokens, (IMAGES + 1) % 3)
    assert ((scores - others).abs() > 1e-3).all(), "the image matters"

    stored = torch.from_numpy(features.numpy().astype(np.float16).astype(np.float32))
    torch.testing.assert_close(
        model.log_prob(model.encode(stored), tokens, IMAGES), scores, atol=2e-2, rtol=1e-3
    )  # as the feature store keeps them


@EVERY
def test_step_equals_forward(kind: str, model: HuggingFaceCaptioner, features: torch.Tensor) -> None:
    tokens = model.tokenize(CAPTIONS)
    memory = model.encode(features)
    logits = model(memory, tokens, IMAGES)
    state = model.start(memory, IMAGES)
    token = torch.full((len(tokens),), START)
    for time in range(tokens.shape[1]):
        log_probs, state = model.step(state, token)
        real = tokens[:, time] != PAD
        expected = logits[:, time].log_softmax(dim=1)
        assert_close(log_probs[real], expected[real])
        token = tokens[:, time]


@EVERY
def test_padding_composition_and_order_do_not_change_a_score(
    kind: str, model: HuggingFaceCaptioner, features: torch.Tensor
) -> None:
    tokens = model.tokenize(CAPTIONS)
    together = model.log_prob(model.encode(features), tokens, IMAGES)
    for row, (said, image) in enumerate(zip(CAPTIONS, IMAGES.tolist(), strict=True)):
        alone = model.log_prob(model.encode(features[image][None]), model.tokenize([said]), torch.tensor([0]))
        torch.testing.assert_close(alone[0], together[row], atol=1e-4, rtol=1e-5)
    wider = torch.nn.functional.pad(tokens, (0, 30), value=PAD)  # wider than the model has positions
    torch.testing.assert_close(model.log_prob(model.encode(features), wider, IMAGES), together, atol=1e-4, rtol=1e-5)
    order = torch.tensor([3, 1, 4, 0, 2])
    shuffled = model.log_prob(model.encode(features), tokens[order], IMAGES[order])
    torch.testing.assert_close(shuffled, together[order], atol=1e-4, rtol=1e-5)


@EVERY
def test_select_reorders_rows_and_changes_no_state(
    kind: str, model: HuggingFaceCaptioner, features: torch.Tensor
) -> None:
    memory = model.encode(features)
    state = model.start(memory, torch.tensor([0, 1, 2]))
    _, state = model.step(state, torch.full((3,), START))
    _, state = model.step(state, torch.tensor([4, 5, 6]))
    whole, after = model.step(state, torch.tensor([7, 8, 9]))
    selected = model.select(state, torch.tensor([2, 0, 2, 1]))
    assert selected.memory is memory
    assert selected.images is state.images, "the image's keys and values are shared"
    picked, _ = model.step(selected, torch.tensor([9, 7, 9, 8]))
    torch.testing.assert_close(picked, whole[[2, 0, 2, 1]], atol=1e-4, rtol=1e-5)
    again, _ = model.step(state, torch.tensor([7, 8, 9]))
    torch.testing.assert_close(again, whole)
    assert after.own[0][0].shape[2] == 3
    assert state.own[0][0].shape[2] == 2


@EVERY
def test_probabilities_are_a_distribution(kind: str, model: HuggingFaceCaptioner, features: torch.Tensor) -> None:
    log_probs, _ = model.step(model.start(model.encode(features), torch.tensor([0, 1, 2])), torch.full((3,), START))
    torch.testing.assert_close(log_probs.exp().sum(dim=1), torch.ones(3))
    assert torch.isinf(log_probs[:, [PAD, START]]).all()
    assert torch.isfinite(log_probs[:, [END, *range(UNKNOWN + 1, len(model.vocabulary))]]).all()
    assert torch.isfinite(log_probs[:, UNKNOWN]).all() == (kind != "gpt2"), "GPT-2 has no unknown token"


@EVERY
def test_no_rows_and_no_images(kind: str, model: HuggingFaceCaptioner, features: torch.Tensor) -> None:
    nobody = torch.zeros(0, dtype=torch.long)
    for given in (features, features[:0]):
        memory = model.encode(given)
        assert model.log_prob(memory, torch.zeros(0, 5, dtype=torch.long), nobody).shape == (0,)
        log_probs, state = model.step(model.start(memory, nobody), nobody)
        assert log_probs.shape == (0, len(model.vocabulary))
        model.select(state, nobody)


@EVERY
def test_captions_are_cut_to_what_the_model_has_positions_for(
    kind: str, model: HuggingFaceCaptioner, features: torch.Tensor
) -> None:
    long = model.tokenize(["a red house near " * 20])
    assert long.shape[1] == model.vocabulary.max_words + 1 == (21 if kind == "roberta" else 24)
    assert torch.isfinite(model.log_prob(model.encode(features), long, torch.tensor([0]))).all()
    found = beam_search(model, features, DecodingSettings(beam=2, max_words=99))
    assert all(len(model.vocabulary.encode(one.caption)) <= 24 for one in found)


# --- what is computed how often -------------------------------------------------------------------------------------


@EVERY
def test_the_prefix_is_never_run_again_and_an_image_is_projected_once(
    kind: str, model: HuggingFaceCaptioner, features: torch.Tensor
) -> None:
    """Five rows on three images: the image's keys come from three, once; a step runs one token a row."""
    words, seen = [], []
    model.decoder.base_model.get_input_embeddings().register_forward_hook(
        lambda _, given, __: words.append(tuple(given[0].shape))
    )
    cross = {"gpt2": "h.0.crossattention.c_attn", "git": "visual_projection"}
    layer = model.decoder.base_model.get_submodule(cross.get(kind, "encoder.layer.0.crossattention.self.key"))
    layer.register_forward_hook(lambda _, given, __: seen.append(tuple(given[0].shape[:2])))
    memory = model.encode(features)
    state, token = model.start(memory, IMAGES), torch.full((5,), START)
    for _ in range(4):
        _, state = model.step(state, token)
        state, token = model.select(state, torch.tensor([1, 0, 2, 4, 3])), torch.full((5,), 8)
    assert words == [(5, 1)] * 4
    assert seen == [(3, 5)]

    words.clear()
    seen.clear()
    model.log_prob(model.encode(features), model.tokenize(CAPTIONS), IMAGES)
    assert len(words) == 1
    assert seen == [(3, 5)]


@EVERY
def test_logits_only_for_real_tokens(kind: str, model: HuggingFaceCaptioner, features: torch.Tensor) -> None:
    tokens = model.tokenize(CAPTIONS)
    counts = []
    model.head.register_forward_hook(lambda _, given, __: counts.append(len(given[0])))
    model.log_prob(model.encode(features), tokens, IMAGES)
    assert counts == [int((tokens != PAD).sum())]


# --- traces ---------------------------------------------------------------------------------------------------------


@EVERY
def test_traces(kind: str, model: HuggingFaceCaptioner, features: torch.Tensor, folders: dict[str, Path]) -> None:
    tokens = model.tokenize(CAPTIONS)
    real = tokens != PAD
    before = model.decoder.config._attn_implementation
    traces = model.traces(model.encode(features), tokens, IMAGES)
    assert model.decoder.config._attn_implementation == before
    assert len(traces.layers) == 2
    expected = model.hidden(model.encode(features), tokens, IMAGES)
    torch.testing.assert_close(traces.hidden[real], expected, atol=1e-4, rtol=1e-5)
    assert all((layer[~real] == 0).all() for layer in traces.layers)
    assert not torch.allclose(traces.layers[0], traces.layers[1])
    assert traces.attention is not None
    total = traces.attention.sum(dim=2)
    assert traces.attention.shape[2] == model.encoder.regions
    if kind == "git":
        assert traces.sentinel is not None
        total = total + traces.sentinel
    torch.testing.assert_close(total, real.float())


@pytest.mark.parametrize("kind", ["git"])
def test_gits_attention_is_its_own(
    kind: str,
    model: HuggingFaceCaptioner,
    folders: dict[str, Path],
    features: torch.Tensor,
    pixels: torch.Tensor,
) -> None:
    whole = whole_model(kind, folders[kind])
    tokens = model.tokenize(["a red house"])
    traces = model.traces(model.encode(features), tokens, torch.tensor([1]))
    with torch.no_grad():
        output = whole(
            pixel_values=pixels[1:2], input_ids=model.ids[words_before(tokens)], output_attentions=True
        ).attentions[-1]
    assert traces.attention is not None
    torch.testing.assert_close(traces.attention, output.mean(dim=1)[:, -4:, :5], atol=1e-4, rtol=1e-5)


# --- decoding -------------------------------------------------------------------------------------------------------


def few_words() -> Any:
    words = ["[UNK]", "a", "[PAD]", "red", "[CLS]", "house", "[SEP]"]
    level = tokenizers.models.WordLevel({word: row for row, word in enumerate(words)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(level)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    names = {"cls_token": "[CLS]", "bos_token": "[CLS]", "sep_token": "[SEP]", "eos_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", **names
    )


@SOME
def test_a_wide_beam_equals_exhaustive_search(kind: str, tmp_path: Path, pixels: torch.Tensor) -> None:
    folder = make_folder(tmp_path / "model", kind, seed=3, tokenizer=few_words(), vocab_size=7)
    model = tiny.make_captioner(folder, kind)
    features = torch.from_numpy(open_tower(folder, kind).run(pixels.numpy()))
    words = range(UNKNOWN + 1, len(model.vocabulary))
    assert {"a", "red", "house"} <= {model.vocabulary.tokens[row] for row in words}
    rows = [
        [*said, END, *[PAD] * (3 - len(said))]
        for length in range(4)
        for said in itertools.product(words, repeat=length)
    ]
    tokens = torch.tensor(rows)
    with torch.no_grad():
        memory = model.encode(features)
        scores = torch.stack([model.log_prob(memory, tokens, torch.full((len(rows),), image)) for image in range(3)])
        found = beam_search(model, features, DecodingSettings(beam=4**3, max_words=3))
    assert [one.log_prob for one in found] == pytest.approx(scores.max(dim=1).values.tolist(), rel=1e-5, abs=1e-4)
    assert [one.caption for one in found] == model.detokenize(tokens[scores.argmax(dim=1)])


@SOME
def test_a_beams_score_is_the_captions_own(kind: str, model: HuggingFaceCaptioner, features: torch.Tensor) -> None:
    with torch.no_grad():
        model.head.register_forward_hook(lambda _, __, logits: logits * 3)  # so that captions end
        found = beam_search(model, features, DecodingSettings(beam=3, max_words=12))
        again = beam_search(model, features[[2, 0]], DecodingSettings(beam=3, max_words=12))
    assert [one.caption for one in again] == [found[2].caption, found[0].caption]
    assert not any("<" in one.caption or "[" in one.caption for one in found)


# --- training -------------------------------------------------------------------------------------------------------


@EVERY
def test_the_gradient_reaches_every_weight(kind: str, model: HuggingFaceCaptioner, features: torch.Tensor) -> None:
    model.log_prob(model.encode(features), model.tokenize(CAPTIONS), IMAGES).sum().backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without == []
    assert not any("image_encoder" in name or "vision" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    ("kind", "lora"), [("gpt2", 0), ("bert", 0), ("blip", 0), ("git", 0), ("gpt2", 4), ("blip", 4)]
)
def test_it_overfits_a_few_captions(kind: str, lora: int, folders: dict[str, Path], features: torch.Tensor) -> None:
    if lora:
        pytest.importorskip("peft", reason="peft is in the extra 'hf'")
    model = tiny.make_captioner(folders[kind], kind, lora=lora, dropout=0.0).train()
    tokens, images = model.tokenize(["a red house", "two blue cars", "a dog"]), torch.arange(3)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(weights, lr=0.03 if lora else 0.01)
    losses = []
    for _ in range(30 if lora else 80):
        loss = -model.log_prob(model.encode(features), tokens, images).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    if lora:  # a random output layer, which it cannot change, sets it a limit
        assert losses[-1] < 0.8 * losses[0]
        return
    assert losses[-1] < 0.5
    scores = torch.stack([model.log_prob(model.encode(features), tokens, torch.full((3,), i)) for i in range(3)])
    assert scores.argmax(dim=0).tolist() == [0, 1, 2], "each caption is likeliest for its own image"


@SOME
def test_lora_trains_only_its_own_weights(
    kind: str, model: HuggingFaceCaptioner, folders: dict[str, Path], features: torch.Tensor, tmp_path: Path
) -> None:
    pytest.importorskip("peft", reason="peft is in the extra 'hf'")
    adapted = tiny.make_captioner(folders[kind], kind, lora=2, lora_scale=4.0)
    trained = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    on = {name.split(".lora_")[0].rsplit(".", 1)[1] for name in trained}
    assert on == ({"c_attn", "q_attn"} if kind == "gpt2" else {"query", "key", "value"})
    tokens = adapted.tokenize(CAPTIONS)
    base = model.log_prob(model.encode(features), tokens, IMAGES)
    scores = adapted.log_prob(adapted.encode(features), tokens, IMAGES)
    torch.testing.assert_close(scores, base)  # it begins as the model it is put on

    scores.sum().backward()
    assert {name for name, parameter in adapted.named_parameters() if parameter.grad is not None} == trained
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if name in trained:
                parameter.normal_(std=0.2)
    changed = adapted.log_prob(adapted.encode(features), tokens, IMAGES)
    assert not torch.allclose(changed, base)
    write_model(adapted, _new(tmp_path / "adapted"))
    loaded = load_captioner(tmp_path / "adapted")
    torch.testing.assert_close(loaded.log_prob(loaded.encode(features), tokens, IMAGES), changed)
    assert {name for name, parameter in loaded.named_parameters() if parameter.requires_grad} == trained
    with pytest.raises(RunError, match="the weights do not fit these settings"):
        load_captioner(tmp_path / "adapted", {"lora": 0})


def test_dropout(folders: dict[str, Path]) -> None:
    def rates(**settings: Any) -> set[float]:
        model = tiny.make_captioner(folders["bert"], "bert", **settings)
        return {part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)}

    assert rates() == {0.1}, "the model's own"
    assert rates(dropout=0.25) == {0.25}


# --- folders --------------------------------------------------------------------------------------------------------


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


@EVERY
def test_a_checkpoint_gives_the_same_scores(
    kind: str, model: HuggingFaceCaptioner, features: torch.Tensor, tmp_path: Path
) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    tokens = model.tokenize(CAPTIONS)
    scores = model.log_prob(model.encode(features), tokens, IMAGES)
    write_model(model, _new(tmp_path / "step-1"))
    kept = {path.relative_to(tmp_path / "step-1").as_posix() for path in (tmp_path / "step-1").rglob("*.*")}
    assert kept == {
        "README.md",
        "model.json",
        "model.safetensors",
        "vocabulary.json",
        "huggingface/config.json",
        "huggingface/tokenizer.json",
    }
    loaded = load_captioner(tmp_path / "step-1", {"dropout": 0.3, "max_tokens": 20})
    assert isinstance(loaded, HuggingFaceCaptioner)
    assert not loaded.training
    assert (loaded.settings.dropout, loaded.vocabulary.max_words) == (0.3, 20)
    torch.testing.assert_close(loaded.tokenize(CAPTIONS), tokens)
    torch.testing.assert_close(loaded.log_prob(loaded.encode(features), tokens, IMAGES), scores, atol=1e-6, rtol=1e-5)

    # As a training resumes: one state into another captioner, key by key, shared weights still shared.
    state = loaded.state_dict()
    assert list(state) == list(model.state_dict())
    model.load_state_dict(state)
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    assert set(state) <= set(names)
    again = copy.deepcopy(model)
    torch.testing.assert_close(again.log_prob(again.encode(features), tokens, IMAGES), scores, atol=1e-6, rtol=1e-5)
    assert len(list(again.parameters())) == len(list(model.parameters())) == len(state)


@SOME
def test_a_model_folder_alone_captions_a_picture(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "from"
    shutil.copytree(folders[kind], folder)
    model = tiny.make_captioner(folder, kind)
    picture = tmp_path / "picture.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(picture)
    write_model(model, _new(tmp_path / "checkpoint"))
    expected = caption([picture], tmp_path / "checkpoint", DecodingSettings(max_words=5))
    model.save_pretrained(tmp_path / "saved")

    shutil.rmtree(folder)
    with pytest.raises(StoreError, match="neither a folder nor a model in the Hugging Face cache"):
        caption([picture], tmp_path / "checkpoint")
    shutil.move(tmp_path / "saved", tmp_path / "moved")
    (found,) = caption([picture], tmp_path / "moved", DecodingSettings(max_words=5))
    assert found["caption"] == expected[0]["caption"]
    assert found["log_prob"] == pytest.approx(expected[0]["log_prob"], rel=1e-5, abs=1e-4)
    assert not [path for path in (tmp_path / "moved").rglob("*") if path.suffix in (".bin", ".pt", ".pkl", ".pickle")]

    Captioner.from_pretrained(tmp_path / "moved").save_pretrained(tmp_path / "moved")  # over itself
    assert caption([picture], tmp_path / "moved", DecodingSettings(max_words=5)) == [found]
    (tmp_path / "moved" / "huggingface" / "config.json").unlink()
    with pytest.raises(StoreError, match=r"huggingface/config\.json is missing"):
        load_captioner(tmp_path / "moved")


def test_a_recipe_trains_one(folders: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="peft is in the extra 'hf'")
    recipe = Recipe.parse(
        {
            "name": "tiny-git",
            "data": {
                "source": "scenes",
                "scenes": {"train": 6, "val": 2, "test": 1},
                "encoder": f"git:{folders['git']}",
                "prepared": str(tmp_path / "prepared"),
            },
            "captioner": {"name": "hf-git", "lora": 2},
            "objective": {"name": "likelihood"},
            "training": {"steps": 2, "images_per_batch": 3, "captions_per_image": 1},
        }
    )
    run = run_recipe(recipe, tmp_path / "runs", on_progress=lambda *_: None)
    trained = load_captioner(run.folder)
    assert isinstance(trained, GitCaptioner)
    before = tiny.make_captioner(folders["git"], "git", lora=2).state_dict()
    changed = {name for name, value in trained.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all("lora_" in name for name in changed)
    assert trained.vocabulary.ids == tiny.make_captioner(folders["git"], "git").vocabulary.ids


# --- what can be wrong ----------------------------------------------------------------------------------------------


def make(name: str, folder: Path | str, encoder: EncoderIdentity) -> Captioner:
    settings = HuggingFaceSettings(model=str(folder))
    made: Captioner = find("captioner", name).make(settings, [], DataSettings(source="scenes"), encoder)
    return made


def test_models_that_do_not_fit(folders: dict[str, Path], tmp_path: Path) -> None:
    identity = open_tower(folders["git"], "git").identity
    with pytest.raises(RecipeError, match=rf"needs the encoder 'blip:', .* set data\.encoder=blip:{folders['blip']}"):
        make("hf-blip", folders["blip"], identity)
    with pytest.raises(RecipeError, match=r"of type 'blip', not git; did you mean captioner\.name: hf-blip\?"):
        make("hf-git", folders["blip"], identity)
    other = make_folder(tmp_path / "other", "git", seed=1)
    with pytest.raises(RecipeError, match=rf"is not the vision tower of .* set data\.encoder=git:{other}"):
        make("hf-git", other, identity)
    with pytest.raises(StoreError, match=r"captioner\.model 'no/model': 'no/model' is neither a folder"):
        make("hf-git", "no/model", identity)
    bart = make_folder(tmp_path / "bart", "bart")
    with pytest.raises(RecipeError, match="text decoders of type 'bart' cannot be used here; known: gpt2, bert, rob"):
        make("hf-encoder-decoder", bart, open_encoder(f"encoder-decoder:{bart}").identity)
    with pytest.raises(StoreError, match=r"captioner\.model .* holds no model"):
        make("hf-git", tmp_path, identity)
    find("captioner", "hf-git").make(HuggingFaceSettings(), [], DataSettings(source="scenes"), identity)


def test_files_that_are_missing(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "git"
    shutil.copytree(folders["git"], folder)
    identity = open_tower(folder, "git").identity
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(StoreError, match="no tokenizer is here"):
        make("hf-git", folder, identity)
    tensors = load_file(folder / "model.safetensors")
    lost = next(name for name in tensors if "encoder.layer.1" in name)
    del tensors[lost]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert open_tower(folder, "git").identity == identity, "the tower is whole"
    with pytest.raises(StoreError, match=r"the weights lack 1 tensors of a GitForCausalLM, such as .*layer"):
        make("hf-git", folder, identity)


def test_without_the_extra(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.make_captioner(folders["git"], "git")
    write_model(model, _new(tmp_path / "model"))
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "peft", None)
        with pytest.raises(MissingExtraError, match=r"peft is not installed; .* 'tellapart\[hf\]'"):
            tiny.make_captioner(folders["git"], "git", lora=2)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"transformers is not installed; .* 'tellapart\[hf\]'"):
        make("hf-git", folders["git"], model.encoder)
    with pytest.raises(MissingExtraError, match="transformers is not installed"):
        load_captioner(tmp_path / "model")
