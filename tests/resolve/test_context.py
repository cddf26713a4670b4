"""A key's context holds what the code uses at this call, also what only this process knows."""

import pytest
from stepped import CONFIGS

from autotuned import autotune

HELD = (one for one in ())  # has no text


@pytest.mark.parametrize("whole", [True, False], ids=["of a key", "without the toolchain"])
def test_another_object_is_another_context_at_the_first_call_with_it(monkeypatch, whole):
    def uses(n, *, step):
        return HELD

    tuner = autotune(CONFIGS, key=["n"])(uses).tuner

    def context():
        call, made = tuner.call((1,), {}, None), tuner.chooser._context
        return dict(made.of(call)[0] if whole else made.without_toolchain(tuner.tunable.device(call)))

    first = context()
    assert context() == first
    monkeypatch.setitem(uses.__globals__, "HELD", (one for one in ()))
    second = context()
    assert second != first and context() == second
