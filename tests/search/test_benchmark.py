"""What a user's `do_bench` may answer, what comes of answers that say nothing, and who is told."""

import logging
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from fakes import FakeConfig as Config
from hypothesis import given
from hypothesis import strategies as st
from stepped import LAST, by_step, make, scale
from stored import records

import autotuned
from autotuned.errors import AllConfigsFailedError
from autotuned.search import benchmark

STEPS = [Config({"step": step}) for step in (8, 16, 32)]

TIMES = {
    "float": (1.5, [1500.0]),
    "int": (2, [2000.0]),
    "three": ([1.0, 0.5, 2.0], [1000.0, 500.0, 2000.0]),
    "tuple": ((1.0,), [1000.0]),
    "tiny": (1e-9, [1e-6]),
    "numpy scalar": (np.float32(0.5), [500.0]),
    "numpy integer": (np.int64(3), [3000.0]),
    "numpy array": (np.array([1.0, 2.0]), [1000.0, 2000.0]),
    "numpy 0-d": (np.array(1.0), [1000.0]),
    "list of numpy scalars": ([np.float64(1.0), np.float16(2.0)], [1000.0, 2000.0]),
    "torch scalar": (torch.tensor(0.25), [250.0]),
    "torch vector": (torch.tensor([1.0, 2.0]), [1000.0, 2000.0]),
    "list of torch scalars": ([torch.tensor(1.0)], [1000.0]),
    "fraction": (Fraction(1, 2), [500.0]),
}
NO_TIMES = {
    "zero": 0.0, "one zero": [1.0, 0.0, 1.0], "negative": -1.0, "negative zero": -0.0, "nan": math.nan,
    "infinity": math.inf, "true": True, "numpy true": np.True_, "torch true": torch.tensor(True), "text": "1.0",
    "text in a list": ["1.0"], "bytes": b"1", "none": None, "none in a list": [1.0, None], "empty": [], "empty tuple": (),
    "empty array": np.array([]), "empty tensor": torch.tensor([]), "nested": [[1.0]], "matrix": np.ones((2, 2)),
    "array in a list": [np.ones(2)], "complex": 1j, "dict": {"median": 1.0}, "set": {1.0}, "generator": iter([1.0]),
    "huge": 10**400, "decimal": Decimal(1), "object": object(), "nan in an array": np.array([np.nan]),
}  # fmt: skip


@pytest.mark.parametrize("name", TIMES)
def test_answers_that_are_times(name):
    answer, microseconds = TIMES[name]
    assert benchmark.microseconds(answer) == pytest.approx(microseconds)
    assert all(type(time) is float for time in benchmark.microseconds(answer))


@pytest.mark.parametrize("name", NO_TIMES)
def test_answers_that_are_none(name):
    with pytest.raises(
        ValueError, match=r"^expected milliseconds above 0, one number or a list of them, got .*Return "
    ):
        benchmark.microseconds(NO_TIMES[name])


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=6))
def test_whatever_is_answered_there_are_times_or_an_error(answer):
    try:
        times = benchmark.microseconds(answer)
    except ValueError:
        return
    assert times
    assert all(type(time) is float and time > 0 for time in times)


def answering(answer, of_step=8):
    """A benchmark that answers so for one step, and well for the others."""

    def bench(call, quantiles):
        call()
        return answer if LAST.step == of_step else [float(LAST.step)] * 3

    return bench


@pytest.mark.parametrize("name", NO_TIMES)
def test_a_config_without_a_time_is_left_out_with_a_word(name, caplog):
    caplog.set_level(logging.WARNING, "autotuned")
    function = make(scale, do_bench=answering(NO_TIMES[name]))(STEPS)
    function(np.ones(50), 50)
    assert LAST.step == 16
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("`stepped.scale`: do_bench for step=8: expected milliseconds above 0, ")
    assert line.endswith("raise if a config cannot be timed. The config is left out.")
    [record] = records()
    assert [timing.status for timing in record.timings] == ["failed", "ok", "ok"]
    assert "do_bench for step=8: expected milliseconds above 0" in record.timings[0].error


def test_where_no_config_has_a_time_the_error_says_what_do_bench_gave():
    function = make(scale, do_bench=lambda call, quantiles: call())(STEPS)
    with pytest.raises((AllConfigsFailedError, ValueError), match="do_bench for step=.*got None"):
        function(np.ones(50), 50)
    assert records() == []


@pytest.mark.parametrize("time", [1.0, 1e-9, 1000.0])
@pytest.mark.parametrize("form", [lambda time: time, lambda time: [time] * 3], ids=["one", "three"])
def test_one_time_for_all_is_stored_as_unresolved_with_one_warning(time, form, caplog):
    caplog.set_level(logging.WARNING, "autotuned")
    measuring = [True]
    bench = lambda call, quantiles: (call() or form(time)) if measuring[0] else pytest.fail("measured again")
    function = make(scale, do_bench=bench)(STEPS)
    for n in (50, 60):
        function(np.ones(n), n)
        assert LAST.step == 8
    assert [record.quality for record in records()] == ["unresolved"] * 2
    [line] = [record.getMessage() for record in caplog.records]
    assert line == (
        f"`stepped.scale`: expected do_bench to tell configs apart, got {time:g} ms for all. The untuned config is "
        "used; let do_bench time its argument."
    )
    measuring[0] = False
    again = make(scale, do_bench=bench)(STEPS)
    again(np.ones(50), 50)


@pytest.mark.parametrize(
    "times",
    [{8: 1.0, 16: 1.0, 32: 2.0}, {8: 1.0, 16: 1.0 + 1e-12, 32: 1.0}],
    ids=["two of three", "a hair apart"],
)
def test_times_that_differ_somewhere_are_ties(times, caplog):
    caplog.set_level(logging.WARNING, "autotuned")
    make(scale, do_bench=by_step(times))(STEPS)(np.ones(50), 50)
    assert records()[0].quality == "tied"
    assert caplog.records == []


def test_one_config_that_ran_has_nothing_to_be_told_from(caplog):
    caplog.set_level(logging.ERROR, "autotuned")

    def bench(call, quantiles):
        call()
        if LAST.step != 8:
            raise ValueError("too slow")
        return [1.0] * 3

    make(scale, do_bench=bench)(STEPS)(np.ones(50), 50)
    assert records()[0].quality == "ok"


# -- kernels that Triton tunes ------------------------------------------------------------------------------------------


def copy_all(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


@pytest.fixture(params=[False, True], ids=["seeded", "replaced"])
def installed(request):
    autotuned.install(replace=request.param)
    yield request.param
    autotuned.uninstall()


def theirs(*answers):
    """A kernel of Triton's tuner whose benchmark gives these answers, one a config."""
    left = list(answers)

    def bench(call, quantiles):
        call()
        return left.pop(0)

    configs = [triton.Config({"BLOCK": 16 << place}) for place in range(len(answers))]
    return triton.autotune(configs=configs, key=["n"], do_bench=bench)(triton.jit(copy_all))


def launch(kernel):
    x, y = torch.ones(32), torch.zeros(32)
    kernel[lambda meta: (triton.cdiv(32, meta["BLOCK"]),)](x, y, 32)
    assert (y == 1).all()
    return kernel.best_config.kwargs["BLOCK"]


@pytest.mark.parametrize("wrong", [0.0, [0.0] * 3, [-1.0] * 3, True], ids=repr)
def test_what_is_no_time_wins_and_is_stored_in_no_form_of_install(installed, wrong, caplog):
    caplog.set_level(logging.WARNING, "autotuned")
    if installed:  # this package calls the benchmark
        assert launch(theirs([2.0] * 3, wrong, [3.0] * 3)) == 16
        assert [timing.status for timing in records()[0].timings] == ["ok", "failed", "ok"]
    else:  # Triton compares what it was given: it may win there, and is not stored
        launch(theirs([2.0] * 3, [0.0] * 3, [3.0] * 3))
        assert records() == []
    assert any("do_bench for" in record.getMessage() for record in caplog.records)


def test_one_time_for_all_is_unresolved_there_too(installed, caplog):
    caplog.set_level(logging.WARNING, "autotuned")
    launch(theirs([2.0] * 3, [2.0] * 3))
    assert records()[0].quality == "unresolved"
    [line] = [record.getMessage() for record in caplog.records]
    assert "expected do_bench to tell configs apart, got 2 ms for each; Triton takes the first." in line


def test_infinity_is_tritons_word_for_a_failure(installed, caplog):
    caplog.set_level(logging.WARNING, "autotuned")
    assert launch(theirs([math.inf] * 3, [2.0] * 3)) == 32
    assert [timing.status for timing in records()[0].timings] == ["failed", "ok"]
    assert caplog.records == []


@pytest.mark.parametrize("first", [np.array([]), np.array([1.0, np.nan, 1.0]), torch.tensor([0.0, 1.0, 2.0])], ids=str)
def test_a_replaced_tuner_leaves_out_an_array_that_is_no_time(first, caplog):
    @triton.jit
    def twice(x, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + i, tl.load(x + i) * 2)

    answers = [first, np.array([2.0, 2.0, 2.0]).tolist()]

    def bench(call, quantiles):
        call()
        return answers.pop(0)

    autotuned.install(replace=True)
    try:
        configs = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})]
        kernel = triton.autotune(configs, key=[], do_bench=bench)(twice)
        kernel[lambda meta: (64 // meta["BLOCK"],)](torch.ones(64))
    finally:
        autotuned.uninstall()
    assert kernel.best_config.kwargs["BLOCK"] == 32
    assert "expected milliseconds above 0" in caplog.text
