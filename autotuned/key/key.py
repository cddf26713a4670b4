"""Keys: named parts of a call and its context, tensors by dtype, sizes and stride pattern, and a digest."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import ref

from autotuned._startup import Frozen, once
from autotuned.gpu.device import from_json
from autotuned.typed_json import (
    DEPTH,
    INT64_MAX,
    WIDE,
    Fallback,
    Json,
    canonical,
    digest_of_text,
    encode,
    integers,
    is_numpy_bool,
    is_numpy_scalar,
    object_text,
    quoted,
    texts,
    too_deep,
    typed,
    wrong,
)

T = TypeVar("T")
_WIDEST = 1 << WIDE - 1  # smaller integers are plain JSON
CLASSES = 4096  # most classes in the cache of `by_class`


def by_class(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Cache a function's results for classes, without keeping the classes alive: a local class may hold tensors."""
    answers = _Answers(function)
    return lambda kind: answers[ref(kind)]


class _Answers(dict[Any, Any]):
    """Results by weak reference, since a new class may get the id of a dead one."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __missing__(self, kind: Any) -> Any:
        if len(self) >= CLASSES:
            self.clear()
        answer = self[kind] = self._function(kind())
        return answer


class Key(Frozen):
    """One problem to tune: the call and its context. Keys are equal exactly if their digests are."""

    kernel: str
    call: Json
    context: Json
    context_text: str | None = None  # its canonical text, if known

    def __repr__(self) -> str:
        return f"Key({self.kernel!r}, {self.call!r}, {self.context!r})"

    def __eq__(self, other: object) -> bool:
        # Not by fields, since 1 == True in Python; nor by digest, since this verifies files found by digest.
        return self.text == other.text if isinstance(other, Key) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    @once
    def text(self) -> str:
        """Canonical text of kernel name, call part and context part."""
        call = object_text({name: _field_text(part) for name, part in self.call.items()})
        context = self.context_text or canonical(self.context)
        # Equals `canonical` of one object with all three; the context's text is long and mostly cached.
        return f'{{"call":{call},"context":{context},"kernel":{quoted(self.kernel)}}}'

    @once
    def digest(self) -> str:
        """SHA-256 of the text, in hex."""
        return digest_of_text(self.text)

    @property
    def is_of_triton(self) -> bool:
        """Whether a Triton kernel is called, not a plain callable."""
        return "triton" in self.context

    def to_json(self) -> dict[str, Json]:
        """Both parts, as stored in a record."""
        return {"call": self.call, "context": self.context}


class KeySpec(Frozen):
    """Which parts of a call enter its key."""

    names: tuple[str, ...] | None = None  # None: every tensor's shape, and every integer that is not a constexpr
    functions: Mapping[str, Callable[[Mapping[str, Any]], Any]] = MappingProxyType({})  # of the bound arguments
    buckets: Mapping[str, Callable[[Any], Any]] = MappingProxyType({})  # for a value, or each size of a tensor
    constexprs: frozenset[str] = frozenset()  # compiled in, so always in the key if passed by the caller
    exact: frozenset[str] = frozenset()  # for launch tables only: they enter by exact value, shape and strides

    def exactly(self, names: Iterable[str]) -> KeySpec:
        """A copy in which some arguments enter exactly."""
        exact = frozenset(names)
        buckets = {name: bucket for name, bucket in self.buckets.items() if name not in exact}
        return self.replace(exact=exact, buckets=buckets) if exact else self

    def has_shape(self, name: str) -> bool:
        """Whether the shape of tensor argument `name` is in the key."""
        return self.names is None or name in self.names or name in self.exact

    def has_value(self, name: str, value: Any) -> bool:
        """Whether the value of scalar argument `name` is in the key."""
        if name in self.constexprs or name in self.exact:
            return True
        if self.names is not None:
            return name in self.names
        return isinstance(value, numbers.Integral) or is_numpy_bool(value)


def call_part(
    spec: KeySpec,
    arguments: Mapping[str, Any],
    options: Mapping[str, Any],
    kernel: str,
    fallback: Fallback | None = None,
) -> dict[str, Json]:
    """The call part of a key.

    Args:
        spec: Which parts of the call enter.
        arguments: All bound arguments that are not tuned, by name, with defaults.
        options: Launch options of the call, such as `num_warps`.
        kernel: The kernel's name, for errors.
        fallback: Gives the JSON of other values.

    Raises:
        EncodingError: A value in the key has no JSON form and there is no `fallback`.
    """
    tensors: dict[str, Json] = {}
    values: dict[str, Json] = {}
    part: dict[str, Json] = {"tensors": tensors, "values": values, "none": []}
    for name, value in arguments.items():
        if type(value) is int and name not in spec.buckets and -_WIDEST < value < _WIDEST:  # the most common
            if spec.names is None or name in spec.names or name in spec.constexprs or name in spec.exact:
                values[name] = value
        elif type(value) in TENSORS or is_tensor_type(type(value)):
            tensors[name] = _tensor_part(value, spec, name)
        elif type(value) is not float or spec.has_value(name, value):
            _add_argument(part, spec, name, value, kernel, fallback)
    for name, function in spec.functions.items():
        part["values"][f"{name}()"] = encode(function(arguments), f"key function {name!r} of '{kernel}'", fallback)
    if options:
        part["options"] = {
            name: encode(value, f"option {name!r} of '{kernel}'", fallback) for name, value in options.items()
        }
    return part


def _add_argument(
    part: dict[str, Json], spec: KeySpec, path: str, value: Any, kernel: str, fallback: Fallback | None
) -> None:
    name = path.partition("[")[0]
    if value is None:
        part["none"].append(path)
    elif is_tensor(value):
        part["tensors"][path] = _tensor_part(value, spec, name)
    elif is_descriptor(value):  # without block_shape, which tuned hooks set
        part["tensors"][path] = _part(value.base.dtype, value.shape, value.strides, spec, name)
    elif isinstance(value, tuple) and name not in spec.constexprs:
        if path.count("[") >= DEPTH:
            too_deep(value, f"argument {name!r} of '{kernel}'")
        for index, item in enumerate(value):
            _add_argument(part, spec, f"{path}[{index}]", item, kernel, fallback)
    elif spec.has_value(name, value):
        bucket = spec.buckets.get(name)
        part["values"][path] = encode(bucket(value) if bucket else value, f"argument {path!r} of '{kernel}'", fallback)


def layout(tensor: Any) -> Layout:
    """Dtype, shape and stride pattern of a tensor, as for an argument in a key."""
    return _tensor_part(tensor, KeySpec(), "")


class Layout(dict[str, Json]):
    """A tensor's part of a key with its canonical text; shared between keys, so never modified."""

    __slots__ = ("_text",)

    @property
    def text(self) -> str:
        """The canonical text, made with a key: the first launch of a shipped binary needs none."""
        try:
            return self._text
        except AttributeError:
            self._text: str = canonical(dict(self))
            return self._text


def _tensor_part(tensor: Any, spec: KeySpec, name: str) -> Layout:
    try:
        is_torchs = type(tensor) in TENSORS or hasattr(tensor, "stride")
        strides = tensor.stride() if is_torchs else strides_of(tensor)
        return _part(tensor.dtype, tensor.shape, strides, spec, name)
    except (RuntimeError, AttributeError):
        fields = _without_strides(tensor, spec, name)
        if fields is None:
            raise
        return Layout(fields)


def _without_strides(tensor: Any, spec: KeySpec, name: str) -> dict[str, Json] | None:
    """The part of a torch tensor without numeric strides: nested, or compressed sparse."""
    layout, nested = str(getattr(tensor, "layout", "torch.strided")), getattr(tensor, "is_nested", False)
    if layout == "torch.strided" and not nested:
        return None
    fields: dict[str, Json] = {"dtype": str(tensor.dtype), "strides": "nested" if nested else layout[len("torch.") :]}
    if spec.has_shape(name):
        fields["shape"] = list(sizes_of(tensor, spec.buckets.get(name, int)))
    return fields


def _part(dtype: Any, shape: Sequence[int], strides: Sequence[int], spec: KeySpec, name: str) -> Layout:
    sizes = tuple(shape)
    if spec.names is not None and name not in spec.names and name not in spec.exact:  # as `has_shape`
        return _layout(str(dtype), sizes, tuple(strides), None)
    bucket = spec.buckets.get(name)
    shown = tuple(int(bucket(int(size))) for size in sizes) if bucket else sizes
    return _layout(str(dtype), sizes, tuple(strides), shown)


@lru_cache(4096)
def _layout(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], shown: tuple[int, ...] | None) -> Layout:
    fields: dict[str, Json] = {"dtype": dtype, "strides": stride_pattern(shape, strides)}
    if shown is not None:
        fields["shape"] = list(map(int, shown))
    return Layout(fields)


def _field_text(part: Json) -> str:
    if isinstance(part, dict):
        return object_text(
            {name: value.text if type(value) is Layout else canonical(value) for name, value in part.items()}
        )
    return "[]" if part == [] else canonical(part)


def is_tensor(value: Any) -> bool:
    """Whether a value has dtype, shape and strides: a torch tensor, NumPy or CuPy array, but not a NumPy scalar.

    Classes, and named tuples with such fields (which Triton treats as tuples), are not tensors.
    """
    kind: Any = type(value)  # mypy: a class is not Hashable
    if kind in TENSORS or is_tensor_type(kind) or is_tensor_by_attributes(value):
        return True
    if _says_all(kind) or issubclass(kind, (tuple, type)):
        return False
    has_layout = hasattr(value, "shape") and (hasattr(value, "stride") or hasattr(value, "strides"))
    return has_layout and hasattr(value, "dtype") and not is_numpy_scalar(value)


def is_tensor_by_attributes(value: Any) -> bool:
    """Whether instance attributes supply the attributes of a tensor that the class lacks; calls no property."""
    kind: Any = type(value)
    if not kind.__dictoffset__ or issubclass(kind, (tuple, type)):
        return False
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return False
    return all(any(name in own for name in names) for names in _lacking(kind)) and not is_numpy_scalar(value)


@by_class
def _lacking(kind: type) -> list[tuple[str, ...]]:
    """The attributes of a tensor that a class lacks, each with its alternative names."""
    layout: tuple[tuple[str, ...], ...] = (("dtype",), ("shape",), ("stride", "strides"))
    return [names for names in layout if not any(hasattr(kind, name) for name in names)]


@by_class
def _says_all(kind: type) -> bool:
    """Whether no `__getattr__` or `__getattribute__` can add attributes."""
    getter: object = kind.__getattribute__
    return getter is object.__getattribute__ and not hasattr(kind, "__getattr__")


@by_class
def is_tensor_type(kind: type) -> bool:
    """Whether all values of a type are tensors: 0.1 us, where checking the value takes 0.8 us (tests/bench/key.py)."""
    has_layout = hasattr(kind, "shape") and (hasattr(kind, "stride") or hasattr(kind, "strides"))
    is_scalar = any(base.__module__ == "numpy" and base.__qualname__ == "generic" for base in kind.__mro__)
    is_one = has_layout and hasattr(kind, "dtype") and not is_scalar and not issubclass(kind, tuple)
    if is_one and kind.__module__ == "torch":
        TENSORS.add(kind)
    return is_one


TENSORS: set[type] = set()  # torch's own tensor types, which are never freed: recognized without a call


def strides_of(tensor: Any) -> tuple[int, ...]:
    """Strides in elements, converted for array libraries that count bytes."""
    stride = getattr(tensor, "stride", None)
    if stride is not None:
        return tuple(stride())
    return tuple(step // tensor.itemsize for step in tensor.strides)


def sizes_of(tensor: Any, bucket: Callable[[int], Any] = int) -> tuple[int, ...]:
    """A tensor's sizes; for a nested tensor, the rank and sizes of each tensor in it."""
    if not getattr(tensor, "is_nested", False):
        return tuple(int(bucket(int(size))) for size in tensor.shape)
    return tuple(number for inner in tensor.unbind() for number in (inner.dim(), *sizes_of(inner, bucket)))


def stride_pattern(shape: Sequence[int], strides: Sequence[int]) -> str:
    """One character per dimension: '0' broadcast, '1' dense, '*' any other stride.

    Strides of size-1 dimensions and of empty tensors are arbitrary and differ between libraries, so they count as in a
    contiguous tensor: a batch of one and a batch of many share a pattern.

    A launch table's signature must distinguish at least as much: change `stride_pattern` in launch/c/signature.h and
    `_layout_words` in launch/table.py together with this.
    """
    empty = 0 in shape
    pattern: list[str] = []
    for dim, (size, stride) in enumerate(zip(shape, strides)):
        if size == 1 or empty:
            stride = math.prod(max(following, 1) for following in shape[dim + 1 :])
        pattern += str(stride) if stride in (0, 1) else "*"
    return "".join(pattern)


PLAIN = frozenset((type(None), bool, int, float, str))  # types of values that hold no memory


def is_descriptor(value: Any) -> bool:
    """Whether a value is a Triton tensor descriptor: a tensor as `base`, and a block shape."""
    is_one = hasattr(value, "base") and hasattr(value, "block_shape") and hasattr(value, "strides")
    return is_one and not isinstance(value, (tuple, type))


def dtypes_in(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Dtypes in an argument: a tensor's, a descriptor's, or those of a tuple's members."""
    if hasattr(value, "dtype") and not isinstance(value, (tuple, type)):
        yield path, str(value.dtype)
    elif hasattr(value, "base") and hasattr(value, "block_shape"):
        yield path, str(value.base.dtype)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from dtypes_in(f"{path}[{index}]", item)


def load_key(kernel: Json, call: Json, context: Json) -> Key:
    """The key stored in a file, with checked types; RecordError names the wrong field."""
    check_call(call, "key.call")
    typed(context, dict, "key.context")
    check_device(context.get("device"), "key.context.device")
    return Key(typed(kernel, str, "kernel"), call, context)


def check_device(data: Json, where: str) -> None:
    """Raise RecordError unless `data` is the device part of a context."""
    try:
        from_json(typed(data, dict, where))
    except TypeError as error:
        raise wrong(where, f"a device ({error!s:.200})", data) from None


def check_call(call: Json, where: str) -> dict[str, Json]:
    """Check the types of a call's tensors, values, absent arguments and options; RecordError if one is wrong."""
    found: dict[str, Json] = typed(call, dict, where)
    for part in ("tensors", "values", "options"):
        if part in found and type(found[part]) is not dict:
            typed(found[part], dict, f"{where}.{part}")
    if found.get("none", []) != []:
        texts(found["none"], f"{where}.none")
    for name, tensor in found.get("tensors", {}).items():
        place = f"{where}.tensors.{name:.60}"
        fields = tensor if type(tensor) is dict else typed(tensor, dict, place)
        for field in ("dtype", "strides"):
            if type(fields.get(field)) is not str:
                raise wrong(f"{place}.{field}", "str", fields.get(field))
        if "shape" in tensor:
            integers(tensor["shape"], f"{place}.shape", -INT64_MAX)  # a bucket may be any number
    return found


def pow2(n: int) -> int:
    """Round `n` up to a power of two; 0 stays 0.

    Raises:
        ValueError: `n` is negative.
    """
    if n < 0:
        raise ValueError(f"pow2: expected a size of 0 or more, got {n}.")
    return n if n == 0 else 1 << (n - 1).bit_length()
