"""Ranks of one job on one host compile ahead together: each binary once, whichever rank comes first."""

import os
import shutil
import signal

import pytest
from started_ranks import PTXAS, begin, go
from waits import until

CONFIGS, RANKS = 6, 3


@pytest.mark.parametrize("way", ["ahead", "loop"])
def test_each_binary_is_compiled_once_on_the_host(way, start, tmp_path):
    found = go(*[start(way) for _ in range(RANKS)])
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
    first, second = start("ahead"), start("ahead")
    shutil.copy(tmp_path / "ptxas", tmp_path / "working")
    shutil.copy(stuck, tmp_path / "ptxas")
    begin(first)
    pids = tmp_path / "stuck.pids"
    until(lambda: pids.exists() and len(pids.read_text().split()) >= 2)  # as many as there are processors
    shutil.copy(tmp_path / "working", tmp_path / "ptxas")
    first.send_signal(signal.SIGKILL)
    for pid in pids.read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    (found,) = go(second)
    assert found["chosen"] == 64 and start.assemblies() == CONFIGS
