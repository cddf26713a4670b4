"""How `tune` scales with GPUs: the same warm shapes tuned on 1, 2 and 4 of them, and the ratios of the times.

    python tests/bench/devices.py                      # on 1, 2 and 4 GPUs, as far as available
    python tests/bench/devices.py --pretend --shapes 60  # a dry run without a GPU: plain functions that sleep

The goal for 1,000 warm shapes: at least 1.8 times on two GPUs and 3.4 on four. Warm: a first run compiles everything,
and later runs measure all again (--force) with its binaries.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

WANTED = {2: 1.8, 4: 3.4}
GPU = """
import torch
import triton
import triton.language as tl
from autotuned import Config, autotune

CONFIGS = [Config({"BLOCK": block}, num_warps=warps) for block in (1024, 2048, 4096, 8192) for warps in (2, 4, 8, 16)]

@autotune(configs=CONFIGS, key=["n"])
@triton.jit(do_not_specialize=["n"])
def scaled(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)

@scaled.case
def cases(device):
    x = torch.ones(1 << 24, device=device)
    out = torch.empty_like(x)
    for k in range(SHAPES):
        n = (1 << 20) + 4096 * k
        yield dict(args=(x, out, n), grid=lambda meta, n=n: (triton.cdiv(n, meta["BLOCK"]),))
"""
PRETENDED = """
import time
import numpy as np
from autotuned import Config, autotune

def bench(launch, quantiles=None, **rest):
    launch()
    return [1.0] * 3

@autotune(configs=[Config({"how": how}) for how in range(8)], key=["n"], do_bench=bench)
def scaled(out, n, *, how):
    time.sleep(0.01)

@scaled.case
def cases(device):
    for n in range(SHAPES):
        yield dict(args=(np.zeros(4), n))
"""


def tune(file: Path, devices: int, environment: dict[str, str]) -> dict:
    """Run the command on the first `devices` GPUs."""
    names = ",".join(map(str, range(devices)))
    code = "from autotuned.cli.main import app; app()"
    command = [sys.executable, "-c", code, "tune", str(file), "--devices", names, "--force", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=file.parent, env=environment, check=True)
    return json.loads(done.stdout)


def there(folder: Path, pretend: bool) -> tuple[int, dict[str, str]]:
    """The number of GPUs, and the environment to use them."""
    environment = {
        **os.environ,
        "AUTOTUNED_CACHE_DIR": str(folder / "store"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
    if not pretend:
        from autotuned import env
        from autotuned.gpu import inventory, visible

        return len(visible.chosen("all", inventory.table(), env.unstripped(visible.VARIABLES))), environment
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    import fake_gpus

    fake_gpus.library(folder)
    table = "\n".join(f"GPU-{index}|Pretended" for index in range(4))
    return 4, {**environment, "LD_LIBRARY_PATH": str(folder), "FAKE_GPUS": table, "TRITON_INTERPRET": "1"}


def main() -> None:
    """Tune on 1, 2 and 4 GPUs and print seconds and ratios; exit code 1 if a ratio is too small."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=1000)
    parser.add_argument("--pretend", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        count, environment = there(folder, options.pretend)
        file = folder / "scaled_shapes.py"
        text = PRETENDED if options.pretend else GPU
        if not options.pretend:
            file.write_text(text.replace("SHAPES", "8"))
            tune(file, 1, environment)  # compiles: all shapes share one specialization
        file.write_text(text.replace("SHAPES", str(options.shapes)))
        seconds: dict[int, float] = {}
        short = []
        for devices in (number for number in (1, 2, 4) if number <= count):
            found = tune(file, devices, environment)
            assert [case["source"] for case in found["cases"]] == ["measured"] * options.shapes
            seconds[devices] = found["seconds"]
            ratio = seconds[1] / seconds[devices]
            each = ", ".join(f"{gpu['name']} {gpu['cases']}" for gpu in found["devices"])
            print(f"{devices} GPUs: {seconds[devices]:.1f} s, {ratio:.2f}x ({each})", flush=True)
            short += [devices] if ratio < WANTED.get(devices, 0) else []
        if short and not options.pretend:
            sys.exit(f"less than wanted ({WANTED}) on {short}")


if __name__ == "__main__":
    main()
