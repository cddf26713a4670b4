"""What type checkers and editors see of what users write."""

import ast
import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import autotuned
from autotuned.api.function import TunedFunction
from autotuned.api.tuned import Tuned

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "support" / "typed_program.py"
REVEALED = ("scale", "padded", "run", "scale[(1,)]", "scale.explain", "run(1)", "autotuned.mode", "autotuned.prepare")
MYPY = ["--allow-untyped-decorators"]  # `triton.jit` is one
WRONG = {place for place, line in enumerate(PROGRAM.read_text().splitlines(), 1) if line.endswith("# wrong")}


def test_mypy_refuses_a_program_where_it_is_wrong_and_nowhere_else_and_finds_no_any(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    program = tmp_path / "revealed.py"
    program.write_text(PROGRAM.read_text() + "".join(f"\nreveal_type({name})" for name in REVEALED))
    command = [sys.executable, "-m", "mypy", *MYPY, "--no-error-summary", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and not done.stderr, done.stdout + done.stderr
    is_refused_rightly({int(line): text for line, text in re.findall(r"revealed.py:(\d+): error: (.*)", done.stdout)})
    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert len(revealed) == len(REVEALED) and "Any" not in revealed, done.stdout


def test_pyright_refuses_a_program_where_it_is_wrong_and_nowhere_else() -> None:
    if shutil.which("pyright", path=Path(sys.executable).parent.as_posix()) is None:
        pytest.skip("pyright is not installed here")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", PROGRAM]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        pytest.skip("pyright did not end: it may wait for the network")
    if not done.stdout.startswith("{"):  # it needs Node, and its own code from the network at its first run
        pytest.skip(f"pyright does not run here: {done.stderr[-200:]}")
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [one for one in found if one["severity"] == "error"]
    is_refused_rightly({one["range"]["start"]["line"] + 1: one["message"] for one in errors})


def is_refused_rightly(said: dict[int, str]) -> None:
    assert {place: text for place, text in said.items() if place not in WRONG} == {}
    assert WRONG - said.keys() == set() and len(WRONG) > 10


@pytest.mark.parametrize("kind", [Tuned, TunedFunction])
def test_an_editor_finds_the_methods_with_their_docstrings(kind: type) -> None:
    """Those that the class defines, in its source: nothing is added to it at run time."""
    written = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(written, ast.ClassDef)
    methods = {node.name: ast.get_docstring(node) for node in written.body if isinstance(node, ast.FunctionDef)}
    public = {name for name in vars(kind) if not name.startswith("_") and callable(getattr(kind, name))}
    assert {"explain", "prepare", "cache_info", "cache_clear", "case"} <= public <= methods.keys()
    assert {name for name in public if not methods[name]} == set()


def test_jedi_completes_a_tuned_kernel_with_docstrings() -> None:
    jedi = pytest.importorskip("jedi", reason="jedi is not installed")
    script = jedi.Script(
        "from autotuned import Tuned\ndef f(kernel: Tuned): kernel.\n", project=jedi.Project(ROOT, sys_path=[str(ROOT)])
    )
    found = {one.name: one.docstring() for one in script.complete(2, len("def f(kernel: Tuned): kernel."))}
    assert {"explain", "prepare", "cache_info", "cache_clear", "case", "run", "warmup", "best_config"} <= found.keys()
    assert "Where the choice for a call comes from" in found["explain"] and "grid" in found["run"]


def test_tuned_objects_may_be_named_in_annotations_at_run_time() -> None:
    assert TunedFunction[Callable[..., int]].__origin__ is autotuned.TunedFunction  # type: ignore[attr-defined]
    assert autotuned.Tuned is Tuned


def test_no_running_program_imports_what_is_for_type_checkers() -> None:
    program = "import sys, autotuned; autotuned.autotune; autotuned.TunedFunction; print('autotuned.api.static' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
