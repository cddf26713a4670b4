"""What libraries rely on, one test or more for each MUST of the contract in docs/contract.md, with its number."""

import copy
import enum
import inspect
import pickle
import threading
import warnings

import fake_cuda
import pytest
import subjects
import torch
import triton
import triton.language as tl
from triton import Config, knobs
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction, KernelInterface

import autotuned
from autotuned import replaced, store

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]
DECORATED = pytest.mark.subjects(["replaced", "autotuned"])


def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr = False):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


@pytest.fixture
def bench():
    return fake_cuda.by_config({16: 2.0, 32: 1.0, 64: 3.0})


@pytest.fixture
def make(subject, bench):
    def make(configs=CONFIGS, jit=None, key=("n",), **options):
        return subject.autotune(configs, key=list(key), **{"do_bench": bench, **options})(jit or triton.jit(add))

    return make


@pytest.fixture
def x():
    return torch.zeros(128)


# -- M1: a subclass with Triton's signature ---------------------------------------------------------------------------


def test_m1_it_is_a_tuner_of_tritons(make):
    kernel = make()
    assert isinstance(kernel, Autotuner)
    assert isinstance(kernel, KernelInterface)
    assert type(kernel.fn) is JITFunction
    assert kernel.base_fn is add


@pytest.mark.parametrize("decorator", [replaced.autotune, autotuned.autotune], ids=["replaced", "autotuned"])
def test_m1_the_first_twelve_parameters_are_tritons(decorator):
    ours = list(inspect.signature(decorator).parameters.values())
    stock = list(inspect.signature(triton.autotune).parameters.values())
    assert [parameter.name for parameter in ours[:12]] == [parameter.name for parameter in stock] and len(stock) == 12
    assert all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in ours[:12])
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in ours[12:])
    if decorator is replaced.autotune:
        assert [parameter.default for parameter in ours] == [parameter.default for parameter in stock]


def test_m1_twelve_arguments_by_place(subject, bench, x):
    with warnings.catch_warnings(record=True):
        kernel = subject.autotune(CONFIGS, ["n"], None, None, [], None, None, None, None, False, bench, False)(
            triton.jit(add)
        )
    kernel[(4,)](x, x, 100)
    assert kernel.best_config is CONFIGS[1]


# -- M2: attributes are live ------------------------------------------------------------------------------------------


def test_m2_attributes(make):
    def early(configs, named, **kwargs):
        return configs

    def model(**arguments):
        return 1.0

    pruning = {"early_config_prune": early, "perf_model": model, "top_k": 2}
    kernel = make(prune_configs_by=pruning, reset_to_zero=["y_ptr"], restore_value=["x_ptr"])
    assert (kernel.keys, kernel.arg_names) == (["n"], ["x_ptr", "y_ptr", "n", "BLOCK", "EVEN"])
    assert (kernel.reset_to_zero, kernel.restore_value) == (["y_ptr"], ["x_ptr"])
    assert (kernel.early_config_prune, kernel.perf_model, kernel.configs_top_k) == (early, model, 2)
    assert (kernel.user_defined_pre_hook, kernel.user_defined_post_hook, kernel.use_cuda_graph) == (False, False, False)
    assert [config.kwargs for config in kernel.configs] == [{"BLOCK": 16}, {"BLOCK": 32}]
    assert len(kernel.cache) == 0
    assert callable(kernel.pre_hook) and callable(kernel.post_hook)


def test_m2_the_cache_is_in_tritons_layout_and_what_is_written_holds(make, x, bench):
    kernel = make()
    kernel[(4,)](x, x, 100)
    key = (100, "torch.float32", "torch.float32")
    assert dict(kernel.cache) == {key: CONFIGS[1]}
    assert [(k, config.all_kwargs()["BLOCK"]) for k, config in kernel.cache.items()] == [(key, 32)]
    kernel.cache[key] = CONFIGS[0]
    for _ in range(3):
        kernel[(4,)](x, x, 100)
        assert kernel.best_config is CONFIGS[0]
    assert sorted(bench.calls) == [16, 32]


@pytest.mark.parametrize(
    "remove", [dict.popitem, dict.clear, lambda cache: cache.pop(next(iter(cache)))], ids=["popitem", "clear", "pop"]
)
def test_m2_what_is_removed_is_forgotten(make, x, subject, remove):
    kernel = make()
    kernel[(4,)](x, x, 100), kernel[(4,)](x, x, 100)
    key = next(iter(kernel.cache))
    kernel.cache[key] = CONFIGS[0]
    kernel[(4,)](x, x, 100), kernel[(4,)](x, x, 100)
    getattr(kernel.cache, getattr(remove, "__name__", ""), lambda: remove(kernel.cache))()
    assert len(kernel.cache) == 0
    kernel[(4,)](x, x, 100)
    assert kernel.best_config is CONFIGS[1]  # asked for again: of the store, or measured


def test_m2_configs_may_be_cut_or_replaced(make, x):
    kernel = make(list(CONFIGS))
    kernel[(4,)](x, x, 64), kernel[(4,)](x, x, 64)
    kernel.configs = kernel.configs[:1]
    kernel[(4,)](x, x, 64)
    assert kernel.best_config is CONFIGS[0]
    kernel.configs = [CONFIGS[1]]
    kernel[(4,)](x, x, 64)
    assert kernel.best_config is CONFIGS[1]
    kernel.configs.append(CONFIGS[0])
    kernel[(4,)](x, x, 64)
    kernel.configs.pop(0)
    kernel[(4,)](x, x, 64)
    assert kernel.best_config is CONFIGS[0]


def test_m2_configs_that_are_gone_are_not_launched_any_more(make, x, subject):
    kernel = make(list(CONFIGS))
    kernel[(4,)](x, x, 64), kernel[(4,)](x, x, 64)
    kernel.configs = [CONFIGS[0], Config({"BLOCK": 64})]
    kernel[(4,)](x, x, 64)
    if subject.is_ours:
        assert kernel.best_config is CONFIGS[0]
    else:
        assert kernel.best_config is CONFIGS[1]  # Triton's own tuner does not look at the list again


def test_m2_a_key_may_be_taken_out_of_the_list(make, x, bench):
    kernel = make(key=("n", "EVEN"))
    kernel.keys.remove("n")
    for n in (100, 90, 80):
        kernel[(4,)](x, x, n, EVEN=True)
    assert sorted(bench.calls) == [16, 32]
    assert kernel.keys == ["EVEN"]


def test_m2_a_pruner_may_be_set_from_outside(make, x, bench):
    kernel = make()
    kernel.early_config_prune = lambda configs, named, **kwargs: configs[:1]
    kernel[(4,)](x, x, 100)
    assert kernel.best_config is CONFIGS[0]
    kernel.nargs = {"x_ptr": x, "y_ptr": x, "n": 100}
    assert [config.kwargs for config in kernel.prune_configs({})] == [{"BLOCK": 16}]


# -- M3: how it is launched -------------------------------------------------------------------------------------------


def test_m3_by_index_and_by_run_with_names_only(make, x, launches):
    kernel = make()
    for _ in range(3):
        by_index = kernel[(4,)](x, x, 100)
        by_run = kernel.run(grid=(4,), warmup=False, x_ptr=x, y_ptr=x, n=100)
        assert by_index is by_run
        assert by_run.metadata.name == "add"
    if hasattr(kernel, "cache_info"):
        assert kernel.cache_info().hits == 5  # both ways


def test_m3_a_warm_up_neither_launches_nor_measures(make, x, launches, bench, subject):
    kernel = make()
    if subject.is_ours:  # Triton's own times the warm-up itself and keeps the winner
        assert kernel.run(x, x, 100, grid=(4,), warmup=True).metadata.name == "add"
    assert [one.metadata.name for one in kernel.warmup(x, x, 100, grid=(4,))] == ["add", "add"]
    assert (launches, bench.calls, len(kernel.cache)) == ([], [], 0)


@pytest.mark.subjects(["seeded"])
def test_m3_what_triton_makes_of_a_warm_up_is_not_stored(subject, x):
    times = iter([1.0, 2.0])
    kernel = subject.autotune(CONFIGS, key=["n"], do_bench=lambda call, quantiles: next(times))(triton.jit(add))
    kernel.run(x, x, 100, grid=(4,), warmup=True)
    assert list(store.all_records()) == []


@pytest.mark.parametrize("outside", [1, 3])
def test_m3_heuristics_outside(make, x, launches, outside):
    kernel = make(key=("EVEN",))
    stack = kernel
    for _ in range(outside):
        stack = triton.heuristics({"EVEN": lambda arguments: arguments["n"] % 2 == 0})(stack)
    for n in (100, 99, 98, 97):
        stack[(4,)](x_ptr=x, y_ptr=x, n=n)
        assert launches[-1].arguments["EVEN"] == (n % 2 == 0)
    assert sorted(key[0] for key in kernel.cache) == [False, True]


# -- M4: the choice of the last launch --------------------------------------------------------------------------------


def test_m4_best_config_is_of_each_launch(make, x, launches):
    kernel = make()
    for n in (100, 100, 64, 100, 64):
        kernel[(4,)](x, x, n)
        kernel.cache[(64, "torch.float32", "torch.float32")] = CONFIGS[0]
        if len(launches) > 3:
            assert kernel.best_config.kwargs["BLOCK"] == launches[-1].arguments["BLOCK"]


@DECORATED
def test_m4_best_config_is_the_launching_threads(make, x):
    kernel = make()
    kernel.cache[(64, "torch.float32", "torch.float32")] = CONFIGS[0]
    kernel[(4,)](x, x, 100), kernel[(4,)](x, x, 64)
    seen = []

    def other():
        for _ in range(3):
            kernel[(4,)](x, x, 100)
        seen.append(kernel.best_config)

    thread = threading.Thread(target=other)
    thread.start(), thread.join()
    assert (seen, kernel.best_config) == ([CONFIGS[1]], CONFIGS[0])


def test_m4_arguments_are_there_for_pruners_and_gone_afterwards(make, x, subject):
    seen = []
    kernel = make(
        prune_configs_by={"early_config_prune": lambda configs, named, **kw: seen.append(kernel.nargs) or configs}
    )
    kernel[(4,)](x, x, n=100)
    assert [set(named) for named in seen] == [{"x_ptr", "y_ptr"}] * len(seen) and seen
    assert kernel.nargs is None
    if subject.is_ours:  # Triton's own leaves them, and the tensors alive, after an exception
        with pytest.raises(Exception):
            kernel[(4,)](x, x, n=object())
        assert kernel.nargs is None


# -- M5: order of a launch --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("configs", [1, 2], ids=["one", "two"])
def test_m5_hook_then_grid_with_every_argument_at_each_launch(make, launches, x, configs):
    events = []

    def hook(arguments):
        events.append(("hook", arguments["BLOCK"], arguments["n"], arguments["x_ptr"] is x, "EVEN" in arguments))

    def grid(meta):
        events.append(("grid", meta["BLOCK"], meta["n"], set(meta) >= {"x_ptr", "y_ptr", "n", "BLOCK", "EVEN"}))
        return [meta["n"] // meta["BLOCK"], 1]

    hooked = [Config({"BLOCK": block}, pre_hook=hook) for block in (16, 32)]
    kernel = make(hooked[-configs:])
    for _ in range(4):
        events.clear()
        kernel[grid](x, x, 96)
        assert [event[0] for event in events[-2:]] == ["hook", "grid"]
        assert events[-1] == ("grid", 32, 96, True)
        assert events[-2][:4] == ("hook", 32, 96, True)
        assert launches[-1].grid == (3, 1, 1)
    assert len(events) == 2


# -- M6: while it tunes -----------------------------------------------------------------------------------------------


def test_m6_what_the_configs_set_is_a_conflict(make, x):
    with pytest.raises(
        ValueError, match="Conflicting meta-parameters: BLOCK. Make sure that you don't re-define auto-tuned symbols."
    ):
        make()[(4,)](x, x, 100, BLOCK=16)


def test_m6_hooks_in_their_order(make, x, monkeypatch):
    events = []
    monkeypatch.setattr(fake_cuda.Launcher, "__call__", lambda self, *args: events.append("launch"))
    configs = [Config({"BLOCK": block}, pre_hook=lambda arguments: events.append("config")) for block in (16, 32)]
    kernel = make(
        configs,
        pre_hook=lambda arguments, reset_only=False: events.append("reset" if reset_only else "before"),
        post_hook=lambda arguments, exception: events.append("after"),
        do_bench=lambda call, quantiles: (call(), 1.0)[1],
    )
    kernel[(4,)](x, x, 100)
    trial = ["config", "before", "launch", "after"]
    assert events[:4] == trial
    assert events[-2:] == ["config", "launch"]
    assert events.count("launch") == events.count("after") + 1 == events.count("before") + 1


@pytest.mark.parametrize("error", [OutOfResources(9, 1, "threads"), "compile-time"], ids=["resources", "assertion"])
def test_m6_a_config_that_cannot_run_loses(make, x, error):
    def picky(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr = False):
        tl.static_assert(BLOCK == 32)
        tl.store(y_ptr, n)

    raised = []

    def bench(call, quantiles):
        call()
        raised.append(error)
        if isinstance(error, Exception) and len(raised) == 1:
            raise error
        return [1.0] * 3

    kernel = make(jit=triton.jit(picky if error == "compile-time" else add), do_bench=bench)
    for _ in range(2):
        kernel[(4,)](x, x, 100)
        assert kernel.best_config is CONFIGS[1]


@pytest.mark.subjects(["seeded", "replaced"])
def test_m6_other_exceptions_end_the_search_as_with_triton(make, x, bench):
    def fail(call, quantiles):
        raise ZeroDivisionError

    kernel = make(do_bench=fail)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            kernel[(4,)](x, x, 100)
    assert len(kernel.cache) == 0


@pytest.mark.subjects(subjects.OURS)
def test_m6_when_all_fail_nothing_is_kept(make, x, launches):
    def broken(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr = False):
        tl.static_assert(BLOCK == 7)

    kernel = make(jit=triton.jit(broken), do_bench=lambda call, quantiles: (call(), 1.0)[1])
    for _ in range(2):
        with pytest.raises(Exception, match="static_assert|failed"):
            kernel[(4,)](x, x, 100)
    assert (len(kernel.cache), launches) == (0, [])
    assert [record for _, record in store.all_records() if record.winner] == []


def test_m6_gradients_are_not_recorded(make):
    x = torch.zeros(128, requires_grad=True)
    kernel = make(restore_value=["x_ptr"], do_bench=lambda call, quantiles: (call(), 1.0)[1])
    with torch.no_grad():  # Triton's own copies would fail without it, and so would the user's launch
        kernel[(4,)](x, x, 100)
    assert x.grad_fn is None


# -- M7: pruning ------------------------------------------------------------------------------------------------------


def test_m7_a_pruner_may_make_new_configs_with_hooks(make, x, bench, subject):
    hooked = []

    def early(configs, named, **kwargs):
        return [
            Config({"BLOCK": block}, pre_hook=lambda arguments: hooked.append(arguments["BLOCK"])) for block in (16, 32)
        ]

    for _ in range(2):
        kernel = make(prune_configs_by={"early_config_prune": early})
        for _ in range(2):
            hooked.clear()
            kernel[(4,)](x, x, 100)
            assert hooked[-1] == 32
    assert sorted(bench.calls) == ([16, 16, 32, 32] if subject.name == "triton" else [16, 32])


def test_m7_a_pruners_configs_may_set_more_than_the_listed_ones(subject, bench, x, launches):
    def fill(x_ptr, n, BLOCK: tl.constexpr, STAGES: tl.constexpr):
        tl.store(x_ptr + tl.arange(0, BLOCK), n + STAGES)

    def early(configs, named, **kwargs):
        return [Config({**config.kwargs, "STAGES": 3}) for config in configs]

    pruning = {"early_config_prune": early}
    kernel = subject.autotune(CONFIGS, key=["n"], prune_configs_by=pruning, do_bench=bench)(triton.jit(fill))
    for _ in range(4):
        kernel[(1,)](x, 100)
        assert (launches[-1].arguments["BLOCK"], launches[-1].arguments["STAGES"]) == (32, 3)
    assert sorted(bench.calls) == [16, 32]


# -- M8: a stored choice is the live config ---------------------------------------------------------------------------


@pytest.mark.subjects(subjects.OURS)
def test_m8_a_stored_choice_has_its_hook_again(make, x, bench):
    hooked = []
    configs = [
        Config({"BLOCK": block}, pre_hook=lambda arguments: hooked.append(arguments["BLOCK"])) for block in (16, 32)
    ]
    make(configs)[(4,)](x, x, 100)
    bench.calls.clear(), hooked.clear()
    kernel = make(configs)
    kernel[(4,)](x, x, 100)
    assert (kernel.best_config is configs[1], bench.calls, hooked) == (True, [], [32])


@pytest.mark.subjects(subjects.OURS)
def test_m8_a_stored_choice_that_is_pruned_now_is_not_taken(make, x, bench):
    make()[(4,)](x, x, 100)
    bench.calls.clear()
    kernel = make(prune_configs_by={"early_config_prune": lambda configs, named, **kwargs: configs[:1]})
    kernel[(4,)](x, x, 100)
    assert (kernel.best_config, bench.calls) == (CONFIGS[0], [])


# -- M9: whoever patches Triton is obeyed -----------------------------------------------------------------------------


def test_m9_a_patched_run_of_the_class(make, x, launches, monkeypatch):
    kernel = make()
    for _ in range(3):
        kernel[(4,)](x, x, 100)

    def first_config(self, *args, **kwargs):
        self.best_config = self.configs[0]
        return self.fn.run(*args, **kwargs, **self.configs[0].all_kwargs())

    with monkeypatch.context() as patch:
        patch.setattr(Autotuner, "run", first_config)
        for _ in range(2):
            kernel[(4,)](x, x, 100)
            assert launches[-1].arguments["BLOCK"] == 16
            kernel.run(x, x, 100, grid=(4,), warmup=False)
            assert launches[-1].arguments["BLOCK"] == 16
    kernel[(4,)](x, x, 100)
    assert launches[-1].arguments["BLOCK"] == 32


def test_m9_a_patched_run_of_the_function_sees_every_launch(make, x, monkeypatch):
    """A recorder that sees no launch may conclude that there is none to replay."""
    kernel = make()
    for _ in range(3):
        kernel[(4,)](x, x, 100)
    seen, run = [], JITFunction.run

    def record(self, *args, **kwargs):
        seen.append(kwargs["BLOCK"])
        return run(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(JITFunction, "run", record)
        kernel[(4,)](x, x, 100), kernel[(4,)](x, x, 100)
    kernel[(4,)](x, x, 100)
    assert seen == [32, 32]


def test_m9_a_patched_index_sees_every_launch(make, x, monkeypatch, launches):
    """Triton's own compile-only mode replaces it."""
    kernel = make()
    for _ in range(3):
        kernel[(4,)](x, x, 100)
    seen = []
    before = len(launches)
    with monkeypatch.context() as patch:
        patch.setattr(KernelInterface, "__getitem__", lambda self, grid: lambda *args, **kwargs: seen.append(grid))
        kernel[(4,)](x, x, 100)
    assert (seen, len(launches)) == ([(4,)], before)
    kernel[(4,)](x, x, 100)
    assert len(launches) == before + 1


def test_m9_an_inner_kernel_of_another_class(subject, bench, x, launches):
    """Some libraries wrap the function in a class of their own, whose run returns something else."""

    class Entry(KernelInterface):
        def __init__(self, fn):
            self.fn, self.arg_names = fn, fn.arg_names
            self.calls = 0

        def run(self, *args, **kwargs):
            self.calls += 1
            return self.fn.run(*args, **kwargs), {}

    entry = Entry(triton.jit(add))
    kernel = subject.autotune(CONFIGS, key=["n"], do_bench=bench)(entry)
    for _ in range(3):
        calls = entry.calls
        compiled, constants = kernel[(4,)](x, x, 100)
        assert (compiled.metadata.name, constants, launches[-1].arguments["BLOCK"]) == ("add", {}, 32)
        assert entry.calls > calls


def test_m9_two_tuners_over_one_function(subject, bench, x, launches):
    jit = triton.jit(add)
    one = subject.autotune(CONFIGS, key=["n"], do_bench=bench)(jit)
    other = subject.autotune([Config({"BLOCK": 64}), Config({"BLOCK": 16})], key=["n"], do_bench=bench)(jit)
    for _ in range(3):
        one[(4,)](x, x, 100)
        assert launches[-1].arguments["BLOCK"] == 32
        other[(4,)](x, x, 100)
        assert launches[-1].arguments["BLOCK"] == 16


# -- M10 is in test_compiled_launch.py, M12 in test_compiled_listener.py ----------------------------------------------
# -- M11: under capture -----------------------------------------------------------------------------------------------


@pytest.fixture
def capture(monkeypatch):
    def refuse(*args):
        raise AssertionError("a captured stream was synchronised")

    def begin(is_on):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_on)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_on)
        monkeypatch.setattr(torch.cuda, "synchronize", refuse if is_on else lambda: None)

    return begin


@pytest.mark.subjects(subjects.INSTALLED)
def test_m11_nothing_is_measured_under_capture(make, x, bench, capture, caplog, launches):
    kernel = make()
    capture(True)
    for _ in range(3):
        kernel[(4,)](x, x, 100)
        assert (kernel.best_config, launches[-1].arguments["BLOCK"]) == (CONFIGS[0], 16)
    assert (bench.calls, len(kernel.cache), list(store.all_records())) == ([], 0, [])
    assert caplog.text.count("nothing may be measured now") == 1
    capture(False)
    kernel[(4,)](x, x, 100)
    assert (kernel.best_config, sorted(bench.calls)) == (CONFIGS[1], [16, 32])


@pytest.mark.subjects(subjects.INSTALLED)
def test_m11_the_first_config_that_compiles(make, x, capture, launches):
    def picky(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr = False):
        tl.static_assert(BLOCK == 32)
        tl.store(y_ptr, n)

    kernel = make(jit=triton.jit(picky))
    capture(True)
    kernel[(4,)](x, x, 100)
    assert kernel.best_config is CONFIGS[1]


@pytest.mark.subjects(subjects.OURS)
def test_m11_a_stored_choice_serves_under_capture(make, x, bench, capture):
    make()[(4,)](x, x, 100)
    bench.calls.clear()
    kernel = make()
    capture(True)
    kernel[(4,)](x, x, 100), kernel[(4,)](x, x, 100)
    assert (kernel.best_config, bench.calls) == (CONFIGS[1], [])


# -- M13: keys of any value -------------------------------------------------------------------------------------------


class Kind(enum.Enum):
    A = 1
    B = 2


VALUES = {
    "tl-dtypes": [tl.float32, tl.float16],
    "torch-dtypes": [torch.float32, torch.float16],
    "none": [None, 3],
    "bools": [True, False],
    "enums": [Kind.A, Kind.B],
    "floats": [0.5, 1e-30],
    "texts": ["a", "b"],
}


def valued(x_ptr, kind: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(x_ptr, BLOCK)


@pytest.mark.subjects(subjects.OURS)
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_m13_values_that_are_stored(subject, bench, x, values):
    def make():
        return subject.autotune(CONFIGS, key=["kind"], do_bench=bench)(triton.jit(valued))

    for value in values:
        make()[(1,)](x, value)
    assert len(bench.calls) == 4
    bench.calls.clear()
    for value in values:
        kernel = make()
        kernel[(1,)](x, value)
        assert (kernel.best_config, bench.calls) == (CONFIGS[1], [])


@pytest.mark.subjects(subjects.OURS)
def test_m13_an_object_is_kept_in_memory_only(subject, bench, x):
    class Opaque:
        def __eq__(self, other):
            return self is other

        __hash__ = object.__hash__

    kernel = subject.autotune(CONFIGS, key=["kind"], do_bench=bench)(triton.jit(valued))
    kernel.fn.run = lambda *args, **kwargs: None  # Triton itself takes no such constant
    kernel.cache[(Opaque(), "torch.float32")] = CONFIGS[0]
    assert list(store.all_records()) == []
    assert len(kernel.cache) == 1


@pytest.mark.subjects(subjects.INSTALLED)
def test_m13_dtypes_of_descriptors_are_told_apart_in_the_store(subject, bench, x):
    """Triton's key has none for them: within a process they share a choice, as ever."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    def read(desc, y_ptr, BLOCK: tl.constexpr):
        tl.store(y_ptr, tl.sum(desc.load([0, 0])) + BLOCK)

    for dtype in (torch.float16, torch.float32):
        kernel = subject.autotune(CONFIGS, key=[], do_bench=bench)(triton.jit(read))
        kernel[(1,)](TensorDescriptor.from_tensor(torch.zeros(64, 32, dtype=dtype), [8, 32]), x)
    assert len(list(store.all_records())) == 2


# -- M14 is in test_interpreted_interpreter.py; M15 -------------------------------------------------------------------


def test_m15_identity_and_no_call(make):
    kernel, other = make(), make()
    assert kernel == kernel != other
    assert len({kernel, other}) == 2
    assert not callable(kernel)
    assert not hasattr(kernel, "__name__")


def test_m15_configs_may_be_copied_and_pickled(make, x):
    kernel = make()
    kernel[(4,)](x, x, 100)
    for again in (copy.deepcopy(kernel.best_config), pickle.loads(pickle.dumps(kernel.best_config))):
        assert again == kernel.best_config


def test_triton_switches_stay_as_they_are():
    """That what these tests patch is there in this Triton."""
    assert knobs.autotuning.print is False
