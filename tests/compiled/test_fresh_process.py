"""Processes of their own: a second one finds the choice on disk, and one that only installs is sealed as any."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import forked
import pytest

HERE = Path(__file__).parent


def run(tmp_path, name, script="process.py", *args, how=forked.run, **environment):
    """What a process of its own printed, with a folder of binaries that no other process has written to."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE.parent / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "TRITON_CACHE_DIR": str(tmp_path / f"triton-{name}"),
        **environment,
    }
    done = how([sys.executable, str(HERE / script), *args], env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_second_process_measures_nothing_and_compiles_once(tmp_path):
    first = json.loads(run(tmp_path, "first"))
    assert (first["benchmarks"], first["searches"], first["hits"]) == (3, 1, 2)
    assert sorted(first["compiled"]) == [16, 32, 64]
    assert first["launched"][-3:] == [32, 32, 32]
    assert first["name"] == "process.add"  # a script's kernel is never called `__main__`
    anew = partial(subprocess.run, capture_output=True, text=True)
    second = json.loads(run(tmp_path, "second", how=anew, PYTHONHASHSEED="7"))
    assert second == {
        "benchmarks": 0,
        "compiled": [32],
        "launched": [32, 32, 32],
        "name": "process.add",
        "searches": 0,
        "hits": 2,
    }


def test_a_process_that_tunes_nothing_of_its_own_is_sealed_too(tmp_path):
    said = run(tmp_path, "installed", "installed_process.py")
    assert said == "compile `x_ptr`: address not divisible by 16; compiled were: divisible\n"


@pytest.mark.parametrize("tuner", ["autotuned", "triton"])
def test_a_thread_tunes_after_the_main_thread_has_ended(tmp_path, tuner):
    """Programs that start their threads and return: Python's executors take no work from then on."""
    anew = partial(subprocess.run, capture_output=True, text=True)
    own = {"AUTOTUNED_CACHE_DIR": str(tmp_path / "store"), "AUTOTUNED_COMPILE_WORKERS": "2"}
    assert run(tmp_path, "threaded", "threaded_process.py", tuner, how=anew, **own) == "3 32\n"
