"""What `tune` says on stderr while it measures: lines that move on a terminal, else a line every few seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from autotuned.key.words import call_words
from autotuned.offline.results import CaseResult, Observer

from . import terminal

if TYPE_CHECKING:
    from rich.console import Group

    from autotuned.search.job import Progress

REFRESH_S = 0.1
HEARTBEAT_S = 5.0  # without a terminal; a search that is silent for longer is taken for one that hangs


@dataclass
class _Search:
    """The search that is running on one device."""

    case: str
    next: float = 0.0
    tried: str = "preparing"
    testing: str = ""
    best: str = ""

    def take(self, progress: Progress) -> None:
        self.tried = f"{progress.done} of {progress.total} configs tried"
        self.testing = progress.config
        found = progress.best and f"best so far {progress.best}, {terminal.time_words(progress.best_us)}"
        self.best = found or "none ran yet"


class Display(Observer):
    """Shows the searches that are running, one a device, and keeps a line for each that is done."""

    def __init__(self) -> None:
        from rich.live import Live

        self._console = terminal.stderr()
        moving = not terminal.is_quiet() and self._console.is_terminal and not self._console.is_dumb_terminal
        # No refreshing thread: it would take the interpreter's lock in the middle of a CPU kernel's timing. An
        # observer is called between launches.
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if moving else None
        self._searches: dict[str, _Search] = {}
        self._total = ""
        self._counted: tuple[float, int] | None = None  # when the first count came, and how many were done then
        self._shown = 0.0

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, case: CaseResult, device: str = "") -> None:
        """Name the case that is tuned from now on, on a device."""
        if self._live is not None:  # not before: modules are imported on a terminal as it is
            self._live.start()
        pause_s = REFRESH_S if self._live else HEARTBEAT_S
        self._searches[device] = _Search(f"{case.kernel}  {case_words(case)}", time.monotonic() + pause_s)

    def done(self, case: CaseResult, device: str = "") -> None:
        """Keep a line for a case that is done."""
        if case.status != "skipped":  # thousands of a long recording, in one line at the end
            self.note(f"{case.kernel}  {case_words(case)}: {_outcome(case)}", device)

    def count(self, done: int, known: int) -> None:
        """How many cases are done, of those that are known so far; the others are taken to last as long each."""
        now = time.monotonic()
        began, before = self._counted = self._counted or (now, done)
        left_s = (known - done) * (now - began) / (done - before) if done > before else 0.0
        self._total = f"{done} of {known} cases done" + (f", about {_time_words(left_s)} left" if left_s else "")

    def observe(self, progress: Progress, device: str = "") -> None:
        """Show how far a device's search is, if it is time to."""
        search = self._searches.setdefault(device, _Search(progress.kernel))
        search.take(progress)
        now = time.monotonic()
        if now < (search.next if self._live is None else max(search.next, self._shown + REFRESH_S)):
            return
        if self._live is None:
            words = f"{search.case}: {search.tried}; {search.best}"
            self.note(words + f" ({self._total})" * bool(self._total), device)
            search.next = now + HEARTBEAT_S
        else:
            self._live.update(self._lines(), refresh=True)
            self._shown = now

    def note(self, line: str, device: str = "") -> None:
        """Print a line that stays."""
        if not terminal.is_quiet():
            line = terminal.printable(f"{device}: {line}" if device else line)
            if self._live is not None:  # a terminal would break it in the middle of a word
                line = terminal.wrapped(line, self._console.width, "  ")
            self._console.print(line, soft_wrap=True)

    def _lines(self) -> Group:
        """The moving lines: of one device three, of several a table of a row each."""
        if list(self._searches) == [""]:
            search = self._searches[""]
            case = f"{search.case}  ({self._total})" if self._total else search.case
            return _cut(case, f"  {search.tried}; testing {search.testing}", f"  {search.best}")
        table = [(device, search.case, f"{search.tried}; {search.best}") for device, search in self._searches.items()]
        # Half of what is left beside the devices' names for each of the long columns.
        first = max(len(device) for device, _, _ in table)
        half = max(10, (self._console.width - first - 4) // 2)
        return _cut(self._total, *(f"{device:<{first}}  {_fit(case, half)}  {words}" for device, case, words in table))


def case_words(case: CaseResult) -> str:
    """The call of a case in few words."""
    return call_words(case.call) if case.call is not None else "(case)"


def _outcome(case: CaseResult) -> str:
    if case.status != "done":
        return f"{case.status}: {' '.join((case.reason or '').split())}"
    source = case.source if case.source in ("measured", "stored") else f"from {case.source}"
    config = terminal.config_words(case.config, case.triton is not None)
    return f"{config}, {terminal.time_words(case.median_us)}, {source}"


def _time_words(seconds: float) -> str:
    """A time in the unit that people would say it in."""
    for unit_s, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{max(seconds, 1.0):.0f} s"


def _fit(text: str, width: int) -> str:
    return f"{text:<{width}}" if len(text) <= width else text[: width - 3] + "..."


def _cut(*lines: str) -> Group:
    """Lines, each cut at the terminal's edge: one that wraps would leave its rest behind."""
    from rich.console import Group
    from rich.text import Text

    return Group(*(Text(terminal.printable(line), no_wrap=True, overflow="ellipsis") for line in lines))
