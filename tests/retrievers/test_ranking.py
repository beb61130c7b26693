"""The ranking retriever against its equations."""

from __future__ import annotations

import torch
from torch.nn import functional

from support.tiny import make_retriever
from tellapart.retrievers.ranking import Ranking
from tellapart.text import UNKNOWN


def naive_text(model: Ranking, caption: str) -> torch.Tensor:
    """u = V max_t h_t + b: both directions step by step, words one at a time."""
    rows = model.vocabulary.encode(caption)[:-1]
    words = [torch.zeros(model.settings.words) if row == UNKNOWN else model.word.weight[row] for row in rows]
    states: list[list[torch.Tensor]] = []
    for suffix, order in (("", words), ("_reverse", words[::-1])):
        hidden = cell = torch.zeros(model.settings.hidden)
        one: list[torch.Tensor] = []
        for word in order:
            gates = sum(
                getattr(model.sentence, f"weight_{kind}_l0{suffix}") @ value
                + getattr(model.sentence, f"bias_{kind}_l0{suffix}")
                for kind, value in (("ih", word), ("hh", hidden))
            )
            assert isinstance(gates, torch.Tensor)
            i, f, g, o = gates.chunk(4)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
            one.append(hidden)
        states.append(one if not suffix else one[::-1])
    both = [torch.cat(pair) for pair in zip(*states, strict=True)]
    pooled = torch.stack(both).max(dim=0).values if both else torch.zeros(2 * model.settings.hidden)
    return model.text.weight @ pooled + model.text.bias


def test_embeddings_equal_the_equations(features: torch.Tensor) -> None:
    model: Ranking = make_retriever(seed=2)
    captions = ["a red house", "two", "", "a zebra near a tree"]
    expected = torch.stack([naive_text(model, caption) for caption in captions])
    torch.testing.assert_close(model.embed_texts(captions), expected, atol=1e-6, rtol=1e-5)
    pooled = torch.stack([sum(image) / len(image) for image in features])  # type: ignore[arg-type]
    torch.testing.assert_close(model.embed_images(features), pooled @ model.image.weight.t() + model.image.bias)


def test_cosine_reads_normalised_projections_and_dot_reads_them_as_they_are(features: torch.Tensor) -> None:
    by_cosine, by_dot = make_retriever(seed=2), make_retriever(seed=2, reading="dot")
    images, texts = by_dot.embed_images(features), by_dot.embed_texts(["a red house", "two"])
    torch.testing.assert_close(by_dot.similarity(images, texts), images @ texts.t())
    expected = functional.cosine_similarity(images[:, None], texts[None], dim=2)
    torch.testing.assert_close(by_cosine.similarity(images, texts), expected)
    assert not torch.allclose(by_dot.similarity(images, texts), expected)
