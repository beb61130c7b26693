"""CLIP and SigLIP as retrievers, tiny ones with random weights: the model's own embeddings; saved, trained, judging."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from support.dual_encoders import KINDS, POSITIONS, SIZE, WIDTH, encoder_of, make_folder, make_retriever
from support.huggingface import transformers
from tellapart.encoders import open_encoder
from tellapart.errors import RecipeError, StoreError
from tellapart.evaluation.evaluate_retrieval import evaluate_retrieval
from tellapart.evaluation.judge import Judge, rank_captions
from tellapart.evaluation.retrieval import rank_split
from tellapart.metrics import summarize_retrieval
from tellapart.recipe import Recipe
from tellapart.retrievers.base import load_retriever, take
from tellapart.run import Run, open_run
from tellapart.training import run_recipe

CAPTIONS = [
    "a red house",
    "two",
    "the dog's ball near a tree",
    "",
    "a house, a car, a dog, a ball, a tree, a beach, a car",
]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("models") / kind, kind)


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return torch.randn(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def features_of(folder: Path, kind: str, pixels: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(encoder_of(folder, kind).run(pixels.numpy()))


def test_embeddings_are_the_models_own(folder: Path, kind: str, pixels: torch.Tensor) -> None:
    retriever = make_retriever(folder, kind)
    whole = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    # SigLIP's padding is read, and is as long as it was in its training.
    padding = "max_length" if kind == "siglip" else True
    asked = tokenizer(CAPTIONS, padding=padding, truncation=True, max_length=POSITIONS, return_tensors="pt")
    with torch.no_grad():
        expected = whole(pixel_values=pixels, input_ids=asked["input_ids"])
        images, texts = retriever.embed_images(features_of(folder, kind, pixels)), retriever.embed_texts(CAPTIONS)
    torch.testing.assert_close(images, functional.normalize(expected.image_embeds), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(texts, functional.normalize(expected.text_embeds), atol=1e-5, rtol=1e-5)
    found = retriever.similarity(images, texts)
    logits = found * whole.logit_scale.exp() + getattr(whole, "logit_bias", 0)
    torch.testing.assert_close(logits, expected.logits_per_image, atol=1e-4, rtol=1e-4)
    assert found.std() > 0.01, "not all alike"


def test_half_precision_of_the_store_is_enough(folder: Path, kind: str, pixels: torch.Tensor) -> None:
    retriever, features = make_retriever(folder, kind), features_of(folder, kind, pixels)
    stored = features.half().float()
    torch.testing.assert_close(retriever.embed_images(stored), retriever.embed_images(features), atol=2e-3, rtol=0)


def test_embeddings_are_independent_of_batch_and_order(folder: Path, kind: str) -> None:
    retriever = make_retriever(folder, kind)
    together = retriever.embed_texts(CAPTIONS)
    for row, caption in enumerate(CAPTIONS):
        torch.testing.assert_close(retriever.embed_texts([caption]), take(together, slice(row, row + 1)))
    nothing = retriever.embed_texts([]), retriever.embed_images(torch.zeros(0, 5, WIDTH))
    assert retriever.similarity(nothing[1], nothing[0]).shape == (0, 0)
    assert nothing[0].requires_grad  # type: ignore[union-attr]


def test_saved_and_loaded(folder: Path, kind: str, pixels: torch.Tensor, tmp_path: Path) -> None:
    retriever = make_retriever(folder, kind, tune="all")
    retriever.save_pretrained(tmp_path / "model")
    loaded = load_retriever(tmp_path / "model")
    features = features_of(folder, kind, pixels)
    with torch.no_grad():
        torch.testing.assert_close(loaded.embed_texts(CAPTIONS), retriever.embed_texts(CAPTIONS), atol=0, rtol=0)
        torch.testing.assert_close(loaded.embed_images(features), retriever.embed_images(features), atol=0, rtol=0)
    (tmp_path / "model" / "huggingface" / "config.json").unlink()
    with pytest.raises(StoreError, match=r"huggingface/config.json is missing"):
        load_retriever(tmp_path / "model")


@pytest.mark.parametrize("tune", ["projections", "all"])
def test_what_is_tuned(folder: Path, kind: str, tune: str, pixels: torch.Tensor) -> None:
    retriever = make_retriever(folder, kind, tune=tune)
    images, texts = retriever.embed_images(features_of(folder, kind, pixels)), retriever.embed_texts(CAPTIONS[:3])
    retriever.similarity(images, texts).trace().backward()
    names = {name.partition(".")[0] for name, one in retriever.named_parameters() if one.grad is not None}
    frozen = {"text", "normalise"} if kind == "clip" else {"text"}
    assert names == {"project_image", "project_text"} | (frozen if tune == "all" else set())
    assert all(one.grad is not None for one in retriever.parameters() if one.requires_grad), "nothing idle is trained"


def recipe(folder: Path, kind: str, place: Path, **training: Any) -> Recipe:
    content = {
        "name": f"tiny-{kind}",
        "data": {
            "source": "scenes",
            "scenes": {"train": 8, "val": 4, "test": 6},
            "encoder": f"{KINDS[kind][1]}:{folder}",
            "prepared": str(place / "prepared"),
        },
        "retriever": {"name": f"hf-{kind}"},
        "objective": {"name": "coder", "loss": "info-nce"},
        "training": {
            "steps": 2,
            "images_per_batch": 4,
            "captions_per_image": 1,
            "validate_retrieval": True,
            **training,
        },
    }
    return Recipe.parse(content)


def test_it_is_trained_measured_and_judges(folder: Path, kind: str, tmp_path: Path) -> None:
    run: Run = run_recipe(recipe(folder, kind, tmp_path), tmp_path / "runs")
    before, after = make_retriever(folder, kind), run.retriever
    assert not torch.equal(before.project_text.weight, after.project_text.weight)  # type: ignore[union-attr]
    for one, other in zip(before.text.parameters(), after.text.parameters(), strict=True):  # type: ignore[union-attr]
        assert torch.equal(one, other)
    measured = evaluate_retrieval(run)
    assert 0 <= measured.figures["R@sum"] <= 6
    records = run.data.dataset.split("test")
    ids, captions = [record.id for record in records], [record.captions[0] for record in records]
    judged = rank_captions(Judge((run,)), ids, captions)
    assert judged is not None
    assert ((judged.ranks >= 1) & (judged.ranks <= len(records))).all()
    assert np.isfinite(judged.scores).all()


def test_another_model_in_the_same_folder_is_another_run(folder: Path, kind: str, tmp_path: Path) -> None:
    moving = shutil.copytree(folder, tmp_path / "model")
    first = run_recipe(recipe(moving, kind, tmp_path, steps=0), tmp_path / "runs")
    path = moving / "model.safetensors"
    weights = load_file(path)
    save_file({name: tensor + 0.01 for name, tensor in weights.items()}, path, {"format": "pt"})
    second = run_recipe(recipe(moving, kind, tmp_path, steps=0), tmp_path / "runs")
    assert first.folder != second.folder
    assert not torch.equal(first.retriever.project_text.weight, second.retriever.project_text.weight)


def test_it_is_evaluated_without_training(folder: Path, kind: str, tmp_path: Path) -> None:
    """No step at all: the run's model is the one that came."""
    untrained = recipe(folder, kind, tmp_path, steps=0, keep="best", monitor="R@sum", monitor_best="highest")
    run = run_recipe(untrained, tmp_path / "runs")
    came, kept = make_retriever(folder, kind), run.retriever
    for one, other in zip(came.state_dict().values(), kept.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert kept.history.keys() == {"recipe", "steps", "measured"}, "nothing claims to have trained it"
    prepared = run.data
    for split, found in (
        ("val", kept.history["measured"]["validation"]),
        ("test", evaluate_retrieval(open_run(run.folder)).figures),
    ):
        expected = summarize_retrieval(rank_split(came, prepared, split).ranks).figures()
        assert {name: found[name] for name in expected} == expected


def test_mistakes_are_reported(folder: Path, kind: str, tmp_path: Path) -> None:
    other = next(one for one in KINDS if one != kind)
    elsewhere = encoder_of(make_folder(tmp_path / "other", other), other).identity
    title, tower = {"clip": "CLIP", "siglip": "SigLIP"}[kind], KINDS[kind][1]
    with pytest.raises(RecipeError, match=rf"hf-{kind} needs .* not '{KINDS[other][1]}:.*'; set data.encoder={tower}:"):
        make_retriever(folder, kind, elsewhere)
    alone = encoder_of(make_folder(tmp_path / "tower", kind, whole=False), kind).identity
    with pytest.raises(
        RecipeError, match=f"holds a model of type '{kind}_vision_model', and a whole {title} is needed"
    ):
        make_retriever(tmp_path / "tower", kind, alone)
    with pytest.raises(RecipeError, match=rf"did you mean {kind}:\?"):
        open_encoder(f"{other}:{folder}")


def test_clip_without_its_class_token(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "clip", "clip")
    without = open_encoder(f"clip:{folder}").identity
    with pytest.raises(RecipeError, match=r"hf-clip needs .*, not 'clip:.*'; set data.encoder=clip-tokens:"):
        make_retriever(folder, "clip", without)


def test_missing_weights_are_reported(kind: str, tmp_path: Path) -> None:
    broken = make_folder(tmp_path / "broken", kind)
    identity = encoder_of(broken, kind).identity
    weights = load_file(broken / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("text_model.encoder.layers.1")}
    save_file(kept, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        StoreError, match=r"broken: the weights lack \d+ tensors of a (CLIP|SigLIP), such as text_model"
    ):
        make_retriever(broken, kind, identity)
