"""The recipe's sections `data` and `negatives`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tellapart.data.rows import StoreType
from tellapart.settings import ADDED, Section

# Settings of `data` that the recipe of a role keeps if it has them, and never gives to the recipe it serves: a frozen
# model may have another encoder, or be trained on a part of the data.
OWN = ("encoder", "half", "half_seed", "captions", "entropy")


class ScenesSettings(Section):
    """Number of scenes to render in each split."""

    train: int = Field(4800, ge=1, le=1_000_000)
    val: int = Field(240, ge=1, le=1_000_000)
    test: int = Field(480, ge=1, le=1_000_000)
    seed: int = 0


class EntropySettings(Section):
    """How captions are divided into generic and specific ones, by their retrieval entropy (docs/unkt.md)."""

    share: float = Field(0.5, gt=0, lt=1, description="generic, specific: this share of the training captions")
    temperature: float = Field(0.01, gt=1e-4, description="τ: similarities are divided by it (CLIP: 0.01)")
    pool: int | None = Field(None, ge=2, description="compare with so many images; null: with all of training")


class DataSettings(Section):
    """The data set, its image encoder, and how captions are split into words."""

    source: str = Field(description="'scenes', a folder of pictures, or a data set (docs/data.md)")
    scenes: ScenesSettings = ScenesSettings()
    encoder: str = "efficientnet-lite0"
    store: StoreType = Field(
        "float16", description="how features are kept; int8 takes about half the disk", json_schema_extra=ADDED
    )
    mirrored: bool = Field(
        False,
        description="also encode pictures mirrored left to right: drawn in training, averaged at test",
        json_schema_extra=ADDED,
    )
    held_out: float | None = Field(
        None,
        gt=0,
        le=0.4,
        description="of a data set without a training split, such as a folder: share of the captioned pictures that "
        "validates; the same share is the test split",
        json_schema_extra=ADDED,
    )
    prepared: str = Field("prepared", description="folder for rendered scenes and feature stores")
    max_skipped: float = Field(0.01, ge=0, le=1, description="fail if a larger share of the pictures cannot be read")
    normaliser: Literal["plain", "alphabetic"] = "plain"
    min_count: int = Field(5, ge=1, description="minimum count of a word in training; rarer words become <unk>")
    max_words: int = Field(
        18, ge=1, le=1_000, description="maximum number of words in a training caption; longer ones are cut"
    )
    half: Literal[1, 2] | None = Field(
        None,
        description="train on half 1 or 2 of the training images, to judge the captions of the other; null: on all",
        json_schema_extra=ADDED,
    )
    half_seed: int = Field(0, ge=0, description="of the division into halves", json_schema_extra=ADDED)
    captions: Literal["all", "generic", "specific"] = Field(
        "all",
        description="train on all captions, or on those with the highest or lowest entropy by the role 'entropy'",
        json_schema_extra=ADDED,
    )
    entropy: EntropySettings = Field(EntropySettings(), json_schema_extra=ADDED)


class NegativeSettings(Section):
    """How negatives are drawn: uniformly from the captions of other images, or from those that nearly fit (hard)."""

    by: Literal["images", "retriever", "generic", "specific"] = Field(
        "images",
        description="hard negatives are captions of similar images, those that the retriever ranks high, or generic or "
        "specific ones, by the role 'entropy'",
    )
    hard: float = Field(0.0, ge=0, le=1, description="share of hard negatives after the ramp")
    top: float = Field(
        0.01, gt=0, le=1, description="hard negatives come from this share of nearest images or captions"
    )
    ramp_epochs: float = Field(1.0, ge=0, description="epochs over which the share rises from 0")
