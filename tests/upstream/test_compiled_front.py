"""What stands in the place of `Autotuner.run`, in C and in Python: the same in every order of calls and changes."""

import contextlib
import contextvars
import gc
import inspect
import random
import sys
import threading
import weakref

import fake_cuda
import pytest
import torch
from dropin_kernels import Library, add
from triton import Config
from triton.runtime.autotuner import Autotuner

import autotuned
from autotuned.dropin import install, seeded
from autotuned.store import layout

STEPS = 30
SIZES = (100, 64, 99)


class Odd(dict):
    """A cache of somebody else's class."""


class Session:
    """Tuners under one front, and all that was seen of them."""

    def __init__(self, bench, launches):
        self.bench, self.launches, self.x, self.seen = bench, launches, torch.zeros(256), []
        self.hooked = None  # what the config of BLOCK 32 does before each launch
        self.configs = [Config({"BLOCK": 16}), Config({"BLOCK": 32}, pre_hook=self.hook)]
        self.tuners = [self.tuner(kind) for kind in (Autotuner, Library)]
        self.one = self.tuner(Library, self.configs[:1])

    def tuner(self, kind, configs=None):
        return kind(add, add.arg_names, configs or self.configs, ["n"], None, None, do_bench=self.bench)

    def hook(self, arguments):
        hooked, self.hooked = self.hooked, None
        if hooked is not None:
            hooked()

    def launch(self, tuner, n, **options):
        before = len(self.launches)
        try:
            tuner[(4,)](self.x, n, 7, EVEN=True, **options)
        except Exception as error:
            self.seen.append((type(error).__name__, str(error)))
        blocks = [launch.arguments["BLOCK"] for launch in self.launches[before:]]
        self.seen.append(
            (n, blocks, list(self.bench.calls), tuner.nargs is None, list(map(str, dict.keys(tuner.cache))))
        )
        self.seen.append(str(getattr(tuner, "best_config", None)))
        self.bench.calls.clear()

    def step(self, draw):
        tuner, n = draw.choice([*self.tuners, self.one]), draw.choice(SIZES)
        key = (n, "torch.float32")
        steps = {
            "launch": lambda: self.launch(tuner, n),
            "option": lambda: self.launch(tuner, n, debug=True),
            "again": lambda: [self.launch(tuner, n) for _ in range(3)],
            "within": lambda: self.inside(draw, tuner, n),
            "asks": lambda: self.asks(tuner, n, draw.choice(SIZES)),
            "rewrites": lambda: self.rewrites(draw, tuner, n),
            "fails": lambda: self.fails(tuner, n),
            "unknown": lambda: self.launch(tuner, n, nothing=1),
            "written": lambda: tuner.cache.__setitem__(key, draw.choice(self.configs)),
            "removed": lambda: tuner.cache.pop(key, None),
            "emptied": lambda: setattr(tuner, "cache", draw.choice([dict, Odd])()),
            "new": lambda: self.tuners.__setitem__(0, self.tuner(Autotuner)),
            "held": lambda: self.seen.append(key in tuner.cache),
            "away": lambda: (install.uninstall(), self.launch(tuner, n), autotuned.install()),
            "replacing": lambda: (autotuned.install(replace=True), self.launch(tuner, n)),
            "seeding": lambda: (install.uninstall(), autotuned.install()),
            "strict": lambda: self.in_mode("strict", tuner, n),
        }
        name = draw.choice([*steps, "launch", "again"])
        self.seen.append(name)
        steps[name]()

    def in_mode(self, mode, tuner, n):
        with autotuned.mode(mode):
            self.launch(tuner, n)

    def inside(self, draw, tuner, n):
        inner, size = draw.choice(self.tuners), draw.choice(SIZES)
        self.hooked = lambda: self.launch(inner, size)
        self.launch(tuner, n)

    def asks(self, tuner, n, asked):
        self.hooked = lambda: self.seen.append((asked, "torch.float32") in tuner.cache)
        self.launch(tuner, n)

    def rewrites(self, draw, tuner, n):
        key, other = (n, "torch.float32"), draw.choice(self.configs)

        def rewrite():
            if dict.__contains__(tuner.cache, key) and key in tuner.cache:
                tuner.cache[key] = other
                self.seen.append(tuner.cache[key] is other)

        self.hooked = rewrite
        self.launch(tuner, n)

    def fails(self, tuner, n):
        def fail():
            raise KeyError("from a hook")

        self.hooked = fail
        self.launch(tuner, n)


def outcome(seed, launcher, launches, monkeypatch, folder):
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", launcher)
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(folder / launcher))
    autotuned.install(ahead=False)
    try:
        assert (type(Autotuner.run).__name__ == "Front") == (launcher == "c")
        session, draw = Session(fake_cuda.by_config({16: 2.0, 32: 1.0}), launches), random.Random(seed)
        for _ in range(STEPS):
            session.step(draw)
            session.hooked = None
        return session.seen, sorted(path.name for path in layout.root().glob("v*/*/*.json"))
    finally:
        install.uninstall()


@pytest.mark.parametrize("seed", range(12))
def test_both_twins_do_the_same_in_whatever_order(seed, driver, launches, monkeypatch, tmp_path):
    pytest.importorskip("autotuned._launch")
    in_c, in_python = (outcome(seed, one, launches, monkeypatch, tmp_path) for one in ("c", "python"))
    for at, (one, other) in enumerate(zip(in_c[0], in_python[0])):
        assert one == other, (in_c[0][at - 8 : at + 1], other)
    assert in_c == in_python


@pytest.fixture
def seeding(driver):
    autotuned.install(ahead=False)
    yield
    install.uninstall()


def codes_of(launch):
    called = []
    sys.setprofile(lambda frame, event, argument: called.append(frame.f_code) if event == "call" else None)
    try:
        launch()
    finally:
        sys.setprofile(None)
    return called


@pytest.mark.parametrize("kind", [Autotuner, Library])
def test_a_launch_whose_choice_is_known_runs_the_functions_of_triton_and_no_other(kind, driver, bench):
    pytest.importorskip("autotuned._launch")
    x = torch.zeros(256)

    def warm():
        kernel = kind(
            add, add.arg_names, [Config({"BLOCK": 16}), Config({"BLOCK": 32})], ["n"], None, None, do_bench=bench
        )
        launch = lambda: kernel[(4,)](x, 100, 7, EVEN=True)
        for _ in range(3):
            launch()
        return launch

    stock = codes_of(warm())
    autotuned.install(ahead=False)
    try:
        seeded = codes_of(warm())
    finally:
        install.uninstall()
    assert [code.co_qualname for code in seeded] == [code.co_qualname for code in stock]


def test_it_passes_for_a_method(seeding):
    assert (Autotuner.run.__name__, Autotuner.run.__qualname__) == ("run", "Autotuner.run")
    assert list(inspect.signature(Autotuner.run).parameters) == ["self", "args", "kwargs"]
    with pytest.raises(TypeError, match="self"):
        Autotuner.run()
    with pytest.raises(AttributeError, match="arg_names"):
        Autotuner.run(object())


def test_threads_that_ask_for_other_keys_get_their_own(seeding, bench, launches):
    kernel = Library(
        add, add.arg_names, [Config({"BLOCK": 16}), Config({"BLOCK": 32})], ["n"], None, None, do_bench=bench
    )
    chosen = {n: kernel.configs[n % 2] for n in range(8)}
    for n, config in chosen.items():
        kernel.cache[(n, "torch.float32")] = config
    wrong, start = [], threading.Barrier(4)

    def work(first):
        x = torch.zeros(256)
        start.wait()
        for i in range(200):
            n = (first + i) % 8
            kernel.run(x, n, 7, EVEN=True, grid=(n + 1,), warmup=False)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for launch in launches:
        if launch.arguments["BLOCK"] != chosen[launch.arguments["n"]].kwargs["BLOCK"]:
            wrong.append(launch)
    assert (len(launches), wrong) == (800, [])


def test_a_hook_reads_the_choice_that_it_has_just_written(seeding, bench):
    key, read = (100, "torch.float32"), []

    def hook(arguments):
        if key in kernel.cache:
            kernel.cache[key] = configs[1]
            read.append(kernel.cache[key])

    configs = [Config({"BLOCK": 16}, pre_hook=hook), Config({"BLOCK": 32})]
    kernel = Library(add, add.arg_names, configs, ["n"], None, None, do_bench=bench)
    kernel.cache[key] = configs[0]
    kernel[(4,)](torch.zeros(256), 100, 7, EVEN=True)
    assert len(read) == 1 and read[0] is configs[1]


def test_an_interrupt_in_a_launch_leaves_nothing_behind(seeding, bench):
    kernel = Library(
        add, add.arg_names, [Config({"BLOCK": 16}), Config({"BLOCK": 32})], ["n"], None, None, do_bench=bench
    )
    x = torch.zeros(256)
    kernel[(4,)](x, 100, 7, EVEN=True)
    for error in (KeyboardInterrupt, SystemExit, GeneratorExit):

        def interrupted(meta, error=error):
            raise error

        with contextlib.suppress(error):
            kernel[interrupted](x, 100, 7, EVEN=True)
        assert (64, "torch.float32") not in kernel.cache
        assert kernel.cache[(100, "torch.float32")] is kernel.best_config


def pruned_by(prune, bench):
    return {"prune_configs_by": {"early_config_prune": prune}, "do_bench": bench}


def test_greenlets_that_switch_in_hooks_store_and_find_their_choices(seeding, bench):
    """Both were measured in every process: the one that ended first took the other's call for its own."""
    greenlet = pytest.importorskip("greenlet")
    main = greenlet.getcurrent()

    def prune(configs, named, **others):
        main.switch()
        return configs

    def launch(n):
        kernel = Library(add, add.arg_names, configs, ["n"], None, None, **given)
        kernel[(4,)](torch.zeros(256), n, 7, EVEN=True)

    configs, given = [Config({"BLOCK": 16}), Config({"BLOCK": 32})], pruned_by(prune, bench)
    for measured in (4, 4):
        workers = [greenlet.greenlet(lambda n=n: launch(n)) for n in (64, 100)]
        while any(not worker.dead for worker in workers):
            [worker.switch() for worker in workers if not worker.dead]
        assert len(bench.calls) == measured


def test_a_call_belongs_to_the_context_that_made_it(seeding, bench):
    """What makes the test above pass without the package that it needs."""

    def prune(configs, named, **others):
        seen.append([contextvars.copy_context().run(asked) is asked(), contextvars.Context().run(asked)])
        return configs

    configs, seen, asked = [Config({"BLOCK": 16}), Config({"BLOCK": 32})], [], lambda: seeded.measuring(kernel)
    kernel = Library(add, add.arg_names, configs, ["n"], None, None, **pruned_by(prune, bench))
    kernel[(4,)](torch.zeros(256), 100, 7, EVEN=True)
    assert seen and all(one == [True, None] for one in seen) and asked() is None


def test_tasks_that_a_hook_starts_keep_no_arguments_alive(seeding, bench):
    contexts, configs = [], [Config({"BLOCK": 16}), Config({"BLOCK": 32})]
    hook = lambda *given, **more: contexts.append(contextvars.copy_context())  # as `asyncio.create_task` does
    kernel = Library(add, add.arg_names, configs, ["n"], None, None, pre_hook=hook, do_bench=bench)
    x = torch.zeros(256)
    alive = weakref.ref(x)
    kernel[(4,)](x, 100, 7, EVEN=True)
    del x
    fake_cuda.Launcher.launches.clear()
    gc.collect()
    assert contexts and alive() is None
    assert all(context.run(seeded.measuring, kernel) is None for context in contexts)
