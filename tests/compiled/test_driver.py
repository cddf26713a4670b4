"""The C launcher's call of the driver, byte for byte: a function made with ctypes stands in the driver's place."""

from __future__ import annotations

import ctypes
import gc
import resource
import shutil
import subprocess
import threading
import time
import weakref

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from fake_driver import Device, expected
from triton import Config

from autotuned import autotune
from autotuned.launch import driver_call
from autotuned.triton_compat import compiled as compiledkernel

_launch = pytest.importorskip("autotuned._launch")


@pytest.fixture
def device(driver, monkeypatch):
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", "c")
    device = Device()
    driver.get_current_stream = lambda index: device.stream  # one for both launchers, as torch's is
    _launch.use_driver(*device.addresses())
    yield device
    _launch.use_driver(0, 0, 0, 0)


@triton.jit
def scalars(x_ptr, y_ptr, n, alpha, flag, ACT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    if flag:
        x = (x * alpha).to(x.dtype)
    if ACT == "relu":
        x = tl.maximum(x, 0)
    if y_ptr is not None:
        x += tl.load(y_ptr + i, mask=i < n)
    tl.store(x_ptr + i, x, mask=i < n)


def tuned(kernel=scalars, configs=None, **options):
    bench = lambda call, quantiles: (call(), [1.0, 1.0, 1.0])[1]
    configs = configs or [Config({"BLOCK": 64}, num_warps=2), Config({"BLOCK": 128}, num_warps=4)]
    return autotune(configs, key=["n"], do_bench=bench, restore_value=[], **options)(kernel)


def twice(device, kernel, grid, *args, **kwargs):
    """Call twice; the second call comes from the table, and through the pretended driver."""
    first = kernel[grid](*args, **kwargs)
    device.params = 2 + sum(kind != "constexpr" for kind in first.src.signature.values())
    device.calls.clear()
    assert kernel[grid](*args, **kwargs) is first
    return first, device.calls


@pytest.mark.usefixtures("no_machine_code")
@pytest.mark.parametrize("n", [0, 2, 15, 16, 17, 2**31 - 1, 2**31, -1, -(2**31), 2**62, 2**63 + 1], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.float64], ids=str)
def test_buffer_is_what_the_signature_says(device, n, dtype):
    x, y = torch.zeros(256, dtype=dtype), torch.zeros(256, dtype=dtype)
    arguments = {"x_ptr": x, "y_ptr": y, "n": n, "alpha": 0.1, "flag": True}
    compiled, (call,) = twice(device, tuned(), (3, 2), *arguments.values(), ACT="relu")
    wanted = expected(compiled, {**arguments, "ACT": "relu", "BLOCK": 64})
    assert [raw[: len(part)] for raw, part in zip(call.raw, wanted)] == wanted
    assert call.grid == (3, 2, 1)
    assert call.block == (64, 1, 1)
    assert call.function == compiled.function
    assert call.shared == compiled.metadata.shared
    assert call.stream == 0x77
    assert call.attributes == []


def test_one_is_folded_and_none_leaves_no_pointer(device):
    x = torch.zeros(256)
    compiled, (call,) = twice(device, tuned(), (1,), x, None, 1, 2.5, False, ACT="none")
    wanted = expected(compiled, {"x_ptr": x, "y_ptr": None, "n": 1, "alpha": 2.5, "flag": False, "ACT": 0, "BLOCK": 0})
    assert compiled.src.signature["n"] == compiled.src.signature["y_ptr"] == "constexpr"
    assert [raw[: len(part)] for raw, part in zip(call.raw, wanted)] == wanted


def test_each_integer_class_and_alignment_has_its_own_binary(device):
    kernel = tuned()
    memory = torch.zeros(512, dtype=torch.float16)
    for offset in (0, 1, 2, 8):
        for n in (1, 2, 16, 17, 2**31, 2**63):
            x = memory[offset:]
            for _ in range(2):
                ours = kernel[(1,)](x, x, n, 0.5, True, ACT="relu")
                plain = scalars[(1,)](x, x, n, 0.5, True, ACT="relu", **kernel.best_config.all_kwargs())
                assert ours is plain


def test_stream_and_context_are_read_at_every_call(device):
    kernel, x = tuned(), torch.zeros(256)
    twice(device, kernel, (1,), x, x, 16, 0.5, True, ACT="relu")
    device.stream = 0x99
    kernel[(1,)](x, x, 16, 0.5, True, ACT="relu")
    assert device.calls[-1].stream == 0x99
    misses = kernel.cache_info().misses
    device.context = 0x2000
    kernel[(1,)](x, x, 16, 0.5, True, ACT="relu")
    assert kernel.cache_info().misses == misses + 1


def test_the_stream_is_that_of_the_device_that_is_launched_on(device, driver):
    """Of the current one, as with Triton, wherever the tensors lie."""
    kernel, x = tuned(), torch.zeros(256)
    for index in (0, 2):
        driver.device, device.context = index, 0x1000 + index
        device.asked.clear()
        twice(device, kernel, (1,), x, x, 16, 0.5, True, ACT="relu")
        assert device.asked == [index] * 2  # when it is bound, and at the launch


@pytest.mark.parametrize("grid", [(0,), (4, 0), (1, 1, 0)], ids=str)
def test_an_empty_grid_launches_nothing(device, grid):
    kernel, x = tuned(), torch.zeros(256)
    twice(device, kernel, (1,), x, x, 16, 0.5, True, ACT="relu")
    device.calls.clear()
    kernel[grid](x, x, 16, 0.5, True, ACT="relu")
    assert device.calls == []


@pytest.mark.parametrize(
    ("grid", "error"), [((-1,), "expected sizes"), ((2**31,), "expected sizes"), ((), "none"), (("a",), "str"), (3, "grid")],
    ids=str,
)  # fmt: skip
def test_a_bad_grid_is_an_error_that_names_it(device, grid, error):
    kernel, x = tuned(), torch.zeros(256)
    twice(device, kernel, (1,), x, x, 16, 0.5, True, ACT="relu")
    device.calls.clear()
    with pytest.raises((ValueError, TypeError, IndexError), match=error):
        kernel[grid](x, x, 16, 0.5, True, ACT="relu")
    assert device.calls == []


def test_grid_callable_gets_every_argument_and_runs_at_every_launch(device):
    kernel, x, seen = tuned(), torch.zeros(256), []

    def grid(meta):
        seen.append(meta)
        return [meta["BLOCK"] // 64, 2]

    twice(device, kernel, grid, x, x, 16, 0.5, True, ACT="relu")
    assert device.calls[-1].grid == (1, 2, 1)
    assert list(seen[-1]) == ["x_ptr", "y_ptr", "n", "alpha", "flag", "ACT", "BLOCK"]
    assert (seen[-1]["x_ptr"] is x, seen[-1]["n"], seen[-1]["BLOCK"]) == (True, 16, 64)
    count = len(seen)
    kernel[grid](x, x, 16, 0.5, True, ACT="relu")
    assert len(seen) == count + 1


def test_a_hit_runs_no_python_but_the_grid(device):
    import sys

    kernel, x, frames = tuned(), torch.zeros(256), []

    def grid(meta):
        return (1,)

    twice(device, kernel, grid, x, x, 16, 0.5, True, ACT="relu")
    kernel[grid](x, x, 16, 0.5, True, ACT="relu")  # what is watched has been compared once
    device.params = 0
    sys.setprofile(lambda frame, event, argument: frames.append(frame.f_code.co_name) if event == "call" else None)
    try:
        kernel[grid](x, x, 16, 0.5, True, ACT="relu")
    finally:
        sys.setprofile(None)
    assert set(frames) <= {
        "grid",
        "_launch",
        "_context",
        "_stream",
        "<listcomp>",
    }  # all but the first pretend to be the driver
    assert frames.count("grid") == frames.count("_launch") == 1


def test_the_drivers_error_is_raised(device):
    kernel, x = tuned(), torch.zeros(256)
    twice(device, kernel, (1,), x, x, 16, 0.5, True, ACT="relu")
    device.error = 701
    with pytest.raises(RuntimeError, match=r"Triton Error \[CUDA\]"):
        kernel[(1,)](x, x, 16, 0.5, True, ACT="relu")


def test_cooperative_and_programmatic_launch_become_attributes(device):
    x = torch.zeros(256)
    for option, number in (("launch_cooperative_grid", 2), ("launch_pdl", 6)):
        kernel = tuned(configs=[Config({"BLOCK": 64, option: True}), Config({"BLOCK": 128, option: True})])
        _, (call,) = twice(device, kernel, (2,), x, x, 16, 0.5, True, ACT="relu")
        assert call.attributes == [(number, (1, 0, 0))]


def test_memory_of_the_host_is_left_to_tritons_launcher(device, launches):
    """After a pinned tensor, one that is not pinned has the same signature: only Triton's launcher asks the driver."""
    _launch.use_driver(*device.addresses(), False)
    kernel, x = tuned(), torch.zeros(256)
    for _ in range(3):
        kernel[(1,)](x, x, 16, 0.5, True, ACT="relu")
    assert kernel.cache_info().hits == 2
    assert device.calls == []
    assert fake_cuda.same(launches[-2], launches[-1])


GATE = """
#include <unistd.h>
volatile int open_, waits;
int launch(void *config, void *function, void **params, void **extra) {
  waits = 1;
  for (int i = 0; i < 20000 && !open_; i++) usleep(1000);
  return !open_;
}
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_the_lock_of_the_interpreter_is_released_around_a_launch_that_blocks(device, tmp_path):
    (tmp_path / "gate.c").write_text(GATE)
    subprocess.run(["cc", "-shared", "-fPIC", tmp_path / "gate.c", "-o", tmp_path / "gate.so"], check=True, timeout=60)
    gate = ctypes.CDLL(str(tmp_path / "gate.so"))
    kernel, x = tuned(), torch.zeros(256)
    first, _ = twice(device, kernel, (1,), x, x, 16, 0.5, True, ACT="relu")
    blocking = ctypes.cast(gate.launch, ctypes.c_void_p).value
    _launch.use_driver(blocking, *device.addresses()[1:])
    launched = []
    thread = threading.Thread(target=lambda: launched.append(kernel[(1,)](x, x, 16, 0.5, True, ACT="relu")))
    thread.start()
    while not ctypes.c_int.in_dll(gate, "waits").value:  # would never be seen in time by a thread without the lock
        time.sleep(0.001)
    ctypes.c_int.in_dll(gate, "open_").value = 1
    thread.join(30)
    assert launched == [first]


def test_clusters_multiply_the_grid(device):
    kernel = tuned(configs=[Config({"BLOCK": 64}, num_ctas=2), Config({"BLOCK": 128}, num_ctas=2)])
    _, (call,) = twice(device, kernel, (3,), torch.zeros(256), None, 16, 0.5, True, ACT="relu")
    assert call.grid == (6, 1, 1)
    assert call.attributes == [(4, (2, 1, 1)), (5, (1, 0, 0))]


def test_zeroing_is_the_drivers_memset_on_the_same_stream(device):
    kernel, x, y = (
        tuned(reset_to_zero=["x_ptr"]),
        torch.ones(100, dtype=torch.float16),
        torch.ones(100, dtype=torch.float16),
    )
    _, calls = twice(device, kernel, (1,), x, y, 16, 0.5, True, ACT="relu")
    assert [call.kind for call in calls] == ["memset", "launch"]
    assert (calls[0].address, calls[0].value, calls[0].size, calls[0].stream) == (x.data_ptr(), 0, 200, 0x77)


def test_zeroing_a_strided_view_touches_only_its_elements(device):
    kernel, memory, y = tuned(reset_to_zero=["x_ptr"]), torch.ones(200), torch.ones(100)
    _, calls = twice(device, kernel, (1,), memory[::2], y, 16, 0.5, True, ACT="relu")
    assert [call.kind for call in calls] == ["launch"]
    assert torch.equal(memory, torch.tensor([0.0, 1.0]).repeat(100))


def test_zeroing_an_alias_of_an_input_is_refused_on_a_hit(device):
    kernel, x, y = tuned(reset_to_zero=["x_ptr"]), torch.ones(100), torch.ones(100)
    twice(device, kernel, (1,), x, y, 16, 0.5, True, ACT="relu")
    device.calls.clear()
    x.fill_(7.0)
    with pytest.raises(ValueError, match="'x_ptr', which shares memory with argument 'y_ptr'"):
        kernel[(1,)](x, x, 16, 0.5, True, ACT="relu")
    assert device.calls == []
    assert bool((x == 7).all())


def test_a_configs_hook_runs_before_the_grid_with_all_arguments(device):
    order = []
    hooked = [Config({"BLOCK": b}, pre_hook=lambda args: order.append(("hook", sorted(args)))) for b in (64, 128)]

    def grid(meta):
        order.append(("grid",))
        return (1,)

    kernel, x = tuned(configs=hooked), torch.zeros(256)
    twice(device, kernel, grid, x, x, 16, 0.5, True, ACT="relu")
    assert [entry[0] for entry in order[-2:]] == ["hook", "grid"]
    assert set(order[-2][1]) >= {"x_ptr", "y_ptr", "n", "alpha", "flag", "ACT", "BLOCK", "num_warps"}
    assert device.calls[-1].kind == "launch"


def test_a_hook_that_clears_the_cache_does_not_pull_the_entry_away(device):
    clears = False
    hook = lambda args: clears and kernel.cache_clear()
    kernel = tuned(configs=[Config({"BLOCK": b}, pre_hook=hook) for b in (64, 128)])
    x = torch.zeros(256)
    first = kernel[(1,)](x, x, 16, 0.5, True, ACT="relu")
    for clears in (True, False, True, True, True):  # hit, miss, hit, and two that are not bound
        assert kernel[(1,)](x, x, 16, 0.5, True, ACT="relu") is first
    assert [call.kind for call in device.calls] == ["launch"] * 2
    assert kernel.cache_info().hits == 2


def test_an_object_with_a_kernel_whose_hook_is_its_own_method_is_freed(device):
    class Layer:
        def __init__(self):
            configs = [Config({"BLOCK": block}, pre_hook=self.hook) for block in (64, 128)]
            self.kernel, self.hooked = tuned(configs=configs), 0

        def hook(self, arguments):
            self.hooked += 1

    layer = Layer()
    twice(device, layer.kernel, (1,), torch.zeros(256), None, 100, 1.0, False, ACT="none")
    assert len(device.calls) == 1 and layer.hooked > 2
    layer, gone = None, weakref.ref(layer)
    gc.collect()
    assert gone() is None


def test_kernels_that_need_more_go_through_triton(device):
    @triton.jit
    def half(x_ptr, s: tl.float16, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(x_ptr + i, tl.load(x_ptr + i) * s)

    configs = [Config({"BLOCK": 64}), Config({"BLOCK": 128})]
    bench = lambda call, quantiles: (call(), [1.0, 1.0, 1.0])[1]
    kernel = autotune(configs, do_bench=bench, restore_value=[])(half)
    x = torch.zeros(256, dtype=torch.float16)
    first = kernel[(1,)](x, 0.5)
    assert first.src.signature["s"] == "fp16"
    found = compiledkernel.handle(kernel.fn, first, 0)
    assert driver_call.fields(found, ("x_ptr", "s"), {"BLOCK": 64}, (None, {}, ())) is None
    device.calls.clear()
    assert kernel[(1,)](x, 0.5) is first
    assert device.calls == []


@pytest.mark.parametrize("need", compiledkernel.ALLOCATES)
def test_what_tritons_launcher_adds_to_the_arguments_is_not_left_out(device, monkeypatch, need):
    """A kernel that GSan instruments takes pointers that only Triton's launcher of it knows."""
    kernel, x = tuned(), torch.zeros(256)
    compiled = kernel[(1,)](x, x, 16, 0.5, True, ACT="relu")
    found = compiledkernel.handle(kernel.fn, compiled, 0)
    asked = found, ("x_ptr", "y_ptr", "n", "alpha", "flag", "ACT"), {"BLOCK": 64}, (None, {}, ())
    assert driver_call.fields(*asked) is not None
    monkeypatch.setattr(compiled.run, need, 1, raising=False)
    assert driver_call.fields(*asked) is None


def test_a_million_calls_keep_memory_flat(device, monkeypatch):
    monkeypatch.setattr(driver_call.Twin, "differences", lambda *given: [])  # this driver below gives no stream
    kernel, x = tuned(), torch.zeros(256)
    twice(device, kernel, (1,), x, x, 16, 0.5, True, ACT="relu")
    nothing = ctypes.cast(ctypes.CDLL(None).isatty, ctypes.c_void_p).value  # answers 0 to any address
    _launch.use_driver(nothing, nothing, nothing, nothing)
    kernel[(1,)](x, x, 16, 0.5, True, ACT="relu")  # in this driver's context

    def run(count):
        for _ in range(count):
            kernel[(1,)](x, x, 16, 0.5, True, ACT="relu")

    run(5_000)
    before, hits = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, kernel.cache_info().hits
    run(1_000_000)  # a reference leaked a call would be 8 MB and more
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1000
    assert kernel.cache_info().hits == hits + 1_000_000


def test_threads_on_one_kernel_each_get_their_own_launch_and_best_config(device):
    kernel, memory, errors = tuned(), torch.zeros(600), []
    for n in (16, 100):
        kernel[(1,)](memory, memory, n, 0.5, True, ACT="relu")

    def work(n):
        for _ in range(300):
            compiled = kernel[(1,)](memory, memory, n, 0.5, True, ACT="relu")
            if compiled is not expected_of[n] or kernel.best_config is not config_of[n]:
                errors.append(n)

    expected_of, config_of = {}, {}
    for n in (16, 100):
        expected_of[n] = kernel[(1,)](memory, memory, n, 0.5, True, ACT="relu")
        config_of[n] = kernel.best_config
    threads = [threading.Thread(target=work, args=(n,)) for n in (16, 100, 16, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert expected_of[16] is not expected_of[100]


def test_a_change_of_the_list_or_the_cache_takes_effect_on_the_next_call(device):
    kernel, x = tuned(), torch.zeros(256)
    first, _ = twice(device, kernel, (1,), x, x, 16, 0.5, True, ACT="relu")
    other = kernel.configs[1]
    kernel.configs = [other]
    assert kernel[(1,)](x, x, 16, 0.5, True, ACT="relu") is not first
    assert kernel.best_config is other
    kernel = tuned()
    first, _ = twice(device, kernel, (1,), x, x, 16, 0.5, True, ACT="relu")
    (entry,) = kernel.cache
    kernel.cache[entry] = kernel.configs[1]
    assert kernel[(1,)](x, x, 16, 0.5, True, ACT="relu") is not first
    kernel.cache.clear()
    assert kernel[(1,)](x, x, 16, 0.5, True, ACT="relu") is first


def test_a_hook_moves_a_tensor_behind_one_whose_strides_a_pruner_has_read(device):
    """Its strides are words too, and what follows them is read again all the same."""

    @triton.jit
    def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        tl.store(y_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + tl.arange(0, BLOCK)) + n)

    def prune(configs, arguments, **kwargs):
        arguments["x_ptr"].stride()
        return configs

    hook = lambda arguments: arguments["y_ptr"].resize_(2 * arguments["y_ptr"].numel())
    configs = [Config({"BLOCK": block}, pre_hook=hook) for block in (64, 128)]
    kernel = tuned(copy, configs, prune_configs_by={"early_config_prune": prune})
    x, y = torch.zeros(8, 4096), torch.zeros(1 << 10)
    for _ in range(4):
        device.params = 3
        device.calls.clear()
        kernel[(1,)](x, y, 5)
    assert device.calls[-1].raw[1] == y.data_ptr().to_bytes(8, "little")
    assert kernel.cache_info().hits >= 2
