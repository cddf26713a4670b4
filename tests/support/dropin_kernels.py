"""A library of kernels with its own tuner class, as in programs that use `install()`."""

import triton
import triton.language as tl
from triton import Config
from triton.runtime.autotuner import Autotuner

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]


class Library(Autotuner):
    """A subclass that does some work at each launch, then calls Triton's `run`."""

    def run(self, *args, **kwargs):
        given = {**dict(zip(self.arg_names, args)), **kwargs}
        self.seen = tuple(given.get(name) for name in self.keys)
        return super().run(*args, **kwargs)


@triton.jit
def add(x_ptr, n, m, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


def even(kernel):
    """Add a heuristic, over a tuner or under one."""
    return triton.heuristics({"EVEN": lambda arguments: arguments["n"] % 2 == 0})(kernel)


def tuner(kind, fn, configs=CONFIGS):
    """A tuner of a class, with a benchmark in which every config is equally fast."""
    return kind(fn, fn.arg_names, configs, ["n"], None, None, do_bench=_bench)


def _bench(call, quantiles):
    call()
    return [1.0, 1.0, 1.0]
