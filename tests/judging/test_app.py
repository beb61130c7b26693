"""What the server tells a rater, and what it takes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tellapart.data.records import Dataset
from tellapart.judging.answers import Answers, read_answers
from tellapart.judging.trial import QUESTIONS, Trial

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from starlette.testclient import TestClient

from tellapart.judging.app import create_app, links

HERE = "http://127.0.0.1"


@pytest.fixture
def answers(tmp_path: Path, trial: Trial) -> Iterator[Answers]:
    with Answers(tmp_path / "answers.jsonl", trial) as opened:
        yield opened


@pytest.fixture
def client(answers: Answers, dataset: Dataset) -> TestClient:
    return TestClient(create_app(answers, dataset), base_url=HERE)


def test_a_rater_gets_every_picture_once_and_what_was_answered(client: TestClient, trial: Trial) -> None:
    first = client.post("/api/start", json={"rater": "Anna"}).json()
    assert [task["item"] for task in first["tasks"]] == trial.asked("Anna")
    assert first["questions"] == QUESTIONS
    for task in first["tasks"]:
        item = trial.items[task["item"]]
        assert {task["left"], task["right"]} == {item.a, item.b}
        assert (task["left"] == item.a) == trial.a_is_left("Anna", item.id)
        assert task["answers"] == {}
    given = {"rater": "Anna", "item": first["tasks"][2]["item"], "question": "relevance", "choice": "tie"}
    assert client.post("/api/answers", json=given).json() == {"stored": True}
    again = client.post("/api/start", json={"rater": "anna "}).json()
    assert again["tasks"][2]["answers"] == {"relevance": "tie"}
    assert [task["item"] for task in again["tasks"]] == [task["item"] for task in first["tasks"]]


def test_a_rater_learns_nothing_about_the_systems(client: TestClient) -> None:
    told = client.post("/api/start", json={"rater": "Anna"}).text + client.get("/").text
    assert "plain" not in told.replace("text/plain", "")
    assert "special" not in told
    assert ".jpg" not in told


def test_pictures_have_no_metadata(client: TestClient, trial: Trial, dataset: Dataset) -> None:
    place = trial.asked("Anna")[0]
    source = dataset.path(dataset.records[dataset.row(trial.items[place].id)]).read_bytes()
    assert b"SECRET" in source
    got = client.get(f"/api/pictures/{place}")
    assert got.headers["content-type"] == "image/jpeg"
    assert b"SECRET" not in got.content
    with Image.open(io.BytesIO(got.content)) as image:
        assert image.size == (320, 200)
        assert not image.getexif()


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"item": 99}, 404),
        ({"item": -1}, 404),
        ({"question": "taste"}, 404),
        ({"choice": "a"}, 422),
        ({"rater": ""}, 422),
        ({"rater": "x" * 300}, 422),
        ({"item": "first"}, 422),
    ],
)
def test_what_was_not_asked_is_refused(
    client: TestClient, answers: Answers, trial: Trial, change: dict[str, object], status: int
) -> None:
    given = {"rater": "Anna", "item": trial.asked("Anna")[0], "question": "fluency", "choice": "tie", **change}
    got = client.post("/api/answers", json=given)
    assert got.status_code == status
    assert got.json()["error"]["message"]
    assert read_answers(answers.path)[1] == []


def test_an_identical_pair_cannot_be_judged(client: TestClient, trial: Trial) -> None:
    same = next(place for place, item in enumerate(trial.items) if item.identical)
    given = {"rater": "Anna", "item": same, "question": "fluency", "choice": "left"}
    assert client.post("/api/answers", json=given).status_code == 404
    assert client.get(f"/api/pictures/{same}").status_code == 404


def test_a_picture_that_is_gone_is_said_without_its_path(client: TestClient, trial: Trial, pictures: Path) -> None:
    place = trial.asked("Anna")[0]
    (pictures / trial.items[place].id).unlink()
    got = client.get(f"/api/pictures/{place}")
    assert got.status_code == 404
    assert trial.items[place].id not in got.text


def test_an_answer_that_cannot_be_stored_is_not_confirmed(
    client: TestClient, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Answers, row: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Answers, "_append", full)
    given = {"rater": "Anna", "item": trial.asked("Anna")[0], "question": "fluency", "choice": "left"}
    got = client.post("/api/answers", json=given)
    assert got.status_code == 507
    assert "No space left" in got.json()["error"]["message"]


def test_with_links_only_the_named_raters_may_judge(answers: Answers, dataset: Dataset, trial: Trial) -> None:
    client = TestClient(create_app(answers, dataset, ["Anna", "Ben"]), base_url=HERE)
    found = links("http://127.0.0.1:8000/#token=t", answers, ["Anna", "Ben"])
    keys = {name: link.partition("#token=t&rater=")[2] for name, link in found.items()}
    assert len(set(keys.values())) == 2
    assert "anna" not in keys["Anna"].lower()
    assert client.get("/api/about").json() == {"links": True}
    assert client.post("/api/start", json={"rater": keys["Ben"]}).json()["rater"] == "Ben"
    for stranger in ("Anna", "", "0" * 24):
        assert client.post("/api/start", json={"rater": stranger}).status_code == 403


def test_with_a_token_nothing_is_told_without_it(answers: Answers, dataset: Dataset, trial: Trial) -> None:
    client = TestClient(create_app(answers, dataset, token="t" * 20), base_url="http://judge.example")
    assert client.get("/").status_code == 200
    assert client.post("/api/start", json={"rater": "Anna"}).status_code == 401
    assert client.get(f"/api/pictures/{trial.asked('Anna')[0]}").status_code == 401
    client.headers["authorization"] = f"Bearer {'t' * 20}"
    assert client.post("/api/start", json={"rater": "Anna"}).status_code == 200
