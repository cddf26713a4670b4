"""Launches by the million, each compared with the Python twin's and with Triton's own look-up: for a night.

    python tests/stress/verify.py [CALLS] [--seed N] [--seconds S]

On a GPU they are launched there; without one, kernels are compiled for a pretended H100, and Triton's own launcher and
the C launcher call a function that does nothing. Values, grids, alignment, hooks and streams are random, from few enough
that binaries are bounded. Exit code 1 with what differed, if anything did.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
os.environ["AUTOTUNED_LAUNCHER"] = "verify"
os.environ.pop("TRITON_INTERPRET", None)

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton import Config  # noqa: E402

from autotuned import autotune  # noqa: E402

INTEGERS = [0, 1, -1, 7, 16, 200, 2**31 - 1, 2**31, -(2**31) - 1, 2**40, 2**63 - 1, 2**63]
POOL = 60  # arguments at a time: each is an entry and maybe a binary, for each kernel and alignment
FLOATS = [0.0, -0.0, 2.5, 1e300, float("inf"), float("nan"), 1e-310, *INTEGERS, True]


@triton.jit
def mixed(out, a: tl.float32, b: tl.int16, c, d: tl.uint32, e: tl.float64, f, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), BLOCK)


class Calls:
    """Random calls of tuned kernels; `launches` counts those that C made."""

    def __init__(self, seed: int, device: str) -> None:
        self.chance, self.device = random.Random(seed), device
        self.refused = 0
        self.pool: list[tuple[object, ...]] = []
        self.memory = [torch.zeros(1 << 12, device=device) for _ in range(4)]
        self.out = self.memory[0].clone()
        self.kernels = [self.tuned(name, **options) for name, options in {
            "plain": {}, "hooked": {"hook": self.move}, "zeroed": {"reset_to_zero": ["out"]},
            "bucketed": {"key": ["c"], "bucket": {"c": lambda value: value > 16}},
        }.items()]  # fmt: skip
        self.grids = [
            (1,),
            [2, 1],
            (3, 1, 1),
            lambda meta: (meta["BLOCK"] // 32, 2),
            lambda meta: [len(meta), 1],
            self.moving,
        ]

    def tuned(self, name, key=(), hook=None, **options):
        configs = [Config({"BLOCK": 64}, num_warps=2, pre_hook=hook)]
        return autotune(configs, key=list(key), restore_value=[], name=f"verify.{name}", **options)(mixed)

    def move(self, arguments):
        """Other memory, now and then at another alignment."""
        self.out.set_(self.chance.choice(self.memory)[self.chance.choice((0, 0, 0, 1)) :][:2048])

    def moving(self, meta):
        self.move(meta)
        return (2,)

    def values(self) -> tuple[object, ...]:
        pick = self.chance.choice
        first, last = (pick(FLOATS), pick((5, 300, -7, 40000, True)), pick(INTEGERS)), pick((None, True, False, 1.5))
        return *first, pick((5, 2**31, -1, 2**32)), pick(FLOATS), last

    def one(self, made: int) -> None:
        """Of few arguments at a time, so that most calls are hits."""
        if made % 10**6 == 0:
            self.pool = [self.values() for _ in range(POOL)]
        pick = self.chance.choice
        try:
            pick(self.kernels)[pick(self.grids)](self.out, *pick(self.pool))
        except OverflowError:  # Triton's own, for a value that the type does not hold
            self.refused += 1

    @property
    def hits(self) -> int:
        return sum(kernel.cache_info().hits for kernel in self.kernels)


def pretend() -> None:
    """One H100 for Triton and torch, whose launches do nothing."""
    import fake_cuda
    import pytest
    import tritons_packer

    from autotuned import _launch

    nothing = ctypes.cast(ctypes.CDLL(None).isatty, ctypes.c_void_p).value  # answers 0 to any address
    stream = tritons_packer.Device()
    stream.stream = 0
    pretended.append(stream)
    patch = pytest.MonkeyPatch()
    driver = fake_cuda.install_with_host_clock(patch)
    triton.runtime.driver._active = driver
    tritons_packer.install(patch, driver, nothing)
    _, context, stream_of, _ = stream.addresses()
    _launch.use_driver(nothing, context, stream_of, nothing)


pretended: list[object] = []  # stays alive: C calls its functions


class Heard(logging.Handler):
    """What was said at the level of an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("calls", nargs="?", type=int, default=10**8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    arguments = parser.parse_args()
    is_real = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AUTOTUNED_CACHE_DIR"] = f"{folder}/store"
        os.environ.setdefault("TRITON_CACHE_DIR", f"{folder}/triton")
        if not is_real:
            pretend()
        heard = Heard()
        logging.getLogger("autotuned").addHandler(heard)
        calls, start = Calls(arguments.seed, "cuda" if is_real else "cpu"), time.perf_counter()
        made = 0
        while made < arguments.calls and not heard.lines and time.perf_counter() - start < arguments.seconds:
            calls.one(made)
            made += 1
            if made % 10**6 == 0:
                print(f"{made} calls, {time.perf_counter() - start:.0f} s", flush=True)
    print(
        f"{made} calls, {calls.hits} of them hits, {calls.refused} refused by Triton, {time.perf_counter() - start:.0f} s"
    )
    print("\n".join(heard.lines) or "nothing differed")
    return bool(heard.lines)


if __name__ == "__main__":
    raise SystemExit(main())
