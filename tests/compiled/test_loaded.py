"""What the driver is asked when a binary is loaded and launched: as Triton's launcher asks it, whatever the kernel needs."""

from __future__ import annotations

import struct

import fake_libcuda
import made_binaries
import pytest
import torch
import triton
import triton.language as tl
from triton import Config

import autotuned
from autotuned.binaries.build import Builder
from autotuned.binaries.loaded import Loaded
from autotuned.errors import BinaryError
from autotuned.gpu import device


@triton.jit
def add(x_ptr, n, s, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.program_id(0), n + s)


@pytest.fixture
def library(monkeypatch):
    return fake_libcuda.install(monkeypatch)


def loaded(metadata=None, **options):
    """A binary with these needs, on the device."""
    one, code = made_binaries.variant(s="i32", options={**made_binaries.OPTIONS, **options})
    return Loaded(add, one.replace(metadata={**one.metadata, **(metadata or {})}), code, 0)


def launch(kernel, grid=(2, 3, 4), stream=7):
    kernel.launch(grid, stream, (torch.zeros(8), 5, 6, 32))


def test_more_shared_memory_than_usual_is_asked_for(library):
    launch(loaded({"shared": 100_000}))
    assert library.attributes == [(8, 100_000)]  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert library.launches[0].shared == 100_000
    launch(loaded({"shared": 48 << 10}))
    assert len(library.attributes) == 1


def test_a_cluster_multiplies_the_grid_and_has_its_attributes(library):
    launch(loaded(num_ctas=4))
    assert library.launches[0].grid == (8, 3, 4)
    assert library.launches[0].attributes == [(4, 4, 1, 1), (5, 1, 0, 0)]
    loaded(num_ctas=16)
    assert library.attributes == [(14, 1)]  # more blocks than every device of the architecture can


def test_cooperative_and_programmatic_launches(library):
    launch(loaded(launch_cooperative_grid=True, launch_pdl=True))
    assert library.launches[0].attributes == [(6, 1, 0, 0), (2, 1, 0, 0)]


def test_the_compiler_may_have_changed_an_option(library):
    """As it does for warp specialization: the number of warps that it says is launched."""
    kernel = loaded({"num_warps": 12})
    launch(kernel)
    assert library.launches[0].block == (384, 1, 1) and kernel.packed_metadata[0] == 12


def test_scratch_memory_comes_from_the_users_allocator(library):
    asked, memory, library.params = [], torch.zeros(64), 5

    def allocate(size, alignment, stream):
        asked.append((size, alignment, stream))
        return memory

    kernel = loaded({"global_scratch_size": 16, "global_scratch_align": 128})
    with pytest.raises(RuntimeError, match="no allocator was set"):
        launch(kernel)
    triton.set_allocator(allocate)
    try:
        launch(kernel)
    finally:
        triton.set_allocator(triton.runtime._allocation._NULL_ALLOCATOR)
    assert asked == [(2 * 3 * 4 * 16, 128, 7)]
    assert library.launches[0].raw[3:] == [struct.pack("<Q", memory.data_ptr()), bytes(8)]


def test_more_threads_than_the_function_has_is_refused(library):
    with pytest.raises(BinaryError, match="expected at most 1024 threads a block, got 2048"):
        loaded({"num_warps": 64})
    assert library.unloads == 1


def test_what_the_driver_refuses_at_a_launch_is_raised(library, monkeypatch):
    kernel = loaded()
    monkeypatch.setattr(type(library), "cuLaunchKernelEx", lambda *args: fake_libcuda.OUT_OF_MEMORY)
    with pytest.raises(RuntimeError, match=r"Triton Error \[CUDA\]: out of memory"):
        launch(kernel)


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0), (-1, 1, 1)])
def test_an_empty_grid_launches_nothing(library, grid):
    launch(loaded(), grid)
    assert library.launches == []


def test_loading_is_told_to_profilers(library):
    told = []
    begun = lambda *args: told.append(("begun", *args))
    done = lambda *args: told.append(("done", *args))
    triton.knobs.runtime.kernel_load_start_hook.add(begun)
    triton.knobs.runtime.kernel_load_end_hook.add(done)
    try:
        kernel = loaded()
    finally:
        triton.knobs.runtime.kernel_load_start_hook.remove(begun)
        triton.knobs.runtime.kernel_load_end_hook.remove(done)
    assert told == [
        ("begun", None, None, "add", {}, kernel.hash), ("done", kernel.module, kernel.function, "add", {}, kernel.hash),
    ]  # fmt: skip


# -- kernels as they are compiled ------------------------------------------------------------------------------------


def built(kernel, *args, **kwargs):
    """All variants of a call with the kernel's only config."""
    tuner = kernel.tuner
    server = tuner.chooser.shipped.server
    call = tuner.call(args, kwargs, (1,))
    [config] = kernel.configs
    builder = Builder(server)
    return [builder.build(one) for one in builder.wanted(call, config, server.code(device.cuda()))]


def tuned(function, *options, **more):
    return autotuned.autotune([Config({}, **more)], key=[])(triton.jit(function))


def of_all_kinds(x_ptr, y_ptr, n, flag, alpha, wide, ONE: tl.constexpr, TYPE: tl.constexpr):
    if y_ptr is not None:  # noqa: SIM108 - a branch that is not taken is not compiled
        x = tl.load(y_ptr + n)
    else:
        x = alpha.to(TYPE)
    if flag:
        x += wide
    tl.store(x_ptr + n, x * ONE)


def test_arguments_of_all_kinds_have_a_generic_variant():
    made = built(tuned(of_all_kinds), torch.zeros(8), None, 1, True, 2.5, 1 << 40, 3, tl.float32)
    assert [one.fault for one in made] == [""] * 3
    assert [dict(one.variant.form.types)["n"] for one in made] == ["=1", "=1", "i32"]
    assert all(dict(one.variant.form.types)["y_ptr"] == "=None" for one in made)
    assert not any(one.variant.form.assumes for one in made if one.generic)


def only_for_one(x_ptr, n):
    tl.static_assert(n == 1)
    tl.store(x_ptr, 1)


def test_a_generic_variant_that_does_not_compile_is_said_and_the_special_one_stays():
    *made, parameter = built(tuned(only_for_one), torch.zeros(8), 1)
    assert [one.fault for one in made] == [""] * 2 and "CompilationError" in parameter.fault


def of_a_half(x, half):
    tl.store(x, half)


of_a_half.__annotations__["half"] = "fp16"  # Triton's word


def test_what_no_binary_holds_is_refused_in_words():
    """Half-precision numbers, which Triton's own launcher rounds."""
    with pytest.raises(BinaryError, match="such calls compile at their first use"):
        built(tuned(of_a_half), torch.zeros(8), 2.5)


def test_a_cluster_as_triton_compiles_it():
    made = built(tuned(of_all_kinds, num_ctas=2), torch.zeros(8), None, 5, True, 2.5, 1 << 40, 3, tl.float32)
    assert made[0].variant.launch["num_ctas"] == 2
