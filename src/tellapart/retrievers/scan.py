"""Stacked cross attention (SCAN, Lee et al., ECCV 2018): each word attends to the image regions."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from tellapart.encoders.base import EncoderIdentity
from tellapart.retrievers.base import Raw
from tellapart.retrievers.pooling import mean_pool
from tellapart.retrievers.sentences import bigru_states
from tellapart.retrievers.words import WordRetriever
from tellapart.settings import MAX_WIDTH, Section
from tellapart.text import Vocabulary


def cross_attention(
    regions: torch.Tensor,
    words: torch.Tensor,
    mask: torch.Tensor,
    sharpness: float = 9.0,
    aggregation: Literal["mean", "logsumexp"] = "mean",
    peak: float = 6.0,
) -> torch.Tensor:
    """Similarity of images and texts, `[images, texts]`, by text-to-image attention (SCAN t-i).

    ::

        s_ij = [v_i·e_j]₊ / √(Σ_j' [v_i·e_j']₊²)                    normalised over the words of a region
        α_ij = softmax_i(λ₁ s_ij),   a_j = Σ_i α_ij v_i             the regions that word j attends to
        R_j = cos(e_j, a_j),   S = mean_j R_j   or   (1/λ₂) log Σ_j exp(λ₂ R_j)

    The vectors a_j are never computed: a_j·e_j = Σ_i α_ij v_i·e_j and |a_j|² = α_jᵀ (V Vᵀ) α_j.

    Args:
        regions: unit vectors `[images, regions, width]`.
        words: unit vectors `[texts, words, width]`.
        mask: which words are real, `[texts, words]`; a text without words has similarity 0.
        sharpness: λ₁.
        aggregation: mean or log-sum-exp over words.
        peak: λ₂ of the log-sum-exp.

    Example:
        >>> unit = torch.eye(2)[None]
        >>> cross_attention(unit, unit, torch.ones(1, 2, dtype=torch.bool)).round(decimals=3)
        tensor([[1.]])
    """
    products = torch.einsum("ird,twd->itrw", regions, words)
    there = mask[None, :, None]
    seen = products.relu() * there
    # The clamp is inside the root, whose gradient at 0 is infinite.
    seen = seen / seen.square().sum(dim=3, keepdim=True).clamp(min=1e-16).sqrt()
    weights = (sharpness * seen).softmax(dim=2)
    dot = (weights * products).sum(dim=2)
    gram = regions @ regions.transpose(1, 2)
    length = (weights * torch.einsum("irs,itsw->itrw", gram, weights)).sum(dim=2).clamp(min=1e-16).sqrt()
    relevance = dot / length
    count = mask.sum(dim=1)
    if aggregation == "mean":
        return (relevance * mask).sum(dim=2) / count.clamp(min=1)
    summed = (peak * relevance).masked_fill(~mask, -torch.inf)
    # For a text without words: a finite value, replaced in the next line.
    summed = torch.where((count == 0)[None, :, None], 0.0, summed)
    return torch.where(count > 0, summed.logsumexp(dim=2) / peak, 0.0)


class ScanSettings(Section):
    """Settings of `Scan`."""

    width: int = Field(256, ge=1, le=MAX_WIDTH, description="width of the joint space (paper: 1024)")
    words: int = Field(300, ge=1, le=MAX_WIDTH, description="width of the word vectors")
    sharpness: float = Field(9.0, gt=0, description="λ₁: sharpness of the attention")
    aggregation: Literal["mean", "logsumexp"] = Field("mean", description="how to combine the scores of the words")
    peak: float = Field(6.0, gt=0, description="logsumexp: λ₂")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of word vectors and region features")


class Scan(WordRetriever):
    """SCAN: each word attends to the regions of every image; see `cross_attention` for the equations.

    More accurate than one vector per item, but far slower, since every image must be compared with every caption. Use
    it to compare accuracy against speed. In large galleries it re-ranks what its `coarse_vectors` find. Train it with
    the `coder` objective and `loss: triplet`.

    Raw embeddings are `(regions,)` and `(words, mask)`, unit vectors.

    Args:
        settings: see `ScanSettings`.
        vocabulary, encoder: see `Model`.

    Example:
        >>> retriever = Scan(ScanSettings(width=64), vocabulary, encoder)   # doctest: +SKIP
    """

    name = "scan"
    Settings = ScanSettings
    settings: ScanSettings
    has_index_vectors = False
    has_coarse_vectors = True

    def __init__(self, settings: ScanSettings, vocabulary: Vocabulary, encoder: EncoderIdentity) -> None:
        super().__init__(settings, vocabulary, encoder, settings.words)
        self.normalise = nn.LayerNorm(encoder.width)
        self.region = nn.Linear(encoder.width, settings.width)
        self.sentence = nn.GRU(settings.words, settings.width, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(settings.dropout)

    def embed_images(self, features: torch.Tensor) -> Raw:
        regions = self.region(self.dropout(self.normalise(features)))
        return (functional.normalize(regions.float(), dim=2),)

    def join_views(self, plain: Raw, mirrored: Raw) -> Raw:
        """The regions of both images: a word attends to all of them."""
        return (torch.cat([plain[0], mirrored[0]], dim=1),)

    def embed_words(self, vectors: torch.Tensor, lengths: torch.Tensor) -> Raw:
        states = bigru_states(self.sentence, self.dropout(vectors), lengths)
        # Padded to the longest possible caption, so that rows of different batches can be concatenated.
        missing = self.vocabulary.max_words - states.shape[1]
        words = functional.pad(functional.normalize(states.float(), dim=2), (0, 0, 0, max(0, missing)))
        return words, torch.arange(words.shape[1], device=words.device) < lengths[:, None]

    def coarse_vectors(self, raw: Raw) -> torch.Tensor:
        """The mean of the regions of an image, or of the words of a caption, normalised."""
        assert isinstance(raw, tuple)
        items, mask = raw if len(raw) == 2 else (raw[0], torch.ones(raw[0].shape[:2], dtype=torch.bool))
        return functional.normalize(mean_pool(items, mask.to(items.device)), dim=1)

    def similarity(self, images: Raw, texts: Raw) -> torch.Tensor:
        (regions,), (words, mask) = images, texts
        # Cut padding, which costs as much as words.
        longest = int(mask.sum(dim=1).max()) if len(mask) else 0
        settings = self.settings
        chosen = settings.sharpness, settings.aggregation, settings.peak
        with torch.autocast(regions.device.type, enabled=False):  # float32 even under mixed precision
            return cross_attention(regions.float(), words[:, :longest].float(), mask[:, :longest], *chosen)
