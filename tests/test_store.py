import copy
import errno
import importlib.resources
import json
import logging
import os
import pickle
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import DEVICE, FakeConfig, by_identity, form, make_key
from faults import faults

from autotuned import disk, files, recordfile, store
from autotuned.configfile import ConfigFile, Entry, split_context
from autotuned.device import from_json
from autotuned.errors import ConfigFileError
from autotuned.key import Key
from autotuned.recordfile import Record, Timing
from autotuned.store import Rung

SMALL, LARGE, OTHER = FakeConfig({"BLOCK": 64}), FakeConfig({"BLOCK": 128}), FakeConfig({"BLOCK": 256})
LIVE = by_identity(SMALL, LARGE, OTHER)
KEY = make_key()
SLUG = from_json(DEVICE).slug


def hook(arguments: Any) -> None: ...


def result(key: Key = KEY, winner: FakeConfig | None = SMALL, **times_us: float | None) -> Record:
    """A record of measured configs by their block, `b64=10.0`; None is a failure."""
    timings = tuple(
        Timing(form(FakeConfig({"BLOCK": int(name[1:])})), *([us] * 3), samples=40)
        if us is not None
        else Timing(form(FakeConfig({"BLOCK": int(name[1:])})), status="failed", error="boom")
        for name, us in times_us.items()
    )
    median_us = (times_us.get(f"b{winner.kwargs['BLOCK']}") or 10.0) if winner else None
    return Record(key, form(winner) if winner else None, median_us, "ok", timings)


def write_file(folder: Path, config: FakeConfig, *keys: Key, text: str | None = None) -> Path:
    """A config file with one choice for all these keys (or with any text) below a folder."""
    file = ConfigFile(KEY.kernel, from_json(DEVICE))
    for key in keys or (KEY,):
        file.add(split_context(key.context)[0], Entry(key.call, form(config), 10.0, None))
    path = folder / SLUG / "app.k.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(file.dump() if text is None else text)
    return path


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]


def config_of(choice: store.Choice | None) -> Any:
    return choice and choice.config


# -- records ---------------------------------------------------------------------------------------------------------


def test_what_is_kept_is_found_with_the_live_config() -> None:
    kept = result(b64=10.0, b128=12.0)
    assert store.find(KEY, LIVE) is None
    assert store.keep(kept)
    found = store.find(KEY, LIVE)
    assert found == store.Choice(SMALL, Rung.STORE, kept, complete=False, origin=str(store.record_path(KEY)))
    assert found is not None
    assert found.config is SMALL


def test_a_record_is_one_file_named_by_schema_kernel_and_digest() -> None:
    store.keep(result())
    path = store.root() / "v1" / "app.k" / f"{KEY.digest}.json"
    assert store.record_path(KEY) == path
    assert recordfile.load(json.loads(path.read_text())) == result()
    assert [found.name for found in store.root().rglob("*") if found.is_file()] == [path.name]


def test_kernels_of_one_safe_name_have_folders_of_their_own() -> None:
    folders = {store.record_path(make_key(kernel=name)).parent.name for name in ("app.k", "App.K", "app/k", "app:k")}
    assert len(folders) == 4


@pytest.mark.parametrize("key", [make_key(2), make_key(True), make_key(triton="3.6.0"), make_key(kernel="app.other")])
def test_another_key_finds_nothing(key: Key) -> None:
    store.keep(result(make_key(1)))
    assert store.find(key, LIVE) is None


@pytest.mark.parametrize(
    ("times_us", "live", "complete"),
    [
        ({"b64": 1.0, "b128": 2.0, "b256": 3.0}, LIVE, True),
        ({"b64": 1.0, "b128": None, "b256": 3.0}, LIVE, True),
        ({"b64": 1.0, "b128": 2.0}, LIVE, False),
        ({"b64": 1.0, "b128": 2.0, "b256": 3.0}, by_identity(SMALL), True),
    ],
    ids=["all measured", "one failed", "one is new", "some are gone"],
)
def test_a_choice_says_whether_every_candidate_was_measured(times_us: Any, live: Any, complete: bool) -> None:
    store.keep(result(**times_us))
    found = store.find(KEY, live)
    assert found is not None
    assert found.complete is complete


@pytest.mark.parametrize(
    ("times_us", "live", "chosen"),
    [
        pytest.param({"b64": 10.0, "b128": 9.0}, LIVE, SMALL, id="the winner, whatever the medians say"),
        pytest.param(
            {"b64": 10.0, "b128": 12.0, "b256": 11.0}, by_identity(LARGE, OTHER), OTHER, id="winner gone: second best"
        ),
        pytest.param(
            {"b64": 10.0, "b128": 12.0, "b256": None}, by_identity(LARGE, OTHER), LARGE, id="failed ones do not count"
        ),
        pytest.param({"b64": 10.0, "b256": None}, by_identity(LARGE, OTHER), None, id="nothing measured is left"),
        pytest.param({}, by_identity(LARGE), None, id="nothing measured"),
    ],
)
def test_the_best_config_that_is_still_a_candidate_is_served(times_us: Any, live: Any, chosen: Any) -> None:
    store.keep(result(**times_us))
    assert config_of(store.find(KEY, live)) is chosen


def test_an_unfinished_search_is_no_choice() -> None:
    store.keep(result(winner=None, b64=10.0))
    assert store.find(KEY, LIVE) is None
    kept = store.read(store.record_path(KEY))
    assert kept is not None
    assert len(kept.timings) == 1


def test_a_stored_config_with_a_hook_is_served_with_the_live_hook_or_not_at_all() -> None:
    hooked = FakeConfig({"BLOCK": 64}, pre_hook=hook)
    store.keep(result(winner=hooked))
    assert config_of(store.find(KEY, by_identity(SMALL, hooked))) is hooked
    assert store.find(KEY, by_identity(SMALL, LARGE)) is None


# -- damage ----------------------------------------------------------------------------------------------------------


def put(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def dumped(**changes: Any) -> bytes:
    return json.dumps({**recordfile.dump(result(b64=10.0)), **changes}).encode()


def put_folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").touch()


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "empty": put(b""),
    "cut off": put(b"{"),
    "a list": put(b"[]"),
    "null": put(b"null"),
    "text": put(b'"x"'),
    "NaN": put(dumped(median_us=float("nan"))),
    "1e999": put(dumped(median_us="7").replace(b'"7"', b"1e999")),
    "1e999 in the key": put(dumped().replace(b'"n": 1024', b'"n": 1e999')),
    "a number of 400 digits": put(dumped(median_us=10**400)),
    "binary zeros": put(b"\x00" * 4096),
    "no utf-8": put(b"\xff\xfe\x00"),
    "nested without end": put(b"[" * 100_000),
    "a missing field": put(json.dumps({"schema": 1}).encode()),
    "an unknown field": put(dumped(extra=1)),
    "no schema": put(b'{"winner": {}}'),
    "schema 0": put(dumped(schema=0)),
    "a winner of another form": put(dumped(winner="BLOCK=64")),
    "a folder in its place": put_folder,
    "a link to nowhere": lambda path: path.symlink_to(path.parent / "nowhere"),
    "the record of another key": lambda path: path.write_text(disk.text(recordfile.dump(result(make_key(True))))),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_record_is_a_miss_that_is_moved_aside_said_once_and_healed(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = make_key(1) if "another key" in kind else KEY
    path = store.record_path(key)
    path.parent.mkdir(parents=True)
    DAMAGE[kind](path)
    assert store.find(key, LIVE) is None
    assert store.find(key, LIVE) is None
    assert len(warnings_in(caplog)) == 1
    moved = next((path.parent / "damaged").iterdir())
    assert warnings_in(caplog)[0].startswith(f"record {path} is damaged (")
    assert warnings_in(caplog)[0].endswith(f"); moved to {moved}; the kernel is tuned again.")
    assert not list(store.all_records())
    assert store.keep(result(key, b64=10.0))
    assert config_of(store.find(key, LIVE)) is SMALL
    assert len(warnings_in(caplog)) == 1


@pytest.mark.parametrize("kind", ["empty", "an unknown field", "a link to nowhere"])
def test_a_damaged_record_that_cannot_be_moved_is_said_once_and_replaced(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.record_path(KEY)
    path.parent.mkdir(parents=True)
    DAMAGE[kind](path)
    monkeypatch.setattr(disk, "move_aside", lambda path: None)
    assert store.find(KEY, LIVE) is None
    assert store.find(KEY, LIVE) is None
    assert len(warnings_in(caplog)) == 1
    assert "it will be replaced" in warnings_in(caplog)[0]
    assert store.keep(result(b64=10.0))
    assert config_of(store.find(KEY, LIVE)) is SMALL


def test_a_record_of_a_newer_schema_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    path = store.record_path(KEY)
    path.parent.mkdir(parents=True)
    path.write_text('{"schema": 999, "winners": []}')
    assert store.find(KEY, LIVE) is None
    assert not store.keep(result())
    assert store.find(KEY, LIVE) is None
    assert path.read_text() == '{"schema": 999, "winners": []}'
    assert warnings_in(caplog) == [f"record {path} has the newer schema 999; it is left alone."]


@pytest.mark.parametrize(
    ("data", "newer"),
    [({"schema": 2}, True), ({"schema": 1}, False), ({"schema": True}, False), ({"schema": "2"}, False), ({}, False),
     ([], False), (None, False)],
    ids=repr,
)  # fmt: skip
def test_what_is_of_a_newer_schema(data: Any, newer: bool) -> None:
    assert store.is_newer(data) is newer


# -- folders that cannot be used -------------------------------------------------------------------------------------


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_where_nothing_can_be_written_choices_live_in_memory_with_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "write_text", refuse)
    assert not store.keep(result(make_key(1)))
    assert not store.keep(result(make_key(2)))
    assert len(warnings_in(caplog)) == 1
    assert (
        f"cannot write to the cache folder {store.root()} ([Errno 28] No space left on device)"
        in warnings_in(caplog)[0]
    )
    assert "AUTOTUNED_CACHE_DIR" in warnings_in(caplog)[0]


@pytest.mark.parametrize("below", ["", "cache"], ids=["a file", "below a file"])
def test_a_cache_folder_that_cannot_be_made_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "file" / below))
    for n in (1, 2):
        assert store.find(make_key(n), LIVE) is None
        with store.locked(make_key(n)):
            assert not store.keep(result(make_key(n)))
    assert len(warnings_in(caplog)) == 1


def test_a_record_that_cannot_be_read_is_a_miss_said_once_and_stays(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.keep(result())

    with faults("open", errno.EACCES):
        assert store.find(KEY, LIVE) is None
        assert store.find(KEY, LIVE) is None
    assert len(warnings_in(caplog)) == 1
    assert str(store.record_path(KEY)) in warnings_in(caplog)[0]
    assert config_of(store.find(KEY, LIVE)) is SMALL


def test_reading_writes_nothing() -> None:
    store.find(KEY, LIVE)
    assert not store.root().exists()


def test_writers_of_one_key_and_of_many_lose_nothing() -> None:
    keys = [make_key(n) for n in range(12)]

    def write(part: int) -> None:
        for key in (*keys[part::4], KEY):
            assert store.keep(result(key, b64=10.0))

    threads = [threading.Thread(target=write, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {found.key for _, found in store.all_records()} == {*keys, KEY}


def test_records_are_listed_and_cleared_by_kernel() -> None:
    mine, yours = make_key(1), make_key(1, kernel="app.other")
    for key in (mine, make_key(2), yours):
        store.keep(result(key))
    path = store.record_path(mine)
    (path.parent / f".{path.name}.1.tmp").write_text("half a rec")
    assert {found.key for _, found in store.all_records("app.k")} == {mine, make_key(2)}
    assert [each for each, _ in store.all_records()] == sorted(each for each, _ in store.all_records())
    assert store.clear("app.k") == 2
    assert [found.key for _, found in store.all_records()] == [yours]
    assert store.clear() == 1
    assert list(store.all_records()) == []
    assert store.clear() == 0


def test_the_lock_of_a_key_lies_beside_its_record() -> None:
    with store.locked(KEY):
        assert (store.record_path(KEY).parent / "locks" / f"{KEY.digest}.lock").exists()
    assert list(store.all_records()) == []


@pytest.mark.parametrize(("kind", "lines"), [("nfs4", 1), ("", 0)], ids=["network", "local"])
def test_a_network_file_system_is_said_once_and_only_by_who_searches(
    kind: str, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk, "network_file_system", lambda path: kind)
    store.keep(result(b64=10.0, b128=12.0))
    assert store.find(KEY, LIVE) is not None
    assert warnings_in(caplog) == []
    for n in range(3):
        with store.locked(make_key(n)):
            pass
    said = warnings_in(caplog)
    assert len(said) == lines
    assert all(str(store.root()) in line and f"({kind})" in line for line in said)


# -- config files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Two folders of the environment, two registered ones and the packaged one, in the order they are asked."""
    names = ("env first", "env second", "registered last", "registered first", "packaged")
    paths = {name: tmp_path / name for name in names}
    for path in paths.values():
        path.mkdir()
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", f"{paths['env first']}{os.pathsep}{paths['env second']}")
    store.register_configs(paths["registered first"])
    store.register_configs(str(paths["registered last"]))
    packaged = {"autotuned.configs": paths["packaged"]}
    files._packages.clear()
    monkeypatch.setattr(importlib.resources, "files", packaged.__getitem__)
    return paths


def test_places_are_asked_in_order_and_the_users_record_before_all(folders: dict[str, Path]) -> None:
    assert list(store.config_folders()) == list(folders.values())
    configs = {name: FakeConfig({"BLOCK": n}) for n, name in enumerate(folders)}
    live = by_identity(SMALL, *configs.values())
    for name in reversed(folders):  # from the last place to the first: each one hides those behind it
        path = write_file(folders[name], configs[name])
        store.forget_files()
        assert store.find(KEY, live) == store.Choice(configs[name], Rung.FILE, origin=str(path))
    store.keep(result(b64=10.0))
    assert config_of(store.find(KEY, live)) is SMALL


def test_the_files_of_this_package_are_found_by_its_name() -> None:
    files._packages.clear()
    assert (list(store.config_folders())[-1] / "__init__.py").is_file()


@pytest.mark.parametrize(
    "key",
    [make_key(2), make_key(source="cc"), make_key(triton="3.6.0"), make_key(device={**DEVICE, "sm_count": 114})],
    ids=["call", "source", "triton", "device"],
)
def test_a_config_file_answers_the_same_call_in_the_same_context_only(folders: dict[str, Path], key: Key) -> None:
    write_file(folders["packaged"], SMALL)
    assert store.find(key, LIVE) is None
    assert config_of(store.find(KEY, LIVE)) is SMALL


def test_a_file_is_read_once_until_files_are_forgotten(folders: dict[str, Path]) -> None:
    path = write_file(folders["packaged"], SMALL)
    assert config_of(store.find(KEY, LIVE)) is SMALL
    path.unlink()
    assert config_of(store.find(KEY, LIVE)) is SMALL
    store.forget_files()
    assert store.find(KEY, LIVE) is None


BROKEN = {
    "cut off": '{"schema": 1,',
    "newer schema": '{"schema": 2}',
    "another kernel's": ConfigFile("app.other", from_json(DEVICE)).dump(),
    "an unknown field": '{"schema": 1, "kernel": "app.k", "device": {}, "groups": [], "author": "me"}',
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_config_file_is_reported_once_by_name_and_the_others_serve(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    broken = write_file(folders["env first"], SMALL, text=BROKEN[kind])
    write_file(folders["packaged"], LARGE)
    for _ in range(2):
        assert config_of(store.find(KEY, LIVE)) is LARGE
    assert len(warnings_in(caplog)) == 1
    assert warnings_in(caplog)[0].startswith(f"config file {broken}: ")
    assert "It is skipped" in warnings_in(caplog)[0]
    assert broken.read_text() == BROKEN[kind]


def test_a_config_file_that_cannot_be_read_is_reported_once_and_skipped(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_file(folders["packaged"], SMALL)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert store.find(make_key(2), LIVE) is None
    assert store.find(make_key(3), LIVE) is None
    assert len(warnings_in(caplog)) == 1
    assert str(path) in warnings_in(caplog)[0]


def test_a_shipped_config_that_is_no_candidate_any_more_is_said_once_and_the_next_place_serves(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    gone = write_file(folders["env first"], FakeConfig({"BLOCK": 1}))
    write_file(folders["packaged"], LARGE)
    for _ in range(2):
        assert config_of(store.find(KEY, LIVE)) is LARGE
    assert len(warnings_in(caplog)) == 1
    assert warnings_in(caplog)[0].startswith(f"config file {gone}: the config for this call is not among")


def test_a_folder_that_is_not_there_is_no_error(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", "/nowhere/at/all")
    assert store.find(KEY, LIVE) is None
    assert warnings_in(caplog) == []


def make_package(root: Path, name: str) -> None:
    (root / name).mkdir(parents=True)
    (root / name / "__init__.py").touch()
    write_file(root / name, LARGE)


def make_zip(root: Path, name: str) -> None:
    make_package(root / "unpacked", name)
    with zipfile.ZipFile(root / "app.zip", "w") as archive:
        for path in sorted((root / "unpacked").rglob("*")):
            archive.write(path, path.relative_to(root / "unpacked"))


@pytest.mark.parametrize(
    ("make", "name", "entry"),
    [(make_package, "tuned_in_folder", ""), (make_zip, "tuned_in_zip", "app.zip")],
    ids=["package", "package in a zip"],
)
def test_the_config_files_of_a_package_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path, str], None], name: str, entry: str
) -> None:
    make(tmp_path, name)
    monkeypatch.syspath_prepend(str(tmp_path / entry))
    store.register_configs(name)
    sys.modules.pop(name)
    assert config_of(store.find(KEY, LIVE)) is LARGE
    assert config_of(store.find(make_key(2), LIVE)) is None


@pytest.mark.parametrize("source", ["no_such_package_at_all", "./no/such/folder", "no/such"])
def test_a_source_of_config_files_that_is_none_is_refused(source: str) -> None:
    with pytest.raises(ConfigFileError, match="register_configs: expected a package or an existing folder") as caught:
        store.register_configs(source)
    assert caught.value.path == source


def test_registering_serves_at_once(tmp_path: Path) -> None:
    assert store.find(KEY, LIVE) is None
    write_file(tmp_path, LARGE)
    store.register_configs(tmp_path)
    assert config_of(store.find(KEY, LIVE)) is LARGE


# -- writing config files --------------------------------------------------------------------------------------------


def entry_for(key: Key, config: FakeConfig = SMALL) -> Entry:
    return Entry(key.call, form(config), 10.0, None)


def test_shipping_adds_to_the_file_of_kernel_and_device(tmp_path: Path) -> None:
    older = make_key(2, triton="3.6.0")
    for key, config in ((KEY, SMALL), (older, LARGE), (KEY, OTHER)):
        path = store.ship(key, entry_for(key, config), tmp_path)
    assert path == tmp_path / SLUG / "app.k.json"
    written = sorted(each.relative_to(tmp_path).as_posix() for each in tmp_path.rglob("*"))
    assert written == [".gitattributes", SLUG, f"{SLUG}/app.k.json"]
    store.register_configs(tmp_path)
    assert config_of(store.find(KEY, LIVE)) is OTHER  # the later entry in place of the first
    assert config_of(store.find(older, LIVE)) is LARGE
    assert [(file, key) for file, key, _ in store.shipped("app.k") if file == str(path)] == [
        (str(path), older),
        (str(path), KEY),
    ]


@pytest.mark.parametrize("kind", BROKEN)
def test_shipping_into_a_broken_file_is_refused_and_leaves_it(tmp_path: Path, kind: str) -> None:
    path = write_file(tmp_path, SMALL, text=BROKEN[kind])
    with pytest.raises(ConfigFileError, match="It is left as it is: repair it, or move it away"):
        store.ship(KEY, entry_for(KEY), tmp_path)
    assert path.read_text() == BROKEN[kind]


def test_two_devices_whose_names_become_one_slug_are_not_mixed(tmp_path: Path) -> None:
    twin = make_key(device={**DEVICE, "name": DEVICE["name"].lower()})
    path = store.ship(KEY, entry_for(KEY), tmp_path)
    before = path.read_text()
    with pytest.raises(ConfigFileError, match="expected Device"):
        store.ship(twin, entry_for(twin), tmp_path)
    assert path.read_text() == before


def test_shipped_entries_of_every_kernel_are_listed_by_file(folders: dict[str, Path]) -> None:
    other = make_key(kernel="app.other")
    first, second = (store.ship(key, entry_for(key), folders["packaged"]) for key in (KEY, other))
    (folders["packaged"] / "schema").mkdir()
    (folders["packaged"] / "schema" / "config-file.json").write_text("{}")
    assert list(store.shipped()) == [(str(first), KEY, entry_for(KEY)), (str(second), other, entry_for(other))]
    assert list(store.shipped("app.other")) == [(str(second), other, entry_for(other))]


def test_a_folder_says_why_it_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert store.unwritable(tmp_path / "new" / "folder") == ""
    assert store.unwritable(tmp_path / "file" / "folder") == f"{tmp_path / 'file'} is not a folder"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    monkeypatch.setattr(disk, "write_text", refuse)
    assert store.unwritable(tmp_path).endswith("No space left on device")


def test_heads_of_one_context_share_it_and_say_what_whole_records_say() -> None:
    keys = [make_key(n) for n in range(3)]
    keys.append(Key("app.k", {"tensors": {}, "values": {"context": {"text": 'a, "context": b'}}, "none": []}, {}))
    for key in keys:
        assert store.keep(result(key, b64=10.0))
    heads = dict(store.all_heads("app.k"))
    whole = {str(path): found for path, found in store.all_records("app.k")}
    assert len(heads) == 4 and heads.keys() == whole.keys()
    for path, found in heads.items():
        assert found == whole[path].replace(timings=(), provenance={})
        assert (found.key.call, found.key.context) == (whole[path].key.call, whole[path].key.context)
    assert len({id(found.key.context) for found in heads.values() if found.key.context}) == 1


def test_a_head_that_is_damaged_behind_its_call_is_moved_aside(caplog: pytest.LogCaptureFixture) -> None:
    assert store.keep(result(b64=10.0))
    path = store.record_path(KEY)
    path.write_text(path.read_text().replace(', "context": {', ', "context": {{', 1))
    assert list(store.all_heads()) == []
    assert not path.exists() and len(caplog.messages) == 1 and str(path) in caplog.text


def test_a_rung_stays_itself_however_it_is_copied() -> None:
    rungs = [Rung.TABLE, Rung.STORE, Rung.FILE, Rung.LADDER, Rung.NEAREST, Rung.DEFAULT, Rung.SEARCH, Rung.ONLY]
    assert len({rung.name for rung in rungs}) == 8
    for rung in rungs:
        assert pickle.loads(pickle.dumps(rung)) is copy.deepcopy(rung) is copy.copy(rung) is rung
        assert repr(rung) == f"Rung.{rung.name}"
