"""Values of classes defined inside a function, each with a method that closes over a given value."""

from __future__ import annotations

import dataclasses
import enum
from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch


def plain(held: Any) -> Any:
    class Local:
        def method(self) -> Any:
            return held

    return Local()


def dataclass(held: Any) -> Any:
    @dataclasses.dataclass(frozen=True)
    class Local:
        size: int

        def method(self) -> Any:
            return held

    return Local(1)


def member(held: Any, base: type = enum.Enum) -> Any:
    class Local(base):  # type: ignore[misc, valid-type]
        ONE = 1
        TWO = 2

        def method(self) -> Any:
            return held

    return Local.ONE


def both_flags(held: Any) -> Any:
    one = member(held, enum.Flag)
    return one | type(one).TWO


def named_tuple(held: Any, *items: Any) -> Any:
    class Local(NamedTuple):
        out: Any
        by: Any

        def method(self) -> Any:
            return held

    return Local(*(items or (1, 2)))


def subclass_of_named(held: Any, *items: Any) -> Any:
    class Local(namedtuple("Local", "out by")):  # type: ignore[misc]
        def method(self) -> Any:
            return held

    return Local(*(items or (1, 2)))


def array(held: Any) -> Any:
    class Local(np.ndarray):  # type: ignore[type-arg]
        def method(self) -> Any:
            return held

    return np.zeros(3).view(Local)


def tensor(held: Any) -> Any:
    class Local(torch.Tensor):
        def method(self) -> Any:
            return held

    return torch.zeros(3).as_subclass(Local)


MADE: dict[str, Callable[[Any], Any]] = {
    "object": plain, "class": lambda held: type(plain(held)), "dataclass": dataclass, "enum": member,
    "int enum": lambda held: member(held, enum.IntEnum), "flags": both_flags, "named tuple": named_tuple,
    "subclass of a named tuple": subclass_of_named, "in a tuple": lambda held: (1, named_tuple(held)),
    "enum in a tuple": lambda held: (1, member(held)), "array": array, "tensor": tensor,
}  # fmt: skip
