"""Cost of a miss before any look-up: key, digest, fingerprints, and the hook that watches the environment.

Needs no GPU: `python tests/bench/key.py [--json FILE]`. Times are host microseconds, the minimum of several rounds.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
import triton
import triton.language as tl
from triton import Config

from autotuned import autotune, env
from autotuned.triton_compat import fingerprint
from autotuned.triton_compat import kernel as toolchain

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]
NAMES = ["a", "b", "c", "d", "e", "f", "g", "h"]
SCALE = 2.0


@autotune(CONFIGS)
@triton.jit
def kernel(a, b, c, d, e, f, g, h, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(h + i, tl.load(a + i, mask=i < n), mask=i < n)


@autotune(CONFIGS)
def function(a, b, c, d, e, f, g, h, n, *, BLOCK):
    return n * SCALE


def best_us(call, count=50, rounds=300):
    """Microseconds of one call, in the fastest of many rounds, each shorter than a time slice of a busy machine."""
    call()
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            call()
        found.append((time.perf_counter() - start) / count * 1e6)
    return min(found)


def rows():
    """Name and microseconds of each row."""
    tensors = [torch.zeros(64, 64) for _ in NAMES]
    for what, tuned in (("kernel", kernel), ("plain callable", function)):
        call = tuned.tuner.call(tuple(tensors), {"n": 4096}, (1,))
        chooser = tuned.tuner.chooser
        yield f"key and digest, 8 tensors, {what}", best_us(lambda: chooser.key(call).digest)
        yield f"  of this the context part, {what}", best_us(lambda: chooser._context.of(call))
        yield f"  of this the source, {what}", best_us(lambda: tuned.tuner.tunable.source)
    with tempfile.TemporaryDirectory() as folder:
        fingerprint.of("sm_90", Path(folder))

        def warm():
            fingerprint._known.clear()
            return fingerprint.of("sm_90", Path(folder))

        yield "toolchain fingerprint, warm, new process", best_us(warm, 2)
        yield "toolchain fingerprint, same process", best_us(lambda: fingerprint.of("sm_90", Path(folder)))
    yield "environment that changes code", best_us(toolchain.environment)
    values, thousand = tuple(tensors) + (4096,), range(1000)
    launcher = function.tuner.launcher
    launcher.bind(values, object())
    for how in ("without", "with"):
        yield f"hit of the table in Python, {how} the audit hook", best_us(lambda: launcher.find(values))
        yield f"1,000 events of Python's (`id`), {how} the audit hook", best_us(lambda: [*map(id, thousand)])
        env.on_code_change(lambda: None)


def main():
    """Print the rows, and write JSON if requested."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    asked = parser.parse_args()
    print(f"Python {platform.python_version()}, torch {torch.__version__}, Triton {triton.__version__}, "
          f"{platform.machine()}, {os.cpu_count()} cores")  # fmt: skip
    found = dict(rows())
    for name, us in found.items():
        print(f"{us:10.2f} us  {name}")
    if asked.json:
        Path(asked.json).write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
