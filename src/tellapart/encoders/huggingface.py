"""Vision towers of CLIP, SigLIP and captioners, from a folder or the Hugging Face cache of this machine (extra `hf`).

Nothing is downloaded. The picture is prepared with Pillow and NumPy as the model's own configuration says, except that
it is squeezed whole to the square instead of cropped: a caption may be about what stands at the edge.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from tellapart.encoders.base import EncoderIdentity, GridEncoder, check_device, run_torch
from tellapart.errors import MissingExtraError, RecipeError, StoreError
from tellapart.files import digest_of, digest_of_file, read_json, write_json

if TYPE_CHECKING:
    import torch

# Family -> its class in transformers, and how many tokens are left out before those of the patches (CLIP's class token;
# `clip-tokens` has it too: it is what CLIP itself compares with texts).
TOWERS = {"clip": ("CLIPVisionModel", 1), "clip-tokens": ("CLIPVisionModel", 0), "siglip": ("SiglipVisionModel", 0)}
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
# Family of captioners -> its class in transformers, and where its vision tower is in it.
CAPTIONERS = {
    "blip": ("BlipForConditionalGeneration", "vision_model"),
    "git": ("GitForCausalLM", "git.image_encoder"),
    "encoder-decoder": ("VisionEncoderDecoderModel", "encoder"),
}


class VisionTower(GridEncoder):
    """The patch tokens of a CLIP or SigLIP vision tower's last hidden state; of `clip-tokens` the class token before.

    Args:
        name: `clip:`, `clip-tokens:` or `siglip:` and a folder, or the id of a model in the Hugging Face cache.
        threads: how many threads prepare pictures; those of torch itself are set in torch.
        device: where torch runs (default: the CPU).

    Example:
        >>> encoder = VisionTower("clip:openai/clip-vit-base-patch32")           # doctest: +SKIP
        >>> encoder.encode([load_image(path)]).shape                             # doctest: +SKIP
        (1, 49, 768)
    """

    def __init__(self, name: str, threads: int | None = None, device: str | None = None) -> None:
        super().__init__(threads, runs=1)
        self.name = name
        self.family, _, model = name.partition(":")
        if not model:
            raise RecipeError(
                f"encoder '{name}': say which model, as a folder or a model's id, as {self.family}:FOLDER_OR_ID"
            )
        need_transformers()
        self.device = check_device(device) if device is not None else "cpu"
        self.folder = find_folder(name, model)
        self.files = weight_files(self.folder)
        self.config = self._vision_config()
        self._read_preprocessing()

    @cached_property
    def identity(self) -> EncoderIdentity:
        # The configuration belongs to the weights: with another activation they are another network.
        files = [*self.files, self.folder / "config.json"]
        return EncoderIdentity(
            name=self.name,
            weights=digest_of({file.name: digest_of_file(file) for file in files}),
            preprocessing=self._preprocessing(),
            regions=(self.size // self.config.patch_size) ** 2 + (self.family == "clip-tokens"),
            width=self.config.hidden_size,
        )

    def _preprocessing(self) -> str:
        mean, std = ((", ".join(f"{value:.6g}" for value in values)) for values in (self.mean, self.std))
        return f"squeeze to {self.size}×{self.size} {self.resample.name.lower()}, (x-[{mean}])/[{std}]"

    def network(self) -> torch.nn.Module:
        """The vision tower, float32, in eval mode."""
        loaded: torch.nn.Module = read_model(TOWERS[self.family][0], self.folder, f"{self.family} vision tower")
        return loaded

    def run(self, pixels: np.ndarray) -> np.ndarray:
        return run_torch(self._grid, pixels, self.device)

    @cached_property
    def _grid(self) -> torch.nn.Module:
        import torch

        class Grid(torch.nn.Module):
            def __init__(self, network: torch.nn.Module, before: int) -> None:
                super().__init__()
                self.network = network
                self.before = before

            def forward(self, pixels: torch.Tensor) -> torch.Tensor:
                tokens: torch.Tensor = self.network(pixel_values=pixels).last_hidden_state
                return tokens[:, self.before :]

        return Grid(self.network(), self._tokens_before()).to(self.device)

    def _tokens_before(self) -> int:
        """How many tokens stand before those that are given."""
        return TOWERS[self.family][1]

    def _vision_config(self) -> Any:
        kind = model_type(self.folder)
        family = FAMILIES.get(kind)
        if family != self.family.removesuffix("-tokens"):
            hint = f"; did you mean {family}:?" if family else f"; known: {', '.join(FAMILIES)}"
            raise RecipeError(f"encoder '{self.name}': {self.folder} holds a model of type '{kind}'{hint}")
        import transformers

        with quiet():
            config = transformers.AutoConfig.from_pretrained(self.folder, local_files_only=True)
        # An encoder-decoder calls its vision tower just that.
        return getattr(config, "vision_config", getattr(config, "encoder", config))

    def _read_preprocessing(self) -> None:
        settings = preprocessor_settings(self.folder)
        self.size = square_size(self.folder, settings)
        if self.size != self.config.image_size:
            raise StoreError(
                f"{self.folder}: the model wants pictures of {self.config.image_size} pixels, its preprocessor makes "
                f"{self.size}; mend preprocessor_config.json"
            )
        # Written for values of 0 to 1 (or what the rescaling makes of bytes); here for bytes.
        scale = settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1.0
        normalised = settings.get("do_normalize", True)
        if normalised and not (settings.get("image_mean") and settings.get("image_std")):
            raise StoreError(f"{self.folder}: the preprocessor configuration has no image_mean and image_std")
        self.mean = [value / scale for value in settings["image_mean"]] if normalised else [0.0] * 3
        self.std = [value / scale for value in settings["image_std"]] if normalised else [1 / scale] * 3
        self.resample = Image.Resampling(settings.get("resample", Image.Resampling.BICUBIC))


class CaptionerTower(VisionTower):
    """The vision tower of a captioner, with all tokens its text decoder sees (the class token is one of them).

    The digest in its identity is of the tower's tensors, not of the files they came in: the same tower in another
    file, without the decoder, is the same encoder.

    Args:
        name: `blip:`, `git:` or `encoder-decoder:` and a folder, or the id of a model in the Hugging Face cache.
        threads: how many threads prepare pictures; those of torch itself are set in torch.
        device: where torch runs (default: the CPU).

    Example:
        >>> encoder = CaptionerTower("blip:Salesforce/blip-image-captioning-base")   # doctest: +SKIP
        >>> encoder.encode([load_image(path)]).shape                                 # doctest: +SKIP
        (1, 577, 768)
    """

    @cached_property
    def identity(self) -> EncoderIdentity:
        # What a tower of any kind gives is learnt from it, not from its configuration.
        blank = np.zeros((1, 3, self.size, self.size), np.float32)
        regions, width = self.run(blank).shape[1:]
        weights = tower_digest(self._tower, self.folder)
        return EncoderIdentity(self.name, weights, self._preprocessing(), regions, width)

    def network(self) -> torch.nn.Module:
        return vision_tower(whole_model(self.family, self.folder, tower_only=True), self.family)

    def save(self, folder: Path) -> None:
        """Write the tower without its decoder into an existing folder; `FAMILY:FOLDER` is then this encoder."""
        from safetensors.torch import save_file

        prefix = CAPTIONERS[self.family][1]
        tensors = {f"{prefix}.{name}": part.cpu() for name, part in self._tower.state_dict().items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        write_json(folder / "config.json", read_json(self.folder / "config.json", "model configuration"))
        write_json(folder / "preprocessor_config.json", preprocessor_settings(self.folder))

    @property
    def _tower(self) -> torch.nn.Module:
        tower: torch.nn.Module = self._grid.get_submodule("network")
        return tower

    def _tokens_before(self) -> int:
        return 0


def need_transformers() -> None:
    """Say how to get transformers, if it is missing."""
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise MissingExtraError("transformers", "hf") from None


def model_type(folder: Path) -> str:
    """What `config.json` says a model is."""
    return str(read_json(folder / "config.json", "model configuration").get("model_type"))


def whole_model(family: str, folder: Path, tower_only: bool = False) -> Any:
    """A captioner with its vision tower as transformers has it, float32, in eval mode.

    Args:
        family: one of `CAPTIONERS`.
        folder: where it is.
        tower_only: only the tower's weights must be there.
    """
    name, tower = CAPTIONERS[family]

    def needed(key: str) -> bool:
        # No captioner uses the pooler, which many files leave out.
        return ".pooler." not in key if key.startswith(tower) else not tower_only

    return read_model(name, folder, name, needed)


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


def vision_tower(whole: Any, family: str) -> torch.nn.Module:
    """The part of a whole captioner that sees."""
    tower: torch.nn.Module = attrgetter(CAPTIONERS[family][1])(whole)
    return tower


def tower_digest(tower: torch.nn.Module, folder: Path) -> str:
    """Names a tower by its weights and its configuration, whatever file and whatever version they came in.

    Names of tensors and defaults of settings change with the version of transformers, so neither counts; nor does the
    pooler, which nothing here uses.
    """
    weights = sorted(
        hashlib.sha256(f"{list(weight.shape)}".encode() + weight.detach().cpu().contiguous().numpy().data).hexdigest()
        for name, weight in tower.named_parameters()
        if not name.startswith("pooler.")
    )
    config = read_json(folder / "config.json", "model configuration")
    config = config.get("vision_config", config.get("encoder", {}))
    # With another activation the same weights are another network; who saved them and when does not matter.
    unimportant = ("architectures", "dtype", "torch_dtype", "transformers_version")
    settings = {key: value for key, value in config.items() if key[0] != "_" and key not in unimportant}
    return digest_of({"weights": weights, "config": settings})


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
