"""Host microseconds per call: ours, plain @triton.jit, triton.autotune, an ATen op and the driver's call alone.

Run by hand on a machine with a GPU and a C compiler: python tests/bench/launch.py [--json FILE] [--quick]
Kernels over 4,096 elements; 8 sets of tensors in turn, rounds interleaved over the rows. Shows medians of the rounds:
submission only, and with a synchronisation after each call. Compare only ratios from one run.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

import autotuned
import autotuned.experimental
from autotuned.launch import launcher as launchers

ELEMENTS, SETS, ROUNDS, CALLS, CALLS_A_BLOCK = 4096, 8, 9, 2000, 500
CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (256, 512, 1024) for warps in (4, 8)]
HERE = Path(__file__).resolve().parent
DEVICE = "cuda"  # `host.py`, which needs no GPU, sets "cpu"


def source(tensors: int, scalars: int = 0, flags: int = 0) -> str:
    """A kernel that adds `tensors - 1` inputs, and its extra scalars, into one output."""
    inputs = [f"x{i}" for i in range(tensors - 1)]
    extra = [f"s{i}" for i in range(scalars)]
    constants = [f"FLAG{i}: tl.constexpr" for i in range(flags)]
    loads = "".join(f"    total += tl.load({name} + i, mask=m)\n" for name in inputs)
    adds = "".join(f"    total += {name}\n" for name in extra)
    ifs = "".join(f"    if FLAG{i}:\n        total += 1\n" for i in range(flags))
    parameters = ", ".join([*inputs, "out", "n", *extra, *constants, "BLOCK: tl.constexpr"])
    return (
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        f"def add({parameters}):\n    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    m = i < n\n"
        f"    total = tl.zeros((BLOCK,), tl.float32)\n{loads}{adds}{ifs}    tl.store(out + i, total, mask=m)\n"
    )


def kernel(folder: Path, tensors: int, scalars: int = 0, flags: int = 0):
    """A new kernel at each call; Triton reads its source, so it must be in a file."""
    return written(folder, source(tensors, scalars, flags))


def written(folder: Path, text: str):
    """The kernel `add` from a module with this text."""
    path = folder / f"add_{len(list(folder.iterdir()))}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module.add


def sets_of(tensors: int) -> list[tuple]:
    """Eight sets of tensors."""
    return [tuple(torch.randn(ELEMENTS, device=DEVICE) for _ in range(tensors)) for _ in range(SETS)]


def plain_grid(meta):
    """The common style: arithmetic on META."""
    return ((meta["n"] + meta["BLOCK"] - 1) // meta["BLOCK"],)


def cdiv_grid(meta):
    """The same with Triton's helper."""
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


TUPLE_GRID = (16, 1, 1)  # enough for the smallest BLOCK; larger ones mask


class Floor:
    """The driver's launch in a C loop."""

    def __init__(self, folder: Path) -> None:
        library = folder / "floor.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", HERE / "floor.c", "-o", library, "-ldl"], check=True)
        loops = ctypes.CDLL(str(library))
        self._function, self._memset = loops.floor_us, loops.memset_us
        self._function.restype = self._memset.restype = ctypes.c_double

    def us(self, compiled, tensors: tuple) -> float:
        """Microseconds of one launch with these tensors, one integer and the two scratch pointers."""
        values = [*(t.data_ptr() for t in tensors), ELEMENTS, 0, 0]
        array = (ctypes.c_ulonglong * len(values))(*values)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        total = 0.0
        for _ in range(CALLS // CALLS_A_BLOCK):
            torch.cuda.synchronize()
            total += self._function(
                ctypes.c_void_p(compiled.function), stream, array, len(values), TUPLE_GRID[0],
                32 * compiled.metadata.num_warps, compiled.metadata.shared, CALLS_A_BLOCK,
            )  # fmt: skip
        return total / (CALLS // CALLS_A_BLOCK)

    def memset_us(self, tensor) -> float:
        """Microseconds of the driver's memset of one tensor: the floor for zeroing a buffer."""
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        address, size = ctypes.c_ulonglong(tensor.data_ptr()), ctypes.c_ulonglong(tensor.nbytes)
        total = 0.0
        for _ in range(CALLS // CALLS_A_BLOCK):
            torch.cuda.synchronize()
            total += self._memset(stream, address, size, CALLS_A_BLOCK)
        return total / (CALLS // CALLS_A_BLOCK)


class Way:
    """One way to launch, as users write it: a statement over the tensors of one set, run in its own loop.

    Calling through a function with `*tensors` would include Python's argument unpacking.
    """

    def __init__(self, statement: str, tensors: int, **space: object) -> None:
        names = ", ".join(f"t{i}" for i in range(tensors))
        scope: dict = {"n": ELEMENTS, "TUPLE_GRID": TUPLE_GRID, "plain_grid": plain_grid, **space}
        parameters = ", ".join(f"{name}={name}" for name in scope)  # locals, as in a user's function
        exec(f"def loop(sets, {parameters}):\n    for {names}, in sets:\n        {statement}\n", scope)  # noqa: S102
        exec(
            f"def waiting(sets, {parameters}, wait=wait):\n    for {names}, in sets:\n        {statement}\n        wait()\n",
            scope := {**scope, "wait": torch.cuda.synchronize},
        )  # noqa: S102
        self.loop, self.waiting = scope["loop"], scope["waiting"]

    def submission_us(self, sets: list[tuple]) -> float:
        """Host time of one call; the queue is drained often enough never to fill up."""
        block = (sets * CALLS_A_BLOCK)[:CALLS_A_BLOCK]
        elapsed = 0.0
        for _ in range(CALLS // CALLS_A_BLOCK):
            torch.cuda.synchronize()
            start = time.perf_counter()
            self.loop(block)
            elapsed += time.perf_counter() - start
        return elapsed / CALLS * 1e6

    def synchronized_us(self, sets: list[tuple]) -> float:
        """Time of one call and the wait for its kernel."""
        block = (sets * CALLS_A_BLOCK)[:CALLS_A_BLOCK]
        start = time.perf_counter()
        self.waiting(block)
        return (time.perf_counter() - start) / CALLS_A_BLOCK * 1e6


def with_launcher(name: str, decorate: Callable[[], object]):
    """A kernel decorated with another AUTOTUNED_LAUNCHER."""
    before = os.environ.get("AUTOTUNED_LAUNCHER")
    os.environ["AUTOTUNED_LAUNCHER"] = name
    try:
        return decorate()
    finally:
        os.environ.pop("AUTOTUNED_LAUNCHER") if before is None else os.environ.update(AUTOTUNED_LAUNCHER=before)


def tuner(fn, **options):
    """Our tuner."""
    return autotuned.autotune(configs=CONFIGS, key=["n"], restore_value=[], **options)(fn)


def stock(fn, **options):
    """Triton's tuner."""
    return triton.autotune(configs=CONFIGS, key=["n"], **options)(fn)


def grids(folder: Path, tensors: int) -> dict[str, Way]:
    """Ours, plain and stock with one number of tensors."""
    plain = kernel(folder, tensors)
    given = ", ".join(f"t{i}" for i in range(tensors))
    space = dict(ours=tuner(plain), stock=stock(plain), plain=plain, cdiv_grid=cdiv_grid)
    statements = {
        "ours, tuple grid": f"ours[TUPLE_GRID]({given}, n)",
        "ours, lambda grid": f"ours[plain_grid]({given}, n)",
        "plain @triton.jit, tuple grid": f"plain[TUPLE_GRID]({given}, n, BLOCK=1024)",
        "triton.autotune, lambda grid": f"stock[plain_grid]({given}, n)",
        "the loop alone": "pass",
    }
    if tensors == 3:
        space["python"] = with_launcher("python", lambda: tuner(kernel(folder, tensors)))
        space["torch_add"] = torch.add
        statements["ours, lambda grid with triton.cdiv"] = f"ours[cdiv_grid]({given}, n)"
        statements["ours, Python twin, lambda grid"] = f"python[plain_grid]({given}, n)"
        statements["torch.add(x, y, out=o)"] = "torch_add(t0, t1, out=t2)"
    ways = {name: Way(statement, tensors, **space) for name, statement in statements.items()}
    for name, way in ways.items():
        if name != "the loop alone":
            check(way, sets_of(tensors)[:1])
    return ways


def check(way: Way, sets: list[tuple]) -> None:
    """Check the results: a launch that computes nothing would be the fastest."""
    ((*inputs, out),) = sets
    for _ in range(2):  # cold, then from the table
        out.zero_()
        way.loop(sets)
        torch.testing.assert_close(out, sum(inputs))


def keyword_launches(folder: Path) -> dict[str, Way]:
    """`.run` with 20 keyword arguments, and two heuristics outside: how fla, mamba and vLLM launch."""
    flags = [f"FLAG{i}" for i in range(8)]
    common = [f"x{i}=t{i}" for i in range(7)] + ["out=t7", "n=n", "s0=0", "s1=0", "s2=0"]
    every = ", ".join([*common, *(f"{flag}=False" for flag in flags)])
    fewer = ", ".join([*common, *(f"{flag}=False" for flag in flags[2:])])
    assert every.count("=") == 20

    def under(target, heuristics=triton.heuristics):
        return heuristics({"FLAG0": lambda args: args["n"] < 0, "FLAG1": lambda args: args["s0"] < 0})(target)

    space = {
        "ours": tuner(kernel(folder, 8, 3, 8)), "stock": stock(kernel(folder, 8, 3, 8)),
        "ours_under": under(tuner(kernel(folder, 8, 3, 8))), "stock_under": under(stock(kernel(folder, 8, 3, 8))),
        "all_ours": under(tuner(kernel(folder, 8, 3, 8)), autotuned.heuristics),
    }  # fmt: skip
    start = "run(grid=TUPLE_GRID, warmup=False,"
    return {
        "ours .run, 20 keywords": Way(f"ours.{start} {every})", 8, **space),
        "triton.autotune .run, 20 keywords": Way(f"stock.{start} {every})", 8, **space),
        "ours under autotuned.heuristics": Way(f"all_ours[TUPLE_GRID]({fewer})", 8, **space),
        "ours under triton.heuristics": Way(f"ours_under[TUPLE_GRID]({fewer})", 8, **space),
        "triton.autotune under triton.heuristics": Way(f"stock_under[TUPLE_GRID]({fewer})", 8, **space),
    }


def prologues(folder: Path) -> dict[str, Way]:
    """The cost of zeroing one buffer and of a config's hook."""

    def hook(arguments):
        return None

    configs = [triton.Config({"BLOCK": 1024}, num_warps=warps, pre_hook=hook) for warps in (4, 8)]
    space = {
        "zeroing": tuner(kernel(folder, 3), reset_to_zero=["out"]),
        "hooked": autotuned.autotune(configs=configs, key=["n"], restore_value=[])(kernel(folder, 3)),
    }
    return {
        "ours, reset_to_zero of one tensor": Way("zeroing[TUPLE_GRID](t0, t1, t2, n)", 3, **space),
        "ours, empty Config.pre_hook": Way("hooked[TUPLE_GRID](t0, t1, t2, n)", 3, **space),
    }


ADD_PAIR = """import triton
import triton.language as tl


@triton.jit
def add(pair, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(pair[0] + i, mask=i < n) + tl.load(pair[1] + i, mask=i < n), mask=i < n)
"""
ADD_BLOCKS = """import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    out.store([start], x.load([start]) + y.load([start]))
"""


def compound(folder: Path) -> dict[str, Way]:
    """A tuple of tensors, created per call, and three tensor descriptors, created once."""
    configs = [triton.Config({"BLOCK": 256}, num_warps=warps) for warps in (4, 8)]
    options = dict(configs=configs, key=["n"])
    space = {
        "pair": tuner(written(folder, ADD_PAIR)), "stock_pair": stock(written(folder, ADD_PAIR)), "new": described,
        "blocks": autotuned.autotune(restore_value=[], **options)(written(folder, ADD_BLOCKS)),
        "stock_blocks": triton.autotune(**options)(written(folder, ADD_BLOCKS)),
    }  # fmt: skip
    ways = {
        "ours, a tuple of two tensors": Way("pair[TUPLE_GRID]((t0, t1), t2, n)", 3, **space),
        "triton.autotune, a tuple of two tensors": Way("stock_pair[TUPLE_GRID]((t0, t1), t2, n)", 3, **space),
        "ours, three descriptors made once": Way("blocks[TUPLE_GRID](t0.block, t1.block, t2.block, n)", 3, **space),
        "triton.autotune, three descriptors made once": Way(
            "stock_blocks[TUPLE_GRID](t0.block, t1.block, t2.block, n)", 3, **space
        ),
        "ours, three descriptors made for each call": Way(
            "blocks[TUPLE_GRID](new(t0), new(t1), new(t2), n)", 3, **space
        ),
        "making three descriptors": Way("new(t0), new(t1), new(t2)", 3, **space),
    }
    for name, way in ways.items():
        if not name.startswith("making"):
            check(way, described_sets(sets_of(3)[:1]))
    return ways


def outputs() -> dict[str, Way]:
    """An output from the pool and from torch, with none or the last four kept alive."""
    ways, options = {}, dict(float32=torch.float32, device=torch.device("cuda", 0), kept=deque(maxlen=4))
    for name, home in {"experimental": autotuned.experimental, "torch": torch}.items():
        space = dict(options, like=home.empty_like, empty=home.empty)
        ways[f"{name}.empty_like(x)"] = Way("like(t0)", 3, **space)
        ways[f"{name}.empty_like(x), four held"] = Way("kept.append(like(t0))", 3, **space)
        ways[f"{name}.empty(n, ...)"] = Way("empty(n, dtype=float32, device=device)", 3, **space)
    return ways


def described(tensor):
    """A descriptor of a tensor."""
    return TensorDescriptor.from_tensor(tensor, [256])


def described_sets(sets: list[tuple]) -> list[tuple]:
    """The same sets, each tensor with its own descriptor as `.block`."""
    for tensor in (tensor for one in sets for tensor in one):
        tensor.block = described(tensor)
    return sets


def others(folder: Path) -> dict[str, Way]:
    """The same sum by other installed libraries; they allocate their output."""

    def add(x, y):
        return x + y

    ways = {}
    for name, make in {"torch.compile": lambda: torch.compile(add), "Helion": lambda: of_helion(folder)}.items():
        try:
            way = Way("other(t0, t1)", 3, other=make())
            way.loop(sets_of(3)[:1])
            ways[f"{name}, allocates its output"] = way
        except Exception as error:  # not installed, or it does not run here
            print(f"{name}: no row ({type(error).__name__}: {str(error).strip().splitlines()[0]:.120})")
    return ways


def of_helion(folder: Path):
    """Helion's kernel, which must also be in a file."""
    path = folder / "by_helion.py"
    path.write_text(
        "import helion\nimport helion.language as hl\nimport torch\n\n\n"
        "@helion.kernel(config=helion.Config(block_sizes=[1024], num_warps=4), static_shapes=True)\n"
        "def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:\n    out = torch.empty_like(x)\n"
        "    for tile in hl.tile(out.size()):\n        out[tile] = x[tile] + y[tile]\n    return out\n"
    )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module.add


def keys(folder: Path) -> dict[str, Way]:
    """The look-up alone, in C and in Python, and the cost of a plain callable."""
    ours = tuner(kernel(folder, 3))
    python = with_launcher("python", lambda: tuner(kernel(folder, 3)))
    for one in (ours, python):
        one[TUPLE_GRID](*sets_of(3)[0], ELEMENTS)

    def nothing(x, y, out, *, b=1):
        return None

    configs = [autotuned.Config({"b": b}) for b in (1, 2)]
    space = {
        "in_c": ours.tuner.launcher.in_c.find, "in_python": python.tuner.launcher.find, "nothing": nothing,
        "tuned": autotuned.autotune(configs=configs, restore_value=[])(nothing),
    }  # fmt: skip
    return {
        "key alone": Way("in_c((t0, t1, t2, n))", 3, **space),
        "key alone, Python twin": Way("in_python((t0, t1, t2, n))", 3, **space),
        "tuned plain callable": Way("tuned(t0, t1, t2)", 3, **space),
        "the callable itself": Way("nothing(t0, t1, t2, b=1)", 3, **space),
        "the loop alone": Way("pass", 3, **space),
    }


def measure(groups: dict[int | str, dict[str, Way]], floors: dict[str, Callable[[], float]], rounds: int) -> dict:
    """Median submission and synchronised times of all rows, with interleaved rounds."""
    sets = {group: sets_of(group if isinstance(group, int) else 8 if group == "keywords" else 3) for group in groups}
    if "compound" in sets:
        described_sets(sets["compound"])
    for group, ways in groups.items():
        for way in ways.values():
            way.loop(sets[group])
    submitted: dict[str, list[float]] = {}
    waited: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, floor in floors.items():
            submitted.setdefault(name, []).append(floor())
        for group, ways in groups.items():
            for name, way in ways.items():
                row = f"{group} tensors: {name}" if isinstance(group, int) else name
                submitted.setdefault(row, []).append(way.submission_us(sets[group]))
                waited.setdefault(row, []).append(way.synchronized_us(sets[group]))
    return {
        name: {
            "us": statistics.median(us),
            "synchronized_us": statistics.median(waited[name]) if name in waited else None,
        }
        for name, us in submitted.items()
    }


def main() -> None:
    """Print the table, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--quick", action="store_true", help="three rounds instead of nine")
    arguments = parser.parse_args()
    head = {
        "card": torch.cuda.get_device_name(), "python": platform.python_version(), "torch": torch.__version__,
        "triton": triton.__version__, "autotuned": autotuned.__version__, "launcher": launchers.in_use()[0],
    }  # fmt: skip
    print(", ".join(f"{name} {value}" for name, value in head.items()))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        floor = Floor(folder)
        groups: dict[int | str, dict[str, Way]] = {tensors: grids(folder, tensors) for tensors in (3, 9, 17, 40)}
        groups.update(keywords=keyword_launches(folder), prologues=prologues(folder), keys=keys(folder))
        groups["compound"] = compound(folder)
        groups.update(outputs=outputs(), others=others(folder))
        floors = {"the driver's memset of one tensor": lambda x=sets_of(1)[0][0]: floor.memset_us(x)}
        for tensors in (3, 9, 17, 40):
            one = sets_of(tensors)[0]
            compiled = kernel(folder, tensors)[TUPLE_GRID](*one, ELEMENTS, BLOCK=1024)
            floors[f"{tensors} tensors: floor"] = lambda compiled=compiled, one=one: floor.us(compiled, one)
        rows = measure(groups, floors, 3 if arguments.quick else ROUNDS)
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")


def show(rows: dict) -> None:
    """Print the table: microseconds, and multiples of the floor with as many tensors (3 if a row names none)."""
    for name, row in sorted(rows.items(), key=lambda item: (item[0].split(" tensors")[0].rjust(50), item[1]["us"])):
        tensors = name.split(" ")[0] if " tensors: " in name else "3"
        base = rows[f"{tensors} tensors: floor"]["us"]
        waited = f"{row['synchronized_us']:8.2f}" if row["synchronized_us"] else " " * 8
        print(f"{name:58s} {row['us']:7.2f} us {row['us'] / base:6.2f} x floor   synchronised {waited} us")


if __name__ == "__main__":
    main()
