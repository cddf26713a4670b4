"""The tests themselves beside other packages: their config files, and plug-ins of pytest that warn or change the order."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# Of modules that read config files, one of which starts processes, and one with tests on warnings.
PART = ["whole/test_modes.py", "configfiles/test_writer.py", "project/test_surroundings.py"]

PLUGIN = """
import random, warnings
import pytest

warnings.warn("at import", DeprecationWarning)

def warn(when):
    warnings.warn(f"in {when}", pytest.PytestDeprecationWarning)
    warnings.warn(f"in {when}", UserWarning)

def pytest_addoption(parser):
    parser.addini("someones_own_option", "of another plug-in", default=None)
    warn("addoption")

def pytest_configure(config):
    warn("configure")

def pytest_sessionstart(session):
    warn("sessionstart")

def pytest_report_header(config):
    warn("header")

def pytest_collection_modifyitems(items):
    random.Random(7).shuffle(items)

def pytest_runtest_setup(item):
    random.seed(0)

def pytest_terminal_summary(terminalreporter):
    warn("summary")

def pytest_sessionfinish(session):
    warn("sessionfinish")

def pytest_unconfigure(config):
    warn("unconfigure")
"""
POINTS = """
[pytest11]
someones = someones_plugin
[autotuned.configs]
whole = someones_configs
gone = no_such_package
broken = someones_broken_configs
"""


@pytest.fixture
def beside(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which another distribution is installed."""
    files = {
        "someones_kernels-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: someones-kernels\nVersion: 1.0\n",
        "someones_kernels-1.0.dist-info/entry_points.txt": POINTS,
        "someones_plugin.py": PLUGIN,
        "someones_configs/__init__.py": "",
        "someones_broken_configs/__init__.py": "raise RuntimeError('while it is imported')",
        "someones_configs/nvidia-h100-80gb-hbm3/app.k.json": "{ cut o",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "AUTOTUNED_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.skipif("someones_plugin" in sys.modules, reason="this is the run beside them")
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_part_of_the_tests_passes_beside_other_packages(beside: dict[str, str], tmp_path: Path, workers: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider"]
    paths = [str(TESTS / name) for name in PART]
    done = subprocess.run([*command, *paths], cwd=TESTS.parent, env=beside, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


def test_a_report_with_a_lone_surrogate_reaches_the_process_that_prints_it(request: pytest.FixtureRequest) -> None:
    def fail() -> None:
        raise AssertionError("a text with \ud800")

    try:
        fail()
    except AssertionError:
        failure = pytest.ExceptionInfo.from_current().getrepr()
    report = pytest.TestReport(
        "a", ("a", 1, "a"), {}, "failed", failure, "call", sections=[("Captured stdout", "\udcff")]
    )
    hook = request.config.hook
    data = hook.pytest_report_to_serializable(config=request.config, report=report)
    sent = json.dumps(data, ensure_ascii=False).encode()
    assert rb"a text with \\ud800" in sent and rb"\\udcff" in sent
    there = hook.pytest_report_from_serializable(config=request.config, data=json.loads(sent))
    assert r"AssertionError: a text with \ud800" in there.longreprtext


def test_a_warning_in_a_test_is_an_error() -> None:
    with pytest.raises(UserWarning, match="unexpected"):
        warnings.warn("unexpected", UserWarning)


def test_no_process_sees_config_files_of_other_packages() -> None:
    code = "from autotuned.configfiles import lookup as files; print(files._entry_points())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
