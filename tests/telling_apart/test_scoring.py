"""Candidates and scores: the caption that tells a picture apart is chosen, and words that do not fit are not."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from support.tiny import make_captioner, make_retriever
from tellapart.captioners.base import Captioner
from tellapart.decoding.settings import DecodingSettings
from tellapart.errors import DataError, RecipeError
from tellapart.retrievers.base import Retriever
from tellapart.telling_apart.candidates import Candidate, Task, propose, read_candidates
from tellapart.telling_apart.scoring import Scored, Scorer, choose
from tellapart.telling_apart.settings import TellApartSettings
from tellapart.telling_apart.words import Word, marked_words, words_of
from tellapart.text import PAD

# A reddish house, a bluish one, and one that is both.
FEATURES = torch.tensor([[[1.0, 0.9, 0.2, 1.0]], [[1.0, 0.2, 0.9, 1.0]], [[1.0, 0.6, 0.6, 1.0]]])
PAIR = [Task(0, (1,)), Task(1, (0,))]
TEXTS = ("a house", "a red house", "a blue house")


def test_the_caption_that_tells_apart_is_chosen(captioner: Captioner, retriever: Retriever) -> None:
    """By the retriever, and by the captioner's likelihood; the plain caption is the likeliest for both pictures."""
    settings = TellApartSettings(samples=0, contrast=(0.5,), retrieval=2.0, likelihood=1.0)
    candidates = propose(captioner, FEATURES, PAIR, settings, DecodingSettings(beam=3), [0, 1])
    assert [own[0] for own in candidates] == [Candidate("a house", "plain")] * 2
    for listener in (retriever, None):
        scored = Scorer(captioner, FEATURES, listener, FEATURES).score(PAIR, candidates, settings)
        assert [choose(own, settings).candidate.text for own in scored] == ["a red house", "a blue house"]
        neither = settings.model_copy(update={"retrieval": 0.0, "likelihood": 0.0})
        assert [choose(own, neither).candidate.text for own in scored] == ["a house", "a house"]


def test_scores_equal_their_equations(captioner: Captioner, retriever: Retriever) -> None:
    settings = TellApartSettings(retrieval_temperature=0.5, least_word=0.05, likelihood=1.0)
    task = Task(0, (2, 1))
    scorer = Scorer(captioner, FEATURES, retriever, FEATURES)
    (scored,) = scorer.score([task], [[Candidate(text, "given") for text in TEXTS]], settings)
    tokens, zeros = captioner.tokenize(TEXTS), torch.zeros(1, 1, 4)

    def log_probs(features: torch.Tensor) -> torch.Tensor:
        rows = torch.zeros(len(TEXTS), dtype=torch.long)
        return captioner.log_prob(
            captioner.encode(features[None, :] if features.dim() == 2 else features), tokens, rows, True
        )

    own, others, without = log_probs(FEATURES[0]), [log_probs(FEATURES[2]), log_probs(FEATURES[1])], log_probs(zeros)
    content = {0: [1], 1: [1, 2], 2: [1, 2]}  # places of the content words: house; red, house; blue, house
    for row, one in enumerate(scored):
        length = int((tokens[row] != PAD).sum())
        assert one.fluency == pytest.approx(own[row].sum().item() / length, rel=1e-5)
        all_pictures = [own[row].sum().item(), *(other[row].sum().item() for other in others)]
        expected = all_pictures[0] - math.log(sum(map(math.exp, all_pictures)))
        assert one.likelihood == pytest.approx(expected, rel=1e-4, abs=1e-6)
        named = [float("red" in TEXTS[row]), float("blue" in TEXTS[row])]
        similar = [named[0] * FEATURES[p, 0, 1].item() + named[1] * FEATURES[p, 0, 2].item() for p in (0, 2, 1)]
        expected = similar[0] / 0.5 - math.log(sum(math.exp(value / 0.5) for value in similar))
        assert one.retrieval == pytest.approx(expected, rel=1e-4, abs=1e-6)
        doubts = [
            max(0, (without - own)[row, place].item()) + max(0, math.log(0.05) - own[row, place].item())
            for place in content[row]
        ]
        assert one.truth == pytest.approx(-sum(doubts), rel=1e-4, abs=1e-6)
        weights = {"fluency": 2.0, "likelihood": 3.0, "retrieval": 4.0, "truth": 5.0}
        total = 2 * one.fluency + 3 * one.likelihood + 4 * one.retrieval + 5 * one.truth
        assert one.total(TellApartSettings(**weights)) == pytest.approx(total)


def test_ranks_count_ties_against_the_picture(captioner: Captioner, retriever: Retriever) -> None:
    task = Task(0, (1, 2))
    for listener in (retriever, None):
        scorer = Scorer(captioner, FEATURES, listener, FEATURES)
        assert scorer.ranks([task], [["a red house", "a blue house"]]) == [[1, 3]]
    scorer = Scorer(captioner, FEATURES, retriever, FEATURES)
    assert scorer.ranks([task], [["a house"]]) == [[3]], "all pictures fit equally"
    assert Scorer(captioner, FEATURES).ranks([Task(0, ())], [["a blue house"]]) == [[1]]


def test_ranks_of_several_tasks_equal_those_of_each(captioner: Captioner, retriever: Retriever) -> None:
    tasks = [Task(0, (1, 2)), Task(1, ()), Task(2, (1,))]
    captions = [["a red house", "a blue house"], ["a house"], ["a house", "a red house", "a blue house"]]
    for listener in (retriever, None):
        scorer = Scorer(captioner, FEATURES, listener, FEATURES)
        alone = [scorer.ranks([task], [several])[0] for task, several in zip(tasks, captions, strict=True)]
        assert scorer.ranks(tasks, captions) == alone
        assert len({rank for ranks in alone for rank in ranks}) > 1


def test_distinguishing_words(captioner: Captioner) -> None:
    scorer, settings = Scorer(captioner, FEATURES), TellApartSettings()
    tasks = [PAIR[0], Task(0, ()), PAIR[1]]
    assert scorer.distinguishing_words(tasks, ["a red house"] * 3, settings) == [["red"], [], []]
    assert scorer.distinguishing_words([Task(0, ())], ["a red house"], settings) == [[]]


def test_marked_words() -> None:
    words = [Word(text, place, place + 1) for place, text in enumerate(("the", "red", "dog", "red"))]
    assert marked_words(words, [9.0, 0.8, 0.1, 0.9], 0.7) == ["red"]
    assert marked_words(words, [9.0, 0.1, 0.3, 0.2], 0.7) == ["dog"], "else the word that gains most"
    assert marked_words(words, [9.0, -1.0, -1.0, -1.0], 0.7) == []


def test_words_of_whole_words_and_of_pieces() -> None:
    model = make_captioner()
    tokens = model.tokenize(["a red house", "two"])
    assert words_of(model, tokens) == [[Word("a", 0, 1), Word("red", 1, 2), Word("house", 2, 3)], [Word("two", 0, 1)]]

    class Pieces:
        """'pla' and 'ne' are one word."""

        def detokenize(self, tokens: torch.Tensor) -> list[str]:
            texts = {4: "a", 5: " pla", 6: "ne", 7: " far"}
            return ["".join(texts.get(token, "") for token in row) for row in tokens.tolist()]

    found = words_of(Pieces(), torch.tensor([[4, 5, 6, 7, 2]]))  # type: ignore[arg-type]
    assert found == [[Word("a", 0, 1), Word("plane", 1, 3), Word("far", 3, 4)]]


@pytest.mark.parametrize("name", ["transformer", "adaptive-attention"])
def test_candidates_come_from_everywhere(name: str, features: torch.Tensor) -> None:
    model = make_captioner(name=name)
    with torch.no_grad():
        model.predict.weight *= 6
    settings = TellApartSettings(
        samples=8, temperature=3.0, contrast=(0.5, 0.9), guidance=(0.8,), beam=3, likelihood=1.0
    )
    tasks = [Task(0, (2, 1)), Task(2, ())]
    decoding = DecodingSettings(max_words=6)
    found = propose(model, features, tasks, settings, decoding, [7, 8], [["a tree  house"], ["", "two cars"]])
    assert {one.source for one in found[0]} >= {"plain", "sample", "given"}
    assert Candidate("a tree house", "given") in found[0]
    for own in found:
        assert [one.source for one in own].count("plain") == 1
        assert own[0].source == "plain"
        assert len({one.text for one in own}) == len(own)
        assert "" not in [one.text for one in own[1:]]
    turned = propose(model, features, tasks[::-1], settings, decoding, [8, 7], [["", "two cars"], ["a tree  house"]])
    assert turned[::-1] == found, "independent of batch order"
    scored = Scorer(model, features, make_retriever(), features).score(tasks, found, settings)
    assert [[one.candidate for one in own] for own in scored] == found
    assert all(one.likelihood == one.retrieval == 0.0 for one in scored[1]), "alone, any caption finds its picture"


def test_the_first_of_equal_candidates_is_chosen() -> None:
    same = [Scored(Candidate(text, "beam"), -1.0, 0.0, 0.0, 0.0) for text in TEXTS]
    assert choose(same, TellApartSettings()) is same[0]


def test_captions_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "captions.jsonl"
    path.write_text('{"image": "a.jpg", "captions": ["one", "two"]}\n{"image": "b.jpg", "caption": "three"}\n')
    assert read_candidates(path, ["photos/b.jpg", "photos/c.jpg", "photos/a.jpg"]) == [["three"], [], ["one", "two"]]
    with pytest.raises(DataError, match=r"captions\.jsonl: has no captions of these pictures \('a\.jpg'"):
        read_candidates(path, ["photos/c.jpg"])


def test_settings_are_checked() -> None:
    assert TellApartSettings.parse({"group_size": 5}, ["contrast=[0.2]", "samples=3"]).contrast == (0.2,)
    with pytest.raises(RecipeError, match="sampels: there is no such key; did you mean 'samples'"):
        TellApartSettings.parse({}, ["sampels=3"])


def test_a_retriever_replaces_the_captioner_as_listener() -> None:
    settings = TellApartSettings()
    assert settings.likelihood_weight(retriever=True) == 0 < settings.likelihood_weight(retriever=False)
    assert TellApartSettings(likelihood=2.0).likelihood_weight(retriever=True) == 2.0
