"""`AUTOTUNED_RECORD` names a store: what processes record is sent there now and then, and at their end."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
from fakes import make_key
from stored import lines

from autotuned import autotune
from autotuned.offline.store_recordings import StoreTail
from autotuned.recording import sending
from autotuned.recording.file import RecordedCall, Writer
from autotuned.resolve import active

APP = """
import sys
from autotuned import Config, autotune
bench = lambda call, quantiles: (call(), [1.0] * 3)[1]

@autotune([Config({"step": 1}), Config({"step": 2})], key=["n"], do_bench=bench, name="app.work")
def work(n, *, step):
    pass

for _ in range(int(sys.argv[1])):
    work(1)
"""
SECRET = "a key of a fleet, not a secret"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("fsspec", reason="needs the package fsspec")
    monkeypatch.setattr("autotuned.offline.store_recordings.LOOK_S", 0.0)
    monkeypatch.setenv("AUTOTUNED_STORE_KEY", SECRET)
    return f"file://{tmp_path}/mount"


def ran(tmp_path: Path, count: int, **environment: str) -> str:
    """What a process says that makes so many calls."""
    (tmp_path / "app.py").write_text(APP)
    command = [sys.executable, str(tmp_path / "app.py"), str(count)]
    done = forked.run(command, env={**os.environ, **environment}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stderr


def counts(url: str) -> list[int]:
    tail = StoreTail(url)
    tail.look()
    return [call.count for call in tail.calls.values()]


def test_processes_of_a_cache_folder_are_added_up_and_hosts_too(url: str, tmp_path: Path) -> None:
    assert "record" not in ran(tmp_path, 3, AUTOTUNED_RECORD=url)
    assert counts(url) == [3]
    ran(tmp_path, 4, AUTOTUNED_RECORD="-", AUTOTUNED_STORE=url)
    assert counts(url) == [7]
    ran(tmp_path, 2, AUTOTUNED_RECORD=url, AUTOTUNED_CACHE_DIR=str(tmp_path / "other"))
    assert counts(url) == [9]
    assert [one.name for one in tmp_path.iterdir() if "file:" in one.name] == []


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"AUTOTUNED_STORE_READ_ONLY": "1"}, "expected one to write, got AUTOTUNED_STORE_READ_ONLY=1"),
        ({"AUTOTUNED_STORE_KEY": "short"}, "AUTOTUNED_STORE_KEY: expected at least"),
        (
            {"AUTOTUNED_RECORD": "-"},
            "expected a URL such as redis://host:6379/0 or file:///folder, got - for AUTOTUNED_STORE, which is not set",
        ),
    ],
)
def test_where_nothing_can_be_sent_nothing_is_recorded_which_is_said_once(
    url: str, tmp_path: Path, environment: dict[str, str], says: str
) -> None:
    said = ran(tmp_path, 3, **{"AUTOTUNED_RECORD": url, **environment})
    assert said.count("AUTOTUNED_RECORD: nothing is recorded: ") == 1 and says in said


def test_it_is_sent_when_it_has_changed_and_once_a_minute(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now, sent = [1000.0], []
    monkeypatch.setattr(sending.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sending, "put", lambda *given: sent.append(now[0]))
    sender = sending.Sender(url)
    writer, call = Writer(sender.path), RecordedCall("app.k", "app:k", make_key(1), {}, None)
    writer.call(call)
    for seconds in (10.0, 50.0, 50.0, 100.0):
        now[0] += seconds
        sender.send(now=False)
        if seconds == 100.0:
            break
    assert sent == [1060.0]
    writer.more({call.identity: 3})
    sender.send(now=False)
    sender.send(now=True)
    sender.send(now=True)
    writer.close()
    assert sent == [1060.0, 1210.0]


def test_a_store_that_is_away_is_said_once_without_its_password_and_asked_again(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("redis", reason="needs the package redis")
    monkeypatch.setenv("AUTOTUNED_RECORD", "redis://me:pass123@127.0.0.1:1/0")
    work: Any = autotune([], key=["n"], name="app.away")(lambda n: None)
    work(1)
    [recording] = active.recorders
    try:
        recording._end()
        recording._end()
    finally:
        active.recorders.remove(recording)
        active.tell_change()
        recording.close()
    said = [line for line in lines(caplog) if "it is not sent" in line]
    assert len(said) == 1 and "pass123" not in caplog.text
