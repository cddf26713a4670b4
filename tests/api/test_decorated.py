"""What is decorated, and in which order with Triton's own decorators: what works, and what says which order would."""

import pytest
import torch
import triton
import triton.language as tl
from paths import quick
from stepped import STEPS, halve
from stored import says
from triton import Config

from autotuned import autotune
from autotuned.errors import CallError, ConfigError, DecorationError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]


def plain(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr, FACTOR: tl.constexpr = 2):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n_cols) * FACTOR, mask=i < n_cols)


double = triton.jit(plain)
TUNE = autotune(CONFIGS, do_bench=quick)
HEURISTICS = triton.heuristics({"FACTOR": lambda arguments: 2})


@pytest.fixture
def xy():
    return torch.ones(50, device=DEVICE), torch.zeros(50, device=DEVICE)


@pytest.mark.parametrize(
    "stack",
    [
        lambda f: TUNE(triton.jit(f)),
        lambda f: TUNE(HEURISTICS(triton.jit(f))),
        lambda f: HEURISTICS(TUNE(triton.jit(f))),
        lambda f: HEURISTICS(HEURISTICS(TUNE(HEURISTICS(triton.jit(f))))),
    ],
    ids=["tune-jit", "tune-heuristics-jit", "heuristics-tune-jit", "four-layers"],
)
def test_orders_of_decorators_that_work(stack, xy):
    kernel = stack(plain)
    for _ in range(2):
        kernel[(4,)](*xy, 50)
        assert torch.equal(xy[1], 2 * xy[0])
        xy[1].zero_()


@pytest.mark.parametrize(
    "stack",
    [lambda f: TUNE(TUNE(f)), lambda f: TUNE(triton.autotune(CONFIGS, key=[])(f)), lambda f: TUNE(HEURISTICS(TUNE(f)))],
    ids=["twice", "over-tritons", "with-heuristics-between"],
)
def test_a_tuner_over_a_tuner(stack):
    with pytest.raises(DecorationError) as caught:
        stack(double)
    says(caught, "expected a kernel that is not tuned yet, got one under another autotune", "Keep one of the two")


def test_tritons_tuner_over_ours(xy):
    """Triton asks nobody before it decorates; its first call meets the conflict."""
    kernel = triton.autotune(CONFIGS[:1], key=[])(TUNE(double))
    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        kernel[(4,)](*xy, 50)


def test_a_tuned_callable_tuned_again():
    with pytest.raises(DecorationError, match="this callable is tuned already. Keep one of the two decorators"):
        autotune(STEPS)(autotune(STEPS)(halve))


@pytest.mark.parametrize(
    ("stack", "error"),
    [
        (lambda f: triton.jit(TUNE(triton.jit(f))), (AssertionError, TypeError)),  # Triton's own, at decoration
        (lambda f: TUNE(HEURISTICS(f)), AttributeError),  # Triton's: heuristics over a plain function
        (lambda f: HEURISTICS(TUNE(f))[(4,)], None),
        (lambda f: TUNE(f)[(4,)], None),
        (lambda f: HEURISTICS(HEURISTICS(TUNE(f))).run, None),
        (lambda f: TUNE(f).run, None),
        (lambda f: triton.autotune(CONFIGS[:1], key=[])(TUNE(f))[(4,)], None),
    ],
    ids=[
        "jit-on-top",
        "heuristics-without-jit",
        "heuristics-tune",
        "tune-alone",
        "two-heuristics",
        "run",
        "under-tritons-autotune",
    ],
)
def test_orders_of_decorators_that_do_not(stack, error, xy):
    if error is not None:
        with pytest.raises(error):
            stack(plain)
        return
    with pytest.raises(DecorationError) as caught:
        launch = stack(plain)
        launch(*xy, 50)
    says(caught, "this is a plain callable and takes no grid", "put @triton.jit between @autotune and the function")


class Kernel:
    def __init__(self, step):
        self.step = step


@pytest.mark.parametrize("thing", [Kernel, 5, None, "double", [halve]], ids=["class", "number", "none", "text", "list"])
def test_what_cannot_be_decorated(thing):
    with pytest.raises(DecorationError) as caught:
        autotune(CONFIGS)(thing)
    says(
        caught,
        "expected a @triton.jit kernel or a function, got ",
        "The order is @autotune(configs=[...]) on top, then @triton",
    )


def test_a_decorator_without_configs():
    with pytest.raises(DecorationError) as caught:
        autotune(double)  # as `@autotune` above it does
    says(caught, "expected configs, got the kernel itself. Write @autotune(configs=[...])")


def test_a_config_without_what_others_set(xy):
    partial = [Config({"BLOCK": 16}), Config({}, num_warps=8)]
    with pytest.raises(ConfigError) as caught:
        autotune(partial)(double)
    says(caught, "expected 'BLOCK' in every config, since some set it and it has no default, got one without it: num_")
    autotune(partial, prune_configs_by={"early_config_prune": lambda configs, *_, **__: configs[:1]})(double)[(4,)](
        *xy, 50
    )
    assert torch.equal(xy[1], 2 * xy[0])
    autotune([Config({"BLOCK": 16, "FACTOR": 2}), Config({"BLOCK": 16})])(double)  # FACTOR has a default


def test_a_tunable_that_neither_the_call_nor_a_config_sets(xy):
    with pytest.raises(CallError) as caught:
        autotune([])(double)[(4,)](*xy, 50)
    says(caught, "argument 'BLOCK' is missing. Expected: x_ptr, y_ptr, n_cols, BLOCK", "or set it in every config.")


def test_a_builtin_has_no_python_inside():
    with pytest.raises(
        DecorationError, match="expected something with a Python function inside, got <built-in function"
    ):
        autotune(CONFIGS)(len)


@pytest.mark.parametrize("function", [lambda *args, step: None, lambda x, **kwargs: None], ids=["args", "kwargs"])
def test_parameters_without_names(function):
    with pytest.raises(DecorationError) as caught:
        autotune(STEPS)(function)
    says(caught, "expected named parameters only, got *", "Name every argument")


def one(x, *, step):
    return x


def other(x, *, step):
    return -x


def test_one_explicit_name_for_two_kernels():
    autotune(STEPS, name="app.kernel")(one)
    autotune(STEPS, name="app.kernel")(one)  # the same source: as when a module is loaded again
    with pytest.raises(DecorationError) as caught:
        autotune(STEPS, name="app.kernel")(other)
    says(caught, "name='app.kernel' is taken by a kernel with different source", "Names must be unique")
