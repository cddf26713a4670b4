"""Predicted times: found in pretended kernels of tiles, read back as they were written, and refused where wrong."""

import itertools
import json
import math

import numpy as np
import pytest
import synthetic

from autotuned.errors import RecordError
from autotuned.rules import fit, folds, text
from autotuned.rules.formula import Formula, Predictor, Term
from autotuned.rules.rule import Leaf, Loss, Node, Rule, Split, TunedSizes, pattern_of
from autotuned.rules.table import Table, tables
from autotuned.rules.waves import Waves
from autotuned.store.conditions import Conditions

FORMULAS = (
    Formula(0, {"M": 16, "N": 64}, (Term(1.5), Term(0.002, ("M", "N")), Term(3e-05, ("M",), 132))),
    Formula(2, {"M": 128}, (Term(2.25), Term(0.5, (), 1))),
)
CONTEXT = {"triton": "3.9.0"}
PATTERN = pattern_of({"values": {"M": 8, "N": 512}, "tensors": {}, "none": []}, {"M": "M", "N": "N"})
FORMS = tuple(json.loads(synthetic.form_of((m, 64, 32, 4, 3))) for m in (16, 64, 128))
GOOD = Loss(30, 0.004, 0.03, 0.02)
PREDICTING = Rule(
    PATTERN, {"M": (1, 4096), "N": (512, 512)}, "M", (TunedSizes((512,), ((1, 4096),)),), FORMS, Conditions(),
    Node(Split(("M",), False, 96), Leaf(None, 30, GOOD), Leaf(1, 40, GOOD)), times=FORMULAS,
)  # fmt: skip


def us(formula: Formula, sizes: dict[str, int]) -> float:
    """As it is documented."""
    tiles = math.prod(-(-sizes[name] // tile) for name, tile in formula.tiles.items())
    waves = lambda term: -(-tiles // term.processors) if term.processors else 1
    return sum(term.number * math.prod(sizes[name] for name in term.names) * waves(term) for term in formula.terms)


@pytest.mark.parametrize("sizes", list(itertools.product((1, 96, 2**40), (1, 512, 2**62))), ids=str)
def test_the_fastest_is_the_one_with_the_least_sum(sizes: tuple[int, int]) -> None:
    given = dict(zip("MN", sizes))
    least = min(FORMULAS, key=lambda one: us(one, given))
    config, time = Predictor(["M", "N"], FORMULAS).fastest(sizes)
    assert config == least.config and time == pytest.approx(us(least, given))


@pytest.mark.parametrize("sizes", [(0, 0), (-5, 3), (0, 2**63)], ids=str)
def test_sizes_of_nothing_have_an_answer(sizes: tuple[int, int]) -> None:
    assert Predictor(["M", "N"], FORMULAS).fastest(sizes)[0] in (0, 2)


def test_a_time_that_is_no_number_is_no_answer() -> None:
    most = 2**200  # no call has such a size, but many sizes may make such a product
    wide = PREDICTING.replace(
        times=(Formula(0, {"M": 1}, (Term(1e99, ("M",) * 8),)),), sizes={"M": (1, most), "N": (1, 512)}
    )
    known = wide.replace(tuned=(TunedSizes((512,), ((1, most),)),), tree=Leaf(None, 30, GOOD))
    assert known.config((96, 512), 0.05) == 0
    assert known.fastest((most, 512)) == (None, math.inf) and known.config((most, 512), 0.05) is None
    answer = known.answer((most, 512), 0.05)
    assert (answer.config, answer.bound) == (None, None)


def written(**changed: object) -> dict:
    data = json.loads("\n".join(text.lines(PREDICTING, CONTEXT)))
    return {**data, **changed}


def test_formulas_are_read_as_they_were_written_one_a_line() -> None:
    assert text.load_rule(written(), "rules[0]") == (CONTEXT, PREDICTING)
    lines = [line for line in "\n".join(text.lines(PREDICTING, CONTEXT)).splitlines() if '"us"' in line]
    assert [json.loads(line.strip(" ],"))["us"] for line in lines] == [
        "1.5 + 0.002 * M * N + 3e-05 * M * waves(132)", "2.25 + 0.5 * waves(1)",
    ]  # fmt: skip


def test_formulas_over_what_a_callable_in_key_says_are_read_as_they_were_written() -> None:
    """Its name in a key ends in parentheses, as `waves(132)` does."""
    pattern = pattern_of({"values": {"twice()": 8, "N": 512}, "tensors": {}, "none": []}, {"twice()": "M", "N": "N"})
    named = {"M": "twice()", "N": "N"}
    times = tuple(
        one.replace(
            tiles={named[name]: tile for name, tile in one.tiles.items()},
            terms=tuple(term.replace(names=tuple(map(named.get, term.names))) for term in one.terms),
        )
        for one in FORMULAS
    )
    call = json.loads(json.dumps(pattern).replace('"size": "M"', '"size": "twice()"'))
    tree = Node(Split(("twice()",), False, 96), Leaf(None, 30, GOOD), Leaf(1, 40, GOOD))
    rule = PREDICTING.replace(
        call=call, sizes={"twice()": (1, 4096), "N": (512, 512)}, along="twice()", times=times, tree=tree
    )
    written = "\n".join(text.lines(rule, CONTEXT))
    assert "3e-05 * twice() * waves(132)" in written
    assert text.load_rule(json.loads(written), "here") == (CONTEXT, rule)


def test_the_answer_names_the_fastest_and_its_time() -> None:
    config, time = PREDICTING.fastest((96, 512))
    assert PREDICTING.config((96, 512), 0.05) == config == 2
    assert (
        f"M <= 96, the fastest by its formulas ({time:.3g} us): at most 2.0%" in PREDICTING.answer((96, 512), 0.5).words
    )


def formula(**changed: object) -> list[object]:
    return [{"config": 0, "tiles": {"M": 16}, "us": "1.5 + 2 * M", **changed}]


NONSENSE = {
    "no terms": formula(us=""),
    "code": formula(us="__import__('os')"),
    "a negative number": formula(us="-1.5"),
    "no number": formula(us="M * N"),
    "a huge number": formula(us="1" * 400),
    "not a number": formula(us="nan"),
    "nine sizes": formula(us="1.5" + " * M" * 9),
    "a size that is not there": formula(us="1.5 * Q"),
    "waves of nothing": formula(us="1.5 * waves(0)"),
    "number for text": formula(us=1.5),
    "a tile of nothing": formula(tiles={"M": 0}),
    "a tile of another size": formula(tiles={"Q": 16}),
    "a config that is not there": formula(config=3),
    "one more": formula(more=1),
    "a text": "1.5",
}


@pytest.mark.parametrize("times", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused_with_its_place(times: object) -> None:
    data = written(times=times)
    del data["digest"]
    with pytest.raises(RecordError, match=r"rules\[0\]\.times"):
        text.load_rule(data, "rules[0]")


def test_a_leaf_cannot_ask_for_formulas_that_are_not_there() -> None:
    data = written()
    del data["times"], data["digest"]
    with pytest.raises(RecordError, match=r"rules\[0\]\.tree\.then\.config"):
        text.load_rule(data, "rules[0]")


def waves_table(pairs: object, steps: int = 40, processors: int = 8) -> Table:
    """Configs whose time is that of their waves: which is best changes from wave to wave."""
    configs = [synthetic.form_of((m, n, 32, 4, 3)) for m, n in ((32, 64), (64, 256), (128, 128), (256, 64))]
    calls = []
    for m, (n, k) in itertools.product([round(20 * 1.15**number) for number in range(steps)], pairs):
        times = {}
        for config in configs:
            parameters = json.loads(config)["kwargs"]
            tiles = -(-m // parameters["BM"]) * -(-n // parameters["BN"])
            tile = parameters["BM"] * parameters["BN"] + 4096  # small ones take longer than their share
            times[config] = 2.0 + -(-tiles // processors) * k * tile * 1e-6
        calls.append(({"values": {"M": m, "N": n, "K": k}, "tensors": {}}, times))
    [(found, _)] = tables(calls, processors)
    return found


PAIRS = ((512, 256), (1024, 512), (2048, 256), (768, 1024), (1536, 512))


def test_a_kernel_of_waves_is_found_with_its_tiles_and_serves_unseen_pairs() -> None:
    table = waves_table(PAIRS)
    found = fit.fit(table, 0.05)
    rule = found.rule()
    assert found.why_not == "" and found.served > 0.9
    assert rule.leaves[0].config is None and len(rule.leaves) == 1
    for one in rule.times:
        parameters = rule.configs[one.config]["kwargs"]
        assert dict(one.tiles) == {"M": parameters["BM"], "N": parameters["BN"]}
    new = waves_table(((1280, 512), (1792, 768)))
    for sizes, times in zip(new.sizes, new.times):
        place = rule.config(sizes, 0.05)
        assert place is not None and times[found.configs[place]] <= 1.05 * min(times.values())


def test_what_is_chosen_while_fitting_is_what_the_file_chooses() -> None:
    table = synthetic.Kernel(4).table(120)
    formulas, picks = Waves(table).fitted(np.arange(120), range(12))
    predictor = Predictor(list(table.names), formulas)
    assert [predictor.fastest(sizes)[0] for sizes in table.sizes] == picks.tolist()


def test_a_config_that_was_not_measured_for_some_call_has_no_formula() -> None:
    table = waves_table(PAIRS)
    gone = table.configs[0]
    times = [{name: us for name, us in some.items() if name != gone or row} for row, some in enumerate(table.times)]
    some = Waves(Table(table.names, table.sizes, times, table.pattern, table.processors))
    rows = np.arange(len(table))
    assert gone not in [table.configs[one.config] for one in some.fitted(rows, range(4))[0]]
    assert some.fitted(rows, [0]) == ([], None)


def test_another_size_is_known_as_far_from_the_tuned_ones_as_it_was_left_out_and_at_most_twice() -> None:
    table = waves_table(((1024, 100), (1536, 100), (2048, 300), (12288, 900)))
    limits = folds.limits(table)
    assert limits["N"] == (512, 2 * 12288)
    assert limits["K"] == (50, 1800)  # 900 was a factor of 3 from the next
    assert limits["M"] == (min(table.steps), max(table.steps))
    few = waves_table(((1024, 100), (2048, 300)))
    assert folds.limits(few)["N"] == (1024, 2048)  # no combination is left out of so few
    out = {table.sizes[row][table.names.index("N")] for gone, _ in folds.across(table) for row in gone}
    assert out == {1024, 1536, 2048}  # 12288 would not be served from the others


def test_formulas_over_many_sizes_have_no_products() -> None:
    names = tuple("ABCDEF")
    sizes = [tuple(number + place for place in range(6)) for number in range(30)]
    table = Table(names, sizes, [{"{}": 1.0, '{"kwargs":{"X":16}}': 2.0}] * 30)
    formulas, picks = Waves(table).fitted(np.arange(30), [0, 1])
    assert set(picks) == {table.configs.index("{}")} and all(
        len(term.names) <= 1 for one in formulas for term in one.terms
    )
