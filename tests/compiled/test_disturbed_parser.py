"""Threads that parse at once: Python 3.11 before 3.11.8 raises SystemError in one of them, whatever its source."""

import ast
import gc
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config
from triton.runtime.autotuner import Autotuner

import autotuned
from autotuned.dropin import install
from autotuned.key import source_text
from autotuned.store import listing

BLOCKS = (16, 32, 64, 128)
MISMATCH = f"{source_text.DISTURBED} (before=33, after=85)"


@triton.jit
def one_more(x):
    return x + 1


@triton.jit
def increased(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, one_more(tl.load(x_ptr + i, mask=i < n)), mask=i < n)


def a_tuner(kind):
    kernel, configs = triton.jit(increased.fn), [Config({"BLOCK": block}) for block in BLOCKS]
    bench = fake_cuda.by_config(dict.fromkeys(BLOCKS, 2.0) | {64: 1.0})
    if kind == "decorated":
        return autotuned.autotune(configs, key=["n"], do_bench=bench)(kernel)
    autotuned.install(replace=kind == "replaced")
    return Autotuner(kernel, kernel.arg_names, configs, ["n"], None, None, do_bench=bench)


@pytest.fixture
def disturbed(monkeypatch):
    """Each text is parsed in vain the first three times; what was parsed."""
    parse, times, lock = ast.parse, {}, threading.Lock()

    def disturbed(text, *args, **kwargs):
        if sys._getframe(1).f_globals["__name__"] in ("triton.runtime.jit", source_text.__name__):
            asked = text, sys._getframe(2).f_code.co_name  # a key, Triton's hash, its compiler
            with lock:
                times[asked] = times.get(asked, 0) + 1
            if times[asked] <= 3:
                raise SystemError(MISMATCH)
        return parse(text, *args, **kwargs)

    monkeypatch.setattr(ast, "parse", disturbed)
    return times


@pytest.fixture(autouse=True)
def hashed_anew():
    """Triton hashes the kernels anew, and nothing stays installed."""
    one_more.hash = increased.hash = None
    yield
    install.uninstall()
    one_more.hash = increased.hash = None


@pytest.mark.parametrize(
    ("kind", "workers"), [("decorated", "1"), ("decorated", "2"), ("installed", "2"), ("replaced", "2")]
)  # Triton compiles for others that have one worker
def test_a_disturbed_parser_costs_no_config_and_leaves_no_hash_without_source(
    kind, workers, tmp_path, monkeypatch, request
):
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", workers)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    expected = triton.jit(increased.fn).cache_key
    one_more.hash = None
    request.getfixturevalue("disturbed")
    tuner = a_tuner(kind)
    tuner[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](torch.zeros(1000), 1000)
    assert tuner.best_config.kwargs == {"BLOCK": 64}
    assert tuner.fn.hash == expected and not one_more.hash.startswith("recursion:")
    statuses = [timing.status for _, record in listing.all_records() for timing in record.timings]
    assert statuses == ["ok"] * len(BLOCKS)


def test_a_keys_text_is_parsed_again(disturbed):
    body = source_text.Body(increased.fn)
    assert [node.name for node in source_text.tree(body).body] == ["increased"]
    assert source_text.text(source_text.Body(lambda x: x + 2)) == source_text.text(source_text.Body(lambda x: x + 2))
    assert disturbed


@pytest.mark.parametrize("error", [SystemError("something else"), ValueError(MISMATCH), KeyboardInterrupt()])
def test_no_other_error_is_tried_again(error):
    tried = []

    def fail():
        tried.append(error)
        raise error

    with pytest.raises(type(error)):
        source_text.parsed_again(fail)
    assert len(tried) == 1


def test_a_parser_that_stays_disturbed_is_reported():
    def fail():
        raise SystemError(MISMATCH)

    with pytest.raises(SystemError, match="depth mismatch"):
        source_text.parsed_again(fail)


class Cycle:
    """Garbage that runs Python when it is collected, where another thread may take over."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        json.dumps([*range(40)])


def test_threads_that_parse_at_once_all_get_their_tree():
    source = "def f(a, b):\n" + "".join(f"    x{i} = (a + {i}) * [b, {{{i}: g(a)}}]\n" for i in range(60))
    expected, before, threshold = ast.dump(ast.parse(source)), sys.getswitchinterval(), gc.get_threshold()

    def parse(_):
        [Cycle() for _ in range(5)]
        return ast.dump(source_text.parsed_again(lambda: ast.parse(source))) == expected

    sys.setswitchinterval(1e-5)
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(parse, range(60)))
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(before)
