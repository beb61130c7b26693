"""Is the concept branch of CODER alive at its first step? Concepts per query, and gradients of both branches.

    python benchmarks/concept_branch.py flickr8k/coder.yaml data.source=PATH --smoothness 1 3 10
    python benchmarks/concept_branch.py flickr8k/coder.yaml data.source=PATH retriever.literal_concepts=true

For each λ (`retriever.smoothness`), with fresh weights on a few training images: the perplexity of the attention a
over the concepts (of images and of texts), the mean and the deviation of S_C over all pairs, and the norm of the
gradient that L_DCL^I and L_DCL^C give to the layers that read regions and words.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from tellapart.data.batches import BatchSource
from tellapart.data.prepare import prepare
from tellapart.objectives.base import Progress, Roles
from tellapart.objectives.coder import CoderObjective
from tellapart.recipe import Recipe
from tellapart.retrievers.two_branches import TwoBranches


def perplexity(model: TwoBranches, queries: list[torch.Tensor], name: str) -> float:
    attention = getattr(model, name).attention(torch.cat(queries), model.graph())
    entropy = -(attention * attention.clamp(min=1e-12).log()).sum(dim=1)
    return float(entropy.exp().mean())


def measure(objective: CoderObjective, source: BatchSource, batches: int) -> dict[str, float]:
    model: Any = objective.target
    heard: dict[str, list[torch.Tensor]] = {"ask_image": [], "ask_text": []}
    hooks = [
        getattr(model, name).register_forward_pre_hook(
            lambda module, given, name=name: heard[name].append(given[0].detach())
        )
        for name in heard
    ]
    objective.eval()  # without dropped regions and words
    norms: dict[str, float] = {}
    trunk = [p for n, p in model.named_parameters() if n.split(".")[0] in TRUNK]
    similarities = []
    for number in range(batches):
        batch = source.at(number)
        totals = objective(batch, Progress(0, 1))
        for name in ("instance", "concept"):
            loss = totals[name].sum / totals[name].count
            found = torch.autograd.grad(loss, trunk, retain_graph=True, allow_unused=True)
            norm = sum(float(gradient.square().sum()) for gradient in found if gradient is not None) ** 0.5
            norms[name] = norms.get(name, 0.0) + norm / batches
        with torch.no_grad():
            images = model.branches(model.embed_images(batch.features[model.encoder.name]))[1]
            similarities.append((images @ model.branches(model.embed_texts(batch.captions))[1].t()).flatten())
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        together = torch.cat(similarities)
        return {
            "concepts of an image": perplexity(model, heard["ask_image"], "ask_image"),
            "concepts of a text": perplexity(model, heard["ask_text"], "ask_text"),
            "mean S_C": float(together.mean()),
            "SD of S_C": float(together.std()),
            "gradient, instance": norms["instance"],
            "gradient, concept": norms["concept"],
        }


# The layers before the pooling, of either branch, and those that they share.
TRUNK = ("normalise", "region", "detail", "concept_region", "concept_detail", "word", "sentence", "concept_words")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--smoothness", nargs="+", type=float, default=[10.0, 30.0, 100.0, 300.0])
    parser.add_argument("--images", type=int, default=512)
    given = parser.parse_args()
    torch.manual_seed(0)
    recipe = Recipe.load(given.recipe, given.overrides)
    prepared = prepare(recipe.data)
    source = BatchSource(prepared.dataset, prepared.store, "train", 128, captions_per_image=1)
    captions = [caption for record in prepared.dataset.split("train") for caption in record.captions]
    cls, settings = recipe.component("retriever")
    model = cls.make(settings, captions, recipe.data, prepared.store.encoder)
    chosen = CoderObjective.Settings(**{"loss": "dcl", "positive_weight": recipe.objective.get("positive_weight", 1.0)})
    objective = CoderObjective(chosen, Roles(model))
    for smoothness in given.smoothness:
        model.ask_image.smoothness = model.ask_text.smoothness = smoothness
        found = measure(objective, source, max(1, given.images // 128))
        print(f"λ = {smoothness:g}: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
