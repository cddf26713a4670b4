"""The script that prints what neighbours cost, on records whose costs are known."""

import subprocess
import sys
from pathlib import Path

from fakes import CONTEXT, FakeConfig, form

from autotuned.key.key import Key
from autotuned.store import records
from autotuned.store.record import Timing, TuningRecord

SCRIPT = Path(__file__).parents[1] / "bench" / "transfer.py"
FIRST, SMALL, LARGE = FakeConfig({"BLOCK": 16}), FakeConfig({"BLOCK": 64}), FakeConfig({"BLOCK": 128})


def keep(m: int, **us: float) -> None:
    """A record for M: the fastest of the times wins and was measured first; below 0 is a config that failed."""
    configs = {"first": FIRST, "small": SMALL, "large": LARGE}
    timings = tuple(
        Timing(form(configs[name]), time, time, time, 40) if time > 0 else Timing(form(configs[name]), status="failed")
        for name, time in sorted(us.items(), key=lambda one: one[1])
    )
    winner = min((timing for timing in timings if timing.usable), key=lambda timing: timing.median_us)
    key = Key("autotuned.kernels.matmul.matmul_kernel", {"tensors": {}, "values": {"M": m}, "none": []}, dict(CONTEXT))
    provenance = {"default": form(FIRST)}
    assert records.keep(TuningRecord(key, winner.config, winner.median_us, "ok", timings, provenance))


def test_the_loss_with_the_nearest_smaller_and_larger_neighbour() -> None:
    keep(16, first=20.0, small=10.0, large=15.0)
    keep(32, first=40.0, small=20.0, large=22.0)
    keep(64, first=80.0, small=44.0, large=40.0)
    keep(256, first=90.0, small=-1, large=60.0)
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| `matmul")]
    found = {row[1]: row[2:] for row in rows}
    # 32 takes what 16 has, which is its own best; 64 takes that of 32, which costs it 44 / 40.
    assert found["smaller, up to 2x"] == ["2", "+4.9%", "+10%", "0", "+100%"]
    # 16 takes what 32 has, and 32 that of 64, which costs it 22 / 20.
    assert found["larger, up to 2x"] == ["2", "+4.9%", "+10%", "0", "+100%"]
    # 64 takes what 16 has, and 256 that of 64, which is its own best.
    assert found["smaller, 2x to 4x"][:3] == ["2", "+4.9%", "+10%"]
    assert found["larger, 2x to 4x"][:3] == ["2", "+22.5%", "+50%"]  # 16 with the best of 64: 15 / 10; 64 with 256's
