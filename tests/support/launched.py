"""A kernel on the C launcher's `Base`, bound for the arguments 1, 2, 3 and launched by functions made with ctypes.

It needs neither torch nor Triton, so that tests with it run on every Python.
"""

from __future__ import annotations

import ctypes
import weakref
from types import SimpleNamespace

import pytest

_launch = pytest.importorskip("autotuned._launch")

NAMES, BLOCK = ("m", "n", "other"), 128
CACHE, HOLDS, HOOK, ZEROED = 6, 11, 15, 17  # places in `Bound.direct`
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_uint * 3), ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
MEMSET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p)
OTHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class Compiled:
    """A kernel in Triton's cache."""


class Kernel(_launch.Base):
    """A kernel with three arguments; `grids` lists the grid of each launch."""

    def __init__(self, buckets=None, functions=(), roles=(0, 0, 0), watched=None):
        self.grids = []
        functions_of_driver = LAUNCH(self._note), OTHER(lambda *_: 0), OTHER(lambda *_: 0), MEMSET(lambda *_: 0)
        self.alive, self.compiled = functions_of_driver, Compiled()
        _launch.use_driver(*(ctypes.cast(function, ctypes.c_void_p).value for function in functions_of_driver))
        self.table = _launch.Table(NAMES, 3, {}, roles, buckets or {}, tuple(functions), None)
        self.configs = ["config"]
        self._attach(self.table)
        cache = {"key": self.compiled}
        watched = [cache, *(watched or [])]
        for one in watched:
            _launch.watch(one)
        constants = {**dict.fromkeys(NAMES), "BLOCK": BLOCK}
        compiled = weakref.ref(self.compiled)
        self.direct = (
            compiled, 1, 32, 0, "---", (), cache, "key", [], [], [], lambda: True, constants, tuple(watched), 1, None, {},
            (), 0, (),
        )  # fmt: skip

    def bind(self, values=(1, 2, 3), direct=None, **fields):
        """Bind these arguments, with other fields of `direct` by their index."""
        parts = list(self.direct)
        for place, value in (direct or {}).items():
            parts[place] = value
        usual = {
            "config": "c",
            "before": None,
            "run": lambda values, grid: "in Python",
            "direct": tuple(parts),
            "again": None,
        }
        bound = SimpleNamespace(**{**usual, **fields})
        assert self.table.bind(values, bound)
        return bound

    def change(self):
        """Invalidate all entries."""
        self.direct[CACHE][object()] = None
        self._attach(self.table)

    def _note(self, config, *others):
        self.grids.append(tuple(config.contents))
        return 0

    def _still_ours(self):
        return True

    def _slow_run(self, args, kwargs, grid, warmup):
        raise AssertionError("expected a hit")
