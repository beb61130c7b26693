"""Weights of a Hugging Face decoder: training with LoRA, and saving tied weights once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from tellapart.errors import MissingExtraError, RecipeError

if TYPE_CHECKING:
    from tellapart.huggingface.captioners import HuggingFaceCaptioner, HuggingFaceSettings

# Names of attention projections in transformers.
PROJECTIONS = ("query", "key", "value", "q_proj", "k_proj", "v_proj", "c_attn", "q_attn")


def add_lora(captioner: HuggingFaceCaptioner, settings: HuggingFaceSettings) -> None:
    """Add LoRA (Hu et al. 2022) to the attention projections of the decoder; all other weights are frozen."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise MissingExtraError("peft", "hf") from None
    found = {
        name.rpartition(".")[2]: part
        for name, part in captioner.decoder.named_modules()
        if name.rpartition(".")[2] in PROJECTIONS
    }
    if not found:
        raise RecipeError(
            f"captioner.lora: no attention projections were found in a {type(captioner.decoder).__name__}; "
            "set captioner.lora=0"
        )
    config = LoraConfig(
        r=settings.lora,
        lora_alpha=settings.lora * settings.lora_scale,  # type: ignore[arg-type]
        lora_dropout=settings.lora_dropout,
        target_modules=sorted(found),
        fan_in_fan_out=not any(isinstance(part, nn.Linear) for part in found.values()),  # GPT-2's Conv1D
    )
    inject_adapter_in_model(config, captioner.decoder)
    for name, parameter in captioner.named_parameters():
        parameter.requires_grad_("lora_" in name)


def save_tied_weights_once(module: Any) -> None:
    """Save a weight shared by several layers under its first name only, since safetensors has no shared weights."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied[name] = first[id(parameter)]
        first.setdefault(id(parameter), name)

    def drop_copies(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
        for name in tied:
            state.pop(prefix + name, None)

    def restore_copies(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
        for name, kept in tied.items():
            if prefix + kept in state:
                state.setdefault(prefix + name, state[prefix + kept])

    module.register_state_dict_post_hook(drop_copies)
    module.register_load_state_dict_pre_hook(restore_copies)
