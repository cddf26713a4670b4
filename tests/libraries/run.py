"""Real libraries with stock, seeded and replaced tuners, on a GPU: same bits, no benchmarks, and the time saved.

    pip install --no-deps --target libs fla-core flash-linear-attention liger-kernel conch-triton-kernels einops gemlite
    PYTHONPATH=libs python tests/libraries/run.py [OP...] [--out results.json]

First every operation once in a process of its own, seeded, several at a time: this compiles all configs, and fills the
store. Then one process after another, with everything compiled: stock, which measures; seeded and replaced, which
must not. Nothing of the libraries is kept here; docs/drop-in.md has a table of what came out.
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
OPS = Path(__file__).with_name("ops.py")
DISTRIBUTIONS = [
    "torch",
    "triton",
    "fla-core",
    "liger-kernel",
    "conch-triton-kernels",
    "gemlite",
    "mamba-ssm",
    "flag-gems",
]


def run(mode, names, folder, timeout, store, limit):
    """One process; its results, and how long it took."""
    out = folder / f"{mode}-{'-'.join(names)[:60]}-{time.monotonic_ns()}.json"
    environment = {**os.environ, "AUTOTUNED_CACHE_DIR": str(store), "TRITON_CACHE_DIR": str(folder / "triton")}
    start = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, str(OPS), mode, str(out), str(limit), *names],
            env=environment, capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"mode": mode, "ops": {name: {"error": f"not done after {timeout} s"} for name in names}, "choices": {}}
    if not out.exists():
        error = (done.stderr or done.stdout)[-300:]
        return {"mode": mode, "ops": {name: {"error": error} for name in names}, "choices": {}}
    sys.stderr.write(done.stderr[-1500:])
    return {**json.loads(out.read_text()), "seconds": time.perf_counter() - start}


def compile_all(names, folder, workers, timeout, limit):
    """Every operation in a process of its own; those that worked."""
    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(lambda name: run("seeded", [name], folder, timeout, folder / "store", limit), names))
    errors = {
        name: result["ops"][name]["error"] for name, result in zip(names, results) if "error" in result["ops"][name]
    }
    return [name for name in names if name not in errors], errors, results


def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def main():
    import ops

    parser = argparse.ArgumentParser()
    parser.add_argument("ops", nargs="*", default=list(ops.OPS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--timeout", type=int, default=600, help="seconds for one process")
    parser.add_argument("--limit", type=int, default=0, help="of each kernel the first configs only; 0 for all")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = time.perf_counter()
        names, errors, first = compile_all(options.ops, folder, options.workers, options.timeout, options.limit)
        print(f"compiled and stored in {time.perf_counter() - start:.0f} s; failed: {errors}", flush=True)
        results = {}
        for mode in ("seeded", "replaced", "stock"):
            results[mode] = run(mode, names, folder, options.timeout, folder / "store", options.limit)
            print(f"{mode}: {results[mode].get('seconds', 0):.1f} s", flush=True)
            report = {
                "versions": {name: version(name) for name in DISTRIBUTIONS},
                "errors": errors,
                "first": {name: one["ops"][name] for name, one in zip(options.ops, first)},
                **results,
            }
            if options.out:
                options.out.write_text(json.dumps(report, indent=1))
    print_table(names, results)


def print_table(names, results):
    """One row an operation."""
    stock, seeded, replaced = (results[mode]["ops"] for mode in ("stock", "seeded", "replaced"))
    print(
        "| operation | configs measured: stock, seeded, replaced | first call s: stock, seeded | host us: stock, seeded, replaced | saved us a launch | bits |"
    )
    for name in names:
        one, two, three = stock.get(name, {}), seeded.get(name, {}), replaced.get(name, {})
        if any("error" in result or not result for result in (one, two, three)):
            print(f"| {name} | {one.get('error')} {two.get('error')} {three.get('error')} |")
            continue
        saved = (one["host_us"] - three["host_us"]) / max(one.get("launches", 0), 1)
        bits = ["equal" if one["digest"] == other["digest"] else "differ" for other in (two, three)]
        bits.append("seeded = replaced" if two["digest"] == three["digest"] else "seeded differs from replaced")
        print(
            f"| {name} | {one['benches']}, {two['benches']}, {three['benches']} | {one['first_s']:.2f}, {two['first_s']:.2f} | "
            f"{one['host_us']:.0f}, {two['host_us']:.0f}, {three['host_us']:.0f} | "
            f"{saved:.1f} ({one.get('launches')}) | {', '.join(bits)} |"
        )


if __name__ == "__main__":
    main()
