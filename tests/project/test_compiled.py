"""Runs `tests/compiled` and half of `tests/upstream`, whose kernels are compiled and so need processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [*sorted((ROOT / "tests" / "compiled").glob("test_*.py")),
         *sorted((ROOT / "tests" / "upstream").glob("test_compiled_*.py"))]  # fmt: skip
HALVES = {"one": FILES[::2], "other": FILES[1::2]}  # two processors have one each


@pytest.mark.parametrize("half", HALVES)
def test_compiled_kernels(half, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    cache = os.environ.get("TRITON_CACHE_DIR") or str(tmp_path)  # .ci/run has one for all that it runs
    environment |= {"AUTOTUNED_TESTS": "compiled", "TRITON_CACHE_DIR": cache, "TRITON_DEFAULT_FP_FUSION": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    command += map(str, HALVES[half])
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert " passed" in done.stdout
