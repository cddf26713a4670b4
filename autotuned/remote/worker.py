"""The thread that makes requests to a shared store: jobs by urgency, and pauses after failures."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger("autotuned")

ASKED, SENT, LATER = range(3)  # urgency: a call waits, just measured, can wait
_DONE = object()


class QueuedJob:
    """A job for the thread; `result` is None if it failed or was not tried."""

    def __init__(self, kind: str, action: Callable[[], Any]) -> None:
        self.kind, self.action = kind, action
        self.result: Any = None
        self._ended = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended; returns whether it has."""
        return self._ended.wait(seconds)

    def end(self) -> None:
        """Wake the waiters."""
        self._ended.set()


class JobThread:
    """Runs jobs one at a time on a thread that starts with the first job.

    After a failure, jobs of the same kind ("read", "write") end at once without a result for `retry_s`.

    Args:
        retry_s: Length of a pause in seconds.
        on_failure: Called with the failure that begins a pause.
        idle: Called between jobs; returns the seconds until its next call, or None for no limit.
    """

    def __init__(
        self, retry_s: float, on_failure: Callable[[str, BaseException], None], idle: Callable[[], float | None]
    ) -> None:
        self._retry_s, self._on_failure, self._idle = retry_s, on_failure, idle
        self._jobs: queue.PriorityQueue[tuple[int, int, Any]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._away: dict[str, float] = {}  # by kind: end of the pause
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, kind: str, action: Callable[[], Any], urgency: int = ASKED) -> QueuedJob:
        """Add a job."""
        job = QueuedJob(kind, action)
        self._jobs.put((urgency, next(self._numbers), job))
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="autotuned-store", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no thread can start, or the process is exiting: nobody must wait
                    job.end()
                    return job
                self._thread = thread
        return job

    @property
    def is_running(self) -> bool:
        """Whether a job was ever submitted."""
        return self._thread is not None

    def is_away(self, kind: str) -> bool:
        """Whether jobs of a kind are paused."""
        return time.monotonic() < self._away.get(kind, 0.0)

    def pause(self, kind: str, error: BaseException) -> None:
        """Pause the jobs of a kind."""
        if not self.is_away(kind):
            self._on_failure(kind, error)
        self._away[kind] = time.monotonic() + self._retry_s

    def until_retry_s(self) -> float:
        """Seconds until the last pause ends; 0 without one."""
        return max([0.0, *(end - time.monotonic() for end in list(self._away.values()))])

    def close(self, seconds: float) -> None:
        """End the thread after its current job; waits at most this long."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put((-1, next(self._numbers), _DONE))
            thread.join(seconds)

    def _run(self) -> None:
        while True:
            try:
                _, _, job = self._jobs.get(timeout=self._idle())
            except queue.Empty:
                continue
            except Exception as error:  # from `idle`; if the thread ended, no job would ever run
                self.pause("write", error)
                continue
            if job is _DONE:
                return
            self._do(job)

    def _do(self, job: QueuedJob) -> None:
        try:
            if not self.is_away(job.kind):
                job.result = job.action()
                self._away.pop(job.kind, None)
        except Exception as error:  # of client, server or disk: launches continue without the store
            self.pause(job.kind, error)
        finally:
            job.end()
