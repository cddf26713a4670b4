"""Functions of the library beside the commands that call them: what is returned is what `--json` prints."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import run_json
from fakes import FakeConfig, form, make_key

import autotuned
from autotuned.errors import ConfigFileError, KernelNameError, OptionError, OutputError
from autotuned.recording.file import RecordedCall, Writer
from autotuned.store import listing, records
from autotuned.store.record import Timing, TuningRecord

SMALL, LARGE = (form(FakeConfig({"BLOCK": block})) for block in (32, 64))


def keep(n: int, best: Any = LARGE, kernel: str = "app.k", us: float = 10.0) -> None:
    times = [(config, us if config is best else 2 * us) for config in (SMALL, LARGE)]
    timings = tuple(Timing(config, time, time, time, 40) for config, time in times)
    assert records.keep(TuningRecord(make_key(n, kernel), best, us, "ok", timings, {"seconds": 1.5}))


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two folders of config files, `a` and `b`, that differ in one choice of three, and `bad` with a fault."""
    monkeypatch.chdir(tmp_path)
    keep(1)
    keep(2)
    autotuned.export("a")
    keep(2, SMALL, us=5.0)
    keep(3)
    autotuned.export("b")
    listing.clear()
    [path] = Path("a").glob("*/*.json")
    Path("bad.json").write_text(path.read_text().replace('"median_us": 10.0', '"median_us": -1', 1))
    yield tmp_path


def test_export_equals_the_command(tmp_path: Path) -> None:
    keep(1)
    keep(2, kernel="app.other")
    found = autotuned.export(tmp_path)
    assert len(found.files) == 2 and all(path.is_file() for path in found.files)
    assert found.to_json() == run_json("export", "--out", tmp_path)
    assert autotuned.export(str(tmp_path), "k").to_json() == run_json("export", "k", "--out", tmp_path)
    assert autotuned.export(tmp_path, ["k", "other"]).files == found.files


def test_import_configs_equals_the_command(folders: Path) -> None:
    for path, counts in (("a", (2, 0, 0)), ("bad.json", (1, 0, 0))):
        found = autotuned.import_configs(path)
        assert (found.written, found.same, found.kept) == counts
        listing.clear()
        assert found.to_json() == run_json("import", path, code=3 if found.faults else 0)
        listing.clear()
    assert found.faults


@pytest.mark.parametrize("paths", [["a", "b"], ["a", "bad.json"]], ids=str)
@pytest.mark.parametrize("out", ["merged", "merged.json"])
def test_merge_equals_the_command(folders: Path, paths: list[str], out: str) -> None:
    found = autotuned.merge(paths, out)
    assert found.to_json() == run_json("merge", *paths, "--out", out, code=3 if found.faults else 0)
    assert bool(found.conflicts) == (paths == ["a", "b"]) and bool(found.faults) == (paths != ["a", "b"])
    assert [path.read_text() for path in found.files] == [file.dump() for file in found.files.values()]


def test_without_a_place_to_write_to_nothing_is_written(folders: Path) -> None:
    before = sorted(folders.rglob("*"))
    found = autotuned.merge(["a", Path("b")])
    assert found.entries == 3 and len(found.conflicts) == 1
    assert sorted(folders.rglob("*")) == before
    assert [Path("merged") / path for path in found.files] == list(autotuned.merge(["a", "b"], "merged").files)


def test_diff_equals_the_command(folders: Path) -> None:
    found = autotuned.diff("a", Path("b"))
    assert sorted(change.kind for change in found.changes) == ["added", "changed"]
    assert found.to_json() == run_json("diff", "a", "b")
    found = autotuned.diff("a", "bad.json")
    assert found.faults and found.to_json() == run_json("diff", "a", "bad.json", code=1)


def test_check_equals_the_command(folders: Path) -> None:
    found = autotuned.check("a")
    assert found.passed and found.entries == 2 and found.to_json() == run_json("check", "a")
    found = autotuned.check(["a", Path("bad.json")])
    assert not found.passed and found.to_json() == run_json("check", "a", "bad.json", code=1)


@pytest.mark.parametrize("kernel", [[], ["k"]], ids=["all", "one"])
@pytest.mark.parametrize("calls", [False, True], ids=["", "calls"])
def test_report_equals_the_command(tmp_path: Path, kernel: list[str], calls: bool) -> None:
    keep(1)
    keep(2, kernel="app.other")
    path = tmp_path / "calls.jsonl"
    writer = Writer(path)
    for n in (1, 3):
        recorded = RecordedCall("app.k", "app:k", make_key(n, "app.k"), {"memories": [], "values": {}}, None, n)
        writer.call(recorded)
    writer.close()
    found = autotuned.report(*kernel, calls=path if calls else None)
    assert {case.stored.key.kernel for case in found.cases} == {"app.k"} | ({"app.other"} if not kernel else set())
    assert found.to_json() == run_json("report", *kernel, *(["--calls", path] if calls else []))
    assert found.coverage is None or found.coverage.share == 0.25


def refusals(folder: Path) -> dict[str, tuple[type[Exception], Callable[[], object]]]:
    """By the words of the command's error, what a function raises."""
    return {
        "nothing is stored in": (KernelNameError, lambda: autotuned.export(folder)),
        "no kernel 'k': nothing is stored": (KernelNameError, lambda: autotuned.report("k")),
        "is an input, and inputs are never written": (OutputError, lambda: autotuned.merge("a", "a")),
        "is there already": (OutputError, lambda: autotuned.merge("a", "bad.json")),
        "nothing can be written to": (OutputError, lambda: autotuned.merge("a", "bad.json/below")),
        "expected a share of 0 or more, got -1": (OptionError, lambda: autotuned.check("a", tolerance=-1)),
        "expected a share of 0 or more, got nan": (
            OptionError,
            lambda: autotuned.check("a", tolerance=float("nan")),
        ),
        "there is no such file or folder": (ConfigFileError, lambda: autotuned.diff("a", "none")),
    }


@pytest.mark.parametrize("words", refusals(Path()))
def test_what_cannot_be_done_is_a_typed_error(folders: Path, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, call = refusals(folders)[words]
    with pytest.raises(kind, match=words):
        call()


def test_functions_are_plain_to_json(folders: Path) -> None:
    for found in (autotuned.merge(["a", "b"]), autotuned.diff("a", "b"), autotuned.check("a")):
        assert json.loads(json.dumps(found.to_json(), allow_nan=False)) == found.to_json()
