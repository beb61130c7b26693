"""Self-retrieval against a loop over all pairs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tellapart.captioners.adaptive import AdaptiveAttention
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset
from tellapart.evaluation import self_retrieval as module
from tellapart.evaluation.self_retrieval import log_prob_matrix, self_retrieval

Make = Callable[..., AdaptiveAttention]
CAPTIONS = ["a red house", "two", "a red house", "a blue car near a tree", "tree", "two", "a"]
ROWS = [3, 0, 5, 7, 11, 2, 9]


@pytest.mark.parametrize("blocks", [(1, 1), (2, 3), (32, 16)])
def test_equals_a_loop_over_pairs(
    blocks: tuple[int, int],
    tiny_data: tuple[Dataset, FeatureStore],
    make_captioner: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CAPTION_BLOCK", blocks[0])
    monkeypatch.setattr(module, "IMAGE_BLOCK", blocks[1])
    _, store = tiny_data
    model = make_captioner(seed=1)
    naive = np.empty((len(CAPTIONS), len(ROWS)))
    for i, caption in enumerate(CAPTIONS):
        for j, row in enumerate(ROWS):
            memory = model.encode(torch.from_numpy(store.grid([row])))
            naive[i, j] = model.log_prob(memory, model.tokenize([caption]), torch.tensor([0])).item()
    matrix = log_prob_matrix(model, store, ROWS, CAPTIONS)
    np.testing.assert_allclose(matrix, naive, atol=1e-5)
    found = self_retrieval(model, store, ROWS, CAPTIONS)
    ranks = [1 + sum(naive[i, j] >= naive[i, i] for j in range(len(ROWS)) if j != i) for i in range(len(ROWS))]
    assert found.ranks.tolist() == ranks
    assert found.first[:, 0].tolist() == naive.argmax(axis=1).tolist()
    assert found.summary().recalls[1] == pytest.approx(np.mean(np.array(ranks) == 1))


def test_equal_captions_are_scored_once(
    tiny_data: tuple[Dataset, FeatureStore], make_captioner: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_captioner(seed=1)
    scored = []
    real = model.log_prob

    def counting(memory: object, tokens: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        scored.append(len(tokens))
        return real(memory, tokens, images)

    monkeypatch.setattr(model, "log_prob", counting)
    log_prob_matrix(model, tiny_data[1], ROWS, CAPTIONS)
    assert sum(scored) == len(set(CAPTIONS)) * len(ROWS)


def test_images_that_look_the_same_count_against(make_captioner: Make, tiny_data: tuple[Dataset, FeatureStore]) -> None:
    _, store = tiny_data
    found = self_retrieval(make_captioner(), store, [4, 4, 4], ["a", "two", "red car"])
    assert found.ranks.tolist() == [3, 3, 3]
