"""Tests of `walk`, and that what it finds is protected, zeroed and looked for by every option that names arguments."""

import dataclasses
import functools
import gc
import logging
import queue
import types
import weakref
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import triton
from fakes import FakeConfig as Config
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import quick

from autotuned import autotune
from autotuned.key import memory
from autotuned.key.memory import gpu_of, tensors_in

quietly = settings(max_examples=60, deadline=None, database=None, derandomize=True)
CONFIGS = [Config({"step": step}) for step in (8, 16, 4)]
Pair = namedtuple("Pair", "first t")


@dataclasses.dataclass
class Data:
    t: object


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenData:
    t: object


class Slots:
    __slots__ = ("__t", "empty")  # a private name, and one that is not set

    def __init__(self, t):
        self.__t = t


class SlotsBelow(Slots):
    __slots__ = ()


class Bag:
    def __init__(self, t):
        self.t = t

    @property
    def shape(self):
        raise RuntimeError("a property was called")

    def __iter__(self):
        raise RuntimeError("__iter__ was called")

    def method(self):
        """Bound, it holds the object."""


class Asks(Bag):
    def __getattr__(self, name):
        raise RuntimeError("__getattr__ was called")


class Derived(list):
    def __init__(self, t):
        super().__init__([3])
        self.t = t

    def __iter__(self):
        raise RuntimeError("__iter__ was called")


class DerivedSlots(dict):
    __slots__ = ("t",)

    def __init__(self, t):
        super().__init__(a=1)
        self.t = t


class Module(torch.nn.Module):
    def __init__(self, t):
        super().__init__()
        self.inner = torch.nn.Identity()
        self.inner.t = t


class Node:
    """Two objects that hold each other."""

    def __init__(self, t):
        self.other = SimpleNamespace(back=self, t=t)


def objects(*items):
    array = np.empty(len(items), object)
    array[:] = items
    return array


def holding_itself(t):
    items = []
    items += [items, {"items": items}, t]
    return items


def queued(t):
    waiting = queue.Queue()
    waiting.put(t)
    return waiting


def deep(t):
    return functools.reduce(lambda inner, _: [inner], range(5_000), t)


def default(t):
    def function(x=t):
        return x

    return function


HOLDERS = {
    "tuple": lambda t: (None, t),
    "list": lambda t: [t],
    "named tuple": lambda t: Pair(1, t),
    "dict": lambda t: {"t": t},
    "OrderedDict": lambda t: OrderedDict(t=t),
    "defaultdict": lambda t: defaultdict(list, t=t),
    "UserDict": lambda t: UserDict(t=t),
    "UserList": lambda t: UserList([t]),
    "ChainMap": lambda t: ChainMap({}, {"t": t}),
    "mapping proxy": lambda t: types.MappingProxyType({"t": t}),
    "values of a dict": lambda t: {"t": t}.values(),
    "deque": lambda t: deque([t]),
    "iterator": lambda t: iter([t]),
    "array of objects": lambda t: objects(1, t),
    "array of no dimensions": lambda t: objects(t).reshape(1, 1)[0],
    "dataclass": Data,
    "frozen dataclass with slots": FrozenData,
    "slots": Slots,
    "slots of a base": SlotsBelow,
    "namespace": lambda t: SimpleNamespace(t=t),
    "object": Bag,
    "derived list": Derived,
    "derived dict with slots": DerivedSlots,
    "bound method": lambda t: Bag(t).method,
    "partial": lambda t: functools.partial(print, t),
    "partial by name": lambda t: functools.partial(print, t=t),
    "closure": lambda t: lambda: t,
    "default": default,
    "torch module": Module,
    "cycle": holding_itself,
    "objects that hold each other": Node,
    "queue": queued,
    "deep": deep,
    "weak reference": weakref.ref,
    "memory view": memoryview,
}
HASHABLE = ("tuple", "named tuple", "object", "partial", "closure", "namespace")


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_holds_a_tensor_holds_it_once(holder):
    t = np.ones(4)
    value = HOLDERS[holder](t)
    assert [id(found) for _, found in tensors_in("x", (value, value))] == [id(t)]
    assert not memory.is_cut(value)


@pytest.mark.parametrize("make", [set, frozenset])
def test_sets_and_keys_hold_tensors(make):
    t = torch.ones(4)
    assert memory.tensors(make([t])) == memory.tensors({t: 1}) == [t]


def test_what_stands_for_an_object_weakly_holds_what_that_holds():
    t, bag = np.ones(4), Data(np.ones(3))
    assert memory.tensors(weakref.proxy(bag)) == [bag.t]
    reference, proxy = weakref.ref(t), weakref.proxy(bag)
    del t, bag
    gc.collect()
    assert memory.tensors(reference) == memory.tensors(proxy) == []


def test_no_code_of_the_users_is_asked():
    t = np.ones(4)
    assert [id(found) for found in memory.tensors([Asks(t)])] == [id(t)]


def test_the_order_is_that_of_the_containers():
    a, b, c, d = (np.ones(1) for _ in range(4))
    assert list(map(id, memory.tensors((a, [b, {"x": c}], Data(d))))) == list(map(id, (a, b, c, d)))


@triton.jit
def kernel(x_ptr):
    pass


@pytest.mark.parametrize(
    "value",
    [None, 5, 1.5, "text", np.float32(1), np.void(b"ab"), int, np.ndarray, np, len, kernel, [], {}, range(3), object()],
    ids=lambda value: type(value).__name__,
)
def test_what_holds_none(value):
    assert memory.tensors(value) == []


def test_loggers_and_tuned_objects_are_the_program_and_not_the_argument():
    handler = logging.NullHandler()
    handler.kept = np.ones(3)
    function = autotune(CONFIGS)(add)
    function.kept = np.ones(3)
    assert memory.tensors({"handler": handler, "function": function}) == []


def test_tensors_without_strides_are_the_tensors_that_they_are_made_of():
    dense = torch.eye(3)
    for sparse, count in ((dense.to_sparse(), 2), (torch.ones(2, device="meta"), 0)):
        assert len(memory.tensors(SimpleNamespace(s=sparse))) == count
    sparse = torch.eye(3).to_sparse()
    for _, tensor in tensors_in("x", [sparse]):
        if tensor.is_floating_point():
            tensor.zero_()
    assert torch.equal(sparse.to_dense(), torch.zeros(3, 3))


def test_a_walk_ends(monkeypatch):
    monkeypatch.setattr(memory, "LIMIT", 10)
    assert memory.is_cut([[n] for n in range(11)])
    assert not memory.is_cut(list(range(1000)))
    assert len(memory.tensors([np.ones(1) for _ in range(8)])) == 8


class OnGpu(np.ndarray):
    is_cuda = True

    def get_device(self):
        return self.index


def on_gpu(index):
    tensor = np.ones(3).view(OnGpu)
    tensor.index = index
    return tensor


@pytest.mark.parametrize("holder", [name for name in HOLDERS if name not in ("deep", "memory view")])
def test_the_gpu_of_an_argument_is_that_of_what_it_holds(holder):
    tensor = on_gpu(1)
    assert gpu_of(HOLDERS[holder](tensor)) == 1
    assert gpu_of(HOLDERS[holder](np.ones(3))) is None


def test_of_several_the_nearest_gpu_counts_and_what_is_long_is_not_walked():
    assert gpu_of([[[on_gpu(1)]], on_gpu(0)]) == 0
    opened = [[on_gpu(2)] if n == 10_000 else [n] for n in range(20_000)]
    assert gpu_of(opened) is None


# -- nothing is left unprotected -------------------------------------------------------------------------------------


def nested(names):
    """What holds a tensor within what holds one, and so on."""
    return lambda t: functools.reduce(lambda value, name: HOLDERS[name](value), names, t)


# What anything may be put into: a queue or a view takes some things only.
OUTER = sorted(set(HOLDERS) - {"weak reference", "memory view", "array of no dimensions", "deep"})
NESTINGS = st.lists(st.sampled_from(OUTER), min_size=1, max_size=4)


def add(x, held, n, *, step):
    for tensor in memory.tensors(held):
        if not memory.holds_objects(tensor):
            tensor += n


def tuned(**options):
    return autotune(CONFIGS, key=["n"], do_bench=quick, cache_results=False, **options)(add)


@pytest.mark.parametrize("options", [{}, {"restore_value": ["held"]}], ids=["found out", "listed"])
@quietly
@given(names=NESTINGS, is_torch=st.booleans())
def test_a_search_leaves_one_application_whatever_holds_the_tensor(options, names, is_torch):
    t = torch.full((4,), 2.0) if is_torch else np.full(4, 2.0)
    function = tuned(**options)
    held = nested(names)(t)
    function(np.ones(2), held, 0.5)
    assert function.cache_info().searches == 1
    assert (t == 2.5).all()
    function(np.ones(2), held, 0.5)
    assert (t == 3.0).all()


@quietly
@given(names=NESTINGS)
def test_what_is_listed_is_zeroed_before_every_launch_whatever_holds_it(names):
    t = np.full(4, 2.0)
    function, held = tuned(reset_to_zero=["held"]), nested(names)(t)
    for _ in range(3):
        function(np.ones(2), held, 0.5)
        assert (t == 0.5).all()


@pytest.mark.parametrize("holder", sorted(set(HOLDERS) - {"deep"}))
def test_a_reference_gets_copies_of_what_it_is_to_write(holder):
    """What holds a tensor is copied with it, or the reference must return what is expected."""

    def run(held, *, step):
        for tensor in memory.tensors(held):
            if not memory.holds_objects(tensor):
                tensor += 1 if step != 16 else 2

    def reference(held):
        for tensor in memory.tensors(held):
            if not memory.holds_objects(tensor):
                tensor += 1

    t = np.zeros(4)
    function = autotune(CONFIGS, check=reference, do_bench=quick, cache_results=False)(run)
    held = HOLDERS[holder](t)
    try:
        function(held)
    except Exception as error:
        assert "which cannot be copied for it" in str(error)
        assert (t == 0).all()
    else:
        assert (t == 1).all()
        assert function.best_config.kwargs["step"] != 16


class Layer:
    def __init__(self):
        self.w = np.full(4, 2.0)

    @autotune(CONFIGS, do_bench=quick, cache_results=False)
    def found_out(self, n, *, step):
        self.w += n

    @autotune(CONFIGS, restore_value=["self"], do_bench=quick, cache_results=False)
    def listed(self, n, *, step):
        self.w += n

    @autotune(CONFIGS, reset_to_zero=["self"], do_bench=quick, cache_results=False)
    def zeroed(self, n, *, step):
        self.w += n


@pytest.mark.parametrize(("method", "left"), [("found_out", 2.5), ("listed", 2.5), ("zeroed", 0.5)])
def test_a_methods_own_object_is_an_argument(method, left):
    layer = Layer()
    getattr(layer, method)(0.5)
    assert (layer.w == left).all()


def test_an_array_of_objects_gets_its_objects_back():
    def run(held, *, step):
        held += 1  # an array of objects adds by making new ones

    function = autotune(CONFIGS, do_bench=quick, cache_results=False)(run)
    held = objects(1, np.ones(2))
    inner = held[1]
    function(held)
    assert held[0] == 2
    assert (held[1] == 2).all()
    assert (inner == 1).all()
