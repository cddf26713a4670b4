"""Digests of keys and fingerprints of functions, one a name, as JSON: the same in every process and Python.

Run as a program by the tests, in Pythons that have neither torch nor Triton nor NumPy.
"""

import enum
import json
import math

from autotuned.key import key, source
from autotuned.key.key import Key, KeySpec, call_part


class Act(enum.Enum):
    RELU = 1


class Flags(enum.Flag):
    A = 1
    B = 2


class Tensor:
    """Dtype, shape and strides."""

    def __init__(self, shape, strides, dtype="torch.float16"):
        self.shape, self.strides_, self.dtype = shape, strides, dtype

    def stride(self):
        return self.strides_


class Settings:
    block = 64


CFG = Settings()
CONTEXT = {
    "device": {"kind": "cuda", "name": "NVIDIA H100 80GB HBM3", "arch": "sm_90", "sm_count": 132, "mig": None},
    "triton": "3.9.0", "triton_key": "aa", "ptxas": "13.0.88 00", "environment": {}, "source": "bb", "version": None,
}  # fmt: skip
VALUES = [1, True, 1.0, "1", Act.RELU, None, -0.0, math.inf, math.nan, b"\x00", (1, (2.5, None)), [1], {"a": 1, "b": 2},
          2**80, "é\ud800", Flags.A | Flags.B, 1 + 2j]  # fmt: skip
PAIR = (lambda x: x + 1), (lambda x: x - 1)


def helper(x):
    """Used below."""
    return f"{x!r:>{CFG.block}}"


def function(x, scale=0.5, *, mode="fast"):
    return [helper(y) * scale for y in x] if mode else CFG.block


def digests():
    """Name -> digest."""
    spec = KeySpec(("n", "v", "x"), {"f": lambda arguments: (1, "x")}, {"n": key.pow2}, frozenset({"C"}))
    found = {}
    for index, value in enumerate(VALUES):
        call = call_part(spec, {"x": Tensor((4, 1, 8), (8, 3, 1)), "v": value, "n": 1025, "C": value}, {}, "app.k")
        found[f"value {index}: {type(value).__name__}"] = Key("app.k", call, CONTEXT).digest
    everything = {"x": Tensor((0, 8), (1, 0)), "t": (Tensor((8,), (0,)), None, 3), "none": None}
    call = call_part(KeySpec(), everything, {"maxnreg": 128}, "app.k")
    found["every part"] = Key("app.k", call, {**CONTEXT, "version": {"tuple": [1, 2]}}).digest
    found["function"] = source.fingerprint(function)
    found |= {f"lambda {index}": source.fingerprint(each) for index, each in enumerate(PAIR)}
    return found


if __name__ == "__main__":
    print(json.dumps(digests(), indent=1))
