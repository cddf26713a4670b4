"""Finds entries that no program can ask for, without torch: values and dtypes that no key contains."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from autotuned.configfiles.file import ConfigFile
from autotuned.typed_json import Json

# As torch 2.13 and NumPy spell them; formats of few bits are matched by pattern, since more will come.
_TORCH = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16", "float32",
    "float64", "complex32", "complex64", "complex128", "quint8", "qint8", "qint32", "quint4x2", "quint2x4",
)  # fmt: skip
_NUMPY = ("longdouble", "float128", "float80", "float96", "clongdouble", "complex256", "object")
_FEW_BITS = re.compile(r"float[1-8]_e\d+m\d+\w*|float4_e2m1fn_x2|u?int[1-7]|bits\d+(x\d+)?")
_NAMED = re.compile(r"[<>|=]?[A-Za-z]\d*(\[\w+\])?|(datetime|timedelta)64(\[\w+\])?")  # NumPy's codes: >f4, <M8[ns]
_STRIDES = re.compile(r"[01*]*|nested|sparse_(csr|csc|bsr|bsc)")

_HEX = re.compile(r"(-?0x[01]\.[0-9a-f]+p[+-]\d+|nan|-?inf)")
_KINDS: dict[str, Callable[[Json], bool]] = {
    "float": lambda value: isinstance(value, str) and _HEX.fullmatch(value) is not None and _is_own(value),
    "int": lambda value: isinstance(value, str) and re.fullmatch(r"-?0x[1-9a-f][0-9a-f]*", value) is not None,
    "enum": lambda value: isinstance(value, list) and len(value) == 2 and isinstance(value[0], str),
    "bytes": lambda value: _is_hex(value),
    "text": lambda value: _is_hex(value),
    "dtype": lambda value: isinstance(value, str) and (value.startswith("triton.") or _is_dtype(value)),
    "device": lambda value: isinstance(value, str) and value != "",
    "tuple": lambda value: isinstance(value, list),
    "dict": lambda value: isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value),
    "numpy": lambda value: isinstance(value, list) and len(value) == 2 and isinstance(value[0], str),
    "complex": lambda value: isinstance(value, list) and len(value) == 2,
}


def in_context(context: Mapping[str, Json]) -> Iterator[str]:
    """Parts of a context that no program produces."""
    texts = ("triton", "triton_key", "source")
    yield from (_expected(f"context.{name}", "text", context[name]) for name in texts if not _is_text(context, name))
    if context.get("ptxas") is not None and not _is_text(context, "ptxas"):
        yield _expected("context.ptxas", "text or null", context["ptxas"])
    for name in ("environment", "distributions"):
        found = context.get(name, {})
        if not isinstance(found, dict) or not all(value is None or isinstance(value, str) for value in found.values()):
            yield _expected(f"context.{name}", "texts by name", found)
    yield from _in_value(context.get("version"), "context.version")


def _is_text(context: Mapping[str, Json], name: str) -> bool:
    return name not in context or isinstance(context[name], str)


def in_entries(file: ConfigFile) -> Iterator[str]:
    """Parts of calls and configs that no program produces."""
    kinds: dict[str, dict[str, str]] = {}  # of a parameter: the kinds of its values, each with an example
    for group in file.groups():
        for number, entry in enumerate(file.in_order(group)):
            call = entry.call
            for name, tensor in call.get("tensors", {}).items():
                yield from _in_tensor(tensor, f"call {number}, tensors.{name}")
            yield from _in_parts(call, f"call {number}, ", ("values", "options"), kinds)
            yield from _in_names(call, f"call {number}, ")
            yield from _in_parts(entry.config, f"config {number}, ", ("kwargs",), kinds)
    for name, found in kinds.items():
        if "int" in found and "number as text" in found:
            yield f"{name}: expected a number, as in other entries, got text {found['number as text']!r:.60}."


def _in_parts(
    holder: Mapping[str, Json], where: str, parts: tuple[str, ...], kinds: dict[str, dict[str, str]]
) -> Iterator[str]:
    for part in parts:
        for name, value in holder.get(part, {}).items():
            kinds.setdefault(f"{part}.{name}", {}).setdefault(_kind(value), str(value)[:60])
            yield from _in_value(value, f"{where}{part}.{name}")


def _in_names(call: Mapping[str, Json], where: str) -> Iterator[str]:
    """Arguments in two parts of a call, and Triton options that are not numbers."""
    names = [name for part in ("tensors", "values", "none") for name in call.get(part, ())]
    for name in sorted({name for name in names if names.count(name) > 1}):
        times = names.count(name)
        yield f"{where}{name:.60}: expected in one of tensors, values and none, and once, got it {times} times."
    for name in ("num_warps", "num_stages", "num_ctas", "maxnreg"):
        value = call.get("options", {}).get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            yield _expected(f"{where}options.{name}", "a number", value)


def _kind(value: Json) -> str:
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        return "number as text"
    return type(value).__name__


def _in_tensor(tensor: Mapping[str, Any], where: str) -> Iterator[str]:
    if not _is_dtype(tensor["dtype"]):
        known = [f"torch.{name}" for name in _TORCH] + list(_TORCH)
        near = difflib.get_close_matches(tensor["dtype"], known, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        yield f"{where}.dtype: expected a dtype as torch or NumPy writes it, got {tensor['dtype']!r:.60}.{hint}"
    if not _STRIDES.fullmatch(tensor["strides"]):
        yield f"{where}.strides: expected 0, 1 or * for each dimension, got {tensor['strides']!r:.60}."
    elif tensor["strides"][:1] in ("n", "s"):
        pass  # a word for what has no strides
    elif "shape" in tensor and len(tensor["shape"]) != len(tensor["strides"]):
        yield f"{where}.shape: expected {len(tensor['strides'])} sizes, as many as strides, got {len(tensor['shape'])}."
    for name in sorted(tensor.keys() - {"dtype", "strides", "shape"}):
        yield f"{where}.{name:.60}: expected dtype, strides and shape, got this field too."


def _is_dtype(text: str) -> bool:
    library, dot, name = text.rpartition(".")
    if dot and library != "torch":
        return library in ("jax", "mlx.core", "paddle", "triton")
    of_torch = name in _TORCH or _FEW_BITS.fullmatch(name) is not None
    return of_torch or (not dot and (name in _NUMPY or _NAMED.fullmatch(name) is not None))


def _in_value(value: Json, where: str) -> Iterator[str]:
    """Invalid typed JSON; unknown kinds are allowed, since a later version may write them."""
    if isinstance(value, float):
        yield _expected(
            where, '{"float": ...} with the hexadecimal form, for a bare number is none of Python\'s', value
        )
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _in_value(item, f"{where}[{i}]")
    elif isinstance(value, dict):
        yield from _in_object(value, where)


def _in_object(value: dict[str, Json], where: str) -> Iterator[str]:
    kind = next(iter(value), "")
    if len(value) != 1:
        yield _expected(where, "one field, which names the type", value)
    elif kind in _KINDS and not _KINDS[kind](value[kind]):
        yield _expected(where, f"what a {kind} is written as", value[kind])
    elif kind not in _KINDS and (near := difflib.get_close_matches(kind, _KINDS, 1, cutoff=0.8)):
        yield f"{where}: expected a type such as {near[0]!r}, got {kind!r:.60}."
    elif kind in ("tuple", "complex", "dict", "enum", "numpy"):
        yield from _in_value(value[kind], where)


def _is_own(text: str) -> bool:
    """Whether Python spells a number this way: it reads 0x1.80p+0 but never writes it."""
    try:
        return float.fromhex(text).hex() == text
    except (ValueError, OverflowError):
        return False


def _is_hex(value: Json) -> bool:
    return isinstance(value, str) and len(value) % 2 == 0 and re.fullmatch(r"[0-9a-f]*", value) is not None


def _expected(where: str, expected: str, got: Json) -> str:
    return f"{where}: expected {expected}, got {type(got).__name__} {got!r:.60}."
