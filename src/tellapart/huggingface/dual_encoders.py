"""CLIP and SigLIP as retrievers (extra `hf`): text tower and projections here, the vision tower as an encoder.

The vision tower is an encoder like any other, frozen, its tokens kept in the feature store. Nothing is downloaded: the
model is the encoder's, in a folder or in the Hugging Face cache of this machine.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import BaseModel, Field
from torch import nn
from torch.nn import functional

from tellapart.encoders.base import EncoderIdentity
from tellapart.errors import RecipeError
from tellapart.huggingface.folders import find_folder, model_type, need_transformers, quiet, read_model
from tellapart.huggingface.siglip_tokens import siglip_tokens
from tellapart.huggingface.tokens import HuggingFaceTokens, read_parts, write_config
from tellapart.retrievers.base import Raw, Retriever
from tellapart.settings import Section
from tellapart.text import END, START

if TYPE_CHECKING:
    from tellapart.data.settings import DataSettings


class DualEncoderSettings(Section):
    """Settings of `Clip` and `Siglip`."""

    tune: Literal["projections", "all"] = Field(
        "projections", description="what a training changes: the two projections, or the text tower too"
    )


class DualEncoder(Retriever):
    """Two towers, a projection each, and the cosine of what they give; base of `Clip` and `Siglip`.

    As it comes it is trained on the pairs of the web; a training here changes the projections, or the text tower too.
    The vision tower never changes: its tokens are in the feature store, in half precision, and pictures are squeezed
    to the square instead of cropped (`encoders.huggingface`).

    The similarity is the cosine. What the models multiply it by and add to it before their losses is one number for
    all pairs and changes no rank; it is left out.

    Captions longer than the text tower's positions are cut. Raw embeddings are unit vectors `[items, width]`.

    Args:
        settings: see `DualEncoderSettings`.
        vocabulary: the tokenizer's tokens.
        encoder: identity of the model's vision tower.
        config: the model's configuration, as transformers has it.
        parts: the model's parts with their weights, by `take`; by default new ones, whose weights are loaded next.

    Attributes:
        title: what the model is called.
        tower: the family of encoders that its vision tower is one of.
        architecture: what `config.json` calls the whole model, and its class in transformers.
    """

    Settings = DualEncoderSettings
    settings: DualEncoderSettings
    vocabulary: HuggingFaceTokens
    title: ClassVar[str]
    tower: ClassVar[str]
    architecture: ClassVar[tuple[str, str]]

    def __init__(
        self,
        settings: DualEncoderSettings,
        vocabulary: HuggingFaceTokens,
        encoder: EncoderIdentity,
        config: Any,
        parts: dict[str, nn.Module] | None = None,
    ) -> None:
        super().__init__(settings, vocabulary, encoder)
        self.config = config
        self.text: Any
        self.project_image: nn.Module
        self.project_text: Any
        for name, part in (parts if parts is not None else self._build(config)).items():
            self.add_module(name, part)
            part.requires_grad_(settings.tune == "all" or name.startswith("project_"))

    # --- what an architecture gives ---------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def tokens(cls, folder: Path, config: Any) -> HuggingFaceTokens:
        """The tokens of the model in a folder."""

    @staticmethod
    @abstractmethod
    def take(whole: Any) -> dict[str, nn.Module]:
        """The parts that are not its vision tower: `text`, `project_image`, `project_text`, and what else it needs."""

    @abstractmethod
    def pool_image(self, features: torch.Tensor) -> torch.Tensor:
        """What `project_image` is given of the vision tower's tokens."""

    @abstractmethod
    def read(self, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids for the text tower, `[captions, tokens]`, and at which token of each its state is taken."""

    # --- how one is made, saved and loaded --------------------------------------------------------------------

    @classmethod
    def make(
        cls, settings: BaseModel, captions: Iterable[str], data: DataSettings, encoder: EncoderIdentity
    ) -> DualEncoder:
        """From the model whose vision tower is the encoder; its tokens are its tokenizer's."""
        assert isinstance(settings, DualEncoderSettings)
        need_transformers()
        family, _, model = encoder.name.partition(":")
        if family != cls.tower:
            raise RecipeError(
                f"data.encoder: '{encoder.name}' does not give all tokens of a {cls.title} vision tower; "
                f"set data.encoder={cls.tower}:FOLDER_OR_ID"
            )
        folder = find_folder(encoder.name, model, "data.encoder")
        if model_type(folder) != cls.architecture[0]:
            raise RecipeError(
                f"data.encoder: {folder} holds a model of type '{model_type(folder)}', and a whole {cls.title} is "
                "needed, with its text tower"
            )
        whole = read_model(cls.architecture[1], folder, cls.title)
        return cls(settings, cls.tokens(folder, whole.config), encoder, whole.config, cls.take(whole))

    def write_parts(self, folder: Path) -> None:
        super().write_parts(folder)
        write_config(self.config, folder)

    @classmethod
    def from_parts(cls, settings: BaseModel, encoder: EncoderIdentity, folder: Path) -> DualEncoder:
        assert isinstance(settings, DualEncoderSettings)
        vocabulary, config = read_parts(folder)
        with quiet():
            return cls(settings, vocabulary, encoder, config)

    @classmethod
    def _build(cls, config: Any) -> dict[str, nn.Module]:
        """The same parts as `take` gives, new."""
        import transformers

        small = copy.deepcopy(config)
        small.vision_config.num_hidden_layers = 0  # of the vision tower only what comes after them is taken
        return cls.take(getattr(transformers, cls.architecture[1])(small))

    # --- the contract -----------------------------------------------------------------------------------------

    def embed_images(self, features: torch.Tensor) -> Raw:
        embedded = self.project_image(self.pool_image(features))
        return functional.normalize(embedded.float(), dim=1)

    def embed_texts(self, captions: Sequence[str]) -> Raw:
        if captions:
            ids, places = self.read(captions)
            states = self.text(input_ids=ids).last_hidden_state
            pooled = states[torch.arange(len(ids), device=ids.device), places]
        else:  # transformers cannot run no row at all
            pooled = torch.zeros(0, self.config.text_config.hidden_size, device=self.device)
        return functional.normalize(self.project_text(pooled).float(), dim=1)

    def index_vectors(self, raw: Raw) -> torch.Tensor:
        assert isinstance(raw, torch.Tensor)
        return raw

    def branch_widths(self) -> tuple[int, ...]:
        return (int(self.project_text.out_features),)


class Clip(DualEncoder):
    """CLIP (Radford et al. 2021): two towers, a linear layer each, and the cosine of what they give.

    ::

        v = P_v LN(class token),   w = P_t (text tower's state at the end token),   S = cos(v, w)

    Its encoder is `clip-tokens:`, whose first token is the class token, which `clip:` leaves out. See `DualEncoder` for
    the arguments, and for what is trained.

    Example:
        >>> encoder = open_encoder("clip-tokens:openai/clip-vit-base-patch32")                    # doctest: +SKIP
        >>> retriever = Clip.make(DualEncoderSettings(), [], data_settings, encoder.identity)     # doctest: +SKIP
        >>> retriever.similarity(retriever.embed_images(features), retriever.embed_texts(["a dog"]))  # doctest: +SKIP
    """

    name = "hf-clip"
    title = "CLIP"
    tower = "clip-tokens"
    architecture = ("clip", "CLIPModel")
    normalise: nn.Module

    @classmethod
    def tokens(cls, folder: Path, config: Any) -> HuggingFaceTokens:
        text = config.text_config
        # The ends are the tokenizer's: many CLIP configurations have other ones.
        vocabulary = HuggingFaceTokens.from_pretrained(folder, text.vocab_size, None, None)
        vocabulary.max_words = text.max_position_embeddings - 2  # the start and the end token
        return vocabulary

    @staticmethod
    def take(whole: Any) -> dict[str, nn.Module]:
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
        """Start token, pieces, end token, then end tokens; the first end token is taken.

        Attention looks only back: what stands after the end token changes nothing before it.
        """
        start, end = self.vocabulary.ids[START], self.vocabulary.ids[END]
        rows = [[start, *(self.vocabulary.ids[row] for row in self.vocabulary.encode(one))] for one in captions]
        longest = max(map(len, rows))
        ids = torch.tensor([[*row, *[end] * (longest - len(row))] for row in rows], device=self.device)
        return ids, torch.tensor([len(row) - 1 for row in rows], device=self.device)


class Siglip(DualEncoder):
    """SigLIP (Zhai et al. 2023), and SigLIP 2 of fixed resolution: CLIP's towers, trained by a sigmoid for each pair.

    ::

        a = Attention(probe, patch tokens),   v = a + MLP(LN(a)),
        w = P_t (text tower's state at the last position),   S = cos(v, w)

    The probe, its attention and the MLP are the projection of the image. The patch tokens of the encoder `siglip:` are
    those that the probe attends to, after the vision tower's last normalisation.

    The text tower attends to all its positions, to the padding too: a caption always fills all of them. Its case and
    punctuation are treated as its tokenizer does (`siglip_tokens`).

    See `DualEncoder` for the arguments, and for what is trained.

    Example:
        >>> encoder = open_encoder("siglip:google/siglip-base-patch16-224")                       # doctest: +SKIP
        >>> retriever = Siglip.make(DualEncoderSettings(), [], data_settings, encoder.identity)   # doctest: +SKIP
        >>> retriever.similarity(retriever.embed_images(features), retriever.embed_texts(["a dog"]))  # doctest: +SKIP
    """

    name = "hf-siglip"
    title = "SigLIP"
    tower = "siglip"
    architecture = ("siglip", "SiglipModel")

    @classmethod
    def tokens(cls, folder: Path, config: Any) -> HuggingFaceTokens:
        return siglip_tokens(folder, config.text_config.vocab_size, config.text_config.max_position_embeddings)

    @staticmethod
    def take(whole: Any) -> dict[str, nn.Module]:
        text, project_text = whole.text_model, whole.text_model.head
        text.head = nn.Identity()  # it is a part of its own
        return {"text": text, "project_image": whole.vision_model.head, "project_text": project_text}

    def pool_image(self, features: torch.Tensor) -> torch.Tensor:
        return features

    def read(self, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokenizer's ids, padded to all positions; the last is taken, whatever it is."""
        ids = torch.tensor([self.vocabulary.tokenizer.encode(one).ids for one in captions], device=self.device)
        return ids, torch.full((len(ids),), ids.shape[1] - 1, device=self.device)
