"""A service and its companion on another GPU: the cost of tuning and swapping choices while serving.

    python tests/bench/serving.py [--into DIR] [--budget 500] [--report]     # needs two equal GPUs
    python tests/bench/serving.py --one-gpu [--into DIR] [--budget 120]      # swaps in the background, no companion
    python tests/bench/serving.py --pretended --calls 2000 --shapes 6        # a rehearsal with plain functions, no GPU

Rows: the 99th percentile of a call including its wait, in windows that alternate at random: idle, idle again (for
chance), the companion tunes, choices are swapped (one refresh per window, of all served calls); the time from a call to
its improved launch, if the fleet knows its config and if the companion must search; and how many swapped shapes are
slower than before. In control windows the companion is stopped by SIGSTOP. While windows are measured the service does
not record, so that its hits are those of the C launcher.

`--one-gpu` measures a service that calls `refresh(every_s=)`: windows of five seconds, in some of which it swaps choices
that the bench put into the store, one after the other, next to idle windows.

DIR keeps the results: run the same command again to continue. Each piece is a process.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import background as swapped
import never
from companion import Companion, kept
from serving_rows import FEW, KINDS, background_rows, rows

HERE = Path(__file__).resolve().parent
UNTUNED = {"matmul": -3, "softmax": 4, "rmsnorm": 4, "add": 8}  # kernels of `problems.py`, and the index of default=
SERVED, FOLLOWED = 8, 400  # keys that are served; keys that the companion must tune meanwhile
SETTLE_S = 0.02
LIMIT_S = 180.0  # before a call to search is given up
Options = argparse.Namespace


# -- the pieces, each in its own process -------------------------------------------------------------------------------


def ahead(folder: Path, options: Options) -> dict[str, Any]:
    """Compile the configs to swap into Triton's cache, as a companion on the same host would."""
    import served

    if options.pretended:
        return {}
    from concurrent.futures import ThreadPoolExecutor

    import triton

    one = served.steady(1)[0]
    with ThreadPoolExecutor() as threads, triton.AsyncCompileMode(threads):
        for config in one.tuned.configs:
            one.tuned.fn.warmup(*one.args, grid=(1,), **config.all_kwargs())
    return {"binaries": len(one.tuned.configs)}


def p99(folder: Path, options: Options) -> dict[str, Any]:
    """Microseconds of calls, by kind of window."""
    import served
    from newer import store_choice

    import autotuned

    recording = folder / "calls.jsonl"
    recording.unlink(missing_ok=True)
    with autotuned.record(recording):
        for call in served.calls(FOLLOWED, first=1):
            call.launcher()()
    serving = served.steady(SERVED)
    launchers = [call.launcher() for call in serving]
    for launch in launchers * 200:  # bound, and warm
        launch()
    served.wait()
    count = max(1, round(options.calls / options.window))
    order = [kind for _ in range(count) for kind in random.sample(KINDS, len(KINDS))]
    times: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    found: dict[str, Any] = {"swaps": 0, "tuned meanwhile": 0, "refresh_s": []}
    with Companion(folder, str(recording), options.pretended) as companion:
        end = time.monotonic() + 120
        while not kept("matmul") and time.monotonic() < end and not options.pretended:
            time.sleep(0.1)  # it has begun to measure
        for number, kind in enumerate(order):
            before, meanwhile = kept("matmul"), contextlib.nullcontext()
            (companion.go_on if kind == "tuning" else companion.stop)()
            if kind == "swaps":
                configs = serving[0].tuned.configs
                for call in serving:
                    store_choice(call.tuned, configs[(1 + number) % len(configs)], *call.args, grid=call.grid)
                meanwhile = refreshing(found)
            gc.collect()
            time.sleep(SETTLE_S)
            with meanwhile:
                times[kind].append(window(launchers, served.wait, options.window))
            found["tuned meanwhile"] += (kept("matmul") - before) * (kind == "tuning")
        found["companion was busy to the end"] = kept("matmul") < FOLLOWED and not companion.ended
    found["windows"] = {
        kind: {"calls": sum(map(len, some)), "p99_us": quantile(sum(some, [])), "p50_us": quantile(sum(some, []), 0.5),
               "max_us": max(map(max, some)), "each_p99_us": [quantile(one) for one in some]}
        for kind, some in times.items()
    }  # fmt: skip
    return found


@contextlib.contextmanager
def refreshing(found: dict[str, Any]) -> Iterator[None]:
    """Refresh once on another thread while calls are made."""
    import autotuned

    def run() -> None:
        result = autotuned.refresh()
        found["swaps"] += sum(swap.launches for swap in result.swaps)
        found["refresh_s"].append(result.seconds)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()


def window(launchers: Sequence[Callable[[], Any]], wait: Callable[[], None], count: int) -> list[float]:
    """Microseconds of each of `count` calls, including the wait."""
    clock, times = time.perf_counter_ns, []
    for number in range(count):
        launch = launchers[number % len(launchers)]
        start = clock()
        launch()
        wait()
        times.append((clock() - start) / 1e3)
    return times


def quantile(times: Sequence[float], share: float = 0.99) -> float:
    """A quantile of a non-empty list."""
    return sorted(times)[int(len(times) * share)]


def fleet(folder: Path) -> str:
    """URL of the fleet's shared store."""
    return f"file://{folder.parent / 'fleet'}"


def host(folder: Path, options: Options) -> dict[str, Any]:
    """Another host of the fleet, which searches and sends its choices."""
    import served

    import autotuned

    with autotuned.connect(fleet(folder), wait_s=10.0) as connection, autotuned.mode("search"):
        for call in served.calls(FEW, first=101):
            call.launcher()()
        connection.client.flush(60.0)
    return {"searched": kept("matmul")}


def known(folder: Path, options: Options) -> dict[str, Any]:
    """Seconds and refreshes from a call to its improved launch if another host has searched, by shape."""
    import served

    import autotuned

    found: dict[str, Any] = {"seconds": [], "refreshes": []}
    with autotuned.connect(fleet(folder), wait_s=10.0):
        for call in served.calls(FEW, first=101):
            launch, start, refreshes = call.launcher(), time.monotonic(), 0
            launch()
            while is_default(call) and refreshes < 5:
                autotuned.refresh()
                refreshes += 1
                launch()
            served.wait()
            found["seconds"].append(time.monotonic() - start)
            found["refreshes"].append(refreshes + 5 * is_default(call))
    return found


def is_default(call: Any) -> bool:
    """Whether the latest call ran untuned."""
    return bool(call.tuned.best_config == call.tuned.tuner.options.default)


def searched(folder: Path, options: Options) -> dict[str, Any]:
    """Seconds from a recorded call to its improved launch if the companion must search, by shape."""
    import served

    import autotuned

    found: dict[str, Any] = {"seconds": []}
    recording = folder / "calls.jsonl"
    with (
        Companion(folder, str(recording), options.pretended),
        autotuned.record(recording),
        autotuned.refresh(every_s=1.0),
    ):
        for call in served.calls(FEW, first=201):
            launch, start = call.launcher(), time.monotonic()
            launch()
            while is_default(call) and time.monotonic() - start < LIMIT_S:
                time.sleep(0.05)
                launch()
            served.wait()
            found["seconds"].append(time.monotonic() - start)
    return found


def tuned(folder: Path, options: Options) -> dict[str, Any] | None:
    """Let the companion tune all shapes; None while some are left."""
    import served

    import autotuned

    recording, end = folder / "calls.jsonl", time.monotonic() + options.budget
    if not recording.exists():
        with autotuned.record(recording):
            for call in served.calls(options.shapes):
                call.launcher()()
    with Companion(folder, str(recording), options.pretended) as companion:
        while kept(*UNTUNED) < options.shapes and time.monotonic() < end and not companion.ended:
            time.sleep(0.2)
    return {"tuned": kept(*UNTUNED)} if kept(*UNTUNED) >= options.shapes else None


def losses(folder: Path, options: Options) -> dict[str, Any] | None:
    """Serve all shapes untuned, swap the companion's choices, and compare each before and after; None: some are left."""
    import served

    import autotuned
    from autotuned.store import layout

    end, log = time.monotonic() + options.budget, folder / "compared.jsonl"
    done = {row["case"]: row for row in lines_of(log)}
    shutil.rmtree(layout.schema_folder(), ignore_errors=True)
    calls = list(served.calls(options.shapes))
    for call in calls:
        call.launcher()()
    untuned = [call.tuned.tuner.options.default for call in calls]
    shutil.copytree(folder.parent / "tuned" / "cache", folder / "cache", dirs_exist_ok=True)
    swaps = autotuned.refresh().swapped
    for call, before in zip(calls, untuned):
        call.launcher()()
        after = call.tuned.best_config
        if call.words in done or time.monotonic() > end:
            continue
        compared = Compared(call, before, after)
        ratio, half_width = compared.compare("after", "before", end) if after != before else (0.0, 0.0)
        done[call.words] = {"case": call.words, "after": str(after), "ratio": ratio, "half_width": half_width}
        with log.open("a") as file:
            file.write(f"\n{json.dumps(done[call.words])}\n")
    return {"rows": list(done.values()), "swapped": len(swaps)} if len(done) >= len(calls) else None


class Compared(never.Launches):
    """A call before and after a swap, launched without this package's launcher, in alternating blocks."""

    def __init__(self, call: Any, before: Any, after: Any) -> None:
        self._call, self._zeroed, self._restored, self._flush = call, [], [], None
        self.configs = {"before": before, "after": after}
        if call.grid is not None:
            import torch

            self._torch = torch
            if torch.cuda.is_available():
                size = 2 * torch.cuda.get_device_properties().L2_cache_size
                self._flush = torch.empty(size, dtype=torch.int8, device="cuda")

    def _launch(self, config: Any) -> None:
        function = self._call.tuned.fn if self._call.grid is None else self._call.tuned.fn[self._call.grid]
        function(*self._call.args, **(config.kwargs if self._call.grid is None else config.all_kwargs()))


def background(folder: Path, options: Options) -> dict[str, Any] | None:
    """Microseconds of calls with and without a refresher; None while windows are left."""
    return swapped.measure(folder, options, lines_of(folder / "windows.jsonl"))


# -- one after the other ------------------------------------------------------------------------------------------------


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def run(piece: str, options: Options, left_s: float) -> Any:
    """Run a piece in its own process; None if it is not done yet, or failed."""
    folder = options.into / piece
    folder.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AUTOTUNED_")}
    path = [str(HERE), str(HERE.parent / "support"), str(options.into), *filter(None, [environment.get("PYTHONPATH")])]
    environment |= {
        "PYTHONPATH": os.pathsep.join(path), "AUTOTUNED_CACHE_DIR": str(folder / "cache"),
        "TRITON_CACHE_DIR": str(options.into / "triton"),
    }  # fmt: skip
    if options.pretended:
        environment |= {"SERVED": "pretended", "AUTOTUNED_DEVICE": "interpreter"}
    command = [sys.executable, str(HERE / "serving.py"), "--into", str(options.into), "--child", piece]
    command += ["--budget", f"{left_s:.1f}", "--calls", str(options.calls), "--window", str(options.window)]
    command += ["--shapes", str(options.shapes), *["--pretended"] * options.pretended]
    command += ["--seconds", str(options.seconds), "--rounds", str(options.rounds), "--every", str(options.every)]
    try:  # a piece observes the budget itself, between two cases
        subprocess.run(command, env=environment, cwd=folder, check=True, timeout=left_s + 60.0, stdout=sys.stderr)
    except subprocess.SubprocessError as error:
        print(f"failed: {piece}: {error}", file=sys.stderr, flush=True)
        return None
    return json.loads((folder / "result.json").read_text())


PIECES = {one.__name__: one for one in (ahead, p99, host, known, searched, tuned, losses)}
ONE_GPU = {one.__name__: one for one in (ahead, background)}
NEEDS_S = {
    "ahead": 20.0,
    "background": 15.0,
    "p99": 90.0,
    "host": 40.0,
    "known": 20.0,
    "searched": 90.0,
}  # less is not begun


def pieces_of(options: Options) -> dict[str, Callable[[Path, Options], Any]]:
    """The pieces of this run, in order."""
    return ONE_GPU if options.one_gpu else PIECES


def kernels_text() -> str:
    """A module with the kernels of `problems.py`, each with a `default=`: recorded calls name module and kernel."""
    import inspect

    import problems

    text = "import dataclasses\n\nimport problems\nimport triton\nimport triton.language as tl\n\nimport autotuned\n"
    for name, default in UNTUNED.items():
        problem = f"dataclasses.replace(problems.PROBLEMS[{name!r}], function={name})"
        options = f"default=problems.PROBLEMS[{name!r}].configs[{default}], name='served.{name}'"
        text += f"\n\n{inspect.getsource(problems.PROBLEMS[name].function)}\n\n"
        text += f"{name} = {problem}.tuned(autotuned.autotune, {options})\n"
    return text


def work(options: Options) -> dict[str, Any]:
    """Run pieces that are not done and fit into the budget; returns all results."""
    if not options.pretended:
        (options.into / "served_kernels.py").write_text(kernels_text())
    path, end = options.into / "results.jsonl", time.monotonic() + options.budget
    done = {line["piece"]: line["result"] for line in lines_of(path)}
    for piece in () if options.report else pieces_of(options):
        left_s = end - time.monotonic()
        needed_s = 0.0 if options.pretended else NEEDS_S.get(piece, 10.0)
        if piece in done or left_s < needed_s or (piece == "losses" and "tuned" not in done):
            continue
        start = time.monotonic()
        result = run(piece, options, left_s)
        print(f"{piece}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        if result is not None:
            done[piece] = result
            with path.open("a") as file:
                file.write(f"\n{json.dumps({'piece': piece, 'result': result})}\n")
    return done


def main() -> None:
    """Measure within the budget, then print the table and the path of its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path("serving-results"), help="folder for all that is kept")
    parser.add_argument("--budget", type=float, default=500.0, metavar="S", help="seconds of this run")
    parser.add_argument("--calls", type=int, default=100_000, help="of each kind of window")
    parser.add_argument("--window", type=int, default=5_000, help="calls of one window")
    parser.add_argument("--shapes", type=int, default=60)
    parser.add_argument("--one-gpu", action="store_true", help="only swaps in the background, without a companion")
    parser.add_argument("--seconds", type=float, default=5.0, help="of one window of --one-gpu")
    parser.add_argument("--rounds", type=int, default=5, help="windows of each kind of --one-gpu")
    parser.add_argument("--every", type=float, default=1.0, help="every_s of the refresher of --one-gpu")
    parser.add_argument("--pretended", action="store_true", help="plain functions, no GPU")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--child", choices=list(PIECES | ONE_GPU), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.into = options.into.resolve()
    if options.child:
        folder = options.into / options.child
        never.save(folder / "result.json", (PIECES | ONE_GPU)[options.child](folder, options))
        return
    options.into.mkdir(parents=True, exist_ok=True)
    done = work(options) if options.pretended or options.report or gpus() >= 2 - options.one_gpu else None
    if done is None:
        raise SystemExit("expected two GPUs, one for the companion (or --one-gpu); --pretended needs none")
    left = [piece for piece in pieces_of(options) if piece not in done]
    measured = background_rows(done.get("background")) if options.one_gpu else rows(done)
    found = [dict(zip(("what", "goal", "measured", "met"), row)) for row in measured]
    never.save(options.into / "serving.json", {"rows": found, "left": left, "pieces": done})
    print("| | goal | measured | met |\n|---|---|---|---|")
    for row in found:
        print(
            f"| {row['what']} | {row['goal']} | {row['measured']} | {({True: 'yes', False: 'no'}).get(row['met'], '')} |"
        )
    print(json.dumps({"rows": found, "left": left}))
    print(f"{options.into / 'serving.json'}; left: {', '.join(left) or 'nothing'}{'; run it again' * bool(left)}")


def gpus() -> int:
    """Number of GPUs that this process sees."""
    import torch

    return torch.cuda.device_count()


if __name__ == "__main__":
    main()
