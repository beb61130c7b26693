"""Export a torch network to ONNX once, check it against torch, and cache the file."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tellapart.encoders.base import EncoderIdentity
from tellapart.errors import StoreError
from tellapart.files import cache_folder, digest_of, new_file

if TYPE_CHECKING:
    import onnxruntime
    import torch

# Increase it when the export changes: files of older versions in the cache are then ignored.
EXPORT = 3
TOLERANCE = 1e-4

# torch's exporter has global state: one thread at a time. Processes need no lock: each writes to its own folder, and
# the last rename wins with equal content.
_ONE_AT_A_TIME = threading.Lock()


def cached_path(identity: EncoderIdentity, packages: Sequence[str]) -> Path:
    """Path of this encoder's export. Its name depends on weights, size and the versions of the code that made and
    checked it (`packages`: those that define the network, besides torch and ONNX)."""
    made_by = {package: version(package) for package in (*packages, "torch", "onnx", "onnxruntime")}
    key = digest_of({"identity": identity.digest, "export": EXPORT, "made_by": made_by})
    return cache_folder() / f"{identity.name}-{key[:16]}.onnx"


def exported(
    path: Path, make_grid: Callable[[], torch.nn.Module], size: int, int8: Callable[[str], bool] | None = None
) -> Path:
    """The ONNX file at `path`, exported on first use from the network `make_grid` returns.

    Args:
        path: of the file.
        make_grid: gives the network.
        size: side of the input in pixels.
        int8: by the name of a linear map's node, whether to keep its weights as int8 with a factor for each output;
            its inputs are rounded to 8 bits as they come. The export is checked before that.
    """
    with _ONE_AT_A_TIME:
        if not path.exists():
            _export(path, make_grid().eval(), size, int8)
    return path


def _export(path: Path, grid: torch.nn.Module, size: int, int8: Callable[[str], bool] | None) -> None:
    import torch

    sample = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tellapart-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation warnings of the exporter
        temporary = Path(folder) / path.name
        torch.onnx.export(
            grid,
            (sample,),
            str(temporary),
            dynamo=False,
            input_names=["pixels"],
            output_names=["grid"],
            dynamic_axes={"pixels": {0: "images"}, "grid": {0: "images"}},
        )
        check(temporary, grid, sample)
        if int8 is not None:
            temporary = _quantised(temporary, int8)
        with open(temporary, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, path)


def _quantised(path: Path, int8: Callable[[str], bool]) -> Path:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(path).graph
    stored = {tensor.name for tensor in graph.initializer}
    maps = [node.name for node in graph.node if node.op_type == "MatMul" and node.input[1] in stored]
    new = path.with_suffix(".int8.onnx")
    logging.getLogger().addFilter(_no_advice)
    try:
        quantize_dynamic(
            path,
            new,
            op_types_to_quantize=["MatMul"],
            nodes_to_quantize=[name for name in maps if int8(name)],
            per_channel=True,
            # Weights within ±63: without VNNI instructions the sum of two products of full 8-bit numbers overflows
            # 16 bits, and features would depend on the CPU.
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
    finally:
        logging.getLogger().removeFilter(_no_advice)
    return new


def pack_weights(source: Path, to: Path) -> None:
    """Copy an exported network with the weights of its linear maps in 8 bits, a quarter of the size.

    They have a factor for each output and become float32 when the network is opened (`open_session`), so that it
    computes in float32 and every CPU gives the same features up to rounding.

    Args:
        source: an export in float32.
        to: the new file.
    """
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(source)
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in list(graph.node):
        if node.op_type != "MatMul" or node.input[1] not in stored:
            continue
        tensor = stored[node.input[1]]
        weights = numpy_helper.to_array(tensor)
        factors = np.maximum(np.abs(weights).max(axis=0), np.finfo(np.float32).tiny) / 127
        parts = {"int8": np.rint(weights / factors).astype(np.int8), "factors": factors.astype(np.float32)}
        graph.initializer.remove(tensor)
        graph.initializer.extend(numpy_helper.from_array(part, f"{tensor.name}_{name}") for name, part in parts.items())
        inputs = [f"{tensor.name}_{name}" for name in parts]
        graph.node.insert(0, helper.make_node("DequantizeLinear", inputs, [tensor.name], axis=1))
    onnx.checker.check_model(model)
    with new_file(to) as temporary:
        onnx.save(model, temporary)


def _no_advice(record: logging.LogRecord) -> bool:
    """Leaves out ONNX Runtime's advice to prepare the model first, which changes nothing here."""
    return "pre-processing before quantization" not in record.getMessage()


def check(path: Path, grid: torch.nn.Module, sample: torch.Tensor) -> None:
    """Raise if the export's output differs from torch's."""
    import torch

    run = open_session(path)
    with torch.no_grad():
        expected = grid(sample).numpy()
    # Relative to the largest number where that is above 1: a vision transformer's states are.
    difference = float(np.abs(run(sample.numpy()) - expected).max() / max(1.0, np.abs(expected).max()))
    if not difference <= TOLERANCE:  # this form rejects NaN too
        raise StoreError(
            f"the exported encoder differs from the torch network by {difference:.1e}; "
            "install the versions in constraints.txt"
        )


def open_session(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """The exported network as a function of pixels. It runs on the calling thread; several threads may call it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    # Packed weights become float32 now, instead of making their products 8-bit ones.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    try:
        session: onnxruntime.InferenceSession = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise StoreError(f"{path}: this exported encoder cannot be opened ({error}); remove the file") from None
    return lambda pixels: np.asarray(session.run(["grid"], {"pixels": pixels})[0])
