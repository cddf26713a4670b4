"""A first call of a shape that a rule serves, compared with a hit: host time and bytecodes, without a GPU.

    python tests/bench/unseen.py [--shapes 2000] [--keep FOLDER]

Needs a C compiler, torch and Triton; as in `host.py`, kernels are compiled for a pretended H100, and functions that do
nothing replace the driver. The kernel has three tensors and three integers. Its two configs have invented times from
which `autotuned.compress` fits a rule. Each row is the median over shapes that were never called.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]


def served(folder: Path):
    """A tuned kernel served by config files with a rule, and a function that creates its calls."""
    import importlib.util

    import torch
    import triton
    from triton import Config

    import autotuned
    from autotuned.store import listing, records
    from autotuned.store.record import Timing, TuningRecord
    from autotuned.tunable import configs

    (folder / "product.py").write_text(KERNEL)
    spec = importlib.util.spec_from_file_location("product", folder / "product.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    both = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]

    def kernel():
        options = {"key": ["M", "N", "K", "a_ptr", "b_ptr", "c_ptr"], "name": "bench.product", "default": both[0]}
        return autotuned.autotune(both, nearest=autotuned.within("5%"), **options)(triton.jit(module.product))

    whole = [torch.zeros(8192 * 64) for _ in "abc"]

    def call(m: int):
        a, b, c = whole
        return a[: m * 64].view(m, 64), b[: 64 * 32].view(64, 32), c[: m * 32].view(m, 32), m, 32, 64

    chooser = kernel().tuner.chooser
    for m in range(17, 8193, 63):  # without a common factor: a rule would serve only its multiples
        best = both[m > 1024]
        forms = [(config, configs.to_json(config, "bench.product")) for config in both]
        timings = tuple(Timing(form, *[10.0 if config is best else 15.0] * 3, 5) for config, form in forms)
        key = chooser.key(kernel().tuner.call(call(m), {}, (1,)))
        records.keep(TuningRecord(key, configs.to_json(best, "bench.product"), 10.0, "ok", timings))
    autotuned.export(folder / "tuned")
    result = autotuned.compress(folder / "tuned", within="5%", out=folder / "few")
    listing.clear()
    autotuned.register_configs(folder / "few", policy={"rules": autotuned.within("100%")})
    found = kernel()
    found.tuner.options = found.tuner.chooser.state.options = found.tuner.options.replace(
        within=autotuned.within("100%")
    )
    print(f"{result.kernels[0].fits[0].why_not or 'a rule'}: {result.kernels[0].fits[0].compared}")
    for m in (17, 1041, 2049 + 2, 4099):  # first calls, which compile
        found[(1,)](*call(m))
    return found, call


KERNEL = """
import triton
import triton.language as tl


def product(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(c_ptr + i, tl.load(a_ptr + i) + tl.load(b_ptr + i) + M + N + K)
"""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", type=int, default=2000)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        os.environ["AUTOTUNED_CACHE_DIR"] = str(folder / "cache")
        os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
        import host

        host.pretend(host.standin(folder))
        import counted

        kernel, call = served(folder)
        launch = kernel[(1,)]
        shapes = [m for m in range(19, 8192, 2) if m % 16][: given.shapes]
        calls = [call(m) for m in shapes]
        misses = kernel.cache_info().misses
        clock = time.perf_counter_ns
        gc.disable()
        first, again = [], []
        for found, times in ((calls, first), (calls, again)):
            for one in found:
                start = clock()
                launch(*one)
                times.append(clock() - start)
        gc.enable()
        info = kernel.cache_info()
        by_rule = info.misses - misses
        one, fresh = calls[0], call(shapes[-1] + 2)
        hit = counted.opcodes(lambda: launch(*one))
        instructions = counted.opcodes(lambda: launch(*fresh)) - hit
        print(
            f"{len(calls)} shapes, {by_rule} of them misses; table of {info.size}, {len(kernel.tuner.chooser.state.choices)} keys"
        )
        for name, times in (("first call", first), ("hit", again)):
            low, high = (sorted(times)[int(len(times) * share)] / 1e3 for share in (0.05, 0.95))
            print(f"{name:12}{statistics.median(times) / 1e3:8.2f} us   (5% {low:.2f}, 95% {high:.2f})")
        print(
            f"over a hit: {(statistics.median(first) - statistics.median(again)) / 1e3:.2f} us, {instructions} instructions"
        )


if __name__ == "__main__":
    main()
