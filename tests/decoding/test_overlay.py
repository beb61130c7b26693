"""Attention maps: bright where the attention is, one for each word, and all on a sheet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tellapart.captioners.base import Captioner, Traces
from tellapart.decoding.overlay import COLUMNS, LINE, SIDE, WordAttention, attention_maps, overlay, write_overlays
from tellapart.errors import RecipeError

Make = Callable[..., Captioner]


def test_attention_of_each_word(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner(seed=1)
    captions = ["a red house", "two tree"]
    found = attention_maps(model, features[1], captions)
    assert [[one.word for one in words] for words in found] == [["a", "red", "house"], ["two", "tree"]]
    tokens = model.tokenize(captions)
    traces = model.traces(model.encode(features), tokens, torch.tensor([1, 1]))
    assert traces.attention is not None
    assert traces.sentinel is not None
    for row, words in enumerate(found):
        for place, one in enumerate(words):
            assert one.weights.flatten() == pytest.approx(traces.attention[row, place].tolist(), abs=1e-6)
            assert one.sentinel == pytest.approx(traces.sentinel[row, place].item(), abs=1e-6)


def test_bright_where_the_attention_is() -> None:
    picture = Image.new("RGB", (90, 60), (200, 100, 50))
    weights = np.zeros((3, 3))
    weights[0, 2] = 0.01  # however little it is
    shown = np.asarray(overlay(picture, weights))
    assert shown.shape == (60, 90, 3)
    assert np.abs(shown[5, 85].astype(int) - [200, 100, 50]).max() <= 4
    assert (shown[50:, :30] <= 40).all()
    assert np.unravel_index(shown[..., 0].argmax(), shown.shape[:2])[0] < 20
    assert np.asarray(overlay(picture, np.zeros((3, 3)))).max() <= 30, "no attention at all is no error"


def test_files_of_a_caption(tmp_path: Path) -> None:
    words = [
        WordAttention(word, np.eye(2), None if word == "é/ü" else 0.25) for word in ("a", "é/ü", "dog", "x", "y", "z")
    ]
    folder = tmp_path / "new" / "0001-dog"
    for _ in range(2):  # a second time it is replaced
        write_overlays(Image.new("RGB", (1000, 500), "red"), words, folder)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["01-a.png", "02-éü.png", "03-dog.png", "04-x.png", "05-y.png", "06-z.png", "sheet.png"]
    assert Image.open(folder / "03-dog.png").size == (SIDE, SIDE // 2)
    assert Image.open(folder / "sheet.png").size == (COLUMNS * SIDE, 2 * (SIDE // 2 + LINE))


def test_an_empty_caption_is_a_picture(tmp_path: Path) -> None:
    write_overlays(Image.new("RGB", (100, 50)), [], tmp_path / "empty")
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["sheet.png"]


def test_captioners_without_a_grid(
    make_captioner: Make, features: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_captioner()
    with pytest.raises(RecipeError, match="3 regions are not a square grid"):
        attention_maps(model, features[0, :3], ["a house"])
    traces = model.traces

    def blind(*arguments: torch.Tensor) -> Traces:
        return replace(traces(*arguments), attention=None)

    monkeypatch.setattr(model, "traces", blind)
    with pytest.raises(RecipeError, match="has no attention over regions"):
        attention_maps(model, features[0], ["a house"])
