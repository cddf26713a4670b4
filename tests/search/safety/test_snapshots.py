from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fakes import FakeDescriptor, FakeTensor

from autotuned.key.memory import aliases, tensors_in, unshared
from autotuned.launch.bound import zero, zero_named
from autotuned.search.safety.protection import Protection, Snapshot


def ones(n: int = 4) -> Any:
    return np.ones(n, np.float32)


class ArrayDescriptor:
    """A descriptor over an array."""

    def __init__(self, base: Any) -> None:
        self.base, self.block_shape = base, [1]


# -- one tensor ------------------------------------------------------------------------------------------------------


def two_dimensional() -> Any:
    return np.arange(24, dtype=np.int32).reshape(4, 6)


VIEWS: dict[str, Callable[[], tuple[Any, Any]]] = {
    # the buffer, and the view of it that a kernel gets
    "whole": lambda: (buffer := two_dimensional(), buffer),
    "every other element": lambda: (buffer := two_dimensional(), buffer[:, ::2]),
    "every other row": lambda: (buffer := two_dimensional(), buffer[::2]),
    "transposed": lambda: (buffer := two_dimensional(), buffer.T),
    "reversed": lambda: (buffer := two_dimensional(), buffer[::-1, ::-1]),
    "with an offset": lambda: (buffer := two_dimensional(), buffer[1:, 3:]),
    "overlapping windows": lambda: (
        buffer := np.arange(6, dtype=np.int32),
        np.lib.stride_tricks.as_strided(buffer, (4, 3), (4, 4)),
    ),
    "one element many times": lambda: (
        buffer := np.arange(3, dtype=np.int32),
        np.lib.stride_tricks.as_strided(buffer[1:], (4, 4), (0, 0)),
    ),
    "empty": lambda: (buffer := two_dimensional(), buffer[:0]),
    "no dimensions": lambda: (buffer := np.array(5), buffer),
}


@pytest.mark.parametrize("view", VIEWS)
def test_restoring_puts_back_the_elements_of_a_view_and_touches_nothing_between_them(view: str) -> None:
    buffer, tensor = VIEWS[view]()
    before = buffer.copy()
    snapshot = Snapshot(["x"], tensor)
    assert not snapshot.changed()
    buffer += 100  # the elements, and what lies between them
    assert snapshot.changed() is (tensor.size > 0)
    snapshot.restore()
    assert not snapshot.changed()
    np.testing.assert_array_equal(tensor, VIEWS[view]()[1])
    tensor[...] = 0
    between = buffer != 0
    np.testing.assert_array_equal(buffer[between], before[between] + 100)


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        pytest.param(0x7FC00000, 0x7FC00000, False, id="the same NaN"),
        pytest.param(0x7FC00000, 0x7FC00001, True, id="a NaN of another payload"),
        pytest.param(0x00000000, 0x80000000, True, id="minus zero"),
        pytest.param(0x3F800000, 0x3F800000, False, id="one"),
    ],
)
def test_a_change_is_a_change_of_bits(before: int, after: int, changed: bool) -> None:
    bits = np.array([before], np.uint32)
    snapshot = Snapshot(["x"], bits.view(np.float32))
    bits[0] = after
    assert snapshot.changed() is changed
    snapshot.restore()
    assert bits[0] == before


def test_the_tensors_of_an_argument() -> None:
    a, b, c, d, e = (ones() for _ in range(5))
    nested = (a, None, 5, np.float32(1), (ArrayDescriptor(b), (c,)), "text", [d, {"key": e, "text": "key"}])
    assert [(name, id(found)) for name, found in tensors_in("t", nested)] == [("t", id(x)) for x in (a, b, c, d, e)]
    assert list(tensors_in("t", None)) == list(tensors_in("t", 5)) == []


# -- protection ------------------------------------------------------------------------------------------------------


def test_declared_names_are_restored_before_each_trial_and_at_the_end() -> None:
    x, w = ones(), ones()
    protection = Protection({"x": x, "w": w, "n": 5}, ["x"], [])
    assert protection.written == ["x"]
    for _ in range(3):
        protection.prepare()
        np.testing.assert_array_equal(x, ones())
        x *= 0.5
        w += 1
        protection.learn()
    protection.release()
    np.testing.assert_array_equal(x, ones())
    np.testing.assert_array_equal(w, ones() + 3)  # not named, so not protected


def test_what_the_first_launch_of_each_config_writes_is_found_out_and_restored() -> None:
    x, y, w = ones(), ones(), ones()
    protection = Protection({"x": x, "y": y, "w": w, "eps": 0.5, "none": None}, None, [])
    assert protection.written == []
    protection.prepare()
    x += 1
    protection.learn()
    assert protection.written == ["x"]
    protection.prepare()
    np.testing.assert_array_equal(x, ones())
    y += 1  # another config writes elsewhere
    protection.learn()
    assert protection.written == ["x", "y"]
    protection.prepare()
    np.testing.assert_array_equal(y, ones())
    protection.release()
    np.testing.assert_array_equal([x, y, w], [ones()] * 3)


def test_names_come_once_however_many_tensors_they_hold() -> None:
    a, b = ones(), ones()
    protection = Protection({"pair": (a, b)}, None, [])
    a += 1
    b += 1
    protection.learn()
    assert protection.written == ["pair"]
    protection.release()
    np.testing.assert_array_equal([a, b], [ones()] * 2)


def test_without_names_nothing_is_copied_or_restored() -> None:
    x = ones()
    protection = Protection({"x": x}, [], [])
    protection.prepare()
    x += 1
    protection.learn()
    protection.release()
    assert protection.written == []
    np.testing.assert_array_equal(x, ones() + 1)


def test_a_trial_that_writes_and_fails_leaves_no_trace() -> None:
    x = ones()
    protection = Protection({"x": x}, None, [])
    try:
        protection.prepare()
        x += 1
        raise RuntimeError("illegal memory access")
    except RuntimeError:
        protection.learn()  # as a search does after a failure
    protection.release()
    np.testing.assert_array_equal(x, ones())


def test_releasing_twice_restores_once() -> None:
    x = ones()
    protection = Protection({"x": x}, ["x"], [])
    x += 1
    protection.release()
    x += 1  # the caller's own work, after the search
    protection.release()
    protection.prepare()
    np.testing.assert_array_equal(x, ones() + 1)
    assert protection.written == []


def test_one_copy_a_tensor_is_made_once_and_dropped_at_the_end() -> None:
    class Counting:
        """An array that counts its copies."""

        dtype, shape, strides, itemsize = np.dtype("int8"), (1,), (1,), 1
        copies = 0

        def copy(self) -> Any:
            Counting.copies += 1
            return np.zeros(1, np.int8)

        def __setitem__(self, where: Any, value: Any) -> None: ...

        def tobytes(self) -> bytes:
            return b"\x01"

    protection = Protection({"x": Counting(), "kv": Counting()}, ["x"], [])
    for _ in range(5):
        protection.prepare()
        protection.learn()
    protection.release()
    assert Counting.copies == 1


@pytest.mark.parametrize("restore", [[], None, ["x"]], ids=["unprotected", "watching", "declared"])
def test_accumulators_are_zero_before_each_trial(restore: Any) -> None:
    out, x = ones() * 7, ones()
    protection = Protection({"out": out, "x": x, "none": None}, restore, ["out", "none"])
    for _ in range(2):
        protection.prepare()
        np.testing.assert_array_equal(out, 0 * ones())
        out += x
        protection.learn()


def test_watching_gives_an_accumulator_back_as_it_came() -> None:
    out = ones() * 7
    protection = Protection({"out": out}, None, ["out"])
    protection.prepare()
    out += 1
    protection.learn()
    protection.release()
    np.testing.assert_array_equal(out, ones() * 7)


@pytest.mark.parametrize(
    "overlap", [slice(None), slice(1, None), slice(None, None, -1)], ids=["same", "partial", "reversed"]
)
@pytest.mark.parametrize("restore", [None, ["x", "out"]], ids=["watching", "declared"])
def test_arguments_that_share_memory_are_restored_together(overlap: slice, restore: Any) -> None:
    x = np.arange(8, dtype=np.int32)
    out = x[overlap]
    protection = Protection({"x": x, "out": out}, restore, [])
    for _ in range(2):
        protection.prepare()
        np.testing.assert_array_equal(x, np.arange(8))
        out *= -1
        protection.learn()
    protection.release()
    np.testing.assert_array_equal(x, np.arange(8))


def test_zeroing_skips_what_is_no_tensor() -> None:
    x, inner = ones(), ones()
    zero_named({"x": x, "t": (inner, None), "n": 5, "none": None}, ["x", "t", "none"], "app.k")
    np.testing.assert_array_equal([x, inner], np.zeros((2, 4)))


def test_zeroing_a_view_leaves_the_rest() -> None:
    buffer = np.ones(6)
    zero([buffer[::2]])
    np.testing.assert_array_equal(buffer, [0, 1, 0, 1, 0, 1])


# -- aliases ---------------------------------------------------------------------------------------------------------

BUFFER = np.zeros(64, np.float32)
MATRIX = np.zeros((8, 8), np.float32)


def at(address: int, *shape: int, **layout: Any) -> FakeTensor:
    return FakeTensor(*shape, address=address, **layout)


@pytest.mark.parametrize(
    ("out", "x", "shared"),
    [
        pytest.param(at(4096, 16), at(4096, 16), True, id="the same"),
        pytest.param(at(4096, 16), at(4100, 16), True, id="partial"),
        pytest.param(at(4096, 16), at(4096 + 60, 1), True, id="the last element"),
        pytest.param(at(4096, 16), at(4096 + 64, 16), False, id="right behind"),
        pytest.param(at(4096 + 64, 16), at(4096, 16), False, id="right before"),
        pytest.param(at(4096, 16, itemsize=2), at(4096 + 32, 16), False, id="right behind two-byte elements"),
        pytest.param(at(4096, 4, 4, strides=(100, 1)), at(4096 + 1212, 1), True, id="inside strided rows"),
        pytest.param(at(4096, 4, 4, strides=(0, 1)), at(4096 + 16, 1), False, id="behind expanded rows"),
        pytest.param(at(4096, 0), at(4096, 16), False, id="empty"),
        pytest.param(at(4096), at(4096, 16), True, id="no dimensions"),
        pytest.param((at(0, 1), at(4096, 16)), at(4096, 1), True, id="in a tuple"),
        pytest.param(FakeDescriptor(at(4096, 16)), at(4096, 1), True, id="in a descriptor"),
        pytest.param(None, at(4096, 16), False, id="none"),
        pytest.param(BUFFER, BUFFER, True, id="the same array"),
        pytest.param(BUFFER[:32], BUFFER[32:], False, id="halves of an array"),
        pytest.param(BUFFER[:33], BUFFER[32:], True, id="overlapping halves of an array"),
        pytest.param(BUFFER[31::-1], BUFFER[32:], False, id="reversed half of an array"),
        pytest.param(BUFFER[32::-1], BUFFER[32:], True, id="reversed and overlapping"),
        pytest.param(MATRIX.T, MATRIX[7:], True, id="transposed"),
        pytest.param(BUFFER, MATRIX, False, id="two arrays"),
    ],
)
def test_which_arguments_share_memory(out: Any, x: Any, shared: bool) -> None:
    assert aliases({"n": 5, "out": out, "x": x}, ["out"]) == (("out", "x") if shared else None)
    assert aliases({"x": x, "out": out}, ["out"]) == (("out", "x") if shared else None)


def test_sharing_memory_with_a_name_that_is_not_asked_about_is_nothing() -> None:
    assert aliases({"x": BUFFER, "y": BUFFER, "out": MATRIX}, ["out", "absent"]) is None
    assert aliases({"x": BUFFER, "y": BUFFER}, []) is None


def test_which_arguments_share_memory_with_no_other() -> None:
    arguments = {"x": BUFFER[:32], "y": BUFFER[31:], "out": MATRIX, "again": MATRIX}
    assert unshared(arguments, ["y", "out"]) == set()
    assert unshared(arguments, ["out", "again", "absent"]) == {"out", "again", "absent"}
    assert unshared(arguments, ["x", "y", "out"]) == {"x", "y"}


def test_tensors_of_one_argument_may_share_memory() -> None:
    assert aliases({"out": (BUFFER, BUFFER)}, ["out"]) is None
