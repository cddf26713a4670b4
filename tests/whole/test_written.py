"""What version 0.2.0 wrote is read, and answers the calls that it was written for: their keys are what they were.

A failure means that users lose what they tuned or shipped: docs/schema.md says which change needs a new schema number.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from stored import lines

import autotuned
from autotuned.errors import NotTunedError
from autotuned.gpu import device
from autotuned.recording import file
from autotuned.store import layout, listing, records

SAMPLES = Path(__file__).parents[1] / "data" / "v0.2.0"


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script that wrote them, on the CPU that it pretended; nothing may be searched."""
    monkeypatch.setattr(sys, "path", [str(SAMPLES), *sys.path])
    for name in ("make", "written"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import make

    monkeypatch.setattr(device, "cpu", lambda: make.CPU)
    with autotuned.mode("strict"):
        yield make
    for name in ("make", "written"):
        sys.modules.pop(name, None)


@pytest.fixture
def written(make: ModuleType) -> ModuleType:
    """The functions that it tuned, as a new process imports them."""
    import written

    return written


@pytest.fixture
def store() -> None:
    """The user's store that it left."""
    shutil.copytree(SAMPLES / "store", layout.root(), dirs_exist_ok=True)


EXPECTED = json.loads((SAMPLES / "expected.json").read_text())


def results(make: ModuleType, written: ModuleType, *names: str) -> Any:
    """What its calls return, which is the chosen config's; as JSON."""
    found = [getattr(written, name)(*args) for name, args in make.CALLS if name in names or not names]
    return json.loads(json.dumps(found))


def test_the_store_answers_the_calls_that_were_tuned(make, written, store, caplog):
    assert results(make, written) == EXPECTED["choices"]
    assert written.checked.best_config.kwargs == {"step": 2}  # by its `default=` it would be 4
    assert autotuned.choices_digest("written.listed") == EXPECTED["digest"]
    assert lines(caplog) == []


def test_nothing_of_the_store_is_taken_for_damaged_and_all_is_listed(store):
    found = {(record.key.kernel, path.stem == record.key.digest) for path, record in listing.all_records()}
    assert found == {(f"written.{name}", True) for name in ("add", "checked", "listed", "spaced", "stopped")}
    assert not list(layout.root().rglob("damaged"))


@pytest.mark.parametrize("n", [5, 6])
def test_a_search_goes_on_where_the_one_that_was_stopped_had_come_to(make, written, store, n):
    with autotuned.mode("auto"):
        assert written.stopped(n) == 2
    assert times_of(written.stopped, n) == {1: 10_000.0, 2: 2_000.0, 4: 40_000.0}  # undisturbed: 1 to 4 ms


def test_what_ended_a_process_is_not_launched_again(make, written, store, caplog):
    with autotuned.mode("auto"):
        assert written.stopped(7) == 2
    assert times_of(written.stopped, 7)[1] is None
    assert len(lines(caplog)) == 1


def times_of(tuned: Any, *args: Any) -> dict[int, float | None]:
    record = records.read_of(tuned.tuner.chooser.key(tuned.tuner.call(args, {}, None)))
    return {timing.config["kwargs"]["step"]: timing.median_us for timing in record.timings}


@pytest.mark.parametrize("folder", ["configs", "rated"])
def test_config_files_and_their_rule_answer(make, written, caplog, folder):
    autotuned.register_configs(SAMPLES / folder)
    for m, block, answer in ((64, 64, "config files"), (80, 128, "config files"), (1247, 128, "config files, rule")):
        assert written.ruled.explain(m).answer == answer
        assert written.ruled(m) == block
    assert lines(caplog) == []


def test_all_calls_of_a_recording_are_ready(make, written, store):
    calls = file.read(SAMPLES / "calls.jsonl")
    assert [(call.kernel.removeprefix("written."), call.count) for call in calls].count(("spaced", 2)) == 1
    found = autotuned.prepare(SAMPLES / "calls.jsonl")
    assert len(found.calls) == len(make.CALLS) and all(call.config is not None for call in found.calls)
    assert {call.key.digest for call in calls} <= {path.stem for path, _ in listing.all_records()}


def shared(key: str) -> Any:
    """The shared store, for whoever has this key."""
    pytest.importorskip("fsspec")
    return autotuned.connect(f"file://{SAMPLES}/shared", namespace="fleet", key=key, read_only=True, wait_s=10.0)


def test_a_shared_store_answers_whoever_has_its_key(make, written):
    with shared(make.KEY):
        assert results(make, written) == EXPECTED["choices"]


def test_a_shared_store_answers_nobody_else(make, written):
    with shared(make.KEY[::-1]), pytest.raises(NotTunedError):
        written.listed(*make.CALLS[0][1])


def test_config_files_of_a_shared_store_are_pulled_as_they_were(make, monkeypatch, tmp_path):
    pytest.importorskip("fsspec")
    monkeypatch.setenv("AUTOTUNED_STORE_KEY", make.KEY)
    assert autotuned.pull(f"file://{SAMPLES}/shared#fleet", tmp_path).faults == []
    for path in (SAMPLES / "kernel").glob("*/*"):
        assert (tmp_path / path.relative_to(SAMPLES / "kernel")).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("folder", ["configs", "rated"])
def test_what_ships_passes_check(folder):
    found = autotuned.check([SAMPLES / folder, SAMPLES / "kernel"])
    assert (len(found.files), found.faults) == (2, [])


@pytest.mark.parametrize(("folder", "quality"), [("configs", {None}), ("rated", {"ok"})])
def test_the_quality_of_a_choice_is_what_its_file_says(folder, quality):
    autotuned.import_configs(SAMPLES / folder)
    assert {record.quality for _, record in listing.all_records()} == quality
