"""CLIP as a retriever, a tiny one with random weights: its cosines are the model's own; saved, trained, judging."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.huggingface import CORPUS, tokenizers, transformers
from tellapart.data.prepare import prepare
from tellapart.encoders.images import open_encoder
from tellapart.engine.run import Run, run_recipe
from tellapart.errors import RecipeError, StoreError
from tellapart.evaluation.evaluate import rank_captions_by_similarity
from tellapart.evaluation.evaluate_retrieval import evaluate_retrieval
from tellapart.models import load_retriever
from tellapart.recipe import DataSettings, Recipe
from tellapart.retrievers.base import take
from tellapart.retrievers.huggingface import Clip, ClipSettings

SIZE, PATCH, WIDTH, POSITIONS = 16, 8, 12, 16
LAYERS = {"intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
CAPTIONS = [
    "a red house",
    "two",
    "the dog's ball near a tree",
    "",
    "a house, a car, a dog, a ball, a tree, a beach, a car",
]


def clip_tokens() -> Any:
    """As CLIP's: bytes in lower case, a start token, and an end token that is also the padding."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<|endoftext|>"))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|startoftext|>", "<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    ends = [("<|startoftext|>", 0), ("<|endoftext|>", 1)]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|startoftext|> $A <|endoftext|>", special_tokens=ends
    )
    end = "<|endoftext|>"
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|startoftext|>", eos_token=end, unk_token=end, pad_token=end
    )


def make_folder(folder: Path, whole: bool = True) -> Path:
    tokenizer = clip_tokens()
    vision = {**LAYERS, "hidden_size": WIDTH, "image_size": SIZE, "patch_size": PATCH}
    text = {**LAYERS, "hidden_size": 8, "vocab_size": len(tokenizer), "max_position_embeddings": POSITIONS}
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    torch.manual_seed(0)
    config = transformers.CLIPConfig(vision_config=vision, text_config={**text, **ends}, projection_dim=10)
    model = transformers.CLIPModel(config) if whole else transformers.CLIPVisionModel(config.vision_config)
    for parameter in model.parameters():  # as they are made, weights are small: all would look alike
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    half = [0.5, 0.5, 0.5]
    settings = {"size": {"height": SIZE, "width": SIZE}, "resample": 2, "image_mean": half, "image_std": half}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("models") / "clip")


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return torch.randn(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def make(folder: Path, **settings: Any) -> Clip:
    encoder = open_encoder(f"clip-tokens:{folder}")
    retriever = Clip.make(ClipSettings(**settings), [], DataSettings(source="scenes"), encoder.identity)
    return retriever.eval()


def features_of(folder: Path, pixels: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(open_encoder(f"clip-tokens:{folder}").run(pixels.numpy()))  # type: ignore[attr-defined]


def test_cosines_are_the_models_own(folder: Path, pixels: torch.Tensor) -> None:
    retriever = make(folder)
    whole = transformers.CLIPModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    asked = tokenizer(CAPTIONS, padding=True, truncation=True, max_length=POSITIONS, return_tensors="pt")
    with torch.no_grad():
        expected = whole(pixel_values=pixels, input_ids=asked["input_ids"]).logits_per_image / whole.logit_scale.exp()
        images = retriever.embed_images(features_of(folder, pixels))
        found = retriever.similarity(images, retriever.embed_texts(CAPTIONS))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert found.std() > 0.01, "not all alike"


def test_neither_company_nor_order_changes_an_embedding(folder: Path) -> None:
    retriever = make(folder)
    together = retriever.embed_texts(CAPTIONS)
    for row, caption in enumerate(CAPTIONS):
        torch.testing.assert_close(retriever.embed_texts([caption]), take(together, slice(row, row + 1)))
    nothing = retriever.embed_texts([]), retriever.embed_images(torch.zeros(0, 5, WIDTH))
    assert retriever.similarity(nothing[1], nothing[0]).shape == (0, 0)
    assert nothing[0].requires_grad  # type: ignore[union-attr]


def test_saved_and_loaded(folder: Path, pixels: torch.Tensor, tmp_path: Path) -> None:
    retriever = make(folder, tune="all")
    retriever.save_pretrained(tmp_path / "model")
    loaded = load_retriever(tmp_path / "model")
    features = features_of(folder, pixels)
    with torch.no_grad():
        torch.testing.assert_close(loaded.embed_texts(CAPTIONS), retriever.embed_texts(CAPTIONS), atol=0, rtol=0)
        torch.testing.assert_close(loaded.embed_images(features), retriever.embed_images(features), atol=0, rtol=0)
    (tmp_path / "model" / "huggingface" / "config.json").unlink()
    with pytest.raises(StoreError, match=r"huggingface/config.json is missing"):
        load_retriever(tmp_path / "model")


@pytest.mark.parametrize(("tune", "trained"), [("projections", {"project_image", "project_text"}), ("all", None)])
def test_what_is_tuned(folder: Path, tune: str, trained: set[str] | None) -> None:
    names = {name.partition(".")[0] for name, one in make(folder, tune=tune).named_parameters() if one.requires_grad}
    assert names == (trained or {"text", "normalise", "project_image", "project_text"})


def recipe(folder: Path, place: Path, *overrides: str) -> Recipe:
    content = {
        "name": "tiny-clip",
        "data": {
            "source": "scenes",
            "scenes": {"train": 8, "val": 4, "test": 6},
            "encoder": f"clip-tokens:{folder}",
            "prepared": str(place / "prepared"),
        },
        "retriever": {"name": "hf-clip"},
        "objective": {"name": "coder", "loss": "info-nce"},
        "training": {"steps": 2, "images_per_batch": 4, "captions_per_image": 1, "validate_retrieval": True},
    }
    return Recipe.parse(content)


def test_it_is_trained_measured_and_judges(folder: Path, tmp_path: Path) -> None:
    run: Run = run_recipe(recipe(folder, tmp_path), tmp_path / "runs")
    before, after = make(folder), run.retriever()
    assert not torch.equal(before.project_text.weight, after.project_text.weight)  # type: ignore[arg-type,union-attr]
    for one, other in zip(before.text.parameters(), after.text.parameters(), strict=True):  # type: ignore[union-attr]
        assert torch.equal(one, other)
    measured = evaluate_retrieval(run)
    assert 0 <= measured.figures["R@sum"] <= 6
    records = prepare(run.recipe.data).dataset.split("test")
    judged = rank_captions_by_similarity(run, records, [record.captions[0] for record in records], "tiny")
    assert ((judged.ranks >= 1) & (judged.ranks <= len(records))).all()
    assert np.isfinite(judged.similarities).all()


def test_mistakes_are_told(folder: Path, tmp_path: Path) -> None:
    without = open_encoder(f"clip:{folder}").identity
    with pytest.raises(RecipeError, match=r"data.encoder: 'clip:.*' does not give .* set data.encoder=clip-tokens:"):
        Clip.make(ClipSettings(), [], DataSettings(source="scenes"), without)
    tower = open_encoder(f"clip-tokens:{make_folder(tmp_path / 'tower', whole=False)}").identity
    with pytest.raises(RecipeError, match="holds a model of type 'clip_vision_model', and a whole CLIP is needed"):
        Clip.make(ClipSettings(), [], DataSettings(source="scenes"), tower)
    with pytest.raises(RecipeError, match="clip:"):
        open_encoder(f"siglip:{folder}")
