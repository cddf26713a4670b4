"""Configs that fail: skipped with their reason while others run, and an error that says why when none does."""

import json
import logging

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config

import autotuned
from autotuned import autotune
from autotuned.errors import AllConfigsFailedError, DeviceLostError
from autotuned.search import timers
from autotuned.store import layout, listing


def product(a_ptr, c_ptr, n, M: tl.constexpr, K: tl.constexpr = 16):
    tl.static_assert(M != 32, "M of 32 is not supported")
    m, i = tl.arange(0, M)[:, None], tl.arange(0, 16)[None, :]
    a = tl.load(a_ptr + m * K + tl.arange(0, K)[None, :])
    b = tl.load(a_ptr + tl.arange(0, K)[:, None] * 16 + i)
    tl.store(c_ptr + m * 16 + i, tl.dot(a, b), mask=m < n)


def misspelt(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, i, mask=i < m)  # noqa: F821


def raising(error):
    def hook(arguments):
        raise error

    return hook


SMALL = Config({"M": 16})
HUGE = Config({"M": 128, "K": 64})  # 18 KiB of shared memory; the device has 16
REFUSED = Config({"M": 32})
NO_POWER_OF_TWO = Config({"M": 48})
HOST_ERROR = Config({"M": 64}, pre_hook=raising(RuntimeError("PassManager::run failed")))
NO_MEMORY = Config({"M": 64}, num_warps=8, pre_hook=raising(MemoryError("no room")))


@pytest.fixture(autouse=True)
def little_memory(driver, monkeypatch):
    """What is compiled to see that it does not fit is small, and that quick."""
    fake_cuda.limit_shared_memory(monkeypatch, 16384)


@pytest.fixture
def ac():
    return torch.ones(64, dtype=torch.float16), torch.zeros(64)


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, "autotuned")
    return caplog


def by_m():
    return fake_cuda.by_config({16: 1.0, 64: 2.0, 128: 3.0}, ("M",))


def records():
    return [record for _, record in listing.all_records()]


def test_failing_configs_are_skipped_with_their_reasons(ac, launches):
    configs = [HUGE, REFUSED, NO_POWER_OF_TWO, HOST_ERROR, SMALL]
    tuned = autotune(configs, key=["n"], do_bench=by_m())(triton.jit(product))
    compiled = tuned[(1,)](*ac, 16)
    assert tuned.best_config is tuned.configs[4]
    assert launches[-1].arguments["M"] == 16
    assert compiled.metadata.shared < 16384
    (record,) = records()
    assert [timing.status for timing in record.timings] == ["failed"] * 4 + ["ok"]
    reasons = [timing.error for timing in record.timings]
    assert reasons[0].startswith(
        "OutOfResources: out of resource: shared memory, Required: 18432, Hardware limit: 16384"
    )
    assert reasons[1].startswith("CompileTimeAssertionFailure: ")
    assert "M of 32 is not supported" in reasons[1]
    assert reasons[2].startswith("CompilationError: ")
    assert "power of 2" in reasons[2]
    assert reasons[3] == "RuntimeError: PassManager::run failed"
    assert reasons[4] is None
    assert record.winner == record.timings[4].config


def test_a_config_that_failed_is_not_tried_again_by_the_next_process(ac):
    bench = by_m()
    for _ in range(2):
        tuned = autotune([HUGE, SMALL], key=["n"], do_bench=bench)(triton.jit(product))
        tuned[(1,)](*ac, 16)
    assert bench.calls == [16]
    assert tuned.cache_info().searches == 0


CAPTURING = "CUDA error: operation not permitted when stream is capturing"


@pytest.mark.parametrize(
    "error", [MemoryError("no room"), torch.OutOfMemoryError("no room"), RuntimeError(CAPTURING)],
    ids=["host", "device", "another thread captures"],
)  # fmt: skip
def test_a_full_memory_is_not_held_against_a_config(ac, launches, error):
    """The key-value cache had taken it all: with more room the config is measured, and may win."""
    full = [True]

    def hook(arguments):
        if full:
            raise error

    kernel = triton.jit(product)
    configs = [SMALL, Config({"M": 64}, pre_hook=hook)]
    slow = fake_cuda.by_config({16: 3.0, 64: 2.0}, ("M",))
    autotune(configs, key=["n"], do_bench=slow)(kernel)[(1,)](*ac, 16)
    assert [timing.config["kwargs"]["M"] for timing in records()[0].timings] == [16]
    assert launches[-1].arguments["M"] == 16
    full.clear()
    slow.calls.clear()
    autotune(configs, key=["n"], do_bench=slow)(kernel)[(1,)](*ac, 16)
    assert slow.calls == [64, 16]  # and the one to beat
    assert launches[-1].arguments["M"] == 64
    assert len(records()[0].timings) == 2


def test_all_fail_for_several_reasons(ac, launches):
    before = [tensor.clone() for tensor in ac]
    configs = [REFUSED, HOST_ERROR, NO_MEMORY, Config({"M": 32}, num_warps=8)]
    tuned = autotune(configs, key=["n"])(triton.jit(product))
    with pytest.raises(AllConfigsFailedError) as caught:
        tuned[(1,)](*ac, 16)
    text = str(caught.value)
    assert "expected at least one config that compiles and runs here; all 4 failed" in text
    assert "give @autotune a default=" in text
    assert caught.value.kernel.endswith("test_failures.product")
    labels = {reason.partition(":")[0]: list(labels) for reason, labels in caught.value.reasons.items()}
    assert labels == {
        "CompileTimeAssertionFailure": ["M=32 num_warps=4 num_stages=3", "M=32 num_warps=8 num_stages=3"],
        "RuntimeError": ["M=64 num_warps=4 num_stages=3 pre_hook"],
        "MemoryError": ["M=64 num_warps=8 num_stages=3 pre_hook"],
    }
    for reason, configs in caught.value.reasons.items():
        assert f"  {reason}\n    {'; '.join(configs)}" in text
    assert records() == []
    assert launches == []
    assert all(torch.equal(tensor, kept) for tensor, kept in zip(ac, before))


def test_all_too_large_is_not_the_users_bug(ac):
    """The same text for each, and still a list of configs: the device is too small for them."""
    configs = [HUGE, Config({"M": 128, "K": 64}, num_warps=8)]
    tuned = autotune(configs, key=["n"])(triton.jit(product))
    with pytest.raises(AllConfigsFailedError, match="all 2 failed") as caught:
        tuned[(1,)](*ac, 16)
    assert all(reason.startswith("OutOfResources: ") for reason in caught.value.reasons)
    assert sum(len(labels) for labels in caught.value.reasons.values()) == 2
    assert "Required: 18432, Hardware limit: 16384" in str(caught.value)


def test_what_wants_too_much_of_one_resource_is_one_group(ac):
    """With the least that any of them requires, and what there is; each other one says what it requires."""
    sizes = [Config({"M": 128, "K": k}, num_warps=warps) for k, warps in ((128, 4), (64, 4), (64, 8))]
    with pytest.raises(AllConfigsFailedError, match="all 4 failed") as caught:
        autotune([*sizes, REFUSED], key=["n"])(triton.jit(product))[(1,)](*ac, 16)
    lines = [line.strip() for line in str(caught.value).splitlines()]
    (least,) = [index for index, line in enumerate(lines) if "Hardware limit: " in line]
    assert "shared memory, Required: 18432, Hardware limit: 16384" in lines[least]
    assert lines[least + 1] == (
        "M=128 K=64 num_warps=4 num_stages=3; M=128 K=64 num_warps=8 num_stages=3; "
        "M=128 K=128 num_warps=4 num_stages=3 (Required: 36864)"
    )
    assert len(caught.value.reasons) == 3  # which have the whole text of each


def test_the_same_error_in_all_is_that_error():
    configs = [Config({"BLOCK": block}) for block in (16, 32, 64)]
    tuned = autotune(configs, key=["n"])(triton.jit(misspelt))
    with pytest.raises(triton.CompilationError, match="m is not defined") as caught:
        tuned[(1,)](torch.zeros(64), 16)
    names = [entry.name for entry in caught.traceback]
    assert names[-1] != "raise_if_all_failed"  # the first failure's own frames, down to Triton's
    assert "compile" in names
    assert records() == []


def test_default_is_used_where_a_search_fails(ac, launches, warnings):
    tuned = autotune([REFUSED, HOST_ERROR], key=["n"], default=SMALL)(triton.jit(product))
    with autotuned.mode("search"):
        for _ in range(2):
            tuned[(1,)](*ac, 16)
    assert launches[-1].arguments["M"] == 16
    assert tuned.best_config is SMALL
    (line,) = [record.getMessage() for record in warnings.records]
    assert "failed; its default= is used, untuned" in line
    assert "M of 32 is not supported" in line
    assert all(record.exc_info is None for record in warnings.records)  # which would keep the arguments alive
    assert records() == []


def test_serve_takes_the_first_config_that_compiles(ac, launches):
    tuned = autotune([REFUSED, HUGE, SMALL, Config({"M": 64})], key=["n"])(triton.jit(product))
    with autotuned.mode("serve"):
        for _ in range(2):
            tuned[(1,)](*ac, 16)
    assert [launch.arguments["M"] for launch in launches] == [16, 16]
    assert tuned.cache_info().searches == 0


def test_serve_where_none_compiles_is_the_compilers_error(ac, launches):
    tuned = autotune([REFUSED, Config({"M": 32}, num_warps=8)], key=["n"])(triton.jit(product))
    with autotuned.mode("serve"), pytest.raises(triton.CompilationError, match="M of 32 is not supported"):
        tuned[(1,)](*ac, 16)
    assert launches == []


def test_failures_do_not_make_a_later_call_fail(ac, launches):
    """Nothing was stored: with the config repaired the next call searches again."""
    tuned = autotune([REFUSED, HOST_ERROR], key=["n"], do_bench=by_m())(triton.jit(product))
    for _ in range(2):
        with pytest.raises(AllConfigsFailedError):
            tuned[(1,)](*ac, 16)
    assert tuned.cache_info().searches == 2
    tuned.configs = [REFUSED, SMALL]
    tuned[(1,)](*ac, 16)
    assert launches[-1].arguments["M"] == 16


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_keeps_the_timings_so_far(ac, launches, error):
    times = {16: 3.0, 64: 2.0, 128: 1.0}
    bench = fake_cuda.by_config(times, ("M",))

    stops = [True]

    def interrupted(call, quantiles):
        if stops[0] and len(bench.calls) == 2:
            raise error
        return bench(call, quantiles)

    configs = [Config({"M": m}) for m in times]
    kernel = triton.jit(product)
    with pytest.raises(error):
        autotune(configs, key=["n"], do_bench=interrupted)(kernel)[(1,)](*ac, 16)
    (record,) = records()
    assert record.winner is None
    measured = list(bench.calls)
    assert [timing.config["kwargs"]["M"] for timing in record.timings] == sorted(measured)
    assert len(measured) == 2
    bench.calls.clear()
    stops[0] = False
    tuned = autotune(configs, key=["n"], do_bench=interrupted)(kernel)
    tuned[(1,)](*ac, 16)
    assert set(bench.calls) == set(times) - set(measured)
    assert launches[-1].arguments["M"] == 128
    assert len(records()[0].timings) == 3


def test_an_interrupt_in_the_first_launch_stores_nothing(ac):
    tuned = autotune([Config({"M": 16}, pre_hook=raising(KeyboardInterrupt())), Config({"M": 64})], key=["n"])(
        triton.jit(product)
    )
    with pytest.raises(KeyboardInterrupt):
        tuned[(1,)](*ac, 16)
    assert records() == []
    assert tuned.cache_info().size == 0


def test_a_lost_device_blames_the_config_that_lost_it(ac, launches, monkeypatch):
    def synchronize(self):
        if launches and launches[-1].arguments["M"] == 64:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(timers.HostTimer, "synchronize", synchronize)
    configs = [Config({"M": m}) for m in (16, 64, 128)]
    tuned = autotune(configs, key=["n"], restore_value=[])(triton.jit(product))
    with pytest.raises(DeviceLostError) as caught:
        tuned[(1,)](*ac, 16)
    assert caught.value.config == "M=64 num_warps=4 num_stages=3"
    assert caught.value.kernel.endswith("test_failures.product")
    text = str(caught.value)
    assert "config M=64 num_warps=4 num_stages=3 left the device in an error state" in text
    assert "an illegal memory access was encountered" in text
    assert "restart the process; other configs are not to blame" in text
    assert [launch.arguments["M"] for launch in launches] == [16, 64]  # and nothing after it
    for record in records():  # whatever is kept, the third is not marked bad
        assert all(timing.config["kwargs"]["M"] != 128 for timing in record.timings)


def test_a_device_that_another_thread_captures_on_is_not_lost(ac, launches, monkeypatch, warnings):
    """CUDA lets nobody wait then, if the capture's mode is "global"; no config is to blame, and it is tried again."""
    captures = [True]

    def synchronize(self):
        if captures:
            raise RuntimeError(CAPTURING)

    monkeypatch.setattr(timers.HostTimer, "synchronize", synchronize)
    tuned = autotune([SMALL, Config({"M": 64})], key=["n"], do_bench=by_m())(triton.jit(product))
    tuned[(1,)](*ac, 16)
    assert records() == []
    assert len(warnings.records) == 1
    captures.clear()
    tuned[(1,)](*ac, 16)
    assert [timing.status for timing in records()[0].timings] == ["ok", "ok"]
    assert not list(layout.root().rglob("journal/*.json"))


def test_times_that_no_clock_can_give_are_failures(ac, launches):
    nan = float("nan")
    tuned = autotune(
        [Config({"M": 16}), Config({"M": 64}), Config({"M": 128})],
        key=["n"],
        do_bench=fake_cuda.by_config({16: nan, 64: 2.0, 128: 0.0}, ("M",)),
    )(triton.jit(product))
    tuned[(1,)](*ac, 16)
    assert launches[-1].arguments["M"] == 64
    (record,) = records()
    assert [timing.status for timing in record.timings] == ["failed", "ok", "failed"]
    json.dumps([record.median_us, record.timings[0].error], allow_nan=False)


@pytest.mark.parametrize("mode", ["auto", "serve", "search", "off"])
@pytest.mark.parametrize("configs", [1, 2])
def test_an_error_that_all_raise_says_kernel_config_and_how_many(mode, configs, launches):
    tuned = autotune([Config({"BLOCK": 16}), Config({"BLOCK": 32})][:configs])(triton.jit(misspelt))
    for _ in range(2):
        with autotuned.mode(mode), pytest.raises(triton.CompilationError, match="m is not defined") as caught:
            tuned[(1,)](torch.zeros(64), 64)
        text = "\n".join(caught.value.__notes__)
        assert ".misspelt`: " in text
        assert "BLOCK=16 num_warps=4 num_stages=3" in text
        assert ("all 2 configs raised this" in text) is (configs == 2 and mode in ("auto", "search"))


@pytest.mark.parametrize("mode", ["serve", "off"])
def test_an_untuned_call_goes_on_to_the_first_config_that_compiles(mode, ac, launches):
    tuned = autotune([REFUSED, NO_POWER_OF_TWO, SMALL, HUGE], key=["n"])(triton.jit(product))
    with autotuned.mode(mode):
        for n in (16, 16, 8):
            tuned[(1,)](*ac, n)
            assert tuned.best_config is tuned.configs[2]
            assert launches[-1].arguments["M"] == 16
    assert records() == []
