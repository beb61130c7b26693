"""Read model folders of Hugging Face transformers: configuration, weights, preprocessing. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tellapart.errors import MissingExtraError, StoreError
from tellapart.files import read_json

# `model_type` in `config.json` -> family.
FAMILIES = {
    "clip": "clip",
    "clip_vision_model": "clip",
    "siglip": "siglip",
    "siglip_vision_model": "siglip",
    "blip": "blip",
    "git": "git",
    "vision-encoder-decoder": "encoder-decoder",
}


def need_transformers() -> None:
    """Raise an error with the extra to install if transformers is missing."""
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise MissingExtraError("transformers", "hf") from None


def model_type(folder: Path) -> str:
    """The `model_type` in `config.json`."""
    return str(read_json(folder / "config.json", "model configuration").get("model_type"))


def text_positions(config: Any) -> int:
    """Maximum number of tokens of a text model."""
    # The position numbers of these start after the id of the padding token.
    unused = config.pad_token_id + 1 if config.model_type in ("mpnet", "roberta") else 0
    return int(config.max_position_embeddings - unused)


def read_model(name: str, folder: Path, title: str, needed: Callable[[str], bool] = lambda key: True) -> Any:
    """Load a model of transformers in float32 and eval mode.

    Args:
        name: its class in transformers.
        folder: where its configuration and weights are.
        title: its name in errors.
        needed: whether the weight of a name must be there; by default all.
    """
    import transformers

    cls: Any = getattr(transformers, name)
    safetensors = weight_files(folder)[0].suffix == ".safetensors"
    with quiet():
        model, found = cls.from_pretrained(
            folder, local_files_only=True, use_safetensors=safetensors, output_loading_info=True
        )
    if missing := [key for key in found["missing_keys"] if needed(key)]:
        raise StoreError(
            f"{folder}: the weights lack {len(missing)} tensors of a {title}, such as {min(missing)}; "
            "get the model again"
        )
    return model.float().eval()


def find_folder(name: str, model: str, what: str = "encoder") -> Path:
    """The folder of a model on this machine.

    Args:
        name: value of the setting, for errors.
        model: a folder, or the id of a model in the Hugging Face cache.
        what: name of the setting, for errors.
    """
    folder = Path(model).expanduser()
    if (folder / "config.json").exists():
        return folder
    if folder.is_dir():
        raise StoreError(f"{what} '{name}': {folder} holds no model (config.json is missing)")
    from huggingface_hub import snapshot_download

    try:
        found = Path(snapshot_download(model, local_files_only=True))
    except (OSError, ValueError):  # not in the cache, or not a valid id
        found = None
    if found is None or not (found / "config.json").exists():
        raise StoreError(
            f"{what} '{name}': '{model}' is neither a folder nor a model in the Hugging Face cache of this machine; "
            f"download it with 'hf download {model}', or give its folder"
        )
    return found


def weight_files(folder: Path) -> list[Path]:
    """The weight files that transformers loads from a folder."""
    for whole in ("model.safetensors", "pytorch_model.bin"):
        if (folder / whole).exists():
            return [folder / whole]
        index = folder / f"{whole}.index.json"
        if index.exists():
            shards = [folder / shard for shard in sorted(set(read_json(index)["weight_map"].values()))]
            missing = [shard.name for shard in shards if not shard.exists()]
            if missing:
                raise StoreError(f"{folder}: {missing[0]} is missing; get the model again")
            return shards
    raise StoreError(f"{folder}: holds no weights (model.safetensors or pytorch_model.bin); get the model again")


def preprocessor_settings(folder: Path) -> dict[str, Any]:
    """Settings of the model's image processor, from either of the files that transformers writes."""
    alone, together = folder / "preprocessor_config.json", folder / "processor_config.json"
    settings: dict[str, Any] | None = None
    if alone.exists():
        settings = read_json(alone, "preprocessor configuration")
    elif together.exists():
        settings = read_json(together, "processor configuration").get("image_processor")
    if settings is None:
        raise StoreError(f"{folder}: preprocessor_config.json is missing; get it with the model")
    return settings


def square_size(folder: Path, settings: dict[str, Any]) -> int:
    """Side of the network's input in pixels: the crop size if pictures are cropped, otherwise the size."""
    size = settings.get("crop_size") if settings.get("do_center_crop") else None
    size = size or settings.get("size")
    if isinstance(size, dict):
        sides = {size[key] for key in ("height", "width", "shortest_edge") if size.get(key)}
        size = sides.pop() if len(sides) == 1 else None
    if not isinstance(size, int):
        raise StoreError(f"{folder}: the preprocessor configuration has no square size; use another model")
    return size


@contextmanager
def quiet() -> Iterator[None]:
    """Turn off progress bars and warnings of transformers, for example about unused weights."""
    from transformers.utils import logging as typed_in_part

    logging: Any = typed_in_part
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
