"""All tuners of a process are visited while other threads decorate kernels."""

from meanwhile import interrupted
from stepped import CONFIGS, make

import autotuned
from autotuned.resolve import tuner


def test_a_mode_begins_while_another_thread_decorates():
    def decorate():
        functions.append(make(lambda n, step: step, key=["n"])(CONFIGS))

    functions = []
    for _ in range(3):
        decorate()
    assert len(interrupted(tuner.live, decorate)) >= 3
    interrupted(lambda: tuner.drop_bound(), decorate)
    with autotuned.mode("serve"):
        assert functions[-1](100) is not None
