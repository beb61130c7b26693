"""CODER's retriever: eq. 1–2 by naive loops, branches, noise while training, concepts from captions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from support.naive_coder import naive_branches
from support.tiny import IDENTITY, make_retriever
from tellapart.data.settings import DataSettings
from tellapart.errors import RunError
from tellapart.retrievers.base import load_retriever
from tellapart.retrievers.coder import Coder, CoderSettings
from tellapart.retrievers.pooling import drop_regions

CAPTIONS = ["a red house", "two", "a blue car near a tree"]


@pytest.mark.parametrize("pooling", ["gpo", "mean", "max"])
@pytest.mark.parametrize(
    ("concepts", "variant"),
    [(0, {}), (4, {}), (4, {"literal_concepts": True}), (4, {"whitened_concepts": True, "smoothness": 6.0})],
)
@torch.no_grad()
def test_embeddings_follow_the_equations(
    pooling: str, concepts: int, variant: dict[str, Any], features: torch.Tensor
) -> None:
    model: Coder = make_retriever(seed=4, name="coder", pooling=pooling, concepts=concepts, **variant)
    assert not concepts or model.graph.whitened == model.settings.whitened_concepts
    images, texts = model.embed_images(features), model.embed_texts(CAPTIONS)
    for row in range(len(features)):
        normal = functional.layer_norm(features[row], (IDENTITY.width,), model.normalise.weight, model.normalise.bias)
        for branch, expected in enumerate(naive_branches(model, normal, "regions")):
            torch.testing.assert_close(images[branch][row], expected, atol=1e-5, rtol=1e-4)
    for row, caption in enumerate(CAPTIONS):
        ids = model.vocabulary.encode(caption)[:-1]
        states = model.sentence(model.word_table()[ids][None])[0][0]
        forwards, backwards = states.chunk(2, dim=1)
        for branch, expected in enumerate(naive_branches(model, (forwards + backwards) / 2, "words")):
            torch.testing.assert_close(texts[branch][row], expected, atol=1e-5, rtol=1e-4)
    similarity = model.similarity(images, texts)
    share = model.settings.instance_share if concepts else 1.0
    expected_similarity = share * images[0] @ texts[0].t()
    if concepts:
        expected_similarity = expected_similarity + (1 - share) * images[1] @ texts[1].t()
    torch.testing.assert_close(similarity, expected_similarity, atol=1e-6, rtol=1e-5)
    assert model.branch_widths() == tuple(part.shape[1] for part in images)


def test_training_disturbs_and_evaluation_does_not(features: torch.Tensor) -> None:
    model: Coder = make_retriever(seed=4, name="coder", drop_regions=0.5, disturb_words=0.9)
    model.train()
    torch.manual_seed(0)
    one, other = model.embed_images(features)[0], model.embed_images(features)[0]
    assert not torch.equal(one, other)
    assert not torch.equal(model.embed_texts(CAPTIONS)[0], model.embed_texts(CAPTIONS)[0])
    torch.manual_seed(0)
    stays = drop_regions(torch.ones(features.shape[:2], dtype=torch.bool), 0.5)
    model.eval()
    for row, kept in enumerate(stays):
        torch.testing.assert_close(one[row], model.embed_images(features[row : row + 1, kept])[0][0])
    assert torch.equal(model.embed_texts(CAPTIONS)[0], model.embed_texts(CAPTIONS)[0])


def test_concepts_come_from_the_training_captions_and_are_saved(tmp_path: Path) -> None:
    pytest.importorskip("HanTa", reason="needs the extra 'concepts'")
    captions = ["a red dog runs", "two dogs run near a red house", "a dog", "a house and a tree", "a small tree"]
    data = DataSettings(source="scenes", min_count=1)
    made = Coder.make(CoderSettings(width=8, words=6, concepts=4), captions, data, IDENTITY)
    assert isinstance(made, Coder)
    assert [concept.name for concept in made.concepts] == ["dog", "house", "red", "run"]
    assert not torch.equal(made.graph.adjacency, torch.eye(4)), "the graph of what occurs together"
    made.save_pretrained(tmp_path / "model")
    loaded = load_retriever(tmp_path / "model")
    assert isinstance(loaded, Coder)
    assert loaded.concepts == made.concepts
    assert torch.equal(loaded.graph.adjacency, made.graph.adjacency)


def test_word_vectors_are_where_words_and_concepts_begin(tmp_path: Path) -> None:
    pytest.importorskip("HanTa", reason="needs the extra 'concepts'")
    path = tmp_path / "vectors.txt"
    path.write_text("dog 1 2 3\ndogs 3 2 1\n")
    settings = CoderSettings(width=8, words=3, concepts=1, word_vectors=str(path))
    made = Coder.make(settings, ["a dog", "two dogs"], DataSettings(source="scenes", min_count=1), IDENTITY)
    assert isinstance(made, Coder)
    row = made.vocabulary.tokens.index("dog")
    assert made.word.weight[row].tolist() == [1, 2, 3]
    assert made.graph.vectors.tolist() == [[2, 2, 2]]
    assert Coder.files(settings) == {"retriever.word_vectors": path}


def test_without_a_file_concepts_begin_with_vectors_from_the_captions() -> None:
    pytest.importorskip("HanTa", reason="needs the extra 'concepts'")
    captions = ["a red dog runs", "a red cat runs", "a blue dog runs", "a blue cat runs", "a tree near a house"] * 3
    data = DataSettings(source="scenes", min_count=1)
    made = {}
    for vectors in ("none", "concepts", "words"):
        torch.manual_seed(0)
        settings = CoderSettings(width=8, words=6, concepts=7, caption_vectors=vectors)
        made[vectors] = Coder.make(settings, captions, data, IDENTITY)
    names = [concept.name for concept in made["words"].concepts]
    dog, cat, tree = (made["concepts"].graph.vectors[names.index(name)] for name in ("dog", "cat", "tree"))
    assert functional.cosine_similarity(dog, cat, dim=0) > functional.cosine_similarity(dog, tree, dim=0) + 0.2
    assert torch.equal(made["none"].word.weight, made["concepts"].word.weight), "only the concepts"
    assert torch.equal(made["words"].graph.vectors, made["concepts"].graph.vectors)
    row = made["words"].vocabulary.tokens.index("dog")
    assert torch.equal(made["words"].word.weight[row], dog)
    assert not torch.equal(made["none"].graph.vectors, made["concepts"].graph.vectors)


def test_branches_share_no_projection(features: torch.Tensor) -> None:
    """A change of one branch's layers changes that branch alone."""
    for part, branch in (("region", 0), ("detail.0", 0), ("concept_region", 1), ("concept_detail.2", 1)):
        model: Coder = make_retriever(seed=4, name="coder")
        before = model.embed_images(features)
        with torch.no_grad():
            model.get_submodule(part).weight.add_(torch.randn_like(model.get_submodule(part).weight))
        after = model.embed_images(features)
        assert [torch.equal(one, other) for one, other in zip(before, after, strict=True)] == [branch == 1, branch == 0]


def test_a_folder_without_the_projections_of_concepts_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model: Coder = make_retriever(seed=4, name="coder")
    model.save_pretrained(tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    older = {name: value for name, value in weights.items() if not name.startswith("concept_")}
    save_file(older, tmp_path / "model" / "model.safetensors")
    with pytest.raises(RunError, match=r"the weights do not fit these settings .*concept_region"):
        load_retriever(tmp_path / "model")
