"""A shared store from the command line: listings, config files that move, what `doctor` says."""

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_binaries
import pytest
import servers
import shipped
from commands import run
from fakes import FakeConfig, form, make_key
from shipped import LARGE, OTHER, SLUG, SMALL

import autotuned
from autotuned import env
from autotuned.configfiles import writer
from autotuned.configfiles.file import Entry
from autotuned.errors import ConfigFileError, OptionError, StoreError
from autotuned.offline.release import shared
from autotuned.recording import sending
from autotuned.recording.file import RecordedCall, Writer
from autotuned.remote.client import Client
from autotuned.remote.place import place
from autotuned.store import layout, listing, records
from autotuned.store.record import Timing, TuningRecord

SECRET = "a key of a fleet, not a secret"


@pytest.fixture
def url(tmp_path: Path) -> str:
    pytest.importorskip("fsspec", reason="needs the package fsspec")
    return f"file://{tmp_path}/mount"


@pytest.fixture
def redis_store(tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """The URL of a Redis server of its own, and a client."""
    if why := servers.redis_missing():
        pytest.skip(why)
    import redis

    server = servers.redis_server(tmp_path)
    yield f"redis://127.0.0.1:{server.port}/0", redis.Redis(port=server.port)
    server.close()


def sent(url: str, *sizes: int, key: str | None = None) -> None:
    """Records of these calls, in a store."""
    config = form(FakeConfig({"BLOCK": 64}))
    client = Client(place(url, key=key))
    for n in sizes:
        client._write(TuningRecord(make_key(n), config, 10.0, "ok", (Timing(config, 10.0, 10.0, 10.0, 40),)), False)
    client.close()


def in_store(url: str) -> list[str]:
    return sorted(shared.opened(url)[1].names(""))


# -- records in place of the user's ----------------------------------------------------------------------------------


def test_list_and_report_show_what_the_store_has_and_nothing_of_the_users(url: str, tmp_path: Path) -> None:
    sent(url, 1, 2)
    records.keep(TuningRecord(make_key(3), form(SMALL), 10.0, "ok", (), {}))
    shipped.write(tmp_path / "files", (make_key(4), SMALL))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNED_CONFIG_PATH", str(tmp_path / "files"))
        listed = json.loads(run("list", "--store", url, "--json").stdout)["choices"]
        assert sorted(choice["call"]["values"]["n"] for choice in listed) == [1, 2]
        cases = json.loads(run("report", "--store", url, "--json").stdout)["cases"]
        assert len(cases) == 2
        assert len(json.loads(run("list", "--json").stdout)["choices"]) == 2  # ours again: one stored, one shipped


def test_a_listing_leaves_out_what_is_not_signed(url: str, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    sent(url, 1)
    sent(url, 2, key=SECRET)
    monkeypatch.setenv("AUTOTUNED_STORE_KEY", SECRET)
    with shared.in_place(url):
        assert [found.key for _, found in listing.all_records()] == [make_key(2)]
    assert "are ignored" in caplog.text


def test_what_moved_and_what_was_there_is_said_in_words(url: str, tmp_path: Path) -> None:
    shipped.write(tmp_path / "one", (make_key(1), SMALL))
    first, again = (run("push", tmp_path / "one", url).stdout.splitlines()[-1] for _ in range(2))
    assert (first, again) == ("sent 1 file", "sent 0 files; 1 was there already")
    assert run("pull", url, "--out", tmp_path / "out").stdout.splitlines()[-1] == "wrote 1 file"


def test_gc_bounds_the_store_and_leaves_the_users_alone(url: str) -> None:
    sent(url, *range(6))
    records.keep(TuningRecord(make_key(3), form(SMALL), 10.0, "ok", (), {}))
    size = next(size for _, size, _ in shared.opened(url)[1].sizes("v2/"))
    done = json.loads(run("gc", "--store", url, "--max-size", str(2 * size + 9), "--json").stdout)
    assert (done["deleted"], done["records"]) == (4, 2)
    assert len(in_store(url)) == 2
    assert records.read_of(make_key(3)) is not None


def test_results_name_the_store_and_not_the_copy_of_it(url: str, tmp_path: Path) -> None:
    sent(url, 1)
    assert f"; left in {url}: 1 record " in " ".join(run("gc", "--store", url).stdout.split())
    assert json.loads(run("gc", "--store", url, "--json").stdout)["cache"] == url
    listed = json.loads(run("list", "--store", url, "--json").stdout)
    assert (listed["cache"], listed["choices"][0]["path"]) == (url, None)
    run("gc", "--store", url, "--max-size", "0")
    assert " ".join(run("list", "--store", url).stdout.split()) == f"Nothing is stored in {url}."
    assert f"error: nothing is tuned in {url}, " in " ".join(run("report", "--store", url, code=1).stderr.split())
    assert json.loads(run("gc", "--json").stdout)["cache"] == str(layout.root())


def test_a_shared_store_has_no_folder_of_binaries(url: str, tmp_path: Path) -> None:
    sent(url, 1)
    done = run("gc", "--store", url, "--binaries", tmp_path, code=2)
    assert "--binaries: expected without --store" in done.stderr


def test_gc_removes_old_recordings_and_a_server_forgets_them(
    url: str, tmp_path: Path, redis_store: tuple[str, Any]
) -> None:
    call = RecordedCall("app.k", "app:k", make_key(1), {}, None)
    for name in ("old", "new"):
        Writer(tmp_path / f"{name}.jsonl").call(call)
        [sent_as] = autotuned.push(tmp_path / f"{name}.jsonl", url).files
        if name == "old":
            os.utime(next((tmp_path / "mount").rglob(sent_as)), (0, 0))
    run("gc", "--store", url, "--max-age", "1d")
    assert in_store(url) == [sent_as]
    server, client = redis_store
    [sent_as] = autotuned.push(tmp_path / "new.jsonl", server).files
    assert 6 * 86400 < client.ttl(f"autotuned:default:{sent_as}") <= sending.KEEP_S


# -- config files ----------------------------------------------------------------------------------------------------


def test_what_is_pushed_is_pulled_and_merged_with_what_is_there(url: str, tmp_path: Path) -> None:
    one, other, out = tmp_path / "one", tmp_path / "other", tmp_path / "out"
    shipped.write(one, (make_key(1), SMALL))
    shipped.write(other, (make_key(2), LARGE))
    shipped.write(out, (make_key(3), OTHER))
    assert autotuned.push(one, url).files == [f"{SLUG}/app.k.json"]
    assert autotuned.push(one, url).to_json() == {"files": [], "same": 1, "faults": []}
    assert autotuned.push(other, url).files == [f"{SLUG}/app.k.json"]
    assert autotuned.pull(url, out).files == [str(out / SLUG / "app.k.json")]
    assert autotuned.pull(url, out).same == 1
    text = (out / SLUG / "app.k.json").read_text()
    assert [f'"n": {n}' in text for n in (1, 2, 3)] == [True] * 3


@pytest.mark.parametrize("way", ["push", "pull"])
def test_whole_binaries_are_not_replaced_by_damaged_ones_beside_an_equal_file(
    way: str, url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "one"
    beside = made_binaries.ship(folder).with_suffix(".bin")
    whole = beside.read_bytes()
    autotuned.push(folder, url)
    stored = next((tmp_path / "mount").rglob("app.k.bin"))
    damaged = beside if way == "push" else stored
    damaged.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    found = autotuned.push(folder, url) if way == "push" else autotuned.pull(url, folder)
    assert len(found.faults) == 1 and "app.k.bin" in str(found.faults[0])
    assert whole in (stored if way == "push" else beside).read_bytes()


def test_what_others_add_while_it_is_pulled_stays(url: str, tmp_path: Path, monkeypatch: Any) -> None:
    one, out = tmp_path / "one", tmp_path / "out"
    shipped.write(one, (make_key(1), SMALL))
    path = shipped.write(out, (make_key(2), LARGE))
    autotuned.push(one, url)
    entry = Entry(make_key(3).call, form(OTHER), 10.0, 1.5)
    adding = threading.Thread(target=lambda: writer.ship(make_key(3), entry, out))
    joined = shared._joined

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        found = list(joined(*args, **kwargs))
        adding.start()
        adding.join(0.2)  # it waits for us
        return found

    monkeypatch.setattr(shared, "_joined", interrupted)
    autotuned.pull(url, out)
    adding.join()
    assert [f'"n": {n}' in path.read_text() for n in (1, 2, 3)] == [True] * 3


def test_binaries_and_other_files_come_along_and_others_stay(url: str, tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    path = shipped.write(source, (make_key(1), SMALL))
    path.with_suffix(".bin").write_bytes(b"compiled")
    (source / SLUG / "rules.json").write_text('{"rules": 1}')
    assert sorted(autotuned.push(source, url).files) == [f"{SLUG}/{name}" for name in
                                                         ("app.k.bin", "app.k.json", "rules.json")]  # fmt: skip
    assert len(autotuned.pull(url, out).files) == 3
    assert (out / SLUG / "app.k.bin").read_bytes() == b"compiled"
    assert (out / writer.ATTRIBUTES).read_text() == writer.UNION
    (source / SLUG / "rules.json").write_text('{"rules": 2}')
    assert autotuned.push(source, url).files == [f"{SLUG}/rules.json"]
    again = autotuned.pull(url, out)
    assert [fault.path for fault in again.faults] == [str(out / SLUG / "rules.json")]
    assert (out / SLUG / "rules.json").read_text() == '{"rules": 1}'


def test_a_name_that_leads_elsewhere_is_left_out(url: str, tmp_path: Path) -> None:
    at, backend = shared.opened(url)
    names = ["a/b/c.json", "plain.json", f"{SLUG}/.hidden.json", f"{SLUG}/code.py", ".git/config.json", "a/.._.json"]
    for name in names:
        backend.write(f"files/{name}", at.seal(f"files/{name}", b"{}"), "*")
    moved = autotuned.pull(url, tmp_path / "out")
    assert moved.files == []
    assert not (tmp_path / "out").exists()
    done = run("pull", url, "--out", tmp_path / "out", code=3)
    assert "expected the name DEVICE/FILE" in done.stderr


def test_a_push_ends_where_others_write_all_the_time(url: str, tmp_path: Path, monkeypatch: Any) -> None:
    shipped.write(tmp_path / "one", (make_key(1), SMALL))
    monkeypatch.setattr("autotuned.remote.filesystem.FileSystem.write", lambda *content: "changed")
    with pytest.raises(StoreError, match="expected to replace .*app.k.json, got beaten by other writers"):
        autotuned.push(tmp_path / "one", url)


def test_values_of_another_kind_in_redis_are_replaced_left_out_and_cleared(tmp_path: Path, redis_store: Any) -> None:
    url, server = redis_store
    at = f"autotuned:{place(url).namespace}:"
    server.set(f"{at}files/{SLUG}/app.k.json", "")
    server.rpush(f"{at}files/{SLUG}/other.k.json", "x")
    server.set(f"{at}files/de\x1b[31mvice/app.k.json", "autotuned-store-1 -\n{}")
    shipped.write(tmp_path / "one", (make_key(1), SMALL))
    assert autotuned.push(tmp_path / "one", url).files == [f"{SLUG}/app.k.json"]
    pulled = autotuned.pull(url, tmp_path / "out")
    assert pulled.files == [str(tmp_path / "out" / SLUG / "app.k.json")]
    assert [repr("\x1b")[1:-1] in str(fault) for fault in pulled.faults] == [True]
    sent(url, 1)
    server.rpush(f"{at}v2/ab/abc", "x")
    assert len(json.loads(run("list", "--store", url, "--json").stdout)["choices"]) == 1
    assert json.loads(run("gc", "--store", url, "--max-size", "0", "--json").stdout)["records"] == 0
    assert not [name for name in in_store(url) if name.startswith("v2/")]


def test_files_that_the_key_does_not_verify_stay_out(url: str, tmp_path: Path, monkeypatch: Any) -> None:
    shipped.write(tmp_path / "one", (make_key(1), SMALL))
    autotuned.push(tmp_path / "one", url)
    monkeypatch.setenv("AUTOTUNED_STORE_KEY", SECRET)
    assert json.loads(run("pull", url, "--out", tmp_path / "out", "--json", code=3).stdout)["files"] == []
    assert not (tmp_path / "out").exists()
    run("push", tmp_path / "one", url, code=3)  # what was there is replaced, and that is said
    run("pull", url, "--out", tmp_path / "out")


def test_what_cannot_be_done_is_an_error_in_a_line(url: str, tmp_path: Path, monkeypatch: Any) -> None:
    shipped.write(tmp_path / "one", (make_key(1), SMALL))
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigFileError):
        autotuned.push(tmp_path / "none", url)
    with pytest.raises(OptionError):
        autotuned.pull("no url", tmp_path / "out")
    run("list", "--store", "no url", code=2)
    monkeypatch.setenv("AUTOTUNED_STORE_READ_ONLY", "1")
    with pytest.raises(StoreError, match="expected one to write, got AUTOTUNED_STORE_READ_ONLY=1"):
        autotuned.push(tmp_path / "one", url)


@pytest.mark.parametrize(
    "command", [["list", "--store"], ["report", "--store"], ["gc", "--store"], ["pull"]], ids=" ".join
)
def test_a_folder_that_does_not_exist_is_no_empty_store(command: list[str], tmp_path: Path) -> None:
    more = ["--out", tmp_path / "out"] if command == ["pull"] else []
    done = run(*command, f"file://{tmp_path}/typo", *more, code=1)
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and f"expected an existing folder, found none at {tmp_path}/typo. Check" in line


def test_a_path_in_place_of_a_url_is_named_with_its_url(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    for path, name in ((str(tmp_path), ""), ("./new", "/new"), ("there", "/there")):
        done = run("pull", path, "--out", tmp_path / "out", code=2)
        assert f"got the path {path}. Write file://{tmp_path}{name}\n" in done.stderr


@pytest.mark.parametrize("text", ["me:hush@host/0", "/me:hush@host/0", "hush", "/folder?token=hush"])
def test_what_may_be_a_secret_is_not_named(text: str, tmp_path: Path) -> None:
    done = run("pull", text, "--out", tmp_path / "out", code=2)
    assert "got ***" in done.stderr and "hush" not in done.stderr


def test_a_store_that_is_away_is_one_line_without_its_password(tmp_path: Path) -> None:
    if why := servers.redis_missing():
        pytest.skip(why)
    away = f"redis://me:hush-hush@127.0.0.1:{servers.free_port()}/0"
    for command in (["list", "--store", away], ["pull", away, "--out", tmp_path / "out"]):
        done = run(*command, code=1)
        assert len(done.stderr.splitlines()) == 1
        assert "redis://***@127.0.0.1" in done.stderr and "hush" not in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("AUTOTUNED_STORE_KEY", "short", "expected at least 16 letters, got 5"),
        ("AUTOTUNED_STORE_WAIT_S", "q", "expected seconds, got 'q'"),
        ("AUTOTUNED_STORE_WAIT_S", "-1", "expected seconds of 0 or more, got -1.0"),
        ("AUTOTUNED_STORE_READ_ONLY", "maybe", "expected one of 0, 1, got 'maybe'"),
    ],
)
def test_a_wrong_variable_is_named_and_no_option_that_there_is_not(
    url: str, tmp_path: Path, monkeypatch: Any, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(name, value)
    for command in (["list", "--store", url], ["pull", url, "--out", tmp_path / "out"], ["push", tmp_path, url]):
        assert f"error: invalid value: {name}: {expected}" in run(*command, code=2).stderr


# -- doctor ----------------------------------------------------------------------------------------------------------


def test_the_probe_says_how_far_the_store_is_and_what_may_be_done(url: str, tmp_path: Path, monkeypatch: Any) -> None:
    found = shared.probe(url)
    assert (found.rights, found.signed, found.leases, found.problem) == ("read and write", False, False, "")
    assert found.round_trip_ms is not None
    assert in_store(url) == []
    monkeypatch.setenv("AUTOTUNED_STORE_READ_ONLY", "1")
    assert shared.probe(url).rights == "read only"
    monkeypatch.delenv("AUTOTUNED_STORE_READ_ONLY")
    (tmp_path / "file").write_text("")
    closed = shared.probe(f"file://{tmp_path}/file/below")
    assert closed.rights == "read, not write"
    assert closed.problem


def test_doctor_shows_the_store_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    if why := servers.redis_missing():
        pytest.skip(why)
    monkeypatch.setenv("AUTOTUNED_STORE", f"redis://:hush-hush@127.0.0.1:{(port := servers.free_port())}/0#team")
    monkeypatch.setenv("AUTOTUNED_STORE_KEY", SECRET)
    done = run("doctor", "--json")
    store = json.loads(done.stdout)["store"]
    assert (store["namespace"], store["rights"], store["signed"]) == ("team", "none", True)
    for text in (done.stdout, run("doctor").stdout):
        assert "hush" not in text and SECRET not in text
    [problem] = json.loads(done.stdout)["problems"]
    assert problem.startswith(f"shared store redis://***@127.0.0.1:{port}/0: it cannot be read: ConnectionError: ")
    assert not {"AUTOTUNED_STORE", "AUTOTUNED_STORE_KEY"} & env.for_nodes().keys()
    assert layout.root().name.startswith("cache-")


def test_doctor_says_once_which_package_a_store_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.setenv("AUTOTUNED_STORE", "redis://host/0")
    [problem] = json.loads(run("doctor", "--json").stdout)["problems"]
    assert problem.startswith("shared store redis://host/0: it cannot be read: expected the package redis, got ")
    assert problem.endswith("pip install 'autotuned[redis]'") and problem.count("redis://host/0") == 1
