"""Names of kernels: the same in the next process, however the file was loaded."""

import json
import linecache
import os
import sys
from pathlib import Path
from typing import Any

import forked
import pytest

import autotuned
from autotuned.key import naming
from autotuned.store import layout

FUNCTION = """
from autotuned import Config, autotune

@autotune([Config({"step": 1}), Config({"step": 2})], key=["n"], do_bench=lambda call, quantiles: [1.0, 1.0, 1.0])
def kernel(n, *, step):
    return n
"""
KERNEL = """
import triton
import triton.language as tl

@DECORATE([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def kernel(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1.0, mask=i < n)
"""
# How a program gets at the module of a file: each prints the kernel's name and how many searches it took.
BY_HASH = """
import importlib.util, json, sys
path = {path!r}
name = {name}
spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations={packages})
module = importlib.util.module_from_spec(spec)
{register}
spec.loader.exec_module(module)
kernel = module.kernel
"""
TOLD = """
kernel(3)
import json
print(json.dumps([kernel.tuner.tunable.name, kernel.cache_info().searches]))
"""


SEEDS = (None, "1")  # of hashes: one at random, and one


def run(program: str, cwd: Path, seed: str | None = None, **environment: str) -> Any:
    path = {"PYTHONPATH": str(Path(naming.__file__).parents[2])} | ({"PYTHONHASHSEED": seed} if seed else {})
    done = forked.run([sys.executable, "-c", program], cwd=cwd, env={**os.environ, **path, **environment})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


NAMES = {
    "hash of the path": "f'act_{hash(path):x}'",
    "hash in a package": "f'transformers_modules.a{hash(path):x}.act'",
    "random": "'m' + __import__('uuid').uuid4().hex",
    "process": "f'act_{__import__(\"os\").getpid()}'",
    "name of another module": "'json'",
    "name of the program": "'__main__'",
    "no name": "''",
}


@pytest.mark.parametrize("is_registered", [True, False], ids=["registered", "not registered"])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_loaded_by_path_is_tuned_once(tmp_path: Path, name: str, is_registered: bool) -> None:
    (tmp_path / "act.py").write_text(FUNCTION)
    register = "sys.modules[name] = module" if is_registered and "json" not in NAMES[name] else ""
    program = BY_HASH.format(path=str(tmp_path / "act.py"), name=NAMES[name], packages=None, register=register) + TOLD
    said = [run(program, tmp_path, seed) for seed in SEEDS]
    assert [searches for _, searches in said] == [1, 0]
    assert said[0][0] == said[1][0]


@pytest.mark.parametrize(
    "make",
    [
        "path = tempfile.mkdtemp() + '/kernel.py'",
        "path = tempfile.mktemp(suffix='.py')",
        "path = tempfile.mktemp(prefix='kernel_', suffix='.py')",
        "path = tempfile.mkdtemp() + '/' + __import__('uuid').uuid4().hex + '.py'",
        "path = tempfile.mkdtemp() + f'/gen_{os.getpid()}000.py'",
    ],
)
@pytest.mark.parametrize("how", ["by path", "by import"])
def test_generated_code_in_a_temporary_file_is_tuned_once(tmp_path: Path, make: str, how: str) -> None:
    imported = "import os, tempfile, importlib, pathlib, sys\n" + make + f"\nopen(path, 'w').write({FUNCTION!r})\n"
    stem = "pathlib.Path(path).stem"
    if how == "by path":
        imported += BY_HASH.replace("path = {path!r}", "").format(
            path="", name=stem, packages=None, register="sys.modules[name] = module"
        )
    else:
        imported += (
            f"sys.path.insert(0, str(pathlib.Path(path).parent))\nkernel = importlib.import_module({stem}).kernel"
        )
    (temporary := tmp_path / "temporary").mkdir()  # removed with what the programs leave in it
    said = [run(imported + TOLD, tmp_path, seed, TMPDIR=str(temporary)) for seed in SEEDS]
    assert [searches for _, searches in said] == [1, 0] and said[0][0] == said[1][0]
    assert len(list(temporary.iterdir())) == 2


def test_code_without_a_file_is_tuned_once(tmp_path: Path) -> None:
    program = f"exec(compile({FUNCTION!r}, '<generated ' + str(__import__('os').getpid()) + '>', 'exec'))" + TOLD
    said = [run(program, tmp_path, seed) for seed in SEEDS]
    assert [searches for _, searches in said] == [1, 0]
    assert said[0][0].startswith("source_") and said[0][0].endswith(".kernel")


CELLS = ["/tmp/ipykernel_{}/1234567890.py", "<ipython-input-{}-0a1b2c3d4e5f>", "<stdin>", "<python-input-{}>"]


@pytest.mark.parametrize("cell", CELLS)
def test_an_edited_cell_of_a_notebook_keeps_its_name(cell: str) -> None:
    named = {}
    scope: dict[str, Any] = {"__name__": "__main__"}
    for step in (1, 2):
        exec(compile(FUNCTION.replace("return n", f"return n + {step}"), cell.format(step), "exec"), scope)
        scope["kernel"](3)
        named[scope["kernel"].tuner.tunable.name] = scope["kernel"]
    assert named.keys() == {"notebook.kernel"}
    [folder] = [path for path in layout.root().glob("v*/*") if path.name.startswith("notebook.kernel")]
    assert len(list(folder.glob("*.json"))) == 2  # one name, and each version has its own choice
    assert "notebook.kernel" in repr(scope["kernel"]) and "`notebook.kernel`" in said_of(scope["kernel"])


def test_a_cell_keeps_its_name_and_source_after_a_launch_in_the_interpreter() -> None:
    torch = pytest.importorskip("torch")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs Triton's interpreter")
    cell, told = CELLS[0].format(7), []
    text = KERNEL.replace("DECORATE", "autotuned.autotune").replace("import triton\n", "import autotuned, triton\n", 1)
    linecache.cache[cell] = (len(text), None, text.splitlines(keepends=True), cell)  # as Jupyter does
    scope: dict[str, Any] = {"__name__": "__main__"}
    for _ in range(2):
        exec(compile(text, cell, "exec"), scope)
        tunable = scope["kernel"].tuner.tunable
        told.append((tunable.name, tunable.source))
        scope["kernel"][(1,)](torch.zeros(16), 16)  # the interpreter adds its own globals to the cell's
    assert told[0][0] == "notebook.kernel" and told[1] == told[0]


def said_of(kernel: Any) -> str:
    with autotuned.mode("strict"), pytest.raises(autotuned.errors.NotTunedError) as raised:
        kernel(4)
    return str(raised.value)


@pytest.mark.parametrize(
    ("scope", "session", "name"),
    [
        ({}, "/books/My study-2.ipynb", "My_study_2"),
        ({"__vsc_ipynb_file__": "/books/tuning.ipynb"}, "", "tuning"),
        ({"__file__": "/books/marimo_book.py"}, "", "marimo_book"),
        ({}, "console-1-0a1b2c3d4e5f", "notebook"),
    ],
    ids=["Jupyter", "VS Code", "marimo", "a name made up"],
)
def test_a_notebook_gives_its_name(
    monkeypatch: pytest.MonkeyPatch, scope: dict[str, Any], session: str, name: str
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", session)
    scope = {"__name__": "__main__", **scope}
    exec(compile(FUNCTION, CELLS[0].format(9), "exec"), scope)
    assert scope["kernel"].tuner.tunable.name == f"{name}.kernel"


def test_what_import_finds_keeps_its_name(tmp_path: Path) -> None:
    package = tmp_path / "app" / "sub"  # without `__init__.py`: only the import knows of it
    package.mkdir(parents=True)
    (package / "kern.py").write_text(FUNCTION)
    assert run("from app.sub.kern import kernel" + TOLD, tmp_path)[0] == "app.sub.kern.kernel"


@pytest.mark.parametrize("install", ["install()", "install(replace=True)"])
def test_installed_memory_finds_a_kernel_loaded_under_a_hash(tmp_path: Path, install: str) -> None:
    pytest.importorskip("triton")
    (tmp_path / "act.py").write_text(KERNEL.replace("DECORATE", "triton.autotune"))
    program = f"import autotuned; autotuned.{install}; from autotuned.dropin import stock_tuner as stocktuner\n" + BY_HASH.format(
        path=str(tmp_path / "act.py"), name=NAMES["hash of the path"], packages=None,
        register="sys.modules[name] = module",
    ) + "print(json.dumps([stocktuner.seed_of(kernel).tunable.name, stocktuner.seed_of(kernel).tunable.source]))"  # fmt: skip
    first, second = (run(program, tmp_path, seed) for seed in SEEDS)
    assert first == second


@pytest.mark.parametrize(
    ("word", "is_made_up"),
    [
        ("kernel", False), ("matmul_fp16", False), ("layernorm_bwd", False), ("act_h100", False), ("conv2d", False),
        ("tmpab12cd34", True), ("act_7f3e12ab9c", True), ("gen_1732829395", True), ("app.kern", False),
        ("app.a3f2b19c0d1e.kern", True), ("c" + "ab3d" * 12, True), ("attention_v2", False),
    ],
)  # fmt: skip
def test_names_that_programs_make_up(word: str, is_made_up: bool) -> None:
    assert naming._is_made_up(word) is is_made_up


def test_a_recorded_kernel_of_a_file_loaded_by_path_is_found_again(tmp_path: Path) -> None:
    (tmp_path / "act.py").write_text(FUNCTION)
    calls = tmp_path / "calls.jsonl"
    load = BY_HASH.format(path=str(tmp_path / "act.py"), name=NAMES["hash of the path"], packages=None,
                          register="sys.modules[name] = module")  # fmt: skip
    name, _ = run(load + TOLD, tmp_path, AUTOTUNED_RECORD=str(calls))
    [line] = [json.loads(line) for line in calls.read_text().splitlines() if "act" in line][:1]
    assert str(tmp_path / "act.py") + ":kernel" in json.dumps(line) and name == "act.kernel"
