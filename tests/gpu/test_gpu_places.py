"""Two GPUs: a kernel runs where its tensors are, and what that GPU cannot reach is refused before a launch."""

import pytest
import torch
import triton
import triton.language as tl
from triton import Config

from autotuned import autotune
from autotuned.errors import PlaceError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")]
SIZE = 1 << 16


@triton.jit
def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1.0, mask=at < n)


def tuned():
    return autotune([Config({"BLOCK": block}) for block in (256, 1024)], key=["n"], restore_value=["y_ptr"])(add)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def pair(index):
    x = torch.arange(SIZE, device=f"cuda:{index}", dtype=torch.float32)
    return x, torch.zeros_like(x)


@pytest.mark.parametrize("current", [0, 1])
def test_each_gpu_computes_what_lies_on_it(current):
    kernel = tuned()
    with torch.cuda.device(current):
        for _ in range(3):
            for index in (0, 1):
                x, y = pair(index)
                kernel[grid](x, y, SIZE)
                assert torch.cuda.current_device() == current
                torch.testing.assert_close(y, x + 1)
    assert len(kernel.tuner.launcher) == 2


def test_streams_of_the_tensors_gpu_are_used():
    kernel, (x, y) = tuned(), pair(1)
    kernel[grid](x, y, SIZE)
    y.zero_()
    torch.cuda.synchronize(1)
    stream = torch.cuda.Stream(1)
    with torch.cuda.stream(stream):  # makes GPU 1 the current one
        late = torch.empty_like(x)
        torch.cuda._sleep(100_000_000)
        late.copy_(x)
        with torch.cuda.device(0):
            kernel[grid](late, y, SIZE)
    stream.synchronize()
    torch.testing.assert_close(y, x + 1)


@pytest.mark.parametrize("warm", [False, True])
def test_tensors_of_two_gpus_or_of_the_host_are_refused_unless_reachable(warm):
    kernel, (x, y), host = tuned(), pair(0), torch.zeros(SIZE)
    if warm:
        kernel[grid](x, y, SIZE)
    with pytest.raises(PlaceError, match="'y_ptr'"):
        kernel[grid](x, host, SIZE)
    assert not host.any()
    pinned = torch.zeros(SIZE).pin_memory()
    kernel[grid](x, pinned, SIZE)
    torch.cuda.synchronize()
    torch.testing.assert_close(pinned, x.cpu() + 1)
