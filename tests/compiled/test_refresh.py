"""A newer choice takes a bound one's place: compiled aside, between two launches, with all that belongs to it."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from functools import partial

import pytest
import torch
import triton
import triton.language as tl
from counted import opcodes
from fake_driver import Device
from newer import store_choice
from stored import lines
from triton import Config

import autotuned
from autotuned import autotune

CONFIGS = [Config({"BLOCK": block}, num_warps=block // 16) for block in (16, 32, 64)]
numbers = itertools.count()
SMALL, MIDDLE, LARGE = CONFIGS


def scale(x_ptr, y_ptr, n, alpha, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * alpha, mask=i < n)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def tuned(configs=CONFIGS, **options):
    """A kernel that runs with the first config until it is tuned."""
    name = f"refreshed.number_{next(numbers)}"  # kernels of other tests may still be there
    return autotune(configs, key=["n"], default=configs[0], name=name, **options)(triton.jit(scale))


def blocks(launches):
    return [launch.arguments["BLOCK"] for launch in launches]


def test_a_newer_choice_takes_the_place_of_what_is_bound(launches):
    told = []
    kernel, (x, y) = tuned(), torch.zeros(2, 100)
    with autotuned.on_event(told.append):
        kernel[grid](x, y, 100, 0.5)
        kernel[grid](x, y, 100, 0.5)
        key = store_choice(kernel, LARGE, x, y, 100, 0.5)
        found = autotuned.refresh()
        kernel[grid](x, y, 100, 0.25)
        kernel[grid](x[1:], y, 100, 0.25)  # another signature of the key: bound to the same choice
    assert blocks(launches) == [16, 16, 64, 64]
    assert launches[2].grid == (2, 1, 1) and launches[2].warps == 4 and launches[2].arguments["alpha"] == 0.25
    before, after = (f"BLOCK={block} num_warps={block // 16} num_stages=3" for block in (16, 64))
    assert [vars(swap) for swap in found.swaps] == [
        {"kernel": key.kernel, "digest": key.digest, "before": before, "after": after, "launches": 1, "refused": "",
         "seconds": found.swaps[0].seconds}
    ]  # fmt: skip
    assert [event.key for event in told if event.kind == "swap"] == [key.digest]
    assert kernel.best_config is LARGE and list(kernel.cache.values()) == [LARGE]
    assert f"in place of {before}, by refresh" in str(kernel.explain(x, y, 100, 0.5, grid=grid))
    assert kernel.cache_info().misses == 2 and kernel.cache_info().searches == 0


def test_every_signature_of_a_key_is_swapped_and_only_that_key(launches):
    kernel, (x, y) = tuned(), torch.zeros(2, 128)
    calls = [(x, y, 100, 0.5), (x[1:], y, 100, 0.5), (x[1:], y[1:], 100, 2), (x, y, 96, 0.5)]
    for call in calls:
        kernel[grid](*call)
    store_choice(kernel, MIDDLE, *calls[0], grid=grid)
    assert [swap.launches for swap in autotuned.refresh().swaps] == [3]
    launches.clear()
    for call in calls:
        kernel[grid](*call)
    assert blocks(launches) == [32, 32, 32, 16]
    assert autotuned.refresh().swaps == []


@pytest.mark.parametrize("first", [True, False], ids=["first of its key", "another signature"])
def test_a_call_in_flight_does_not_bind_the_old_choice_for_good(launches, first):
    """A refresh on another thread, while the call compiles: later refreshes see no newer record."""
    kernel, (x, y), asked = tuned(), torch.zeros(2, 128), itertools.count()
    store_choice(kernel, MIDDLE, x, y, 100, 0.5, grid=grid)
    if not first:
        kernel[grid](x, y, 100, 0.5)

    def refreshed(meta):
        if next(asked) == len(CONFIGS) + 1:  # before the choice it was asked for each of them, and for the key
            store_choice(kernel, LARGE, x, y, 100, 0.5, grid=grid)
            autotuned.refresh()
        return grid(meta)

    launches.clear()
    kernel[refreshed](x[1:], y, 100, 0.5)
    assert blocks(launches) == [32] and next(asked) > len(CONFIGS) + 1
    launches.clear()
    autotuned.refresh()
    kernel[grid](x[1:], y, 100, 0.5)
    kernel[grid](x, y, 100, 0.5)
    assert blocks(launches) == [64, 64]


def test_hooks_and_zeroing_go_with_their_config(launches):
    seen = []
    configs = [Config({"BLOCK": 16}), Config({"BLOCK": 32}, pre_hook=lambda args: seen.append(args["BLOCK"]))]
    kernel, x, y = tuned(configs, reset_to_zero=["y_ptr"]), torch.ones(100), torch.ones(100)
    kernel[grid](x, y, 100, 0.5)
    store_choice(kernel, configs[1], x, y, 100, 0.5)
    assert autotuned.refresh().swapped and seen == []  # it is for launches, and reads memory that nothing is kept of
    for _ in range(3):
        y.fill_(1)
        kernel[grid](x, y, 100, 0.5)
        assert not y.any()
    assert seen == [32] * 3


def test_what_does_not_compile_leaves_the_old_choice_and_is_said_once(launches, caplog, monkeypatch):
    kernel, (x, y) = tuned(), torch.zeros(2, 100)
    kernel[grid](x, y, 100, 0.5)
    compile_ = type(kernel.tuner.tunable).compile

    def refuses(tunable, call, config):
        if config is LARGE:
            raise RuntimeError("ptxas gave up")
        return compile_(tunable, call, config)

    monkeypatch.setattr(type(kernel.tuner.tunable), "compile", refuses)
    store_choice(kernel, LARGE, x, y, 100, 0.5)
    told = []
    with autotuned.on_event(told.append):
        found = [autotuned.refresh() for _ in range(3)]
    assert [one.refused for one in found[0].swaps] == ["RuntimeError: ptxas gave up"] and not found[0].swapped
    assert found[1].swaps == found[2].swaps == []
    assert [event.kind for event in told] == ["refuse"]
    assert [line for line in lines(caplog) if "ptxas gave up" in line and "the current one stays" in line]
    kernel[grid](x, y, 100, 0.5)
    store_choice(kernel, MIDDLE, x, y, 100, 0.5)
    assert autotuned.refresh().swapped
    kernel[grid](x, y, 100, 0.5)
    assert blocks(launches) == [16, 16, 32]


def test_under_a_seal_nothing_is_compiled_and_after_it_the_choice_is_taken(launches, launcher):
    new = Config({"BLOCK": 1024}, num_warps=8 if launcher == "c" else 16)  # that no other test has compiled
    kernel, (x, y) = tuned([SMALL, new]), torch.zeros(2, 100)
    kernel[grid](x, y, 100, 0.5)
    store_choice(kernel, new, x, y, 100, 0.5)
    told = []
    with autotuned.seal(), autotuned.on_event(told.append):
        assert "expected no compile under autotuned.seal()" in autotuned.refresh().swaps[0].refused
        assert autotuned.refresh().swaps == []
        kernel[grid](x, y, 100, 0.5)
    assert [event.kind for event in told] == ["refuse"]
    assert autotuned.refresh().swapped
    kernel[grid](x, y, 100, 0.5)
    assert blocks(launches) == [16, 16, new.kwargs["BLOCK"]]


def test_a_pin_is_never_swapped(launches):
    kernel, (x, y) = tuned(), torch.zeros(2, 100)
    kernel[grid](x, y, 100, 0.5)
    (own,) = kernel.cache
    kernel.cache[own] = MIDDLE
    kernel[grid](x, y, 100, 0.5)
    store_choice(kernel, LARGE, x, y, 100, 0.5)
    assert autotuned.refresh().swaps == []
    kernel[grid](x, y, 100, 0.5)
    assert blocks(launches) == [16, 32, 32]


def test_nothing_of_the_callers_memory_is_kept(launches):
    kernel, (x, y) = tuned(), torch.zeros(2, 100)
    x, y = x.clone(), y.clone()
    kernel[grid](x, y, 100, 0.5)
    store_choice(kernel, MIDDLE, x, y, 100, 0.5)
    launches.clear()
    gone = [weakref.ref(x), weakref.ref(y)]
    del x, y
    assert [ref() for ref in gone] == [None, None]
    assert autotuned.refresh().swapped


def test_while_this_thread_captures_a_graph_nothing_is_swapped(launches, monkeypatch):
    from autotuned.triton_compat import kernel as compat

    kernel, (x, y) = tuned(), torch.zeros(2, 100)
    kernel[grid](x, y, 100, 0.5)
    store_choice(kernel, MIDDLE, x, y, 100, 0.5)
    with monkeypatch.context() as patch:
        patch.setattr(compat, "capturing", lambda: True)
        assert autotuned.refresh().reason == "a CUDA graph is being captured"
    assert autotuned.refresh().swapped


def test_a_kernel_with_a_descriptor_is_compiled_for_the_block_that_the_hook_sets(launches):
    from triton.tools.tensor_descriptor import TensorDescriptor

    def set_block(args):
        args["desc"].block_shape = [args["BLOCK"]]

    def copy(desc, y_ptr, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK
        tl.store(y_ptr + i + tl.arange(0, BLOCK), desc.load([i]))

    configs = [Config({"BLOCK": block}, pre_hook=set_block) for block in (16, 32)]
    kernel = autotune(configs, key=["n"], default=configs[0], restore_value=[])(triton.jit(copy))
    x, y = torch.zeros(128), torch.zeros(128)
    made = TensorDescriptor.from_tensor(x, [16])
    kernel[grid](made, y, 128)
    store_choice(kernel, configs[1], made, y, 128)
    assert autotuned.refresh().swapped
    assert made.block_shape == [16]  # the caller's own is left alone
    with autotuned.seal():
        kernel[grid](made, y, 128)
    assert blocks(launches)[-1] == 32


@pytest.fixture
def device(driver, launcher):
    """The driver as the C launcher calls it; launches of the Python twin end in Triton's stand-in."""
    device = Device()
    driver.get_current_stream = lambda index: device.stream
    if launcher == "c":
        _launch = pytest.importorskip("autotuned._launch")
        _launch.use_driver(*device.addresses())
    yield device
    if launcher == "c":
        _launch.use_driver(0, 0, 0, 0)


def test_launches_of_threads_are_old_or_new_and_never_mixed(device, launches, launcher, request):
    """Four threads launch while the choice goes to and fro: each launch is one config's binary, grid and parameters."""
    kernel, n, swaps = tuned(), 192, 12
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-5)  # threads take turns within launches
    device.sizes = [8, 8, 4, 4]  # two addresses, an integer, a float
    memory = [torch.zeros(2, n) for _ in range(4)]
    kernel[grid](*memory[0], n, 0.5)
    functions = {}  # by config, as the driver knows them
    for config in CONFIGS:
        made = kernel.fn.run(*memory[0], n, 0.5, grid=grid, warmup=True, **config.all_kwargs())
        made.run  # loads it
        functions[made.function] = config.kwargs["BLOCK"]
    stop, errors, told = threading.Event(), [], []

    def launching(x, y):
        try:
            while not stop.is_set():
                kernel[grid](x, y, n, 0.5)
                assert kernel.best_config in CONFIGS
        except BaseException as error:
            errors.append(error)

    device.calls.clear()
    launches.clear()
    threads = [threading.Thread(target=launching, args=pair) for pair in memory]
    for thread in threads:
        thread.start()
    for turn in range(swaps):
        store_choice(kernel, CONFIGS[(turn + 1) % 3], *memory[0], n, 0.5)
        told += autotuned.refresh().swapped
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == [] and len(told) == swaps
    addresses = {(x.data_ptr(), y.data_ptr()) for x, y in memory}
    seen = set()
    for launch in launches:
        block = launch.arguments["BLOCK"]
        assert functions[launch.function] == block and launch.grid == (n // block, 1, 1) and launch.warps == block // 16
        assert (launch.args[0].data_ptr(), launch.args[1].data_ptr()) in addresses
        seen.add(block)
    for call in device.calls:
        block = functions[call.function]
        assert call.grid == (n // block, 1, 1) and call.block == (32 * block // 16, 1, 1)
        x, y, size, _ = (int.from_bytes(raw, "little") for raw in call.raw)
        assert (x, y) in addresses and size == n
        seen.add(block)
    assert seen == {16, 32, 64}
    assert bool(device.calls) == (launcher == "c")
    kernel[grid](*memory[0], n, 0.5)
    assert kernel.best_config is CONFIGS[swaps % 3]


def test_after_a_swap_a_hit_goes_straight_to_the_driver_again(device, launches, launcher):
    kernel, (x, y) = tuned(), torch.zeros(2, 64)
    kernel[grid](x, y, 64, 0.5)
    store_choice(kernel, LARGE, x, y, 64, 0.5)
    assert autotuned.refresh().swapped
    device.sizes = [8, 8, 4, 4]
    kernel[grid](x, y, 64, 0.5)  # the first has its values written down for the driver
    before = len(launches)
    kernel[grid](x, y, 64, 0.5)
    if launcher == "c":
        assert len(launches) == before and [call.grid for call in device.calls] == [(1, 1, 1)]
    else:
        assert len(launches) == before + 1


def test_a_hit_is_not_one_instruction_longer(device, launches, launcher):
    """In Python; of what is in C `bench/host.py --instructions` counts those of a hit."""
    kernel, (x, y) = tuned(), torch.zeros(2, 64)
    device.sizes = [8, 8, 4, 4]
    launch = kernel[grid]
    hits = lambda: opcodes(lambda: [launch(x, y, 64, 0.5) for _ in range(10)])
    launch(x, y, 64, 0.5)
    hits()  # the first has its values written down for the driver
    before = hits()
    with autotuned.refresh(every_s=600.0):
        assert hits() == before > 0
        store_choice(kernel, LARGE, x, y, 64, 0.5)
        assert autotuned.refresh().swapped
        hits()
        assert hits() == before
    assert kernel.best_config is LARGE
