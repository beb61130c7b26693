"""The models that come with tellapart: found by default, in an installed package and in a checkout."""

from __future__ import annotations

from pathlib import Path

from tellapart.errors import RunError

# What may be given instead of a run or model folder -> the kind of the shipped model.
SHIPPED = {"shipped": "captioner", "shipped/captioner": "captioner", "shipped/retriever": "retriever"}


def shipped_models() -> Path:
    """The folder of the shipped models: inside an installed package, or at the root of a checkout."""
    package = Path(__file__).parent
    inside = package / "shipped_models"
    return inside if inside.is_dir() else package.parents[1] / "models"


def shipped_model(kind: str) -> Path:
    """The model folder of the shipped captioner or retriever."""
    folder = shipped_models() / kind
    if not (folder / "model.json").is_file():
        raise RunError(
            f"{folder}: no {kind} comes with this copy of tellapart; install it again, or train a {kind} "
            "('tellapart train') and name its run folder"
        )
    return folder


def shipped_encoder(family: str) -> Path | None:
    """The exported network of an image encoder that comes with tellapart; `None` if this one does not."""
    path = shipped_models() / "encoders" / f"{family}.onnx"
    return path if path.is_file() else None


def is_shipped(named: str) -> bool:
    """Whether this names a shipped model that is there."""
    return named in SHIPPED and (shipped_models() / SHIPPED[named] / "model.json").is_file()


def find_model(named: str | Path) -> Path:
    """A run or model folder as given, or the shipped model that `shipped` and `shipped/retriever` name."""
    kind = SHIPPED.get(str(named))
    return Path(named) if kind is None else shipped_model(kind)


def shipped_name(folder: Path) -> str | None:
    """The name of a shipped model by its folder; `None` for other folders."""
    for name, kind in SHIPPED.items():
        if folder.resolve() == (shipped_models() / kind).resolve():
            return name
    return None
