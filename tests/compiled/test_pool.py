"""Several configs compiled at once: how much sooner, in which order, and what is the same as one after the other."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config, knobs

from autotuned import autotune
from autotuned.key.source_text import parsed_again
from autotuned.search.compiling import pool as compiling
from autotuned.search.compiling import threads
from autotuned.store import listing, records
from autotuned.triton_compat import compiled

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
from problems import PROBLEMS  # noqa: E402


def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


BLOCKS = (16, 32, 64, 128, 256, 512)
TIMES = dict.fromkeys(BLOCKS, 2.0) | {64: 1.0}


def tune(workers, monkeypatch, configs=None, kernel=add, **options):
    """Search with so many workers and everything cold."""
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", str(workers))
    configs = configs or [Config({"BLOCK": block}) for block in BLOCKS]
    tuned = autotune(configs, key=["n"], do_bench=fake_cuda.by_config(TIMES), **options)(triton.jit(kernel))
    tuned[grid](torch.zeros(1000), torch.zeros(1000), 1000)
    return tuned


@pytest.fixture(autouse=True)
def cold(tmp_path, monkeypatch) -> None:
    """An empty cache of Triton's."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


@pytest.fixture
def compilations(monkeypatch) -> Iterator[list[tuple[str, float, float]]]:
    """Thread, start and end of each compilation."""
    seen: list[tuple[str, float, float]] = []
    starts: dict[int, float] = {}
    run = compiling.Pool._run

    def noted(self, one, compile_):
        starts[threading.get_ident()] = time.perf_counter()
        return run(self, one, compile_)

    def ended(**event):
        if not event["cache_hit"]:
            name = threading.current_thread().name
            seen.append((name, starts.get(threading.get_ident(), 0.0), time.perf_counter()))

    monkeypatch.setattr(compiling.Pool, "_run", noted)
    monkeypatch.setattr(knobs.compilation, "listener", ended)
    yield seen


def test_each_config_is_compiled_once_on_threads_of_the_pool(monkeypatch, compilations):
    tuned = tune(2, monkeypatch)
    assert len(compilations) == len(BLOCKS)
    assert all(name.startswith("autotuned-compile") for name, _, _ in compilations)
    assert len({name for name, _, _ in compilations}) == 2
    assert tuned.best_config.kwargs == {"BLOCK": 64}
    assert [timing.status for _, record in listing.all_records() for timing in record.timings] == ["ok"] * len(BLOCKS)


def test_a_further_shape_costs_its_launches_and_little_else(monkeypatch):
    """All is compiled: no thread is started, no code is read again, and a file is replaced for its lock, journal and record."""
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", "2")
    configs = [Config({"BLOCK": block}) for block in BLOCKS]
    tuned = autotune(configs, key=["n"], do_bench=fake_cuda.by_config(TIMES))(triton.jit(add))
    tuned[grid](torch.zeros(1008), torch.zeros(1008), 1008)
    replaced, started, read, launches = [], [], [], len(fake_cuda.Launcher.launches)
    replace, start, access = os.replace, threading.Thread.start, compiled.ttir.access
    monkeypatch.setattr(os, "replace", lambda *paths: (replaced.append(paths[1]), replace(*paths))[1])
    monkeypatch.setattr(threading.Thread, "start", lambda self: (started.append(self.name), start(self))[1])
    monkeypatch.setattr(compiled.ttir, "access", lambda text: (read.append(text), access(text))[1])
    tuned[grid](torch.zeros(2016), torch.zeros(2016), 2016)
    assert tuned.cache_info().searches == 2
    assert (started, read) == ([], [])
    records = {str(path) for path, _ in listing.all_records()}
    others = [path for path in map(str, replaced) if path not in records]
    assert len(replaced) - len(others) == 1
    assert sorted(Path(path).parent.name for path in others) == ["journal", "locks"]  # once: then it is written over
    assert len(fake_cuda.Launcher.launches) - launches == 2 * len(BLOCKS) + 1


def test_binaries_of_the_pool_are_where_those_of_one_thread_are(monkeypatch, tmp_path):
    tune(2, monkeypatch)
    assert len(list(records.scratch_folder().rglob("*.cubin"))) == len(BLOCKS)
    assert len(list((tmp_path / "triton").rglob("*.cubin"))) == 1  # the winner's


def test_a_short_list_and_a_single_worker_start_no_thread(monkeypatch, compilations):
    tune(1, monkeypatch)
    monkeypatch.delenv("AUTOTUNED_COMPILE_WORKERS")
    configs = [Config({"BLOCK": block}) for block in BLOCKS[:3]]
    tuned = autotune(configs, key=["n"], do_bench=fake_cuda.by_config(TIMES))(triton.jit(add))
    tuned[grid](torch.zeros(2048, dtype=torch.float64), torch.zeros(2048, dtype=torch.float64), 2048)
    assert {name for name, _, _ in compilations} == {"MainThread"}


def test_the_longest_are_compiled_first():
    sizes = [compiling.Wanted(0, "", config).size for config in PROBLEMS["attention"].configs]
    assert max(sizes) == sizes[-4]  # BLOCK_M=128 BLOCK_N=128 num_warps=4 num_stages=4
    assert compiling.Wanted(0, "", Config({})).size == compiling.Wanted(0, "", Config({"EVEN": True})).size


def test_records_are_the_same_with_and_without_a_pool(monkeypatch):
    def timings(workers):
        tune(workers, monkeypatch)
        [record] = [record for _, record in listing.all_records()]
        return json.dumps([[timing.config, timing.status, timing.error] for timing in record.timings])

    configs = timings(4)
    for path, _ in listing.all_records():
        os.remove(path)
    assert configs == timings(1)


def test_one_binary_is_measured_once_whichever_is_ready_first(monkeypatch, real_stages):
    configs = [Config({"BLOCK": block}, num_stages=stages) for block in (16, 32) for stages in (1, 2, 3)]
    tune(4, monkeypatch, configs)
    [record] = [record for _, record in listing.all_records()]
    assert [timing.status for timing in record.timings] == ["ok", "same", "same"] * 2


def test_an_error_of_one_config_is_that_configs_own(monkeypatch):
    def picky(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        tl.static_assert(BLOCK != 32, "no BLOCK of 32")
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + i, 1.0, mask=i < n)

    tune(2, monkeypatch, kernel=picky)
    [record] = [record for _, record in listing.all_records()]
    assert [timing.status for timing in record.timings] == ["ok", "failed", "ok", "ok", "ok", "ok"]
    assert "no BLOCK of 32" in record.timings[1].error


def test_an_error_of_pythons_parser_is_no_error_of_the_config(monkeypatch):
    """Two threads that parse at once: "SystemError: AST constructor recursion depth mismatch" in Python 3.11.7."""
    run, failed = compiling.Pool._run, set()

    def noted(self, one, compile_):
        def sometimes():
            if one.identity not in failed:
                failed.add(one.identity)
                raise SystemError("AST constructor recursion depth mismatch (before=36, after=30)")
            return compile_()

        return run(self, one, sometimes)

    monkeypatch.setattr(compiling.Pool, "_run", noted)
    tune(2, monkeypatch)
    [record] = [record for _, record in listing.all_records()]
    assert len(failed) == len(BLOCKS)
    assert [timing.status for timing in record.timings] == ["ok"] * len(BLOCKS)


def test_b60_what_certainly_needs_too_much_shared_memory_is_not_compiled(monkeypatch, compilations):
    """Sums of products: stages 2 and 3 tell what 4 to 6 need."""

    def product(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        rows, cols = tl.arange(0, BLOCK), tl.arange(0, 32)
        sums = tl.zeros((BLOCK, BLOCK), tl.float32)
        for start in range(0, n, 32):
            a = tl.load(x_ptr + rows[:, None] * n + start + cols[None, :])
            b = tl.load(x_ptr + (start + cols)[:, None] * n + rows[None, :])
            sums = tl.dot(a, b, sums)
        tl.store(y_ptr + rows[:, None] * BLOCK + rows[None, :], sums)

    monkeypatch.setattr(compiled, "shared_memory_limit", lambda: 99 << 7)
    configs = [Config({"BLOCK": 16}, num_stages=stages) for stages in (2, 3, 4, 5, 6, 8)]
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", "0")
    tuned = autotune(configs, key=["n"], do_bench=lambda call, quantiles: call() or [1.0] * 3)(triton.jit(product))
    tuned[(1,)](torch.zeros(16 * 512, dtype=torch.float16), torch.zeros(16 * 16), 512)
    [record] = [record for _, record in listing.all_records()]
    told = [timing for timing in record.timings if "predicted from num_stages=2 and" in (timing.error or "")]
    assert told
    assert len(compilations) == len(configs) - len(told)
    assert all(timing.status == "failed" and "Hardware limit: 12672" in timing.error for timing in told)


def test_what_a_later_config_writes_is_protected_too(monkeypatch):
    """Each config is launched as it is ready, before all that may be written is known."""

    def either(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        if BLOCK == 16:
            tl.store(x_ptr + i, 1.0, mask=i < n)
        else:
            tl.store(y_ptr + i, 1.0, mask=i < n)

    tuned = tune(2, monkeypatch, kernel=either)
    assert set(tuned.restore_value) == {"x_ptr", "y_ptr"}


def test_configs_with_hooks_are_compiled_ahead_for_the_cache_and_launched_after_their_hook(monkeypatch, compilations):
    hooked = []
    configs = [Config({"BLOCK": b}, pre_hook=lambda arguments: hooked.append(arguments["BLOCK"])) for b in BLOCKS]
    tune(2, monkeypatch, configs)
    assert len(compilations) == len(BLOCKS)
    assert set(hooked) == set(BLOCKS)


def test_an_interrupt_ends_the_search_and_cancels_what_has_not_begun(monkeypatch, compilations):
    def interrupt(self, deadline, tick):
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling.Pool, "next", interrupt)
    before = sys.getswitchinterval()
    with pytest.raises(KeyboardInterrupt):
        tune(2, monkeypatch)
    assert len(compilations) < len(BLOCKS)
    assert sys.getswitchinterval() == before
    for thread in threading.enumerate():
        if thread.name.startswith("autotuned-compile"):
            thread.join(60)


def test_a_users_own_asynchronous_mode_is_respected(monkeypatch):
    """Triton allows one such mode at a time; inside a user's own everything still compiles."""
    with ThreadPoolExecutor(2) as threads, triton.AsyncCompileMode(threads):
        tuned = tune(2, monkeypatch)
    assert tuned.best_config.kwargs == {"BLOCK": 64}


class Window:
    """Seconds that compiling took: by the clock, of the processors, and of its threads waiting for one."""

    def __init__(self):
        self._before = self._start = (0.0, 0.0, 0.0)

    def __enter__(self):
        self._before, self._start = self._processors(), (time.perf_counter(), *self._own())
        return self

    def __exit__(self, kind, *details):
        if kind is not None:
            return
        now, start = (time.perf_counter(), *self._own()), self._start
        self.wall_s, threads_s, children_s = (end - begin for begin, end in zip(start, now, strict=True))
        self.own_s = threads_s + children_s
        busy_s = self._processors() - self._before
        self.others_s = max(0.0, busy_s - self.own_s)
        self.waited_s *= self.own_s / threads_s  # ptxas, a process of its own, waits as its thread does

    @staticmethod
    def _own():
        user, system, child_user, child_system, _ = os.times()
        return user + system, child_user + child_system

    @staticmethod
    def _processors():
        """Seconds that the processors which this process may use have worked."""
        allowed, tick = {f"cpu{index}" for index in os.sched_getaffinity(0)}, os.sysconf("SC_CLK_TCK")
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        return sum(sum(map(int, line[1:4] + line[6:9])) for line in lines if line and line[0] in allowed) / tick

    def note_waiting(self):
        """Called while the threads are still there."""
        self.waited_s = (
            sum(int(path.read_text().split()[1]) for path in Path("/proc/self/task").glob("*/schedstat")) / 1e9
        )


def _compile(configs, workers):
    """Compile as the search does, without launches."""
    problem = PROBLEMS["matmul"]
    kernel = triton.jit(problem.function)
    half = triton.runtime.jit.MockTensor(torch.float16)
    arguments = (half, half, half, 4096, 4096, 4096, 4096, 1, 4096, 1, 4096, 1)

    def warm_up(config):
        return parsed_again(lambda: kernel.run(*arguments, grid=(1,), warmup=True, **config.all_kwargs()))

    def one_by_one():  # on a fresh thread too, so that its waiting is its own
        for config in configs:
            warm_up(config)

    class Compilers(ThreadPoolExecutor):
        def submit(self, compile_):
            return super().submit(parsed_again, compile_)

    with Window() as window, Compilers(workers) as pool, threads.brisk():
        if workers == 1:
            pool.submit(one_by_one).result()
        else:
            for one in [compiled.compiling_in(pool, lambda config=config: warm_up(config)) for config in configs]:
                one.result()
        window.note_waiting()
    return window


@contextmanager
def on_two_processors():
    """Let this thread, and the threads and processes that it starts, run on two processors only."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:2])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


QUIET = 0.1  # processors that others may use in a window whose clock is believed
ATTEMPTS = 3


def _ratio(one, two):
    """How many times as fast two workers were as one, and how that was told.

    By the clock where others leave the processors alone. Otherwise by what the workers would have used: those that wait
    for each other want no processor, those that wait for a processor do.
    """
    if one.others_s < QUIET * one.wall_s and two.others_s < QUIET * two.wall_s:
        return one.wall_s / two.wall_s, "clock"
    wanted = [(window.own_s + window.waited_s) / window.wall_s for window in (one, two)]
    return wanted[1] / wanted[0] * one.own_s / two.own_s, "processors"


@pytest.mark.skipif("AUTOTUNED_QUIET" not in os.environ, reason="wants the processors for itself; .ci/run does that")
def test_two_cores_compile_at_least_1_7_times_as_fast_as_one(tmp_path, monkeypatch, real_stages):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    configs, ratios = PROBLEMS["matmul"].configs[6:15], []
    with on_two_processors():
        _compile(configs[:1], 1)  # imports and the hash of Triton
        for attempt in range(ATTEMPTS):
            windows = []
            for workers in (1, 2):
                monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / f"{attempt}-{workers}"))
                windows.append(_compile(configs, workers))
            ratios.append(_ratio(*windows))
            if ratios[-1][0] >= 1.7:
                return
    told = f"expected two workers to be 1.7 times as fast as one, got {ratios}"
    if not any(how == "clock" for _, how in ratios):
        pytest.skip(f"others used the processors all the time: {told}")
    pytest.fail(told)
