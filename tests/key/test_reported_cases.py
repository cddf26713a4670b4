"""The reported faults of other tuners' keys, by their numbers: too narrow (stale reuse) and too wide (tuned again)."""

import itertools
import math
import os
import pickle
import sys
import textwrap
import time

import fakes
import forked
import numpy as np
import pytest
from fakes import FakeConfig as Config

import autotuned
from autotuned import autotune
from autotuned.api.function import TunedFunction
from autotuned.key import key
from autotuned.resolve.searcher import COUNT
from autotuned.store import listing

CONFIGS = [Config({"step": step}) for step in (8, 16)]


HAIRS = itertools.count(0.0, 1e-12)


def bench(call, quantiles):
    """Finds all configs equal; the first of the list wins."""
    call()
    return [1.0 + next(HAIRS), 1.0, 1.0]  # a benchmark that gives one time for all is warned of


def make(function, configs=CONFIGS, **options):
    return autotune(list(configs), **({"do_bench": bench} | options))(function)


def searches(function, *calls):
    """How many searches each of these calls took."""
    counts = []
    for args in calls:
        before = function.cache_info().searches
        function(*args)
        counts.append(function.cache_info().searches - before)
    return counts


def plain(x, n=1, *, step):
    return step


def test_b12_values_in_a_closure_are_in_the_key():
    def sized(rows, columns):
        def kernel(x, *, step):
            return rows * columns

        return make(kernel, key=[])

    x = np.zeros(4)
    assert searches(sized(256, 256), (x,)) == [1]
    assert searches(sized(512, 1024), (x,)) == [1]
    assert searches(sized(256, 256), (x,)) == [0]
    assert len(list(listing.all_records())) == 2


AXES = {
    "layout: transposed": lambda x: np.asfortranarray(x),
    "layout: expanded": lambda x: np.broadcast_to(x[:1], x.shape),
    "dtype": lambda x: x.astype(np.float32),
    "rank, same number of elements": lambda x: x.reshape(8, 4, 2),
}
SAME = {
    "exact strides": lambda x: np.zeros((8, 32))[:, :8],
    "address": lambda x: x.copy(),
}


@pytest.mark.parametrize("axis", AXES)
def test_b14_b25_each_axis_alone_is_a_miss(axis):
    function, x = make(plain), np.zeros((8, 8))
    assert searches(function, (x,), (AXES[axis](x),), (x,)) == [1, 1, 0]


@pytest.mark.parametrize("axis", SAME)
def test_b14_what_does_not_matter_is_a_hit(axis):
    function, x = make(plain), np.zeros((8, 8))
    assert searches(function, (x,), (SAME[axis](x),)) == [1, 0]


PROGRAM = """
import sys
import numpy as np
sys.path[:0] = [{tests!r}, {folder!r}]
{before}
from fakes import FakeConfig as Config
from autotuned import autotune
from kernels import work

def bench(call, quantiles):
    return [1.0] * 3

function = autotune([Config({{"step": 8}}), Config({{"step": 16}})], do_bench=bench)(work)
function(np.zeros(4), {arguments})
print(function.cache_info().searches)
"""
WORK = "def work(x, n, *, step, k=2):\n    return helper(x)\n\ndef helper(x):\n    return x\n"


@pytest.fixture
def process(tmp_path):
    """Runs one call in a process of its own and returns how many searches it took."""

    def run(arguments="5", before="", cwd=None, text=WORK, **variables):
        (tmp_path / "kernels.py").write_text(text)
        support = os.path.dirname(fakes.__file__)
        program = PROGRAM.format(tests=support, folder=str(tmp_path), before=before, arguments=arguments)
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables}
        done = forked.run([sys.executable, "-c", program], environment, cwd)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    return run


def test_b14_b34_processes_that_differ_in_nothing_that_matters_share_a_choice(process, tmp_path):
    assert process() == 1
    assert process(PYTHONHASHSEED="1", SOME_VARIABLE="1", TRITON_CACHE_DIR=str(tmp_path / "triton")) == 0
    assert process(cwd=str(tmp_path)) == 0
    assert process(arguments="n=5") == 0
    assert process(arguments="k=2, n=5") == 0  # a default that is given
    assert process(text="# moved\n\n\n" + WORK) == 0
    assert process(text=WORK.replace("return helper(x)", "return helper(x)  # a remark")) == 0


@pytest.mark.parametrize(
    ("change", "found"),
    [
        pytest.param({"text": WORK.replace("return x\n", "return x + 0\n")}, 1, id="a helper (B20, B21)"),
        pytest.param({"text": WORK + "\ndef unused():\n    return 1\n"}, 0, id="an unrelated function (B21)"),
        pytest.param({"arguments": "True"}, 1, id="a bool for an int"),
        pytest.param({"arguments": "5, k=3"}, 1, id="a default changed at the call"),
        pytest.param({"text": WORK.replace("k=2", "k=3")}, 1, id="a default changed in the source"),
    ],
)
def test_b20_b21_what_is_edited_between_processes(process, change, found):
    assert process() == 1
    assert process(**change) == found
    assert process() == 0


def test_b34_the_folder_is_ones_own_variable_read_at_first_use(process, tmp_path):
    assert process() == 1
    assert (
        process(
            before=f"import autotuned.api.decorator, os; os.environ['AUTOTUNED_CACHE_DIR'] = {str(tmp_path / 'b')!r}"
        )
        == 1
    )
    assert process(before="import os; os.environ['TRITON_CACHE_DIR'] = '/nowhere'") == 0


def test_b15_memory_and_disk_have_one_key():
    function = make(plain, key=["n"])
    x = np.zeros(4)
    function(x, True)
    assert searches(make(plain, key=["n"]), (x, False), (x, True), (x, 1)) == [1, 0, 1]
    digests = {record.key.digest for _, record in listing.all_records()}
    call = function.tuner.call((x, True), {}, None)
    assert function.tuner.chooser.key(call).digest in digests


def test_b17_what_is_measured_in_another_way_is_another_key():
    def reversed_bench(call, quantiles):
        call()
        return [2.0 + next(HAIRS), 2.0, 2.0]

    make(plain)(np.zeros(4))
    make(plain)(np.zeros(4))
    function = make(plain, do_bench=reversed_bench)
    assert searches(function, (np.zeros(4),), (np.zeros(4),)) == [1, 0]
    assert searches(make(plain), (np.zeros(4),)) == [0]


def test_b18_a_callee_chosen_at_run_time_counts():
    def add(x):
        return x + 1

    def other_add(x):
        return x + 2

    def kernel_of(table):
        def kernel(x, name, *, step):
            return table[name](x)

        return make(kernel, key=["name"])

    x = np.zeros(4)
    assert searches(kernel_of({"add": add}), (x, "add")) == [1]
    assert searches(kernel_of({"add": other_add}), (x, "add")) == [1]
    assert searches(kernel_of({"add": add}), (x, "add")) == [0]


def test_b23_a_hook_is_of_the_live_config_and_a_config_that_is_gone_is_a_miss():
    called = []
    hooked = [Config({"step": 8}, pre_hook=lambda arguments: called.append(arguments["step"])), CONFIGS[1]]

    def restricted(configs):
        return make(plain, configs)

    restricted(hooked)(np.zeros(4))
    called.clear()
    warm = restricted(hooked)
    assert searches(warm, (np.zeros(4),)) == [0]
    assert called == [8]
    assert searches(restricted([Config({"step": 32}), Config({"step": 64})]), (np.zeros(4),)) == [1]


def test_b28_a_storm_of_keys_is_said_once_with_the_argument_and_the_bucket(caplog):
    def conv(x, d, nb, *, step):
        return nb

    function = make(conv, key=["d", "nb"])
    for nb in range(1, 60):
        function(np.zeros(4), 64, nb)
    [line] = caplog.messages
    assert f"{COUNT} different keys in a short time" in line
    assert "argument 'nb' varies most (16 values)" in line
    assert "bucket={'nb': autotuned.pow2} (these would be 5)" in line


def test_b28_a_storm_of_shapes_names_the_tensor(caplog):
    function = make(plain, key=["x"])
    for size in range(100, 130):
        function(np.zeros(size))
    [line] = caplog.messages
    assert "the shape of 'x' varies most (16 values)" in line and "bucket={'x': autotuned.pow2}" in line


def test_b28_few_keys_or_slow_ones_are_no_storm(caplog, monkeypatch):
    from autotuned.resolve import chooser

    function = make(plain, key=["n"])
    for n in range(COUNT - 1):
        function(np.zeros(4), n)
    clock = itertools.count(time.monotonic() + 100, 30.0)
    monkeypatch.setattr(chooser.time, "monotonic", lambda: next(clock))
    for n in range(100, 100 + COUNT):
        function(np.zeros(4), n)
    assert caplog.messages == []


def test_b28_max_searches_bounds_a_storm_and_is_said_once(caplog):
    benchmarks = []

    def counted(call, quantiles):
        benchmarks.append(call())
        return [1.0 + next(HAIRS), 1.0, 1.0]

    def conv(x, nb, *, step):
        return nb, step

    configs = [Config({"step": step}) for step in (8, 16, 32)]
    function = make(conv, configs, key=["nb"], do_bench=counted, max_searches=4)
    lengths = [1 + 977 * n % 200 for n in range(60)]
    assert [function(np.zeros(4), nb) for nb in lengths] == [(nb, 8) for nb in lengths]
    assert function.cache_info().searches == 4
    assert len(benchmarks) == 4 * len(configs)
    [line] = caplog.messages
    assert "run untuned: 4 searches were run, the limit of max_searches=" in line
    assert len(list(listing.all_records())) == 4
    found = function.explain(np.zeros(4), 500)
    assert (found.reason, found.answer) == ("absent", "default")
    with autotuned.mode("search"):
        function(np.zeros(4), 501)
    assert function.cache_info().searches == 5


def test_b28_what_is_stored_is_served_beyond_max_searches():
    make(plain, key=["n"])(np.zeros(4), 2)
    assert searches(make(plain, key=["n"], max_searches=1), *[(np.zeros(4), n) for n in (1, 2, 3)]) == [1, 0, 0]
    assert searches(make(plain, key=["n"], max_searches=0), (np.zeros(4), 4)) == [0]


@pytest.mark.parametrize("limit", [-1, 1.5, "16", True])
def test_max_searches_is_a_number(limit):
    with pytest.raises(autotuned.errors.DecorationError, match=r"max_searches.* expected .* got"):
        make(plain, max_searches=limit)


def test_b25_the_same_output_shape_from_other_inputs_is_another_key():
    def add(a, b, out, *, step):
        np.add(a, b, out=out)

    function, out = make(add, restore_value=["out"]), np.zeros((10, 10))
    wide, tall, square = np.ones((1, 10)), np.ones((10, 1)), np.arange(100.0).reshape(10, 10)
    assert searches(function, (tall, wide, out), (square, square, out), (square.T, square, out)) == [1, 1, 1]
    assert searches(function, (tall, wide, out), (square, square.T, out)) == [0, 1]


def test_b29_buckets_bound_the_searches_and_the_launch_gets_the_true_value():
    function = make(lambda x, t, *, step: t, key=["t"], bucket={"t": key.pow2})
    assert [function(np.zeros(1), t) for t in (1, 1024, 1025, 4096, 2049)] == [1, 1024, 1025, 4096, 2049]
    for t in range(1, 4097, 37):
        function(np.zeros(1), t)
    assert function.cache_info().searches <= 13


def timed_steps(times):
    """A function with a step, its benchmark by the times given, and the steps that were measured and that were run."""
    measured, ran = [], []

    def stepped(x, *, step):
        ran.append(step)

    def timed(call, quantiles):
        call()
        measured.append(ran[-1])
        return [times[ran[-1]]] * 3

    return stepped, timed, measured, ran


def test_b31_timings_are_of_configs_and_not_of_lists():
    stepped, timed, measured, ran = timed_steps({8: 3.0, 16: 1.0, 32: 2.0, 64: 0.5})

    def chosen(*steps, **options):
        measured.clear()
        ran.clear()
        function = make(stepped, [Config({"step": step}) for step in steps], do_bench=timed, version=1, **options)
        function(np.zeros(4))
        return sorted(measured), function.best_config.kwargs["step"]

    assert chosen(8, 16, 32) == ([8, 16, 32], 16)
    assert chosen(32, 16, 8) == ([], 16)
    assert chosen(8, 32) == ([], 32)
    assert chosen(8, 16, 32, 64) == ([16, 64], 64)
    slow = {"early_config_prune": lambda configs, named, **kw: [c for c in configs if c.kwargs["step"] < 20]}
    assert chosen(8, 16, 32, 64, prune_configs_by=slow) == ([], 16)
    assert chosen(8, 16, 32, 64) == ([], 64)


def test_b32_a_miss_says_in_which_field_it_differs_from_the_nearest(caplog):
    caplog.set_level("INFO", "autotuned")
    make(plain, key=[])(np.zeros(4, np.float32))
    caplog.clear()
    make(plain, key=[])(np.zeros(4, np.float64))
    assert any("differs in call.tensors.x.dtype: 'float64' here, 'float32' there" in line for line in caplog.messages)


def test_b33_a_winner_from_outside_the_list_is_a_hit_in_the_next_process():
    def refine(configs, named, **kw):
        return [*configs, Config({"step": 128})]

    stepped, timed, measured, ran = timed_steps({8: 3.0, 16: 2.0, 128: 1.0})

    for expected in (3, 0):
        measured.clear()
        ran.clear()
        function = make(stepped, do_bench=timed, prune_configs_by={"early_config_prune": refine})
        function(np.zeros(4))
        assert len(measured) == expected
        assert ran[-1] == 128


def test_b33_a_tuned_function_is_pickled_by_its_name(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "mod_pickled.py").write_text(
        textwrap.dedent("""
        from fakes import FakeConfig as Config
        from autotuned import autotune

        @autotune([Config({"step": 8}), Config({"step": 16})])
        def function(x, *, step):
            return step
    """)
    )
    sys.path.insert(0, str(tmp_path))
    try:
        import mod_pickled

        assert isinstance(mod_pickled.function, TunedFunction)
        assert pickle.loads(pickle.dumps(mod_pickled.function)) is mod_pickled.function
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("mod_pickled", None)


def test_tables_are_bounded_and_the_counter_says_so(monkeypatch):
    from autotuned.launch import table

    monkeypatch.setattr(table, "LIMIT", 10)
    monkeypatch.setattr("autotuned.resolve.request.LIMIT", 10)
    function = make(plain, configs=CONFIGS, key=["n"], default=CONFIGS[0])
    for n in range(25):
        function(np.zeros(4), n)
    info = function.cache_info()
    assert (info.size, info.evictions) == (10, 15)
    searched = make(plain, key=["n"], cache_results=False)
    for n in range(12):
        searched(np.zeros(4), n)
    assert len(searched.tuner.chooser.state.choices) == 10
    assert len(searched.tuner.chooser.state._said) <= 10


def test_objects_in_keys_are_not_kept_without_end(monkeypatch):
    from autotuned.key import opaque

    monkeypatch.setattr(opaque, "LIMIT", 4)
    first = object()
    spelled = [opaque.spell(first, "x"), opaque.spell(first, "x")]
    assert spelled[0] == spelled[1]
    used = [object() for _ in range(20)]
    numbers = [opaque.spell(one, "x")["python object"] for one in used]
    assert len(set(numbers)) == 20
    assert len(opaque._kept) <= 4
    assert opaque.spell(first, "x") != spelled[0]  # let go: a new number, never one of another object


def test_mode_names(monkeypatch):
    with autotuned.mode("serve"):
        assert make(plain, key=["n"]).explain(np.zeros(4)).answer == "default"


def test_b28_one_key_searched_again_and_again_is_no_storm(caplog):
    function = make(plain, key=["n"], cache_results=False)
    for _ in range(2 * COUNT):
        function(np.zeros(4), 1)
        function.cache_clear()
    assert function.cache_info().searches == 2 * COUNT
    assert caplog.messages == []


@pytest.mark.parametrize("budget_s", [0, 0.0, -1, math.nan, "10", True])
def test_a_budget_is_a_number_of_seconds_above_0(budget_s):
    with pytest.raises(autotuned.errors.DecorationError, match=r"budget_s: expected seconds above 0 or None, got"):
        make(plain, budget_s=budget_s)


def test_a_search_whose_time_was_used_up_before_it_began_measures_the_first_config_only():
    function = make(plain, [Config({"step": step}) for step in (8, 16, 32)])
    _, choice = function.tuner.tune(function.tuner.call((np.zeros(4), 1), {}, None), budget_s=0.0)
    assert [timing.config["kwargs"] for timing in choice.record.timings] == [{"step": 8}]
