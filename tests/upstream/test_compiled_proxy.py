"""Tuners that were not made by our decorator, launched from a table all the same: earlier ones, and subclasses."""

import gc
import logging
import sys
import weakref

import pytest
import triton
import triton.language as tl
from triton import Config
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction, KernelInterface

import autotuned
from autotuned.dropin import install
from autotuned.store import listing

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]
KEY = (100, "torch.float32")


class Library(Autotuner):
    """As a library's own class: it looks at each call, and passes it on."""

    calls = 0

    def run(self, *args, **kwargs):
        Library.calls += 1
        return super().run(*args, **kwargs)


class Writer(Autotuner):
    """It has choices of its own, and writes them at each call."""

    def run(self, *args, **kwargs):
        self.cache[KEY] = Config({"BLOCK": 16})
        return super().run(*args, **kwargs)


@triton.jit
def add(x_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


@pytest.fixture
def make(bench):
    def make(kind=Library, fn=add, configs=CONFIGS, **options):
        kernel = kind(fn, fn.arg_names, configs, ["n"], None, None, **{"do_bench": bench} | options)
        return triton.heuristics({"EVEN": lambda arguments: arguments["n"] % 2 == 0})(kernel)

    return make


@pytest.fixture
def replacing():
    autotuned.install(replace=True)
    yield
    install.uninstall()


def functions_of(launch):
    """Every Python function that a launch calls."""
    called = []
    sys.setprofile(lambda frame, event, argument: called.append(frame.f_code) if event == "call" else None)
    try:
        launch()
    finally:
        sys.setprofile(None)
    return called[1:]


@pytest.mark.parametrize("kind", [Autotuner, Library])
def test_a_launch_from_the_table_calls_fewer_functions_than_tritons(make, kind, x):
    kernel = make(kind)
    launch = lambda: kernel[(4,)](x_ptr=x, n=100)
    for _ in range(3):
        launch()
    stock = functions_of(launch)
    autotuned.install(replace=True)
    try:
        for _ in range(3):
            launch()
        ours = functions_of(launch)
    finally:
        install.uninstall()
    assert JITFunction.run.__code__ in stock and JITFunction.run.__code__ not in ours
    assert len(ours) < len(stock)
    assert [code for code in stock if code is Library.run.__code__] == [
        code for code in ours if code is Library.run.__code__
    ]
    assert JITFunction.run.__code__ in functions_of(launch)  # taken back


def test_what_a_library_does_at_each_call_is_done(make, x, replacing, launches):
    kernel, Library.calls = make(), 0
    for _ in range(5):
        kernel[(4,)](x, 100)
        assert (launches[-1].arguments["BLOCK"], kernel.fn.best_config) == (32, CONFIGS[1])
    assert (Library.calls, kernel.fn.nargs) == (5, None)


def test_its_choices_are_stored_and_serve_the_next_process(make, x, replacing, bench):
    make()[(4,)](x, 100)
    assert sorted(bench.calls) == [16, 32]
    bench.calls.clear()
    make()[(4,)](x, 100)
    assert bench.calls == []
    assert len(list(listing.all_records())) == 1


def test_a_choice_that_a_library_writes_is_launched_at_once(make, x, replacing, launches):
    kernel = make()
    for _ in range(3):
        kernel[(4,)](x, 100)
    for config in (CONFIGS[0], CONFIGS[1], Config({"BLOCK": 64})):
        kernel.fn.cache[KEY] = config
        for _ in range(3):
            kernel[(4,)](x, 100)
            assert launches[-1].arguments["BLOCK"] == config.kwargs["BLOCK"]


def test_a_library_that_writes_at_each_call_is_left_to_triton(make, x, replacing, launches):
    """Binding each of its choices anew would cost more than its launches."""
    kernel = make(Writer)
    for _ in range(20):
        kernel[(4,)](x, 100)
        assert launches[-1].arguments["BLOCK"] == 16
    assert kernel.fn.cache.proxy is False


def test_a_list_of_configs_cut_to_one(make, x, replacing, launches):
    kernel = make()
    for _ in range(3):
        kernel[(4,)](x, 100)
    kernel.fn.configs = CONFIGS[:1]
    for _ in range(3):
        kernel[(4,)](x, 100)
        assert launches[-1].arguments["BLOCK"] == 16


@pytest.mark.parametrize("launches_before", [0, 3], ids=["first", "bound"])
def test_a_warm_up_is_tritons(make, x, replacing, launches, launches_before):
    bench = lambda call, quantiles: (call(), [1.0] * 3)[1]
    kernel = make(do_bench=bench)
    for _ in range(launches_before):
        kernel[(4,)](x, 100)
    before = len(launches)
    compiled = kernel.run(x, 100, grid=(4,), warmup=True)
    assert compiled.metadata.name == "add"
    assert (kernel.fn.best_config, len(launches)) == (CONFIGS[0], before)


def test_a_function_of_another_class_is_launched_by_triton(x, replacing, bench, launches):
    class Entry(KernelInterface):
        def __init__(self, fn):
            self.fn, self.arg_names = fn, fn.arg_names

        def run(self, *args, **kwargs):
            return self.fn.run(*args, **kwargs), {}

    kernel = Library(Entry(add), add.arg_names, CONFIGS, ["n"], None, None, do_bench=bench)
    for _ in range(4):
        compiled, constants = kernel[(4,)](x, 100, True)
        assert (compiled.metadata.name, constants, launches[-1].arguments["BLOCK"]) == ("add", {}, 32)


def test_what_cannot_be_bound_is_said_in_the_log(x, replacing, bench, caplog, launches):
    plain = staticmethod(lambda x_ptr, n, *rest: None)
    odd = type("Plain", (), {"arg_names": ["x_ptr", "n"], "fn": plain, "ran": 0})()
    odd.run = lambda *args, **kwargs: setattr(odd, "ran", odd.ran + 1)
    with caplog.at_level(logging.INFO, "autotuned"):
        kernel = Autotuner(odd, odd.arg_names, CONFIGS[:1], [], None, None, do_bench=bench)
        for _ in range(3):
            kernel.run(x, 100, grid=(4,), warmup=False)
    assert odd.ran == 3
    assert caplog.text.count("is launched by Triton") == 1


def test_a_patch_from_before_sees_every_launch(make, x, monkeypatch):
    seen, run = [], Autotuner.run

    def patched(self, *args, **kwargs):
        seen.append(self)
        return run(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Autotuner, "run", patched)
        autotuned.install(replace=True)
        try:
            kernel = make()
            for _ in range(4):
                kernel[(4,)](x, 100)
        finally:
            install.uninstall()
    assert seen == [kernel.fn] * 4


def test_a_patch_from_after_sees_every_launch(make, x, replacing, monkeypatch, launches):
    kernel = make()
    for _ in range(3):
        kernel[(4,)](x, 100)
    seen, run = [], Autotuner.run
    with monkeypatch.context() as patch:
        patch.setattr(
            Autotuner, "run", lambda self, *args, **kwargs: (seen.append(self), run(self, *args, **kwargs))[1]
        )
        for _ in range(3):
            kernel[(4,)](x, 100)
            assert launches[-1].arguments["BLOCK"] == 32
    assert seen == [kernel.fn] * 3


def test_a_tuner_that_is_gone_is_let_go(make, x, replacing):
    kernel = make()
    for _ in range(3):
        kernel[(4,)](x, 100)
    gone = weakref.ref(kernel.fn)
    del kernel
    gc.collect()
    assert gone() is None


def test_heuristics_inside_are_computed_at_each_launch(bench, x, replacing, launches):
    inner = triton.heuristics({"EVEN": lambda arguments: arguments["n"] % 2 == 0})(add)
    kernel = Library(inner, add.arg_names, CONFIGS, [], None, None, do_bench=bench)
    for n in (100, 99, 98, 97, 100):
        kernel[(4,)](x, n)
        assert (launches[-1].arguments["EVEN"], launches[-1].arguments["BLOCK"]) == (n % 2 == 0, 32)
