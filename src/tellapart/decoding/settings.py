"""The recipe's section `decoding`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from tellapart.settings import ADDED, Section, parse_section

# The settings that say which words a caption may have, for any method.
LIMITS = ("min_words", "max_words", "block_unknown", "block_repeats", "block_pairs")


class DecodingSettings(Section):
    """How captions are generated: beam search (a beam of 1 is greedy), diverse beam search or sampling."""

    method: Literal["beam", "diverse", "sample"] = "beam"
    beam: int = Field(3, ge=1, le=1_000, description="beam width; diverse: of all groups together")
    groups: int | None = Field(None, ge=1, description="diverse: number of groups; null: as many as the beam")
    diversity: float = Field(0.5, ge=0, description="diverse: penalty for each earlier group with the same word")
    length_penalty: float = Field(0.0, ge=0, description="a caption's score is ln p / tokens^length_penalty")
    guidance: float = Field(
        0.0, ge=0, le=100, description="γ: how much more what the picture adds to a word counts than the word alone"
    )
    temperature: float = Field(1.0, gt=1e-6, description="sample: below 1 sharper, above 1 flatter")
    top_k: int | None = Field(None, ge=1, description="sample: draw only from the k likeliest words")
    top_p: float | None = Field(None, gt=0, le=1, description="sample: draw only from the likeliest words of this mass")
    samples: int = Field(1, ge=1, le=10_000, description="number of captions for each image")
    min_words: int = Field(0, ge=0)
    max_words: int = Field(18, ge=1, le=1_000)
    block_unknown: bool = Field(True, description="never generate <unk>")
    block_repeats: bool = Field(False, description="never generate the same word twice in a row")
    block_pairs: bool = Field(
        False, description="never generate two words that follow each other twice", json_schema_extra=ADDED
    )
    remove_repeats: bool = Field(False, description="afterwards remove words that equal the one before")
    seed: int = Field(0, ge=0, description="sample: an image has the same samples in any batch")

    @property
    def group_count(self) -> int:
        """Number of groups in the beam."""
        return (self.groups or self.beam) if self.method == "diverse" else 1

    @property
    def rows_per_image(self) -> int:
        """Number of captions of an image that are decoded at once."""
        return self.samples if self.method == "sample" else self.beam

    @model_validator(mode="after")
    def _possible(self) -> DecodingSettings:
        owners = {"groups": "diverse", "diversity": "diverse"}
        owners |= dict.fromkeys(("temperature", "top_k", "top_p", "seed"), "sample")
        for key, method in owners.items():
            if method != self.method and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key} is for method '{method}', not for '{self.method}'; change one of them")
        if self.method == "sample" and self.length_penalty:
            raise ValueError("length_penalty is for beams; set it to 0")
        if self.beam % self.group_count:
            raise ValueError(
                f"the beam ({self.beam}) must be a multiple of groups ({self.group_count}); change one of them"
            )
        if self.method != "sample" and self.samples > self.beam:
            raise ValueError(
                f"a beam of {self.beam} cannot give {self.samples} samples; increase beam or lower samples"
            )
        if self.min_words > self.max_words:
            raise ValueError(f"min_words ({self.min_words}) is over max_words ({self.max_words}); change one of them")
        if self.remove_repeats and self.min_words:
            raise ValueError("remove_repeats would shorten captions below min_words; use block_repeats instead")
        return self

    @classmethod
    def parse(cls, content: dict[str, Any], overrides: Sequence[str] = ()) -> DecodingSettings:
        """Check plain data after applying overrides such as `groups=3`; all mistakes are reported at once."""
        return parse_section(cls, content, overrides, "decoding.")
