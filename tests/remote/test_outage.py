"""Tests of `outage`: which failures of a shared store are one."""

import pytest

from autotuned.remote.outage import Outage


@pytest.mark.parametrize("kinds", [["read", "write"], ["write", "read"]], ids=" ".join)
def test_a_store_that_answers_nothing_is_one_failure(kinds: list[str]) -> None:
    outage = Outage()
    assert {outage.about(kind) for kind in kinds} == {"away"}
    with outage.reading():
        pass
    with pytest.raises(ConnectionError), outage.reading():
        raise ConnectionError
    assert {outage.about(kind) for kind in kinds} == {"away"}


def test_a_store_that_answers_and_refuses_writes_is_another_one() -> None:
    outage = Outage()
    with outage.reading():
        assert outage.about("write") == "away"  # not answered yet
    assert (outage.about("write"), outage.about("read")) == ("refuses", "away")
