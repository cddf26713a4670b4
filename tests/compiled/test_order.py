"""A second process with the store and an empty cache of Triton's compiles what the program launched, all at once."""

import importlib.util
import json
import os
import random
import sys
import threading

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs

import autotuned
from autotuned.dropin import install, order
from autotuned.store import layout
from autotuned.triton_compat import recorded

TEXT = """
import fake_cuda
import triton
import triton.language as tl
from triton import Config

TIMES = {16: 2.0, 32: 1.0}

def tuned():
    return triton.autotune([Config({"BLOCK": b}, num_warps=2) for b in TIMES], ["n"], do_bench=fake_cuda.by_config(TIMES))

"""
NAMES = ("first", "second", "third", "fourth")
KERNELS = "".join(
    f"""
@tuned()
@triton.jit
def {name}(x_ptr, n, scale, BLOCK: tl.constexpr, KIND: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, (tl.load(x_ptr + i, mask=i < n) * scale + {number}).to(KIND), mask=i < n)
"""
    for number, name in enumerate(NAMES)
)


def module(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    spec.loader.exec_module(found)
    return found


@pytest.fixture
def compiled(monkeypatch):
    """Kernels that were compiled, each with its thread."""
    seen = []

    def note(*, src, cache_hit, **event):
        if not cache_hit:
            seen.append((threading.current_thread().name.partition("_")[0], src.fn.__name__))

    monkeypatch.setattr(knobs.compilation, "listener", note)
    return seen


@pytest.fixture(scope="module")
def first_binaries(tmp_path_factory):
    """Triton's cache of each test's first process, whose compiling most tests are not about."""
    return tmp_path_factory.mktemp("triton-first")


@pytest.fixture
def start(tmp_path, monkeypatch, compiled, first_binaries):
    """Begin as a new process with the same store and an empty cache of Triton's, but for the first unless it is `cold`."""
    starts = []

    def begin(ahead=True, text=TEXT + KERNELS, cold=False):
        install.uninstall()
        order._programs.clear()
        compiled.clear()
        folder = tmp_path / f"triton-{len(starts)}" if starts or cold else first_binaries
        starts.append(folder)
        monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
        autotuned.install(ahead=ahead)
        return module(tmp_path / "library", "library_in_order", text)

    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", "4")
    yield begin
    install.uninstall()
    order._programs.clear()


def run(library, names=NAMES):
    x = torch.zeros(128)
    return [getattr(library, name)[(4,)](x, 100, 0.5, KIND=triton.language.float32).hash for name in names]


def test_the_next_process_compiles_at_once_what_was_launched(start, compiled):
    first = run(start(cold=True))
    assert len(compiled) == 2 * len(NAMES)
    second = run(start())
    assert second == first
    assert sorted(name for _, name in compiled) == sorted(NAMES)  # the winners, each once
    own = [name for thread, name in compiled if thread == "MainThread"]
    assert own in ([], ["first"])  # what it needs at once it may take itself


def test_with_a_warm_cache_nothing_is_compiled_and_no_thread_starts(start, compiled, monkeypatch, first_binaries):
    run(start())
    start()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(first_binaries))
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread"))
    library = sys.modules["library_in_order"]
    path = layout.program_path(order.name())
    before = path.stat().st_mtime_ns
    run(library)
    assert compiled == [] and path.stat().st_mtime_ns == before


def test_it_can_be_turned_off(start, compiled):
    run(start())
    run(start(ahead=False))
    assert compiled == [("MainThread", name) for name in NAMES]


def test_under_a_seal_only_what_is_called_is_refused(start, compiled, caplog):
    run(start())
    library = start()
    with autotuned.seal("warn"):
        run(library, ("first",))
    assert compiled == [("MainThread", "first")] and len(caplog.records) == 1


def test_a_kernel_that_was_changed_is_not_compiled_as_it_was(start, compiled):
    run(start())
    library = start(text=TEXT + KERNELS.replace("+ 1)", "+ 9)"))
    run(library, ("first",))
    _until_idle()
    assert "second" not in [name for _, name in compiled]


def test_a_module_that_is_imported_later_is_compiled_then(start, compiled, tmp_path):
    run(start())
    library = start()
    order.program()._left[1]["function"] = "library_of_later:second"
    run(library, ("first",))
    _until_idle()
    assert "second" not in [name for _, name in compiled]


DAMAGES = {
    "empty": lambda text: "",
    "no list": lambda text: '{"schema": 1, "launched": 3}',
    "newer": lambda text: text.replace('"schema": 1', '"schema": 2', 1),
    "of other fields": lambda text: text.replace('"binary"', '"binaries"'),
    "nonsense": lambda text: text.replace('"signature"', '"signatures"'),
    "odd constants": lambda text: text.replace('"constants": [', '"constants": [[1], '),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_costs_what_it_would_have_saved(damage, start, compiled, caplog):
    run(start())
    path = layout.program_path(order.name())
    text = json.dumps(json.loads(path.read_text()))
    path.write_text(DAMAGES[damage](text))
    first = run(start())
    assert len(first) == 4 and sorted(name for _, name in compiled) == sorted(NAMES) and not caplog.records
    if damage != "newer":
        order._programs.clear()
        assert len(order.program()._entries) == 4


def test_a_program_is_its_module_or_script(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/a/train.py", "--steps=3"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    assert order.name() == "/a/train.py"
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", importlib.util.find_spec("json"))
    assert order.name() == "json"
    assert layout.program_path("/a/train.py") != layout.program_path("/b/train.py")


def test_only_the_latest_are_kept(start, compiled, monkeypatch):
    monkeypatch.setattr(order, "MOST", 2)
    run(start())
    order._programs.clear()
    assert [entry["function"] for entry in order.program()._entries.values()] == [
        "library_in_order:third", "library_in_order:fourth",
    ]  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_waits_for_no_thread_of_its_parent(start, compiled):
    run(start())
    library = start()
    order.program()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if not order._programs and len(run(library)) == 4 else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def several(x_ptr, y_ptr, z_ptr, n, m, f, flag, BLOCK: tl.constexpr, HALF: tl.constexpr, NAME: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if HALF == 0.5 and NAME == "a" and z_ptr is None:
        tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + f + m + flag, mask=i < n)


def test_whatever_triton_compiles_is_compiled_again_under_the_same_hash():
    """Types, alignment, integers that are 1, wide and negative ones, None, constants of every kind, and options."""
    numbers = random.Random(20)
    pick = numbers.choice
    for _ in range(24):
        jit = triton.jit(several, do_not_specialize=pick([[], ["n"]]))
        memory = torch.zeros(64, dtype=pick([torch.float32, torch.float16, torch.int64]))
        given = (
            memory, memory[numbers.randrange(3) :], pick([None, memory]), pick([1, 7, 16, 2**40, -3]), pick([1, 0, True]),
            pick([1.5, float("inf")]), pick([True, False]), pick([16, 32]), pick([0.5, 0.1]), pick(["a", "b", None]),
        )  # fmt: skip
        options = {"num_warps": pick([1, 4]), "num_stages": pick([1, 3]), "maxnreg": pick([None, 64])}
        launched = jit.run(*given, grid=(1,), warmup=True, **options)
        data = json.loads(json.dumps(recorded.written(launched)))
        again = recorded.compilation(jit, data, launched.hash)
        assert again is not None and again.digest == launched.hash, (given, options)
        assert recorded.compilation(jit, {**data, "options": {"num_warps": 8}}, launched.hash) is None


@triton.jit
def of_a_pair(pair, BLOCK: tl.constexpr):
    tl.store(pair[0] + tl.arange(0, BLOCK), tl.load(pair[1] + tl.arange(0, BLOCK)))


def test_what_json_cannot_hold_is_not_noted():
    x = torch.zeros(64)
    assert recorded.written(of_a_pair.run((x, x), 16, grid=(1,), warmup=True)) is None


def _until_idle():
    for crew in order.program()._crews:
        assert crew.wait(lambda: None)
