"""Tuning on a GPU: the list of faults in a process of its own, what the timer says, and what a further shape costs."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton import Config, knobs

import autotuned
from autotuned import autotune
from autotuned.offline import targets
from autotuned.offline.workers.compile_pool import CompileWorkers
from autotuned.search import duel as duels
from autotuned.search import race, timers
from autotuned.search.compiling import pool
from autotuned.search.safety import placements
from autotuned.search.trial import Trial
from autotuned.store import listing

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
from problems import PROBLEMS  # noqa: E402

pytestmark = pytest.mark.gpu

FAULTS = """
import torch, triton, triton.language as tl
from autotuned import Config, autotune

@triton.constexpr_function
def think(how):
    while how == 4:
        pass
    return 0

@autotune(configs=[Config({"HOW": how, "BLOCK": block}, num_stages=stages) for how, block, stages in (
              (1, 128, 1), (2, 128, 1), (3, 128, 1), (4, 128, 1), (5, 256, 5), (0, 16, 1), (0, 256, 1))],
          key=["n"], check=lambda x_ptr, n: {"y_ptr": x_ptr + 1})
@triton.jit
def work(x_ptr, y_ptr, a_ptr, n, HOW: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    skip: tl.constexpr = think(HOW)
    y = tl.load(x_ptr + i, mask=i < n) + 1 + skip
    if HOW == 1:  # an illegal access far away
        tl.store(y_ptr + i + (1 << 40), y)
    if HOW == 2:  # an endless loop
        while tl.load(a_ptr, volatile=True) == 0:
            y += 1
    if HOW == 3:  # a wrong result
        y += 1
    if HOW == 5:  # too much shared memory
        rows, columns = tl.arange(0, 128), tl.arange(0, 256)
        sums = tl.zeros((128, 128), tl.float32)
        for k in range(0, n, 128):
            tile = tl.load(a_ptr + 4 + (k + rows[:, None]) * 256 + columns[None, :])
            sums = tl.dot(tile, tl.trans(tile), sums)
        y += tl.sum(sums)
    tl.store(y_ptr + i, y, mask=i < n)

@work.case
def cases(device):
    x = torch.zeros(1 << 20, device=device)
    yield dict(args=(x, torch.empty_like(x), torch.zeros(1 << 21, device=device), 1 << 20),
               grid=lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),))
"""


def test_b62_b63_the_fault_list(tmp_path):
    """An illegal access, an endless loop, an endless compilation, a wrong result and too much shared memory."""
    (tmp_path / "faulty.py").write_text(FAULTS)
    command = [sys.executable, "-c", "from autotuned.cli.main import app; app()", "tune", "faulty.py", "--json"]
    start = time.monotonic()
    done = subprocess.run([*command, "--timeout", "6"], cwd=tmp_path, capture_output=True, text=True, env=os.environ)
    print(f"{time.monotonic() - start:.1f} s\n{done.stderr[-3000:]}")
    assert done.returncode == 0
    [case] = json.loads(done.stdout)["cases"]
    assert case["config"]["kwargs"] == {"HOW": 0, "BLOCK": 256}
    [record] = [record for _, record in listing.all_records()]
    errors = {timing.config["kwargs"]["HOW"]: f"{timing.status}: {timing.error}" for timing in record.timings}
    assert "Crashed" in errors[1]
    assert "TimedOut: did not end within 6 s" in errors[2]
    assert errors[3].startswith("wrong")
    assert "TimedOut: not compiled within 6 s" in errors[4]
    assert "OutOfResources" in errors[5]
    for name in ("HOW=1", "HOW=2", "HOW=4"):
        assert name in done.stderr  # named, with the time each cost


@pytest.mark.parametrize("elements", [1 << 16, 1 << 22, 1 << 27], ids=["microseconds", "tens", "hundreds"])
def test_b81_times_are_those_of_a_stream_held_until_all_is_enqueued(elements):
    """The timer holds the stream no longer than the host needs to stay ahead: that must not show in its times.

    Blocks are equally long: of ten launches in a row each takes 0.3 us less than of thirty, however long they wait. A
    launch right behind others of a full queue takes 0.5 us less, on some hosts, as the launch of any config does.
    """
    x, y = torch.ones(elements, device="cuda"), torch.empty(elements, device="cuda")
    trial, timer = Trial(0, lambda: None, lambda: torch.mul(x, 2.0, out=y)), timers.CudaTimer()
    timer.warm_up()
    trial.samples_us += timer.sample(trial, 3)
    short, long = [], []
    for _ in range(10):  # in turn: clocks drift
        short += timer.sample(trial, 10)
        times, starved = timer._block([trial] * 10 * trial.launches, 10_000.0)
        assert not starved
        long += [statistics.fmean(times[at : at + trial.launches]) for at in range(0, len(times), trial.launches)]
    one, other = statistics.median(short), statistics.median(long)
    print(f"{elements}: {one:.2f} us, held for all {other:.2f} us, the host needs {timer.regime['host_us']} us")
    assert one == pytest.approx(other, rel=0.02, abs=0.7)


def test_a_further_shape_of_40_configs_takes_a_fraction_of_what_tritons_autotuner_takes():
    """Everything is compiled; triton.autotune takes 4 to 5 s for each."""
    problem = PROBLEMS["matmul"]

    def seconds(tuned, shapes):
        took = []
        for shape in shapes:
            arguments, grid = problem.arguments(shape, "cuda"), problem.grid(shape)
            torch.cuda.synchronize()
            start = time.perf_counter()
            tuned[grid](*arguments)
            torch.cuda.synchronize()
            took.append(time.perf_counter() - start)
            print(f"{shape}: {took[-1]:.3f} s, {tuned.best_config}")
        return statistics.median(took[1:])

    tuned = problem.tuned(autotune)
    ours = seconds(tuned, problem.shapes[:4])
    theirs = seconds(problem.tuned(triton.autotune), problem.shapes[:2])
    assert ours < theirs / 4
    assert tuned.cache_info().searches == 4


WORKED = """
import triton, triton.language as tl
from autotuned import Config, autotune

@autotune([Config({"BLOCK": block}) for block in (64, 128, 256, 512, 1024)], key=["n"])
@triton.jit
def work(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 3, mask=i < n)

@work.case
def case(device):
    raise RuntimeError("whoever compiles makes no data")
    yield
"""


def test_what_a_worker_without_a_gpu_compiles_is_loaded_here(tmp_path):
    """In a process of its own: Inductor names another ptxas for the rest of a process that has used it."""
    (tmp_path / "worked_on_a_gpu.py").write_text(WORKED)
    code = "import test_gpu_tuning as here; here.load_what_a_worker_compiles('worked_on_a_gpu.py')"
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0


def load_what_a_worker_compiles(file):
    hits, end = [], time.monotonic() + 60
    knobs.compilation.listener = lambda **event: hits.append(event["cache_hit"])
    compilers = CompileWorkers([file], 60.0)
    pool.compilers.append(compilers)
    try:
        [found] = targets.load(file)
        while not compilers._knows(found.name):
            assert not compilers._over and time.monotonic() < end
            time.sleep(0.01)
        x = torch.arange(10_000, device="cuda", dtype=torch.float32)
        y = torch.zeros_like(x)
        found.tuned[lambda meta: (-(-10_000 // meta["BLOCK"]),)](x, y, 10_000)
        assert torch.equal(y, x * 3)
        assert compilers.compiled == 5
        assert hits
        assert all(hits)
    finally:
        compilers.close()


def _double(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


def _blocks(n):
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


@pytest.mark.parametrize("installed", [False, True], ids=["own", "install"])
def test_a_first_call_that_launches_nothing_decides_nothing(installed):
    sizes, n = (32, 1024), 1 << 22
    listed = [Config({"BLOCK": size}) for size in sizes]
    x, y = torch.ones(n, device="cuda"), torch.zeros(n, device="cuda")
    if installed:
        autotuned.install()
    try:
        decorate = triton.autotune if installed else autotune
        kernel = decorate(configs=listed, key=[])(triton.jit(_double))
        kernel[_blocks(0)](x, y, 0)
        kernel[(0,)](x, y, 0)
        assert not y.any() and not kernel.cache
        kernel[_blocks(n)](x, y, n)
        assert kernel.best_config.kwargs["BLOCK"] == 1024
        assert bool((y == 2).all())
    finally:
        if installed:
            autotuned.uninstall()


@pytest.mark.parametrize("installed", [False, True], ids=["own", "install"])
def test_a_config_whose_grid_is_empty_never_runs_for_that_call(installed):
    listed = [Config({"BLOCK": size}) for size in (64, 32, 16)]
    x, y = torch.ones(32, device="cuda"), torch.zeros(32, device="cuda")
    if installed:
        autotuned.install()
    try:
        decorate = triton.autotune if installed else autotune
        kernel = decorate(configs=listed, key=[])(triton.jit(_double))
        kernel[lambda meta: (32 // meta["BLOCK"],)](x, y, 32)
        assert bool((y == 2).all())
    finally:
        if installed:
            autotuned.uninstall()


def test_a_budget_bounds_a_search_with_tritons_benchmark():
    """Each call of Triton's benchmark takes at least 0.1 s: all of 40 would take 4."""
    asked, x, y = [], torch.ones(1 << 16, device="cuda"), torch.zeros(1 << 16, device="cuda")

    def bench(call, quantiles):
        asked.append(1)
        return triton.testing.do_bench(call, warmup=25, rep=100, quantiles=quantiles)

    listed = [
        Config({"BLOCK": 64 << (place % 5)}, num_warps=1 << (place % 4), num_stages=1 + place // 20)
        for place in range(40)
    ]
    kernel = autotune(configs=listed, key=[], do_bench=bench, budget_s=1.0)(triton.jit(_double))
    kernel[_blocks(1 << 16)](x, y, 1 << 16)
    assert 1 <= len(asked) <= 12
    assert bool((y == 2).all())


def test_calls_of_one_bucket_get_configs_that_cover_them():
    def large_enough(configs, named, **kwargs):
        return [config for config in configs if config.kwargs["BLOCK"] >= named["n"]]

    listed = [Config({"BLOCK": size}) for size in (64, 128, 256)]
    for mode in ("auto", "serve", "off"):
        with autotuned.mode(mode):
            kernel = autotune(
                configs=listed, key=["n"], bucket={"n": lambda n: (n + 127) // 128 * 128},
                prune_configs_by={"early_config_prune": large_enough},
            )(triton.jit(_double))  # fmt: skip
            for n in (50, 100, 50, 120, 64, 65) * 2:
                x, y = torch.ones(128, device="cuda"), torch.zeros(128, device="cuda")
                kernel[(1,)](x, y, n)
                assert bool((y[:n] == 2).all()), (mode, n)


# -- the kernel or the call ----------------------------------------------------------------------------------------------


@triton.jit
def _add_one(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


@pytest.mark.parametrize(("objective", "parts"), [("kernel", 16), ("call", 1)])
def test_many_cheap_launches_win_by_the_device_and_lose_by_the_call(objective, parts):
    """In parts the device does a tenth of the work, and the host launches sixteen times."""
    x = torch.zeros(1 << 26, device="cuda")

    @autotune([Config({"parts": 16}), Config({"parts": 1})], key=["n"], objective=objective, restore_value=[])
    def add(x, n, *, parts):
        count = n // 10 // parts if parts > 1 else n
        for part in range(parts):
            _add_one[(triton.cdiv(count, 1024),)](x[part * count :], count, BLOCK=1024)

    with autotuned.mode("search"):
        add(x, x.numel())
    assert add.best_config.kwargs["parts"] == parts


def test_a_config_s_hook_is_part_of_a_call_of_a_kernel():
    x = torch.zeros(1 << 20, device="cuda")

    def slow(arguments):
        time.sleep(0.0005)

    def chosen(objective):
        configs = [Config({"BLOCK": 1024}, pre_hook=slow), Config({"BLOCK": 16}, num_warps=1)]
        tuned = autotune(configs, key=["n"], objective=objective)(_add_one)
        with autotuned.mode("search"):
            tuned[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, x.numel())
        return tuned.best_config.kwargs["BLOCK"]

    assert (chosen("kernel"), chosen("call")) == (1024, 16)


@triton.jit
def grow(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1.0, mask=at < n)


def test_two_configs_that_are_close_are_compared_on_copies_elsewhere(monkeypatch):
    """Whatever they do there, the caller's data is as one launch leaves it; copies have the call's key."""
    places, leads = [], []
    there, duel = placements.elsewhere, duels.fight
    monkeypatch.setattr(placements, "elsewhere", lambda *given: (places.append(one) or one for one in there(*given)))
    monkeypatch.setattr(duels.Duel, "is_close", property(lambda self: self.is_fought))
    monkeypatch.setattr(race, "winner", lambda trials, *more: (trials[-1], "ok"))
    monkeypatch.setattr(duels, "fight", lambda *given, **how: leads.append(duel(*given, **how)) or leads[-1])
    configs = [Config({"BLOCK": block}) for block in (1024, 2048)]
    tuned = autotune(configs, key=["n"], restore_value=["x_ptr"])(grow)
    x = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    before = x.clone()
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)
    tuned[grid](x, x.numel())
    torch.cuda.synchronize()
    assert torch.equal(x, before + 1)
    assert len(places) == duels.PLACES and len(leads) == 1 + duels.PLACES
    assert len({place.call.arguments["x_ptr"].data_ptr() for place in places} | {x.data_ptr()}) == 1 + duels.PLACES
    key = tuned.tuner.chooser.key
    assert len({key(place.call).digest for place in places}) == 1
    assert all(torch.equal(place.call.arguments["x_ptr"], before + 1) for place in places), "each launch began with it"
