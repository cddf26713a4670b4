"""Random programs over Triton's tuners do under `install()` what they do without it."""

import copy
import pickle
import random

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from dropin_kernels import Library, add
from triton import Config
from triton.runtime.autotuner import Autotuner

import autotuned
from autotuned.dropin import install, seeded

SIZES = (100, 64, 99)
STEPS = 30
WAYS = {"seeded": {"ahead": False}, "ahead": {}, "beside": {"replace": True, "ahead": False}}


@triton.jit
def subtract(x_ptr, n, m, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) - 1, mask=i < n)


class Program:
    """Three tuners that share caches, kernels and configs as a random program wants it, and all that was seen."""

    def __init__(self, seed, launches):
        self.draw, self.launches, self.x, self.seen = random.Random(seed), launches, torch.zeros(256), []
        self.planned = None  # what the next hook does
        self.configs = [Config({"BLOCK": 16}, pre_hook=self.hook), Config({"BLOCK": 32})]
        self.tuners = [self.tuner(kind) for kind in (Autotuner, Library, Autotuner)]
        self.held = [tuner.cache for tuner in self.tuners]

    def tuner(self, kind):
        bench = fake_cuda.by_config({16: 2.0, 32: 1.0} if self.draw.random() < 0.5 else {16: 1.0, 32: 2.0})
        return kind(add, add.arg_names, self.configs, ["n"], None, ["x_ptr"], do_bench=bench)

    def hook(self, arguments):
        planned, self.planned = self.planned, None
        self.seen.append(("hook", sorted(arguments.keys() - {"grid", "warmup"})))  # a table passes neither
        if planned is not None:
            planned()

    def launch(self, tuner, n, grid=(4,), **options):
        before = len(self.launches)
        try:
            made = tuner[grid](self.x, n, 7, EVEN=True, **options)
            self.seen.append(made.hash if made is not None else None)
        except Exception as error:
            self.seen.append((type(error).__name__, str(error)))
        self.seen.append([(one.name, one.arguments["BLOCK"], one.arguments["n"]) for one in self.launches[before:]])

    def fail(self):
        raise self.draw.choice([KeyError, OSError, RuntimeError])("from a hook")

    def step(self):
        draw, at = self.draw, self.draw.randrange(3)
        tuner, n, other = self.tuners[at], draw.choice(SIZES), draw.randrange(3)
        key, config = (n, "torch.float32"), draw.choice(self.configs)
        self.planned = draw.choice(
            [
                None,
                None,
                self.fail,
                lambda: self.launch(self.tuners[other], n),
                lambda: self.tuners[other].cache.clear(),
            ]
        )
        steps = {
            "option": lambda: self.launch(tuner, n, debug=True),
            "twice": lambda: self.launch(tuner, n, BLOCK=16),
            "unknown": lambda: self.launch(tuner, n, nothing=1),
            "by grid": lambda: self.launch(tuner, n, lambda meta: (meta["n"] // meta["BLOCK"] + 1,)),
            "kernel": lambda: setattr(tuner, "fn", draw.choice([add, subtract])),
            "share": lambda: setattr(tuner, "cache", self.tuners[other].cache),
            "held": lambda: self.held[at].__setitem__(key, config),
            "copy": lambda: self.tuners.__setitem__(at, copy.copy(self.tuners[other])),
            "own": lambda: setattr(tuner, "cache", dict(tuner.cache)),
            "write": lambda: tuner.cache.__setitem__(key, config),
            "pop": lambda: tuner.cache.pop(key, None),
            "reverse": lambda: setattr(tuner, "configs", self.configs[::-1]),
            "pickle": lambda: self.seen.append((type(pickle.loads(pickle.dumps(dict.fromkeys(tuner.cache)))), n)),
        }
        name = draw.choice([*steps, *["launch"] * 8])
        self.seen.append((name, at, n))
        steps.get(name, lambda: self.launch(tuner, n))()
        self.planned = None
        for one in (*self.tuners, *self.held):
            cache = getattr(one, "cache", one)
            self.seen.append([(key, config.kwargs["BLOCK"]) for key, config in cache.items()])
            self.seen.append(str(getattr(one, "best_config", None)))


def seen(seed, way, launches):
    if way is not None:
        autotuned.install(**WAYS[way])
    try:
        with autotuned.mode("search"):  # what a program removes is measured again
            program = Program(seed, launches)
            for _ in range(STEPS):
                program.step()
        return program.seen
    finally:
        install.uninstall()


@pytest.mark.parametrize("launcher", ["c", "python"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(4))
def test_a_program_does_what_it_does_without(seed, way, launcher, driver, launches, monkeypatch):
    if launcher == "c":
        pytest.importorskip("autotuned._launch")
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", launcher)
    stock, ours = seen(seed, None, launches), seen(seed, way, launches)
    for at, (one, other) in enumerate(zip(stock, ours)):
        assert one == other, stock[max(at - 8, 0) : at + 1]
    assert len(stock) == len(ours)


def wrong_calls(kernel, x):
    return [
        lambda: kernel.run(self=1),
        Autotuner.run,
        lambda: Autotuner.run(object()),
        kernel,
        lambda: kernel[(4,)](x, 100, 7, EVEN=True, grid=(1,)),
        lambda: kernel[(4,)](x, [1], 7, EVEN=True),
        lambda: Autotuner(add),
    ]


def test_wrong_calls_fail_as_without(driver, bench):
    def errors():
        kernel = Autotuner(
            add, add.arg_names, [Config({"BLOCK": b}) for b in (16, 32)], ["n"], None, None, do_bench=bench
        )
        found = []
        for call in wrong_calls(kernel, torch.zeros(256)):
            with pytest.raises(Exception) as error:
                call()
            found.append((error.type, str(error.value)))
        return found

    stock = errors()
    autotuned.install()
    try:
        assert errors() == stock
    finally:
        install.uninstall()


def test_a_tuner_with_one_config_needs_no_cache(driver, bench, launches):
    autotuned.install()
    try:
        kernel = Autotuner(add, add.arg_names, [Config({"BLOCK": 16})], ["n"], None, None, do_bench=bench)
        del kernel.cache
        kernel[(4,)](torch.zeros(256), 100, 7, EVEN=True)
    finally:
        install.uninstall()
    assert [launch.arguments["BLOCK"] for launch in launches] == [16]


@pytest.mark.parametrize("way", WAYS)
def test_tuners_made_before_share_their_choices_too(way, driver, bench, launches):
    configs = [Config({"BLOCK": b}) for b in (16, 32)]
    one, other = (Autotuner(fn, fn.arg_names, configs, ["n"], None, None, do_bench=bench) for fn in (add, subtract))
    other.cache = one.cache
    autotuned.install(**WAYS[way])
    try:
        for kernel in (one, other, other):
            kernel[(4,)](torch.zeros(256), 100, 7, EVEN=True)
    finally:
        install.uninstall()
    assert one.cache is other.cache and [launch.name for launch in launches[-2:]] == ["subtract", "subtract"]
    assert bench.calls == [16, 32]


@pytest.mark.parametrize("way", [None, *WAYS])
def test_choices_are_copied_and_pickled_as_a_plain_dictionary(way, driver, bench):
    if way is not None:
        autotuned.install(**WAYS[way])
    try:
        kernel = Autotuner(
            add, add.arg_names, [Config({"BLOCK": b}) for b in (16, 32)], ["n"], None, None, do_bench=bench
        )
        kernel[(4,)](torch.zeros(256), 100, 7, EVEN=True)
        for made in (copy.copy(kernel.cache), copy.deepcopy(kernel.cache), pickle.loads(pickle.dumps(kernel.cache))):
            assert type(made) is dict and made == kernel.cache and made is not kernel.cache
    finally:
        install.uninstall()


def test_an_interrupt_at_the_begin_of_a_look_up_comes_out_as_it_is(driver, bench, monkeypatch):
    def interrupt(tuner, name):
        raise KeyboardInterrupt

    autotuned.install()
    try:
        kernel = Autotuner(
            add, add.arg_names, [Config({"BLOCK": b}) for b in (16, 32)], ["n"], None, None, do_bench=bench
        )
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(seeded, "attribute", interrupt)
            kernel[(4,)](torch.zeros(256), 100, 7, EVEN=True)
        kernel[(4,)](torch.zeros(256), 100, 7, EVEN=True)
        assert bench.calls == [16, 32]
    finally:
        install.uninstall()


@pytest.mark.parametrize("way", [None, *WAYS])
def test_a_hook_that_reads_the_grid_is_given_it_at_each_launch(way, driver, bench):
    def hook(arguments):
        seen.append((arguments["grid"], arguments["warmup"]))

    seen = []
    if way is not None:
        autotuned.install(**WAYS[way])
    try:
        decorated = triton.autotune([Config({"BLOCK": 32}, pre_hook=hook)], key=["n"], do_bench=bench)(subtract)
        tuners = decorated, Autotuner(add, add.arg_names, decorated.configs, ["n"], None, None, do_bench=bench)
        for tuner in tuners:
            for _ in range(3):
                tuner[(4,)](torch.zeros(256), 100, 7, EVEN=True)
    finally:
        install.uninstall()
    assert seen == [((4,), False)] * 6


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("way", [None, *WAYS])
def test_a_pruner_is_called_once_for_a_measured_call(way, kind, driver, bench):
    def prune(configs, named, **options):
        calls.append(len(configs))
        return kind(configs)

    calls = []
    configs = [Config({"BLOCK": b}) for b in (16, 32)]
    given = {"do_bench": bench, "prune_configs_by": {"early_config_prune": prune}}
    if way is not None:
        autotuned.install(**WAYS[way])
    try:
        kernel = Autotuner(subtract, subtract.arg_names, configs, ["n"], None, None, **given)
        kernel[(4,)](torch.zeros(256), 100, 7, EVEN=True)
    finally:
        install.uninstall()
    assert calls == [2]
