"""The companion that `serving.py` starts, pauses, and asks for its results."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

COMPANION = [sys.executable, "-c", "from autotuned.cli.main import app; app()", "tune", "--json", "--follow"]


class Companion:
    """`autotuned tune --follow` on the second GPU, in its own session."""

    def __init__(self, folder: Path, recording: str, pretended: bool) -> None:
        command = [*COMPANION, recording, *([] if pretended else ["--devices", "1"])]
        self._log = open(folder / "companion.log", "ab")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=self._log, start_new_session=True
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():  # its first status line
            raise SystemExit(f"the companion has ended; see {folder / 'companion.log'}")

    def stop(self) -> None:
        """Pause it and its processes."""
        for process in self._family():
            os.kill(process, signal.SIGSTOP)

    def go_on(self) -> None:
        for process in reversed(self._family()):
            os.kill(process, signal.SIGCONT)

    def _family(self) -> list[int]:
        """Its process and all descendants, parents first; measuring processes have their own sessions."""
        children: dict[int, list[int]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                parent = int(path.read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(path.parent.name))
        found = [self._process.pid]
        for process in found:
            found += children.get(process, ())
        return found

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        """End it with Ctrl-C."""
        if not self.ended:
            self.go_on()
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                for process in self._family():
                    os.kill(process, signal.SIGKILL)
                self._process.communicate()
        self._log.close()

    def __enter__(self) -> Companion:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def kept(*names: str) -> int:
    """Number of choices that this process's store has for kernels."""
    from autotuned.store import layout

    return sum(len(list(layout.kernel_folder(f"served.{name}").glob("*.json"))) for name in names)
