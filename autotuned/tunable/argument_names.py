"""Names of arguments as a decoration lists them, checked against those that the kernel has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from autotuned.errors import ArgumentNameError, DecorationError
from autotuned.tunable import configs


class Names:
    """The checked name lists of one decoration; `restore` is None where it is to be found out."""

    def __init__(self, key: list[str] | None, zero: list[str] | None, restore: list[str] | None) -> None:
        self.key = key or []
        self.zero = zero or []
        self.restore = restore


def checked_names(label: str, given: Any, known: Sequence[str], kernel: str) -> list[str] | None:
    """The names in a list that a decoration gives, callables of `key` left out; None stays None.

    Raises:
        DecorationError: It is no list.
        ArgumentNameError: It holds a name that is no argument.
    """
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise DecorationError(
            f"`{kernel}`: {label}: expected a list of argument names, got {given!r:.60}. Write {label}=[{given!r:.60}]."
        )
    names = [name for name in given if not (label == "key" and callable(name))]
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise ArgumentNameError(
                f"`{kernel}`: {label} names no argument: {name!r}." + configs.suggestion(str(name), known),
                name=str(name),
                kernel=kernel,
            )
    return names
