"""A second process finds the choice on disk: no benchmark, and one compilation."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def run(tmp_path, name, **environment):
    """What a process of its own did, with a folder of binaries that no other process has written to."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE.parent / "support"),
        "TRITON_CACHE_DIR": str(tmp_path / f"triton-{name}"),
        **environment,
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "process.py")], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_second_process_measures_nothing_and_compiles_once(tmp_path):
    first = run(tmp_path, "first")
    assert (first["benchmarks"], first["searches"], first["hits"]) == (3, 1, 2)
    assert sorted(first["compiled"]) == [16, 32, 64]
    assert first["launched"][-3:] == [32, 32, 32]
    assert first["name"] == "process.add"  # a script's kernel is never called `__main__`
    second = run(tmp_path, "second", PYTHONHASHSEED="7")
    assert second == {
        "benchmarks": 0,
        "compiled": [32],
        "launched": [32, 32, 32],
        "name": "process.add",
        "searches": 0,
        "hits": 2,
    }
