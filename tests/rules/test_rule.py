"""A rule as a file holds it: read back as it was, answered in words, and refused where it says what cannot be."""

import copy
import json

import pytest
import synthetic

from autotuned.errors import RecordError
from autotuned.key.sizes import shape_of
from autotuned.rules import rule, text
from autotuned.rules.rule import Leaf, Loss, Node, Rule, Split, TunedSizes
from autotuned.store.conditions import Conditions

GOOD, POOR = Loss(30, 0.004, 0.03, 0.02), Loss(25, 0.05, 0.3, 0.2)
FORMS = tuple(json.loads(synthetic.form_of((m, 64, 32, 4, 3))) for m in (16, 64, 128))
PATTERN = rule.pattern_of(
    synthetic.call_of(8, 512, 256),
    {"M": "M", "N": "N", "a.shape[0]": "M", "b.shape[1]": "N", "c.shape[0]": "M", "c.shape[1]": "N"},
)
TREE = Node(
    Split(("M",), False, 96),
    Leaf(0, 30, GOOD, POOR),
    Node(
        Split(("M", "N"), False, 1 << 20),
        Leaf(1, 40, GOOD),
        Node(Split(("M",), True, 64), Leaf(2, 9), Leaf(1, 9, POOR)),
    ),
)
SMALL, LARGE = (1, 1100), (3000, 4096)
TUNED = TunedSizes((512,), (SMALL, LARGE)), TunedSizes((1024,), ((1, 200),))
RULE = Rule(PATTERN, {"M": (1, 4096), "N": (512, 8192)}, "M", TUNED, FORMS, Conditions(), TREE)
CONTEXT = {"triton": "3.9.0"}


def values(m: int, n: int, k: int = 256):
    return RULE.values([size for _, size in shape_of(synthetic.call_of(m, n, k)).sizes])


def written() -> dict:
    return json.loads("\n".join(text.lines(RULE, CONTEXT)))


def test_a_rule_is_read_as_it_was_written():
    assert text.load_rule(written(), "rules[0]") == (CONTEXT, RULE)


def test_git_sees_one_line_for_each_part_of_the_tree():
    lines = text.lines(RULE, CONTEXT)
    assert sum('"if":' in line for line in lines) == 3 and sum('"calls":' in line for line in lines) == 4 + 0
    assert max(map(len, lines)) < 500


@pytest.mark.parametrize(
    ("split", "words", "holding", "failing"),
    [
        (Split(("M",), False, 96), "M <= 96", (96,), (97,)),
        (Split(("M", "N"), True, 64), "M * N % 64 == 0", (8, 8), (8, 9)),
        (Split(("M", "N"), False, 6, (128, 256)), "M/128 * N/256 <= 6", (257, 512), (385, 512)),
        (Split(("M", "N"), False, 75, (128, 1), 132), "fill(M/128 * N, 132) <= 75%", (128, 99), (129, 66)),
        (Split(("M",), False, 50, (64,), 4), "fill(M/64, 4) <= 50%", (128,), (129,)),
    ],
    ids=str,
)
def test_a_split_is_text_that_is_read_back_and_counts_tiles_rounded_up(split, words, holding, failing):
    assert str(split) == words and text.split_of(words, "tree.if") == split
    assert split.holds(holding) and not split.holds(failing)


@pytest.mark.parametrize("sizes", [(0,), (-5,)], ids=str)
def test_sizes_that_make_no_tile_fill_no_wave(sizes):
    assert Split(("M",), False, 0, (64,), 132).holds(sizes)


@pytest.mark.parametrize(
    "words", ["fill(M, 0) <= 75%", "fill(M, 132) <= 75", "M <= 3%", "fill() <= 3%", "fill(M) <= 3%"]
)
def test_what_is_no_split_is_refused(words):
    with pytest.raises(RecordError, match="a split such as"):
        text.split_of(words, "tree.if")


def test_a_rule_is_for_calls_with_its_rest_and_its_equal_sizes():
    assert shape_of(synthetic.call_of(7, 1024, 256)).rest == RULE.rest
    assert values(7, 1024) == (7, 1024)
    assert values(7, 1024, 512) is None  # K never differed
    odd = synthetic.call_of(7, 1024, 256)
    odd["tensors"]["a"]["shape"][0] = 8
    assert RULE.values([size for _, size in shape_of(odd).sizes]) is None


@pytest.mark.parametrize(
    ("sizes", "within", "config"),
    [
        ((96, 512), 0.05, 0),
        ((96, 777), 0.05, None),  # of an N that was never tuned: another bound
        ((96, 777), 0.25, 0),
        ((97, 1024), 0.05, 1),
        ((97, 1024), 0.01, None),
        ((97, 2048), 0.5, None),  # no bound for unseen pairs
        ((4096, 512), 0.5, None),  # few calls
        ((4095, 512), 0.5, 1),
        ((4097, 512), 0.5, None),
        ((0, 512), 0.5, None),
        ((2000, 512), 0.5, None),  # in a gap of all that was tuned
        ((90, 1024), 0.05, 0),
        ((150, 1024), 0.05, 1),
        ((300, 1024), 0.5, None),  # tuned for another N only, and nothing is known across
    ],
    ids=str,
)
def test_a_rule_serves_where_its_bound_is_within_what_is_allowed(sizes, within, config):
    assert RULE.config(sizes, within) == config
    answer = RULE.answer(sizes, within)
    assert (answer.bound is not None and answer.bound <= within) == (config is not None)


def test_the_answer_says_the_path_and_the_bound():
    assert RULE.answer((97, 512), 0.05).words == (
        "M > 96, M * N <= 1048576: at most 2.0% of loss in 95 of 100 calls (30 left-out calls: 0.4% on average)"
    )
    assert "above the allowed 5.0%" in RULE.answer((96, 777), 0.05).words
    assert (
        RULE.answer((4096, 512), 0.05).words == "M > 96, M * N > 1048576, M % 64 == 0: too few calls to bound the loss"
    )
    aligned = RULE.replace(multiples={"M": 64, "N": 512})
    assert aligned.config((1000, 512), 0.5) is None and aligned.config((960, 512), 0.05) == 1
    assert aligned.answer((1000, 512), 0.5).words == "M=1000 is not a multiple of 64, as tuned values are"
    assert (
        RULE.answer((2000, 512), 0.05).words
        == "M=2000 is in a gap between tuned values: 1 to 200, 1 to 1100, 3000 to 4096"
    )
    assert RULE.answer((5000, 512), 0.05).words == "M=5000 is outside the tuned range 1 to 4096"


def edited(change):
    data = copy.deepcopy(written())
    del data["digest"]  # it would tell as well
    change(data)
    return data


NONSENSE = {
    "no test": lambda data: data["tree"].update({"if": "M < 3"}),
    "code": lambda data: data["tree"].update({"if": "__import__('os') <= 3"}),
    "a huge number": lambda data: data["tree"].update({"if": f"M <= {'9' * 99}"}),
    "another size": lambda data: data["tree"].update({"if": "Q <= 3"}),
    "no number": lambda data: data["tree"].update({"if": 3}),
    "no else": lambda data: data["tree"].pop("else"),
    "one more": lambda data: data["tree"].update({"maybe": {}}),
    "a config that is not there": lambda data: data["tree"]["then"].update({"config": 3}),
    "a negative config": lambda data: data["tree"]["then"].update({"config": -1}),
    "a negative bound": lambda data: data["tree"]["then"]["along"].update({"bound": -0.5}),
    "a bound in words": lambda data: data["tree"]["then"]["along"].update({"bound": "5%"}),
    "a list for a tree": lambda data: data.update({"tree": []}),
    "sizes that end before they begin": lambda data: data["sizes"].update({"M": [9, 1]}),
    "no sizes": lambda data: data.update({"sizes": {}}),
    "a size that is not in the call": lambda data: data["sizes"].update({"Z": [1, 9]}),
    "along nothing": lambda data: data.update({"along": "K"}),
    "multiples of nothing": lambda data: data["multiples"].update({"M": 0}),
    "multiples of another size": lambda data: data["multiples"].update({"K": 16}),
    "a size too many": lambda data: data["tuned"][0]["sizes"].update({"K": 2}),
    "a size too few": lambda data: data["tuned"][0]["sizes"].clear(),
    "a span of one": lambda data: data["tuned"][0]["along"].append([1]),
    "a span that ends before it begins": lambda data: data["tuned"][0]["along"].append([9, 1]),
    "no config": lambda data: data["configs"].__setitem__(0, {"BM": 3}),
    "text as a call": lambda data: data.update({"call": "any"}),
    "a shape of texts": lambda data: data["call"]["tensors"]["a"].update({"shape": ["M", 3]}),
}


@pytest.mark.parametrize("change", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused_with_its_place(change):
    with pytest.raises(RecordError, match=r"rules\[0\]|shape|values|tensor"):
        text.load_rule(edited(change), "rules[0]")


def test_a_limit_may_be_the_product_of_the_two_largest_sizes():
    most = str((2**63 - 1) ** 2)
    assert text.split_of(f"M * N <= {most}", "if").number == int(most)


def changed(change):
    data = copy.deepcopy(written())
    change(data)
    return data


MEANINGS = {
    "a config more before": lambda data: data["configs"].insert(0, {**FORMS[0], "num_warps": 8}),
    "configs in another order": lambda data: data["configs"].reverse(),
    "another limit": lambda data: data["tree"].update({"if": "M <= 97"}),
    "a smaller bound": lambda data: data["tree"]["then"]["along"].update({"bound": 0.001}),
    "a wider range": lambda data: data["sizes"].update({"M": [1, 9999]}),
    "another context": lambda data: data["context"].update({"triton": "3.9.1"}),
}


@pytest.mark.parametrize("change", MEANINGS.values(), ids=MEANINGS)
def test_a_rule_whose_lines_are_not_those_that_were_written_together_is_refused(change):
    with pytest.raises(RecordError, match=r"rules\[0\]\.digest: expected \w{16}, the digest of its lines"):
        text.load_rule(changed(change), "rules[0]")
    data = changed(change)
    del data["digest"]  # who edits a rule takes it out
    assert text.load_rule(data, "rules[0]")[1] is not None


def test_a_tree_without_end_is_refused():
    data = written()
    del data["digest"]
    for _ in range(40):
        data["tree"] = {
            "if": "M <= 3",
            "then": data["tree"],
            "else": data["tree"]["else"] if "else" in data["tree"] else data["tree"],
        }
    with pytest.raises(RecordError, match="levels"):
        text.load_rule(data, "rules[0]")
