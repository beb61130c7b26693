"""Training on the captions that cross-fitted retrievers find generic, or specific (D⁻ and D⁺ of UNKT)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tellapart import assembling
from tellapart.data.batches import BatchSource
from tellapart.evaluation import retrieval_entropy as entropy_module
from tellapart.evaluation.retrieval_entropy import retrieval_entropy
from tellapart.models import Model
from tellapart.run import Run, open_run
from tellapart.training import resume, train

DATA = {"source": "scenes", "scenes": {"train": 10, "val": 4, "test": 3}, "min_count": 1}
TRAINING = {"steps": 2, "images_per_batch": 4, "validate_every": 2, "log_every": 1}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generic")
    captioner = {"name": "neuraltalk", "hidden": 8, "embedding": 8}
    common: dict[str, Any] = {"data": {**DATA, "prepared": str(folder / "prepared")}, "training": TRAINING}
    likelihood = {"captioner": captioner, "objective": {"name": "likelihood"}, **common}
    retriever = {"name": "ranking", "words": 8, "hidden": 8, "embedding": 8}
    recipes = {
        "ranking": {"retriever": retriever, "objective": {"name": "ranking-hinge", "negatives": 2}, **common},
        "mle": likelihood,
        "generic": {
            **likelihood,
            "data": {**common["data"], "captions": "generic"},
            "roles": {"entropy": {"from": "ranking.yaml"}},
        },
        "student": {
            "start": {"from": "mle.yaml"},
            "roles": {"negative_teacher": {"from": "generic.yaml"}, "entropy": {"from": "ranking.yaml"}},
            "objective": {
                "name": "negative-teacher",
                "prediction": "random",
                "self_attention": False,
                "cross_attention": False,
            },
            "negatives": {"by": "generic", "hard": 1.0, "ramp_epochs": 0},
            "training": TRAINING,
        },
    }
    for name, content in recipes.items():
        (folder / f"{name}.yaml").write_text(json.dumps({"name": name, **content}))
    return folder


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[BatchSource]:
    """The training batches of each training, in order."""
    found: list[BatchSource] = []
    assemble = assembling.assemble

    def watch(*arguments: Any, **options: Any) -> Any:
        objective, made = assemble(*arguments, **options)
        found.append(made["train"])
        return objective, made

    monkeypatch.setattr(assembling, "assemble", watch)
    return found


def captions_by_entropy(run: Run) -> tuple[list[str], list[str]]:
    """The generic and the specific half of the training captions, each compared with those of the same judge."""
    judges = run.recipe.roles["entropy"].places
    found = retrieval_entropy([open_run(place) for place in judges], run.recipe.data, "train")
    assert found.cross_fitted
    order = np.argsort(found.percentiles(), kind="stable")
    middle = len(order) - round(0.5 * len(order))
    return tuple([found.gallery.captions[place] for place in sorted(part)] for part in (order[middle:], order[:middle]))  # type: ignore[return-value]


def test_generic_and_specific_halves(place: Path, tmp_path: Path, sources: list[BatchSource]) -> None:
    generic = open_run(train(place / "generic.yaml", runs=tmp_path).folder)
    assert len(list(tmp_path.glob("ranking-*"))) == 2, "a retriever for each half of the images"
    expected = captions_by_entropy(generic)
    assert sources[-1].pool.captions == expected[0]
    train(place / "generic.yaml", "data.captions=specific", runs=tmp_path)
    assert sources[-1].pool.captions == expected[1]
    assert len(list(tmp_path.glob("ranking-*"))) == 2, "found again"
    assert len(list(tmp_path.glob("generic-*"))) == 2, "another selection is another run"
    # Words are those of all captions, so that a student can be compared word by word.
    mle = train(place / "mle.yaml", runs=tmp_path)
    model: Model = generic.model
    assert model.vocabulary.tokens == mle.model.vocabulary.tokens
    assert model.history["trained_on"].endswith(", the generic captions")
    assert resume(generic.folder).folder == generic.folder
    assert generic.data.dataset.digest == mle.data.dataset.digest


def test_a_model_folder_judges(
    place: Path, tmp_path: Path, sources: list[BatchSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One retriever for all captions, which nothing is written to; the run finds it again."""
    monkeypatch.setattr(entropy_module, "cache_folder", lambda: tmp_path / "cache")
    retriever = tmp_path / "retriever"
    train(place / "ranking.yaml", runs=tmp_path).retriever.save_pretrained(retriever)
    run = train(place / "generic.yaml", f"roles.entropy.from={retriever}", runs=tmp_path)
    assert not list(retriever.glob("*.npy"))
    found = retrieval_entropy([retriever], run.recipe.data, "train")
    middle = np.median(found.percentiles())
    chosen = [caption for place, caption in enumerate(found.gallery.captions) if found.percentiles()[place] > middle]
    assert set(chosen) <= set(sources[-1].pool.captions)
    assert len(sources[-1].pool.captions) == round(0.5 * len(found.entropies))
    assert resume(run.folder).folder == run.folder


def test_a_student_avoids_generic_captions(place: Path, tmp_path: Path, sources: list[BatchSource]) -> None:
    run = open_run(train(place / "student.yaml", runs=tmp_path).folder)
    source, (generic, _) = sources[-1], captions_by_entropy(run)
    batch = source.at(0)
    negatives = [batch.captions[row] for row in batch.pairs.caption_row[batch.pairs.kind == 1].tolist()]
    assert negatives
    assert set(negatives) <= set(generic)
    assert len(source.pool.captions) > len(generic), "it is trained on all captions"
    journal = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert {"nll", "prediction", "hidden", "lambda"} <= set(journal[-1])
