"""`autotuned.follow`: a companion that tunes what a service records, and the recording that it reads meanwhile."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from fakes import FakeConfig, form, make_key
from newer import store_choice
from recordings import counts, line, more, recorded

import autotuned
from autotuned.errors import OptionError, RecordingError, StoreError
from autotuned.offline import follow as following
from autotuned.offline.store_recordings import StoreTail
from autotuned.store import layout, listing, records
from autotuned.store.record import Timing, TuningRecord
from autotuned.tunable import configs

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "serving"
COMMAND = [sys.executable, "-c", "from autotuned.cli.main import app; app()"]


# -- recordings in a shared store -------------------------------------------------------------------------------------

SECRET = "a key of a fleet, not a secret"


@pytest.fixture
def store(tmp_path, monkeypatch):
    pytest.importorskip("fsspec", reason="needs the package fsspec")
    monkeypatch.setenv("AUTOTUNED_STORE_KEY", SECRET)
    monkeypatch.setattr("autotuned.offline.store_recordings.LOOK_S", 0.0)
    return f"file://{tmp_path}/mount"


def pushed(store, path, *lines):
    path.write_bytes(b"".join(lines))
    return autotuned.push(path, store)


def test_recordings_of_several_hosts_are_added_up_as_they_come(store, tmp_path):
    tail = StoreTail(store)
    assert not tail.look()
    pushed(store, tmp_path / "a.jsonl", line(recorded(1)), more(recorded(1), 4))
    pushed(store, tmp_path / "b.jsonl", line(recorded(1)), line(recorded(2)))
    assert tail.look() and counts(tail) == {1: 6, 2: 1} and not tail.look()
    pushed(store, tmp_path / "a.jsonl", line(recorded(1)), more(recorded(1), 9), line(recorded(3)))
    assert tail.look() and counts(tail) == {1: 11, 2: 1, 3: 1} and tail.strange == 0


def test_hosts_of_one_name_and_path_do_not_overwrite_each_others_recording(store, tmp_path, monkeypatch):
    names = set()
    for host in ("a", "b", "a"):
        monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / host))
        names.update(pushed(store, tmp_path / "calls.jsonl", line(recorded(1)), more(recorded(1), 4)).files)
    tail = StoreTail(store)
    assert len(names) == 2 and tail.look()
    assert [call.count for call in tail.calls.values()] == [10]


def test_a_recording_that_the_key_does_not_verify_is_left_out_and_said_once(store, tmp_path, monkeypatch, caplog):
    pushed(store, tmp_path / "a.jsonl", line(recorded(1)))
    monkeypatch.setenv("AUTOTUNED_STORE_KEY", SECRET + " of others")
    pushed(store, tmp_path / "b.jsonl", line(recorded(2)))
    tail = StoreTail(store)
    assert tail.look() and counts(tail) == {2: 1} and tail.strange == 1
    assert not tail.look() and caplog.text.count("is not used") == 1


def test_recordings_name_code_and_without_a_key_only_a_folder_is_followed(store, monkeypatch):
    monkeypatch.delenv("AUTOTUNED_STORE_KEY")
    with pytest.raises(
        OptionError, match="expected signed recordings, since they name code, got no AUTOTUNED_STORE_KEY"
    ):
        autotuned.follow("redis://user:hush@127.0.0.1:1/0")
    assert StoreTail(store).calls == {}


def test_a_store_that_is_away_is_said_once_and_asked_again(store, tmp_path, caplog):
    pushed(store, tmp_path / "a.jsonl", line(recorded(1)))
    tail = StoreTail(store)
    names, tail._backend.names = tail._backend.names, lambda prefix: 1 / 0
    assert not tail.look() and not tail.look()
    assert caplog.text.count("recordings cannot be read") == 1
    tail._backend.names = names
    assert tail.look() and counts(tail) == {1: 1}


def test_a_recording_that_is_gone_counts_no_more(store, tmp_path):
    tail = StoreTail(store)
    pushed(store, tmp_path / "a.jsonl", line(recorded(1)))
    [name] = pushed(store, tmp_path / "b.jsonl", line(recorded(1)), line(recorded(2))).files
    assert tail.look() and counts(tail) == {1: 2, 2: 1}
    tail._backend.remove(name)
    assert tail.look() and counts(tail) == {1: 1} and not tail.look()


def test_a_recording_that_is_too_large_is_said_and_not_sent(store, tmp_path, monkeypatch, caplog):
    pushed(store, tmp_path / "a.jsonl", line(recorded(1)))
    tail = StoreTail(store)
    with monkeypatch.context() as patch:
        patch.setattr("autotuned.offline.store_recordings.MAX_FILE_BYTES", 100)
        assert tail.look() and tail.strange == 1 and not tail.look()
        assert caplog.text.count("is not used") == 1
    monkeypatch.setattr("autotuned.recording.sending.MAX_FILE_BYTES", 100)
    with pytest.raises(StoreError, match="expected at most 100 bytes of distinct calls"):
        pushed(store, tmp_path / "a.jsonl", line(recorded(2)))


def test_what_is_waited_for_is_said_once(store, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(following, "POLL_S", 0.0)
    monkeypatch.setattr(following, "TELL_S", 0.0)
    (tmp_path / "strange.jsonl").write_text("no call\n" * 3)
    for given, got in ((store, "none yet"), (tmp_path / "later.jsonl", "none yet"), (tmp_path / "strange.jsonl", "3")):
        looks = iter(range(5))
        follow(given, until=lambda status, looks=looks: next(looks, 4) == 4)
        assert caplog.text.count(f"{given}: expected recorded calls, got {got}") == 1


def test_a_companion_follows_a_store_and_goes_on_where_it_was(store, tmp_path, monkeypatch):
    """What is stored is not measured again; a call that comes later is."""
    monkeypatch.setenv("AUTOTUNED_STORE", store)
    monkeypatch.syspath_prepend(tmp_path)
    name = "mod_follow_store"
    (tmp_path / f"{name}.py").write_text(SERVED)
    work = importlib.import_module(name).work
    for size, measured in ((4, 1), (4, 0), (5, 1)):
        with monkeypatch.context() as service, autotuned.record(tmp_path / "calls.jsonl"):
            service.setenv("AUTOTUNED_MODE", "serve")
            work(size)
        autotuned.push(tmp_path / "calls.jsonl", store)
        stop = threading.Event()

        def tell(status, stop=stop):
            if status.calls and not status.waiting:
                stop.set()

        monkeypatch.setattr(following, "TELL_S", 0.0)
        found = autotuned.follow("-", progress=tell, stop=stop, isolate=False)
        assert (found.measured, found.problems, found.waiting) == (measured, [], 0)


SERVED = """
from autotuned import Config, autotune

ran = []

def bench(call, quantiles):
    call()
    return [ran[-1]] * 3

@autotune(configs=[Config({"us": us}) for us in (3.0, 1.0)], key=["n"], do_bench=bench, default=Config({"us": 3.0}))
def work(n, us):
    ran.append(us)
"""


# -- which comes first ------------------------------------------------------------------------------------------------


def stored(n: int, us: float) -> None:
    config = form(FakeConfig({"BLOCK": 64}))
    assert records.keep(TuningRecord(make_key(n, kernel="app.k"), config, us, "ok", (Timing(config, us, us, us, 9),)))


def test_a_duration_is_stored_or_of_the_most_similar_call_or_by_size():
    assert following.duration_us(recorded(8, size=50_000_000)) == 50.0
    assert following.duration_us(recorded(8, size=10)) == 1.0
    stored(9, 700.0)
    assert following.duration_us(recorded(8, size=50_000_000)) == 700.0
    stored(8, 3.0)
    assert following.duration_us(recorded(8)) == 3.0


# -- the companion ----------------------------------------------------------------------------------------------------

WORK = """
from autotuned import Config, autotune

def bench(call, quantiles):
    call()
    return [float(ran[-1])] * 3

ran, order, tie = [], [], []

@autotune([Config({"ms": ms}) for ms in (4, 1, 6)], key=["n"], do_bench=bench, default=Config({"ms": 4}))
def work(n, ms):
    ran.append(ms if not tie else 1)
    order.append(n)
    if n == 13:
        raise ValueError("unlucky")
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A module with a tuned function that runs with ms=4 until it is tuned, and a recording of its calls."""
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("followed", None)
    (tmp_path / "followed.py").write_text(WORK)
    import followed

    monkeypatch.setattr(following, "POLL_S", 0.01)
    monkeypatch.setattr(following, "TELL_S", 0.0)
    monkeypatch.chdir(tmp_path)
    followed.path = tmp_path / "calls.jsonl"
    yield followed
    del sys.modules["followed"]


def call(module, sizes):
    with autotuned.record(module.path):
        for n in sizes:
            try:
                module.work(n)
            except ValueError:
                assert n == 13
    module.order.clear()


def follow(path, until=lambda status: status.calls and not status.waiting, **options):
    """Follow until something holds, for half a minute at most."""
    stop, end = threading.Event(), time.monotonic() + 30

    def tell(status):
        if until(status) or time.monotonic() > end:
            stop.set()

    return autotuned.follow(path, stop=stop, progress=tell, isolate=False, **options)


def test_what_takes_most_time_is_tuned_first_and_what_is_stored_not_again(work):
    call(work, [1, 2, 2, 2, 3, 3])
    status = follow(work.path)
    assert list(dict.fromkeys(work.order)) == [2, 3, 1]
    assert (status.calls, status.chosen, status.measured, status.share) == (3, 3, 3, 1.0)
    assert status.problems == [] and status.latest is not None and status.latest.config["kwargs"] == {"ms": 1}
    work.order.clear()
    again = follow(work.path)
    assert work.order == [] and (again.chosen, again.measured) == (3, 0)


def test_what_comes_meanwhile_is_tuned_too(work, monkeypatch):
    monkeypatch.setattr(following, "TURN_S", 0.0)
    monkeypatch.setattr(following, "POLL_S", 0.0)
    call(work, [1, 2, 2, 3, 3, 3, 4, 4, 4, 4])
    measured = []

    def tell(status):
        if status.latest is not None and not measured:
            measured.append(status.latest)
            call(work, [5] * 9)  # more than what is left of the turn
        return status.measured == 5

    status = follow(work.path, until=tell)
    assert (status.calls, status.chosen, status.measured) == (5, 5, 5)
    assert list(dict.fromkeys(work.order)) == [3, 5, 2, 1]


def test_a_call_that_fails_is_said_once_and_left(work, monkeypatch):
    monkeypatch.delitem(sys.modules, "app", raising=False)  # of another test
    monkeypatch.setattr(sys, "path", [one for one in sys.path if not Path(one, "app.py").exists()])
    call(work, [1, 13])
    with work.path.open("ab") as file:
        file.write(line(recorded(1, 50)) + b"{\n")  # of a module that is not there
    seen = []
    status = follow(work.path, until=lambda status: not status.waiting and (seen.append(1) or len(seen) > 8))
    assert len(status.problems) == 2
    assert sum("unlucky" in text for text in status.problems) == 1
    assert sum("no module named 'app'" in text for text in status.problems) == 1
    assert (status.chosen, status.measured, status.waiting, status.strange) == (1, 1, 0, 1)
    assert work.order.count(13) <= 4  # a launch of each config, and not again
    assert json.loads(json.dumps(status.to_json()))["problems"] == status.problems


def test_what_wins_has_beaten_what_the_call_is_served(work, monkeypatch):
    """The choice of the nearest shape is what has to be beaten; where it ties with the best, it stays."""
    from autotuned.offline import measure

    call(work, [1])
    tuner = work.work.tuner
    bound = tuner.call((1,), {}, None)
    served = list(tuner.chooser.candidates(bound))[2]
    monkeypatch.setattr(measure.Measurer, "_served", lambda *args: served)
    work.tie.append(1)  # whatever runs, all take the same time
    status = follow(work.path)
    assert status.latest.config["kwargs"] == {"ms": 6}


@pytest.mark.parametrize("where", ["the kernel", "the folder"])
def test_what_wins_has_beaten_what_a_rule_serves(work, tmp_path, where):
    """Where what the rule says ties with the best, it stays; it is neither the default nor the first of the list."""
    kernel, within = work.work, autotuned.within("5%")
    call(work, [80])
    forms = [configs.to_json(config, kernel.tuner.tunable.name) for config in kernel.configs]
    for n in {*range(16, 1281, 16)} - {80}:
        best = forms[1] if n % 64 == 0 else forms[2]
        timings = tuple(Timing(form, *[10.0 if form is best else 15.0] * 3, 5) for form in forms)
        key = kernel.tuner.chooser.key(kernel.tuner.call((n,), {}, None))
        records.keep(TuningRecord(key, best, 10.0, "ok", timings, {"default": forms[0]}))
    autotuned.export(tmp_path / "exported")
    ruled = autotuned.compress(tmp_path / "exported", within="5%", out=tmp_path / "few")
    assert [fit.why_not for one in ruled.kernels for fit in one.fits] == [""]
    shutil.rmtree(layout.root())
    listing.clear()
    autotuned.register_configs(tmp_path / "few", policy={"rules": within} if where == "the folder" else None)
    if where == "the kernel":
        kernel.tuner.options = kernel.tuner.chooser.state.options = kernel.tuner.options.replace(within=within)
    work.tie.append(1)
    status = follow(work.path)
    assert status.measured == 1 and status.latest.config["kwargs"] == {"ms": 6}


def test_what_somebody_else_tunes_meanwhile_is_not_searched(work):
    call(work, [1, 1, 2])

    def tell(status):
        if status.latest is not None and not ours:
            ours.append(store_choice(work.work, work.work.configs[2], 2))
        return status.calls and not status.waiting

    ours = []
    status = follow(work.path, until=tell)
    assert set(work.order) == {1} and (status.chosen, status.measured) == (2, 1)
    assert records.read_of(ours[0]).winner["kwargs"] == {"ms": 6}


def test_it_waits_for_a_file_and_refuses_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "POLL_S", 0.0)
    monkeypatch.setattr(following, "TELL_S", 0.0)
    status = follow(tmp_path / "later.jsonl", until=lambda status: True)
    assert (status.calls, status.waiting) == (0, 0)
    with pytest.raises(OptionError, match="expected a file of recorded calls, got the folder"):
        autotuned.follow(tmp_path)
    (tmp_path / "later.jsonl").write_text("")
    with pytest.raises(RecordingError, match="cannot be read"):
        autotuned.follow(tmp_path / "later.jsonl" / "calls.jsonl")


# -- the command, and the example -------------------------------------------------------------------------------------


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AUTOTUNED_")}
    return {**kept, "AUTOTUNED_CACHE_DIR": str(folder / "cache"), "AUTOTUNED_DEVICE": "interpreter"}


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_the_example_is_tuned_while_it_serves(tmp_path):
    pytest.importorskip("numpy")
    for path in EXAMPLE.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text())
    options = {"cwd": tmp_path, "env": environment(tmp_path), "text": True, "stdout": subprocess.PIPE}
    server = subprocess.Popen([sys.executable, "server.py"], **options)
    companion = subprocess.Popen([*COMMAND, "tune", "--follow", "calls.jsonl", "--json"], **options)
    try:
        address = server.stdout.readline().strip()

        def asked() -> int:
            with urllib.request.urlopen(f"{address}/4096", timeout=60) as answer:
                return json.load(answer)["rows_at_a_time"]

        assert asked() == 1
        end = time.monotonic() + 120
        while asked() == 1:
            assert time.monotonic() < end
            time.sleep(0.2)
        assert server.stdout.readline().startswith("swap rows=1 -> rows=")
    finally:
        for process in (companion, server):
            process.send_signal(signal.SIGINT)
        said = companion.communicate(timeout=60)[0]
        server.communicate(timeout=60)
    last = json.loads(said.splitlines()[-1])
    assert (last["calls"], last["chosen"], last["problems"], last["interrupted"]) == (1, 1, [], True)
    assert companion.returncode == 130


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--follow", "app.kernels"], "expected one recording"),
        (["--follow", "a.jsonl", "b.jsonl"], "expected one recording"),
        (["--follow", "a.jsonl", "--force"], "expected without --force"),
        (["--follow", "a.jsonl", "--cover", "M=1:64"], "expected without --cover"),
        (["--follow", "a.jsonl", "--ray-address", "auto"], "expected without --ray-address"),
    ],
)
def test_usage(given, says):
    from commands import run

    result = run("tune", *given, code=2)
    assert says in " ".join(result.output.split())
