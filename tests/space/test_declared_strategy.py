"""A strategy of the user's: asked and told, copied for each key, and refused where it gives no configs."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from anywhere import interrupt
from declared_space import Table, space, tuned, values
from triton import Config

import autotuned
from autotuned import autotune
from autotuned.errors import AllConfigsFailedError, DecorationError
from autotuned.space import declared
from autotuned.store import listing


class Own:
    """A strategy of a user's: the first so many of a list."""

    def __init__(self, configs):
        self.configs, self.told = configs, []

    def ask(self, n):
        asked, self.configs = self.configs[:n], self.configs[n:]
        return asked

    def tell(self, results):
        self.told += [(values(config), us, status) for config, us, status in results]


def test_a_strategy_of_the_user_s_is_asked_and_told():
    wanted = [Config({"a": a, "b": 32, "c": 0}) for a in (512, 32, 64, 128)]
    own = Own([*wanted, Config({"a": 7, "b": 32, "c": 0})])
    f = tuned(space(), strategy=own)
    f(1)
    assert values(f.best_config) == (64, 32, 0)
    told = {config: (us, status) for config, us, status in own.told}
    assert told[512, 32, 0] == (None, "failed") and told[7, 32, 0] == (None, "left out")
    assert told[64, 32, 0] == (pytest.approx(50), "ok")


def test_each_key_has_a_search_of_its_own():
    """An object with a state serves the first search; the others begin with a copy of it as it was given."""
    for given in (autotuned.strategy("exhaustive", space()), autotuned.strategy("random", space(), seed=3),
                  autotuned.strategy("guided", space())):  # fmt: skip
        f = tuned(space(), strategy=given)
        for n in (1, 2):
            f(n)
            assert values(f.best_config) == (64, 32, 0)
        f.cache_clear()


def test_threads_that_search_at_once_get_one_strategy_each():
    """A search ended in an `IndexError` if another took the user's object at the wrong moment."""

    def begin():
        declaration = declared.Declaration(space(), Own([]), False, "declared.f")
        search = partial(declaration.strategy, declaration.members({"n": 1}), [])
        return search, search

    interrupt(declared.Declaration.strategy, begin)


def test_a_strategy_that_cannot_be_copied_serves_one_key():
    own = Own([Config({"a": 64, "b": 32, "c": 0})])
    own.lock = threading.Lock()
    f = tuned(space(), strategy=own)
    f(1)
    with pytest.raises(DecorationError, match="declared.f.*an object that can be copied for the search of each key"):
        f(2)


@pytest.mark.parametrize("again", [{"a": 64, "b": 32, "c": 0}, {"a": 7, "b": 32, "c": 0}], ids=["known", "foreign"])
def test_a_strategy_that_repeats_itself_ends(again):
    class Same:
        def ask(self, n):
            return [Config(again)]

        def tell(self, results):
            pass

    f = tuned(space(), strategy=Same())
    f(1)
    (record,) = [found for _, found in listing.all_records("declared.f")]
    assert record.provenance["space"]["stopped"] == "the strategy asked 96 times for nothing new"


@pytest.mark.parametrize("answer", [None, "abc", [{"a": 64, "b": 32, "c": 0}], {"a": 1}, [None], 3], ids=repr)
def test_what_is_no_list_of_configs_is_said(answer):
    class Wrong(Own):
        def ask(self, n):
            return answer

    with pytest.raises(DecorationError, match="`declared.f`: strategy: expected a list of autotuned.Config"):
        tuned(space(), strategy=Wrong([]))(1)


def test_a_strategy_that_asks_for_nothing_that_runs_is_an_error():
    f = tuned(space(first=[{"a": 512, "b": 512, "c": 0}]), strategy=Own([Config({"a": 512, "b": 256, "c": 1})]))
    with pytest.raises((AllConfigsFailedError, RuntimeError), match="too large"):
        f(1)


def test_a_seed_repeats_itself():
    def run(name):
        table = Table()

        @autotune(configs=space(), do_bench=table, name=name, key=["n"])
        def f(n, *, a, b, c):
            table.now = (a, b, c)

        f(1)
        return table.asked

    assert run("declared.one") == run("declared.two")
