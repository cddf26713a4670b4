"""The members of a class that a fingerprint covers: methods and data, except those set by Python or its methods."""

from __future__ import annotations

import ast
import enum
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

from autotuned.key import naming
from autotuned.key.reach import stored
from autotuned.key.source_text import Body, tree

# Names that Python, `abc`, `copy`, `dataclasses` and `typing` derive from other members, some only when an object is
# copied; they differ between Python versions.
_MADE = frozenset((
    "__module__", "__dict__", "__weakref__", "__doc__", "__qualname__", "__firstlineno__", "__static_attributes__",
    "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__classdictcell__",
    "__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__", "__match_args__", "__replace__",
    "__dataclass_params__", "__dataclass_fields__", "__slotnames__",
))  # fmt: skip
_MAKERS = ("__init__", "__new__", "__post_init__", "__setstate__", "__init_subclass__")
_METHODS = (FunctionType, staticmethod, classmethod, property)


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The bases, methods and data of a class, sorted by name."""
    yield from _bases(kind)
    if isinstance(kind, enum.EnumMeta):
        yield from ((f"member {name}", kind.__members__[name].value) for name in kind.__members__)
        yield from _functions(kind)
        return
    own = set_by_methods(kind, naming.package_of_class(kind), on_class=True)
    for name, value in sorted(vars(kind).items()):
        if name not in _MADE and name not in own and not _is_generated(kind, name, value):
            yield name, value
    yield from _dataclass_fields(kind)


def all_members(kind: type) -> Iterator[tuple[str, Any]]:
    """Like `members`, plus attributes set by methods, minus `enum`'s own."""
    yield from _bases(kind)
    listed = getattr(kind, "__members__", {}) if isinstance(kind, enum.EnumMeta) else {}
    yield from ((f"member {name}", listed[name].value) for name in listed)
    for name, value in sorted(vars(kind).items()):
        is_enums = isinstance(kind, enum.EnumMeta) and (name in listed or not _is_users(kind, name, value))
        if name not in _MADE and not is_enums and not _is_generated(kind, name, value):
            yield name, value
    yield from _dataclass_fields(kind)


def _bases(kind: type) -> Iterator[tuple[str, Any]]:
    return ((f"base {index}", base) for index, base in enumerate(kind.__bases__) if base is not object)


def _dataclass_fields(kind: type) -> Iterator[tuple[str, Any]]:
    for name, field in sorted(getattr(kind, "__dataclass_fields__", {}).items()):
        yield f"field {name}", (field.default_factory if callable(field.default_factory) else None)


def _is_users(kind: type, name: str, value: Any) -> bool:
    """Whether an enumeration's attribute comes from its class statement, not from `enum`."""
    return _is_of(kind, value) if isinstance(value, _METHODS) else name[:1] != "_"


def has_methods(kind: type) -> bool:
    """Whether a class defines methods itself."""
    return any(True for _ in _functions(kind))


def _functions(kind: type) -> Iterator[tuple[str, Any]]:
    return (
        (name, value)
        for name, value in sorted(vars(kind).items())
        if isinstance(value, _METHODS) and not _is_generated(kind, name, value) and _is_of(kind, value)
    )


def _is_of(kind: type, value: Any) -> bool:
    """Whether a method comes from the class's own module, not from `enum`."""
    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    return getattr(function, "__module__", None) == kind.__module__


def _is_generated(kind: type, name: str, value: Any) -> bool:
    """Whether a member was generated, as by `dataclasses`, or is a slot's descriptor."""
    if isinstance(value, (MemberDescriptorType, GetSetDescriptorType)) or (name == "__hash__" and value is None):
        return True
    code = getattr(value, "__code__", None)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if code is None or code.co_filename == file:
        return False
    is_made = name.startswith("__") and "__dataclass_fields__" in vars(kind)
    return is_made or (file is not None and code.co_filename.startswith("<"))


def set_by_methods(kind: type, package: str | None, on_class: bool = False) -> set[str]:
    """Attributes that methods set after construction, such as counters and caches: state, not value.

    Args:
        kind: The class.
        package: Only methods of this package count: others are not in the fingerprint.
        on_class: For attributes of the class itself: `self.a = 1` leaves its `a` unchanged, `self.a[0] = 1` does not.
    """
    found: set[str] = set()
    for base in kind.__mro__:
        is_own = naming.package_of_class(base) == package
        for name, function in vars(base).items() if is_own else ():
            if isinstance(function, (FunctionType, staticmethod, classmethod)):
                spares = on_class and isinstance(function, FunctionType)
                found |= _set_by(getattr(function, "__func__", function), kind.__name__, name in _MAKERS, spares)
    return found


def _set_by(function: Any, of: str, is_maker: bool, spares_class: bool) -> set[str]:
    if not isinstance(function, FunctionType) or not function.__code__.co_argcount:
        return set()
    first = function.__code__.co_varnames[0]
    heads = {of, "cls"} if is_maker else {of, "cls", first}
    nodes = list(ast.walk(tree(Body(function))))
    spared = {first} if spares_class else set()
    found = stored([node for node in nodes if isinstance(node, ast.Subscript)])
    plain = stored([node for node in nodes if isinstance(node, ast.Attribute)])
    found |= {path for path in plain if path[0] not in spared or len(path) > 2}
    return {path[1] for path in found if len(path) > 1 and path[0] in heads}


def is_same(kind: type) -> Callable[[], bool]:
    """A function that tells whether a class still has its current methods and data."""
    then = dict(vars(kind))
    return lambda: all(vars(kind).get(name) is value for name, value in then.items())
