"""A plain function over a declared space, and a benchmark that computes times by a formula."""

from __future__ import annotations

from autotuned import Space, autotune, pow2s


def microseconds(a, b, c):
    return None if a * b > 2**13 else 50 + 3 * abs(a - 64) + 2 * abs(b - 32) + 10 * c


class Table:
    """A benchmark that computes times by a formula, and records its calls."""

    def __init__(self):
        self.now, self.asked = None, []

    def __call__(self, call, quantiles=None):
        call()
        self.asked.append(self.now)
        us = microseconds(*self.now)
        if us is None:
            raise RuntimeError("too large")
        return [us / 1e3] * len(quantiles or [1])


def space(**more):
    return Space({"a": pow2s(4, 512), "b": pow2s(4, 512), "c": range(5)}, **{"where": [lambda a, b: a >= b], **more})


def tuned(configs, **more):
    table = more.pop("table", None) or Table()

    def one(n, *, a, b, c):
        table.now = (a, b, c)

    def two(n, most, *, a, b, c):
        table.now = (a, b, c)

    made = two if more.pop("arguments", False) else one
    f = autotune(configs=configs, do_bench=table, **{"name": "declared.f", "key": ["n"], **more})(made)
    f.table = table
    return f


def values(config):
    return tuple(config.kwargs[name] for name in "abc")
