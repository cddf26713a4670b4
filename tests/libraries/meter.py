"""What a process sees of its own tuning: where a call spends its time, compiles, launches, choices, bits, memory."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

EVERY_S = 0.004
BATCH = 10  # timed calls between two waits for the GPU, so that its queue never fills
# What a thread waits for or does, from the innermost frame: parts of a file's path, and what that is.
_DOES = (
    ("triton/compiler/compiler.py", "compile"),
    ("triton/testing.py", "measure"),
    ("triton/runtime/build.py", "compile"),
    ("/autotuned/search/compiling/", "compile"),
    ("/autotuned/dropin/ahead", "compile"),
    ("/autotuned/dropin/order", "compile"),
    ("/autotuned/offline/workers/compile", "compile"),
    ("<frozen importlib", "imports"),
    ("/autotuned/search/", "measure"),
)
_SEARCHES = ("/autotuned/search/", "/autotuned/dropin/ahead", "/autotuned/dropin/raced")
SPENT = ("tuned compile", "tuned measure", "tuned other", "other compile", "imports", "rest")


def spent_on(frame: FrameType | None) -> str:
    """What a thread in this frame is at: one of SPENT.

    A frame of a search makes it "tuned": compiling configs, measuring them, or the rest of a search. What is compiled
    outside of one is of kernels that no tuner measures, or is the winner's.
    """
    does = ""
    while frame is not None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        does = does or next((what for part, what in _DOES if part in path), "")
        if does == "imports":
            return does
        if is_search(path, name):
            return f"tuned {does or 'other'}"
        frame = frame.f_back
    return "other compile" if does == "compile" else "rest"


def is_search(path: str, name: str) -> bool:
    """Whether this function compiles and measures configs: Triton's tuner, this package's search, or a baseline."""
    if path.endswith("triton/runtime/autotuner.py"):
        return name in ("_bench", "benchmark")
    return any(part in path for part in _SEARCHES) or name == "compile_by_threads"


class Sampler:
    """Looks a few hundred times a second at the main thread and autograd's, not at pools that compile for them."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(SPENT, 0.0)
        self._stop = threading.Event()

    def __enter__(self) -> Sampler:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        before = time.perf_counter()
        while not self._stop.wait(EVERY_S):
            now, frames = time.perf_counter(), sys._current_frames()
            found = {spent_on(frame) for thread, frame in frames.items() if thread not in _pools()}
            self.seconds[min(found or {"rest"}, key=SPENT.index)] += now - before
            before = now


def _pools() -> set[int | None]:
    """Threads that Python code has started: the main one is not, and those of torch's C++ are not."""
    own = (t for t in threading.enumerate() if not isinstance(t, (threading._MainThread, threading._DummyThread)))  # type: ignore[attr-defined]
    return {thread.ident for thread in own}


class Compiles:
    """What Triton's compile listener is told in this process; a compile in another one it is not told of."""

    def __init__(self) -> None:
        self.count = self.hits = 0
        self.seconds = 0.0
        self._lock = threading.Lock()

    def listen(self) -> None:
        """From now on."""
        from triton import knobs

        knobs.compilation.listener = self._heard

    def _heard(self, *, times: Any, cache_hit: bool, **told: Any) -> None:
        with self._lock:  # compiled by several threads
            if cache_hit:
                self.hits += 1
            else:
                self.count, self.seconds = self.count + 1, self.seconds + times.total / 1e6


_COMPILERS = {"ptxas", "ptxas-blackwell", "cc", "gcc", "clang", "c++", "g++", "clang++"}


def break_compilers() -> None:
    """From now on `triton.compile` raises, and so does starting ptxas or a C compiler."""
    from triton import compiler

    compile_: Any = compiler.compile
    getattr(compile_, "_original", compile_).__code__ = _refuse.__code__  # whoever holds the function

    def refuse(event: str, about: tuple[Any, ...]) -> None:
        name = os.path.basename(os.fsdecode(about[0])) if event == "subprocess.Popen" else ""
        if name in _COMPILERS:
            raise OSError(f"expected that no compiler is started, got {name}")

    sys.addaudithook(refuse)


def _refuse(*args: Any, **options: Any) -> Any:
    raise AssertionError("expected that nothing is compiled")


def launches(call: Callable[[], Any]) -> int:
    """How many kernels of Triton one call launches."""
    from triton import knobs

    seen: list[None] = []

    def hook(metadata: Any) -> None:
        seen.append(None)

    knobs.runtime.launch_enter_hook.add(hook)
    try:
        call()
    finally:
        knobs.runtime.launch_enter_hook.remove(hook)
    return len(seen)


def host_us(call: Callable[[], Any], wait: Callable[[], None], seconds: float) -> float:
    """What a call costs the host, without waiting for the GPU: the least of the medians of batches of calls.

    A shared host has slow seconds, which the median of them all would show.
    """
    medians: list[float] = []
    end = time.perf_counter() + seconds
    while len(medians) < 3 or time.perf_counter() < end:
        wait()
        times = []
        for _ in range(BATCH):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        medians.append(statistics.median(times))
    wait()
    return min(medians) * 1e6


def whole_us(call: Callable[[], Any], wait: Callable[[], None], seconds: float) -> float:
    """What a call takes in the mean when many follow each other, the GPU's work included."""
    wait()
    start, count = time.perf_counter(), 0
    while count < BATCH or time.perf_counter() < start + seconds:
        call()
        count += 1
    wait()
    return (time.perf_counter() - start) / count * 1e6


def choices() -> dict[str, str]:
    """The config of every key of every tuner in this process."""
    from triton.runtime.autotuner import Autotuner

    found: dict[str, str] = {}
    for tuner in [one for one in gc.get_objects() if issubclass(type(one), Autotuner)]:
        if type(tuner).__name__ == "Beside" or not isinstance(getattr(tuner, "cache", None), dict):
            continue  # one that launches for another has the other's choices
        name = f"{tuner.base_fn.__module__}.{tuner.base_fn.__name__}"
        for key, config in list(dict.items(tuner.cache)):
            found[_unused(f"{name} {key}", found)] = str(config)
    return dict(sorted(found.items()))


def searches() -> list[dict[str, Any]]:
    """How each search of this store went: seconds, configs, what it says of noise and of the host's time a launch."""
    found = []
    for path in sorted(Path(os.environ.get("AUTOTUNED_CACHE_DIR", "")).glob("v*/*/*.json")):
        record = json.loads(path.read_text())
        how = record.get("provenance", {})
        told = {name: how[name] for name in ("seconds", "noise", "regime") if name in how}
        found.append(
            {"kernel": path.parent.name, "configs": len(record["timings"]), "quality": record["quality"], **told}
        )
    return found


def _unused(name: str, taken: dict[str, str]) -> str:
    return name if name not in taken else _unused(f"{name}'", taken)


def digest(results: list[Any], wait: Callable[[], None]) -> str:
    """A hash of the bits of tensors."""
    import torch

    wait()
    found = hashlib.sha256()
    for value in results:
        found.update(value.detach().contiguous().flatten().view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def memory_mb() -> dict[str, float]:
    """The most that this process had in memory, and the most of any one that it has started and waited for."""
    most = {"self": resource.RUSAGE_SELF, "child": resource.RUSAGE_CHILDREN}
    return {whose: resource.getrusage(which).ru_maxrss / 1024 for whose, which in most.items()}


@contextmanager
def threads_ahead() -> Iterator[None]:
    """The strong baseline: what a tuner's pruner leaves is compiled by one thread a core before it measures."""
    from concurrent.futures import ThreadPoolExecutor

    from triton.runtime.autotuner import Autotuner

    prune: Any = Autotuner.prune_configs

    def compile_by_threads(tuner: Any, kwargs: dict[str, Any]) -> Any:
        left = list(prune(tuner, kwargs))

        def one(config: Any) -> None:
            tuner.fn.run(*tuner.nargs.values(), **{**kwargs, **config.all_kwargs(), "warmup": True})

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_unless_it_fails(one), left))
        return left

    Autotuner.prune_configs = compile_by_threads  # type: ignore[method-assign]
    try:
        yield
    finally:
        Autotuner.prune_configs = prune  # type: ignore[method-assign]


def _unless_it_fails(function: Callable[[Any], None]) -> Callable[[Any], None]:
    def tried(value: Any) -> None:
        try:
            function(value)
        except Exception:
            return  # Triton's own attempt meets the same, and says it

    return tried
