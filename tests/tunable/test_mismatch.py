"""Tests of `fit`."""

from typing import Any

import pytest
from fakes import FakeConfig, by_identity, form

from autotuned.tunable.mismatch import misfit

LIVE = by_identity(FakeConfig({"M": 64, "ACC": True, "S": 0.5}), FakeConfig({"M": 128, "ACC": False, "S": 1.5}))
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "a name that is none": ({"M": 64, "ACC": True, "S": 0.5, "N": 1}, "no config of this kernel sets 'N'. Arguments"),
    "a missing name": ({"M": 64, "ACC": True}, "it does not set 'S'"),
    "text": ({"M": "64", "ACC": True, "S": 0.5}, "M: expected int such as 64, got str '64'"),
    "a number for a bool": ({"M": 64, "ACC": 1, "S": 0.5}, "ACC: expected bool such as True, got int 1"),
    "an int for a float": ({"M": 64, "ACC": True, "S": 1}, "S: expected float such as {'float': "),
    "another value": ({"M": 32, "ACC": True, "S": 0.5}, "it is not among the 2 configs of this call"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_nearest_reason_is_given(name: str) -> None:
    values, reason = CASES[name]
    text = misfit(form(FakeConfig(values)), LIVE)
    assert text.partition(": ")[2].startswith(reason)


def test_another_option_is_another_config() -> None:
    found = misfit(form(FakeConfig({"M": 64, "ACC": True, "S": 0.5}, num_warps=8)), LIVE)
    assert "num_warps=8" in found
    assert "it is not among the 2 configs" in found


def test_where_nothing_is_live_that_is_said() -> None:
    assert misfit(form(FakeConfig({"M": 64})), {}).endswith("the call has no config that launches")
