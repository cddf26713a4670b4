"""`install(race=True)`: our search behind Triton's tuners of other libraries, and all that a program sees after it."""

import contextlib
import json
import logging

import fake_cuda
import pytest
import triton
import triton.language as tl
from triton import Config, knobs
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
from triton.runtime.autotuner import Autotuner

import autotuned
from autotuned.dropin import install
from autotuned.store import listing

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32}), Config({"BLOCK": 64})]
STOCK_BENCH = Autotuner._bench
TIMES = {16: 2.0, 32: 1.0, 64: 3.0}


class Library(Autotuner):
    """As fla's: a `run` of its own, which ends in Triton's."""

    calls = 0

    def run(self, *args, **kwargs):
        Library.calls += 1
        return super().run(*args, **kwargs)


class Measuring(Autotuner):
    """A library that times configs by itself."""

    def _bench(self, *args, config, **meta):
        return [float(config.kwargs["BLOCK"])] * 3


@triton.jit
def add(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


@triton.jit
def refuses_some(x_ptr, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK != 16)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


@triton.jit
def refuses_all(x_ptr, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK == 0)


@triton.jit
def does_not_compile(x_ptr, n, BLOCK: tl.constexpr):
    if BLOCK == 16:
        tl.store(x_ptr, nowhere)  # noqa: F821


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    install.uninstall()
    assert Autotuner._bench is STOCK_BENCH


@pytest.fixture
def bench():
    return fake_cuda.by_config(TIMES)


@pytest.fixture(params=["raced", "beside", "replaced"])
def make(request, bench):
    """A tuner that is raced: Triton's, one with a table in front, and one of our class."""
    stock = triton.autotune
    autotuned.install(replace=request.param != "raced", race=True)
    decorator = triton.autotune if request.param == "replaced" else stock

    def make(fn=add, configs=CONFIGS, **options):
        return decorator(configs, **{"key": ["n"], "do_bench": bench, **options})(fn)

    return make


def records():
    return [record for _, record in listing.all_records()]


def test_the_race_picks_the_fastest_and_says_how_it_measured(make, x, bench):
    kernel = make()
    kernel[(4,)](x, 100)
    assert sorted(bench.calls) == [16, 32, 64]
    assert kernel.best_config is CONFIGS[1]
    assert {config.kwargs["BLOCK"]: times for config, times in kernel.configs_timings.items()} == {
        block: [time] * 3 for block, time in TIMES.items()
    }
    assert kernel.bench_time > 0
    (record,) = records()
    assert (record.key.call["tuner"]["name"], record.median_us) == ("race-1", 1000.0)
    assert record.winner["kwargs"] == {"BLOCK": 32}


def test_the_next_tuner_is_served_from_the_store(make, x, bench):
    make()[(4,)](x, 100)
    bench.calls.clear()
    again = make()
    again[(4,)](x, 100)
    assert (again.best_config, bench.calls) == (CONFIGS[1], [])


def test_without_race_a_raced_choice_does_not_serve_nor_the_other_way_round(x, bench):
    def measured(race):
        bench.calls.clear()
        autotuned.install(race=race)
        triton.autotune(CONFIGS, key=["n"], do_bench=bench)(add)[(4,)](x, 100)
        install.uninstall()
        return sorted(bench.calls)

    assert [measured(race) for race in (True, False, True, False)] == [[16, 32, 64], [16, 32, 64], [], []]
    assert sorted(record.key.call["tuner"]["name"] for record in records()) == ["race-1", "triton"]


def test_our_clock_measures_where_the_library_has_no_benchmark(make, x):
    kernel = make(do_bench=None)
    kernel[(4,)](x, 100)
    (record,) = records()
    assert record.provenance["timer"] == "race-1"
    assert all(timing.samples > 1 for timing in record.timings if timing.status == "ok")
    assert min(kernel.configs_timings, key=kernel.configs_timings.get) is kernel.best_config
    assert x.abs().sum() == 0  # nothing runs on a pretended GPU; what was put back is what there was


def test_a_subclass_with_a_run_of_its_own_is_raced(x, bench):
    autotuned.install(race=True)
    kernel = Library(add, add.arg_names, CONFIGS, ["n"], None, None, do_bench=bench)
    kernel[(4,)](x, 100)
    kernel[(4,)](x, 100)
    assert (kernel.best_config, sorted(bench.calls)) == (CONFIGS[1], [16, 32, 64])
    assert records()[0].key.call["tuner"]["name"] == "race-1"


def test_a_library_that_times_configs_by_itself_goes_on_doing_so(x):
    autotuned.install(race=True)
    kernel = Measuring(add, add.arg_names, CONFIGS, ["n"], None, None)
    kernel[(4,)](x, 100)
    assert kernel.best_config is CONFIGS[0]
    assert records()[0].key.call["tuner"]["name"] == "triton"


def test_only_what_the_pruner_leaves_is_raced(make, x, bench):
    kernel = make(prune_configs_by={"early_config_prune": lambda configs, nargs, **kwargs: [configs[0], configs[2]]})
    kernel[(4,)](x, 100)
    assert (kernel.best_config, sorted(bench.calls)) == (CONFIGS[0], [16, 64])
    assert list(kernel.configs_timings) == [CONFIGS[0], CONFIGS[2]]


def test_hooks_see_what_triton_gives_them(bench, x):
    def seen_with(race):
        seen = []
        configs = [Config({"BLOCK": b}, pre_hook=lambda args: seen.append(("config", *sorted(args)))) for b in (16, 32)]
        before = lambda args, reset_only=False: seen.append(("before", reset_only, *sorted(args)))
        after = lambda args, exception: seen.append(("after", exception, *sorted(args)))
        if race:
            autotuned.install(race=True)
        options = {"pre_hook": before, "post_hook": after, "do_bench": bench}
        triton.autotune(configs, key=["n"], **options)(add)[(4,)](x, 100)
        install.uninstall()
        return seen

    stock, raced = seen_with(False), seen_with(True)
    assert set(raced) == set(stock)
    assert [one for one in raced if one[:2] == ("before", True)] == [
        one for one in stock if one[:2] == ("before", True)
    ]
    assert len([1 for one in raced if one[0] == "before"]) - 1 == len([1 for one in raced if one[0] == "after"])


@pytest.mark.parametrize("before", [False, True], ids=["", "with a pre_hook"])
@pytest.mark.parametrize("fn", [refuses_some, does_not_compile, add], ids=lambda fn: fn.__name__)
def test_the_hook_after_a_trial_hears_of_what_does_not_compile_or_fit(fn, before, bench, x):
    """A config that the race drops before any launch, for its code or for its threads, fails in Triton's trial."""

    def heard_with(race):
        heard = []
        configs = [*CONFIGS, Config({"BLOCK": 16}, num_warps=128)] if fn is add else CONFIGS
        options = {"post_hook": lambda args, exception: heard.append((args["BLOCK"], args["num_warps"], exception))}
        if before:
            options["pre_hook"] = lambda args, reset_only=False: None
        if race:
            autotuned.install(race=True)
        with contextlib.suppress(CompilationError):
            anew = triton.jit(fn.fn)  # Triton keeps the error of a kernel that does not load
            triton.autotune(configs, key=["n"], do_bench=bench, **options)(anew)[(4,)](x, 100)
        install.uninstall()
        return [(*which, type(error), str(error)) for *which, error in heard if error is not None]

    stock = heard_with(False)
    assert len(stock) == 1
    assert heard_with(True) == stock


@pytest.mark.parametrize("raced", [False, True], ids=["stock", "raced"])
@pytest.mark.parametrize("fn", [refuses_some, refuses_all, does_not_compile], ids=lambda fn: fn.__name__)
def test_failures_end_as_with_triton(fn, raced, x, bench):
    if raced:
        autotuned.install(race=True)
    kernel = triton.autotune(CONFIGS, key=["n"], do_bench=bench)(fn)
    if fn is refuses_some:
        kernel[(4,)](x, 100)
        assert kernel.best_config is CONFIGS[1]
        assert kernel.configs_timings[CONFIGS[0]] == [float("inf")] * 3
        return
    kind = CompileTimeAssertionFailure if fn is refuses_all else CompilationError
    with pytest.raises(kind) as raised:
        kernel[(4,)](x, 100)
    assert type(raised.value) is kind
    assert not kernel.cache or not raced


@pytest.mark.parametrize("answer", [RuntimeError("once"), 0.0, float("nan"), []], ids=str)
def test_a_config_that_fails_in_the_race_is_not_run_again_unprotected(answer, x, caplog):
    asked = []

    def bench(call, quantiles):
        asked.append(call)
        if len(asked) > 1:
            return [1.0] * 3
        if isinstance(answer, Exception):
            raise answer
        return answer

    autotuned.install(race=True)
    kernel = triton.autotune(CONFIGS, key=["n"], do_bench=bench)(add)
    with caplog.at_level(logging.WARNING, logger="autotuned"):
        kernel[(4,)](x, 100)
    assert len(asked) == len(CONFIGS)
    [failed] = [config for config, times in kernel.configs_timings.items() if times == [float("inf")] * 3]
    assert kernel.best_config is not failed
    assert (
        sum("left out" in record.getMessage() or "leaves out" in record.getMessage() for record in caplog.records) == 1
    )


def test_what_triton_refuses_calls_no_hook(make, x, bench, caplog):
    seen = []
    kernel = make(pre_hook=lambda args, reset_only=False: seen.append(args))
    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        kernel[(4,)](x, 100, BLOCK=16)
    assert (seen, bench.calls, caplog.messages) == ([], [], [])


def test_what_cannot_be_raced_is_measured_by_triton_with_one_line(x, bench, monkeypatch, caplog):
    from autotuned.resolve.searcher import Searcher

    def broken(*args):
        raise RuntimeError("no search today")

    monkeypatch.setattr(Searcher, "search", broken)
    autotuned.install(race=True)
    kernel = triton.autotune(CONFIGS, key=["n"], do_bench=bench)(add)
    with caplog.at_level(logging.WARNING, logger="autotuned"):
        kernel[(4,)](x, 100)
        kernel[(4,)](x, 101)
    assert kernel.best_config is CONFIGS[1]
    assert bench.calls == [16, 32, 64, 16, 32, 64]
    (line,) = [record.getMessage() for record in caplog.records if "no race" in record.getMessage()]
    assert "no search today" in line
    assert len(records()) == 2  # what Triton measured is kept, and serves the next process
    bench.calls.clear()
    triton.autotune(CONFIGS, key=["n"], do_bench=bench)(add)[(4,)](x, 100)
    assert bench.calls == []


@pytest.mark.skipif(not hasattr(knobs.autotuning, "listener"), reason="this Triton has no listener")
def test_tritons_listener_is_told_as_by_triton(make, x, monkeypatch):
    told = []
    monkeypatch.setattr(knobs.autotuning, "listener", lambda **facts: told.append(facts))
    make()[(4,)](x, 100)
    (facts,) = told
    assert (facts["best_config"], facts["cache_hit"]) == (CONFIGS[1], False)
    assert sorted(times[0] for times in facts["configs_timings"].values()) == [1.0, 2.0, 3.0]
    assert facts["duration"] > 0


def test_tritons_file_cache_holds_what_the_race_found(make, x, bench, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    make(cache_results=True)[(4,)](x, 100)
    (path,) = tmp_path.rglob("*.autotune.json")
    assert sorted(times[0] for _, times in json.loads(path.read_text())["configs_timings"]) == [1.0, 2.0, 3.0]
    bench.calls.clear()
    with autotuned.mode("search"):  # ours is not asked
        make(cache_results=True)[(4,)](x, 100)
    assert bench.calls == []


def test_a_kernel_launched_within_a_trial_has_a_race_of_its_own(x, bench):
    autotuned.install(race=True)
    inner = triton.autotune(CONFIGS[:2], key=["n"], do_bench=bench)(add)
    nested = lambda args: inner[(4,)](x, args["n"] + 1)
    outer = triton.autotune(
        [Config({"BLOCK": b}, pre_hook=nested) for b in (64, 16)], key=["n"], do_bench=fake_cuda.by_config(TIMES)
    )(add)
    outer[(4,)](x, 100)
    assert (outer.best_config.kwargs["BLOCK"], inner.best_config) == (16, CONFIGS[1])
    assert sorted(times[0] for times in outer.configs_timings.values()) == [2.0, 3.0]


def test_nothing_is_raced_unless_asked(x, bench):
    autotuned.install()
    triton.autotune(CONFIGS, key=["n"], do_bench=bench)(add)[(4,)](x, 100)
    assert records()[0].key.call["tuner"]["name"] == "triton"


def test_a_bench_that_somebody_replaced_stays(x, bench, monkeypatch, caplog):
    theirs = lambda self, *args, config, **meta: [1.0] * 3
    monkeypatch.setattr(Autotuner, "_bench", theirs)
    autotuned.install(race=True)
    assert Autotuner._bench is theirs
    assert "there are no races" in caplog.text
    triton.autotune(CONFIGS, key=["n"], do_bench=bench)(add)[(4,)](x, 100)
    monkeypatch.undo()


def test_the_winner_of_a_near_tie_is_the_least_that_triton_sees():
    from autotuned.dropin.raced import answers
    from autotuned.store.record import Timing

    forms = [{"kwargs": {"BLOCK": block}} for block in (1, 2, 3, 4)]
    timings = [
        Timing(forms[0], 1.01, 1.0, 1.1, 9), Timing(forms[1], 1.0, 1.0, 1.0, 9), Timing(forms[2], 2.0, 2.0, 2.0, 9),
        Timing(forms[3], status="failed", error="OutOfResources: shared memory"),
    ]  # fmt: skip
    found = answers({timing.identity: timing for timing in timings}, timings[0].identity)
    assert min(found, key=found.get) == timings[0].identity
    assert found[timings[3].identity] == [float("inf")] * 3
    assert found[timings[1].identity] > found[timings[0].identity]
