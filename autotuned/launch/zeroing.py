"""How the arguments that `reset_to_zero` names are zeroed: in place, outside autograd's sight.

Which they are says `request.Options.zero`. Who asks: `entry.Prologue` before a launch, its twin in C
(`zero_directly` in c/submit.h) on a hit, and `snapshots.Protection` before a trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autotuned.key.memory import is_torch, refuse_without_tensor, tensors_in


def zero_named(arguments: Mapping[str, Any], names: Iterable[str], kernel: str) -> None:
    """Zero the named arguments; None and absent ones are skipped.

    Raises:
        CallError: One holds no tensor: objects that share a bound launch may differ in that.
    """
    found = [[tensor for _, tensor in tensors_in(name, arguments.get(name))] for name in names]
    if not all(found):
        refuse_without_tensor(arguments, {"reset_to_zero": names}, kernel)
    zero(tensor for tensors in found for tensor in tensors)


def zero(tensors: Iterable[Any]) -> None:
    """Set tensors to zero in place, outside autograd's sight."""
    for tensor in tensors:
        if is_torch(tensor):
            _write_zero(tensor)
        else:
            tensor[...] = 0


def _write_zero(tensor: Any) -> None:
    if not tensor.is_inference():
        tensor.data.zero_()  # `data` has no gradient: no context is needed, which costs more than the launch
        return
    import torch

    with torch.inference_mode():
        tensor.zero_()
