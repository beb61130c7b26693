"""CLIP as a retriever (extra `hf`): its text tower and projections here, its vision tower as an encoder.

The vision tower is an encoder like any other, `clip-tokens:`, frozen, its tokens kept in the feature store; CLIP looks
at the first of them, the class token, which `clip:` leaves out. Nothing is downloaded: the model is the encoder's, in a
folder or in the Hugging Face cache of this machine.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn
from torch.nn import functional

from tellapart.captioners.huggingface_tokens import HuggingFaceTokens, read_parts, write_config
from tellapart.encoders.huggingface import find_folder, model_type, need_transformers, quiet, weight_files
from tellapart.encoders.images import EncoderIdentity
from tellapart.errors import RecipeError, StoreError
from tellapart.retrievers.base import Raw, Retriever
from tellapart.text import END, START

if TYPE_CHECKING:
    from tellapart.recipe import DataSettings


class ClipSettings(BaseModel):
    """Settings of `Clip`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    tune: Literal["projections", "all"] = Field(
        "projections", description="what a training changes: the two projections, or the text tower too"
    )


class Clip(Retriever):
    """CLIP (Radford et al. 2021): two towers, a linear layer each, and the cosine of what they give.

    ::

        v = P_v LN(class token),   w = P_t (text tower's state at the end token),   S = cos(v, w)

    As it comes it is trained on the pairs of the web; a training here changes the projections, or the text tower too.
    The vision tower never changes: its tokens are in the feature store, in half precision, and pictures are squeezed
    to the square instead of cropped (`encoders.huggingface`).

    Captions longer than the text tower's positions are cut. Raw embeddings are unit vectors `[items, width]`.

    Args:
        settings: see `ClipSettings`.
        vocabulary: the tokenizer's tokens.
        encoder: identity of the model's vision tower with its class token.
        config: the model's configuration, as transformers has it.
        parts: the model's parts with their weights, by `_take`; by default new ones, whose weights are loaded next.

    Example:
        >>> encoder = open_encoder("clip-tokens:openai/clip-vit-base-patch32")              # doctest: +SKIP
        >>> retriever = Clip.make(ClipSettings(), [], data_settings, encoder.identity)      # doctest: +SKIP
        >>> retriever.similarity(retriever.embed_images(features), retriever.embed_texts(["a dog"]))  # doctest: +SKIP
    """

    name = "hf-clip"
    Settings = ClipSettings
    settings: ClipSettings
    vocabulary: HuggingFaceTokens

    def __init__(
        self,
        settings: ClipSettings,
        vocabulary: HuggingFaceTokens,
        encoder: EncoderIdentity,
        config: Any,
        parts: dict[str, nn.Module] | None = None,
    ) -> None:
        super().__init__(settings, vocabulary, encoder)
        self.config = config
        vocabulary.max_words = config.text_config.max_position_embeddings - 2  # the start and the end token
        for name, part in (parts if parts is not None else _build(config)).items():
            self.add_module(name, part)
        self.text: Any
        self.normalise: nn.Module
        self.project_image: nn.Module
        self.project_text: nn.Module
        for part in (self.text, self.normalise):
            part.requires_grad_(settings.tune == "all")

    # --- how one is made, saved and loaded --------------------------------------------------------------------

    @classmethod
    def make(cls, settings: BaseModel, captions: Iterable[str], data: DataSettings, encoder: EncoderIdentity) -> Clip:
        """From the model whose vision tower is the encoder; its tokens are its tokenizer's."""
        assert isinstance(settings, ClipSettings)
        need_transformers()
        family, _, model = encoder.name.partition(":")
        if family != "clip-tokens":
            raise RecipeError(
                f"data.encoder: '{encoder.name}' does not give the tokens of a CLIP vision tower, the class token "
                "among them; set data.encoder=clip-tokens:FOLDER_OR_ID"
            )
        folder = find_folder(encoder.name, model, "data.encoder")
        if model_type(folder) != "clip":
            raise RecipeError(
                f"data.encoder: {folder} holds a model of type '{model_type(folder)}', and a whole CLIP is needed, "
                "with its text tower"
            )
        whole = _whole_model(folder)
        text = whole.config.text_config
        vocabulary = HuggingFaceTokens.from_pretrained(folder, text.vocab_size, *_ends(folder))
        return cls(settings, vocabulary, encoder, whole.config, _take(whole))

    def write_parts(self, folder: Path) -> None:
        super().write_parts(folder)
        write_config(self.config, folder)

    @classmethod
    def from_parts(cls, settings: BaseModel, encoder: EncoderIdentity, folder: Path) -> Clip:
        assert isinstance(settings, ClipSettings)
        vocabulary, config = read_parts(folder)
        with quiet():
            return cls(settings, vocabulary, encoder, config)

    # --- the contract -----------------------------------------------------------------------------------------

    def embed_images(self, features: torch.Tensor) -> Raw:
        embedded = self.project_image(self.normalise(features[:, 0]))
        return functional.normalize(embedded.float(), dim=1)

    def embed_texts(self, captions: Sequence[str]) -> Raw:
        if not captions:  # transformers cannot run no row at all
            nothing = torch.zeros(0, self.config.text_config.hidden_size, device=self.device)
            return functional.normalize(self.project_text(nothing).float(), dim=1)
        ids, ends = self._ids(captions)
        # Attention looks only back: what stands after the end token changes nothing before it.
        states = self.text(input_ids=ids).last_hidden_state
        pooled = states[torch.arange(len(ids), device=ids.device), ends]
        return functional.normalize(self.project_text(pooled).float(), dim=1)

    def index_vectors(self, raw: Raw) -> torch.Tensor:
        assert isinstance(raw, torch.Tensor)
        return raw

    def branch_widths(self) -> tuple[int, ...]:
        return (int(self.config.projection_dim),)

    def _ids(self, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokenizer's ids, start token, pieces, end token, then end tokens; and where the first end token is."""
        start, end = self.vocabulary.ids[START], self.vocabulary.ids[END]
        rows = [[start, *(self.vocabulary.ids[row] for row in self.vocabulary.encode(one))] for one in captions]
        longest = max(map(len, rows))
        ids = torch.tensor([[*row, *[end] * (longest - len(row))] for row in rows], device=self.device)
        return ids, torch.tensor([len(row) - 1 for row in rows], device=self.device)


def _whole_model(folder: Path) -> Any:
    """A CLIP as transformers has it, float32."""
    import transformers

    cls: Any = transformers.CLIPModel
    safetensors = weight_files(folder)[0].suffix == ".safetensors"
    with quiet():
        whole, found = cls.from_pretrained(
            folder, local_files_only=True, use_safetensors=safetensors, output_loading_info=True
        )
    if found["missing_keys"]:
        raise StoreError(
            f"{folder}: the weights lack {len(found['missing_keys'])} tensors of a CLIP, such as "
            f"{min(found['missing_keys'])}; get the model again"
        )
    return whole.float()


def _ends(folder: Path) -> tuple[int | None, int | None]:
    """Ids of the start and the end token, as the tokenizer says them: many CLIP configurations have other ones."""
    import transformers

    with quiet():
        found: Any = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    return found.bos_token_id, found.eos_token_id


def _take(whole: Any) -> dict[str, nn.Module]:
    """The parts of a CLIP that are not its vision tower."""
    return {
        "text": whole.text_model,
        "normalise": whole.vision_model.post_layernorm,
        "project_image": whole.visual_projection,
        "project_text": whole.text_projection,
    }


def _build(config: Any) -> dict[str, nn.Module]:
    """The same parts, new."""
    import transformers

    small = copy.deepcopy(config)
    small.vision_config.num_hidden_layers = 0  # of the vision tower only the last normalisation is taken
    return _take(transformers.CLIPModel(small))
