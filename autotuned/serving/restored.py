"""`autotuned.restored()`: a process that was frozen, and goes on on another GPU perhaps, begins anew with it."""

from __future__ import annotations

from autotuned.binaries import serve
from autotuned.gpu import device
from autotuned.resolve import tuner


def restored() -> None:
    """Forget what is bound to a device, and what is known of devices; stored choices and Triton's caches stay.

    For the hook that runs after a snapshot was restored, or after GPUs were partitioned anew, before the next launch.
    The next call of each kernel asks which GPU it is on, looks its choice up under that, and is bound again.
    """
    device.forget()
    serve.forget()
    tuner.drop_bound()
