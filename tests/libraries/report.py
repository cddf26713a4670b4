"""The tables of docs/drop-in.md, from the lines of `results.jsonl`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Line = dict[str, Any]
PHASES = ("cold", "warm", "second")
RANKS = ("stock", "ahead", "race")
Rows = list[list[str]]
FIRST = ("stock", "threads", "ahead", "race", "replace")
NONE = "-"


class Lines:
    """The lines that gave numbers, by operation, way and phase."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.failed = [line for line in lines if "error" in line]
        self._of: dict[tuple[str, str, str], list[Line]] = {}
        for line in lines:
            if "operation" in line and "error" not in line:
                self._of.setdefault((line["operation"], line["way"], line["phase"]), []).append(line)

    def of(self, operation: str, way: str, *phases: str) -> list[Line]:
        """Of the first of these phases that there are any of."""
        return next((found for phase in phases if (found := self._of.get((operation, way, phase)))), [])

    def median(self, operation: str, way: str, phase: str, number: Callable[[Line], float]) -> float | None:
        """Of the repeats; None without any."""
        found = [number(line) for line in self.of(operation, way, phase)]
        return statistics.median(found) if found else None

    def host(self, operation: str, way: str) -> Line | None:
        """The line whose host time is the median one, of the latest phase there is."""
        found = sorted(self.of(operation, way, "warm", "second", "cold"), key=lambda line: line["host_us"])
        return found[(len(found) - 1) // 2] if found else None


def first_s(line: Line) -> float:
    """Seconds of the first call."""
    return float(line["first_s"])


def compile_s(line: Line) -> float:
    """Seconds that the first call spent on compiling configs of tuned kernels, and on what else a search does."""
    return float(line["spent_s"]["tuned compile"] + line["spent_s"]["tuned other"])


def search_s(line: Line) -> float:
    """The same with measuring."""
    return compile_s(line) + float(line["spent_s"]["tuned measure"])


def untuned_s(line: Line) -> float:
    """Seconds that it spent on compiling what no tuner measures."""
    return float(line["spent_s"]["other compile"])


def memory_mb(line: Line) -> float:
    """The most that the process had in memory."""
    return float(line["memory_mb"]["self"])


def report(lines: Sequence[Line], operations: Sequence[str]) -> str:
    """All tables, the ratios that the goals are about, and what failed."""
    found = Lines([line for line in lines if "operation" in line])
    parts = [*map(_about, [line for line in lines if "versions" in line][-1:]), _first(found, operations),
             _later(found, operations), _containers(found, operations), _ranks(found, operations), _programs(found, operations), _host(found, operations), _bits(found, operations), _goals(found, operations),
             _failed(found)]  # fmt: skip
    return "\n\n".join(part for part in parts if part)


def _about(line: Line) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in line["versions"].items() if version)
    return f"{versions}; Python {line['python']}, {line['cores']} cores, launcher {line['launcher']}"


def _first(found: Lines, operations: Sequence[str]) -> str:
    ways = [way for way in FIRST if any(found.of(name, way, "cold") for name in operations)]
    rows = []
    for name in operations:
        stock = found.median(name, "stock", "cold", first_s)
        cells = [_against(found.median(name, way, "cold", first_s), stock, way != "stock") for way in ways]
        floor = found.median(name, "stock", "cold", untuned_s)
        runs = [_number(found.median(name, way, "cold", lambda line: line["ptxas"]), 0) for way in ways]
        rows.append([name, *cells, _number(floor, 1), ", ".join(runs)])
    head = ["operation", *(f"{way}, s" for way in ways), "untuned kernels, s", f"`ptxas` runs: {', '.join(ways)}"]
    return (
        "First call, all caches empty (and how many times sooner than stock):\n\n" + _table(head, rows, len(ways))
        if ways
        else ""
    )


def _against(seconds: float | None, stock: float | None, ratio: bool) -> str:
    return _number(seconds, 1) + (f" ({stock / seconds:.1f})" if ratio and stock and seconds else "")


def _later(found: Lines, operations: Sequence[str]) -> str:
    columns = (("ahead", "cold"), ("ahead", "second"), ("race", "second"), ("stock", "warm"), ("cached", "warm"),
               ("ahead", "warm"), ("replace", "warm"))  # fmt: skip
    used = [at for at in columns if any(found.of(name, *at) for name in operations)]
    rows = [
        [name, *(_number(found.median(name, *at, first_s), 2) for at in used)]
        for name in operations
        if any(found.of(name, way, phase) for way, phase in used if phase != "cold")
    ]
    return "First call of a later process, s:\n\n" + _table(
        ["operation", *(f"{way}, {phase}" for way, phase in used)], rows, 0
    ) if rows else ""  # fmt: skip


def _containers(found: Lines, operations: Sequence[str]) -> str:
    columns = (("binaries", "cold"), ("binaries", "container"), ("no-compiler", "container"), ("stock", "warm"))
    rows = []
    for name in operations:
        lines = found.of(name, "binaries", "container")
        if lines:
            seconds = [_number(found.median(name, *at, first_s), 2) for at in columns]
            compiled = max(line["compiles"] + line["ptxas"] for line in lines)
            broken = found.of(name, "no-compiler", "container")
            rows.append(
                [name, *seconds, str(compiled), _same_bits([*lines, *broken], found.of(name, "binaries", "cold"))]
            )
    head = ["operation", *(f"{way}, {phase}, s" for way, phase in columns), "compiles and `ptxas` runs", "bits"]
    return "First call in a second container, `run --binaries`:\n\n" + _table(head, rows, 0) if rows else ""


def _ranks(found: Lines, operations: Sequence[str]) -> str:
    ways = [
        way
        for one in RANKS
        for way in (one, f"{one}-8")
        if any(found.of(name, f"{one}-8", "cold") for name in operations)
    ]
    rows = [
        [name, *(", ".join(_of_ranks(found, name, way)) for way in ways)]
        for name in operations
        if any(found.of(name, way, "cold") for way in ways if way.endswith("-8"))
    ]
    said = "One rank and eight at once, all caches empty: s of the last one's first call; `ptxas` runs; MB of all:\n\n"
    return said + _table(["operation", *ways], rows, 0) if rows else ""


def _of_ranks(found: Lines, operation: str, way: str) -> list[str]:
    numbers: list[tuple[Callable[[Line], float], int]] = [(last_s, 1), (lambda line: line["ptxas"], 0), (memory_mb, 0)]
    return [_number(found.median(operation, way, "cold", number), digits) for number, digits in numbers]


def last_s(line: Line) -> float:
    """Seconds of the first call, of the slowest rank."""
    return max(line.get("ranks_first_s", [line["first_s"]]))


def _programs(found: Lines, operations: Sequence[str]) -> str:
    ways = [
        way for way in FIRST if any("tokens" in line for name in operations for line in found.of(name, way, *PHASES))
    ]
    rows = []
    for name in operations:
        lines = [next(iter(found.of(name, way, *PHASES)), {}) for way in ways]
        if any("tokens" in line for line in lines):
            steps = [_first_step(line) for line in lines]
            speeds = [_number(_tokens_a_s(line), 0) for line in lines]
            rows.append([name, ", ".join(steps), ", ".join(speeds)])
    said = ", ".join(ways)
    head = ["program", f"s from its start to the end of the first step: {said}", f"tokens a second: {said}"]
    return "Whole programs:\n\n" + _table(head, rows, 0) if rows else ""


def _first_step(line: Line) -> str:
    if not line:
        return NONE
    seconds = line["imports_s"] + line["inputs_s"] + line["first_s"]
    return f"{seconds:.1f}" + ("" if line["phase"] == "cold" else f" ({line['phase']})")


def _tokens_a_s(line: Line) -> float | None:
    return line["tokens"] / line["whole_us"] * 1e6 if "tokens" in line else None


def _host(found: Lines, operations: Sequence[str]) -> str:
    ways = [way for way in ("stock", "ahead", "race", "replace") if any(found.host(name, way) for name in operations)]
    rows = []
    for name in operations:
        lines = {way: line for way in ways if (line := found.host(name, way))}
        if lines:
            counts = sorted({line["launches"] for line in lines.values()})
            cells = [_number(lines[way]["host_us"], 0) if way in lines else NONE for way in ways]
            each = [_number(_us_a_launch(lines.get(way)), 1) for way in ways]
            rows.append([name, ", ".join(map(str, counts)), ", ".join(cells), ", ".join(each), _ratio(lines)])
    head = ["operation", "launches", f"us an operation: {', '.join(ways)}", "us a launch", "replace / stock"]
    return "Host time once all is bound, without waiting for the GPU:\n\n" + _table(head, rows, 0) if rows else ""


def _us_a_launch(line: Line | None) -> float | None:
    return line["host_us"] / line["launches"] if line and line["launches"] else None


def _ratio(lines: dict[str, Line]) -> str:
    stock, replace = lines.get("stock"), lines.get("replace")
    return f"{replace['host_us'] / stock['host_us']:.2f}" if stock and replace else NONE


def _bits(found: Lines, operations: Sequence[str]) -> str:
    ways = ("ahead", "race", "replace")
    rows = []
    for name in operations:
        stock = [line for phase in ("cold", "warm") for line in found.of(name, "stock", phase)]
        cells = [_same_bits(found.of(name, way, "cold", "warm"), stock) for way in ways]
        if any(cell != NONE for cell in cells):
            rows.append([name, *cells])
    return "Bits of results and gradients against stock:\n\n" + _table(["operation", *ways], rows, 0) if rows else ""


def _same_bits(lines: Sequence[Line], stock: Sequence[Line]) -> str:
    """What holds of all these lines, each against those of stock that chose the same configs."""
    return ", ".join(sorted({_bits_of(line, stock) for line in lines})) if lines and stock else NONE


def _bits_of(line: Line, stock: Sequence[Line]) -> str:
    if any(line["bits"] == one["bits"] for one in stock):
        return "equal"
    if not (line["repeats"] and all(one["repeats"] for one in stock)):
        return "differ from call to call"
    alike = [one for one in stock if one["choices"] == line["choices"]]
    return "DIFFER" if alike else "other configs"


def _goals(found: Lines, operations: Sequence[str]) -> str:
    sums = (
        ("compiling configs of tuned kernels, summed", "ahead", compile_s),
        ("compiling and measuring them, summed", "race", search_s),
    )
    rows = [row for name, way, number in sums if (row := _summed(found, operations, name, way, number))]
    rows += [_memory(found, operations, way) for way in ("ahead", "race") if _pairs(found, operations, way, memory_mb)]
    for way in ("ahead", "race", "replace"):
        if ratios := _host_ratios(found, operations, way):
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            rows.append([f"host time, {way} / stock: geometric mean, most", "", "", f"{mean:.2f}, {max(ratios):.2f}"])
    return _table(["", "stock", "ours", "ratio"], rows, 0) if rows else ""


def _pairs(
    found: Lines, operations: Sequence[str], way: str, number: Callable[[Line], float]
) -> list[tuple[float, float]]:
    """Stock's number and ours for each operation that both have a cold process of."""
    pairs = [[found.median(one, each, "cold", number) for each in ("stock", way)] for one in operations]
    return [(stock, ours) for stock, ours in pairs if stock is not None and ours is not None]


def _summed(
    found: Lines, operations: Sequence[str], name: str, way: str, number: Callable[[Line], float]
) -> list[str] | None:
    pairs = _pairs(found, operations, way, number)
    stock, ours = (sum(pair[at] for pair in pairs) for at in (0, 1))
    label = f"{name}, {way}; operations: {len(pairs)}"
    return [label, f"{stock:.1f} s", f"{ours:.1f} s", f"{stock / ours:.1f}" if ours else NONE] if pairs else None


def _memory(found: Lines, operations: Sequence[str], way: str) -> list[str]:
    pairs = _pairs(found, operations, way, memory_mb)
    stock, ours = (max(pair[at] for pair in pairs) for at in (0, 1))
    return [f"most host memory of a cold process, {way}", f"{stock:,.0f} MB", f"{ours:,.0f} MB", f"{stock / ours:.1f}"]


def _host_ratios(found: Lines, operations: Sequence[str], way: str) -> list[float]:
    pairs = [(found.host(name, "stock"), found.host(name, way)) for name in operations]
    return [ours["host_us"] / stock["host_us"] for stock, ours in pairs if stock and ours]


def _failed(found: Lines) -> str:
    return "\n".join(f"- {line['operation']}, {line['way']}, {line['phase']}: {line['error']}" for line in found.failed)


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:,.{digits}f}"


def _table(head: Sequence[str], rows: Rows, needs: int) -> str:
    """Markdown; rows whose first `needs` numbers are all missing are left out."""
    kept = [row for row in rows if not needs or any(cell != NONE for cell in row[1 : 1 + needs])]
    lines = [head, ["---"] * len(head), *kept]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
