"""Benchmarks for `do_bench=`: Triton's with given times, and one with a fixed number of launches for ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from autotuned._startup import Frozen


class FixedLaunches:
    """A `do_bench=` with a fixed number of launches, for kernels that wait for other ranks.

    A number of launches that depends on the clock would differ between ranks, and one would wait forever. Under
    `autotuned.sync` all ranks measure such a kernel together, and a config counts as fast as on its slowest rank.

    Args:
        rep: Timed launches.
        warmup: Launches before them.

    Raises:
        ValueError: A number is too small.
    """

    def __init__(self, rep: int = 20, warmup: int = 5) -> None:
        if rep < 1 or warmup < 0:
            raise ValueError(f"FixedLaunches: expected rep >= 1 and warmup >= 0, got {rep} and {warmup}.")
        self.rep, self.warmup = rep, warmup

    def __call__(self, call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        """Quantiles of the times of `rep` calls in milliseconds, restoring included."""
        for _ in range(self.warmup):
            call()
        torch = sys.modules.get("torch")
        uses_gpu = torch is not None and torch.cuda.is_initialized()
        times = sorted(self._on_gpu(call) if uses_gpu else self._on_host(call))
        return [times[min(int(share * len(times)), len(times) - 1)] for share in quantiles]

    def _on_gpu(self, call: Callable[[], Any]) -> list[float]:
        import torch

        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(self.rep)]
        for before, after in events:
            before.record()
            call()
            after.record()
        torch.cuda.current_stream().synchronize()
        return [before.elapsed_time(after) for before, after in events]

    def _on_host(self, call: Callable[[], Any]) -> list[float]:
        from autotuned.search.timers import host_us

        return [host_us(call) / 1e3 for _ in range(self.rep)]


class TritonBench(Frozen):
    """Triton's `do_bench` with these times in milliseconds; under a CUDA graph `warmup` is ignored."""

    warmup: int
    rep: int
    use_cuda_graph: bool

    def __call__(self, call: Callable[[], None], quantiles: Sequence[float]) -> Any:
        """Times in milliseconds."""
        import triton.testing

        if self.use_cuda_graph:
            return triton.testing.do_bench_cudagraph(call, rep=self.rep, quantiles=quantiles)
        return triton.testing.do_bench(call, warmup=self.warmup, rep=self.rep, quantiles=quantiles)
