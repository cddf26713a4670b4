"""The core is duck-typed: its tests pass where neither torch nor triton can be imported."""

import os
import subprocess
import sys
from pathlib import Path

CORE = [
    "configfiles/test_file", "configfiles/test_lookup", "configfiles/test_lookup_bad", "configfiles/test_lookup_near",
    "configfiles/test_writer", "gpus/test_device", "key/test_key", "key/test_source", "key/test_source_objects",
    "key/test_source_text", "launch/test_codegen", "launch/test_table", "search/safety/test_snapshots", "search/test_timers",
    "store/test_record", "store/test_records", "test_disk", "test_env", "test_errors", "test_typed_json",
    "tunable/test_configs",
]  # fmt: skip
# None in sys.modules makes an import fail, before anything has a chance to run it.
PROGRAM = """
import sys
sys.modules.update(dict.fromkeys(("torch", "triton")))
import pytest
result = pytest.main(sys.argv[1:])
assert sys.modules["torch"] is None and sys.modules["triton"] is None, "somebody imported them after all"
sys.exit(result)
"""


def test_the_core_needs_neither_torch_nor_triton(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    files = [str(tests / f"{name}.py") for name in CORE]
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            PROGRAM,
            "-q",
            "-p",
            "no:cacheprovider",
            "-c",
            str(tests.parent / "pyproject.toml"),
            *files,
        ],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
    assert "skipped" not in run.stdout


def test_the_kernel_without_a_gpu_imports_no_torch(tmp_path: Path) -> None:
    """`.ci/run` tunes it under other Pythons, where torch is not installed."""
    program = (
        'import sys\nsys.modules["torch"] = None\nimport autotuned.kernels.numpy_matmul as found\nprint(found.matmul)'
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout.startswith("<function matmul"), run.stdout + run.stderr
