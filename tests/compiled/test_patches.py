"""Whoever replaces part of Triton, or of a tuned kernel, after it was bound is asked at the next launch; and no longer."""

import gc
import weakref

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from fake_driver import Device
from triton import Config, knobs
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction, KernelInterface

from autotuned import autotune, heuristics
from autotuned.api.tuned import Tuned

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32}, num_warps=2)]
CYCLES = 1100  # Python 3.13 gives a class 1,000 versions


def scale(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, 2 * tl.load(x_ptr + i, mask=i < n), mask=i < n)


@pytest.fixture
def x():
    return torch.zeros(100)


@pytest.fixture
def bound(x, launcher, driver):
    """A tuned kernel that was launched twice; in C by a pretended driver, and not by Python."""
    device = Device()
    if launcher == "c":
        from autotuned import _launch

        driver.get_current_stream = lambda index: device.stream  # one for both launchers, as torch's is
        _launch.use_driver(*device.addresses())
    tuned = autotune(CONFIGS, key=["n"], do_bench=fake_cuda.by_config({16: 2.0, 32: 1.0}))(triton.jit(scale))
    for _ in range(2):
        tuned[(4,)](x, 100)
    assert tuned.cache_info().hits == 1
    yield tuned
    if launcher == "c":
        assert device.calls
        _launch.use_driver(0, 0, 0, 0)


class Recorder:
    """Stands in the place of a method, and counts its calls."""

    def __init__(self, before):
        self.before, self.count = before, 0

    def method(self):
        def replaced(itself, *args, **kwargs):
            self.count += 1
            return self.before(itself, *args, **kwargs)

        return replaced

    def function(self, *args, **kwargs):
        self.count += 1
        return self.before(*args, **kwargs)


OWNERS = {
    "JITFunction.run": (JITFunction, "run"),
    "Autotuner.run": (Autotuner, "run"),
    "Tuned.run": (Tuned, "run"),
    "Autotuner.[]": (Autotuner, "__getitem__"),
    "KernelInterface.[]": (KernelInterface, "__getitem__"),
}


@pytest.mark.parametrize("owner", OWNERS)
def test_a_class_that_is_patched_is_asked_until_it_is_restored(bound, x, owner):
    kind, name = OWNERS[owner]
    own, before = vars(kind).get(name), getattr(kind, name)
    recorder = Recorder(before)
    for cycle in range(1, 4):
        setattr(kind, name, recorder.method())
        bound[(4,)](x, 100)
        delattr(kind, name) if own is None else setattr(kind, name, own)
        assert recorder.count == cycle
        assert bound[(4,)](x, 100) is not None
        assert recorder.count == cycle


def test_the_thousandth_patch_of_triton_is_seen_as_the_first(bound, x):
    before, recorder = JITFunction.run, Recorder(lambda *args, **kwargs: "recorded")
    patched = recorder.method()
    for cycle in range(1, CYCLES):
        JITFunction.run = patched
        result = bound[(4,)](x, 100)
        JITFunction.run = before
        assert (result, recorder.count) == ("recorded", cycle)
        assert bound[(4,)](x, 100) != "recorded"


@pytest.mark.parametrize("which", ["the Triton function", "the tuned kernel", "heuristics over it"])
def test_an_object_whose_run_is_replaced_is_asked_until_it_is_its_own_again(bound, x, which):
    outer = heuristics({})(bound) if which == "heuristics over it" else bound
    patched = {"the Triton function": bound.fn, "the tuned kernel": bound}.get(which, outer)
    outer[(4,)](x, 100)
    for _ in range(3):
        recorder = Recorder(patched.run)
        patched.run = recorder.function
        for count in (1, 2):
            assert outer[(4,)](x, 100) is not None
            assert recorder.count == count
        del patched.run
        assert outer[(4,)](x, 100) is not None
        assert recorder.count == 2


def test_a_subclass_with_a_run_of_its_own_is_asked(bound, x):
    counts = []

    class Counting(Tuned):
        def run(self, *args, **kwargs):
            counts.append(kwargs["grid"])
            return super().run(*args, **kwargs)

    bound.__class__ = Counting
    assert bound[(4,)](x, 100) is not None
    bound.__class__ = Tuned
    assert bound[(4,)](x, 100) is not None
    assert counts == [(4,)]


@pytest.mark.parametrize("part", ["runtime", "compilation"])
def test_knobs_that_are_replaced_as_a_whole_are_asked(bound, x, monkeypatch, part):
    recorder = Recorder(lambda *args, **kwargs: "recorded")
    fresh = type(getattr(knobs, part))()
    monkeypatch.setattr(JITFunction, "run", recorder.method())
    assert bound[(4,)](x, 100) == "recorded"
    monkeypatch.undo()
    assert bound[(4,)](x, 100) is not None
    before, asked = getattr(knobs, part), []
    own = JITFunction.run
    monkeypatch.setattr(knobs, part, fresh)
    monkeypatch.setattr(bound.fn, "pre_run_hooks", [lambda *args, **kwargs: asked.append(1)])
    assert bound[(4,)](x, 100) is not None
    assert (asked, JITFunction.run) == ([1], own)  # Triton's own launch, which calls its hooks
    monkeypatch.undo()
    assert getattr(knobs, part) is before
    assert bound[(4,)](x, 100) is not None


@pytest.mark.parametrize("how", ["clear", "pop", "replace"])
def test_binaries_that_triton_forgets_are_forgotten(bound, x, how):
    first = bound[(4,)](x, 100)
    caches = bound.fn.device_caches
    if how == "clear":
        caches.clear()
    elif how == "pop":
        caches.pop(0)
    else:
        bound.fn.device_caches = type(caches)(caches.default_factory)
    del caches
    second = bound[(4,)](x, 100)
    assert second is not first
    gone = weakref.ref(first)
    assert bound[(4,)](x, 100) is second
    del first
    gc.collect()
    assert gone() is None


def in_attribute(tuned):
    tuned.mine = tuned


def indexed(tuned):
    tuned.mine = tuned[(1,)]


def in_heuristics(tuned):
    tuned.mine = heuristics({"n": lambda args: tuned and 100})(tuned)


def in_hooks(tuned):
    tuned.pre_hook = lambda *args, **kwargs: tuned


def in_run(tuned):
    tuned.run = Recorder(tuned.run).function


@pytest.mark.parametrize("circle", [in_attribute, indexed, in_heuristics, in_hooks, in_run])
def test_a_tuned_kernel_in_a_circle_is_collected(x, circle):
    tuned = autotune(CONFIGS, key=["n"], do_bench=fake_cuda.by_config({16: 2.0, 32: 1.0}))(triton.jit(scale))
    for _ in range(2):
        tuned[(4,)](x, 100)
    circle(tuned)
    gone = weakref.ref(tuned)
    del tuned
    gc.collect()
    assert gone() is None


class Circle(list):
    """A list that can be referred to weakly: what a hook reads and has no such references is kept, 4,096 at most."""


@pytest.mark.parametrize("place", ["bucket", "key function", "hook"])
def test_a_tuned_kernel_that_what_it_calls_leads_to_is_collected(x, place):
    circle = Circle()
    leads = lambda *_, circle=circle: len(circle) and 1
    configs = [Config({"BLOCK": block}, pre_hook=leads if place == "hook" else None) for block in (16, 32)]
    options = {"bucket": {"key": ["n"], "bucket": {"n": leads}}, "key function": {"key": ["n", leads]}}.get(
        place, {"key": ["n"]}
    )
    tuned = autotune(configs, do_bench=fake_cuda.by_config({16: 2.0, 32: 1.0}), **options)(triton.jit(scale))
    circle.append(tuned)
    for _ in range(2):
        tuned[(4,)](x, 100)
    gone = weakref.ref(tuned)
    del tuned, circle, leads, configs, options
    gc.collect()
    assert gone() is None
