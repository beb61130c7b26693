"""CLIP and SigLIP as retrievers (extra `hf`): text tower and projections; the vision tower is the encoder.

The vision tower is frozen, and its tokens are in the feature store. Nothing is downloaded: the model is the one of the
encoder, in a folder or in the Hugging Face cache of this machine.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from pydantic import BaseModel, Field
from torch import nn
from torch.nn import functional

from tellapart.encoders.base import EncoderIdentity
from tellapart.errors import RecipeError
from tellapart.huggingface.folders import find_folder, model_type, read_model
from tellapart.huggingface.models import TransformersModel, without_vision_layers
from tellapart.huggingface.siglip_tokens import siglip_tokens
from tellapart.huggingface.tokens import HuggingFaceTokens
from tellapart.retrievers.base import Raw, Retriever
from tellapart.settings import Section
from tellapart.text import END, START

if TYPE_CHECKING:
    from tellapart.data.settings import DataSettings


class DualEncoderSettings(Section):
    """Settings of `Clip` and `Siglip`."""

    tune: Literal["projections", "all"] = Field(
        "projections", description="parts to train: the two projections, or all (the text tower too)"
    )


class DualEncoder(TransformersModel, Retriever):
    """A text tower and a vision tower, each with a projection, compared by cosine; base of `Clip` and `Siglip`.

    Use it as it is, pretrained on image–text pairs of the web, or train the projections or the text tower too. The
    vision tower is never trained. Its tokens are in the feature store in half precision, and pictures are squeezed to
    the square instead of cropped (see `VisionTower`).

    The similarity is the cosine. The scale and bias of the models' losses are left out, since they change no rank.

    Captions longer than the text tower's positions are cut. Raw embeddings are unit vectors `[items, width]`.

    Args:
        settings: see `DualEncoderSettings`.
        vocabulary, encoder, config, parts: see `TransformersModel`.

    Attributes:
        title: name of the model in errors.
        architecture: model type in `config.json`, and class in transformers.
    """

    Settings = DualEncoderSettings
    settings: DualEncoderSettings
    title: ClassVar[str]
    architecture: ClassVar[tuple[str, str]]

    def __init__(
        self,
        settings: DualEncoderSettings,
        vocabulary: HuggingFaceTokens,
        encoder: EncoderIdentity,
        config: Any,
        parts: dict[str, nn.Module] | None = None,
    ) -> None:
        super().__init__(settings, vocabulary, encoder, config, parts)
        self.text: Any
        self.project_image: nn.Module
        self.project_text: Any
        for name, part in self.named_children():
            part.requires_grad_(settings.tune == "all" or name.startswith("project_"))

    # --- implemented by each architecture; `take` gives `text`, `project_image`, `project_text` and others -------

    @classmethod
    @abstractmethod
    def tokens(cls, folder: Path, config: Any) -> HuggingFaceTokens:
        """The tokens of the model in a folder."""

    @abstractmethod
    def pool_image(self, features: torch.Tensor) -> torch.Tensor:
        """The input of `project_image`, from the vision tower's tokens."""

    @abstractmethod
    def read(self, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids for the text tower, `[captions, tokens]`, and the position of the state to use in each row."""

    # --- making -----------------------------------------------------------------------------------------------

    @classmethod
    def make(cls, settings: BaseModel, captions: Iterable[str], data: DataSettings, encoder: EncoderIdentity) -> Self:
        """From the model whose vision tower is the encoder; the training captions are not used."""
        assert isinstance(settings, DualEncoderSettings)
        folder = find_folder(encoder.name, cls.model_of_encoder(encoder), "data.encoder")
        if model_type(folder) != cls.architecture[0]:
            raise RecipeError(
                f"data.encoder: {folder} holds a model of type '{model_type(folder)}', and a whole {cls.title} is "
                "needed, with its text tower"
            )
        whole = read_model(cls.architecture[1], folder, cls.title)
        return cls(settings, cls.tokens(folder, whole.config), encoder, whole.config, cls.take(whole))

    @classmethod
    def build(cls, config: Any) -> dict[str, nn.Module]:
        import transformers

        return cls.take(getattr(transformers, cls.architecture[1])(without_vision_layers(config)))

    # --- retriever interface ----------------------------------------------------------------------------------

    def embed_images(self, features: torch.Tensor) -> Raw:
        embedded = self.project_image(self.pool_image(features))
        return functional.normalize(embedded.float(), dim=1)

    def embed_texts(self, captions: Sequence[str]) -> Raw:
        if captions:
            ids, places = self.read(captions)
            states = self.text(input_ids=ids).last_hidden_state
            pooled = states[torch.arange(len(ids), device=ids.device), places]
        else:  # transformers needs at least one row
            pooled = torch.zeros(0, self.config.text_config.hidden_size, device=self.device)
        return functional.normalize(self.project_text(pooled).float(), dim=1)

    def index_vectors(self, raw: Raw) -> torch.Tensor:
        assert isinstance(raw, torch.Tensor)
        return raw

    def branch_widths(self) -> tuple[int, ...]:
        return (int(self.project_text.out_features),)


class Clip(DualEncoder):
    """CLIP (Radford et al. 2021).

    ::

        v = P_v LN(class token),   w = P_t (text tower's state at the end token),   S = cos(v, w)

    Its encoder is `clip-tokens:`, whose first token is the class token; `clip:` leaves that one out. See `DualEncoder`
    for the arguments and the parts that are trained.

    Example:
        >>> encoder = open_encoder("clip-tokens:openai/clip-vit-base-patch32")                    # doctest: +SKIP
        >>> retriever = Clip.make(DualEncoderSettings(), [], data_settings, encoder.identity)     # doctest: +SKIP
        >>> retriever.similarity(retriever.embed_images(features), retriever.embed_texts(["a dog"]))  # doctest: +SKIP
    """

    name = "hf-clip"
    title = "CLIP"
    family = "clip-tokens"
    architecture = ("clip", "CLIPModel")
    normalise: nn.Module

    @classmethod
    def tokens(cls, folder: Path, config: Any) -> HuggingFaceTokens:
        text = config.text_config
        # Start and end tokens of the tokenizer: those of many CLIP configurations are wrong.
        vocabulary = HuggingFaceTokens.from_pretrained(folder, text.vocab_size, None, None)
        vocabulary.max_words = text.max_position_embeddings - 2  # the start and the end token
        return vocabulary

    @classmethod
    def take(cls, whole: Any) -> dict[str, nn.Module]:
        return {
            "text": whole.text_model,
            "normalise": whole.vision_model.post_layernorm,
            "project_image": whole.visual_projection,
            "project_text": whole.text_projection,
        }

    def pool_image(self, features: torch.Tensor) -> torch.Tensor:
        pooled: torch.Tensor = self.normalise(features[:, 0])
        return pooled

    def read(self, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Start token, pieces, end token, then more end tokens as padding; the state of the first end token is used.

        Attention is causal, so padding changes no state before it.
        """
        start, end = self.vocabulary.ids[START], self.vocabulary.ids[END]
        rows = [[start, *(self.vocabulary.ids[row] for row in self.vocabulary.encode(one))] for one in captions]
        longest = max(map(len, rows))
        ids = torch.tensor([[*row, *[end] * (longest - len(row))] for row in rows], device=self.device)
        return ids, torch.tensor([len(row) - 1 for row in rows], device=self.device)


class Siglip(DualEncoder):
    """SigLIP (Zhai et al. 2023), and SigLIP 2 with fixed resolution: a dual encoder trained by a sigmoid loss per pair.

    ::

        a = Attention(probe, patch tokens),   v = a + MLP(LN(a)),
        w = P_t (text tower's state at the last position),   S = cos(v, w)

    The image projection is the probe with its attention and MLP. It attends to the patch tokens of the encoder
    `siglip:`, which are those after the vision tower's last normalisation.

    The text tower attends to padding too, so a caption is always padded to all positions. The tokenizer handles case
    and punctuation (`siglip_tokens`).

    See `DualEncoder` for the arguments and the parts that are trained.

    Example:
        >>> encoder = open_encoder("siglip:google/siglip-base-patch16-224")                       # doctest: +SKIP
        >>> retriever = Siglip.make(DualEncoderSettings(), [], data_settings, encoder.identity)   # doctest: +SKIP
        >>> retriever.similarity(retriever.embed_images(features), retriever.embed_texts(["a dog"]))  # doctest: +SKIP
    """

    name = "hf-siglip"
    title = "SigLIP"
    family = "siglip"
    architecture = ("siglip", "SiglipModel")

    @classmethod
    def tokens(cls, folder: Path, config: Any) -> HuggingFaceTokens:
        return siglip_tokens(folder, config.text_config.vocab_size, config.text_config.max_position_embeddings)

    @classmethod
    def take(cls, whole: Any) -> dict[str, nn.Module]:
        text, project_text = whole.text_model, whole.text_model.head
        text.head = nn.Identity()  # `project_text`
        return {"text": text, "project_image": whole.vision_model.head, "project_text": project_text}

    def pool_image(self, features: torch.Tensor) -> torch.Tensor:
        return features

    def read(self, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids padded to all positions; the state of the last position is used."""
        ids = torch.tensor([self.vocabulary.tokenizer.encode(one).ids for one in captions], device=self.device)
        return ids, torch.full((len(ids),), ids.shape[1] - 1, device=self.device)
