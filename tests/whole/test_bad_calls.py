"""Bad calls and grids: an error that says what was expected, what came, and what to do; the same when something was bound."""

import sys

import numpy as np
import pytest
import torch
from doubled import ARGUMENTS, CONFIGS, DEVICE, double
from paths import quick
from stepped import STEPS, halve
from stored import says

import autotuned
from autotuned import autotune
from autotuned.errors import (
    AutotunedError,
    CallError,
)

# -- calls -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["cold", "bound"])
def kernel(request, xy):
    """Errors are the same before and after something was bound."""
    tuned = autotune(CONFIGS, do_bench=quick)(double)
    if request.param == "bound":
        tuned[(4,)](*xy, 50)
    return tuned


@pytest.mark.parametrize(
    ("args", "kwargs", "parts"),
    [
        (2, {}, ["argument 'n_cols' is missing. Expected: x_ptr, y_ptr, n_cols, FACTOR."]),
        (0, {"n_cols": 50}, ["argument 'x_ptr' is missing"]),
        (2, {"n_cols": 50, "y_ptr": None}, ["argument 'y_ptr' was given twice, by position and by name"]),
        (
            2,
            {"n_cols": 50, "n_rows": 5},
            ["got an unexpected argument 'n_rows' by name. Did you mean 'n_cols'?", ARGUMENTS],
        ),
    ],
    ids=["missing", "first-missing", "twice", "unexpected"],
)
def test_arguments(kernel, xy, args, kwargs, parts):
    with pytest.raises(CallError) as caught:
        kernel[(4,)](*xy[:args], **kwargs)
    says(caught, "doubled.double`: ", *parts)
    assert isinstance(caught.value, TypeError)


def test_too_many_arguments():
    function = autotune(STEPS, do_bench=quick)(halve)
    for _ in range(2):
        with pytest.raises(CallError) as caught:
            function(np.ones(3), 3, 5)
        says(caught, "expected at most 2 positional arguments, got 3")
        function(np.ones(3), 3)


def test_too_many_arguments_of_a_kernel(kernel, xy):
    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        kernel[(4,)](*xy, 50, 16, 2, 7)


@pytest.mark.parametrize("value", [16, None], ids=repr)
def test_a_tuned_name_at_the_call(kernel, xy, value):
    with pytest.raises(ValueError) as caught:
        kernel[(4,)](*xy, 50, BLOCK=value)
    says(
        caught,
        "Conflicting meta-parameters: BLOCK. Make sure that you don't re-define auto-tuned symbols.",
        "doubled.double`: its configs set them",
    )


def test_a_tuned_name_at_the_call_of_a_function():
    function = autotune(STEPS, do_bench=quick)(halve)
    for _ in range(2):
        with pytest.raises(ValueError, match="Conflicting meta-parameters: step"):
            function(np.ones(3), 3, step=1)
        function(np.ones(3), 3)


def test_no_grid(kernel, xy):
    with pytest.raises(CallError) as caught:
        kernel.run(*xy, 50)
    says(caught, "expected a grid, got none. Write kernel[grid](...), or .run(..., grid=grid)")


@pytest.mark.parametrize("grid", [5, None], ids=repr)
def test_a_grid_that_is_none(kernel, xy, grid):
    """The type of error is Triton's, whatever was bound."""
    with pytest.raises((TypeError, AssertionError, RuntimeError, ValueError, AutotunedError)):
        kernel[grid](*xy, 50)


# -- aliases, and grids -----------------------------------------------------------------------------------------------


def test_an_accumulator_that_is_an_input(xy):
    x, _ = xy
    tuned = autotune(CONFIGS, reset_to_zero=["y_ptr"], do_bench=quick)(double)
    with pytest.raises(ValueError) as caught:
        tuned[(4,)](x, x, 50)
    says(caught, "reset_to_zero names 'y_ptr', which shares memory with argument 'x_ptr'", "Pass a separate tensor")
    with pytest.raises(ValueError, match="reset_to_zero names 'y_ptr'"):
        tuned[(4,)](x, x[10:], 50)
    assert torch.equal(x, torch.ones_like(x))


BAD_GRIDS = [(4, 1, 1, 1), 4, 4.0, (4.0,), None, "4", lambda meta: 4, lambda meta: (4.0,), lambda meta: (4, 1, 1, 1)]


@pytest.mark.skipif(DEVICE == "cuda", reason="Triton launches a fourth size without a word")
@pytest.mark.parametrize("tuned_before", [False, True])
@pytest.mark.parametrize("configs", [CONFIGS[:1], CONFIGS], ids=["one", "two"])
@pytest.mark.parametrize("grid", BAD_GRIDS, ids=range(len(BAD_GRIDS)))
def test_what_is_no_grid(xy, grid, configs, tuned_before):
    kernel = autotune(configs, do_bench=quick)(double)
    if tuned_before:
        kernel[(4,)](*xy, 50)
    with pytest.raises(CallError, match=r"`.*double`: grid: expected a tuple of 1 to 3 integers, or a callable"):
        kernel[grid](*xy, 50)


@pytest.mark.parametrize("is_bound", [False, True], ids=["never launched", "launched before"])
def test_a_grid_that_launches_its_own_kernel_ends_as_in_python(xy, is_bound):
    """To find out whether the grid is at fault it was called again at each depth: 2 to the power of all of them."""
    asked = []

    def grid(meta):
        asked.append(len(asked))
        return kernel[grid](*xy, 50)

    kernel = autotune(CONFIGS[:1], do_bench=quick)(double)
    if is_bound:
        kernel[(4,)](*xy, 50)
    with pytest.raises((RecursionError, TypeError)):  # `inspect`, in the interpreter, makes the one of the other
        kernel[grid](*xy, 50)
    assert len(asked) <= sys.getrecursionlimit()


@pytest.mark.parametrize("configs", [CONFIGS[:1], CONFIGS], ids=["one", "two"])
@pytest.mark.parametrize("mode", ["auto", "serve", "off"])
def test_a_grid_callable_that_asks_for_an_unknown_name(xy, configs, mode):
    kernel = autotune(configs, do_bench=quick)(double)
    for _ in range(2):
        with autotuned.mode(mode), pytest.raises(CallError) as caught:
            kernel[lambda meta: (meta["BLOK"],)](*xy, 50)
        says(caught, "doubled.double`: grid: expected the callable to use names", "got 'BLOK'")
        says(caught, "Did you mean 'BLOCK'?", "Arguments are: x_ptr, y_ptr, n_cols, FACTOR, BLOCK, num_warps")


@pytest.mark.parametrize("error", [KeyError("a table of its own"), IndexError("x"), ZeroDivisionError()], ids=repr)
def test_a_grid_callable_that_raises_raises_its_own_error(xy, error):
    def grid(meta):
        raise error

    with pytest.raises(type(error)) as caught:
        autotune(CONFIGS, do_bench=quick)(double)[grid](*xy, 50)
    assert caught.value is error


@pytest.mark.parametrize("configs", [CONFIGS[:1], CONFIGS], ids=["one", "two"])
def test_a_call_without_a_grid(xy, configs):
    kernel = autotune(configs, do_bench=quick)(double)
    for _ in range(2):
        with pytest.raises(CallError) as caught:
            kernel(*xy, 50)
        says(caught, "doubled.double`: expected a grid, got none. Write kernel[grid](...)")
        kernel[(4,)](*xy, 50)
