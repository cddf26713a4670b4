"""Chooses the launcher, which maps a call's arguments to the kernel bound for them, in C or in Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotuned import _native, env
from autotuned._startup import Frozen, later
from autotuned.key.key import KeySpec
from autotuned.store import record
from autotuned.triton_compat import fingerprint, kernel, versions

if TYPE_CHECKING:
    from typing import TypeAlias

    from autotuned.launch import table

    Launcher: TypeAlias = "Joined | table.PyLauncher"
else:
    table = later("launch.table")  # not needed with the C extension

_MAX_NAMES = 128  # MAX_ARGS of `launch/c/module.c`
_SHAPE, _VALUE, _CONSTEXPR, _INTEGER, _STRIDES = 1, 2, 4, 8, 16  # ROLE_ of `launch/c/signature.h`


class CallForm(Frozen):
    """How a kernel may be called: the number of positional parameters, and defaults."""

    places: int
    defaults: Mapping[str, Any]


class LazyDevice:
    """The current device's index, from a driver found at the first call: decorating must not initialise CUDA.

    `needs_no_key` tells whether the first call may be answered without hashing Triton's files.
    """

    def __init__(self, needs_no_key: Callable[[], bool]) -> None:
        self._needs_no_key = needs_no_key
        self._get: Callable[[], int] | None = None

    def __call__(self) -> int:
        """Return the index."""
        return (self._get or self.getter())()

    def getter(self) -> Callable[[], int]:
        """The function returning the index."""
        if self._get is None:
            if not self._needs_no_key():
                fingerprint.begin(record.root())
            self._get = kernel.current_device_getter()
        return self._get


def make(names: Sequence[str], spec: KeySpec, device: LazyDevice | None, shape: CallForm | None) -> Launcher:
    """The launch table for one tuned function; a `shape` of None is for plain callables, which use the Python twin."""
    roles = tuple(_role(name, spec) for name in names)

    def python() -> table.PyLauncher:
        in_c = roles if shape is None and uses_c() else ()
        return table.PyLauncher(names, spec, device.getter if device else None, places=shape is None, roles=in_c)

    if shape is None or len(names) > _MAX_NAMES or not uses_c():
        return python()
    functions = tuple(spec.functions.values())
    made = _native.extension.Table(
        tuple(names), shape.places, dict(shape.defaults), roles, dict(spec.buckets), functions, device
    )
    return Joined(made, python)


def _role(name: str, spec: KeySpec) -> int:
    role = _SHAPE if spec.has_shape(name) else 0
    if name in spec.constexprs:
        role |= _CONSTEXPR
    if name in spec.exact:
        return role | _VALUE | _STRIDES
    if spec.names is None:
        return role | _INTEGER
    return role | (_VALUE if name in spec.names else 0)


class Joined:
    """The table in C, and one in Python, made on demand, for calls without a signature in C (such as descriptors)."""

    name = "c"

    def __init__(self, in_c: Any, in_python: Callable[[], table.PyLauncher]) -> None:
        self.in_c = in_c
        self._make = in_python
        self._rest: table.PyLauncher | None = None
        #: The entry bound for these argument values, or None; C's own function as long as C has all entries.
        self.find: Callable[[tuple[Any, ...]], Any] = in_c.find
        self.cleared = 0  # number of calls of `clear`

    @property
    def hits(self) -> int:
        """Number of answered calls."""
        return sum(one.hits for one in self._tables())

    @property
    def evictions(self) -> int:
        """Number of evicted entries."""
        return sum(one.evictions for one in self._tables())

    def _find_in_both(self, values: tuple[Any, ...]) -> Any:
        found = self.in_c.find(values)
        return found if found is not None or self._rest is None else self._rest.find(values)

    def bind(self, values: tuple[Any, ...], bound: Any) -> bool:
        """Bind these argument values; False if they have no signature."""
        if self.in_c.bind(values, bound):
            return True
        if self._rest is None:
            self._rest, self.find = self._make(), self._find_in_both
        return self._rest.bind(values, bound)

    def bounds(self) -> list[Any]:
        """All bound entries."""
        return [bound for one in self._tables() for bound in one.bounds()]

    def swap(self, old: Any, new: Any) -> bool:
        """Replace a bound entry, between two calls; False if it is no longer bound."""
        return any(one.swap(old, new) for one in self._tables())

    def clear(self) -> None:
        """Remove all entries."""
        self.cleared += 1
        for one in self._tables():
            one.clear()

    def __len__(self) -> int:
        return sum(map(len, self._tables()))

    def _tables(self) -> list[Any]:
        return [self.in_c] if self._rest is None else [self.in_c, self._rest]


def base() -> type:
    """The base class that gives `Tuned` its `run` and `[]`."""
    return table.Base if _native.extension is None else _native.extension.Base


def heuristics_base() -> type:
    """The base class that gives `Heuristics` its `[]` in C."""
    return table.HeuristicsBase if _native.extension is None else _native.extension.HeuristicsBase


def uses_c() -> bool:
    """Whether launches go through C."""
    return _native.extension is not None and env.launcher() in ("", "c", "verify") and not versions.strange_triton()


def verifies() -> bool:
    """Whether each launch in C is compared with the Python twin's."""
    return _native.extension is not None and env.launcher() == "verify"


def judge_by(launcher: Launcher, judge: Callable[..., bool]) -> None:
    """Make the launcher, if it is in C, ask `judge` before each launch (`verify.Judge`)."""
    if isinstance(launcher, Joined):
        launcher.in_c.judge_by(judge)


def binds_directly() -> bool:
    """Whether tuned kernels bypass Triton's look-up; not with `AUTOTUNED_LAUNCHER=triton` or an untested Triton."""
    return env.launcher() != "triton" and not versions.strange_triton()


def in_use() -> tuple[str, str]:
    """The launcher in use and why, for `autotuned doctor`."""
    asked = env.launcher()
    if why := versions.strange_triton():
        return "triton", why
    if asked in ("python", "triton"):
        return asked, "asked for by AUTOTUNED_LAUNCHER"
    if _native.extension is None:
        return "python", _native.why_not
    why_not = _native.extension.ready() if "torch" in sys.modules else "torch has not been imported"
    if asked == "verify" and why_not is None:
        return asked, "in C, each launch compared with the Python twin's, asked for by AUTOTUNED_LAUNCHER"
    return "c", "the fastest" if why_not is None else f"look-up in C, launches through Triton's launcher: {why_not}"
