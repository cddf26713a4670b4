"""Progress of `tune` on stderr: moving lines on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotuned.key.words import call_words
from autotuned.offline.results import CaseResult, Observer

from . import terminal

if TYPE_CHECKING:
    from rich.console import Console, Group

    from autotuned.search.job import Progress

REFRESH_S = 0.1
HEARTBEAT_S = 5.0  # without a terminal; longer silence looks like a hang


@dataclass
class _Search:
    """The search running on one device."""

    case: str
    begun: float
    words: str = "preparing"

    def take(self, progress: Progress, testing: bool) -> None:
        found = progress.best and f"best so far {terminal.time_words(progress.best_us)}, {progress.best}"
        words = f"{progress.done} of {progress.total} configs tried; {found or 'none ran yet'}"
        self.words = words + f"; testing {progress.config}" * testing  # last: a narrow terminal cuts it


class Display(Observer):
    """Shows the progress of cases and one search per device; other `workers` print above the moving lines."""

    def __init__(self, workers: bool = False) -> None:
        from rich.live import Live

        self._console = terminal.stderr()
        moving = not terminal.is_quiet() and self._console.is_terminal and not self._console.is_dumb_terminal
        self._stack = contextlib.ExitStack()
        if moving and workers:
            self._stack.enter_context(_printed_above(self._console))
        # Without a refresh thread, which would take the GIL while a CPU kernel is timed; observers are called between
        # launches.
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if moving else None
        self._searches: dict[str, _Search] = {}
        self._done = self._known = self._failed = 0
        self._measured: list[float] = []  # seconds of each case that was measured
        self._next: dict[str, float] = {}  # by device: time from which it may be shown again

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def begin(self, case: CaseResult, device: str = "") -> None:
        """Note a case that starts on a device."""
        if self._live is not None and not self._live.is_started:  # not while modules are imported
            self._stack.enter_context(self._live)
            self._stack.enter_context(_log_above())
        now = time.monotonic()
        self._searches[device] = _Search(f"{case.kernel}  {case_words(case)}", now)
        self._next.setdefault(device, now + self._pause_s)

    def done(self, case: CaseResult, device: str = "") -> None:
        """Note a finished case."""
        self._failed += case.status == "failed"
        search = self._searches.pop(device, None)
        if search is not None and case.source not in (None, "stored"):
            self._measured.append(time.monotonic() - search.begun)

    def count(self, done: int, known: int) -> None:
        """Note the number of cases done, and of cases known so far."""
        self._done, self._known = done, known

    def observe(self, progress: Progress, device: str = "") -> None:
        """Show a device's search if an update is due."""
        now = time.monotonic()
        search = self._searches.setdefault(device, _Search(progress.kernel, now))
        search.take(progress, self._live is not None)
        shown = "" if self._live is not None else device
        if now < self._next.get(shown, now):
            return
        self._next[shown] = now + self._pause_s
        if self._live is None:
            self.note(f"{self._total}{search.case}: {search.words}", device)
        else:
            self._live.update(self._lines(), refresh=True)

    def note(self, line: str, device: str = "") -> None:
        """Print a line that stays."""
        if not terminal.is_quiet():
            line = terminal.printable(f"{device}: {line}" if device else line)
            if self._live is not None:  # otherwise the terminal would break it within a word
                line = terminal.wrapped(line, self._console.width, "  ")
            self._console.print(line, soft_wrap=True)

    @property
    def _pause_s(self) -> float:
        return HEARTBEAT_S if self._live is None else REFRESH_S

    @property
    def _total(self) -> str:
        """The position among the cases, and an estimate of the time left."""
        if not self._known:
            return ""
        several = max(1, len(self._searches))
        words = f"case {self._done + 1} of {self._known}" if several == 1 else f"{self._done} of {self._known} cases"
        if self._measured:
            left_s = (self._known - self._done) * sum(self._measured) / len(self._measured) / several
            words += f", about {time_words(left_s)} left"
        return words + f", {self._failed} failed" * bool(self._failed) + ": "

    def _lines(self) -> Group:
        """The moving lines: two for one device, otherwise a table with a row per device."""
        if list(self._searches) == [""]:
            search = self._searches[""]
            return _cut(f"{self._total}{search.case}", f"  {search.words}")
        table = [(device, search.case, search.words) for device, search in self._searches.items()]
        # The two long columns share the space left by the devices' names.
        first = max(len(device) for device, _, _ in table)
        half = max(10, (self._console.width - first - 4) // 2)
        return _cut(self._total, *(f"{device:<{first}}  {_fit(case, half)}  {words}" for device, case, words in table))


@contextlib.contextmanager
def _printed_above(console: Console) -> Iterator[None]:
    """Show output of other processes on this terminal above the moving lines."""
    there = [stream for stream in (1, 2) if os.isatty(stream)]
    before = {stream: os.dup(stream) for stream in there}
    source, sink = os.pipe()
    console.file = os.fdopen(os.dup(2), "w")
    for stream in there:
        os.dup2(sink, stream)
    os.close(sink)
    reader = threading.Thread(target=_read_lines, args=(source, console), daemon=True)
    reader.start()
    try:
        yield
    finally:
        for stream, copy in before.items():
            os.dup2(copy, stream)
            os.close(copy)
        reader.join(1.0)  # a process that outlives the run may keep the pipe open


def _read_lines(source: int, console: Console) -> None:
    with os.fdopen(source, errors="replace") as lines:
        for line in lines:
            console.out(line.rstrip("\n"), highlight=False)


@contextlib.contextmanager
def _log_above() -> Iterator[None]:
    """The same for this package's log, whose handler holds the original stderr."""
    handlers = [one for one in logging.getLogger("autotuned").handlers if isinstance(one, logging.StreamHandler)]
    before = [handler.setStream(sys.stderr) for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, before):
            if stream is not None:  # None if the stream did not change
                handler.setStream(stream)


def case_words(case: CaseResult) -> str:
    """A case's call in few words."""
    return call_words(case.call) if case.call is not None else "(case)"


def time_words(seconds: float) -> str:
    """A duration in its usual unit."""
    for unit_s, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{max(seconds, 1.0):.0f} s"


def _fit(text: str, width: int) -> str:
    return f"{text:<{width}}" if len(text) <= width else text[: width - 3] + "..."


def _cut(*lines: str) -> Group:
    """Lines truncated at the terminal's edge: a wrapped line would leave remains on the next update."""
    from rich.console import Group
    from rich.text import Text

    return Group(*(Text(terminal.printable(line), no_wrap=True, overflow="ellipsis") for line in lines))
