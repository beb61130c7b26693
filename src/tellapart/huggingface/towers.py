"""Vision towers of CLIP, SigLIP and captioners, from a folder or the Hugging Face cache of this machine (extra `hf`).

Nothing is downloaded. The picture is prepared with Pillow and NumPy as the model's own configuration says, except that
it is squeezed whole to the square instead of cropped: a caption may be about what stands at the edge.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from tellapart.encoders.base import EncoderIdentity, GridEncoder, check_device, run_torch
from tellapart.errors import RecipeError, StoreError
from tellapart.files import digest_of, digest_of_file, read_json, write_json
from tellapart.huggingface.folders import (
    FAMILIES,
    find_folder,
    model_type,
    need_transformers,
    preprocessor_settings,
    quiet,
    read_model,
    square_size,
    weight_files,
)

if TYPE_CHECKING:
    import torch

# Family -> its class in transformers, and how many tokens are left out before those of the patches (CLIP's class token;
# `clip-tokens` has it too: it is what CLIP itself compares with texts).
TOWERS = {"clip": ("CLIPVisionModel", 1), "clip-tokens": ("CLIPVisionModel", 0), "siglip": ("SiglipVisionModel", 0)}
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
            preprocessing=self.preprocessing(),
            regions=(self.size // self.config.patch_size) ** 2 + (self.family == "clip-tokens"),
            width=self.config.hidden_size,
        )

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
        return EncoderIdentity(self.name, weights, self.preprocessing(), regions, width)

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
