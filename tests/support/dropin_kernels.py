"""A library of kernels with a tuner class of its own, as programs have them to which `install()` is given."""

import triton
import triton.language as tl
from triton import Config
from triton.runtime.autotuner import Autotuner

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]


class Library(Autotuner):
    """A subclass that does some work at each launch, and ends in Triton's `run`."""

    def run(self, *args, **kwargs):
        given = {**dict(zip(self.arg_names, args)), **kwargs}
        self.seen = tuple(given.get(name) for name in self.keys)
        return super().run(*args, **kwargs)


@triton.jit
def add(x_ptr, n, m, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


def even(kernel):
    """With a heuristic, over a tuner or under one."""
    return triton.heuristics({"EVEN": lambda arguments: arguments["n"] % 2 == 0})(kernel)


def tuner(kind, fn, configs=CONFIGS):
    """A tuner of a class, whose benchmark calls every config equally fast."""
    return kind(fn, fn.arg_names, configs, ["n"], None, None, do_bench=_bench)


def _bench(call, quantiles):
    call()
    return [1.0, 1.0, 1.0]
