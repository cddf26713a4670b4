"""Finds which parameters of a kernel's configs matter, and the sizes of its calls."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotuned.key.words import in_order, value_words
from autotuned.offline.report.reported import ReportCase, ReportConfig, mean, slowdown
from autotuned.tunable.configs import OPTIONS
from autotuned.typed_json import Json, JsonFields

MOST_CHOSEN = 2 / 3  # share of cases above which an edge is reported
EDGE_GAIN = 1.02  # gain of the edge over the next value
Times = list[tuple[Mapping[str, str], float]]  # of one case: parameters and time of each config that ran


@dataclass(frozen=True)
class Value(JsonFields):
    """One value of a parameter.

    Attributes:
        cost: Time of the fastest config with this value over that of the fastest of all: geometric mean over the cases
            in which one ran; None if none did.
        chosen: Number of cases that chose it.
    """

    value: str
    cost: float | None
    chosen: int


@dataclass(frozen=True)
class Parameter(JsonFields):
    """One parameter of a kernel's configs, over its cases on one device and toolchain.

    Attributes:
        fixed: The smallest cost of one value for all cases, which is the gain from tuning it per case. None if no value
            ran in all cases.
        wrong: The cost of its worst value, which shows how much the choice matters.
        values: The values in order.
    """

    name: str
    fixed: float | None
    wrong: float | None
    values: Sequence[Value]

    @property
    def edge(self) -> str:
        """The end ("smallest" or "largest") of three or more numbers that most cases chose, with a gain; or ""."""
        if len(self.values) < 3 or not all(value.value.isdecimal() for value in self.values):
            return ""
        enough = MOST_CHOSEN * sum(value.chosen for value in self.values)
        least = min((value.cost for value in self.values if value.cost), default=None)
        for name, (end, next_to_end) in (("smallest", self.values[:2]), ("largest", self.values[:-3:-1])):
            gain = next_to_end.cost / end.cost if next_to_end.cost and end.cost and end.cost == least else 0.0
            if end.chosen > enough and gain >= EDGE_GAIN and end.value not in ("0", "1"):
                return name
        return ""


@dataclass(frozen=True)
class OneConfig(JsonFields):
    """One config for all cases: its slowdown against the fastest, as geometric mean and worst case."""

    label: str
    cost: float
    worst: float


@dataclass(frozen=True)
class Tunables(JsonFields):
    """Effects of one kernel's parameters on one device and toolchain.

    Attributes:
        cases: Number of measured cases.
        parameters: The parameters that vary, most important first.
        one: The cheapest single config for all cases; None if no config ran in all.
    """

    kernel: str
    device: str
    toolchain: str
    cases: int
    parameters: Sequence[Parameter]
    one: OneConfig | None


def tunables(cases: Sequence[ReportCase]) -> Tunables | None:
    """The tunables of a kernel's cases on one device and toolchain; None if no case measured two configs."""
    measured = [case for case in cases if len(case.times_us) > 1]
    if not measured:
        return None
    times = [list(_times(case)) for case in measured]
    chosen = [next((_settings(one, case) for one in case.configs if "chosen" in one.roles), {}) for case in measured]
    names = dict.fromkeys(name for case in times for settings, _ in case for name in settings)
    found = [_parameter(name, times, chosen) for name in names]
    found = [one for one in found if len(one.values) > 1]
    found.sort(key=lambda one: (-(one.fixed or 1.0), -(one.wrong or 1.0)))
    first = cases[0]
    return Tunables(first.stored.key.kernel, *first.place, len(measured), found, _one_config(measured))


def _times(case: ReportCase) -> Iterator[tuple[Mapping[str, str], float]]:
    for config in case.configs:
        if config.usable_us:
            yield _settings(config, case), config.usable_us


def _settings(config: ReportConfig, case: ReportCase) -> dict[str, str]:
    """A config's parameters; for Triton kernels including options."""
    options = OPTIONS if case.stored.key.is_of_triton else ()
    named = {**{name: config.config.get(name) for name in options}, **config.config["kwargs"]}
    return {name: value_words(value) for name, value in named.items() if name != "ir_override"}


def _parameter(name: str, times: Sequence[Times], chosen: Sequence[Mapping[str, str]]) -> Parameter:
    costs: dict[str, list[float]] = {}
    for case in times:
        fastest = min(us for _, us in case)
        least: dict[str, float] = {}
        for settings, us in case:
            if name in settings:
                least[settings[name]] = min(us, least.get(settings[name], math.inf))
        for value, us in least.items():
            costs.setdefault(value, []).append(slowdown(us, fastest))
    counts = Counter(settings.get(name) for settings in chosen)
    values = [Value(value, mean(costs[value]), counts[value]) for value in sorted(costs, key=in_order)]
    everywhere = [one.cost for one in values if one.cost and len(costs[one.value]) == len(times)]
    worst = max((one.cost for one in values if one.cost), default=None)
    return Parameter(name, min(everywhere, default=None), worst, values)


def _one_config(cases: Sequence[ReportCase]) -> OneConfig | None:
    costs: dict[str, list[float]] = {}
    for case in cases:
        fastest = case.times_us[0]
        for label, us in {config.label: config.usable_us for config in case.configs}.items():
            if us:
                costs.setdefault(label, []).append(slowdown(us, fastest))
    found = [OneConfig(label, mean(some) or 1.0, max(some)) for label, some in costs.items() if len(some) == len(cases)]
    return min(found, key=lambda one: one.cost, default=None)


def sizes(calls: Sequence[Json]) -> tuple[str, list[float]]:
    """The product of the numbers in which calls differ, in words, and its value for each call.

    Numbers are integer arguments and tensor sizes that all calls have; of equal columns only the first is used. Without
    any: "" and no sizes.
    """
    rows = [dict(_numbers(call)) for call in calls]
    columns: dict[tuple[int, ...], str] = {}
    for name in rows[0] if rows else ():
        column = tuple(row.get(name, 0) for row in rows)
        if min(column) > 0 and len(set(column)) > 1:
            columns.setdefault(column, name)
    products = [min(math.prod(row), 10**300) for row in zip(*columns)]
    for column in columns:  # a column that is the product of the others, such as `n_elements` next to a shape
        if len(columns) > 2 and all(number * number == product for number, product in zip(column, products)):
            return columns[column], list(map(float, column))
    names = list(columns.values())
    return " * ".join(names[:3]) + " * ..." * (len(names) > 3), list(map(float, products))


def _numbers(call: Json) -> Iterator[tuple[str, int]]:
    for name, value in call.get("values", {}).items():
        if type(value) is int:
            yield name, value
    for name, tensor in call.get("tensors", {}).items():
        for place, size in enumerate(tensor.get("shape", ())):
            yield f"{name}.shape[{place}]", size
