"""Compiling by threads or by compile workers: wall and CPU time, on any machine, for a pretended H100.

    python tests/bench/compilers.py [PROBLEM] [--configs N] [--runs N]

Each run is a process with empty caches. "first" is a whole search without launches and measurements; "waited" is how
much longer workers needed to start than this process's own imports.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
KINDS = ("threads", "workers")
TARGET = """
import sys
sys.path[:0] = [{bench!r}]
import triton
from problems import PROBLEMS
from autotuned.search.compiling import compile
from autotuned import autotune
problem = PROBLEMS[{problem!r}]
work = autotune(problem.configs[:{configs}], name="work", key=[], do_bench=lambda call, quantiles: [1.0] * 3)(
    triton.jit(problem.function)
)
@work.case
def case(device):
    yield
"""


def processor_s(pids: list[int]) -> float:
    """CPU time of these processes and of the children they waited for."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(sum(map(int, one[11:15])) for one in fields) / os.sysconf("SC_CLK_TCK")


def measure(kind: str, target: Path) -> None:
    """Run one cold search and print its times."""
    from autotuned.offline.workers.compile_pool import CompileWorkers

    compilers = CompileWorkers([str(target)], 600.0) if kind == "workers" else None
    import fake_cuda
    import pytest
    import triton

    from autotuned.offline import targets
    from autotuned.triton_compat import compiled

    [found] = targets.load(str(target))
    compiled.prepare_compiler()
    start = time.perf_counter()
    if compilers is not None:
        compile.compilers.append(compilers)
        while not compilers._knows("work"):
            assert not compilers._over, compilers._over
            time.sleep(0.005)
    waited_s = time.perf_counter() - start
    problem = sys.modules[target.stem].problem
    with pytest.MonkeyPatch.context() as patch:
        triton.runtime.driver._active = fake_cuda.Driver()
        fake_cuda.install_with_host_clock(patch)
        arguments = problem.arguments(problem.shapes[0], "cpu")
        before, start = processor_s([os.getpid()]), time.perf_counter()
        found.tuned[problem.grid(problem.shapes[0])](*arguments)
        seconds, own_s = time.perf_counter() - start, processor_s([os.getpid()]) - before
        theirs_s = processor_s([worker.pid for worker in compilers._idle]) if compilers is not None else 0.0
        there = compilers.compiled if compilers is not None else 0
    print(json.dumps({"waited": waited_s, "first": seconds, "own": own_s, "all": own_s + theirs_s, "there": there}))
    if compilers is not None:
        compilers.close()


def run(kind: str, problem: str, configs: int) -> dict[str, float]:
    """Start one run in a process with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "target.py"
        target.write_text(TARGET.format(bench=str(TESTS / "bench"), problem=problem, configs=configs))
        paths = [str(TESTS / "support"), str(TESTS / "bench"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ, "TRITON_CACHE_DIR": f"{folder}/triton", "AUTOTUNED_CACHE_DIR": f"{folder}/store",
            "TRITON_DEFAULT_FP_FUSION": "1", "PYTHONPATH": os.pathsep.join(paths),
        }  # fmt: skip
        command = [sys.executable, __file__, "--one", kind, str(target)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Alternate runs of both kinds, and print their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", nargs="?", default="matmul")
    parser.add_argument("--configs", type=int, default=40)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("KIND", "TARGET"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.one[0], Path(options.one[1]))
        return
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for _ in range(options.runs):
        for kind in KINDS:
            found[kind].append(run(kind, options.problem, options.configs))
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    print(f"{options.problem}, {options.configs} configs, {cores} cores, load {load:.1f}")
    print(f"{'':8}  waited, s  first, s  processor, s  of it here, s  compiled there")
    for kind, runs in found.items():
        of = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        print(
            f"{kind:8}  {of['waited']:9.2f}  {of['first']:8.2f}  {of['all']:12.2f}  {of['own']:13.2f}  {of['there']:14.0f}"
        )


if __name__ == "__main__":
    main()
