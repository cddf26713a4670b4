"""A long list that another device has measured: done after a handful, unless it disagrees."""

import random

import pytest

from autotuned import Config, autotune
from autotuned.store import listing, records
from autotuned.store.record import TuningRecord

SLOWER = {value: 10.0 * 1.07 ** ((7 * value) % 40) for value in range(40)}  # microseconds on the other device


class Bench:
    """Answers from a table, and keeps what it was asked."""

    def __init__(self, times):
        self.times, self.asked, self.now = times, [], None

    def __call__(self, call, quantiles=None):
        call()
        self.asked.append(self.now)
        if self.times[self.now] is None:
            raise RuntimeError("too large")
        return [self.times[self.now] / 1e3] * 3


def noting(bench):
    def f(n, *, v):
        bench.now = v

    return f


def tuned(times, count=40):
    bench = Bench(times)

    made = autotune(configs=[Config({"v": value}) for value in range(count)], key=["n"], do_bench=bench,
                    name="ranked.f")(noting(bench))  # fmt: skip
    made.bench = bench
    return made


def tune(f, **how):
    """As `autotuned tune` does."""
    f.tuner.tune(f.tuner.call((1,), {}, None), **how)


@pytest.fixture
def elsewhere():
    """What another device has measured of the call with n = 1."""
    tuned(SLOWER)(1)
    [(path, found)] = listing.all_records("ranked.f")
    key = found.key.replace(context={**found.key.context, "device": {**found.key.context["device"], "name": "another"}})
    path.unlink()
    assert records.keep(TuningRecord(key, found.winner, found.median_us, "ok", found.timings, found.provenance))


def changed(factor, noise=0.0):
    source = random.Random(0)
    return {value: factor * us * source.uniform(1 - noise, 1 + noise) for value, us in SLOWER.items()}


def test_a_device_that_agrees_is_believed_after_a_handful(elsewhere):
    f = tuned(changed(0.5, 0.02))
    f(1)
    assert f.best_config.kwargs["v"] == 0 and len(set(f.bench.asked)) <= 8
    record = next(one for _, one in listing.all_records("ranked.f") if "space" in one.provenance)
    assert record.provenance["space"]["members"] == "40" and record.provenance["space"]["trials"] <= 8


def test_what_it_chose_is_served_and_measured_by_no_further_search(elsewhere):
    tuned(changed(0.5))(1)
    f = tuned(changed(0.5))
    f(1)
    assert f.bench.asked == [] and f.best_config.kwargs["v"] == 0
    tune(f)
    assert f.bench.asked == []


def test_calls_of_one_key_that_a_pruner_narrows_are_each_searched_for_once(elsewhere):
    odd = lambda configs, named, **kwargs: [one for one in configs if kwargs["n"] == 1 or one.kwargs["v"] % 2]
    for again in (False, True):
        for n in (1, 2):
            bench = Bench(changed(0.5))
            made = autotune([Config({"v": value}) for value in SLOWER], key=["n"], bucket={"n": lambda n: 1},
                            do_bench=bench, prune_configs_by={"early_config_prune": odd}, name="ranked.f")  # fmt: skip
            f = made(noting(bench))
            f(n=n)
            assert bool(bench.asked) is not again and f.cache_info().searches == (not again)


def test_a_list_that_grew_is_searched_again(elsewhere):
    tuned(changed(0.5))(1)
    f = tuned(changed(0.5) | {40: 1.0}, 41)
    tune(f)
    f(1)
    assert 40 in f.bench.asked and f.best_config.kwargs["v"] == 40


def test_a_device_that_disagrees_is_not_believed(elsewhere):
    f = tuned({value: 200.0 - us for value, us in SLOWER.items()})
    f(1)
    assert SLOWER[f.best_config.kwargs["v"]] == max(SLOWER.values()) and len(set(f.bench.asked)) > 20


def test_what_failed_there_is_tried_here(elsewhere):
    [(path, found)] = listing.all_records("ranked.f")
    failed = tuple(one.replace(status="failed", median_us=None) if one.config["kwargs"]["v"] == 39 else one
                   for one in found.timings)  # fmt: skip
    assert records.keep(found.replace(timings=failed))
    f = tuned(changed(0.5) | {39: 1.0})
    f(1)
    assert f.best_config.kwargs["v"] == 39 and len(set(f.bench.asked)) <= 9


@pytest.mark.parametrize("how", ["short", "another call", "by force"])
def test_all_others_are_measured_whole(elsewhere, how):
    f = tuned(changed(0.5), 15 if how == "short" else 40)
    tune(f, force=True) if how == "by force" else f(2 if how == "another call" else 1)
    assert len(set(f.bench.asked)) == (15 if how == "short" else 40)


def test_failures_of_the_handful_lead_to_the_rest(elsewhere):
    best = sorted(SLOWER, key=SLOWER.get)[:5]
    f = tuned(changed(0.5) | dict.fromkeys(best))
    f(1)
    assert SLOWER[f.best_config.kwargs["v"]] == sorted(SLOWER.values())[5]
