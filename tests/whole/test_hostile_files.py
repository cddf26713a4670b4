"""Whatever a file says, the worst is a miss: each reader of a file on disk, fed with what somebody else wrote there."""

import functools
import json
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeConfig, by_identity, form, make_key
from hostile import HUGE, STRANGE, changed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shipped import SLUG
from shipped import write as write_config_file

from autotuned import disk, env
from autotuned.configfiles import exchange, file, lookup
from autotuned.configfiles.audit import Audit
from autotuned.errors import ConfigFileError, RecordError, RecordingError
from autotuned.recording import file as calls
from autotuned.recording.file import RecordedCall
from autotuned.resolve import explain, sources
from autotuned.search import exclusions
from autotuned.store import layout, listing, locks, record, records
from autotuned.store.journal import Journal
from autotuned.store.record import Timing, TuningRecord
from autotuned.triton_compat import fingerprint

CONFIGS = [FakeConfig({"BLOCK": 64}), FakeConfig({"BLOCK": 128})]
LIVE = by_identity(*CONFIGS)
KEY = make_key(1024)
every = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)


hostile = st.integers(0, 2**32).map(random.Random)
anything = st.recursive(
    st.sampled_from([*HUGE, *STRANGE]), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


def put(path: Path, data: Any) -> Path:
    disk.make_folder(path.parent)
    path.write_text(json.dumps(data))
    return path


# -- journals --------------------------------------------------------------------------------------------------------

JOURNAL = {"key": {"kernel": KEY.kernel, **KEY.to_json()}, "schema": 1, "launching": "a", "compiling": ["b"], "lost": [], "crashed": [], "suspects": [], "pid": 1,
           "host": socket.gethostname(), "run": "x"}  # fmt: skip


@every
@given(hostile, anything)
def test_a_journal_says_texts_or_nothing(chance: random.Random, other: Any) -> None:
    path = layout.journal_path(KEY)
    for data in (changed(JOURNAL, chance), other):
        found = Journal(put(path, data), KEY)
        assert all(type(name) is str for name in [*found.lost, *found.crashed, *found.suspects])
        assert exclusions.measured({}, found, again=True) == {}


@pytest.mark.parametrize("pid", [10**30, -(10**30), 1 << 31, 1 << 63, 0, -1, True, "1", 1.0, None])
def test_a_journal_of_a_process_that_cannot_be_is_none(pid: Any) -> None:
    """`os.kill` raised OverflowError out of every call of the key, in every process."""
    assert Journal(put(layout.journal_path(KEY), {**JOURNAL, "pid": pid}), KEY).crashed == []


def test_a_journal_of_another_host_or_a_process_that_is_gone_says_what_crashed() -> None:
    for change in ({"host": "elsewhere"}, {"pid": (1 << 22) + 1}):
        found = Journal(put(layout.journal_path(KEY), {**JOURNAL, **change}), KEY)
        assert (found.crashed, found.suspects) == (["a"], ["b"])


def test_what_was_compiling_when_two_processes_died_has_crashed() -> None:
    found = Journal(put(layout.journal_path(KEY), {**JOURNAL, "host": "elsewhere", "suspects": ["b"]}), KEY)
    assert found.crashed == ["a", "b"]


# -- who holds a lock ------------------------------------------------------------------------------------------------

HOLDER = {"pid": 12, "host": "h", "start": "s"}


@every
@given(hostile, anything)
def test_the_holder_of_a_lock_is_named_or_another_process(chance: random.Random, other: Any) -> None:
    path = layout.root() / "a.lock"
    for data in (changed(HOLDER, chance), other):
        put(layout.holder_path(path), data)
        assert locks._holder_of(path).startswith(("process ", "another process"))
    put(layout.holder_path(path), HOLDER)
    assert locks._holder_of(path) == "process 12 on h (since s)"


# -- logbooks --------------------------------------------------------------------------------------------------------


@every
@given(hostile, anything)
def test_a_logbook_gives_timings_or_nothing(chance: random.Random, other: Any) -> None:
    path = layout.logbook_path(layout.record_path(KEY))
    header = {"schema": record.SCHEMA, "kernel": KEY.kernel, "key": KEY.to_json(), "restore": None}
    timing = Timing(form(CONFIGS[0]), 10.0, 9.0, 11.0, 40).fields()
    put(path, None).write_text("\n".join(map(json.dumps, [header, changed(timing, chance), other, timing])))
    found = records.timings_in(path, KEY)
    assert record.identity_of(form(CONFIGS[0])) in found
    assert all(type(one.samples) is int and one.identity == identity for identity, one in found.items())


# -- records ---------------------------------------------------------------------------------------------------------


def a_record(n: int = 1024) -> TuningRecord:
    timings = [Timing(form(config), us, us, us, 40) for config, us in zip(CONFIGS, (10.0, 12.0))]
    more = {"written": ["x_ptr"], "seconds": 1.0, "timer": "race-1", "default": form(CONFIGS[1]), "vs_default": 1.5}
    return TuningRecord(make_key(n), form(CONFIGS[0]), 10.0, "ok", tuple(timings), more)


@every
@given(hostile)
def test_a_record_answers_or_is_none_for_whoever_reads_it(chance: random.Random) -> None:
    env._said.clear()
    path = layout.record_path(KEY)
    put(path, changed(record.dump(a_record()), chance))
    for _, found in [*listing.all_records(), *listing.all_heads()]:
        explain.remarks(found.key, {}) if "tensors" in found.key.call else None
        file.entry_of(found) if found.winner else None
    explain.nearest(make_key(2))
    choice = sources.find(KEY, LIVE)
    assert choice is None or choice.config in CONFIGS
    if choice is not None and choice.record is not None:
        assert all(type(name) is str for name in choice.record.provenance.get("written", ()))


@every
@given(anything)
def test_what_is_no_record_is_a_record_error(data: Any) -> None:
    with pytest.raises(RecordError):
        record.load(data)


# -- config files ----------------------------------------------------------------------------------------------------

OLDER = make_key(512, triton="3.8.0")


def a_config_file(folder: Path) -> Path:
    return write_config_file(folder, (KEY, CONFIGS[0]), (make_key(2048), CONFIGS[1]), (OLDER, CONFIGS[0]))


@every
@given(hostile)
def test_a_config_file_serves_or_has_faults_for_whoever_reads_it(tmp_path_factory: Any, chance: random.Random) -> None:
    folder = tmp_path_factory.mktemp("files")
    path = a_config_file(folder)
    data = changed(json.loads(path.read_text()), chance)
    path.write_text(json.dumps(data, indent=chance.choice([None, 1])))
    env._said.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNED_CONFIG_PATH", str(folder))
        lookup.forget_files()
        for key in (KEY, make_key(1000), make_key(512), make_key(triton="3.9.1")):
            choice = sources.find(key, LIVE, sources.places(False, False, {"n": 4.0}))
            assert choice is None or choice.config in CONFIGS
            lookup.likely(key, LIVE, {"n": 4.0})
            explain.nearest(key)
        lookup.forget_files()
    Audit([folder])
    exchange.merge([folder])


@every
@given(st.binary(max_size=300) | anything.map(lambda data: json.dumps(data).encode()))
def test_what_is_no_config_file_is_a_config_file_error(content: bytes) -> None:
    with pytest.raises(ConfigFileError):
        file.parse(content, "k.json")


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to itself", "a terabyte", "link to a device"])
def test_what_is_no_plain_file_is_a_fault_and_the_next_folder_serves(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    a_config_file(tmp_path / "good")
    path = tmp_path / "bad" / SLUG / "app.k.json"
    path.parent.mkdir(parents=True)
    make_strange(path, kind)
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", os.pathsep.join([str(tmp_path / "bad"), str(tmp_path / "good")]))
    lookup.forget_files()
    choice = sources.find(KEY, LIVE)
    assert choice is not None and choice.config is CONFIGS[0]
    assert [record.getMessage() for record in caplog.records if str(path) in record.getMessage()] != []


def make_strange(path: Path, kind: str) -> None:
    make: dict[str, Callable[[], Any]] = {
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "link to itself": lambda: path.symlink_to(path),
        "a terabyte": lambda: (path.touch(), os.truncate(path, 1 << 40)),
        "link to a device": lambda: path.symlink_to("/dev/zero"),
    }
    make[kind]()


# -- recordings ------------------------------------------------------------------------------------------------------

CALL = RecordedCall("app.k", "app:k", KEY, {"memories": [], "values": {}}, {"sizes": [1]}, 3)


@every
@given(hostile, anything)
def test_a_recording_holds_calls_or_is_a_recording_error(
    tmp_path_factory: Any, chance: random.Random, other: Any
) -> None:
    path = tmp_path_factory.mktemp("calls") / "calls.jsonl"
    line = {"id": CALL.identity, **CALL.to_json(), "count": 3}
    more = {"id": CALL.identity, "more": 2}
    path.write_text("\n".join(map(json.dumps, [changed(line, chance), changed(more, chance), other, line])))
    for found in calls.read(path):
        assert type(found.count) is int and found.count >= 0
        assert type(found.kernel) is str and type(found.target) is str
        assert found.key.digest
    path.write_text(json.dumps(other))
    with pytest.raises(RecordingError):
        calls.read(path)


# -- what is remembered of the toolchain -----------------------------------------------------------------------------


@functools.cache
def toolchain_here() -> dict[str, Any]:
    return fingerprint._parts()


@every
@given(hostile, anything)
def test_a_remembered_toolchain_is_texts_or_is_found_out_anew(chance: random.Random, other: Any) -> None:
    path = layout.root() / "toolchain" / "a.json"
    is_ = {"triton": "3.9.0", "triton_key": "k", "ptxas": None}
    parts = toolchain_here()
    data = {"ptxas": None, **parts, "is": is_}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "_hashed", lambda: (parts, "fresh"))
        for said in (changed(data, chance), other):
            found = fingerprint._remembered(put(path, said), None)
            assert all(part is None or type(part) is str for part in found.values())
