"""Strategies: replayed on spaces whose every time is known, by seed, with priors that help and that mislead."""

from __future__ import annotations

import itertools
import math
import random
import re
import statistics

import numpy as np
import pytest
from triton import Config

import autotuned
from autotuned import Space, pow2s
from autotuned.errors import OptionError
from autotuned.space import strategies
from autotuned.space.guided import Guided


def modelled_matmul(sms=108, smem=164, m=4096, n=4096, k=4096):
    """Times of a made-up matmul: waves of tiles, loads that stages hide, limits of registers and shared memory."""
    values = {"BM": pow2s(16, 256), "BN": pow2s(16, 256), "BK": pow2s(16, 128), "num_warps": pow2s(1, 8),
              "num_stages": range(1, 6)}  # fmt: skip
    times = {}
    for bm, bn, bk, warps, stages in itertools.product(*values.values()):
        shared, per_thread = (bm + bn) * bk * 2 * stages, bm * bn / (32 * warps)
        if shared > smem * 1024 or per_thread > 512:
            times[bm, bn, bk, warps, stages] = None
            continue
        waves = math.ceil(math.ceil(m / bm) * math.ceil(n / bn) / sms)
        reuse = (bm * bn / (bm + bn)) / 64
        speed = min(1.0, reuse) ** 0.7 * (1 - 0.4 / (stages + 0.3)) * min(1.0, bk / 64) ** 0.3
        spills = 1 + max(0.0, per_thread - 160) / 200
        idle = 1 + 0.1 * abs(math.log2(per_thread) - 6)
        times[bm, bn, bk, warps, stages] = waves * bm * bn * k / speed * spills * idle / 1e6
    return Space(values, where=[lambda BM, BN, num_warps: 128 * num_warps <= BM * BN]), times


def time_of(times, config):
    return times[(*config.kwargs.values(), config.num_warps, config.num_stages)]


def replay(strategy, times, best, batch=16, most=600):
    """How many were asked for until one was within 5% of the best."""
    asked = 0
    while asked < most and (configs := strategy.ask(batch)):
        results = []
        for config in configs:
            asked += 1
            us = time_of(times, config)
            if us is not None and us <= 1.05 * best:
                return asked
            results.append((config, us, "ok" if us else "failed"))
        strategy.tell(results)
    return most + 1


def best_of(space, times):
    members = space.members()
    known = [time_of(times, members.config(point)) for point in members]
    return min(us for us in known if us is not None)


def median(name, space, times, seeds=5, prior=()):
    best = best_of(space, times)
    return statistics.median(replay(autotuned.strategy(name, space, seed, prior), times, best) for seed in range(seeds))


def times_of(space, times):
    members = space.members()
    configs = [members.config(point) for point in members]
    return [(config, us) for config in configs if (us := time_of(times, config)) is not None]


def test_guided_needs_fewer_trials_than_random():
    space, times = modelled_matmul()
    assert 2 * median("guided", space, times) <= median("random", space, times)


def test_another_card_s_times_come_first():
    space, times = modelled_matmul()
    prior = times_of(*modelled_matmul(sms=132, smem=227))
    assert median("guided", space, times, prior=prior) <= 20


def test_a_prior_that_misleads_is_left():
    space, times = modelled_matmul()
    known = sorted(times_of(space, times), key=lambda pair: pair[1])
    upside_down = list(zip([config for config, _ in known], [us for _, us in reversed(known)]))
    alone = median("guided", space, times)
    assert median("guided", space, times, prior=upside_down) <= alone + 60


def test_a_prior_that_says_nothing_is_dropped():
    """Each member has a time at random."""
    space, times = modelled_matmul()
    noise = random.Random(0)
    unrelated = [(config, noise.uniform(1, 100)) for config, _ in times_of(space, times)]
    assert median("guided", space, times, prior=unrelated) <= median("guided", space, times) + 60


@pytest.mark.parametrize("name", ["guided", "random", "exhaustive", "auto"])
def test_a_seed_repeats_itself(name):
    def run():
        space, times = modelled_matmul()
        strategy, asked = autotuned.strategy(name, space, seed=3), []
        for _ in range(4):
            configs = strategy.ask(8)
            asked += [str(config) for config in configs]
            strategy.tell([(config, time_of(times, config), "ok") for config in configs])
        return asked

    first = run()
    assert first == run() and len(set(first)) == len(first)


@pytest.mark.parametrize("name", ["guided", "random", "exhaustive", "auto"])
def test_every_member_is_asked_for_once_and_then_none(name):
    space = Space({"a": range(5), "b": ["x", "y", "z"], "c": [True, False]}, where=lambda a, b: a != 2 or b != "x")
    strategy, asked = autotuned.strategy(name, space), []
    while configs := strategy.ask(7):
        assert len(configs) <= 7
        asked += [str(config) for config in configs]
        strategy.tell([(config, 1.0 + config.kwargs["a"], "ok") for config in configs])
    assert len(asked) == len(set(asked)) == 28
    assert 0 < len(autotuned.strategy(name, space).ask(10**30)) <= 28


@pytest.mark.parametrize("name", ["guided", "random", "exhaustive"])
def test_what_fails_everywhere_ends_too(name):
    strategy, asked = autotuned.strategy(name, Space({"a": range(40)})), 0
    while configs := strategy.ask(16):
        asked += len(configs)
        strategy.tell([(config, None, "failed") for config in configs])
    assert asked == 40


def test_where_most_members_fail_guided_does_not_go_by_the_list():
    """The opening fails, as 93% of the members do: those that run are the last ones in the list."""
    space = Space({"tile": range(30), "b": pow2s(1, 128), "u": range(1, 11), "v": range(4)})
    found = []
    for seed in range(5):
        strategy, asked = autotuned.strategy("guided", space, seed), 0
        while asked < 300 and not found[seed:]:
            configs = strategy.ask(16)
            asked += len(configs)
            runs = [config.kwargs["tile"] >= 28 for config in configs]
            strategy.tell([(config, 10.0 if ran else None, "") for config, ran in zip(configs, runs)])
            found += [asked] * any(runs)
    assert len(found) == 5 and statistics.median(found) <= 64


def test_a_space_that_cannot_be_listed_is_drawn_from():
    names = [f"p{place}" for place in range(12)]
    space = Space(
        dict.fromkeys(names, range(6)), where=eval(f"lambda {', '.join(names)}: ({' + '.join(names)}) % 2 == 0")
    )
    strategy = autotuned.strategy("guided", space)
    for _ in range(3):
        configs = strategy.ask(8)
        assert len(configs) == 8 and all(sum(config.kwargs.values()) % 2 == 0 for config in configs)
        strategy.tell([(config, 1.0 + sum(config.kwargs.values()), "ok") for config in configs])


def test_first_is_asked_for_first_and_then_the_prior():
    space = Space({"a": range(100)}, first=[{"a": 7}])
    prior = [(Config({"a": 9}), 3.0), (Config({"a": 8}), 1.0), (Config({"a": 500}), 0.5), (Config({"a": 1}), None)]
    for name in ("guided", "random", "exhaustive"):
        asked = autotuned.strategy(name, space, prior=prior).ask(3)
        assert [config.kwargs["a"] for config in asked] == [7, 8, 9]


def test_what_was_told_is_not_asked_for():
    strategy = autotuned.strategy("guided", Space({"a": range(30)}))
    strategy.tell([(Config({"a": value}), 1.0 + value, "ok") for value in range(0, 30, 2)])
    assert {config.kwargs["a"] for config in strategy.ask(30)} <= set(range(1, 30, 2))


def test_members_at_random_come_each_once():
    shuffled = list(strategies._shuffled(1000, random.Random(1)))
    assert sorted(shuffled) == list(range(1000)) != shuffled


def test_it_is_said_what_is_wrong():
    with pytest.raises(OptionError, match="expected 'auto', 'exhaustive', 'random', 'guided', got 'best'"):
        autotuned.strategy("best", Space({"a": [1]}))
    with pytest.raises(OptionError, match="expected a number of configs"):
        autotuned.strategy("random", Space({"a": [1]})).ask(0)


def test_doubt_falls_as_more_is_known():
    space, times = modelled_matmul()
    strategy, doubts = autotuned.strategy("guided", space), []
    for _ in range(20):
        configs = strategy.ask(16)
        strategy.tell([(config, time_of(times, config), "ok") for config in configs])
        doubts.append(strategy.doubt)
    assert doubts[0] == 1.0 and doubts[-1] < 0.5


# -- what strangers give ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"space": [Config({"a": 1})]}, "space: expected an autotuned.Space, got "),
        ({"seed": -1}, "seed: expected a whole number of 0 or more, got -1"),
        ({"seed": 1.5}, "seed: expected a whole number of 0 or more, got 1.5"),
        ({"prior": [({"a": 1}, 3.0)]}, r"prior: expected a list of \(config, microseconds\)"),
        ({"prior": [(Config({"a": 1}), 3.0, "ok")]}, "prior: expected a list"),
        ({"prior": {Config({"a": 1}): 3.0}}, "prior: expected a list"),
        ({"prior": None}, "prior: expected a list .* got None"),
        ({"prior": [(Config({"a": 1}), "3")]}, "prior: expected a list"),
        ({"arguments": [3]}, "arguments: expected a dict"),
    ],
    ids=lambda given: re.sub(" at 0x.*?>", "", str(given)),
)
def test_what_cannot_be_meant_is_refused(given, says):
    with pytest.raises(OptionError, match=says):
        autotuned.strategy(**{"name": "guided", "space": Space({"a": range(9)}), **given})


@pytest.mark.parametrize("name", ["auto", "exhaustive", "random", "guided"])
def test_results_that_are_none_are_refused_and_nothing_is_lost(name):
    strategy = autotuned.strategy(name, Space({"a": range(80)}))
    for wrong in (None, [(Config({"a": 1}), 3.0)], [({"a": 1}, 3.0, "ok")], [(Config({"a": 1}), "3", "ok")]):
        with pytest.raises(OptionError, match="results: expected a list of .config, microseconds or None, status."):
            strategy.tell(wrong)
    assert len(strategy.ask(np.int64(3))) == 3


def test_a_failed_result_with_a_time_is_a_failure():
    strategy = autotuned.strategy("guided", Space({"a": range(400)}))
    for _ in range(8):
        strategy.tell((config, abs(config.kwargs["a"] - 300) / 10 + 1, "ok" if config.kwargs["a"] < 200 else "wrong")
                      for config in strategy.ask(8))  # fmt: skip
    best = min(strategy._asking._times, key=strategy._asking._times.get)
    assert 150 < best[0] < 200


def test_a_space_with_one_rare_member_that_is_given_first():
    values = {f"p{place}": range(10) for place in range(8)}
    only = dict(zip(values, range(1, 9)))
    space = Space(values, where=[lambda **given: given == only], first=[only])
    strategy = autotuned.strategy("guided", space)
    assert [config.kwargs for config in strategy.ask(5)] == [only]
    strategy.tell([(Config(only), 3.0, "ok")])
    assert strategy.ask(5) == []


def test_where_a_misleading_prior_led_slow_trials_are_not_modelled():
    search = Guided(Space({"x": list(range(40))}).members(options=False), 0)
    led, own = {(x,): 2.0 if x else 0.5 for x in range(12)}, {(x,): 0.1 * (x - 20) for x in range(20, 23)}
    search.tell([*led.items(), *own.items()])
    search._led = frozenset(led)
    assert search._kept() == [*led, *own]  # three others are too few to tell what is slow
    search.tell([((30,), 0.3)])
    assert search._kept() == [(0,), *own, (30,)]
