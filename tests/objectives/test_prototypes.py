"""Spherical k-means and the PGC loss against naive loops."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.nn import functional

from tellapart.errors import RecipeError
from tellapart.objectives import prototypes as prototypes_module
from tellapart.objectives.prototypes import (
    NO_CLUSTER,
    Prototypes,
    nearest_centres,
    prototype_loss,
    spherical_kmeans,
)


def naive_kmeans(points: torch.Tensor, centres: torch.Tensor, iterations: int) -> tuple[torch.Tensor, list[int]]:
    """Lloyd's algorithm by the cosine, point by point; an empty cluster takes the worst fitted point that is free."""
    rows = [(point / point.norm()).double() for point in points]
    means = [(centre / centre.norm()).double() for centre in centres]

    def join() -> list[int]:
        cosines = [[float(row @ mean) for mean in means] for row in rows]
        labels = [max(range(len(means)), key=lambda k, row=row: (row[k], -k)) for row in cosines]
        nearest = list(labels)
        fit = [row[label] for row, label in zip(cosines, labels, strict=True)]
        for k in range(len(means)):
            if k not in nearest:
                free = [n for n in range(len(rows)) if labels[n] == nearest[n] and labels.count(labels[n]) > 1]
                labels[min(free, key=lambda n: (fit[n], n))] = k
        return labels

    labels = join()
    for _ in range(iterations):
        for k in range(len(means)):
            total = torch.stack([row for row, label in zip(rows, labels, strict=True) if label == k]).sum(dim=0)
            means[k] = total / total.norm()
        before, labels = labels, join()
        if labels == before:
            break
    return torch.stack(means), labels


def draw(count: int, width: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("count", "clusters"), [(1, 1), (6, 6), (40, 5), (60, 20)])
@pytest.mark.parametrize("iterations", [0, 1, 3, 50])
@pytest.mark.parametrize("chunk", [7, 4096])
def test_kmeans_equals_the_naive_loop(count: int, clusters: int, iterations: int, chunk: int) -> None:
    points, start = draw(count), draw(clusters, seed=1)
    found = spherical_kmeans(points, clusters, start, iterations, chunk=chunk)
    centres, labels = naive_kmeans(points, start, iterations)
    torch.testing.assert_close(found.centres.double(), centres, atol=1e-5, rtol=1e-5)
    assert found.labels.tolist() == labels


@pytest.mark.parametrize("block", [1, 100, 2**24])
def test_blocks_of_similarities_change_nothing(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(prototypes_module, "BLOCK", block)
    points, start = draw(60), draw(20, seed=1)
    found = spherical_kmeans(points, 20, start, 3)
    centres, labels = naive_kmeans(points, start, 3)
    torch.testing.assert_close(found.centres.double(), centres, atol=1e-5, rtol=1e-5)
    assert found.labels.tolist() == labels


@pytest.mark.parametrize("near", [20, 1000])
@pytest.mark.parametrize("iterations", [0, 1, 3])
def test_all_centres_may_be_near(monkeypatch: pytest.MonkeyPatch, near: int, iterations: int) -> None:
    """The passes of large problems equal the naive loop if they leave no centre out."""
    monkeypatch.setattr(prototypes_module, "ALL_COMPARED", 0)
    monkeypatch.setattr(prototypes_module, "NEAR", near)
    points, start = draw(60), draw(20, seed=1)
    found = spherical_kmeans(points, 20, start, iterations)
    centres, labels = naive_kmeans(points, start, iterations)
    torch.testing.assert_close(found.centres.double(), centres, atol=1e-5, rtol=1e-5)
    assert found.labels.tolist() == labels


def test_near_centres_find_about_the_same_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 bundles of 25 points around directions that are themselves in groups."""
    groups = draw(8, 16).repeat_interleave(5, dim=0) + 0.7 * draw(40, 16, seed=1)
    points = groups.repeat_interleave(25, dim=0) + 0.7 * draw(1000, 16, seed=2)
    whole, begun = spherical_kmeans(points, 40), spherical_kmeans(points, 40, iterations=0)
    monkeypatch.setattr(prototypes_module, "ALL_COMPARED", 0)
    monkeypatch.setattr(prototypes_module, "NEAR", 6)
    near = spherical_kmeans(points, 40)
    gained = (near.similarity - begun.similarity) / (whole.similarity - begun.similarity)
    assert gained > 0.9
    assert torch.equal(near.labels, nearest_centres(points, near.centres)[0])
    assert torch.equal(near.labels, spherical_kmeans(points, 40).labels), "the same again"


def test_each_centre_is_near_itself() -> None:
    """Also if others are equal to it, and if it is zero."""
    centres = torch.cat([torch.eye(4)[[0, 0, 0, 0, 1]], torch.zeros(1, 4), torch.tensor([[0.1, 0.9, 0.0, 0.0]])])
    similar = prototypes_module._similar(centres, 2)
    assert all(number in row for number, row in enumerate(similar.tolist()))
    assert similar[4].tolist() == similar[6].tolist() == [4, 6]


def test_every_iteration_brings_points_nearer() -> None:
    points = draw(200)
    fits = [spherical_kmeans(points, 12, iterations=n).similarity for n in range(8)]
    assert all(later >= earlier - 1e-6 for earlier, later in itertools.pairwise(fits))
    assert fits[-1] > fits[0]


def test_the_same_points_give_the_same_clusters_and_a_seed_others() -> None:
    points = draw(100)
    one, other = spherical_kmeans(points, 9), spherical_kmeans(points, 9)
    assert torch.equal(one.centres, other.centres)
    assert torch.equal(one.labels, other.labels)
    assert not torch.equal(one.centres, spherical_kmeans(points, 9, seed=1).centres)


def test_empty_clusters_are_filled() -> None:
    """All centres start at the same place: all but the first are empty."""
    points = draw(30)
    found = spherical_kmeans(points, 6, centres=torch.ones(6, 4))
    assert torch.bincount(found.labels, minlength=6).min() > 0
    assert found.centres.unique(dim=0).shape == (6, 4)


def test_a_cluster_of_one_point_does_not_lose_it() -> None:
    """The worst fitted point is alone with its centre: the empty cluster takes the next worst."""
    points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [-0.5, 0.9]])
    start = torch.tensor([[1.0, 0.0], [-1.0, 0.2], [1.0, 0.0]])
    assert spherical_kmeans(points, 3, start, iterations=0).labels.tolist() == [0, 2, 1]


def test_a_warm_start_keeps_the_ids() -> None:
    """Three bundles that move a little: each keeps the number it had."""
    bundles = torch.eye(4)[:3].repeat_interleave(20, dim=0) + 0.1 * draw(60)
    before = spherical_kmeans(bundles, 3, centres=torch.eye(4)[[2, 0, 1]])
    after = spherical_kmeans(bundles + 0.1 * draw(60, seed=2), 3, centres=before.centres)
    assert torch.equal(before.labels, torch.tensor([1, 2, 0]).repeat_interleave(20))
    assert torch.equal(after.labels, before.labels)


def test_equal_points_opposite_points_and_zeros_have_clusters_too() -> None:
    for points in (torch.ones(5, 2), torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.zeros(3, 2)):
        found = spherical_kmeans(points, 2, centres=torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
        assert found.centres.isfinite().all()
        assert torch.bincount(found.labels, minlength=2).min() > 0


def test_the_nearest_of_equals_is_the_first() -> None:
    labels, cosines = nearest_centres(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]))
    assert (labels.tolist(), cosines.tolist()) == ([1], [1.0])
    assert nearest_centres(torch.zeros(0, 2), torch.eye(2))[0].shape == (0,)


def test_mixed_precision_names_the_same_cluster() -> None:
    """Centres that bfloat16 cannot tell apart."""
    centres = functional.normalize(torch.ones(20, 16) + 1e-2 * draw(20, 16), dim=1)
    with torch.autocast("cpu", torch.bfloat16):
        assert nearest_centres(centres, centres)[0].tolist() == list(range(20))


@pytest.mark.parametrize("clusters", [0, 4])
def test_more_clusters_than_pairs_are_refused(clusters: int) -> None:
    told = f"objective.prototypes: 3 pairs cannot form {clusters} clusters; set between 1 and 3"
    with pytest.raises(RecipeError, match=told):
        spherical_kmeans(draw(3), clusters)
    with pytest.raises(ValueError, match="must be"):
        spherical_kmeans(draw(3), 2, centres=torch.ones(3, 4))


@pytest.mark.parametrize(("pairs", "clusters"), [(1, 1), (5, 3), (4, 9), (0, 3)])
def test_the_loss_equals_the_naive_loop_in_value_and_gradient(pairs: int, clusters: int) -> None:
    """Eq. 7 with one matrix for both modalities."""
    torch.manual_seed(pairs)
    prototypes = Prototypes(clusters, instance_width=2, concept_width=4).double()
    images, texts = (draw(pairs, seed=seed).double().requires_grad_() for seed in (1, 2))
    labels = torch.randint(0, clusters, (pairs,))
    found = prototypes(images, texts, labels)
    assert found.shape == (pairs,)
    matrix = prototypes.classifier.weight
    values = []
    for n in range(pairs):
        value = torch.zeros((), dtype=torch.float64)
        for concept in (images[n], texts[n]):
            scores = torch.stack([matrix[k] @ concept for k in range(clusters)]).exp()
            value = value - torch.log(scores[labels[n]] / scores.sum())
        values.append(value)
    if not pairs:
        return
    expected = torch.stack(values)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    inputs = [images, texts, matrix]
    for one, other in zip(
        torch.autograd.grad(found.sum(), inputs), torch.autograd.grad(expected.sum(), inputs), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_half_precision_logits_are_compared_in_float32() -> None:
    logits = 40 * draw(3).half()
    labels = torch.tensor([0, 1, 2])
    loss = prototype_loss(logits, logits, labels)
    torch.testing.assert_close(loss, 2 * functional.cross_entropy(logits.float(), labels, reduction="none"))
    assert prototype_loss(torch.zeros(1, 4), torch.zeros(1, 4), labels[:1]).item() == pytest.approx(2 * math.log(4))


def test_centres_of_a_sample_serve_all_points() -> None:
    """Three bundles of 40: nine points find them, and all points join them."""
    bundles = torch.eye(4)[:3].repeat_interleave(40, dim=0) + 0.1 * draw(120)
    some = spherical_kmeans(bundles, 3, centres=torch.eye(4)[[2, 0, 1]], points_per_cluster=3)
    whole = spherical_kmeans(bundles, 3, centres=torch.eye(4)[[2, 0, 1]])
    assert torch.equal(some.labels, whole.labels)
    assert not torch.equal(some.centres, whole.centres), "the sample decided"
    assert torch.equal(
        some.centres, spherical_kmeans(bundles, 3, torch.eye(4)[[2, 0, 1]], points_per_cluster=3).centres
    )


def test_half_precision_points_are_compared_in_float32() -> None:
    points = draw(40).half()
    start = draw(5, seed=1)
    one, other = spherical_kmeans(points, 5, start), spherical_kmeans(points.float(), 5, start)
    assert torch.equal(one.labels, other.labels)
    assert torch.equal(one.centres, other.centres)


def filled(pairs: int = 50, width: int = 4) -> tuple[Prototypes, torch.Tensor, torch.Tensor]:
    """Prototypes with the keys of all pairs, two for each image."""
    prototypes = Prototypes(5, instance_width=width, concept_width=3)
    owner = torch.arange(pairs) // 2
    prototypes.make_room(owner)
    images, texts = draw(pairs // 2, width, seed=1), draw(pairs, width, seed=2)
    prototypes.keep(images, torch.arange(len(images)), texts, torch.arange(pairs))
    return prototypes, images, texts


def test_pairs_are_clustered_by_the_sum_of_their_keys_and_keep_their_labels() -> None:
    prototypes, images, texts = filled()
    sums = torch.stack([images[pair // 2].half() + texts[pair].half() for pair in range(50)])
    found = prototypes.cluster()
    expected = spherical_kmeans(sums, 5)
    assert torch.equal(prototypes.centres, expected.centres)
    assert torch.equal(prototypes.assigned, expected.labels)
    assert torch.equal(found.labels, expected.labels)
    assert prototypes.clustered
    assert not prototypes.text_kept.any(), "keys serve one clustering"
    prototypes.keep(draw(25, seed=5), torch.arange(25), draw(50, seed=6), torch.arange(50))
    assert torch.equal(prototypes.assigned, expected.labels), "a moving key does not change the label"


def test_only_pairs_with_both_keys_are_clustered() -> None:
    prototypes, images, texts = filled()
    prototypes.forget()
    prototypes.keep(images[:20], torch.arange(20), texts[:30], torch.arange(30))
    prototypes.cluster()
    assert (prototypes.assigned[:30] >= 0).all()
    assert (prototypes.assigned[30:] == NO_CLUSTER).all()


def test_clusters_and_keys_come_back() -> None:
    one, images, texts = filled()
    one.cluster()
    one.keep(images[3:9] + 1, torch.arange(3, 9), texts[:20] - 1, torch.arange(20))
    again, _, _ = filled()
    again.forget()
    again.load_state_dict(one.state_dict())
    for prototypes in (one, again):
        prototypes.keep(images, torch.arange(25), texts[20:], torch.arange(20, 50))
        prototypes.cluster()
    for name, value in one.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
