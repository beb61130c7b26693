"""Read model folders of Hugging Face transformers: configuration, weights, preprocessing.

Every call into transformers that reads a folder goes through `load`. Nothing is downloaded, no code of a folder is run,
and weights are read from safetensors only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tellapart.errors import DataError, MissingExtraError, StoreError, TellapartError
from tellapart.files import read_json

# The configuration files that transformers may read.
CONFIGS = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer_config.json",
    "video_preprocessor_config.json",
)
# Keys of these files, at any depth, that would run code or read files that are not checked here.
REFUSED = {
    "auto_map": "names Python code of the model folder, which is never run; use a model that needs no code of its own",
    "configuration_files": "names other configuration files, which are not read; remove this key, or use another model",
    "transformers_weights": "names another weight file, which is not read; call it model.safetensors, without this key",
    "quantization_config": "asks for quantised weights, which are not supported; use the model in full precision",
}
# A model with more layers than this is damaged, and building it would take hours.
MOST_LAYERS = 1000
# Other values of `attn_implementation` make transformers load code from elsewhere.
ATTENTION = (None, "eager", "sdpa")
CONVERT = (
    "if you trust the file, load the model in transformers and write it with "
    "save_pretrained(FOLDER, safe_serialization=True)"
)
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
    return str(read_config(folder).get("model_type"))


def read_config(folder: Path, file: str = "config.json", what: str = "model configuration") -> dict[str, Any]:
    """Read a configuration file of a folder, without transformers."""
    path = folder / file
    try:
        found = read_json(path, what)
    except DataError as error:
        raise StoreError(str(error)) from None
    except (RecursionError, ValueError) as error:  # nested too deep, or a number with too many digits
        raise StoreError(f"{path}: not a {what} ({first_line(error)}); get the model again") from None
    if not isinstance(found, dict):
        raise StoreError(f"{path}: not a {what} (no JSON object); get the model again")
    return found


def check_folder(folder: Path) -> None:
    """Raise an error if loading the folder could run code, or read anything but its own plain files."""
    from transformers import CONFIG_MAPPING

    for path in sorted(folder.iterdir()):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise StoreError(f"{path}: not a regular file; get the model again")
    for file in CONFIGS:
        if (folder / file).exists():
            _check_keys(folder / file, read_config(folder, file, "configuration"))
    if (folder / "adapter_config.json").exists():
        raise StoreError(
            f"{folder}: holds an adapter of peft (adapter_config.json), which is not read; "
            "merge it into its model in peft (merge_and_unload), save that, and remove adapter_config.json"
        )
    if any(folder.glob("shard-*.safetensors")):
        raise StoreError(f"{folder}: holds a distributed checkpoint, which is not read; save it with save_pretrained")
    if (folder / "config.json").exists() and (kind := model_type(folder)) not in CONFIG_MAPPING:
        raise StoreError(
            f"{folder}: transformers has no model of type '{kind}', and code of a model folder is never run; "
            "use another model, or a newer transformers"
        )


def _check_keys(path: Path, content: dict[str, Any]) -> None:
    """Raise an error for keys, at any depth, that would run code, read other files or build layers without end."""
    left: list[Any] = [content]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            for key, inner in value.items():
                if key in REFUSED and inner:
                    raise StoreError(f"{path}: '{key}' {REFUSED[key]}")
                if key.endswith("_implementation"):
                    names = inner.values() if isinstance(inner, dict) else [inner]
                    if any(name not in ATTENTION for name in names):
                        raise StoreError(
                            f"{path}: '{key}' names code outside transformers, which is never run; remove this key"
                        )
                for count in inner if isinstance(inner, list) else [inner]:
                    if isinstance(count, int) and (
                        (count > MOST_LAYERS and ("layer" in key or "depth" in key))
                        or (count < 0 and key.startswith("num_"))
                    ):
                        raise StoreError(f"{path}: '{key}' has a value that no model has; get the model again")
                left.append(inner)


def load(loader: Any, folder: Path, **options: Any) -> Any:
    """Call `from_pretrained` of a class of transformers on a checked folder, without code of the folder.

    Args:
        loader: the class.
        folder: where its files are.
        options: more arguments of `from_pretrained`.
    """
    check_folder(folder)
    with quiet():
        return loader.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True, **options)


@contextmanager
def readable(what: str, advice: str = "get the model again") -> Iterator[None]:
    """Turn any error about a damaged or odd file into a `StoreError` of one line.

    Args:
        what: the folder and the part of it that is read.
        advice: what to do.
    """
    try:
        yield
    except TellapartError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise StoreError(f"{what} cannot be read ({first_line(error)}); {advice}") from None


def is_failure(error: BaseException) -> bool:
    """Whether a library failed: transformers raises many types, and a panic in tokenizers is no `Exception`."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def first_line(error: BaseException, longest: int = 200) -> str:
    """Type and first line of an error."""
    line = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0].rstrip(": ")
    return line if len(line) <= longest else f"{line[:longest]} …"


def load_config(folder: Path) -> Any:
    """The configuration of the model in a folder, as transformers has it."""
    import transformers

    with readable(f"{folder}: config.json"):
        return load(transformers.AutoConfig, folder)


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
    weight_files(folder)
    with readable(f"{folder}: its model"):
        model, found = load(cls, folder, use_safetensors=True, output_loading_info=True)
    if missing := [key for key in found["missing_keys"] if needed(key)]:
        raise StoreError(
            f"{folder}: the weights lack {len(missing)} tensors of a {title}, such as {min(missing)}; "
            "get the model again"
        )
    return model.float().eval()


def find_folder(name: str, model: str, what: str = "encoder") -> Path:
    """The folder of a model on this machine; see `check_folder`.

    Args:
        name: value of the setting, for errors.
        model: a folder, or the id of a model in the Hugging Face cache.
        what: name of the setting, for errors.
    """
    try:
        folder = Path(model).expanduser()
        here, empty = (folder / "config.json").exists(), folder.is_dir()
    except (OSError, RuntimeError) as error:  # no such user, a name that is too long, no permission
        raise StoreError(f"{what} '{name}': cannot be opened ({first_line(error)}); check the path") from None
    if here:
        check_folder(folder)
        return folder
    if empty:
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
    check_folder(found)
    return found


def weight_files(folder: Path) -> list[Path]:
    """The weight files that transformers loads from a folder: safetensors, in one file or in shards."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.exists():
        return [whole]
    if not index.exists():
        pickles = sorted(path.name for path in folder.glob("*") if path.suffix in (".bin", ".pt", ".pth", ".ckpt"))
        if pickles:
            raise StoreError(f"{folder}: {pickles[0]} is a pickle, which can run code and is not read; {CONVERT}")
        raise StoreError(f"{folder}: holds no weights (model.safetensors); get the model again")
    shards = read_config(folder, index.name, "index of weights").get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise StoreError(f"{index}: names no weight files; get the model again")
    names = sorted({str(name) for name in shards.values()})
    for name in names:
        if "/" in name or "\\" in name or not name.endswith(".safetensors"):
            raise StoreError(f"{index}: '{name}' is not a safetensors file of this folder; get the model again")
        if not (folder / name).is_file():
            raise StoreError(f"{folder}: {name} is missing; get the model again")
    return [folder / name for name in names]


def preprocessor_settings(folder: Path) -> dict[str, Any]:
    """Settings of the model's image processor, from either of the files that transformers writes."""
    alone, together = folder / "preprocessor_config.json", folder / "processor_config.json"
    settings: Any = None
    if alone.exists():
        settings = read_config(folder, alone.name, "preprocessor configuration")
    elif together.exists():
        settings = read_config(folder, together.name, "processor configuration").get("image_processor")
    if settings is None:
        raise StoreError(f"{folder}: preprocessor_config.json is missing; get it with the model")
    if not isinstance(settings, dict):
        raise StoreError(f"{together}: 'image_processor' is not a JSON object; get the model again")
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
