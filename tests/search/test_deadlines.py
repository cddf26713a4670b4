"""After the deadline of a budget no config is compiled or launched and no sample taken, but for the one answer."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import FakeConfig as Config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored import records

from autotuned import autotune
from autotuned.errors import AllConfigsFailedError
from autotuned.search import racing, search, timers
from autotuned.search.compiling import compile as compiling
from autotuned.search.compiling.compile import CompileStream, Wanted
from autotuned.store import locks
from autotuned.tunable.call import Call
from autotuned.tunable.function import TunableFunction


class Clock:
    """A clock that stands still but for what is told to it."""

    now_s = 0.0

    def monotonic(self):
        return self.now_s

    def perf_counter_ns(self):
        return int(self.now_s * 1e9)

    perf_counter, strftime = monotonic, staticmethod(time.strftime)

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (search, racing, compiling, timers, locks):
        monkeypatch.setattr(module, "time", made)
    return made


class World:
    """An argument that notes when it is launched with which step; of such an object no key holds anything."""

    def __init__(self, clock, launch_s, fails=()):
        self.clock, self.launch_s, self.fails = clock, launch_s, frozenset(fails)
        self.launches, self.seconds = [], {}  # seconds of single steps

    def launch(self, step):
        self.launches.append((self.clock.now_s, step))
        self.clock.now_s += self.seconds.get(step, self.launch_s)
        if step in self.fails:
            raise ValueError(f"step {step} fails")

    @property
    def steps(self):
        return [step for _, step in self.launches]

    def late(self, budget_s):
        """Launches that began after the deadline, without the last one, which is the call's own."""
        return [step for at, step in self.launches[:-1] if at > budget_s]


def work(x, world, *, step):
    world.launch(step)


def configs(count):
    return [Config({"step": step}) for step in range(count)]


def tuned(count, **options):
    return autotune(configs(count), **{"restore_value": [], **options})(work)


def test_no_sample_and_no_launch_begins_after_the_deadline(clock):
    world = World(clock, 1.0)
    tuned(20, budget_s=4.5)(np.zeros(1), world)
    assert world.steps == [0, 0, 1, 1, 2, 0]  # each launched and timed, as long as there is time; then the call
    [record] = records()
    assert [timing.config["kwargs"]["step"] for timing in record.timings] == [0, 1]


def test_samples_stop_at_the_deadline_in_the_middle_of_a_round(clock):
    world = World(clock, 0.02)
    tuned(2, budget_s=1.0)(np.zeros(1), world)
    assert world.late(1.0) == []
    assert len(world.launches) > 10


def test_a_slow_benchmark_is_asked_no_more_once_time_is_up(clock):
    asked = []

    def bench(call, quantiles):
        call()
        asked.append(clock.now_s)
        clock.now_s += 1.0  # this call is under way: it is not stopped
        return [1.0 + len(asked)] * 3

    world = World(clock, 0.0)
    tuned(5, budget_s=0.5, do_bench=bench)(np.zeros(1), world)
    assert asked == [0.0]
    tuned(5, budget_s=2.5, do_bench=bench, version=2)(np.zeros(1), world)
    assert len(asked) == 1 + 3


def test_the_next_process_measures_the_rest(clock):
    world, measured = World(clock, 1.0), []
    for _ in range(6):
        tuned(4, budget_s=0.5)(np.zeros(1), world)
        measured.append(len(records()[0].timings))
    assert measured == [1, 2, 3, 4, 4, 4]


@pytest.mark.parametrize("command_s", [0.5, None])
def test_the_budget_of_a_command_is_kept_alike(clock, command_s):
    world = World(clock, 1.0)
    function = tuned(5, budget_s=None if command_s else 0.5)
    function.tuner.tune(function.tuner.call((np.zeros(1), world), {}, None), budget_s=command_s)
    assert world.steps == [0, 0]


def test_what_fails_does_not_count_as_an_answer(clock):
    world = World(clock, 1.0, fails={0, 1})
    tuned(5, budget_s=0.5)(np.zeros(1), world)
    assert world.steps == [0, 1, 2, 2, 2]


def test_the_untuned_config_that_runs_last_is_timed_although_it_is_late(clock):
    """The likely winner comes first; the untuned config, launched as time ran out, must win without the duel."""
    world = World(clock, 0.0)
    for size, untuned_s, budget_s in ((1, 0.4, None), (2, 50.0, 9.0)):
        world.launches.clear()
        world.seconds = {0: untuned_s, 1: 0.3, 2: 0.2}
        function = tuned(3, budget_s=budget_s)
        function(np.zeros(size), world)
    assert world.steps[0] == 2 and world.late(9.0) == [0]
    assert function.best_config.kwargs == {"step": 0}
    [record] = [one for one in records() if one.unconfirmed]
    assert (record.winner["kwargs"], record.median_us) == ({"step": 0}, 50e6)


def test_where_the_first_that_ran_cannot_be_timed_the_next_one_is_tried(clock):
    world = World(clock, 1.0)

    def bench(call, quantiles):
        call()
        return None if world.steps[-1] == 0 else [1.0] * 3

    tuned(5, budget_s=0.5, do_bench=bench)(np.zeros(1), world)
    assert world.steps == [0, 0, 1, 1, 1]


def test_where_none_can_be_timed_the_error_says_so(clock):
    with pytest.raises((AllConfigsFailedError, ValueError), match="step . fails"):
        tuned(5, budget_s=0.5)(np.zeros(1), World(clock, 1.0, fails=range(5)))


def test_of_what_is_checked_only_the_winner_is_after_the_deadline(clock):
    world = World(clock, 1.0)
    tuned(5, budget_s=4.5, check=lambda x, world: {"x": x}, restore_value=["x"])(np.zeros(1), world)
    assert set(world.late(4.5)) <= {0, 1}
    assert len(world.late(4.5)) == 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(2, 8),
    launch_s=st.floats(0.001, 3.0),
    budget_s=st.floats(0.001, 10.0),
    fails=st.sets(st.integers(0, 7)),
    benched=st.booleans(),
)
def test_whatever_it_costs_at_most_one_answer_comes_late(
    clock, tmp_path_factory, monkeypatch, count, launch_s, budget_s, fails, benched
):
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    clock.now_s, world = 0.0, World(clock, launch_s, fails)

    def bench(call, quantiles):
        call()
        return [launch_s] * 3

    function = tuned(count, budget_s=budget_s, do_bench=bench if benched else None)
    if set(range(count)) <= fails:
        with pytest.raises((AllConfigsFailedError, ValueError)):
            function(np.zeros(1), world)
        return
    function(np.zeros(1), world)
    late = [step for step in world.late(budget_s) if step not in fails]
    assert len(late) <= 2  # the first launch of the one, where all before it failed, and its one sample
    assert len(set(late)) <= 1


# -- compiling ---------------------------------------------------------------------------------------------------------


def wanted(count, hooked=()):
    return [Wanted(index, str(index), Config({"step": index}), index in hooked) for index in range(count)]


class Compiles(TunableFunction):
    """Something that is compiled in a pool, a second each."""

    compiles_ahead = True

    def __init__(self, clock, fails=()):
        super().__init__(work, "t.work", ())
        self.clock, self.begun, self.fails = clock, [], fails

    def compile(self, call, config):
        self.begun.append((self.clock.now_s, config.kwargs["step"]))
        self.clock.now_s += 1.0
        if config.kwargs["step"] in self.fails:
            raise ValueError("does not compile")

    def compile_in(self, executor, call, config):
        return executor.submit(lambda: self.compile(call, config)).result


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize("hooked", [(), (0, 1, 2, 3, 4)], ids=["plain", "hooked"])
def test_no_compilation_begins_after_the_deadline_once_a_config_has_run(clock, monkeypatch, workers, hooked):
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", workers)
    target, ran = Compiles(clock), []
    ahead = CompileStream(target, Call((), {}, {}))
    for ready in ahead.stream(wanted(5, hooked), 2.5, enough=lambda: bool(ran)):
        ready.take()
        ran.append(ready.wanted.index)
        if workers == "1" and not hooked:
            clock.now_s = max(clock.now_s, 2.6)  # what it takes to launch and measure it
    assert ran
    assert len(target.begun) < 5


def test_as_long_as_none_has_run_they_are_compiled(clock, monkeypatch):
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", "0")
    target = Compiles(clock, fails={0, 1, 2})
    ran = []
    for ready in CompileStream(target, Call((), {}, {})).stream(wanted(6), 0.5, enough=lambda: bool(ran)):
        try:
            ready.take()
        except ValueError:
            continue
        ran.append(ready.wanted.index)
    assert ran == [3]
    assert [step for _, step in target.begun] == [0, 1, 2, 3]


def test_a_twentieth_of_a_budget_is_kept_for_the_last_comparison(monkeypatch):
    monkeypatch.setattr(racing, "time", SimpleNamespace(monotonic=lambda: 7.0))
    found = racing.Sampling(SimpleNamespace(budget_s=100.0), None)
    assert found.left_s == 95.0
    found.use_all()
    assert found.left_s == 100.0
