"""The concept graph, its convolutions and the concept query against naive loops."""

from __future__ import annotations

import math

import pytest
import torch

from tellapart.retrievers import concept_graph
from tellapart.retrievers.concept_graph import (
    ConceptGraph,
    ConceptQuery,
    concept_adjacency,
    conditional_probabilities,
    whiten,
)


def mentions(captions: int, concepts: int) -> list[list[int]]:
    """Which concepts each caption mentions; the first caption none, the last concept in no caption."""
    drawn = torch.rand(captions, concepts - 1, generator=torch.Generator().manual_seed(0)) < 0.3
    drawn[0] = False
    return [row.nonzero().flatten().tolist() for row in drawn]


def naive_adjacency(captions: list[list[int]], count: int) -> torch.Tensor:
    edges = [[0.0] * count for _ in range(count)]
    for i in range(count):
        with_i = [caption for caption in captions if i in caption]
        for j in range(count):
            if i != j and with_i:
                probability = sum(j in caption for caption in with_i) / len(with_i)
                edges[i][j] = float(5 ** (probability - 0.02) - 5**-0.02 >= 0.3)
    weighted = [
        [0.25 * edges[i][j] / max(1.0, sum(row[j] for row in edges)) + (i == j) for j in range(count)]
        for i in range(count)
    ]
    degree = [sum(row) for row in weighted]
    return torch.tensor(
        [[weighted[j][i] / math.sqrt(degree[i] * degree[j]) for j in range(count)] for i in range(count)]
    )


def test_probabilities_equal_the_naive_loop() -> None:
    captions = mentions(30, 8)
    found = conditional_probabilities(captions, 8)
    for i in range(8):
        with_i = [caption for caption in captions if i in caption]
        for j in range(8):
            both = sum(j in caption for caption in with_i)
            assert found[i, j].item() == pytest.approx(both / len(with_i) if with_i and i != j else 0.0)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_the_adjacency_equals_the_naive_loop(count: int) -> None:
    captions = mentions(30, count)
    found = concept_adjacency(conditional_probabilities(captions, count))
    torch.testing.assert_close(found, naive_adjacency(captions, count))
    assert (found.diagonal() > 0).all()
    if count == 8:
        assert 0 < (found > 0).sum() - count < count * (count - 1)


def test_neighbours_weigh_a_quarter_together() -> None:
    """Before the normalisation, what flows into a concept is 1 of itself and 0.25 of all others."""
    probabilities = torch.rand(6, 6, generator=torch.Generator().manual_seed(1))
    plain = concept_adjacency(probabilities, threshold=0.0, neighbours=0.25)
    assert torch.equal(plain > 0, torch.ones(6, 6) > 0)
    torch.testing.assert_close(plain.sum(dim=1), torch.ones(6))  # all degrees are equal here: 1.25
    torch.testing.assert_close(plain.diagonal(), torch.full((6,), 0.8))


@pytest.mark.parametrize("centred", [True, False])
def test_the_graph_equals_the_naive_loop_in_value_and_gradient(centred: bool) -> None:
    torch.manual_seed(0)
    adjacency = concept_adjacency(conditional_probabilities(mentions(30, 6), 6))
    graph = ConceptGraph(adjacency, width=5, hidden=4, vector_width=3, centred=centred)
    found = graph()

    def layer(rows: list[torch.Tensor], weight: torch.Tensor) -> list[torch.Tensor]:
        return [
            sum((adjacency[i, j] * (weight @ rows[j]) for j in range(6)), torch.zeros(len(weight))) for i in range(6)
        ]

    hidden = [torch.where(row > 0, row, 0.2 * row) for row in layer(list(graph.vectors), graph.first.weight)]
    rows = layer(hidden, graph.second.weight)
    common = sum(rows, torch.zeros(5)) / 6 if centred else torch.zeros(5)
    expected = torch.stack([(row - common) / (row - common).norm() for row in rows])
    torch.testing.assert_close(found, expected)
    inputs, weights = list(graph.parameters()), torch.randn(6, 5)
    assert len(inputs) == 3
    for one, other in zip(
        torch.autograd.grad((weights * found).sum(), inputs),
        torch.autograd.grad((weights * expected).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_whitening_equals_the_inverse_root_of_the_covariance_which_has_no_gradient() -> None:
    torch.manual_seed(2)
    vectors = (torch.randn(30, 4, dtype=torch.float64) * torch.tensor([5.0, 1.0, 0.2, 0.0])).requires_grad_()
    centred = vectors - vectors.mean(dim=0)
    found = whiten(centred.float(), ridge=0.1)
    covariance = sum((torch.outer(row, row) for row in centred.detach()), torch.zeros(4, 4, dtype=torch.float64)) / 30
    wanted = covariance + 0.1 * covariance.trace() / 4 * torch.eye(4, dtype=torch.float64)
    # Denman and Beavers: Y goes to the root of a matrix, Z to its inverse.
    root, inverse = wanted, torch.eye(4, dtype=torch.float64)
    for _ in range(40):
        root, inverse = (root + torch.linalg.inv(inverse)) / 2, (inverse + torch.linalg.inv(root)) / 2
    torch.testing.assert_close(found.double(), centred @ inverse, atol=1e-4, rtol=1e-4)
    weights = torch.randn(30, 4, dtype=torch.float64)
    (one,) = torch.autograd.grad((weights * found.double()).sum(), vectors, retain_graph=True)
    (other,) = torch.autograd.grad((weights * (centred @ inverse)).sum(), vectors)
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert not whiten(torch.zeros(3, 2)).any(), "vectors without a direction stay zero"


def test_whitened_concepts_are_unit_vectors_of_many_directions() -> None:
    """Concepts that are nearly on a line fill all directions."""
    torch.manual_seed(3)
    line = torch.randn(40, 1) * torch.randn(1, 6) + 0.05 * torch.randn(40, 6)

    def directions(whitened: bool) -> float:
        graph = ConceptGraph(torch.eye(40), width=6, hidden=6, vectors=line, whitened=whitened)
        for layer in (graph.first, graph.second):
            torch.nn.init.eye_(layer.weight)
        found = graph()
        torch.testing.assert_close(found.norm(dim=1), torch.ones(40))
        sizes = torch.linalg.svdvals(found.detach()) ** 2
        return float(sizes.sum() ** 2 / (sizes**2).sum())

    assert directions(False) < 2 < 3 < directions(True)
    assert not ConceptGraph(torch.eye(4), width=2, centred=False, whitened=True).whitened, "only of centred ones"


def test_concepts_are_computed_once_in_evaluation_and_again_when_a_weight_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    monkeypatch.setattr(concept_graph, "whiten", lambda vectors: calls.append(1) or whiten(vectors))
    graph = ConceptGraph(torch.eye(5), width=4, hidden=6, whitened=True).eval()
    with torch.no_grad():
        first = graph()
        assert torch.equal(graph(), first)
    assert len(calls) == 1
    state = {name: weight + 1 for name, weight in graph.state_dict().items()}
    graph.second.weight.data[0, 0] += 1  # does not change its version
    with torch.no_grad():
        assert not torch.equal(graph(), first)
        graph.load_state_dict(state)
        loaded = graph()
    graph.train()
    torch.testing.assert_close(graph(), loaded)
    graph().sum().backward()
    assert graph.vectors.grad is not None
    assert len(calls) == 5


def test_word_vectors_are_where_training_starts_and_the_adjacency_is_saved() -> None:
    vectors = torch.randn(4, 7)
    graph = ConceptGraph(torch.eye(4), width=5, vectors=vectors)
    assert torch.equal(graph.vectors, vectors)
    assert graph.vectors.requires_grad
    with torch.no_grad():
        graph.vectors.add_(1)
    assert not torch.equal(graph.vectors, vectors)  # a copy
    assert "adjacency" in graph.state_dict()
    assert not graph.adjacency.requires_grad
    again = ConceptGraph(torch.zeros(4, 4), width=5, vectors=vectors)
    again.load_state_dict(graph.state_dict())
    assert torch.equal(again(), graph())
    with pytest.raises(ValueError, match="one vector for each concept"):
        ConceptGraph(torch.eye(4), width=5, vectors=vectors[:3])


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 4])
def test_the_query_equals_the_naive_loop_in_value_and_gradient(rows: int, bounded: bool) -> None:
    """Eq. 2."""
    torch.manual_seed(rows)
    query = ConceptQuery(width=5, smoothness=10.0, bounded=bounded)
    queries, concepts = torch.randn(rows, 5, requires_grad=True), torch.randn(7, 5, requires_grad=True)
    found = query(queries, concepts)
    assert found.shape == (rows, 5)
    if not rows:
        return
    values = []
    for row in range(rows):
        asked = queries[row] @ query.weight
        asked = asked / asked.norm() if bounded else asked
        scores = torch.stack([10.0 * asked @ concepts[i] for i in range(7)])
        attention = (scores - scores.max()).exp() / (scores - scores.max()).exp().sum()
        values.append(sum((attention[i] * concepts[i] for i in range(7)), torch.zeros(5)))
    expected = torch.stack(values)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    inputs = [queries, concepts, query.weight]
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


def test_sharp_queries_take_the_nearest_concept() -> None:
    query = ConceptQuery(width=4, smoothness=1e4)
    with torch.no_grad():
        query.weight.copy_(torch.eye(4))
    concepts = torch.eye(4)
    torch.testing.assert_close(query(torch.tensor([[0.1, 0.9, 0.2, 0.0]]), concepts), concepts[1:2])
    assert query.attention(torch.randn(2, 4).half().float(), concepts).sum(dim=1).tolist() == pytest.approx(
        [1.0, 1.0], rel=1e-5
    )
