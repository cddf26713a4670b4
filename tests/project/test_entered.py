"""How many files of the package a call enters (`bench/entered.py`): no more than when that was last brought down."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import entered  # noqa: E402
import forked  # noqa: E402

REACHED = {
    "hit": 1, "miss in the store": 20, "miss that searches": 43, "tune of two cases": 55, "warmup of one call": 35,
}  # fmt: skip


@pytest.mark.parametrize("kind", REACHED)
def test_a_call_enters_no_more_files_than_before(kind: str) -> None:
    files = entered.entered(kind, forked.run)
    assert 0 < len(files) <= REACHED[kind], files


def test_what_is_reached_is_within_the_limits_that_the_script_prints() -> None:
    assert {kind: most for kind, most in REACHED.items() if most > entered.AT_MOST[kind]} == {}
