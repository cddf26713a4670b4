"""What other libraries read and set on a tuner: present on ours, with Triton's meaning."""

import pytest
import torch
import triton
import triton.language as tl
from triton import Config
from triton.runtime.autotuner import Autotuner

from autotuned import autotune
from autotuned.errors import CallError
from autotuned.launch import launcher

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]


@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)


def model(*args, **kwargs):
    return 1.0


def keep_all(configs, named, **kwargs):
    return configs


OPTIONS = {
    "key": ["n"],
    "reset_to_zero": ["y_ptr"],
    "restore_value": ["x_ptr"],
    "prune_configs_by": {"early_config_prune": keep_all, "perf_model": model, "top_k": 1},
}
ATTRIBUTES = [
    "fn", "base_fn", "arg_names", "configs", "keys", "cache", "reset_to_zero", "restore_value", "early_config_prune",
    "perf_model", "configs_top_k", "use_cuda_graph", "num_warmups", "num_reps", "user_defined_pre_hook",
    "user_defined_post_hook",
]  # fmt: skip


@pytest.mark.parametrize("name", ATTRIBUTES)
@pytest.mark.parametrize("options", [{"key": ["n"]}, OPTIONS], ids=["few", "all"])
def test_attribute_is_tritons(name, options):
    ours, stock = autotune(CONFIGS, **options)(double), triton.autotune(CONFIGS, **options)(double)
    assert getattr(ours, name) == getattr(stock, name)


@pytest.mark.parametrize("name", ["run", "warmup", "pre_hook", "post_hook", "prune_configs", "_bench"])
def test_method_is_there(name):
    assert callable(getattr(autotune(CONFIGS)(double), name))


def test_the_list_of_configs_is_the_users_to_edit():
    ours = autotune(CONFIGS)(double)
    assert ours.configs == CONFIGS
    assert type(ours.configs) is list
    assert min(config.kwargs["BLOCK"] for config in ours.configs) == 16


def test_use_cuda_graph_stays_false():
    """torch refuses a tuner where it is true; how trials are timed is our own affair."""
    assert autotune(CONFIGS, use_cuda_graph=True, warmup=1, rep=1)(double).use_cuda_graph is False


def test_keys_removed_later():
    """lmdeploy does `kernel.keys.remove(...)`."""
    ours = autotune(CONFIGS, key=["n"])(double)
    ours.keys.remove("n")
    assert ours.keys == []


def test_it_is_a_triton_tuner():
    kernel = autotune(CONFIGS)(double)
    assert isinstance(kernel, Autotuner)
    assert isinstance(kernel, triton.runtime.jit.KernelInterface)
    with pytest.raises(CallError, match="expected a grid, got none"):
        kernel()
    assert not hasattr(kernel, "__name__")
    assert type(kernel).__mro__[2:4] == (launcher.base(), Autotuner)
    assert "__getitem__" not in vars(type(kernel))  # Triton's compile-only mode replaces the inherited one


def test_hashable_by_identity():
    one, other = (autotune(CONFIGS, key=["n"])(double) for _ in range(2))
    assert one != other
    assert {one: 1, other: 2} == {other: 2, one: 1}
    assert hash(one) == hash(one)
    assert len({one, one, other}) == 2


def test_key_none_is_an_empty_list_to_others():
    kernel = autotune(CONFIGS)(double)
    assert kernel.keys == kernel.reset_to_zero == kernel.restore_value == []


def test_prune_configs_from_outside():
    """jax-triton and vLLM set `nargs` and ask which configs are left."""
    kernel = autotune(CONFIGS, key=["n"])(double)
    kernel.early_config_prune = lambda configs, named, **kwargs: [c for c in configs if c.kwargs["BLOCK"] < named["n"]]
    kernel.nargs = {"n": 20}
    assert kernel.prune_configs({}) == CONFIGS[:1]


def test_another_pruner_is_read_at_the_call(launches):
    kernel = autotune(CONFIGS, key=["n"])(double)
    kernel.early_config_prune = lambda configs, named, **kwargs: configs[1:]
    kernel[(4,)](torch.zeros(64), torch.zeros(64), 64)
    assert [launch.arguments["BLOCK"] for launch in launches] == [32]
