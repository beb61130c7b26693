"""What objectives against a reference share: who is asked how often, what is left out, what is logged."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.tiny import IDENTITY, WORDS
from tellapart.captioners.base import Captioner
from tellapart.data.batches import Batch, BatchSource, Kind
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset
from tellapart.objectives.base import Objective, Progress, Roles
from tellapart.objectives.composed import Composed, ComposedSettings
from tellapart.objectives.contrastive import Contrastive, ContrastiveSettings, contrastive_loss
from tellapart.objectives.difference import Difference, DifferenceSettings
from tellapart.objectives.pairwise import Pairwise, PairwiseSettings
from tellapart.objectives.reference import EDGES, PairLogProbs, comparable, log_ratio_figures
from tellapart.text import END, Vocabulary

Make = Callable[..., Any]
Data = tuple[Dataset, FeatureStore]
LONG = Progress(0, 1000)


def source_of(data: Data, **options: Any) -> BatchSource:
    return BatchSource(*data, "train", **{"images_per_batch": 4, "negatives": 3, **options})


def listen(reference: Captioner, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of captions in each call of the reference."""
    calls: list[int] = []
    log_prob = reference.log_prob

    def heard(memory: Any, tokens: torch.Tensor, *others: Any) -> torch.Tensor:
        calls.append(len(tokens))
        return log_prob(memory, tokens, *others)

    monkeypatch.setattr(reference, "log_prob", heard)
    return calls


# --- the reference is asked once ------------------------------------------------------------------------------------


def test_the_reference_scores_true_pairs_once_per_run(
    tiny_data: Data, make_captioner: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, reference = make_captioner(seed=1), make_captioner(seed=2)
    calls = listen(reference, monkeypatch)
    source = source_of(tiny_data)
    objective = Contrastive(ContrastiveSettings(negatives=3), Roles(target, reference=reference))
    negatives = 0
    for step in range(3 * len(source)):
        batch = source.at(step)
        objective(batch, LONG)
        negatives += len(batch.pairs.of(Kind.NEGATIVE))
    assert sum(calls) == len(source.pool.captions) + negatives


def test_in_one_epoch_the_reference_scores_each_batch(
    tiny_data: Data, make_captioner: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No true pair comes twice: scoring all of them first would be for nothing."""
    reference = make_captioner(seed=2)
    calls = listen(reference, monkeypatch)
    source = source_of(tiny_data, captions_per_image=1)
    objective = Contrastive(ContrastiveSettings(negatives=3), Roles(make_captioner(seed=1), reference=reference))
    batches = [source.at(step) for step in range(len(source))]
    for batch in batches:
        objective(batch, Progress(0, len(source)))
    assert sum(calls) == sum(len(batch.pairs) for batch in batches)


def test_stored_scores_equal_the_reference(tiny_data: Data, make_captioner: Make) -> None:
    """Also of captions that are drawn, in another order than that of the records, and shared by two objectives."""
    target, reference = make_captioner(seed=1), make_captioner(seed=2)
    source = source_of(tiny_data, captions_per_image=2, seed=4)
    objectives: list[Objective] = [
        Contrastive(ContrastiveSettings(negatives=3), Roles(target, reference=reference)),
        Pairwise(PairwiseSettings(negatives=3), Roles(target, reference=reference)),
        Difference(DifferenceSettings(negatives=3), Roles(target, reference=reference)),
    ]
    for step in range(2 * len(source)):
        for objective in objectives:
            known = objective(source.at(step), LONG)
            asked = objective(source.at(step), Progress(0, 1))
            assert known.keys() == asked.keys()
            for name in known:
                # Differences of ln p that are ten times as large.
                torch.testing.assert_close(known[name].sum, asked[name].sum, atol=2e-4, rtol=1e-5)
    assert len(source._memo) == 1


def test_composed_parts_share_the_reference_scores(
    tiny_data: Data, make_captioner: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = make_captioner(seed=2)
    calls = listen(reference, monkeypatch)
    parts: dict[str, dict[str, Any]] = {
        "contrastive": {"negatives": 3},
        "contrastive-pairwise": {"negatives": 2},
        "introspective": {},
    }
    objective = Composed(ComposedSettings(parts=parts), Roles(make_captioner(seed=1), reference=reference))
    source = source_of(tiny_data)
    batch = source.at(0)
    totals = objective(batch, LONG)
    assert sum(calls) == len(source.pool.captions) + len(batch.pairs.of(Kind.NEGATIVE))
    assert {"contrastive/loss", "contrastive-pairwise/loss", "introspective/loss"} <= totals.keys()


# --- other vocabularies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "caption", "expected"),
    [
        (Vocabulary(WORDS), Vocabulary(WORDS), "a purple house", True),  # unknown to both alike, as in the paper
        (Vocabulary(WORDS), Vocabulary(WORDS[::-1]), "a red house", True),
        (Vocabulary(WORDS), Vocabulary(WORDS[::-1]), "a purple house", False),
        (Vocabulary(WORDS), Vocabulary(WORDS[:2]), "a red house", False),
        (Vocabulary(WORDS[:2]), Vocabulary(WORDS), "a red house", False),
        (Vocabulary(WORDS, max_words=2), Vocabulary(WORDS), "a red house", False),  # one reads less of it
        (Vocabulary(WORDS, max_words=3), Vocabulary(WORDS), "a red house", True),
        (Vocabulary(["a", "7"]), Vocabulary(["a", "7"], normaliser="alphabetic"), "a 7", False),
    ],
)
def test_comparable(one: Vocabulary, other: Vocabulary, caption: str, expected: bool) -> None:
    test = comparable(one, other)
    assert [test(caption), test(caption)] == [expected, expected]


class Pieces(Vocabulary):
    """Reads letters."""

    def encode(self, sentence: str) -> list[int]:
        return [4 + ord(letter) % 26 for letter in sentence[: self.max_words]] + [END]


def test_of_pieces_of_words_what_may_be_cut_is_left_out() -> None:
    words, pieces = Vocabulary(WORDS, max_words=3), Pieces([f"{n}" for n in range(26)], max_words=12)
    for test in (comparable(words, pieces), comparable(pieces, words)):
        assert test("a house")
        assert not test("a purple car"), "unknown to one"
        assert not test("two red cars near"), "more letters than the pieces take"
        assert not test("a red car"), "as many words as the words take, perhaps more"
    assert comparable(pieces, Pieces(pieces.tokens[4:], max_words=12))("anything at all, cut alike")


def test_cross_vocabulary_scores_have_both_end_tokens(tiny_data: Data, make_captioner: Make) -> None:
    """ln p of both models by hand, token by token through `step`, and the loss of all that both know."""
    target = make_captioner(seed=1)
    reference = make_captioner(seed=2, words=Vocabulary([*WORDS[:-1][::-1], "green"]), name="neuraltalk")
    source = source_of(tiny_data, images_per_batch=6)
    batch = source.at(0)
    totals = Contrastive(ContrastiveSettings(negatives=3), Roles(target, reference=reference))(batch, LONG)

    def by_hand(model: Captioner, pair: int) -> torch.Tensor:
        memory = model.encode(batch.features["tiny"][batch.pairs.image_row[pair]][None])
        state, token, total = model.start(memory, torch.tensor([0])), 1, torch.zeros(())
        said = batch.captions[batch.pairs.caption_row[pair]].split()
        for word in [*said, "<end>"]:
            log_probs, state = model.step(state, torch.tensor([token]))
            token = model.vocabulary.tokens.index(word)
            total = total + log_probs[0, token]
        return total

    def knows(pair: int) -> bool:
        return "two" not in batch.captions[batch.pairs.caption_row[pair]].split()

    positives = batch.pairs.of(Kind.POSITIVE).tolist()
    negatives = batch.pairs.of(Kind.NEGATIVE).view(len(positives), 3).tolist()
    rows, left_out = [], 0
    for positive, others in zip(positives, negatives, strict=True):
        kept = [pair for pair in others if knows(pair)]
        left_out += 3 - len(kept) + (not knows(positive))
        if knows(positive) and kept:
            values = [[by_hand(model, pair) for pair in (positive, *kept)] for model in (target, reference)]
            (first, *mine), (second, *theirs) = values
            tables = (torch.stack(mine)[None], torch.stack(theirs)[None])
            rows.append(contrastive_loss(first[None], second[None], *tables))
    assert 0 < len(rows) < len(positives)
    assert totals["loss"].count == len(rows)
    assert (totals["left_out"].sum, totals["left_out"].count) == (left_out, 4 * len(positives))
    expected = torch.stack(rows).sum()
    torch.testing.assert_close(totals["loss"].sum, expected, atol=1e-4, rtol=1e-5)
    parameters = list(target.parameters())
    found, wanted = (torch.autograd.grad(loss, parameters) for loss in (totals["loss"].sum, expected))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_nothing_at_all_in_common(tiny_data: Data, make_captioner: Make) -> None:
    objective = Contrastive(
        ContrastiveSettings(), Roles(make_captioner(seed=1), reference=make_captioner(words=Vocabulary(["other"])))
    )
    totals = objective(source_of(tiny_data, negatives=5).at(0), LONG)
    assert totals["loss"].count == 0
    assert totals["loss"].sum == 0
    assert totals["left_out"].sum == totals["left_out"].count > 0
    assert all(torch.isfinite(total.sum) for total in totals.values())


# --- what is logged -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nu", [1.0, 2.5])
def test_figures_equal_a_naive_loop(nu: float) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(9,), (9,), (9, 4), (9, 4)]
    given = [-20 + 6 * torch.randn(shape, generator=generator) for shape in shapes]
    kept = torch.rand(9, 4, generator=generator) < 0.7
    kept[:, 0] = True
    figures = log_ratio_figures(PairLogProbs(*given, kept), nu)

    positive = [float(given[0][t] - given[1][t]) for t in range(9)]
    negative = [[float(given[2][t, k] - given[3][t, k]) for k in range(4) if kept[t, k]] for t in range(9)]
    apart = [ratio < positive[t] for t in range(9) for ratio in negative[t]]
    assert (figures["told_apart"].sum, figures["told_apart"].count) == (sum(apart), len(apart))
    for kind, ratios in (("positive", positive), ("negative", [ratio for row in negative for ratio in row])):
        h = [1 / (1 + nu * math.exp(-ratio)) for ratio in ratios]
        kinds: Counter[str] = Counter()
        for value in h:
            right = value if kind == "positive" else 1 - value
            kinds["easy" if right >= 0.9 else "mistaken" if right < 0.5 else "hard"] += 1
        assert {figure.count for name, figure in figures.items() if kind in name} == {len(ratios)}
        assert figures[f"log_ratio_{kind}"].sum.item() == pytest.approx(sum(ratios), rel=1e-5)
        assert figures[f"h_{kind}"].sum.item() == pytest.approx(sum(h), rel=1e-5)
        for name in ("easy", "hard", "mistaken"):
            assert figures[f"{name}_{kind}"].sum == kinds[name]
        edges = [-math.inf, *EDGES, math.inf]
        for low, high in itertools.pairwise(edges):
            expected = sum(low <= ratio < high for ratio in ratios)
            assert figures[f"G_{kind}_bin_{low}"].sum == expected, (kind, low)


def test_at_the_start_all_pairs_are_hard(tiny_data: Data, make_captioner: Make) -> None:
    """Identical models: G = 0 and h = 1/2 everywhere, the loss is 2 ln 2, and its gradient is not zero."""
    target, reference = make_captioner(seed=1), make_captioner(seed=1)
    objective = Contrastive(ContrastiveSettings(negatives=3), Roles(target, reference=reference))
    totals = objective(source_of(tiny_data).at(0), Progress(0, 1))
    figures = {name: (total.sum / total.count).item() for name, total in totals.items()}
    assert figures["loss"] == pytest.approx(2 * math.log(2), abs=1e-5)
    assert figures["h_positive"] == pytest.approx(0.5, abs=1e-5)
    assert figures["easy_positive"] == figures["easy_negative"] == figures["left_out"] == 0
    totals["loss"].sum.backward()
    assert max(p.grad.abs().max().item() for p in target.parameters() if p.grad is not None) > 1e-3


def test_an_empty_share(make_captioner: Make, tiny_data: Data) -> None:
    source = source_of(tiny_data, world=5, rank=4)
    empty = source.at(len(source) - 1)
    assert not empty.ids
    for objective in (
        Contrastive(ContrastiveSettings(negatives=3), Roles(make_captioner(), reference=make_captioner())),
        Pairwise(PairwiseSettings(negatives=3), Roles(make_captioner(), reference=make_captioner())),
        Difference(DifferenceSettings(negatives=3), Roles(make_captioner(), reference=make_captioner())),
    ):
        full = objective(source_of(tiny_data).at(0), Progress(0, 1))
        totals = objective(empty, Progress(0, 1))
        assert totals.keys() == full.keys()
        assert all(total.count == 0 and total.sum == 0 for total in totals.values())


# --- where it comes from --------------------------------------------------------------------------------------------


def test_positives_are_all_captions_in_the_order_of_their_places(tiny_data: Data) -> None:
    """Whatever is drawn, and dealt out over processes."""
    whole = list(source_of(tiny_data, captions_per_image=1).positives())
    source = source_of(tiny_data)
    captions = [caption for batch in whole for caption in batch.captions]
    assert captions == source.pool.captions
    assert torch.equal(torch.cat([_places(batch) for batch in whole]), torch.arange(len(captions)))
    for batch in whole:
        rows = batch.pairs.image_row.tolist()
        for caption, row in zip(batch.captions, rows, strict=True):
            assert caption in next(record.captions for record in source.records if record.id == batch.ids[row])
    shares = [list(source_of(tiny_data, rank=rank, world=3).positives()) for rank in range(3)]
    dealt = [_places(batch) for batches in zip(*shares, strict=True) for batch in batches]
    assert torch.equal(torch.cat(dealt), torch.arange(len(captions)))


def _places(batch: Batch) -> torch.Tensor:
    assert batch.places is not None
    return batch.places


def test_places_name_the_captions_of_a_batch(tiny_data: Data) -> None:
    source = source_of(tiny_data, captions_per_image=2, seed=3)
    for step in range(4):
        batch = source.at(step)
        assert [source.pool.captions[place] for place in _places(batch).tolist()] == batch.captions
    assert IDENTITY.name in batch.features
