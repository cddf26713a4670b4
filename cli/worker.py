"""The process that `tune` measures in: it does what the command does, and says as lines of JSON how far it is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from autotuned import failures
from autotuned.errors import AutotunedError, DeviceLostError
from autotuned.job import Progress

from . import session
from .isolation import LOST

Json = Any


class Reporter:
    """Stands in for the display: everything goes to the parent."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, event: str, **fields: Json) -> None:
        """One message."""
        data = json.dumps({"event": event, **fields}).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]

    def begin(self, kernel: str, call: str) -> None:
        """Said by `Session` with the key's digest."""

    def observe(self, progress: Progress) -> None:
        """How far a search is, and which config is next."""
        self.say("progress", progress=asdict(progress))

    def keep(self, line: str) -> None:
        """A line that stays."""
        self.say("keep", line=line)


class Session(session.Session):
    """A session that tells its parent of each row, and leaves out those that the parent has."""

    def __init__(self, found: Any, wishes: session.Wishes, device: str, reporter: Reporter, skip: int) -> None:
        super().__init__(found, wishes, device, reporter)
        self._reporter, self._skip = reporter, skip

    def _row(self, found: Any, case: Any) -> session.Row:
        if self._skip:
            return session.Row(found.name, "skipped")
        return super()._row(found, case)

    def _add(self, row: session.Row) -> None:
        if self._skip:
            self._skip -= 1
            return
        super()._add(row)
        self._reporter.say("row", row=asdict(row))

    def _tune(self, found: Any, call: Any, key: Any, row: session.Row, lost: Sequence[str]) -> Any:
        self._reporter.say("case", kernel=row.kernel, call=row.words, digest=key.digest)
        try:
            return super()._tune(found, call, key, row, lost)
        except DeviceLostError:
            leave(LOST)  # the parent knows which config ran


def leave(code: int) -> NoReturn:
    """End at once: threads that still compile, or a lost device, may hang at the interpreter's own end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(wishes: Mapping[str, Json], reporter: Reporter) -> None:
    """Measure what is left to measure."""
    for digest, reasons in wishes["condemned"].items():
        for identity, reason in reasons.items():
            failures.condemn(digest, identity, reason)
    out = None if wishes["out"] is None else Path(wishes["out"])
    device = session.use_device()
    found = session.load(wishes["targets"])
    if out is not None:
        session.check_files(found, out)
    mine = Session(found, session.Wishes(out, wishes["force"], wishes["budget_s"]), device, reporter, wishes["skip"])
    mine.run()
    reporter.say("end", device=device, without_cases=mine.without_cases, files=sorted(mine.files),
                 interrupted=mine.interrupted)  # fmt: skip


def main() -> None:
    """Read the wishes, measure, and tell the parent of errors: it prints them."""
    reporter = Reporter(int(sys.argv[1]))
    wishes = json.loads(sys.stdin.readline())
    try:
        run(wishes, reporter)
    except (AutotunedError, OSError) as error:
        kind = type(error).__name__ if isinstance(error, AutotunedError) else "OSError"
        reporter.say("error", type=kind, text=str(error))
        leave(1)
    except KeyboardInterrupt:
        leave(1)
    leave(0)


if __name__ == "__main__":
    main()
