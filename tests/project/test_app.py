"""The example application as a user would have it: a wheel in a fresh environment, mode strict, nothing measured."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import no_compiler
import pytest

pytest.importorskip("triton")
import triton


def has_setuptools() -> bool:
    """Whether one is installed that builds wheels by itself; fetching one takes ten seconds and a package index."""
    try:
        return tuple(map(int, version("setuptools").split(".")[:2])) >= (70, 1)
    except PackageNotFoundError:
        return False


APP = Path(__file__).resolve().parents[2] / "docs" / "examples" / "app"
FILE = "tuned/cpu-interpreter/example.bias_gelu.json"
HAS_SETUPTOOLS = has_setuptools()
NO_INDEX = ("No matching distribution", "Could not find a version", "Failed to establish a new connection")


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AUTOTUNED_", "PYTHON"))}
    return {**kept, "TRITON_INTERPRET": "1", "AUTOTUNED_CACHE_DIR": str(folder / "cache"), **more}


def run(*command: object, folder: Path, code: int = 0, **more: str) -> str:
    """What a program says, with an empty store and no options but those given."""
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment(folder, **more), capture_output=True, text=True, timeout=300
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The application's sources; tuned for this Triton, if its files are not."""
    folder = tmp_path_factory.mktemp("app") / "app"
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    if f'"triton": "{triton.__version__}"' not in (folder / "example_app" / FILE).read_text():
        command = "from autotuned.cli.main import app; app()"
        run(sys.executable, "-c", command, "tune", "example_app.kernels", "--out", "example_app/tuned", folder=folder)
    return folder


def pip(*args: object, folder: Path) -> None:
    """A command of pip's that builds: with the setuptools that is here, or with one that pip fetches."""
    built_with = ["--no-build-isolation"] if HAS_SETUPTOOLS else []
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, args), *built_with]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode and any(text in done.stderr for text in NO_INDEX):
        pytest.skip("needs a package index for setuptools")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(app: Path) -> Path:
    pip("wheel", "--no-deps", "--wheel-dir", app.parent / "dist", app, folder=app)
    [wheel] = (app.parent / "dist").glob("*.whl")
    return wheel


def fresh(folder: Path) -> Path:
    """The Python of a new environment, which has torch, Triton and this package from the one that runs the tests."""
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", folder=folder)
    [site] = (folder / "venv").glob("lib/python*/site-packages")
    places = [path for path in sys.path if path.endswith("site-packages")]  # in their order: the first rules
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in places)
    (site / "base.pth").write_text(lines)
    return folder / "venv" / "bin" / "python"


def check_it_serves(python: Path, folder: Path, where: str, **more: str) -> None:
    said = run(python, "-P", "-m", "example_app", folder=folder, AUTOTUNED_MODE="strict", **more)
    assert said.count(where) == 3, said
    assert said.endswith("searches: 0\n")
    refused = run(python, "-P", "-m", "example_app", "777", folder=folder, code=1, AUTOTUNED_MODE="strict", **more)
    assert "NotTunedError" in refused
    assert "differs in call.values.N_COLS: 777 here, 1000 there" in refused
    assert not (folder / "cache" / "v2").exists()


P = pytest.mark.skipif(sys.version_info < (3, 11), reason="python -P is new in 3.11")


@P
def test_the_wheel_holds_the_files_and_serves_them_b92(wheel: Path, tmp_path: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert f"example_app/{FILE}" in names
    assert not [name for name in names if name.endswith(".gitattributes")]
    python = fresh(tmp_path)
    [site] = (tmp_path / "venv").glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)  # what an installer does with a wheel of plain Python
    check_it_serves(python, tmp_path, f"{site}/example_app/{FILE}")


@P
def test_the_wheel_as_a_zip_file_serves_too_b92(wheel: Path, tmp_path: Path) -> None:
    check_it_serves(Path(sys.executable), tmp_path, f"{wheel}/example_app/{FILE}", PYTHONPATH=str(wheel))


@P
def test_an_editable_install_serves_too_b92(app: Path, tmp_path: Path) -> None:
    python = fresh(tmp_path)
    [site] = (tmp_path / "venv").glob("lib/python*/site-packages")
    pip("install", "--no-deps", "--target", site, "--editable", app, folder=app)
    check_it_serves(python, tmp_path, f"{app}/example_app/{FILE}")


def test_a_wheel_without_its_files_says_so_b92(app: Path, tmp_path: Path) -> None:
    shutil.copytree(app / "example_app", tmp_path / "example_app", ignore=shutil.ignore_patterns("*.json"))
    program = "import autotuned; autotuned.register_configs('example_app.tuned')"
    said = run(sys.executable, "-c", program, folder=tmp_path)
    assert "there is no config file in the package 'example_app.tuned'" in said
    assert "package data" in said


def test_the_committed_files_are_in_order() -> None:
    command = "from autotuned.cli.main import app; app()"
    folder = APP.parent
    said = run(sys.executable, "-c", command, "check", str(APP / "example_app" / "tuned"), "--import", "--target",
               str(APP / "example_app" / "kernels.py"), folder=folder)  # fmt: skip
    assert "0 faults" in said


PROGRAM = """
import no_compiler, pytest, torch
with pytest.MonkeyPatch.context() as patch:
    no_compiler.pretend(patch)
    from example_app.kernels import SIZES, bias_gelu_kernel
    for n_cols in [*SIZES, *SIZES]:
        x, bias = torch.zeros(8, n_cols), torch.zeros(n_cols)
        print(type(bias_gelu_kernel[(8,)](torch.empty_like(x), x, bias, n_cols)).__name__)
    print(bias_gelu_kernel.cache_info().hits, bias_gelu_kernel.cache_info().searches)
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="compiles a stand-in for CUDA's driver")
def test_the_wheel_with_binaries_serves_where_nothing_compiles(app: Path, tmp_path: Path) -> None:
    """Built without a GPU from the config file for one; the present Triton's version is written into that file."""
    folder = tmp_path / "app"
    shutil.copytree(app, folder)
    [path] = (folder / "example_app" / "tuned").glob("nvidia-*/*.json")
    path.write_text(path.read_text().replace('"triton": "3.6.0"', f'"triton": "{triton.__version__}"'))
    command = "from autotuned.cli.main import app; app()"
    built = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "compiled")}
    said = run(sys.executable, "-c", command, "export", "bias_gelu", "--out", "example_app/tuned", "--binaries",
               "--target", "example_app.kernels", folder=folder, **built)  # fmt: skip
    assert "binaries for 3 of 3 entries" in said
    pip("wheel", "--no-deps", "--wheel-dir", tmp_path / "dist", folder, folder=folder)
    [wheel] = (tmp_path / "dist").glob("*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    assert list(site.glob("example_app/tuned/*/*.bin"))
    no_compiler.build_library(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=no_compiler.environment(tmp_path, tmp_path, str(site)), cwd=tmp_path,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["Loaded"] * 6 + ["3", "0"]
    lines = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
    assert (lines.count("load"), lines.count("launch")) == (3, 6)
