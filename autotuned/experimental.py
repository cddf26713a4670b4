"""Outputs without the allocator: a pool that reuses tensors nobody holds. Unused unless called; may change."""

from __future__ import annotations

import functools
import gc
import logging
import operator
from collections.abc import Callable
from typing import Any, cast

import torch

from autotuned._native import extension

_tracing = torch.compiler.is_dynamo_compiling
_log = logging.getLogger("autotuned")
_take: Callable[[Any], Any] = lambda x: None  # the extension's, once the pool serves
_served: dict[str, bool] = {}  # by type of device, whether the pool serves it
_models: dict[Any, torch.Tensor] = {}  # a tensor with the memory of one element for each layout requested from `empty`
MODELS = 256


def empty_like(x: torch.Tensor) -> torch.Tensor:
    """Like `torch.empty_like(x)`, from the pool if possible.

    Args:
        x: A tensor of any shape, on a CPU or a CUDA device.

    Returns:
        A tensor of undefined contents with the shape, dtype, device and strides of `torch.empty_like(x)`: one of the
        device's current stream that nothing refers to, otherwise a new one.

    Raises:
        torch.OutOfMemoryError: As from torch, after the pool was released.
    """
    if _tracing():
        return torch.empty_like(x)
    found = _take(x)
    return _new(x) if found is None else found


def empty(*size: Any, dtype: Any = None, device: Any = None, **options: Any) -> torch.Tensor:
    """Like `torch.empty`; from the pool if it is given a dtype, a device with its index, and no other options.

    Args:
        *size: Integers, or one sequence of them.
        dtype: As for `torch.empty`.
        device: As for `torch.empty`, such as `x.device` or `"cuda:0"`.
        **options: Other options of `torch.empty`.

    Returns:
        A tensor as from `empty_like`.

    Raises:
        torch.OutOfMemoryError: As from torch, after the pool was released.
    """
    given, sizes = size[0] if len(size) == 1 else size, size
    if type(given) is not int:  # 3.0 is not a size; torch handles NumPy's integers
        sizes = tuple(given) if isinstance(given, (tuple, list)) and {*map(type, given)} == {int} else ()
    if not sizes or dtype is None or options or _tracing():
        return torch.empty(*size, dtype=dtype, device=device, **options)
    model = _models.get((sizes, dtype, device))
    found = None if model is None else _take(model)
    return _modelled(sizes, dtype, device) if found is None else found


def release() -> None:
    """Return the pool's tensors to torch; tensors in use stay valid."""
    _models.clear()
    if extension is not None:
        extension.pool_release(None)


def _modelled(size: tuple[int, ...], dtype: torch.dtype, device: Any) -> torch.Tensor:
    """A new tensor; if the pool keeps it, a model of its layout is kept for the same arguments of `empty`."""
    made = torch.empty(size, dtype=dtype, device=device)
    usable = device is not None and _serves(made) and made.device == torch.device(device)
    if usable and extension.pool_give(made, made) and (size, dtype, device) not in _models:
        model = torch.empty_like(made)
        model.untyped_storage().resize_(made.itemsize)
        if len(_models) >= MODELS:
            _models.clear()
        _models[size, dtype, device] = model
    return made


def _new(x: torch.Tensor) -> torch.Tensor:
    """Allocate with torch; the pool may also keep the tensor."""
    try:
        made = torch.empty_like(x)
    except torch.OutOfMemoryError:
        release()
        made = torch.empty_like(x)
    if _serves(made):
        extension.pool_give(x, made)
    return made


def _serves(made: torch.Tensor) -> bool:
    """Whether the pool serves a tensor's device; decided at the first tensor created outside any torch mode."""
    kind = made.device.type if type(made) is torch.Tensor else ""
    if kind not in _served and kind in ("cpu", "cuda") and extension is not None:
        with torch.inference_mode(False):
            if any(extension.pool_state() or ()):
                return False
            try:
                _served[kind] = _agrees(torch.empty(16, device=made.device)) and _begin(kind)
            except AttributeError:  # a private name of torch is missing
                _served[kind] = False
        if not _served[kind]:
            _log.warning("The pool of outputs does not support torch %s; using torch.empty_like.", torch.__version__)
    return _served.get(kind, False)


def _agrees(x: torch.Tensor) -> bool:
    """Whether the extension reads the same reference counts as torch, for a tensor with and without a view."""
    storage, private = x.untyped_storage()._cdata, cast(Any, torch._C)

    def counts() -> tuple[Any, Any]:
        return extension.pool_counts(x, storage), (cast(Any, x)._use_count(), private._storage_Use_Count(storage))

    alone, told = counts()
    view = x.view(-1)
    return alone == told and counts() == ((told[0] + 1, told[1] + 1),) * 2 and view is not None


def _begin(kind: str) -> bool:
    """Serve tensors on this type of device from now on, and release them when torch needs the memory."""
    global _take
    if extension.pool_state() is None:
        return False
    if kind == "cuda":
        torch._C._cuda_attach_out_of_memory_observer(lambda *unused: release())
    modes = torch.inference_mode(), torch.autocast("cpu"), torch.autocast("cuda", enabled=kind == "cuda")
    included, excluded = zip(*map(_state_within, modes))
    extension.pool_begin(
        functools.reduce(operator.or_, included), functools.reduce(operator.or_, excluded),
        torch._C._len_torch_function_stack, torch._C._get_deterministic_algorithms,
    )  # fmt: skip
    if _take is not extension.pool_take:
        for owner, name in _RETIRING:
            if hasattr(owner, name):
                setattr(owner, name, _after_release(getattr(owner, name), name == "record_stream"))
        gc.callbacks.append(_before_collection)
    _take = extension.pool_take
    return True


# Functions that reclaim memory, or give it to a graph or another stream: the pool releases it before.
_RETIRING: tuple[tuple[Any, str], ...] = (
    (torch._C, "_cuda_emptyCache"),
    (torch._C, "_accelerator_emptyCache"),
    (torch.cuda.CUDAGraph, "capture_begin"),
    (torch.Tensor, "record_stream"),
)


def _before_collection(phase: str, about: dict[str, int]) -> None:
    """Show the garbage collector the objects that the pool's tensors refer to."""
    if phase == "start" and about["generation"]:
        extension.pool_release(False)


def _after_release(call: Callable[..., Any], of_first: bool) -> Callable[..., Any]:
    """A torch function, wrapped to first release all tensors, or those that share its first argument's memory."""

    @functools.wraps(call)
    def releasing(*args: Any, **kwargs: Any) -> Any:
        extension.pool_release(args[0] if of_first else None)
        return call(*args, **kwargs)

    return releasing


def _state_within(mode: Any) -> tuple[int, int]:
    """Torch's dispatch state within one of its modes."""
    with mode:
        return extension.pool_state()  # type: ignore[no-any-return]
