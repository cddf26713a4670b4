"""What is asked of a store and sent to it, on every kind of store."""

import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import waits
from fakes import make_key
from stored import lines
from stores import block_of, data_in, measured

import autotuned
from autotuned.key.key import Key
from autotuned.remote import outbox
from autotuned.remote.client import Client
from autotuned.remote.place import MAX_RECORD_BYTES, record_name
from autotuned.store import layout, records

SECRET = "a key of a fleet, not a secret"
MANY = "redis", "folder", "s3"


def overwrite(client: Client, key: Key, data: bytes) -> None:
    assert client._backend().write(record_name(key.digest), data, "*") == "written"


# -- there and back --------------------------------------------------------------------------------------------------


def test_what_one_host_measures_another_finds_and_keeps(url: str, hosts: Any) -> None:
    key = make_key()
    with hosts.on("a", url) as one:
        assert not one.find(key)
        assert one.keep(measured(key, 128))
    with hosts.on("b", url) as other:
        assert records.read_of(key) is None
        assert other.find(key)
        assert block_of(records.read_of(key)) == 128
        assert records.read_of(key).provenance["store"] == other.where
        assert not other.find(key)  # nothing new
    with hosts.on("a", url):
        assert not (layout.root() / layout.OUTBOX).exists()


def test_a_closed_client_is_disconnected(redis_url: str, hosts: Any) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as other:
        before = len(other.client_list())
        with hosts.on("a", redis_url) as one:
            assert one.keep(measured(make_key())) and one.flush(10)
            assert len(other.client_list()) > before
        waits.until(lambda: len(other.client_list()) == before)


def test_many_keys_are_asked_in_the_background_and_told_as_they_come(url: str, hosts: Any) -> None:
    keys = [make_key(n) for n in range(5)]
    with hosts.on("a", url) as one:
        for key in keys[:4]:
            one.keep(measured(key))
    told, where = [], []
    with hosts.on("b", url) as other:
        records.keep(measured(keys[0]))
        other.ask(keys, lambda key, found: (told.append((key, found)), where.append(threading.current_thread()))).wait(
            10
        )
        assert {key for key, _ in told} == set(keys[1:4])
        assert threading.main_thread() not in where
        assert other.ask(keys).wait(10) == []
        assert other.ask(keys, again=False).wait(10) == []  # not asked at all


def test_an_improved_record_reaches_a_host_that_has_the_old_one(url: str, hosts: Any) -> None:
    key = make_key()
    with hosts.on("a", url) as one:
        one.keep(measured(key, 64))
    with hosts.on("b", url) as other:
        other.find(key)
    with hosts.on("a", url) as one:
        one.keep(measured(key, 128), again=True)
    with hosts.on("b", url) as other:
        assert other.ask([key]).wait(10) == [key]
        assert block_of(records.read_of(key)) == 128


@pytest.mark.parametrize("first", ["good", "bad"])
def test_of_two_records_of_a_key_the_one_measured_better_is_left_and_reaches_both(
    url: str, hosts: Any, first: str
) -> None:
    key = make_key()
    good, bad = measured(key, 128, b256=11.0), measured(key, 64, quality="noisy")
    for name in [first, *({"good", "bad"} - {first})]:
        with hosts.on(name, url) as client:
            client.keep({"good": good, "bad": bad}[name])
            client.flush(10)
            assert block_of(client.place.load(key.digest, data_in(client, key))) == (
                64 if (first, name) == ("bad", "bad") else 128
            )
    with hosts.on("bad", url) as client:
        client.ask([key]).wait(10)
        assert block_of(records.read_of(key)) == 128


def test_writers_at_the_same_time_leave_the_best_and_all_timings(url: str, hosts: Any) -> None:
    if url.startswith("s3"):
        pytest.skip("eight event loops take seconds; the condition is tested by itself")
    key = make_key()
    with hosts.on("a", url) as one:
        clients = [Client(one.place) for _ in range(6)]
        made = [measured(key, 64, samples=40 + n, **{f"b{512 + n}": 11.0}) for n in range(6)]
        threads = [threading.Thread(target=c._write, args=(m, False)) for c, m in zip(clients, made)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        left = one.place.load(key.digest, data_in(one, key))
        assert {timing.config["kwargs"]["BLOCK"] for timing in left.timings} >= {512 + n for n in range(6)}
        for client in clients:
            client.close()


def test_a_write_is_refused_where_another_came_first_if_the_store_can_tell(url: str, hosts: Any) -> None:
    with hosts.on("a", url) as one:
        backend = one._backend()
        assert backend.write("v2/ab/abc", b"first", "") == "written"
        if not url.startswith("file"):  # there a lock keeps writers apart
            assert backend.write("v2/ab/abc", b"second", "") == "changed"
            _, seen = backend.read("v2/ab/abc", 100, for_update=True)
            assert backend.write("v2/ab/abc", b"second", seen) == "written"
            assert backend.write("v2/ab/abc", b"third", seen) == "changed"
            assert backend.read("v2/ab/abc", 100)[0] == b"second"
        assert list(backend.names("v2/")) == ["v2/ab/abc"]
        assert [(name, size > 4) for name, size, _ in backend.sizes("v2/")] == [("v2/ab/abc", True)]
        backend.remove("v2/ab/abc")
        backend.remove("v2/ab/abc")
        assert backend.read("v2/ab/abc", 100) == (None, "")


# -- whom it believes ------------------------------------------------------------------------------------------------


def test_what_is_not_signed_is_ignored_said_once_and_replaced(url: str, hosts: Any, caplog: Any) -> None:
    keys = [make_key(n) for n in range(3)]
    with hosts.on("a", url) as one:
        for key in keys:
            one.keep(measured(key, 128))
    with hosts.on("b", url, key=SECRET) as other, caplog.at_level(logging.WARNING):
        assert not any(other.find(key) for key in keys)
        assert len([line for line in lines(caplog) if "are ignored" in line]) == 1
        assert "logged once" in caplog.text and SECRET not in caplog.text
        other.keep(measured(keys[0], 64))
    with hosts.on("c", url, key=SECRET) as third:
        assert third.find(keys[0])
        assert block_of(records.read_of(keys[0])) == 64


def test_a_record_put_under_another_key_is_not_served(url: str, hosts: Any) -> None:
    with hosts.on("a", url, key=SECRET) as one:
        one.keep(measured(make_key(1), 128))
        one.flush(10)
        overwrite(one, make_key(2), data_in(one, make_key(1)) or b"")
    with hosts.on("b", url, key=SECRET) as other:
        assert not other.find(make_key(2))
        assert other.find(make_key(1))


@pytest.mark.parametrize("content", [b"", b"half a rec", b"\0" * 1000, b"x" * (MAX_RECORD_BYTES + 1)], ids=len)
def test_what_is_no_record_or_too_large_is_a_miss_and_is_replaced(url: str, hosts: Any, content: bytes) -> None:
    key = make_key()
    with hosts.on("a", url) as one:
        overwrite(one, key, content)
        assert not one.find(key)
        one.keep(measured(key, 128))
    with hosts.on("b", url) as other:
        assert other.find(key)


def test_a_reader_sends_nothing_and_keeps_what_it_measures(url: str, hosts: Any) -> None:
    key = make_key()
    with hosts.on("a", url, read_only=True) as one:
        one.keep(measured(key, 128))
        one.flush(10)
        assert data_in(one, key) is None
        assert block_of(records.read_of(key)) == 128
        assert not (layout.root() / layout.OUTBOX).exists()


@pytest.mark.parametrize(
    ("variable", "asked", "reads_only"), [("1", False, True), ("0", True, True), ("0", False, False)]
)
def test_the_environment_makes_a_reader_of_every_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, asked: bool, reads_only: bool
) -> None:
    monkeypatch.setenv("AUTOTUNED_STORE_READ_ONLY", variable)
    with autotuned.connect(f"file://{tmp_path}", read_only=asked) as connection:
        assert connection.client.place.read_only is reads_only


# -- what could not be sent ------------------------------------------------------------------------------------------


def test_what_a_killed_process_did_not_send_the_next_one_does(redis_url: str, hosts: Any) -> None:
    key = make_key()
    with hosts.on("a", redis_url) as one:
        one._worker.pause("write", OSError("away"))  # as if it were killed before the thread came to it
        one.keep(measured(key, 128))
        one.flush(1)
        assert data_in(one, key) is None
    with hosts.on("a", redis_url) as later:
        later.drain()
        later.flush(10)
        assert block_of(later.place.load(key.digest, data_in(later, key))) == 128
        assert not (layout.root() / layout.OUTBOX).exists()


@pytest.mark.parametrize("before", [None, SECRET + " before"], ids=["no key", "another key"])
def test_what_waits_is_signed_with_the_key_in_use_when_it_is_sent(redis_url: str, hosts: Any, before: str) -> None:
    key = make_key()
    with hosts.on("a", redis_url, key=before) as one:
        one._worker.pause("write", OSError("away"))
        one.keep(measured(key, 128))
        one.flush(1)
    with hosts.on("a", redis_url, key=SECRET) as later:
        later.begin()
        later.flush(10)
        assert block_of(later.place.load(key.digest, data_in(later, key) or b"")) == 128
        assert not (layout.root() / layout.OUTBOX).exists()


def test_a_process_killed_between_its_note_and_its_record_loses_neither(redis_url: str, hosts: Any) -> None:
    key = make_key()
    with hosts.on("a", redis_url) as one:
        box = one._box
        outbox.put(box, layout.record_path(key), False)
        one.drain()
        one.flush(10)
        assert outbox.digests(box) == [key.digest]  # its writer may still come
        records.keep(measured(key))
        one.drain()
        one.flush(10)
        assert data_in(one, key) is not None
        assert outbox.digests(box) == []
        note = outbox.put(box, layout.record_path(make_key(2)), False)
        assert note is not None
        os.utime(note, (0, 0))
        one.drain()
        one.flush(10)
        assert outbox.digests(box) == []  # cleared away long ago


@pytest.mark.parametrize("text", ["", "[]", '{"record": 1}', '{"record": "../../etc/passwd"}', '{"record": "v2/k/a"}'])
def test_a_note_that_is_none_is_removed_and_no_other_file_is_sent(redis_url: str, hosts: Any, text: str) -> None:
    with hosts.on("a", redis_url) as one:
        box = one._box
        box.mkdir(parents=True)
        (box / f"{make_key().digest}.00").write_text(text)
        one.drain()
        one.flush(10)
        assert list(one._backend().names("")) == []
        assert not box.exists()


def test_a_cache_folder_that_cannot_be_written_still_sends(redis_url: str, hosts: Any, tmp_path: Any) -> None:
    key = make_key()
    (tmp_path / "a").write_text("a file in its place")
    with hosts.on("a", redis_url) as one:
        assert not one.keep(measured(key, 128))
        one.flush(10)
        assert data_in(one, key) is not None


# -- who searches ----------------------------------------------------------------------------------------------------


def test_one_host_has_the_turn_and_the_next_one_gets_what_it_found(redis_url: str, hosts: Any) -> None:
    key = make_key()
    with hosts.on("a", redis_url) as one, hosts.on("b", redis_url) as other:
        assert one.turn(key) == (False, "")
        changed, who = other.turn(key)
        assert not changed and who and f"process {os.getpid()}" in who
        assert one.turn(make_key(2)) == (False, "")  # of another key
        one.keep(measured(key, 128))
        one.release(key)
        one.flush(10)
    with hosts.on("c", redis_url) as third:
        assert third.turn(key) == (True, None)


def test_the_lease_of_a_dead_host_ends_and_its_late_write_changes_nothing(redis_url: str, hosts: Any) -> None:
    key = make_key()
    with hosts.on("a", redis_url, lease_s=0.05) as dead:
        assert dead.turn(key) == (False, "")
        dead._worker._idle = lambda: None  # it renews no more
        token = dead._leases[key.digest][1]
        with hosts.on("b", redis_url) as other:
            while other.turn(key) != (False, ""):
                pass
            assert other._leases[key.digest][1] > token
            other.keep(measured(key, 128))
            other.flush(10)
        dead.keep(measured(key, 64, b256=13.0))  # measured better, and too late
        dead.flush(10)
        assert block_of(dead.place.load(key.digest, data_in(dead, key))) == 128


def test_a_lease_is_renewed_while_its_holder_lives(redis_url: str, hosts: Any) -> None:
    key = make_key()
    with hosts.on("a", redis_url, lease_s=0.3) as one, hosts.on("b", redis_url) as other:
        assert one.turn(key) == (False, "")
        done = threading.Event()
        for _ in range(12):  # several times as long as it lasts
            done.wait(0.1)
            assert other.turn(key)[1] != ""
        one.release(key)
        one.flush(10)
        assert other.turn(key) == (False, "")


def test_a_server_that_forgot_everything_gives_larger_tokens(redis_url: str, hosts: Any) -> None:
    key = make_key()
    with hosts.on("a", redis_url) as one:
        one.turn(key)
        first = one._leases[key.digest][1]
        one._backend()._client.flushall()
        with hosts.on("b", redis_url) as other:
            assert other.turn(key) == (False, "")
            assert other._leases[key.digest][1] > first


def test_where_there_are_no_leases_nobody_waits(hosts: Any, tmp_path: Any) -> None:
    pytest.importorskip("fsspec", reason="needs the package fsspec")
    with hosts.on("a", f"file://{tmp_path}/mount") as one, hosts.on("b", f"file://{tmp_path}/mount") as other:
        assert one.turn(make_key()) == (False, None) == other.turn(make_key())


def test_a_forked_child_has_a_thread_and_a_connection_of_its_own(redis_url: str, hosts: Any) -> None:
    key = make_key()
    with hosts.on("a", redis_url) as one:
        one.turn(key)
        one.flush(10)
        child = os.fork()
        if not child:
            try:
                alright = not one._leases and one.keep(measured(make_key(2))) and one.flush(10)
            finally:
                os._exit(0 if alright else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert one.find(make_key(2)) or records.read_of(make_key(2)) is not None
        assert data_in(one, make_key(2)) is not None
        assert one._leases


def test_of_several_letters_of_a_key_one_that_replaces_is_enough() -> None:
    path, folder = layout.record_path(make_key()), outbox.folder("a store")
    for name, again in (("a", True), ("b", False)):
        outbox.put(folder, path, again).rename(folder / f"{path.stem}.{name}")  # type: ignore[union-attr]
    found = outbox.letter(folder, path.stem)
    assert found is not None and found.again and len(found.files) == 2
