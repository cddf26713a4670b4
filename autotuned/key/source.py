"""The fingerprint of a kernel's source: its text, what it calls and the values it uses, but not its location."""

from __future__ import annotations

import enum
import functools
import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from autotuned import env
from autotuned._startup import errors, later
from autotuned.key.reach import NO_HOLDER, body_of, cells, is_function, is_toolchain, is_triton_function, layers, uses
from autotuned.key.reach import python_function as python_function
from autotuned.key.source_text import Body, text
from autotuned.typed_json import Json, canonical, encode, type_name

if TYPE_CHECKING:
    from autotuned.key import classes, held, naming
else:
    classes, held, naming = map(later, ("key.classes", "key.held", "key.naming"))

DEPTH = 64  # of nested values, and of calls
LINES = 100_000  # per fingerprint: mutual references can grow exponentially
Opaque = tuple[str, Any]  # the name of a value that has no spelling, and the value


def fingerprint(function: Callable[..., Any]) -> str:
    """SHA-256, in hex, of everything that determines what `function` computes.

    Covered: its text from `def` on, without comments and blank lines (for a Triton function, the text that Triton
    compiles); Triton functions, helpers, decorators and classes of its own package reached through globals, closures,
    attributes, containers and defaults; and all values reached this way, except those it sets itself. Not covered:
    file, line numbers, its own decorators, code of other packages (but the values reached in them), and what it finds
    through `globals()`, `eval` or files.
    """
    return Fingerprint(function).value()


class Fingerprint:
    """The fingerprint of one function, recomputed when something it depends on is rebound.

    These are checked by identity: text, code and defaults, and the globals, closure cells and attributes used by it and
    its callees. In-place changes of a list or dict are not detected.

    Args:
        function: A function, or a method, partial, Triton function or object around one.
        nameless: Ignore the function's own name.
        array: Gives the JSON of an array; None to use its content.
    """

    def __init__(self, function: Any, nameless: bool = False, array: Callable[[Any], Json] | None = None) -> None:
        self._function = function
        self._nameless = nameless
        self._array = array
        self._latest: tuple[str, Walk | None] = ("", None)
        self._walk: type[Walk] = Walk

    def value(self) -> str:
        """SHA-256, in hex; see `fingerprint`."""
        known, walk = self._latest
        if walk is None or not all([check() for check in walk.checks]):  # noqa: C419 - at each miss, and twice as fast
            walk = self._walk(self._function, self._array)
            walk.top(self._function, self._nameless)
            known = walk.digest()
            self._latest = known, walk
        return known

    def walked_by(self, walk: type[Walk]) -> Fingerprint:
        """A fingerprint of the same function with another walk."""
        found = Fingerprint(self._function, self._nameless, self._array)
        found._walk = walk
        return found

    @property
    def is_blurred(self) -> bool:
        """Whether the last `value()` omitted something that machine code may depend on."""
        return self._latest[1] is not None and self._latest[1].blurred

    @property
    def opaque(self) -> list[Opaque]:
        """Values used by the code that a fingerprint cannot represent, as of the last `value()`."""
        walk = self._latest[1]
        return walk.opaque if walk is not None else []


def public_name(value: Any) -> str:
    """The process-independent name of a function or kernel; see `naming.public_name`."""
    body = body_of(value)
    assert body is not None
    return naming.public_name(body)


class Walk:
    """Collects one line per function and per used value, in an order that depends only on the code.

    Functions are numbered in order of appearance, since a script's module has another name.

    Args:
        of: Code of its package is examined, other code enters by name.
        array: See `Fingerprint`.
    """

    _most, _sorts = LINES, True  # the most lines, and whether dicts are sorted

    def __init__(self, of: Any, array: Callable[[Any], Json] | None = None) -> None:
        self._of = of
        self.blurred = False  # whether `exact.ExactWalk` may record more
        self.lines: list[str] = []
        self.checks: list[Callable[[], bool]] = []
        self.opaque: list[Opaque] = []
        self._array = array
        self._numbers: dict[tuple[Body, int], int] = {}
        self._classes: set[type] = set()
        self._holders: list[Any] = []  # kept alive: their ids are in use
        self._open: dict[int, str] = {}  # values in progress, by id
        self._closures: list[FunctionType] = []  # other packages' functions in progress
        self._depth = 0

    @functools.cached_property
    def package(self) -> str:
        """The package whose code is examined; computed on demand, since a kernel that only uses Triton needs none."""
        return naming.package_of_code(self._of)

    @property
    def _is_of_triton(self) -> bool:
        """Whether the package is Triton itself; fast for most code, whose file and module do not contain the name."""
        function = None if isinstance(self._of, type) else python_function(self._of)
        if function is not None and not hasattr(function, "__wrapped__"):
            scope = function.__globals__
            if "triton" not in f"{scope.get('__name__')} {scope.get('__file__')} {function.__code__.co_filename}":
                return False
        return self.package == "triton"

    def digest(self) -> str:
        """SHA-256 of the lines, in hex."""
        return hashlib.sha256("\n".join(self.lines).encode("utf-8", "surrogatepass")).hexdigest()

    def top(self, value: Any, nameless: bool) -> None:
        """Record one fingerprinted item."""
        body = body_of(value) if is_function(value) else None
        if body is not None and self._is_own(value, body.function):
            self._note_options(value)
            self.function(body, value.__self__ if isinstance(value, MethodType) else NO_HOLDER, nameless)
        else:
            self.value("", value)

    def function(self, body: Body, holder: Any = NO_HOLDER, nameless: bool = False) -> int:
        """Record a function, its text and the values it uses, unless already seen; returns its number."""
        at = body, id(holder)
        if at in self._numbers:
            return self._numbers[at]
        number = self._numbers[at] = len(self._numbers)  # first, to end recursion
        self._holders.append(holder)
        said = text(body)
        self.lines.append(f"function {number}: {_without_name(said) if nameless else said}")
        self._watch(body.function)
        for use in uses(body, holder):
            if use.is_same is not None:
                self.checks.append(use.is_same)
            self.value(f"{number}.{use.name}", use.value, use.holder, use.whole)
        return number

    def _watch(self, function: FunctionType) -> None:
        code, defaults, by_name = function.__code__, function.__defaults__, function.__kwdefaults__

        def is_same() -> bool:
            is_code = function.__code__ is code
            return is_code and function.__defaults__ is defaults and function.__kwdefaults__ is by_name

        self.checks.append(is_same)

    def value(self, name: str, value: Any, holder: Any = NO_HOLDER, whole: bool = True) -> None:
        """Record a used value, following functions, classes, objects and containers.

        `holder` is the object that a method or property was found on; if `whole` is False, only the attributes of an
        object matter that are recorded separately.
        """
        if value is None or value is sys.modules:  # `sys.modules` grows with every import
            return
        if isinstance(value, ModuleType):
            self._module(name, value, whole)
        elif type(value) is functools.partial and not vars(value):
            self.value(f"{name}()", [value.args, value.keywords])
            self.value(name, value.func)
        elif is_function(value):
            self._function(name, value, value.__self__ if isinstance(value, MethodType) else holder)
        elif isinstance(value, type):
            self._class(name, value, whole)
        elif id(value) in self._open:
            self.lines.append(f"{name} -> {self._open[id(value)]}")
        elif len(self._open) >= DEPTH or len(self.lines) >= self._most:
            self._refuse(name, value)
        else:
            self._open[id(value)] = name
            self._data(name, value, whole)
            del self._open[id(value)]

    # -- code ------------------------------------------------------------------------------------------------------

    def _function(self, name: str, value: Any, holder: Any) -> None:
        body = body_of(value)
        assert body is not None
        if self._depth >= DEPTH:
            self._refuse(name, value)
        elif self._is_own(value, body.function):
            self._note_options(value)
            self._depth += 1
            self.lines.append(f"{name} -> function {self.function(body, holder)}")
            self._depth -= 1
        else:
            self._foreign(name, body.function, holder)

    def _note_options(self, value: Any) -> None:
        """Record options of `triton.jit` that change the binary, and watch the text, which can be replaced."""
        for layer in layers(value):
            written = getattr(layer, "src", None)
            if isinstance(written, str):
                self.checks.append(lambda layer=layer, written=written: layer.src is written)  # type: ignore[misc]
            for option in _OPTIONS:
                told = getattr(layer, option, None) or (getattr(layer, "kwargs", None) or {}).get(option)
                if told:  # Triton's interpreter keeps options in `kwargs`
                    self.lines.append(f"{option} = {told!r}")
            for filled, function in sorted((getattr(layer, "values", None) or {}).items()):
                self.value(f"{filled}:", function)

    def _is_own(self, value: Any, function: FunctionType) -> bool:
        return is_triton_function(value) or self._counts(naming.package_of(function), function.__module__)

    def _counts(self, package: str | None, module: str | None) -> bool:
        """Whether code of a package is examined, not only recorded by name."""
        self.blurred |= package != self.package and not is_settled(module)
        return package == self.package

    def _foreign(self, name: str, function: FunctionType, holder: Any) -> None:
        """Record another package's code by name, with the values that it closes over."""
        home = naming.home_of(str(function.__globals__.get("__name__", function.__module__)))
        if home.partition(".")[0] == "triton":
            home = function.__module__ or home  # all wrappers of its builtins have the globals of one module
        elif function not in self._closures:
            self._closures.append(function)  # it may close over itself, like a recursive inner function
            for free, value in cells(function).items():
                self.value(f"{name}.{free}", value)
            self._closures.pop()
        self.lines.append(f"{name} -> {home}.{getattr(function, '__qualname__', function.__code__.co_name)}")
        if holder is not NO_HOLDER:
            self.value(f"{name}.self", holder)
        wrapped = getattr(function, "__wrapped__", None)
        if isinstance(wrapped, FunctionType) and not is_settled(wrapped.__module__):
            self._wrapped(f"{name}.__wrapped__", wrapped)

    def _wrapped(self, name: str, function: FunctionType) -> None:
        """Handle the function wrapped by one of another package, such as `triton.language.core.extern`."""
        self.blurred = True

    def _module(self, name: str, module: ModuleType, whole: bool) -> None:
        """Record another package's module by name, and an own one if `whole`: otherwise its attributes are uses."""
        is_plain = sys.modules.get(module.__name__) is module
        if is_plain and module.__name__ in ("triton", "triton.language") and not self._is_of_triton:
            return
        is_own = not is_plain or naming.package_of_module(module) == self.package
        if not is_own:
            self.lines.append(f"{name} -> module {naming.home_of(module.__name__)}")
        elif whole and id(module) not in self._open:
            self._open[id(module)] = name
            for inner, value in sorted(vars(module).items()):
                if not inner.startswith("__") and not isinstance(value, ModuleType):
                    self.value(f"{name}.{inner}", value)
            del self._open[id(module)]

    def _class(self, name: str, kind: type, whole: bool) -> None:
        package = naming.package_of_class(kind)
        is_own = package is None or self._counts(package, kind.__module__)
        home = "" if is_own else naming.home_of(kind.__module__) + "."
        self.lines.append(f"{name} = {home}{kind.__qualname__}")
        if is_own and whole and kind not in self._classes:
            self._classes.add(kind)
            if type(kind) is not type:
                self._class(f"{name} of", type(kind), True)
            self.blurred = True
            for inner, value in self._members(kind):
                self.value(f"{name}.{inner}", value)
            self.checks.append(classes.is_same(kind))

    def _members(self, kind: type) -> Iterable[tuple[str, Any]]:
        return classes.members(kind)

    # -- data ------------------------------------------------------------------------------------------------------

    def _data(self, name: str, value: Any, whole: bool) -> None:
        if env.is_of_the_process(value):
            self.lines.append(f"{name} = of the process")  # differs between processes
        elif type(value) in (dict, list) or isinstance(value, tuple):
            self._container(name, value)
        elif isinstance(value, (set, frozenset)):
            self._set(name, value)
        elif self._array is not None and _is_array(value):
            self.lines.append(f"{name} = {canonical(self._array(value))}")
        else:
            try:
                self.lines.append(f"{name} = {canonical(self._plain(name, value))}")
            except errors.EncodingError:
                self._object(name, value, whole)
            else:
                self._methods(name, value, whole)

    def _plain(self, name: str, value: Any) -> Json:
        self.blurred |= not is_exact(value)
        return encode(value, name)

    def _methods(self, name: str, value: Any, whole: bool) -> None:
        """Record the methods and public attributes that a subclass of a plain type adds."""
        kind = type(value)
        if not whole or is_toolchain(kind.__module__):
            return
        if not isinstance(value, enum.Enum) or classes.has_methods(kind):
            self._class(f"{name} of", kind, True)
        self._state(name, kind, {field: item for field, item in attributes(value).items() if field[:1] != "_"})

    def _container(self, name: str, value: Any) -> None:
        self.lines.append(f"{name} = {type(value).__name__} of {len(value)}")
        items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        labels = [(self._label(f"{name}[]", key), item) for key, item in items]
        if type(value) is dict and self._sorts:  # if made from a set, its order depends on the hash seed
            labels.sort(key=lambda label: label[0])
        for label, item in labels:
            if item is None:
                self.lines.append(f"{name}[{label}] = null")
            self.value(f"{name}[{label}]", item)
        if type(value) not in (dict, list, tuple):  # a named tuple
            self._class(f"{name} of", type(value), True)
            self._state(name, type(value), getattr(value, "__dict__", {}))

    def _label(self, name: str, key: Any) -> str:
        if type(key) in (int, str, bool, bytes, float):
            return repr(key)
        return self._apart(name, key)

    def _set(self, name: str, value: Any) -> None:
        """Record a set by its sorted items: its order depends on the hash seed."""
        self.lines.append(f"{name} = {type(value).__name__} {canonical(sorted(self._apart(name, i) for i in value))}")
        if type(value) not in (set, frozenset):
            self._class(f"{name} of", type(value), True)
            self._state(name, type(value), getattr(value, "__dict__", {}))

    def _apart(self, name: str, item: Any) -> str:
        """A text for one value, independent of what was recorded before."""
        walk = type(self)(self._of, self._array)
        walk._open, walk._depth = dict(self._open), self._depth
        walk.value("", item)
        self.blurred |= walk.blurred
        self.opaque += [(name, value) for _, value in walk.opaque]
        self.checks += walk.checks
        return walk.digest()[:24] if len(walk.lines) != 1 else walk.lines[0]

    def _object(self, name: str, value: Any, whole: bool) -> None:
        if not whole:
            self._class(f"{name} of", type(value), False)
            return
        taken = held.taken_apart(value)
        if taken is None:
            self._refuse(name, value)
            return
        if isinstance(taken.kind, type):
            self._class(f"{name} of", taken.kind, True)
        else:
            self.lines.append(f"{name} = {taken.kind} {canonical(taken.data)}")
        for part, item in taken.parts:
            self.value(f"{name}.{part}", item)
        self._state(name, type(value), taken.state or {})
        self.checks.append(same_items(attributes(value)))

    def _state(self, name: str, kind: type, state: Mapping[str, Any]) -> None:
        own = self._passing(kind) if state else ()
        for field, item in sorted(state.items()):
            if field not in own:
                self.lines += [f"{name}.{field} = null"] * (item is None)
                self.value(f"{name}.{field}", item)

    def _passing(self, kind: type) -> Iterable[str]:
        """Attributes to ignore, such as counters."""
        return classes.set_by_methods(kind, self.package)

    def _refuse(self, name: str, value: Any) -> None:
        self.opaque.append((name, value))
        self.lines.append(f"{name} = {type_name(value)}")


_OPTIONS = ("noinline", "debug", "do_not_specialize", "do_not_specialize_on_alignment")


def _is_array(value: Any) -> bool:
    try:
        has_layout = hasattr(value, "stride") or hasattr(value, "strides")
        return has_layout and hasattr(value, "shape") and hasattr(value, "dtype")
    except Exception:  # from its `__getattr__`: treated like any other object
        return False


def is_settled(module: str | None) -> bool:
    """Whether a module is versioned: part of the toolchain, Python, or this package."""
    top = (module or "").partition(".")[0]
    return is_toolchain(top) or top in ("autotuned", "numpy") or top in sys.stdlib_module_names


def is_exact(value: Any) -> bool:
    """Whether typed JSON distinguishes a plain value from all others that could be compiled in."""
    name = type_name(value)
    if name == "triton.language.core.constexpr":
        return is_exact(value.value)
    if type(value) is float:
        return value != 0.0 or math.copysign(1.0, value) > 0
    return type(value) in (bool, int, str, bytes) or value is None or name in _DTYPES


_DTYPES = ("torch.dtype", "torch.device", "triton.language.core.dtype")


def attributes(value: Any) -> Mapping[str, Any]:
    """An object's instance attributes; empty without a `__dict__`."""
    found = getattr(value, "__dict__", None)
    return found if isinstance(found, dict) else {}


def same_items(now: Mapping[str, Any]) -> Callable[[], bool]:
    """A function that tells whether a mapping still has its current objects."""
    then = dict(now)
    return lambda: len(now) == len(then) and all(now.get(name) is value for name, value in then.items())


def _without_name(said: str) -> str:
    """A function's text with "_" for its name."""
    first, space, rest = said.partition(" ")
    return f"def _ {rest.partition(' ')[2]}" if space and first == "def" else said
