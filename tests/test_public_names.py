"""The public names: a change here is a change of the API and belongs in the change log."""

from __future__ import annotations

import inspect

import pytest

import tellapart

NAMES = [
    "__version__",
    "Caption",
    "Captioner",
    "Comparison",
    "Describer",
    "Evaluation",
    "MomentumBank",
    "Objective",
    "PhotoIndex",
    "Recipe",
    "RetrievalEvaluation",
    "Retriever",
    "Run",
    "TellapartError",
    "Vocabulary",
    "caption",
    "compare",
    "compare_retrieval",
    "contrastive_loss",
    "dcl_loss",
    "evaluate",
    "evaluate_people",
    "evaluate_retrieval",
    "export",
    "load",
    "load_captioner",
    "load_retriever",
    "open_index",
    "open_run",
    "pairwise_loss",
    "prepare",
    "run_study",
    "tell_apart",
    "train",
    "write_gallery",
    "write_report",
]


def test_the_names_are_these() -> None:
    assert tellapart.__all__ == NAMES
    assert dir(tellapart) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES[1:])
def test_every_name_is_there_and_explained(name: str) -> None:
    found = getattr(tellapart, name)
    assert found.__name__ == name
    assert inspect.isclass(found) == name[0].isupper()
    assert inspect.getdoc(found), f"{name} has no docstring"


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'tellapart' has no attribute 'trian'"):
        _ = tellapart.trian  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="trian"):
        from tellapart import trian  # type: ignore[attr-defined]  # noqa: F401


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert tellapart.__version__ == version("tellapart")


def test_losses_and_metrics_need_two_lines() -> None:
    """No run, recipe or folder: the examples of the README."""
    import torch

    bank = tellapart.MomentumBank(capacity=4, width=2)
    assert bank.images.filled == 0
    same = torch.tensor([-9.0])
    assert tellapart.contrastive_loss(same, same, same[:, None], same[:, None]).item() == pytest.approx(
        1.3863, rel=1e-3
    )
    assert tellapart.pairwise_loss(same, same[:, None]).item() == pytest.approx(0.6931, rel=1e-3)
    cosines = torch.tensor([[0.5, 0.3], [0.3, 0.5]])
    loss = tellapart.dcl_loss(cosines.diagonal(), cosines, ~torch.eye(2, dtype=torch.bool))
    assert loss.tolist() == pytest.approx([-0.3362] * 2, rel=1e-3)
    scores = tellapart.metrics.evaluate({"1": ["A red car."]}, {"1": "a red car"}, metrics=["bleu"])
    assert scores.corpus["Bleu_1"] == pytest.approx(1.0)
