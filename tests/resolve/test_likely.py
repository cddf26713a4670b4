"""Tests of `likely`, and that a search tries these configs first."""

import numpy as np
import pytest
from fakes import FakeConfig, form, make_key

from autotuned import Config, autotune
from autotuned.key import nearest_key
from autotuned.key.key import Key
from autotuned.resolve import searcher
from autotuned.store import listing
from autotuned.store.record import TuningRecord
from autotuned.typed_json import canonical


def tuned(n, block, **context):
    return TuningRecord(make_key(n, **context), form(FakeConfig({"BLOCK": block})), 1.0, "ok", ())


def identity(block):
    return canonical(form(FakeConfig({"BLOCK": block})))


def test_the_nearest_winner_comes_first_and_each_once():
    known = [tuned(16, 1), tuned(900, 2), tuned(4096, 3), tuned(1100, 2), tuned(1 << 20, 4)]
    assert searcher.likely(make_key(1000), known) == [identity(2), identity(3), identity(1)]


@pytest.mark.parametrize(
    "known",
    [[], [tuned(1000, 1, device={"kind": "cpu"})], [TuningRecord(make_key(16), None, None, "ok", ())]],
    ids=["nothing", "another device", "an unfinished search"],
)
def test_where_nothing_is_like_it_nothing_is_likely(known):
    assert searcher.likely(make_key(1000), known) == []


def test_sizes_are_compared_by_their_ratio_and_other_values_by_being_the_same():
    near, far = {"n": 1000, "dtype": "fp16"}, {"n": 4000, "dtype": "fp16"}
    assert distance(near, near) == 0
    assert distance(near, far) == pytest.approx(2, abs=0.01)
    assert distance(near, {"n": 1000, "dtype": "bf16"}) > distance(near, far)
    assert distance({"n": 1}, {"n": True}) > 0
    for one, other in ((-5, 5), (5, -5)):
        assert distance({"n": one}, {"n": other}) > distance({"n": 5}, {"n": 6})


def distance(one, other):
    return next(nearest_key.distances(Key("k", one, {}), [Key("k", other, {})]))


def searching(launched, **options):
    """A kernel of four configs whose third is the fastest."""

    def work(out, n, *, step):
        launched.append(step)

    def bench(call, quantiles):
        call()
        return [{1: 4.0, 2: 3.0, 4: 1.0, 8: 2.0}[launched[-1]]] * 3

    return autotune(configs=[Config({"step": step}) for step in (1, 2, 4, 8)], key=["n"], do_bench=bench, **options)(
        work
    )


def test_another_process_begins_with_what_is_stored():
    launched: list[int] = []
    searching(launched)(np.zeros(4), 100)
    assert launched[:4] == [1, 2, 4, 8]
    launched.clear()
    searching(launched)(np.zeros(4), 200)  # decorated anew: it knows nothing but the store
    assert launched[:4] == [4, 1, 2, 8]
    launched.clear()
    searching(launched, cache_results=False)(np.zeros(4), 300)
    assert launched[:4] == [1, 2, 4, 8]


def test_of_a_large_store_a_part_is_read(monkeypatch):
    launched: list[int] = []
    for n in (100, 200, 400):
        searching(launched)(np.zeros(4), n)
    seen, read = [], listing._head
    listing._known.clear()
    monkeypatch.setattr(searcher, "LIKELY_READ", 2)
    monkeypatch.setattr(listing, "_head", lambda path: seen.append(path) or read(path))
    searching(launched)(np.zeros(4), 800)
    assert len(seen) == 2


def test_a_search_begins_with_the_winner_of_the_nearest_shape():
    launched = []

    @autotune(configs=[Config({"step": step}) for step in (1, 2, 4, 8)], key=["n"],
              do_bench=lambda call, quantiles: call() or [{1: 4.0, 2: 3.0, 4: 1.0, 8: 2.0}[launched[-1]]] * 3)  # fmt: skip
    def work(out, n, *, step):
        launched.append(step)

    work(np.zeros(4), 100)
    assert launched[:4] == [1, 2, 4, 8]
    launched.clear()
    work(np.zeros(4), 200)
    assert launched[:4] == [4, 1, 2, 8]
