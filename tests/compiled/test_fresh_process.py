"""Processes of their own: a second one finds the choice on disk, and one that only installs is sealed as any."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def surroundings(tmp_path, name):
    """A folder of binaries that no other process has written to."""
    return {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / f"triton-{name}")}


def test_the_second_process_measures_nothing_and_compiles_once(tmp_path, forks):
    script = str(HERE / "process.py")
    first = json.loads(forks.start(script, environment=surroundings(tmp_path, "first")).said())
    assert (first["benchmarks"], first["searches"], first["hits"]) == (3, 1, 2)
    assert sorted(first["compiled"]) == [16, 32, 64]
    assert first["launched"][-3:] == [32, 32, 32]
    assert first["name"] == "process.add"  # a script's kernel is never called `__main__`
    path = {"PYTHONPATH": str(HERE.parent / "support"), "PYTHONHASHSEED": "7"}  # one with imports of its own
    done = subprocess.run(
        [sys.executable, script], env={**surroundings(tmp_path, "second"), **path}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "benchmarks": 0,
        "compiled": [32],
        "launched": [32, 32, 32],
        "name": "process.add",
        "searches": 0,
        "hits": 2,
    }


def test_a_process_that_tunes_nothing_of_its_own_is_sealed_too(tmp_path, forks):
    said = forks.start(str(HERE / "installed_process.py"), environment=surroundings(tmp_path, "installed")).said()
    assert said == "compile `x_ptr`: address not divisible by 16; compiled were: divisible\n"
