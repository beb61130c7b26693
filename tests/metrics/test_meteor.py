"""METEOR against the Java program: stored scores of our own captions, of COCO's, and the program itself on random ones.

The word data come from pycocoevalcap. Their compact form is made once, in the cache folder that all runs share.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tellapart.errors import MissingExtraError
from tellapart.metrics.meteor import data, lexicon, meteor_scores
from tellapart.metrics.meteor.beam import align_all
from tellapart.metrics.meteor.definition import Match, align, find_matches
from tellapart.metrics.meteor.matches import CaptionArrays, find_all_matches
from tellapart.metrics.meteor.normalise import normalise
from tellapart.metrics.meteor.stemmer import stem
from tellapart.metrics.ptb import tokenize

needs_word_data = pytest.mark.skipif(
    find_spec("pycocoevalcap") is None, reason="pycocoevalcap is not installed: METEOR's word data come with it"
)

# Few words with all kinds of relations among them, so that random captions have many matches to choose from.
WORDS = "a the of in on to front man men person people big large runs running ran near close n't 's u.s. t-shirt"
captions = st.lists(st.sampled_from(WORDS.split()), max_size=16).map(" ".join)


@pytest.fixture(scope="module")
def java() -> Iterator[Any]:
    """pycocoevalcap's METEOR."""
    if shutil.which("java") is None:
        pytest.skip("no Java runtime: the program cannot be asked")
    module = pytest.importorskip("pycocoevalcap.meteor.meteor", reason="pycocoevalcap is not installed")
    scorer = module.Meteor()
    yield scorer
    for stream in (scorer.meteor_p.stdout, scorer.meteor_p.stderr):
        stream.close()


@needs_word_data
def test_our_own_captions() -> None:
    stored = json.loads(Path(__file__).with_name("meteor_own.json").read_text(encoding="utf-8"))
    images = stored["images"]
    scores = meteor_scores([image["references"] for image in images], [image["candidate"] for image in images])
    assert scores.corpus == pytest.approx(stored["corpus"], abs=1e-9)
    for image, score in zip(images, scores.per_image, strict=True):
        assert score == pytest.approx(image["METEOR"], abs=1e-9), image


@needs_word_data
@pytest.mark.parametrize("name", ["coco_fakecap1000", "mrnn1k_beam1"])
def test_coco_captions(stored: Any, name: str) -> None:
    content = stored(f"metrics/{name}.json.gz")
    images = content["images"]
    scores = meteor_scores([image["refs_tok"] for image in images], [image["hyp_tok"] for image in images])
    assert scores.corpus == pytest.approx(content["corpus"]["METEOR"], abs=1e-9)
    assert np.abs(scores.per_image - [image["meteor"] for image in images]).max() <= 1e-9


@needs_word_data
def test_oracle_of_several_candidates(stored: Any) -> None:
    content = stored("metrics/mrnn1k_beam10.json.gz")
    references = [tokenize(group) for group in content["refs"].values()]
    candidates = [tokenize(content["hyps"][image]) for image in content["refs"]]
    slots = [meteor_scores(references, [group[slot] for group in candidates]) for slot in range(10)]
    best = np.maximum.accumulate([slot.per_image for slot in slots]).mean(axis=1)
    assert best[4] == pytest.approx(0.30079464, abs=1e-6)
    assert best[9] == pytest.approx(0.32800457, abs=1e-6)


@needs_word_data
@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.lists(captions, min_size=1, max_size=4), captions), min_size=1, max_size=12))
def test_the_program_on_random_captions(java: Any, images: list[tuple[list[str], str]]) -> None:
    references, candidates = [group for group, _ in images], [text for _, text in images]
    corpus, per_image = java.compute_score(
        dict(enumerate(references)), {i: [text] for i, text in enumerate(candidates)}
    )
    scores = meteor_scores(references, candidates)
    assert scores.corpus == pytest.approx(corpus, abs=1e-9)
    assert scores.per_image.tolist() == pytest.approx(per_image, abs=1e-9)


@needs_word_data
def test_all_at_once_equals_one_by_one() -> None:
    generator = random.Random(1)
    words = WORDS.split()[:18]
    texts = [" ".join(generator.choices(words, k=generator.randint(0, 20))) for _ in range(400)]
    known = lexicon.open_lexicon()
    references, candidates = known.words_of(texts[:300]), known.words_of(texts[300:])
    candidate_of = np.sort(np.arange(300) % 100)
    one = CaptionArrays.of(references)
    matches = find_all_matches(known, CaptionArrays.of(candidates), one, candidate_of)
    alignments = align_all(matches, one.length)
    rows: list[list[Match]] = [[] for _ in references]
    fields = (matches.start, matches.length, matches.candidate_start, matches.candidate_length, matches.module)
    for place, pair in enumerate(matches.pair):
        rows[pair].append(Match(*(int(field[place]) for field in fields)))
    begins = np.searchsorted(matches.pair, np.arange(len(rows)))
    for pair, reference in enumerate(references):
        candidate = candidates[candidate_of[pair]]
        found = find_matches(known, reference, candidate)
        assert rows[pair] == [match for at_word in found for match in at_word]
        chunks, chosen = align(found, len(candidate))
        assert alignments.chunks[pair] == chunks
        places = alignments.chosen[matches.pair[alignments.chosen] == pair] - begins[pair]
        assert sorted(rows[pair][place] for place in places) == sorted(chosen)


@needs_word_data
def test_paths_that_cannot_win_do_not_matter_in_a_full_beam() -> None:
    # Few words, many times each: far more alignments than the beam holds.
    generator = random.Random(3)
    texts = [" ".join(generator.choices(WORDS.split()[:4], k=generator.randint(8, 16))) for _ in range(80)]
    known = lexicon.open_lexicon()
    references, candidates = known.words_of(texts[:40]), known.words_of(texts[40:])
    one = CaptionArrays.of(references)
    matches = find_all_matches(known, CaptionArrays.of(candidates), one, np.arange(40))
    alignments = align_all(matches, one.length)
    for pair, (reference, candidate) in enumerate(zip(references, candidates, strict=True)):
        chunks, chosen = align(find_matches(known, reference, candidate), len(candidate))
        mine = alignments.chosen[matches.pair[alignments.chosen] == pair]
        assert alignments.chunks[pair] == chunks
        assert sorted(zip(matches.start[mine], matches.candidate_start[mine], strict=True)) == sorted(
            (match.start, match.candidate_start) for match in chosen
        )


@needs_word_data
def test_captions_seen_before_score_the_same() -> None:
    references = [["a man riding a wave", "a man riding a wave", "two of them in front of the house"], ["a dog"]]
    candidates = ["a person rides a big wave before the house", "in front of a dog"]
    lexicon.open_lexicon().phrases.clear()
    first = meteor_scores(references, candidates)
    again = meteor_scores(references[::-1], candidates[::-1])
    assert again.per_image.tolist() == first.per_image.tolist()[::-1]


@needs_word_data
def test_scores_do_not_depend_on_what_is_scored_together(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = random.Random(2)
    texts = [" ".join(generator.choices(WORDS.split(), k=generator.randint(1, 12))) for _ in range(60)]
    references, candidates = [texts[i : i + 2] for i in range(0, 40, 2)], texts[40:]
    together = meteor_scores(references, candidates)
    alone = [meteor_scores([group], [text]).corpus for group, text in zip(references, candidates, strict=True)]
    assert together.per_image.tolist() == pytest.approx(alone, abs=1e-15)
    monkeypatch.setattr("tellapart.metrics.meteor.score._REFERENCES_AT_ONCE", 7)
    monkeypatch.setattr("tellapart.metrics.meteor.score._WORD_PAIRS_AT_ONCE", 30)
    in_portions = meteor_scores(references, candidates)
    assert in_portions.per_image.tolist() == together.per_image.tolist()
    assert in_portions.corpus == together.corpus


@needs_word_data
def test_no_captions_and_no_references() -> None:
    assert meteor_scores([], []).per_image.shape == (0,)
    for references in ([[]], [], [["a"], ["b"]]):
        with pytest.raises(ValueError, match="at least one reference"):
            meteor_scores(references, ["a dog"])


def test_stems() -> None:
    # One word for each step and each exception of the published definition.
    words = "caresses ties cries gas gaps kiwis agreed luxuriated hopping hoped hoping fizzed cry by say sayyid"
    stems = "caress tie cri gas gap kiwi agre luxuri hop hope hope fizz cri by say sayyid"
    assert [stem(word) for word in words.split()] == stems.split()
    words = "rationalization conditional hopefulness geology quickly formative electrical goodness adoption replacement"
    stems = "ration condit hope geolog quick format electr good adopt replac"
    assert [stem(word) for word in words.split()] == stems.split()
    words = "generate communism arsenal inning proceed news dog's dogs' 'tis yyy rate roll controll"
    stems = "generat communism arsenal inning proceed news dog dog tis yyy rate roll control"
    assert [stem(word) for word in words.split()] == stems.split()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        (" ", ""),
        ("a-b-c -d e- f--g", "a b-c -d e- f g"),
        ("rock'n'roll 1990's 'tis dogs'", "rock 'n'roll 1990 's ' tis dogs '"),
        ("“so” ‘it’ ``is''", '" so " \' it \' " is "'),
        ("5,000 a,b 5, c", "5,000 a , b 5 , c"),
        ("u.s. 5.5. 7 x... www.x.com end.", "us 5.5 . 7 x ... www.x.com end ."),
        ("Mr. 5 mr. 5 No. 5 No. X mr. x", "mr. 5 mr . 5 no. 5 no . x mr. x"),
        ("a_b 50% é-é 中文 x\u00a0y", "a _ b 50 % é é 中 文 x y"),
    ],
)
def test_words(text: str, words: str) -> None:
    assert normalise(text, {"Mr": False, "No": True}) == words.split()


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tellapart\[metrics\]'"):
        data.load_word_data()


@pytest.fixture
def small_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Word data of a few lines in the layout of pycocoevalcap, and an empty cache folder."""
    folder = tmp_path / "source"
    (folder / "data").mkdir(parents=True)
    pairs = [("big", "a large"), ("big", "large"), ("huge house", "big house"), ("large", "big")]
    with gzip.open(folder / "data" / "paraphrase-en.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"0.5\n{phrase}\n{paraphrase}\n" for phrase, paraphrase in pairs)
    with zipfile.ZipFile(folder / "meteor-1.5.jar", "w") as archive:
        archive.writestr("synonym/english.synsets", "boat\n1 2\nbig_ship\n1\nship\n2\nmouse\n3\n")
        archive.writestr("synonym/english.exceptions", "mouse\nmice\n")
        archive.writestr("function/english.words", "the\na\n")
        archive.writestr("nonbreaking/english.prefixes", "#comment\n\nMr\nNo #NUMERIC_ONLY#\n")
    monkeypatch.setattr(data, "_source_folder", lambda: folder)
    monkeypatch.setenv("TELLAPART_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_what_is_kept_of_the_sources(small_source: Path) -> None:
    words = data.load_word_data()
    assert words.synonym_sets("ships") == {2}
    assert words.synonym_sets("mice") == {3}
    assert words.function_words == {"the", "a"}
    assert words.abbreviations == {"Mr": False, "No": True}
    known = lexicon.Lexicon(words)
    reference, candidate = known.words_of(["the big house", "a large huge house"])
    found = find_matches(known, reference, candidate)
    assert [match for match in found[1] if match.module == 3] == [
        (1, 1, 0, 2, 3),
        (1, 1, 1, 1, 3),
        (1, 1, 1, 1, 3),
        (1, 2, 2, 2, 3),
    ]


def test_a_torn_or_foreign_file_is_made_again(small_source: Path) -> None:
    data.load_word_data()
    (path,) = (small_source / "cache").iterdir()
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"something else", whole.replace(b'"digest":"', b'"digest":"0')):
        path.write_bytes(content)
        assert data.load_word_data().function_words == {"the", "a"}
        assert path.read_bytes() == whole
    assert list((small_source / "cache").iterdir()) == [path]  # nothing temporary is left behind


def test_a_failure_leaves_nothing_half_written(small_source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        data.load_word_data()
    assert list((small_source / "cache").iterdir()) == []


def test_two_processes_may_make_it_at_once(small_source: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tellapart.metrics.meteor import data; "
        "data._source_folder = lambda: Path(sys.argv[1]); print(len(data.load_word_data().hashes))"
    )
    command = [sys.executable, "-c", code, str(small_source / "source")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in both] == ["5", "5"]
    assert len(list((small_source / "cache").iterdir())) == 1
