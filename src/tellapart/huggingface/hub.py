"""Models of Hugging Face for every command: a folder as it comes, or by name from the hub if the user asks for it.

A folder of transformers (BLIP, GIT, an encoder-decoder, CLIP, SigLIP) is made into a model folder of tellapart once, in
the cache folder. A name such as `Salesforce/blip-image-captioning-base` is downloaded only with `download`: weights in
safetensors, configuration and tokenizer, never code. The commit is recorded, and later calls use the same one.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tellapart import registry
from tellapart.data.settings import DataSettings
from tellapart.encoders import open_encoder
from tellapart.errors import MissingExtraError, RecipeError, RunError, StoreError
from tellapart.files import Stored, cache_folder, digest_of, read_model, write_json
from tellapart.huggingface.folders import FAMILIES, find_folder, model_type, readable
from tellapart.huggingface.towers import CAPTIONERS
from tellapart.models import Model
from tellapart.shipped import SHIPPED, find_model

# Kind of model -> family -> prefix of its encoder, and its name in the registry.
MODELS = {
    "captioner": {family: (family, f"hf-{family}") for family in CAPTIONERS},
    "retriever": {"clip": ("clip-tokens", "hf-clip"), "siglip": ("siglip", "hf-siglip")},
}
USUAL = {"captioner": "BLIP, GIT or an encoder-decoder", "retriever": "CLIP or SigLIP"}
# A name on the hub, perhaps with a revision.
_NAME = re.compile(r"(?P<id>[\w][\w.-]*/[\w][\w.-]*)(@(?P<revision>[\w][\w./-]*))?")
# The only files that are downloaded.
FILES = (
    *("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "spiece.model", "tokenizer.model"),
    *("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"),
)


class Downloaded(Stored):
    """`downloaded.json`: the finished download that a name stands for."""

    id: str
    revision: str
    folder: str


def locate(named: str | Path, download: bool = False) -> Path:
    """The folder of a model: as given, or that of a model on the hub, which is downloaded if asked for.

    Args:
        named: a folder, `shipped`, or a name on the hub, as `OWNER/NAME` or `OWNER/NAME@REVISION`.
        download: get it from the hub if it is not here. Otherwise nothing is sent or downloaded.
    """
    folder, name = Path(named), _NAME.fullmatch(Path(named).as_posix())
    if name is None or str(named) in SHIPPED or folder.exists():
        return folder
    id, revision = name["id"], name["revision"]
    record = _place(id, revision) / "downloaded.json"
    if record.exists():
        found = Path(read_model(record, Downloaded, "record of a download", "remove it, and download again").folder)
        if (found / "config.json").exists():
            return found
    if download:
        return _download(id, revision)
    try:
        return find_folder(id, id, "model")  # of 'hf download'
    except (StoreError, ImportError):
        raise RunError(
            f"{named}: there is no such folder; if it is the name of a model on the Hugging Face hub, add --download "
            "to get it (from Python: download=True), otherwise check the path"
        ) from None


def _place(id: str, revision: str | None) -> Path:
    name = id.replace("/", "--") + ("" if revision is None else f"@{revision.replace('/', '--')}")
    return cache_folder() / "huggingface" / name


def _download(id: str, revision: str | None) -> Path:
    """Download the files of a model at one commit, and record it. An interrupted download continues."""
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError:
        raise MissingExtraError("huggingface_hub", "hf") from None
    with readable(f"{id}: the model", "check its name and the connection, or give a folder"):
        found = HfApi().model_info(id, revision=revision)
    commit = str(found.sha)
    names = [one.rfilename for one in found.siblings or [] if any(fnmatch(one.rfilename, name) for name in FILES)]
    names = [name for name in names if "/" not in name]
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        raise StoreError(
            f"{id}: holds no weights in safetensors with a config.json at {commit[:12]}, and other files can run code; "
            f"use another model, or a revision that has them: {id}@REVISION"
        )
    folder = _place(id, commit)
    with readable(f"{id}: the model", "run the same command again, which continues"):
        snapshot_download(id, revision=commit, allow_patterns=names, local_dir=folder)
    content = {"id": id, "revision": commit, "folder": str(folder)}
    write_json(_place(id, revision) / "downloaded.json", content)
    if revision != commit:
        write_json(folder / "downloaded.json", content)
    return folder


def find_usable(named: str | Path, kind: str, download: bool = False) -> Path:
    """A folder with a model that tellapart can load: as given, or made from a folder of transformers once.

    Args:
        named, download: as for `locate`.
        kind: `captioner` or `retriever`.
    """
    folder = locate(named, download)
    if not is_transformers_folder(folder):
        return find_model(folder)
    _names(folder, kind)  # raises if it is of another kind
    # What would be another model: another folder, or other files in it.
    files = [(path.name, *_stamp(path)) for path in sorted(folder.iterdir()) if path.is_file()]
    target = cache_folder() / "huggingface" / "models" / digest_of([str(folder.resolve()), files])[:16]
    if not (target / "model.json").exists():
        make_from_folder(folder, kind).save_pretrained(target)
    return target


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def is_transformers_folder(folder: Path) -> bool:
    """Whether a folder is as transformers saves a model, and not a run or model folder of tellapart."""
    return (folder / "config.json").exists() and not any((folder / one).exists() for one in ("model.json", "run.json"))


def make_from_folder(folder: Path, kind: str) -> Any:
    """The captioner or retriever that a folder of transformers holds, in eval mode."""
    prefix, name = _names(folder, kind)
    cls: Any = registry.find(kind, name)
    encoder = open_encoder(f"{prefix}:{folder.resolve()}").identity
    model: Model = cls.make(cls.Settings(), [], DataSettings(source="scenes"), encoder)
    model.history = _origin(folder)
    return model.eval()


def _names(folder: Path, kind: str) -> tuple[str, str]:
    """Prefix of the encoder, and name in the registry, of the model of this kind in a folder."""
    family = FAMILIES.get(model_type(folder), "")
    if family not in MODELS[kind]:
        raise RecipeError(f"{folder}: holds a model of type '{model_type(folder)}'; a {kind} is {USUAL[kind]}")
    return MODELS[kind][family]


def _origin(folder: Path) -> dict[str, Any]:
    """Where a model comes from, for its card."""
    record = folder / "downloaded.json"
    if not record.exists():
        return {"recipe": folder.resolve().name}
    found = read_model(record, Downloaded, "record of a download", "remove it, and download again")
    return {"recipe": found.id, "hub": f"{found.id}@{found.revision}"}
