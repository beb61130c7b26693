"""Vision towers of CLIP, SigLIP and captioners, from a folder or the Hugging Face cache of this machine (extra `hf`).

Nothing is downloaded. Pictures are prepared with Pillow and NumPy as the model's configuration says, except that they
are squeezed to the square instead of cropped, since a caption may describe something at the edge.
"""

from __future__ import annotations

import hashlib
import shutil
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from tellapart.encoders.base import EncoderIdentity, TorchEncoder
from tellapart.errors import RecipeError, StoreError
from tellapart.files import digest_of, digest_of_file, write_json
from tellapart.huggingface.folders import (
    FAMILIES,
    find_folder,
    load_config,
    model_type,
    need_transformers,
    preprocessor_settings,
    read_config,
    read_model,
    readable,
    square_size,
    weight_files,
)

if TYPE_CHECKING:
    import torch

# Family -> class in transformers, and number of tokens to drop before those of the patches (CLIP's class token, which
# `clip-tokens` keeps for the `hf-clip` retriever).
TOWERS = {"clip": ("CLIPVisionModel", 1), "clip-tokens": ("CLIPVisionModel", 0), "siglip": ("SiglipVisionModel", 0)}
# Family of captioners -> class in transformers, and attribute of its vision tower.
CAPTIONERS = {
    "blip": ("BlipForConditionalGeneration", "vision_model"),
    "git": ("GitForCausalLM", "git.image_encoder"),
    "encoder-decoder": ("VisionEncoderDecoderModel", "encoder"),
}


class VisionTower(TorchEncoder):
    """The patch tokens of the last hidden state of a CLIP or SigLIP vision tower; `clip-tokens` adds the class token.

    Args:
        name: `clip:`, `clip-tokens:` or `siglip:` and a folder, or the id of a model in the Hugging Face cache.
        threads: number of threads that prepare pictures; torch has its own setting.
        device: where torch runs (default: the CPU).

    Example:
        >>> encoder = VisionTower("clip:openai/clip-vit-base-patch32")           # doctest: +SKIP
        >>> encoder.encode([load_image(path)]).shape                             # doctest: +SKIP
        (1, 49, 768)
    """

    def __init__(self, name: str, threads: int | None = None, device: str | None = None) -> None:
        super().__init__(name, threads, device)
        self.family, _, model = name.partition(":")
        if not model:
            raise RecipeError(
                f"encoder '{name}': say which model, as a folder or a model's id, as {self.family}:FOLDER_OR_ID"
            )
        need_transformers()
        self.folder = find_folder(name, model)
        self.files = weight_files(self.folder)
        self.config = self._vision_config()
        with readable(f"{self.folder}: its preprocessor configuration"):
            self._read_preprocessing()

    @cached_property
    def identity(self) -> EncoderIdentity:
        # The configuration counts too: with another activation the same weights are another network.
        files = [*self.files, self.folder / "config.json"]
        with readable(f"{self.folder}: config.json"):
            regions = (self.size // self.config.patch_size) ** 2 + (self.family == "clip-tokens")
        return EncoderIdentity(
            name=self.name,
            weights=digest_of({file.name: digest_of_file(file) for file in files}),
            preprocessing=self.preprocessing(),
            regions=regions,
            width=self.config.hidden_size,
        )

    def network(self) -> torch.nn.Module:
        """The vision tower, float32, in eval mode."""
        loaded: torch.nn.Module = read_model(TOWERS[self.family][0], self.folder, f"{self.family} vision tower")
        return loaded

    @cached_property
    def grid(self) -> torch.nn.Module:
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
        """Number of tokens to drop before those of the patches."""
        return TOWERS[self.family][1]

    def _vision_config(self) -> Any:
        kind = model_type(self.folder)
        family = FAMILIES.get(kind)
        if family != self.family.removesuffix("-tokens"):
            hint = f"; did you mean {family}:?" if family else f"; known: {', '.join(FAMILIES)}"
            raise RecipeError(f"encoder '{self.name}': {self.folder} holds a model of type '{kind}'{hint}")
        config = load_config(self.folder)
        # `encoder` in an encoder-decoder.
        return getattr(config, "vision_config", getattr(config, "encoder", config))

    def _read_preprocessing(self) -> None:
        settings = preprocessor_settings(self.folder)
        self.size = square_size(self.folder, settings)
        if self.size != self.config.image_size:
            raise StoreError(
                f"{self.folder}: the model needs pictures of {self.config.image_size} pixels, its preprocessor makes "
                f"{self.size}; fix preprocessor_config.json"
            )
        # The configuration is for rescaled values, mostly 0 to 1; ours are bytes.
        scale = settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1.0
        mean, std = settings.get("image_mean"), settings.get("image_std")
        if not settings.get("do_normalize", True):
            mean, std = [0.0] * 3, [1.0] * 3
        if not (mean and std and len(mean) == len(std) == 3):
            raise StoreError(
                f"{self.folder}: the preprocessor configuration has no image_mean and image_std of three numbers; "
                "get the model again"
            )
        self.mean, self.std = ([value / scale for value in values] for values in (mean, std))
        if not all(-1e6 < value < 1e6 for value in self.mean) or not all(1e-6 < value < 1e6 for value in self.std):
            raise StoreError(f"{self.folder}: its image_mean or image_std is out of range; get the model again")
        self.resample = Image.Resampling(settings.get("resample", Image.Resampling.BICUBIC))


class CaptionerTower(VisionTower):
    """The vision tower of a captioner, with all tokens that its text decoder reads (including the class token).

    The digest in its identity is of the tower's tensors, not of the files. So the same tower in another file, without
    the decoder, is the same encoder.

    Args:
        name: `blip:`, `git:` or `encoder-decoder:` and a folder, or the id of a model in the Hugging Face cache.
        threads, device: see `VisionTower`.

    Example:
        >>> encoder = CaptionerTower("blip:Salesforce/blip-image-captioning-base")   # doctest: +SKIP
        >>> encoder.encode([load_image(path)]).shape                                 # doctest: +SKIP
        (1, 577, 768)
    """

    @cached_property
    def identity(self) -> EncoderIdentity:
        weights = tower_digest(self._tower, self.folder)
        with readable(f"{self.folder}: its model"):
            shape = self.output_shape()
        return EncoderIdentity(self.name, weights, self.preprocessing(), *shape)

    def network(self) -> torch.nn.Module:
        return vision_tower(whole_model(self.family, self.folder, tower_only=True), self.family)

    def save(self, folder: Path) -> None:
        """Write the tower without its decoder into an existing folder; `FAMILY:FOLDER` then opens this encoder."""
        from safetensors.torch import save_file

        prefix = CAPTIONERS[self.family][1]
        tensors = {f"{prefix}.{name}": part.cpu() for name, part in self._tower.state_dict().items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        write_json(folder / "config.json", read_config(self.folder))
        shutil.copymode(folder / "config.json", folder / "model.safetensors")  # safetensors: only the owner's
        write_json(folder / "preprocessor_config.json", preprocessor_settings(self.folder))

    @property
    def _tower(self) -> torch.nn.Module:
        tower: torch.nn.Module = self.grid.get_submodule("network")
        return tower

    def _tokens_before(self) -> int:
        return 0


def whole_model(family: str, folder: Path, tower_only: bool = False) -> Any:
    """Load a captioner of transformers with its vision tower, in float32 and eval mode.

    Args:
        family: one of `CAPTIONERS`.
        folder: where it is.
        tower_only: allow the other weights to be missing.
    """
    name, tower = CAPTIONERS[family]

    def needed(key: str) -> bool:
        # The pooler is not used, and many files leave it out.
        return ".pooler." not in key if key.startswith(tower) else not tower_only

    return read_model(name, folder, name, needed)


def vision_tower(whole: Any, family: str) -> torch.nn.Module:
    """The vision tower of a captioner."""
    tower: torch.nn.Module = attrgetter(CAPTIONERS[family][1])(whole)
    return tower


def tower_digest(tower: torch.nn.Module, folder: Path) -> str:
    """A digest of a tower's weights and configuration that does not depend on files or the version of transformers.

    Names of tensors and default settings change with the version of transformers, so they do not count. Nor does the
    pooler, which is not used.
    """
    weights = sorted(
        hashlib.sha256(f"{list(weight.shape)}".encode() + weight.detach().cpu().contiguous().numpy().data).hexdigest()
        for name, weight in tower.named_parameters()
        if not name.startswith("pooler.")
    )
    config = read_config(folder)
    config = config.get("vision_config", config.get("encoder", {}))
    unimportant = ("architectures", "dtype", "torch_dtype", "transformers_version")
    settings = {key: value for key, value in config.items() if not key.startswith("_") and key not in unimportant}
    return digest_of({"weights": weights, "config": settings})
