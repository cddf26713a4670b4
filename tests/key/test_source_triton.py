"""`key/source.py` on Triton functions: what a kernel reaches, and that nothing else of its surroundings counts."""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
import triton

from autotuned.key.source import Fingerprint, fingerprint, public_name, python_function
from autotuned.key.value import of_value
from autotuned.typed_json import canonical

Load = Callable[..., ModuleType]

KERNEL = """import helpers
import triton
import triton.language as tl
from helpers import scale

NAME = "add"
LIMIT = tl.constexpr(4)
DTYPE = tl.float32


@triton.jit
def add(x, y):
    return x + y


@triton.jit
def sub(x, y):
    return x - y


FN = add if NAME == "add" else sub
OPS = {"largest": (helpers.larger,)}


@triton.constexpr_function
def twice(n):
    return 2 * n


@triton.jit
def ping(x, n: tl.constexpr):
    return x if n == 0 else pong(x, n - 1)


@triton.jit
def pong(x, n: tl.constexpr):
    return x if n == 0 else ping(x, n - 1)


@triton.jit
def unrelated(x):
    return x


@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def kernel(x_ptr, out_ptr, n, eps=1e-5, EVEN: tl.constexpr = True, BLOCK: tl.constexpr = 64):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # which elements
    x = tl.load(x_ptr + offsets, mask=offsets < n).to(DTYPE)
    y = FN(x, eps) + helpers.shift(x) + scale(x) + OPS["largest"][0](x, LIMIT) + ping(x, 3)
    tl.static_print(f"{BLOCK=} {twice(BLOCK)}")
    tl.store(out_ptr + offsets, tl.sum(y), mask=offsets < n)
"""
HELPERS = """import triton


@triton.jit
def larger(x, y):
    return x if x > y else y


@triton.jit
def shift(x):
    return x + 1


@triton.jit
def inner(x):
    return 0.01 * x


@triton.jit
def scale(x):
    return inner(x) * 2


@triton.jit
def unused(x):
    return x
"""
TEXTS = {"kern": KERNEL, "helpers": HELPERS}
# Of the kernel above, in every Python from 3.10 and every Triton from 3.6: records and shipped config files are found
# by it, and whoever changes this number drops all of them.
PINNED = "ad0b43906545b8f666cd7de3711ce74545bdcd9cd97e44279daea546241f3016"


def edited(load: Load, file: str, old: str, new: str) -> str:
    assert TEXTS[file].count(old) == 1, f"{old!r} is there {TEXTS[file].count(old)} times"
    return of(load("kern", **{**TEXTS, file: TEXTS[file].replace(old, new)}))


def of(module: ModuleType) -> str:
    function = python_function(module.kernel)
    assert function is not None
    return fingerprint(function)


SAME = {
    "a comment in the kernel": ("kern", "# which elements", "# which of the elements"),
    "a blank line in the kernel": ("kern", "    tl.static_print", "\n\n    tl.static_print"),
    "the kernel moved in its file": ("kern", "@triton.heuristics", "# moved\n# down\n\n\n@triton.heuristics"),
    "a comment in a helper": ("kern", "    return x + y", "    # the sum\n    return x + y"),
    "a heuristic above the kernel": ("kern", "% 2 == 0})", "% 4 == 0})"),
    "a function that is not used": ("kern", "def unrelated(x):\n    return x", "def unrelated(x):\n    return 2 * x"),
    "the branch not taken when a helper was chosen": ("kern", "return x - y", "return y - x"),
    "another file moved down": ("helpers", "import triton\n", "import triton\n\nVERSION = 2\n"),
    "a function of another file that is not used": (
        "helpers",
        "def unused(x):\n    return x",
        "def unused(x):\n    return 2 * x",
    ),
}
OTHER = {
    "the kernel": ("kern", "mask=offsets < n).to(DTYPE)", "mask=offsets < n, other=0).to(DTYPE)"),
    "an annotation": ("kern", "n, eps=1e-5", "n: tl.constexpr, eps=1e-5"),
    "a default": ("kern", "eps=1e-5", "eps=1e-6"),
    "a constexpr's default": ("kern", "BLOCK: tl.constexpr = 64", "BLOCK: tl.constexpr = 128"),
    "a text in the kernel": ("kern", "{BLOCK=} {", "{BLOCK} {"),
    "the value of a constexpr global": ("kern", "tl.constexpr(4)", "tl.constexpr(8)"),
    "a dtype in a global": ("kern", "DTYPE = tl.float32", "DTYPE = tl.float16"),
    "which helper was chosen": ("kern", 'NAME = "add"', 'NAME = "sub"'),
    "the helper that was chosen": ("kern", "return x + y", "return y + x"),
    "a constexpr function": ("kern", "return 2 * n", "return n + n"),
    "a helper that calls back": ("kern", "pong(x, n - 1)", "pong(x + 1, n - 1)"),
    "the helper that it calls": ("kern", "ping(x, n - 1)", "ping(x + 1, n - 1)"),
    "a helper in another file": ("helpers", "return inner(x) * 2", "return 2 * inner(x)"),
    "a helper's helper": ("helpers", "0.01 * x", "0.02 * x"),
    "a helper through a module": ("helpers", "return x + 1", "return 1 + x"),
    "a helper in a table": ("helpers", "x if x > y", "x if x >= y"),
}


def test_the_fingerprint_of_a_kernel_is_pinned(load: Load) -> None:
    assert of(load("kern", **TEXTS)) == PINNED


@pytest.mark.parametrize("edit", SAME)
def test_the_fingerprint_does_not_see(load: Load, edit: str) -> None:
    assert edited(load, *SAME[edit]) == PINNED


def test_the_fingerprint_sees_each_of_these(load: Load) -> None:
    found = {edit: edited(load, *change) for edit, change in OTHER.items()}
    assert [edit for edit, fingerprint in found.items() if fingerprint == PINNED] == []
    assert len(set(found.values())) == len(OTHER)


CHOOSING = """import triton


@triton.jit
def add(x, y):
    return x + y


@triton.jit
def sub(x, y):
    return x - y


@triton.jit
def kernel(x_ptr, name: triton.language.constexpr):
    FN = add if name == "add" else sub
    triton.language.store(x_ptr, FN(x_ptr, 1))
"""


@pytest.mark.parametrize(("old", "new"), [("x + y", "y + x"), ("x - y", "y - x")], ids=["add", "sub"])
def test_every_helper_that_a_kernel_may_choose_counts(load: Load, old: str, new: str) -> None:
    assert of(load("kern", kern=CHOOSING)) != of(load("kern", kern=CHOOSING.replace(old, new)))


def make(size: int) -> object:
    SIZE = triton.language.constexpr(size)

    @triton.jit
    def kernel(x_ptr):
        triton.language.store(x_ptr, SIZE)

    return kernel


def test_a_constexpr_in_a_closure_counts() -> None:
    assert of_value(make(256), "here") != of_value(make(512), "here")
    assert of_value(make(256), "here") == of_value(make(256), "here")


def test_a_kernel_passed_as_an_argument_counts_by_its_code(load: Load) -> None:
    module = load("kern", **TEXTS)
    again = load("kern", **{**TEXTS, "kern": KERNEL.replace("return x + y", "return y + x")})
    assert of_value(module.add, "here") != of_value(again.add, "here")
    assert of_value(module.sub, "here") == of_value(again.sub, "here")


def test_a_script_has_the_name_and_fingerprint_that_its_import_has(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("kern", **TEXTS)
    monkeypatch.syspath_prepend(str(Path(module.__file__ or "").parent))
    script = runpy.run_path(module.__file__ or "", run_name="__main__")["kernel"]
    del sys.modules["helpers"]
    function = python_function(script)
    assert function is not None
    assert function.__module__ == "__main__"
    assert fingerprint(function) == PINNED
    assert public_name(function) == "kern.kernel"


def test_compiled_and_interpreted_kernels_have_one_fingerprint(load: Load) -> None:
    module = load("kern", **TEXTS)
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    assert (type(module.add).__name__ == "InterpretedFunction") is interpreted
    program = (
        "import kern; from autotuned.key.source import Fingerprint, fingerprint, python_function\n"
        "print(type(kern.add).__name__, fingerprint(python_function(kern.kernel)))"
    )
    other = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TRITON_INTERPRET": "0" if interpreted else "1"},
        cwd=Path(module.__file__ or "").parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.split() == ["JITFunction" if interpreted else "InterpretedFunction", PINNED]


def test_a_layer_of_torch_is_a_value() -> None:
    """Known by its class's name and what it holds: walking torch's own code ended in an error of torch's."""
    spell = lambda layer: of_value(layer, "x")
    gelu = [torch.nn.GELU(), torch.nn.GELU(), torch.nn.GELU("tanh"), torch.nn.ReLU()]
    spelled = [canonical(spell(layer)) for layer in gelu]
    assert spelled[0] == spelled[1] and len(set(spelled)) == 3


ALIASES = """import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice
f = FUNCTION

@triton.jit
def kernel(x_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, f(tl.load(x_ptr + i)))
"""


def test_functions_of_tritons_library_are_told_apart_by_module_and_name(load):
    """Its builtins share a wrapper, whose module is not theirs; others are objects that hold all of Triton's library."""
    names = ("tl.exp", "tl.log", "libdevice.exp", "tl.sigmoid", "tl.softmax")
    found = [Fingerprint(load("kern", kern=ALIASES.replace("FUNCTION", name)).kernel) for name in names]
    assert len({one.value() for one in found}) == len(names)
    assert not any(one.opaque or one.is_blurred for one in found)
