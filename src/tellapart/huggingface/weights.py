"""Which weights of a Hugging Face decoder are trained (LoRA) and which are saved (tied ones once)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from tellapart.errors import MissingExtraError, RecipeError

if TYPE_CHECKING:
    from tellapart.huggingface.captioners import HuggingFaceCaptioner, HuggingFaceSettings

# What the projections of attention are called in transformers; nothing else has these names.
PROJECTIONS = ("query", "key", "value", "q_proj", "k_proj", "v_proj", "c_attn", "q_attn")


def add_lora(captioner: HuggingFaceCaptioner, settings: HuggingFaceSettings) -> None:
    """Put LoRA (Hu et al. 2022) on the projections of the decoder's attention; nothing else is trained then."""
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
        fan_in_fan_out=not any(isinstance(part, nn.Linear) for part in found.values()),  # GPT-2's own kind of layer
    )
    inject_adapter_in_model(config, captioner.decoder)
    for name, parameter in captioner.named_parameters():
        parameter.requires_grad_("lora_" in name)


def save_tied_weights_once(module: Any) -> None:
    """Leave the second names of weights that several layers share out of the state: safetensors has no such thing."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied[name] = first[id(parameter)]
        first.setdefault(id(parameter), name)

    def leave_out(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
        for name in tied:
            state.pop(prefix + name, None)

    def bring_back(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
        for name, kept in tied.items():
            if prefix + kept in state:
                state.setdefault(prefix + name, state[prefix + kept])

    module.register_state_dict_post_hook(leave_out)
    module.register_load_state_dict_pre_hook(bring_back)
