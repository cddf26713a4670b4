"""The launch table in Python: from a call's signature to its bound kernel.

Signatures refine the key: each determines the type of every argument, the dtype, shape, strides, alignment and device
of every tensor, and all properties of other values that Triton specializes on or that are in the key. Many signatures
may map to one key, never the reverse.
"""

from __future__ import annotations

import numbers
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from autotuned import _native
from autotuned.key.key import KeySpec, is_descriptor, is_tensor
from autotuned.key.memory import gpu_within
from autotuned.launch.codegen import MISSING, private_prefix
from autotuned.typed_json import is_numpy_bool, is_numpy_scalar

if TYPE_CHECKING:
    from autotuned.launch.bound import Bound

LIMIT = 4096  # entries of one kernel, to bound memory
_TENSOR_MODULES = ("torch", "torch.nn.parameter")
# Values of these types may be in a key; other arguments of a plain callable, such as a method's `self`, only if `key=`
# names them.
_TOLD = (numbers.Number, str, type(MISSING))
_PLAIN = frozenset([int, bool, str, bytes, complex, type(None)])


def integer_class(value: int) -> tuple[bool, bool, int]:
    """An integer's class, at least as fine as Triton's: whether it is 1, whether it is divisible by 16, its width."""
    width = 32 if -0x80000000 <= value < 0x80000000 else _wide(value)
    return value == 1, value % 16 == 0, width


def _wide(value: int) -> int:
    """64 bits, unsigned 64 (65), or more (66), which Triton refuses and a plain callable may get."""
    if -0x8000000000000000 <= value < 0x8000000000000000:
        return 64
    return 65 if 0 <= value < 0x10000000000000000 else 66


def result_word(value: Any) -> Any:
    """The result of a key function or bucket as a signature word: 1, True and 1.0 differ, as in the key.

    Raises TypeError unless it is immutable and equal only where keys are. Keeps no class alive: it may be a local one,
    with a tensor in a method's closure.
    """
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, tuple):
        return (ref(kind), *map(result_word, value))
    if kind is float:  # NaN != NaN: each call would be bound again
        return kind, value.hex()
    if is_its_own_word(kind) or kind.__name__ == "device":
        return (ref(kind), id(value)) if issubclass(kind, Enum) else (kind, value)
    if is_numpy_scalar(value) and not value.dtype.hasobject:  # equal dates may have different units
        return kind, str(value.dtype), value.tobytes()
    raise TypeError


def object_word(value: Any) -> int | None:
    """The word of an object that is in no key: its GPU; TypeError if instance attributes make it an array."""
    if is_tensor(value) or is_descriptor(value):
        raise TypeError
    return gpu_within(value)


def item_words(spec: KeySpec, places: bool, name: str, value: Any) -> tuple[Any, ...]:
    """The signature of a tuple (item by item) or descriptor; TypeError if something in it has no signature."""
    kind = type(value)
    if value is None:
        return (kind,)
    if is_plain_tensor(kind) and (places or name not in spec.constexprs):  # Triton compiles its numbers in
        return kind, value.dtype, tuple(value.shape), value.stride(), value.data_ptr() & 15 == 0, value.get_device()
    if isinstance(value, tuple):
        return (ref(kind), *(item_words(spec, places, name, item) for item in value))
    # Without the block shape, which a hook may set after the look-up: Triton looks up the kernel.
    if is_descriptor(value) and not places:
        return ref(kind), value.base.dtype, tuple(value.shape), tuple(value.strides)
    if kind is int:
        return kind, value if spec.has_value(name, value) else integer_class(value)
    if kind is float:
        return kind, value.hex() if spec.has_value(name, value) else None
    if is_its_own_word(kind):
        return (ref(kind), id(value)) if issubclass(kind, Enum) else (kind, value)
    raise TypeError


def is_its_own_word(kind: type) -> bool:
    """Whether values of a type are compared as they are: they have few values, and some are compiled in."""
    return kind in (bool, str) or kind.__name__ == "dtype" or issubclass(kind, Enum)


def is_plain_tensor(kind: type) -> bool:
    """Whether a type is torch's own; a subclass may be a tracer without memory."""
    return kind.__module__ in _TENSOR_MODULES and kind.__name__ in ("Tensor", "Parameter")


def _types(values: tuple[Any, ...]) -> tuple[ref[type], ...]:
    return tuple(map(ref, map(type, values)))


def _held(value: Any) -> type | ref[type]:
    """A value's class as kept by a plan: the class itself if it is static or torch's, else a weak reference."""
    kind = type(value)
    return ref(kind) if kind.__flags__ & _HEAP_TYPE and not is_plain_tensor(kind) else kind


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


class Plan:
    """The entries for calls with certain argument types, by signature.

    `signature(values)` makes the signature; `find(values)` returns and counts its entry or None, and passes values of
    other types to the launcher.
    """

    def __init__(self, source: str, scope: dict[str, Any], ours: str) -> None:
        self.table: dict[tuple[Any, ...], Bound] = {}
        scope[f"{ours}get"] = self.table.get
        exec(source, scope)  # noqa: S102 - parameter names and the literals of this file only
        self.signature: Callable[[tuple[Any, ...]], tuple[Any, ...]] = scope["signature"]
        self.find: Callable[[tuple[Any, ...]], Bound | None] = scope["find"]


class _Count:
    __slots__ = ("hits",)

    def __init__(self) -> None:
        self.hits = 0


class PyLauncher:
    """The table of one tuned function, with the counters of `cache_info()`.

    Args:
        names: The parameters that are not tuned, in order.
        spec: What a key contains of a call.
        device: Called at the first binding; returns the function returning the current device's index. None if there
            is only one.
        places: Whether it is for a plain callable, whose arrays may be from any library and on any device.
        roles: Which properties of each parameter count; if given, the extension makes the words of torch's tensors.
    """

    name = "python"
    in_c: Any = None  # `launcher.Joined` has a table in C here, which the extension's `Base` queries before Python runs

    def __init__(
        self,
        names: Sequence[str],
        spec: KeySpec,
        device: Callable[[], Callable[[], int]] | None = None,
        places: bool = True,
        roles: Sequence[int] = (),
    ) -> None:
        self._names = tuple(names)
        self._roles = dict(zip(names, roles))
        self._spec = spec
        self._device = device
        self._places = places
        self._plans: dict[tuple[ref[type], ...], Plan] = {}
        self._count = _Count()
        self._ours = private_prefix(names)
        scope: dict[str, Any] = {  # what the code of all plans refers to
            "integer_class": integer_class, "result_word": result_word, "object_word": object_word,
            "items": partial(item_words, spec, places), "id": id, "type": type, "Exception": Exception,
            "other": self._find_by_types, "count": self._count,
            **{f"bucket_{name}": bucket for name, bucket in spec.buckets.items()},
            **{f"function_{index}": function for index, function in enumerate(spec.functions.values())},
        }  # fmt: skip
        self._scope = {f"{self._ours}{name}": value for name, value in scope.items()}
        #: The entry bound for these argument values, or None. This is the latest plan's own function, since a method
        #: calling it would cost 0.1 us (tests/bench/host.py).
        self.find: Callable[[tuple[Any, ...]], Bound | None] = self._find_by_types
        self.evictions = self.cleared = 0  # evicted entries, and number of calls of `clear`

    @property
    def hits(self) -> int:
        """Number of answered calls."""
        return self._count.hits

    def _find_by_types(self, values: tuple[Any, ...]) -> Bound | None:
        plan = self._plans.get(_types(values))
        if plan is None:
            return None
        self.find = plan.find
        return plan.find(values)

    def bind(self, values: tuple[Any, ...], bound: Bound) -> bool:
        """Bind these argument values; False if they have no signature."""
        types = _types(values)
        try:
            plan = self._plans.get(types) or self._plan(values)
            if plan is None:
                return False
            found = plan.signature(values)
            hash(found)  # keep no plan for unhashable signatures
            plan = self._plans.setdefault(types, plan)
            plan.table[found] = bound
        except Exception:
            return False
        self.find = plan.find  # the next call is most often of the same types
        self._bound_size()
        return True

    def _bound_size(self) -> None:
        while len(self) > LIMIT and (plans := list(self._plans.items())):
            # From the fullest plan: evicting from the current one might empty it repeatedly.
            types, plan = max(plans, key=lambda item: len(item[1].table))
            with suppress(RuntimeError, StopIteration):  # another thread binds or clears meanwhile: retry
                plan.table.pop(next(iter(plan.table)), None)  # the oldest
            if not plan.table:
                self._plans.pop(types, None)
            self.evictions += 1

    def clear(self) -> None:
        """Remove all entries."""
        self.cleared += 1
        plans, self._plans = self._plans, {}
        self.find = self._find_by_types
        for plan in plans.values():
            plan.table.clear()  # a concurrent call may hold the plan's function

    def bounds(self) -> list[Bound]:
        """All bound entries."""
        return [bound for plan in list(self._plans.values()) for bound in list(plan.table.values())]

    def swap(self, old: Bound, new: Bound) -> bool:
        """Replace a bound entry, between two calls; False if it is no longer bound."""
        for plan in list(self._plans.values()):
            for found, bound in list(plan.table.items()):
                if bound is old:
                    plan.table[found] = new
                    return True
        return False

    def __len__(self) -> int:
        return sum(len(plan.table) for plan in list(self._plans.values()))

    def _plan(self, values: tuple[Any, ...]) -> Plan | None:
        """The plan for arguments of these types, or None (or TypeError) if one has no signature."""
        for types in list(self._plans):
            if None in (kind() for kind in types):
                self._plans.pop(types, None)  # a class was freed: no value has it
        words = {name: self._word(name, value) for name, value in zip(self._names, values)}
        if None in words.values():
            return None
        ours, scope, parts = self._ours, dict(self._scope), list[str]()
        if self._device is not None:
            parts.append(f"{ours}device()")
            scope[f"{ours}device"] = self._device()
        parts += filter(None, [self._words_in_c(values, words, scope), *words.values()])
        items = ", ".join(f"{name!r}: {name}" for name in self._names)
        for index in range(len(self._spec.functions)):
            parts.append(f"{ours}result_word({ours}function_{index}({{{items}}}))")
        scope.update({f"{ours}type_{index}": kind for index, kind in enumerate(map(_held, values))})
        return Plan(self._source("".join(f"{part}, " for part in parts), values), scope, ours)

    def _words_in_c(self, values: tuple[Any, ...], words: dict[str, str | None], scope: dict[str, Any]) -> str:
        """Source of the words of torch's tensors, made in C and removed from `words`; in Python if C cannot read one.

        One call for all, instead of five of torch's for each, saves 4,600 instructions per tensor.
        """
        given = {name: value for name, value in zip(self._names, values) if is_plain_tensor(type(value))}
        roles = bytes(self._roles.get(name, 0) for name in given)
        if not self._roles or not given or _native.extension.tensor_words(roles, *given.values()) is None:
            return ""
        ours, in_python = self._ours, ", ".join(str(words.pop(name)) for name in given)
        scope.update({f"{ours}in_c": _native.extension.tensor_words, f"{ours}roles": roles})
        return f"{ours}in_c({ours}roles, {', '.join(given)}) or ({in_python})"

    def _source(self, words: str, values: tuple[Any, ...]) -> str:
        """Source of a plan's two functions; the signature is an expression over the parameters' names."""
        ours = self._ours
        unpack = f"{''.join(f'{name}, ' for name in self._names)}= {ours}values\n" if self._names else "pass\n"
        called = ["()" if isinstance(_held(value), ref) else "" for value in values]
        others = " or ".join(
            f"{ours}type({name}) is not {ours}type_{index}{call}"
            for index, (name, call) in enumerate(zip(self._names, called))
        )
        # hot path: no environment, log or lock. A tracer without memory or an unhashable value raises: the slow path
        # handles it.
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

    def _word(self, name: str, value: Any) -> str | None:
        """Source of one argument's words: "" if the type says everything, None if it has no signature."""
        kind = type(value)
        if is_plain_tensor(kind):
            if name in self._spec.constexprs and not self._places:
                return None  # Triton compiles its numbers in
            return f"{name}.dtype, {self._layout_words(name)}, {name}.data_ptr() & 15 == 0, {name}.get_device()"
        if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
            return f"{name}.dtype, {name}.shape, {name}.strides"
        if kind is type(None):
            return ""
        return self._scalar_word(name, value)

    def _layout_words(self, name: str) -> str:
        """Source of shape and strides; for a contiguous tensor only the shape, which takes 0.05 us less."""
        if name in self._spec.exact:
            return f"{name}.shape, {name}.stride()"
        if self._spec.has_shape(name):
            return f"{name}.shape, {name}.is_contiguous() or {name}.stride()"
        # If only strides are in the key, the shape matters where the stride pattern depends on it: not for a vector.
        return f"{name}.is_contiguous() and ({name}.ndim == 1 or {name}.shape) or ({name}.shape, {name}.stride())"

    def _scalar_word(self, name: str, value: Any) -> str | None:
        ours, kind = self._ours, type(value)
        in_key = self._spec.names is not None and name in self._spec.names
        in_key = in_key or name in self._spec.constexprs or name in self._spec.exact
        if kind is int:
            # A constexpr is compiled in: the bound kernel is for its value, even if the key has its bucket.
            if name in self._spec.buckets and name not in self._spec.constexprs:
                return f"{ours}result_word({ours}bucket_{name}({name})), {ours}integer_class({name})"
            return name if in_key or self._spec.names is None else f"{ours}integer_class({name})"
        if kind is float:  # by hex: -0.0 == 0.0 and NaN != NaN
            return f"{name}.hex()" if in_key else ""
        if issubclass(kind, Enum):  # by identity, since members may define equality
            return f"{ours}id({name})"
        if is_its_own_word(kind):
            return name
        if issubclass(kind, tuple) or not self._places:  # a tuple or descriptor
            item_words(self._spec, self._places, name, value)  # raises before any code is generated
            return f"{ours}items({name!r}, {name})"
        if in_key or issubclass(kind, _TOLD) or is_numpy_bool(value):
            return None
        return f"{ours}object_word({name})"


class Base:
    """What `Tuned` inherits from the launcher: `run`, the live list of configs, and each thread's last config.

    The C twin adds a native `[]` and consults its table before calling `_slow_run`.
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
        """Does nothing: `_slow_run` consults the table."""

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

    @property
    def nargs(self) -> Any:
        """The positional arguments, by name, of the call that this thread decides, for pruners and hooks."""
        return getattr(self._local, "nargs", None)

    @nargs.setter
    def nargs(self, arguments: Any) -> None:
        self._local.nargs = arguments


class HeuristicsBase:
    """What `Heuristics` inherits from the launcher: nothing in Python.

    The C twin adds a native `[]`, which computes the values and, for kernels of this package, calls their C path; all
    other calls go to `_slow_run`.
    """

    @classmethod
    def _native(cls) -> None:
        """Does nothing: `[]` is Python."""

    def _attach(self, direct: bool) -> None:
        """Does nothing: `run` computes everything."""
