"""Source is what Triton compiles: its own text, where that was replaced, and what its decorator was told."""

import ast
import itertools
import random
import tokenize
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from triton.runtime.jit import JITFunction

from autotuned.key.source import fingerprint
from autotuned.key.value import of_value

Load = Callable[..., ModuleType]

# Compiled functions also where Triton interprets: their text and Triton's own key need no GPU.
KERNEL = """import triton
import triton.language as tl
from triton.runtime.jit import JITFunction as jit

SCALE = tl.constexpr(2)
OTHER = tl.constexpr(3)


@jit
def leaf(x):
    return x * 1.5


@jit
def helper(x):
    return leaf(x) + SCALE


@jit
def kernel(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(x_ptr + offsets, helper(x) * 2, mask=offsets < n)
"""


def replace(function: Any, old: str, new: str) -> None:
    assert old in function.src
    function._unsafe_update_src(function.src.replace(old, new))


def test_two_kernels_of_one_function_differ_by_their_text(load: Load) -> None:
    module = load("kern", kern=KERNEL)
    other = JITFunction(module.kernel.fn)
    assert fingerprint(other) == fingerprint(module.kernel)
    replace(other, "* 2", "* 3")
    assert fingerprint(other) != fingerprint(module.kernel)
    assert of_value(other, "x") != of_value(module.kernel, "x")
    written = load("kern", kern=KERNEL.replace("helper(x) * 2", "helper(x) * 3")).kernel
    assert fingerprint(other) == fingerprint(written)


def test_the_text_of_what_it_calls_may_be_replaced_too(load: Load) -> None:
    module = load("kern", kern=KERNEL)
    before = fingerprint(module.kernel)
    replace(module.leaf, "1.5", "2.5")
    assert fingerprint(module.kernel) != before


def test_names_that_only_the_new_text_has_count(load: Load) -> None:
    found = []
    for value in (3, 4):
        module = load("kern", kern=KERNEL.replace("OTHER = tl.constexpr(3)", f"OTHER = tl.constexpr({value})"))
        found.append(fingerprint(module.kernel))
        replace(module.kernel, "* 2", "* OTHER")
        found.append(fingerprint(module.kernel))
    assert found[0] == found[2] and len(set(found)) == 3


@pytest.mark.parametrize(
    "options", [{"noinline": True}, {"debug": True}, {"do_not_specialize": ["n"]}], ids=lambda o: next(iter(o))
)
def test_what_the_decorator_was_told_counts_where_it_makes_another_binary(load: Load, options: Any) -> None:
    kernel = load("kern", kern=KERNEL).kernel
    assert fingerprint(JITFunction(kernel.fn, **options)) != fingerprint(kernel)


def test_the_type_that_an_annotation_names_counts(load: Load) -> None:
    text = KERNEL.replace("n, BLOCK", "n: TYPE, BLOCK")
    found = {fingerprint(load("kern", kern=f"{text}\nTYPE = 0\n".replace("SCALE =", f"TYPE = tl.{kind}\nSCALE =")
             .replace("\nTYPE = 0\n", "")).kernel) for kind in ("int32", "int64")}  # fmt: skip
    assert len(found) == 2


LONG = KERNEL.replace(
    "def kernel(x_ptr, n, BLOCK: tl.constexpr):", "def kernel(\n    x_ptr, n,\n    BLOCK: tl.constexpr,\n):"
)


@pytest.mark.parametrize(
    ("source", "trees"), [(KERNEL, 3), (LONG, 4)], ids=["one line", "a signature of several lines, tried by itself"]
)
def test_each_text_is_tokenized_and_parsed_once(
    load: Load, source: str, trees: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes milliseconds for a long kernel, which the first call of a process would wait for."""
    module, seen = load("kern", kern=source), {"tokens": 0, "trees": 0}
    tokens, parse = tokenize.generate_tokens, ast.parse

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **kwargs: Any) -> Any:
            seen[name] += 1
            return function(*args, **kwargs)

        return count

    monkeypatch.setattr(tokenize, "generate_tokens", counted("tokens", tokens))
    monkeypatch.setattr(ast, "parse", counted("trees", parse))
    fingerprint(module.kernel)
    assert seen == {"tokens": 3, "trees": trees}  # the kernel and what it calls


@pytest.mark.parametrize("text", ["", "\n", "    return leaf(x) + SCALE\n", "def helper(x):\n    return x\n"])
def test_a_text_that_is_not_the_whole_source_is_taken_as_it_is(load: Load, text: str) -> None:
    module = load("kern", kern=KERNEL)
    before = fingerprint(module.helper)
    module.helper._unsafe_update_src(text)
    assert fingerprint(module.helper) != before


# What may be written in place of something else: some of it changes what is compiled, some of it does not.
EDITS = [
    ("* 2,", "* 3,"), ("helper(x) *", "leaf(x) *"), ("helper(x) *", "(helper(x)) *"), ("1.5", "1.25"), ("+ SCALE", "+ OTHER"),
    ("tl.constexpr(2)", "tl.constexpr(5)"), ("tl.constexpr(3)", "tl.constexpr(5)"), ("x * 1.5", "x  *  1.5"),
    ("    return leaf(x)", "    # again\n    return leaf(x)"), ("n, BLOCK", "n: tl.int64, BLOCK"),
    ("mask=offsets < n)\n    tl.store", "mask=offsets < n)\n\n    tl.store"), ("@jit\ndef leaf", "\n\n@jit\ndef leaf"),
    ("SCALE = tl.constexpr(2)", "SCALE = tl.constexpr(2.0)"), ("import triton\n", "import math\nimport triton\n"),
]  # fmt: skip


def keys_of(module: ModuleType) -> tuple[str, str]:
    """Triton's own key of the kernel, as if all were in line 1, and our fingerprint."""
    for function in (module.leaf, module.helper, module.kernel):
        function.starting_line_number = 1
    return module.kernel.cache_key, fingerprint(module.kernel)


def test_where_tritons_key_changes_by_more_than_the_line_number_ours_does(load: Load) -> None:
    chance, seen = random.Random(0), {}
    for count in itertools.chain([0], [1] * 20, [2] * 15, [3] * 10):
        text, replaced = KERNEL, []
        for old, new in chance.sample(EDITS, count):
            in_place = chance.random() < 0.5 and old in text.partition("def kernel")[2]
            if in_place:
                replaced.append((old, new))
            else:
                text = text.replace(old, new)
        module = load("kern", kern=text)
        for old, new in replaced:
            if old in module.kernel.src:
                replace(module.kernel, old, new)
        theirs, ours = keys_of(module)
        assert seen.setdefault(ours, theirs) == theirs or _layout_only(text), text
    assert len(set(seen.values())) > 15


def _layout_only(text: str) -> bool:
    """Triton's key sees comments and blank lines, which no compiler does."""
    return any(edit in text for edit in ("x  *  1.5", "# again", "n)\n\n    tl.store"))


NESTED = """import triton
from triton.runtime.jit import JITFunction as jit

A = 1
B = 2


@jit
def outer(x):
    B = 1
    def inner(x):
        return x * B
"""


def test_a_text_that_ends_the_source_reads_globals_which_the_source_sets(load: Load) -> None:
    """The text of `inner` is the end of `outer`'s, where B is a local variable."""
    module = load("kern", kern=NESTED)
    module.outer._unsafe_update_src("def inner(x):\n        return x * B\n")
    before = fingerprint(module.outer)
    module.B = 3
    assert fingerprint(module.outer) != before


def test_the_function_of_a_kernel_is_read_again_when_its_file_has_changed(load: Load) -> None:
    module = load("kern", kern=KERNEL)
    fingerprint(module.leaf)
    before = fingerprint(module.leaf.fn)
    file = Path(module.__file__ or "")
    fingerprint(module.leaf)
    file.write_text(file.read_text().replace("x * 1.5", "x * 22.5"))
    assert fingerprint(module.leaf.fn) != before
