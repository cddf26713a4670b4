"""Tests of arguments that are listed and in which a walk finds no tensor, and of what is in a kernel's tuples."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from fakes import FakeConfig as Config
from paths import quick

from autotuned import Check, autotune
from autotuned.errors import CallError
from autotuned.key import memory

CONFIGS = [Config({"step": step}) for step in (8, 16, 4)]


def add(x, held, n, *, step):
    for tensor in memory.tensors(held):
        if not memory.holds_objects(tensor):
            tensor += n


def tuned(**options):
    return autotune(CONFIGS, key=["n"], do_bench=quick, cache_results=False, **options)(add)


# -- a name that finds nothing ---------------------------------------------------------------------------------------


class Opaque:
    """What a walk cannot see into is an object without any."""


NOTHING = [1.5, 3, True, "text", np.float32(1), [1.0], {"a": 1}, Opaque(), len, (None, 1), bytearray(4)]
MODES = ["auto", "serve", "search", "off"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("option", ["restore_value", "reset_to_zero", "poison"])
@pytest.mark.parametrize("value", NOTHING, ids=lambda value: type(value).__name__)
def test_a_listed_argument_without_a_tensor_is_an_error_at_the_first_call(option, value, mode, monkeypatch):
    monkeypatch.setenv("AUTOTUNED_MODE", mode)
    poison = {"check": Check("first", poison=["held"]), "restore_value": ["x"]}
    function = tuned(**(poison if option == "poison" else {option: ["held"]}))
    x = np.ones(2)
    for act in (function, function.prepare):
        with pytest.raises(CallError) as caught:
            act(x, value, 0.5)
        text = str(caught.value)
        assert f"add`: {option} names 'held': expected a tensor, or an object that contains one" in text
        assert f"got {type(value).__name__}" in text
        assert f"remove 'held' from {option}=" in text


@pytest.mark.parametrize("value", [None, [], (), {}, (None, None), [None], {"a": None}], ids=repr)
def test_none_is_skipped_and_so_is_what_holds_nothing_else(value):
    for option in ("restore_value", "reset_to_zero"):
        function = tuned(**{option: ["held"]})
        function(np.ones(2), value, 0.5)
        assert function.cache_info().searches == 1


def test_a_hit_whose_object_has_lost_its_accumulator_is_an_error_too():
    function, held = tuned(reset_to_zero=["held"]), SimpleNamespace(t=np.ones(3))
    function(np.ones(2), held, 0.5)
    held.t = None
    with pytest.raises(CallError, match="reset_to_zero names 'held'"):
        function(np.ones(2), held, 0.5)


def test_a_listed_parameter_that_configs_set_is_no_tensor():
    with pytest.raises(CallError, match="restore_value names 'step'.* got a value that a config or heuristic sets\\."):
        tuned(restore_value=["step"])(np.ones(2), np.ones(2), 0.5)


def test_what_is_larger_than_a_walk_is_said(monkeypatch, caplog):
    monkeypatch.setattr(memory, "LIMIT", 10)
    tuned()(np.ones(2), [[n] for n in range(20)], 0.5)
    assert "argument 'held' holds more than 10 objects: tensors beyond those are not protected" in caplog.text


# -- kernels ---------------------------------------------------------------------------------------------------------

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BLOCKS = [triton.Config({"BLOCK": block}) for block in (4, 8, 16)]


@triton.jit
def bump(held, n, eps, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(held[0] + i, tl.load(held[0] + i, mask=i < n) + eps, mask=i < n)


@pytest.mark.parametrize(
    "wrap", [lambda t: (t,), lambda t: (t, 3, None), lambda t: (t, (t, 1))], ids=["one", "with others", "within"]
)
@pytest.mark.parametrize(("option", "left"), [(None, 2.5), ("restore_value", 2.5), ("reset_to_zero", 0.5)])
def test_a_tensor_in_a_tuple_of_a_kernel(wrap, option, left):
    options = {option: ["held"]} if option else {}
    kernel = autotune(BLOCKS, do_bench=quick, cache_results=False, **options)(bump)
    t = torch.full((16,), 2.0, device=DEVICE)
    kernel[lambda meta: (triton.cdiv(16, meta["BLOCK"]),)](wrap(t), 16, 0.5)
    assert kernel.cache_info().searches == 1
    assert (t == left).all()


@pytest.mark.parametrize("option", ["restore_value", "reset_to_zero"])
def test_a_number_in_a_list_of_a_kernel(option):
    kernel = autotune(BLOCKS, do_bench=quick, cache_results=False, **{option: ["eps"]})(bump)
    for _ in range(2):
        with pytest.raises(CallError, match=f"bump`: {option} names 'eps': expected a tensor.* got float: 0.5"):
            kernel[(1,)]((torch.ones(16, device=DEVICE),), 16, 0.5)
