"""Tests of `better`: which of two records of a key stays."""

import pytest
from fakes import FakeConfig, form, make_key

from autotuned.store import better
from autotuned.store.record import QUALITIES, Quality, Timing, TuningRecord

SMALL, LARGE = form(FakeConfig({"BLOCK": 64})), form(FakeConfig({"BLOCK": 128}))


@pytest.mark.parametrize("quality", QUALITIES)
def test_a_measured_choice_is_better_than_one_of_unknown_quality(quality: Quality) -> None:
    measured = TuningRecord(make_key(), LARGE, 10.0, quality, (Timing(LARGE, 10.0, 10.0, 10.0, 40),))
    imported = TuningRecord(make_key(), SMALL, 9.0, None, ())
    assert better.merged(imported, measured) == better.merged(measured, imported) == measured
