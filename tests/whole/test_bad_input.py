"""Bad input of every kind: an error that says what was expected, what came, and what to do."""

import collections
import enum
import functools
import sys
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
from autotuned import autotune
from autotuned.errors import (
    ArgumentNameError,
    AutotunedError,
    CallError,
    ConfigError,
    DecorationError,
    EncodingError,
    PruningError,
)
from autotuned.key.key import KeySpec, call_part, pow2
from autotuned.store import listing
from autotuned.triton_compat import kernel as toolchain
from autotuned.tunable import configs

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
    says(caught, "toolchain: expected none for a kernel", "got ['numpy']", "into version=")


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
    ((_, record),) = listing.all_records()
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
        says(caught, "test_bad_input.double`: grid: expected the callable to use names", "got 'BLOK'")
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
        says(caught, "test_bad_input.double`: expected a grid, got none. Write kernel[grid](...)")
        kernel[(4,)](*xy, 50)


def test_a_bucket_that_cannot_be_called_and_a_config_of_no_names():
    with pytest.raises(
        DecorationError, match="bucket: expected a callable for 'n_cols', such as autotuned.pow2, got 64"
    ):
        autotune(CONFIGS, key=["n_cols"], bucket={"n_cols": 64})(double)
    with pytest.raises(ConfigError, match="a config sets 1, which is no parameter of the kernel"):
        autotune([Config({1: 16})])(double)


# -- options ---------------------------------------------------------------------------------------------------------

# Those that `Config` takes beside the parameters; all others of the back ends have their only place among these.
BESIDE = ["num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override", "pre_hook"]
WITHIN = sorted(toolchain.option_names() - set(BESIDE))


def given_as(how, configs):
    """The same configs by every way in which a kernel gets them."""
    if how == "list":
        return lambda: autotune(configs)(double)
    if how == "default":
        return lambda: autotune(CONFIGS, default=configs[0])(double)
    if how == "callable":
        return lambda: autotune(lambda **arguments: configs)(double)
    if how == "callable default":
        return lambda: autotune(CONFIGS, default=lambda **arguments: configs[0])(double)
    if how == "pruner":
        prune = {"early_config_prune": lambda *given, **more: configs}
        return lambda: autotune(CONFIGS, prune_configs_by=prune)(double)

    def assigned():
        tuned = autotune(CONFIGS)(double)
        tuned.configs = configs
        return tuned

    return assigned


HOW = ["list", "default", "callable", "callable default", "pruner", "assigned"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", BESIDE)
def test_an_option_among_the_parameters_says_where_it_belongs(name, how, xy):
    configs = [Config({"BLOCK": 16, name: 8}), Config({"BLOCK": 32, name: 8})]
    with pytest.raises(ConfigError) as caught:
        given_as(how, configs)()[(4,)](*xy, 50)
    says(caught, "test_bad_input.double`: a config sets", f"{name!r} among its parameters: expected it outside of them")
    says(caught, f"Write Config({{...}}, {name}=...)")


@pytest.mark.parametrize("name", WITHIN)
def test_an_option_of_a_back_end_is_taken_and_told_apart(name):
    one, other = Config({"BLOCK": 16, name: 1}), Config({"BLOCK": 16, name: 2})
    tuned = autotune([one, other])(double)
    assert tuned.configs == [one, other]
    assert configs.label(configs.to_json(one, "k")).count(f"{name}=") == 1
    assert one.all_kwargs()[name] == 1


def test_a_plain_callable_may_call_its_parameters_like_options():
    seen = []

    def function(x, *, num_warps):
        seen.append(num_warps)

    autotune([Config({"num_warps": 8})])(function)(np.ones(3))
    assert seen == [8]


def test_of_an_option_given_twice_the_log_says_the_one_that_is_used():
    """As under `install()`, where Triton's own rules hold."""
    config = Config({"BLOCK": 16, "num_warps": 8, "maxnreg": 128})
    assert configs.label(configs.to_json(config, "k")) == "BLOCK=16 maxnreg=128 num_warps=4 num_stages=3"


@pytest.mark.parametrize("name", ["num_warps", "num_stages", "num_ctas", "maxnreg"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("value", [4.0, "4", True, [4], np.float64(4), np.bool_(True), np.array([4, 4])], ids=repr)
def test_an_option_that_is_no_int(name, how, value, xy):
    with pytest.raises((ConfigError, PruningError)) as caught:
        given_as(how, [Config({"BLOCK": 16}, **{name: value}), Config({"BLOCK": 32}, **{name: value})])()[(4,)](*xy, 50)
    says(caught, "test_bad_input.double`: a config sets", f"{name}: expected an int, got ")


INTEGERS = [np.int64(2), np.int8(2), np.uint32(2), np.array(2), torch.tensor(2), enum.IntEnum("Two", {"A": 2}).A]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("value", INTEGERS, ids=lambda value: type(value).__name__)
def test_what_stands_for_an_int_is_an_int(value, how, xy):
    options = {"num_warps": value, "num_stages": value, "num_ctas": 1, "maxnreg": value}
    config = Config({"BLOCK": 16, "launch_pdl": np.bool_(False)}, **options)
    plain = Config({"BLOCK": 16, "launch_pdl": False}, num_warps=2, num_stages=2, num_ctas=1, maxnreg=2)
    assert configs.identity(plain, "k") == configs.identity(
        Config({**config.kwargs, "launch_pdl": False}, **options), "k"
    )
    given_as(how, [config])()[(4,)](*xy, 50)
    assert {name: type(option) for name, option in config.all_kwargs().items()} == {
        name: type(option) for name, option in plain.all_kwargs().items()
    }
    assert configs.identity(config, "k") == configs.identity(plain, "k")


@pytest.mark.parametrize("value", INTEGERS, ids=lambda value: type(value).__name__)
def test_what_stands_for_an_int_at_the_call_has_the_key_of_one(value, xy):
    tuned = autotune(CONFIGS, do_bench=quick)(double)
    for given in (2, value):
        tuned[(4,)](*xy, 50, maxnreg=given)
    assert tuned.cache_info().searches == 1


# -- values ----------------------------------------------------------------------------------------------------------


def endless():
    items = []
    items.append(items)
    return items


def endless_dict():
    items = {}
    items["items"] = items
    return items


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "value", [endless(), endless_dict(), (endless(),), functools.reduce(lambda inner, _: (inner,), range(5_000), 1)],
    ids=["list", "dict", "tuple", "deep"],
)  # fmt: skip
def test_a_config_with_a_value_that_holds_itself(value, how, xy):
    configs = [Config({"BLOCK": 16, "FACTOR": value}), Config({"BLOCK": 32, "FACTOR": value})]
    with pytest.raises((ConfigError, PruningError, EncodingError)) as caught:
        given_as(how, configs)()[(4,)](*xy, 50)
    says(caught, "test_bad_input.double", "'FACTOR'")


Pair = collections.namedtuple("Pair", "a b")
Color = enum.IntEnum("Color", {"ONE": 1})
Named = type("Named", (str,), {})
Other = type("Other", (int,), {})
EQUAL = [
    [(1, 2), Pair(1, 2), [1, 2], (1.0, 2), (True, 2), (Color.ONE, 2), (np.int64(1), 2), (Other(1), 2)],
    [1, True, 1.0, Color.ONE, np.int64(1), np.int32(1), np.float64(1), np.bool_(True), Other(1), "1"],
    ["a", Named("a"), np.str_("a"), b"a"],
    [tl.float32, "fp32", tl.float16, torch.float32],
    [0, False, 0.0, None, "", (), []],
    [(Pair(1, 2), (1, 2)), ((1, 2), Pair(1, 2)), (Pair(1, 2), Pair(1, 2)), ((1, 2), (1, 2))],
]


@pytest.mark.parametrize("values", EQUAL, ids=repr)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: (v,), lambda v: [v], lambda v: {"k": v}, lambda v: ((v, 1),)])
def test_values_of_different_types_are_different_candidates(values, wrap):
    configs = [Config({"BLOCK": 16, "FACTOR": wrap(value)}) for value in values]
    assert len(autotune(configs)(double).configs) == len(values)
    assert len(autotune([*configs, *configs])(double).configs) == len(values)


def test_a_stored_choice_of_a_derived_type_is_found_again(xy):
    def run(x, *, shape):
        x += len(shape)

    def make():
        return autotune([Config({"shape": (1, 2)}), Config({"shape": Pair(1, 2)})], do_bench=by_type)(run)

    def by_type(call, quantiles):
        call()
        return [1.0 if not times else 0.5] * 3 if not times.append(1) else None

    times = []
    first = make()
    first(np.ones(3))
    second = make()
    second(np.ones(3))
    assert second.cache_info().searches == 0
    assert type(second.best_config.kwargs["shape"]) is type(first.best_config.kwargs["shape"])


# -- all alike -------------------------------------------------------------------------------------------------------


@triton.jit
def broken_kernel(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), tl.load(not_defined))  # noqa: F821


def notes_of(error):
    return "\n".join(getattr(error, "__notes__", []))


@pytest.mark.parametrize("mode", ["auto", "serve", "search", "off"])
@pytest.mark.parametrize("configs", [CONFIGS[:1], CONFIGS], ids=["one", "two"])
def test_an_error_that_all_configs_raise_says_kernel_config_and_how_many(configs, mode):
    kernel = autotune(configs, do_bench=quick)(broken_kernel)
    for _ in range(2):
        with autotuned.mode(mode), pytest.raises(Exception) as caught:
            kernel[(1,)](torch.ones(64, device=DEVICE))
        assert not isinstance(caught.value, AutotunedError)
        assert "not_defined" in str(caught.value)
        text = notes_of(caught.value)
        assert "test_bad_input.broken_kernel`: " in text
        assert "BLOCK=16 num_warps=4" in text
        if len(configs) > 1 and mode in ("auto", "search"):
            assert "all 2 configs raised this" in text


@pytest.mark.parametrize("mode", ["auto", "serve", "off"])
def test_an_error_of_a_plain_callable_says_it_too(mode):
    def function(x, *, step):
        raise ZeroDivisionError("in the function")

    with autotuned.mode(mode), pytest.raises(ZeroDivisionError) as caught:
        autotune(STEPS, do_bench=quick)(function)(np.ones(3))
    assert "function`: " in notes_of(caught.value)
    assert "step=" in notes_of(caught.value)
    assert (f"all {len(STEPS)} configs raised this" in notes_of(caught.value)) is (mode == "auto")


# -- options of the decorator ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"toolchain": "numpy"}, ["toolchain: expected a list of distributions, got 'numpy'", "Write toolchain=['numpy']"]),
        ({"key": ["n"], "bucket": ["n"]}, ["bucket: expected a dict of callables by argument name, got ['n']"]),
        ({"key": ["n"], "bucket": "n"}, ["bucket: expected a dict of callables by argument name, got 'n'"]),
        ({"nearest": "n"}, ["nearest: expected a dict of factors by argument name, got 'n'"]),
        ({"nearest": "5%"}, ["by argument name, got '5%'. For rules write autotuned.within('5%')."]),
        ({"nearest": ["n"]}, ["nearest: expected a dict of factors by argument name, got ['n']"]),
    ],
    ids=str,
)  # fmt: skip
def test_options_of_another_kind(options, parts):
    with pytest.raises(DecorationError) as caught:
        autotune(STEPS, **options)(lambda x, n, *, step: None)
    says(caught, *parts)


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


def test_a_jagged_tensor_and_a_compressed_sparse_one_are_in_the_key():
    """Sizes that are symbols were asked for their numbers, and tensors without strides for those."""

    def part(tensor: Any, **spec: Any) -> Any:
        return call_part(KeySpec(None, **spec), {"x": tensor}, {}, "app.k")["tensors"]["x"]

    def jagged(*rows: int) -> Any:
        return torch.nested.nested_tensor([torch.zeros(n, 2) for n in rows], layout=torch.jagged)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that their interfaces may change
        rows = torch.eye(4).to_sparse_csr()
        assert part(jagged(1, 3))["shape"] == [2, 1, 2, 2, 3, 2]
        assert part(jagged(1, 3)) == part(jagged(1, 3)) != part(jagged(3, 1))
        assert part(jagged(1, 3), buckets={"x": pow2}) == part(jagged(1, 4), buckets={"x": pow2})
        assert part(rows) == {"dtype": "torch.float32", "strides": "sparse_csr", "shape": [4, 4]}
        assert part(torch.eye(4).to_sparse_csc())["strides"] == "sparse_csc"
        tuned = autotune(STEPS, key=["x"])(lambda x, *, step: step)
        for tensor in (rows, jagged(1, 3)):
            tuned(tensor)
            tuned(tensor)
        assert tuned.cache_info().searches == 2


@pytest.mark.skipif(not hasattr(BaseException, "add_note"), reason="Python 3.10 has no notes")
def test_an_error_whose_class_breaks_notes_is_raised_as_it_is():
    class Own(Exception):
        def add_note(self, text):
            raise RuntimeError("no notes here")

    def fail(x, *, step):
        raise Own("the user's own")

    function = autotune(STEPS, do_bench=quick)(fail)
    with pytest.raises(Own, match="the user's own") as raised:
        function(1)
    assert f"all {len(STEPS)} configs raised this" in notes_of(raised.value)
