"""Captioners of Hugging Face transformers (extra `hf`): BLIP, GIT, and any vision encoder with any text decoder.

The vision tower is a frozen encoder (`blip:`, `git:`, `encoder-decoder:`), and its tokens are in the feature store. The
captioner is the text decoder with its tokenizer; it is trained whole or by LoRA.

A captioner is made from a model of transformers, in a folder or in the Hugging Face cache of this machine. Nothing is
downloaded. A saved model folder needs no other files.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from pydantic import BaseModel, Field
from torch import nn

from tellapart.captioners.base import Captioner, Traces, at_tokens, words_before
from tellapart.encoders.base import EncoderIdentity, ImageEncoder
from tellapart.errors import RecipeError, StoreError
from tellapart.huggingface.folders import FAMILIES, find_folder, model_type, text_positions
from tellapart.huggingface.models import TransformersModel, without_vision_layers
from tellapart.huggingface.tokens import HuggingFaceTokens, first_known
from tellapart.huggingface.towers import CAPTIONERS, CaptionerTower, tower_digest, vision_tower, whole_model
from tellapart.huggingface.weights import add_lora, save_tied_weights_once
from tellapart.settings import MAX_WIDTH, Section
from tellapart.text import PAD

if TYPE_CHECKING:
    from tellapart.data.settings import DataSettings
    from tellapart.huggingface.caches import Pairs

# Supported text decoders of encoder-decoders.
DECODERS = ("gpt2", "bert", "roberta")


class HuggingFaceSettings(Section):
    """Settings of `HuggingFaceCaptioner`."""

    model: str | None = Field(
        None,
        min_length=1,
        description="folder, or id of a model in the Hugging Face cache; null: the model of data.encoder",
    )
    max_tokens: int = Field(40, ge=1, le=4_096, description="maximum number of tokens in a caption; others are cut")
    dropout: float | None = Field(None, ge=0, lt=1, description="dropout of the text decoder; null: as in the model")
    lora: int = Field(0, ge=0, le=MAX_WIDTH, description="rank of LoRA on attention projections; 0: train all weights")
    lora_scale: float = Field(2.0, gt=0, description="alpha of LoRA divided by its rank")
    lora_dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the input of LoRA layers")


@dataclass(frozen=True)
class DecoderState:
    """Keys and values of the text so far (`own`), and of the images (`images`) after the first step.

    `memory` is the projected regions `[images, regions, width]` for decoders with cross-attention, or the keys and
    values of the images (`Pairs`) for GIT.
    """

    memory: Any
    image_of_row: torch.Tensor
    own: Pairs = ()
    images: Pairs = ()


class HuggingFaceCaptioner(TransformersModel, Captioner):
    """Base of the captioners of transformers: tokens, LoRA, and the captioner interface in terms of `_run`.

    Token rows are converted to the tokenizer's ids, and logits back to the order of the vocabulary. p(c|I) is that of
    the model, except that its padding and start tokens have probability 0, as for all captioners here.

    Args:
        settings: see `HuggingFaceSettings`.
        vocabulary, encoder, config, parts: see `TransformersModel`.

    Attributes:
        folder: the model folder it was loaded from, if any; it may hold the vision tower.
        text_config: configuration of the text decoder.
    """

    Settings = HuggingFaceSettings
    settings: HuggingFaceSettings

    def __init__(
        self,
        settings: HuggingFaceSettings,
        vocabulary: HuggingFaceTokens,
        encoder: EncoderIdentity,
        config: Any,
        parts: dict[str, nn.Module] | None = None,
    ) -> None:
        super().__init__(settings, vocabulary, encoder, config, parts)
        self.folder: Path | None = None
        self.text_config = config.get_text_config(decoder=True)
        vocabulary.max_words = min(settings.max_tokens, text_positions(self.text_config) - 1)  # one for the start token
        self.decoder: Any
        if settings.dropout is not None:
            for module in self.modules():
                if isinstance(module, nn.Dropout):
                    module.p = settings.dropout
        if settings.lora:
            add_lora(self, settings)
        self.register_buffer("ids", torch.tensor(vocabulary.ids), persistent=False)
        self.register_buffer("impossible", torch.tensor(vocabulary.impossible), persistent=False)
        self.ids: torch.Tensor
        self.impossible: torch.Tensor
        save_tied_weights_once(self)

    # --- implemented by each family ---------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def ends(cls, whole: Any) -> tuple[Any, Any]:
        """Ids of the start and the end token in the model's configuration, or `None`."""

    @property
    @abstractmethod
    def head(self) -> nn.Module:
        """The layer from the decoder's last hidden states to logits over the tokenizer's ids."""

    @abstractmethod
    def _run(self, state: DecoderState, ids: torch.Tensor, **wanted: bool) -> tuple[Any, DecoderState]:
        """Run the decoder on more ids `[rows, tokens]`; returns the output of transformers and the new state."""

    @abstractmethod
    def _attention(self, output: Any, regions: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention of the last layer, mean over heads: over regions, and over words if they share one softmax."""

    # --- making, saving and loading ---------------------------------------------------------------------------

    @classmethod
    def make(cls, settings: BaseModel, captions: Iterable[str], data: DataSettings, encoder: EncoderIdentity) -> Self:
        """From `settings.model`; its tokens are those of its tokenizer, and the training captions are not used."""
        assert isinstance(settings, HuggingFaceSettings)
        of_encoder = cls.model_of_encoder(encoder, settings.model)
        model = settings.model or of_encoder
        folder = find_folder(model, model, "captioner.model")
        kind = model_type(folder)
        if FAMILIES.get(kind) != cls.family:
            other = FAMILIES.get(kind)
            hint = f"; did you mean captioner.name: hf-{other}?" if other in CAPTIONERS else ""
            raise RecipeError(f"captioner.model: {folder} holds a model of type '{kind}', not {cls.family}{hint}")
        whole = whole_model(cls.family, folder)
        if tower_digest(vision_tower(whole, cls.family), folder) != encoder.weights:
            raise RecipeError(
                f"data.encoder: '{encoder.name}' is not the vision tower of the captioner's model; "
                f"set data.encoder={cls.family}:{model}"
            )
        size = whole.config.get_text_config(decoder=True).vocab_size
        vocabulary = HuggingFaceTokens.from_pretrained(folder, size, *cls.ends(whole))
        return cls(settings, vocabulary, encoder, whole.config, cls.take(whole))

    @classmethod
    def from_parts(cls, settings: BaseModel, encoder: EncoderIdentity, folder: Path) -> Self:
        captioner = super().from_parts(settings, encoder, folder)
        captioner.folder = folder
        return captioner

    def write_encoder(self, folder: Path) -> None:
        """Write the vision tower into the model folder."""
        tower = self.open_encoder()
        if tower.identity != self.encoder:
            raise StoreError(
                f"{self.encoder.name}: holds another vision tower than the one this model was trained with; "
                "restore that one to save the model"
            )
        assert isinstance(tower, CaptionerTower)
        tower.save(folder / "huggingface")

    def open_encoder(self, device: str | None = None) -> ImageEncoder:
        if self.folder is None or not (self.folder / "huggingface" / "model.safetensors").exists():
            return super().open_encoder(device)
        encoder = CaptionerTower(f"{self.family}:{self.folder / 'huggingface'}", device=device)
        encoder.name = self.encoder.name  # the name it was saved from; the rest of the identity is computed
        return encoder

    # --- captioner interface ----------------------------------------------------------------------------------

    def hidden(self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        if not len(tokens):  # transformers needs at least one row
            return torch.zeros(0, self.text_config.hidden_size, device=self.device)
        states: torch.Tensor = self._teacher_forced(memory, tokens, image_of_row).last_hidden_state
        return states[_real(tokens)]

    def output(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(hidden).index_select(1, self.ids)
        return logits.index_fill_(1, self.impossible, -torch.inf)  # in place: index_select made a copy

    def start(self, memory: Any, image_of_row: torch.Tensor) -> DecoderState:
        return DecoderState(memory, image_of_row)

    def step(self, state: DecoderState, token: torch.Tensor) -> tuple[torch.Tensor, DecoderState]:
        if not len(token):
            return torch.zeros(0, len(self.vocabulary), device=self.device), state
        output, state = self._run(state, self.ids[token][:, None])
        return self.output(output.last_hidden_state[:, -1]).float().log_softmax(dim=1), state

    def select(self, state: DecoderState, rows: torch.Tensor) -> DecoderState:
        own = tuple((keys[rows], values[rows]) for keys, values in state.own)
        return replace(state, image_of_row=state.image_of_row[rows], own=own)

    def traces(self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor) -> Traces:
        usual = self.decoder.config._attn_implementation
        self.decoder.set_attn_implementation("eager")  # the faster ones return no weights
        wanted = {"output_hidden_states": True, "output_attentions": True}
        try:
            output = self._teacher_forced(memory, tokens, image_of_row, **wanted)
        finally:
            self.decoder.set_attn_implementation(usual)
        real, run = tokens != PAD, _real(tokens)
        layers = (*output.hidden_states[1:-1], output.last_hidden_state)
        over_regions, over_words = self._attention(output, self.encoder.regions)
        return Traces(
            tuple(at_tokens(layer[run], real) for layer in layers),
            at_tokens(over_regions[run], real),
            None if over_words is None else at_tokens(over_words[run], real),
        )

    def _teacher_forced(self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor, **wanted: bool) -> Any:
        """Run the decoder on whole captions, cut to the longest of them.

        Padding comes last and attention is causal, so padding changes no state of a real token.
        """
        before = words_before(tokens)[:, : _real(tokens).shape[1]]
        return self._run(DecoderState(memory, image_of_row), self.ids[before], **wanted)[0]


class CrossAttentionCaptioner(HuggingFaceCaptioner):
    """Base of captioners whose decoder has cross-attention to the image regions.

    Keys and values of the regions are computed once per image and search, for all captions and steps.
    """

    project: nn.Module

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        regions: torch.Tensor = self.project(features)
        return regions

    def _run(self, state: DecoderState, ids: torch.Tensor, **wanted: bool) -> tuple[Any, DecoderState]:
        from tellapart.huggingface import caches

        layers = self.text_config.num_hidden_layers
        rows = caches.rows_of_images(state.image_of_row, len(state.memory))
        cache = caches.crossing_cache(layers, state.own, state.images, rows)
        length = ids.shape[1] + (state.own[0][0].shape[2] if state.own else 0)
        output = self.decoder.base_model(
            input_ids=ids,
            attention_mask=torch.ones(len(ids), length, dtype=torch.long, device=ids.device),
            encoder_hidden_states=state.memory,
            past_key_values=cache,
            use_cache=True,
            **self._extra,
            **wanted,
        )
        return output, replace(state, own=caches.own_pairs(cache), images=caches.image_pairs(cache))

    def _attention(self, output: Any, regions: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        return output.cross_attentions[-1].mean(dim=1), None

    @property
    def _extra(self) -> dict[str, Any]:
        """Extra arguments of the decoder."""
        return {}


class EncoderDecoderCaptioner(CrossAttentionCaptioner):
    """`VisionEncoderDecoderModel`: a vision encoder (ViT, DeiT, BEiT, Swin) and a text decoder (GPT-2, BERT, RoBERTa).

    Use it to combine any pretrained vision encoder and text decoder.

    Example:
        >>> encoder = open_encoder("encoder-decoder:nlpconnect/vit-gpt2-image-captioning")            # doctest: +SKIP
        >>> settings = HuggingFaceSettings()                                                          # doctest: +SKIP
        >>> captioner = EncoderDecoderCaptioner.make(settings, [], data_settings, encoder.identity)   # doctest: +SKIP
        >>> memory = captioner.encode(torch.from_numpy(encoder.encode([load_image(path)])))           # doctest: +SKIP
        >>> captioner.log_prob(memory, captioner.tokenize(["a dog on a beach"]), torch.tensor([0]))   # doctest: +SKIP
    """

    name = "hf-encoder-decoder"
    family = "encoder-decoder"

    @classmethod
    def ends(cls, whole: Any) -> tuple[Any, Any]:
        # In config.json of older models, in generation_config.json of newer ones.
        start, end = (
            first_known(*(getattr(config, key, None) for config in (whole.config, whole.generation_config)))
            for key in ("decoder_start_token_id", "eos_token_id")
        )
        return start, end

    @classmethod
    def take(cls, whole: Any) -> dict[str, nn.Module]:
        kind = whole.config.decoder.model_type
        if kind not in DECODERS:  # others store keys and values in another way
            raise RecipeError(
                f"captioner.model: text decoders of type '{kind}' cannot be used here; known: {', '.join(DECODERS)}"
            )
        return {"decoder": whole.decoder, "project": getattr(whole, "enc_to_dec_proj", nn.Identity())}

    @classmethod
    def build(cls, config: Any) -> dict[str, nn.Module]:
        from transformers import AutoModelForCausalLM as typed_in_part

        model_class: Any = typed_in_part
        seen, written = config.encoder.hidden_size, config.decoder.hidden_size
        across = getattr(config.decoder, "cross_attention_hidden_size", None)
        return {
            "decoder": model_class.from_config(config.decoder, trust_remote_code=False),
            "project": nn.Identity() if seen == written or across is not None else nn.Linear(seen, written),
        }

    @property
    def head(self) -> nn.Module:
        (head,) = (part for name, part in self.decoder.named_children() if name != self.decoder.base_model_prefix)
        return cast(nn.Module, head)


class BlipCaptioner(CrossAttentionCaptioner):
    """BLIP (Li et al. 2022): a ViT and a BERT-like decoder with cross-attention.

    A strong pretrained captioner; fine-tune it with LoRA to save memory.

    Example:
        >>> encoder = open_encoder("blip:Salesforce/blip-image-captioning-base")             # doctest: +SKIP
        >>> settings = HuggingFaceSettings(lora=8)                                           # doctest: +SKIP
        >>> captioner = BlipCaptioner.make(settings, [], data_settings, encoder.identity)    # doctest: +SKIP
    """

    name = "hf-blip"
    family = "blip"

    @classmethod
    def ends(cls, whole: Any) -> tuple[Any, Any]:
        # `generate` ends with the separator and ignores `eos_token_id`.
        return whole.config.text_config.bos_token_id, whole.config.text_config.sep_token_id

    @classmethod
    def take(cls, whole: Any) -> dict[str, nn.Module]:
        return {"decoder": whole.text_decoder, "project": nn.Identity()}

    @classmethod
    def build(cls, config: Any) -> dict[str, nn.Module]:
        from transformers.models.blip import modeling_blip_text as typed_in_part

        module: Any = typed_in_part
        return {"decoder": module.BlipTextLMHeadModel(config.text_config), "project": nn.Identity()}

    @property
    def head(self) -> nn.Module:
        return cast(nn.Module, self.decoder.cls)

    @property
    def _extra(self) -> dict[str, Any]:
        return {"is_decoder": True}


class GitCaptioner(HuggingFaceCaptioner):
    """GIT (Wang et al. 2022): one transformer over the image tokens followed by the text.

    Image tokens attend only to each other, so their keys and values are computed once per image, for all captions. In
    `Traces`, `sentinel` is the attention to the words so far.

    Example:
        >>> encoder = open_encoder("git:microsoft/git-base-coco")                                       # doctest: +SKIP
        >>> captioner = GitCaptioner.make(HuggingFaceSettings(), [], data_settings, encoder.identity)   # doctest: +SKIP
    """

    name = "hf-git"
    family = "git"

    @classmethod
    def ends(cls, whole: Any) -> tuple[Any, Any]:
        return whole.config.bos_token_id, whole.config.eos_token_id

    @classmethod
    def take(cls, whole: Any) -> dict[str, nn.Module]:
        whole.git.image_encoder = nn.Identity()
        return {"decoder": whole}

    @classmethod
    def build(cls, config: Any) -> dict[str, nn.Module]:
        from transformers import GitForCausalLM as typed_in_part

        model_class: Any = typed_in_part
        return cls.take(model_class(without_vision_layers(config)))

    @property
    def head(self) -> nn.Module:
        return cast(nn.Module, self.decoder.output)

    def encode(self, features: torch.Tensor) -> Pairs:
        from transformers.cache_utils import DynamicCache

        # transformers needs at least one image: without any, run one and drop it.
        some = features if len(features) else features.new_zeros(1, *features.shape[1:])
        cache: Any = DynamicCache()
        self.decoder.git.encoder(self.decoder.git.visual_projection(some), past_key_values=cache, use_cache=True)
        return tuple((layer.keys[: len(features)], layer.values[: len(features)]) for layer in cache.layers)

    def _run(self, state: DecoderState, ids: torch.Tensor, **wanted: bool) -> tuple[Any, DecoderState]:
        from tellapart.huggingface import caches

        rows = caches.rows_of_images(state.image_of_row, len(state.memory[0][0]))
        cache = caches.prefixed_cache(state.own, state.memory, rows)
        said = state.own[0][0].shape[2] if state.own else 0
        output = self.decoder.git(
            input_ids=ids,
            # Positions of the text; the default would count the image tokens in the cache too.
            position_ids=torch.arange(said, said + ids.shape[1], device=ids.device)[None],
            past_key_values=cache,
            use_cache=True,
            **wanted,
        )
        return output, replace(state, own=caches.own_pairs(cache))

    def _attention(self, output: Any, regions: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        weights = output.attentions[-1].mean(dim=1)
        return weights[..., :regions], weights[..., regions:].sum(dim=2)


def _real(tokens: torch.Tensor) -> torch.Tensor:
    """Mask of real tokens, cut to the longest row: `[rows, longest]`."""
    real = tokens != PAD
    return real[:, : int(real.sum(dim=1).max())]
