"""A config serves a call only if the call's own pruner, callable and default allow it, however coarse the key is."""

import logging

import numpy as np
import pytest
from fakes import FakeConfig as Config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored import records

import autotuned
from autotuned import autotune

BLOCKS = (16, 32, 64, 128, 256)
CONFIGS = [Config({"block": block}) for block in BLOCKS]
TIMES = {block: 1.0 + block / 256 for block in BLOCKS}


def to_128(m):
    return (m + 127) // 128 * 128


class Last:
    block = 0


LAST = Last()


def cover(out, m, *, block):
    """Fills the first `block` elements of `m`: right only where the block covers them all."""
    LAST.block = block
    out[: min(m, block)] = 1.0


def note(x, m, *, block):
    LAST.block = block


def bench(call, quantiles):
    call()
    bench.calls.append(LAST.block)
    return [TIMES[LAST.block]] * 3


@pytest.fixture(autouse=True)
def _count():
    bench.calls = []


def large_enough(configs, named, **kwargs):
    m = {**named, **kwargs}["m"]
    return [config for config in configs if config.kwargs["block"] >= m]


def computed(out, m):
    return [Config({"block": block}) for block in BLOCKS if block >= m]


def smallest(out, m):
    return next(config for config in CONFIGS if config.kwargs["block"] >= m)


HOW = {
    "pruner": {"configs": CONFIGS, "prune_configs_by": {"early_config_prune": large_enough}},
    "callable": {"configs": computed},
    "model": {
        "configs": CONFIGS,
        "prune_configs_by": {"perf_model": lambda m, block, **_: (block < m) * 1e6 + block, "top_k": 1},
    },
    "default": {"configs": CONFIGS, "default": smallest},
}
COARSE = {"bucket": {"key": ["m"], "bucket": {"m": to_128}}, "left-out": {"key": []}}


def decorate(how, coarse, **options):
    return autotune(**{"do_bench": bench, "restore_value": ["out"], **HOW[how], **COARSE[coarse], **options})(cover)


def is_right(function, m, **keywords):
    out = np.zeros(256)
    if keywords:
        function(out, **{"m": m, **keywords})
    else:
        function(out, m)
    return bool((out[:m] == 1.0).all())


@pytest.mark.parametrize("mode", ["auto", "serve", "off", "search"])
@pytest.mark.parametrize("coarse", COARSE)
@pytest.mark.parametrize("how", ["pruner", "callable", "default"])
def test_each_call_of_a_coarse_key_gets_a_config_that_is_allowed_for_it(how, coarse, mode):
    if how == "default" and mode == "search":
        pytest.skip("a search of all configs is what mode search is asked for")
    with autotuned.mode(mode):
        function = decorate(how, coarse)
        assert all(is_right(function, m) for m in (50, 100, 50, 20, 128, 100, 17, 3))


@pytest.mark.parametrize("coarse", COARSE)
@pytest.mark.parametrize("how", ["pruner", "callable"])
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "in-memory"])
def test_calls_of_one_key_with_other_candidates_never_search_in_turns(how, coarse, stored):
    function = decorate(how, coarse, cache_results=stored)
    for m in (100, 50, 100, 20, 50, 3, 100):
        assert is_right(function, m)
    searches = function.cache_info().searches
    assert searches <= len(BLOCKS)
    for m in (100, 99, 50, 49, 20, 3, 2):  # exact values that are new, allowed sets that are not
        assert is_right(function, m)
        assert LAST.block == next(block for block in BLOCKS if block >= m)
    assert function.cache_info().searches == searches
    if stored:
        again = decorate(how, coarse)
        for m in (100, 50, 20, 3):
            assert is_right(again, m)
            assert LAST.block == next(block for block in BLOCKS if block >= m)
        assert again.cache_info().searches == 0
        [record] = records()
        assert record.winner["kwargs"] == {"block": 16}  # of all calls of the key
        assert len(record.timings) == len(BLOCKS)


def test_perf_models_see_exact_values():
    function = decorate("model", "bucket")
    for m in (50, 100, 20, 128, 100, 17, 3):
        assert is_right(function, m)


def test_a_search_for_another_call_of_the_key_keeps_what_was_measured():
    function = decorate("pruner", "bucket")
    assert is_right(function, 100)
    assert sorted(set(bench.calls)) == [128, 256]
    bench.calls.clear()
    assert is_right(function, 20)
    assert LAST.block == 32
    assert set(bench.calls) == {32, 64, 128}  # 128 again: it is the one to beat


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    allowed=st.dictionaries(st.integers(0, 12), st.sets(st.sampled_from(BLOCKS), min_size=1), min_size=13, max_size=13),
    width=st.integers(1, 13),
    calls=st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.booleans()), min_size=1, max_size=25),
    how=st.sampled_from(["pruner", "callable"]),
    stored=st.booleans(),
    coarse=st.booleans(),
)
def test_whatever_is_allowed_and_called_each_call_gets_what_is_allowed_for_it(
    tmp_path_factory, monkeypatch, allowed, width, calls, how, stored, coarse
):
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))

    def kept(configs, m):
        return [config for config in configs if config.kwargs["block"] in allowed[m]]

    options = {
        "pruner": {
            "configs": CONFIGS,
            "prune_configs_by": {"early_config_prune": lambda all_, named, **kw: kept(all_, {**named, **kw}["m"])},
        },
        "callable": {"configs": lambda x, m: kept([Config(dict(config.kwargs)) for config in CONFIGS], m)},
    }[how]
    key = {"key": ["m"], "bucket": {"m": lambda m: m // width}} if coarse else {"key": []}
    buckets = len({m // width for m in range(13)}) if coarse else 1

    def decorated():
        return autotune(**options, **key, do_bench=bench, cache_results=stored)(note)

    tuned, searches, processes = decorated(), 0, 1
    x = np.zeros(4)
    for m, by_name, is_new in calls:
        if is_new:
            searches += tuned.cache_info().searches
            tuned, processes = decorated(), processes + 1
        tuned(x, m=m) if by_name else tuned(x, m)
        assert LAST.block in allowed[m]
        tuned(x, m)
        assert LAST.block in allowed[m]
    searches += tuned.cache_info().searches
    assert searches <= buckets * len(BLOCKS) * (1 if stored else processes)


def test_what_no_pruner_reads_stays_coarse():
    def early(configs, named, **kwargs):
        return configs if named["m"] > 0 else configs[:1]

    def run(out, m, seed, *, block):
        LAST.block = block

    function = autotune(CONFIGS, key=["m"], do_bench=bench, prune_configs_by={"early_config_prune": early})(run)
    out = np.zeros(8)
    for seed in range(33, 64, 2):  # odd: of one integer class
        function(out, 5, seed)
    assert function.cache_info().misses == 1


@pytest.mark.parametrize("pick", ["early", "computed", "default"])
def test_floats_texts_and_shapes_that_are_read_are_exact(pick):
    def wanted(x, scale, kind):
        return [CONFIGS[(len(x) + int(scale) + len(kind)) % 5]]

    def run(x, scale, kind, *, block):
        LAST.block = block

    options = {
        "early": {
            "configs": CONFIGS,
            "prune_configs_by": {"early_config_prune": lambda configs, named: wanted(**named)},
        },
        "computed": {"configs": wanted},
        "default": {"configs": CONFIGS, "default": lambda x, scale, kind: wanted(x, scale, kind)[0]},
    }[pick]
    function = autotune(**options, key=[], do_bench=bench)(run)
    for n in (3, 4, 5):
        for scale in (0.0, 1.0, 2.0):
            for kind in ("a", "bb"):
                for _ in range(2):
                    function(np.zeros(n), scale, kind)
                    assert LAST.block == BLOCKS[(n + int(scale) + len(kind)) % 5]


# -- a default and a pin -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "serve", "off"])
def test_a_default_that_the_pruner_drops_for_a_call_is_none_of_it(mode):
    with autotuned.mode(mode):
        function = decorate("pruner", "bucket", default=CONFIGS[2])
        assert is_right(function, 50)
        assert LAST.block == 64
        assert is_right(function, 100)
        assert LAST.block == 128


def test_a_default_that_is_in_no_list_is_shown_to_the_pruner():
    own = Config({"block": 110})
    with autotuned.mode("off"):
        function = decorate("pruner", "bucket", default=own)
        assert is_right(function, 100)
        assert LAST.block == 110
        assert is_right(function, 120)
        assert LAST.block == 128


# -- Triton's kernels ----------------------------------------------------------------------------------------------------


@pytest.fixture
def kernel():
    torch, triton = pytest.importorskip("torch"), pytest.importorskip("triton")
    import triton.language as tl

    def ones(y, m, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(y + i, tl.full((BLOCK,), 1.0, tl.float32), mask=i < m)

    def large(configs, named, **kwargs):
        m = kwargs["m"] if "m" in kwargs else named["m"]
        return [config for config in configs if config.kwargs["BLOCK"] >= m]

    def covers(made, m, by_name=False):
        y = torch.zeros(256)
        made[(1,)](y, m=m) if by_name else made[(1,)](y, m)
        return bool((y[:m] == 1).all())

    listed = [triton.Config({"BLOCK": block}) for block in (64, 128, 256)]
    options = {"configs": listed, "key": [], "do_bench": lambda call, quantiles: call() or [1.0, 1.0, 2.0]}
    return triton.jit(ones), options, {"early_config_prune": large}, covers


@pytest.mark.parametrize("mode", ["auto", "serve", "off", "search"])
def test_kernels_too(kernel, mode):
    function, options, prune, covers = kernel
    with autotuned.mode(mode):
        made = autotune(**options, prune_configs_by=prune)(function)
        assert all(covers(made, m) for m in (50, 100, 50, 200, 64, 100))
        assert covers(made, 100, by_name=True)


def test_what_a_pruner_reads_of_its_kernel_is_exact_too(kernel):
    function, options, _, covers = kernel

    def early(configs, named, **kwargs):
        return [config for config in configs if config.kwargs["BLOCK"] >= made.nargs["m"]]

    made = autotune(**options, prune_configs_by={"early_config_prune": early})(function)
    assert all(covers(made, m) for m in (50, 100, 50, 200, 64, 100))


def test_a_pin_that_the_pruner_drops_for_a_call_is_not_used_for_it(kernel, caplog):
    caplog.set_level(logging.WARNING, "autotuned")
    function, options, prune, covers = kernel
    made = autotune(**options, prune_configs_by=prune)(function)
    assert covers(made, 50)
    [key] = made.cache
    made.cache[key] = options["configs"][0]
    assert covers(made, 60)
    assert made.best_config is options["configs"][0]
    for m in (100, 200, 100):
        assert covers(made, m)
    lines = [record.getMessage() for record in caplog.records if "pin" in record.getMessage()]
    assert len(lines) == 1
    assert "expected a pin in .cache that the pruner allows, got one that it drops for key" in lines[0]


def test_strict_and_prepare_take_no_other(kernel):
    import torch

    from autotuned.errors import NotTunedError

    function, options, prune, covers = kernel
    made = autotune(**options, prune_configs_by=prune)(function)
    assert covers(made, 100)
    with autotuned.mode("strict"):
        again = autotune(**options, prune_configs_by=prune)(function)
        assert covers(again, 100)
        assert again.prepare(torch.zeros(256), 120, grid=(1,)).kwargs["BLOCK"] >= 120
        assert again.explain(torch.zeros(256), 128, grid=(1,)).hit
    small = {**options, "configs": [*options["configs"][:1], type(options["configs"][0])({"BLOCK": 32})]}
    with autotuned.mode("strict"), pytest.raises(NotTunedError):
        covers(autotune(**small, prune_configs_by=prune)(function), 20)
