"""Weights in fewer bytes, and what comes back."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch

from support.pictures import TinyEncoder, save_model
from tellapart.errors import RunError
from tellapart.weights import SCALE, pack, unpack


def some_weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(5, 7, generator=generator) * torch.logspace(-6, 6, 5)[:, None]
    matrix[2] = 0.0
    return {
        "map.weight": matrix,
        "filter": torch.randn(3, 2, 4, generator=generator),
        "map.bias": torch.randn(7, generator=generator),
        "count": torch.tensor(3),
        "chosen": torch.tensor([True, False]),
    }


def test_int8_is_off_by_half_a_step_of_its_row() -> None:
    weights = some_weights()
    packed = pack(weights, "int8")
    assert packed["map.weight"].dtype == torch.int8
    back = unpack(packed)
    assert back.keys() == weights.keys()
    for name in ("map.weight", "filter"):
        for row, own in zip(weights[name], back[name], strict=True):
            assert (row - own).abs().max() <= row.abs().max() / 127 * 0.501
    assert back["map.weight"][2].tolist() == [0.0] * 7
    torch.testing.assert_close(back["map.bias"].float(), weights["map.bias"], rtol=1e-3, atol=1e-4)
    assert back["count"] == 3
    assert back["chosen"].tolist() == [True, False]


def test_float16_and_float32() -> None:
    weights = {name: tensor for name, tensor in some_weights().items() if name != "map.weight"}
    assert all(torch.equal(one, weights[name]) for name, one in unpack(pack(weights, "float32")).items())
    half = unpack(pack(weights, "float16"))
    assert half["filter"].dtype == torch.float16
    torch.testing.assert_close(half["filter"].float(), weights["filter"], rtol=1e-3, atol=1e-4)
    with pytest.raises(RunError, match="'large' are too large for float16"):
        pack({"large": torch.tensor([1e6])}, "float16")


def test_factors_that_do_not_fit() -> None:
    packed = pack(some_weights(), "int8")
    without = {name: tensor for name, tensor in packed.items() if name != "filter" + SCALE}
    with pytest.raises(ValueError, match="'filter' has int8 weights without factors"):
        unpack(without)
    with pytest.raises(ValueError, match="'filter' has int8 weights without factors, or factors without"):
        unpack({name: tensor for name, tensor in packed.items() if name != "filter"})
    with pytest.raises(ValueError, match="'filter' has 3 rows and 2 factors"):
        unpack({**packed, "filter" + SCALE: torch.ones(2)})


@pytest.mark.skipif(os.name == "nt", reason="modes of files are of other systems")
def test_everyone_may_read_a_model_folder(tmp_path: Path) -> None:
    """As the umask says: also the weights, which safetensors writes for their owner alone."""
    (tmp_path / "plain").write_text("")
    folder = save_model(tmp_path / "model", TinyEncoder.identity)
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {
        stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    }
