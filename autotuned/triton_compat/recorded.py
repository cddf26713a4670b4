"""A compiled kernel's specialization as JSON, from which another process can compile it without a call."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from autotuned.triton_compat import kernel
from autotuned.triton_compat.compiled import Compilation
from autotuned.typed_json import Json, named, typed

FIELDS = ("signature", "constants", "attrs", "options")
_PLAIN = (bool, int, str, type(None))


def written(compiled: Any) -> dict[str, Json] | None:
    """The specialization of a compiled kernel; None if JSON cannot hold it (tuples, descriptors, functions)."""
    source, said = compiled.src, compiled.metadata._asdict()
    options = _changed_options(said)
    constants = [[list(path), _constant(value)] for path, value in source.constants.items()]
    whole = all(isinstance(kind, str) for kind in source.signature.values()) and options is not None
    if not whole or any(value is None for _, value in constants):
        return None
    attrs: Json = [[list(path), [list(pair) for pair in pairs]] for path, pairs in source.attrs.items()]
    return {"signature": dict(source.signature), "constants": constants, "attrs": attrs, "options": options}


def _constant(value: Any) -> Json:
    from triton.language import dtype

    if type(value) in _PLAIN:
        return ["value", value]
    if type(value) is float:
        return ["float", value.hex()]
    return ["dtype", value.name] if type(value) is dtype else None


def _changed_options(said: Mapping[str, Any]) -> dict[str, Json] | None:
    """Options that differ from Triton's defaults; None if one is not a plain value."""
    from triton.compiler.compiler import make_backend

    usual = vars(make_backend(said["target"]).parse_options({}))
    changed = {name: said[name] for name, value in usual.items() if name in said and not _same(said[name], value)}
    changed.pop("extern_libs", None)  # paths of this installation
    return changed if all(type(value) in _PLAIN for value in changed.values()) else None


def _same(one: Any, other: Any) -> bool:
    both = [list(value) if isinstance(value, (list, tuple)) else value for value in (one, other)]
    return bool(both[0] == both[1])


def compilation(jit: Any, data: Mapping[str, Json], digest: str) -> Compilation | None:
    """The compilation described by a result of `written`, or None if its hash differs; RecordError if it is invalid."""
    import triton
    from triton.compiler import ASTSource
    from triton.compiler.compiler import get_cache_key, make_backend
    from triton.runtime.driver import driver

    fields = named(data, "compiled", FIELDS)
    signature = typed(fields["signature"], dict, "signature")
    if list(signature) != list(jit.arg_names):
        return None
    parts = (_paths(fields[name], name, read) for name, read in (("constants", _read), ("attrs", lambda pairs: pairs)))
    source = ASTSource(jit, signature, *parts)
    target = driver.active.get_current_target()
    options = typed(fields["options"], dict, "options")
    backend = make_backend(target)
    key = get_cache_key(source, backend, backend.parse_options(dict(options)), env_vars=kernel.environment())
    if hashlib.sha256(key.encode()).hexdigest() != digest:
        return None
    return Compilation(digest, lambda: triton.compile(source, target=target, options=dict(options)))


def _paths(data: Json, where: str, read: Callable[[Any], Any]) -> dict[tuple[int, ...], Any]:
    return {tuple(path): read(value) for path, value in typed(data, list, where)}


def _read(data: Any) -> Any:
    from triton.language import dtype

    kind, value = data
    return {"float": float.fromhex, "dtype": dtype}[kind](value) if kind != "value" else value
