"""Records each distinct call of every tuned function of a process in a file, with its count."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotuned import env
from autotuned._startup import after_fork, renewed
from autotuned.errors import EncodingError, OptionError, RecordingError, StoreError
from autotuned.key import naming, opaque, source
from autotuned.launch.bound import Bound
from autotuned.launch.table import PyLauncher
from autotuned.recording import arguments, grids
from autotuned.recording.file import RecordedCall, Writer, misnamed
from autotuned.recording.sending import Sender
from autotuned.resolve import active
from autotuned.resolve.chooser import Chooser
from autotuned.triton_compat import kernel
from autotuned.tunable.call import EMPTY, Call

if TYPE_CHECKING:
    from autotuned.resolve.tuner import Tuner

log = logging.getLogger("autotuned")

_refused: set[Path | str] = set()  # files and stores of AUTOTUNED_RECORD that cannot be written, to warn once
FLUSH_S, FLUSH_SHARE = 1.0, 0.05  # interval of writing counts: this long, plus this share of the run time
Grids = dict[Any, "Counter"]  # sizes, or None for a callable -> the counter


class Counter:
    """How often a call was made (`total`), and how many of these the file has (`told`)."""

    __slots__ = ("identity", "told", "total")

    def __init__(self, identity: str) -> None:
        self.identity, self.total, self.told = identity, 1, 1


class Recorder:
    """Records calls to a file; several processes may write to the same one.

    Args:
        path: Appended to if it exists.
        sender: Sends the file to a shared store.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path, sender: Sender | None = None) -> None:
        self.path, self._sender = path, sender
        self._writer = Writer(path)
        self._lock = renewed(threading.Lock())
        self._counters: dict[str, Counter] = {}
        self._tables: weakref.WeakKeyDictionary[Tuner, _Table] = weakref.WeakKeyDictionary()
        self._start = time.monotonic()
        self._stopped = threading.Event()
        self._failed: set[str] = set()
        self.begin_process()

    # -- processes -----------------------------------------------------------------------------------------------

    def begin_process(self) -> None:
        """Start the thread that writes counts, and a final flush; needed in each process."""
        for counter in self._counters.values():  # in a forked child: the parent writes earlier counts
            counter.told = counter.total
        threading.Thread(target=self._flush_now_and_then, name="autotuned-record", daemon=True).start()
        atexit.register(self._end)
        processes = sys.modules.get("multiprocessing.util")
        if processes is not None:  # its forked children run no `atexit` handlers
            processes.Finalize(None, self.flush, exitpriority=1)
            processes.register_after_fork(self, Recorder._finalize_in_child)

    def _finalize_in_child(self) -> None:
        sys.modules["multiprocessing.util"].Finalize(None, self.flush, exitpriority=1)

    def _flush_now_and_then(self) -> None:
        while not self._stopped.wait(FLUSH_S + FLUSH_SHARE * (time.monotonic() - self._start)):
            self.flush()
            self._send(now=False)

    def _send(self, now: bool) -> None:
        if self._sender is not None:
            try:
                self._sender.send(now)
            except StoreError as error:
                self._say("it is not sent", error)

    def _end(self) -> None:
        self.flush()
        self._send(now=True)

    def flush(self) -> None:
        """Write the counts that are not in the file yet."""
        with self._lock:
            more = {c.identity: c.total - c.told for c in self._counters.values() if c.total > c.told}
            for counter in self._counters.values():
                counter.told = counter.total
            try:
                self._writer.more(more)
            except Exception as error:  # recording must not fail the user's program
                self._say("counts", error)

    def close(self) -> None:
        """Write the remaining counts and close the file."""
        self._stopped.set()
        atexit.unregister(self._end)
        self._end()
        with self._lock:
            self._counters.clear()
            self._writer.close()

    def _say(self, what: str, error: Exception) -> None:
        if what not in self._failed:
            self._failed.add(what)
            log.warning("recording to %s: %s (%s: %s); going on.", self.path, what, type(error).__name__, error)

    # -- calls ---------------------------------------------------------------------------------------------------

    def watched(self, tuner: Tuner, bound: Bound) -> Bound:
        """The same launch, counted; it goes through Python while recording.

        A bound launch serves one entry of the launch table, so its calls differ only in their grids; with a bucket
        tuned on several calls, also in sizes.
        """
        inner, alike = bound.run, tuner.chooser.options.members < 2
        seen: Grids = {}

        def run(values: tuple[Any, ...], grid: Any) -> Any:
            try:
                key = _grid_key(grid)
                counter = seen.get(key) if alike else None
            except TypeError:  # an invalid grid, which the launch refuses
                return inner(values, grid)
            if counter is not None:
                with self._lock:
                    counter.total += 1
            elif (counter := self.note(tuner, tuner.rebound(values, grid))) is not None:
                seen[key] = counter
            return inner(values, grid)

        return Bound(bound.config, run)

    def note(self, tuner: Tuner, call: Call) -> Counter | None:
        """Count a call; the first of its kind is described and written."""
        what = f"a call of `{tuner.chooser.tunable.name}` is left out"
        try:
            return self._note(tuner, call)
        except EncodingError as error:
            self._say(what, error)
            return Counter("")  # counts, and is never written
        except Exception as error:
            self._say(what, error)
            return None

    def _note(self, tuner: Tuner, call: Call) -> Counter:
        table, values = self._table(tuner), tuple(call.arguments.values())
        plain = not call.options and tuple(call.arguments) == tuner.names
        seen: Any = table.find(values) if plain else None
        counter: Counter | None = None if seen is None else seen.get(_grid_key(call.grid))
        if counter is None:
            counter = self._counter(describe(tuner.chooser, call))
            if plain:
                seen = {} if seen is None else seen
                seen[_grid_key(call.grid)] = counter
                table.bind(values, seen)
            return counter
        with self._lock:
            counter.total += 1
        return counter

    def _counter(self, recorded: RecordedCall) -> Counter:
        """The counter of a call, which is written if new, else counted."""
        identity = recorded.identity
        with self._lock:
            counter = self._counters.get(identity)
            if counter is None:
                self._writer.call(recorded)
                counter = self._counters[identity] = Counter(identity)
            else:
                counter.total += 1
        return counter

    def _table(self, tuner: Tuner) -> _Table:
        """Maps arguments, as the launch table does, to the counters of their grids."""
        table = self._tables.get(tuner)
        if table is None or table.of_names != tuner.names:
            spec, members = tuner.chooser.options.spec, tuner.chooser.options.members
            spec = spec.exactly(spec.buckets) if members > 1 else spec
            table = self._tables[tuner] = _Table(tuner.names, spec, lambda: lambda: -1)
        return table


class _Table(PyLauncher):
    """A launch table that binds counters."""

    @property
    def of_names(self) -> tuple[str, ...]:
        """Names of the parameters it looks at."""
        return self._names


def _grid_key(grid: Any) -> Any:
    if type(grid) is tuple:
        return grid
    return None if grid is None or callable(grid) else tuple(grid)


def describe(chooser: Chooser, call: Call) -> RecordedCall:
    """A call as written to the file."""
    tunable, options = chooser.tunable, chooser.options
    name, function = tunable.name, source.python_function(tunable.fn)
    if kernel.capturing():
        raise RecordingError(
            "integers cannot be read while a CUDA graph is captured; call the kernel once before the capture", path=""
        )
    described = arguments.describe({**{str(n): value for n, value in enumerate(call.args)}, **call.kwargs})
    configs = options.configs() if options.computed is None else list(options.computed(**call.arguments))
    settings = [grids.settings(tunable, config) for config in configs]
    defaults = {p.name: p.default for p in tunable.parameters if p.default is not EMPTY}
    grid = grids.describe(call.grid, {**defaults, **call.arguments, **call.options}, settings, opaque.spell)
    return RecordedCall(name, _place_of(function), chooser.key(call), described, grid)


def _place_of(function: Any) -> str:
    """A function's target for `autotuned tune`: the module to import it from, else its file."""
    file = naming.file_of(function)
    is_path = not naming.is_importable(function) and os.path.isfile(file)
    return f"{os.path.abspath(file) if is_path else function.__module__}:{function.__qualname__}"


# -- on and off -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def record(path: str | os.PathLike[str]) -> Iterator[None]:
    """Record each distinct call of every tuned function of this process within a `with` block.

    Writes dtypes, shapes, strides and scalars; of integer tensors also the values, if up to 64 KiB, else their range.
    Never writes the contents of floating-point tensors.

    Args:
        path: A file whose name ends in `.jsonl`; appended to if it exists, also by several processes.

    Raises:
        RecordingError: The file has another name, or cannot be written.
    """
    recorder = _started(Path(path))
    try:
        yield
    finally:
        active.recorders.remove(recorder)
        active.tell_change()
        recorder.close()


def _started(path: Path, sender: Sender | None = None) -> Recorder:
    if problem := misnamed(path):
        raise RecordingError(f"{problem}.", path=str(path))
    try:
        recorder = Recorder(path.expanduser().absolute(), sender)
    except OSError as error:
        raise RecordingError(
            f"{path}: expected a file to record calls into, and it cannot be written: {error.strerror or error}.",
            path=str(path),
        ) from error
    active.recorders.append(recorder)
    active.tell_change()
    return recorder


def begin_if_asked() -> None:
    """Start recording if `AUTOTUNED_RECORD` names a file or a store; may be called twice."""
    store = env.record_store()
    path: Path | str | None = store or env.record_path()
    if path is None or path in _refused:
        return
    try:
        sender = Sender(store) if store else None
        path = sender.path if sender is not None else Path(path)
        if not any(recorder.path == path for recorder in active.recorders):
            _started(path, sender)
    except (RecordingError, OptionError, StoreError, ValueError) as error:
        _refused.add(store or path)
        log.warning("AUTOTUNED_RECORD: nothing is recorded: %s", error)


def _after_fork_in_child() -> None:
    for recorder in active.recorders:
        recorder.begin_process()


after_fork(_after_fork_in_child)
