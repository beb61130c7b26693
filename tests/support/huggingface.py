"""Tiny captioners and encoders of texts with random weights and their own tokenizers; nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.tiny import WORDS
from tellapart.data.settings import DataSettings
from tellapart.encoders import open_encoder
from tellapart.huggingface.captioners import HuggingFaceCaptioner, HuggingFaceSettings
from tellapart.huggingface.tokens import HuggingFaceTokens
from tellapart.huggingface.towers import CaptionerTower
from tellapart.registry import find

# Test modules that import this one are skipped without them.
transformers = pytest.importorskip("transformers", reason="transformers is in the extra 'hf'")
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is in the extra 'hf'")

SIZE, PATCH, WIDTH = 16, 8, 12
CORPUS = [
    "a red house near a tree",
    "two blue cars",
    "a dog runs on the beach",
    "the dog's red ball",
    "a house, a car.",
]
VISION = {
    "hidden_size": WIDTH,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIZE,
    "patch_size": PATCH,
}
TEXT = {
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 24,
}
# Kinds of models -> family (the encoder's, and after `hf-` the captioner's).
KINDS = {
    "gpt2": "encoder-decoder",
    "bert": "encoder-decoder",
    "roberta": "encoder-decoder",
    "blip": "blip",
    "git": "git",
}


def word_pieces(corpus: list[str] = CORPUS, size: int = 60) -> Any:
    """As BERT's: lower case, pieces with `##`; special tokens in the middle, where real tokenizers have them too."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece(prefix="##")
    special = ["[unused0]", "[UNK]", "[PAD]", "[unused1]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(corpus, tokenizers.trainers.WordPieceTrainer(vocab_size=size, special_tokens=special))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def byte_pairs(corpus: list[str] = CORPUS, size: int = 300) -> Any:
    """As GPT-2's: bytes, and one special token for everything."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(corpus, trainer)
    end = "<|endoftext|>"
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=end, eos_token=end, unk_token=end)


def whole(kind: str, tokenizer: Any, **text: Any) -> Any:
    """A model of transformers with its vision tower."""
    ids = {"pad_token_id": tokenizer.pad_token_id}
    start = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    text = {**TEXT, "vocab_size": len(tokenizer) + 2, **text}  # as where the number of tokens was rounded up
    if kind == "git":
        return transformers.GitForCausalLM(transformers.GitConfig(vision_config=VISION, **text, **start, **ids))
    if kind == "blip":
        ends = {"bos_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id, "eos_token_id": 0}
        config = transformers.BlipConfig(
            vision_config=VISION, text_config={**text, "encoder_hidden_size": WIDTH, **ends, **ids}
        )
        return transformers.BlipForConditionalGeneration(config)
    across = {"is_decoder": True, "add_cross_attention": True}
    if kind == "bart":  # which is not known
        decoder = transformers.BartConfig(d_model=16, vocab_size=text["vocab_size"], **across)
    elif kind == "bert":
        decoder = transformers.BertConfig(**{**text, "hidden_size": WIDTH}, **across, **ids)
    elif kind == "roberta":
        decoder = transformers.RobertaConfig(**text, **across, **ids)
    else:
        del text["intermediate_size"]
        end = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
        decoder = transformers.GPT2Config(**text, **across, **end)
    vision = transformers.ViTConfig(**VISION)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, decoder)
    if kind == "gpt2":
        config.decoder_start_token_id = config.eos_token_id = tokenizer.eos_token_id
    else:
        config.decoder_start_token_id, config.eos_token_id = tokenizer.cls_token_id, tokenizer.sep_token_id
    return transformers.VisionEncoderDecoderModel(config)


def make_folder(folder: Path, kind: str, seed: int = 0, tokenizer: Any = None, **text: Any) -> Path:
    """Such a model with random weights, saved as transformers does."""
    tokenizer = tokenizer or (byte_pairs() if kind == "gpt2" else word_pieces())
    torch.manual_seed(seed)
    model = whole(kind, tokenizer, **text)
    for parameter in model.parameters():  # as they are made, weights are small and biases zero: all would look alike
        torch.nn.init.normal_(parameter, std=0.3)
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.weight.data += 1
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    half = [0.5, 0.5, 0.5]
    settings = {"size": {"height": SIZE, "width": SIZE}, "resample": 2, "image_mean": half, "image_std": half}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


# --- encoders of texts ------------------------------------------------------------------------------------------------


def text_tokenizer() -> Any:
    """As BERT's, with a list of pieces that is always the same; "cars" are two of them."""
    special = ["[unused0]", "[PAD]", "[CLS]", "[unused1]", "[SEP]", "[UNK]", "[MASK]"]
    pieces = {piece: number for number, piece in enumerate([*special, *WORDS, "##s", ".", "dog", "run"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece(prefix="##")
    ends = [(token, pieces[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.enable_padding(length=20, pad_id=pieces["[PAD]"])  # as MiniLM's is stored
    tokenizer.enable_truncation(20)
    names = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}
    tokens = {f"{name}_token": token for name, token in names.items()}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens)


def text_tokens() -> HuggingFaceTokens:
    found = text_tokenizer()
    special = (found.cls_token_id, found.sep_token_id, found.pad_token_id, found.unk_token_id)
    tokens = HuggingFaceTokens(found.backend_tokenizer, len(found) + 2, *special)
    tokens.tokenizer.no_padding()
    tokens.tokenizer.no_truncation()
    return tokens


def text_network(kind: str) -> Any:
    """An encoder of texts for that tokenizer, from torch's random numbers; without dropout."""
    tokenizer = text_tokenizer()
    tokens = {"vocab_size": len(tokenizer) + 2, "pad_token_id": tokenizer.pad_token_id}
    without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if kind == "distilbert":
        config = transformers.DistilBertConfig(
            dim=16, hidden_dim=20, n_layers=2, n_heads=4, max_position_embeddings=24, **tokens
        )
    elif kind == "electra":
        config = transformers.ElectraConfig(embedding_size=12, **TEXT, **tokens, **without)
    else:
        name = {"bert": "BertConfig", "mpnet": "MPNetConfig", "roberta": "RobertaConfig"}[kind]
        config = getattr(transformers, name)(**TEXT, **tokens, **without)
    network = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for parameter in network.parameters():  # as they are made, weights are small: all captions would look alike
            parameter.normal_(std=0.3)
        for module in network.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight += 1
    return network


def text_folder(folder: Path, kind: str = "bert", seed: int = 0) -> Path:
    """Such an encoder and its tokenizer, saved as transformers does."""
    torch.manual_seed(seed)
    text_network(kind).save_pretrained(folder)
    text_tokenizer().save_pretrained(folder)
    return folder


# --- captioners -------------------------------------------------------------------------------------------------------


def open_tower(folder: Path, kind: str) -> CaptionerTower:
    tower = open_encoder(f"{KINDS[kind]}:{folder}")
    assert isinstance(tower, CaptionerTower)
    return tower


def make_captioner(folder: Path, kind: str, **settings: Any) -> HuggingFaceCaptioner:
    """The captioner that a recipe would make of the model in this folder, in eval mode."""
    cls = find("captioner", f"hf-{KINDS[kind]}")
    chosen = HuggingFaceSettings(model=str(folder), **settings)
    captioner = cls.make(chosen, [], DataSettings(source="scenes"), open_tower(folder, kind).identity)
    assert isinstance(captioner, HuggingFaceCaptioner)
    return captioner.eval()
