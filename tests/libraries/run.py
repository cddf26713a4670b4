"""Operations of real libraries under Triton's own tuner and under `autotuned run`, each in a process of its own.

    pip install --no-deps --target libs fla-core flash-linear-attention liger-kernel ...
    PYTHONPATH=libs python tests/libraries/run.py --out results [--budget 500]

Required: fla (fla-core), mamba (mamba-ssm, its Triton files alone) and liger (liger-kernel). Optional, left out with a
line where it is not installed: torchao, cut-cross-entropy, conch-triton-kernels, gemlite, flag-gems, unsloth.

A task is one operation, way (stock, ahead, race, replace, binaries, ...), phase (cold: all caches empty; second:
choices stored, Triton's cache empty; warm: both there; container: all empty again, what was kept and the libraries
elsewhere) and repeat. Each gives one line of `results.jsonl`, also where it failed, and none is run twice: the same
command goes on where the last one stopped. `--table` prints what docs/drop-in.md has.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # `python -P` leaves it out
from plan import DEFAULT, KEPT, PHASES, WAYS, Operation, Task, load, tasks  # noqa: E402
from report import report  # noqa: E402

SAID = 1500  # characters of what a process that failed has said
COUNTER = """#!/bin/sh
case "$*" in *--version*) ;; *) echo >> "$LIBRARIES_PTXAS" ;; esac
exec {ptxas} "$@"
"""


class Results:
    """The lines of `results.jsonl`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "results.jsonl"

    def all(self) -> list[dict[str, Any]]:
        """Every line that is whole; the last one of a process that was killed may not be."""
        found = []
        for line in self._file.read_text().splitlines() if self._file.exists() else []:
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    def done(self, again: bool) -> set[Task]:
        """The tasks that have a line; with `again` only those that did not fail."""
        lines = (line for line in self.all() if "operation" in line and not (again and "error" in line))
        return {Task(*(line[name] for name in Task._fields)) for line in lines}

    def add(self, line: Mapping[str, Any]) -> None:
        """One more line."""
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


class Runner:
    """Runs tasks in processes, and keeps the caches that a later phase needs."""

    def __init__(self, options: argparse.Namespace, operations: Iterable[Operation], results: Results) -> None:
        self._operations = {one.name: one for one in operations}
        self._options, self._results = options, results
        self._state = (options.state or options.out / "state").absolute()
        self._state.mkdir(parents=True, exist_ok=True)
        self._deadline = time.monotonic() + options.budget
        self._counted = counted_ptxas(self._state)

    @property
    def left_s(self) -> float:
        """Seconds of the budget."""
        return self._deadline - time.monotonic()

    def run(self, task: Task) -> bool:
        """Run one task, after the cold one whose caches it needs; False if there was no time."""
        memory = self._memory(task)
        if task.phase != "cold" and not (memory / "whole").exists():
            if not self._fill(task, memory):
                return False
            if not (memory / "whole").exists():
                self._results.add({**task._asdict(), "error": "the cold process before it failed"})
                return True
        return self._one(task, memory, keep=task.phase == "cold" and task.repeat == 0)

    def _memory(self, task: Task) -> Path:
        way = task.way if task.phase == "cold" else WAYS[task.way].memory or task.way
        return self._state / "".join(c if c.isalnum() else "-" for c in f"{task.operation} {way}")

    def _fill(self, task: Task, memory: Path) -> bool:
        """Run the cold process that leaves a later one its caches, unless it has failed before.

        One whose result is there but whose caches are not, as on another machine, is run again as a further repeat.
        """
        way = WAYS[task.way].memory or task.way
        before = [one for one in self._results.all() if cold_of(one, task.operation, way)]
        if any("error" in one for one in before):
            return True
        repeat = max((one["repeat"] for one in before), default=-1) + 1
        return self._one(Task(task.operation, way, "cold", repeat), memory, keep=True)

    def _one(self, task: Task, memory: Path, keep: bool) -> bool:
        left_s = min(self.left_s, self._options.timeout)
        if left_s < 1:
            return False
        caches = self._caches(task, memory, keep)
        line = self._process(task, caches, left_s)
        shutil.rmtree(self._state / "once", ignore_errors=True)
        if line is None:
            return False
        if keep and "error" not in line:
            (memory / "whole").touch()
        self._results.add({**task._asdict(), **line})
        print(f"{task}: {line.get('error') or round(line['first_s'], 2)}  ({line['wall_s']:.1f} s)", flush=True)
        return True

    def _caches(self, task: Task, memory: Path, keep: bool) -> dict[str, str]:
        once = self._state / "once"
        if keep:
            shutil.rmtree(memory, ignore_errors=True)
        cold = memory if keep else once
        empty, full = (cold, cold), (memory, memory)
        store, triton = {"cold": empty, "second": (memory, once), "warm": full, "container": (once, once)}[task.phase]
        folders = {"AUTOTUNED_CACHE_DIR": store / "store", "TRITON_CACHE_DIR": triton / "triton",
                   "TORCHINDUCTOR_CACHE_DIR": triton / "inductor", "FLAGGEMS_CACHE_DIR": triton / "flag-gems"}  # fmt: skip
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        kept, more = cold / "kept", {}
        if task.phase == "container":
            kept, more = once / "moved", {"PYTHONPATH": elsewhere(once / "libraries")}
            shutil.copytree(memory / "kept", kept)
        return {name: str(folder) for name, folder in folders.items()} | {"LIBRARIES_KEPT": str(kept), **more}

    def _process(self, task: Task, caches: Mapping[str, str], limit_s: float) -> dict[str, Any] | None:
        """A line for the results; None where the budget, not the time of one task, ended it."""
        counts = self._state / "ptxas-runs"
        counts.write_text("")
        environment = self._environment(task, caches, counts)
        command, start = self._command(task, caches), time.perf_counter()
        try:
            ended = in_ranks(WAYS[task.way].ranks, command, environment, self._state, limit_s)
        except subprocess.TimeoutExpired:
            if limit_s < self._options.timeout:
                return None
            return {"error": f"not done after {limit_s:.0f} s", "wall_s": limit_s}
        line = {"wall_s": time.perf_counter() - start, "ptxas": len(counts.read_text().splitlines())}
        return {**line, **together([result(*one) for one in ended])}

    def _environment(self, task: Task, caches: Mapping[str, str], counts: Path) -> dict[str, str]:
        own = {
            "LIBRARIES_OPERATIONS": str(self._options.operations.absolute()), "LIBRARIES_STARTED": str(time.time()),
            "LIBRARIES_SECONDS": str(self._options.seconds), "LIBRARIES_PTXAS": str(counts),
        }  # fmt: skip
        operation, way = self._operations[task.operation], WAYS[task.way].environment
        counted = {} if "PATH" in way else self._counted  # nothing that runs programs
        return {**os.environ, **own, **counted, **caches, **operation.environment, **way}

    def _command(self, task: Task, caches: Mapping[str, str]) -> list[str]:
        child = [sys.executable, "-P"] if sys.version_info >= (3, 11) else [sys.executable]
        child += [str(HERE / "child.py"), task.operation]
        way = WAYS[task.way]
        asked = [caches["LIBRARIES_KEPT"] if word == KEPT else word for word in way.command]
        return [autotuned(), *asked, "--", *child] if way.installs else child


def cold_of(line: Mapping[str, Any], operation: str, way: str) -> bool:
    """Whether a line is of a cold process of this operation and way."""
    return (line.get("operation"), line.get("way"), line.get("phase")) == (operation, way, "cold")


def started(command: list[str], environment: Mapping[str, str], folder: Path, limit_s: float) -> tuple[int, str, str]:
    """Exit code, output and errors of a command; past its time it is ended with all that it has started."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, cwd=folder, start_new_session=True, **pipes) as process:
        try:
            out, error = process.communicate(timeout=limit_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, out, error


Ended = tuple[int, str, str]


def in_ranks(
    ranks: int, command: list[str], environment: Mapping[str, str], folder: Path, limit_s: float
) -> list[Ended]:
    """One process, or as many as one host's part of a job has, started at once."""
    if ranks == 1:
        return [started(command, environment, folder, limit_s)]

    def one(rank: int) -> Ended:
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        return started(command, {**environment, **{name: str(value) for name, value in own.items()}}, folder, limit_s)

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, range(ranks)))


def result(code: int, out: str, error: str) -> dict[str, Any]:
    """What a process has printed, or how it failed."""
    found = last_json(out)
    if code or found is None:
        lines = error.strip().splitlines() or [f"exit code {code}"]
        return {"error": lines[-1][-300:], "exit": code, "said": error[-SAID:]}
    said = [one[:300] for one in error.splitlines() if "autotuned" in one][:20]
    return {**found, **({"said": said} if said else {})}


def together(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The line of all ranks: of the one that was last, with sums of what they compiled and of their memory."""
    failed = [one for one in found if "error" in one]
    if failed or len(found) == 1:
        return (failed or found)[0]
    last = max(found, key=lambda one: float(one["imports_s"] + one["inputs_s"] + one["first_s"]))
    memory = {whose: sum(one["memory_mb"][whose] for one in found) for whose in last["memory_mb"]}
    same = all(one["bits"] == last["bits"] for one in found)
    sums = {name: sum(one[name] for one in found) for name in ("compiles", "compile_s", "cache_hits")}
    each = {"ranks": len(found), "ranks_first_s": [one["first_s"] for one in found], "ranks_same": same}
    return {**last, **sums, **each, "memory_mb": memory}


def elsewhere(folder: Path) -> str:
    """PYTHONPATH with each of its folders under another path."""
    folder.mkdir(parents=True)
    found = []
    for number, path in enumerate(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))):
        (folder / str(number)).symlink_to(os.path.abspath(path))
        found.append(str(folder / str(number)))
    return os.pathsep.join(found)


def last_json(text: str) -> dict[str, Any] | None:
    """The last line that is a JSON object: libraries print too."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            with suppress(ValueError):
                return dict(json.loads(line))
    return None


def autotuned() -> str:
    """The command, of this Python's environment or on the path."""
    folders = [os.path.dirname(sys.executable), os.environ.get("PATH", "")]
    found = shutil.which("autotuned", path=os.pathsep.join(folders))
    if found is None:
        raise SystemExit("expected the command autotuned beside Python or on PATH, found none; pip install autotuned.")
    return found


def counted_ptxas(folder: Path) -> dict[str, str]:
    """Variables by which Triton runs `ptxas` through a script that counts."""
    spec = importlib.util.find_spec("triton")
    places = spec.submodule_search_locations if spec else None
    beside, found = Path(next(iter(places or ["."]))) / "backends" / "nvidia" / "bin", {}
    for name in ("ptxas", "ptxas-blackwell"):  # from Triton 3.9 on the second one compiles for sm_90 too
        variable = f"TRITON_{name.upper().replace('-', '_')}_PATH"
        ptxas = os.environ.get(variable) or str(beside / name)
        if Path(ptxas).exists():
            (script := folder / name).write_text(COUNTER.format(ptxas=ptxas))
            script.chmod(0o755)
            found[variable] = str(script)
    return found


def about(operations: Iterable[Operation]) -> dict[str, Any]:
    """What the numbers are of: versions, Python, cores."""
    names = dict.fromkeys(["torch", "triton", "autotuned", *(one.distribution for one in operations)])
    return {"versions": {name: version(name) for name in names}, "python": platform.python_version(),
            "cores": os.cpu_count(), "launcher": "c" if has_launcher() else "python"}  # fmt: skip


def has_launcher() -> bool:
    """Whether this package's C part was built."""
    with suppress(ImportError):
        return importlib.util.find_spec("autotuned._launch") is not None
    return False


def version(name: str) -> str | None:
    """Of a distribution; None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def present(operations: Iterable[Operation]) -> list[Operation]:
    """Those whose library is there; a line for each optional one that is not.

    Raises:
        SystemExit: A required one is not.
    """
    found, required = [], []
    for one in operations:
        if one.is_there:
            found.append(one)
        elif one.required:
            required.append(one.distribution)
        else:
            print(f"{one.name}: left out, {one.distribution} is not installed")
    if required:
        names = " ".join(dict.fromkeys(required))
        raise SystemExit(f"expected the required libraries, {names} not installed; pip install --no-deps {names}.")
    return found


def chosen(operations: Iterable[Operation], only: list[str]) -> list[Operation]:
    """The operations that are asked for: "main", a name, or how it begins."""
    found = [one for one in operations if not only or any(_is_asked(one, word) for word in only)]
    if not found:
        raise SystemExit(f"--only: expected main or names of operations, got {', '.join(only)}; see --list.")
    return found


def _is_asked(operation: Operation, word: str) -> bool:
    return (operation.main and word == "main") or operation.name.startswith(word)


def words(allowed: Iterable[str]) -> Any:
    """Reads words with commas between them."""
    known = tuple(allowed)

    def read(text: str) -> list[str]:
        found = [word.strip() for word in text.split(",") if word.strip()]
        for word in found:
            if word not in known:
                raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)}, got {word!r}")
        return found

    return read


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="where results.jsonl is kept, and gone on with")
    add("--state", type=Path, metavar="DIR", help="caches between phases; DIR/state without it")
    add("--only", nargs="+", default=[], metavar="NAME", help="these operations, by name or how it begins; or main")
    add("--ways", type=words(WAYS), default=list(DEFAULT), metavar="A,B", help=f"some of {', '.join(WAYS)}")
    add(
        "--phases", type=words(PHASES), metavar="A,B", help="some of cold, second, warm; what each way is worth without"
    )
    add("--repeats", type=int, default=3, help="processes for each task of a main operation; one for the others")
    add("--budget", type=float, default=1e9, metavar="S", help="start nothing after these seconds, and end what runs")
    add("--timeout", type=float, default=240.0, metavar="S", help="seconds for one process")
    add("--seconds", type=float, default=0.5, metavar="S", help="for how long launches are timed")
    add("--again", action="store_true", help="also run again what failed")
    add("--operations", type=Path, default=HERE / "operations.py", metavar="FILE", help="the file that has them")
    add("--list", action="store_true", help="print the tasks that are open, and run none")
    add("--table", action="store_true", help="print the tables from the results, and run nothing")
    return parser.parse_args()


def main() -> int:
    """Run what is open; exit code 0 when all is done, 3 where the budget ended it."""
    options = parsed()
    operations, results = load(options.operations), Results(options.out)
    if options.table:
        print(report(results.all(), [one.name for one in operations]))
        return 0
    here = present(chosen(operations, options.only))
    done = results.done(options.again)
    todo = [one for one in tasks(here, options.ways, options.phases, options.repeats) if one not in done]
    if options.list:
        print(*todo, sep="\n")
        return 0
    results.add(about(operations))
    runner = Runner(options, operations, results)
    for task in todo:
        if (options.again or task not in results.done(False)) and not runner.run(task):
            print(f"not all is done, the next is {task}; run the same command again to go on")
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
