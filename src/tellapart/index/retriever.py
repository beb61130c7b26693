"""The retriever of an index: any run or model folder with index vectors, or a CLIP or SigLIP folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tellapart.encoders.base import ImageEncoder, accelerator
from tellapart.errors import RecipeError
from tellapart.files import digest_of
from tellapart.huggingface.hub import is_transformers_folder, make_from_folder
from tellapart.index.base import Made, Vector
from tellapart.models import open_own_encoder, weights_digest
from tellapart.retrievers.base import Raw, Retriever, load_retriever
from tellapart.text import unknown_words


def open_retriever(folder: Path) -> Retriever:
    """Load a retriever that has index vectors: from a run or model folder, or from a folder of CLIP or SigLIP."""
    retriever: Retriever
    retriever = make_from_folder(folder, "retriever") if is_transformers_folder(folder) else load_retriever(folder)
    if not retriever.has_index_vectors:
        raise RecipeError(
            f"{folder}: the retriever '{retriever.name}' compares words with regions and has no vectors to index; "
            "use another one, such as 'coder' or 'ranking'"
        )
    return retriever.to(accelerator() or "cpu")


class Reader:
    """A retriever with its image encoder: pictures and sentences become vectors.

    Args:
        folder: see `open_retriever`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.retriever = open_retriever(folder)

    @cached_property
    def encoder(self) -> ImageEncoder:
        return open_own_encoder(self.retriever, self.folder)

    @cached_property
    def made(self) -> Made:
        """How an index names this retriever. The digest does not depend on where the files are."""
        retriever, encoder = self.retriever, self.retriever.encoder
        parts = {
            "name": retriever.name,
            "settings": retriever.settings.model_dump(mode="json", exclude_defaults=True),
            "weights": weights_digest(retriever.state_dict()),
            "encoder": {**encoder.as_dict(), "name": None},
        }
        return Made(
            retriever=digest_of(parts),
            name=retriever.name,
            folder=str(self.folder.resolve()),
            encoder=encoder,
            width=self.read_texts(["a"]).shape[1],
        )

    def read_features(self, features: np.ndarray) -> Vector:
        """Vectors of pictures, from their region features."""
        device = self.retriever.device
        with torch.inference_mode():
            return self._vectors(self.retriever.embed_images(torch.from_numpy(features).to(device)))

    def read_picture(self, picture: Image.Image) -> Vector:
        """The vector of one picture."""
        features = self.encoder.encode([self.encoder.squeeze(picture)])
        # As a feature store keeps them, so that a picture is nearest to itself.
        vector: Vector = self.read_features(features.astype(np.float16).astype(np.float32))[0]
        return vector

    def read_texts(self, texts: Sequence[str]) -> Vector:
        """Vectors of sentences."""
        with torch.inference_mode():
            return self._vectors(self.retriever.embed_texts(list(texts)))

    def _vectors(self, raw: Raw) -> Vector:
        vectors: Vector = self.retriever.index_vectors(raw).float().cpu().numpy()
        return vectors

    def unknown_words(self, text: str) -> list[str]:
        """Words of a sentence that the retriever does not know; it ignores what they say."""
        return unknown_words(self.retriever.vocabulary, text)
