"""One process of `test_fresh_process.py`: its thread tunes after the main thread has ended, with the tuner of the argument."""

import contextlib
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config

import autotuned
from autotuned.search import timers

patch = pytest.MonkeyPatch()
triton.runtime.driver._active = fake_cuda.Driver()
patch.setattr(timers, "CudaTimer", timers.HostTimer)
fake_cuda.install(patch)
autotuned.install()
compiled = []
autotuned.on_event(lambda event: event.kind == "compile" and compiled.append(event.reason))


@{"autotuned": autotuned, "triton": triton}[sys.argv[1]].autotune(
    [Config({"BLOCK": block}) for block in (16, 32, 64)], key=["n"],
    do_bench=fake_cuda.by_config({16: 3.0, 32: 1.0, 64: 2.0}),
)  # fmt: skip
@triton.jit
def add(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, 1.0, mask=i < n)


def work():
    """Tune, once Python's executors have ended with the main thread."""
    with contextlib.suppress(RuntimeError), ThreadPoolExecutor(1) as executor:
        while True:
            executor.submit(time.sleep, 0.01).result()
    add[(4,)](torch.zeros(100), 100)
    print(len(compiled), fake_cuda.Launcher.launches[-1].arguments["BLOCK"])


if __name__ == "__main__":
    threading.Thread(target=work).start()
