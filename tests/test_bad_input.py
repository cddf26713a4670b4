"""Bad input of every kind: an error that says what was expected, what came, and what to do."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from paths import quick
from stepped import STEPS, halve
from stored import says
from triton import Config

import autotuned
from autotuned import autotune, store
from autotuned.errors import (
    ArgumentNameError,
    AutotunedError,
    CallError,
    ConfigError,
    DecorationError,
    PruningError,
)
from autotuned.key import KeySpec, call_part

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]


@triton.jit
def double(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr, FACTOR: tl.constexpr = 2):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n_cols) * FACTOR, mask=i < n_cols)


@pytest.fixture
def xy():
    return torch.ones(50, device=DEVICE), torch.zeros(50, device=DEVICE)


# -- names at decoration ---------------------------------------------------------------------------------------------

ARGUMENTS = "Arguments are: x_ptr, y_ptr, n_cols, BLOCK, FACTOR."


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"key": ["n_col"]}, ["key names no argument: 'n_col'. Did you mean 'n_cols'?", ARGUMENTS]),
        ({"key": ["zzz"]}, ["key names no argument: 'zzz'. Arguments are:"]),
        ({"key": [3]}, ["key names no argument: 3"]),
        ({"restore_value": ["y_pt"]}, ["restore_value names no argument: 'y_pt'. Did you mean 'y_ptr'?", ARGUMENTS]),
        ({"reset_to_zero": ["y"]}, ["reset_to_zero names no argument: 'y'", ARGUMENTS]),
        (
            {"restore_value": ["y_ptr"], "reset_to_zero": ["y_ptr"]},
            ["'y_ptr' is in both restore_value and reset_to_zero", "name it in one"],
        ),
    ],
    ids=["key", "key-far", "key-number", "restore", "zero", "both"],
)
def test_names_at_decoration(options, parts):
    with pytest.raises(ArgumentNameError) as caught:
        autotune(CONFIGS, **options)(double)
    says(caught, "test_bad_input.double`: ", *parts)
    assert isinstance(caught.value, ValueError)
    assert caught.value.kernel.endswith("test_bad_input.double")


@pytest.mark.parametrize("label", ["key", "restore_value", "reset_to_zero"])
@pytest.mark.parametrize("value", ["n_cols", 5], ids=["text", "number"])
def test_a_list_of_names_given_as_something_else(label, value):
    with pytest.raises(DecorationError) as caught:
        autotune(CONFIGS, **{label: value})(double)
    says(caught, f"{label}: expected a list of argument names, got {value!r}", f"Write {label}=[{value!r}]")
    assert isinstance(caught.value, TypeError)


def test_a_bucket_of_what_is_not_in_the_key():
    for key in (None, ["x_ptr"]):
        with pytest.raises(DecorationError) as caught:
            autotune(CONFIGS, key=key, bucket={"n_cols": autotuned.pow2})(double)
        says(caught, "bucket: 'n_cols' must be listed in key=[...]")


def test_a_toolchain_of_a_kernel():
    """It would be left out of account."""
    with pytest.raises(DecorationError) as caught:
        autotune(CONFIGS, toolchain=["numpy"])(double)
    says(caught, "toolchain: expected none for a kernel", "got ['numpy']", "goes into version=")


# -- configs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configs", "parts"),
    [
        ([Config({"BLOK": 16})], ["a config sets 'BLOK', which is no parameter of the kernel. Did you mean 'BLOCK'?"]),
        ([{"BLOCK": 16}], ["configs: expected triton.Config objects, got dict", "Write Config({'BLOCK': 64}"]),
        ([None], ["configs: expected triton.Config objects, got NoneType"]),
        (5, ["configs: expected a list of triton.Config, or a callable returning one, got int"]),
        (Config({"BLOCK": 16}), ["configs: expected a list of triton.Config", "got Config"]),
        (
            [Config({"BLOCK": 16}, pre_hook=print), Config({"BLOCK": 16}, pre_hook=repr)],
            ["two configs have the same values", "different pre_hooks", "Remove one, or give them different values"],
        ),
    ],
    ids=["unknown-parameter", "dict", "none", "number", "one-config", "same-values-other-hook"],
)
def test_configs(configs, parts):
    with pytest.raises(ConfigError) as caught:
        autotune(configs)(double)
    says(caught, "test_bad_input.double`: ", *parts)


def test_a_default_that_sets_no_parameter():
    with pytest.raises(ConfigError, match="a config sets 'BLOK', which is no parameter of the kernel"):
        autotune(CONFIGS, default=Config({"BLOK": 16}))(double)


@pytest.mark.parametrize(
    "default", [5, lambda **arguments: 5, lambda **arguments: [CONFIGS[0]]], ids=["5", "of", "list"]
)
def test_a_default_that_is_no_config(default, xy):
    with pytest.raises(ConfigError) as caught:
        autotune(CONFIGS, default=default)(double)[(4,)](*xy, 50)
    says(caught, "default: expected a triton.Config, or a callable of the arguments returning one, got ")


def test_an_empty_list_means_one_default_config(xy):
    tuned = autotune([])(double)
    (config,) = tuned.configs
    assert (config.kwargs, config.num_warps, config.num_stages, config.num_ctas) == ({}, 4, 3, 1)
    tuned[(4,)](*xy, 50, BLOCK=16)
    assert torch.equal(xy[1], 2 * xy[0])
    assert tuned.cache_info().searches == 0


def test_configs_may_be_a_generator(xy):
    tuned = autotune((Config({"BLOCK": block}) for block in (16, 32)), do_bench=quick)(double)
    assert [config.kwargs["BLOCK"] for config in tuned.configs] == [16, 32]
    for n in (50, 40):
        tuned[(4,)](*xy, n)
    assert tuned.cache_info().searches == 2


def test_a_config_listed_twice_counts_once():
    assert len(autotune([Config({"BLOCK": 16}), Config({"BLOCK": 16}), Config({"BLOCK": 32})])(double).configs) == 2


def test_a_callable_list_that_is_empty(xy):
    with pytest.raises(ConfigError) as caught:
        autotune(lambda **arguments: [])(double)[(4,)](*xy, 50)
    says(caught, "configs: the callable returned none for this call; return at least one")


def test_a_callable_list_that_sets_no_parameter(xy):
    with pytest.raises(ConfigError, match="a config sets 'BLOK', which is no parameter of the kernel"):
        autotune(lambda **arguments: [Config({"BLOK": 16})])(double)[(4,)](*xy, 50)


# -- pruners ---------------------------------------------------------------------------------------------------------


def broken(configs, named, **kwargs):
    raise ZeroDivisionError("in the pruner")


@pytest.mark.parametrize(
    ("pruner", "error", "parts"),
    [
        (lambda *a, **k: [], PruningError, ["left none of 2 configs for this call", "Keep at least one"]),
        (lambda *a, **k: iter(()), PruningError, ["left none of 2 configs"]),
        (lambda *a, **k: None, PruningError, ["expected a list of configs, got None. Return the configs to keep"]),
        (lambda *a, **k: [5], PruningError, ["expected triton.Config objects, got int: 5"]),
        (lambda *a, **k: 5, PruningError, ["expected a list of triton.Config", "got int"]),
        (broken, ZeroDivisionError, ["in the pruner"]),
    ],
    ids=["nothing", "empty-generator", "none", "strangers", "number", "raising"],
)
def test_pruners(pruner, error, parts, xy):
    tuned = autotune(CONFIGS, prune_configs_by={"early_config_prune": pruner})(double)
    for _ in range(2):
        with pytest.raises(error) as caught:
            tuned[(4,)](*xy, 50)
        says(caught, *parts)
    assert tuned.cache_info().searches == 0


def test_a_pruner_may_yield_duplicates_and_new_configs(xy):
    def prune(configs, named, **kwargs):
        yield configs[0]
        yield configs[0]
        yield Config({"BLOCK": 64})

    tuned = autotune(CONFIGS, do_bench=quick, prune_configs_by={"early_config_prune": prune})(double)
    tuned[(4,)](*xy, 50)
    assert torch.equal(xy[1], 2 * xy[0])
    ((_, record),) = store.all_records()
    assert [timing.config["kwargs"]["BLOCK"] for timing in record.timings] == [16, 64]


@pytest.mark.parametrize("top_k", [0, -1, 1.5, "2", None, True], ids=repr)
def test_top_k(top_k, xy):
    prune = {"perf_model": lambda **arguments: 1.0, "top_k": top_k}
    with pytest.raises(PruningError, match="top_k: expected an int of 1 or more, or a float above 0 and at most 1"):
        autotune(CONFIGS, prune_configs_by=prune)(double)[(4,)](*xy, 50)


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
        (2, {"n_cols": 50, "y_ptr": None}, ["argument 'y_ptr' came twice, by position and by name"]),
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
    says(caught, "test_bad_input.double`: ", *parts)
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
        "test_bad_input.double`: its configs set them",
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


# -- modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Auto", "tune", "", None], ids=repr)
def test_a_mode_that_is_none(name):
    with pytest.raises(ValueError) as caught, autotuned.mode(name):
        pass
    says(caught, f"autotuned.mode: expected one of auto, serve, strict, search, off, got {name!r}")


def test_a_mode_in_the_environment_that_is_none(monkeypatch, xy):
    monkeypatch.setenv("AUTOTUNED_MODE", "fast")
    with pytest.raises(ValueError) as caught:
        autotune(CONFIGS)(double)[(4,)](*xy, 50)
    says(caught, "AUTOTUNED_MODE: expected one of auto, serve, strict, search, off, got 'fast'", "Unset it for 'auto'")


# -- aliases ---------------------------------------------------------------------------------------------------------


def test_an_accumulator_that_is_an_input(xy):
    x, _ = xy
    tuned = autotune(CONFIGS, reset_to_zero=["y_ptr"], do_bench=quick)(double)
    with pytest.raises(ValueError) as caught:
        tuned[(4,)](x, x, 50)
    says(caught, "reset_to_zero names 'y_ptr', which shares memory with argument 'x_ptr'", "Pass a separate tensor")
    with pytest.raises(ValueError, match="reset_to_zero names 'y_ptr'"):
        tuned[(4,)](x, x[10:], 50)
    assert torch.equal(x, torch.ones_like(x))


@pytest.mark.parametrize(
    ("prune", "says"),
    [({"early_prune": lambda c, a: c}, "got 'early_prune'"), ([1], r"expected a dict of .* got \[1\]")],
)
def test_a_pruner_that_would_not_prune_is_refused(prune, says):
    with pytest.raises(DecorationError, match=f"prune_configs_by: .*{says}"):
        autotune(CONFIGS, prune_configs_by=prune)(double)


def test_what_does_its_work_later_cannot_be_measured():
    async def coroutine(x, *, step):
        return x

    def generator(x, *, step):
        yield x

    async def both(x, *, step):
        yield x

    for function in (coroutine, generator, both):
        with pytest.raises(DecorationError, match="expected a function that does its work when called, got"):
            autotune(STEPS)(function)


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


def test_a_grid_callable_that_raises_raises_its_own_error(xy):
    with pytest.raises(KeyError, match="BLOK"):
        autotune(CONFIGS, do_bench=quick)(double)[lambda meta: (meta["BLOK"],)](*xy, 50)


def test_a_bucket_that_cannot_be_called_and_a_config_of_no_names():
    with pytest.raises(
        DecorationError, match="bucket: expected a callable for 'n_cols', such as autotuned.pow2, got 64"
    ):
        autotune(CONFIGS, key=["n_cols"], bucket={"n_cols": 64})(double)
    with pytest.raises(ConfigError, match="a config sets 1, which is no parameter of the kernel"):
        autotune([Config({1: 16})])(double)


def test_a_nested_tensor_is_in_the_key_by_the_shapes_in_it():
    """It has neither sizes nor strides, and asking for them raised where Triton launches it."""

    def nested(*shapes: tuple[int, ...]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that its interface may change
            return torch.nested.nested_tensor([torch.zeros(shape) for shape in shapes])

    def part(*shapes: tuple[int, ...], names: tuple[str, ...] | None = None) -> Any:
        return call_part(KeySpec(names), {"x": nested(*shapes)}, {}, "app.k")["tensors"]["x"]

    assert part((2, 3), (4, 3)) == {"dtype": "torch.float32", "strides": "nested", "shape": [2, 2, 3, 2, 4, 3]}
    assert part((2, 3), (4, 3), names=()) == {"dtype": "torch.float32", "strides": "nested"}
    assert part((2, 3)) != part((2, 3), (2, 3)) != part((3, 2), (2, 3))
