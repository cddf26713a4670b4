"""Compares two sets of choices: two toolchains, two devices, or two releases of config files or stores."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autotuned.errors import KernelNameError, OptionError
from autotuned.key.words import in_order
from autotuned.offline.report import reported, stored
from autotuned.offline.report.reported import Place, ReportCase, mean, slowdown
from autotuned.offline.report.stored import Filter, Stored
from autotuned.store.record import identity_of
from autotuned.typed_json import Json, JsonFields, canonical

LEVEL = 1.02  # times within this ratio count as equal


@dataclass(frozen=True)
class Pair:
    """The choices of both sides for one call of a kernel."""

    a: ReportCase
    b: ReportCase

    @property
    def place(self) -> tuple[str, Place, Place]:
        """Kernel, and device and toolchain of both sides."""
        return self.a.stored.key.kernel, self.a.place, self.b.place

    @property
    def ratio(self) -> float | None:
        """Time of A's choice over B's, above 1 if B is faster; None between interpreter and device."""
        if self.a.is_interpreted != self.b.is_interpreted:
            return None
        before, after = self.a.stored.median_us, self.b.stored.median_us
        return slowdown(before, after) if before and after else None

    @property
    def same_config(self) -> bool:
        """Whether both chose the same config."""
        return identity_of(self.a.stored.config or {}) == identity_of(self.b.stored.config or {})

    @property
    def kept(self) -> float | None:
        """Cost of keeping A's config on B: its time on B over that of B's choice; None if not measured."""
        wanted = canonical(self.a.stored.config)
        us = next((one.usable_us for one in self.b.configs if canonical(one.config) == wanted), None)
        return slowdown(us, self.b.stored.median_us) if us and self.b.stored.median_us else None

    def to_json(self) -> dict[str, Json]:
        """The pair as `report --compare --json` prints it."""
        key = self.a.stored.key
        return {
            "kernel": key.kernel,
            "call": key.call,
            "ratio": self.ratio,
            "same_config": self.same_config,
            "kept": self.kept,
            "a": self.a.stored.to_json(),
            "b": self.b.stored.to_json(),
        }


@dataclass(frozen=True)
class PairSummary(JsonFields):
    """Summary of one kernel's pairs between two devices and toolchains.

    Attributes:
        a, b: Device and toolchain of the two sides.
        ratio, kept: Geometric means over the pairs.
        least, most: The extreme ratios.
        faster, slower: Pairs in which B is faster or slower by over 2%.
        changed: Pairs with different configs.
    """

    kernel: str
    a: Place
    b: Place
    pairs: int
    ratio: float | None
    least: float | None
    most: float | None
    kept: float | None
    faster: int
    slower: int
    changed: int

    @property
    def place(self) -> tuple[str, Place, Place]:
        """Kernel, and device and toolchain of both sides."""
        return self.kernel, self.a, self.b


@dataclass(frozen=True)
class Comparison:
    """Two sets of choices side by side.

    Attributes:
        a, b: The sides as given.
        pairs: Choices for the same call, sorted by kernel, device and call.
        only_a, only_b: Choices without a counterpart.
    """

    a: str
    b: str
    pairs: Sequence[Pair]
    only_a: Sequence[ReportCase]
    only_b: Sequence[ReportCase]

    def __repr__(self) -> str:
        """A line, since the fields fill a notebook; `str` has them."""
        counts = f"{len(self.pairs)} on both sides, {len(self.only_a)} on A only, {len(self.only_b)} on B only"
        return f"<Comparison of {self.a} (A) with {self.b} (B): calls {counts}; see .kernels, .pairs and .slower>"

    def __str__(self) -> str:
        return (
            f"Comparison(a={self.a!r}, b={self.b!r}, pairs={self.pairs!r}, only_a={self.only_a!r}, "
            f"only_b={self.only_b!r})"
        )

    @cached_property
    def kernels(self) -> list[PairSummary]:
        """Summaries by kernel, devices and toolchains."""
        groups: dict[tuple[str, Place, Place], list[Pair]] = {}
        for pair in self.pairs:
            groups.setdefault(pair.place, []).append(pair)
        return [_summed(*names, pairs) for names, pairs in groups.items()]

    @property
    def slower(self) -> list[Pair]:
        """Pairs in which B is slower by over 2%, worst first."""
        found = [(pair.ratio, pair) for pair in self.pairs if pair.ratio is not None and pair.ratio < 1 / LEVEL]
        return [pair for _, pair in sorted(found, key=lambda item: item[0])]

    def to_json(self) -> dict[str, Json]:
        """What `autotuned report --compare --json` prints."""
        return {
            "a": self.a,
            "b": self.b,
            "pairs": [pair.to_json() for pair in self.pairs],
            "kernels": [one.to_json() for one in self.kernels],
            "only_a": [case.stored.to_json() for case in self.only_a],
            "only_b": [case.stored.to_json() for case in self.only_b],
        }


def _summed(kernel: str, a: Place, b: Place, pairs: Sequence[Pair]) -> PairSummary:
    ratios = [pair.ratio for pair in pairs if pair.ratio is not None]
    return PairSummary(
        kernel, a, b, len(pairs), mean(ratios), min(ratios, default=None), max(ratios, default=None),
        mean(pair.kept for pair in pairs),
        faster=sum(ratio > LEVEL for ratio in ratios),
        slower=sum(ratio < 1 / LEVEL for ratio in ratios),
        changed=sum(not pair.same_config for pair in pairs),
    )  # fmt: skip


def compare(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    kernel: str | None = None,
    device: str | None = None,
    triton: str | None = None,
) -> Comparison:
    """Compare times and configs of the choices for the same calls on two toolchains, devices or releases.

    Choices are paired by kernel and call. If both sides have a device in common, only choices for the same device are
    paired, otherwise A's devices with B's. Equal toolchains are paired first, then the latest of each side.

    Args:
        a: `device=h200`, `triton=3.6.0`, or both separated by a comma: the choices in this user's store and the config
            files that match, as for `report`. Or a path: a config file, a folder of them, or the cache folder of
            another store.
        b: The other side, in the same form.
        kernel: Only this kernel, on both sides, as for `report`.
        device: Only these devices, as for `report`.
        triton: Only these versions, as for `report`.

    Raises:
        OptionError: A side is neither a selector nor a path.
        KernelNameError: A side has no matching choice.
        ConfigFileError: A path has no config files.
    """
    common = Filter(kernel, device, triton)
    sides = [list(_cases(os.fspath(side), common)) for side in (a, b)]
    pairs = list(_paired(*sides))
    paired = {id(case) for pair in pairs for case in (pair.a, pair.b)}
    left = [[case for case in side if id(case) not in paired] for side in sides]
    return Comparison(os.fspath(a), os.fspath(b), pairs, *left)


def _cases(side: str, common: Filter) -> list[ReportCase]:
    found = reported.current(map(reported.CaseReader().case, common.of(_choices(side, common.kernel))))
    if not found:
        raise KernelNameError(f"--compare: nothing is tuned in {side!r}: tune something first.", name="")
    return found


def _choices(side: str, kernel: str | None) -> Iterator[Stored]:
    """The choices of one side."""
    if Path(side).exists():
        return stored.choices_in(Path(side))
    given = {name.strip(): value.strip() for name, _, value in (part.partition("=") for part in side.split(","))}
    if not given.keys() <= {"device", "triton"} or not all(given.values()):
        problem = f"expected device=NAME, triton=VERSION, a folder or a config file, got {side!r}"
        raise OptionError(f"--compare: {problem}.", option="compare", problem=problem)
    return stored.choices(Filter(kernel, **given), once=True)


def _paired(ours: Sequence[ReportCase], theirs: Sequence[ReportCase]) -> Iterator[Pair]:
    devices = [{case.stored.device for case in side} for side in (ours, theirs)]
    common = bool(devices[0] & devices[1])  # otherwise different devices are compared
    others = _by_call(theirs, common)
    for name, some in _by_call(ours, common).items():
        others_here = others.get(name, {})
        same = [toolchain for toolchain in some if toolchain in others_here]
        rest = [sorted(side.keys() - set(same), key=in_order, reverse=True) for side in (some, others_here)]
        for one, other in [*zip(same, same), *zip(*rest)]:
            yield Pair(some[one], others_here[other])


def _by_call(cases: Iterable[ReportCase], with_device: bool) -> dict[str, dict[str, ReportCase]]:
    """Cases by kernel, call and optionally device; then by toolchain."""
    found: dict[str, dict[str, ReportCase]] = {}
    for case in cases:
        key = case.stored.key
        name = canonical([key.kernel, key.call, case.stored.device if with_device else ""])
        found.setdefault(name, {})[case.stored.toolchain] = case
    return found
