"""Tuning on a GPU: the list of faults, one process that measures, and the same winner from search to search."""

import json
import os
import subprocess
import sys
import time

import pytest

from autotuned import store

pytestmark = pytest.mark.gpu

FAULTS = """
import torch, triton, triton.language as tl
from autotuned import Config, autotune

@triton.constexpr_function
def think(how):
    while how == 4:
        pass
    return 0

@autotune(configs=[Config({"HOW": how, "BLOCK": block}, num_stages=stages) for how, block, stages in (
              (1, 128, 1), (2, 128, 1), (3, 128, 1), (4, 128, 1), (5, 256, 5), (0, 16, 1), (0, 256, 1))],
          key=["n"], check=lambda x_ptr, n: {"y_ptr": x_ptr + 1})
@triton.jit
def work(x_ptr, y_ptr, a_ptr, n, HOW: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    skip: tl.constexpr = think(HOW)
    y = tl.load(x_ptr + i, mask=i < n) + 1 + skip
    if HOW == 1:  # an illegal access far away
        tl.store(y_ptr + i + (1 << 40), y)
    if HOW == 2:  # an endless loop
        while tl.load(a_ptr, volatile=True) == 0:
            y += 1
    if HOW == 3:  # a wrong result
        y += 1
    if HOW == 5:  # too much shared memory
        rows = tl.arange(0, 256)
        sums = tl.zeros((256, 256), tl.float32)
        for k in range(0, n, 256):
            tile = tl.load(a_ptr + 4 + (k + rows[:, None]) * 256 + rows[None, :])
            sums = tl.dot(tile, tile, sums)
        y += tl.sum(sums)
    tl.store(y_ptr + i, y, mask=i < n)

@work.case
def cases(device):
    x = torch.zeros(1 << 20, device=device)
    yield dict(args=(x, torch.empty_like(x), torch.zeros(1 << 21, device=device), 1 << 20),
               grid=lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),))
"""


def test_b62_b63_the_fault_list(tmp_path):
    """An illegal access, an endless loop, an endless compilation, a wrong result and too much shared memory."""
    (tmp_path / "faulty.py").write_text(FAULTS)
    command = [sys.executable, "-c", "from autotuned.cli.main import app; app()", "tune", "faulty.py", "--json"]
    start = time.monotonic()
    done = subprocess.run([*command, "--timeout", "6"], cwd=tmp_path, capture_output=True, text=True, env=os.environ)
    print(f"{time.monotonic() - start:.1f} s\n{done.stderr[-3000:]}")
    assert done.returncode == 0
    [case] = json.loads(done.stdout)["cases"]
    assert case["config"]["kwargs"] == {"HOW": 0, "BLOCK": 256}
    [record] = [record for _, record in store.all_records()]
    errors = {timing.config["kwargs"]["HOW"]: f"{timing.status}: {timing.error}" for timing in record.timings}
    assert "Crashed" in errors[1]
    assert "TimedOut: did not end within 6 s" in errors[2]
    assert errors[3].startswith("wrong")
    assert "TimedOut: not compiled within 6 s" in errors[4]
    assert "OutOfResources" in errors[5]
    for name in ("HOW=1", "HOW=2", "HOW=4"):
        assert name in done.stderr  # named, with the time each cost
