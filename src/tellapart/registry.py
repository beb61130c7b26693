"""The registry: the name a recipe uses -> where its class lives.

A module is imported when its name is first looked up, so `tellapart --help` stays fast. To register an objective,
captioner, retriever or encoder, add one line here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tellapart.errors import RecipeError, did_you_mean

TABLE: dict[str, dict[str, str]] = {
    "encoder": {
        # The part of an encoder's name before '@' or ':'; see 'tellapart.encoders.open_encoder'.
        "efficientnet-lite0": "tellapart.encoders.efficientnet:EfficientNetLite",
        "efficientnet-lite2": "tellapart.encoders.efficientnet:EfficientNetLite",
        "clip-vit-b16": "tellapart.encoders.vit:ViT",
        "dinov2-small": "tellapart.encoders.vit:ViT",
        "clip": "tellapart.huggingface.towers:VisionTower",
        "clip-tokens": "tellapart.huggingface.towers:VisionTower",
        "siglip": "tellapart.huggingface.towers:VisionTower",
        "blip": "tellapart.huggingface.towers:CaptionerTower",
        "git": "tellapart.huggingface.towers:CaptionerTower",
        "encoder-decoder": "tellapart.huggingface.towers:CaptionerTower",
        "timm": "tellapart.encoders.timm:TimmModel",
    },
    "captioner": {
        "neuraltalk": "tellapart.captioners.neuraltalk:NeuralTalk",
        "adaptive-attention": "tellapart.captioners.adaptive:AdaptiveAttention",
        "updown": "tellapart.captioners.updown:UpDown",
        "transformer": "tellapart.captioners.transformer:Transformer",
        "meshed-memory": "tellapart.captioners.transformer:MeshedMemory",
        "hf-encoder-decoder": "tellapart.huggingface.captioners:EncoderDecoderCaptioner",
        "hf-blip": "tellapart.huggingface.captioners:BlipCaptioner",
        "hf-git": "tellapart.huggingface.captioners:GitCaptioner",
    },
    "retriever": {
        "ranking": "tellapart.retrievers.ranking:Ranking",
        "coder": "tellapart.retrievers.coder:Coder",
        "coder-transformer": "tellapart.huggingface.coder_transformer:CoderTransformer",
        "scan": "tellapart.retrievers.scan:Scan",
        "hf-clip": "tellapart.huggingface.dual_encoders:Clip",
        "hf-siglip": "tellapart.huggingface.dual_encoders:Siglip",
    },
    "objective": {
        "likelihood": "tellapart.objectives.likelihood:Likelihood",
        "contrastive": "tellapart.objectives.contrastive:Contrastive",
        "contrastive-pairwise": "tellapart.objectives.pairwise:Pairwise",
        "contrastive-difference": "tellapart.objectives.difference:Difference",
        "introspective": "tellapart.objectives.introspective:Introspective",
        "adversarial": "tellapart.objectives.adversarial:Adversarial",
        "self-critical": "tellapart.objectives.self_critical:SelfCritical",
        "specificity": "tellapart.objectives.specificity:Specificity",
        "negative-teacher": "tellapart.objectives.negative_teacher:NegativeTeacher",
        "ranking-hinge": "tellapart.objectives.ranking:RankingHinge",
        "coder": "tellapart.objectives.coder:CoderObjective",
        "composed": "tellapart.objectives.composed:Composed",
    },
}


def names(kind: str) -> list[str]:
    """The registered names of one kind, in table order."""
    return list(TABLE[kind])


def find(kind: str, name: str) -> Any:
    """The class registered under `name`; `kind` is encoder, captioner, retriever or objective.

    >>> find("objective", "contrastive").__name__
    'Contrastive'
    """
    try:
        location = TABLE[kind][name]
    except KeyError:
        raise RecipeError(f"there is no {kind} '{name}'{did_you_mean(name, TABLE[kind])}") from None
    module, _, attribute = location.partition(":")
    return getattr(import_module(module), attribute)
