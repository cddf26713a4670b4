"""Wall time of tuning: ours against triton.autotune, cold and for further shapes, and against a stronger baseline.

Run by hand on a machine with a GPU: python tests/bench/tuning.py [--problems P,...] [--tools T,...] [--repeats N]
Each run is a process with empty caches, tools in turn. "strong" is what anyone can write in three lines: compile all
configs on as many threads as cores (triton.AsyncCompileMode), then triton.autotune. `cold` is the first call until its
result is available; `further` are calls of other shapes with the same specialization.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
TOOLS = ("stock", "strong", "ours")


def cores() -> int:
    """Number of cores of this process."""
    return len(os.sched_getaffinity(0))


# -- one run, in its own process --------------------------------------------------------------------------------------


def child(tool: str, name: str, further: int) -> dict[str, Any]:
    """Tune one problem with one tool; seconds of the first call and of each further shape, and the picked config."""
    import torch
    import triton
    from problems import PROBLEMS

    problem = PROBLEMS[name]
    device = "cuda"
    torch.zeros(1, device=device)
    square = torch.randn(4096, 4096, device=device, dtype=torch.float16)
    for _ in range(50):  # exclude start-up of the context, cuBLAS and the clocks
        square @ square
    torch.cuda.synchronize()
    kernel = _tuned(tool, problem)
    found: dict[str, Any] = {"seconds": [], "picks": [], "cores": cores()}
    for shape in problem.shapes[: 1 + further]:
        arguments, grid = problem.arguments(shape, device), problem.grid(shape)
        torch.cuda.synchronize()
        start = time.perf_counter()
        if tool == "strong" and not found["seconds"]:
            _compile_by_threads(kernel, problem, arguments)
        kernel[grid](*arguments)
        torch.cuda.synchronize()
        found["seconds"].append(time.perf_counter() - start)
        found["picks"].append(str(kernel.best_config))
    if tool == "ours":
        found["compile_s"] = kernel.cache_info().compile_s
        import autotuned

        found["autotuned"] = autotuned.__version__
    return found | {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}


def _tuned(tool: str, problem: Any) -> Any:
    if tool == "ours":
        from autotuned import autotune

        return problem.tuned(autotune)
    import triton

    return problem.tuned(triton.autotune)


def _compile_by_threads(tuner: Any, problem: Any, arguments: tuple[Any, ...]) -> None:
    import triton

    with ThreadPoolExecutor(cores()) as threads, triton.AsyncCompileMode(threads, ignore_errors=True):
        for config in problem.configs:
            tuner.fn.warmup(*arguments, grid=(1,), **config.all_kwargs())


# -- the table --------------------------------------------------------------------------------------------------------


def run(tool: str, name: str, further: int, limit_s: float | None = None) -> dict[str, Any]:
    """The same in a new process with empty caches.

    Raises:
        subprocess.TimeoutExpired: It took longer than `limit_s`.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "TRITON_CACHE_DIR": f"{folder}/triton",
            "AUTOTUNED_CACHE_DIR": f"{folder}/autotuned",
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        command = [sys.executable, str(HERE), "--child", tool, name, str(further)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit_s)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(problems: list[str], tools: list[str], repeats: int, further: int) -> list[dict[str, Any]]:
    """All runs, with tools in turn within each repeat, so that drift of the machine affects all equally."""
    runs = []
    for name in problems:
        for repeat in range(repeats):
            for tool in tools:
                runs.append({"problem": name, "tool": tool, "repeat": repeat, **run(tool, name, further)})
                seconds = runs[-1]["seconds"]
                print(f"  {name} {tool}: cold {seconds[0]:.2f} s, further {_words(seconds[1:])}", flush=True)
    return runs


def _words(seconds: list[float]) -> str:
    return f"{statistics.mean(seconds):.3f} s each of {len(seconds)}" if seconds else "none"


def table(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the repeats: cold, a further shape, and all shapes together, by problem and tool."""
    rows = []
    for name, tool in dict.fromkeys((one["problem"], one["tool"]) for one in runs):
        mine = [one["seconds"] for one in runs if (one["problem"], one["tool"]) == (name, tool)]
        rows.append({
            "problem": name, "tool": tool, "repeats": len(mine), "shapes": len(mine[0]),
            "cold_s": statistics.median(seconds[0] for seconds in mine),
            "further_s": statistics.median(statistics.mean(seconds[1:] or [float("nan")]) for seconds in mine),
            "all_s": statistics.median(sum(seconds) for seconds in mine),
        })  # fmt: skip
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table, with our speed-up over each other tool."""
    print("| problem | tool | runs | cold, s | x ours | further shape, s | x ours | all shapes, s | x ours |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        ours = next((one for one in rows if one["tool"] == "ours" and one["problem"] == row["problem"]), None)
        cells = []
        for column in ("cold_s", "further_s", "all_s"):
            ratio = row[column] / ours[column] if ours else float("nan")
            cells += [f"{row[column]:.3f}", f"{ratio:.2f}"]
        runs = f"{row['repeats']} x {row['shapes']} shapes"
        print(f"| {row['problem']} | {row['tool']} | {runs} | {' | '.join(cells)} |")


def main() -> None:
    """Print every run and the table; write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", default="matmul,attention,rmsnorm,pair")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--further", type=int, default=3, help="further shapes of the same specialization")
    parser.add_argument("--json", type=Path, help="also write every run to this file")
    parser.add_argument("--child", nargs=3, metavar=("TOOL", "PROBLEM", "FURTHER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(*arguments.child[:2], int(arguments.child[2]))))
        return
    runs = measure(arguments.problems.split(","), arguments.tools.split(","), arguments.repeats, arguments.further)
    head = {name: runs[0][name] for name in ("card", "torch", "triton", "cores")} | {
        "python": platform.python_version()
    }
    print(", ".join(f"{name} {value}" for name, value in head.items()))
    show(table(runs))
    if arguments.json:
        arguments.json.write_text(json.dumps({**head, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
