"""From installed wheels: the walkthrough of docs/workflow.md, and the command outside of the repository (B106)."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("setuptools", minversion="77")
from pages import FENCED, ROOT, read
from wheels import build_source_distribution, build_wheel

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
    source = build_source_distribution(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("sdist"))
    wheel = build_wheel(source, tmp_path_factory.mktemp("wheel"))
    run([str(pip), "install", "-q", "--no-index", "--no-deps", "--force-reinstall", str(wheel)], folder)
    where = run([str(folder / "bin" / "python"), "-c", "import autotuned; print(autotuned.__file__)"], folder)
    assert where.startswith(str(site)), where
    return folder / "bin"


def blocks() -> list[tuple[str, str]]:
    """The commands of the page and what it says of their output: "sh" or "text", and the block."""
    return [(language, body) for _, language, body in FENCED.findall(read(PAGE)) if language in ("sh", "text")]


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
    assert not (app / "nothing" / "v2").exists()  # what was served was stored nowhere
    assert (app / "report.html").stat().st_size > 10_000


# -- outside of the repository -------------------------------------------------------------------------------------

KERNELS = """
import os, time
from autotuned import Config, autotune

@autotune([Config({"step": 1}), Config({"step": 2})], key=["n"])
def work(n, *, step):
    print("tuning", flush=True)
    time.sleep(float(os.environ.get("TAKES", "0.0001")))

@work.case
def cases(device):
    for n in map(int, os.environ.get("SIZES", "1").split()):
        yield {"args": (n,)}
"""


class Outside:
    """A folder with an application, and the installed command, run there as from a shell without a terminal."""

    def __init__(self, folder: Path, bin_folder: Path) -> None:
        self.folder, self._command = folder, str(bin_folder / "autotuned")
        (folder / "app").mkdir()
        for name, text in (
            ("__init__", ""),
            ("kernels", KERNELS),
            ("raises", "import math\nraise RuntimeError('why')"),
        ):
            (folder / "app" / f"{name}.py").write_text(text)
        (folder / "file").write_text("")

    def start(self, *args: str, **environment: str) -> "subprocess.Popen[str]":
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AUTOTUNED_", "PYTHON"))}
        mine = {"AUTOTUNED_CACHE_DIR": str(self.folder / "cache"), "TRITON_INTERPRET": "1", **environment}
        return subprocess.Popen(
            [self._command, *args], cwd=self.folder, env={**kept, **mine}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *args: str, code: int = 0, **environment: str) -> tuple[str, str]:
        process = self.start(*args, **environment)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, out + err
        return out, err

    def sizes(self) -> list[int]:
        [path] = self.folder.glob("tuned/*/*.json")
        entries = json.loads(path.read_text())["groups"][0]["entries"]
        return sorted(entry["call"]["values"]["n"] for entry in entries)


@pytest.fixture
def outside(installed: Path, tmp_path: Path) -> Outside:
    return Outside(tmp_path, installed)


BAD = {
    "no such module": (["app.gone"], 1, "no module named 'app.gone'", "set PYTHONPATH"),
    "no such package": (["elsewhere.kernels"], 1, "no module named 'elsewhere'", "set PYTHONPATH"),
    "module that raises": (["app.raises"], 1, "RuntimeError: why", "raises.py"),
    "kernel with a typo": (["app.kernels:wrok"], 1, "wrok", "Did you mean 'work'?"),
    "dash of a word processor": (["app.kernels", "\u2014budget", "5"], 2, "typographic dash", "type --budget"),
    "unknown option": (["app.kernels", "--budgett", "5"], 2, "--budgett", "--budget"),
    "folder below a file": (["app.kernels", "--out", "file/tuned"], 1, "--out", "file is not a folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_b106_what_is_wrong_is_said_with_what_to_do(case: str, outside: Outside) -> None:
    args, code, *words = BAD[case]
    out, err = outside.run("tune", *args, code=code)
    said = " ".join(err.split())
    assert out == "" and "Traceback" not in err
    assert all(word in said for word in words), err
    assert code == 2 or len(err.splitlines()) == 1


def test_b106_a_kernel_of_the_current_folder_is_tuned_into_a_folder_that_is_not_there(outside: Outside) -> None:
    out, _ = outside.run("tune", "app.kernels:work", "--out", "tuned")
    assert "wrote tuned/" in out and outside.sizes() == [1]


def test_b106_no_gpu_is_said_where_one_is_asked_for(outside: Outside) -> None:
    environment = {"AUTOTUNED_DEVICE": "cuda", "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    _, err = outside.run("tune", "app.kernels", code=1, **environment)
    assert "AUTOTUNED_DEVICE=cuda: expected a GPU" in err and len(err.splitlines()) == 1


def test_b106_two_runs_at_once_add_to_one_file(outside: Outside) -> None:
    runs = [outside.start("tune", "app.kernels", "--out", "tuned", SIZES=sizes) for sizes in ("1 2 3", "4 5 6")]
    assert [process.communicate(timeout=120) and process.returncode for process in runs] == [0, 0]
    assert outside.sizes() == [1, 2, 3, 4, 5, 6]


def test_b106_ctrl_c_ends_with_130_and_the_same_command_goes_on(outside: Outside) -> None:
    process = outside.start("tune", "app.kernels", "--out", "tuned", SIZES="1 2", TAKES="0.05")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(8)] == ["tuning\n"] * 8
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err and "Run the same command again" in err
    outside.run("tune", "app.kernels", "--out", "tuned", SIZES="1 2")
    assert outside.sizes() == [1, 2]


def test_b106_some_failures_are_3(outside: Outside) -> None:
    (outside.folder / "app" / "mixed.py").write_text(KERNELS.replace("time.sleep", "n == 2 and 1 / 0; time.sleep"))
    _, err = outside.run("tune", "app.mixed", code=3, SIZES="1 2")
    assert "1 of 2 cases failed" in err.splitlines()[-1]
