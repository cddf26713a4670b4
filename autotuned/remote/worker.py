"""The thread that talks to a shared store: jobs by urgency, and pauses after failures."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger("autotuned")

ASKED, SENT, LATER = range(3)  # how urgent: somebody waits, it was measured now, it can wait
_DONE = object()


class Job:
    """Something that the thread does: its result, or None where it failed or was not tried."""

    def __init__(self, kind: str, action: Callable[[], Any]) -> None:
        self.kind, self.action = kind, action
        self.result: Any = None
        self._ended = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended in time."""
        return self._ended.wait(seconds)

    def end(self) -> None:
        """Wake who waits."""
        self._ended.set()


class Worker:
    """Runs jobs one after the other on a thread that begins with the first.

    After a failure jobs of its kind ("read", "write") end at once without a result, for so many seconds; a job that
    succeeds ends the pause.

    Args:
        retry_s: How long a pause is, in seconds.
        on_failure: Told of the failure that begins a pause.
        idle: Called between jobs; gives the seconds until it wants to be called again, or None.
    """

    def __init__(
        self, retry_s: float, on_failure: Callable[[str, BaseException], None], idle: Callable[[], float | None]
    ) -> None:
        self._retry_s, self._on_failure, self._idle = retry_s, on_failure, idle
        self._jobs: queue.PriorityQueue[tuple[int, int, Any]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._away: dict[str, float] = {}  # by kind: when it is tried again
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, kind: str, action: Callable[[], Any], urgency: int = ASKED) -> Job:
        """Have something done."""
        job = Job(kind, action)
        self._jobs.put((urgency, next(self._numbers), job))
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="autotuned-store", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the system has no more, or the process is ending: nobody waits for nothing
                    job.end()
                    return job
                self._thread = thread
        return job

    @property
    def is_running(self) -> bool:
        """Whether anything was ever submitted."""
        return self._thread is not None

    def is_away(self, kind: str) -> bool:
        """Whether jobs of a kind are not tried now."""
        return time.monotonic() < self._away.get(kind, 0.0)

    def pause(self, kind: str, error: BaseException) -> None:
        """Try no job of a kind for a while."""
        if not self.is_away(kind):
            self._on_failure(kind, error)
        self._away[kind] = time.monotonic() + self._retry_s

    def until_retry_s(self) -> float:
        """Seconds until the last pause ends; 0 where there is none."""
        return max([0.0, *(end - time.monotonic() for end in list(self._away.values()))])

    def close(self, seconds: float) -> None:
        """End the thread after what it does now; waits so long at most."""
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
            except Exception as error:  # of `idle`; a thread that ended would leave all jobs undone
                self.pause("write", error)
                continue
            if job is _DONE:
                return
            self._do(job)

    def _do(self, job: Job) -> None:
        try:
            if not self.is_away(job.kind):
                job.result = job.action()
                self._away.pop(job.kind, None)
        except Exception as error:  # whatever a client, a server or a disk comes up with: the launch goes on without
            self.pause(job.kind, error)
        finally:
            job.end()
