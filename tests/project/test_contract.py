"""The contract in docs/contract.md, held against the tests: each MUST and each SHOULD has tests that carry its number."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "contract.md").read_text()
ROWS = dict(re.findall(r"^\| ([MSC]\d+) \| (.+) \|$", PAGE, re.MULTILINE))
MUST, SHOULD, CANNOT = ([number for number in ROWS if number[0] == kind] for kind in "MSC")
ALL = {"triton", "seeded", "beside", "replaced", "autotuned"}
# Names of tests/support/subjects.py and of the tests themselves; what is none of these is a list of names.
GROUPS = {"subjects.SUBJECTS": ALL, "subjects.INSTALLED": {"seeded", "beside", "replaced"},
          "subjects.OURS": ALL - {"triton"}, "DECORATED": {"replaced", "autotuned"}}  # fmt: skip


def subjects_of(test):
    """Which tuners a test runs against."""
    if "subject" not in {argument.arg for argument in test.args.args} | {"subject"} & fixtures(test):
        return set()
    for decorator in map(ast.unparse, test.decorator_list):
        if decorator in GROUPS:
            return GROUPS[decorator]
        if decorator.startswith("pytest.mark.subjects("):
            inside = decorator.removeprefix("pytest.mark.subjects(")[:-1]
            return GROUPS.get(inside) or set(ast.literal_eval(inside))
    return ALL


def fixtures(test):
    """Fixtures that bring a subject with them; all of tests/upstream calls them so."""
    return {"subject"} if {"make", "kernel", "launch"} & {argument.arg for argument in test.args.args} else set()


def numbered():
    """Number -> the tests that carry it, each with the tuners it runs against."""
    found = {}
    for path in sorted((TESTS / "upstream").glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            match = re.match(r"test_([msc]\d+)_", getattr(node, "name", ""))
            if match:
                found.setdefault(match[1].upper(), {})[node.name] = subjects_of(node)
    return found


FOUND = numbered()


def test_the_page_lists_the_whole_contract():
    assert [len(MUST), len(SHOULD), len(CANNOT)] == [15, 9, 8]
    assert [[f"{kind}{i + 1}" for i in range(len(of))] for kind, of in zip("MSC", (MUST, SHOULD, CANNOT))] == [
        MUST,
        SHOULD,
        CANNOT,
    ]


@pytest.mark.parametrize("number", MUST)
def test_each_must_is_tested_for_install_and_for_autotune(number):
    tested = set().union(*FOUND[number].values())
    assert {"seeded", "beside", "replaced", "autotuned"} <= tested, f"{number}: only for {sorted(tested)}"


@pytest.mark.parametrize("number", SHOULD)
def test_each_should_is_tested(number):
    assert FOUND.get(number), f"no test in tests/upstream is called test_{number.lower()}_..."


@pytest.mark.parametrize("number", CANNOT)
def test_what_cannot_be_done_says_what_to_do_instead(number):
    what, instead = ROWS[number].split(" | ")
    assert what.strip() and instead.strip()


def test_no_test_carries_a_number_that_the_page_does_not_have():
    assert set(FOUND) <= set(ROWS)
