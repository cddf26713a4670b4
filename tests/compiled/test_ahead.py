"""`install()` compiles ahead: what Triton's tuner is about to measure is in Triton's cache before; nothing else changes."""

import threading

import pytest
import triton
import triton.language as tl
from compiled_ahead import BLOCKS, blocks_compiled, by_config, configs, refuses_some, tuned
from triton import Config, knobs
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
from triton.runtime.autotuner import Autotuner

import autotuned
from autotuned.dropin import raced
from autotuned.triton_compat import launcher

pytestmark = pytest.mark.usefixtures("ahead_cold")


class Library(Autotuner):
    """As fla's: a `run` of its own, which ends in Triton's."""

    def run(self, *args, **kwargs):
        return super().run(*args, **kwargs)


def refuses_all(x_ptr, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK == 0)


def is_wrong(x_ptr, n, BLOCK: tl.constexpr):
    if BLOCK == 16:
        tl.store(x_ptr, nowhere)  # noqa: F821


@pytest.mark.parametrize("kind", [Autotuner, Library])
def test_all_are_compiled_by_threads_before_the_first_is_measured(kind, events, x):
    autotuned.install()
    kernel = tuned(kind=kind, do_bench=events.bench)
    kernel[(4,)](x, 100)
    assert {event[0] for event in events.all[: len(BLOCKS)]} == {"compiled"}
    assert sorted(blocks_compiled(events)) == list(BLOCKS)
    assert events.all[len(BLOCKS) :] == [("measured", block) for block in BLOCKS]
    assert kernel.best_config.kwargs == {"BLOCK": 64}


@pytest.mark.parametrize("race", [False, True])
def test_what_launches_them_is_built_by_the_first_thread_that_is_done(race, x, monkeypatch):
    made, threads, active = [], [], triton.runtime.driver.active
    cls = active.launcher_cls

    def launcher_cls(src, metadata):
        made.append(tuple(src.signature.values()))
        threads.append(threading.current_thread().name.partition("_")[0])
        return cls(src, metadata)

    monkeypatch.setattr(active, "launcher_cls", launcher_cls)
    monkeypatch.setattr(launcher, "_begun", set())
    autotuned.install(race=race)
    tuned()[(4,)](x, 100)
    assert threads[0] == ("autotuned-compile" if race else "autotuned-ahead")
    assert threads.count(threads[0]) == 1 and len(set(made)) == 1 and set(threads[1:]) == {"MainThread"}


@pytest.mark.parametrize("way", ["ahead=False", "one worker", "AUTOTUNED_COMPILE_WORKERS=0"])
def test_it_can_be_turned_off(way, events, x, monkeypatch):
    if way != "ahead=False":
        monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", "0" if "=" in way else "1")
    autotuned.install(ahead=way != "ahead=False")
    tuned(do_bench=events.bench)[(4,)](x, 100)
    assert blocks_compiled(events) == []
    assert [event[0] for event in events.all] == ["compiled", "measured"] * 4


def contents(folder):
    """What is in a cache of Triton's, but for the paths that it notes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes().replace(str(folder).encode(), b"") for path in files}


@pytest.mark.parametrize("count", [{}, {"num_stages": 2}])
def test_the_cache_is_the_same_to_the_byte_as_after_stock(count, x, tmp_path, monkeypatch):
    listed = [Config({"BLOCK": block}, num_warps=warps, **count) for block in (16, 64) for warps in (1, 2, 4)]
    found, picks = [], []
    for way in ("stock", "ahead"):
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / way))
        if way == "ahead":
            autotuned.install()
        kernel = tuned(listed=listed, do_bench=by_config())
        kernel[(4,)](x, 100)
        found.append(contents(tmp_path / way))
        picks.append(kernel.best_config)
    assert len([name for name in found[0] if name.endswith(".cubin")]) == 6
    assert found[0] == found[1]
    assert picks[0] is picks[1]


def test_configs_that_differ_in_warps_run_the_front_end_once(x, monkeypatch):
    from triton.compiler import code_generator

    built, original = [], code_generator.ast_to_ttir

    def counted(*args, **kwargs):
        module = original(*args, **kwargs)
        built.append(1)
        return module

    monkeypatch.setattr(code_generator, "ast_to_ttir", counted)
    autotuned.install()
    tuned(listed=[Config({"BLOCK": block}, num_warps=warps) for block in (16, 64) for warps in (1, 2, 4)])[(4,)](x, 100)
    assert len(built) == 2


def even(kernel):
    return triton.heuristics({"EVEN": lambda arguments: arguments["n"] % 2 == 0})(kernel)


@pytest.mark.parametrize("heuristics", ["triton", "ours"])
def test_heuristics_under_the_tuner_are_asked(heuristics, events, x):
    ours = autotuned.heuristics({"EVEN": lambda arguments: arguments["n"] % 2 == 0})
    autotuned.install()
    tuned(outer=even if heuristics == "triton" else ours, do_bench=events.bench)[(4,)](x, 100)
    assert sorted(blocks_compiled(events)) == list(BLOCKS)
    assert blocks_compiled(events, "MainThread") == []  # what was compiled ahead is what was launched


def test_only_what_the_pruner_leaves_and_it_is_asked_once(events, x):
    asked = []

    def prune(listed, named, **kwargs):
        asked.append(len(listed))
        return listed[:3:2]

    autotuned.install()
    tuned(do_bench=events.bench, prune_configs_by={"early_config_prune": prune})[(4,)](x, 100)
    assert sorted(blocks_compiled(events)) == [16, 64] == events.measured
    assert asked == [4]


def test_a_hook_over_plain_arguments_is_no_obstacle(events, x):
    autotuned.install()
    hooked = configs(pre_hook=lambda arguments: arguments["x_ptr"].zero_())
    tuned(do_bench=events.bench, listed=hooked)[(4,)](x, 100)
    assert sorted(blocks_compiled(events)) == list(BLOCKS)


def of_descriptor(x_desc, n, BLOCK: tl.constexpr):
    x_desc.store([tl.program_id(0) * BLOCK], x_desc.load([tl.program_id(0) * BLOCK]) + 1)


def test_what_a_hook_may_change_before_compiling_is_left_to_triton(events, x):
    from triton.tools.tensor_descriptor import TensorDescriptor

    def set_block(arguments):
        arguments["x_desc"].block_shape = [arguments["BLOCK"]]

    autotuned.install()
    listed = [*configs((16, 32), pre_hook=set_block), *configs((64, 128))]
    kernel = tuned(of_descriptor, do_bench=events.bench, listed=listed)
    kernel[(1,)](TensorDescriptor(x, [256], [1], [64]), 100)
    assert sorted(blocks_compiled(events)) == [64, 128]
    assert {16, 32} <= set(blocks_compiled(events, "MainThread"))


@pytest.mark.parametrize("fn", [refuses_some, refuses_all, is_wrong], ids=lambda fn: fn.__name__)
def test_a_config_that_does_not_compile_ends_as_with_triton(fn, x):
    autotuned.install()
    kernel = tuned(fn)
    if fn is refuses_some:
        kernel[(4,)](x, 100)
        assert kernel.best_config.kwargs == {"BLOCK": 64}
        assert kernel.configs_timings[kernel.configs[0]] == [float("inf")] * 3
        return
    with pytest.raises(CompileTimeAssertionFailure if fn is refuses_all else CompilationError) as raised:
        kernel[(4,)](x, 100)
    assert "crew.py" not in str([entry.path for entry in raised.traceback])  # raised by Triton's own attempt


def test_a_conflict_of_arguments_is_tritons_error(x):
    autotuned.install()
    with pytest.raises(ValueError, match="Conflicting meta-parameters"):
        tuned()[(4,)](x, 100, BLOCK=16)


def test_an_instance_of_a_kernel_of_another_class_is_left_alone(events, x):
    class Wrapped(triton.runtime.jit.KernelInterface):
        def __init__(self, fn):
            self.fn, self.arg_names, self.launched = fn, fn.arg_names, []

        def run(self, *args, warmup=False, **kwargs):
            self.launched.append(warmup)
            return self.fn.run(*args, warmup=False, **kwargs)

    autotuned.install()
    kernel = tuned(outer=Wrapped, do_bench=events.bench)
    kernel[(4,)](x, 100)
    assert blocks_compiled(events) == [] and not any(kernel.fn.launched)


def test_a_race_waits_for_calm_for_a_tenth_of_a_searchs_time(x, monkeypatch):
    patience, searcher = [], raced.Searcher
    monkeypatch.setattr(raced, "Searcher", lambda state: patience.append(state.options.patience) or searcher(state))
    autotuned.install(race=True)
    tuned()[(4,)](x, 100)
    assert patience == [0.1]


def test_what_a_thread_has_compiled_is_not_read_again(x, monkeypatch):
    hits = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda *, cache_hit, **event: hits.append(cache_hit))
    autotuned.install()
    kernel = tuned()
    kernel[(4,)](x, 100)
    assert hits == [False] * len(BLOCKS)
    assert len(kernel.fn.device_caches[0][0]) == len(BLOCKS)


def test_hooks_of_the_program_are_told_what_triton_tells_them(x, monkeypatch, tmp_path):
    def told(way):
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / way))
        seen = []
        monkeypatch.setattr(
            knobs.runtime, "jit_post_compile_hook", lambda **facts: seen.append(facts["is_manual_warmup"])
        )
        if way == "ahead":
            autotuned.install()
        tuned()[(4,)](x, 100)
        return seen

    assert told("stock") == told("ahead") == [False] * 4


GUARDS = {
    "a hook before compiling": lambda m: m.setattr(knobs.runtime, "jit_cache_hook", lambda **facts: False),
    "always compile": lambda m: m.setattr(knobs.compilation, "always_compile", True),
    "override": lambda m: m.setattr(knobs.compilation, "override", True),
    "a patched launch": lambda m: m.setattr(triton.JITFunction, "run", _patched(triton.JITFunction.run)),
}


def _patched(run):
    return lambda self, *args, **kwargs: run(self, *args, **kwargs)


@pytest.mark.parametrize("guard", GUARDS)
def test_where_others_look_at_compilations_there_are_none_ahead(guard, events, x, monkeypatch):
    autotuned.install()
    GUARDS[guard](monkeypatch)
    kernel = tuned(do_bench=events.bench)
    kernel[(4,)](x, 100)
    assert blocks_compiled(events) == []
    assert kernel.best_config.kwargs == {"BLOCK": 64}


def test_nothing_is_compiled_for_what_is_known(events, x):
    autotuned.install()
    tuned(cache_results=True, do_bench=events.bench)[(4,)](x, 100)
    events.all.clear()
    with autotuned.mode("off"):  # Triton's own file has it
        tuned(cache_results=True, do_bench=events.bench)[(4,)](x, 100)
    tuned(do_bench=events.bench)[(4,)](x, 100)  # our store has it
    assert events.all == []


def test_in_mode_off_it_is_compiled_ahead_too(events, x):
    autotuned.install()
    with autotuned.mode("off"):
        tuned(do_bench=events.bench)[(4,)](x, 100)
    assert sorted(blocks_compiled(events)) == list(BLOCKS)


def test_a_kernel_launched_by_a_hook_of_another_is_compiled_ahead_too(events, x):
    autotuned.install()
    inner = tuned(do_bench=events.bench)
    listed = [Config({"BLOCK": b}, pre_hook=lambda arguments: inner[(4,)](x, 7)) for b in (64, 16)]
    outer = tuned(listed=listed)
    outer[(4,)](x, 100)
    assert (outer.best_config.kwargs["BLOCK"], inner.best_config.kwargs["BLOCK"]) == (64, 64)
    assert sorted(blocks_compiled(events)) == list(BLOCKS)  # two of them serve both


def test_threads_that_tune_at_once_each_have_theirs(events, x):
    autotuned.install()
    kernels = [tuned(do_bench=by_config()), tuned(refuses_some)]
    threads = [threading.Thread(target=lambda kernel=kernel: kernel[(4,)](x, 100)) for kernel in kernels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(blocks_compiled(events)) == sorted([*BLOCKS, *BLOCKS[1:]])
