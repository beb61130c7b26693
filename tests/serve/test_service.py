"""The service with tiny models: every address against the library, limits, batches."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="comes with the extra 'serve'")
pytest.importorskip("lancedb", reason="comes with the extra 'index'")

from fastapi import FastAPI
from PIL import ExifTags, Image
from starlette.testclient import TestClient
from typer.testing import CliRunner

import tellapart
from support.services import HOST, as_files, make_settings, picture_bytes
from tellapart.cli.commands import app as commands
from tellapart.errors import StoreError, TellapartError
from tellapart.index.base import row_id
from tellapart.serve.app import Service, create_app
from tellapart.serve.collection import Collection
from tellapart.serve.pictures import thumbnail
from tellapart.serve.settings import ServeSettings
from tellapart.serve.uploads import Upload, Uploads
from tellapart.serve.web import Refusal
from tellapart.serve.work import Kind, Room, Work

PICTURES = [picture_bytes(100 + seed) for seed in range(5)]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ServeSettings:
    return make_settings(tmp_path_factory.mktemp("service"))


@pytest.fixture(scope="module")
def client(settings: ServeSettings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), base_url=HOST) as client:
        yield client


def service_of(client: TestClient) -> Service:
    app = client.app
    assert isinstance(app, FastAPI)
    service: Service = app.state.service
    return service


def send(client: TestClient, *contents: bytes) -> list[dict[str, Any]]:
    answer = client.post("/api/captions", files=as_files(*contents))
    assert answer.status_code == 200, answer.text
    pictures: list[dict[str, Any]] = answer.json()["pictures"]
    return pictures


def ask(client: TestClient, path: str, **asked: Any) -> dict[str, Any]:
    answer = client.post(path, json=asked)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(client: TestClient, path: str, **asked: Any) -> tuple[int, str]:
    answer = client.post(path, json=asked)
    return answer.status_code, answer.json()["error"]["code"]


# --- captions ---------------------------------------------------------------------------------------------------------


def test_captions_are_those_of_the_library(client: TestClient, settings: ServeSettings) -> None:
    model = tellapart.load(settings.models[0])
    found = send(client, *PICTURES)
    expected = model.caption(PICTURES)
    assert [one["caption"] for one in found] == [one.caption for one in expected]
    assert [one["log_probability"] for one in found] == pytest.approx([one.log_prob for one in expected], rel=1e-4)
    assert [one["name"] for one in found] == [f"photo-{number}.png" for number in range(5)]
    assert len({one["id"] for one in found}) == 5
    for one, content in zip(found, PICTURES, strict=True):
        score = model.score(content, one["caption"])
        assert (one["width"], one["height"], one["grid"], one["error"]) == (16, 16, [2, 2], None)
        assert [word["word"] for word in one["words"]] == one["caption"].split()
        for word, own in zip(one["words"], score.words, strict=False):
            assert word["log_probability"] == pytest.approx(own.log_prob, rel=1e-4)
            assert len(word["attention"]) == 4
            assert sum(word["attention"]) <= 1.001


def test_captions_without_words(client: TestClient) -> None:
    (with_words,) = send(client, PICTURES[1])
    answer = client.post("/api/captions?words=false", files=as_files(PICTURES[1]))
    (one,) = answer.json()["pictures"]
    assert one["words"] == []
    assert (one["caption"], one["grid"]) == (with_words["caption"], [2, 2])


def test_a_broken_picture_does_not_spoil_the_others(client: TestClient) -> None:
    good, broken, empty, text = send(client, PICTURES[0], PICTURES[0][:60], b"", b"no picture")
    assert good["error"] is None
    assert [one["error"]["code"] for one in (broken, empty, text)] == ["broken", "empty", "format"]
    for one in (broken, empty, text):
        assert one["id"] is None
        assert one["words"] == []
        assert one["error"]["message"].startswith(one["name"])


def test_sizes_are_those_of_the_upright_picture(client: TestClient) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    turned = picture_bytes(1, (40, 20), "JPEG", exif=exif)
    (one,) = send(client, turned)
    assert (one["width"], one["height"]) == (20, 40)


def test_names_are_only_shown(client: TestClient) -> None:
    name = "../../etc/<script>\n" + "x" * 500 + ".png"
    answer = client.post("/api/captions", files=[("files", (name, PICTURES[0]))])
    (one,) = answer.json()["pictures"]
    assert "/" not in one["name"]
    assert "\n" not in one["name"]
    assert len(one["name"]) <= 100


# --- search -----------------------------------------------------------------------------------------------------------


def test_search_is_that_of_the_index(client: TestClient) -> None:
    index = service_of(client).collection.index  # type: ignore[union-attr]
    found = ask(client, "/api/search", query="a red house zeppelin", limit=5)
    expected = index.search("a red house zeppelin", 5)
    assert [one["id"] for one in found["results"]] == [row_id(one.path) for one in expected]
    assert [one["score"] for one in found["results"]] == pytest.approx([one.similarity for one in expected])
    assert found["unknown_words"] == ["zeppelin"]
    assert "/photos/" not in str(found)  # no path of the server


def test_uploads_are_found_by_who_knows_their_ids(client: TestClient) -> None:
    mine = send(client, *PICTURES[:3])
    ids = [one["id"] for one in mine]
    found = ask(client, "/api/search", query="a tree", among="uploads", ids=[*ids, "u-gone"])
    assert {one["id"] for one in found["results"]} == set(ids)
    assert found["forgotten"] == ["u-gone"]
    assert ask(client, "/api/search", query="a tree", among="uploads")["results"] == []
    both = ask(client, "/api/search", query="a tree", among="both", ids=ids, limit=50)["results"]
    assert len(both) == 12 + 3
    assert [one["score"] for one in both] == sorted((one["score"] for one in both), reverse=True)
    assert {one["where"] for one in both} == {"collection", "upload"}


def test_search_by_a_picture(client: TestClient, settings: ServeSettings) -> None:
    path = Path(str(settings.collection)).parent / "photos" / "003.png"
    (upload,) = send(client, path.read_bytes())
    first = ask(client, "/api/search/picture", id=upload["id"], limit=3)["results"][0]
    assert first["name"] == "003.png"
    assert first["score"] == pytest.approx(1, abs=1e-4)
    others = ask(client, "/api/search/picture", id=first["id"], limit=3, among="both", ids=[upload["id"]])["results"]
    assert len(others) == 3
    assert others[0]["id"] == upload["id"]  # the photograph itself is left out
    assert first["id"] not in [one["id"] for one in others]


def test_fetches_ranks_the_picture_among_all(client: TestClient, settings: ServeSettings) -> None:
    folder = Path(str(settings.collection)).parent / "photos"
    contents = [*PICTURES, (folder / "004.png").read_bytes()]  # the last is in the collection too
    uploads = [one["id"] for one in send(client, *contents)]
    model = tellapart.load(settings.models[0], settings.retriever)
    photos = [path.read_bytes() for path in sorted(folder.iterdir())]
    for place in (0, 5):
        found = ask(client, "/api/fetches", caption="a red car", id=uploads[place], ids=uploads, limit=30)
        rest = photos if place == 0 else [one for number, one in enumerate(photos) if number != 4]
        scores = model.similarities([contents[place], *contents[:place], *contents[place + 1 :], *rest], "a red car")
        assert found["rank"] == 1 + sum(score >= scores[0] for score in scores[1:])
        assert found["of"] == len(scores) == len(found["results"])
        assert found["rank_is_exact"]
        assert found["log_probability"] == pytest.approx(model.score(contents[place], "a red car").log_prob, rel=1e-4)
        assert [(one["word"], one["known"]) for one in found["words"]] == [("a", True), ("red", True), ("car", False)]


def test_thumbnails(client: TestClient) -> None:
    (found,) = ask(client, "/api/search", query="a tree", limit=1)["results"]
    answer = client.get(found["thumbnail"])
    assert answer.headers["content-type"] == "image/jpeg"
    assert "private" in answer.headers["cache-control"]
    with Image.open(io.BytesIO(answer.content)) as image:
        assert image.size == (16, 16)
    for id in ("0" * 32, "x", "..", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "' OR '1'='1", "0" * 31 + "'"):
        assert client.get(f"/api/collection/{id}/thumbnail").status_code == 404


def test_thumbnails_have_no_metadata(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    exif[ExifTags.Base.Artist] = "Ada"
    path = tmp_path / "a.jpg"
    path.write_bytes(picture_bytes(0, (800, 400), "JPEG", exif=exif, comment=b"at home", icc_profile=b"profile" * 20))
    made = thumbnail(path)
    with Image.open(io.BytesIO(made)) as image:
        assert image.size == (160, 320)
        assert not image.getexif()
        assert {"exif", "comment", "icc_profile"}.isdisjoint(image.info)
    assert b"Ada" not in made


def test_a_lost_file_has_no_thumbnail(tmp_path: Path) -> None:
    with TestClient(create_app(make_settings(tmp_path, photos=2)), base_url=HOST) as client:
        for path in (tmp_path / "photos").iterdir():
            path.unlink()
        found = ask(client, "/api/search", query="a tree")["results"]
        assert client.get(found[0]["thumbnail"]).status_code == 404
        (upload,) = send(client, PICTURES[0])
        told = ask(client, "/api/tell-apart", ids=[upload["id"]], distractors=2)
        assert told["groups"][0]["distractors"] == []


def test_a_damaged_collection_is_no_failure_of_the_service(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> None:
        raise StoreError("/secret/photos.lance: this index cannot be used")

    monkeypatch.setattr(service_of(client).collection, "find", fail)
    answer = client.post("/api/search", json={"query": "a tree"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "collection")
    assert "secret" not in answer.text
    assert "secret" in caplog.text


# --- telling apart ----------------------------------------------------------------------------------------------------


def test_told_apart_as_by_the_library(client: TestClient, settings: ServeSettings, tmp_path: Path) -> None:
    """The same pictures in one group, without distractors: captions and ranks of `tellapart.tell_apart`."""
    from tellapart.telling_apart.settings import TellApartSettings

    uploads = send(client, *PICTURES)
    (group,) = ask(client, "/api/tell-apart", ids=[one["id"] for one in uploads], one_group=True)["groups"]
    one_group = TellApartSettings(one_group=True, samples=0)
    expected = tellapart.tell_apart(
        [Image.open(io.BytesIO(content)) for content in PICTURES], settings.models[0], settings.retriever, one_group
    ).pictures
    for one, upload, known in zip(group["pictures"], uploads, expected, strict=True):
        assert one["id"] == upload["id"]
        assert one["plain"]["caption"] == upload["caption"] == known.plain
        assert one["plain"]["rank"] == known.plain_rank
        assert one["distinctive"]["of"] == known.of == 5
        assert one["distinctive"]["rank"] <= one["plain"]["rank"]
        assert [word["word"] for word in one["distinctive"]["words"]] == one["distinctive"]["caption"].split()


def test_the_same_picture_twice_is_one(client: TestClient) -> None:
    first, copy, other = send(client, PICTURES[0], PICTURES[0], PICTURES[1])
    ids = [one["id"] for one in (first, copy, other)]
    (group,) = ask(client, "/api/tell-apart", ids=ids, one_group=True)["groups"]
    told = {one["id"]: one for one in group["pictures"]}
    assert [one["same_as"] for one in group["pictures"]] == [None, first["id"], None]
    assert told[copy["id"]]["distinctive"] == told[first["id"]]["distinctive"]
    assert {one["distinctive"]["of"] for one in group["pictures"]} == {2}


def test_words_that_all_captions_have_are_not_marked(client: TestClient) -> None:
    uploads = send(client, *PICTURES)
    (group,) = ask(client, "/api/tell-apart", ids=[one["id"] for one in uploads], one_group=True)["groups"]
    for kind in ("plain", "distinctive"):
        said = [one[kind] for one in group["pictures"]]
        shared = set.intersection(*(set(one["caption"].split()) for one in said))
        marked = {word["word"] for one in said for word in one["words"] if word["distinguishing"]}
        assert marked
        assert not marked & shared


def test_distractors_come_from_the_collection(client: TestClient, settings: ServeSettings) -> None:
    path = Path(str(settings.collection)).parent / "photos" / "003.png"
    ids = [one["id"] for one in send(client, path.read_bytes(), PICTURES[0])]
    (group,) = ask(client, "/api/tell-apart", ids=ids, one_group=True, distractors=4)["groups"]
    assert len(group["distractors"]) == 4
    assert "003.png" not in [one["name"] for one in group["distractors"]]  # it is the first picture
    assert [one["distinctive"]["of"] for one in group["pictures"]] == [6, 6]
    apart = ask(client, "/api/tell-apart", ids=ids)["groups"]
    assert sorted(one["id"] for group in apart for one in group["pictures"]) == sorted(ids)


def test_refusals(client: TestClient) -> None:
    ids = [one["id"] for one in send(client, PICTURES[0])]
    answer = client.post("/api/tell-apart", json={"ids": [*ids, "u1", "u2"]})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "forgotten"
    assert answer.json()["error"]["ids"] == ["u1", "u2"]
    assert refused(client, "/api/fetches", caption="a", id="u1") == (404, "forgotten")
    assert refused(client, "/api/search/picture", id="u1") == (404, "forgotten")
    assert refused(client, "/api/search/picture", id="0" * 32) == (404, "not_found")
    assert refused(client, "/api/search", query="  ") == (422, "invalid")
    assert refused(client, "/api/search", query="x" * 501) == (422, "invalid")
    assert refused(client, "/api/search", query="a", limit=0) == (422, "invalid")
    assert refused(client, "/api/search", query="a", typo=1) == (422, "invalid")
    assert refused(client, "/api/tell-apart", ids=[]) == (422, "invalid")
    for kind in ({}, {"content-type": "application/x-www-form-urlencoded"}):  # as curl -d sends it
        untold = client.post("/api/search", content=b'{"query": "a tree"}', headers=kind)
        assert untold.status_code == 422
        assert "Content-Type: application/json" in untold.json()["error"]["message"]
    told = client.post("/api/search", content=b"[]", headers={"content-type": "application/json; charset=utf-8"})
    assert "Content-Type" not in told.json()["error"]["message"]
    deep = client.post("/api/search", content=b"[" * 100_000, headers={"content-type": "application/json"})
    assert deep.status_code in (400, 422)
    many = [one["id"] for _ in range(4) for one in send(client, *PICTURES)][:17]
    assert refused(client, "/api/tell-apart", ids=many) == (413, "too_many")


def test_without_a_collection(tmp_path: Path) -> None:
    with TestClient(create_app(make_settings(tmp_path, photos=0)), base_url=HOST) as client:
        assert client.get("/api/about").json()["collection"] is None
        ids = [one["id"] for one in send(client, *PICTURES[:2])]
        assert len(ask(client, "/api/search", query="a tree", among="both", ids=ids)["results"]) == 2
        assert refused(client, "/api/search", query="a tree") == (404, "no_collection")
        assert refused(client, "/api/search/picture", id="0" * 32) == (404, "no_collection")
        assert refused(client, "/api/tell-apart", ids=ids, distractors=1) == (422, "no_collection")
        assert client.get(f"/api/collection/{'0' * 32}/thumbnail").status_code == 404
        assert ask(client, "/api/fetches", caption="a tree", id=ids[0], ids=ids)["of"] == 2


def test_about_health_and_metrics(client: TestClient) -> None:
    about = client.get("/api/about").json()
    assert about["collection"] == {"name": "photos.lance", "pictures": 12}
    assert about["captioner"]["encoder"] == "colours"
    assert about["limits"]["max_pictures"] == 16
    assert client.get("/health").json() == {"status": "ok"}
    send(client, PICTURES[0])
    client.get("/nowhere/" + "x" * 50)
    text = client.get("/metrics").text
    assert 'tellapart_requests_total{method="POST",route="/api/captions",status="200"}' in text
    assert "nowhere" not in text  # else a client could add any number of series
    assert 'tellapart_batch_items_count{kind="captions"}' in text
    assert "tellapart_waiting_captions 0.0" in text
    status = service_of(client).status
    status.stopping = True
    assert client.get("/health").json() == {"status": "stopping"}
    status.stopping = False


def test_about_says_which_models_are_shipped(
    client: TestClient, settings: ServeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shipped() -> list[bool]:
        about = client.get("/api/about").json()
        return [about[kind]["shipped"] for kind in ("captioner", "retriever")]

    assert shipped() == [False, False]
    monkeypatch.setattr("tellapart.shipped.shipped_models", lambda: settings.models[0].parent)
    assert shipped() == [True, True]


def test_nothing_is_written(client: TestClient, settings: ServeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.open

    def watched(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        assert not set(mode) & set("wax+"), f"{file} is written"
        return real(file, mode, *args, **kwargs)

    before = {path: path.stat().st_mtime_ns for path in Path(str(settings.collection)).parent.rglob("*")}
    monkeypatch.setattr(builtins, "open", watched)
    ids = [one["id"] for one in send(client, *PICTURES[:2])]
    ask(client, "/api/tell-apart", ids=ids, one_group=True, distractors=2)
    ask(client, "/api/fetches", caption="a tree", id=ids[0])
    assert {path: path.stat().st_mtime_ns for path in Path(str(settings.collection)).parent.rglob("*")} == before


# --- queue and batches ------------------------------------------------------------------------------------------------


def test_requests_are_batched_and_the_queue_is_bounded(tmp_path: Path) -> None:
    app = create_app(make_settings(tmp_path, photos=0, queue=20, batch=8))
    service: Service = app.state.service
    kind = service.work.kinds["captions"]
    go, sizes, caption = threading.Event(), [], kind.do

    def wait(pictures: list[Any]) -> Any:
        go.wait(30)
        sizes.append(len(pictures))
        return caption(pictures)

    kind.do = wait

    async def use() -> tuple[list[httpx.Response], httpx.Response]:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HOST) as client,
        ):
            files = as_files(*PICTURES[:2])
            waiting = [asyncio.create_task(client.post("/api/captions", files=files)) for _ in range(10)]
            while service.rooms["captions"].taken < 20:
                await asyncio.sleep(0.01)
            refused = await client.post("/api/captions", files=files)
            health = await client.get("/health")  # answered while the models work
            assert health.status_code == 200
            while len(kind.waiting) < 10:
                await asyncio.sleep(0.01)
            go.set()
            return await asyncio.gather(*waiting), refused

    accepted, refused = asyncio.run(use())
    assert [one.status_code for one in accepted] == [200] * 10
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "busy"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert sum(sizes) == 20
    assert max(sizes) == 8  # of four requests
    assert service.rooms["captions"].taken == 0


def test_a_failing_item_does_not_spoil_its_batch() -> None:
    def halve(items: list[int]) -> list[float]:
        return [1 / item for item in items]

    work = Work({"halve": Kind(halve, batch=8), "other": Kind(halve, batch=8)})

    async def use() -> list[Any]:
        several = asyncio.gather(*(work.do("halve", [item]) for item in (1, 0, 2)), return_exceptions=True)
        await asyncio.sleep(0)
        work.start()  # now, so that they are one batch
        found: list[Any] = await several
        return found

    first, failed, third = asyncio.run(use())
    assert (first, third) == ([1.0], [0.5])
    assert isinstance(failed, ZeroDivisionError)
    assert work.alive
    work.close()
    assert not work.alive


def test_kinds_take_turns() -> None:
    done: list[str] = []

    def note(name: str) -> Kind:
        return Kind(lambda items: [done.append(name) for _ in items], batch=2)

    work = Work({"long": note("long"), "short": note("short")})

    async def use() -> None:
        both = asyncio.gather(work.do("long", range(6)), work.do("short", range(1)))
        await asyncio.sleep(0)
        work.start()
        await both

    asyncio.run(use())
    work.close()
    assert done == ["long", "long", "short", "long", "long", "long", "long"]


def test_a_room_is_left_after_an_error() -> None:
    room = Room(2)
    with pytest.raises(ZeroDivisionError), room.take(2):
        raise ZeroDivisionError
    with room.take(2), pytest.raises(Refusal, match="busy"), room.take():
        pass
    assert room.taken == 0


def test_uploads_are_forgotten() -> None:
    now = 0.0
    uploads = Uploads(most=3, seconds=100, clock=lambda: now)

    def keep() -> str:
        features = np.zeros((1, 1), np.float32)
        upload = Upload("a.jpg", "a", features, features, b"")
        uploads.keep(upload)
        return upload.id

    first, second, third = keep(), keep(), keep()
    uploads.need([first])  # used again: the second is now the oldest
    fourth = keep()
    assert uploads.find([first, second, third, fourth])[1] == [second]
    now = 99
    uploads.need([third])
    now = 150
    assert [one.id for one in uploads.find([first, third, fourth, third])[0]] == [third]
    assert len(uploads) == 1


def test_same_pictures_are_no_distractors(client: TestClient) -> None:
    collection = service_of(client).collection
    assert isinstance(collection, Collection)
    photo = collection.photo(collection.nearest(np.ones(collection.index.store.made.width, np.float32), 1)[0].id)
    others = collection.others([photo.vector], 5)
    assert len(others) == 5
    assert row_id(photo.file.path) not in [one.id for one in others]
    found, count = collection.ranked(photo.vector, 100, but=photo.vector)
    assert len(found) == count == 11


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(TellapartError, match="--queue 4"):
        ServeSettings(queue=4)
    with pytest.raises(TellapartError, match="--hold 4"):
        ServeSettings(hold=4)


def test_mistakes_of_the_command(tmp_path: Path) -> None:
    for options, said in {
        ("--host", "0.0.0.0"): "--host 0.0.0.0: others can connect",
        ("--token", "short"): "--token: give at least 16",
        (str(tmp_path / "nothing.lance"),): "no index is here",
        ("--queue", "3"): "--queue 3: is less than the 16 pictures",
    }.items():
        result = CliRunner().invoke(commands, ["serve", *options])
        assert isinstance(result.exception, TellapartError)
        assert said in str(result.exception)
