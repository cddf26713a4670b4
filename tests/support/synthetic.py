"""Synthetic matrix products: times of configs from a plausible model of tiles, waves, memory and noise.

Not recorded on any GPU, and not used to choose anything in the package: these numbers show that a method works as
claimed, not its value on a card.
"""

import math
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from autotuned.key.sizes import Sizes, shape_of
from autotuned.rules.table import Table, tables
from autotuned.typed_json import canonical

PAIRS = (
    (4096, 4096),
    (1024, 4096),
    (6144, 4096),
    (4096, 14336),
    (28672, 4096),
    (5120, 5120),
    (13824, 5120),
    (8192, 8192),
)


@cache
def form_of(config: tuple[int, ...]) -> str:
    """A config as the text of its canonical form."""
    m, n, k, warps, stages = config
    more = {"num_ctas": 1, "maxnreg": None, "ir_override": None, "pre_hook": False}
    return canonical({"kwargs": {"BM": m, "BN": n, "BK": k}, "num_warps": warps, "num_stages": stages, **more})


def call_of(m: int, n: int, k: int) -> dict[str, Any]:
    """The call part of the key of a product: two matrices, the second transposed, and three integers."""
    layout = {"dtype": "torch.float16", "strides": "*1"}
    tensors = {
        "a": {**layout, "shape": [m, k]},
        "b": {**layout, "strides": "1*", "shape": [k, n]},
        "c": {**layout, "shape": [m, n]},
    }
    return {"tensors": tensors, "values": {"M": m, "N": n, "K": k}, "none": []}


def sizes_of(m: int, n: int, k: int) -> Sizes:
    """All sizes of a call, in the form for rules."""
    return shape_of(call_of(m, n, k)).sizes


class Kernel:
    """One kernel on one card: its configs, and how fast each is for given sizes."""

    def __init__(self, seed: int, configs: int = 40, noise: float = 0.01) -> None:
        self._random = random.Random(seed)
        draw, choose = self._random.uniform, self._random.choice
        self.sms, self._flops, self._bytes = choose((80, 108, 132)), draw(150e6, 800e6), draw(0.9e6, 4e6)  # per us
        self._launch, self._noise = draw(1.5, 4.0), noise
        self._warps = {4: draw(0.85, 1.0), 8: draw(0.85, 1.0)}
        grid = [
            (m, n, k, w, s) for m in (16, 32, 64, 128, 256) for n in (32, 64, 128, 256) for k in (32, 64, 128)
            for w in (4, 8) for s in (2, 3, 4) if m * n <= 32768 and (m + n) * k * s <= 96 * 1024
        ]  # fmt: skip
        self.configs = self._random.sample(grid, configs)
        self._own = {config: math.exp(self._random.gauss(0, 0.05)) for config in self.configs}

    def us(self, config: tuple[int, ...], m: int, n: int, k: int) -> float:
        """Time without noise."""
        bm, bn, bk, warps, stages = config
        tiles = math.ceil(m / bm) * math.ceil(n / bn)
        depth = math.ceil(k / bk)
        per_sm = max(1, min(4, 200 * 1024 // ((bm + bn) * bk * 2 * stages)))
        waves = math.ceil(tiles / (self.sms * per_sm))
        use = self._warps[warps] * min(1.0, (bm * bn / 16384) ** 0.3) * (0.9 if k % bk else 1.0)
        compute = 2 * bm * bn * bk * depth * waves * per_sm / (self._flops / self.sms * use)
        traffic = tiles * (bm + bn) * k * 2 * 0.35 + 2 * (m * n + (m + n) * k)
        latency = depth * (0.35 / stages + 0.02) * waves
        return self._launch + self._own[config] * (max(compute, traffic / self._bytes) + latency)

    def times(self, m: int, n: int, k: int) -> dict[str, float]:
        """Times of all configs, as from one measurement."""
        noisy = lambda: math.exp(self._random.gauss(0, self._noise))
        return {form_of(config): self.us(config, m, n, k) * noisy() for config in self.configs}

    def sizes(self, count: int, pairs: Any = PAIRS, low: int = 1, high: int = 8192) -> Iterator[tuple[int, int, int]]:
        """Distinct calls: M log-uniform, with each pair of N and K in turn."""
        seen: set[tuple[int, int, int]] = set()
        for number in range(100 * count):
            n, k = pairs[number % len(pairs)]
            m = round(math.exp(self._random.uniform(math.log(low), math.log(high))))
            if (m, n, k) not in seen:
                seen.add((m, n, k))
                yield m, n, k
            if len(seen) == count:
                return

    def table(self, count: int = 300, pairs: Any = PAIRS[:6], low: int = 1, high: int = 8192) -> Table:
        """A table of distinct calls."""
        [(found, _)] = tables(
            ((call_of(*row), self.times(*row)) for row in self.sizes(count, pairs, low, high)), self.sms
        )
        return found


class Regimes(Kernel):
    """Each config is best around its own size and loses smoothly away from it."""

    def us(self, config: tuple[int, ...], m: int, n: int, k: int) -> float:
        """Time without noise."""
        far = math.log2(m * n / 4096) - 13 * self.configs.index(config) / len(self.configs)
        return self._launch + self._own[config] * m * n * k / self._flops * (1 + 0.03 * far**2)


class Cliffs(Regimes):
    """The same with a drop if a config's tile does not divide the size or does not fill the card."""

    def us(self, config: tuple[int, ...], m: int, n: int, k: int) -> float:
        """Time without noise."""
        bm, bn = config[:2]
        falls = 0.15 * (m % bm > 0) + 0.4 * (math.ceil(m / bm) * math.ceil(n / bn) < self.sms)
        return super().us(config, m, n, k) * (1 + falls)


KINDS = {"waves": Kernel, "regimes": Regimes, "cliffs": Cliffs}
