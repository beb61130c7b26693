"""An index in a folder of LanceDB files, and one on a Milvus server (milvus-lite, started in this process)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("lancedb", reason="comes with the extra 'index'")

from support.photos import make_pictures, make_retriever_folder, register
from tellapart import registry


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.TABLE["encoder"], "colours", "")
    register()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_retriever_folder(tmp_path / "model")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_pictures(tmp_path / "photos", 12)


@pytest.fixture(scope="session")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server."""
    server = pytest.importorskip("milvus_lite.adapter.grpc.server", reason="milvus-lite is a dev dependency")
    folder = tmp_path_factory.mktemp("milvus") / "data.db"
    running, database, port = server.start_server_in_thread(str(folder))
    yield f"http://localhost:{port}"
    running.stop(None)
    database.close()


@pytest.fixture(params=["lance", "milvus"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an index can be made."""
    if request.param == "lance":
        return str(tmp_path / "photos.lance")
    address: str = request.getfixturevalue("milvus")
    name = "".join(sign if sign.isalnum() else "_" for sign in tmp_path.name)
    return f"{address}/{name}"
