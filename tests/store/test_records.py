import copy
import errno
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeConfig, by_identity, form, make_key
from faults import faults, refuse
from shipped import KEY, LARGE, LIVE, OTHER, SMALL
from stored import config_of, lines

from autotuned import disk
from autotuned.gpu.device import INTERPRETER
from autotuned.key.key import Key
from autotuned.resolve import sources
from autotuned.store import layout, listing, record, records
from autotuned.store.choice import Choice, Origin
from autotuned.store.conditions import Conditions
from autotuned.store.record import Timing, TuningRecord


def hook(arguments: Any) -> None: ...


def result(key: Key = KEY, winner: FakeConfig | None = SMALL, **times_us: float | None) -> TuningRecord:
    """A record of measured configs by their block, `b64=10.0`; None is a failure."""
    timings = tuple(
        Timing(form(FakeConfig({"BLOCK": int(name[1:])})), *([us] * 3), samples=40)
        if us is not None
        else Timing(form(FakeConfig({"BLOCK": int(name[1:])})), status="failed", error="boom")
        for name, us in times_us.items()
    )
    median_us = (times_us.get(f"b{winner.kwargs['BLOCK']}") or 10.0) if winner else None
    return TuningRecord(key, form(winner) if winner else None, median_us, "ok", timings)


# -- records ---------------------------------------------------------------------------------------------------------


def test_what_is_kept_is_found_with_the_live_config() -> None:
    kept = result(b64=10.0, b128=12.0)
    assert sources.find(KEY, LIVE) is None
    assert records.keep(kept)
    found = sources.find(KEY, LIVE)
    where = str(layout.record_path(KEY))
    assert found == Choice(SMALL, Origin.STORE, kept, complete=False, where=where, conditions=Conditions())
    assert found is not None
    assert found.config is SMALL


def test_a_record_is_one_file_named_by_schema_kernel_and_digest() -> None:
    records.keep(result())
    path = layout.root() / "v2" / "app.k" / f"{KEY.digest}.json"
    assert layout.record_path(KEY) == path
    assert record.load(json.loads(path.read_text())) == result()
    assert [found.name for found in layout.root().rglob("*") if found.is_file()] == [path.name]


def test_kernels_of_one_safe_name_have_folders_of_their_own() -> None:
    folders = {layout.record_path(make_key(kernel=name)).parent.name for name in ("app.k", "App.K", "app/k", "app:k")}
    assert len(folders) == 4


@pytest.mark.parametrize("key", [make_key(2), make_key(True), make_key(triton="3.6.0"), make_key(kernel="app.other")])
def test_another_key_finds_nothing(key: Key) -> None:
    records.keep(result(make_key(1)))
    assert sources.find(key, LIVE) is None


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
    records.keep(result(**times_us))
    found = sources.find(KEY, live)
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
    records.keep(result(**times_us))
    assert config_of(sources.find(KEY, live)) is chosen


def test_an_unfinished_search_is_no_choice() -> None:
    records.keep(result(winner=None, b64=10.0))
    assert sources.find(KEY, LIVE) is None
    kept = records.read(layout.record_path(KEY))
    assert kept is not None
    assert len(kept.timings) == 1


def test_a_stored_config_with_a_hook_is_served_with_the_live_hook_or_not_at_all() -> None:
    hooked = FakeConfig({"BLOCK": 64}, pre_hook=hook)
    records.keep(result(winner=hooked))
    assert config_of(sources.find(KEY, by_identity(SMALL, hooked))) is hooked
    assert sources.find(KEY, by_identity(SMALL, LARGE)) is None


# -- damage ----------------------------------------------------------------------------------------------------------


def put(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def dumped(**changes: Any) -> bytes:
    return json.dumps({**record.dump(result(b64=10.0)), **changes}).encode()


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
    "a missing field": put(json.dumps({"schema": 2}).encode()),
    "an unknown field": put(dumped(extra=1)),
    "no schema": put(b'{"winner": {}}'),
    "schema 0": put(dumped(schema=0)),
    "a winner of another form": put(dumped(winner="BLOCK=64")),
    "a folder in its place": put_folder,
    "a link to nowhere": lambda path: path.symlink_to(path.parent / "nowhere"),
    "the record of another key": lambda path: path.write_text(disk.text(record.dump(result(make_key(True))))),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_record_is_a_miss_that_is_moved_aside_said_once_and_healed(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = make_key(1) if "another key" in kind else KEY
    path = layout.record_path(key)
    path.parent.mkdir(parents=True)
    DAMAGE[kind](path)
    assert sources.find(key, LIVE) is None
    assert sources.find(key, LIVE) is None
    assert len(lines(caplog)) == 1
    moved = next((path.parent / "damaged").iterdir())
    assert lines(caplog)[0].startswith(f"record {path} is damaged (")
    assert lines(caplog)[0].endswith(f"); moved to {moved}; the kernel is tuned again.")
    assert not list(listing.all_records())
    assert records.keep(result(key, b64=10.0))
    assert config_of(sources.find(key, LIVE)) is SMALL
    assert len(lines(caplog)) == 1


@pytest.mark.parametrize("kind", ["empty", "an unknown field", "a link to nowhere"])
def test_a_damaged_record_that_cannot_be_moved_is_said_once_and_replaced(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = layout.record_path(KEY)
    path.parent.mkdir(parents=True)
    DAMAGE[kind](path)
    monkeypatch.setattr(disk, "move_aside", lambda path, folder: None)
    assert sources.find(KEY, LIVE) is None
    assert sources.find(KEY, LIVE) is None
    assert len(lines(caplog)) == 1
    assert "it will be replaced" in lines(caplog)[0]
    assert records.keep(result(b64=10.0))
    assert config_of(sources.find(KEY, LIVE)) is SMALL


def test_a_record_of_a_newer_schema_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    path = layout.record_path(KEY)
    path.parent.mkdir(parents=True)
    path.write_text('{"schema": 999, "winners": []}')
    assert sources.find(KEY, LIVE) is None
    assert not records.keep(result())
    assert sources.find(KEY, LIVE) is None
    assert path.read_text() == '{"schema": 999, "winners": []}'
    assert lines(caplog) == [f"record {path} has the newer schema 999; it is left alone."]


@pytest.mark.parametrize(
    ("data", "newer"),
    [({"schema": 3}, True), ({"schema": 2}, False), ({"schema": 1}, False), ({"schema": True}, False), ({"schema": "2"}, False), ({}, False),
     ([], False), (None, False)],
    ids=repr,
)  # fmt: skip
def test_what_is_of_a_newer_schema(data: Any, newer: bool) -> None:
    assert record.is_newer(data) is newer


# -- folders that cannot be used -------------------------------------------------------------------------------------


def test_where_nothing_can_be_written_choices_live_in_memory_with_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "write_text", refuse)
    assert not records.keep(result(make_key(1)))
    assert not records.keep(result(make_key(2)))
    assert len(lines(caplog)) == 1
    assert f"cannot write to the cache folder {layout.root()} ([Errno 28] No space left on device)" in lines(caplog)[0]
    assert "AUTOTUNED_CACHE_DIR" in lines(caplog)[0]


@pytest.mark.parametrize("below", ["", "cache"], ids=["a file", "below a file"])
def test_a_cache_folder_that_cannot_be_made_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "file" / below))
    for n in (1, 2):
        assert sources.find(make_key(n), LIVE) is None
        with records.locked(make_key(n), INTERPRETER):
            assert not records.keep(result(make_key(n)))
    assert len(lines(caplog)) == 1


def test_a_record_that_cannot_be_read_is_a_miss_said_once_and_stays(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    records.keep(result())

    with faults("open", errno.EACCES):
        assert sources.find(KEY, LIVE) is None
        assert sources.find(KEY, LIVE) is None
    assert len(lines(caplog)) == 1
    assert str(layout.record_path(KEY)) in lines(caplog)[0]
    assert config_of(sources.find(KEY, LIVE)) is SMALL


def test_reading_writes_nothing() -> None:
    sources.find(KEY, LIVE)
    assert not layout.root().exists()


def test_writers_of_one_key_and_of_many_lose_nothing() -> None:
    keys = [make_key(n) for n in range(12)]

    def write(part: int) -> None:
        for key in (*keys[part::4], KEY):
            assert records.keep(result(key, b64=10.0))

    threads = [threading.Thread(target=write, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {found.key for _, found in listing.all_records()} == {*keys, KEY}


def test_records_are_listed_and_cleared_by_kernel() -> None:
    mine, yours = make_key(1), make_key(1, kernel="app.other")
    for key in (mine, make_key(2), yours):
        records.keep(result(key))
    path = layout.record_path(mine)
    (path.parent / f".{path.name}.1.tmp").write_text("half a rec")
    assert {found.key for _, found in listing.all_records("app.k")} == {mine, make_key(2)}
    assert [each for each, _ in listing.all_records()] == sorted(each for each, _ in listing.all_records())
    assert listing.clear("app.k") == 2
    assert [found.key for _, found in listing.all_records()] == [yours]
    assert listing.clear() == 1
    assert list(listing.all_records()) == []
    assert listing.clear() == 0


def test_the_lock_of_a_key_lies_beside_its_record() -> None:
    with records.locked(KEY, INTERPRETER):
        assert (layout.record_path(KEY).parent / "locks" / f"{KEY.digest}.lock").exists()
    assert list(listing.all_records()) == []


@pytest.mark.parametrize(("kind", "times"), [("nfs4", 1), ("", 0)], ids=["network", "local"])
def test_a_network_file_system_is_said_once_and_only_by_who_searches(
    kind: str, times: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(layout, "network_file_system", lambda path: kind)
    records.keep(result(b64=10.0, b128=12.0))
    assert sources.find(KEY, LIVE) is not None
    assert lines(caplog) == []
    for n in range(3):
        with records.locked(make_key(n), INTERPRETER):
            pass
    said = lines(caplog)
    assert len(said) == times
    assert all(str(layout.root()) in line and f"({kind})" in line for line in said)


def test_heads_say_what_whole_records_say() -> None:
    keys = [make_key(n) for n in range(3)]
    keys.append(
        Key("app.k", {"tensors": {}, "values": {"context": {"text": 'a, "context": b'}}, "none": []}, KEY.context)
    )
    for key in keys:
        assert records.keep(result(key, b64=10.0))
    heads = dict(listing.all_heads("app.k"))
    whole = {str(path): found for path, found in listing.all_records("app.k")}
    assert len(heads) == 4 and heads.keys() == whole.keys()
    for path, found in heads.items():
        assert found == whole[path].replace(timings=(), provenance={})
        assert (found.key.call, found.key.context) == (whole[path].key.call, whole[path].key.context)


def test_a_head_that_is_damaged_behind_its_call_is_moved_aside(caplog: pytest.LogCaptureFixture) -> None:
    assert records.keep(result(b64=10.0))
    path = layout.record_path(KEY)
    path.write_text(path.read_text().replace(', "context": {', ', "context": {{', 1))
    assert list(listing.all_heads()) == []
    assert not path.exists() and len(caplog.messages) == 1 and str(path) in caplog.text


def test_a_rung_stays_itself_however_it_is_copied() -> None:
    origins = [
        Origin.TABLE,
        Origin.STORE,
        Origin.FILE,
        Origin.LADDER,
        Origin.NEAREST,
        Origin.DEFAULT,
        Origin.SEARCH,
        Origin.ONLY,
    ]
    assert len({origin.name for origin in origins}) == 8
    for origin in origins:
        assert pickle.loads(pickle.dumps(origin)) is copy.deepcopy(origin) is copy.copy(origin) is origin
        assert repr(origin) == f"Origin.{origin.name}"
