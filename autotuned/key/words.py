"""Keys and their parts as short text for people."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from autotuned.key.nearest_key import Difference
from autotuned.typed_json import Json

DIGEST = 64  # hex digits of a digest; only the first are shown


def toolchain_words(context: Mapping[str, Json]) -> str:
    """Triton's version in a context, or the versions a plain callable lists: "triton 3.6.0"."""
    others = context.get("distributions")
    versions = {"triton": context.get("triton"), **(others if isinstance(others, dict) else {})}
    return " ".join(f"{name} {value_words(version)}" for name, version in versions.items() if version) or "n/a"


def call_words(call: Mapping[str, Json]) -> str:
    """A short form of a key's call part: `N_COLS=4096 x,y fp16[64,4096] bias=None`."""
    words = [f"{name}={value_words(value)}" for name, value in call.get("values", {}).items()]
    words += _tensor_words(call.get("tensors", {}))
    words += [f"{name}=None" for name in call.get("none", ())]
    words += [f"{name}={value_words(value)}" for name, value in call.get("options", {}).items()]
    return " ".join(words) or "any call"


def _tensor_words(tensors: Mapping[str, Mapping[str, Json]]) -> list[str]:
    """Tensors grouped by layout; without names if all have the same layout and no shape is in the key."""
    alike: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        alike.setdefault(_layout_words(tensor), []).append(name)
    if len(alike) == 1 and not any("shape" in tensor for tensor in tensors.values()):
        return list(alike)
    return [f"{','.join(names)} {layout}" for layout, names in alike.items()]


def _layout_words(tensor: Mapping[str, Json]) -> str:
    shape = f"[{','.join(map(str, tensor['shape']))}]" if "shape" in tensor else ""
    strides = tensor["strides"]
    plain = not strides or (strides.endswith("1") and not strides[:-1].strip("*"))
    return dtype_words(tensor["dtype"]) + shape + ("" if plain else f" strides {strides}")


def in_order(text: str) -> list[tuple[bool, int, str]]:
    """A sort key that orders numbers in text by size: M=64 before M=256."""
    parts = re.split(r"(\d+)", text)
    return [(part.isdecimal(), int(part[:99]) if part.isdecimal() else 0, part) for part in parts]


def dtype_words(dtype: str) -> str:
    """A dtype as kernel authors write it: fp16, bf16, i32, u8."""
    name = dtype.rpartition(".")[2]
    for long, short in (("bfloat", "bf"), ("float", "fp"), ("uint", "u"), ("int", "i")):
        if name.startswith(long):
            return short + name.removeprefix(long)
    return name


def value_words(value: Json) -> str:
    """A value of a key from its typed JSON; unknown kinds are shown as JSON."""
    if isinstance(value, list):
        return f"[{', '.join(map(value_words, value))}]"
    if not isinstance(value, dict) or not value:
        return str(value)
    kind, inner = next(iter(value.items()))
    write = _KINDS.get(kind)
    try:
        return write(inner) if write is not None and len(value) == 1 else _plain(value)
    except (TypeError, ValueError, LookupError, AttributeError):  # from a foreign file, or a later version's
        return _plain(value)


def _plain(value: Json) -> str:
    if isinstance(value, dict) and len(value) == 1:
        [(kind, inner)] = value.items()
        return f"{kind} {inner if isinstance(inner, str) else value_words(inner)}"
    return json.dumps(value, sort_keys=True)


def _digest_words(digest: str) -> str:
    return digest[:8] if len(digest) == DIGEST else digest


def _dict_words(pairs: Json) -> str:
    return "{" + ", ".join(f"{value_words(key)}: {value_words(item)}" for key, item in pairs) + "}"


_KINDS: dict[str, Callable[[Json], str]] = {
    "float": lambda inner: repr(float.fromhex(inner)),
    "complex": lambda inner: repr(complex(*(float.fromhex(part["float"]) for part in inner))),
    "tuple": lambda inner: f"({', '.join(map(value_words, inner))})",
    "dict": _dict_words,
    "bytes": lambda inner: repr(bytes.fromhex(inner)),
    "text": lambda inner: repr(bytes.fromhex(inner).decode("utf-8", "surrogatepass")),
    "dtype": dtype_words,
    "device": str,
    "enum": lambda inner: ".".join(inner[0].split(".")[-2:]),
    "function": lambda inner: f"function {_digest_words(inner)}",
    "value": lambda inner: f"{inner[0]} {_digest_words(inner[1])}",
    "class": lambda inner: f"class {inner[0]}",
    "array": _layout_words,
    "numpy": lambda inner: value_words(inner[1]),
    "int": str,
    "python object": lambda inner: f"object {inner}",
}


def change_words(change: Difference) -> str:
    """How two keys differ, stored versus the call's: `g.dtype bf16 != fp32`."""
    path = change.path.partition(".")[2]  # the parts of "call" and "context" have distinct names
    for part in ("tensors.", "values.", "options."):
        path = path.removeprefix(part)
    return f"{path} {_side_words(path, change.theirs)} != {_side_words(path, change.ours)}"


def _side_words(path: str, value: Json) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict) and "dtype" in value and "strides" in value:
        return _layout_words(value)
    if path.endswith(".dtype"):
        return dtype_words(value)
    words = value_words(value)
    return words[:12] if len(words) == DIGEST else words
