"""The recipe's sections `data` and `negatives`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tellapart.settings import Section


class ScenesSettings(Section):
    """How many embedded scenes are rendered."""

    train: int = Field(1600, ge=1)
    val: int = Field(200, ge=1)
    test: int = Field(240, ge=1)
    seed: int = 0


class DataSettings(Section):
    """Where the pictures and captions are, and how words are made from captions."""

    source: str = Field(description="'scenes', a folder of pictures, or a data set (docs/data.md)")
    scenes: ScenesSettings = ScenesSettings()
    encoder: str = "efficientnet-lite0"
    prepared: str = Field("prepared", description="folder for rendered scenes and feature stores")
    max_skipped: float = Field(0.01, ge=0, le=1, description="fail when more of the pictures cannot be read")
    normaliser: Literal["plain", "alphabetic"] = "plain"
    min_count: int = Field(5, ge=1, description="rarer words become <unk>")
    max_words: int = Field(18, ge=1, description="longer training captions are cut")


class NegativeSettings(Section):
    """Where an objective's negatives come from: all other images' captions alike, or those that nearly fit (hard)."""

    by: Literal["images", "retriever"] = Field(
        "images", description="hard ones are captions of images alike, or those that the role retriever ranks high"
    )
    hard: float = Field(0.0, ge=0, le=1, description="share of negatives that are hard, once the ramp is over")
    top: float = Field(0.01, gt=0, le=1, description="hard ones come from this share of nearest images or captions")
    ramp_epochs: float = Field(1.0, ge=0, description="epochs in which the share rises from 0")
