"""Plain callables with their tunables chosen: NumPy functions stand for whatever a host function may launch."""

import copy
import gc
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import FakeConfig as Config
from paths import PATHS, check_path, on_path, quick
from stepped import CONFIGS, LAST, by_step, make, scale, total
from stored import records

from autotuned import autotune
from autotuned.errors import CallError
from autotuned.gpu import device


def accumulate(x, out, *, step):
    LAST.step = step
    for start in range(0, len(x), step):
        out[start : start + step] += x[start : start + step]


def leaky(x, out, *, step):
    for start in range(0, len(x), step):
        part = x[start : start + step]
        out[start : start + step] = np.where(part < 0, part * 0.5, part)


# -- one clean call by every path ------------------------------------------------------------------------------------


@pytest.mark.parametrize("restore", [["x"], None], ids=["named", "found-out"])
@pytest.mark.parametrize("path", PATHS)
def test_in_place(path, restore, monkeypatch, tmp_path):
    function = on_path(
        path, make(scale, restore_value=restore), CONFIGS, lambda f: f(np.ones(50), 50), monkeypatch, tmp_path
    )
    x = np.ones(50)
    function(x, 50)
    assert (x == 0.5).all()
    check_path(path, function)
    function(n=50, x=x)
    assert (x == 0.25).all()


@pytest.mark.parametrize("path", PATHS)
def test_accumulated(path, monkeypatch, tmp_path):
    function = on_path(
        path,
        make(accumulate, reset_to_zero=["out"]),
        CONFIGS,
        lambda f: f(np.arange(50.0), np.zeros(50)),
        monkeypatch,
        tmp_path,
    )
    x, out = np.arange(50.0), np.full(50, 7.0)
    for _ in range(2):
        function(x, out=out)
        assert (out == np.arange(50.0)).all()
    assert (x == np.arange(50.0)).all()


@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "aliased"])
@pytest.mark.parametrize("path", PATHS)
def test_input_and_output_may_be_one_array(path, in_place, monkeypatch, tmp_path):
    function = on_path(path, make(leaky), CONFIGS, lambda f: f(-np.ones(50), np.zeros(50)), monkeypatch, tmp_path)
    x = -np.arange(50.0)
    out = x if in_place else np.zeros(50)
    function(x, out)
    assert (out == -np.arange(50.0) * 0.5).all()


@pytest.mark.parametrize("path", PATHS)
def test_the_result_is_the_functions(path, monkeypatch, tmp_path):
    function = on_path(path, make(total), CONFIGS, lambda f: f(np.ones(20)), monkeypatch, tmp_path)
    assert function(np.arange(20.0)) == 190.0
    assert function(np.arange(20.0)) == 190.0


@pytest.mark.parametrize(
    "view",
    [lambda b: b[::2], lambda b: b[::-1], lambda b: b[3:53], lambda b: b.reshape(10, 10).T[2, :]],
    ids=["every-second", "reversed", "offset", "column"],
)
@pytest.mark.parametrize("restore", [["x"], None], ids=["named", "found-out"])
def test_views_in_place(view, restore):
    buffer, expected = np.arange(100.0), np.arange(100.0)
    view(expected)[...] *= 0.5
    function = make(scale, restore_value=restore)(CONFIGS)
    function(view(buffer), len(view(buffer)))
    assert (buffer == expected).all()


HOLDERS = {
    "list": lambda one, other: [one, other],
    "tuple": lambda one, other: (one, other),
    "dictionary": lambda one, other: {"x": one, "more": [other]},
}


@pytest.mark.parametrize("restore", [["parts"], None], ids=["named", "found-out"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_arrays_in_containers(holder, restore):
    """As the operands of a grouped product."""

    def grow(parts, *, step):
        one, other = (parts["x"], parts["more"][0]) if isinstance(parts, dict) else parts
        one += 1
        other += one

    one, other = np.zeros(8), np.ones(8)
    tuned = make(grow, key=[], restore_value=restore)(CONFIGS)
    tuned(HOLDERS[holder](one, other))
    assert (one == 1).all()
    assert (other == 2).all()


class Seen:
    """What trials found in their arguments."""

    def __init__(self):
        self.values = []

    def note(self, *values):
        self.values.append(values)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"restore_value": ["x", "out"]}, (1.0, 7.0)),
        ({}, (1.0, 7.0)),
        ({"restore_value": ["x"], "reset_to_zero": ["out"]}, (1.0, 0.0)),
        ({"reset_to_zero": ["out"]}, (1.0, 0.0)),
    ],
    ids=["named", "found-out", "zeroed", "zeroed-found-out"],
)
@pytest.mark.parametrize("do_bench", [quick, None], ids=["do_bench", "own-timer"])
def test_every_trial_gets_what_the_caller_gave(options, found, do_bench):
    seen = Seen()

    @autotune([Config({"step": 1}), Config({"step": 2}), Config({"step": 3})], do_bench=do_bench, **options)
    def spoil(x, out, *, step):
        seen.note(float(x[0]), float(out[-1]))
        x *= 0.5
        out += x
        if step == 2:
            raise ValueError("after it wrote")

    spoil(np.ones(5), np.full(5, 7.0))
    assert set(seen.values) == {found}
    assert len(seen.values) >= 6


def test_a_config_that_writes_and_then_raises():
    @autotune([Config({"step": 8}), Config({"step": 16}), Config({"step": 4})], do_bench=quick)
    def halve(x, *, step):
        x *= 0.5
        if step != 4:
            raise ValueError(f"{step} is wrong")

    x = np.ones(50)
    halve(x)
    assert (x == 0.5).all()
    assert [timing.error for timing in records()[0].timings] == [
        "ValueError: 8 is wrong",
        "ValueError: 16 is wrong",
        None,
    ]


def test_all_fail():
    @autotune(CONFIGS)
    def halve(x, *, step):
        x *= 0.5
        raise ValueError("always")

    x = np.ones(50)
    with pytest.raises(ValueError, match="always"):
        halve(x)
    assert (x == 1).all()
    assert records() == []


# -- it stays a function ---------------------------------------------------------------------------------------------


def test_it_looks_like_the_function():
    function = make(total)(CONFIGS)
    assert function.__name__ == "total"
    assert function.__wrapped__ is function.fn is total
    assert callable(function)
    assert function.arg_names == ["x", "step"]
    assert function.configs == CONFIGS
    assert function.best_config is None
    function(np.ones(20))
    assert function.best_config is CONFIGS[0]


def test_positional_only_and_keyword_only_parameters():
    @autotune(CONFIGS, do_bench=quick)
    def join(a, b, /, c, step=1, *, d=4):
        return (a, b, c, d, step)

    for _ in range(2):
        assert join(1, 2, 3) == (1, 2, 3, 4, 8)
        assert join(1, 2, c=3, d=5) == (1, 2, 3, 5, 8)
    assert join.cache_info().hits == 2
    with pytest.raises((CallError, TypeError)):
        join(a=1, b=2, c=3)


def test_best_config_is_of_the_thread():
    function = make(total, do_bench=by_step({8: 2.0, 16: 1.0}))(CONFIGS)
    function(np.ones(20))
    seen = []
    thread = threading.Thread(target=lambda: seen.append(function.best_config))
    thread.start()
    thread.join(10)
    assert seen == [None]
    assert function.best_config is CONFIGS[1]


def test_mutable_state_of_the_call_is_not_kept():
    """Neither table nor record may keep the caller's memory alive."""

    class Array(np.ndarray):
        pass

    function = make(total)(CONFIGS)
    for kind in (np.ndarray, Array):
        x = np.ones(20).view(kind)
        kept = weakref.ref(x)
        function(x)
        del x
        gc.collect()
        assert kept() is None


@pytest.mark.parametrize(
    "holder",
    [lambda x: x, lambda x: (3, None, (x,)), lambda x: [x], lambda x: {"x": [x]}, lambda x: SimpleNamespace(x=x)],
)
def test_a_call_runs_on_the_gpu_of_an_array_also_in_a_container(holder, monkeypatch):
    class Array(SimpleNamespace):
        data_ptr = None  # it has memory

    @autotune(CONFIGS)
    def on_gpu(n, held, *, step): ...

    array = Array(shape=(4,), stride=lambda: (1,), dtype="float32", is_cuda=True, get_device=lambda: 1)
    monkeypatch.setattr(device, "cuda", lambda index: f"GPU {index}")
    monkeypatch.setattr(device, "cpu", lambda: "CPU")
    target = on_gpu.tuner.tunable
    assert target.device(on_gpu.tuner.call((1, holder(array)), {}, None)) == "GPU 1"
    assert target.device(on_gpu.tuner.call((1, holder(np.ones(4))), {}, None)) == "CPU"


def test_a_class_of_numbers_or_arrays_is_an_argument_like_others():
    @autotune(CONFIGS)
    def fill(out, kind, *, step):
        out[...] = kind(3)

    for kind in (np.float32, float, np.float32):
        out = np.zeros(4)
        fill(out, kind)
        assert (out == 3).all()
    assert (fill.cache_info().searches, fill.cache_info().hits) == (1, 2)


def test_arguments_that_do_not_fit_are_one_error_and_not_an_error_within_another():
    tuned = autotune(CONFIGS)(accumulate)
    with pytest.raises(CallError, match="is missing") as caught:
        tuned(np.ones(4))
    assert caught.value.__context__ is None


def test_a_copy_of_a_function_that_no_module_calls_so_is_itself():
    function = make(scale)(CONFIGS)
    assert copy.deepcopy([function])[0] is copy.copy(function) is function


def test_a_method_is_bound_to_its_object_and_a_static_one_to_none():
    class Layer:
        def __init__(self, factor):
            self.factor = factor

        @autotune([Config({"step": 8}), Config({"step": 16})])
        def apply(self, x, *, step):
            return self.factor * x

        @classmethod
        @autotune([Config({"step": 8}), Config({"step": 16})])
        def name(cls, x, *, step):
            return cls.__name__

        @staticmethod
        @autotune([Config({"step": 8}), Config({"step": 16})])
        def inside(x, *, step):
            return x

        @autotune([Config({"step": 8}), Config({"step": 16})])
        @staticmethod
        def outside(x, *, step):
            return x

    for factor in (2, 3, 2):  # one key: the second object must not be taken for the first
        layer = Layer(factor)
        assert (layer.apply(np.ones(3)) == factor).all()
        assert (Layer.apply(layer, np.ones(3)) == factor).all()
    assert (Layer.apply.cache_info().searches, Layer.apply.cache_info().hits) == (1, 5)
    assert layer.name(np.ones(3)) == Layer.name(np.ones(3)) == "Layer"
    assert all(f(1) == 1 for f in (layer.inside, Layer.inside, layer.outside, Layer.outside))
