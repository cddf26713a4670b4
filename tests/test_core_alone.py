"""The core is duck-typed: its tests pass where neither torch nor triton can be imported."""

import os
import subprocess
import sys
from pathlib import Path

CORE = [
    "candidates", "codegen", "configfile", "device", "disk", "env", "errors", "files", "files_bad", "files_near", "key",
    "launch_py", "measure", "recordfile", "shipping", "source", "source_objects", "sourcetext", "state", "store", "values",
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
    tests = Path(__file__).parent
    files = [str(tests / f"test_{name}.py") for name in CORE]
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
