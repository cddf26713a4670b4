"""Host work of a launch of a library's kernel: function calls and bytecodes, with stock Triton, seeded and replaced.

    python tests/bench/dropin.py [--json FILE]

Needs torch and Triton; kernels are compiled for a pretended H100 whose driver does nothing. Each row is one kind of
tuner: Triton's class or a library's subclass, constant or changing keys, heuristics on either side, options passed in
the call. Each number is the mean of 20 launches after 60 others, independent of the machine's load. A C function counts
as one call.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from counted import no_collection  # noqa: E402

WARM, COUNTED = 60, 20
WAYS = ("stock", "seeded", "replaced")


class Counts(NamedTuple):
    """Counts of one launch."""

    python: float
    c: float
    bytecodes: float


def count(launch: Callable[[int], Any]) -> Counts:
    """The mean of several launches, each run twice: to count calls, and to trace every bytecode."""
    for index in range(WARM):
        launch(index)
    calls = {"call": 0, "c_call": 0, "opcode": 0}

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event in calls:
            calls[event] += 1

    def trace(frame: Any, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        calls["opcode"] += event == "opcode"
        return trace

    for index in range(WARM, WARM + COUNTED):
        for switch, function in ((sys.setprofile, profile), (sys.settrace, trace)):
            with no_collection():
                switch(function)
                launch(index)
                switch(None)
    return Counts(*(calls[event] / COUNTED for event in ("call", "c_call", "opcode")))


def shapes() -> Iterator[tuple[str, Callable[[int], Any]]]:
    """Name and numbered launch of each row, created for the way that is installed now."""
    import torch
    from dropin_kernels import CONFIGS, Library, add, even, tuner
    from triton.runtime.autotuner import Autotuner

    x, sets = torch.zeros(256), [torch.zeros(256) for _ in range(3)]
    for kind in (Autotuner, Library):
        one = even(tuner(kind, add))
        yield f"{kind.__name__}: one key, by place", lambda i, one=one: one[(4,)](x, 100, 7)
    named = even(tuner(Library, add))
    yield "Library: one key, by name", lambda i: named[(4,)](x_ptr=x, n=100, m=7)
    yield "Library: grid callable", lambda i: named[lambda meta: (-(-meta["n"] // meta["BLOCK"]),)](x, 100, 7)
    yield "Library: other tensors", lambda i: named[(4,)](sets[i % 3], 100, 7)
    yield "Library: an integer outside the key", lambda i: named[(4,)](x, 100, 100 + i)
    many = even(tuner(Library, add))
    yield "Library: 20 keys", lambda i: many[(4,)](x, 100 + i % 20, 7)
    under = tuner(Library, even(add))
    yield "Library: over heuristics", lambda i: under[(4,)](x, 100, 7)
    single = even(tuner(Library, add, CONFIGS[:1]))
    yield "Library: one config", lambda i: single[(4,)](x, 100, 7)
    options = even(tuner(Library, add))
    yield "Library: options at the call", lambda i: options[(4,)](x, 100, 7, debug=True)


def main() -> None:
    """Print the table, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    os.environ.pop("TRITON_INTERPRET", None)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"], os.environ["AUTOTUNED_CACHE_DIR"] = f"{folder}/triton", f"{folder}/store"
        import fake_cuda
        import pytest
        import triton

        import autotuned
        from autotuned.dropin.install import uninstall

        triton.runtime.driver._active = fake_cuda.install_with_host_clock(pytest.MonkeyPatch())
        table: dict[str, dict[str, Counts]] = {}
        for way in WAYS:
            if way != "stock":
                autotuned.install(replace=way == "replaced")
            for name, launch in shapes():
                table.setdefault(name, {})[way] = count(launch)
            uninstall()
    print(f"{'':40s}", "  ".join(f"{way + ': Python, C, bytecodes':>34s}" for way in WAYS))
    for name, row in table.items():
        print(f"{name:40s}", "  ".join(f"{one.python:18.1f} {one.c:6.1f} {one.bytecodes:8.0f}" for one in row.values()))
    if arguments.json:
        rows = {name: {way: one._asdict() for way, one in row.items()} for name, row in table.items()}
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
