"""Cost of the store: look-ups and listings by its size, and start-up of a process whose choice is stored.

Run by hand, from a checkout: `python tests/bench/store.py`. It creates its own store in the temporary folder.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from fakes import FakeConfig, by_identity, form, make_key

from autotuned import disk
from autotuned.resolve import sources
from autotuned.store import gc, layout, record
from autotuned.store.record import Timing, TuningRecord

CONFIGS = [FakeConfig({"BLOCK": 2**n}, num_warps=warps) for n in range(4, 14) for warps in (4, 8)]
LIVE = by_identity(*CONFIGS)
TIMINGS = tuple(Timing(form(config), 10.0 + n, 9.0 + n, 11.0 + n, 40) for n, config in enumerate(CONFIGS))

START = """
import time
import torch, triton, triton.language as tl
from triton.runtime import interpreter, autotuner
import kernel_file
configs = [triton.Config({"BLOCK": block}) for block in (128, 256, 512, 1024)]
x = torch.zeros(64)
clocks = [(time.perf_counter(), time.process_time())]
import autotuned.api.tuned
autotuned.autotune
clocks.append((time.perf_counter(), time.process_time()))
tuned = autotuned.autotune(configs, key=["n"], name="bench.add")(kernel_file.add)
clocks.append((time.perf_counter(), time.process_time()))
launch = tuned.tuner.tunable.launch
def stop(call, config):
    clocks.append((time.perf_counter(), time.process_time()))
    return launch(call, config)
tuned.tuner.tunable.launch = stop
tuned[(1,)](x, 64)
del clocks[4:]
assert tuned.cache_info().searches == SEARCHES, tuned.cache_info()
print(*(later[n] - earlier[n] for n in (0, 1) for earlier, later in zip(clocks, clocks[1:])))
"""
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def add(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1.0, mask=i < n)
"""


def fill(start: int, stop: int) -> None:
    """Store records of these keys, each with 20 timings."""
    whole = record.dump(TuningRecord(make_key(0), form(CONFIGS[0]), 10.0, "ok", TIMINGS, {"written": ["x_ptr"]}))
    disk.make_folder(layout.record_path(make_key(0)).parent)
    for n in range(start, stop):
        key = make_key(n)
        layout.record_path(key).write_text(disk.text({**whole, "key": key.to_json()}))


def look_up_us(count: int, repeat: int = 2000) -> tuple[float, float]:
    """Median microseconds to look up a stored key, and a missing one."""
    there = [make_key(n * (count // min(count, 1000)) % count) for n in range(repeat)]
    missing = [make_key(count + n) for n in range(repeat)]
    times = []
    for keys in (there, missing):
        for key in keys:
            assert key.digest  # computed before the clock runs, as in a call
        samples = []
        for key in keys:
            start = time.perf_counter()
            found = sources.find(key, LIVE)
            samples.append(time.perf_counter() - start)
            assert (found is None) is (keys is missing)
        times.append(statistics.median(samples) * 1e6)
    return times[0], times[1]


def listing(*options: str) -> tuple[float, float, float]:
    """Wall seconds and CPU seconds of `autotuned list`, and its peak memory in megabytes."""
    code = (
        "import resource, sys\nfrom autotuned.cli.main import app\ntry:\n    app()\nfinally:\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, "list", *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == 0, done.stderr
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu_s, int(done.stderr.split()[-1]) / 1024


def start_ms(repeat: int) -> dict[str, list[float]]:
    """Milliseconds until the first launch of a process whose choice is stored, without those of torch and Triton.

    Wall and CPU time: minimum and median of `repeat` processes, with byte code on disk like an installed package.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel_file.py").write_text(KERNEL)
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
        environment |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}
        for n in range(repeat + 1):
            code = START.replace("SEARCHES", "1" if n == 0 else "0")
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300
            )
            assert done.returncode == 0, done.stderr
            rows.append([float(word) * 1e3 for word in done.stdout.split()])
    names = ("import", "decorate", "choose", "cpu_import", "cpu_decorate", "cpu_choose", "sum", "cpu_sum")
    columns = dict(zip(names, zip(*([*r, sum(r[:3]), sum(r[3:])] for r in rows[1:])), strict=True))
    return {name: [round(min(ms), 2), round(statistics.median(ms), 2)] for name, ms in columns.items()}


def main() -> None:
    """Measure everything, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10, 10_000, 100_000])
    parser.add_argument("--starts", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    versions = {name: importlib.metadata.version(name) for name in ("autotuned", "torch", "triton")}
    result: dict[str, object] = {"python": platform.python_version(), **versions, "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AUTOTUNED_CACHE_DIR"] = folder
        made = 0
        for size in options.sizes:
            fill(made, size)
            made = size
            there, missing = look_up_us(size)
            seconds, cpu_s, megabytes = listing()
            json_seconds, json_cpu_s, json_megabytes = listing("--json")
            start = time.perf_counter()
            gc.run(layout.root(), gc.DEFAULT_MAX_BYTES, gc.DEFAULT_MAX_AGE_S)
            swept = time.perf_counter() - start
            result[str(size)] = {
                "found_us": round(there, 1), "missing_us": round(missing, 1), "list_s": round(seconds, 2),
                "list_cpu_s": round(cpu_s, 2), "list_json_cpu_s": round(json_cpu_s, 2),
                "list_mb": round(megabytes, 1), "list_json_s": round(json_seconds, 2),
                "list_json_mb": round(json_megabytes, 1), "gc_s": round(swept, 3),
            }  # fmt: skip
            print(size, result[str(size)], flush=True)
        result["start_ms"] = start_ms(options.starts)
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
