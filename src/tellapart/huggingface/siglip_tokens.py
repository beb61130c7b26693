"""Tokenizers of SigLIP and SigLIP 2, cut and padded to all positions of the text tower.

The tokenizer of the first SigLIP removes case and punctuation, then uses a SentencePiece model, for which transformers
needs the package `sentencepiece`. Here it is rebuilt as a tokenizer of `tokenizers`, which needs no other package and
can be saved in a model folder. SigLIP 2 (with fixed resolution) already has such a tokenizer.
"""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import Any

from tellapart.errors import StoreError
from tellapart.huggingface.folders import check_folder, first_line, read_config, readable
from tellapart.huggingface.tokens import HuggingFaceTokens, read_tokenizer

UNIGRAM = 1  # the type of SigLIP's SentencePiece model


def siglip_tokens(folder: Path, size: int, positions: int) -> HuggingFaceTokens:
    """The tokens of a SigLIP; `tokenizer.encode` pads to all positions.

    Args:
        folder: folder of the model.
        size: number of tokens of the text tower.
        positions: number of positions of the text tower.

    Example:
        >>> tokens = siglip_tokens(folder, size=32000, positions=64)   # doctest: +SKIP
        >>> len(tokens.tokenizer.encode("A dog.").ids)                 # doctest: +SKIP
        64
    """
    from tokenizers import normalizers

    check_folder(folder)
    file = "tokenizer_config.json"
    settings = read_config(folder, file, "tokenizer configuration") if (folder / file).exists() else {}
    rebuilt = settings.get("tokenizer_class") == "SiglipTokenizer"
    with readable(f"{folder}: its tokenizer"):
        found = from_sentencepiece(folder / "spiece.model", settings) if rebuilt else read_tokenizer(folder)
    tokenizer, end, pad = found.backend_tokenizer, found.eos_token_id, found.pad_token_id
    if end is None or pad is None:
        missing = "end" if end is None else "padding"
        raise StoreError(f"{folder}: its tokenizer has no {missing} token; use the one the model was trained with")
    if settings.get("do_lower_case") and not rebuilt:
        # SigLIP 2 was trained on lower case. Its tokenizer has that setting, but transformers ignores it.
        after = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *after])
    tokenizer.enable_truncation(max_length=positions)
    tokenizer.enable_padding(direction=found.padding_side, pad_id=pad, pad_token=found.pad_token, length=positions)
    # There is no start token; the end token is used instead.
    return HuggingFaceTokens(tokenizer, size, end, end, pad, found.unk_token_id, max_words=positions - 1)


def from_sentencepiece(path: Path, settings: dict[str, Any]) -> Any:
    """Rebuild transformers' `SiglipTokenizer` as a tokenizer of `tokenizers`.

    They differ only on captions that contain a special token, such as `</s>`.

    Args:
        path: the SentencePiece model.
        settings: content of `tokenizer_config.json`.
    """
    import transformers
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    proto = _read_sentencepiece(path)
    pieces, spec = [(piece.piece, piece.score) for piece in proto.pieces], proto.trainer_spec
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=spec.unk_id, byte_fallback=spec.byte_fallback))
    characters = proto.normalizer_spec.precompiled_charsmap
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace("▁", " "),
            *([normalizers.Lowercase()] if settings.get("do_lower_case", True) else []),
            normalizers.Replace(Regex(f"[{re.escape(string.punctuation)}]"), ""),
            *([normalizers.Precompiled(characters)] if characters else []),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = {
        key: token["content"] if isinstance(token, dict) else token
        for key, default in (("eos_token", "</s>"), ("pad_token", "</s>"), ("unk_token", "<unk>"))
        if (token := settings.get(key, default)) is not None
    }
    wrapper: Any = transformers.PreTrainedTokenizerFast
    found = wrapper(tokenizer_object=tokenizer, **special)
    end = found.eos_token
    if end is not None:
        found.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", special_tokens=[(end, found.eos_token_id)]
        )
    return found


def _read_sentencepiece(path: Path) -> Any:
    from transformers.convert_slow_tokenizer import import_protobuf as not_typed

    if not path.exists():
        raise StoreError(f"{path.parent}: {path.name} is missing, which its tokenizer needs; get it with the model")
    import_protobuf: Any = not_typed
    model = import_protobuf().ModelProto
    try:
        proto = model.FromString(path.read_bytes())
    except Exception as error:  # the type depends on the version of protobuf
        raise StoreError(f"{path}: not a SentencePiece model ({first_line(error)}); get the model again") from None
    if proto.trainer_spec.model_type != UNIGRAM or not proto.pieces:
        raise StoreError(f"{path}: not a unigram model, as SigLIP needs; get the model again")
    return proto
