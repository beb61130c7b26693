"""Files of anyone's captions: forms, ids, figures with intervals, paired differences, and the command."""

from __future__ import annotations

import errno
import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from tellapart import cli
from tellapart.data.records import Record
from tellapart.errors import DataError
from tellapart.evaluation import caption_scorer
from tellapart.evaluation import evaluate as module
from tellapart.evaluation.caption_files import match_ids, read_captions
from tellapart.evaluation.evaluate import evaluate as evaluate_captions
from tellapart.metrics import bleu_scores, evaluate, tokenize
from tellapart.metrics.diversity import candidate_scores
from tellapart.pages.tables import evaluation_table

# METEOR's tables take seconds to load and are tested elsewhere.
METRICS = ("bleu", "rouge", "cider", "diversity")
WORDS = ["a", "dog", "cat", "on", "the", "grass", "runs", "red", "bus"]
IMAGES = 12


def texts(seed: int, count: int) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(3, 8))) for _ in range(count)]


REFERENCES = {str(number): texts(number, 3) for number in range(IMAGES)}
CAPTIONS = {id: texts(100 + int(id), 1)[0] for id in REFERENCES}
# Closer to the references than CAPTIONS are.
BETTER = {id: f"{group[0]} {group[1]}" for id, group in REFERENCES.items()}
SEVERAL = {id: texts(200 + int(id), 4) for id in REFERENCES}


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A Karpathy file: 12 test images, two training images."""
    images = [
        {"filename": f"{id}.jpg", "split": "test", "sentences": [{"raw": text.upper() + "."} for text in group]}
        for id, group in REFERENCES.items()
    ]
    for number, text in enumerate([CAPTIONS["3"], "a hen"]):
        images.append({"filename": f"train{number}.jpg", "split": "train", "sentences": [{"raw": text}]})
    return str(write(tmp_path / "karpathy.json", {"images": images}))


def write(path: Path, content: Any) -> Path:
    rows = path.suffix == ".jsonl" and not isinstance(content, str)
    text = "".join(json.dumps(row) + "\n" for row in content) if rows else json.dumps(content)
    path.write_text(content if isinstance(content, str) else text, encoding="utf-8")
    return path


# --- forms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", {"7": "a dog", "8": ""}),
        ("a.json", {"7": ["a dog"], "8": [""]}),
        ("a.json", [{"image_id": 7, "caption": "a dog"}, {"image_id": 8, "caption": ""}]),
        ("a.json", [{"image_id": 7, "id": 1, "caption": "a dog"}, {"image_id": "8", "id": 2, "caption": ""}]),
        ("a.jsonl", [{"id": "7", "caption": "a dog", "log_prob": -1.0}, {"id": 8, "caption": ""}]),
        ("a.jsonl", [{"id": "7", "captions": ["a dog"]}, {"id": "8", "captions": [""]}]),
        ("a.json", '{"id": "7", "caption": "a dog"}\n{"id": "8", "caption": ""}\n'),
        ("a.jsonl", [{"cocoid": 7, "caption": "a dog"}, {"cocoid": 8, "caption": ""}]),
        ("a.csv", 'image_id,caption\n7,a dog\n8,""\n'),
        ("a.tsv", "caption\tscore\tfile_name\r\na dog\t0.5\t7\r\n\t0.1\t8\r\n"),
    ],
)
def test_forms_of_one_caption(tmp_path: Path, name: str, content: Any) -> None:
    assert read_captions(write(tmp_path / name, content)) == {"7": ["a dog"], "8": [""]}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", {"7": ["a dog", "dogs"], "8": ["a cat", "a cat"]}),
        ("a.json", [{"image_id": i, "caption": c} for i, c in ((7, "a dog"), (8, "a cat"), (8, "a cat"), (7, "dogs"))]),
        ("a.jsonl", [{"id": "7", "captions": ["a dog", "dogs"]}, {"id": "8", "caption": ["a cat", "a cat"]}]),
    ],
)
def test_forms_of_several_captions(tmp_path: Path, name: str, content: Any) -> None:
    assert read_captions(write(tmp_path / name, content)) == {"7": ["a dog", "dogs"], "8": ["a cat", "a cat"]}


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.json", "[]", "no caption is in this file"),
        ("a.json", "{}", "no caption is in this file"),
        ("a.json", '"a dog"', "not a list of captions"),
        ("a.json", '{"id": 1, "caption": "a"}\n{"id"', r"not valid JSON \(line 2"),
        ("a.json", '{"1": 5}', r"row 1 needs 'id' \(or 'image_id'\) and 'caption'"),
        ("a.json", '{"1": []}', "row 1 needs"),
        ("a.json", '{"1": "a dog \\ud83d"}', "row 1 has signs that no UTF-8 file can hold"),
        ("a.json", '{"1": ["a", null]}', "row 1 needs"),
        ("a.json", '[{"image_id": 1.5, "caption": "a"}]', "row 1 needs"),
        ("a.json", '[{"image_id": true, "caption": "a"}]', "row 1 needs"),
        ("a.json", '[{"caption": "a"}]', "row 1 needs"),
        ("a.jsonl", '{"id": 1, "caption": "a"}\n5\n', "row 2 needs"),
        ("a.jsonl", '{"id": 1, "caption": "a"}\n{"id": 1,\n', "line 2 is not valid JSON"),
        ("a.csv", "", "the first line names the columns, .* here they are missing"),
        ("a.csv", "7,a dog\n", "the first line names the columns, .* here they are 7, a dog"),
        ("a.csv", "id,caption\n7,a dog, a cat\n", "row 2 has 3 columns and the first has 2"),
        ("a.csv", "id,caption\n", "no caption is in this file"),
        ("a.json", '{"1": ["a", "b"], "2": ["a"]}', "'2' has 1 caption where '1' has 2; give every image the same"),
        (
            "a.jsonl",
            '{"id": 1, "caption": "a"}\n' * 2 + '{"id": 2, "caption": "b"}\n',
            "'2' has 1 caption where '1' has 2",
        ),
        ("a.json", '{"1": ["a", "b"], "2": "a", "3": "a"}', "'1' has 2 captions where '2' has 1"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, name: str, content: str, told: str) -> None:
    with pytest.raises(DataError, match=rf"{name}: .*{told}"):
        read_captions(write(tmp_path / name, content))


# --- ids --------------------------------------------------------------------------------------------------------------


def records(*ids: str) -> list[Record]:
    return [Record(id, id, "test", ("a dog",)) for id in ids]


@pytest.mark.parametrize(
    ("id", "there", "meant"),
    [
        ("7", ["7", "17"], "7"),
        ("391895", ["COCO_val2014_000000391895", "COCO_val2014_000000000895"], "COCO_val2014_000000391895"),
        ("COCO_val2014_000000391895.jpg", ["391895", "895"], "391895"),
        ("val2014/COCO_val2014_000000391895.jpg", ["391895"], "391895"),
        ("000000391895.jpg", ["391895"], "391895"),
        ("000000391895", ["COCO_val2014_000000391895"], "COCO_val2014_000000391895"),
        ("391895", ["000000391895.jpg"], "000000391895.jpg"),
        ("holiday/beach.jpg", ["beach.jpg", "sea.jpg"], "beach.jpg"),
        ("/home/me/holiday/a/beach.jpg", ["a/beach.jpg", "beach.jpg"], "a/beach.jpg"),
        ("./beach.jpg", ["beach.jpg"], "beach.jpg"),
        ("images/667626_18933d713e.jpg", ["667626_18933d713e"], "667626_18933d713e"),
        ("667626_18933d713e.JPG", ["667626_18933d713e"], "667626_18933d713e"),
        # What only looks alike means nothing.
        ("mybeach.jpg", ["beach.jpg"], None),
        ("007", ["7"], None),
        ("7", ["007"], None),
        ("beach.jpg", ["holiday/beach.jpg"], None),
        ("beach.txt", ["beach"], None),
        ("391895", ["COCO_val2014_000000391895", "000000391895"], None),
        ("", ["a"], None),
        ("9" * 5000, ["9"], None),
    ],
)
def test_which_image_an_id_means(id: str, there: list[str], meant: str | None) -> None:
    assert match_ids([id], records(*there)) == ({} if meant is None else {id: meant})


def test_an_image_has_one_id() -> None:
    with pytest.raises(DataError, match=r"'one/x.jpg' and 'two/x.jpg' both mean the image 'x.jpg'"):
        match_ids(["one/x.jpg", "two/x.jpg"], records("x.jpg"))


def karpathys(*images: tuple[str, int, int]) -> list[Record]:
    """Records of (file name, imgid, cocoid), as from Karpathy's file."""
    return [
        Record(Path(name).stem, f"val2014/{name}", "test", ("a dog",), imgid=imgid, cocoid=cocoid)
        for name, imgid, cocoid in images
    ]


COCO = karpathys(
    ("COCO_val2014_000000391895.jpg", 0, 391895),
    ("COCO_val2014_000000522418.jpg", 1, 522418),
    ("COCO_val2014_000000000002.jpg", 2, 2),
)
NAMES = [record.id for record in COCO]


@pytest.mark.parametrize(
    "ids",
    [
        ["0", "1", "2"],
        ["391895", "522418", "2"],
        NAMES,
        [f"{name}.jpg" for name in NAMES],
        [f"val2014/{name}.jpg" for name in NAMES],
        [f"/data/coco/val2014/{name}.jpg" for name in NAMES],
        ["000000391895.jpg", "000000522418", "000000000002.jpg"],
        ["391895", "COCO_val2014_000000522418.jpg", "000000000002"],
    ],
)
def test_all_names_of_an_image_are_understood(ids: list[str]) -> None:
    assert list(match_ids(ids, COCO).values()) == NAMES


@pytest.mark.parametrize(
    ("ids", "meant"),
    [
        # 2 is the COCO id of the third image and the imgid of the second; the other numbers decide.
        (["391895", "2"], ["a", "c"]),
        (["0", "2"], ["a", "b"]),
        (["391895", "2", "77"], ["a", "c"]),  # the most are known as COCO ids, 77 is unknown
        (["0", "2", "77"], ["a", "b"]),
        (["77"], []),
    ],
)
def test_all_numbers_of_a_file_are_read_in_the_same_way(ids: list[str], meant: list[str]) -> None:
    records = karpathys(("a.jpg", 0, 391895), ("b.jpg", 2, 522418), ("c.jpg", 3, 2))
    assert list(match_ids(ids, records).values()) == meant


def test_numbers_that_mean_different_images_are_an_error() -> None:
    records = karpathys(("a.jpg", 1, 2), ("b.jpg", 2, 1))
    with pytest.raises(DataError, match=r"both COCO ids and Karpathy's imgid.*'1' is 'b' or 'a'.*by their file names"):
        match_ids(["1", "2"], records)
    assert match_ids(["1", "2"], records, "imgid") == {"1": "a", "2": "b"}
    assert match_ids(["1", "2"], records, "cocoid") == {"1": "b", "2": "a"}
    same = karpathys(("a.jpg", 1, 1), ("b.jpg", 2, 2))
    assert match_ids(["2", "1"], same) == {"2": "b", "1": "a"}


def test_ids_of_the_data_set_come_before_other_numbers() -> None:
    # What `tellapart caption --data` writes for such a data set.
    records = karpathys(("1.jpg", 2, 2), ("2.jpg", 1, 1))
    assert match_ids(["1", "2"], records) == {"1": "1", "2": "2"}
    assert match_ids(["2", "3"], karpathys(("1.jpg", 0, 2), ("2.jpg", 1, 3))) == {"2": "1", "3": "2"}


def test_file_names_where_ids_are_something_else() -> None:
    records = [Record("17", "images/a.jpg", "test", ()), Record("18", "images/b.png", "test", ())]
    for names in (["a.jpg", "b.png"], ["a", "b"], ["images/a.jpg", "/data/images/b.png"], ["17", "b.png"]):
        assert list(match_ids(names, records).values()) == ["17", "18"]
    two = [Record("1", "x/a.jpg", "test", ()), Record("2", "y/a.jpg", "test", ())]
    assert match_ids(["a.jpg"], two) == {}, "it may be either"
    assert match_ids(["x/a.jpg", "y/a.jpg"], two) == {"x/a.jpg": "1", "y/a.jpg": "2"}


@pytest.mark.parametrize("key", ["cocoid", "imgid", "filename"])
def test_results_of_others_are_scored(tmp_path: Path, key: str) -> None:
    images: list[dict[str, Any]] = [
        {
            "filename": f"COCO_val2014_{500 - number:012}.jpg",
            "filepath": "val2014",
            "cocoid": 500 - number,
            "imgid": 490 + number,
            "split": "test",
            "sentences": [{"raw": text} for text in REFERENCES[str(number)]],
        }
        for number in range(IMAGES)
    ]
    data = write(tmp_path / "dataset_coco.json", {"images": images})
    rows = [{"image_id": image[key], "caption": image["sentences"][0]["raw"]} for image in reversed(images)]
    path = write(tmp_path / "captions_val2014_theirs_results.json", rows)
    found = evaluate_captions(path, str(data), metrics=("bleu",), out=tmp_path / key)
    assert found.corpus["Bleu_1"] == pytest.approx(1.0)
    table = "".join(f'{image[key]},"{image["sentences"][0]["raw"]}"\n' for image in images)
    path = write(tmp_path / "theirs.csv", f"{key},caption\n{table}")
    found = evaluate_captions(path, str(data), metrics=("bleu",), out=tmp_path / f"table-{key}")
    assert found.corpus["Bleu_1"] == pytest.approx(1.0)


def test_captions_of_a_folder_with_its_name(tmp_path: Path) -> None:
    # What `tellapart caption holiday/` writes, with the folder in front.
    folder = tmp_path / "holiday"
    (folder / "more").mkdir(parents=True)
    said = {"beach": "a beach", "more/beach": "a red boat", "dog": "a dog runs"}
    for name, text in said.items():
        Image.new("RGB", (8, 8)).save(folder / f"{name}.png")
        (folder / f"{name}.txt").write_text(text + "\n", encoding="utf-8")
    rows = [{"id": str(folder / f"{name}.png"), "caption": text} for name, text in said.items()]
    path = write(tmp_path / "captions.jsonl", rows)
    found = evaluate_captions(path, str(folder), metrics=METRICS)
    assert found.corpus["Bleu_1"] == pytest.approx(1.0)
    assert found.captions == {f"{name}.png": [text] for name, text in said.items()}
    assert "novel" not in found.corpus


# --- figures ----------------------------------------------------------------------------------------------------------


def test_figures_are_those_of_the_metrics(data: str, tmp_path: Path) -> None:
    path = write(tmp_path / "captions.json", {f"images/{id}.jpg": text for id, text in reversed(CAPTIONS.items())})
    found = evaluate_captions(path, data, metrics=METRICS)
    training = [CAPTIONS["3"], "a hen"]
    expected = evaluate(REFERENCES, CAPTIONS, training_captions=training, metrics=METRICS)
    assert found.corpus == pytest.approx(expected.corpus, abs=1e-12)
    assert found.corpus["novel"] == pytest.approx(1 - 1 / IMAGES)
    # Distinct captions and words are no sums over images: nothing to resample.
    assert set(found.corpus) - set(found.intervals) == {"distinct", "vocabulary"}
    for name, interval in found.intervals.items():
        assert interval.mean == pytest.approx(found.corpus[name], abs=1e-12), name
        assert interval.low <= interval.mean <= interval.high, name
    assert [row["id"] for row in found.rows] == list(REFERENCES)
    assert found.rows[5]["caption"] == CAPTIONS["5"]
    assert found.rows[5]["CIDEr"] == pytest.approx(expected.per_image["CIDEr"]["5"])


def test_bleu_is_resampled_as_a_corpus(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caption_scorer, "SAMPLES", 50)
    found = evaluate_captions(write(tmp_path / "captions.json", CAPTIONS), data, metrics=["bleu"])
    references, captions = list(map(tokenize, REFERENCES.values())), tokenize(list(CAPTIONS.values()))
    generator = np.random.default_rng(caption_scorer.SEED)
    # Families are numbered in the order of their sorted names.
    order = np.argsort(list(REFERENCES))
    drawn = []
    for sample in generator.integers(IMAGES, size=(50, IMAGES)):
        items = [order[unit] for unit in sample]
        drawn.append(bleu_scores([references[i] for i in items], [captions[i] for i in items]).corpus)
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    for n in range(4):
        interval = found.intervals[f"Bleu_{n + 1}"]
        assert (interval.low, interval.high) == pytest.approx((low[n], high[n]), abs=1e-9)


def test_several_captions_per_image(data: str, tmp_path: Path) -> None:
    found = evaluate_captions(write(tmp_path / "captions.json", SEVERAL), data, metrics=METRICS)
    first = evaluate(REFERENCES, {id: group[0] for id, group in SEVERAL.items()}, metrics=METRICS).corpus
    for name, value in first.items():
        assert found.corpus[name] == pytest.approx(value)
    among = candidate_scores(
        [tokenize(group) for group in SEVERAL.values()],
        [tokenize(group) for group in REFERENCES.values()],
        training_captions=[CAPTIONS["3"], "a hen"],
    )
    for name, value in among.corpus.items():
        assert found.corpus[name] == pytest.approx(value), name
    assert found.corpus["oracle_CIDEr"] > found.corpus["CIDEr"]
    assert "mBLEU_4_corpus" not in found.intervals
    assert found.intervals["SelfCIDEr_Luo"].low < among.corpus["SelfCIDEr_Luo"] < found.intervals["SelfCIDEr_Luo"].high
    assert found.rows[2]["captions"] == SEVERAL["2"]
    assert found.rows[2]["Div_1"] == pytest.approx(among.per_image["Div_1"][2])


def test_another_file_of_the_same_images(data: str, tmp_path: Path) -> None:
    path, other = write(tmp_path / "better.json", BETTER), write(tmp_path / "worse.json", CAPTIONS)
    found = evaluate_captions(path, data, against=other, metrics=METRICS)
    assert found.against is not None
    difference = found.differences["CIDEr"]
    assert difference.difference == pytest.approx(found.corpus["CIDEr"] - found.against.corpus["CIDEr"])
    assert (difference.mean_a, difference.mean_b) == pytest.approx(
        (found.against.corpus["CIDEr"], found.corpus["CIDEr"])
    )
    assert 0 < difference.low < difference.high
    assert difference.p_value < 0.01
    turned = evaluate_captions(other, data, against=path, metrics=METRICS).differences["CIDEr"]
    assert turned.difference == pytest.approx(-difference.difference)
    same = evaluate_captions(path, data, against=path, metrics=METRICS).differences
    assert {one.p_value for one in same.values()} == {1.0}
    assert set(same) == set(found.intervals)


def test_one_caption_against_several(data: str, tmp_path: Path) -> None:
    path, other = write(tmp_path / "several.json", SEVERAL), write(tmp_path / "one.json", CAPTIONS)
    found = evaluate_captions(path, data, against=other, metrics=METRICS)
    assert "Div_1" in found.corpus
    assert "Div_1" not in found.differences
    line = next(row for row in evaluation_table(found)[1] if row[0] == "Div_1")
    assert line[-4:] == ["–", "–", "–", "–"]


def test_near_duplicates_are_drawn_together(tmp_path: Path) -> None:
    images = [
        {
            "filename": f"{i}.jpg",
            "split": "test",
            "family": str(i // 4),
            "sentences": [{"raw": t} for t in texts(i // 4, 2)],
        }
        for i in range(40)
    ]
    captions = {str(i): texts(50 + i // 4, 1)[0] for i in range(40)}
    path = write(tmp_path / "captions.json", captions)
    together = evaluate_captions(path, str(write(tmp_path / "together.json", {"images": images})), metrics=["rouge"])
    for image in images:
        del image["family"]
    apart = evaluate_captions(path, str(write(tmp_path / "apart.json", {"images": images})), metrics=["rouge"])
    wide, narrow = together.intervals["ROUGE_L"], apart.intervals["ROUGE_L"]
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_one_image_has_no_interval(tmp_path: Path) -> None:
    images = [{"filename": "1.jpg", "split": "test", "sentences": [{"raw": "a dog runs"}]}]
    data = str(write(tmp_path / "karpathy.json", {"images": images}))
    path = write(tmp_path / "captions.json", {"1": "a dog"})
    found = evaluate_captions(path, data, against=path, metrics=METRICS)
    assert (found.intervals, found.differences) == ({}, {})
    assert found.corpus["mean_length"] == 2.0
    assert "mean_length" in [row[0] for row in evaluation_table(found)[1]]


# --- files written ----------------------------------------------------------------------------------------------------


def test_written_beside_the_captions_or_elsewhere(data: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    path = write(folder / "captions.json", CAPTIONS)
    found = evaluate_captions(path, data, against=write(tmp_path / "better.json", BETTER), metrics=METRICS)
    expected = ["captions.json", "differences.json", "per_image.jsonl", "scores.json"]
    assert sorted(file.name for file in folder.iterdir()) == expected
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    assert scores["corpus"] == found.corpus
    assert scores["intervals"]["CIDEr"] == [found.intervals["CIDEr"].low, found.intervals["CIDEr"].high]
    assert (scores["captions"], scores["data"], scores["split"]) == ("captions.json", "karpathy", "test")
    assert (scores["images"], scores["captions_per_image"]) == (IMAGES, 1)
    differences = json.loads((folder / "differences.json").read_text(encoding="utf-8"))
    assert Path(differences["against"]).name == "better.json"
    assert differences["differences"]["CIDEr"]["p_value"] == found.differences["CIDEr"].p_value
    rows = [json.loads(line) for line in (folder / "per_image.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows == found.rows
    evaluate_captions(path, data, out=tmp_path / "new" / "folder", metrics=METRICS)
    assert not (tmp_path / "new" / "folder" / "differences.json").exists()


def test_the_same_twice(data: str, tmp_path: Path) -> None:
    path = write(tmp_path / "captions.json", SEVERAL)
    assert evaluate_captions(path, data, metrics=METRICS) == evaluate_captions(path, data, metrics=METRICS)


def test_a_file_of_the_users_is_not_overwritten(data: str, tmp_path: Path) -> None:
    path, mine = write(tmp_path / "captions.json", CAPTIONS), write(tmp_path / "scores.json", {"mine": 1})
    with pytest.raises(DataError, match=r"scores\.json: exists and was not written by tellapart"):
        evaluate_captions(path, data, metrics=METRICS)
    assert json.loads(mine.read_text(encoding="utf-8")) == {"mine": 1}


@pytest.mark.parametrize("split", ["test", "val"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("scores", '{"mine": 1}'),
        ("per_image", '{"id": "0", "caption": "a file of captions"}'),
        ("differences", "notes"),
    ],
)
def test_outputs_are_checked_before_the_work(
    data: str, tmp_path: Path, name: str, content: str, split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CaptionScorer", lambda *_: pytest.fail("measured before the outputs were checked"))
    monkeypatch.setattr(module, "captions_of_images", lambda *_: [])
    path = write(tmp_path / "captions.json", CAPTIONS)
    ending = "jsonl" if name == "per_image" else "json"
    mine = tmp_path / "out" / (f"{name}.{ending}" if split == "test" else f"{name}-{split}.{ending}")
    mine.parent.mkdir()
    mine.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=rf"{mine.name}: exists and was not written by tellapart"):
        evaluate_captions(path, data, split=split, out=mine.parent, against=path)
    mine.rename(tmp_path / "file")
    with pytest.raises(DataError, match="file: this is a file, and a folder is needed"):
        evaluate_captions(path, data, split=split, out=tmp_path / "file")
    assert (tmp_path / "file").read_text(encoding="utf-8") == content
    assert not list(mine.parent.iterdir())


def test_differences_of_the_users_do_not_matter_alone(data: str, tmp_path: Path) -> None:
    path, mine = write(tmp_path / "captions.json", CAPTIONS), write(tmp_path / "differences.json", {"mine": 1})
    evaluate_captions(path, data, metrics=["cider"])
    assert json.loads(mine.read_text(encoding="utf-8")) == {"mine": 1}


def test_a_finished_evaluation_is_found_in_a_read_only_folder(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "captions.json", CAPTIONS)
    found = evaluate_captions(path, data, metrics=["cider"])

    def read_only(*_: Any) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("os.fsync", read_only)
    assert evaluate_captions(path, data, metrics=["cider"]) == found
    with pytest.raises(DataError, match=r"files cannot be written here \(Read-only file system\)"):
        evaluate_captions(path, data, metrics=["bleu"])


def test_consensus_keeps_the_best_captions(tmp_path: Path) -> None:
    """Captions like those of similar training pictures are kept."""
    images = []
    for colour, text in (("red", "a red bus"), ("blue", "a blue sea")):
        for split in ("train", "test"):
            Image.new("RGB", (48, 48), colour).save(tmp_path / f"{split}-{colour}.png")
            sentences = [{"raw": text if split == "train" else "a hen"}]
            images.append({"filename": f"{split}-{colour}.png", "split": split, "sentences": sentences})
    folder = write(tmp_path / "karpathy.json", {"images": images})
    said = {id: ["a blue sea", "a red bus"] for id in ("test-red", "test-blue")}
    path = write(tmp_path / "captions.json", said)
    found = evaluate_captions(path, str(folder), consensus=1, similar=1, metrics=["cider"], out=tmp_path / "out")
    assert set(found.corpus) == {"CIDEr", "CIDErBtw"}
    assert all(len(captions) == 1 for captions in found.captions.values())
    # With two training pictures both are neighbours, and a tie keeps the first caption.
    assert set(map(tuple, found.captions.values())) == {("a blue sea",)}
    with pytest.raises(DataError, match="the best 3 cannot be taken"):
        evaluate_captions(path, str(folder), consensus=3, metrics=["cider"], out=tmp_path / "out")
    with pytest.raises(DataError, match="2 similar images cannot be found in a split of 2"):
        evaluate_captions(path, str(folder), similar=2, metrics=["cider"], out=tmp_path / "out")


def test_scores_of_a_run_are_not_overwritten(data: str, tmp_path: Path) -> None:
    write(tmp_path / "run.json", {})
    path = write(tmp_path / "captions.json", CAPTIONS)
    with pytest.raises(DataError, match=r"run folder keeps the run's own scores.*--out"):
        evaluate_captions(path, data, metrics=METRICS)
    assert not (tmp_path / "scores.json").exists()
    evaluate_captions(path, data, out=tmp_path / "out", metrics=METRICS)


def test_captions_are_not_overwritten(data: str, tmp_path: Path) -> None:
    # Rows of an earlier evaluation are captions too.
    evaluate_captions(write(tmp_path / "captions.json", CAPTIONS), data, metrics=METRICS)
    rows = tmp_path / "per_image.jsonl"
    before = rows.read_text(encoding="utf-8")
    with pytest.raises(DataError, match=r"per_image\.jsonl: is an input and is not overwritten; choose another --out"):
        evaluate_captions(rows, data, metrics=METRICS)
    with pytest.raises(DataError, match=r"per_image\.jsonl: is an input and is not overwritten"):
        evaluate_captions(tmp_path / "captions.json", data, against=rows, metrics=METRICS)
    assert rows.read_text(encoding="utf-8") == before
    again = evaluate_captions(rows, data, out=tmp_path / "out", metrics=METRICS)
    assert again.captions == {id: [text] for id, text in CAPTIONS.items()}


@pytest.mark.parametrize(
    ("captions", "told"),
    [
        (
            {id: text for id, text in CAPTIONS.items() if id != "7"} | {"99": "a dog", "x": "a dog"},
            r"'99' \(2 such ids\) is not in split 'test'; 11 of 13 ids are: check --split, or name the images by id, "
            "COCO id or file name",
        ),
        (
            {"train0": "a", "train1": "b"},
            r"'train0' \(2 such ids\) is not in split 'test'; 0 of 2 ids are: check --split",
        ),
        ({id: text for id, text in CAPTIONS.items() if id != "7"}, r"'7' has no caption; every image of split 'test'"),
        ({"0": "a dog", "1": "a cat"}, r"10 images \('2', …\) have no caption; .*, and 2 of 12 have one"),
        ({**CAPTIONS, "a/7.jpg": "a dog"}, r"'7' and 'a/7.jpg' both mean the image '7'"),
    ],
)
def test_images_that_do_not_match(data: str, tmp_path: Path, captions: dict[str, str], told: str) -> None:
    right, wrong = write(tmp_path / "right.json", CAPTIONS), write(tmp_path / "wrong.json", captions)
    with pytest.raises(DataError, match=rf"wrong\.json: {told}"):
        evaluate_captions(wrong, data, metrics=METRICS)
    with pytest.raises(DataError, match=rf"wrong\.json: {told}"):
        evaluate_captions(right, data, against=wrong, metrics=METRICS)
    assert not (tmp_path / "scores.json").exists()


def test_captions_of_further_images_are_left_out(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right = write(tmp_path / "right.json", CAPTIONS)
    more = write(tmp_path / "more.json", {"98": "a cat", **CAPTIONS, "99": "a dog"})
    alone = evaluate_captions(right, data, out=tmp_path / "right", metrics=METRICS)
    assert "left out" not in capsys.readouterr().err
    among_others = evaluate_captions(more, data, out=tmp_path / "more", metrics=METRICS)
    assert "more.json: left out the captions of 2 images not in split 'test' ('98', …)" in capsys.readouterr().err
    assert among_others.captions == alone.captions


def test_pictures_without_references(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "beach.png")
    path = write(tmp_path / "captions.json", {"beach.png": "a beach"})
    with pytest.raises(DataError, match=r"'beach\.png' has no reference caption"):
        evaluate_captions(path, str(tmp_path))


# --- the command ------------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    all_of_them = evaluate

    def without_meteor(*arguments: Any, **options: Any) -> Any:
        return all_of_them(*arguments, **{**options, "metrics": METRICS})

    monkeypatch.setattr(caption_scorer, "evaluate", without_meteor)

    def call(*arguments: str | Path) -> Result:
        monkeypatch.setattr(sys, "argv", ["tellapart", "evaluate", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = capsys.readouterr()
        return Result(int(caught.value.code or 0), printed.out, printed.err)

    return call


def test_command_prints_a_table(run: Run, data: str, tmp_path: Path) -> None:
    path, other = write(tmp_path / "a.json", CAPTIONS), write(tmp_path / "b.json", BETTER)
    plain = run(path, "--data", data)
    assert (plain.status, plain.err) == (0, "")
    assert re.search(r"^ +\S*a\.json +95 % interval\n", plain.out)
    assert re.search(r"\nCIDEr +\d\.\d{4} +\[\d\.\d{4}, \d\.\d{4}\]\n", plain.out)
    assert re.search(r"\ndistinct +\d\.\d{4} +–\n", plain.out)
    paired = run(path, "--data", data, "--against", other, "--out", tmp_path / "out")
    assert paired.status == 0
    assert re.search(r"\nBleu_4 +\S+ +\[\S+ \S+\] +\S+ +-\d\.\d{4} +\[-\S+ -\S+\] +0\.\d{4}\n", paired.out)
    assert (tmp_path / "out" / "scores.json").exists()


def test_command_tells_what_is_wrong(run: Run, data: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", CAPTIONS)
    for arguments, told in (
        ((path,), "a.json: name the data set that holds the references with --data"),
        (("none.json", "--data", data), "none.json: this caption file does not exist"),
        ((path, "--data", data, "--against", "none.json"), "none.json: this caption file does not exist"),
        ((path, "--data", data, "--split", "val"), "no image is in the split 'val'"),
        ((tmp_path, "--against", path), "this is not a run folder"),
    ):
        result = run(*arguments)
        assert (result.status, result.out) == (2, "")
        assert result.err.startswith("tellapart: ")
        assert told in result.err
        assert result.err.count("\n") == 1


def test_long_work_shows_progress(run: Run, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caption_scorer, "_BLOCK", 5)
    told = run(write(tmp_path / "a.json", SEVERAL), "--data", data).err
    assert f"tokenising references {3 * IMAGES}/{3 * IMAGES}" in told
    assert f"tokenising captions {4 * IMAGES}/{4 * IMAGES}" in told
    assert "measuring several captions per image 4/4" in told
