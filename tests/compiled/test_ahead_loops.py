"""`install()` compiles ahead for tuners whose `run` loops over Triton's `_bench`, and leaves what it finds as it was."""

import gc
import threading
import weakref

import fake_cuda
import pytest
import torch
from compiled_ahead import BLOCKS, blocks_compiled, configs, tuned
from triton import Config
from triton.runtime.autotuner import Autotuner

import autotuned

pytestmark = pytest.mark.usefixtures("ahead_cold")


class Loops(Autotuner):
    """As FlagGems': a `run` and `.cache` of its own, with a benchmark that `chosen` may leave configs out of."""

    chosen = staticmethod(lambda left: left)

    def run(self, *args, **kwargs):
        self.nargs = dict(zip(self.arg_names, args))
        if args[1] not in self.cache:
            left = self.chosen(self.prune_configs(kwargs))
            times = [(self._bench(*args, config=config, **kwargs), config) for config in left]
            self.cache[args[1]] = min(times, key=lambda pair: pair[0])[1]
        self.best_config = self.cache[args[1]]
        return self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())


def test_a_tuner_with_a_loop_of_its_own_is_compiled_ahead_from_its_second_config_on(events, x):
    autotuned.install()
    kernel = tuned(kind=Loops, do_bench=events.bench)
    kernel[(4,)](x, 100)
    assert events.all[:2] == [("compiled", "MainThread", 16), ("measured", 16)]
    assert sorted(blocks_compiled(events)) == list(BLOCKS[1:])
    assert events.all[5:] == [("measured", block) for block in BLOCKS[1:]]
    kernel[(4,)](x, 100)
    assert len(events.all) == 8 and kernel.best_config.kwargs == {"BLOCK": 64}


@pytest.mark.parametrize("order", [(3, 1), (0, 2), (1,), (3, 2, 1, 0)])
def test_a_loop_over_some_configs_or_in_another_order_is_left_to_triton(order, events, x):
    autotuned.install()
    kernel = tuned(kind=Loops, do_bench=events.bench)
    kernel.chosen = lambda left: [left[i] for i in order]
    kernel[(4,)](x, 100)
    assert blocks_compiled(events) == [] and events.measured == [BLOCKS[i] for i in order]


@pytest.mark.parametrize("way", ["no ahead", "sealed"])
def test_nothing_is_compiled_ahead_for_such_a_loop(way, events, x):
    autotuned.install(ahead=way != "no ahead")
    kernel = tuned(kind=Loops, do_bench=events.bench)
    if way == "no ahead":
        kernel[(4,)](x, 100)
    else:
        with autotuned.seal("error", all=True), pytest.raises(autotuned.errors.SealedError):
            kernel[(4,)](x, 100)
    assert blocks_compiled(events) == []


def test_a_loop_that_begins_in_the_middle_is_compiled_ahead_from_there(events, x):
    autotuned.install()
    kernel = tuned(kind=Loops, do_bench=events.bench)
    kernel.chosen = lambda left: left[1:]  # the first one's time is known to the library
    kernel[(4,)](x, 100)
    assert sorted(blocks_compiled(events)) == list(BLOCKS[2:]) and events.measured == list(BLOCKS[1:])


class Narrows(Autotuner):
    """Its `prune_configs` leaves fewer configs than Triton's."""

    def prune_configs(self, kwargs):
        return super().prune_configs(kwargs)[:2]


class NarrowsAndLoops(Narrows, Loops):
    """The same with a loop."""


@pytest.mark.parametrize("replace", [False, True], ids=["seeded", "replaced"])
@pytest.mark.parametrize("race", [False, True])
@pytest.mark.parametrize("kind", [Narrows, NarrowsAndLoops])
def test_what_a_subclass_prunes_further_is_neither_compiled_nor_measured(kind, race, replace, events, x):
    autotuned.install(race=race, replace=replace)
    kernel = tuned(kind=kind, do_bench=events.bench)
    kernel[(4,)](x, 100)
    assert set(events.measured) == {16, 32} == {event[2] for event in events.all if event[0] == "compiled"}
    assert kernel.best_config.kwargs == {"BLOCK": 16}


def test_a_loop_that_does_not_end_keeps_nothing_alive(x):
    def prune(listed, named, **kwargs):
        return [Config(config.kwargs, pre_hook=lambda arguments, of=named["x_ptr"]: None) for config in listed]

    autotuned.install()
    kernel = tuned(kind=Loops, prune_configs_by={"early_config_prune": prune})
    kernel.chosen = lambda left: left[:1]
    tensor = torch.zeros(256)
    kernel[(4,)](tensor, 100)
    there = [weakref.ref(tensor), weakref.ref(kernel)]
    tensor.kernel = kernel  # so that the configs' hooks refer to it
    fake_cuda.Launcher.launches.clear()
    del tensor, kernel
    gc.collect()
    assert [one() for one in there] == [None, None]


def fails(*args):
    raise RuntimeError("not this tuner")


WITHOUT = {
    "hash": {"__hash__": fails},
    "equality": {"__eq__": fails, "__hash__": lambda self: 1},
    "both": {"__hash__": None},
}


@pytest.mark.parametrize("race", [False, True])
@pytest.mark.parametrize("base", [Autotuner, Loops])
@pytest.mark.parametrize("without", WITHOUT)
def test_tuners_need_neither_hash_nor_equality(without, base, race, events, x):
    autotuned.install(race=race)
    kind = type("Unhashable", (base,), WITHOUT[without])
    for kernel in (tuned(kind=kind, do_bench=events.bench), tuned(kind=kind, listed=configs((16, 128)))):
        kernel[(4,)](x, 100)
        assert kernel.best_config.kwargs["BLOCK"] in (64, 16)
    assert set(events.measured) == {*BLOCKS}


def test_threads_that_loop_over_one_tuner_each_have_their_place(events, x):
    """The second thread prunes once the first has measured one config, and measures when the first is done."""
    pruned, done = threading.Event(), threading.Event()

    def chosen(left):
        if threading.current_thread() is second:
            pruned.set()
            assert done.wait(60)
        return left

    def bench(call, quantiles):
        times = events.bench(call, quantiles)
        if second.ident is None:
            second.start()
            assert pruned.wait(60)
        return times

    autotuned.install()
    kernel = tuned(kind=Loops, do_bench=bench)
    kernel.chosen, second = chosen, threading.Thread(target=kernel[(4,)], args=(x, 101))
    kernel[(4,)](x, 100)
    done.set()
    second.join(60)
    assert events.measured == [*BLOCKS, *BLOCKS]
    assert sorted(blocks_compiled(events)) == list(BLOCKS[1:])
    assert {event[2] for event in events.all if event[0] == "compiled" and event[1] != "autotuned-ahead"} == {16}


def test_a_tuner_called_within_another_ones_loop_takes_no_place_of_it(events, x):
    autotuned.install()
    kernel, inner = tuned(kind=Loops, do_bench=events.bench), tuned(kind=Loops)
    inner.chosen = lambda left: left[:1]
    kernel.pre_hook = lambda arguments, reset_only=False: inner[(4,)](x, 101)
    kernel[(4,)](x, 100)
    assert sorted(blocks_compiled(events)) == list(BLOCKS[1:])
