"""Time of 32 first calls of rmsnorm, softmax and matmul with shipped binaries, and of an unforeseen call.

    python tests/bench/load.py [--rounds 5] [--keep FOLDER]

The choices are this package's own, tuned for an H200 with Triton 3.6.0, which must be installed; the binaries for the
32 calls are first built into FOLDER if they are missing. With a GPU the rows are: empty caches with binaries; a full
Triton cache without binaries; empty caches without binaries; and, sealed, a call with an unforeseen alignment next to
a foreseen one. Without a GPU, a stand-in replaces CUDA's driver, every compilation raises, and there is only the first
row, with counts: function calls, modules imported, files and bytes read.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE)]
DEVICE = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, L2_cache_size=50 << 20, total_memory=141 << 30
)
RMSNORM = [(64, cols) for cols in (512, 768, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192)]
SOFTMAX = [(rows, cols) for cols in (256, 1000, 4096, 8192, 32000) for rows in (128, 1024)]
MATMUL = [(m, 4096, 4096) for m in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)]


def kernels():
    """Each kernel, with the function that creates the case of a shape, and its shapes."""
    import torch

    from autotuned.kernels import matmul, rmsnorm, softmax

    return [
        (rmsnorm.rmsnorm_kernel, lambda device, *shape: rmsnorm.make_case(device, *shape, torch.bfloat16), RMSNORM),
        (softmax.softmax_kernel, lambda device, *shape: softmax.make_case(device, *shape, torch.float16), SOFTMAX),
        (matmul.matmul_kernel, lambda device, *shape: matmul.make_case(device, *shape, torch.float16), MATMUL),
    ]


def build(folder: Path) -> None:
    """Put the choices for the three kernels into a folder, with binaries for the 32 calls."""
    from autotuned.offline import binaries

    source = HERE.parents[1] / "configs" / "nvidia-h200-sm_90-132"
    for kernel, make, shapes in kernels():
        name = f"{kernel.tuner.tunable.name}.json"
        (folder / source.name).mkdir(parents=True, exist_ok=True)
        (folder / source.name / name).write_text((source / name).read_text())

        def cases(device, make=make, shapes=shapes):
            for shape in shapes:
                yield make(device, *shape)

        kernel.cases[:] = [cases]
    result = binaries.build(folder)
    if not any(file.variants for file in result.files):
        sys.exit("\n".join(line for file in result.files for line in file.missing))
    for file in result.files:
        print(f"{file.kernel}: {file.entries} of {file.of} entries, {file.variants} variants, {file.bytes} bytes")


# -- one process -------------------------------------------------------------------------------------------------------


def has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def pretend() -> None:
    """Pretend one H200 whose launches do nothing, which accepts host tensors, and no compiler."""
    import ctypes

    import no_compiler
    import pytest

    no_compiler.PROPERTIES = DEVICE
    no_compiler.pretend(pytest.MonkeyPatch())
    import torch

    torch.cuda.get_device_properties.__module__ = "torch.cuda"  # like torch's own, which is called once per device
    from autotuned import _native

    driver = ctypes.CDLL("libcuda.so.1")
    names = "cuLaunchKernelEx", "cuCtxGetCurrent", "fake_current_stream", "cuMemsetD8Async"
    if _native.extension is not None:
        _native.extension.use_driver(*(ctypes.cast(getattr(driver, name), ctypes.c_void_p).value for name in names))


class Counted:
    """Counts within a block: function calls, imports, files and bytes read."""

    def __init__(self) -> None:
        self.calls, self.files = 0, []

    def _audit(self, event, args):
        if self._on and event == "open" and isinstance(args[0], str):
            self.files.append(args[0])

    def _profile(self, frame, event, arg):
        self.calls += event in ("call", "c_call")

    def __enter__(self):
        self._on, self._before = True, set(sys.modules)
        sys.addaudithook(self._audit)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)
        self._on = False
        self.modules = sorted(set(sys.modules) - self._before)
        self.bytes = sum(os.path.getsize(file) for file in self.files if os.path.isfile(file))


def first_calls(how: str, folder: str) -> dict:
    """Make the 32 calls in this process."""
    import torch

    gpu = has_gpu()
    if not gpu:
        pretend()
    import autotuned

    if how != "compile":
        autotuned.register_configs(folder, binaries=how != "cache")
    else:
        autotuned.register_configs(folder)
    device = "cuda" if gpu else "cpu"
    calls = [(kernel, make(device, *shape)) for kernel, make, shapes in kernels() for shape in shapes]
    for kernel in {id(kernel): kernel for kernel, _ in calls}.values():
        kernel.tuner.tunable.source  # noqa: B018 - read at import in a program that has run before
    if gpu:
        torch.cuda.synchronize()

    def launch():
        start, took = time.perf_counter(), []
        for kernel, case in calls:
            begun = time.perf_counter()
            kernel[case["grid"]](*case["args"], **case["kwargs"])
            took.append(time.perf_counter() - begun)
        return (time.perf_counter() - start) * 1e3, [round(one * 1e3, 2) for one in took]

    if how == "count":
        with Counted() as counted:
            launch()
        return {"calls": counted.calls, "modules": counted.modules, "files": counted.files, "bytes": counted.bytes}
    ms, each = launch()
    counts = autotuned.counters()
    searches = sum(count.events for (_, kind), count in counts.items() if kind == "search")
    return {
        "ms": ms,
        "each": each,
        "searches": searches,
        "loads": sum(c.events for (_, k), c in counts.items() if k == "load"),
    }


def process(how: str, folder: Path, library: Path | None, caches: Path) -> dict:
    """The output of one process with these caches."""
    environment = {
        **os.environ,
        "AUTOTUNED_CACHE_DIR": str(caches / "store"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
    }
    if library is not None:
        import no_compiler

        environment = {**os.environ, **no_compiler.environment(caches, library)}
    done = subprocess.run([sys.executable, __file__, "--one", how, str(folder)], env=environment, capture_output=True,
                          text=True, timeout=600)  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


# -- an unforeseen alignment -------------------------------------------------------------------------------------------


def unforeseen(folder: str) -> dict:
    """Microseconds of softmax on a GPU, sealed: as foreseen, and one element further, served by the generic variant."""
    import torch
    from triton.testing import do_bench

    import autotuned
    from autotuned.kernels import softmax

    autotuned.register_configs(folder, binaries=True)
    found = {}
    with autotuned.seal(all=True):
        for name, offset in (("special", 0), ("generic", 1)):
            x, out = (torch.randn(1024 * 4096 + 1, device="cuda").half() for _ in range(2))
            x, out = (one[offset : offset + 1024 * 4096].view(1024, 4096) for one in (x, out))
            args, grid = softmax._arguments(out, x), softmax.make_case("cuda", 1024, 4096, torch.float16)["grid"]
            loaded = softmax.softmax_kernel[grid](*args)
            us = do_bench(lambda args=args, grid=grid: softmax.softmax_kernel[grid](*args), return_mode="median") * 1e3
            found[name] = {"us": round(us, 2), "assumes": len(loaded.variant.form.assumes)}
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="a folder for the binaries, used again if it is there")
    parser.add_argument("--one", nargs=2, metavar=("HOW", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        how, folder = options.one
        print(json.dumps(unforeseen(folder) if how == "unforeseen" else first_calls(how, folder)))
        return
    with tempfile.TemporaryDirectory() as work:
        table(Path(work), options)


def table(work: Path, options) -> None:
    """Run the processes of each row, with modules compiled to byte code as pip does."""
    compileall.compile_dir(HERE.parents[1] / "autotuned", quiet=1)
    folder = options.keep or work / "tuned"
    if not any(folder.glob("*/*.bin")):
        build(folder)
    library = None
    if not has_gpu():
        import no_compiler

        library = work / "library"
        library.mkdir()
        no_compiler.build_library(library)
    hows = ["binaries"] if library is not None else ["binaries", "compile", "cache"]
    print(f"{'32 first calls':24} {'ms, least':>10} {'median':>8}  searches, loads")
    for how in hows:
        found = []
        for number in range(options.rounds if how != "compile" else 1):
            caches = work / ("compile-0" if how == "cache" else f"{how}-{number}")
            caches.mkdir(exist_ok=True)
            found.append(process(how, folder, library, caches))
        times = [one["ms"] for one in found]
        print(
            f"{how:24} {min(times):10.1f} {statistics.median(times):8.1f}  {found[0]['searches']}, {found[0]['loads']}"
        )
    if library is None:
        print("softmax 1024 x 4096 fp16, sealed:", process("unforeseen", folder, None, work))
    else:
        (work / "count").mkdir()
        counted = process("count", folder, library, work / "count")
        print(f"function calls {counted['calls']}, modules {len(counted['modules'])}, files {len(counted['files'])}, "
              f"bytes {counted['bytes']}")  # fmt: skip
        print(" ".join(counted["modules"]))


if __name__ == "__main__":
    importlib.invalidate_caches()
    main()
