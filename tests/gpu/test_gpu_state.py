"""On a real GPU: trials change nothing of the user's, failures have names, memory goes back."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import textwrap
import time
import weakref
from collections.abc import Iterator

import pytest
import torch
import triton
import triton.language as tl

from autotuned import Check, Config, autotune, env
from autotuned.errors import AllConfigsFailedError
from autotuned.kernels import layernorm_bwd, rmsnorm, splitk_matmul
from autotuned.search import race
from autotuned.store import listing

pytestmark = pytest.mark.gpu
CONFIGS = [Config({"BLOCK": block}, num_warps=warps) for block in (256, 1024) for warps in (4, 8)]
TOO_LARGE = [Config({"BLOCK": 128, "K": 256}, num_stages=stages) for stages in (4, 5)]


@triton.jit
def _add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1.0, mask=i < n)


@triton.jit
def _add_own(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1.0, mask=i < n)


@triton.jit
def _add_or_not(x_ptr, y_ptr, n, BLOCK: tl.constexpr, WRITES: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n) + 1.0
    tl.store(y_ptr + i, x, mask=(i < n) & (x < -1e30 if WRITES == 0 else i < n))


@triton.jit
def _product(a_ptr, o_ptr, n, BLOCK: tl.constexpr, K: tl.constexpr):
    r = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, n, K):
        c = k + tl.arange(0, K)
        a = tl.load(a_ptr + r[:, None] * n + c[None, :])
        b = tl.load(a_ptr + r[None, :] * n + c[:, None])
        total += tl.dot(a, b)
    tl.store(o_ptr + r[:, None] * BLOCK + r[None, :], total)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


@pytest.fixture
def allocated() -> Iterator[None]:
    """Memory is afterwards what it was before."""
    torch.ones(16, 16, device="cuda") @ torch.ones(16, 16, device="cuda")  # what cuBLAS keeps for good is not counted
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    yield
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before  # less where what an earlier test left is collected now


def test_split_k_equals_one_clean_launch(allocated):
    a = torch.randn(64, 4096, device="cuda", dtype=torch.float16)
    b = torch.randn(4096, 256, device="cuda", dtype=torch.float16)
    splitk_matmul.splitk_matmul_kernel.cache_clear()
    expected = splitk_matmul.reference(a, b)
    for _ in range(2):
        torch.testing.assert_close(splitk_matmul.splitk_matmul(a, b), expected, rtol=2e-2, atol=2e-1)


def test_a_norm_in_place_is_done_once(allocated):
    x, residual = (torch.randn(512, 1000, device="cuda", dtype=torch.float16) for _ in range(2))
    weight = torch.randn(1000, device="cuda", dtype=torch.float16)
    rmsnorm.rmsnorm_kernel.cache_clear()
    for _ in range(2):
        expected = rmsnorm.reference(x, residual, weight)
        rmsnorm.rmsnorm_(x, residual, weight)
        torch.testing.assert_close((x, residual), tuple(expected), rtol=1e-2, atol=2e-2)


def test_a_layer_norm_with_spin_locks_ends_and_is_right(allocated):
    layernorm_bwd.layernorm_bwd_kernel.cache_clear()
    layernorm_bwd.layernorm_bwd_reduce_kernel.cache_clear()
    case = next(iter(layernorm_bwd.layernorm_bwd_kernel.cases[0](torch.device("cuda"))))
    inputs = case["args"][4:9]
    for _ in range(2):
        got, expected = layernorm_bwd.layernorm_bwd(*inputs), layernorm_bwd.reference(*inputs)
        for one, other in zip(got, expected):
            torch.testing.assert_close(one.float(), other.float(), rtol=2e-2, atol=2e-2 * float(other.abs().max()))


def test_only_what_the_code_writes_is_copied(allocated):
    """Beside a large input that is only read, a search needs the output once more and the flush buffer."""
    x, y = torch.ones(1 << 28, device="cuda"), torch.zeros(1 << 20, device="cuda")
    kernel = autotune(configs=CONFIGS, key=["n"])(_add)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kernel[grid](x, y, 1 << 20)
    flush = 2 * torch.cuda.get_device_properties().L2_cache_size
    assert torch.cuda.max_memory_allocated() - before <= y.nbytes + flush + (1 << 20)
    assert kernel.restore_value == ["y_ptr"]
    assert bool((y == 2).all())


FAULT = """
import sys
import torch, triton, triton.language as tl
from autotuned import Config, autotune
from autotuned.store import listing
from autotuned.errors import DeviceLostError

CONFIGS = [Config({"BLOCK": 64, "FAR": far}) for far in (0, 1, 2)] + [Config({"BLOCK": 128, "FAR": 0})]

@autotune(CONFIGS, key=["n"])
@triton.jit
def far_out(x_ptr, n, BLOCK: tl.constexpr, FAR: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if FAR == 1:
        tl.store(x_ptr + i.to(tl.int64) + (1 << 40), 1.0)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1.0, mask=i < n)

x = torch.zeros(1000, device="cuda")
grid = lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)
try:
    far_out[grid](x, 1000)
except DeviceLostError as error:
    print("lost", error.config)
    try:
        far_out[grid](x, 1000)
    except RuntimeError as error:
        print("again", getattr(error, "config", "") or "nobody")
else:
    torch.cuda.synchronize()
    assert bool((x == 1).all())
    (record,) = [record for _, record in listing.all_records()]
    print("tuned", {timing.config["kwargs"]["FAR"]: timing.status for timing in record.timings}[1], len(record.timings))
"""


def test_a_kernel_that_faults_far_out_is_blamed_and_not_launched_again(tmp_path):
    script = tmp_path / "far_out.py"
    script.write_text(textwrap.dedent(FAULT))

    def run():
        return subprocess.run(
            [sys.executable, script], capture_output=True, text=True, env=dict(os.environ), timeout=300
        )

    first, second = run(), run()
    assert first.stdout.startswith("lost BLOCK=64 FAR=1 "), first.stdout + first.stderr
    assert first.stdout.splitlines()[1] == "again nobody", first.stdout + first.stderr
    assert second.stdout.split() == ["tuned", "failed", "4"], second.stdout + second.stderr
    assert "is skipped: it cost an earlier process its device" in second.stderr


def test_configs_that_need_too_much_shared_memory(allocated):
    a = torch.randn(128, 1024, device="cuda", dtype=torch.float16)
    out = torch.zeros(128 * 128, device="cuda")
    with pytest.raises(AllConfigsFailedError, match=r"shared memory, Required: \d+, Hardware limit: \d+"):
        autotune(configs=TOO_LARGE, key=["n"])(_product)[(1,)](a, out, 1024)
    assert list(listing.all_records()) == []
    assert bool((out == 0).all())
    fits = Config({"BLOCK": 64, "K": 32}, num_stages=2)
    kernel = autotune(configs=[*TOO_LARGE, fits], key=["n"])(_product)
    kernel[(1,)](a, out, 1024)
    assert kernel.best_config is fits


@pytest.mark.parametrize("poison", [False, True], ids=["plain", "poisoned"])
def test_a_config_that_never_writes_is_found_by_the_check(allocated, poison):
    """It is the fastest. Restoring takes away what an earlier config wrote, poison also what the caller gave."""
    configs = [Config({"BLOCK": 256, "WRITES": writes}, num_warps=warps) for warps in (4, 8, 2) for writes in (1, 0)]
    configs = [configs[1], configs[0], configs[2], configs[4]]
    x = torch.ones(1 << 20, device="cuda")
    y = x + 1.0 if poison else torch.zeros_like(x)
    check = Check(lambda x_ptr: x_ptr + 1.0, poison=poison)
    kernel = autotune(configs=configs, key=["n"], check=check)(_add_or_not)
    kernel[grid](x, y, 1 << 20)
    assert kernel.best_config.kwargs["WRITES"] == 1
    assert torch.equal(y, x + 1.0)
    (record,) = [record for _, record in listing.all_records()]
    assert record.timings[0].status == "wrong"


ROOM, BLOCK = 96 << 20, 16 << 20


def ballast() -> list[torch.Tensor]:
    """Memory taken until there is none: what others, or the driver, give back late is taken too."""
    taken, quiet = [], 0
    while quiet < 3:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = len(taken)
        for size in (1 << 30, BLOCK):
            with contextlib.suppress(torch.OutOfMemoryError):
                while True:
                    taken.append(torch.empty(size, dtype=torch.int8, device="cuda"))
        quiet = 0 if len(taken) > before else quiet + 1
        time.sleep(0.2)
    return taken


@contextlib.contextmanager
def nearly_full(way: str) -> Iterator[None]:
    """Room for 96 MiB: the device is full, or torch may take no more of it."""
    torch.cuda.empty_cache()  # the room is to be the device's, not what is left of a block that torch keeps
    idle = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # in blocks that also hold something
    spare = [torch.empty(BLOCK, dtype=torch.int8, device="cuda") for _ in range(ROOM // BLOCK)]
    taken = ballast() if way == "the device" else []
    spare.clear()
    torch.cuda.empty_cache()
    if way == "the limit":
        total = torch.cuda.get_device_properties().total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + ROOM) / total)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2 * ROOM + idle, dtype=torch.int8, device="cuda")
        yield
    finally:
        taken.clear()
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


@contextlib.contextmanager
def memory_told(lines: list[str]) -> Iterator[None]:
    """What a failure is to be explained with."""
    before = torch.cuda.mem_get_info()
    try:
        yield
    except BaseException:
        print("free, total before and after:", before, torch.cuda.mem_get_info())
        print("said:", *lines, sep="\n  ")
        for _, record in listing.all_records():
            print(record.quality, dict(record.provenance), [timing.status for timing in record.timings])
        print(torch.cuda.memory_summary(abbreviated=True))
        raise


@pytest.mark.parametrize("way", ["the device", "the limit"])
def test_a_nearly_full_device(allocated, caplog, way):
    """96 MiB are free: a smaller flush buffer, copies on the host, and the right answer."""
    small = torch.zeros(1 << 20, device="cuda")
    autotune(configs=CONFIGS, key=["n"])(_add_own)[grid](small, 1 << 20)  # loads all that is loaded only once
    gc.collect()
    torch.cuda.empty_cache()  # else what follows may lie in a block of an earlier test, whose rest is room for a copy
    x = torch.zeros(1 << 26, device="cuda")  # 256 MiB: no copy of it fits
    assert bool((x[::4096] == 0).all())
    env._said.clear()
    caplog.clear()
    kernel = autotune(configs=CONFIGS, key=["n"])(_add_own)
    lines: list[str] = []
    with nearly_full(way), memory_told(lines):
        kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # beside what other tests still hold
        for expected in (1.0, 2.0):
            kernel[grid](x, 1 << 26)
            lines[:] = [record.getMessage() for record in caplog.records]
            assert bool((x[::4096] == expected).all())
        assert kernel.cache_info().searches == 1
        assert sum("is kept in host memory" in line for line in lines) == 1
        assert sum("flush the cache" in line for line in lines) == 1
        assert torch.cuda.memory_reserved() - torch.cuda.memory_allocated() <= kept + ROOM // 4  # given back
    del small, x


def test_nothing_is_kept_without_the_garbage_collector():
    """Failing configs, an error of all, a search that succeeds: arguments die when the caller lets go of them."""
    fits = Config({"BLOCK": 64, "K": 32}, num_stages=2)
    kernels = [autotune(configs=configs, key=["n"])(_product) for configs in ([*TOO_LARGE, fits], TOO_LARGE)]
    kernels[0][(1,)](  # what loading the first kernel allocates for good is not counted
        torch.randn(128, 1024, device="cuda", dtype=torch.float16), torch.zeros(128 * 128, device="cuda"), 1024
    )
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    gc.disable()
    try:
        for kernel, length in ((kernels[0], 2048), (kernels[1], 1024)):
            a = torch.randn(128, length, device="cuda", dtype=torch.float16)
            out = torch.zeros(128 * 128, device="cuda")
            references = weakref.ref(a), weakref.ref(out)
            try:
                kernel[(1,)](a, out, length)
            except AllConfigsFailedError:
                assert kernel is kernels[1]
            del a, out
            assert [reference() for reference in references] == [None, None]
            torch.cuda.synchronize()
            assert torch.cuda.memory_allocated() == before
    finally:
        gc.enable()


def test_b100_many_keys_leave_no_memory_behind():
    configs = [
        Config({"BLOCK": block}, num_warps=warps) for block in (64, 128, 256, 512, 1024) for warps in (1, 2, 4, 8)
    ]
    kernel = autotune(configs=configs, key=["n"])(_add)
    x, y = torch.ones(1 << 16, device="cuda"), torch.zeros(1 << 16, device="cuda")
    kernel[grid](x, y, 1 << 16)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before, _ = torch.cuda.mem_get_info()
    for index in range(20):
        kernel[grid](x, y, 1024 * (index + 1))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    after, _ = torch.cuda.mem_get_info()
    assert kernel.cache_info().searches == 21
    assert before - after < 32 << 20


def test_b77_a_short_kernel_is_tuned_with_few_samples():
    configs = [
        Config({"BLOCK": block}, num_warps=warps) for block in (64, 128, 256, 512, 1024) for warps in (1, 2, 4, 8)
    ]
    kernel = autotune(configs=configs, key=["n"], budget_s=2.0)(_add)
    x, y = torch.ones(4096, device="cuda"), torch.zeros(4096, device="cuda")
    kernel[grid](x, y, 4096)
    kernel[grid](x, y, 4095)  # everything is compiled, up to the class of n
    taken = [sum(timing.samples for timing in record.timings) for _, record in listing.all_records()]
    assert len(taken) == 2
    assert max(taken) <= len(configs) * race.GUARD_SAMPLES + race.FINALISTS * race.MOST_LAUNCHES


def test_b81_host_overhead_does_not_rank(allocated):
    """A hook that takes longer than the kernel, and longest for the faster config, moves nothing."""

    @triton.jit
    def work(x_ptr, n, BLOCK: tl.constexpr, REPEAT: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i, mask=i < n)
        for _ in range(REPEAT):
            x = tl.sqrt(x + 1.0)
        tl.store(x_ptr + i, x, mask=i < n)

    def slow(arguments):
        time.sleep(2e-4 if arguments["REPEAT"] == 50 else 0.0)

    configs = [Config({"BLOCK": 256, "REPEAT": repeat}, pre_hook=slow) for repeat in (100, 50)]
    kernel = autotune(configs=configs, key=["n"])(work)
    kernel[grid](torch.ones(1 << 20, device="cuda"), 1 << 20)
    assert kernel.best_config.kwargs["REPEAT"] == 50
