"""Concept graph and concept-level descriptors of CODER (sec. 3.2, after CVSE and ML-GCN)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.nn import functional


def conditional_probabilities(captions: Iterable[Sequence[int]], concepts: int) -> torch.Tensor:
    """P(j | i): share of the captions with concept i that also contain concept j, `[g, g]`; the diagonal is 0.

    Args:
        captions: concept numbers of each training caption, without repeats, as from `concepts_in`.
        concepts: g, the number of concepts.

    Example:
        >>> conditional_probabilities([[0, 1], [0]], 2)
        tensor([[0.0000, 0.5000],
                [1.0000, 0.0000]])
    """
    together = torch.zeros(concepts, concepts, dtype=torch.float64)
    for mentioned in captions:
        rows = torch.tensor(mentioned, dtype=torch.long)
        together[rows[:, None], rows] += 1
    alone = together.diagonal().clone()
    return (together.fill_diagonal_(0) / alone.clamp(min=1)[:, None]).float()


def concept_adjacency(
    probabilities: torch.Tensor,
    base: float = 5.0,
    shift: float = 0.02,
    threshold: float = 0.3,
    neighbours: float = 0.25,
) -> torch.Tensor:
    """The normalised adjacency of a graph convolution, `[g, g]`.

    ::

        B  = s^(P−u) − s^(−u)                      rescaled, against chance co-occurrence
        G  = 1 where B ≥ t, else 0                 edges
        A  = p · G / column sum of G + I           weight p for all neighbours together, 1 for the concept itself
        Â  = D^(−1/2) Aᵀ D^(−1/2),  D = row sums of A

    Transposed as in the authors' code: a concept's neighbours are those that make it likely.

    Args:
        probabilities: P, from `conditional_probabilities`.
        base: s.
        shift: u.
        threshold: t.
        neighbours: p, against over-smoothing.

    Example:
        >>> concept_adjacency(torch.zeros(2, 2))   # nothing occurs together
        tensor([[1., 0.],
                [0., 1.]])
    """
    rescaled = torch.pow(base, probabilities - shift) - math.pow(base, -shift)
    edges = (rescaled >= threshold).float().fill_diagonal_(0)
    weighted = neighbours * edges / edges.sum(dim=0, keepdim=True).clamp(min=1)
    weighted = weighted + torch.eye(len(edges), device=edges.device)
    scale = weighted.sum(dim=1).rsqrt()
    return scale[:, None] * weighted.T * scale


def whiten(vectors: torch.Tensor, ridge: float = 0.1) -> torch.Tensor:
    """Give all directions of centred vectors about the same size, `[g, width]`.

    ::

        V (Σ + r I)^(−1/2),   Σ = VᵀV / g,   r = ridge · mean eigenvalue of Σ

    The matrix is taken as a constant: it has no gradient.

    Args:
        vectors: V, with mean 0, `[g, width]`.
        ridge: against directions that the vectors hardly have.

    Example:
        >>> vectors = torch.tensor([[10.0, 0.0], [-10.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> whiten(vectors, ridge=0.0).abs().amax(dim=0)
        tensor([1.4142, 1.4142])
    """
    with torch.autocast(vectors.device.type, enabled=False):
        constant = vectors.detach().float()
        values, directions = torch.linalg.eigh(constant.T @ constant / len(constant))
        values = values.clamp(min=0)
        scale = (values + ridge * values.mean() + torch.finfo(values.dtype).tiny).rsqrt()
        root: torch.Tensor = (directions * scale) @ directions.T
        return vectors.float() @ root


class ConceptGraph(nn.Module):
    """Concept vectors y_1 … y_g: word vectors after two graph convolutions.

    ::

        C = Â · LeakyReLU(Â X W₁) · W₂,   Y = L2(C − mean of C over the concepts)

    In the paper Y = L2(C). Then all concepts have a large part in common, and so have all mixtures of them: the loss
    first pushes the mixtures of images and of texts apart as wholes, until each modality has one concept for all.

    Centred concepts can still collapse to a few directions: a mixture of concepts is largest where the concepts are, so
    the loss finds these first, and training makes them larger. `whitened` gives all directions the same size::

        Y = L2(whiten(C − mean of C over the concepts))

    Args:
        adjacency: Â, from `concept_adjacency`, `[g, g]`; a persistent buffer.
        width: F, width of the concept vectors.
        hidden: width of the hidden layer.
        vectors: X, initial word vectors of the concepts `[g, word width]`; random by default.
        vector_width: width of random vectors.
        centred: subtract the mean; false: as in the paper.
        whitened: also give all directions the same size; needs `centred`.

    Example:
        >>> ConceptGraph(torch.eye(4), width=8)().shape
        torch.Size([4, 8])
    """

    def __init__(
        self,
        adjacency: torch.Tensor,
        width: int,
        hidden: int = 512,
        vectors: torch.Tensor | None = None,
        vector_width: int = 300,
        centred: bool = True,
        whitened: bool = False,
    ) -> None:
        super().__init__()
        if vectors is None:
            vectors = torch.randn(len(adjacency), vector_width) / vector_width**0.5
        if len(vectors) != len(adjacency) or adjacency.shape[0] != adjacency.shape[1]:
            raise ValueError(
                f"word vectors {list(vectors.shape)} do not match an adjacency of {list(adjacency.shape)}; "
                "give one vector for each concept"
            )
        self.centred, self.whitened = centred, whitened and centred
        self.register_buffer("adjacency", adjacency.detach().clone().float())
        self.adjacency: torch.Tensor
        self.vectors = nn.Parameter(vectors.detach().clone().float())
        self.first = nn.Linear(vectors.shape[1], hidden, bias=False)
        self.second = nn.Linear(hidden, width, bias=False)
        self._kept: tuple[list[torch.Tensor], torch.Tensor] | None = None

    def forward(self) -> torch.Tensor:
        """Y, unit vectors `[g, width]`.

        In eval mode without a gradient Y is kept until a weight changes: whitening takes 12 ms at width 256 and 170 at
        1024, for every block of items that is embedded.
        """
        if self.training or torch.is_grad_enabled() or torch.is_autocast_enabled(self.vectors.device.type):
            self._kept = None
            return self._concepts()
        # Compared whole, because fused optimisers write to weights without changing their version.
        weights = [self.adjacency, self.vectors, self.first.weight, self.second.weight]
        if self._kept is None or not all(map(torch.equal, self._kept[0], weights)):
            self._kept = [weight.detach().clone() for weight in weights], self._concepts()
        return self._kept[1]

    def _concepts(self) -> torch.Tensor:
        hidden = functional.leaky_relu(self.adjacency @ self.first(self.vectors), 0.2)
        concepts = self.adjacency @ self.second(hidden)
        if self.centred:
            concepts = concepts - concepts.mean(dim=0, keepdim=True)
        if self.whitened:
            concepts = whiten(concepts)
        return functional.normalize(concepts, dim=-1)


class ConceptQuery(nn.Module):
    """Concept-level descriptor of an image or a text: a mixture of concept vectors (eq. 2).

    ::

        a_i = softmax_i(λ cos(Wᵀq, y_i)),   c = Σ_i a_i y_i

    In the paper the logits are λ qᵀ W y_i, without bound: c is normalised afterwards, so W can grow until a query has
    one concept and no gradient. With the cosine, λ decides how far a query can concentrate.

    Each modality has its own W; the concept vectors are shared. No concept labels are needed.

    Args:
        width: F, width of queries and concept vectors.
        smoothness: λ; a higher value gives weight to fewer concepts.
        bounded: use the cosine; false: as in the paper.

    Example:
        >>> query = ConceptQuery(width=8)
        >>> query(torch.randn(2, 8), torch.randn(5, 8)).shape
        torch.Size([2, 8])
    """

    def __init__(self, width: int, smoothness: float = 3.0, bounded: bool = True) -> None:
        super().__init__()
        self.smoothness = smoothness
        self.bounded = bounded
        self.weight = nn.Parameter(torch.empty(width, width))
        nn.init.xavier_uniform_(self.weight)

    def attention(self, queries: torch.Tensor, concepts: torch.Tensor) -> torch.Tensor:
        """a: weights of the concepts, `[rows, g]`, in float32."""
        asked = queries @ self.weight
        if self.bounded:
            asked = functional.normalize(asked, dim=-1)
        return (self.smoothness * (asked @ concepts.T).float()).softmax(dim=-1)

    def forward(self, queries: torch.Tensor, concepts: torch.Tensor) -> torch.Tensor:
        """c: concept-level descriptors, `[rows, width]`, not normalised.

        Args:
            queries: q, unit vectors `[rows, width]`.
            concepts: Y, from `ConceptGraph`, `[g, width]`.
        """
        return self.attention(queries, concepts).to(concepts.dtype) @ concepts
