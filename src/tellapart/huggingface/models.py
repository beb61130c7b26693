"""Base of captioners and retrievers that are made from a model of Hugging Face transformers."""

from __future__ import annotations

import copy
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel
from torch import nn

from tellapart.encoders.base import EncoderIdentity
from tellapart.errors import RecipeError
from tellapart.huggingface.folders import need_transformers, quiet, readable
from tellapart.huggingface.tokens import HuggingFaceTokens, read_parts, write_config
from tellapart.models import Model


class TransformersModel(Model):
    """A model made from a folder of transformers; its encoder is the vision tower of the same folder.

    Its tokens are those of the folder's tokenizer. Its parts are those of the whole model, without the vision tower.

    Args:
        settings: see `Model`.
        vocabulary: the tokens of the tokenizer.
        encoder: identity of the vision tower.
        config: the configuration of the whole model, as transformers has it.
        parts: parts with their weights, from `take`; by default new ones, whose weights are loaded next.

    Attributes:
        family: prefix of the encoder's name: the encoder is `FAMILY:FOLDER_OR_ID`.
    """

    family: ClassVar[str]
    vocabulary: HuggingFaceTokens

    def __init__(
        self,
        settings: BaseModel,
        vocabulary: HuggingFaceTokens,
        encoder: EncoderIdentity,
        config: Any,
        parts: dict[str, nn.Module] | None = None,
    ) -> None:
        super().__init__(settings, vocabulary, encoder)
        self.config = config
        for name, part in (parts if parts is not None else self.build(config)).items():
            self.add_module(name, part)

    # --- implemented by each architecture ---------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def take(cls, whole: Any) -> dict[str, nn.Module]:
        """The parts of a whole model that are used, without the vision tower."""

    @classmethod
    @abstractmethod
    def build(cls, config: Any) -> dict[str, nn.Module]:
        """The same parts with new weights."""

    # --- shared -----------------------------------------------------------------------------------------------

    @classmethod
    def model_of_encoder(cls, encoder: EncoderIdentity, model: str | None = None) -> str:
        """The folder or id in the encoder's name; an error if the encoder is of another family.

        Args:
            encoder: identity of the encoder.
            model: the model that the error suggests as encoder.
        """
        need_transformers()
        family, _, named = encoder.name.partition(":")
        if family != cls.family:
            raise RecipeError(
                f"data.encoder: {cls.name} needs the encoder '{cls.family}:', not '{encoder.name}'; "
                f"set data.encoder={cls.family}:{model or 'FOLDER_OR_ID'}"
            )
        return named

    def write_parts(self, folder: Path) -> None:
        super().write_parts(folder)
        write_config(self.config, folder)

    @classmethod
    def from_parts(cls, settings: BaseModel, encoder: EncoderIdentity, folder: Path) -> Self:
        vocabulary, config = read_parts(folder)
        with quiet(), readable(f"{folder}: its model", "use another checkpoint"):
            return cls(settings, vocabulary, encoder, config)


def without_vision_layers(config: Any) -> Any:
    """A copy of a configuration with no layers in the vision tower, to build the other parts quickly."""
    small = copy.deepcopy(config)
    small.vision_config.num_hidden_layers = 0
    return small
