"""Warnings about keys without a stored choice: which run untuned, and what varies if there are many."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from autotuned.key.key import Key, pow2
from autotuned.typed_json import Json, canonical

log = logging.getLogger("autotuned")

LIMIT = 4096  # counted keys of a kernel, to bound memory


class Untuned:
    """Keys of a kernel that mode "serve" runs untuned: a warning for the first, an info line for each other one.

    A warning for each shape of a service would look like an error and hide others.
    """

    def __init__(self) -> None:
        self._digests: set[str] = set()

    def __len__(self) -> int:
        return len(self._digests)

    def note(self, key: Key, nearest_words: Callable[[Key], str]) -> None:
        """Note a key; the first time, say how it differs from the nearest stored one."""
        if key.digest in self._digests or len(self._digests) >= LIMIT:
            return
        self._digests.add(key.digest)
        level = logging.INFO if len(self) > 1 else logging.WARNING
        if log.isEnabledFor(level):
            message = "`%s`: nothing is stored for key %s; mode 'serve' runs it untuned; %s."
            log.log(level, message, key.kernel, key.digest[:12], nearest_words(key))


def say_untuned(kernels: Sequence[Untuned]) -> None:
    """At exit, log how many more keys ran untuned."""
    counts = [len(kernel) for kernel in kernels if len(kernel)]
    if sum(counts) > len(counts):
        message = "%s%d keys of %d kernel%s ran untuned. `autotuned record` and `autotuned list --missing` name them."
        log.warning(message, "at least " * (max(counts) >= LIMIT), sum(counts), len(counts), "s"[: len(counts) - 1])


def advice(keys: Sequence[Key]) -> str:
    """A warning about what varies most among a kernel's keys, and how to avoid it."""
    seen: dict[str, dict[str, Json]] = {}
    for key in keys:
        for path, value in _values(key.call):
            seen.setdefault(path, {})[canonical(value)] = value
    path = max(seen, key=lambda path: len(seen[path]), default="")
    values = list(seen.get(path, {}).values())
    what, hint = _remedy(path, values)
    return (
        f"`{keys[-1].kernel}`: {len(keys)} different keys in a short time, each of them tuned; "
        f"{what} varies most ({len(values)} values). {hint}"
    )


def _remedy(path: str, values: Sequence[Json]) -> tuple[str, str]:
    part, _, rest = path.partition(".")
    name, _, field = rest.partition(".")
    argument = name.partition("[")[0]
    if name.endswith("()"):
        return f"key function {name[:-2]!r}", "Make it return the same for calls that may share a choice."
    if part == "values":
        return f"argument {argument!r}", _bucket(argument, values)
    if field == "shape":
        return f"the shape of {argument!r}", _bucket(argument, [size for shape in values for size in shape])
    return path or "nothing in the call", "Leave arguments that do not affect the choice out of key=."


def _bucket(argument: str, values: Sequence[Json]) -> str:
    leave = f"leave {argument!r} out of key=[...] if the choice does not depend on it"
    if not all(type(value) is int and value >= 0 for value in values):
        return f"{leave[0].upper()}{leave[1:]}."
    return (
        f"Name it in key=[...] and give bucket={{{argument!r}: autotuned.pow2}} (these would be "
        f"{len(set(map(pow2, values)))}), or {leave}."
    )


def _values(call: Json) -> Iterator[tuple[str, Json]]:
    for part in ("values", "options"):
        yield from ((f"{part}.{name}", value) for name, value in call.get(part, {}).items())
    for name, tensor in call["tensors"].items():
        yield from ((f"tensors.{name}.{field}", value) for field, value in tensor.items())
