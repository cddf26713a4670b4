"""What `tune` was asked for, and what came of each case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotuned.cli import terminal
from autotuned.configfiles.file import Entry
from autotuned.key.key import Key
from autotuned.store.record import TuningRecord
from autotuned.typed_json import Json

HEADERS = ("call", "config", "source", "time>", "vs first>", "vs default>", "quality")


@dataclass(frozen=True)
class Wishes:
    """The command's options; see its help."""

    out: Path | None = None
    force: bool = False
    budget_s: float | None = None
    isolate: bool | None = None
    timeout_s: float = 60.0
    devices: str | None = None
    executor: str = "local"
    ray_address: str | None = None

    @property
    def several(self) -> bool:
        """Whether devices were named, or a cluster: then each has a process of its own."""
        return self.devices is not None or self.executor != "local"


@dataclass
class Row:
    """What came of one case; the fields are those of the command's JSON."""

    kernel: str
    status: str
    reason: str | None = None
    digest: str | None = None
    device: str | None = None
    triton: str | None = None
    call: Json = None
    config: Mapping[str, Json] | None = None
    median_us: float | None = None
    vs_first: float | None = None
    vs_default: float | None = None
    quality: str | None = None
    source: str | None = None
    configs: int | None = None
    measured_configs: int | None = None

    @property
    def words(self) -> str:
        """The call in few words."""
        return terminal.call_words(self.call) if self.call is not None else "(case)"

    @property
    def config_words(self) -> str:
        """The config in few words; only Triton's kernels have options of a launch."""
        return terminal.config_words(self.config, options=self.triton is not None)

    @property
    def line(self) -> str:
        """One line for the log of a run."""
        return f"{self.kernel}  {self.words}: {self._outcome()}"

    def _outcome(self) -> str:
        if self.status != "done":
            return f"{self.status}: {' '.join((self.reason or '').split())}"
        place = self.source if self.source in ("measured", "stored") else f"from {self.source}"
        return f"{self.config_words}, {terminal.time_words(self.median_us)}, {place}"


@dataclass
class Result:
    """A row, and what it rests on where that can be kept."""

    row: Row
    key: Key | None = None
    entry: Entry | None = None
    record: TuningRecord | None = None


def cells(row: Row) -> list[str]:
    """A row of the table under `HEADERS`."""
    place = row.source or ""
    return [
        row.words,
        row.config_words if row.status == "done" else f"{row.status}: {row.reason}",
        place if place in ("measured", "stored") else Path(place).name,
        terminal.time_words(row.median_us),
        terminal.ratio_words(row.vs_first),
        terminal.ratio_words(row.vs_default),
        row.quality or "n/a",
    ]
