"""Whether Triton records globals of a kernel, told from its text: never "no" where Triton's own walk finds some."""

import importlib.util
import itertools
import random
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

from triton.runtime.jit import JITFunction

from autotuned.triton_compat import globals_used

HELPERS = """
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

SCALE = 3
WIDTH: tl.constexpr = tl.constexpr(4)

@JITFunction
def plain(x):
    return x

@JITFunction
def scaled(x):
    return x * SCALE

class Held:
    inner = scaled
"""
HEAD = """
import math
import triton
import triton.language as tl
from triton.language import constexpr as folded, float32
from triton.runtime.jit import JITFunction
import helpers
from helpers import SCALE, WIDTH, plain, scaled

NOTHING = None
TABLE = (1, 2)

@JITFunction
def within(x):
    return scaled(x)

def made(captured, inner):
    @JITFunction
    def kernel(x_ptr, n, BLOCK: tl.constexpr):
        y = {0}
        z = {1}
    return kernel

@JITFunction
def kernel(x_ptr, n, BLOCK: tl.constexpr, D={2}):
    '{3}'
    y = {0}
    z = {1}

closed = made(SCALE, within)
bare = made(None, plain)
"""
USES = ["n", "tl.load(x_ptr)", "tl.sum(n)", "SCALE", "WIDTH", "plain(n)", "scaled(n)", "within(n)", "helpers.SCALE",
        "helpers.plain(n)", "helpers.scaled(n)", "helpers.Held.inner(n)", "NOTHING", "TABLE[0]", "float32", "folded",
        "math.pi", "tl.float32", "tl.constexpr", "helpers.tl.sum(n)", "BLOCK", "captured", "inner(n)", "tl.rand(n, 1)",
        "tl.tensor.sum(n)", "missing", "tl.math.exp(n)", "kernel"]  # fmt: skip


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """Makes a module of a text."""
    monkeypatch.syspath_prepend(tmp_path)
    count = itertools.count()

    def load(text, name=""):
        path = tmp_path / f"{name or f'kernels_{next(count)}'}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    (tmp_path / "helpers.py").write_text(HELPERS)
    monkeypatch.delitem(__import__("sys").modules, "helpers", raising=False)
    return load


def recorded(jit):
    """What Triton records; None where it refuses the kernel."""
    try:
        jit.cache_key  # noqa: B018 - this is when it looks
    except Exception:
        return None
    return jit.used_global_vals


def test_no_kernel_that_triton_records_globals_of_is_missed(loaded):
    rng, clear = random.Random(5), 0
    texts = [(a, b, "1", "") for a in USES for b in ("n", rng.choice(USES))]
    texts += [
        (rng.choice(USES), rng.choice(USES), rng.choice(["SCALE", "None", "1"]), rng.choice(USES)) for _ in range(60)
    ]
    for parts in texts:
        module = loaded(HEAD.format(*parts))
        for jit in (module.kernel, module.closed, module.bare):
            told = globals_used.may_be_recorded(jit)
            found = recorded(jit)
            assert told or not found, (parts, found)
            clear += not told
    assert clear > 40  # and it says so of those without


def test_other_texts_and_changed_ones_are_asked_again(loaded):
    jit = loaded(HEAD.format("n", "n", "1", "")).kernel
    assert not globals_used.may_be_recorded(jit) and not globals_used.may_be_recorded(jit)
    jit._unsafe_update_src(jit.src.replace("y = n", "y = SCALE"))
    assert globals_used.may_be_recorded(jit) and recorded(jit)


def test_our_own_kernels_are_clear():
    from autotuned.kernels import matmul, rmsnorm, softmax

    for tuned in (matmul.matmul_kernel, rmsnorm.rmsnorm_kernel, softmax.softmax_kernel):
        jit = JITFunction(tuned.tuner.tunable.function)
        assert not globals_used.may_be_recorded(jit) and not recorded(jit)


def test_our_own_kernels_are_hashed_whole():
    """So what a search has compiled is not compiled again where binaries are built or kept."""
    from autotuned.kernels import matmul, rmsnorm, softmax

    for tuned in (matmul.matmul_kernel, rmsnorm.rmsnorm_kernel, softmax.softmax_kernel):
        jit = JITFunction(tuned.tuner.tunable.function)
        asked = SimpleNamespace(fn=jit, constants={(0,): 64})
        assert globals_used.is_hashed_whole(asked)
        assert jit.hash == jit.cache_key
        asked.constants[1,] = "64"
        assert not globals_used.is_hashed_whole(asked)
