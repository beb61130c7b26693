"""What every retriever must be: embeddings independent of padding, order and batch composition; saved and loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from support.close import assert_close
from support.tiny import IDENTITY, WORDS, make_captioner, make_retriever
from tellapart import registry
from tellapart.captioners.base import load_captioner
from tellapart.errors import RecipeError, RunError
from tellapart.retrievers.base import Retriever, load_retriever, take
from tellapart.retrievers.words import WordRetriever
from tellapart.text import END, PAD, Vocabulary

CAPTIONS = ["a red house", "two", "a blue car near a tree", "a red unknownword", "", "unknownword"]


@pytest.fixture(params=registry.names("retriever"))
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Retriever:
    if request.param.startswith("hf-"):
        from support.dual_encoders import make_tiny  # skips this one where transformers is missing

        (tmp_path / "tokenizer").mkdir()
        dual: Retriever = make_tiny(request.param, tmp_path / "tokenizer", seed=3)
        return dual
    retriever: Retriever = make_retriever(seed=3, name=request.param)
    return retriever


def test_composition_and_order_change_no_embedding_of_a_text(model: Retriever) -> None:
    together = model.embed_texts(CAPTIONS)
    for row, caption in enumerate(CAPTIONS):
        assert_close(model.embed_texts([caption]), take(together, slice(row, row + 1)))
    order = [3, 1, 5, 4, 0, 2]
    assert_close(model.embed_texts([CAPTIONS[row] for row in order]), take(together, torch.tensor(order)))


def test_composition_and_order_change_no_embedding_of_an_image(model: Retriever, features: torch.Tensor) -> None:
    together = model.embed_images(features)
    for row in range(len(features)):
        assert_close(model.embed_images(features[row : row + 1]), take(together, slice(row, row + 1)))
    order = torch.tensor([2, 0, 1])
    assert_close(model.embed_images(features[order]), take(together, order))


def test_nothing_can_be_embedded(model: Retriever) -> None:
    """An empty share of a batch takes part in the exchange of gradients all the same."""
    texts, images = model.embed_texts([]), model.embed_images(torch.zeros(0, IDENTITY.regions, IDENTITY.width))
    assert model.similarity(images, texts).shape == (0, 0)
    for raw in (texts, images):
        assert (raw if isinstance(raw, torch.Tensor) else raw[0]).requires_grad


def test_the_similarity_is_the_inner_product_of_index_vectors(model: Retriever, features: torch.Tensor) -> None:
    images, texts = model.embed_images(features), model.embed_texts(CAPTIONS)
    similarity = model.similarity(images, texts)
    assert similarity.shape == (3, len(CAPTIONS))
    assert similarity.dtype == torch.float32
    if model.has_index_vectors:
        expected = model.index_vectors(images) @ model.index_vectors(texts).t()
        assert_close(similarity, expected)
    assert len({round(value, 5) for value in similarity[:, 0].tolist()}) == 3, "the image matters"
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model.similarity(images, texts), similarity), "mixed precision is for the layers"


def test_saved_and_loaded(model: Retriever, features: torch.Tensor, tmp_path: Path) -> None:
    model.history = {"recipe": "tiny"}
    model.save_pretrained(tmp_path / "model")
    loaded = Retriever.from_pretrained(tmp_path / "model")
    assert type(loaded) is type(model)
    assert loaded.history == {"recipe": "tiny"}
    assert not loaded.training
    torch.testing.assert_close(loaded.embed_texts(CAPTIONS), model.embed_texts(CAPTIONS), atol=0, rtol=0)
    torch.testing.assert_close(loaded.embed_images(features), model.embed_images(features), atol=0, rtol=0)
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "# tiny\n\nAn image–text retriever" in card
    assert f"- retriever: {model.name}" in card
    assert "run `tellapart evaluate-retrieval RUN`" in card


def test_the_other_kind_of_model_is_refused(model: Retriever, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "retriever")
    make_captioner().save_pretrained(tmp_path / "captioner")
    with pytest.raises(RunError, match=r"retriever: holds a retriever \(.*\), and a captioner is needed here"):
        load_captioner(tmp_path / "retriever")
    with pytest.raises(
        RunError, match=r"captioner: holds a captioner \(adaptive-attention\), and a retriever is needed"
    ):
        load_retriever(tmp_path / "captioner")


# --- reading a captioner's words ------------------------------------------------------------------------------------

SPOKEN = Vocabulary(["zebra", *reversed(WORDS[:-2])])  # another order, one strange word, two words missing


def one_hot(captions: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [SPOKEN.encode(caption) for caption in captions]
    tokens = torch.full((len(rows), max(map(len, rows)) + 2), PAD)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = torch.tensor(row)
    return functional.one_hot(tokens, len(SPOKEN)).float(), torch.tensor([row.index(END) for row in rows])


@pytest.fixture
def reader(model: Retriever) -> WordRetriever:
    if not isinstance(model, WordRetriever):
        pytest.skip("has no word vectors")
    return model


def test_one_hot_weights_are_the_words(reader: WordRetriever) -> None:
    weights, lengths = one_hot(CAPTIONS)
    said = [" ".join(SPOKEN.decode(row).replace("<unk>", "unknownword").split()) for row in weights.argmax(2).tolist()]
    found = reader.bind(SPOKEN).embed_word_weights(weights, lengths)
    assert_close(found, reader.embed_texts(said))


def test_unknown_strange_and_missing_words_are_zero_vectors(reader: WordRetriever) -> None:
    bound = reader.bind(SPOKEN)
    weights, lengths = one_hot(["a zebra tree", "a unknownword tree"])
    both = bound.embed_word_weights(weights, lengths)
    strange, unknown = take(both, slice(0, 1)), take(both, slice(1, 2))
    assert_close(strange, unknown)
    shorter = reader.embed_texts(["a tree"])
    kept, left_out = (raw if isinstance(raw, torch.Tensor) else raw[0] for raw in (strange, shorter))
    assert not torch.allclose(kept, left_out, atol=1e-3), "it keeps its place"


def test_end_and_padding_are_not_read(reader: WordRetriever) -> None:
    bound = reader.bind(SPOKEN)
    weights, lengths = one_hot(CAPTIONS)
    before = bound.embed_word_weights(weights, lengths)
    beyond = torch.arange(weights.shape[1]) >= lengths[:, None]
    weights[beyond] = torch.rand(int(beyond.sum()), len(SPOKEN))
    assert_close(bound.embed_word_weights(weights, lengths), before)
    wider = functional.pad(weights, (0, 0, 0, 5), value=0.5)
    assert_close(bound.embed_word_weights(wider, lengths), before)


def test_long_sentences_are_cut_as_texts_are(reader: WordRetriever) -> None:
    words = Vocabulary(WORDS, max_words=3)
    short: WordRetriever = make_retriever(seed=3, name=reader.name, words=words)
    weights, lengths = one_hot(["a red house near a tree"])
    found = short.bind(SPOKEN).embed_word_weights(weights, lengths)
    assert_close(found, short.embed_texts(["a red house"]))


def test_gradients_reach_the_weights_of_all_words(reader: WordRetriever, features: torch.Tensor) -> None:
    """Also of words that were not said: the straight-through estimator learns from them."""
    weights, lengths = one_hot(["a red house", "blue car"])
    weights.requires_grad_()
    reader.requires_grad_(False)
    texts = reader.bind(SPOKEN).embed_word_weights(weights, lengths)
    reader.similarity(reader.embed_images(features), texts).sum().backward()
    assert weights.grad is not None
    known = torch.tensor([token in WORDS for token in SPOKEN.tokens])
    said = torch.arange(weights.shape[1]) < lengths[:, None]
    assert (weights.grad[said][:, known] != 0).all()
    assert (weights.grad[said][:, ~known] == 0).all()
    assert (weights.grad[~said] == 0).all()
    numeric = torch.zeros_like(weights)
    numeric[0, 1, 5] = 1e-2
    with torch.no_grad():
        images = reader.embed_images(features)
        scores = [
            reader.similarity(images, reader.bind(SPOKEN).embed_word_weights(weights + sign * numeric, lengths)).sum()
            for sign in (1, -1)
        ]
    assert ((scores[0] - scores[1]) / 2e-2).item() == pytest.approx(weights.grad[0, 1, 5].item(), rel=1e-2, abs=1e-4)


def test_pieces_of_words_cannot_be_read(reader: WordRetriever) -> None:
    class Pieces(Vocabulary):
        pass

    with pytest.raises(RecipeError, match="reads whole words, and this captioner writes pieces"):
        reader.bind(Pieces(WORDS))
