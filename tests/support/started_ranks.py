"""Ranks of one job on one host, as processes (`tests/compiled/rank_process.py`), and the number of `ptxas` runs."""

import json
import os
import sys
from pathlib import Path

import forked
import pytest
from triton.backends.nvidia.compiler import get_ptxas

TESTS = Path(__file__).parents[1]
PTXAS = get_ptxas(90).path


class Ranks:
    """Starts ranks that wait for a line before they tune; all compile into one Triton cache below `folder`."""

    def __init__(self, folder):
        self.folder, self._runs, self.started = folder, folder / "ptxas-runs", []
        self.ptxas = folder / "ptxas"
        self.ptxas.write_text(f'#!/bin/sh\ncase "$*" in *--version*) ;; *) echo run >> {self._runs} ;; esac\n'
                              f'exec {PTXAS} "$@"\n')  # fmt: skip
        self.ptxas.chmod(0o755)

    def __call__(self, *words, ranks=3, **environment):
        own = {"AUTOTUNED_CACHE_DIR": str(self.folder / f"{len(self.started)}"), "LOCAL_WORLD_SIZE": str(ranks)}
        path = os.pathsep.join([str(TESTS / "support"), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = forked.start(
            [sys.executable, str(TESTS / "compiled" / "rank_process.py"), *words],
            env={**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(self.folder / "triton"),
                 "TRITON_PTXAS_PATH": str(self.ptxas), "TRITON_PTXAS_BLACKWELL_PATH": str(self.ptxas),
                 **own, **environment},
        )  # fmt: skip
        self.started.append(process)
        return process

    def assemblies(self):
        """Number of ptxas runs."""
        return len(self._runs.read_text().splitlines()) if self._runs.exists() else 0

    def end(self):
        """Kill the remaining ranks."""
        for process in self.started:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


@pytest.fixture
def start(tmp_path):
    """This test's `Ranks`."""
    ranks = Ranks(tmp_path)
    yield ranks
    ranks.end()


def begin(*processes):
    """Let them begin together, once all are ready."""
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


def go(*processes):
    """`begin`, and return each rank's result."""
    begin(*processes)
    return ended(*processes)


def ended(*processes):
    """Each rank's result."""
    found = [json.loads(process.stdout.readlines()[-1]) for process in processes]
    assert [process.wait() for process in processes] == [0] * len(processes)
    return found
