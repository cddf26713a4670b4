"""Typed JSON: one form for each value in a key or config, and checks of JSON read from disk."""

from __future__ import annotations

import enum
import hashlib
import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from autotuned._startup import errors

Json = Any
Fallback = Callable[[Any, str], Json]

OBJECT = "python object"  # identified by object, in this process only; no parameter name has a space

INT64_MAX = (1 << 63) - 1
PID_MAX = (1 << 31) - 1  # system calls raise for larger numbers


def encode(value: Any, where: str, fallback: Fallback | None = None) -> Json:
    """Write a value as JSON that keeps its type: 1, True, 1.0, "1" and an enum of 1 differ.

    None, bool, int and str are written unchanged, other values as a one-field object that names their type, such as
    `{"float": "0x1.8p+0"}`. A `tl.constexpr` is written as its value.

    Args:
        value: The value.
        where: Its location for errors, such as "argument 'ACT' of 'app.gemm'".
        fallback: Called with values of unknown types; returns their JSON.

    Raises:
        EncodingError: The type is unknown and there is no `fallback`.
    """
    if type(value) in (bool, type(None)) or (type(value) is int and value.bit_length() < WIDE):
        return value
    if isinstance(value, enum.Enum):
        # Flags by number: R|W has no name in Python 3.10, but "R|W" in 3.11.
        member = value.value if isinstance(value, enum.Flag) else value.name
        # With its value, not its module, whose name differs if the file runs as a script.
        return {"enum": [f"{type(value).__qualname__}.{member}", encode(value.value, where, fallback)]}
    if isinstance(value, str):
        return _text(value)
    writer = _WRITERS.get(type_name(value))
    if writer is not None:
        return writer(value, where, fallback)
    if isinstance(value, int):
        return int(value) if value.bit_length() < WIDE else {"int": hex(value)}
    if isinstance(value, float):
        return _float(value, where, fallback)
    if isinstance(value, tuple):
        return {"tuple": _items(value, where, fallback)}
    if is_numpy_scalar(value):
        return _numpy_scalar(value, where, fallback)
    if fallback is not None:
        return fallback(value, where)
    return unencodable(value, where)


def is_numpy_bool(value: Any) -> bool:
    """Whether a value is NumPy's bool, which `numbers` does not count as an integer, though it does Python's."""
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_")


def is_numpy_scalar(value: Any) -> bool:
    """Whether a value is a NumPy scalar, which has dtype, shape and strides but is not an array."""
    return any(base.__module__ == "numpy" and base.__qualname__ == "generic" for base in type(value).__mro__)


def _numpy_scalar(value: Any, where: str, fallback: Fallback | None) -> Json:
    if value.dtype.kind in "mM":  # dates: `item` loses the unit, and may be an integer
        return {"numpy": [str(value.dtype), str(value)]}
    item = value.item()
    if type(item) is type(value):  # a long double
        return fallback(value, where) if fallback is not None else unencodable(value, where)
    return {"numpy": [str(value.dtype), encode(item, where, fallback)]}


def unencodable(value: Any, where: str) -> Json:
    """Raise EncodingError for a value without a JSON form."""
    raise errors.EncodingError(
        f"{where}: expected None, bool, int, float, str, bytes, tuple, list, dict, enum, dtype, device or a numpy "
        f"scalar, got {type_name(value)}. Pass one of these, or leave it out of key.",
        where=where,
    )


def canonical(data: Json) -> str:
    """The canonical text of a JSON value: sorted fields, no spaces, ASCII; NaN and Infinity are refused."""
    if type(data) is int:  # most values; the encoder takes 1.3 us to start (tests/bench/key.py)
        return int.__repr__(data)
    return "".join(_WRITE(data, 0))


class Told(dict[str, Json]):
    """A JSON object with its canonical text; shared, so never modified."""

    __slots__ = ("text",)

    def __init__(self, data: Mapping[str, Json]) -> None:
        super().__init__(data)
        self.text = canonical(data)


def line(data: Json) -> str:
    """A JSON value as a line of a config file: sorted fields, spaces, ASCII; NaN and Infinity are refused."""
    return "".join(_WRITE_SPACED(data, 0))


def object_text(texts: Mapping[str, str]) -> str:
    """The canonical text of an object whose values are already text."""
    return "{" + ",".join([f"{quoted(name)}:{texts[name]}" for name in sorted(texts)]) + "}"


def _writer(encoder: json.JSONEncoder) -> Callable[[Json, int], Iterable[str]]:
    """Python's C encoder with sorted fields, created once; `encoder.encode` creates one for each text."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return lambda data, _: encoder.encode(data)
    between = encoder.key_separator, encoder.item_separator
    return make(None, encoder.default, json.encoder.encode_basestring_ascii, None, *between, True, False, False)  # type: ignore[no-any-return]


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_WRITE = _writer(_ENCODER)
_WRITE_SPACED = _writer(json.JSONEncoder(sort_keys=True, allow_nan=False))
quoted = lru_cache(4096)(_ENCODER.encode)  # the canonical text of a name


def digest(data: Json) -> str:
    """SHA-256 of the canonical text, in hex."""
    return digest_of_text(canonical(data))


def digest_of_text(text: str) -> str:
    """SHA-256 of a canonical text, in hex."""
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def type_name(value: Any) -> str:
    """A value's type as text."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


WIDE = 10_000  # integers of this many bits are written in hex: Python refuses more than 4,300 decimal digits
DEPTH = 64  # of nested values; the JSON writer fails at about 1,000
ITEMS = 1_000_000  # nested lists that hold the same list twice would have 2 ** DEPTH items


class _Nesting(threading.local):
    """Containers being written by this thread, outermost first, and the number of items so far."""

    def __init__(self) -> None:
        self.open: list[int] = []
        self.items = 0


_nesting = _Nesting()


@contextmanager
def _inside(value: Any, where: str) -> Iterator[None]:
    """Guard the writing of a container's items; EncodingError for cycles, deep nesting or too many items."""
    held = _nesting.open
    if not held:
        _nesting.items = 0
    _nesting.items += len(value)
    if id(value) in held or len(held) >= DEPTH or _nesting.items > ITEMS:
        problem = "that holds itself" if id(value) in held else f"nested more than {DEPTH} deep"
        _refuse(value, f"of more than {ITEMS:,} items" if _nesting.items > ITEMS else problem, where)
    held.append(id(value))
    try:
        yield
    finally:
        held.pop()


def too_deep(value: Any, where: str) -> None:
    """Raise EncodingError for a value nested more than `DEPTH` deep."""
    _refuse(value, f"nested more than {DEPTH} deep", where)


def _refuse(value: Any, problem: str, where: str) -> None:
    root = where.partition("[")[0]
    raise errors.EncodingError(
        f"{root}: expected values nested at most {DEPTH} deep, got a {type(value).__name__} {problem}. Leave "
        "it out of key, or name a callable in key that returns its relevant part.",
        where=root,
    )


def _items(value: Any, where: str, fallback: Fallback | None) -> list[Json]:
    with _inside(value, where):
        return [encode(item, f"{where}[{i}]", fallback) for i, item in enumerate(value)]


def _text(value: str) -> Json:
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON does not distinguish two lone surrogates from the character they encode
        return {"text": value.encode("utf-8", "surrogatepass").hex()}
    return value


def _float(value: float, where: str, fallback: Fallback | None) -> Json:
    # x + 0.0 turns -0.0 into 0.0; hex() spells every NaN "nan".
    return {"float": (value + 0.0).hex()}


def _dict(value: dict[Any, Any], where: str, fallback: Fallback | None) -> Json:
    with _inside(value, where):
        pairs = [[encode(k, where, fallback), encode(v, f"{where}[{_label(k)}]", fallback)] for k, v in value.items()]
    return {"dict": sorted(pairs, key=canonical)}


def _label(key: Any) -> str:
    """A dict key in an error's location: its `repr` if that cannot fail, otherwise its type."""
    return repr(key) if type(key) in (str, int, bool, float, bytes) else type(key).__name__


# Types of torch and triton by name, so that this file imports neither.
_WRITERS: dict[str, Callable[[Any, str, Fallback | None], Json]] = {
    "builtins.float": _float,
    "builtins.list": _items,
    "builtins.dict": _dict,
    "builtins.bytes": lambda v, w, f: {"bytes": v.hex()},
    "builtins.complex": lambda v, w, f: {"complex": [_float(v.real, w, f), _float(v.imag, w, f)]},
    "torch.dtype": lambda v, w, f: {"dtype": str(v)},
    "torch.device": lambda v, w, f: {"device": str(v)},
    "triton.language.core.dtype": lambda v, w, f: {"dtype": f"triton.{v}"},
    "triton.language.core.constexpr": lambda v, w, f: encode(v.value, w, f),
    "numpy.bool": lambda v, w, f: {"numpy": ["bool", bool(v)]},
}


def portable(*parts: Json) -> bool:
    """Whether keys or configs are valid in other processes: no value is identified by object only."""
    return not any(True for part in parts for _ in _marked("", part))


def _marked(path: str, data: Json) -> Iterator[tuple[str, str]]:
    """Paths and types of values identified by object only."""
    if isinstance(data, dict) and OBJECT in data:
        yield path, data["type"]
    elif isinstance(data, (dict, list)):
        for name, inner in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _marked(f"{path}.{name}" if path else str(name), inner)


def why_not_portable(data: Json) -> str:
    """Describe the first value that keeps `data` from being `portable`, and how to fix that."""
    path, kind = next(_marked("", data))
    _, _, name = path.partition("values.")
    if name:
        hint = "Leave it out of key, or name a callable that returns its relevant part"
        return f"{name!r}, of type {kind}, has no JSON form. {hint}"
    name = path.partition("process.")[2] or path
    return f"{name!r}, a value of type {kind} that its code uses, has no JSON form. Put its relevant part into version="


# -- checks of JSON that was read -------------------------------------------------------------------------------------


def typed(value: Json, kind: type, where: str) -> Any:
    """Return `value` if it has type `kind`, otherwise raise RecordError; a bool is not an int."""
    if type(value) is not kind and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise wrong(where, kind.__name__, value)
    return value


def integer(value: Json, where: str, least: int = 0, most: int = INT64_MAX) -> int:
    """Return `value` if it is an integer in [least, most], otherwise raise RecordError."""
    number: int = value if type(value) is int else typed(value, int, where)
    if not least <= number <= most:
        below = "or more" if most == INT64_MAX else f"to {most}"
        raise wrong(where, f"a number of {least} {below}", value)
    return number


def texts(value: Json, where: str) -> list[str]:
    """Return `value` if it is a list of strings, otherwise raise RecordError."""
    listed = typed(value, list, where)
    return [text if type(text) is str else typed(text, str, f"{where}[{i}]") for i, text in enumerate(listed)]


def has_names_once(text: str, objects: Sequence[Json]) -> bool:
    """Whether counting the colons of a JSON text proves that no object repeats a name, which parsing would not detect.

    A colon in a string makes it False too. `objects` are all objects of the text, parsed.
    """
    return {*map(type, objects)} == {dict} and sum(map(len, objects)) == text.count(":")


def integers(value: Json, where: str, least: int = 0) -> list[int]:
    """Return `value` if it is a list of 64-bit integers of at least `least`, otherwise raise RecordError."""
    return [integer(number, f"{where}[{i}]", least) for i, number in enumerate(typed(value, list, where))]


def named(data: Json, where: str, names: Iterable[str]) -> dict[str, Json]:
    """Return `data` if it is an object with exactly these fields, otherwise raise RecordError."""
    fields: dict[str, Json] = typed(data, dict, where)
    wanted = set(names)
    if fields.keys() == wanted:
        return fields
    for name in sorted(wanted - fields.keys()):
        raise wrong(f"{where}.{name}", "a value", None)
    name = min(fields.keys() - wanted)
    raise wrong(f"{where}.{name:.60}", "no such field", fields[name])


def is_finite(value: Json) -> bool:
    """Whether a JSON value is a number that a float can represent."""
    if type(value) is float:
        return math.isfinite(value)
    try:
        return not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:  # an int of more than 308 digits
        return False


def wrong(where: str, expected: str, got: Json) -> errors.RecordError:
    """The error for a field that violates its schema."""
    return errors.RecordError(f"{where}: expected {expected}, got {type(got).__name__} {_short(got)}.", where=where)


def _short(value: Json) -> str:
    # `repr` raises for huge integers, and would write out lists of millions.
    if isinstance(value, (dict, list)) and len(value) > 100:
        return f"of {len(value)} items"
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"of {value.bit_length()} bits"
    return f"{(value[:100] if isinstance(value, str) else value)!r:.60}"


class JsonFields:
    """Base of results whose JSON is their fields, also of nested results."""

    def to_json(self) -> dict[str, Json]:
        """The result as commands print it with `--json`."""
        return {name: _fields_in(value) for name, value in vars(self).items()}


def _fields_in(value: Any) -> Json:
    if isinstance(value, (list, tuple)):
        return [_fields_in(item) for item in value]
    return value.to_json() if hasattr(value, "to_json") else value
