"""The walkthrough of docs/workflow.md, followed from installed wheels: record, tune, check, ship, serve, report."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("setuptools", minversion="77")
from pages import FENCED, ROOT, read
from test_packaging import build_wheel

PAGE = "docs/workflow.md"
APP = ROOT / "docs" / "examples" / "app"


def run(command: list[str], folder: Path, **environment: str) -> str:
    """What a command says; it must end well."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AUTOTUNED_", "PYTHON"))}
    done = subprocess.run(
        command, cwd=folder, env={**kept, **environment}, timeout=600,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a new environment: the wheel of this package is installed; torch and Triton are this Python's."""
    folder = tmp_path_factory.mktemp("installed")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)], folder)
    [site] = folder.glob("lib/python*/site-packages")
    places = [path for path in sys.path if path.endswith("site-packages")]  # in their order: the first rules
    (site / "base.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in places))
    pip = folder / "bin" / "pip"  # of the Python that runs the tests, for the new one
    pip.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pip --python "{folder}/bin/python" "$@"\n')
    pip.chmod(0o755)
    wheel = build_wheel(tmp_path_factory)
    run([str(pip), "install", "-q", "--no-index", "--no-deps", "--force-reinstall", str(wheel)], folder)
    where = run([str(folder / "bin" / "python"), "-c", "import autotuned; print(autotuned.__file__)"], folder)
    assert where.startswith(str(site)), where
    return folder / "bin"


def blocks() -> list[tuple[str, str]]:
    """The commands of the page and what it says of their output: "sh" or "text", and the block."""
    return [(language, body) for language, _, body in FENCED.findall(read(PAGE)) if language in ("sh", "text")]


def says(output: str, line: str) -> bool:
    """Whether a line of the page, in which "..." stands for anything, is in the output."""
    return re.search(".*".join(map(re.escape, line.split("..."))), output) is not None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="python -P is new in 3.11")
def test_the_walkthrough_holds_from_installed_wheels(installed: Path, tmp_path: Path) -> None:
    app = tmp_path / "app"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    environment = {
        "PATH": f"{installed}{os.pathsep}{os.environ['PATH']}", "TRITON_INTERPRET": "1", "COLUMNS": "200",
        "AUTOTUNED_CACHE_DIR": str(tmp_path / "cache"), "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1",
    }  # fmt: skip
    output = ""
    for language, body in blocks():
        if language == "sh":
            output = run(["bash", "-euo", "pipefail", "-c", body], app, **environment)
            continue
        for line in body.splitlines():
            assert says(output, line), f"{PAGE}: expected {line!r} in\n{output}"
    assert not (app / "nothing" / "v1").exists()  # what was served was stored nowhere
    assert (app / "report.html").stat().st_size > 10_000
