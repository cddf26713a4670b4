"""Records as measured by hosts, the content of a shared store, and a host that calls a tuned function."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeConfig, form

import autotuned
from autotuned.key.key import Key
from autotuned.remote.client import Client
from autotuned.remote.place import MAX_RECORD_BYTES, record_name
from autotuned.store.record import Timing, TuningRecord


def measured(key: Key, best: int = 64, quality: str = "ok", samples: int = 40, **times_us: float) -> TuningRecord:
    """A record whose fastest config has this block."""
    times = {"b64": 12.0, "b128": 12.0, **times_us, f"b{best}": 10.0}
    timings = tuple(
        Timing(form(FakeConfig({"BLOCK": int(name[1:])})), us, us, us, samples) for name, us in times.items()
    )
    return TuningRecord(key, form(FakeConfig({"BLOCK": best})), 10.0, quality, timings)


def block_of(found: TuningRecord | None) -> Any:
    return found and found.winner and found.winner["kwargs"]["BLOCK"]


def data_in(client: Client, key: Key) -> bytes | None:
    """The store's data for a key."""
    found: bytes | None = client._backend().read(record_name(key.digest), MAX_RECORD_BYTES)[0]
    return found


class Host:
    """A cache folder, and a tuned function whose searches are counted."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, patch
        self.during: Callable[[], Any] = lambda: None

    def call(self, n: int, url: str, default: bool = False, **options: Any) -> tuple[int, int]:
        """The config that a new process of this host gets for a call, and its number of searches."""
        self._patch.setenv("AUTOTUNED_CACHE_DIR", str(self.folder))
        with autotuned.connect(url, **{"wait_s": 5.0, **options}) as self.connection:
            tuned = self.tuned(default)
            return tuned(n), tuned.cache_info().searches

    def tuned(self, default: bool = False) -> Any:
        ran: list[int] = []

        def bench(call: Any, quantiles: Any) -> list[float]:
            call()
            self.during()
            return [float(ran[-1])] * 3

        configs = [autotuned.Config({"block": block}) for block in (4, 1, 6)]

        @autotuned.autotune(
            configs=configs, key=["n"], do_bench=bench, version=1, name="faults.work",
            default=configs[2] if default else None,
        )  # fmt: skip
        def work(n: int, block: int) -> int:
            ran.append(block)
            return block

        return work
