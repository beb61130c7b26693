"""Reading model folders of Hugging Face transformers: configuration, weights, preprocessing. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tellapart.errors import MissingExtraError, StoreError
from tellapart.files import read_json

# What `config.json` calls a family, as a dual encoder or alone.
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
    """Say how to get transformers, if it is missing."""
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise MissingExtraError("transformers", "hf") from None


def model_type(folder: Path) -> str:
    """What `config.json` says a model is."""
    return str(read_json(folder / "config.json", "model configuration").get("model_type"))


def read_model(name: str, folder: Path, title: str, needed: Callable[[str], bool] = lambda key: True) -> Any:
    """A model in a folder, as transformers has it; float32, in eval mode.

    Args:
        name: of its class in transformers.
        folder: where its configuration and weights are.
        title: what to call it where weights are missing.
        needed: which weights must be there, by their names; by default all.
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
    """The folder of a model that is on this machine; `what` and `name` say who asks for it."""
    folder = Path(model).expanduser()
    if (folder / "config.json").exists():
        return folder
    if folder.is_dir():
        raise StoreError(f"{what} '{name}': {folder} holds no model (config.json is missing)")
    from huggingface_hub import snapshot_download

    try:
        found = Path(snapshot_download(model, local_files_only=True))
    except (OSError, ValueError):  # not there; not even an id
        found = None
    if found is None or not (found / "config.json").exists():
        raise StoreError(
            f"{what} '{name}': '{model}' is neither a folder here nor a model in the Hugging Face cache of this "
            f"machine; nothing is downloaded unasked: get it with 'hf download {model}', or give its folder"
        )
    return found


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights: those transformers loads when a folder has several kinds."""
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
    raise StoreError(f"{folder}: no weights are here (model.safetensors or pytorch_model.bin); get the model again")


def preprocessor_settings(folder: Path) -> dict[str, Any]:
    """What the model's image processor does, from either of the files that transformers writes."""
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
    """The side of the square that goes into the network: the crop's where there is one, else the size's."""
    size = settings.get("crop_size") if settings.get("do_center_crop") else None
    size = size or settings.get("size")
    if isinstance(size, dict):
        sides = {size[key] for key in ("height", "width", "shortest_edge") if size.get(key)}
        size = sides.pop() if len(sides) == 1 else None
    if not isinstance(size, int):
        raise StoreError(f"{folder}: the preprocessor configuration names no square size")
    return size


@contextmanager
def quiet() -> Iterator[None]:
    """Without progress bars and reports of another tower's weights, which are rightly left out."""
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
