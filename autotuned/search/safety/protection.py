"""The caller's data during a search: saved as configs turn out to write it, restored at the end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from autotuned.key import memory
from autotuned.search import failures
from autotuned.search.compiling.compile import CompileStream
from autotuned.search.job import Job, Outcome
from autotuned.search.safety.snapshots import Known, Protection

Result = TypeVar("Result")
_NOTHING_YET = object()


class Guard:
    """Protects the caller's data during a search, and keeps the search going when device memory is short."""

    def __init__(self, job: Job, ahead: CompileStream) -> None:
        self._job, self._ahead = job, ahead
        self.protection = Protection({}, [], [])  # replaced by `protect`
        self._made_for: object = _NOTHING_YET
        self.is_short = job.timer.is_short  # whether device memory was short

    # -- before, at and after a launch ---------------------------------------------------------------------------

    def protect(self) -> None:
        """Save what the configs compiled so far may write.

        A later config may write more; until then no trial has touched that, so it can still be saved.
        """
        access = self._ahead.access
        if access == self._made_for:
            return
        job, restore = self._job, self._job.restore
        written = () if restore is not None else self.protection.written
        self.protection.release()
        if restore is None and access is not None:
            restore = [name for name in job.call.arguments if name in access.written]
        named: set[str] = set()
        for check in (job.check, job.stricter):
            if check is not None and not isinstance(check.poison, bool):
                named |= set(check.poison)
            elif check is not None and check.poison and access is not None:
                named |= access.written - access.read
        watch = access is None and (job.watch or job.check is not None)
        self.protection = self._made(restore, watch, {*named, *written})
        self._made_for = access

    def _made(self, restore: Sequence[str] | None, watch: bool, known: Collection[str]) -> Protection:
        job = self._job
        own = set(job.call.arguments if job.named is None else job.named)
        also = Known(known, self._unread(), set(job.restore or ()) - own)
        make = partial(Protection, job.call.arguments, restore, job.zero, watch, also=also)
        try:
            return make()
        except Exception as error:
            if not failures.is_memory_error(error):
                raise
        self.is_short = True
        job.timer.free()
        return make(on_host=True)

    def _unread(self) -> Collection[str]:
        """Arguments that configs write and nothing reads under any name: their content affects no trial."""
        job, access = self._job, self._ahead.access
        if access is None or job.restore is not None or job.hooks.before is not None or job.hooks.after is not None:
            return ()
        return memory.unshared(job.call.arguments, access.written - access.read)

    def prepare(self) -> None:
        """See `Protection.prepare`."""
        self.protection.prepare()

    def with_room(self, act: Callable[[], Result]) -> Result:
        """Call `act`; if memory runs out, free what can be spared and call it again."""
        try:
            return act()
        except Exception as error:
            if not failures.is_memory_error(error):
                raise
        self.is_short = True
        self.protection.move_to_host()
        self._job.timer.free()  # last: it also releases the memory of the moved copies
        return act()

    # -- what is known -------------------------------------------------------------------------------------------

    @property
    def written(self) -> list[str]:
        """Names of the arguments known to be written, in order."""
        access = self._ahead.access
        written = {*self.protection.seen, *(access.written if access else ()), *(self._job.named or ())}
        return [name for name in self._job.call.arguments if name in written]

    def note(self, facts: Outcome) -> None:
        """Store the findings; call before `release`, which forgets them."""
        facts.written = self.protection.written
        facts.copied_bytes, facts.needed_bytes = self.protection.nbytes
        if self._job.restore is not None:
            named = {*self._job.restore, *self._job.zero}
            facts.unnamed = [name for name in self.written if name not in named]

    # -- at the end ----------------------------------------------------------------------------------------------

    def release(self, lost: bool) -> None:
        """Restore the caller's data; if the device is lost, only drop the copies."""
        if lost:
            self.protection.abandon()
        try:
            self.protection.release()
        except KeyboardInterrupt:
            self.protection.release()
            raise
        except Exception as error:
            if not failures.is_memory_error(error):
                raise
            self._job.timer.free()
            self.protection.release()
