"""Captioners of Hugging Face transformers (extra `hf`): BLIP, GIT, and any vision encoder with any text decoder.

Their vision tower is an encoder like any other (`blip:`, `git:`, `encoder-decoder:`), frozen, its tokens kept in the
feature store. What is here is the other half, which writes: it has its own tokenizer, and is trained whole or by LoRA.

A captioner begins with a model of transformers, in a folder or in the Hugging Face cache of this machine; nothing is
downloaded unasked. Once it is saved as a model folder, that folder alone is enough.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from pydantic import BaseModel, Field
from torch import nn

from tellapart.captioners.base import Captioner, Traces, at_tokens, words_before
from tellapart.encoders.base import EncoderIdentity, ImageEncoder
from tellapart.errors import RecipeError, StoreError
from tellapart.huggingface.folders import FAMILIES, find_folder, model_type, need_transformers, quiet
from tellapart.huggingface.tokens import HuggingFaceTokens, read_parts, write_config
from tellapart.huggingface.towers import CAPTIONERS, CaptionerTower, tower_digest, vision_tower, whole_model
from tellapart.huggingface.weights import add_lora, save_tied_weights_once
from tellapart.settings import Section
from tellapart.text import PAD

if TYPE_CHECKING:
    from tellapart.data.settings import DataSettings
    from tellapart.huggingface.caches import Pairs

# The text decoders of encoder-decoders that are known to work.
DECODERS = ("gpt2", "bert", "roberta")


class HuggingFaceSettings(Section):
    """What a captioner begins with and how it is trained."""

    model: str | None = Field(
        None,
        min_length=1,
        description="a folder, or the id of a model in the Hugging Face cache; null: that of data.encoder",
    )
    max_tokens: int = Field(40, ge=1, description="longer captions are cut to so many tokens")
    dropout: float | None = Field(None, ge=0, lt=1, description="in the text decoder; null: the model's own")
    lora: int = Field(0, ge=0, description="rank of LoRA on the attention's projections; 0: all weights are trained")
    lora_scale: float = Field(2.0, gt=0, description="LoRA's alpha divided by its rank")
    lora_dropout: float = Field(0.0, ge=0, lt=1, description="before LoRA's own weights")


@dataclass(frozen=True)
class State:
    """Before a word: the rows' own keys and values so far; and the images', once they are known.

    `memory` is the projected regions `[images, regions, width]` of a decoder that attends across to them, or the
    images' keys and values (`Pairs`) where the text follows the image.
    """

    memory: Any
    image_of_row: torch.Tensor
    own: Pairs = ()
    images: Pairs = ()


class HuggingFaceCaptioner(Captioner):
    """What the families share: tokens, loading and saving, LoRA, and the contract in terms of `_run`.

    Rows of tokens are translated to the tokenizer's ids on the way in, and logits to rows on the way out. p(c|I) is
    the model's own, except that its padding and start tokens are ruled out, as everywhere here.

    Args:
        settings: see `HuggingFaceSettings`.
        vocabulary: the model's tokens.
        encoder: identity of the model's vision tower.
        config: the model's configuration, as transformers has it.
        parts: the model's parts with their weights, by `take`; by default new ones, whose weights are loaded next.

    Attributes:
        folder: the model folder it was loaded from, if any; its vision tower may be there.
    """

    Settings = HuggingFaceSettings
    family: ClassVar[str]
    settings: HuggingFaceSettings
    vocabulary: HuggingFaceTokens

    def __init__(
        self,
        settings: HuggingFaceSettings,
        vocabulary: HuggingFaceTokens,
        encoder: EncoderIdentity,
        config: Any,
        parts: dict[str, nn.Module] | None = None,
    ) -> None:
        super().__init__(settings, vocabulary, encoder)
        self.config = config
        self.folder: Path | None = None
        vocabulary.max_words = min(settings.max_tokens, _positions(self.text_config(config)) - 1)  # one for the start
        for name, part in (parts if parts is not None else self.build(config)).items():
            self.add_module(name, part)
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

    # --- what a family says -----------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def text_config(cls, config: Any) -> Any:
        """The text decoder's part of a model's configuration."""

    @classmethod
    @abstractmethod
    def ends(cls, whole: Any) -> tuple[Any, Any]:
        """Ids of the start and the end token, as far as the model says them."""

    @classmethod
    @abstractmethod
    def take(cls, whole: Any) -> dict[str, nn.Module]:
        """The parts of a whole model that write."""

    @classmethod
    @abstractmethod
    def build(cls, config: Any) -> dict[str, nn.Module]:
        """The same parts, new."""

    @property
    @abstractmethod
    def head(self) -> nn.Module:
        """What makes logits over the tokenizer's ids of the decoder's last hidden states."""

    @abstractmethod
    def _run(self, state: State, ids: torch.Tensor, **wanted: bool) -> tuple[Any, State]:
        """Run the decoder on further ids `[rows, tokens]`: its output as transformers gives it, and the new state."""

    @abstractmethod
    def _attention(self, output: Any, regions: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention of the last layer, mean of its heads: over the regions, and over the words where they compete."""

    # --- how one is made, saved and loaded --------------------------------------------------------------------

    @classmethod
    def make(
        cls, settings: BaseModel, captions: Iterable[str], data: DataSettings, encoder: EncoderIdentity
    ) -> HuggingFaceCaptioner:
        """From the model that the settings name; its tokens are its tokenizer's, whatever the training captions."""
        assert isinstance(settings, HuggingFaceSettings)
        need_transformers()
        family, _, seen_by = encoder.name.partition(":")
        if family != cls.family:
            raise RecipeError(
                f"data.encoder: '{encoder.name}' is no vision tower of a {cls.family} captioner; "
                f"set data.encoder={cls.family}:{settings.model or 'FOLDER_OR_ID'}"
            )
        model = settings.model or seen_by
        folder = find_folder(model, model, "captioner.model")
        kind = model_type(folder)
        if FAMILIES.get(kind) != cls.family:
            other = FAMILIES.get(kind)
            hint = f"; did you mean captioner.name: hf-{other}?" if other in CAPTIONERS else ""
            raise RecipeError(f"captioner.model: {folder} holds a model of type '{kind}', no {cls.family}{hint}")
        whole = whole_model(cls.family, folder)
        if tower_digest(vision_tower(whole, cls.family), folder) != encoder.weights:
            raise RecipeError(
                f"data.encoder: '{encoder.name}' is not the vision tower of the captioner's model; "
                f"set data.encoder={cls.family}:{model}"
            )
        size = cls.text_config(whole.config).vocab_size
        vocabulary = HuggingFaceTokens.from_pretrained(folder, size, *cls.ends(whole))
        return cls(settings, vocabulary, encoder, whole.config, cls.take(whole))

    def write_parts(self, folder: Path) -> None:
        super().write_parts(folder)
        write_config(self.config, folder)

    @classmethod
    def from_parts(cls, settings: BaseModel, encoder: EncoderIdentity, folder: Path) -> HuggingFaceCaptioner:
        assert isinstance(settings, HuggingFaceSettings)
        vocabulary, config = read_parts(folder)
        with quiet():
            captioner = cls(settings, vocabulary, encoder, config)
        captioner.folder = folder
        return captioner

    def write_encoder(self, folder: Path) -> None:
        """Put the vision tower into the model folder, which then needs nothing else."""
        tower = self.open_encoder()
        if tower.identity != self.encoder:
            raise StoreError(
                f"{self.encoder.name}: holds another vision tower than the one this model was trained with; "
                "bring that one back to save the model"
            )
        assert isinstance(tower, CaptionerTower)
        tower.save(folder / "huggingface")

    def open_encoder(self, device: str | None = None) -> ImageEncoder:
        if self.folder is None or not (self.folder / "huggingface" / "model.safetensors").exists():
            return super().open_encoder(device)
        encoder = CaptionerTower(f"{self.family}:{self.folder / 'huggingface'}", device=device)
        encoder.name = self.encoder.name  # it was saved from there; the rest of its identity must speak for itself
        return encoder

    # --- the contract -----------------------------------------------------------------------------------------

    def hidden(self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor) -> torch.Tensor:
        if not len(tokens):  # transformers cannot run no row at all
            return torch.zeros(0, self.text_config(self.config).hidden_size, device=self.device)
        states: torch.Tensor = self._teach(memory, tokens, image_of_row).last_hidden_state
        return states[_real(tokens)]

    def output(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(hidden).index_select(1, self.ids)
        return logits.index_fill_(1, self.impossible, -torch.inf)  # in place: nobody else has them

    def start(self, memory: Any, image_of_row: torch.Tensor) -> State:
        return State(memory, image_of_row)

    def step(self, state: State, token: torch.Tensor) -> tuple[torch.Tensor, State]:
        if not len(token):
            return torch.zeros(0, len(self.vocabulary), device=self.device), state
        output, state = self._run(state, self.ids[token][:, None])
        return self.output(output.last_hidden_state[:, -1]).float().log_softmax(dim=1), state

    def select(self, state: State, rows: torch.Tensor) -> State:
        own = tuple((keys[rows], values[rows]) for keys, values in state.own)
        return replace(state, image_of_row=state.image_of_row[rows], own=own)

    def traces(self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor) -> Traces:
        usual = self.decoder.config._attn_implementation
        self.decoder.set_attn_implementation("eager")  # faster ones keep their weights to themselves
        try:
            output = self._teach(memory, tokens, image_of_row, output_hidden_states=True, output_attentions=True)
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

    def _teach(self, memory: Any, tokens: torch.Tensor, image_of_row: torch.Tensor, **wanted: bool) -> Any:
        """Run the decoder on whole captions, as far as the longest of them goes.

        Padding stands after a caption, and attention looks only back: it changes no state of a real token.
        """
        before = words_before(tokens)[:, : _real(tokens).shape[1]]
        return self._run(State(memory, image_of_row), self.ids[before], **wanted)[0]


class CrossAttentionCaptioner(HuggingFaceCaptioner):
    """A decoder that attends across to the image's regions.

    The keys and values of the regions are projected once an image, whatever the number of captions, and once a search,
    whatever its length; a row's attention then looks its image's up.
    """

    project: nn.Module

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        regions: torch.Tensor = self.project(features)
        return regions

    def _run(self, state: State, ids: torch.Tensor, **wanted: bool) -> tuple[Any, State]:
        from tellapart.huggingface import caches

        layers = self.text_config(self.config).num_hidden_layers
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
        """What a family's decoder must be told besides."""
        return {}


class EncoderDecoderCaptioner(CrossAttentionCaptioner):
    """`VisionEncoderDecoderModel`: a vision encoder (ViT, DeiT, BEiT, Swin) and a text decoder (GPT-2, BERT, RoBERTa).

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
    def text_config(cls, config: Any) -> Any:
        return config.decoder

    @classmethod
    def ends(cls, whole: Any) -> tuple[Any, Any]:
        # Older files say it in config.json, newer ones in generation_config.json.
        said = [whole.config, whole.generation_config]
        start = [getattr(one, "decoder_start_token_id", None) for one in said]
        end = [getattr(one, "eos_token_id", None) for one in said]
        return next((one for one in start if one is not None), None), next(
            (one for one in end if one is not None), None
        )

    @classmethod
    def take(cls, whole: Any) -> dict[str, nn.Module]:
        kind = whole.config.decoder.model_type
        if kind not in DECODERS:  # others keep their keys and values in other ways
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
            "decoder": model_class.from_config(config.decoder),
            "project": nn.Identity() if seen == written or across is not None else nn.Linear(seen, written),
        }

    @property
    def head(self) -> nn.Module:
        (head,) = (part for name, part in self.decoder.named_children() if name != self.decoder.base_model_prefix)
        return cast(nn.Module, head)


class BlipCaptioner(CrossAttentionCaptioner):
    """BLIP (Li et al. 2022): a ViT and a BERT-like decoder that attends across to it.

    Example:
        >>> encoder = open_encoder("blip:Salesforce/blip-image-captioning-base")             # doctest: +SKIP
        >>> settings = HuggingFaceSettings(lora=8)                                           # doctest: +SKIP
        >>> captioner = BlipCaptioner.make(settings, [], data_settings, encoder.identity)    # doctest: +SKIP
    """

    name = "hf-blip"
    family = "blip"

    @classmethod
    def text_config(cls, config: Any) -> Any:
        return config.text_config

    @classmethod
    def ends(cls, whole: Any) -> tuple[Any, Any]:
        # Its `eos_token_id` is a left-over; `generate` ends with the separator.
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
    """GIT (Wang et al. 2022): one transformer in which the text follows the image's tokens.

    The image's tokens look only at each other, so that their keys and values are the same for every caption: they are
    computed once an image. In `Traces`, `sentinel` is the attention on the words said so far.

    Example:
        >>> encoder = open_encoder("git:microsoft/git-base-coco")                                       # doctest: +SKIP
        >>> captioner = GitCaptioner.make(HuggingFaceSettings(), [], data_settings, encoder.identity)   # doctest: +SKIP
    """

    name = "hf-git"
    family = "git"

    @classmethod
    def text_config(cls, config: Any) -> Any:
        return config

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
        layers = config.vision_config.num_hidden_layers
        config.vision_config.num_hidden_layers = 0  # the tower is taken out again: let it be small until then
        whole = model_class(config)
        config.vision_config.num_hidden_layers = layers
        return cls.take(whole)

    @property
    def head(self) -> nn.Module:
        return cast(nn.Module, self.decoder.output)

    def encode(self, features: torch.Tensor) -> Pairs:
        from transformers.cache_utils import DynamicCache

        # transformers cannot run no image at all: one is run and left out again.
        some = features if len(features) else features.new_zeros(1, *features.shape[1:])
        cache: Any = DynamicCache()
        self.decoder.git.encoder(self.decoder.git.visual_projection(some), past_key_values=cache, use_cache=True)
        return tuple((layer.keys[: len(features)], layer.values[: len(features)]) for layer in cache.layers)

    def _run(self, state: State, ids: torch.Tensor, **wanted: bool) -> tuple[Any, State]:
        from tellapart.huggingface import caches

        rows = caches.rows_of_images(state.image_of_row, len(state.memory[0][0]))
        cache = caches.prefixed_cache(state.own, state.memory, rows)
        said = state.own[0][0].shape[2] if state.own else 0
        output = self.decoder.git(
            input_ids=ids,
            # Of the text alone: by themselves they would count the image's tokens in the cache too.
            position_ids=torch.arange(said, said + ids.shape[1], device=ids.device)[None],
            past_key_values=cache,
            use_cache=True,
            **wanted,
        )
        return output, replace(state, own=caches.own_pairs(cache))

    def _attention(self, output: Any, regions: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        weights = output.attentions[-1].mean(dim=1)
        return weights[..., :regions], weights[..., regions:].sum(dim=2)


def _positions(text: Any) -> int:
    """How many tokens a text decoder has positions for."""
    # RoBERTa counts from behind the padding token's number.
    unused = text.pad_token_id + 1 if text.model_type == "roberta" else 0
    return cast(int, text.max_position_embeddings - unused)


def _real(tokens: torch.Tensor) -> torch.Tensor:
    """Where real tokens are, cut to the longest row: `[rows, longest]`."""
    real = tokens != PAD
    return real[:, : int(real.sum(dim=1).max())]
