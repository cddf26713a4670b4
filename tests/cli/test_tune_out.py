"""`autotuned tune --out`: config files that are written, added to, left as they are, and served."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import error as _error
from commands import run as _run
from commands import run_json as _json
from commands import start as _start
from faults import faults, refuse
from given import BEST, WORK, Write
from given import work as _work

from autotuned.gpu import device
from autotuned.offline import binaries

pytestmark = pytest.mark.usefixtures("wide_output")


def test_out_writes_a_file_a_kernel_and_two_runs_merge(write: Write) -> None:
    [path] = _json("tune", _work(write, "1 2"), "--out", "some/tuned")["files"]
    assert Path(path) == Path("some/tuned") / device.cpu().slug / "mod_work.work.json"
    assert _json("tune", _work(write, "2 3"), "--out", "some/tuned")["files"] == [path]
    entries = json.loads(Path(path).read_text())["groups"][0]["entries"]
    assert [entry["call"]["values"]["n"] for entry in entries] == [1, 2, 3]
    assert {entry["vs_default"] for entry in entries} == {4}
    assert list(Path("some/tuned").rglob("*.lock")) == []
    assert f"wrote {path}" in _run("tune", "mod_work", "--out", "some/tuned").stdout


def test_two_processes_add_to_one_file(write: Write) -> None:
    _work(write)
    text = WORK.replace('Path(__file__).with_suffix(".txt").read_text()', "os.environ['SIZES']")
    write("mod_work.py", "import os\n" + text)
    sizes = [" ".join(map(str, range(start, start + 20))) for start in (0, 20)]
    processes = [_start("tune", "mod_work", "--out", "tuned", SIZES=numbers) for numbers in sizes]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    [path] = Path("tuned").glob("*/*.json")
    entries = json.loads(path.read_text())["groups"][0]["entries"]
    assert sorted(entry["call"]["values"]["n"] for entry in entries) == list(range(40))


def test_files_that_serve_are_copied_into_another_folder(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    _run("tune", _work(write), "--out", "one")
    _run("clear", "--yes")
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", "one")
    data = _json("tune", _work(write), "--out", "two")
    file = Path("one") / device.cpu().slug / "mod_work.work.json"
    assert [(row["source"], row["median_us"], row["vs_default"]) for row in data["cases"]] == [(str(file), 1000, 4)] * 2
    assert Path(*data["files"]).read_text() == file.read_text()
    assert "mod_work.work.json" in _run("tune", "mod_work").stdout


def test_an_imported_choice_is_shipped_with_its_times(write: Write, tmp_path: Path) -> None:
    [path] = _json("tune", _work(write), "--out", "tuned")["files"]
    before = Path(path).read_text()
    _run("clear", "--yes")
    _run("import", "tuned")
    for out in ("tuned", "another"):
        data = _json("tune", _work(write), "--out", out)
        found = {(row["source"], row["median_us"], row["vs_default"]) for row in data["cases"]}
        assert found == {("stored", 1000, 4)}
        assert Path(*data["files"]).read_text() == before


def test_a_file_that_was_not_there_before_serves_at_once(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", "tuned")
    [path] = _json("tune", _work(write, "1"), "--out", "tuned")["files"]
    _run("clear", "--yes")
    assert [row["source"] for row in _json("tune", _work(write, "1"))["cases"]] == [path]


SERVED = """
import sys
from mod_served import work

work(1)
work(2)
info = work.cache_info()
print(info.searches, work.best_config.kwargs["ms"], "triton" in sys.modules)
"""


def test_files_serve_another_process_that_has_no_store(write: Write, tmp_path: Path) -> None:
    _run("tune", _work(write, name="mod_served"), "--out", "tuned")
    environment = {"AUTOTUNED_CONFIG_PATH": "tuned", "AUTOTUNED_CACHE_DIR": str(tmp_path / "empty")}
    run = subprocess.run(
        [sys.executable, write("serve.py", SERVED)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split()[:2] == ["0", "1"] and run.stderr == ""


OLD = '{"schema": 2, "kernel": "mod_work.work", "device": {}, "groups": []}'
NEWER = OLD.replace("2", "3")
BROKEN = {
    "no JSON": ("{", "Expecting property name"),
    "newer": (NEWER, "expected schema 2, got 3; upgrade"),
    "without a device": (OLD, "expected the fields kind, name"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_a_config_file_that_cannot_be_added_to_is_left_as_it_is(write: Write, text: str, message: str) -> None:
    module = _work(write)
    path = write(f"tuned/{device.cpu().slug}/mod_work.work.json", text)
    line = _error("tune", module, "--out", "tuned")
    assert str(path.relative_to(Path.cwd())) in line and message in line and "It is left as it is" in line
    assert path.read_text() == text
    assert "Nothing is stored" in _run("list").stdout  # it was found out before anything was measured


def test_a_folder_that_cannot_be_written_is_found_out_first(write: Write) -> None:
    write("file", "")
    line = _error("tune", "no_such_module", "--out", "file/tuned")
    assert "--out" in line and "file is not a folder" in line


def test_a_config_file_that_cannot_be_written_loses_nothing(write: Write) -> None:
    """The table was missing, and cases after the first one were not measured."""
    with faults("write", OSError(errno.ENOSPC, "No space left on device"), name="*mod_work.work.json*"):
        result = _run("tune", _work(write), "--out", "tuned", code=1)
    assert [line.split()[0] for line in result.stdout.splitlines() if BEST in line] == ["n=1", "n=2"]
    last = result.stderr.splitlines()[-1]
    path = Path("tuned") / device.cpu().slug / "mod_work.work.json"
    assert last.startswith(f"error: --out: {path} cannot be written: No space left on device. Make room")
    assert "Traceback" not in result.output and "wrote" not in result.stdout
    data = _json("tune", _work(write), "--out", "tuned")
    assert [row["source"] for row in data["cases"]] == ["stored"] * 2 and data["files"] == [str(path)]


def test_a_file_of_binaries_that_cannot_be_written_leaves_the_table(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries, "build", refuse)
    result = _run("tune", _work(write), "--out", "tuned", "--binaries", code=1)
    assert sum(BEST in line for line in result.stdout.splitlines()) == 2 and "wrote tuned" in result.stdout
    assert "No space left" in result.stderr.splitlines()[-1]
