"""Keeps process start-up short by lazy imports and classes that are cheap to define; frees locks in forked children."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from autotuned import _native

if TYPE_CHECKING:
    from functools import cached_property
    from typing import Protocol as Protocol

    from typing_extensions import Self, dataclass_transform

    from autotuned import errors as errors

    once = cached_property
else:
    Protocol = object  # defining a protocol takes as long as importing a module

    def dataclass_transform(**_options):  # for type checkers; in `typing` only from Python 3.11 on
        return lambda cls: cls

    class once:  # noqa: N801 - a decorator
        """`functools.cached_property` without the lock that it has before Python 3.12: two calls, not seven.

        Two threads may both compute a value, and either may be kept.
        """

        def __init__(self, function):
            self.func, self.name, self.__doc__ = function, function.__name__, function.__doc__

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = instance.__dict__[self.name] = self.func(instance)
            return value


_Lock = TypeVar("_Lock")
_Held = TypeVar("_Held")


class Fields:
    """The constructor of `Frozen` classes; the extension's is the same in C (`c/fields.h`)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls: Any = type(self)
        names, fields, given = cls._names, self.__dict__, len(args)
        if not kwargs and given == len(names):
            fields.update(zip(names, args))
            return
        fields.update({**cls._defaults, **dict(zip(names, args)), **kwargs})
        if len(fields) != len(names) or given > len(names) or (kwargs and not kwargs.keys() <= {*names[given:]}):
            raise cls._refusal(self, args, kwargs)


if TYPE_CHECKING:
    Constructor = Fields
else:
    Constructor = getattr(_native.extension, "Fields", Fields)


@dataclass_transform(frozen_default=True)
class Frozen(Constructor):
    """Base of immutable classes whose annotated fields are given by position or by name.

    Instances are equal if they have the same class and equal fields. There are no inherited fields, default factories
    or ordering. Defining the 17 classes that a process needs before a stored choice's first launch takes 0.1 ms;
    as frozen dataclasses it took 7 ms, as named tuples 2 ms (Python 3.11). Classes that only a search needs are
    dataclasses.
    """

    _names: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls._names = tuple(cls.__dict__.get("__annotations__", ()))
        cls._defaults = {name: cls.__dict__[name] for name in cls._names if name in cls.__dict__}

    def _refusal(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TypeError:
        given, names = [*self._names[: len(args)], *kwargs], self._names
        missing = [name for name in names if name not in given and name not in self._defaults]
        wrong = [name for name in given if name not in names or given.count(name) > 1]
        problems = [f"without {missing}"] * bool(missing) + [f"with {sorted(set(wrong))}"] * bool(wrong)
        problems += [f"{len(args)} of them by position"] * (len(args) > len(names))
        return TypeError(f"{type(self).__name__}: expected the fields {', '.join(names)}; got {', '.join(problems)}.")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; use `replace`.")

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    def __eq__(self, other: object) -> bool:
        if self is other:  # as tuples compare: by identity first
            return True
        return self._values() == other._values() if type(self) is type(other) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[Any, ...]:
        return tuple(map(self.__dict__.__getitem__, self._names))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.fields().items())})"

    def fields(self) -> dict[str, Any]:
        """All fields by name, in order."""
        return {name: self.__dict__[name] for name in self._names}

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        if not changes.keys() <= {*self._names}:
            raise self._refusal((), {**self.fields(), **changes})
        made = object.__new__(type(self))
        made.__dict__.update({**self.fields(), **changes})
        return made


def imported(name: str) -> Any:
    """A module, imported without garbage collections if they are on.

    Objects created by an import stay alive, but ten collections would visit them, one of them also all objects of
    torch and Triton: 2 of 17 ms until a stored choice's first launch (Python 3.11). Set by the threshold, so that
    `gc.disable()` by another thread stays in force.
    """
    # `__import__`, since `importlib.import_module` makes 17 Python calls for a module that is already imported.
    if name in sys.modules or not (gc.isenabled() and (threshold := gc.get_threshold())[0]):
        return __import__(name, None, None, ("",))
    gc.set_threshold(0)
    try:
        return __import__(name, None, None, ("",))
    finally:
        if not gc.get_threshold()[0]:
            gc.set_threshold(*threshold)


class Later(ModuleType):
    """A module that is imported when one of its attributes is first read, and then replaces this object.

    Not `importlib.util.LazyLoader`: before Python 3.12 two threads may execute its module at once.
    """

    _module: Any = None

    def __init__(self, name: str, scope: dict[str, Any]) -> None:
        super().__init__(name)
        self._scope = scope

    def __getattr__(self, name: str) -> Any:
        if self._module is None:
            module = self._module = imported(self.__name__)
            for held in [held for held, value in list(self._scope.items()) if value is self]:
                self._scope[held] = module  # saves a call at each later use
        try:
            return self._module.__dict__[name]
        except KeyError:  # raises the module's own AttributeError
            return getattr(self._module, name)


def later(name: str) -> Any:
    """A lazily imported `autotuned.<name>`, for names used only inside functions: most are needed only by searches."""
    return Later(f"autotuned.{name}", sys._getframe(1).f_globals)


if not TYPE_CHECKING:
    errors = later("errors")  # used everywhere but rarely; defining its classes takes as long as importing 5 modules


def loaded(name: str) -> Any:
    """The module `autotuned.<name>` if it is imported, otherwise None; waits for a thread that is importing it."""
    full = f"autotuned.{name}"
    return importlib.import_module(full) if full in sys.modules else None


def after_fork(in_child: Callable[[], object]) -> None:
    """Register a function to call in forked children, on systems that fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)


def forget_oldest(memory: dict[Any, Any], most: int) -> None:
    """Remove a dict's first entries until `most` are left; not by `iter`, which raises if another thread changes it."""
    while len(memory) > most:
        memory.pop(list(memory)[0], None)


def living(held: weakref.WeakValueDictionary[int, _Held]) -> list[_Held]:
    """The values that are alive; not with `values`, which raises if another thread adds one meanwhile."""
    return [found for ref in held.valuerefs() if (found := ref()) is not None]


def renewed(lock: _Lock) -> _Lock:
    """Register and return a lock that outlives a call: a forked child must not wait for a thread of its parent."""
    _renewed.add(lock)
    return lock


def _renew() -> None:
    for lock in list(_renewed):
        if not getattr(lock, "_is_owned", bool)():  # a reentrant one of the thread that forked stays held
            lock._at_fork_reinit()


_renewed: weakref.WeakSet[Any] = weakref.WeakSet()
after_fork(_renew)


def _wait_for_imports() -> None:
    """Wait, before a fork, until no other thread imports modules for this package: a child could not finish that."""
    end = time.monotonic() + IMPORT_S
    while time.monotonic() < end:
        frames = sys._current_frames()
        frames.pop(threading.get_ident(), None)
        if not any(map(_imports, frames.values())):
            return
        time.sleep(0.001)


def _imports(frame: Any) -> bool:
    """Whether a thread is importing a module on behalf of this package."""
    is_importing = False
    while frame is not None:
        file = frame.f_code.co_filename
        if is_importing and file.startswith(_HOME):
            return True
        is_importing = is_importing or file.startswith("<frozen importlib")
        frame = frame.f_back
    return False


IMPORT_S = 5.0  # longest wait for imports before a fork: they may themselves wait for an import of this thread
_HOME = os.path.dirname(__file__) + os.sep
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_imports)
