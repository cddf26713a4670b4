"""`prepare`: loads or compiles all kernels that a program is known to need, before its first request."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from autotuned import events
from autotuned.binaries.serve import Server, is_loaded
from autotuned.configfiles import lookup
from autotuned.configfiles.file import Entry
from autotuned.gpu import device as gpu
from autotuned.key.key import Key
from autotuned.launch import launcher
from autotuned.offline import replay, warmup
from autotuned.offline.device import tensors_on, use_device
from autotuned.offline.targets import texts
from autotuned.offline.warmup import PreparedCall
from autotuned.resolve import explain, tuner
from autotuned.search.compiling import parallelism
from autotuned.typed_json import Json

T = TypeVar("T")
Progress = Callable[[int, int], Any]
_MOST_THREADS = 8  # each creates the tensors of one call


@dataclass
class PrepareResult:
    """The result of `prepare`, call by call, with the number of binaries loaded and kernels compiled meanwhile."""

    calls: list[PreparedCall] = field(default_factory=list)
    loaded: int = 0
    compiled: int = 0
    seconds: float = 0.0

    @property
    def missing(self) -> list[PreparedCall]:
        """The calls that are not ready; each `.reason` says why."""
        return [call for call in self.calls if call.config is None]

    def to_json(self) -> dict[str, Json]:
        """All fields."""
        rest = {"loaded": self.loaded, "compiled": self.compiled, "seconds": round(self.seconds, 3)}
        return {"calls": [asdict(call) for call in self.calls], **rest}


def prepare(
    calls: str | os.PathLike[str] | None = None, *, files: Sequence[str] | None = None, progress: Progress | None = None
) -> PrepareResult:
    """Prepare the calls of a recording: choose the config, load or compile the kernel, bind the launch.

    Nothing is searched or launched. Calls are prepared in parallel. Under `autotuned.seal` nothing is compiled either.

    Args:
        calls: A recording by `autotuned record`. None loads all binaries of the registered config files for the
            imported kernels; each call then makes its choice and finds its binary already loaded.
        files: Files that the recording names and that may be run; kernels of modules are imported by name.
        progress: Called on this thread with the number done and the total.

    Returns:
        The prepared calls, and the reasons for the others.

    Raises:
        RecordingError: The recording cannot be read.
        OptionError, NoDeviceError: The device requested by `AUTOTUNED_DEVICE` is not available.
    """
    start, before = time.perf_counter(), _counts()
    tell = progress or (lambda done, of: None)
    found = _of_files(tell) if calls is None else _of_recording(Path(calls), texts(files or (), 0), tell)
    loaded, compiled = (now - then for now, then in zip(_counts(), before))
    return PrepareResult(found, loaded, compiled, time.perf_counter() - start)


def _counts() -> tuple[int, int]:
    by_kind = [(kind, count.events) for (_, kind), count in events.counters().items()]
    loads, compilations = (sum(number for kind, number in by_kind if kind == asked) for asked in ("load", "compile"))
    return loads, compilations


def _of_recording(path: Path, files: Sequence[str], tell: Progress) -> list[PreparedCall]:
    device = tensors_on(use_device())
    with explain.reading_once():  # for the nearest key of each untuned call
        found = replay.load(path, files)
        tasks = [partial(warmup.prepared, one, call, device) for one in found for call in one.calls]
        return _side_by_side(tasks, tell)


def _side_by_side(tasks: Sequence[Callable[[], T]], tell: Progress) -> list[T]:
    """Run tasks on several threads and report progress; results in order."""
    threads = min(_MOST_THREADS, max(parallelism.cores(), 1), max(len(tasks), 1))
    with ThreadPoolExecutor(threads, "autotuned-prepare", _on_this_device()) as pool:
        futures = [pool.submit(task) for task in tasks]
        try:
            for done, _ in enumerate(as_completed(futures), 1):
                tell(done, len(tasks))
        except BaseException:  # Ctrl-C, or the user's callback
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


def _on_this_device() -> Callable[[], None]:
    """An initializer for threads, which would otherwise use the first GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return lambda: None
    current = torch.cuda.current_device()
    return lambda: torch.cuda.set_device(current)


# -- all registered files ----------------------------------------------------------------------------------------------


def _of_files(tell: Progress) -> list[PreparedCall]:
    where = gpu.cuda()
    servers = {server.name: server for server in _servers()}
    tasks = [load for server in servers.values() for load in server.loads(where)]
    _side_by_side(tasks, tell)
    ours = where.to_json()
    entries = ((key, entry) for _, key, entry in lookup.shipped(own=False) if key.context["device"] == ours)
    return [_of_entry(key, entry, servers) for key, entry in entries]


def _servers() -> Iterator[Server]:
    if launcher.binds_directly():
        yield from (one.chooser.shipped.server for one in tuner.live() if one.chooser.shipped.possible)


def _of_entry(key: Key, entry: Entry, servers: dict[str, Server]) -> PreparedCall:
    made = PreparedCall(key.kernel, key.context.get("triton"), key.call, 0)
    if any(map(is_loaded, entry.binaries)):
        made.config = entry.config
    elif not launcher.binds_directly():
        made.reason = (
            "AUTOTUNED_LAUNCHER=triton or an untested Triton: Triton launches, and nothing is loaded beforehand"
        )
    elif key.kernel not in servers:
        made.reason = "its kernel has not been imported in this process"
    elif not entry.binaries:
        made.reason = "no binary ships with it: it compiles at its first call, or in prepare(calls=...)"
    else:
        made.reason = servers[key.kernel].why_not_loaded(entry.binaries)
    return made
