"""Tests of `check`: what agrees within a tolerance, what a reference may return, and who is checked."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from fakes import FakeConfig as Config
from paths import quick

from autotuned import Check, autotune
from autotuned.errors import AllConfigsFailedError, CheckError, DecorationError
from autotuned.search import race
from autotuned.search.safety.check import Checker
from autotuned.store import listing

CONFIGS = [Config({"step": step}) for step in (8, 16, 4)]
nan, inf = float("nan"), float("inf")


def difference(expected, got, **options):
    checker = Checker(Check("first", **options), "app.k", {})
    checker.take(["out"], [("out", expected)])
    return checker.difference([("out", got)])


@pytest.mark.parametrize("home", [np.array, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("expected", "got", "agrees"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 2.0], [1.0, 2.1], False),
        ([1000.0, 1e-9], [1000.0, 2e-9], True),  # beside the mean of all it is nothing
        ([nan, 1.0], [nan, 1.0], True),
        ([nan, 1.0], [1.0, 1.0], False),
        ([1.0, 1.0], [nan, 1.0], False),
        ([inf, 1.0], [inf, 1.0], True),
        ([inf, 1.0], [-inf, 1.0], False),
        ([0.0, 0.0], [0.0, 1e-20], False),
        ([], [], True),
        ([1, 2], [1, 2], True),
        ([100000, 2], [100000, 3], False),
        ([True, False], [True, True], False),
        ([1 + 1j], [1 + 1.1j], False),
        (1.0, 2.0, False),
    ],
    ids=str,
)
def test_two_results_agree(home, expected, got, agrees):
    assert (difference(home(expected), home(got)) is None) is agrees


@pytest.mark.parametrize(
    ("dtype", "change", "agrees"),
    [
        (torch.float64, 1e-6, False), (torch.float32, 1e-5, True), (torch.float32, 1e-3, False),
        (torch.float16, 1e-2, True), (torch.float16, 1e-1, False), (torch.bfloat16, 1e-2, True),
        (torch.float8_e4m3fn, 0.125, False), (torch.float8_e4m3fn, 0.0, True),
    ],
)  # fmt: skip
def test_each_dtype_has_its_tolerance(dtype, change, agrees):
    expected, got = torch.ones(8).to(dtype), (torch.ones(8, dtype=torch.float64) + change).to(dtype)
    assert (difference(expected, got) is None) is agrees


def test_tolerances_can_be_given():
    ones = np.ones(8, np.float32)
    assert difference(ones, ones + 0.1, tolerance=0.1) is None
    assert difference(ones, ones + 0.1, tolerance={"float32": 0.1}) is None
    assert difference(ones, ones + 0.1, tolerance={"float16": 0.1}) is not None
    assert difference(ones * nan, ones * nan, equal_nan=False) is not None


def test_a_difference_says_where_and_how_much():
    assert difference(np.arange(4.0), np.array([0, 1, 5, 3.0])) == (
        "Wrong: out: 1 of 4 elements differ from the reference; element 2: expected 2, got 5 (tolerance 1e-07)"
    )


@pytest.mark.parametrize("given", [3, "second", np.zeros(2)], ids=str)
def test_what_is_no_check_is_refused_at_decoration(given):
    with pytest.raises(DecorationError, match="check: expected a callable, 'first' or a Check"):
        autotune(CONFIGS, check=given)(lambda x, step: None)


def double(x, out, total, *, step):
    out[...] = 2 * x
    total += x.sum() + (step == 16)


def tuned(reference, **options):
    return autotune(CONFIGS, check=Check(reference, **options), reset_to_zero=["total"], do_bench=quick)(double)


def write(x, out, total):
    out[...] = 2 * x
    total[...] = x.sum()


REFERENCES = {
    "dict": lambda x: {"out": 2 * x, "total": x.sum(keepdims=True), "more": None},
    "tuple": lambda x: (2 * x, x.sum(keepdims=True)),
    "all arguments": lambda **arguments: (2 * arguments["x"], arguments["x"].sum(keepdims=True)),
    "writes": write,
}


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_reference_returns_or_writes(reference):
    function = tuned(REFERENCES[reference])
    x, out, total = np.arange(8.0), np.full(8, 5.0), np.full(1, 7.0)
    function(x, out, total)
    assert (out == 2 * x).all()
    assert total == 28
    (record,) = [record for _, record in listing.all_records()]
    assert [timing.status for timing in record.timings] == ["ok", "wrong", "ok"]
    assert record.timings[1].error.startswith("Wrong: total: 1 of 1 elements differ")


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        (lambda x: 1 / 0, "the reference raised ZeroDivisionError: division by zero; no config was judged"),
        (lambda x: {"out": x}, "the kernel writes 'total', which the reference does not return"),
        (lambda x: 2 * x, "expected outputs for out, total from the reference, got 1"),
        (lambda x: (x[1:], x), r"expected shape \(8,\) for 'out' from the reference, got \(7,\)"),
        (lambda x: ("no", x), r"expected shape \(8,\) for 'out' from the reference, got str"),
        (lambda x: (3 * x, x[:1]), "the reference disagrees with the majority: 3 of 3 configs checked differ"),
    ],
    ids=["raises", "dict", "one", "shape", "type", "alone"],
)
def test_a_bad_reference_stops_the_search_and_judges_nobody(reference, text):
    x, out, total = np.arange(8.0), np.full(8, 5.0), np.full(1, 7.0)
    with pytest.raises(CheckError, match=text):
        tuned(reference)(x, out, total)
    assert (out == 5).all()
    assert list(listing.all_records()) == []


def test_a_config_that_writes_nothing_is_found_by_poison_alone_where_the_data_is_right_already():
    def fill(out, *, step):
        if step != 8:
            out[...] = 1

    for poison, first in ((False, 8), (["out"], 16)):
        function = autotune(CONFIGS, check=Check(lambda: {"out": np.ones(8)}, poison=poison), do_bench=quick, name="f")(
            fill
        )
        function.tuner.chooser.state.forget()
        listing.clear()
        out = np.ones(8)
        if poison:
            function(out)
            assert function.best_config.kwargs["step"] == first
        else:
            function(np.zeros(8))
            assert function.best_config.kwargs["step"] == 16
        assert (out == 1).all()


def test_a_stored_timing_is_checked_before_it_wins():
    """The first search was interrupted; what it measured has not been compared with anything."""
    ran = []

    def interrupted_once(call, quantiles):
        call()
        ran.append(1)
        if len(ran) == 3:
            raise KeyboardInterrupt
        return [1.0] * 3

    def run(out, *, step):
        out[...] = step == 8

    with pytest.raises(KeyboardInterrupt):
        autotune(CONFIGS, do_bench=interrupted_once)(run)(np.zeros(8))
    (before,) = [record for _, record in listing.all_records()]
    assert before.winner is None
    function = autotune(CONFIGS, check=lambda: {"out": np.zeros(8)}, do_bench=interrupted_once)(run)
    out = np.ones(8)
    function(out)
    assert (out == 0).all()
    (after,) = [record for _, record in listing.all_records()]
    assert after.timings[0].status in ("wrong", "ok")
    assert function.best_config.kwargs["step"] != 8


@pytest.mark.parametrize("reference", ["first", lambda: {"out": np.ones(8)}], ids=["first", "callable"])
@pytest.mark.parametrize("wrong", [16, 4, None])
def test_where_everything_was_measured_before_what_the_check_launches_is_put_back(reference, wrong):
    """The first search was interrupted in its check: the next one launches nothing but for the check."""

    def run(out, *, step):
        out += 1 if step != wrong else 2

    def interrupted(**arguments):
        raise KeyboardInterrupt

    function = autotune(CONFIGS, check=interrupted, do_bench=quick)(run)
    out = np.zeros(8)
    with pytest.raises(KeyboardInterrupt):
        function(out)
    assert (out == 0).all()
    function = autotune(CONFIGS, check=reference, do_bench=quick)(run)
    function(out)
    assert function.restore_value == ["out"]
    assert function.best_config.kwargs["step"] != wrong
    assert (out == 1).all()


def test_one_config_that_survives_and_is_wrong_is_not_alone_to_blame(monkeypatch):
    """The survivors stand against the reference; then all that ran are asked."""
    monkeypatch.setattr(race, "FAR_OFF", 1.0)

    def run(out, *, step):
        out[...] = step == 16

    bench_us, order = {8: 2.0, 16: 1.0, 4: 3.0}, []

    def bench(call, quantiles):
        call()
        return [bench_us[order[-1]]] * 3

    def noted(out, *, step):
        order.append(step)
        run(out, step=step)

    function = autotune(CONFIGS, check=lambda: {"out": np.zeros(8)}, do_bench=bench)(noted)
    function(np.zeros(8))
    assert function.best_config.kwargs["step"] == 8


def test_all_wrong_in_different_ways_is_the_references_fault():
    def run(out, *, step):
        out[...] = step

    with pytest.raises((CheckError, AllConfigsFailedError), match="differ"):
        autotune(CONFIGS, check=lambda: {"out": np.zeros(8)}, do_bench=quick)(run)(np.zeros(8))


# -- what a check is made of -----------------------------------------------------------------------------------------

BAD_FIELDS = {
    "reference": ["last", 3, None, b"first", np.zeros(2)],
    "tolerance": [True, -1, -0.5, nan, inf, "0.1", {"float31": 0.1}, {"torch.float32": 0.1}, {"float32": -1},
                  {"float32": True}, {"float32": nan}, {3: 0.1}, [0.1], np.array([0.1])],
    "equal_nan": [1, None, "yes"],
    "poison": ["out", b"out", None, 1, [3], {"out": True}, ["out", None]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in BAD_FIELDS.items() for value in values], ids=str
)
def test_a_field_of_a_wrong_kind_is_refused_when_the_check_is_made(field, value):
    fields = {"reference": "first", field: value}
    with pytest.raises(DecorationError, match=f"^Check: {field}: expected .*, got "):
        Check(**fields)


def test_a_name_for_a_list_of_names_says_how_to_write_it():
    with pytest.raises(DecorationError, match=r"got 'out'\. Write poison=\['out'\]"):
        Check("first", poison="out")


@pytest.mark.parametrize("tolerance", [0, 0.0, 1, np.float32(0.1), {}, {"bfloat16": 0, "float8_e4m3fn": 0.1}])
@pytest.mark.parametrize("poison", [True, False, [], ["out"], ("out",)])
def test_fields_of_the_right_kind_are_taken(tolerance, poison):
    assert Check(len, tolerance, False, poison).poison == poison


@pytest.mark.parametrize(
    ("poison", "zeroed", "text"),
    [
        (["ou"], [], "poison names no argument: 'ou'. Did you mean 'out'?"),
        (["out"], ["out"], "'out' is in both poison and reset_to_zero"),
    ],
)
def test_names_to_poison_are_checked_at_decoration(poison, zeroed, text):
    with pytest.raises(ValueError, match=text.replace("?", r"\?")):
        autotune(CONFIGS, check=Check("first", poison=poison), reset_to_zero=zeroed)(lambda x, out, step: None)


# -- poison ----------------------------------------------------------------------------------------------------------


def fill(out, total, counts, *, step):
    """One output, an accumulator, and integers; one config leaves the output as it is."""
    total += 1
    counts += 1
    if step != 8:
        out[...] = 1


def right(out, total, counts):
    return {"out": out * 0 + 1, "total": total + 1, "counts": counts + 1}


HOMES = pytest.mark.parametrize(
    "home", [np.full, lambda *given: torch.from_numpy(np.full(*given))], ids=["numpy", "torch"]
)


@HOMES
@pytest.mark.parametrize("restore", [None, ["out", "total", "counts"]], ids=["found out", "listed"])
@pytest.mark.parametrize("poison", [True, ["out"], False], ids=str)
def test_poison_finds_who_writes_nothing_into_what_is_right_already(poison, restore, home):
    """An accumulator is not poisoned by True, and integers are not."""
    function = autotune(
        CONFIGS, check=Check(right, poison=poison), restore_value=restore, do_bench=quick, cache_results=False
    )(fill)
    out, total, counts = home(4, 1.0), home(4, 5.0), home(4, 7)
    function(out, total, counts)
    assert (function.best_config.kwargs["step"] == 8) is (poison is False)
    assert (out == 1).all()
    assert (total == 6).all()
    assert (counts == 8).all()


@HOMES
def test_a_call_whose_output_is_right_already_is_checked_as_any_other(home):
    """No launch changes it, and the reference was asked for no output at all: an error of a right kernel."""

    def copy(x, out, *, step):
        out[...] = 2 * x

    function = autotune(CONFIGS, check=lambda x: 2 * x, do_bench=quick, cache_results=False)(copy)
    x, out = home(4, 1.0), home(4, 2.0)
    function(x, out)
    assert (x == 1).all()
    assert (out == 2).all()


def test_a_reference_of_a_callable_that_writes_nothing_says_so():
    function = autotune(CONFIGS, check=lambda x: 2 * x, do_bench=quick, cache_results=False)(lambda x, *, step: None)
    with pytest.raises(CheckError, match="writes some of its arguments, found none written. Let the reference return"):
        function(np.full(4, 1.0))


@HOMES
@pytest.mark.parametrize("poison", [True, ["out"]], ids=str)
@pytest.mark.parametrize("reference", [lambda out: {"out": out * 0 + 1}, "first"], ids=["callable", "first"])
def test_what_was_filled_is_put_back_where_nothing_else_is(reference, poison, home):
    """Filled is the caller's own memory: also with restore_value=[] it holds the one launch's result afterwards."""

    def halve(out, *, step):
        out[: 2 if step == 16 else 4] = 1

    function = autotune(
        CONFIGS, check=Check(reference, poison=poison), restore_value=[], do_bench=quick, cache_results=False
    )(halve)
    out = home(4, 1.0)
    function(out)
    assert function.best_config.kwargs["step"] == 8
    assert (out == 1).all()


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def write_some(out_ptr, n, BLOCK: tl.constexpr, LEFT: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.full((BLOCK,), 1.0, tl.float32), mask=i < n - LEFT)


@pytest.mark.parametrize("poison", [True, ["out_ptr"], False], ids=str)
@pytest.mark.parametrize("restore", [None, [], ["out_ptr"]], ids=["found out", "none", "listed"])
def test_poison_of_a_kernel_finds_who_writes_half(poison, restore):
    configs = [triton.Config({"BLOCK": 16, "LEFT": left}) for left in (8, 0, 1, 0)]
    configs[-1].num_warps = 2
    check = Check(lambda out_ptr: {"out_ptr": torch.ones_like(out_ptr)}, poison=poison)
    kernel = autotune(configs, check=check, restore_value=restore, do_bench=quick, cache_results=False)(write_some)
    out = torch.ones(16, device=DEVICE)
    kernel[(1,)](out, 16)
    assert (kernel.best_config.kwargs["LEFT"] == 0) is (poison is not False)
    assert (out == 1).all()
