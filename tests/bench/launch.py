"""Host microseconds a call: our launch, plain @triton.jit, triton.autotune; run by hand on a machine with a GPU.

Submission time of kernels over 4,096 elements: tensor sets are used in turn, rounds are interleaved over the rows, and
the median round is shown. Compare ratios of one run only: absolute times move between machines.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import triton

import autotuned

ELEMENTS, SETS, ROUNDS, CALLS, BLOCK_OF_CALLS = 4096, 8, 9, 4000, 500
CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (256, 512, 1024) for warps in (4, 8)]


def source(tensors: int) -> str:
    """A kernel that adds `tensors - 1` inputs into one output."""
    inputs = [f"x{i}" for i in range(tensors - 1)]
    loads = "".join(f"    total += tl.load({name} + i, mask=m)\n" for name in inputs)
    return (
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        f"def add{tensors}({', '.join(inputs)}, out, n, BLOCK: tl.constexpr):\n"
        "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    m = i < n\n"
        f"    total = tl.zeros((BLOCK,), tl.float32)\n{loads}    tl.store(out + i, total, mask=m)\n"
    )


def kernel(tensors: int, folder: Path):
    """Triton reads a kernel's source, so it must lie in a file."""
    path = folder / f"add{tensors}.py"
    path.write_text(source(tensors))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return getattr(module, path.stem)


def round_us(call: Callable[[tuple], None], sets: list[tuple]) -> float:
    """Submission time of one call; the queue is emptied often enough never to fill up."""
    elapsed = 0.0
    for _ in range(CALLS // BLOCK_OF_CALLS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(BLOCK_OF_CALLS):
            call(sets[i % SETS])
        elapsed += time.perf_counter() - start
    return elapsed / CALLS * 1e6


def rows(tensors: int, folder: Path) -> dict[str, float]:
    """Median microseconds a call of every way to launch."""
    plain = kernel(tensors, folder)
    ours = autotuned.autotune(configs=CONFIGS, key=["n"])(plain)
    stock = triton.autotune(configs=CONFIGS, key=["n"])(plain)
    sets = [tuple(torch.randn(ELEMENTS, device="cuda") for _ in range(tensors)) for _ in range(SETS)]
    n, tuple_grid = ELEMENTS, (4, 1, 1)

    def grid(meta):
        return ((meta["n"] + meta["BLOCK"] - 1) // meta["BLOCK"],)

    ways = {
        "autotuned, grid callable": lambda s: ours[grid](*s, n),
        "autotuned, tuple grid": lambda s: ours[tuple_grid](*s, n),
        "plain @triton.jit, tuple grid": lambda s: plain[tuple_grid](*s, n, BLOCK=1024),
        "triton.autotune, grid callable": lambda s: stock[grid](*s, n),
        "triton.autotune, tuple grid": lambda s: stock[tuple_grid](*s, n),
    }
    if tensors == 3:
        ways["torch.add(x, y, out=o)"] = lambda s: torch.add(s[0], s[1], out=s[2])
    for call in ways.values():
        for s in sets:
            call(s)
    check(ours, sets, n, grid)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, call in ways.items():
            times[name].append(round_us(call, sets))
    return {name: statistics.median(values) for name, values in times.items()}


def check(ours, sets: list[tuple], n: int, grid) -> None:
    """A launch that computes nothing would be the fastest."""
    *inputs, out = sets[0]
    out.zero_()
    ours[grid](*inputs, out, n)
    torch.testing.assert_close(out, sum(inputs))


def main() -> None:
    """Print the table, and JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    head = {
        "card": torch.cuda.get_device_name(), "python": platform.python_version(), "torch": torch.__version__,
        "triton": triton.__version__, "autotuned": autotuned.__version__,
    }  # fmt: skip
    print(" ".join(f"{name} {value}" for name, value in head.items()))
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for tensors in (3, 9, 17):
            results[tensors] = rows(tensors, Path(folder))
            base = results[tensors]["triton.autotune, grid callable"]
            for name, us in results[tensors].items():
                print(f"{tensors:3d} tensors  {name:32s} {us:7.2f} us  {base / us:5.2f}x less than triton.autotune")
    if arguments.json:
        arguments.json.write_text(json.dumps({**head, "us": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
