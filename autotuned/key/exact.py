"""Fingerprints that distinguish binaries: finer than keys, since values are compiled into machine code.

Calls that differ in the sign of zero, an object's class and contents, state set by its methods, or code of other
packages may share a choice, but not a binary.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import Any

from autotuned.errors import EncodingError
from autotuned.key import classes
from autotuned.key.key import is_tensor
from autotuned.key.reach import is_toolchain
from autotuned.key.source import (
    Fingerprint,
    Opaque,
    Walk,
    attributes,
    is_exact,
    is_settled,
    same_items,
)
from autotuned.typed_json import DEPTH, Json, encode, is_numpy_scalar, type_name

_CONSTEXPR = "triton.language.core.constexpr"


class ExactWalk(Walk):
    """Records everything that machine code may depend on; `Walk` records what a choice depends on."""

    _most, _sorts = 10_000, False

    def _counts(self, package: str | None, module: str | None) -> bool:
        return package == self.package or not is_settled(module)

    def _members(self, kind: type) -> Iterable[tuple[str, Any]]:
        return classes.all_members(kind)

    def _passing(self, kind: type) -> Iterable[str]:
        return ()

    def _wrapped(self, name: str, function: FunctionType) -> None:
        self.value(name, function)

    def _data(self, name: str, value: Any, whole: bool) -> None:
        if type_name(value) == _CONSTEXPR:
            self.lines.append(f"{name} = constexpr")
            self.value(name, value.value)
        else:
            super()._data(name, value, whole)

    def _plain(self, name: str, value: Any) -> Json:
        return encode(value, name) if is_exact(value) else _number(value) or encode(value, name)

    def _methods(self, name: str, value: Any, whole: bool) -> None:
        kind = type(value)
        if kind.__module__ != "builtins" and not is_toolchain(kind.__module__):
            self._class(f"{name} of", kind, True)
            self._state(name, kind, attributes(value))
            self.checks.append(same_items(attributes(value)))


def _number(value: Any) -> Json:
    if is_numpy_scalar(value):
        return {"numpy": [str(value.dtype), value.tobytes().hex()]}
    if isinstance(value, float):
        return {"float": float.hex(value)}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    return None


class Exact:
    """A fingerprint, plus everything that distinguishes binaries."""

    def __init__(self, known: Fingerprint) -> None:
        self._known = known
        self._exact = known.walked_by(ExactWalk)

    def value(self) -> str:
        """The fingerprint, followed by `more()`."""
        return self._known.value() + self.more()

    def more(self) -> str:
        """A second fingerprint after a "+" if the first omits something, otherwise ""."""
        self._known.value()  # refreshes it
        return f"+{self._exact.value()}" if self._known.is_blurred else ""

    @property
    def opaque(self) -> list[Opaque]:
        """Values that no fingerprint can represent, as of the last `more()`."""
        return self._exact.opaque if self._known.is_blurred else self._known.opaque


def spell(value: Any, where: str, depth: int = 0) -> Json:
    """JSON for a compiled-in value, different for values that Triton may compile differently.

    Raises EncodingError if it is a tensor or contains something specific to this process.
    """
    if is_exact(value):
        return encode(value, where)
    if type_name(value) == _CONSTEXPR:
        return spell(value.value, where, depth)
    if type(value) in (tuple, list) and depth < DEPTH:
        items = [spell(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
        return {"tuple": items} if type(value) is tuple else items
    if type(value) in (float, complex) or is_numpy_scalar(value):
        return _number(value)
    return _taken_apart(value, where)


def _taken_apart(value: Any, where: str) -> Json:
    walk = ExactWalk(value)
    if not is_tensor(value):
        walk.value("value", value)
    if walk.opaque or not walk.lines:
        raise EncodingError(
            f"{where}: expected a value that means the same in every process, got {type_name(value)}. Its kernel is "
            "compiled in each.",
            where=where,
        )
    kind = value if isinstance(value, type) else type(value)
    return {"exact": [kind.__qualname__, walk.digest()]}
