"""Prototype-guided classification (PGC) of CODER (sec. 3.4): concept descriptors predict clusters of instances."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from tellapart.errors import RecipeError
from tellapart.progress import OnProgress
from tellapart.retrievers.base import inner_products

# Points for each cluster that decide the centres; with more, k-means takes longer and finds about the same.
POINTS_PER_CLUSTER = 32
# With more comparisons of points and centres in a pass, the passes between the first and the last compare each point
# only with so many centres, those most similar to its own.
ALL_COMPARED = 500_000_000
NEAR = 32
# Numbers in a block of similarities: 64 MB.
BLOCK = 2**24
# Label of a pair that has no cluster.
NO_CLUSTER = -1


class Clusters(NamedTuple):
    """The result of `spherical_kmeans`.

    Attributes:
        centres: unit vectors `[K, width]`.
        labels: the cluster of each point, `[N]`.
        similarity: mean cosine of a point with its centre.
        iterations: number of iterations.
    """

    centres: torch.Tensor
    labels: torch.Tensor
    similarity: float
    iterations: int


@torch.no_grad()
def nearest_centres(
    points: torch.Tensor, centres: torch.Tensor, chunk: int = 4096, on_progress: OnProgress | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The most similar centre of each point and its cosine, `[N]` each; the first one of equals.

    Memory is proportional to `chunk × K`, and at most 64 MB. `on_progress` is called with the points that are done.

    >>> nearest_centres(torch.tensor([[3.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    (tensor([1, 0]), tensor([1., 1.]))
    """
    unit = functional.normalize(centres.float(), dim=1)
    labels = torch.empty(len(points), dtype=torch.long, device=points.device)
    cosines = torch.empty(len(points), device=points.device)
    chunk = _rows(chunk, len(centres))
    for start in range(0, len(points), chunk):
        if on_progress is not None:
            on_progress("comparing pairs with all centres", start, len(points))
        similarity = inner_products(functional.normalize(points[start : start + chunk].float(), dim=1), unit)
        best = similarity.argmax(dim=1)
        labels[start : start + chunk] = best
        cosines[start : start + chunk] = similarity.gather(1, best[:, None]).squeeze(1)
    if on_progress is not None:
        on_progress("comparing pairs with all centres", len(points), len(points))
    return labels, cosines


@torch.no_grad()
def spherical_kmeans(
    points: torch.Tensor,
    clusters: int,
    centres: torch.Tensor | None = None,
    iterations: int = 20,
    seed: int = 0,
    chunk: int = 4096,
    points_per_cluster: int = POINTS_PER_CLUSTER,
    on_progress: OnProgress | None = None,
) -> Clusters:
    """K-means by cosine similarity; deterministic for the same points in the same order.

    Each point is assigned to its most similar centre, then each centre becomes the direction of the sum of its points,
    until nothing changes. An empty cluster gets the point with the lowest cosine to its own centre.

    If there are more than `points_per_cluster × K` points, the centres are those of so many of them, drawn with `seed`;
    then all points are assigned. Points are read in chunks and may be in half precision: memory holds them once.

    At COCO's size a pass over all points and centres takes minutes. So with more than `ALL_COMPARED` comparisons only
    the first and the last pass are such. Between them a point is compared with the `NEAR` centres most similar to its
    own: a point that changes its cluster nearly always goes to one of these. The last pass assigns every point to its
    most similar centre, here as always.

    Args:
        points: `[N, width]`, in any floating point precision; only their directions matter.
        clusters: K, at most N.
        centres: initial centres, `[K, width]`, for example of the last epoch, so that cluster numbers keep their
            meaning. By default K distinct points are drawn with `seed`.
        iterations: maximum number of iterations.
        seed: for the draw.
        chunk: number of points to compare at a time.
        points_per_cluster: how many points for each cluster decide the centres.
        on_progress: called with the passes that are done, and within a pass over all centres with the points.

    Example:
        >>> points = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.1, 1.0], [-0.1, 1.0]])
        >>> spherical_kmeans(points, 2, centres=torch.tensor([[0.0, 1.0], [1.0, 0.0]])).labels
        tensor([1, 1, 0, 0])
    """
    if not 1 <= clusters <= len(points):
        raise RecipeError(
            f"objective.prototypes: {len(points)} pairs cannot form {clusters} clusters; "
            f"set between 1 and {len(points)}"
        )
    if centres is not None and centres.shape != (clusters, points.shape[1]):
        raise ValueError(f"centres are {list(centres.shape)}; they must be {[clusters, points.shape[1]]}")
    some, most = points, points_per_cluster * clusters
    if len(points) > most:
        drawn = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:most]
        some = points[drawn.sort().values.to(points.device)]
    if centres is None:
        drawn = torch.randperm(len(some), generator=torch.Generator().manual_seed(seed))[:clusters]
        centres = some[drawn.to(points.device)]
    centres = functional.normalize(centres.to(points.device).float(), dim=1)
    passes = iterations + 2  # at most: with the first and the last one

    def show(done: int) -> None:
        if on_progress is not None:
            on_progress("clustering pairs (passes)", done, passes)

    show(0)
    labels, cosines = _assign(some, centres, chunk, on_progress)
    many = len(some) * clusters > ALL_COMPARED
    made, changed = 0, True
    while changed and made < iterations:
        show(made + 1)
        centres = _directions(some, labels, centres, chunk)
        before = labels
        if many:
            labels, cosines = _assign_near(some, labels, centres, NEAR)
        else:
            labels, cosines = _assign(some, centres, chunk, on_progress)
        made, changed = made + 1, not torch.equal(labels, before)
    if some is not points or (many and made):
        labels, cosines = _assign(points, centres, chunk, on_progress)
    show(passes)
    return Clusters(centres, labels, cosines.mean().item(), made)


def _assign(
    points: torch.Tensor, centres: torch.Tensor, chunk: int, on_progress: OnProgress | None
) -> tuple[torch.Tensor, torch.Tensor]:
    labels, cosines = nearest_centres(points, centres, chunk, on_progress)
    return _fill_empty(labels, cosines, len(centres)), cosines


def _assign_near(
    points: torch.Tensor, labels: torch.Tensor, centres: torch.Tensor, near: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `_assign`, but a point is compared only with its own centre and those most similar to it, `near` in all."""
    order, sizes = labels.argsort(stable=True), torch.bincount(labels, minlength=len(centres)).tolist()
    found, cosines = torch.empty_like(labels), torch.empty(len(points), device=points.device)
    for rows, some in zip(torch.split(order, sizes), _similar(centres, near), strict=True):
        if len(rows):
            similarity = inner_products(functional.normalize(points[rows].float(), dim=1), centres[some])
            cosines[rows], best = similarity.max(dim=1)
            found[rows] = some[best]
    return _fill_empty(found, cosines, len(centres)), cosines


def _similar(centres: torch.Tensor, near: int) -> torch.Tensor:
    """Each centre's own number and those of the most similar ones, `[K, near]`, in rising order."""
    clusters = len(centres)
    found = torch.empty(clusters, min(near, clusters), dtype=torch.long, device=centres.device)
    for rows in torch.split(torch.arange(clusters, device=centres.device), _rows(clusters, clusters)):
        similarity = inner_products(centres[rows], centres)
        similarity[torch.arange(len(rows)), rows] = torch.inf  # also where another centre is equal
        found[rows] = similarity.topk(found.shape[1], dim=1).indices.sort(dim=1).values
    return found


def _rows(wanted: int, clusters: int) -> int:
    """How many points are compared with all centres at a time."""
    return max(1, min(wanted, BLOCK // clusters))


def _directions(points: torch.Tensor, labels: torch.Tensor, centres: torch.Tensor, chunk: int) -> torch.Tensor:
    """The direction of each cluster's sum; a centre does not move if the sum is zero.

    Sums are computed on the CPU in float64, where the order of additions is fixed.
    """
    sums = torch.zeros(centres.shape, dtype=torch.float64)
    for start in range(0, len(points), chunk):
        part = slice(start, start + chunk)
        unit = functional.normalize(points[part].float(), dim=1)
        sums.index_add_(0, labels[part].cpu(), unit.cpu().double())
    lengths = sums.norm(dim=1, keepdim=True)
    moved = sums.div_(lengths.clamp(min=1e-12)).to(centres)
    still = (lengths.squeeze(1) <= 1e-6).nonzero().squeeze(1).to(centres.device)
    moved[still] = centres[still]
    return moved


def _fill_empty(labels: torch.Tensor, cosines: torch.Tensor, clusters: int) -> torch.Tensor:
    """Give each empty cluster the point with the lowest cosine among clusters with more than one point."""
    sizes = torch.bincount(labels, minlength=clusters).tolist()
    empty = [cluster for cluster, size in enumerate(sizes) if size == 0]
    if not empty:
        return labels
    filled = labels.clone()
    worst_first = iter(torch.argsort(cosines, stable=True).tolist())
    owner = labels.tolist()
    for cluster in empty:
        point = next(point for point in worst_first if sizes[owner[point]] > 1)
        sizes[owner[point]] -= 1
        filled[point] = cluster
    return filled


def prototype_loss(image_logits: torch.Tensor, text_logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """PGC loss of each pair, eq. 7, `[P]`: −log softmax(P^C v^C)_z − log softmax(P^C w^C)_z.

    Args:
        image_logits: P^C v^C, `[P, K]`.
        text_logits: P^C w^C, `[P, K]`.
        labels: z, the cluster of each pair, `[P]`.

    Example:
        >>> prototype_loss(torch.zeros(1, 2), torch.zeros(1, 2), torch.tensor([1]))   # 2 ln 2
        tensor([1.3863])
    """
    of_image, of_text = (
        functional.cross_entropy(logits.float(), labels, reduction="none") for logits in (image_logits, text_logits)
    )
    return of_image + of_text


class Prototypes(nn.Module):
    """Clusters of pairs by instance-level embeddings, and a classifier that predicts them from concept-level ones.

    Pairs are clustered by v^I + w^I. The concept-level descriptors of both modalities then predict the cluster through
    one matrix P^C, which passes meaning from one branch to the other. See `prototype_loss` for the equation.

    `keep` stores the keys that the steps make anyway, in half precision, so that a clustering embeds only the others.
    `cluster` stores each pair's cluster, which stays the same until the next clustering, and starts from the last
    centres, so that cluster numbers keep their meaning. All of it is in persistent buffers: resuming is exact.

    Args:
        clusters: K; about one cluster for 15 pairs.
        instance_width: width of v^I + w^I.
        concept_width: width of v^C and w^C.

    Example:
        >>> prototypes = Prototypes(clusters=2, instance_width=2, concept_width=3)
        >>> prototypes.make_room(torch.tensor([0, 0, 1]))   # two captions of image 0, one of image 1
        >>> prototypes.keep(torch.eye(2), torch.arange(2), torch.tensor([[1.0, 0], [1, 0], [0, 1]]), torch.arange(3))
        >>> _ = prototypes.cluster()
        >>> prototypes.assigned[0] == prototypes.assigned[1], prototypes.assigned[0] == prototypes.assigned[2]
        (tensor(True), tensor(False))
        >>> prototypes(torch.zeros(1, 3), torch.zeros(1, 3), prototypes.assigned[:1]).shape
        torch.Size([1])
    """

    def __init__(self, clusters: int, instance_width: int, concept_width: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(concept_width, clusters, bias=False)
        self.register_buffer("centres", torch.zeros(clusters, instance_width))
        self.register_buffer("clustered", torch.zeros((), dtype=torch.bool))
        # Updates since the training began.
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))
        for name, shape, dtype in (
            ("assigned", (0,), torch.long),
            ("image_keys", (0, instance_width), torch.float16),
            ("text_keys", (0, instance_width), torch.float16),
            ("image_kept", (0,), torch.bool),
            ("text_kept", (0,), torch.bool),
        ):
            self.register_buffer(name, torch.zeros(shape, dtype=dtype))
        self.register_buffer("image_of_pair", torch.zeros(0, dtype=torch.long), persistent=False)
        self.centres: torch.Tensor
        self.clustered: torch.Tensor
        self.updates: torch.Tensor
        self.assigned: torch.Tensor
        self.image_keys: torch.Tensor
        self.text_keys: torch.Tensor
        self.image_kept: torch.Tensor
        self.text_kept: torch.Tensor
        self.image_of_pair: torch.Tensor

    def make_room(self, image_of_pair: torch.Tensor) -> None:
        """Make room for the keys of all pairs of the training split.

        Args:
            image_of_pair: number of each pair's image, `[N]`, in rising order from 0.
        """
        device, width = self.centres.device, self.centres.shape[1]
        pairs, images = len(image_of_pair), int(image_of_pair.max()) + 1 if len(image_of_pair) else 0
        self.image_of_pair = image_of_pair.to(device)
        self.assigned = torch.full((pairs,), NO_CLUSTER, dtype=torch.long, device=device)
        self.image_keys = torch.zeros(images, width, dtype=torch.float16, device=device)
        self.text_keys = torch.zeros(pairs, width, dtype=torch.float16, device=device)
        self.image_kept = torch.zeros(images, dtype=torch.bool, device=device)
        self.text_kept = torch.zeros(pairs, dtype=torch.bool, device=device)

    @torch.no_grad()
    def keep(
        self, image_keys: torch.Tensor, images: torch.Tensor, text_keys: torch.Tensor, pairs: torch.Tensor
    ) -> None:
        """Store keys of images and pairs, by their numbers; newer ones replace older ones."""
        self.image_keys[images] = image_keys.to(self.image_keys)
        self.image_kept[images] = True
        self.text_keys[pairs] = text_keys.to(self.text_keys)
        self.text_kept[pairs] = True

    def forget(self) -> None:
        """Drop the keys, which are of older encoders."""
        self.image_kept.fill_(False)
        self.text_kept.fill_(False)

    @torch.no_grad()
    def cluster(self, seed: int = 0, on_progress: OnProgress | None = None) -> Clusters:
        """Cluster the pairs whose keys are kept, store centres and labels, and drop the keys.

        The other pairs have no cluster. Every process must keep the same keys. `on_progress`: see `spherical_kmeans`.
        """
        there = (self.text_kept & self.image_kept[self.image_of_pair]).nonzero().squeeze(1)
        # The sums take the place of the text keys: at 500,000 pairs there is no memory for both.
        for rows in torch.split(there, 4096):
            self.text_keys[rows] += self.image_keys[self.image_of_pair[rows]]
        points = self.text_keys if len(there) == len(self.text_keys) else self.text_keys[there]
        start = self.centres if self.clustered else None
        iterations = 5 if self.clustered else 20
        found = spherical_kmeans(points, len(self.centres), start, iterations, seed, on_progress=on_progress)
        self.centres.copy_(found.centres)
        self.assigned.fill_(NO_CLUSTER)
        self.assigned[there] = found.labels
        self.clustered.fill_(True)
        self.forget()
        return found

    def nearest(self, points: torch.Tensor) -> torch.Tensor:
        """The nearest cluster of v^I + w^I, `[P]`, for pairs that have none."""
        return nearest_centres(points, self.centres)[0]

    def forward(self, image_concepts: torch.Tensor, text_concepts: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """L_PGC of each pair, `[P]`, from v^C and w^C `[P, width]`."""
        return prototype_loss(self.classifier(image_concepts), self.classifier(text_concepts), labels)
