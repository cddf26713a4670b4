"""Binaries through the C and the Python launcher, at random: the same binary, and the same parameters to the byte."""

from __future__ import annotations

import importlib
import struct
import sys

import fake_libcuda
import pytest
import torch
from fake_driver import Device
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import autotuned
from autotuned.configfiles import exchange
from autotuned.offline import binaries

_launch = pytest.importorskip("autotuned._launch")
SIZES = {"i32": "<i", "i64": "<q"}
INTEGERS = st.one_of(
    st.sampled_from([0, 1, 2, 15, 16, 17, 96, 100, -1, -16, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**63 - 1, -(2**63)]),
    st.integers(-200, 200),
    st.integers(-(2**40), 2**40).map(lambda n: n * 16),
)  # fmt: skip
CALL = st.tuples(
    st.sampled_from([96, 100]),
    INTEGERS,
    st.integers(0, 8),
    st.integers(0, 8),
    st.sampled_from([(4,), (2, 3), (1, 2, 3)]),
)


def fresh():
    sys.modules.pop("shipped_kernel", None)
    return importlib.import_module("shipped_kernel").add


@pytest.fixture
def served(driver, tmp_path, monkeypatch):
    """The kernel on each launcher, beginning with empty caches, and the pretended driver of each."""
    add = fresh()

    @add.case
    def every_type(device):
        for n in (96, 100):
            for s in (1, 2, 1 << 40):  # a binary is for its own types alone
                yield {"args": (torch.zeros(256), torch.zeros(256), n, s), "grid": (4,)}

    for n in (96, 100):
        add[(4,)](torch.zeros(256), torch.zeros(256), n, 1)
    exchange.export(tmp_path / "tuned")
    assert binaries.build(tmp_path / "tuned", ["shipped_kernel"], device="cpu").missing == []
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "empty"))
    library, device = fake_libcuda.install(monkeypatch), Device()
    driver.get_current_stream = lambda index: device.stream
    _launch.use_driver(*device.addresses())
    autotuned.register_configs(tmp_path / "tuned", binaries=True)
    found = {}
    for launcher in ("c", "python"):
        monkeypatch.setenv("AUTOTUNED_LAUNCHER", launcher)
        found[launcher] = fresh()
    yield found, library, device
    _launch.use_driver(0, 0, 0, 0)


def expected(loaded, arguments):
    """The parameters as the binary's own signature says, without scratch memory."""
    values = [(type_, arguments[name]) for name, type_ in loaded.variant.form.launched]
    packed = [struct.pack("<Q", value.data_ptr()) if type_[0] == "*" else struct.pack(SIZES[type_], value)
              for type_, value in values]  # fmt: skip
    return [*packed, bytes(8), bytes(8)]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls=st.lists(CALL, min_size=1, max_size=4))
def test_both_launchers_pass_the_same(served, calls):
    kernels, library, device = served
    memory = torch.zeros(512)
    for n, s, at_x, at_y, grid in calls:
        arguments = {"x_ptr": memory[at_x:], "y_ptr": memory[256 + at_y :], "n": n, "s": s}
        with autotuned.seal():
            first = {name: kernel[grid](*arguments.values()) for name, kernel in kernels.items()}
            loaded = first["c"]
            assert first["python"].hash == loaded.hash
            wanted = expected(loaded, arguments)
            library.params, device.sizes = len(wanted), [len(one) for one in wanted]
            library.launches.clear()
            device.calls.clear()
            try:
                for name, kernel in kernels.items():
                    hits = kernel.cache_info().hits
                    assert kernel[grid](*arguments.values()) is first[name]
                    assert kernel.cache_info().hits == hits + 1, name
            finally:
                library.params, device.sizes = 0, None
        [by_python], [by_c] = library.launches, device.calls
        sizes = (*grid, 1, 1)[:3]
        assert (tuple(by_python.grid), tuple(by_c.grid)) == (sizes, sizes)
        assert by_python.function == by_c.function == loaded.function
        assert [raw[: len(one)] for raw, one in zip(by_python.raw, wanted)] == wanted
        assert by_c.raw == wanted


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(call=CALL, asked=st.booleans())
def test_the_first_launch_in_c_passes_the_twins_bytes(served, call, asked):
    kernels, library, device = served
    n, s, at_x, at_y, grid = call
    memory = torch.zeros(512)
    arguments = {"x_ptr": memory[at_x:], "y_ptr": memory[256 + at_y :], "n": n, "s": s}
    for kernel in kernels.values():
        kernel.tuner.launcher.clear()
    with autotuned.seal():
        loaded = kernels["python"][grid](*arguments.values())
        wanted = expected(loaded, arguments)
        device.sizes, misses = [len(one) for one in wanted], kernels["c"].cache_info().misses
        device.calls.clear()
        library.launches.clear()
        try:
            first = kernels["c"][(lambda meta: grid) if asked else grid](*arguments.values())
        finally:
            device.sizes = None
    assert (first.hash, kernels["c"].cache_info().misses) == (loaded.hash, misses + 1)
    [by_c] = launched(device)
    assert (by_c.raw, by_c.grid, by_c.function) == (wanted, (*grid, 1, 1)[:3], first.function)
    assert library.launches == []


def launched(device):
    return [call for call in device.calls if call.kind == "launch"]


def test_the_first_launch_is_made_by_what_is_bound(served):
    kernels, library, device = served
    memory = torch.zeros(512)
    with autotuned.seal():
        first = kernels["c"][(4,)](memory[:256], memory[256:], 96, 1)
        assert (len(launched(device)), library.launches, kernels["c"].cache_info().hits) == (1, [], 0)
        assert kernels["c"][(4,)](memory[:256], memory[256:], 96, 1) is first
    assert (len(launched(device)), library.launches, kernels["c"].cache_info().hits) == (2, [], 1)


def test_a_grid_that_moves_a_tensor_in_the_first_launch_has_the_binary_for_where_it_is(served):
    kernels, _, device = served
    memory, x = torch.zeros(512), torch.zeros(256)

    def grid(meta):
        x.data = memory[1:257]
        return (4,)

    with autotuned.seal():
        moved = kernels["c"][grid](x, memory[256:], 96, 1)
    assert "x_ptr" not in moved.variant.form.assumes
    assert [call.grid for call in launched(device)] == [(4, 1, 1)]


def test_a_grid_that_sets_a_knob_in_the_first_launch_leaves_it_to_triton(served, monkeypatch, tmp_path):
    import triton

    kernels, library, device = served
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "empty"))  # another test may have compiled it so
    memory = torch.zeros(512)

    def grid(meta):
        monkeypatch.setattr(triton.knobs.runtime, "debug", True)
        return (4,)

    with autotuned.seal(), pytest.raises(autotuned.errors.SealedError):
        kernels["c"][grid](memory[:256], memory[256:], 96, 1)
    assert (launched(device), library.launches) == ([], [])


def test_a_first_launch_that_the_driver_refuses_leaves_nothing_bound(served):
    kernels, _, device = served
    memory, device.error = torch.zeros(512), 700
    with pytest.raises(RuntimeError, match="Triton Error"):
        kernels["c"][(4,)](memory[:256], memory[256:], 96, 1)
    device.error = 0
    misses = kernels["c"].cache_info().misses
    with autotuned.seal():
        kernels["c"][(4,)](memory[:256], memory[256:], 96, 1)
    assert kernels["c"].cache_info().misses == misses + 1


def test_an_empty_grid_launches_nothing_the_first_time(served):
    kernels, library, device = served
    memory = torch.zeros(512)
    with autotuned.seal():
        kernels["c"][(0,)](memory[:256], memory[256:], 96, 1)
    assert (launched(device), library.launches) == ([], [])
