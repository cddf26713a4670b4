"""Bad input where a kernel is decorated, and errors of all its configs: an error that says what was expected, what came, and what to do."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from doubled import ARGUMENTS, CONFIGS, DEVICE, double
from fakes import FakeConfig
from paths import quick
from stepped import STEPS
from stored import lines, says
from triton import Config

import autotuned
from autotuned import autotune
from autotuned.errors import (
    ArgumentNameError,
    AutotunedError,
    ConfigError,
    DecorationError,
    PruningError,
)
from autotuned.key.key import KeySpec, call_part, pow2
from autotuned.store import listing

# -- names at decoration ---------------------------------------------------------------------------------------------


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
    says(caught, "doubled.double`: ", *parts)
    assert isinstance(caught.value, ValueError)
    assert caught.value.kernel.endswith("doubled.double")


@pytest.mark.parametrize("label", ["key", "restore_value", "reset_to_zero"])
@pytest.mark.parametrize("value", ["n_cols", 5], ids=["text", "number"])
def test_a_list_of_names_given_as_something_else(label, value):
    with pytest.raises(DecorationError) as caught:
        autotune(CONFIGS, **{label: value})(double)
    says(caught, f"{label}: expected a list of argument names, got {value!r}", f"Write {label}=[{value!r}]")
    assert isinstance(caught.value, TypeError)


class Sizes:
    """A key callable without a name."""

    def __call__(self, args):
        return args["n_cols"]


@pytest.mark.parametrize(
    ("given", "name"),
    [(max, "max"), (lambda args: args["n_cols"], "f"), (Sizes(), "f")],
    ids=["function", "lambda", "object"],
)
def test_a_key_callable_without_its_list_is_named_in_what_to_write(given, name):
    with pytest.raises(DecorationError) as caught:
        autotune(CONFIGS, key=given)(double)
    says(caught, "key: expected a list of argument names, got ", f". Write key=[{name}].")


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
        (
            [Config({"BLOK": 16})],
            ["a config sets 'BLOK', which is not a parameter of the kernel. Did you mean 'BLOCK'?"],
        ),
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
    says(caught, "doubled.double`: ", *parts)


def test_a_default_that_sets_no_parameter():
    with pytest.raises(ConfigError, match="a config sets 'BLOK', which is not a parameter of the kernel"):
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
    with pytest.raises(ConfigError, match="a config sets 'BLOK', which is not a parameter of the kernel"):
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


# -- variables -------------------------------------------------------------------------------------------------------


def test_a_number_of_workers_that_is_none_is_said_once_where_nothing_compiles(monkeypatch, caplog):
    """It is an error on a GPU, and was silent on the machine where somebody tries the program first."""
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", "x")

    def work(x, *, step):
        return x

    tuned = autotune([FakeConfig({"step": 1}), FakeConfig({"step": 2})], key=["x"], do_bench=quick)(work)
    assert (tuned(1), tuned(2)) == (1, 2)
    [line] = lines(caplog)
    assert line.startswith("AUTOTUNED_COMPILE_WORKERS is ignored here")
    assert "expected a number of 0 or more, got 'x'. Unset it" in line


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


def test_a_bucket_that_cannot_be_called_and_a_config_of_no_names():
    with pytest.raises(
        DecorationError, match="bucket: expected a callable for 'n_cols', such as autotuned.pow2, got 64"
    ):
        autotune(CONFIGS, key=["n_cols"], bucket={"n_cols": 64})(double)
    with pytest.raises(ConfigError, match="a config sets 1, which is not a parameter of the kernel"):
        autotune([Config({1: 16})])(double)


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
