"""Number of this package's files that a call enters: a hit, a stored miss, a miss that searches, two commands.

    python tests/bench/entered.py [--files]

A file is entered if one of its functions runs; code that runs at import does not count. Each case runs in its own
process, in Triton's interpreter, with an empty cache.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

AT_MOST = {
    "hit": 1,
    "miss in the store": 20,
    "miss that searches": 45,
    "tune of two cases": 55,
    "warmup of one call": 35,
}
SEARCHED = "miss that searches", "tune of two cases"  # in the others a search before takes times of a constant
KERNEL = """
import torch
import triton
import triton.language as tl
import autotuned

@autotuned.autotune([triton.Config({"BLOCK": b}) for b in (32, 64)], key=["n"])
@triton.jit
def double(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)

def call(n=100):
    double[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](torch.ones(n), n)

@double.case
def cases(device):
    for n in (100, 200):
        grid = lambda meta, n=n: (triton.cdiv(n, meta["BLOCK"]),)
        yield dict(args=(torch.ones(n, device=device), n), grid=grid)
"""
CONSTANT = 'key=["n"])', 'key=["n"], do_bench=lambda call, quantiles: [1.0, 1.0, call() or 1.0])'
PROGRAM = """
import json, sys, threading
entered, known = set(), set()

def trace(frame, event, arg):  # at each call, and at nothing else
    if (path := frame.f_code.co_filename) in known:
        return
    if "autotuned" in path or "cli" in path:
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_code.co_filename != "<string>":
                return  # what is done while a file is imported
            frame = frame.f_back
        entered.add(path)
    known.add(path)

def measured(run):
    sys.settrace(trace)
    threading.settrace(trace)
    try:
        run()
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.settrace(None)
        threading.settrace(None)

def command(*arguments):
    from autotuned.cli.main import app
    app(list(arguments), standalone_mode=False)

kind, path = sys.argv[1:]
import double_kernel
if kind == "hit":
    double_kernel.call()
    measured(double_kernel.call)
elif kind.startswith("miss"):
    measured(double_kernel.call)
elif kind.startswith("tune"):
    measured(lambda: command("tune", "double_kernel"))
else:
    measured(lambda: command("warmup", "calls.jsonl"))
json.dump(sorted(entered), open(path, "w"))
"""


def entered(kind: str, start: Callable[..., Any] = partial(subprocess.run, stdout=subprocess.DEVNULL)) -> list[str]:
    """The files of this package that a case enters, as paths inside the package.

    Args:
        start: Runs a command, and takes `env`, `cwd` and `check`.
    """
    import autotuned
    from autotuned import cli

    homes = [Path(autotuned.__file__).parent, Path(cli.__file__).parent]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "double_kernel.py").write_text(KERNEL if kind in SEARCHED else KERNEL.replace(*CONSTANT))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AUTOTUNED_")}
        environment |= {"TRITON_INTERPRET": "1", "AUTOTUNED_CACHE_DIR": f"{folder}/cache", "AUTOTUNED_QUIET": "1"}
        environment |= {"PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}

        def run(code: str, *arguments: str, **more: str) -> None:
            command = [sys.executable, "-c", code, *arguments]
            start(command, env=environment | more, cwd=folder, check=True)

        if kind in ("miss in the store", "warmup of one call"):
            run("import double_kernel; double_kernel.call()", AUTOTUNED_RECORD=f"{folder}/calls.jsonl")
        run(PROGRAM, kind, f"{folder}/entered.json")
        found = json.loads((Path(folder) / "entered.json").read_text())
    inner = lambda path: next(home for home in reversed(homes) if Path(path).is_relative_to(home))
    ours = [path for path in found if any(map(Path(path).is_relative_to, homes))]
    return [f"{inner(path).name}/{Path(path).relative_to(inner(path))}" for path in ours]


def main() -> None:
    """Print a line for each case, and with `--files` its files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", action="store_true", help="name them")
    named = parser.parse_args().files
    for kind, limit in AT_MOST.items():
        files = entered(kind)
        print(f"{kind:20} {len(files):3} files, at most {limit}")
        if named:
            print("".join(f"    {file}\n" for file in files), end="")


if __name__ == "__main__":
    main()
