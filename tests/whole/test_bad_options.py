"""Options and values of configs that are not what Triton takes: an error that says where each belongs."""

import collections
import enum
import functools

import numpy as np
import pytest
import torch
import triton.language as tl
from doubled import CONFIGS, double
from paths import quick
from stored import says
from triton import Config

from autotuned import autotune
from autotuned.errors import (
    ConfigError,
    EncodingError,
    PruningError,
)
from autotuned.triton_compat import kernel as toolchain
from autotuned.tunable import configs

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
    says(caught, "doubled.double`: a config sets", f"{name!r} among its parameters: expected it outside of them")
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
    says(caught, "doubled.double`: a config sets", f"{name}: expected an int, got ")


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
    says(caught, "doubled.double", "'FACTOR'")


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
