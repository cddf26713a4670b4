"""The example that puts our decorator over a real library's kernels; skipped where the library is not installed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
CHECK = """
from liger_kernel.ops import dyt
theirs = {name: getattr(dyt, name) for name in ("_dyt_fwd_kernel", "_dyt_bwd_kernel")}
import liger_dyt, autotuned
for name, before in theirs.items():
    now = getattr(dyt, name)
    assert type(now).__module__ == "autotuned.api.tuned", type(now)
    assert (now.fn, list(now.configs), list(now.keys)) == (before.fn, list(before.configs), list(before.keys))
    assert list(now.reset_to_zero) == list(before.reset_to_zero)
print("both are ours")
"""


@pytest.mark.skipif(importlib.util.find_spec("liger_kernel") is None, reason="liger-kernel is not installed")
def test_both_kernels_of_ligers_dyt_become_ours_with_their_configs_and_keys():
    paths = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert (done.returncode, done.stdout) == (0, "both are ours\n"), done.stderr
