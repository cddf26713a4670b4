"""Runs generators of cases on a machine without their GPU: tensors have shapes but no memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

ASKED, GIVEN = "cuda", "meta"


@contextmanager
def shapes_only() -> Iterator[None]:
    """Run generators of cases as on a GPU; its tensors have no memory and count as aligned, like new ones.

    Reading values raises. For one thread at a time, since torch's random number generators are replaced.
    """
    before = torch.Generator
    torch.Generator = _OnHost
    try:
        with _WithoutMemory():
            yield
    finally:
        torch.Generator = before


class _OnHost(torch.Generator):  # type: ignore[misc]
    """A random number generator on the host, whatever device is requested."""

    def __new__(cls, device: Any = None) -> Any:
        return super().__new__(cls, "cpu")


class _WithoutMemory(TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is torch.device:  # generators of cases may compare devices
            return function(*args, **(kwargs or {}))
        named = {name: _moved(value) for name, value in (kwargs or {}).items() if name != "generator"}
        return function(*map(_moved, args), **named)


def _moved(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device(GIVEN) if value.type == ASKED else value
    return GIVEN if isinstance(value, str) and value.partition(":")[0] == ASKED else value
