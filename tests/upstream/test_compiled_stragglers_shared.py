"""While a config that a race did not wait for compiles: other keys, tuners and threads, and what the program changes."""

import gc
import os
import signal
import threading
import warnings
import weakref

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from straggling import CONFIGS, TIMES, add, await_drop, both, tuner_in_a_new_process
from triton.runtime.errors import OutOfResources

import autotuned


@pytest.fixture
def bench():
    return fake_cuda.by_config(TIMES)


def ends_soon(action):
    """Whether a call returns although nothing lets the compilation go."""
    errors = []

    def run():
        try:
            action()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert not errors, errors
    return not thread.is_alive()


@both
def test_a_key_that_needs_the_same_binary_neither_waits_for_it_nor_compiles_it_again(bench, x, held, replace):
    kernel = tuner_in_a_new_process(bench, replace=replace)
    for n in (100, 101, 102):
        assert ends_soon(lambda n=n: kernel[(4,)](x, n))
    assert (len(kernel.cache), held.begun) == (3, 1)
    held.let_go()
    await_drop(kernel)
    for n in (100, 101, 102):
        bench.calls.clear()
        kernel[(4,)](x, n)
        assert (kernel.best_config, 16 in bench.calls, 64 in bench.calls) == (CONFIGS[0], True, False)
    bench.calls.clear()
    for n in (100, 101, 102):
        kernel[(4,)](x, n)
    assert (len(kernel.cache), bench.calls, held.begun) == (3, [], 1)


@both
def test_a_cache_that_the_program_clears_has_the_best_of_the_others_again(bench, x, held, replace):
    kernel = tuner_in_a_new_process(bench, replace=replace)
    kernel[(4,)](x, 100)
    for change in (kernel.cache.clear, lambda: None if replace else setattr(kernel, "cache", {})):
        change()
        bench.calls.clear()
        assert ends_soon(lambda: kernel[(4,)](x, 100))
        assert ([*kernel.cache.values()], bench.calls, held.begun) == ([CONFIGS[1]], [], 1)
    held.let_go()
    await_drop(kernel)
    kernel[(4,)](x, 100)
    assert kernel.best_config is CONFIGS[0]


@both
def test_another_tuner_of_the_same_kernel_measures_nothing_meanwhile(bench, x, held, replace):
    kernel = tuner_in_a_new_process(bench, replace=replace)
    kernel[(4,)](x, 100)
    other = triton.autotune(CONFIGS, key=["n"], do_bench=bench)(add)
    bench.calls.clear()
    assert ends_soon(lambda: other[(4,)](x, 100))
    assert ([*other.cache.values()], bench.calls, held.begun) == ([CONFIGS[1]], [], 1)
    held.let_go()
    for one in (kernel, other):
        await_drop(one)
        one[(4,)](x, 100)
        assert one.best_config is CONFIGS[0]
    assert held.begun == 1


@both
def test_it_keeps_no_argument_alive(bench, x, held, replace):
    kernel = tuner_in_a_new_process(bench, replace=replace)
    tensor = torch.zeros(256)
    there = weakref.ref(tensor)
    kernel[(4,)](tensor, 100)
    fake_cuda.Launcher.launches.clear()
    del tensor
    gc.collect()
    assert there() is None


def awaited(held):
    """Let it go, and wait until all that follows its compilation is done."""
    threads = [one for one in threading.enumerate() if one.name.startswith("autotuned-compile")]
    held.let_go()
    for thread in threads:
        thread.join(60)


@both
def test_after_uninstall_the_choice_stays(bench, x, held, replace):
    kernel = tuner_in_a_new_process(bench, replace=replace)
    kernel[(4,)](x, 100)
    autotuned.uninstall()
    awaited(held)
    bench.calls.clear()
    kernel[(4,)](x, 100)
    assert bench.calls == []


@both
def test_in_mode_off_the_choice_stays_until_the_mode_ends(bench, x, held, replace):
    kernel = tuner_in_a_new_process(bench, replace=replace)
    kernel[(4,)](x, 100)
    with autotuned.mode("off"):
        awaited(held)
        bench.calls.clear()
        kernel[(4,)](x, 100)
        assert bench.calls == []
    kernel[(4,)](x, 100)
    assert kernel.best_config is CONFIGS[0]


def refuse(monkeypatch, refused):
    """Let `refused(arguments)` say which launches fail."""
    launch = fake_cuda.Launcher.__call__

    def launching(self, *args):
        if refused(dict(zip(self.names, args[9:]))):
            raise OutOfResources(1, 2, "shared memory")
        return launch(self, *args)

    monkeypatch.setattr(fake_cuda.Launcher, "__call__", launching)


@both
def test_a_launch_that_fails_after_the_race_changes_nothing(bench, x, held, replace, monkeypatch):
    kernel = tuner_in_a_new_process(bench, replace=replace)
    failed = []
    refuse(monkeypatch, lambda arguments: kernel.cache and not failed and not failed.append(1))
    with pytest.raises(OutOfResources):
        kernel[(4,)](x, 100)
    held.let_go()
    await_drop(kernel)
    kernel[(4,)](x, 100)
    assert kernel.best_config is CONFIGS[0]


@both
def test_it_is_waited_for_if_only_it_can_run(bench, x, held, replace, monkeypatch):
    kernel = tuner_in_a_new_process(bench, replace=replace)
    refuse(monkeypatch, lambda arguments: arguments.get("BLOCK") in (32, 64))
    with held.let_go_meanwhile():
        kernel[(4,)](x, 100)
    assert kernel.best_config is CONFIGS[0]


@both
def test_a_seal_that_begins_before_it_compiles_neither_blocks_nor_excludes_it(bench, x, held, replace):
    """A refusal names the kernel's other binaries: asking one that compiles for its source would wait for itself."""
    kernel = tuner_in_a_new_process(bench, replace=replace)
    kernel[(4,)](x, 100)
    with autotuned.seal():
        with autotuned.seal(all=True):
            assert ends_soon(lambda: awaited(held))
            bench.calls.clear()
            kernel[(4,)](x, 100)
        kernel[(4,)](x, 100)
        assert (kernel.best_config, bench.calls) == (CONFIGS[1], [])
    kernel[(4,)](x, 100)
    assert kernel.best_config is CONFIGS[0]


def test_a_launch_that_is_bound_while_its_choice_is_dropped_does_not_stay(bench, x, held):
    kernel = tuner_in_a_new_process(bench, replace=True)
    bind, done = kernel.tuner._bound, []

    def bound(*args):
        if not done:
            done.append(True)
            held.let_go()
            await_drop(kernel)
        return bind(*args)

    kernel.tuner._bound = bound
    for _ in range(2):
        kernel[(4,)](x, 100)
    assert (done, kernel.best_config) == ([True], CONFIGS[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@both
def test_a_forked_child_does_not_wait_for_it(bench, x, held, replace):
    kernel = tuner_in_a_new_process(bench, replace=replace)
    kernel[(4,)](x, 100)

    def child():
        held.let_go()
        kernel[(4,)](x, 101)
        return kernel.best_config is CONFIGS[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of its threads
        pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # ends a child that waits
        try:
            os._exit(0 if child() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


EVEN = triton.heuristics({"EVEN": lambda given: given["n"] % 64 == 0})
AROUND = {"heuristics above": lambda tune: EVEN(tune(even)), "heuristics below": lambda tune: tune(EVEN(even))}


@triton.jit
def even(x_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=(i < n) | EVEN)


@both
@pytest.mark.parametrize("where", AROUND)
def test_heuristics_are_applied_in_the_later_race_too(bench, x, held, replace, where):
    tuner_in_a_new_process(bench, replace=replace)
    even.device_caches.clear()
    tuners = []

    def tune(fn):
        tuners.append(triton.autotune(CONFIGS, key=["n"], do_bench=bench)(fn))
        return tuners[0]

    kernel = AROUND[where](tune)
    kernel[(4,)](x, 128)
    assert (tuners[0].best_config, 16 in bench.calls) == (CONFIGS[1], False)
    held.let_go()
    await_drop(tuners[0])
    kernel[(4,)](x, 128)
    assert (tuners[0].best_config, held.begun) == (CONFIGS[0], 1)


@both
def test_the_later_race_keeps_to_what_the_tuner_says(bench, x, held, replace):
    """Its pruner, and its lists and hooks, for the later call's arguments."""
    tuner_in_a_new_process(bench, replace=replace)
    pruned, hooked = [], []

    def prune(configs, named, **kwargs):
        pruned.append(named["x_ptr"])
        return configs[:2]

    def noted(arguments):
        hooked.append(arguments["x_ptr"])

    configs = [triton.Config(config.kwargs, pre_hook=noted) for config in CONFIGS]
    tune = triton.autotune(configs, key=["n"], do_bench=bench, prune_configs_by={"early_config_prune": prune},
                           restore_value=["x_ptr"])  # fmt: skip
    kernel, later = tune(add), x.clone()
    kernel[(4,)](x, 100)
    assert (kernel.best_config, set(bench.calls)) == (configs[1], {32})
    held.let_go()
    await_drop(kernel)
    hooked.clear(), pruned.clear()
    kernel[(4,)](later, 100)
    assert (kernel.best_config, set(bench.calls)) == (configs[0], {16, 32})
    assert hooked and all(one is later for one in [*hooked, *pruned])


@pytest.mark.parametrize("workers", ["1", "2", "100", None])
def test_of_many_configs_a_quarter_may_be_left(bench, x, held, workers, monkeypatch):
    """With as few threads as these, others wait behind them: then all are waited for, as with one thread."""
    monkeypatch.delenv("AUTOTUNED_COMPILE_WORKERS", raising=False)
    if workers is not None:
        monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", workers)
    tuner_in_a_new_process(bench)
    many = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (16, 32, 64) for warps in (1, 2, 4, 8)]
    few = [triton.Config({"BLOCK": 16}, num_warps=warps) for warps in (1, 2)]
    configs = [*few, *many[4:]]
    kernel = triton.autotune(configs, key=["n"], do_bench=bench)(add)
    if workers == "100":
        kernel[(4,)](x, 100)
        assert (kernel.best_config.kwargs["BLOCK"], 16 in bench.calls) == (32, False)
        held.let_go()
        await_drop(kernel)
    with held.let_go_meanwhile():
        kernel[(4,)](x, 100)
    assert (kernel.best_config.kwargs["BLOCK"], 16 in bench.calls) == (16, True)
