"""Config files: times of the first and of later look-ups, by the number of entries.

Usage: python tests/bench/files.py [--entries 10000]    (needs neither torch nor a GPU)
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from fakes import DEVICE, FakeConfig, by_identity, form, make_key

from autotuned.configfiles import lookup, writer
from autotuned.configfiles.file import ConfigFile, Entry, split_context
from autotuned.gpu.device import from_json


def timed(look: Callable[[int], object], count: int = 2000) -> str:
    """Median and 99th percentile of one look-up, in microseconds."""
    took = []
    for n in range(count):
        start = time.perf_counter()
        look(n)
        took.append((time.perf_counter() - start) * 1e6)
    return f"median {statistics.median(took):6.1f} us, 99% below {sorted(took)[int(count * 0.99)]:6.1f} us"


def main() -> None:
    """Write a file and look calls up in it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--entries", type=int, default=10_000)
    count = parser.parse_args().entries
    config = FakeConfig({"BLOCK": 64})
    live = by_identity(config, *(FakeConfig({"BLOCK": 128 << n}) for n in range(9)))
    file = ConfigFile("app.k", from_json(DEVICE))
    for n in range(count):
        key = make_key(2 * n)
        file.add(split_context(key.context)[0], Entry(key.call, form(config), 10.0, 1.5))
    with tempfile.TemporaryDirectory() as folder:
        path = writer.write(file, Path(folder))
        os.environ["AUTOTUNED_CONFIG_PATH"] = folder
        keys = [make_key(2 * n % (2 * count)) for n in range(2000)]
        odd = [make_key((2 * n + 1) % (2 * count)) for n in range(2000)]
        newer = [make_key(2 * n % (2 * count), triton="3.9.1") for n in range(2000)]
        start = time.perf_counter()
        assert lookup.look_exact(keys[0], live).choice is not None
        print(f"{count} entries, {path.stat().st_size / 1e6:.1f} MB, first look-up {time.perf_counter() - start:.3f} s")
        print(f"same call and context   {timed(lambda n: lookup.look_exact(keys[n], live))}")
        print(f"no such call            {timed(lambda n: lookup.look_exact(odd[n], live))}")
        print(f"another patch of Triton {timed(lambda n: lookup.look_ladder(newer[n], live))}")
        start = time.perf_counter()
        assert lookup.look_nearest(make_key(2 * count + 1), live, {"n": 2.0}).choice is not None
        print(f"first nearest shape     {time.perf_counter() - start:.3f} s")
        print(f"nearest shape           {timed(lambda n: lookup.look_nearest(odd[n], live, {'n': 1.5}))}")


if __name__ == "__main__":
    main()
