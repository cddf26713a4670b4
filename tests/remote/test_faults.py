"""Stores that are away, slow, full, closed, torn or emptied, as calls of a tuned function meet them."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import servers
from counted import opcodes
from servers import Proxy, Server
from stored import lines
from stores import Host

import autotuned
from autotuned import env
from autotuned.errors import NotTunedError, StoreError
from autotuned.remote import client, connection
from autotuned.remote.place import place
from autotuned.store import layout, listing

SECRET = "a key of a fleet, not a secret"


@pytest.fixture
def proxy(redis_server: Server) -> Iterator[Proxy]:
    made = Proxy(redis_server.port)
    yield made
    made.close()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Host]:
    monkeypatch.setattr("autotuned.api.decorator._explicit_names", {})
    return lambda name: Host(tmp_path / name, monkeypatch)


def through(proxy: Proxy, url: str) -> str:
    """The same store, by the proxy."""
    return f"redis://127.0.0.1:{proxy.port}/0#{url.partition('#')[2]}"


# -- no fault --------------------------------------------------------------------------------------------------------


def test_one_host_searches_and_a_second_does_not(url: str, host: Any) -> None:
    assert host("a").call(1, url) == (1, 1)
    assert host("b").call(1, url) == (1, 0)
    assert host("a").call(1, url) == (1, 0)


def test_a_hit_in_the_users_store_asks_nobody(redis_url: str, host: Any, monkeypatch: Any) -> None:
    host("a").call(1, redis_url)
    monkeypatch.setattr("autotuned.remote.client.backend_of", lambda place: pytest.fail("asked"))
    assert host("a").call(1, redis_url) == (1, 0)


def test_a_hit_is_not_one_instruction_longer(redis_url: str, host: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(host("a").folder))
    tuned = host("a").tuned()
    tuned(1)
    before = opcodes(lambda: [tuned(1) for _ in range(10)])
    with autotuned.connect(redis_url):
        assert opcodes(lambda: [tuned(1) for _ in range(10)]) == before > 0


def test_the_environment_names_the_store_and_a_bad_one_is_said_once(
    redis_url: str, host: Any, monkeypatch: Any, caplog: Any
) -> None:
    host("a").call(1, redis_url)
    monkeypatch.setenv("AUTOTUNED_STORE", redis_url)
    monkeypatch.setenv("AUTOTUNED_STORE_WAIT_S", "5")
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(host("b").folder))
    tuned = host("b").tuned()
    assert (tuned(1), tuned.cache_info().searches) == (1, 0)
    assert connection.store().place.wait_s == 5.0
    for name, value in [("AUTOTUNED_STORE", "no url"), ("AUTOTUNED_STORE_WAIT_S", "x"), ("AUTOTUNED_STORE_KEY", "k")]:
        env._said.clear()
        monkeypatch.setenv(name, value)
        caplog.clear()
        assert (tuned(2 + len(value)), connection.store()) == (1, None)
        assert len([line for line in lines(caplog) if "AUTOTUNED_STORE is not used" in line]) == 1
        monkeypatch.setenv(name, {"AUTOTUNED_STORE": redis_url}.get(name, ""))


def test_with_a_default_nothing_is_waited_for_and_the_next_process_has_the_answer(redis_url: str, host: Any) -> None:
    host("a").call(1, redis_url)
    other = host("b")
    assert other.call(1, redis_url, default=True) == (6, 0)  # not waited for
    other.connection.client.flush(5)
    assert other.call(1, redis_url, default=True) == (1, 0)


def test_mode_strict_waits_for_the_store_before_it_raises(redis_url: str, host: Any) -> None:
    host("a").call(1, redis_url)
    with autotuned.mode("strict"):
        assert host("b").call(1, redis_url) == (1, 0)
        with pytest.raises(NotTunedError):
            host("b").call(2, redis_url)


def test_a_search_of_all_configs_replaces_what_the_store_has(redis_url: str, host: Any) -> None:
    host("a").call(1, redis_url)
    with autotuned.mode("search"):
        one = host("b")
        assert one.call(1, redis_url) == (1, 1)
    assert host("c").call(1, redis_url) == (1, 0)


def test_under_install_triton_measures_on_one_host_only(redis_url: str, tmp_path: Path, monkeypatch: Any) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    kernels = pytest.importorskip("dropin_kernels", reason="needs Triton")
    came_from = []
    autotuned.install()
    try:
        for name in ("a", "b"):
            monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / name))
            with autotuned.connect(redis_url, wait_s=5.0) as connected:
                x = torch.zeros(128, device="cuda" if torch.cuda.is_available() else "cpu")
                kernels.tuner(kernels.Autotuner, kernels.add)[(4,)](x, 100, 1, True)
                came_from += [found.provenance.get("store") for _, found in listing.all_records()]
    finally:
        autotuned.uninstall()
    assert came_from == [None, connected.client.where]  # measured here, and there


def test_explain_says_that_a_store_is_asked_and_asks_nobody(redis_url: str, host: Any, monkeypatch: Any) -> None:
    tuned = host("a").tuned()
    assert "shared store" not in str(tuned.explain(1))
    with autotuned.connect(redis_url):
        monkeypatch.setattr("autotuned.remote.client.backend_of", lambda place: pytest.fail("asked"))
        assert "the shared store is asked first" in str(tuned.explain(1))


# -- faults ----------------------------------------------------------------------------------------------------------


def test_a_store_that_is_away_costs_one_line_and_what_was_measured_is_sent_later(
    redis_url: str, proxy: Proxy, host: Any, caplog: Any
) -> None:
    proxy.cut()
    one = host("a")
    with caplog.at_level(logging.WARNING):
        assert one.call(1, through(proxy, redis_url), key=SECRET) == (1, 1)
        assert len([line for line in lines(caplog) if "cannot be" in line]) == 1  # not another one of the writes
    assert (layout.root() / layout.OUTBOX).is_dir()
    proxy.is_cut = False
    assert one.call(1, through(proxy, redis_url), key=SECRET) == (1, 0)  # a hit: all it does is send
    assert not (layout.root() / layout.OUTBOX).exists()
    assert host("b").call(1, redis_url, key=SECRET) == (1, 0)


def test_a_slow_store_is_waited_for_once_and_its_late_answer_ends_the_pause(
    redis_url: str, proxy: Proxy, host: Any, caplog: Any
) -> None:
    for n in (1, 2):
        host("a").call(n, redis_url)
    proxy.delay_s = 0.3
    other = host("b")
    assert other.call(1, through(proxy, redis_url), wait_s=0.05) == (1, 1)
    assert len([line for line in lines(caplog) if "expected an answer within 0.05 s" in line]) == 1
    proxy.delay_s = 0.0
    assert other.call(2, redis_url) == (1, 0)


@pytest.mark.parametrize("most", [0, 1, 30])
def test_half_an_answer_is_no_answer(redis_url: str, proxy: Proxy, host: Any, most: int, caplog: Any) -> None:
    host("a").call(1, redis_url)
    proxy.most = most
    assert host("b").call(1, through(proxy, redis_url)) == (1, 1)
    assert len([line for line in lines(caplog) if "cannot be read" in line]) == 1


def test_a_store_that_is_cut_off_within_a_search_gets_the_choice_later(redis_url: str, proxy: Proxy, host: Any) -> None:
    one = host("a")
    one.during = proxy.cut
    assert one.call(1, through(proxy, redis_url)) == (1, 1)
    assert [found.winner["kwargs"]["block"] for _, found in listing.all_records()] == [1]
    proxy.is_cut = False
    one.during = lambda: None
    one.call(1, through(proxy, redis_url))
    assert host("b").call(1, redis_url) == (1, 0)


@pytest.fixture(scope="module")
def closed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a password, a user who may only read, and no room."""
    if why := servers.redis_missing():
        pytest.skip(why)
    server = servers.redis_server(
        tmp_path_factory.mktemp("closed"), "--requirepass", "hush-hush", "--maxmemory", "1",
        "--user", *["reader", "on", ">look-look", "~*", "+@read", "+@connection"],
    )  # fmt: skip
    yield server
    server.close()


@pytest.mark.parametrize(
    ("user", "said"),
    [(":wrong-wrong@", "cannot be read"), (":hush-hush@", "cannot be written"), ("reader:look-look@", "NoPermission")],
    ids=["a wrong password", "no room", "read only"],
)
def test_a_store_that_does_not_let_us_is_one_line_without_its_password(
    closed_server: Server, host: Any, user: str, said: str, caplog: Any
) -> None:
    assert host("a").call(1, f"redis://{user}127.0.0.1:{closed_server.port}/0") == (1, 1)
    told = [line for line in lines(caplog) if "shared store" in line]
    assert [said in line for line in told] == [True]
    assert not any(word in caplog.text for word in ("hush-hush", "wrong-wrong", "look-look"))
    assert (layout.root() / layout.OUTBOX).is_dir()


def test_a_server_that_begins_again_empty_is_filled_again(tmp_path: Path, host: Any) -> None:
    if why := servers.redis_missing():
        pytest.skip(why)
    server = servers.redis_server(tmp_path)
    try:
        url = f"redis://127.0.0.1:{server.port}/0"
        one = host("a")
        restarted = []

        def restart() -> None:
            if not restarted:
                restarted.append(server.kill())
                server.start()

        one.during = restart
        assert one.call(1, url, retry_s=0.0) == (1, 1)
        assert host("b").call(1, url) == (1, 0)
    finally:
        server.close()


def test_a_package_that_is_not_there_is_one_line(redis_url: str, host: Any, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "redis", None)
    assert host("a").call(1, redis_url) == (1, 1)
    assert any("pip install 'autotuned[redis]'" in line for line in lines(caplog))
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    assert host("b").call(1, "s3://bucket/folder") == (1, 1)
    assert any("pip install 'autotuned[fsspec]' s3fs)" in line for line in lines(caplog))


@pytest.mark.parametrize(
    ("url", "missing"),
    [("s3://bucket/folder", " s3fs"), ("filecache::gs://bucket/folder", " gcsfs"), ("hdfs://host/folder", "")],
)
def test_the_advice_names_the_package_of_the_url_beside_the_extra(url: str, missing: str, monkeypatch: Any) -> None:
    pytest.importorskip("fsspec", reason="needs the package fsspec")

    def is_missing(protocol: str) -> None:
        raise ImportError(f"a package for {protocol}")

    monkeypatch.setattr("fsspec.get_filesystem_class", is_missing)
    with pytest.raises(StoreError) as caught:
        client.backend_of(place(url))
    assert str(caught.value).endswith(f". pip install 'autotuned[fsspec]'{missing}")


def test_where_nothing_is_missing_nothing_is_advised() -> None:
    pytest.importorskip("fsspec", reason="needs the package fsspec")
    with pytest.raises(StoreError, match="got ValueError: Protocol not known: nosuch.$"):
        client.backend_of(place("nosuch://host/folder"))


def test_clocks_an_hour_apart_change_nothing(redis_url: str, host: Any, monkeypatch: Any) -> None:
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() - 3600)
    assert host("a").call(1, redis_url) == (1, 1)
    monkeypatch.setattr(time, "time", lambda: clock() + 3600)
    assert host("b").call(1, redis_url) == (1, 0)


def test_a_folder_that_is_a_file_is_one_line(tmp_path: Path, host: Any, caplog: Any) -> None:
    pytest.importorskip("fsspec", reason="needs the package fsspec")
    (tmp_path / "mount").write_text("")
    assert host("a").call(1, f"file://{tmp_path}/mount") == (1, 1)
    assert len([line for line in lines(caplog) if "cannot be written" in line]) == 1
    os.unlink(tmp_path / "mount")
    host("a").call(1, f"file://{tmp_path}/mount")
    assert host("b").call(1, f"file://{tmp_path}/mount") == (1, 0)
