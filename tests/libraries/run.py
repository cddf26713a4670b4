"""Real libraries with stock, seeded and replaced tuners, on a GPU: same bits, no benchmarks, and the time saved.

    pip install --no-deps --target libs fla-core flash-linear-attention liger-kernel conch-triton-kernels einops gemlite
    PYTHONPATH=libs python tests/libraries/run.py FOLDER [OP...] [--seconds 540]

First every operation in a process of its own, seeded, several at a time: this compiles all configs and fills the store.
Then every library in one process after another, with all compiled: stock, which measures, seeded and replaced, which
must not.
Each result is kept in FOLDER, and so are the store and the compiled kernels: what `--seconds` are too short for is left
open, exit code 3, and the same command goes on with it. At the end a table; docs/drop-in.md has what came out.
Nothing of the libraries is kept here.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

OPS = Path(__file__).with_name("ops.py")
DISTRIBUTIONS = ("torch", "triton", "fla-core", "liger-kernel", "conch-triton-kernels", "gemlite", "mamba-ssm",
                 "flag-gems")  # fmt: skip
MODES = ("stock", "seeded", "replaced")
COLUMNS = ("operation", "configs measured: stock, seeded, replaced", "first call s: stock, seeded, replaced", "saved s",
           "host us: stock, seeded, replaced", "launches", "saved us a launch", "bits")  # fmt: skip


class Piece(NamedTuple):
    """One process: a mode ("cold" is seeded, with nothing stored) and operations of one library."""

    mode: str
    names: tuple[str, ...]

    @property
    def file(self) -> str:
        """Where its results are kept."""
        return f"{self.mode}-{'+'.join(self.names)}.json"


class Runner:
    """Runs pieces in processes, keeps what came of each, and never runs one twice."""

    def __init__(self, folder: Path, ops: Path, limit: int, timeout_s: float, deadline: float) -> None:
        self.folder, self._ops, self._limit, self._timeout_s, self._deadline = folder, ops, limit, timeout_s, deadline
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, piece: Piece) -> dict[str, Any] | None:
        """The results of a piece, of now or of an earlier call; None if there was no time."""
        kept = self.folder / piece.file
        if kept.exists():
            return dict(json.loads(kept.read_text()))
        left_s = self._deadline - time.monotonic()
        if left_s < 1:
            return None
        found = self._process(piece, kept.with_suffix(".part"), min(self._timeout_s, left_s))
        if found is not None:
            kept.write_text(json.dumps(found, indent=1))
            print(f"{piece.mode} {' '.join(piece.names)}: {found['seconds']:.1f} s {errors_of(found)}", flush=True)
        return found

    def _process(self, piece: Piece, part: Path, timeout_s: float) -> dict[str, Any] | None:
        mode = "seeded" if piece.mode == "cold" else piece.mode
        folders = {"AUTOTUNED_CACHE_DIR": str(self.folder / "store"), "TRITON_CACHE_DIR": str(self.folder / "triton")}
        start = time.perf_counter()
        try:
            done = subprocess.run(
                [sys.executable, str(self._ops), mode, str(part), str(self._limit), *piece.names],
                env={**os.environ, **folders}, capture_output=True, text=True, timeout=timeout_s,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            if timeout_s < self._timeout_s:
                return None  # this call's time is up: the next one tries again
            return failed(piece, f"not done after {timeout_s:.0f} s", time.perf_counter() - start)
        sys.stderr.write(done.stderr[-1500:])
        seconds = time.perf_counter() - start
        if done.returncode or not part.exists():
            return failed(piece, (done.stderr or done.stdout)[-300:] or f"exit code {done.returncode}", seconds)
        found = {**json.loads(part.read_text()), "seconds": seconds}
        part.unlink()
        return found


def failed(piece: Piece, error: str, seconds: float) -> dict[str, Any]:
    """The results of a process that gave none."""
    return {"mode": piece.mode, "ops": {name: {"error": error} for name in piece.names}, "choices": {},
            "seconds": seconds}  # fmt: skip


def errors_of(found: dict[str, Any]) -> dict[str, str]:
    """Operation -> what went wrong."""
    return {name: one["error"] for name, one in found["ops"].items() if "error" in one}


def library_of(name: str) -> str:
    """`fla_rms_norm` is of `fla`, `flag_gems_mm` of `flag`: what comes before the first underscore."""
    return name.partition("_")[0]


def by_library(mode: str, names: Iterable[str]) -> list[Piece]:
    """One piece for each library, in order."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(library_of(name), []).append(name)
    return [Piece(mode, tuple(group)) for group in groups.values()]


def run_all(runner: Runner, names: list[str], workers: int) -> dict[str, dict[str, Any]] | None:
    """Results by mode and operation; None where the time did not suffice."""
    with ThreadPoolExecutor(workers) as pool:
        cold = list(pool.map(runner.run, [Piece("cold", (name,)) for name in names]))
    if None in cold:
        return None
    found = {"cold": merged(cold)}
    good = [name for name in names if "error" not in found["cold"][name]]
    for mode in MODES:  # one at a time: host time is measured
        results = [runner.run(piece) for piece in by_library(mode, good)]
        if None in results:
            return None
        found[mode] = merged(results)
    return found


def merged(results: list[Any]) -> dict[str, Any]:
    """The operations of several pieces."""
    return {name: one for result in results for name, one in result["ops"].items()}


def rows(found: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """The table: one row an operation."""
    return [row(name, [found[mode].get(name, found["cold"][name]) for mode in MODES]) for name in found["cold"]]


def row(name: str, results: list[dict[str, Any]]) -> tuple[str, ...]:
    """What one operation gave stock, seeded and replaced."""
    errors = {one["error"] for one in results if "error" in one}
    if errors:
        return (name, "; ".join(sorted(error.strip().splitlines()[-1][:120] for error in errors)), *[""] * 6)
    stock, seeded, replaced = results
    launches = stock.get("launches", 0)
    saved_us = (stock["host_us"] - replaced["host_us"]) / launches if launches else 0.0
    bits = "equal" if len({one["digest"] for one in results}) == 1 else "differ: " + differing(results)
    return (
        name,
        ", ".join(str(one["benches"]) for one in results),
        ", ".join(f"{one['first_s']:.2f}" for one in results),
        f"{stock['first_s'] - seeded['first_s']:.2f}",
        ", ".join(f"{one['host_us']:.0f}" for one in results),
        str(launches),
        f"{saved_us:.1f}",
        bits,
    )


def differing(results: list[dict[str, Any]]) -> str:
    """Which differ from which; from run to run where an operation differs within one process."""
    if not all(one.get("repeats", True) for one in results):
        return "from run to run"
    return ", ".join(mode for mode, one in zip(MODES, results) if one["digest"] != results[0]["digest"])


def version(name: str) -> str:
    """Of a distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def main() -> int:
    """Run what is open, and print the table once all is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="results, store and compiled kernels")
    parser.add_argument("names", nargs="*", metavar="OP", help="operations; all without any")
    parser.add_argument("--ops", type=Path, default=OPS, help="the file that has the operations")
    parser.add_argument("--seconds", type=float, default=540.0, help="start nothing after these")
    parser.add_argument("--workers", type=int, default=8, help="operations that are compiled at once")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one process")
    parser.add_argument("--limit", type=int, default=0, help="of each kernel the first configs only; 0 for all")
    options = parser.parse_args()
    names = options.names or listed(options.ops)
    deadline = time.monotonic() + options.seconds
    runner = Runner(options.folder.absolute(), options.ops, options.limit, options.timeout, deadline)
    found = run_all(runner, names, options.workers)
    if found is None:
        print("not all is done; run the same command again to go on")
        return 3
    (options.folder / "versions.json").write_text(json.dumps({name: version(name) for name in DISTRIBUTIONS}))
    for cells in (COLUMNS, ["---"] * len(COLUMNS), *rows(found)):
        print(f"| {' | '.join(cells)} |")
    return 0


def listed(ops: Path) -> list[str]:
    """The operations that a file has."""
    done = subprocess.run([sys.executable, str(ops), "list"], capture_output=True, text=True, check=True)
    return done.stdout.split()


if __name__ == "__main__":
    sys.exit(main())
