"""Scores of all true pairs by the reference: equal however they are made, kept, continued, shared."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.close import assert_close
from support.tiny import make_data
from tellapart.captioners.base import Captioner
from tellapart.data.batches import BatchSource, Kind
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset
from tellapart.objectives import reference_scores as module
from tellapart.objectives.base import Processes, Progress, Roles, Start
from tellapart.objectives.composed import Composed, ComposedSettings
from tellapart.objectives.contrastive import Contrastive, ContrastiveSettings
from tellapart.objectives.pairwise import Pairwise, PairwiseSettings
from tellapart.objectives.reference_scores import reference_scores

Make = Callable[..., Any]
LONG = 1000


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six images in blocks of two, one image at once."""
    monkeypatch.setattr(module, "BLOCK", 2)
    monkeypatch.setattr(module, "AT_ONCE", 1)


def source_of(data: tuple[Dataset, FeatureStore] | None = None, **options: Any) -> BatchSource:
    return BatchSource(*(data or make_data()), "train", **{"images_per_batch": 4, "negatives": 3, **options})


def listen(reference: Captioner, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of captions in each call of the reference."""
    calls: list[int] = []
    log_prob = reference.log_prob

    def heard(memory: Any, tokens: torch.Tensor, *others: Any) -> torch.Tensor:
        calls.append(len(tokens))
        return log_prob(memory, tokens, *others)

    monkeypatch.setattr(reference, "log_prob", heard)
    return calls


def score(folder: Path | None = None, make_captioner: Make | None = None, **options: Any) -> torch.Tensor:
    assert make_captioner is not None
    return reference_scores(make_captioner(seed=2), source_of(**options), Processes(), folder)


def test_they_are_the_references_own(make_captioner: Make, tmp_path: Path) -> None:
    dataset, store = make_data()
    reference = make_captioner(seed=2)
    expected = [
        reference.log_prob(
            reference.encode(torch.from_numpy(store.grid([dataset.row(record.id)]))),
            reference.tokenize([caption]),
            torch.tensor([0]),
        )
        for record in dataset.split("train")
        for caption in record.captions
    ]
    assert_close(reference_scores(reference, source_of(), Processes(), tmp_path), torch.cat(expected), "scores")


def test_the_same_bits_with_other_batches_and_without_a_file(make_captioner: Make, tmp_path: Path) -> None:
    first = score(tmp_path, make_captioner)
    assert torch.equal(first, score(None, make_captioner))
    assert torch.equal(first, score(None, make_captioner, images_per_batch=3, captions_per_image=1, seed=5))


class Together(Processes):
    """One of several processes that are threads of this one."""

    def __init__(self, rank: int, shared: list[torch.Tensor | None], barrier: threading.Barrier) -> None:
        self.rank, self.world = rank, len(shared)
        self._shared, self._barrier = shared, barrier

    def gather(self, tensor: torch.Tensor, gradient: bool = False) -> torch.Tensor:
        self._shared[self.rank] = tensor
        self._barrier.wait(60)
        gathered = torch.cat([one for one in self._shared if one is not None])
        self._barrier.wait(60)
        return gathered


@pytest.mark.parametrize("world", [2, 5])
def test_several_processes_share_the_work(make_captioner: Make, tmp_path: Path, world: int) -> None:
    """More processes than blocks too; all have the bits of one process, and the file is the same."""
    expected = score(tmp_path / "one", make_captioner)
    shared: list[torch.Tensor | None] = [None] * world
    barrier = threading.Barrier(world)
    found: dict[int, torch.Tensor] = {}
    # Made one after the other: initial weights are drawn from torch's one generator.
    references = [make_captioner(seed=2) for _ in range(world)]

    def work(rank: int) -> None:
        source = source_of(rank=rank, world=world)
        found[rank] = reference_scores(references[rank], source, Together(rank, shared, barrier), tmp_path / "many")

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == world
    assert all(torch.equal(scores, expected) for scores in found.values())
    one, many = (next((tmp_path / name).glob("*.npy")) for name in ("one", "many"))
    assert one.name == many.name
    assert one.read_bytes() == many.read_bytes()


def test_an_interrupted_call_continues(make_captioner: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = score(None, make_captioner)
    shown: list[tuple[int, int]] = []

    def stop(done: int, of: int) -> None:
        shown.append((done, of))
        if len(shown) == 3:  # the beginning, and two of three blocks
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reference_scores(make_captioner(seed=2), source_of(), Processes(), tmp_path, stop)
    reference = make_captioner(seed=2)
    calls = listen(reference, monkeypatch)
    again: list[tuple[int, int]] = []
    found = reference_scores(reference, source_of(), Processes(), tmp_path, lambda *at: again.append(at))
    assert torch.equal(found, expected)
    assert [shown[-1], (len(expected), len(expected))] == again
    assert sum(calls) == len(expected) - shown[-1][0], "only the last block"


def test_a_damaged_file_is_scored_again(
    make_captioner: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = score(tmp_path, make_captioner)
    (path,) = tmp_path.glob("*.npy")
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    assert torch.equal(score(tmp_path, make_captioner), expected)
    assert "1 of 3 blocks are damaged; they are made again" in capsys.readouterr().err


def test_other_weights_captions_or_pictures_are_another_file(make_captioner: Make, tmp_path: Path) -> None:
    def files() -> int:
        return len(list(tmp_path.glob("true-pairs-*.npy")))

    dataset, store = make_data()
    score(tmp_path, make_captioner)
    score(tmp_path, make_captioner, images_per_batch=2)
    assert files() == 1
    reference_scores(make_captioner(seed=3), source_of(), Processes(), tmp_path)
    assert files() == 2
    records = [replace(record, captions=("a car", *record.captions[1:])) for record in dataset]
    changed = Dataset(dataset.name, dataset.root, tuple(records))
    score(tmp_path, make_captioner, data=(changed, FeatureStore(store._features, store.encoder, changed.digest)))
    assert files() == 3
    pictures = store.pictures.copy()
    pictures["content"][0] = 1
    score(
        tmp_path,
        make_captioner,
        data=(dataset, FeatureStore(store._features, store.encoder, store.records, pictures=pictures)),
    )
    assert files() == 4
    with torch.autocast("cpu", torch.bfloat16):
        score(tmp_path, make_captioner)
    assert files() == 5, "nor are scores of another precision taken"


def test_objectives_share_them(make_captioner: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of contrastive learning and of its variants, in trainings of their own; then nothing is scored in the steps."""
    folders = {"reference": tmp_path}
    shown: list[tuple[str, int, int]] = []

    def prepared(objective: Any) -> BatchSource:
        source = source_of()
        start = Start({"train": source}, LONG, folders, lambda *at: shown.append(at))
        objective.before_training(start)
        return source

    first = Contrastive(
        ContrastiveSettings(negatives=3), Roles(make_captioner(seed=1), reference=make_captioner(seed=2))
    )
    prepared(first)
    pairs = len(source_of().pool.captions)
    assert shown[0] == ("scoring true pairs (train)", 0, pairs)
    assert shown[-1] == ("scoring true pairs (train)", pairs, pairs)
    parts = {"likelihood": {}, "contrastive-pairwise": {"negatives": 3}}
    for make in (
        lambda roles: Pairwise(PairwiseSettings(negatives=3), roles),
        lambda roles: Composed(ComposedSettings(parts=parts), roles),
    ):
        reference = make_captioner(seed=2)
        calls = listen(reference, monkeypatch)
        objective = make(Roles(make_captioner(seed=1), reference=reference))
        source = prepared(objective)
        assert calls == []
        batch = source.at(0)
        objective(batch, Progress(0, LONG))
        assert sum(calls) == len(batch.pairs.of(Kind.NEGATIVE))


def test_a_training_of_one_epoch_scores_nothing_before(make_captioner: Make, tmp_path: Path) -> None:
    objective = Contrastive(
        ContrastiveSettings(negatives=3), Roles(make_captioner(seed=1), reference=make_captioner(seed=2))
    )
    source = source_of()
    objective.before_training(Start({"train": source}, len(source), {"reference": tmp_path}))
    assert not list(tmp_path.iterdir())
    objective.before_training(Start({"train": source}, len(source) + 1, {"reference": tmp_path}))
    (path,) = tmp_path.glob("*.npy")
    assert np.load(path).dtype == np.float32


def test_of_mirrored_pictures_there_are_scores_too(make_captioner: Make, tmp_path: Path) -> None:
    """A step has the same scores whether all true pairs are scored before it or not."""
    dataset, store = make_data()
    other = FeatureStore(-store._features, store.encoder, store.records)
    both = FeatureStore(store._features, store.encoder, store.records, mirrored=other)
    source = source_of((dataset, both), mirrored=True)
    roles = Roles(make_captioner(seed=1), reference=make_captioner(seed=2))
    objective = Contrastive(ContrastiveSettings(negatives=3), roles)
    objective.before_training(Start({"train": source}, LONG, {"reference": tmp_path}))
    assert len(list(tmp_path.glob("true-pairs-*.npy"))) == 2
    drawn = []
    for step in range(4):
        batch = source.at(step)
        assert batch.mirrored is not None
        drawn += batch.mirrored.tolist()
        known = objective._reference_positive(batch, Progress(0, LONG))
        assert_close(known, objective._reference_positive(batch, Progress(0, 1)), "scores")
    assert set(drawn) == {False, True}
