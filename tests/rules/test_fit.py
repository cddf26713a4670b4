"""Rules fitted to pretended kernels: their promises hold for calls that nobody measured, and nothing is guessed."""

import itertools
import json
import math

import numpy as np
import pytest
import synthetic

from autotuned.rules import bounds, fit, folds, text, tree
from autotuned.rules.rule import Loss
from autotuned.rules.table import Table, tables


def steps_table(count: int = 60, loss: float = 0.5) -> Table:
    """One size, and three configs that are best in a range each: what a rule finds by itself."""
    names = [synthetic.form_of((size, 64, 32, 4, 3)) for size in (16, 64, 128)]
    rows = []
    for number in range(count):
        m = round(8 * 1.15**number)
        best = 0 if m <= 128 else 1 if m <= 2048 else 2
        rows.append(
            ({"values": {"M": m}, "tensors": {}}, {n: 10 * (1 + loss * (i != best)) for i, n in enumerate(names)})
        )
    [(found, _)] = tables(rows)
    return found


def aligned_table() -> Table:
    """The winner is one where M is a multiple of 64 and another where not: neighbours say nothing."""
    names = [synthetic.form_of((size, 64, 32, 4, 3)) for size in (64, 128)]
    rows = [16 * number for number in range(1, 161)]
    calls = [
        ({"values": {"M": m}, "tensors": {}}, {names[0]: 10 + 5 * (m % 64 > 0), names[1]: 10 + 4 * (m % 64 == 0)})
        for m in rows
    ]
    [(found, _)] = tables(calls)
    return found


def test_a_rule_finds_where_the_winner_changes():
    found = fit.fit(steps_table(), 0.05)
    made = found.rule()
    assert [made.configs[made.leaf((m,)).config]["kwargs"]["BM"] for m in (8, 128, 129, 2048, 2049, 9999)] == [
        16, 16, 64, 64, 128, 128,
    ]  # fmt: skip


def test_a_rule_finds_how_full_the_waves_of_tiles_are():
    """One config is best where the last wave of 128-row tiles on 8 processors is nearly full, another elsewhere."""
    names = [synthetic.form_of((size, 64, 32, 4, 3)) for size in (64, 128)]
    rows = [round(40 * 1.04**number) for number in range(160)]
    full = lambda m: -(-m // 128) % 8 in (0, 7)
    calls = [({"values": {"M": m}, "tensors": {}}, {n: 10 + 5 * (full(m) == i) for i, n in enumerate(names)})
             for m in rows]  # fmt: skip
    [(table, _)] = tables(calls, processors=8)
    found = fit.fit(table, 0.05)
    assert str(found.rule().tree.split).startswith("fill(M/128, 8) <= ")
    assert len(found.configs) == 2


def test_a_rule_is_worth_it_where_it_beats_what_is_simpler():
    found = fit.fit(aligned_table(), 0.05)
    assert (found.why_not, found.served) == ("", 1.0)
    assert str(found.rule().tree.split) == "M % 64 == 0"
    assert (
        found.compared["rule"] == (0.0, 0.0)
        and min(one[0] for name, one in found.compared.items() if name != "rule") > 0.05
    )


def test_the_same_times_give_the_same_rule():
    one, other = (fit.fit(synthetic.Kernel(3).table(40), 0.1) for _ in "ab")
    assert one.rule() == other.rule() and one.compared == other.compared


def test_promised_bounds_hold_for_calls_nobody_measured():
    """Of all calls that are served, over kernels that differ in everything."""
    exceeded: dict[str, list[bool]] = {"seen": [], "new": []}
    for made, seed in itertools.product((synthetic.Kernel, synthetic.Regimes, synthetic.Cliffs), (500, 501)):
        kernel = made(seed)
        found = fit.fit(kernel.table(300), 0.1)
        rule = found.rule()
        for kind, pairs in (("seen", synthetic.PAIRS[:6]), ("new", ((3072, 5120), (8192, 6144), (11008, 8192)))):
            for m, n, k in kernel.sizes(240, pairs):
                values = rule.values([size for _, size in synthetic.sizes_of(m, n, k)])
                place, times = rule.config(values, 0.1), kernel.times(m, n, k)
                if place is not None:
                    loss = times[found.configs[place]] / min(times.values()) - 1
                    exceeded[kind].append(loss > rule.loss(rule.leaf(values), values).bound)
    assert len(exceeded["seen"]) > 100
    assert all(np.mean(some) <= 0.05 for some in exceeded.values() if some)


@pytest.mark.parametrize(("bad", "kept"), [(0, 20), (2, None), (10, None)], ids=["none", "two bands", "half of them"])
def test_calls_of_one_band_that_exceed_together_count_as_one_band(bad, kept):
    """20 bands of 10 calls, promised 1%; in some bands half of the calls lose 3% or 30%. Of 200 calls 10 may."""
    bands = np.repeat(np.arange(20), 10)
    promised = np.full(200, 0.01)
    for loss in (0.03, 0.3):
        losses = np.where((bands < bad) & (np.arange(200) % 2 == 0), loss, 0.005)
        found = bounds.correction(losses, promised, promised, bands, 0.05)
        assert found == (bounds.Correction(0.01, 0.05) if kept == 20 or loss <= 0.05 else None)
    few = bounds.correction(np.zeros(200), promised, promised, bands % 8, 0.05)
    assert few is None  # however many calls: 8 bands say nothing of 5 in 100


def test_leaves_with_the_largest_bounds_are_served_no_more_until_it_holds():
    bands = np.repeat(np.arange(20), 10)
    promised = np.where(np.arange(200) % 2, 0.01, 0.04)
    losses = np.where(promised > 0.02, 0.2, 0.0)
    found = bounds.correction(losses, np.zeros(200), promised, bands, 0.05)
    loss = lambda bound, own=0.0: found.applied(bounds.LeafLoss(Loss(9, 0.0, 0.0, own), own, bound)).bound
    assert loss(0.04) > 0.05 and loss(0.01) == 0.05  # what is allowed, and no less
    assert loss(0.01, own=0.3) == 0.3  # its own calls say otherwise
    assert found.applied(None) is None


def test_each_tuned_call_keeps_its_promise():
    table = synthetic.Kernel(11).table(60)
    for within in (0.0, 0.02, 0.1):
        chosen = fit.fit(table, within).cover
        assert chosen.is_exact and len(chosen.held) == len(table)
        assert (table.losses[:, chosen.configs].min(axis=1) <= within).all()


def test_whole_bands_are_left_out():
    table = synthetic.Kernel(1).table(150)
    seen = np.zeros(len(table), dtype=int)
    for out, left in folds.along(table):
        seen[out] += 1
        ratio = table.steps[out][:, None] / table.steps[left][None, :]
        assert np.maximum(ratio, 1 / ratio).min() > folds.APART
    assert (seen == 1).all()
    for out, left in folds.across(table):
        assert not {table.others[row] for row in out} & {table.others[row] for row in left}


def test_a_pair_is_known_where_it_was_tuned_and_gaps_are_not():
    """One N was tuned at small M, the other at large ones with a gap: nobody knows the first at large M."""
    sizes = [(m, 512) for m in range(1, 65)] + [(round(64 * 1.06**i), 4096) for i in range(80) if not 20 < i < 50]
    times = [{"one": 10.0 + 5 * (m > 64), "other": 10.0 + 5 * (m <= 64)} for m, _ in sizes]
    reach = folds.reach(Table(("M", "N"), sizes, times))
    assert 1.3 < reach < 2
    first, second = folds.tuned(Table(("M", "N"), sizes, times))
    assert (first.sizes, first.along) == ((512,), ((1, int(64 * reach)),))  # no further than calls left out
    low, high = round(64 * 1.06**20), round(64 * 1.06**50)
    assert second.sizes == (4096,) and [span[0] for span in second.along] == [
        math.ceil(64 / reach),
        math.ceil(high / reach),
    ]
    assert second.along[0][1] == int(low * reach) < second.along[1][0]
    powers = [(1 << step,) for step in range(12)]  # what was left out of these was a factor of 2 away: no gap
    [alone] = folds.tuned(Table(("M",), powers, [{"one": 1.0}] * 12))
    assert alone.along == ((1, 2048),)


def test_a_call_alone_with_its_other_sizes_has_no_neighbour():
    names = [synthetic.form_of((size, 64, 32, 4, 3)) for size in (16, 128)]
    sizes = [(round(8 * 1.15**number), 4096) for number in range(60)] + [(512, 512)]
    calls = [({"values": {"M": m, "N": n}, "tensors": {}}, {names[0]: 10 + 5 * (m > 128), names[1]: 10 + 5 * (m <= 128)})
             for m, n in sizes]  # fmt: skip
    [(table, _)] = tables(calls)
    assert len(fit.fit(table, 0.05).configs) == 2


def test_few_calls_give_no_rule_and_say_so():
    found = fit.fit(synthetic.Kernel(1).table(12), 0.05)
    assert (found.rule(), found.why_not) == (None, "expected 20 calls or more, got 12")
    assert len(found.cover.held) == 12


def test_calls_of_one_shape_give_no_rule():
    [(table, numbers)] = tables([(synthetic.call_of(64, 512, 256), synthetic.Kernel(1).times(64, 512, 256))] * 3)
    assert (len(table), numbers, table.names) == (1, [0], ())
    assert fit.fit(table, 0.05).why_not == "all calls have the same sizes"


@pytest.mark.parametrize(
    ("among", "why_not"),
    [
        pytest.param(0, "none of its leaves has a bound within 5.0%", id="held in one band only"),
        pytest.param(None, "none of the chosen configs is within 5.0% of any best time", id="never measured"),
    ],
)
def test_given_configs_that_hold_few_calls_give_no_rule(among, why_not):
    table = steps_table()
    times = [dict(zip(table.configs, (10.0 if row < 3 else 20.0, 10.0))) for row in range(len(table))]
    table = Table(table.names, table.sizes, times, table.pattern)
    found = fit.fit(table, 0.05, 1, ["other"] if among is None else [table.configs[among]])
    assert (found.why_not, found.served) == (why_not, 0.0)


def test_where_one_config_is_as_good_no_rule_is_worth_it():
    found = fit.fit(steps_table(loss=0.004), 0.05)
    assert "neither 1% better on average nor half the worst" in found.why_not


def test_where_one_config_is_always_the_best_a_rule_says_so():
    table = steps_table()
    times = [dict(zip(table.configs, (9.0, 10.0, 20.0))) for _ in range(len(table))]
    found = fit.fit(Table(table.names, table.sizes, times, table.pattern), 0.05)
    assert (found.why_not, found.served, found.configs) == ("", 1.0, (table.configs[0],))


def test_a_config_that_was_not_measured_for_a_call_is_not_promised_to_it():
    table = steps_table()
    slow = table.configs[0]
    rows = [
        {name: us for name, us in times.items() if name == slow or m % 2}
        for (m,), times in zip(table.sizes, table.times)
    ]
    found = fit.fit(Table(table.names, table.sizes, rows, table.pattern), 0.05)
    known = found.table.losses
    for row, place in enumerate(found.leaf_of):
        leaf = found.leaves[place]
        at = leaf.config if leaf.config is not None else found.rule().fastest(table.sizes[row])[0]
        column = found.table.configs.index(found.configs[at])
        assert leaf.along is None or not math.isnan(known[row, column])


def test_groups_are_apart_and_sizes_have_one_name():
    calls = [(synthetic.call_of(m, 512, 256), {"a": 1.0}) for m in (1, 2, 3)]
    other = {**synthetic.call_of(4, 512, 256), "none": ["bias"]}
    found = tables([*calls, (other, {"a": 1.0}), (calls[0][0], {"b": 2.0}), (synthetic.call_of(9, 512, 256), {})])
    assert [(table.names, table.sizes, numbers) for table, numbers in found] == [
        (("M",), [(1,), (2,), (3,)], [0, 1, 2]),
        ((), [()], [3]),
    ]
    assert found[0][0].pattern["tensors"]["a"]["shape"] == [{"size": "M"}, 256]
    assert found[0][0].pattern["values"] == {"M": {"size": "M"}, "N": 512, "K": 256}


@pytest.mark.parametrize(
    ("low", "high", "number"),
    [
        (57, 70, 64),
        (100, 120, 112),
        (65, 65, 65),
        (1, 3, 2),
        (0, 9, 0),
        (-5, -2, -2),
        (-3, 4, 0),
        (2**70 - 9, 2**70 + 9, 2**70),
    ],
    ids=str,
)
def test_thresholds_are_round(low, high, number):
    assert tree.roundest(low, high) == number


@pytest.mark.parametrize("start", [2**53 - 40, 2**60, 2**62], ids=["around 2^53", "2^60", "2^62"])
@pytest.mark.parametrize("others", [(1,), (1, 3), (2**40, 2**62)], ids=str)
def test_sizes_and_products_beyond_what_a_float_holds_are_compared_as_integers(start, others):
    """Numbers that differ by one and are equal as floats are on both sides of a split."""
    sizes = [(start + place, n) for place in range(80) for n in others]
    best = lambda m, n: int(m * n > (start + 39) * others[-1] or (len(others) == 1 and m > start + 39))
    times = [{"{}": 10.0 + 5 * best(m, n), '{"a":1}': 15.0 - 5 * best(m, n)} for m, n in sizes]
    table = Table(("M", "N"), sizes, times)
    features = tree.Features(table.names, table.sizes)
    grown = tree.Growth(features, tree.costs(table.losses), (0, 1), np.arange(len(sizes)), 8)
    assert sum(leaf.cost for leaf in grown.leaves) < 1e-6
    for leaf in grown.leaves:
        for row in leaf.all_rows:
            assert leaf_of(grown.root, dict(zip(table.names, sizes[row]))) is leaf


def leaf_of(node, given):
    """Where a call ends, as the file's integers say."""
    while node.split is not None:
        node = node.then if node.split.holds([given[name] for name in node.split.names]) else node.other
    return node


@pytest.mark.parametrize("low", [-(1 << 63) + 1, (1 << 53) - 600, (1 << 63) - 1 - 16 * 79])
def test_a_rule_over_the_largest_sizes_is_read_as_it_was_written(low):
    steps, far = [low + 16 * number for number in range(80)], [1, 1 << 60, 1 << 61, 1 << 62, (1 << 63) - 1]
    names = [synthetic.form_of((size, 64, 32, 4, 3)) for size in (64, 128)]
    calls = [({"values": {"M": m, "K": far[place % 5]}, "tensors": {}, "none": []}, {names[0]: 10, names[1]: 10 + m % 3})
             for place, m in enumerate(steps)]  # fmt: skip
    [(table, _)] = tables(calls)
    written = fit.fit(table, 0.05).rule()
    assert text.load_rule(json.loads("\n".join(text.lines(written, {}))), "here") == ({}, written)
    ends = [end for one in written.tuned for span in one.along for end in span]
    assert written.sizes["M"] == (steps[0], steps[-1]) == (min(ends), max(ends))


def test_times_of_any_size_give_no_warning():
    table = aligned_table()
    without = fit.fit(table, 0.05).configs
    for us in (1e-300, 1e300):
        table.times[5][table.configs[0]] = us
        assert fit.fit(Table(table.names, table.sizes, table.times), 0.05).configs == without


def test_configs_can_be_read_back_from_a_fit():
    found = fit.fit(steps_table(), 0.05)
    assert list(found.rule().configs) == list(map(json.loads, found.configs))
