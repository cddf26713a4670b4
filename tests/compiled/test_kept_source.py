"""What is kept or built is compiled from the current source, even if Triton's hash of it has not changed."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from kept_library import module

from autotuned.dropin import install
from autotuned.triton_compat import specialization

LEFT_OUT = """
import types
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

exp, tables = tl.exp, types.ModuleType("tables")
tables.exp, tl.of_a_program = exp, exp
values = types.ModuleType("values")
values.scale = tl.constexpr(2.0)
TABLE = {"scale": 2.0}

@triton.constexpr_function
def found():
    return TABLE["scale"]

@triton.jit
def by(x):
    return x * 2.0

@triton.jit
def other(x):
    return x * 3.0

@triton.jit
def through(x):
    return by(x)

@triton.jit
def kernel(x_ptr, n, of: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, THE_VALUE, mask=i < n)
"""
READ = "tl.load(x_ptr + i, mask=i < n)"
USED = {
    "an attribute of a module": (f"{READ} * values.scale", True, 0),
    "what a constexpr function reads": (f"{READ} * found()", True, 0),
    "the type of a constant": (f"{READ} * (2.0 if of == 1 else 3.0)", False, "1"),
    "a function that is rebound": (f"by({READ})", False, 0),
    "a function within that is rebound": (f"through({READ})", False, 0),
}


@pytest.mark.parametrize("by", ["kept", "built"])
@pytest.mark.parametrize("used", USED)
def test_what_tritons_hash_leaves_out_is_not_taken_from_its_cache(used, by, tmp_path, monkeypatch, driver):
    """The cache has the kernel as it was, under a hash that is the same now."""
    value, is_edited, of = USED[used]
    text, x = LEFT_OUT.replace("THE_VALUE", value), torch.zeros(128)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    before = module(tmp_path / "before", text).kernel[(2,)](x, 96, 1 if of else 0, 64)
    edited = text.replace("(2.0)", "(3.0)").replace('"scale": 2.0', '"scale": 3.0') if is_edited else text
    now = module(tmp_path / "now", edited)
    install.install(binaries=tmp_path / "kept")
    try:
        if "rebound" in used:
            now.kernel[(2,)](x.half(), 96, 0, 64)  # Triton hashes it
            now.by = now.other
        if by == "kept":
            found = now.kernel[(2,)](x, 96, of, 64)
        else:
            asked = specialization.Specializer(now.kernel, 90).of((x, 96, of, 64), {})
            found = specialization.compile_(now.kernel, asked, "the code of now")
    finally:
        install.uninstall()
    assert "dense<2.0" in before.asm["ttir"] and "dense<3.0" in found.asm["ttir"]
    assert found.src.hash() == type(found.src).hash(found.src)  # as it was


def test_what_the_hash_says_whole_is_taken_from_tritons_cache(tmp_path, monkeypatch, driver):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    text, x, seen = LEFT_OUT.replace("THE_VALUE", f"through({READ}) + 1"), torch.zeros(128), []
    module(tmp_path / "before", text).kernel[(2,)](x, 96, 0, 64)
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda cache_hit, **event: seen.append(cache_hit))
    install.install(binaries=tmp_path / "kept")
    try:
        module(tmp_path / "now", text).kernel[(2,)](x, 96, 0, 64)
    finally:
        install.uninstall()
    assert seen == [True]


@pytest.fixture
def patched():
    """Triton's module as it was, after the library has put a function there."""
    yield
    vars(tl).pop("of_a_program", None)


@pytest.mark.parametrize("used", [f"exp({READ})", f"tables.exp({READ})", f"tl.of_a_program({READ})"])
@pytest.mark.parametrize("other", ["tl.log", "libdevice.exp"])  # the latter has the same name
def test_another_builtin_under_the_same_name_is_another_kernel(used, other, tmp_path, monkeypatch, driver, patched):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    text, x, found = LEFT_OUT.replace("THE_VALUE", used), torch.zeros(128), []
    install.install(binaries=tmp_path / "kept")
    try:
        for of in ("tl.exp", other):
            kernel = module(tmp_path / of, text.replace("= tl.exp,", f"= {of},")).kernel
            found.append(kernel[(2,)](x, 96, 0, 64).asm["ttir"])
    finally:
        install.uninstall()
    assert [("math.exp" in one, "math.log" in one, "__nv_exp" in one) for one in found] == [
        (True, False, False), (False, other == "tl.log", other != "tl.log"),
    ]  # fmt: skip
