"""Values, passwords, constructors and hosts that a shared store should not have, and what they must not do."""

import importlib
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import make_key
from stored import lines
from stores import Host, block_of, data_in, measured

import autotuned
from autotuned.errors import OptionError, StoreError
from autotuned.remote import client as clients
from autotuned.remote import connection, outbox
from autotuned.remote.client import Client
from autotuned.remote.place import MAX_RECORD_BYTES, Place, place, record_name
from autotuned.store import layout, records

KEY = make_key()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr("autotuned.api.decorator._explicit_names", {})
    return Host(tmp_path / "host", monkeypatch)


def server(client: Client) -> Any:
    """The client of the package redis."""
    return client._backend()._client


def name_of(client: Client, key: Any) -> str:
    """Where a record lies on a Redis server."""
    return f"autotuned:{client.place.namespace}:{record_name(key.digest)}"


# -- clients that raise ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "package"),
    [
        ("redis://user:Hush-one/Hush-two@127.0.0.1:1/0", "redis"),
        ("redis://user:Hush?Hush@127.0.0.1:1/0", "redis"),
        ("redis://127.0.0.1:port/0", "redis"),
        ("redis://[::1", "redis"),
        ("redis://127.0.0.1:1/0?socket_timeout=Hush", "redis"),
        ("zip://x::file:///there/is/none.zip", "fsspec"),
        ("nosuch://user:Hush@host/f", "fsspec"),
    ],
)
def test_what_a_client_does_not_take_is_one_line_and_no_error_of_a_launch(
    url: str, package: str, host: Host, caplog: Any
) -> None:
    pytest.importorskip(package, reason=f"needs the package {package}")
    assert host.call(1, url) == (1, 1)
    assert len([line for line in lines(caplog) if "cannot be read" in line and "expected" in line]) == 1
    assert "hush" not in caplog.text.lower()
    try:
        clients.backend_of(place(url)).read("x", 1)
    except StoreError as error:  # on the command line as well
        assert "hush" not in str(error).lower()


def test_a_file_system_that_connects_where_it_is_made_is_made_on_the_other_thread(host: Host) -> None:
    fsspec = pytest.importorskip("fsspec", reason="needs the package fsspec")
    made_on, go_on = [], threading.Event()

    class Connects(fsspec.AbstractFileSystem):  # type: ignore[misc]
        protocol = "connects"

        def __init__(self, *args: Any, **options: Any) -> None:
            made_on.append(threading.current_thread())
            go_on.wait(10)
            raise ConnectionRefusedError("nobody listens")

    fsspec.register_implementation("connects", Connects, clobber=True)
    assert host.call(1, "connects://host/folder", wait_s=0.05) == (1, 1)  # not waited for
    go_on.set()
    assert made_on and threading.main_thread() not in made_on


@pytest.mark.parametrize("mark", list("/?#[]:@%&= \\é") + ["%20%20", "//"])
def test_no_part_of_a_password_is_shown_wherever_a_client_splits_the_url(mark: str) -> None:
    password = f"HushOne{mark}HushTwo"
    for at in (
        place(f"redis://someone:{password}@host:1/0"),
        place(f"redis://someone@host:1/0?password={password.replace('#', '%23')}"),
        Place("redis://host:1/0", options={"password": password}),
    ):
        for part in (password, at.url, *("HushOne", "HushTwo") * (not at.options)):
            text = at.scrubbed(ValueError(f"{part!r} is not an integer; host {part.lower()}")) + at.words + repr(at)
            assert "hush" not in text.lower(), text
    with pytest.raises(OptionError) as caught:
        place("redis://host/0#ns?password=Hush")
    assert "Hush" not in str(caught.value)


def test_a_thread_that_cannot_begin_is_no_error_of_a_launch(redis_url: str, host: Host, monkeypatch: Any) -> None:
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "autotuned-store":
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    assert host.call(1, redis_url) == (1, 1)


# -- the better record stays -------------------------------------------------------------------------------------------


def test_a_child_forked_while_a_thread_imports_a_client_can_import_it_too(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_client.py").write_text("import time\ntime.sleep(0.5)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(clients, "backend_of", lambda place: importlib.import_module("slow_client"))
    client = Client(place("redis://127.0.0.1:1/0"))
    thread = threading.Thread(target=client._loaded)
    thread.start()
    while "slow_client" not in sys.modules:
        pass
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends it
        os._exit(0 if client._loaded() else 1)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()


def test_what_was_measured_better_before_there_was_a_store_stays_and_is_sent(redis_url: str, hosts: Any) -> None:
    with hosts.on("b", redis_url) as other:
        other.keep(measured(KEY, 64, samples=3))
    with hosts.on("a", redis_url) as one:
        records.keep(measured(KEY, 128, samples=50))
        assert one.ask([KEY]).wait(10) == []
        kept = records.read_of(KEY)
        assert kept is not None
        assert block_of(kept) == 128 and {timing.samples for timing in kept.timings} == {50}
    with hosts.on("b", redis_url) as other:
        assert other.ask([KEY]).wait(10) == [KEY]
        assert block_of(records.read_of(KEY)) == 128
        other.keep(measured(KEY, 64, samples=3), again=True)  # what is measured to replace it does
    with hosts.on("a", redis_url) as one:
        assert one.ask([KEY]).wait(10) == [KEY]
        assert block_of(records.read_of(KEY)) == 64
        one.flush(10)
        assert block_of(one.place.load(KEY.digest, data_in(one, KEY) or b"")) == 64


def test_of_a_store_that_was_emptied_a_worse_record_is_not_taken(redis_url: str, hosts: Any) -> None:
    with hosts.on("a", redis_url) as one:
        one.keep(measured(KEY, 128, samples=50))
        one.flush(10)
        server(one).delete(name_of(one, KEY))
    with hosts.on("b", redis_url) as other:
        other.keep(measured(KEY, 64, samples=3))
    with hosts.on("a", redis_url) as one:
        assert one.ask([KEY]).wait(10) == []
        one.flush(10)
        assert block_of(one.place.load(KEY.digest, data_in(one, KEY) or b"")) == 128


def test_what_is_measured_here_while_an_answer_is_taken_in_is_kept_and_sent(
    redis_url: str, hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosts.on("b", redis_url) as other:
        other.keep(measured(KEY, 64, samples=3))
    with hosts.on("a", redis_url) as one:
        read, began = records.read_of, []

        def read_of(key: Any) -> Any:
            found = read(key)
            if not began:
                began.append(threading.Thread(target=lambda: one.keep(measured(KEY, 128, samples=50))))
                began[0].start()
                began[0].join(0.2)
            return found

        monkeypatch.setattr(records, "read_of", read_of)
        one.ask([KEY]).wait(10)
        began[0].join()
        one.flush(10)
        assert block_of(read(KEY)) == 128
        assert block_of(one.place.load(KEY.digest, data_in(one, KEY) or b"")) == 128


def test_many_keys_are_asked_in_parts_between_which_a_call_is_answered(hosts: Any, tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="needs the package fsspec")
    keys = [make_key(n) for n in range(9)]
    with hosts.on("a", f"file://{tmp_path}/mount") as one:
        for key in keys:
            one.keep(measured(key))
    with hosts.on("b", f"file://{tmp_path}/mount") as other:
        asked = other.ask(keys)
        assert other.find(make_key(100)) is False
        assert len(asked._jobs) == 3
        assert set(asked.wait(10)) == set(keys)


# -- leases ------------------------------------------------------------------------------------------------------------


def expire(client: Client, key: Any) -> None:
    """As if its holder had stood still for as long as it lasts."""
    server(client).delete(f"{name_of(client, key)}.lease")


@pytest.mark.parametrize("when", ["it holds the key", "it has written", "the first one has ended"])
def test_who_lost_a_lease_does_not_replace_what_the_next_holder_wrote(redis_url: str, hosts: Any, when: str) -> None:
    with hosts.on("a", redis_url) as slow:
        assert slow.turn(KEY) == (False, "")
        token = slow._leases[KEY.digest].token
        expire(slow, KEY)
        with hosts.on("b", redis_url) as other:
            assert other.turn(KEY) == (False, "")
            if when == "it holds the key":
                slow._renew(KEY.digest, slow._leases[KEY.digest])
            other.keep(measured(KEY, 128))
            other.release(KEY)
            other.flush(10)
            slow._renew(KEY.digest, slow._leases[KEY.digest])
            assert slow._leases[KEY.digest].token == token
            assert slow._idle() is None  # it is not tried again
        os.environ["AUTOTUNED_CACHE_DIR"] += "-slow"
        better = measured(KEY, 64, b256=13.0)
        if when == "the first one has ended":  # a later process of its host sends it
            slow._worker.pause("write", OSError("away"))
            slow.keep(better)
            slow.flush(1)
            later = Client(slow.place)
            later._box = slow._box
            later.drain()
            later.flush(10)
            later.close()
        else:
            slow.keep(better)
            slow.flush(10)
        assert block_of(slow.place.load(KEY.digest, data_in(slow, KEY) or b"")) == 128
        assert block_of(records.read_of(KEY)) == 128


def test_a_lease_that_a_server_forgot_is_renewed_with_its_token(redis_url: str, hosts: Any) -> None:
    with hosts.on("a", redis_url) as one, hosts.on("b", redis_url) as other:
        one.turn(KEY)
        lease = one._leases[KEY.digest]
        expire(one, KEY)
        one._renew(KEY.digest, lease)
        assert one._leases[KEY.digest].token == lease.token
        assert other.turn(KEY)[1]


def test_a_lease_is_renewed_in_a_pause_and_tried_again_after_a_failure(
    redis_url: str, hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosts.on("a", redis_url, lease_s=0.3) as one, hosts.on("b", redis_url) as other:
        one._worker._idle = lambda: None  # here it is called below
        one.turn(KEY)
        one._worker.pause("write", OSError("away"))
        expire(one, KEY)
        with monkeypatch.context() as patch:
            patch.setattr(one._backend(), "lease", lambda *lease: 1 / int(threading.Event().wait(0.3)))
            one._leases[KEY.digest] = one._leases[KEY.digest]._replace(due=0.0)
            pause_s = one._worker.until_retry_s()
            assert 0 < one._idle() <= 0.1  # after the failure, however long that took
            assert one._worker.until_retry_s() <= pause_s  # it is no longer than it was
            assert 0 < one._leases[KEY.digest].due < float("inf")
        one._leases[KEY.digest] = one._leases[KEY.digest]._replace(due=0.0)
        one._idle()
        assert other.turn(KEY)[1]


def test_a_search_that_ends_while_the_store_is_away_lets_go_of_its_key(redis_url: str, hosts: Any) -> None:
    with hosts.on("a", redis_url) as one, hosts.on("b", redis_url) as other:
        assert one.turn(KEY) == (False, "")
        one._worker.pause("write", OSError("away"))
        one.release(KEY)
        one._worker.submit("", lambda: None, 9).wait(10)
        assert one._leases[KEY.digest].has_ended
        assert other.turn(KEY)[1]  # nobody could be told
        one._worker._away.clear()
        one.drain()
        one.flush(10)
        assert one._leases == {}
        assert other.turn(KEY) == (False, "")


def test_a_thread_that_waits_or_gives_up_leaves_another_threads_lease_alone(redis_url: str, hosts: Any) -> None:
    with hosts.on("a", redis_url) as one:
        one.turn(KEY)
        lease = one._leases[KEY.digest]
        thread = threading.Thread(target=lambda: (one.turn(KEY), one.release(KEY)))
        thread.start()
        thread.join()
        one.flush(10)
        assert one._leases[KEY.digest] == lease


def test_the_name_of_a_holder_is_text_of_one_short_line(redis_url: str, hosts: Any) -> None:
    with hosts.on("a", redis_url) as one:
        server(one).set(f"{name_of(one, KEY)}.lease", b"nonce 123 \x1b[31mroot\nCRITICAL " + b"y" * 100_000)
        _, who = one.turn(KEY)
        assert who is not None and who.isprintable() and "CRITICAL" in who and len(who) < 500


# -- values that are not ours ------------------------------------------------------------------------------------------

WHOLE = b"autotuned-store-1 -\n{}"
PLANTED: dict[str, Callable[[Any, str], Any]] = {
    "an empty string": lambda redis, name: redis.set(name, ""),
    "a few bytes": lambda redis, name: redis.set(name, "123"),
    "a list": lambda redis, name: redis.rpush(name, "x"),
    "a hash": lambda redis, name: redis.hset(name, "x", "y"),
    "a record that is too large": lambda redis, name: redis.set(name, b"0" * (MAX_RECORD_BYTES + 17)),
    **{
        f"the token {token}": lambda redis, name, token=token: redis.set(name, token.rjust(16).encode() + WHOLE)  # type: ignore[misc]
        for token in ("inf", "nan", "1e300", "9" * 16, "0x" + "f" * 14, "-1")
    },
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_not_ours_counts_as_missing_is_replaced_and_spoils_nothing_else(
    redis_url: str, hosts: Any, planted: str, caplog: Any
) -> None:
    other_key = make_key(7)
    with hosts.on("b", redis_url) as other:
        other.keep(measured(other_key))
    with hosts.on("a", redis_url) as one:
        PLANTED[planted](server(one), name_of(one, KEY))
        assert one.ask([KEY, other_key]).wait(10) == [other_key]
        assert [(name, size >= 0) for name, size, _ in one._backend().sizes("v2/")] != []
        assert one.turn(KEY) == (False, "")
        one.keep(measured(KEY, 128))
        one.release(KEY)
        one.flush(10)
        assert not one._worker.is_away("write") and not one._worker.is_away("read")
        said = [line for line in lines(caplog) if "are ignored" in line]
        assert len(said) == (planted != "an empty string")
    with hosts.on("c", redis_url) as third:
        assert third.find(KEY)
        third._write(measured(KEY, 64, b256=13.0), False, fence=1)  # of a lease long ago
        assert block_of(third.place.load(KEY.digest, data_in(third, KEY) or b"")) == 128


@pytest.mark.parametrize("planted", ["an empty string", "a list"])
def test_what_lies_at_the_name_of_a_lease_and_is_none_keeps_nobody_from_searching(
    redis_url: str, hosts: Any, planted: str
) -> None:
    with hosts.on("a", redis_url) as one:
        PLANTED[planted](server(one), f"{name_of(one, KEY)}.lease")
        assert one.turn(KEY) == (False, "")


def test_a_token_of_the_far_future_before_a_signed_record_fences_nobody(redis_url: str, hosts: Any) -> None:
    with hosts.on("a", redis_url) as one:
        one.keep(measured(KEY, 64, samples=3))
        one.flush(10)
        server(one).setrange(name_of(one, KEY), 0, "9" * 16)
    with hosts.on("b", redis_url) as other:
        other.turn(make_key(7))
        other._write(measured(KEY, 128, samples=50), False, fence=other._leases[make_key(7).digest].token)
        assert block_of(other.place.load(KEY.digest, data_in(other, KEY) or b"")) == 128


def test_a_folder_at_the_place_of_a_record_counts_as_missing_and_is_moved(hosts: Any, tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="needs the package fsspec")
    with hosts.on("a", f"file://{tmp_path}/mount") as one:
        path = tmp_path / "mount" / "default" / record_name(KEY.digest)
        path.mkdir(parents=True)
        (path / "theirs").write_text("stays")
        one.keep(measured(make_key(7)))
        assert not one.find(KEY)
        one.keep(measured(KEY, 128))
        one.flush(10)
        assert block_of(one.place.load(KEY.digest, data_in(one, KEY) or b"")) == 128
        assert not one._worker.is_away("read") and not one._worker.is_away("write")
    assert [found.read_text() for found in path.parent.rglob("theirs")] == ["stays"]


@pytest.mark.parametrize("key", ["", "   "])
def test_a_key_that_is_set_and_empty_is_refused_and_not_taken_for_none(monkeypatch: Any, caplog: Any, key: str) -> None:
    monkeypatch.setattr("autotuned.env._said", set())
    monkeypatch.setenv("AUTOTUNED_STORE", "redis://host/0")
    monkeypatch.setenv("AUTOTUNED_STORE_KEY", key)
    assert connection.store() is None
    assert "AUTOTUNED_STORE is not used: AUTOTUNED_STORE_KEY: expected at least 16 letters, got 0" in caplog.text
    with pytest.raises(OptionError, match="^AUTOTUNED_STORE_KEY: expected at least 16 letters, got 0"):
        autotuned.connect("redis://host/0")


# -- one outbox for one store ------------------------------------------------------------------------------------------


def test_stores_that_differ_in_what_is_hidden_have_an_outbox_each(hosts: Any) -> None:
    with hosts.on("a", "redis://me:one@host/0?db=3#team") as one:
        places = [
            one.place,
            *(place(url) for url in ("redis://me:one@host/0?db=5#team", "redis://you:one@host/0?db=3#team")),
            *(place("s3://bucket", options={"endpoint_url": url}) for url in ("http://one", "http://two")),
            one.place.replace(namespace="other"),
        ]
        assert len({outbox.folder(one.identity) for one in places}) == len(places)
        for url in ("redis://me:another@host/0?db=3#team", "redis://me:one@host/0?db=3&password=x#team"):
            assert place(url).identity == one.place.identity  # a password that has changed is no other store
        assert one._box == outbox.folder(one.place.identity)
        assert stat.S_IMODE(os.stat(layout.root() / layout.SALT).st_mode) == 0o600
    with hosts.on("b", "redis://me:one@host/0?db=3#team") as other:
        assert other._box.name != one._box.name  # it says nothing of the URL to who cannot read the salt


def test_a_salt_that_was_half_written_is_made_anew(hosts: Any) -> None:
    with hosts.on("a", "redis://host/0") as one:
        (layout.root() / layout.SALT).write_bytes(b"half")
        assert outbox.folder(one.place.identity) == outbox.folder(one.place.identity)


# -- folders -----------------------------------------------------------------------------------------------------------


def test_folders_of_a_shared_mount_are_as_open_as_the_umask_has_them(hosts: Any, tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="needs the package fsspec")
    before = os.umask(0o002)
    try:
        with hosts.on("a", f"file://localhost{tmp_path}/mount/x") as one:
            one.keep(measured(KEY))
    finally:
        os.umask(before)
    made = list((tmp_path / "mount").rglob("*"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_dir()} == {0o775}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_file()} == {0o664}
    assert stat.S_IMODE(layout.root().stat().st_mode) == 0o700


@pytest.mark.parametrize("url", ["file://", "file://host/mnt/x", "file://mnt", "local://x"])
def test_a_url_of_a_folder_that_is_not_absolute_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match="expected a URL such as .*file:///folder"):
        autotuned.connect(url)
    assert place("file://localhost/mnt/x").url == place("file:///mnt/x").url
