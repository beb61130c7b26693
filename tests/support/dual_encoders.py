"""Tiny CLIPs and SigLIPs of transformers with random weights and their own tokenizers, as folders and as retrievers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from support.huggingface import CORPUS, tokenizers, transformers
from support.tiny import IDENTITY
from tellapart.data.settings import DataSettings
from tellapart.encoders import open_encoder
from tellapart.encoders.base import EncoderIdentity
from tellapart.huggingface.dual_encoders import DualEncoder
from tellapart.registry import find

SIZE, PATCH, WIDTH, POSITIONS = 16, 8, 12, 16
LAYERS = {"intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
# Kind of model -> its prefix in transformers, and its encoder; the retriever is `hf-KIND`.
KINDS = {"clip": ("CLIP", "clip-tokens"), "siglip": ("Siglip", "siglip")}
HALF = [0.5, 0.5, 0.5]
PREPROCESSOR = {"size": {"height": SIZE, "width": SIZE}, "resample": 2, "image_mean": HALF, "image_std": HALF}


def clip_tokenizer() -> Any:
    """As CLIP's: bytes in lower case, a start token, and an end token that is also the padding."""
    start, end = "<|startoftext|>", "<|endoftext|>"
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=end))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=320, special_tokens=[start, end], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{start} $A {end}", special_tokens=[(start, 0), (end, 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=start, eos_token=end, unk_token=end, pad_token=end
    )


def siglip_tokenizer() -> Any:
    """As SigLIP 2's, which is Gemma's: spaces are pieces, no start token, an end token, padding of its own."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = tokenizers.decoders.Replace("▁", " ")
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    tokenizer.train_from_iterator(CORPUS, tokenizers.trainers.BpeTrainer(vocab_size=70, special_tokens=special))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 1)]
    )
    names = dict(zip(("pad_token", "eos_token", "bos_token", "unk_token"), special, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, do_lower_case=True, **names)


def tokenizer_of(kind: str) -> Any:
    return clip_tokenizer() if kind == "clip" else siglip_tokenizer()


def config_of(kind: str, tokens: int, width: int = WIDTH) -> Any:
    vision = {**LAYERS, "hidden_size": width, "image_size": SIZE, "patch_size": PATCH}
    text = {**LAYERS, "hidden_size": 8, "vocab_size": tokens, "max_position_embeddings": POSITIONS}
    text |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    if kind == "clip":
        return transformers.CLIPConfig(vision_config=vision, text_config=text, projection_dim=10)
    return transformers.SiglipConfig(vision_config=vision, text_config={**text, "projection_size": width})


def make_random(model: torch.nn.Module) -> None:
    for parameter in model.parameters():  # as they are made, weights are small: all would look alike
        torch.nn.init.normal_(parameter, std=0.3)


def make_folder(folder: Path, kind: str, whole: bool = True) -> Path:
    """A tiny model with random weights, as transformers would save it; only its vision tower, if it is not `whole`."""
    torch.manual_seed(0)
    prefix, tokenizer = KINDS[kind][0], tokenizer_of(kind)
    config = config_of(kind, len(tokenizer))
    model = getattr(transformers, f"{prefix}Model" if whole else f"{prefix}VisionModel")(
        config if whole else config.vision_config
    )
    make_random(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return folder


def encoder_of(folder: Path, kind: str) -> Any:
    return open_encoder(f"{KINDS[kind][1]}:{folder}")


def make_retriever(folder: Path, kind: str, encoder: EncoderIdentity | None = None, **settings: Any) -> DualEncoder:
    """The retriever that a recipe would make of the model in this folder, in eval mode."""
    cls = find("retriever", f"hf-{kind}")
    encoder = encoder or encoder_of(folder, kind).identity
    retriever = cls.make(cls.Settings(**settings), [], DataSettings(source="scenes"), encoder)
    assert isinstance(retriever, DualEncoder)
    return retriever.eval()


def make_tiny(name: str, folder: Path, seed: int) -> Any:
    """A retriever of these names that reads the features of `support.tiny`; `folder` is for its tokenizer."""
    kind = name.removeprefix("hf-")
    tokenizer_of(kind).save_pretrained(folder)
    config = config_of(kind, 400, IDENTITY.width)
    cls = find("retriever", name)
    torch.manual_seed(seed)
    retriever = cls(cls.Settings(tune="all"), cls.tokens(folder, config), IDENTITY, config)
    make_random(retriever)
    return retriever.eval()
