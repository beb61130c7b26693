"""One explicit table: the name a recipe uses -> where its class lives.

Nothing is imported until it is asked for, so `tellapart --help` stays instant and a name works whether or not
its module was imported before. A new objective, captioner or retriever is one line here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tellapart.errors import RecipeError, did_you_mean

TABLE: dict[str, dict[str, str]] = {
    "encoder": {
        # What stands before '@' or ':' in an encoder's name; 'tellapart.encoders.images.open_encoder' reads the rest.
        "efficientnet-lite0": "tellapart.encoders.efficientnet:EfficientNetLite",
        "efficientnet-lite2": "tellapart.encoders.efficientnet:EfficientNetLite",
        "clip": "tellapart.encoders.huggingface:VisionTower",
        "clip-tokens": "tellapart.encoders.huggingface:VisionTower",
        "siglip": "tellapart.encoders.huggingface:VisionTower",
        "blip": "tellapart.encoders.huggingface:CaptionerTower",
        "git": "tellapart.encoders.huggingface:CaptionerTower",
        "encoder-decoder": "tellapart.encoders.huggingface:CaptionerTower",
        "timm": "tellapart.encoders.timm:TimmModel",
    },
    "captioner": {
        "neuraltalk": "tellapart.captioners.neuraltalk:NeuralTalk",
        "adaptive-attention": "tellapart.captioners.adaptive:AdaptiveAttention",
        "updown": "tellapart.captioners.updown:UpDown",
        "transformer": "tellapart.captioners.transformer:Transformer",
        "meshed-memory": "tellapart.captioners.transformer:MeshedMemory",
        "hf-encoder-decoder": "tellapart.captioners.huggingface:EncoderDecoderCaptioner",
        "hf-blip": "tellapart.captioners.huggingface:BlipCaptioner",
        "hf-git": "tellapart.captioners.huggingface:GitCaptioner",
    },
    "retriever": {
        "ranking": "tellapart.retrievers.ranking:Ranking",
        "coder": "tellapart.retrievers.coder:Coder",
        "coder-transformer": "tellapart.retrievers.coder_transformer:CoderTransformer",
        "scan": "tellapart.retrievers.scan:Scan",
        "hf-clip": "tellapart.retrievers.huggingface:Clip",
        "hf-siglip": "tellapart.retrievers.huggingface:Siglip",
    },
    "objective": {
        "likelihood": "tellapart.objectives.likelihood:Likelihood",
        "contrastive": "tellapart.objectives.contrastive:Contrastive",
        "contrastive-pairwise": "tellapart.objectives.pairwise:Pairwise",
        "contrastive-difference": "tellapart.objectives.difference:Difference",
        "introspective": "tellapart.objectives.introspective:Introspective",
        "adversarial": "tellapart.objectives.adversarial:Adversarial",
        "ranking-hinge": "tellapart.objectives.ranking:RankingHinge",
        "coder": "tellapart.objectives.coder:Coder",
        "composed": "tellapart.objectives.composed:Composed",
    },
}


def names(kind: str) -> list[str]:
    """The registered names of one kind, in table order."""
    return list(TABLE[kind])


def find(kind: str, name: str) -> Any:
    """The class registered as `name` among the `kind`s.

    >>> find("objective", "contrastive").__name__
    'Contrastive'
    """
    try:
        location = TABLE[kind][name]
    except KeyError:
        raise RecipeError(f"there is no {kind} '{name}'{did_you_mean(name, TABLE[kind])}") from None
    module, _, attribute = location.partition(":")
    return getattr(import_module(module), attribute)
