"""`autotuned.heuristics`: what Triton's does, on both launchers."""

import sys

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config
from triton.runtime.autotuner import Heuristics as TritonHeuristics

import autotuned
from autotuned import autotune
from autotuned.errors import ArgumentNameError, CallError, DecorationError

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]


def copy(x_ptr, y_ptr, n, m=3, EVEN: tl.constexpr = False, ROWS: tl.constexpr = 1, BLOCK: tl.constexpr = 16):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


def tuned():
    return autotune(list(CONFIGS), key=["n"], do_bench=fake_cuda.by_config({16: 2.0, 32: 1.0}))(triton.jit(copy))


def even(arguments):
    return arguments["n"] % 2 == 0


def rows(arguments):
    return 4 if arguments["EVEN"] else 2


VALUES = {"EVEN": even, "ROWS": rows}


@pytest.fixture
def xy():
    return torch.zeros(100), torch.zeros(100)


def nested(decorator, kernel):
    return decorator({"EVEN": even})(decorator({"ROWS": lambda arguments: rows(arguments)})(kernel))


STACKS = {
    "two values": lambda decorator, kernel: decorator(dict(VALUES))(kernel),
    "nested": nested,
    "no value": lambda decorator, kernel: decorator({})(kernel),
}
CALLS = {
    "by place": lambda kernel, x, y, n, grid: kernel[grid](x, y, n),
    "by name": lambda kernel, x, y, n, grid: kernel[grid](n=n, y_ptr=y, x_ptr=x),
    "a default given": lambda kernel, x, y, n, grid: kernel[grid](x, y, n, 5),
    "run": lambda kernel, x, y, n, grid: kernel.run(x, y, n, grid=grid, warmup=False),
    "run by name": lambda kernel, x, y, n, grid: kernel.run(grid=grid, x_ptr=x, y_ptr=y, n=n, warmup=False),
    "a value by name": lambda kernel, x, y, n, grid: kernel[grid](x, y, n, EVEN=None, m=2),
    "names made anew": lambda kernel, x, y, n, grid: kernel[grid](x, **{new("y_ptr"): y, new("n"): n, new("m"): 2}),
    "run, names made anew": lambda kernel, x, y, n, grid: kernel.run(
        x, y, n, **{new("grid"): grid, new("warmup"): False}
    ),
}


def new(name):
    """A name that is equal to what is interned and is another object, as of one read from a file."""
    return "".join(list(name)) if len(name) > 1 else name


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("call", CALLS)
def test_it_launches_what_tritons_launches(launches, xy, stack, call):
    ours, stock = (STACKS[stack](decorator, tuned()) for decorator in (autotuned.heuristics, triton.heuristics))

    def grid(meta):
        return (meta["n"], meta["ROWS"], meta["BLOCK"])

    for n in (100, 99, 100, 99):
        returned = []
        for kernel in (ours, stock):
            returned.append(CALLS[call](kernel, *xy, n, grid))
        assert returned[0] is not None
        assert type(returned[0]) is type(returned[1])
        one, other = launches[-2:]
        assert (one.grid, one.arguments, one.stream) == (other.grid, other.arguments, other.stream)
    innermost = ours.fn.fn if stack == "nested" else ours.fn
    assert innermost.cache_info().hits >= 2
    assert innermost.best_config.kwargs == {"BLOCK": 32}


@pytest.mark.parametrize("call", CALLS)
def test_functions_see_what_triton_shows_them(xy, call):
    def calls_of(decorator):
        seen = []

        def note(name, function):
            def noted(arguments):
                assert type(arguments) is dict
                seen.append((name, list(arguments), dict(arguments)))
                value = function(arguments)
                arguments.clear()  # it is the function's own
                return value

            return noted

        kernel = decorator({name: note(name, function) for name, function in VALUES.items()})(tuned())
        for n in (100, 99, 100):
            CALLS[call](kernel, *xy, n, (4,))
        return seen

    ours, stock = calls_of(autotuned.heuristics), calls_of(triton.heuristics)
    assert [name for name, *_ in ours] == ["EVEN", "ROWS"] * 3
    assert ours == stock
    assert "m" in ours[0][1] or "m" not in CALLS[call].__code__.co_names


def test_a_grid_given_again_by_name_is_an_error(launches, xy):
    kernel = autotuned.heuristics(VALUES)(tuned())
    kernel[(4,)](*xy, 100)
    for name in ("grid", "warmup"):
        with pytest.raises(TypeError, match=name):
            kernel[(4,)](*xy, 100, **{new(name): None})


def test_calls_of_several_forms_take_turns(launches, xy):
    """The names of one call are kept for the next, which may have others."""
    seen = []
    kernel = autotuned.heuristics({"EVEN": lambda arguments: seen.append(list(arguments)) or True})(tuned())
    forms = [
        ({"n": 100}, {}),
        ({}, {"n": 100}),
        ({"m": 2}, {"n": 100}),
        ({}, {"m": 2, "n": 100}),
        ({"ROWS": 2}, {"n": 100}),
    ]
    for more, first in forms * 2:
        kernel[(4,)](*xy, **first, **more)
        assert seen[-1] == ["x_ptr", "y_ptr", "grid", "warmup", *first, *more]
        assert {name: launches[-1].arguments[name] for name in more} == more
    assert kernel.fn.cache_info().hits >= len(forms)


def test_a_value_given_by_place_too_is_an_error(launches, xy):
    kernel = autotuned.heuristics(VALUES)(tuned())
    with pytest.raises(CallError, match="'EVEN' was given twice"):
        kernel[(4,)](*xy, 100, 3, True)
    assert launches == []


def test_values_are_live(launches, xy):
    values = dict(VALUES)
    kernel = autotuned.heuristics(values)(tuned())
    for _ in range(3):
        kernel[(4,)](*xy, 100)
    assert launches[-1].arguments["ROWS"] == 4
    values["ROWS"] = lambda arguments: 8
    kernel[(4,)](*xy, 100)
    assert launches[-1].arguments["ROWS"] == 8
    del kernel.values["ROWS"]
    kernel[(4,)](*xy, 100)
    assert launches[-1].arguments["ROWS"] == 1
    kernel.values = {"ROWS": lambda arguments: 2}
    kernel[(4,)](*xy, 100)
    assert (launches[-1].arguments["EVEN"], launches[-1].arguments["ROWS"]) == (False, 2)


def test_another_kernel_put_in_its_place_is_launched(launches, xy):
    kernel = autotuned.heuristics(VALUES)(tuned())
    for _ in range(2):
        kernel[(4,)](*xy, 100)
    kernel.fn = autotune([Config({"BLOCK": 64})])(triton.jit(copy))
    kernel[(4,)](*xy, 100)
    assert launches[-1].arguments["BLOCK"] == 64
    kernel.fn = triton.jit(copy)
    kernel[(4,)](*xy, 100, BLOCK=128)
    assert launches[-1].arguments["BLOCK"] == 128


def test_a_later_patch_of_tritons_run_is_called(launches, xy, monkeypatch):
    kernel = autotuned.heuristics(VALUES)(tuned())
    for _ in range(2):
        kernel[(4,)](*xy, 100)
    original, seen = TritonHeuristics.run, []

    def run(self, *args, **kwargs):
        seen.append(self)
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(TritonHeuristics, "run", run)
        kernel[(4,)](*xy, 100)
        assert seen == [kernel]
        assert launches[-1].arguments["ROWS"] == 4
    kernel[(4,)](*xy, 100)
    assert seen == [kernel]


def test_a_subclass_of_the_tuner_with_a_run_of_its_own_is_called(xy):
    kernel, seen = tuned(), []

    class Counting(type(kernel)):
        def run(self, *args, **kwargs):
            seen.append(kwargs["EVEN"])
            return super().run(*args, **kwargs)

    kernel.__class__ = Counting
    over = autotuned.heuristics(VALUES)(kernel)
    for n in (100, 99, 100):
        over[(4,)](*xy, n)
    assert seen == [True, False, True]


@pytest.mark.parametrize("which", ["EVEN", "ROWS"])
def test_an_error_in_a_function_is_raised_and_nothing_is_launched(launches, xy, which):
    def broken(arguments):
        raise KeyError("broken")

    values = dict(VALUES)
    kernel = autotuned.heuristics(values)(tuned())
    for _ in range(2):
        kernel[(4,)](*xy, 100)
    count = len(launches)
    values[which] = broken
    for _ in range(2):
        with pytest.raises(KeyError, match="broken"):
            kernel[(4,)](*xy, 100)
    assert len(launches) == count


def test_nothing_is_kept_of_a_call(launches, xy):
    text, x = "".join(["ro", "ws"]), torch.zeros(100)
    kernel = autotuned.heuristics({"EVEN": even, "ROWS": lambda arguments: 4})(tuned())
    for _ in range(3):
        kernel[(4,)](x, xy[1], 100)
    launches.clear()
    before = sys.getrefcount(x), sys.getrefcount(kernel.fn), sys.getrefcount(text)
    for _ in range(100):
        kernel[(4,)](x, xy[1], 100)
        kernel.run(x, y_ptr=xy[1], n=100, grid=(4,), warmup=False)
    launches.clear()
    assert (sys.getrefcount(x), sys.getrefcount(kernel.fn), sys.getrefcount(text)) == before


def test_many_values(launches, xy):
    names = [f"F{i}" for i in range(20)]
    parameters = ", ".join(f"{name}: tl.constexpr" for name in names)
    source = f"def many(x_ptr, y_ptr, n, {parameters}, BLOCK: tl.constexpr):\n    i = tl.arange(0, BLOCK)\n"
    source += "    tl.store(y_ptr + i, tl.load(x_ptr + i))\n"
    import importlib.util
    import pathlib
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "many.py")
        path.write_text("import triton.language as tl\n" + source)
        spec = importlib.util.spec_from_file_location("many", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        decorate = autotune(list(CONFIGS), do_bench=fake_cuda.by_config({16: 2.0, 32: 1.0}))
        values = {name: lambda arguments, i=i: i + len(arguments) for i, name in enumerate(names)}
        kernel = autotuned.heuristics(values)(decorate(triton.jit(module.many)))
        for _ in range(2):
            kernel[(4,)](*xy, 100)
    assert [launches[-1].arguments[name] for name in names] == [i + 5 + i for i in range(20)]


@pytest.mark.parametrize("below", ["plain", "inside"])
def test_over_other_kernels_it_does_what_tritons_does(launches, xy, below):
    def stack(decorator):
        if below == "plain":
            return decorator(VALUES)(triton.jit(copy))
        bench = fake_cuda.by_config({16: 2.0, 32: 1.0})
        return autotune(list(CONFIGS), key=["n"], do_bench=bench)(decorator(VALUES)(triton.jit(copy)))

    ours, stock = stack(autotuned.heuristics), stack(triton.heuristics)
    options = {"BLOCK": 64} if below == "plain" else {}
    for n in (100, 99, 100):
        ours[(4,)](*xy, n, **options)
        stock[(4,)](*xy, n, **options)
        assert launches[-2].arguments == launches[-1].arguments


def test_warm_up_compiles_and_launches_nothing(launches, xy):
    kernel = autotuned.heuristics(VALUES)(autotune([Config({"BLOCK": 32})])(triton.jit(copy)))
    compiled = kernel.run(*xy, 100, grid=(4,), warmup=True)
    assert compiled.metadata.name == "copy"
    assert launches == []


def test_it_is_tritons_class_and_a_call_without_a_grid_says_so(xy):
    kernel = autotuned.heuristics(VALUES)(tuned())
    assert isinstance(kernel, TritonHeuristics)
    assert (kernel.values, kernel.arg_names) == (VALUES, kernel.fn.arg_names)
    with pytest.raises(CallError, match="expected a grid"):
        kernel.run(*xy, 100)


@pytest.mark.parametrize(
    ("values", "over", "error", "message"),
    [
        pytest.param({"EVN": even}, triton.jit(copy), ArgumentNameError, "'EVN'.*Did you mean 'EVEN'", id="name"),
        pytest.param({"EVEN": True}, triton.jit(copy), DecorationError, "functions of the arguments", id="no function"),
        pytest.param([even], triton.jit(copy), DecorationError, "expected a dict", id="no mapping"),
        pytest.param(VALUES, copy, DecorationError, "@triton.jit kernel", id="no kernel"),
    ],
)
def test_what_cannot_be_decorated_says_why(values, over, error, message):
    with pytest.raises(error, match=message):
        autotuned.heuristics(values)(over)


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_over_a_decorated_kernel_no_python_but_the_functions_runs(stack, xy, launcher, launches, monkeypatch):
    """In C a hit must not go through Triton's `run`, whatever class a decorated kernel has."""
    kernel = stack(autotuned.heuristics, tuned())
    kernel[(2,)](*xy, 100)
    seen = []
    sys.setprofile(lambda frame, event, argument: seen.append(frame.f_code) if event == "call" else None)
    try:
        kernel[(2,)](*xy, 100)
    finally:
        sys.setprofile(None)
    assert (TritonHeuristics.run.__code__ in seen) == (launcher == "python")
