"""Decoding settings: what cannot be, is said; defaults are what they always were."""

from __future__ import annotations

from typing import Any

import pytest

from tellapart.decoding.settings import DecodingSettings
from tellapart.errors import RecipeError


def test_defaults() -> None:
    settings = DecodingSettings()
    assert (settings.method, settings.beam, settings.samples, settings.max_words) == ("beam", 3, 1, 18)
    assert settings.block_unknown
    assert not settings.block_repeats
    assert not settings.remove_repeats
    assert (settings.min_words, settings.length_penalty, settings.group_count) == (0, 0.0, 1)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"method": "greedy"}, r"decoding\.method: .*'beam', 'diverse' or 'sample'"),
        ({"beams": 3}, r"decoding\.beams: there is no such key; did you mean 'beam'\?"),
        ({"method": "diverse", "beam": 5, "groups": 2}, r"the beam \(5\) must be a multiple of groups \(2\)"),
        ({"method": "diverse", "beam": 3, "groups": 6}, r"the beam \(3\) must be a multiple of groups \(6\)"),
        ({"groups": 3}, "groups is for method 'diverse', not for 'beam'"),
        ({"method": "sample", "diversity": 0.1}, "diversity is for method 'diverse', not for 'sample'"),
        ({"temperature": 2}, "temperature is for method 'sample', not for 'beam'"),
        ({"method": "diverse", "top_p": 0.9}, "top_p is for method 'sample', not for 'diverse'"),
        ({"top_k": 9}, "top_k is for method 'sample'"),
        ({"seed": 9}, "seed is for method 'sample'"),
        ({"samples": 4}, "a beam of 3 cannot give 4 samples; increase beam or lower samples"),
        ({"method": "sample", "length_penalty": 1}, "length_penalty is for beams; set it to 0"),
        ({"min_words": 9, "max_words": 8}, r"min_words \(9\) is over max_words \(8\)"),
        ({"remove_repeats": True, "min_words": 2}, "use block_repeats instead"),
        ({"method": "sample", "temperature": 0}, r"decoding\.temperature: .*greater than 0"),
        ({"method": "sample", "top_p": 1.1}, r"decoding\.top_p: .*less than or equal to 1"),
    ],
)
def test_invalid_settings(content: dict[str, Any], told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        DecodingSettings.parse(content)


def test_valid_settings() -> None:
    assert DecodingSettings.parse({"method": "diverse", "beam": 6}).group_count == 6
    settings = DecodingSettings.parse({"method": "diverse"}, ["beam=6", "groups=3", "diversity=1e-1"])
    assert (settings.group_count, settings.diversity, settings.rows_per_image) == (3, 0.1, 6)
    assert DecodingSettings.parse({"method": "sample", "samples": 100}).rows_per_image == 100
    with pytest.raises(RecipeError, match="is no override"):
        DecodingSettings.parse({}, ["beam"])
