"""Beam search against exhaustive search and plain loops; what all decoding promises about ends, limits and scores."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import naive_decoding as naive
from tellapart.captioners.base import Captioner
from tellapart.data.features import FeatureStore
from tellapart.data.records import Dataset
from tellapart.decoding import search
from tellapart.decoding.base import Caption, remove_repeats
from tellapart.decoding.constraints import forbid
from tellapart.decoding.search import beam_search, decode, decode_rows, decode_store, n_best
from tellapart.decoding.settings import DecodingSettings
from tellapart.errors import RecipeError
from tellapart.text import END, START, UNKNOWN, Vocabulary

Make = Callable[..., Captioner]
TINY = Vocabulary(("a", "red", "house"))

# One of each kind of decoding, for promises that all of them keep.
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4, "samples": 3},
    "mean": {"beam": 4, "samples": 4, "length_penalty": 1.0},
    "limits": {"beam": 3, "samples": 2, "min_words": 4, "block_repeats": True},
    "pairs": {"beam": 4, "samples": 3, "min_words": 4, "block_pairs": True},
    "shortened": {"beam": 3, "samples": 3, "remove_repeats": True},
    "diverse": {"method": "diverse", "beam": 6, "groups": 3, "samples": 4, "diversity": 0.8},
    "apart": {"method": "diverse", "beam": 4, "samples": 4, "length_penalty": 0.7},
    "sample": {"method": "sample", "samples": 5, "temperature": 1.3, "top_k": 6, "top_p": 0.95},
}


def settings_of(kind: str, **others: Any) -> DecodingSettings:
    return DecodingSettings(**{"max_words": 7, **KINDS[kind], **others})


def shown(captions: list[list[Caption]]) -> list[list[tuple[str, float, bool]]]:
    return [
        [(one.caption, pytest.approx(one.log_prob, rel=1e-5, abs=1e-4), one.ended) for one in said] for said in captions
    ]


# --- against other ways of searching: every captioner is searched exhaustively, for loops one is enough ---------------


@pytest.mark.parametrize("unknown", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_a_wide_beam_equals_exhaustive_search(make_any: Make, features: torch.Tensor, seed: int, unknown: bool) -> None:
    model = make_any(seed=seed, words=TINY)
    settings = DecodingSettings(beam=4**3, max_words=3, block_unknown=not unknown)
    with torch.no_grad():
        found = beam_search(model, features, settings)
        every = naive.exhaustive(model, features, 3, settings)
    for listed in every:
        naive.assert_apart(listed, 1, settings)
    expected = [listed[0] for listed in every]
    assert [one.caption for one in found] == [TINY.decode(said) for said, _ in expected]
    assert [one.log_prob for one in found] == pytest.approx([score for _, score in expected], rel=1e-5, abs=1e-4)
    assert all(one.ended for one in found)


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"length_penalty": 1.0},
        {"length_penalty": 0.4, "min_words": 1},
        {"min_words": 2, "block_repeats": True},
        {"min_words": 2, "block_pairs": True},
    ],
    ids=str,
)
def test_the_n_best_are_the_best_of_all_captions(
    make_any: Make, features: torch.Tensor, others: dict[str, Any]
) -> None:
    model = make_any(seed=1, words=TINY)
    # So wide that every caption is among the candidates.
    settings = DecodingSettings(beam=7 * 3**3, samples=12, max_words=3, **others)
    with torch.no_grad():
        found = n_best(model, features, settings)
        expected = naive.exhaustive(model, features, 3, settings)
    for said, listed in zip(found, expected, strict=True):
        naive.assert_apart(listed, 12, settings)
        assert [one.caption for one in said] == [TINY.decode(words) for words, _ in listed[:12]]
        expected_scores = [score for _, score in listed[:12]]
        assert [one.log_prob for one in said] == pytest.approx(expected_scores, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("sample", "shortened")])
@pytest.mark.parametrize("sharp", [2.0, 8.0])
def test_a_narrow_beam_equals_plain_loops(make_sharp: Make, features: torch.Tensor, kind: str, sharp: float) -> None:
    model, settings = make_sharp(seed=6, sharp=sharp), settings_of(kind)
    with torch.no_grad():
        found = decode(model, features, settings)
        expected = [
            [
                Caption(model.vocabulary.decode(said), log_prob, ended)
                for said, log_prob, ended in naive.beams(model, image, settings)
            ]
            for image in features
        ]
    assert [[(one.caption, one.log_prob, one.ended) for one in said] for said in found] == shown(expected)


def test_groups_without_diversity_all_find_what_a_beam_finds(make_sharp: Make, features: torch.Tensor) -> None:
    model = make_sharp(seed=3)
    plain = beam_search(model, features, DecodingSettings(beam=2, max_words=6))
    same = n_best(
        model, features, DecodingSettings(method="diverse", beam=6, groups=3, diversity=0, samples=3, max_words=6)
    )
    assert [[one.caption for one in said] for said in same] == [[one.caption] * 3 for one in plain]


def test_groups_are_diverse(make_sharp: Make, features: torch.Tensor) -> None:
    model = make_sharp(seed=3)
    for said in n_best(
        model, features, DecodingSettings(method="diverse", beam=4, diversity=100, samples=4, max_words=6)
    ):
        by_place = list(zip(*(one.caption.split() for one in said), strict=False))
        assert all(len(set(words)) == 4 for words in by_place), "no word is said at the same place"


def test_a_beam_of_one_is_greedy(make_any: Make, features: torch.Tensor) -> None:
    model = make_any(seed=5)
    with torch.no_grad():
        found = beam_search(model, features, DecodingSettings(beam=1, max_words=6, block_unknown=False))
        for image, one in enumerate(found):
            state = model.start(model.encode(features), torch.tensor([image]))
            token, said, total = torch.tensor([START]), [], 0.0
            for _ in range(7):
                log_probs, state = model.step(state, token)
                if len(said) == 6 and log_probs.argmax() != END:
                    break
                token = log_probs.argmax(dim=1)
                total += log_probs[0, token].item()
                if token == END:
                    break
                said.append(int(token))
            assert one.caption == model.vocabulary.decode(said)
            assert one.ended == (token.item() == END)
            assert one.log_prob == pytest.approx(total, rel=1e-5, abs=1e-4)


# --- what all kinds promise -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_reported_score_is_the_models_own(make_any: Make, features: torch.Tensor, kind: str) -> None:
    model = make_any(seed=2, sharp=3.0)
    found = decode(model, features, settings_of(kind))
    memory = model.encode(features)
    for image, said in enumerate(found):
        assert len(said) == settings_of(kind).samples
        for one in said:
            tokens = model.tokenize([one.caption])
            if not one.ended:
                tokens = tokens[:, :-1]
            score = model.log_prob(memory, tokens, torch.tensor([image]))
            assert one.log_prob == pytest.approx(score.item(), rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_is_in_order(make_sharp: Make, features: torch.Tensor, kind: str) -> None:
    settings = settings_of(kind)
    for said in decode(make_sharp(seed=2, sharp=3.0), features, settings):
        if kind == "sample":
            continue
        lengths = [len(one.caption.split()) + one.ended for one in said]
        scores = [one.log_prob / length**settings.length_penalty for one, length in zip(said, lengths, strict=True)]
        keys = [(not one.ended, -score) for one, score in zip(said, scores, strict=True)]
        assert keys == sorted(keys)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sample"])
@pytest.mark.parametrize("sharp", [1.0, 3.0, 8.0])
def test_stopping_early_changes_nothing(make_sharp: Make, features: torch.Tensor, kind: str, sharp: float) -> None:
    model = make_sharp(seed=8, sharp=sharp)
    early, late = (n_best(model, features, settings_of(kind, max_words=9), stop) for stop in (True, False))
    assert [[(one.caption, one.log_prob, one.ended) for one in said] for said in early] == shown(late)


@pytest.mark.parametrize("kind", KINDS)
def test_captions_are_independent_of_batch_composition(make_any: Make, features: torch.Tensor, kind: str) -> None:
    model, settings = make_any(seed=4), settings_of(kind)
    together = decode(model, features, settings)
    alone = [decode(model, features[i : i + 1], settings, [i])[0] for i in (2, 0, 1)]
    assert [[one.caption for one in together[i]] for i in (2, 0, 1)] == [
        [one.caption for one in said] for said in alone
    ]


@pytest.mark.parametrize("kind", ["beam", "sample"])
def test_no_images_no_captions(make_any: Make, features: torch.Tensor, kind: str) -> None:
    assert decode(make_any(), features[:0], settings_of(kind)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_one_step_for_each_word_and_ended_captions_leave_the_batch(
    make_any: Make, features: torch.Tensor, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, settings = make_any(seed=4), settings_of(kind, remove_repeats=False)
    steps: list[int] = []
    step = model.step

    def counted(state: Any, token: torch.Tensor) -> Any:
        steps.append(len(token))
        return step(state, token)

    monkeypatch.setattr(model, "step", counted)
    monkeypatch.setattr(model, "hidden", None)  # teacher forcing
    said = decode(model, features, settings)
    assert len(steps) <= settings.max_words + 1
    assert steps[0] == len(features), "before the first word, an image is one row"
    assert all(rows <= len(features) * settings.rows_per_image for rows in steps)
    if kind == "sample":
        lengths = [len(one.caption.split()) for of_image in said for one in of_image]
        assert steps[1:] == [sum(length >= place for length in lengths) for place in range(1, max(lengths) + 1)]
    else:
        early = sum(steps)
        n_best(model, features, settings, early_stop=False)
        assert early <= sum(steps) - early


# --- limits on what is said -----------------------------------------------------------------------------------------


def test_what_is_forbidden() -> None:
    log_probs = torch.zeros(2, 7)
    said = torch.tensor([[5], [6]])
    forbid(log_probs, said[:, -1], said, DecodingSettings(min_words=2, block_repeats=True))
    no = -torch.inf
    assert log_probs.tolist() == [[0, 0, no, no, 0, no, 0], [0, 0, no, no, 0, 0, no]]
    free = DecodingSettings(min_words=2, block_unknown=False)
    assert forbid(torch.zeros(2, 7), said[:, -1], said.expand(2, 2), free).eq(0).all()


def test_a_caption_that_never_ends_is_cut_and_says_so(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner(seed=2)
    with torch.no_grad():
        model.predict.bias[END] = -1e4
    for method in ("beam", "diverse", "sample"):
        for said in decode(model, features, DecodingSettings(method=method, samples=3, max_words=4)):
            assert [one.ended for one in said] == [False] * 3
            assert all(len(one.caption.split()) == 4 for one in said)
    beam = n_best(model, features, DecodingSettings(samples=3, max_words=4))
    assert all(len({one.caption for one in said}) == 3 for said in beam)


def test_unknown_is_never_generated(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner(seed=2)
    with torch.no_grad():
        model.predict.bias[UNKNOWN] = 20.0
        blocked = beam_search(model, features, DecodingSettings(beam=3, max_words=5))
        free = beam_search(model, features, DecodingSettings(beam=3, max_words=5, block_unknown=False))
    assert not any("<unk>" in one.caption for one in blocked)
    assert all("<unk>" in one.caption for one in free)


@pytest.mark.parametrize("method", ["beam", "diverse", "sample"])
def test_captions_are_as_long_as_asked_for(make_sharp: Make, features: torch.Tensor, method: Any) -> None:
    model = make_sharp(seed=2)
    settings = DecodingSettings(method=method, beam=4, samples=4, min_words=5, max_words=6, block_repeats=True)
    words = [one.caption.split() for said in decode(model, features, settings) for one in said]
    assert {len(said) for said in words} <= {5, 6}
    assert all(one != other for said in words for one, other in itertools.pairwise(said))


def test_repeats_are_removed() -> None:
    tokens = torch.tensor([[5, 5, 6, 5, 0], [7, 7, 7, 7, 7], [4, 5, 6, 7, 0]])
    assert remove_repeats(tokens).tolist() == [[5, 6, 5, 0, 0], [7, 0, 0, 0, 0], [4, 5, 6, 7, 0]]


def test_captions_that_lose_a_word_are_scored_again(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner(seed=2)
    with torch.no_grad():
        model.predict.bias[4] = 3.0  # "a a a"
    for method in ("beam", "sample"):
        plain = decode(model, features, DecodingSettings(method=method, samples=3, max_words=6))
        short = decode(model, features, DecodingSettings(method=method, samples=3, max_words=6, remove_repeats=True))
        assert any("a a" in one.caption for said in plain for one in said)
        assert not any("a a" in one.caption for said in short for one in said)


def test_impossible_settings(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner(words=Vocabulary(("a",)))
    for method in ("beam", "diverse", "sample"):
        with pytest.raises(RecipeError, match="lower min_words"):
            decode(model, features, DecodingSettings(method=method, min_words=3, block_repeats=True))
    with pytest.raises(RecipeError, match=r"decoding\.min_words: 20 .* limit of 18 words"):
        decode(model, features, DecodingSettings(min_words=20, max_words=30))


def test_a_list_is_shorter_where_there_are_no_more_captions(make_captioner: Make, features: torch.Tensor) -> None:
    model = make_captioner(words=Vocabulary(("a",)))
    (said,) = n_best(model, features[:1], DecodingSettings(beam=40, samples=40, max_words=2))
    assert sorted(one.caption for one in said if one.ended) == ["", "a", "a a"]


# --- stores and blocks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["beam", "sample"])
def test_a_store_in_blocks(
    make_captioner: Make, tiny_data: tuple[Dataset, FeatureStore], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (_, store), settings = make_captioner(seed=3), tiny_data, settings_of(kind)
    whole = decode_store(model, store, range(12), settings)
    monkeypatch.setattr("tellapart.decoding.search.BLOCK", 5)
    monkeypatch.setattr("tellapart.decoding.search.ROWS", 8)
    progress: list[tuple[int, int]] = []
    rows = [7, 3, 11, 0, 5, 6, 1]
    parts = decode_store(model, store, rows, settings, lambda *done: progress.append(done))
    assert [[one.caption for one in said] for said in parts] == [[one.caption for one in whole[row]] for row in rows]
    assert progress == [(5, 7), (7, 7)]
    assert decode_rows(model, store, rows, settings) == [said[0] for said in parts]


@pytest.mark.parametrize("words", [3, 31, 1500, 1536, 1543])
@pytest.mark.parametrize("count", [1, 3])
def test_best_words(words: int, count: int) -> None:
    torch.manual_seed(0)
    log_probs = torch.randn(7, words)
    log_probs[0, 2:] = -torch.inf
    log_probs[1, -1], log_probs[2, 0] = 9.0, 9.0
    best, where = search._best_words(log_probs, count)
    assert torch.equal(best, log_probs.topk(count, dim=1).values)
    assert torch.equal(log_probs.gather(1, where), best)
    assert all(len(set(row)) == count for row in where.tolist())
