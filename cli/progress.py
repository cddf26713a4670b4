"""What `tune` says on stderr while it measures: lines that move on a terminal, else a line every few seconds."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from autotuned.job import Progress

from . import output

if TYPE_CHECKING:
    from rich.console import Group

REFRESH_S = 0.1
HEARTBEAT_S = 5.0  # without a terminal; a search that is silent for longer is taken for one that hangs


class Display:
    """Shows the search that is running, and keeps a line for each that is done."""

    def __init__(self) -> None:
        from rich.live import Live

        self._console = output.stderr()
        moving = not output.is_quiet() and self._console.is_terminal and not self._console.is_dumb_terminal
        # No refreshing thread: it would take the interpreter's lock in the middle of a CPU kernel's timing. An
        # observer is called between launches.
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if moving else None
        self._case = ""
        self._next = 0.0

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, kernel: str, call: str) -> None:
        """Name the case that is tuned from now on."""
        self._case = f"{kernel}  {call}"
        self._next = time.monotonic() + (REFRESH_S if self._live else HEARTBEAT_S)

    def observe(self, progress: Progress) -> None:
        """Show how far a search is, if it is time to."""
        now = time.monotonic()
        if now < self._next:
            return
        best = (
            f"best so far {progress.best}, {output.time_words(progress.best_us)}" if progress.best else "none ran yet"
        )
        tried = f"{progress.done} of {progress.total} configs tried"
        if self._live is None:
            self.keep(f"{self._case}: {tried}; {best}")
            self._next = now + HEARTBEAT_S
        else:
            self._live.update(_lines(self._case, f"{tried}; testing {progress.config}", best), refresh=True)
            self._next = now + REFRESH_S

    def keep(self, line: str) -> None:
        """Print a line that stays."""
        if not output.is_quiet():
            self._console.print(line, soft_wrap=True)


def _lines(case: str, *details: str) -> Group:
    """The moving lines, each cut at the terminal's edge: one that wraps would leave its rest behind."""
    from rich.console import Group
    from rich.text import Text

    lines = (case, *(f"  {detail}" for detail in details))
    return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))
