"""What is measured: the device's time, or what one call costs where the host may be the limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import FakeConfig as Config
from paths import ship
from simulated import Gpu

import autotuned
from autotuned import autotune
from autotuned.errors import DecorationError, NotTunedError
from autotuned.search import race, timers
from autotuned.search.trial import Trial
from autotuned.store import listing


def hooked(took: Callable[[float], None], us: int, hook_us: int) -> Config:
    """A config whose launch takes so long, and whose hook before it does."""
    return Config({"us": us}, pre_hook=lambda arguments: took(hook_us) if hook_us else None)


def tuned(took: Callable[[float], None], **options: Any) -> Any:
    """Configs of a cheap launch and a dear hook, and the other way round."""

    @autotune([hooked(took, 500, 2000), hooked(took, 1000, 10)], key=["n"], **options)
    def work(x: Any, n: int, *, us: float) -> None:
        took(us)

    return work


def chosen(work: Any) -> int:
    with autotuned.mode("search"):
        work(np.zeros(4), 4)
    us: int = work.best_config.kwargs["us"]
    return us


@pytest.mark.parametrize(("objective", "us"), [("kernel", 500), ("call", 1000), (None, 1000)])
def test_a_dear_hook_decides_where_the_call_is_measured(
    took: Callable[[float], None], objective: str | None, us: int
) -> None:
    assert chosen(tuned(took, objective=objective)) == us
    [(_, record)] = listing.all_records()
    assert record.provenance["objective"] == (objective or "call")
    assert record.median_us == (500 if objective == "kernel" else 1010)


def test_zeroing_is_part_of_a_call_and_not_of_a_kernel(took: Callable[[float], None]) -> None:
    class Array(np.ndarray):  # type: ignore[type-arg]
        def __setitem__(self, place: Any, value: Any) -> None:
            took(100)
            super().__setitem__(place, value)

    @autotune([Config({"us": us}) for us in (1000, 1200)], key=["n"], reset_to_zero=["x"], objective="call")
    def work(x: Any, n: int, *, us: float) -> None:
        took(us)

    with autotuned.mode("search"):
        work(np.zeros(4).view(Array), 4)
    [(_, record)] = listing.all_records()
    assert record.median_us == 1100


def test_what_was_measured_under_the_one_does_not_serve_the_other(took: Callable[[float], None]) -> None:
    assert chosen(tuned(took)) == 1000
    other = tuned(took, objective="kernel")
    with autotuned.mode("strict"), pytest.raises(NotTunedError, match="context.trial: .*objective.*kernel.* here"):
        other(np.zeros(4), 4)
    assert other.explain(np.zeros(4), 4).reason == "other trial"
    assert chosen(other) == 500
    assert len(list(listing.all_records())) == 2
    same = tuned(took, objective="call")  # as it is by default
    same(np.zeros(4), 4)
    assert (same.best_config.kwargs["us"], same.cache_info().searches) == (1000, 0)


def test_a_config_file_of_the_one_does_not_serve_the_other(
    took: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chosen(tuned(took))
    ship(tmp_path / "shipped", monkeypatch)
    same, other = tuned(took), tuned(took, objective="kernel")
    for work, searches in ((same, 0), (other, 1)):
        work(np.zeros(4), 4)
        assert work.cache_info().searches == searches


@pytest.mark.parametrize("other", [{"do_bench": lambda call, quantiles: 1.0}, {"use_cuda_graph": True}, {"rep": 5}])
def test_a_benchmark_measures_what_it_does(took: Callable[[float], None], other: dict[str, Any]) -> None:
    with pytest.raises(DecorationError, match="objective: expected none with"):
        tuned(took, objective="call", **other)


def test_another_word_is_an_error(took: Callable[[float], None]) -> None:
    with pytest.raises(DecorationError, match="objective: expected 'kernel' or 'call', got 'host'"):
        tuned(took, objective="host")


@pytest.mark.parametrize(("objective", "block"), [(None, 16), ("kernel", 16), ("call", 32)])
def test_a_kernel_in_the_interpreter(took: Callable[[float], None], objective: str | None, block: int) -> None:
    triton = pytest.importorskip("triton")
    torch = pytest.importorskip("torch")
    import triton.language as tl

    def config(block: int, hook_us: int) -> Any:
        return triton.Config({"BLOCK": block}, pre_hook=lambda arguments: took(hook_us))

    @autotune([config(16, 2000), config(32, 10)], key=["n"], objective=objective)
    @triton.jit
    def double(x_ptr, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)

    def grid(meta: Any) -> tuple[int]:
        took({16: 500, 32: 1000}[meta["BLOCK"]])
        return (64 // meta["BLOCK"],)

    x = torch.ones(64)
    double[grid](x, 64)
    assert double.best_config.kwargs["BLOCK"] == block and bool((x == 2).all())


# -- the timer of GPUs, on one that only keeps time ------------------------------------------------------------------


def trials_on(gpu: Gpu, *launches: tuple[float, int]) -> list[Trial]:
    """Trials that launch so often, and keep the device busy for so many microseconds each time."""

    def launch(device_us: float, count: int) -> Callable[[], None]:
        return lambda: [gpu.launch(device_us) for _ in range(count)] and None

    return [Trial(index, lambda: None, launch(*one)) for index, one in enumerate(launches)]


def raced(gpu: Gpu, timer: timers.CudaTimer, trials: list[Trial]) -> Trial:
    def sample(turn: Any) -> None:
        times = timer.turn(turn)
        for one, us in zip(turn, times or ()):
            one.samples_us.append(us)
        for one in turn if times is None else ():
            one.samples_us += timer.sample(one, 1)

    race.race(trials, race.Track(sample))
    return race.winner(trials, timer.resolution_us)[0]


@pytest.mark.parametrize(("objective", "winner", "us"), [("kernel", 0, 20.0), ("call", 1, 60.0)])
def test_four_cheap_launches_against_one_dear_one(
    monkeypatch: pytest.MonkeyPatch, objective: str, winner: int, us: float
) -> None:
    gpu = Gpu()  # whose host needs 25 us for a launch
    gpu.install(monkeypatch)
    timer = timers.CudaTimer(objective)
    best = raced(gpu, timer, trials_on(gpu, (5.0, 4), (60.0, 1)))
    assert (best.index, round(best.median_us)) == (winner, us)


def test_a_call_that_waits_for_the_device_is_timed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu()
    gpu.install(monkeypatch)
    timer = timers.CudaTimer("call")

    def waiting() -> None:
        gpu.launch(100.0)
        gpu.synchronize()

    [us] = timer.sample(Trial(0, lambda: None, waiting), 1)
    assert 125.0 <= us <= 160.0  # enqueued, run, and waited for
    assert timer.turn([Trial(0, lambda: None, waiting)]) is None


def test_the_regime_says_that_the_host_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu()
    gpu.install(monkeypatch)
    assert timers.CudaTimer("call").regime["host"] == "timed"
    assert "host" not in timers.CudaTimer().regime
