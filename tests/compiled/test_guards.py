"""What may change after a kernel was bound: each is noticed at the next launch, and never answered with a stale one."""

import gc
import sys
import threading
import weakref

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from counted import profiled
from triton import Config, knobs
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from autotuned import autotune

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32}, num_warps=2)]
FACTOR = tl.constexpr(2)
ORIGINAL_RUN = JITFunction.run


def scale(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * FACTOR, mask=i < n)


def kernel(**options):
    options = {"key": ["n"], "do_bench": fake_cuda.by_config({16: 2.0, 32: 1.0})} | options
    return autotune(CONFIGS, **options)(triton.jit(scale))


@pytest.fixture
def x():
    return torch.zeros(100)


@pytest.fixture
def bound(x):
    """A tuned kernel that has been launched twice: the second launch was a hit."""
    tuned = kernel()
    tuned[(4,)](x, 100)
    tuned[(4,)](x, 100)
    assert tuned.cache_info().hits == 1
    return tuned


@pytest.fixture
def profiler():
    """Launch hooks as a profiler attaches them: after kernels were bound."""
    seen = []

    def enter(metadata):
        seen.append(("enter", metadata.get()["name"], metadata.get()["stream"]))

    def leave(metadata):
        seen.append(("exit", metadata.get()["name"], metadata.get()["stream"]))

    def attach():
        knobs.runtime.launch_enter_hook.add(enter)
        knobs.runtime.launch_exit_hook.add(leave)

    def detach():
        knobs.runtime.launch_enter_hook.remove(enter)
        knobs.runtime.launch_exit_hook.remove(leave)

    yield attach, detach, seen
    detach()


def test_launch_hooks_attached_later_see_each_launch(bound, x, profiler, driver, launches):
    attach, detach, seen = profiler
    attach()
    driver.stream = 5
    bound[(4,)](x, 100)
    assert seen == [("enter", "scale", 5), ("exit", "scale", 5)]
    bound[(4,)](x, 100)
    assert len(seen) == 4
    detach()
    before = len(launches)
    bound[(4,)](x, 100)
    assert len(seen) == 4
    assert len(launches) == before + 1
    assert bound.cache_info().hits == 4


def test_launch_metadata_of_the_kernel_gets_the_callers_grid(x, profiler):
    got = []

    def metadata(grid, compiled, arguments):
        got.append((grid, compiled.num_warps, arguments["n"]))
        return {"name": "named", "flops": 7}

    tuned = autotune(CONFIGS, key=["n"], default=CONFIGS[1])(triton.jit(launch_metadata=metadata)(scale))
    tuned[(4,)](x, 100)
    attach, _, seen = profiler
    attach()
    tuned[(4,)](x, 100)
    tuned.fn[(4,)](x, 100, **CONFIGS[1].all_kwargs())
    assert tuned.cache_info().hits == 1
    assert got[0] == got[-1] == ((4,), 2, 100)
    assert seen[:2] == [("enter", "named", 0), ("exit", "named", 0)]


def test_pre_run_hooks_added_later_run(bound, x, launches):
    got = []
    bound.fn.add_pre_run_hook(lambda *args, **kwargs: got.append(kwargs["BLOCK"]))
    before = len(launches)
    bound[(4,)](x, 100)
    assert got == [32]
    assert len(launches) == before + 1

    def refuse(*args, **kwargs):
        raise PermissionError("not now")

    bound.fn.add_pre_run_hook(refuse)
    with pytest.raises(PermissionError, match="not now"):
        bound[(4,)](x, 100)
    assert len(launches) == before + 1


def test_a_changed_global_is_tritons_own_error(bound, x, launches, monkeypatch):
    monkeypatch.setitem(globals(), "FACTOR", tl.constexpr(3))
    before = len(launches)
    with pytest.raises(RuntimeError, match="Global variable FACTOR has changed since we compiled this kernel"):
        bound[(4,)](x, 100)
    assert len(launches) == before
    monkeypatch.undo()


def count_compiles(monkeypatch):
    compiled = []
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", lambda **info: compiled.append(info["fn"].name))
    return compiled


def test_a_kernel_evicted_from_tritons_cache_is_compiled_again_once(bound, x, launches, monkeypatch):
    compiled = count_compiles(monkeypatch)
    old = launches[-1].function
    bound.fn.device_caches[0][0].clear()
    again = bound[(4,)](x, 100)
    assert compiled == ["scale"]
    assert launches[-1].function == again.function != old
    assert bound[(4,)](x, 100) is again
    assert compiled == ["scale"]


def test_a_kernel_that_triton_has_replaced_in_its_cache_is_not_launched(bound, x, launches):
    old = bound[(4,)](x, 100)  # alive: it is not missed because it was freed
    bound.fn.device_caches[0][0].clear()
    new = bound.fn[(4,)](x, 100, **CONFIGS[1].all_kwargs())
    assert bound[(4,)](x, 100) is new is not old
    assert launches[-1].function == new.function != old.function


def test_a_kernel_evicted_from_tritons_cache_is_let_go(bound, x):
    """vLLM deletes entries to unload their modules: a bound launch must not keep them loaded."""
    compiled = weakref.ref(bound[(4,)](x, 100))
    bound.fn.device_caches[0][0].clear()
    gc.collect()
    assert compiled() is None
    assert bound[(4,)](x, 100).metadata.num_warps == 2


def goes_past_triton(launch) -> bool:
    """Whether a launch does without Triton's own look-up."""
    functions = set()
    profiled(launch, lambda frame, event, argument: functions.add(frame.f_code))
    return ORIGINAL_RUN.__code__ not in functions


def test_a_kernel_evicted_from_tritons_cache_is_bound_anew(bound, x):
    assert goes_past_triton(lambda: bound[(4,)](x, 100))
    bound.fn.device_caches[0][0].clear()
    assert not goes_past_triton(lambda: bound[(4,)](x, 100))
    assert goes_past_triton(lambda: bound[(4,)](x, 100))


def test_debug_turned_on_and_off_again(bound, x, monkeypatch):
    usual = bound[(4,)](x, 100)
    monkeypatch.setattr(knobs.runtime, "debug", True)
    with_debug = bound[(4,)](x, 100)
    assert with_debug is not usual
    assert with_debug is bound.fn[(4,)](x, 100, **CONFIGS[1].all_kwargs())
    assert goes_past_triton(lambda: bound[(4,)](x, 100))
    monkeypatch.setattr(knobs.runtime, "debug", False)
    assert bound[(4,)](x, 100) is usual
    assert goes_past_triton(lambda: bound[(4,)](x, 100))


@pytest.mark.parametrize("when", ["before-binding", "after-binding"])
def test_a_stages_inspection_hook_is_asked_as_often_as_by_triton(x, monkeypatch, when):
    asked = []
    tuned = kernel(default=CONFIGS[1])
    if when == "after-binding":
        tuned[(4,)](x, 100)
    monkeypatch.setattr(
        knobs.runtime, "add_stages_inspection_hook", lambda *args: asked.append(args) or ("key", "hash")
    )
    for launch in (tuned[(4,)], lambda *args: tuned.fn[(4,)](*args, **CONFIGS[1].all_kwargs())):
        launch(x, 100)
        before = len(asked)
        launch(x, 100)
        launch(x, 100)
        asked.append(len(asked) - before)
    ours, tritons = (count for count in asked if isinstance(count, int))
    assert ours == tritons
    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", None)
    tuned[(4,)](x, 100)
    assert goes_past_triton(lambda: tuned[(4,)](x, 100))


def test_instrumentation_mode_goes_through_triton(bound, x, monkeypatch):
    seen = []
    run = JITFunction.run

    def record(self, *args, **kwargs):
        seen.append(knobs.compilation.instrumentation_mode)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(knobs.compilation, "instrumentation_mode", "consan")
    monkeypatch.setattr(JITFunction, "run", record)
    try:
        bound[(4,)](x, 100)
    except Exception:  # a build without that instrumentation refuses it; what matters is who decides
        pass
    assert seen == ["consan"]


def test_a_later_patch_of_jit_function_run_is_called(bound, x, launches, monkeypatch):
    """SGLang records launches so, and drops the kernel for good when it sees none."""
    recorded = []
    monkeypatch.setattr(JITFunction, "run", lambda self, *args, **kwargs: recorded.append((self, args, kwargs)))
    before = len(launches)
    assert bound[(4,)](x, 100) is None
    assert len(launches) == before
    ((jit, args, kwargs),) = recorded
    assert jit is bound.fn
    assert args == ()
    assert kwargs.pop("x_ptr") is x
    assert kwargs == {
        "n": 100,
        "BLOCK": 32,
        "num_warps": 2,
        "num_stages": 3,
        "num_ctas": 1,
        "grid": (4,),
        "warmup": False,
    }
    monkeypatch.setattr(JITFunction, "run", ORIGINAL_RUN)
    assert goes_past_triton(lambda: bound[(4,)](x, 100))


def test_a_later_patch_of_jit_function_run_is_called_under_heuristics(x, monkeypatch):
    tuned = autotune(CONFIGS, key=["n"], default=CONFIGS[0])(triton.heuristics({})(triton.jit(scale)))
    for _ in range(2):
        tuned[(4,)](x, 100)
    assert tuned.cache_info().hits == 1
    recorded = []
    monkeypatch.setattr(JITFunction, "run", lambda self, **kwargs: recorded.append(kwargs["BLOCK"]))
    tuned[(4,)](x, 100)
    assert recorded == [16]


def test_a_later_patch_of_autotuner_run_is_called(bound, x, launches, monkeypatch):
    """vLLM forces the first config this way, tritonbench a given one."""

    def first(self, *args, **kwargs):
        return self.fn.run(*args, **kwargs, **self.configs[0].all_kwargs())

    monkeypatch.setattr(Autotuner, "run", first)
    bound[(4,)](x, 100)
    assert launches[-1].arguments["BLOCK"] == 16
    monkeypatch.undo()


def test_another_current_device_gets_a_binary_of_its_own(bound, x, launches, driver):
    on_first = bound[(4,)](x, 100)
    driver.device = 1
    on_second = bound[(4,)](x, 100)
    assert on_second is bound.fn.device_caches[1][0][next(iter(bound.fn.device_caches[1][0]))]
    assert on_second is not on_first
    assert launches[-1].function == on_second.function
    assert bound[(4,)](x, 100) is on_second
    driver.device = 0
    assert bound[(4,)](x, 100) is on_first
    assert launches[-1].function == on_first.function
    assert bound.cache_info().searches == 1  # two devices of one kind share the choice


def test_b71_the_current_stream_is_read_at_each_call_and_0_is_one_of_them(bound, x, launches, driver):
    for stream in (3, 0, 7):
        driver.stream = stream
        bound[(4,)](x, 100)
        assert launches[-1].stream == stream
    assert bound.cache_info().hits == 4


@pytest.mark.parametrize("grid", [(0,), (4, 0), lambda meta: (meta["n"] - 100,)], ids=["one", "two", "callable"])
def test_an_empty_grid_launches_nothing(bound, x, launches, grid):
    before = len(launches)
    assert bound[grid](x, 100) is bound.fn[grid](x, 100, **CONFIGS[1].all_kwargs())
    assert len(launches) == before
    assert bound.cache_info().hits == 2


@pytest.mark.parametrize("grid", [(-1,), (4, -2), lambda meta: (1, 1, 50 - meta["n"])], ids=["one", "two", "callable"])
def test_a_negative_grid_is_an_error_and_launches_nothing(bound, x, launches, grid):
    before = len(launches)
    with pytest.raises(ValueError, match="grid: expected sizes .*-"):
        bound[grid](x, 100)
    assert len(launches) == before


@pytest.mark.parametrize(
    ("grid", "error"), [((), IndexError), (3, TypeError), (None, TypeError), (("4",), TypeError)], ids=str
)
def test_what_is_no_grid_is_an_error(bound, x, launches, grid, error):
    before = len(launches)
    with pytest.raises(error):
        bound[grid](x, 100)
    assert len(launches) == before


def test_thousands_of_shapes_keep_the_table_bounded(launcher, monkeypatch):
    limit = 4096 if launcher == "c" else 256
    monkeypatch.setattr("autotuned.launch.table.LIMIT", limit)
    tuned = autotune(CONFIGS[:1])(triton.jit(scale))
    count = limit + 4
    memory = torch.zeros(count)
    compiled = {id(tuned[(1,)](memory[:n], 7)) for n in range(1, count + 1)}
    info = tuned.cache_info()
    evictions = limit // 2 if launcher == "c" else 4  # the older half at once, or one by one
    assert (info.size, info.evictions) == (count - evictions, evictions)
    assert len(compiled) == 1
    before = tuned.cache_info().hits
    tuned[(1,)](memory, 7)
    assert tuned.cache_info().hits == before + 1
    tuned[(1,)](memory[:1], 7)  # the oldest is gone, and bound again
    assert tuned.cache_info().misses == count + 1


def test_remembered_choices_are_bounded(x, monkeypatch):
    monkeypatch.setattr("autotuned.resolve.request.LIMIT", 8)
    tuned = kernel(cache_results=False)
    for n in range(30):
        tuned[(1,)](x, n)
    assert len(tuned.tuner.chooser.state.choices) == 8
    assert tuned.cache_info().searches == 30


def test_two_threads_on_one_launcher(bound, x, launches):
    before = len(launches)
    start = threading.Barrier(4)

    def launch():
        start.wait(10)
        for n in (100, 100, 64, 100, 64):
            bound[(4,)](x, n)

    threads = [threading.Thread(target=launch) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join(20) for thread in threads]
    assert len(launches) - before >= 20
    assert bound.cache_info().searches == 2
    assert {launch.arguments["BLOCK"] for launch in launches[-10:]} == {32}


def test_a_hook_may_launch_the_same_kernel(x, launches):
    """Re-entrancy: a grid callable launches the kernel that is being launched."""
    tuned = kernel()
    for n in (100, 64):
        tuned[(4,)](x, n)

    def grid(meta):
        tuned[(2,)](x, 64)
        return (1,)

    tuned[grid](x, 100)
    assert [(launch.grid[0], launch.arguments["n"]) for launch in launches[-2:]] == [(2, 64), (1, 100)]


def test_a_subclass_of_tensor_is_not_bound_but_launched(bound, launches):
    class Named(torch.Tensor):
        pass

    x = torch.zeros(100).as_subclass(Named)
    before = bound.cache_info()
    for _ in range(2):
        bound[(4,)](x, 100)
        assert launches[-1].arguments["x_ptr"] is x
        assert launches[-1].arguments["BLOCK"] == 32
    after = bound.cache_info()
    assert (after.hits, after.searches) == (before.hits, before.searches)


def test_a_parameter_is_a_tensor(bound, launches, launcher):
    weight = torch.nn.Parameter(torch.zeros(100))
    for _ in range(2):
        bound[(4,)](weight, 100)
    assert bound.cache_info().hits == (3 if launcher == "c" else 2)  # in C a parameter has a tensor's words
    assert bound.cache_info().searches == 1


def test_hits_keep_nothing(bound, x):
    config = bound.best_config
    values = (x, config, bound.fn)
    bound[(4,)](x, 100)
    fake_cuda.Launcher.launches.clear()
    before = [sys.getrefcount(value) for value in values]
    for _ in range(1000):
        bound[(4,)](x, 100)
        fake_cuda.Launcher.launches.clear()
    assert [sys.getrefcount(value) for value in values] == before
