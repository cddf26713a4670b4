"""Writes config files while `tune` runs: what cannot be written waits for the next try, at last at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from autotuned.configfiles import writer
from autotuned.configfiles.entry import Entry
from autotuned.errors import AutotunedError, OutputError
from autotuned.key.key import Key


class Shipping:
    """The config files of a run.

    Args:
        folder: Where they are written; None for nowhere.
        note: Told once that a file cannot be written.
        every_s: Seconds between two writes, since each reads and writes whole files.

    Attributes:
        files: The files written so far.
    """

    def __init__(self, folder: Path | None, note: Callable[[str], None], every_s: float = 0.0) -> None:
        self._folder, self._note, self._every_s = folder, note, every_s
        self._waiting: dict[tuple[str, str], list[tuple[Key, Entry]]] = {}  # by kernel and device: those of one file
        self._last, self._has_failed = time.monotonic(), False
        self.files: set[str] = set()

    def add(self, key: Key | None, entry: Entry | None) -> None:
        """Write an entry at the next write, if there is one and a folder."""
        if self._folder is not None and key is not None and entry is not None:
            name = key.kernel, str(key.context["device"])
            self._waiting.setdefault(name, []).append((key, entry))

    def write(self) -> None:
        """Write what waits, unless the last write was just now; after a failure the run goes on and tries again.

        Raises:
            ConfigFileError: A file cannot be added to.
        """
        if self._waiting and time.monotonic() - self._last >= self._every_s:
            error = self._write()
            if error is not None and not self._has_failed:
                self._has_failed = True
                self._note(f"{_words(error)}; going on, and trying again.")

    def finish(self) -> None:
        """Write what waits.

        Raises:
            ConfigFileError: A file cannot be added to.
            OutputError: A file cannot be written.
        """
        if (error := self._write()) is not None:
            text = (
                f"{_words(error)}. Make room or name another folder, and run the same command again: it does not "
                "measure again what is in the cache folder."
            )
            raise OutputError(text, path=str(error.filename or self._folder)) from error

    def _write(self) -> OSError | None:
        """Write each file that can be written; returns the first error."""
        failed: OSError | None = None
        for name, entries in list(self._waiting.items()):
            assert self._folder is not None
            try:
                self.files |= {str(path) for path in writer.ship_all(entries, self._folder)}
                del self._waiting[name]  # only now: after an interrupt they are written at the end
            except AutotunedError:
                raise
            except OSError as error:
                failed = failed or error
        self._last = time.monotonic()
        return failed


def _words(error: OSError) -> str:
    return f"{error.filename or 'a config file'} cannot be written: {error.strerror or error}"
