"""The part of a launch outside the driver: nanoseconds and instructions of each kind of hit, without a GPU.

    python tests/bench/host.py [--instructions] [--json FILE] [--only TEXT] [--keep FOLDER]

Needs a C compiler, torch and Triton; kernels are compiled for a pretended H100, and functions that do nothing
(`standin.c`) replace the driver, so that only the Python side of torch and Triton, and this package, remain. Each row
is the minimum of many short rounds over eight sets of tensors, minus the loop itself. "busy" is the same with a launch
that uses the processor's caches as a driver does, minus that launch alone: the code before it then starts with cold
caches. `--instructions` repeats it under valgrind's callgrind and shows instructions per call, which do not depend on
the machine's load. None of this includes the cost of a real driver: that is `launch.py`, on a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
ROUNDS, SETS = 400, 8
COUNTED_CALLS = 64


def standin(folder: Path):
    """The stand-ins for the driver, built for this Python."""
    path = folder / f"standin{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ["-O3", "-DNDEBUG", "-shared", "-fPIC", "-I", sysconfig.get_path("include")]
    if not path.exists():
        subprocess.run(["cc", *flags, HERE / "standin.c", "-o", path, "-ldl"], check=True)
    spec = importlib.util.spec_from_file_location("standin", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pretend(standin) -> None:
    """Pretend one H100 for Triton and torch, whose launches do nothing."""
    import fake_cuda
    import pytest
    import triton

    from autotuned import _launch
    from autotuned.triton_compat import descriptors

    driver = fake_cuda.install_with_host_clock(pytest.MonkeyPatch())
    triton.runtime.driver._active = driver
    driver.stream = 0x77  # as in `standin.c`
    driver.utils.fill_tma_descriptor_tiled = lambda *args: None
    descriptors._bytes_of_map = lambda made: bytes(128)  # `standin.c` encodes every map like this
    driver.launcher_cls = lambda src, metadata: fake_cuda.tritons_launcher(standin.nothing)
    _launch.use_driver(*standin.driver())


def rows(folder: Path, standin) -> dict[str, tuple[Callable, list]]:
    """A loop over sets of tensors for each row, and the sets."""
    import launch
    import torch
    import triton

    import autotuned

    launch.DEVICE = "cpu"
    launch.CONFIGS = launch.CONFIGS[:2]
    bench = lambda call, quantiles: (call(), [1.0, 1.0, 1.0])[1]
    ours = lambda fn, **options: launch.tuner(fn, do_bench=bench, **options)
    stock = lambda fn: triton.autotune(configs=launch.CONFIGS, key=["n"], do_bench=bench)(fn)
    kernel = lambda *counts: launch.kernel(folder, *counts)
    found: dict[str, tuple[Callable, list]] = {"3: the launch alone": (standin.launch_all, launch.sets_of(3))}

    def add(name: str, tensors: int, statement: str, **space: object) -> None:
        loop = launch.Way(statement, tensors, cdiv_grid=launch.cdiv_grid, **space).loop
        found[name] = loop, launch.described_sets(launch.sets_of(tensors))

    for tensors in (3, 17, 40):
        given = ", ".join(f"t{i}" for i in range(tensors))
        one = ours(kernel(tensors))
        one[launch.TUPLE_GRID](*launch.sets_of(tensors)[0], launch.ELEMENTS)
        add(f"{tensors}: the loop alone", tensors, "pass")
        found[f"{tensors}: torch's export alone"] = (
            standin.export_all,
            [t for one_ in launch.sets_of(tensors) for t in one_],
        )
        add(f"{tensors}: key alone", tensors, f"find(({given}, n))", find=one.tuner.launcher.in_c.find)
        add(f"{tensors}: ours, tuple grid", tensors, f"ours[TUPLE_GRID]({given}, n)", ours=one)
        add(f"{tensors}: ours, lambda grid", tensors, f"ours[plain_grid]({given}, n)", ours=one)
        add(
            f"{tensors}: triton.autotune, lambda grid",
            tensors,
            f"stock[plain_grid]({given}, n)",
            stock=stock(kernel(tensors)),
        )
    add("3: ours, lambda grid with triton.cdiv", 3, "ours[cdiv_grid](t0, t1, t2, n)", ours=ours(kernel(3)))
    add("3: that lambda alone, arithmetic", 3, "plain_grid(meta)", meta={"n": 4096, "BLOCK": 1024})
    add("3: that lambda alone, triton.cdiv", 3, "cdiv_grid(meta)", meta={"n": 4096, "BLOCK": 1024})
    add(
        "3: ours, tuple grid, reset_to_zero",
        3,
        "ours[TUPLE_GRID](t0, t1, t2, n)",
        ours=ours(kernel(3), reset_to_zero=["out"]),
    )
    keyword_rows(add, ours, stock, kernel)
    compound_rows(add, folder)
    twin = launch.with_launcher("python", lambda: ours(kernel(3)))
    twin[launch.TUPLE_GRID](*launch.sets_of(3)[0], launch.ELEMENTS)
    add("3: Python twin, key alone", 3, "find((t0, t1, t2, n))", find=twin.tuner.launcher.find)
    add("3: Python twin, lambda grid", 3, "twin[plain_grid](t0, t1, t2, n)", twin=twin)
    add("3: Python twin, tuple grid", 3, "twin[TUPLE_GRID](t0, t1, t2, n)", twin=twin)
    add("3: plain @triton.jit, tuple grid", 3, "plain[TUPLE_GRID](t0, t1, t2, n, BLOCK=1024)", plain=kernel(3))

    from autotuned import experimental

    add("3: experimental.empty_like", 3, "like(t0)", like=experimental.empty_like)
    add("3: torch.empty_like", 3, "like(t0)", like=torch.empty_like)
    options = dict(float32=torch.float32, device=torch.device("cpu"))
    add("3: experimental.empty", 3, "made(n, dtype=float32, device=device)", made=experimental.empty, **options)
    add("3: torch.empty", 3, "made(n, dtype=float32, device=device)", made=torch.empty, **options)

    def nothing(x, y, out, *, b=1):
        return None

    configs = [autotuned.Config({"b": b}) for b in (1, 2)]
    tuned = autotuned.autotune(configs=configs, restore_value=[])(nothing)
    add("3: a tuned plain callable", 3, "tuned(t0, t1, t2)", tuned=tuned)

    class Layer:
        def __init__(self) -> None:
            self.weight, self.steps = torch.zeros(8), {"eps": 1e-5}

    of_layer = autotuned.autotune(configs=configs, restore_value=[])(lambda layer, x, *, b=1: None)
    add("3: a tuned plain callable, of an object", 3, "tuned(layer, t0)", tuned=of_layer, layer=Layer())
    add("3: the callable itself", 3, "nothing(t0, t1, t2, b=1)", nothing=nothing)
    return found


def keyword_rows(add: Callable, ours: Callable, stock: Callable, kernel: Callable) -> None:
    """`.run` with 20 keywords, and two heuristics."""
    import triton

    import autotuned

    common = [f"x{i}=t{i}" for i in range(7)] + ["out=t7", "n=n", "s0=0", "s1=0", "s2=0"]
    every = ", ".join([*common, *(f"FLAG{i}=False" for i in range(8))])
    fewer = ", ".join([*common, *(f"FLAG{i}=False" for i in range(2, 8))])
    values = {"FLAG0": lambda args: args["n"] < 0, "FLAG1": lambda args: args["s0"] < 0}
    start = "run(grid=TUPLE_GRID, warmup=False,"
    add("8: ours, .run with tuple grid, 20 keywords", 8, f"ours.{start} {every})", ours=ours(kernel(8, 3, 8)))
    add(
        "8: ours, tuple grid, under autotuned.heuristics",
        8,
        f"ours[TUPLE_GRID]({fewer})",
        ours=autotuned.heuristics(values)(ours(kernel(8, 3, 8))),
    )
    add("8: triton.autotune .run, 20 keywords", 8, f"stock.{start} {every})", stock=stock(kernel(8, 3, 8)))
    both = triton.heuristics(values)(stock(kernel(8, 3, 8)))
    add("8: triton.autotune under triton.heuristics", 8, f"stock[TUPLE_GRID]({fewer})", stock=both)


def compound_rows(add: Callable, folder: Path) -> None:
    """A tuple of two tensors, created per call, and three tensor descriptors, created once or per call."""
    import launch
    import triton

    bench = lambda call, quantiles: (call(), [1.0, 1.0, 1.0])[1]
    configs = [triton.Config({"BLOCK": 256}, num_warps=warps) for warps in (4, 8)]
    ours = lambda fn: launch.autotuned.autotune(configs=configs, key=["n"], restore_value=[], do_bench=bench)(fn)
    pair, blocks = ours(launch.written(folder, launch.ADD_PAIR)), ours(launch.written(folder, launch.ADD_BLOCKS))
    for name, statement in {
        "a tuple of two tensors": "pair[TUPLE_GRID]((t0, t1), t2, n)",
        "three descriptors": "blocks[TUPLE_GRID](t0.block, t1.block, t2.block, n)",
        "three descriptors, made for each call": "blocks[TUPLE_GRID](new(t0), new(t1), new(t2), n)",
        "making those": "new(t0), new(t1), new(t2)",
    }.items():
        add(f"3: {name}", 3, statement, pair=pair, blocks=blocks, new=launch.described)


def nanoseconds(found: dict[str, tuple[Callable, list]]) -> dict[str, float]:
    """Minimum time of one call over many rounds, each far shorter than a time slice."""
    least = dict.fromkeys(found, float("inf"))
    for _ in range(ROUNDS):
        for name, (loop, sets) in found.items():
            block = sets * SETS
            start = time.perf_counter()
            loop(block)
            least[name] = min(least[name], (time.perf_counter() - start) / len(block) * 1e9)
    return least


def counted(found: dict[str, tuple[Callable, list]], standin) -> None:
    """Run each row once between two dumps of callgrind."""
    for name, (loop, sets) in found.items():
        block = sets if loop is standin.export_all else sets * (COUNTED_CALLS // len(sets))
        loop(sets)
        standin.counted(loop, block, name)


def instructions(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Instructions per call, from one run of this script under callgrind."""
    command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/counts"]
    command += [sys.executable, __file__, "--counted", str(folder)]
    command += ["--only", arguments.only] if arguments.only else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    names = dict(json.loads(done.stdout.splitlines()[-1]))
    found = {}
    for path in folder.glob("counts.*"):
        text = path.read_text()
        row = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE)
        if row and row[1] in names:
            found[row[1]] = int(re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)[1]) / names[row[1]]
    return found


def main() -> None:
    """Print the table, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instructions", action="store_true", help="count instructions under valgrind")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--counted", type=Path, help=argparse.SUPPRESS)
    parser.add_argument(
        "--keep", type=Path, help="a folder for callgrind's files, to look into with callgrind_annotate"
    )
    arguments = parser.parse_args()
    os.environ.pop("TRITON_INTERPRET", None)
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.counted or arguments.keep or Path(name)
        folder.mkdir(exist_ok=True)
        os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
        os.environ.setdefault("AUTOTUNED_CACHE_DIR", str(folder / "store"))
        kernels = folder / ("counted" if arguments.counted else "kernels")
        kernels.mkdir(exist_ok=True)
        stand = standin(folder)
        pretend(stand)
        found = rows(kernels, stand)
        found = {name: row for name, row in found.items() if arguments.only in name}
        for loop, sets in found.values():
            loop(sets)
            loop(sets)
        if arguments.counted:
            counted(found, stand)
            print(
                json.dumps(
                    [(name, len(sets) if "export" in name else COUNTED_CALLS) for name, (_, sets) in found.items()]
                )
            )
            return
        columns = {"ns": nanoseconds(found)}
        stand.busy(True)
        columns["busy ns"] = nanoseconds(found)
        if arguments.instructions:
            columns["instructions"] = instructions(arguments, folder)
    table = {name: {column: less_the_loop(column, name, columns) for column in columns} for name in found}
    for name, row in table.items():
        print(f"{name:44s}", "  ".join(f"{value:9.0f} {column}" for column, value in row.items()))
    if arguments.json:
        head = {"python": platform.python_version(), "torch": sys.modules["torch"].__version__}
        head["triton"] = sys.modules["triton"].__version__
        arguments.json.write_text(json.dumps({**head, "rows": table}, indent=1) + "\n")


def less_the_loop(column: str, name: str, columns: dict[str, dict[str, float]]) -> float:
    """A number minus the cost of the row's loop, and of a busy launch in it."""
    numbers, tensors = columns[column], name.split(":")[0]
    alone = 0.0 if "export" in name or "the launch" in name else numbers.get(f"{tensors}: the loop alone", 0.0)
    if column == "busy ns" and " grid" in name and ("ours" in name or "heuristics" in name):
        alone += numbers.get("3: the launch alone", 0.0)
    return numbers[name] - alone


if __name__ == "__main__":
    main()
