"""A batch that grows while it is compiled: rough times are told at once, and further configs asked for."""

from __future__ import annotations

import itertools
import logging
import math
import threading
from functools import partial
from types import SimpleNamespace

import pytest
from declared_space import Table, microseconds, space, tuned, values
from triton import Config

import autotuned
from autotuned.search import batches, timers
from autotuned.search.job import Outcome
from autotuned.store import listing
from autotuned.tunable.function import TunableFunction

WORKERS = 4
LONGEST_S = 60.0  # only a mistake takes that long


@pytest.fixture
def compilers(monkeypatch):
    """Plain callables as if they were compiled, by a function of the config, and timed while others compile."""

    def compile_in(self, executor, call, config):
        return executor.submit(partial(made.compile, config)).result

    def made():
        """Where `made.compile` is set."""

    made.compile = lambda config: None
    monkeypatch.setattr(TunableFunction, "compiles_ahead", True)
    monkeypatch.setattr(TunableFunction, "compile_in", compile_in, raising=False)
    monkeypatch.setattr(TunableFunction, "compile", lambda self, call, config: made.compile(config), raising=False)
    monkeypatch.setattr(timers.GivenTimer, "overlaps", True)
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", str(WORKERS))
    return made


class Watched:
    """A strategy that notes how many of its configs were out whenever it was asked, and all that it was told."""

    def __init__(self, inner, asks_ahead=True):
        self.inner, self.asks_ahead = inner, asks_ahead
        self.asked, self.told, self.out = [], [], []
        self.several = threading.Event()  # set once it was asked with results missing

    def ask(self, n):
        missing = {*map(values, self.asked)} - {config for config, _, _ in self.told}
        self.out.append(len(missing))
        if missing and self.told:
            self.several.set()
        found = list(self.inner.ask(n))
        self.asked += found
        return found

    def tell(self, results):
        results = list(results)
        self.told += [(values(config), us, status) for config, us, status in results]
        self.inner.tell(results)


class Listed:
    """Configs in their order, a few at a time."""

    def __init__(self, configs):
        self.left = list(configs)

    def ask(self, n):
        asked, self.left = self.left[:n], self.left[n:]
        return asked

    def tell(self, results):
        """Take nothing."""


def listed(count):
    members = space().members(options=False)
    return Listed([members.config(members[index]) for index in range(0, members.size, members.size // count)])


def test_nobody_waits_for_the_slowest_config(compilers):
    """The first config is compiled only once the strategy was asked again: with a barrier that never came."""
    own = Watched(autotuned.strategy("guided", space()))
    first = itertools.count()

    def compile_(config):
        if next(first) == 0:
            assert own.several.wait(LONGEST_S)

    compilers.compile = compile_
    f = tuned(space(), strategy=own)
    f(1)
    assert values(f.best_config) == (64, 32, 0) and max(own.out) >= 1
    assert len(own.asked) == len({*map(values, own.asked)})


@pytest.mark.parametrize("reason", ["strategy", "timer"])
def test_all_is_told_before_the_next_batch(compilers, monkeypatch, reason):
    """Where the strategy does not ask ahead, or times are wrong while others compile."""
    if reason == "timer":
        monkeypatch.setattr(timers.GivenTimer, "overlaps", False)
    own = Watched(autotuned.strategy("guided", space()), asks_ahead=reason != "strategy")
    f = tuned(space(), strategy=own)
    f(1)
    assert values(f.best_config) == (64, 32, 0) and not any(own.out)


@pytest.mark.parametrize("objective", ["kernel", "call"])
def test_times_of_the_host_are_not_taken_beside_compilers(compilers, monkeypatch, objective):
    monkeypatch.setattr(timers.HostTimer, "overlaps", True)
    own = Watched(listed(20))
    f = autotuned.autotune(configs=space(), strategy=own, key=["n"], objective=objective)(lambda n, *, a, b, c: None)
    f(1)
    assert any(own.out) == (objective == "kernel")


def test_an_answer_of_nothing_ends_a_search_only_once_all_is_told(compilers):
    """As of a strategy that waits for a generation."""

    class Generations(Listed):
        missing = 0

        def ask(self, n):
            if self.missing:
                return []
            asked = super().ask(min(n, 6))
            self.missing = len(asked)
            return asked

        def tell(self, results):
            self.seen = getattr(self, "seen", set()) | {values(config) for config, _, _ in results}
            self.missing = len({*map(values, own.asked)} - self.seen)

    own = Watched(Generations(listed(30).left))
    f = tuned(space(), strategy=own)
    f(1)
    assert not own.inner.left and {config for config, _, _ in own.told} >= {*map(values, own.asked)}


def test_what_the_check_finds_wrong_is_told_again(compilers):
    """A config is timed before it is checked."""
    import torch

    own = Watched(Listed([*(Config({"a": 64, "b": 32, "c": c}) for c in range(5)), *listed(10).left]))
    table = Table()

    def run(n, out, *, a, b, c):
        table.now = (a, b, c)
        out.fill_(float(c == 1))

    f = autotuned.autotune(configs=space(), strategy=own, key=["n"], do_bench=table, name="declared.checked",
                           check=lambda n, out: torch.zeros(1))(run)  # fmt: skip
    f(1, torch.zeros(1))
    assert [(us, status) for config, us, status in own.told if config == (64, 32, 1)] == [
        (pytest.approx(60), "ok"),
        (None, "wrong"),
    ]
    assert values(f.best_config) == (64, 32, 0)


@pytest.mark.parametrize("later", ["wrong", "ok"])
def test_the_later_result_counts(later):
    strategy = autotuned.strategy("guided", space())
    [config, *_] = asked = strategy.ask(8)
    strategy.tell([(one, 90.0, "ok") for one in asked])
    strategy.tell([(config, None if later == "wrong" else 50.0, later)])
    guided, point = strategy._asking, strategy.members.point(config)
    assert (point in guided._failed, point in guided._times) == (later == "wrong", later == "ok")


def test_what_is_awaited_is_taken_into_account():
    """One at a time, without a result in between, a strategy asks for as many different configs as at once."""

    def begun():
        made = autotuned.strategy("guided", space(where=[lambda a, b: a * b <= 2**13]))
        made.tell([(one, microseconds(*values(one)), "ok") for one in made.ask(16)])
        return made

    once, single = begun().ask(8), begun()
    singly = [one for _ in range(8) for one in single.ask(1)]
    assert len({*map(values, singly)}) == 8
    spread = lambda found: len({values(one)[:2] for one in found})
    assert spread(singly) >= spread(once) - 2


def test_an_interrupted_batch_keeps_its_times(compilers, monkeypatch):
    own = Watched(autotuned.strategy("guided", space()))
    f = tuned(space(), strategy=own)
    answer, left = Table.__call__, [None] * 9

    def stops(self, call, quantiles=None):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return answer(self, call, quantiles)

    with monkeypatch.context() as until, pytest.raises(KeyboardInterrupt):
        until.setattr(Table, "__call__", stops)
        f(1)
    before = set(f.table.asked)
    f = tuned(space())
    f(1)
    assert values(f.best_config) == (64, 32, 0)
    assert len(before) >= 8 and len(before & set(f.table.asked)) <= 1  # the best is measured again


@pytest.fixture
def batch(compilers):
    """A batch of a search for a budget in seconds, with 90 more configs to ask for."""

    def begun(budget_s):
        tunable, timer = SimpleNamespace(name="f", compiles_ahead=True), SimpleNamespace(overlaps=True)
        job = SimpleNamespace(configs={}, known={}, incumbent=None, tunable=tunable, timer=timer, objective="kernel",
                              hooks=SimpleNamespace(before=None), budget_s=math.inf)  # fmt: skip
        admit = lambda asked: {str(values(config)): config for config in asked}
        made = batches._Batches(job, Outcome(), batches.Source(Watched(listed(90)), admit, "90"))
        made._begin(admit(listed(90).left[-4:]), budget_s)
        return made

    return begun


def test_a_batch_keeps_all_compilers_busy_and_ends(batch):
    one = batch(math.inf)
    assert len(one._more({}, WORKERS - 1)) == 1 and one._more({}, WORKERS) == []
    sizes = [len(one._more({}, 0)) for _ in range(20)]
    assert set(sizes[:4]) == {WORKERS} and sizes[-1] == 0
    assert len(one._batch) == batches.GROWTH * batches.LEAST_BATCH


def test_a_batch_does_not_grow_when_half_of_the_time_is_over(batch):
    assert batch(-1.0)._more({}, 0) == []


def test_the_search_says_how_many_it_tried(compilers, caplog):
    caplog.set_level(logging.INFO, "autotuned")
    f = tuned(space())
    f(1)
    [record] = [found for _, found in listing.all_records("declared.f")]
    said = record.provenance["space"]
    assert said["trials"] == len(set(f.table.asked)) and said["best_so_far"][-1][0] <= said["trials"]
    assert said["best_so_far"][-1][2] == pytest.approx(50, rel=0.01)


def test_a_config_that_was_given_before_is_told_and_not_measured_again(compilers):
    again = Config({"a": 64, "b": 32, "c": 0})
    own = Watched(Listed([again, *listed(12).left, again, *listed(12).left]))
    f = tuned(space(), strategy=own)
    f(1)
    assert values(f.best_config) == (64, 32, 0)
    assert {config for config, _, _ in own.told} == {*map(values, own.asked)}
    assert {status for config, us, status in own.told if us is None} <= {"failed"}


@pytest.mark.parametrize("runs", [True, False])
def test_a_strategy_that_raises_once_ends_the_search_with_its_error(compilers, runs):
    """Also while a batch grows of which nothing has run."""

    class Broken(Listed):
        asked = 0

        def ask(self, n):
            self.asked += 1
            if self.asked == 3:
                raise KeyError("my own")
            return super().ask(n)

    def fails(config):
        raise RuntimeError("no such instruction")

    if not runs:
        compilers.compile = fails
    with pytest.raises(KeyError, match="my own"):
        tuned(space(), strategy=Watched(Broken(listed(30).left)))(1)
