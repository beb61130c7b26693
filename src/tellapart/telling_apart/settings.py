"""How pictures are told apart: groups, candidates and the weights of the scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from tellapart.settings import Section, parse_section

# Weight of the captioner as a listener where there is no retriever.
ALONE = 0.3


class TellApartSettings(Section):
    """How pictures are grouped, where candidate captions come from, and how they are weighed."""

    threshold: float = Field(0.6, ge=-1, le=1, description="least mean cosine of the pictures of a group")
    group_size: int | None = Field(None, ge=2, description="most pictures in a group; null: any number")
    one_group: bool = Field(False, description="all pictures are one group")
    distractors: int = Field(9, ge=1, le=100, description="a picture is compared with at most so many similar ones")

    beam: int = Field(5, ge=1, le=100, description="beam width of the searches with contrast or guidance")
    samples: int = Field(20, ge=0, le=1000, description="number of sampled captions; 0: none")
    temperature: float = Field(0.7, gt=1e-6, description="of samples: below 1 sharper, above 1 flatter")
    contrast: tuple[float, ...] = Field((0.3, 0.6), description="λ of each search with contrast; none: empty")
    plausibility: float = Field(0.1, ge=0, le=1, description="α: least probability of a word beside the likeliest")
    guidance: tuple[float, ...] = Field((), description="γ of each search with guidance; none: empty")
    seed: int = Field(0, ge=0, description="of samples")

    fluency: float = Field(1.0, ge=0, description="weight of ln p per token under the plain model")
    retrieval: float = Field(1.0, ge=0, description="weight of ln p(picture | caption) under the retriever")
    retrieval_temperature: float = Field(0.1, gt=1e-6, description="of the retriever's similarities")
    likelihood: float | None = Field(
        None, ge=0, description="weight of ln p(picture | caption) under the plain model; null: 0 beside a retriever"
    )
    truth: float = Field(0.3, ge=0, description="weight of words that do not fit the picture")
    least_word: float = Field(0.01, gt=0, lt=1, description="a content word less likely than this is doubtful")
    marked: float = Field(2.0, ge=1, description="a word is marked if it is so many times likelier than for the others")

    def likelihood_weight(self, retriever: bool) -> float:
        """The weight of the captioner as a listener. Asking it is most of the work, so a retriever replaces it."""
        if self.likelihood is not None:
            return self.likelihood
        return 0.0 if retriever else ALONE

    @classmethod
    def parse(cls, content: dict[str, Any], overrides: Sequence[str] = ()) -> TellApartSettings:
        """Check plain data after applying overrides such as `samples=50`; all mistakes are reported at once."""
        return parse_section(cls, content, overrides)
