"""The script that runs real libraries, with a library of our own in their place: what it keeps, skips and tells."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "libraries" / "run.py"
OPS = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import sys
sys.path.insert(0, {folder!r})
import ops
import torch, triton, triton.language as tl

CONFIGS = [triton.Config({{"BLOCK": block}}) for block in (32, 64, 128)]


def bench(call, quantiles):
    call()
    return [1.0, 1.0, 1.0]


def make():
    @triton.autotune(CONFIGS, key=["n"], do_bench=bench)
    @triton.jit
    def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)

    return double


def mine_double():
    kernel, x = make(), torch.arange(100.0)
    def call():
        y = torch.zeros(100)
        kernel[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, y, 100)
        return [y]
    return call


def mine_random():
    return lambda: [torch.rand(4)]


def other_broken():
    raise ImportError("no such library")


def slow_one():
    import time
    time.sleep(60)


ops.RUNS = 3
ops.OPS = {{name: globals()[name] for name in ("mine_double", "mine_random", "other_broken", "slow_one")}}
if __name__ == "__main__":
    ops.main()
"""


@pytest.fixture
def run(tmp_path):
    ops = tmp_path / "standin.py"
    ops.write_text(OPS.format(folder=str(RUN.parent)))

    def run(*arguments):
        command = [sys.executable, str(RUN), str(tmp_path / "work"), *arguments, "--ops", str(ops), "--workers", "2"]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    run.work = tmp_path / "work"
    return run


def table(done):
    """Operation -> its cells, and the header."""
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("|")]
    return {row[0]: row for row in rows}


def test_three_modes_of_every_operation_go_on_where_they_stopped(run):
    names = ("mine_double", "mine_random", "other_broken")
    stopped = run(*names, "--seconds", "1")
    assert (stopped.returncode, stopped.stdout) == (3, "not all is done; run the same command again to go on\n")
    done = run(*names)
    assert done.returncode == 0, done.stderr
    found = table(done)
    assert found["operation"][1] == "configs measured: stock, seeded, replaced"
    assert [found["mine_double"][at] for at in (1, 5, -1)] == ["3, 0, 0", "1", "equal"]
    assert [found["mine_random"][at] for at in (1, -1)] == ["0, 0, 0", "differ: from run to run"]
    assert found["other_broken"][1] == "ImportError: no such library"
    kept = json.loads((run.work / "replaced-mine_double+mine_random.json").read_text())
    assert (kept["mode"], sorted(kept["ops"])) == ("replaced", ["mine_double", "mine_random"])
    assert kept["ops"]["mine_double"]["finite"] is True
    assert json.loads((run.work / "versions.json").read_text())["torch"] != "not installed"
    again = run(*names, "--seconds", "1")
    assert (again.returncode, table(again)) == (0, found)  # nothing is done twice


def test_a_process_that_takes_too_long_is_an_error_of_its_operations(run):
    done = run("slow_one", "--timeout", "3")
    assert done.returncode == 0
    assert "| slow_one | not done after 3 s |" in done.stdout


def test_all_operations_can_be_listed():
    done = subprocess.run([sys.executable, str(RUN.with_name("ops.py")), "list"], capture_output=True, text=True)
    assert {"fla_rms_norm", "liger_dyt", "mamba_chunk_scan", "flag_gems_mm"} <= set(done.stdout.split())
