"""Runs `tests/compiled` and half of `tests/upstream`, whose kernels are compiled and so need processes of their own."""

import os
import sys
from pathlib import Path

import forked
import pytest

ROOT = Path(__file__).parents[2]
FILES = [*sorted((ROOT / "tests" / "compiled").glob("test_*.py")),
         *sorted((ROOT / "tests" / "upstream").glob("test_compiled_*.py"))]  # fmt: skip
# Those that import torch's compiler have one process, and those that fork processes from one that has imported torch.
TRACED = {"test_contexts", "test_torch", "test_compiled_torch", "test_compiled_launch"}
FORKED = {"test_ahead_ranks", "test_binaries", "test_compiled_stragglers_shared", "test_fresh_process",
          "test_race_ranks", "test_record_spaces"}  # fmt: skip


def parts() -> dict[str, list[Path]]:
    """For the suite's workers on two processors, which all begin with one of these."""
    traced, forked = ([path for path in FILES if path.stem in names] for names in (TRACED, FORKED))
    forked += [path for path in FILES if path.stem == "test_packing"]  # the longest of all: to even them out
    rest = [path for path in FILES if path not in {*traced, *forked}]
    return {"traced": traced + rest[::4], "forked": forked + rest[2::8], "rest": rest[1::2] + rest[6::8]}


PARTS = parts()


@pytest.mark.parametrize("part", PARTS)
def test_compiled_kernels(part, tmp_path, tmp_path_factory):
    run = tmp_path_factory.getbasetemp()  # of this worker, below that of the run
    shared = (run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / "triton"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    cache = os.environ.get("TRITON_CACHE_DIR") or str(shared)  # .ci/run has one for all that it runs
    environment |= {"AUTOTUNED_TESTS": "compiled", "TRITON_CACHE_DIR": cache, "TRITON_DEFAULT_FP_FUSION": "1"}
    pytest_main = "import sys, pytest; sys.exit(pytest.main())"
    command = [sys.executable, "-c", pytest_main, "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    done = forked.run([*command, *PARTS[part]], environment, tmp_path, timeout=1800)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert " passed" in done.stdout
