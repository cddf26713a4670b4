"""The nearest tuned shape: what may differ, how far, and which of several."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuned.configfiles import nearest_shape
from autotuned.configfiles.nearest_shape import Distance, Factors, Neighbourhood, Sizes, shape_of


def call(m: Any = 3, n: Any = 64, shape: Any = (3, 64), dtype: str = "torch.float16", **more: Any) -> dict[str, Any]:
    tensors = {"x": {"dtype": dtype, "strides": "*1", "shape": list(shape)}}
    return {"tensors": tensors, "values": {"M": m, "N": n}, "none": [], **more}


def test_a_call_is_its_sizes_on_the_named_axes_and_all_the_rest() -> None:
    one, other = shape_of(call(), ["M", "x"]), shape_of(call(7, shape=(9, 64)), ["M", "x"])
    assert one.sizes == (("M", 3), ("x.shape[0]", 3), ("x.shape[1]", 64))
    assert one.rest == other.rest
    assert shape_of(call(), ["M"]).rest != shape_of(call(shape=(9, 64)), ["M"]).rest


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(call(n=65), id="a value that is not named"),
        pytest.param(call(dtype="torch.bfloat16"), id="dtype"),
        pytest.param(call(shape=(3, 64, 1)), id="rank"),
        pytest.param(call(True), id="a bool"),
        pytest.param(call({"float": "0x1p+1"}), id="a float"),
        pytest.param(call(none=["bias"]), id="None"),
        pytest.param(call(options={"maxnreg": 128}), id="an option"),
    ],
)
def test_everything_else_must_be_equal(other: Any) -> None:
    assert shape_of(call(), ["M", "x"]).rest != shape_of(other, ["M", "x"]).rest


def test_items_of_a_tuple_belong_to_its_argument() -> None:
    sizes = shape_of({"tensors": {}, "values": {"dims[0]": 4, "dims[1]": 8}, "none": []}, ["dims"]).sizes
    assert sizes == (("dims[0]", 4), ("dims[1]", 8))
    assert distance(sizes, (("dims[0]", 5), ("dims[1]", 8)), {"dims": 2.0}) is not None


def distance(ours: Sizes, theirs: Sizes, factors: Factors) -> Distance | None:
    """How far a walk says that other sizes are; None where it does not meet them."""
    return next((far for far, _, _ in Neighbourhood([(theirs, None)]).around(ours, factors)), None)


def far(ours: int, theirs: int, factor: float = 2.0) -> Distance | None:
    return distance((("M", ours),), (("M", theirs),), {"M": factor})


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (8, 8, Distance(False, 0.0)),
        (8, 4, Distance(False, 1.0)),
        (8, 16, Distance(True, 1.0)),
        (8, 17, None),
        (8, 3, None),
        (0, 1, None),
        (1, 0, None),
        (0, 0, Distance(False, 0.0)),
        (-8, -4, None),
    ],
)
def test_distance_is_in_octaves_and_bounded_by_the_factor(ours: int, theirs: int, expected: Any) -> None:
    assert far(ours, theirs) == expected


def test_every_axis_has_a_factor_of_its_own() -> None:
    ours, theirs = (("M", 8), ("N", 8)), (("M", 16), ("N", 32))
    assert distance(ours, theirs, {"M": 2, "N": 4}) == Distance(True, round(math.sqrt(5), 6))
    assert distance(ours, theirs, {"M": 4, "N": 2}) is None


def test_a_factor_is_met_exactly_also_where_logarithms_are_not() -> None:
    assert far(3**20, 3**21, 3.0) is not None
    assert far(10, 21, 2.1) is not None


def chosen(ours: int, *table: int, factor: float = 2.0) -> int | None:
    found = {m: far(ours, m, factor) for m in table}
    return min((m for m in table if found[m] is not None), key=lambda m: (found[m], m), default=None)


@pytest.mark.parametrize(
    ("ours", "table", "expected"),
    [
        (3, (1, 2, 4, 8), 2),
        (2048, (1, 2, 4, 8), None),
        (0, (1, 2, 4, 8), None),
        (6, (1, 2, 8), 8),
        (6, (4, 8), 4),
        (7, (4, 8), 4),
        (5, (4, 3), 4),
    ],
)
def test_the_largest_that_is_not_above_comes_before_the_next_above_b95(ours: int, table: Any, expected: Any) -> None:
    assert chosen(ours, *table) == expected


AXES = st.integers(-1, 40)


@given(st.lists(st.tuples(AXES, AXES), unique=True, max_size=30), st.tuples(AXES, AXES), st.sampled_from([1, 2, 8.5]))
def test_a_walk_meets_what_a_look_at_all_finds_and_in_its_order(table: Any, ours: Any, factor: float) -> None:
    def placed(sizes: Any) -> Any:
        return tuple(zip(("M", "x.shape[0]"), sizes, strict=True))

    def is_near(sizes: Any) -> bool:
        sides = [(min(pair), max(pair), most) for *pair, most in zip(ours, sizes, (factor, 4.0), strict=True)]
        return all(small == large or 0 < small <= large <= small * most for small, large, most in sides)

    def apart(sizes: Any) -> Distance:
        octaves = [math.log2(mine / other) if mine != other else 0.0 for mine, other in zip(ours, sizes, strict=True)]
        is_above = any(other > mine for mine, other in zip(ours, sizes, strict=True))
        return Distance(is_above, round(math.hypot(*octaves), 6))

    near = sorted((apart(sizes), placed(sizes), sizes) for sizes in table if is_near(sizes))
    rows = Neighbourhood((placed(sizes), sizes) for sizes in table)
    assert list(rows.around(placed(ours), {"M": factor, "x": 4.0})) == near


def test_of_equally_near_ones_the_smaller_sizes_come_first_also_where_octaves_are_rounded() -> None:
    large = 1 << 40
    rows = Neighbourhood(((("M", m),), m) for m in range(large - 5, large + 6))
    assert [m for _, _, m in rows.around((("M", large),), {"M": 2.0})] == list(range(large - 5, large + 6))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"K": 2.0}, "nearest: 'K' must be in the key; in it are M, N"),
        ({"M": 0.5}, "M: expected a factor of 1 or more"),
        ({"M": math.inf}, "got inf"),
        ({"M": math.nan}, "got nan"),
        ({"M": True}, "got True"),
        ({"M": "2"}, "got '2'"),
    ],
)
def test_what_is_no_factor_is_refused(given: Any, problem: str) -> None:
    assert problem in nearest_shape.check(given, ["M", "N"], "app.k")
    assert nearest_shape.check({"M": 1, "N": 2.5}, ["M", "N"], "app.k") == ""


def test_a_neighbour_is_described() -> None:
    found = far(3, 4)
    assert found is not None
    assert nearest_shape.words((("M", 3),), (("M", 4),), found) == "nearest shape M=4 for M=3, 0.42 octaves away"
