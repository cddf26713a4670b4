"""What a wheel holds, and what importing it costs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from wheels import ROOT, build_source_distribution, build_wheel

PACKAGES = {"autotuned": "autotuned", "autotuned.cli": "cli", "autotuned.configs": "configs"}


def declared_packages() -> set[str]:
    """The list in pyproject.toml (tomllib is new in Python 3.11)."""
    text = (ROOT / "pyproject.toml").read_text()
    return set(re.findall(r'"([^"]+)"', re.search(r"^packages = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)[1]))


def test_every_folder_with_an_init_file_is_shipped():
    folders = set()
    for package, folder in PACKAGES.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT / folder).parts
            folders.add(".".join([package, *parts]))
    assert folders == declared_packages()


def test_import_costs_neither_torch_nor_triton_nor_filelock():
    code = "import sys, autotuned; print([m for m in ('torch', 'triton', 'filelock', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_resolve_and_others_do_not():
    import autotuned

    for name in autotuned.__all__:
        assert getattr(autotuned, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        autotuned.nonsense  # noqa: B018


IMPORT_ALL = """
import importlib, pkgutil, autotuned
for found in pkgutil.iter_modules(autotuned.__path__, "autotuned."):
    if found.name not in ("autotuned._launch",):
        importlib.import_module(found.name)
        for name in autotuned.__all__:
            assert name == "errors" or not type(getattr(autotuned, name)).__name__ == "module", (found.name, name)
print(type(autotuned.record).__name__)
"""


def test_no_module_hides_a_public_name():
    """Importing `autotuned.x` sets the attribute `x` of the package, whatever was there."""
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "function"), done.stderr


@pytest.fixture(scope="module")
def source_distribution(tmp_path_factory) -> Path:
    """That which CI made, beside its wheel; without one, built without network by the setuptools of this environment."""
    if given := os.environ.get("AUTOTUNED_TESTS_WHEEL"):
        return next(Path(given).parent.glob("*.tar.gz"))
    pytest.importorskip("setuptools", minversion="77")
    return build_source_distribution(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, source_distribution) -> Path:
    """The wheel that CI made; without one, built from the source distribution, so that what it lacks shows."""
    if given := os.environ.get("AUTOTUNED_TESTS_WHEEL"):
        return Path(given)
    return build_wheel(source_distribution, tmp_path_factory.mktemp("wheel"))


def test_source_distribution_holds_every_file_of_the_extension(source_distribution):
    """Without one of its headers the extension, which is optional, would not be built, and nobody told."""
    with tarfile.open(source_distribution) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "autotuned").rglob("*.[ch]")}
    assert files - names == set()


def test_the_extension_is_made_anew_when_any_of_its_headers_changes():
    text = (ROOT / "pyproject.toml").read_text()
    declared = re.findall(r'"([^"]+)"', re.search(r"depends = \[(.*?)\]", text, re.DOTALL)[1])
    assert declared == sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "autotuned").rglob("*.h"))


def test_wheel_holds_every_source_file_and_schema(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {"autotuned/py.typed"}
    for package, folder in PACKAGES.items():
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".json", ".pyi", ".typed", ".css", ".html") and "__pycache__" not in path.parts:
                expected.add(f"{package.replace('.', '/')}/{path.relative_to(ROOT / folder).as_posix()}")
    # The extension is optional for users; CI fails elsewhere if it was not built.
    assert {name for name in names if ".dist-info" not in name and not name.endswith(".so")} == expected
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"autotuned"}


def test_wheel_declares_the_console_script_and_licence(wheel):
    archive = zipfile.ZipFile(wheel)
    info = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert "autotuned = autotuned.cli:command" in archive.read(info).decode()
    assert any(name.endswith("LICENSE") for name in archive.namelist())


WITHOUT_EXTENSION = """
import sys
sys.modules["autotuned._launch"] = None  # as where no C compiler was at hand when it was installed
import torch, triton, triton.language as tl
from autotuned import Config, autotune
from autotuned.launch import launcher as launch

@autotune(configs=[Config({"BLOCK": 64}), Config({"BLOCK": 128})], key=["n"])
@triton.jit
def halve(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * 0.5, mask=i < n)

x = torch.ones(100)
for _ in range(3):
    halve[(2,)](x, 100)
assert bool((x == 0.125).all()), x
print(halve.cache_info().hits, halve.tuner.launcher.name, *launch.in_use())
"""


@pytest.mark.parametrize(
    ("has", "why", "said"),
    [("None", "the C extension is missing", 0),
     ("__import__('types').ModuleType('stale')", "the C extension was built from other sources", 1)],
)  # fmt: skip
def test_without_a_fitting_extension_everything_works_and_doctor_says_so(tmp_path, has, why, said):
    script = tmp_path / "script.py"
    script.write_text(WITHOUT_EXTENSION.replace('["autotuned._launch"] = None', f'["autotuned._launch"] = {has}'))
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"2 python python {why}")
    assert done.stderr.count("Launches go through the Python twin") == said, done.stderr
