"""Nothing is measured that launches nothing: empty grids of all configs, of some, in every form, and under `install()`."""

import logging

import numpy
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored import records
from triton import Config

import autotuned
from autotuned import autotune
from autotuned.errors import CallError, NotTunedError
from autotuned.tunable.call import is_empty_grid

BLOCKS = (16, 32, 64)
CONFIGS = [Config({"BLOCK": block}) for block in BLOCKS]


def double(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


class Counted:
    """A benchmark that gives larger blocks less time, and counts."""

    def __init__(self):
        self.calls = 0

    def __call__(self, call, quantiles):
        call()
        self.calls += 1
        return [1.0 / (self.calls + 1)] * 3


def make(**options):
    bench = options.setdefault("do_bench", Counted())
    return autotune(CONFIGS, **{"key": [], **options})(triton.jit(double)), bench


def blocks(n):
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def run(kernel, n, grid, size=64):
    x, y = torch.ones(size), torch.zeros(size)
    kernel[grid](x, y, n)
    return y


def test_a_grid_of_the_calls_own_numbers_serves_again():
    """Triton's interpreter gives it tensors, which are numbers until the launch has ended."""
    tuned, _ = make(key=["n"])
    x, y = torch.ones(64), torch.zeros(64)
    for n in (40, 40, 64, 0):
        y.zero_()
        tuned[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, y, n)
        assert y.sum() == 2 * n
    assert tuned.cache_info().hits == 1


EMPTY = {
    "tuple": (0,),
    "second-size": (4, 0),
    "negative": (-1,),
    "callable": lambda meta: (0,),
    "of-tensors": (torch.tensor(0),),
    "of-bool": (False,),
}


@pytest.mark.parametrize("mode", ["auto", "serve", "strict", "search", "off"])
@pytest.mark.parametrize("form", EMPTY)
def test_what_launches_nothing_is_launched_untuned_and_nothing_is_stored(form, mode):
    kernel, bench = make()
    with autotuned.mode(mode):
        for _ in range(2):
            assert not run(kernel, 0, EMPTY[form]).any()
    assert bench.calls == 0
    assert records() == []
    assert kernel.cache_info().searches == 0
    assert (run(kernel, 64, blocks(64)) == 2).all()  # of one key, and of one integer class with n = 0
    assert bench.calls == 3
    assert len(records()) == 1


@pytest.mark.parametrize(
    ("sizes", "empty"),
    [
        ((0,), True), ([0], True), ((1, 0), True), ((1, 2, -1), True), ((numpy.int64(0),), True), ((True,), False),
        ((numpy.int32(3), 1), False), ([4], False), ((), False), ((1, 0, 1, 1), False), (0, False), (None, False),
        ((None,), False), ((0.0,), False), ("0", False),
    ],
    ids=repr,
)  # fmt: skip
def test_what_counts_as_empty(sizes, empty):
    assert is_empty_grid(lambda: sizes) is empty


def test_with_a_default_that_is_what_is_launched():
    kernel, bench = make(default=CONFIGS[1])
    with autotuned.mode("search"):
        run(kernel, 0, (0,))
    assert kernel.best_config is CONFIGS[1]
    assert bench.calls == 0


def test_what_is_stored_serves_a_call_that_launches_nothing_too():
    kernel, bench = make()
    run(kernel, 64, blocks(64))
    again, more = make()
    run(again, 0, (0,))
    assert again.best_config.kwargs == kernel.best_config.kwargs
    assert more.calls == 0
    assert again.explain(torch.ones(4), torch.ones(4), 0, grid=(0,)).hit


def test_a_config_whose_grid_is_empty_is_no_candidate_for_that_call():
    kernel, bench = make()

    def floor(meta):
        return (32 // meta["BLOCK"],)

    for _ in range(3):
        assert (run(kernel, 32, floor)[:32] == 2).all()
        assert kernel.best_config.kwargs["BLOCK"] in (16, 32)
    assert bench.calls == 2
    assert (run(kernel, 64, blocks(64)) == 2).all()
    assert bench.calls == 2 + 2  # the one that could not be measured before, and the one to beat
    [record] = records()
    assert {timing.config["kwargs"]["BLOCK"] for timing in record.timings} == set(BLOCKS)
    again, more = make()
    assert (run(again, 32, floor)[:32] == 2).all()
    assert (run(again, 64, blocks(64)) == 2).all()
    assert more.calls == 0


@pytest.mark.parametrize("mode", ["auto", "serve", "off", "search"])
def test_a_config_that_launches_nothing_is_taken_in_no_mode(mode):
    large = [Config({"BLOCK": block}) for block in (64, 32)]
    with autotuned.mode(mode):
        kernel = autotune(large, key=[], do_bench=Counted())(triton.jit(double))
        assert (run(kernel, 32, lambda meta: (32 // meta["BLOCK"],))[:32] == 2).all()


@pytest.mark.parametrize("mode", ["auto", "serve", "off"])
@pytest.mark.parametrize(
    "default", [Config({"BLOCK": 64}), lambda **arguments: Config({"BLOCK": 64})], ids=["config", "callable"]
)
def test_a_default_that_launches_nothing_gives_way_to_a_config_that_does(mode, default):
    kernel = autotune(CONFIGS, key=[], default=default, do_bench=Counted())(triton.jit(double))
    with autotuned.mode(mode):
        assert (run(kernel, 32, lambda meta: (32 // meta["BLOCK"],))[:32] == 2).all()
        run(kernel, 64, blocks(64))
        assert kernel.best_config.kwargs["BLOCK"] == 64  # nothing of the other call has lasted
        assert not run(kernel, 0, blocks(0)).any()


def test_heuristics_under_the_tuner_are_in_the_grid_that_is_asked():
    @triton.heuristics({"HALF": lambda args: args["BLOCK"] // 2})
    @triton.jit
    def halves(x, y, n, BLOCK: tl.constexpr, HALF: tl.constexpr):
        i = tl.program_id(0) * HALF + tl.arange(0, HALF)
        tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)

    bench = Counted()
    kernel = autotune(CONFIGS, key=[], do_bench=bench)(halves)
    assert (run(kernel, 16, lambda meta: (16 // meta["HALF"],))[:16] == 2).all()
    assert bench.calls == 2  # 64 // 2 is too large
    run(kernel, 0, lambda meta: (0 // meta["HALF"],))
    assert bench.calls == 2


@pytest.mark.parametrize(
    ("grid", "error", "words"),
    [
        (lambda meta: 1 / 0, ZeroDivisionError, "division by zero"),
        (lambda meta: (None,), CallError, "grid: expected a tuple of 1 to 3 integers"),
        ((1, 1, 1, 1), CallError, "grid: expected a tuple of 1 to 3 integers"),
        ("blocks", CallError, "grid: expected a tuple of 1 to 3 integers"),
        (lambda meta: (meta["TILE"],), CallError, "got 'TILE'"),
    ],
    ids=["raises", "none", "too-long", "text", "unknown-name"],
)
def test_grids_that_are_none_raise_as_before(grid, error, words):
    kernel, _ = make()
    with pytest.raises(error, match=words):
        run(kernel, 64, grid)
    assert records() == []


def test_freeze_refuses_to_take_what_cannot_be_measured():
    kernel, _ = make()
    with pytest.raises(NotTunedError, match="expected a grid with blocks to measure, got an empty one"):
        autotuned.freeze(kernel, torch.ones(4), torch.ones(4), 0, grid=(0,))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    calls=st.lists(
        st.tuples(st.sampled_from([0, 8, 16, 32, 48, 64]), st.sampled_from(["up", "down", "fixed"])), max_size=8
    ),
    stored=st.booleans(),
)
def test_whatever_grids_are_called_nothing_empty_is_measured_and_nothing_is_left_undone(
    tmp_path_factory, monkeypatch, calls, stored
):
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    launched = []

    def bench(call, quantiles):
        before = len(launched)
        call()
        assert len(launched) > before
        return [1.0 + len(launched)] * 3

    kernel = autotune(
        CONFIGS,
        key=[],
        do_bench=bench,
        cache_results=stored,
        pre_hook=lambda args, **kw: launched.append(args["BLOCK"]),
    )(triton.jit(double))
    for n, how in calls:
        grids = {"up": blocks(n), "down": lambda meta, n=n: (n // meta["BLOCK"],), "fixed": (n // 16,)}
        before = kernel.cache_info().searches
        y = run(kernel, n, grids[how])
        whole = [block for block in BLOCKS if n // block > 0]
        if n == 0 or (how == "down" and not whole) or (how == "fixed" and n < 16):
            assert not y.any()
            assert kernel.cache_info().searches == before
        elif how == "down" and kernel.cache_info().searches > before:
            assert kernel.best_config.kwargs["BLOCK"] in whole
        elif how == "up":
            assert (y[:n] == 2).all()
    assert kernel.cache_info().searches <= len(BLOCKS)
    assert all(timing.status == "ok" for record in records() for timing in record.timings)


# -- kernels that Triton tunes ------------------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["seeded", "replaced"])
def installed(request):
    autotuned.install(replace=request.param)
    yield request.param
    autotuned.uninstall()


def theirs(bench, **options):
    return triton.autotune(configs=CONFIGS, key=[], do_bench=bench, **options)(triton.jit(double))


def test_triton_measures_nothing_that_launches_nothing(installed):
    bench = Counted()
    kernel = theirs(bench)
    for grid in EMPTY.values():
        run(kernel, 0, grid)
    assert bench.calls == 0
    assert dict(kernel.cache) == {}
    assert records() == []
    assert (run(kernel, 64, blocks(64)) == 2).all()
    assert bench.calls == 3
    assert len(records()) == 1


def test_triton_measures_no_config_whose_grid_is_empty(installed):
    bench = Counted()
    asked = []
    kernel = theirs(
        bench, prune_configs_by={"early_config_prune": lambda configs, named, **kw: asked.append(1) or configs}
    )
    assert (run(kernel, 32, lambda meta: (32 // meta["BLOCK"],))[:32] == 2).all()
    assert bench.calls == 2
    [record] = records()
    assert {timing.config["kwargs"]["BLOCK"] for timing in record.timings} == {16, 32}
    assert len(kernel.prune_configs({"n": 64})) == 3  # its own pruning is back in its place
    more = Counted()
    again = theirs(more, prune_configs_by={"early_config_prune": lambda configs, named, **kw: configs})
    assert (run(again, 64, blocks(64)) == 2).all()
    assert more.calls == 3  # one of these was not measured before


def test_nothing_is_measured_in_mode_off_either(installed):
    bench = Counted()
    kernel = theirs(bench)
    with autotuned.mode("off"):
        run(kernel, 0, (0,))
    assert bench.calls == 0


def test_a_warning_is_no_part_of_it(installed, caplog):
    caplog.set_level(logging.WARNING, "autotuned")
    run(theirs(Counted()), 0, (0,))
    assert caplog.records == []
