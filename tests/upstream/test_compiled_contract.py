"""What libraries rely on, one test or more for a MUST of docs/contract.md, with its number: M1 to M5, M9, M15."""

import copy
import inspect
import pickle
import threading
import warnings

import pytest
import triton
from contract import CONFIGS, DECORATED, add
from triton import Config, knobs
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction, KernelInterface

import autotuned
from autotuned.api.tuned import Decorated
from autotuned.dropin import replaced, stock_tuner
from autotuned.errors import CallError
from autotuned.store import listing

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
    assert list(listing.all_records()) == []


@pytest.mark.subjects(["seeded"])
def test_a_key_that_cannot_be_made_is_one_line_and_triton_tunes(make, x, bench, launches, monkeypatch, caplog):
    def endless(*args):
        raise RecursionError("round and round")

    monkeypatch.setattr(stock_tuner, "encode", endless)
    kernel = make()
    for _ in range(2):
        kernel[(4,)](x, x, 100)
    assert kernel.best_config is CONFIGS[1] and bench.calls == [16, 32] and len(launches) == 4  # two were measured
    assert [line for line in caplog.messages if "RecursionError: round and round" in line] == caplog.messages
    assert len(caplog.messages) == 1 and caplog.messages[0].endswith("Triton tunes it.")


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


# -- M6 to M8, M11 and M13 are in test_compiled_contract_tuning.py, M14 in test_interpreted_interpreter.py
# -- M15 ---------------------------------------------------------------------------------------------------------------


def test_m15_identity_and_no_call(make):
    kernel, other = make(), make()
    assert kernel == kernel != other
    assert len({kernel, other}) == 2
    if isinstance(kernel, Decorated):  # our own decorator's says what is missing
        with pytest.raises(CallError, match="expected a grid, got none"):
            kernel()
    else:
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
