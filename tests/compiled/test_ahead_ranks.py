"""Ranks of one job on one host compile ahead together: each binary once, whichever rank comes first."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from triton.backends.nvidia.compiler import get_ptxas

HERE = Path(__file__).parent
CONFIGS, RANKS = 6, 3
PTXAS = get_ptxas(90).path


@pytest.fixture
def start(tmp_path, forks):
    """Starts a rank that waits for a line before it tunes; `start.assemblies()` is how often ptxas has run."""
    runs = tmp_path / "ptxas-runs"
    wrapper = tmp_path / "ptxas"
    wrapper.write_text(f'#!/bin/sh\ncase "$*" in *--version*) ;; *) echo run >> {runs} ;; esac\n'
                       f'exec {PTXAS} "$@"\n')  # fmt: skip
    wrapper.chmod(0o755)
    processes = []

    def start(ranks=RANKS, **environment):
        folders = {
            "TRITON_CACHE_DIR": str(tmp_path / "triton"),
            "AUTOTUNED_CACHE_DIR": str(tmp_path / f"{len(processes)}"),
        }
        process = forks.start(str(HERE / "rank_process.py"), environment={
            **os.environ, **folders, "LOCAL_WORLD_SIZE": str(ranks), "TRITON_PTXAS_PATH": str(wrapper),
            "TRITON_PTXAS_BLACKWELL_PATH": str(wrapper), **environment,
        })  # fmt: skip
        processes.append(process)
        return process

    start.assemblies = lambda: len(runs.read_text().splitlines()) if runs.exists() else 0
    yield start
    for process in processes:
        process.close()


def go(processes):
    """Let them begin together; what each has found."""
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    found = [json.loads(process.stdout.readline()) for process in processes]
    assert [process.wait() for process in processes] == [0] * len(processes)
    return found


def test_each_binary_is_compiled_once_on_the_host(start, tmp_path):
    found = go([start() for _ in range(RANKS)])
    assert start.assemblies() == CONFIGS
    assert sum(len(one["compiled"]) for one in found) == CONFIGS
    assert {name for one in found for name in one["compiled"]} == {"autotuned-ahead"}
    assert {one["chosen"] for one in found} == {64}
    assert not list((tmp_path / "triton").rglob("*.lock"))  # as stock leaves it


def test_a_rank_that_is_killed_while_it_compiles_holds_up_nobody(start, tmp_path):
    stuck = tmp_path / "stuck"
    stuck.write_text(f"#!/bin/sh\ncase \"$*\" in *--version*) exec {PTXAS} \"$@\" ;; esac\n"
                     f"echo $$ >> {tmp_path / 'stuck.pids'}\nexec sleep 600\n")  # fmt: skip
    stuck.chmod(0o755)
    first, second = start(), start()
    shutil.copy(tmp_path / "ptxas", tmp_path / "working")
    shutil.copy(stuck, tmp_path / "ptxas")
    assert first.stdout.readline() == "ready\n"
    first.stdin.write("\n")
    first.stdin.flush()
    pids = tmp_path / "stuck.pids"
    _until(lambda: pids.exists() and len(pids.read_text().split()) >= 2)  # as many as there are processors
    shutil.copy(tmp_path / "working", tmp_path / "ptxas")
    first.send_signal(signal.SIGKILL)
    for pid in pids.read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    (found,) = go([second])
    assert found["chosen"] == 64 and start.assemblies() == CONFIGS


def _until(reached, limit_s=120.0):
    end = time.monotonic() + limit_s
    while not reached():
        if time.monotonic() > end:
            pytest.fail("waited too long")
        time.sleep(0.05)
