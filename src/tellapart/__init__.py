"""tellapart: captions that tell your images apart.

The public names below are imported on first use, so that `import tellapart` and `tellapart --help` are instant.

Example:
    >>> import tellapart
    >>> print(tellapart.load().caption("photo.jpg"))                     # doctest: +SKIP
    a giraffe standing in the grass near a tree
    >>> run = tellapart.train("scenes/adaptive-cl.yaml")                 # doctest: +SKIP
    >>> tellapart.caption(["photo.jpg"], model=run.folder)               # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Caption": "tellapart.decoding.search",
    "Captioner": "tellapart.captioners.base",
    "Comparison": "tellapart.evaluation.compare",
    "Describer": "tellapart.describing",
    "Evaluation": "tellapart.evaluation.evaluate",
    "MomentumBank": "tellapart.objectives.memory",
    "Objective": "tellapart.objectives.base",
    "PhotoIndex": "tellapart.index.photos",
    "Recipe": "tellapart.recipe",
    "RetrievalEvaluation": "tellapart.evaluation.evaluate_retrieval",
    "Retriever": "tellapart.retrievers.base",
    "Run": "tellapart.run",
    "TellapartError": "tellapart.errors",
    "Vocabulary": "tellapart.text",
    "caption": "tellapart.captioning",
    "compare": "tellapart.evaluation.compare",
    "compare_retrieval": "tellapart.evaluation.evaluate_retrieval",
    "contrastive_loss": "tellapart.objectives.contrastive",
    "dcl_loss": "tellapart.objectives.diversity_contrast",
    "evaluate": "tellapart.evaluation.evaluate",
    "evaluate_people": "tellapart.evaluation.evaluate",
    "evaluate_retrieval": "tellapart.evaluation.evaluate_retrieval",
    "export": "tellapart.exporting",
    "load": "tellapart.describing",
    "load_captioner": "tellapart.captioners.base",
    "load_retriever": "tellapart.retrievers.base",
    "open_index": "tellapart.index.photos",
    "open_run": "tellapart.run",
    "pairwise_loss": "tellapart.objectives.pairwise",
    "prepare": "tellapart.data.prepare",
    "run_study": "tellapart.studies.run",
    "tell_apart": "tellapart.telling_apart.tell",
    "train": "tellapart.training",
    "write_gallery": "tellapart.pages.gallery",
    "write_report": "tellapart.pages.report",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name == "metrics":  # a package of pure functions: tellapart.metrics.evaluate(…)
        return import_module("tellapart.metrics")
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'tellapart' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
