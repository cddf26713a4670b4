"""Binaries of kernels over tuples and tensor descriptors: shipped, loaded without a compiler, launched as Triton does."""

from __future__ import annotations

import importlib
import sys

import fake_libcuda
import pytest
import torch
from fake_driver import Device
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton.tools.tensor_descriptor import TensorDescriptor

import autotuned
from autotuned.binaries import loaded
from autotuned.binaries import variant as binary_variant
from autotuned.binaries.variant import Form
from autotuned.configfiles import exchange
from autotuned.errors import RecordError, SealedError
from autotuned.offline import binaries
from autotuned.triton_compat import descriptors

_launch = pytest.importorskip("autotuned._launch")
often = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def fresh():
    sys.modules.pop("shipped_descriptors", None)
    return importlib.import_module("shipped_descriptors")


def calls(module):
    """A call of each kernel; the blocks of `copy_hooked` are its hook's to set."""
    return {
        "copy_block": module.blocks(),
        "copy_hooked": module.blocks(size=8),
        "add_pair": module.pairs(),
        "add_named": module.named(),
    }


_built: list = []


@pytest.fixture
def built(driver, tmp_path_factory, monkeypatch):
    """The folder that ships, built once."""
    if not _built:
        folder = tmp_path_factory.mktemp("built")
        monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(folder / "store"))
        module = fresh()
        for name, args in calls(module).items():
            getattr(module, name)[(4,)](*args)
        exchange.export(folder / "tuned")
        done = binaries.build(folder / "tuned", ["shipped_descriptors"], device="cpu")
        assert [line for file in done.files for line in file.missing] == []
        _built.append(folder / "tuned")
    return _built[0]


@pytest.fixture
def serve(built, driver, tmp_path, monkeypatch):
    """Gives the module as a process with empty caches and the binaries imports it, for a launcher."""
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "empty"))
    fake_libcuda.install(monkeypatch)
    device = Device()
    driver.get_current_stream = lambda index: device.stream
    _launch.use_driver(*device.all_addresses())
    autotuned.register_configs(built, binaries=True)

    def serve(launcher):
        monkeypatch.setenv("AUTOTUNED_LAUNCHER", launcher)
        return fresh()

    serve.device = device
    yield serve
    _launch.use_driver(0, 0, 0, 0)


@pytest.mark.parametrize("launcher", ["c", "python"])
def test_served_without_a_compiler(serve, launcher, caplog):
    module = serve(launcher)
    with autotuned.seal():
        for name, args in calls(module).items():
            kernel = getattr(module, name)
            first = kernel[(4,)](*args)
            assert hasattr(first, "variant"), name
            assert kernel[(4,)](*calls(module)[name]) is first, name
            assert kernel.cache_info().hits == 1, name
            passed = kernel.tuner.launcher.in_c.passed(args, (4,)) if launcher == "c" else ()
            assert passed is not None, name
    assert "expected" not in caplog.text  # the C launcher passes what the twin does
    with autotuned.seal(), pytest.raises(SealedError, match=r"source.*tensordesc<fp32\[64\]>"):
        module.copy_block[(4,)](*module.blocks(size=64))
    with autotuned.seal(), pytest.raises(SealedError, match=r"pair\[1\]\[1\]"):
        module.add_pair[(4,)](*module.pairs(s=2.5))


def row(dtype, offset, length, padding):
    base = torch.zeros(4096, dtype=dtype)[offset:]
    return TensorDescriptor(base, [length], [1], [32], padding if dtype.is_floating_point else "zero")


ROW = st.builds(row, st.just(torch.float32), st.sampled_from([0, 16, 64]), st.integers(1, 4000),
                st.sampled_from(["zero", "nan"]))  # fmt: skip
NUMBER = st.one_of(st.sampled_from([0, 1, 2, 16, -16, 2**31 - 1, -(2**31)]), st.integers(-(2**31), 2**31 - 1))


@often
@given(rows=st.tuples(ROW, ROW), s=NUMBER, offset=st.integers(0, 8))
def test_a_binary_launches_by_ctypes_what_c_launches(serve, rows, s, offset):
    if not hasattr(serve, "module"):
        serve.module = serve("c")
    module, x = serve.module, torch.zeros(512)
    with autotuned.seal():
        for name, args in (("copy_block", (*rows, 0)), ("add_pair", ((x[offset:], (x[64:], s)), 96))):
            kernel = getattr(module, name)
            binary = kernel[(4,)](*args)
            *_, parameters = kernel.tuner.launcher.in_c.passed(args, (4,))
            values = (*args, 32)
            made = [bytes(one) for at in binary.run._passed for one in loaded._parameters(values, *at)]
            assert len(made) == len(parameters), name
            assert made == [one[: len(ours)] for ours, one in zip(made, parameters)], name
            serve.device.calls.clear()
            serve.device.sizes = list(map(len, made))
            try:
                assert kernel.tuner.launcher.in_c.launch(args, (4,)) is binary, name
            finally:
                serve.device.sizes = None
            assert [one.raw for one in serve.device.calls] == [made], name


@often
@given(rank=st.integers(1, 5), data=st.data())
def test_a_descriptor_in_parts_is_written_as_triton_writes_it(monkeypatch, rank, data):
    fake_libcuda.install(monkeypatch)
    sizes = data.draw(st.lists(st.integers(1, 2**20), min_size=rank, max_size=rank))
    steps = [*data.draw(st.lists(st.integers(1, 2**34), min_size=rank - 1, max_size=rank - 1)), 1]
    padding = data.draw(st.sampled_from(["zero", "nan"]))
    block = [16] * rank
    descriptor = TensorDescriptor(torch.zeros(64), sizes, [16 * step for step in steps[:-1]] + [1], block, padding)
    type_ = f"tensordesc<fp32{block}>"
    [encoding] = descriptors.encodings([type_], None)
    ours = [bytes(one) for one in loaded.described("x", descriptor, encoding)]
    assert ours == descriptors.written(type_, None, descriptor)


def test_another_block_and_sizes_that_do_not_fit_are_refused(monkeypatch):
    fake_libcuda.install(monkeypatch)
    [encoding] = descriptors.encodings(["tensordesc<fp32[16]>"], None)
    with pytest.raises(ValueError, match=r"'x': expected a block of \[16\]"):
        loaded.described("x", TensorDescriptor(torch.zeros(64), [64], [1], [32]), encoding)
    with pytest.raises(OverflowError, match="'x': expected sizes of at most 32 bits"):
        loaded.described("x", TensorDescriptor(torch.zeros(64), [1 << 31], [1], [16]), encoding)


@pytest.mark.parametrize(
    "types",
    [
        [["x", "tuple[2]"], ["x[0]", "i32"]],
        [["x", "tuple[1]"], ["y[0]", "i32"]],
        [["x", "tuple[1]"], ["x[0]", "tuple[1]"], ["x[1]", "i32"]],
    ],
)
def test_a_tuple_without_its_items_is_refused(types):
    with pytest.raises(RecordError, match="expected x"):
        Form.load({"types": types, "assumes": {}, "constants": {}, "options": {}}, "form")


@pytest.mark.parametrize(
    "wrong",
    [{"swizzle": 9}, {"elem_type": -1}, {"block_size": [0]}, {"block_size": "16"}, {"elem_size": None}],
)
def test_a_map_that_no_launch_can_be_made_with_is_refused(wrong):
    known = {"swizzle": 0, "elem_size": 4, "elem_type": 7, "block_size": [16], "fp4_padded": False}
    assert binary_variant.check_launch({"tensordesc_meta": [None, known]}, "metadata")
    with pytest.raises(RecordError, match="tensordesc_meta"):
        binary_variant.check_launch({"tensordesc_meta": [{**known, **wrong}]}, "metadata")
