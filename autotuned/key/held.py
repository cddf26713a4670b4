"""Takes apart values that typed JSON does not support: a name for their kind, plain data, and the values inside."""

from __future__ import annotations

import copyreg
import hashlib
import sys
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, MappingProxyType
from typing import Any

from autotuned._startup import Frozen
from autotuned.typed_json import Json, is_numpy_scalar, type_name

LIMIT_BYTES = 1 << 26  # larger arrays take over 50 ms to hash; their choice is kept in memory only


class Held(Frozen):
    """A value taken apart."""

    kind: Any  # its class, or a name for it
    data: Json = None  # its plain data
    parts: tuple[tuple[str, Any], ...] = ()  # the named values inside, in an order that depends only on the values
    state: Mapping[str, Any] | None = None  # its attributes, if they matter


def taken_apart(value: Any) -> Held | None:
    """Take a value apart; None if that is impossible or meaningless in another process."""
    if type(value) is object:  # a sentinel
        return None
    for is_such, take in _WAYS:
        if is_such(value):
            return take(value)
    return _reduced(value)


def _named(*names: str) -> Callable[[Any], bool]:
    return lambda value: type_name(value) in names


def _derives(*names: str) -> Callable[[Any], bool]:
    return lambda value: any(f"{base.__module__}.{base.__qualname__}" in names for base in type(value).__mro__)


def _is_exact(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in kinds


def _array(value: Any) -> Held | None:
    if value.nbytes > LIMIT_BYTES:
        return None
    if value.dtype.hasobject or value.dtype.kind == "V" or value.dtype.char in "gG":  # has padding bytes
        return Held("array", [str(value.dtype), list(value.shape)], (("items", value.tolist()),))
    return Held("array", [str(value.dtype.descr), list(value.shape), _hash(value.tobytes())])


def _tensor(value: Any) -> Held | None:
    """A tensor's content, copied from its device; None if that is impossible, as during CUDA graph capture."""
    torch = sys.modules["torch"]
    if (
        value.is_quantized
        or value.numel() * value.element_size() > LIMIT_BYTES
        or (value.is_cuda and torch.cuda.is_current_stream_capturing())
    ):
        return None
    try:
        plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    layout = [list(value.shape), list(value.stride()), value.requires_grad]
    return Held("tensor", [str(value.dtype), value.device.type, *layout, _hash(plain.tobytes())], (), vars(value))


def _path(value: Any) -> Held:
    return Held(type(value).__name__, str(value), (), getattr(value, "__dict__", None))


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _builtin(value: Any) -> Held:
    holder = getattr(value, "__self__", None)
    is_function = holder is None or type(holder).__name__ == "module"
    name = f"{value.__module__}.{value.__qualname__}" if is_function else value.__name__
    return Held("function", name, () if is_function else (("self", holder),))


def _by_name(value: Any) -> Held:
    return Held("name", f"{type_name(value)} {getattr(value, '__name__', '')}".rstrip())


def _descriptor(value: Any) -> Held:
    names = ("fget", "fset", "fdel", "func", "__func__")
    return Held(type(value).__name__, None, tuple((name, getattr(value, name, None)) for name in names))


_WAYS: list[tuple[Callable[[Any], bool], Callable[[Any], Held | None]]] = [
    (_is_exact(range, slice), lambda v: Held(type(v).__name__, None, (("bounds", (v.start, v.stop, v.step)),))),
    (_is_exact(bytearray), lambda v: Held("bytearray", bytes(v).hex())),
    (_is_exact(memoryview), lambda v: Held("memoryview", [v.format, list(v.shape or ()), _hash(v.tobytes())])),
    (_is_exact(MappingProxyType), lambda v: Held("mappingproxy", None, (("of", dict(v)),))),
    (_is_exact(BuiltinFunctionType), _builtin),
    (_is_exact(staticmethod, classmethod, property), _descriptor),
    (_is_exact(type({}.keys()), type({}.values()), type({}.items())), lambda v: Held("view", None, (("of", list(v)),))),
    (_named("functools.cached_property"), _descriptor),
    (_named("array.array"), lambda v: Held("array", [v.typecode, _hash(v.tobytes())])),
    (_named("collections.deque"), lambda v: Held("deque", v.maxlen, (("items", list(v)),))),
    (_named("collections.ChainMap"), lambda v: Held("ChainMap", None, (("maps", list(v.maps)),))),
    (_named("re.Pattern"), lambda v: Held("pattern", None, (("of", (v.pattern, v.flags)),))),
    (_derives("pathlib.PurePath", "pathlib._local.PurePath"), _path),
    (_named("decimal.Decimal", "fractions.Fraction", "uuid.UUID", "torch.finfo", "torch.iinfo"),
     lambda v: Held(type(v).__name__, str(v))),
    (_named("numpy.ndarray"), _array),
    (is_numpy_scalar, lambda v: Held("numpy", [str(v.dtype), str(v)])),
    (_derives("torch.Tensor"), _tensor),
    (_named("torch._ops.OpOverload", "torch._ops.OpOverloadPacket"), lambda v: Held("operator", str(v))),
    (_named("_struct.Struct"), lambda v: Held("Struct", v.format)),
    (_derives("logging.Logger"), lambda v: Held("Logger", v.name)),
    (_derives("_io._IOBase"), _by_name),  # an open file, such as a standard stream, is specific to a process
    # A random number generator changes with each use.
    (_derives("random.Random", "numpy.random.mtrand.RandomState", "numpy.random._generator.Generator",
              "numpy.random.bit_generator.BitGenerator", "torch._C.Generator"), _by_name),
    # Results do not depend on locks, or on caches of objects that live elsewhere.
    (_named("_thread.lock", "_thread.RLock", "_thread.allocate_lock", "threading.Condition"), _by_name),
    (_derives("weakref.WeakKeyDictionary", "weakref.WeakValueDictionary", "_weakrefset.WeakSet"), _by_name),
    (_named("builtins.method_descriptor", "builtins.wrapper_descriptor", "builtins.classmethod_descriptor",
            "builtins.getset_descriptor", "builtins.member_descriptor"),
     lambda v: Held("function", f"{v.__objclass__.__module__}.{v.__qualname__}")),
    (_named("builtins.method-wrapper"), lambda v: Held("function", v.__name__, (("self", v.__self__),))),
    (_named("numpy.ufunc"), lambda v: Held("function", f"numpy.{v.__name__}") if _is_numpys(v) else None),
]  # fmt: skip


def _is_numpys(ufunc: Any) -> bool:
    return getattr(sys.modules["numpy"], ufunc.__name__, None) is ufunc


def _reduced(value: Any) -> Held | None:
    """Take a value apart as pickle does: constructor, arguments, state and items."""
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        made = reduce(value) if reduce is not None else value.__reduce_ex__(4)
        if isinstance(made, str):
            return Held("name", f"{type(value).__module__}.{made}")
        maker, arguments, state, items, pairs = (*made, None, None, None)[:5]
        parts: list[tuple[str, Any]] = []
        if maker not in (copyreg.__newobj__, copyreg.__newobj_ex__):  # type: ignore[attr-defined]
            parts.append(("made by", maker))
            parts.append(("from", tuple(arguments)))
        elif len(arguments) > 1:
            parts.append(("from", tuple(arguments[1:])))
        parts += [(name, list(found)) for name, found in (("items", items), ("pairs", pairs)) if found is not None]
    except Exception:  # it cannot be pickled, so it is identified by object
        return None
    fields = _fields(state)
    if fields is None:
        parts.append(("state", state))
        fields = vars(value) if _derives("numpy.ndarray")(value) else None  # not part of its own state
    return Held(type(value), None, tuple(parts), fields)


def _fields(state: Any) -> Mapping[str, Any] | None:
    """The attributes in a pickle state in the form of `object`, a dict or (dict, slots); None for other forms."""
    if state is None:
        return {}
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if not all(part is None or isinstance(part, dict) for part in (attributes, slots)):
        return None
    fields = {**(attributes or {}), **(slots or {})}
    return fields if all(isinstance(name, str) for name in fields) else None
