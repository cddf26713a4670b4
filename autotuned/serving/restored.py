"""`autotuned.restored()`: start over after a process was restored, perhaps on another GPU."""

from __future__ import annotations

from autotuned._native import extension
from autotuned.binaries import serve
from autotuned.gpu import device
from autotuned.resolve import tuner


def restored() -> None:
    """Forget bound launches and cached properties of devices; stored choices and Triton's caches stay.

    Call it after a snapshot was restored or GPUs were repartitioned, before the next launch. The next call of each
    kernel then finds its GPU and its choice, and is bound again.
    """
    device.forget()
    serve.forget()
    tuner.drop_bound()
    if extension is not None:
        extension.pool_release(None)
