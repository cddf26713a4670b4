"""Servers for the tests of the shared store, each started once, and hosts: cache folders."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import servers
from servers import Server

from autotuned.remote.client import Client
from autotuned.remote.place import place

_numbers = itertools.count()
KEY = "a key of a fleet, not a secret"


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if why := servers.redis_missing():
        pytest.skip(why)
    server = servers.redis_server(tmp_path_factory.mktemp("redis"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket of a local server, to which `AWS_*` points."""
    if why := servers.s3_missing():
        pytest.skip(why)
    server = servers.s3_server(tmp_path_factory.mktemp("s3"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing-secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        import s3fs

        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("bucket")
        yield "s3://bucket/folder"
    server.close()


@pytest.fixture
def redis_url(redis_server: Server) -> str:
    """A store for this test: its own namespace."""
    return f"redis://127.0.0.1:{redis_server.port}/0#test-{next(_numbers)}"


@pytest.fixture(params=["redis", "folder", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each kind."""
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    if request.param == "s3":
        return f"{request.getfixturevalue('s3_url')}#test-{next(_numbers)}"
    pytest.importorskip("fsspec", reason="needs the package fsspec")
    return f"file://{tmp_path}/mount"


class Hosts:
    """Hosts of one test: cache folders, each with a client of a store."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch
        self._clients: list[Client] = []

    @contextmanager
    def on(self, name: str, url: str = "", **options: Any) -> Iterator[Client]:
        """Act as a host; everything is sent before the next one."""
        self._patch.setenv("AUTOTUNED_CACHE_DIR", str(self._folder / name))
        client = Client(place(url, **{"wait_s": 10.0, **options}))
        self._clients.append(client)
        yield client
        client.flush(10.0)
        client.close()

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    made = Hosts(tmp_path, monkeypatch)
    yield made
    made.close()


On = Callable[..., Any]
