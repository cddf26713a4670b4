"""Tests of `ttir` on text; `tests/compiled/test_access.py` has what Triton really writes."""

import pytest

from autotuned.triton_compat.ttir import AccessByPosition, access

HEADER = "  tt.func public @k(%a: !tt.ptr<f32> loc(#loc), %n: i32 loc(#loc), %b: !tt.ptr<f32> loc(#loc), %v: i32) {"


def kernel(*lines: str, header: str = HEADER) -> str:
    body = "\n".join(f"    {line} loc(#loc7)" if not line.endswith("{") else f"    {line}" for line in lines)
    return f"#loc = loc(unknown)\nmodule {{\n{header}\n{body}\n    tt.return loc(#loc)\n  }} loc(#loc)\n}} loc(#loc)\n"


def found(read: set[int], written: set[int], count: int = 2) -> AccessByPosition:
    return AccessByPosition(frozenset(read), frozenset(written), count)


STORE_B = "tt.store %b, %x : !tt.ptr<f32>"
LOAD_A = "%x = tt.load %a : !tt.ptr<f32>"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], found(set(), set())),
        ([LOAD_A, STORE_B], found({0}, {1})),
        (["%p = tt.addptr %a, %n : !tt.ptr<f32>, i32", "tt.store %p, %v : !tt.ptr<f32>"], found(set(), {0})),
        (["%c = arith.cmpi eq, %n, %v : i32", "%p = arith.select %c, %a, %b : !tt.ptr<f32>", "tt.store %p, %v : x"],
         found(set(), {0, 1})),
        (["%o = tt.atomic_rmw fadd, acq_rel, gpu, %b, %v, %t : (x) -> f32"], found({1}, {1})),
        (['%y = tt.elementwise_inline_asm "mov %laneid; // %a" {pure = true} %v : i32 -> i32'], found(set(), set())),
        (["%d = tt.make_tensor_descriptor %b, [%n], [%n] : <f32>, <4xf32>", "tt.descriptor_store %d[%n], %v : x"],
         found(set(), {1})),
        (["%q:2 = scf.for %i = %n to %n step %n iter_args(%p = %a, %r = %b) -> (x, y) : i32 {", LOAD_A,
          "%y = tt.load %p : x", "tt.store %r, %y : x", "scf.yield %p, %r : x, y", "}"], found({0}, {1})),
        # The pointers change places: what goes round may be either.
        (["%q:2 = scf.for %i = %n to %n step %n iter_args(%p = %a, %r = %b) -> (x, y) : i32 {",
          "tt.store %r, %v : x", "scf.yield %r, %p : x, y", "}"], found(set(), {0, 1})),
        (["%q = scf.if %c -> (x) {", "scf.yield %a : x", "} else {", "scf.yield %b : x", "}", "tt.store %q, %v : x"],
         found(set(), {0, 1})),
        (["cf.br ^bb1(%b : x)", "^bb1(%p: x):", "tt.store %p, %v : x"], found(set(), {1})),
    ],
    ids=["nothing", "load and store", "offset", "select", "atomic", "pure assembly", "descriptor", "loop", "swap",
         "branch values", "block argument"],
)  # fmt: skip
def test_what_is_read_and_written(lines: list[str], expected: AccessByPosition) -> None:
    assert access(kernel(*lines)) == expected


@pytest.mark.parametrize(
    "line",
    [
        "tt.call @helper(%a) : (!tt.ptr<f32>) -> ()",
        "%p = tt.int_to_ptr %v : i64 -> !tt.ptr<f32>",
        "tt.store %elsewhere, %v : !tt.ptr<f32>",
        '%y = tt.elementwise_inline_asm "st.global [$1], $2;" {pure = false} %v : i32 -> i32',
        '%y = tt.elementwise_inline_asm "st.global [$1], $2;" {pure = true} %a : x -> i32',
        '%y = tt.extern_elementwise %v {pure = false} : (f32) -> f32',
        "%y = tt.some_new_operation %a : x",
        "ttg.async_copy_global_to_local %a, %v : x",
        "%y = tt.load %pp : !tt.ptr<!tt.ptr<f32>>",
        " no operation",
    ],
)  # fmt: skip
def test_what_is_not_understood_is_no_answer(line: str) -> None:
    assert access(kernel(LOAD_A, line)) is None


@pytest.mark.parametrize("text", ["", "module {\n}\n", kernel() + kernel(), "tt.func public @k("], ids=repr)
def test_text_that_is_no_kernel_is_no_answer(text: str) -> None:
    assert access(text) in (None, AccessByPosition(frozenset(), frozenset(), 0))


def test_code_of_other_functions_is_not_looked_at() -> None:
    other = "  tt.func private @helper(%a: !tt.ptr<f32>) {\n    tt.store %zz, %a : x\n    tt.return\n  }\n"
    text = kernel(LOAD_A, STORE_B)
    assert access(text[: text.rindex("}")] + other + "}\n") == found({0}, {1})
