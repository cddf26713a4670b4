"""A config's `pre_hook` is part of what was measured: edited it is another candidate, in all three ways to tune."""

from functools import partial

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from fakes import FakeConfig
from stored import lines, records
from triton import Config

import autotuned
from autotuned import autotune
from autotuned.configfiles import exchange
from autotuned.key import opaque
from autotuned.store import listing


@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


def zeroes(arguments):
    arguments["y"].zero_()


def fills(arguments):
    arguments["y"].fill_(1)


def through(helper):
    return lambda arguments: helper(arguments)


def with_value(value):
    return lambda arguments: arguments["y"].fill_(value)


def by_default(value):
    def fill(arguments, value=value):
        arguments["y"].fill_(value)

    return fill


def counted(calls):
    return lambda arguments: calls.append(arguments["BLOCK"])


class Filler:
    def __init__(self, value):
        self.value = value

    def __call__(self, arguments):
        arguments["y"].fill_(self.value)

    def method(self, arguments):
        self(arguments)


def filled(value, arguments):
    arguments["y"].fill_(value)


EDITS = {
    "body": (lambda: zeroes, lambda: fills),
    "helper": (lambda: through(zeroes), lambda: through(fills)),
    "value closed over": (lambda: with_value(1), lambda: with_value(2)),
    "default": (lambda: by_default(1), lambda: by_default(2)),
    "object": (lambda: Filler(1), lambda: Filler(2)),
    "method": (lambda: Filler(1).method, lambda: Filler(2).method),
    "partial": (lambda: partial(filled, 1), lambda: partial(filled, 2)),
    "none before": (lambda: None, lambda: zeroes),
}


class Counted:
    def __init__(self):
        self.calls = 0

    def __call__(self, call, quantiles):
        self.calls += 1
        call()
        return [1.0 + self.calls] * 3


def measured(decorator, hook):
    """How many configs are measured for a call whose configs have this hook."""
    bench, x, y = Counted(), torch.ones(64), torch.zeros(64)
    configs = [Config({"BLOCK": block}, pre_hook=hook) for block in (16, 32)]
    kernel = decorator(configs=configs, key=["n"], do_bench=bench)(double)
    kernel[lambda meta: (triton.cdiv(64, meta["BLOCK"]),)](x, y, 64)
    assert (y == 2).all()
    return bench.calls


@pytest.fixture(params=["own", "seeded", "replaced"])
def decorator(request):
    if request.param == "own":
        yield autotune
        return
    autotuned.install(replace=request.param == "replaced")
    yield triton.autotune
    autotuned.uninstall()


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_hook_is_measured_anew_and_an_equal_one_is_not(decorator, edit):
    before, after = EDITS[edit]
    assert [measured(decorator, make()) for make in (before, after, before, after)] == [2, 2, 0, 0]


def test_what_a_hook_counts_is_no_part_of_it(decorator):
    calls = []
    assert [measured(decorator, counted(calls)) for _ in range(3)] == [2, 0, 0]
    assert calls


def test_a_hook_that_holds_what_has_no_form_keeps_the_choice_in_memory_and_says_so(decorator, caplog):
    held = object()
    assert measured(decorator, lambda arguments: held and zeroes(arguments)) == 2
    assert records() == []
    assert [line for line in lines(caplog) if "pre_hook without JSON form; kept in memory only" in line]


def test_a_hook_made_anew_for_each_call_is_one_hook():
    calls = []

    def configs(n, **others):
        return [FakeConfig({"step": step}, pre_hook=lambda arguments: calls.append(1)) for step in (1, 2)]

    def work(x, n, *, step):
        x += 0

    function = autotune(configs, key=["n"], do_bench=Counted())(work)
    for _ in range(4):
        function(np.zeros(4), 4)
        function.tuner.launcher.clear()
    assert function.cache_info().searches == 1
    assert len(records()) == 1


def test_a_shipped_choice_serves_under_the_hook_that_it_was_measured_with(tmp_path, caplog):
    assert measured(autotune, zeroes) == 2
    exchange.export(tmp_path)
    listing.clear()
    autotuned.register_configs(tmp_path)
    assert measured(autotune, zeroes) == 0
    assert measured(autotune, fills) == 2
    assert "measured with another pre_hook than the live config of equal values has" in caplog.text


def test_a_counting_object_without_weak_references_stays_itself():
    class Counts:
        __slots__ = ("count",)

        def __init__(self):
            self.count = 0

        def __call__(self, arguments):
            self.count += 1

    hook = Counts()
    before = opaque.hook(hook)
    hook({})
    assert opaque.hook(hook) == before
