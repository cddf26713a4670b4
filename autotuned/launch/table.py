"""The launch table in Python: from the signature of a call to the bound kernel for it.

Signatures refine the key: each determines dtype, shape, strides, alignment and device of every tensor, the type of
every argument, and of every other argument what Triton specializes on or what is in the key. Many signatures may map to
one key, never the reverse.
"""

from __future__ import annotations

import numbers
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from autotuned.key.key import KeySpec, is_descriptor, is_tensor
from autotuned.key.memory import gpu_of
from autotuned.launch.codegen import MISSING, private_prefix
from autotuned.typed_json import is_numpy_scalar

if TYPE_CHECKING:
    from autotuned.launch.bound import Bound

LIMIT = 4096  # entries of one kernel; 5,000 distinct shapes must not grow memory without end
_TENSOR_MODULES = ("torch", "torch.nn.parameter")
# Of a value of these types a key may hold something; of any other object that a plain callable is given, as of a
# method's own object, it does not, unless `key=` names the argument.
_TOLD = (numbers.Number, str, type(MISSING))
_PLAIN = frozenset([int, bool, str, bytes, complex, type(None)])


def integer_class(value: int) -> tuple[bool, bool, int]:
    """What Triton specializes an integer on, or finer: is it 1, is it divisible by 16, how wide is it."""
    width = 32 if -0x80000000 <= value < 0x80000000 else _wide(value)
    return value == 1, value % 16 == 0, width


def _wide(value: int) -> int:
    """64 bits, 64 without a sign (65), or more (66), which Triton refuses and a plain callable may get."""
    if -0x8000000000000000 <= value < 0x8000000000000000:
        return 64
    return 65 if 0 <= value < 0x10000000000000000 else 66


def typed(value: Any) -> Any:
    """The answer of a key function or a bucket as a word: 1, True and 1.0 are three, as they are in the key.

    Raises:
        TypeError: It is none of the values that never change and are equal only where their keys are: any other
            object may change, may be equal to one of another key, and would be kept alive.
    """
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, tuple):
        return (kind, *map(typed, value))
    if kind is float:  # NaN is not equal to itself: each call would be bound anew
        return kind, value.hex()
    if is_its_own_word(kind) or kind.__name__ == "device":
        return kind, id(value) if issubclass(kind, Enum) else value
    if is_numpy_scalar(value) and not value.dtype.hasobject:  # two dates may be equal and of two units
        return kind, str(value.dtype), value.tobytes()
    raise TypeError


def opaque(value: Any) -> int | None:
    """The word of an object of which no key holds anything: the same for all of a type, but for the GPU it is on.

    Raises:
        TypeError: This one has what makes an array, as attributes of its own.
    """
    if is_tensor(value) or is_descriptor(value):
        raise TypeError
    return gpu_of(value)


def item_words(spec: KeySpec, places: bool, name: str, value: Any) -> tuple[Any, ...]:
    """The signature of a tuple, item by item, of a tensor descriptor, and of what a tuple holds.

    Raises:
        TypeError: It holds something that has no signature.
    """
    kind = type(value)
    if value is None:
        return (kind,)
    if is_plain_tensor(kind) and (places or name not in spec.constexprs):  # Triton compiles its numbers in
        return kind, value.dtype, tuple(value.shape), value.stride(), value.data_ptr() & 15 == 0, value.get_device()
    if isinstance(value, tuple):
        return (kind, *(item_words(spec, places, name, item) for item in value))
    # Not its block, which a hook may set after the look-up: Triton finds what is compiled for that.
    if is_descriptor(value) and not places:
        return kind, value.base.dtype, tuple(value.shape), tuple(value.strides)
    if kind is int:
        return kind, value if spec.has_value(name, value) else integer_class(value)
    if kind is float:
        return kind, value.hex() if spec.has_value(name, value) else None
    if is_its_own_word(kind):
        return kind, id(value) if issubclass(kind, Enum) else value
    raise TypeError


def is_its_own_word(kind: type) -> bool:
    """Whether values of a type are compared as they are, in the key or not: few, and some are compiled in."""
    return kind in (bool, str) or kind.__name__ == "dtype" or issubclass(kind, Enum)


def is_plain_tensor(kind: type) -> bool:
    """Whether a type is torch's own; one that is derived from it may be a tracer without memory."""
    return kind.__module__ in _TENSOR_MODULES and kind.__name__ in ("Tensor", "Parameter")


class Plan:
    """What is bound for calls whose arguments have certain types, by signature, and two functions for these types.

    `signature(values)` makes the signature; `find(values)` gives what is bound for it or None, counts it, and leaves
    values of other types to the launcher.
    """

    def __init__(self, source: str, scope: dict[str, Any], ours: str) -> None:
        self.table: dict[tuple[Any, ...], Bound] = {}
        scope[f"{ours}get"] = self.table.get
        exec(source, scope)  # noqa: S102 - parameter names and the literals of this file only
        self.signature: Callable[[tuple[Any, ...]], tuple[Any, ...]] = scope["signature"]
        self.find: Callable[[tuple[Any, ...]], Bound | None] = scope["find"]


class _Count:
    """How many calls were answered; the functions of the plans add to it."""

    __slots__ = ("hits",)

    def __init__(self) -> None:
        self.hits = 0


class PyLauncher:
    """The table of one tuned function, with the counters of `cache_info()`.

    Args:
        names: The parameters that are not tuned, in order.
        spec: What of a call is in its key.
        device: Asked, when something is first bound, for the function that gives the current device's index; None
            where there is but one.
        places: Whether it is a plain callable's, which may be called with arrays of any library and on any device.
    """

    name = "python"

    def __init__(
        self,
        names: Sequence[str],
        spec: KeySpec,
        device: Callable[[], Callable[[], int]] | None = None,
        places: bool = True,
    ) -> None:
        self._names = tuple(names)
        self._spec = spec
        self._device = device
        self._places = places
        self._plans: dict[tuple[type, ...], Plan] = {}
        self._count = _Count()
        #: The bound kernel for these argument values, None if nothing is bound for them: the latest plan's function
        #: itself, since a method that asks it would cost 0.1 us (tests/bench/host.py).
        self.find: Callable[[tuple[Any, ...]], Bound | None] = self._find_by_types
        self.evictions = self.cleared = 0  # entries that made room, and how many times all went

    @property
    def hits(self) -> int:
        """How many calls were answered."""
        return self._count.hits

    def _find_by_types(self, values: tuple[Any, ...]) -> Bound | None:
        plan = self._plans.get(tuple(map(type, values)))
        if plan is None:
            return None
        self.find = plan.find
        return plan.find(values)

    def bind(self, values: tuple[Any, ...], bound: Bound) -> bool:
        """Bind these argument values; False if their types do not fit the fast path."""
        types = tuple(map(type, values))
        try:
            plan = self._plans.get(types) or self._plan(values)
            if plan is None:
                return False
            found = plan.signature(values)
            hash(found)  # a plan is kept for what can be found in it alone
            plan = self._plans.setdefault(types, plan)
            plan.table[found] = bound
        except Exception:
            return False
        self.find = plan.find  # the next call is most often of the same types
        self._bound_size()
        return True

    def _bound_size(self) -> None:
        while len(self) > LIMIT and (plans := list(self._plans.items())):
            # Of the fullest plan: evicting from the plan just bound to would empty it again and again.
            types, plan = max(plans, key=lambda item: len(item[1].table))
            with suppress(RuntimeError, StopIteration):  # another thread binds or clears meanwhile: then again
                plan.table.pop(next(iter(plan.table)), None)  # the oldest: dict keeps the order of insertion
            if not plan.table:
                self._plans.pop(types, None)  # it holds its types: a program may make classes without end
            self.evictions += 1

    def clear(self) -> None:
        """Forget everything bound."""
        self.cleared += 1
        plans, self._plans = self._plans, {}
        self.find = self._find_by_types
        for plan in plans.values():
            plan.table.clear()  # a call under way may hold the plan's function

    def bounds(self) -> list[Bound]:
        """All that is bound."""
        return [bound for plan in list(self._plans.values()) for bound in list(plan.table.values())]

    def swap(self, old: Bound, new: Bound) -> bool:
        """Bind another launch in the place of one, between two calls; False if that is bound no more."""
        for plan in list(self._plans.values()):
            for found, bound in list(plan.table.items()):
                if bound is old:
                    plan.table[found] = new
                    return True
        return False

    def __len__(self) -> int:
        return sum(len(plan.table) for plan in list(self._plans.values()))

    def _plan(self, values: tuple[Any, ...]) -> Plan | None:
        """The plan for arguments of the types of these, or None if one has no signature.

        Raises:
            TypeError: One has none, and only a look at it tells.
        """
        ours = private_prefix(self._names)
        parts: list[str] = []
        scope: dict[str, Any] = {
            f"{ours}integer_class": integer_class, f"{ours}typed": typed, f"{ours}type": type,
            f"{ours}other": self._find_by_types, f"{ours}count": self._count, f"{ours}Exception": Exception,
        }  # fmt: skip
        if self._device is not None:
            parts.append(f"{ours}device()")
            scope[f"{ours}device"] = self._device()
        for name, value in zip(self._names, values):
            part = self._word(name, value, ours, scope)
            if part is None:
                return None
            parts += [part] if part else []
        for index, function in enumerate(self._spec.functions.values()):
            scope[f"{ours}function_{index}"] = function
            items = ", ".join(f"{name!r}: {name}" for name in self._names)
            parts.append(f"{ours}typed({ours}function_{index}({{{items}}}))")
        scope.update({f"{ours}type_{index}": type(value) for index, value in enumerate(values)})
        return Plan(self._source(ours, "".join(f"{part}, " for part in parts)), scope, ours)

    def _source(self, ours: str, words: str) -> str:
        """The two functions of a plan; its signature comes from an expression over the parameters' names."""
        unpack = f"{''.join(f'{name}, ' for name in self._names)}= {ours}values\n" if self._names else "pass\n"
        others = " or ".join(f"{ours}type({name}) is not {ours}type_{index}" for index, name in enumerate(self._names))
        # hot path: no environment, log or lock. What raises is a tracing object without memory, or a value that cannot
        # be hashed: the safe path decides.
        return (
            f"def signature({ours}values):\n    {unpack}    return ({words})\n"
            f"def find({ours}values):\n"
            f"    try:\n"
            f"        {unpack}"
            f"        if {others or 'False'}:\n"
            f"            return {ours}other({ours}values)\n"
            f"        {ours}bound = {ours}get(({words}))\n"
            f"    except {ours}Exception:\n"
            f"        return None\n"
            f"    if {ours}bound is not None:\n"
            f"        {ours}count.hits += 1\n"
            f"    return {ours}bound\n"
        )

    def _word(self, name: str, value: Any, ours: str, scope: dict[str, Any]) -> str | None:
        """Source of one argument's words: "" if its type says it all, None if it has none."""
        kind = type(value)
        if is_plain_tensor(kind):
            if name in self._spec.constexprs and not self._places:
                return None  # Triton compiles its numbers in
            return f"{name}.dtype, {self._layout_words(name)}, {name}.data_ptr() & 15 == 0, {name}.get_device()"
        if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
            return f"{name}.dtype, {name}.shape, {name}.strides"
        if kind is type(None):
            return ""
        return self._scalar_word(name, value, ours, scope)

    def _layout_words(self, name: str) -> str:
        """Source of shape and strides; a contiguous tensor's strides follow from its shape (0.05 us less than both)."""
        if name in self._spec.exact:
            return f"{name}.shape, {name}.stride()"
        if self._spec.has_shape(name):
            return f"{name}.shape, {name}.is_contiguous() or {name}.stride()"
        # Outside the key the shape is a word only where the stride pattern depends on it, and a vector's does not.
        return f"{name}.is_contiguous() and ({name}.ndim == 1 or {name}.shape) or ({name}.shape, {name}.stride())"

    def _scalar_word(self, name: str, value: Any, ours: str, scope: dict[str, Any]) -> str | None:
        kind = type(value)
        in_key = self._spec.names is not None and name in self._spec.names
        in_key = in_key or name in self._spec.constexprs or name in self._spec.exact
        if kind is int:
            # A constexpr is compiled in: its bucket may be in the key, but the bound kernel is for the value.
            if name in self._spec.buckets and name not in self._spec.constexprs:
                scope[f"{ours}bucket_{name}"] = self._spec.buckets[name]
                return f"{ours}typed({ours}bucket_{name}({name})), {ours}integer_class({name})"
            return name if in_key or self._spec.names is None else f"{ours}integer_class({name})"
        if kind is float:  # by hex: -0.0 == 0.0 and NaN != NaN, and a constexpr is compiled in with its sign
            return f"{name}.hex()" if in_key else ""
        if issubclass(kind, Enum):  # by identity, since a class may say what its members are equal to
            scope[f"{ours}id"] = id
            return f"{ours}id({name})"
        if is_its_own_word(kind):
            return name
        if issubclass(kind, tuple) or not self._places:  # of a kernel's other types descriptors have a signature
            item_words(self._spec, self._places, name, value)  # raises here, before any code is written
            scope[f"{ours}items"] = partial(item_words, self._spec, self._places)
            return f"{ours}items({name!r}, {name})"
        if in_key or issubclass(kind, _TOLD):
            return None
        scope[f"{ours}opaque"] = opaque
        return f"{ours}opaque({name})"


class Base:
    """What `Tuned` takes from the launcher: `run`, the live list of configs, and each thread's last config.

    The C twin adds a native `[]` and answers from its table before it calls `_slow_run`.
    """

    configs: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._local = threading.local()
        super().__init__(*args, **kwargs)

    def run(self, *args: Any, grid: Any = ..., warmup: bool = False, **kwargs: Any) -> Any:
        """Launch with the config chosen for these arguments."""
        return self._slow_run(args, kwargs, grid, warmup)

    def _slow_run(self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any, warmup: bool) -> Any:
        raise NotImplementedError  # `Tuned` has it

    def _attach(self, table: object) -> None:
        """Nothing to do: `_slow_run` asks the table itself."""

    @property
    def best_config(self) -> Any:
        """The config of this thread's last launch.

        Raises:
            AttributeError: Nothing was launched on this thread yet, as with Triton's tuner.
        """
        return self._local.best_config

    @best_config.setter
    def best_config(self, config: Any) -> None:
        self._local.best_config = config


class HeuristicsBase:
    """What `Heuristics` takes from the launcher: nothing here.

    The C twin gives it a native `[]`, which computes the values itself where the kernel is one of this package, and
    hands all to that kernel's own C path; the rest arrives at `_slow_run`.
    """

    @classmethod
    def _native(cls) -> None:
        """Nothing to do: `[]` is Python."""

    def _attach(self, direct: bool) -> None:
        """Nothing to do: all is computed in `run`."""
