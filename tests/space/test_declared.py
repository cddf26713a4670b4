"""A space as `configs=`: searched in batches, stored, served and explained as a list is."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from functools import partial
from types import SimpleNamespace

import pytest
import triton
from anywhere import interrupt
from declared_space import Table, microseconds, space, tuned, values
from triton import Config

import autotuned
from autotuned import Space, autotune, pow2s
from autotuned.errors import AllConfigsFailedError, DecorationError, PruningError, SpaceError
from autotuned.resolve import fallback
from autotuned.search import batches, search
from autotuned.search.exclusions import Exclusion, Reason
from autotuned.space import declared
from autotuned.store import listing


def test_the_best_is_found_without_trying_all():
    f = tuned(space())
    f(1)
    assert values(f.best_config) == (64, 32, 0)
    assert len(set(f.table.asked)) < space().members().size
    (record,) = [found for _, found in listing.all_records("declared.f")]
    said = record.provenance["space"]
    assert said["members"] == "180" and said["trials"] <= 180
    assert said["best_so_far"][-1][2] == pytest.approx(50, rel=0.01)


def test_what_was_found_is_served_by_another_process():
    tuned(space())(1)
    f = tuned(space())
    f(1)
    assert values(f.best_config) == (64, 32, 0) and f.table.asked == []
    assert f.explain(1).reason == "hit"


def test_a_stored_winner_that_is_no_member_is_a_miss():
    tuned(space())(1)
    f = tuned(space(where=[lambda a, b: a < 8]))
    f(1)
    assert values(f.best_config) == (4, 32, 0)


@pytest.mark.parametrize("edited", [{"a": pow2s(4, 512)}, {"a": pow2s(32, 512)}])
def test_an_edited_space_is_searched_again(edited):
    """Grown: the stored winner is still a member. Moved: none of what was measured is, and its times count nothing."""
    narrow = {"a": pow2s(4, 16), "b": pow2s(4, 512), "c": range(5)}
    for parameters, best in ((narrow, (16, 32, 0)), ({**narrow, **edited}, (64, 32, 0)), (narrow, (16, 32, 0))):
        f = tuned(Space(parameters))
        f(1)
        assert values(f.best_config) == best and f.table.asked
        f = tuned(Space(parameters))
        f(1)
        assert values(f.best_config) == best and not f.table.asked


def test_a_call_that_allows_more_is_searched_whatever_the_constraint_reads():
    f = tuned(space(where=[lambda a, most: a <= most[0]]), key=[], arguments=True)
    f(1, (16,))
    f(1, (512,))
    assert values(f.best_config) == (64, 32, 0)


def test_a_small_space_is_a_list():
    f = tuned(Space({"a": [32, 64], "b": [32], "c": [0, 1]}))
    f(1)
    assert {*f.table.asked} == {(32, 32, 0), (32, 32, 1), (64, 32, 0), (64, 32, 1)}


def test_constraints_see_the_call():
    f = tuned(space(where=[lambda a, b, n: a <= n]))
    f(16)
    assert all(a <= 16 for a, _, _ in f.table.asked) and f.best_config.kwargs["a"] == 16
    f(64)
    assert values(f.best_config) == (64, 32, 0)


@pytest.mark.parametrize("same_process", [True, False])
def test_a_call_that_allows_more_is_searched_and_one_that_allows_less_is_not(same_process):
    wider = lambda: tuned(space(where=[lambda a, most: a <= most]), key=[], arguments=True)
    f = wider()
    f(1, 16)
    assert values(f.best_config) == (16, 32, 0)
    f = f if same_process else wider()
    f.table.asked.clear()
    f(1, 512)
    assert values(f.best_config) == (64, 32, 0) and f.table.asked
    f = f if same_process else wider()
    f.table.asked.clear()
    for most, best in ((16, (16, 32, 0)), (512, (64, 32, 0))):
        f(1, most)
        assert values(f.best_config) == best and not f.table.asked


def test_threads_may_ask_for_the_members_of_different_calls_at_once(monkeypatch):
    """A call ended in a `KeyError` if others, with more values than are kept, asked at the wrong moment."""

    def begin():
        declaration = declared.Declaration(space(where=[lambda a, n: a <= n]), "guided", False, "declared.f")
        ask = declaration.members
        ask({"n": 4})
        return partial(ask, {"n": 8}), lambda: [ask({"n": n}) for n in (16, 32)]

    monkeypatch.setattr(declared, "KEPT", 1)
    interrupt(declared.Declaration.members, begin)


def test_what_others_measured_comes_first():
    f = tuned(space())
    f(1)
    f.table.asked.clear()
    f(2)
    assert (64, 32, 0) in f.table.asked[:10]  # a batch, in whatever order


def test_a_pruner_is_asked_about_each_batch():
    def small(configs, named, **rest):
        return [config for config in configs if config.kwargs["a"] <= 32]

    f = tuned(space(), prune_configs_by={"early_config_prune": small})
    f(1)
    assert values(f.best_config) == (32, 32, 0) and all(a <= 32 for a, _, _ in f.table.asked)


def test_a_pruner_that_leaves_none_is_an_error():
    f = tuned(space(), prune_configs_by={"early_config_prune": lambda configs, named, **rest: []})
    with pytest.raises(PruningError, match="some of the first 180 of 180 configs, got none"):
        f(1)


def test_a_pruner_may_make_its_configs_anew_but_adds_none_to_a_space():
    def doubled(configs, named, **rest):
        equal = [Config(dict(config.kwargs)) for config in configs if config.kwargs["a"] <= 32]
        return [*equal, Config({"a": 64, "b": 32, "c": 7})]

    f = tuned(space(), prune_configs_by={"early_config_prune": doubled})
    f(1)
    assert values(f.best_config) == (32, 32, 0) and all(a <= 32 for a, _, _ in f.table.asked)
    new = tuned(space(), prune_configs_by={"early_config_prune": lambda configs, named, **rest: [Config({"a": 3})]})
    with pytest.raises(PruningError, match="a pruner adds no configs to a space"):
        new(2)


def test_default_is_in_the_race_and_may_be_no_member():
    f = tuned(space(where=[lambda a, b: a < b]), default=Config({"a": 64, "b": 32, "c": 0}))
    with autotuned.mode("search"):
        f(1)
    assert values(f.best_config) == (64, 32, 0)


@pytest.mark.parametrize("default", [{"a": 512, "b": 4, "c": 4}, {"a": 4, "b": 7, "c": 0}])
def test_a_default_that_loses_does_not_end_the_search(default):
    f = tuned(space(), default=Config(default))
    with autotuned.mode("search"):
        f(1)
    assert values(f.best_config) == (64, 32, 0) and tuple(default.values()) in f.table.asked


KERNEL = """
import autotuned
now = {}

def bench(call, quantiles=None):
    call()
    return [1.0 + abs(now["a"] - 40)]

@autotuned.autotune(configs=autotuned.Space({"a": range(99)}), do_bench=bench, key=["n"], name="declared.tune")
def f(n, *, a):
    now["a"] = a

@f.case
def cases(device):
    return [{"args": (1,)}]
"""


def test_tune_searches_a_space(tmp_path):
    (tmp_path / "kernel.py").write_text(KERNEL)
    (case,) = autotuned.tune(str(tmp_path / "kernel.py"), out=str(tmp_path / "out")).cases
    assert (case.status, case.config["kwargs"]) == ("done", {"a": 40})


def test_first_is_what_runs_untuned():
    f = tuned(space(first=[{"a": 128, "b": 16, "c": 3}]))
    with autotuned.mode("off"):
        f(1)
    assert values(f.best_config) == (128, 16, 3)
    f(1)
    with autotuned.mode("search"):
        f(1)
    assert (128, 16, 3) in f.table.asked[:10]


def test_where_nothing_runs_the_reasons_are_said(monkeypatch):
    f = tuned(Space({"a": pow2s(512, 4096), "b": pow2s(512, 4096), "c": range(8)}))
    with pytest.raises(RuntimeError, match="too large"):
        f(1)
    tried = len(set(f.table.asked))
    assert batches.LEAST_BATCH < tried <= batches.IN_VAIN + batches.LEAST_BATCH
    with pytest.raises(
        AllConfigsFailedError, match=rf"`declared.f`: .* all {tried} failed.(.|\n)* and {tried - 24} more"
    ) as said:
        tuned(Space({"a": pow2s(512, 4096), "b": pow2s(512, 4096), "c": range(8)}))(2)
    assert [len(labels) for labels in said.value.reasons.values()] == [tried]


def test_a_search_goes_on_where_most_configs_fail():
    """None of the first batches runs."""
    f = tuned(Space({"a": pow2s(4, 2**20), "b": pow2s(4, 2**20), "c": range(5)}, first=[
        {"a": 2**20, "b": 2**place, "c": c} for place in range(12, 16) for c in range(5)]))  # fmt: skip
    f(1)
    assert values(f.best_config) == (64, 32, 0)


def test_a_first_batch_that_fails_is_not_the_end():
    f = tuned(Space({"a": pow2s(16, 4096), "b": pow2s(16, 4096), "c": range(8)}, first=[
        {"a": 4096, "b": 512, "c": c} for c in range(8)]))  # fmt: skip
    f(1)
    assert values(f.best_config) == (64, 32, 0)


def test_a_model_ranks_all_members():
    """As those of a list."""
    model = lambda n, a, b, c, **options: microseconds(a, b, c) or 1e9
    f = tuned(space(), prune_configs_by={"perf_model": model, "top_k": 5})
    f(1)
    assert values(f.best_config) == (64, 32, 0) and len(set(f.table.asked)) == 5
    large = Space({"a": pow2s(4, 512), "b": pow2s(4, 512), "c": range(5_000)})
    with pytest.raises(SpaceError, match="`declared.f`: perf_model: expected a space of at most 50,000.*got 320,000"):
        tuned(large, prune_configs_by={"perf_model": model, "top_k": 5})(1)


def test_a_budget_ends_it_with_the_best_so_far():
    f = tuned(space(), budget_s=1e-3)
    f(1)
    first = set(f.table.asked)
    assert len(first) < 40 and f.best_config is not None
    f(1)
    assert set(f.table.asked) == first  # this process has had its time
    f = tuned(space())
    f(1)
    assert values(f.best_config) == (64, 32, 0) and len(first & set(f.table.asked)) <= 3
    f = tuned(space())
    f(1)
    assert f.table.asked == []


def test_an_interrupted_search_goes_on_where_it_was():
    table = Table()

    def interrupted(call, quantiles=None):
        if len(table.asked) == 30:
            raise KeyboardInterrupt
        return table(call, quantiles)

    def bench(call, quantiles=None):
        return (interrupted if bench.interrupts else table)(call, quantiles)

    bench.interrupts = True

    @autotune(configs=space(), do_bench=bench, name="declared.f", key=["n"])
    def f(n, *, a, b, c):
        table.now = (a, b, c)

    with pytest.raises(KeyboardInterrupt):
        f(1)
    assert [record.winner for _, record in listing.all_records("declared.f")] == [None]
    first, bench.interrupts = set(table.asked), False
    table.asked.clear()
    f(1)
    assert len(first & set(table.asked)) <= 3  # what runs untuned, and the best so far
    assert values(f.best_config) == (64, 32, 0)


def test_a_space_of_any_size_is_searched(caplog):
    caplog.set_level(logging.INFO)
    names, took = "abcdefghij", []

    def bench(call, quantiles=None):
        call()
        return [(1 + took.pop() / 100) / 1e3] * len(quantiles or [1])

    @autotune(configs=Space(dict.fromkeys(names, range(8)), where=[lambda a, b: a + b > 3]), do_bench=bench, key=["n"])
    def f(n, *, a, b, c, d, e, f, g, h, i, j):
        took.append((a - 3) ** 2 + (b - 5) ** 2 + (c - 1) ** 2 + d + abs(e - f))

    f(1)
    assert "of 905,969,664 configs tried" in caplog.text.replace("about ", "")
    assert f.best_config.kwargs["d"] <= 1


def test_options_of_a_kernel_are_launch_options():
    import torch
    import triton.language as tl

    @autotune(configs=Space({"BLOCK": pow2s(16, 64), "num_warps": [1, 2]}, where=[lambda BLOCK, n: n >= BLOCK]))
    @triton.jit
    def fill(x, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + at, at, mask=at < n)

    x = torch.zeros(40, dtype=torch.int32)
    fill[lambda meta: (triton.cdiv(40, meta["BLOCK"]),)](x, 40)
    assert x.tolist() == list(range(40))
    assert fill.best_config.kwargs["BLOCK"] <= 32 and fill.best_config.num_warps in (1, 2)


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        (
            {"configs": [Config({"a": 1, "b": 1, "c": 1})], "strategy": "guided"},
            DecorationError,
            "every config of a list",
        ),
        ({"configs": space(), "strategy": "best"}, DecorationError, "expected 'auto', 'exhaustive'"),
        ({"configs": space(), "strategy": 3}, DecorationError, "ask"),
        ({"configs": Space({"a": [1], "d": [2]})}, Exception, "sets 'd', which is not a parameter"),
    ],
    ids=["list", "name", "object", "parameter"],
)
def test_mistakes_are_said_at_decoration(more, error, message):
    with pytest.raises(error, match=message):
        tuned(more.pop("configs"), **more)


def test_a_constraint_on_an_unknown_argument_is_said_at_the_call():
    f = tuned(space(where=[lambda a, m: a < m]))
    with pytest.raises(SpaceError, match="arguments of the call, got 'm', which is neither"):
        f(1)


def test_all_members_have_identities_that_find_them():
    members = space().members(options=False)
    everything = set(itertools.starmap(lambda a, b, c: (a, b, c), [values(members.config(p)) for p in members]))
    assert len(everything) == members.size


def test_untuned_is_the_first_member_that_runs():
    """In mode "serve" nothing is searched, and the first member may not compile."""
    tried = []

    class Compiles:
        def compile(self, call, config):
            tried.append(values(config))
            if len(tried) < 5:
                raise RuntimeError("no")

    f = tuned(space())
    call = f.tuner.rebound((1,), None)
    live = f.tuner.chooser.candidates(call)
    compiles = SimpleNamespace(compile=Compiles().compile, name="declared.f")
    found = fallback.first_that_compiles(compiles, call, live.each())
    assert len(tried) == len(set(tried)) == 5 and values(found) == tried[-1]


def test_a_first_batch_that_fails_is_not_the_end_if_one_of_it_crashed_before(monkeypatch):
    """As the journal of a process that was killed says."""
    real = search.run

    def run(job, outcome):
        crashed = next(name for name in job.configs if '"c":7' in name)
        real(dataclasses.replace(job, excluded={crashed: Exclusion(Reason.CRASHED, "crashed")}), outcome)

    monkeypatch.setattr(search, "run", run)
    f = tuned(Space({"a": pow2s(16, 4096), "b": pow2s(16, 4096), "c": range(8)}, first=[
        {"a": 4096, "b": 512, "c": c} for c in reversed(range(8))]))  # fmt: skip
    f(1)
    assert values(f.best_config) == (64, 32, 0)


@pytest.mark.parametrize("beside", [False, True])
def test_an_untuned_config_that_fails_is_tried_once_and_not_in_each_batch(beside):
    """Its compiler may take as long as it is allowed to."""
    fails = Config({"a": 1024 if beside else 512, "b": 512, "c": 0})
    f = tuned(space(first=[] if beside else [fails]), default=fails if beside else None)
    with autotuned.mode("search"):
        f(1)
    assert values(f.best_config) == (64, 32, 0)
    assert len(set(f.table.asked)) > 2 * batches.LEAST_BATCH and f.table.asked.count(values(fails)) == 1
