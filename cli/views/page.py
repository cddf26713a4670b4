"""The page that `report` writes: one HTML file with inline SVG plots, no scripts, no network."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

import autotuned
from autotuned.key.words import call_words
from autotuned.offline.report.compare import Comparison, Pair, PairSummary
from autotuned.offline.report.parameters import Parameter, sizes
from autotuned.offline.report.report import Report
from autotuned.offline.report.reported import ReportCase, ReportConfig, by_kernel

from .. import terminal
from . import plots
from .plots import Dot, Point, tag, text

ROWS = 100  # per table; `CALLS` limits all tables of calls together
CALLS = 300
PLOTS = 24  # plots of kernels, and tables of parameters
DETAILS, FASTEST = 60, 8  # calls whose timings are listed, and configs of each
MISSING = 50


def of(found: Report) -> str:
    """The page of a report."""
    real = [case for case in found.cases if not case.is_interpreted] or found.cases
    view = _View(found.cases)
    panels, series = view.panels([(case, case.vs_default, _said(case)) for case in real])
    kernels = by_kernel(found.cases)
    each = max(5, CALLS // max(len(kernels), 1))
    groups = [_group(name, cases, each) for name, cases in list(kernels.items())[: CALLS // 5]]
    shown = [one for one in found.devices if not one.interpreted] or found.devices
    return view.page(
        "report.html",
        report=found,
        tiles=shown[:6],
        kernels_at=lambda one: len({k.kernel for k in found.kernels if view.classes(k) == view.classes(one)}),
        configs=sum(one.configs for one in found.devices),
        failed=sum(one.failed for one in found.devices),
        seconds=sum(one.seconds for one in found.devices),
        kernels=found.kernels[:ROWS],
        interpreted=any(one.interpreted for one in found.devices) and shown is not found.devices,
        plots=panels[:PLOTS],
        plots_left=len(panels) - PLOTS,
        series=series,
        tunables=found.tunables[:PLOTS],
        suggestions=found.suggestions[:ROWS],
        missing=found.coverage.missing[:MISSING] if found.coverage is not None else [],
        groups=groups,
        listed=[group["kernel"] for group in groups],
        kernel_count=len(kernels),
    )


def compared(found: Comparison) -> str:
    """The page of a comparison."""
    view = _View([case for pair in found.pairs for case in (pair.a, pair.b)])
    panels, series = view.panels(
        [
            (pair.a, pair.ratio, f"{pair.a.stored.call_words}: {terminal.ratio_words(pair.ratio)}")
            for pair in found.pairs
        ]
    )
    return view.page(
        "compare.html",
        found=found,
        kernels=found.kernels[:ROWS],
        plots=panels[:PLOTS],
        plots_left=len(panels) - PLOTS,
        series=series,
        slower=found.slower[:ROWS],
        pairs=found.pairs[:CALLS],
    )


def _said(case: ReportCase) -> str:
    stored = case.stored
    return f"{stored.call_words}: {terminal.ratio_words(case.vs_default)}, {stored.config_words}, {_where(case)}"


def _group(kernel: str, cases: Sequence[ReportCase], most: int) -> dict[str, Any]:
    """The rows of one kernel; rows that look the same also show their keys."""
    words = Counter((case.stored.call_words, case.place) for case in cases)
    shown = cases[:most]
    return {
        "kernel": kernel,
        "cases": shown,
        "left": len(cases) - len(shown),
        "alike": [case for case in shown if words[case.stored.call_words, case.place] > 1],
        "details": [case for case in shown if case.configs][: max(1, most * DETAILS // CALLS)],
    }


class _View:
    """Data and filters for the templates: devices and toolchains by number, words and plots."""

    def __init__(self, cases: Sequence[ReportCase]) -> None:
        self.devices = list(dict.fromkeys(case.stored.device for case in cases))
        self.toolchains = list(dict.fromkeys(case.stored.toolchain for case in cases))

    def page(self, name: str, **facts: Any) -> str:
        """Render a template."""
        loader = jinja2.FunctionLoader(_template)
        env = jinja2.Environment(
            autoescape=True, loader=loader, trim_blocks=True, lstrip_blocks=True, finalize=_printable,
            undefined=jinja2.StrictUndefined,
        )  # fmt: skip
        env.filters.update(
            anchor=_anchor, both=_both, call=call_words, classes=self.classes, code=_code, columns=_columns,
            costs=_costs, counted=terminal.counted, duration=_duration, fastest=_fastest, mark=plots.mark, name=_name,
            number="{:,}".format, quality=_quality, ratio=terminal.ratio_words, short=_short,
            span=_spans(facts["kernels"]), strip=_strip, time=terminal.time_words, where=_where,
        )  # fmt: skip
        return env.get_template(name).render(
            **facts,
            style=Markup(_template("page.css")),
            version=autotuned.__version__,
            made=time.strftime("%Y-%m-%d %H:%M"),
            devices=self.devices,
            toolchains=self.toolchains,
            filters=[
                *(f"d{n}" for n in range(len(self.devices)) if len(self.devices) > 1),
                *(f"t{n}" for n in range(len(self.toolchains)) if len(self.toolchains) > 1),
            ],
        )

    def classes(self, one: Any) -> str:
        """CSS classes of a case, summary or suggestion, for the page's filters."""
        device, toolchain = _place(one)
        found = [("d", self.devices, device), ("t", self.toolchains, toolchain)]
        return " ".join(f"{kind}{names.index(name)}" for kind, names, name in found if name in names)

    def panels(
        self, cases: Sequence[tuple[ReportCase, float | None, str]]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """A plot over sizes for each kernel whose calls have sizes, and its series: devices and toolchains."""
        series = list(dict.fromkeys(case.place for case, _, _ in cases))
        kernels: dict[str, list[tuple[ReportCase, float, str]]] = {}
        for case, ratio, words in cases:
            if ratio:
                kernels.setdefault(case.stored.key.kernel, []).append((case, ratio, words))
        found = []
        for kernel, some in kernels.items():
            label, large = sizes([case.stored.key.call for case, _, _ in some])
            points = [
                Point(size, ratio, words, series.index(case.place), self.classes(case))
                for size, (case, ratio, words) in zip(large, some)
            ]
            if label:
                title = f"{kernel}: {len(points)} calls over {label}"
                found.append({"kernel": kernel, "image": plots.over_sizes(points, label, title)})
        named = [
            {"number": number, "words": _where(place), "classes": self.classes(place)}
            for number, place in enumerate(series)
        ]
        return found, named


def _place(one: Any) -> tuple[str, str]:
    """Device and toolchain of a case, summary, suggestion or place."""
    if isinstance(one, tuple):
        return one
    return one.place if isinstance(one, ReportCase) else (one.device, one.toolchain)


def _where(one: Any) -> str:
    return ", ".join(name for name in _place(one) if name and name != "n/a")


def _template(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _printable(value: Any) -> Any:
    return text(value) if isinstance(value, str) else value


def _anchor(name: str) -> str:
    return "kernel-" + "".join(letter if letter.isalnum() else "-" for letter in name)


def _name(kernel: str) -> Markup:
    """A kernel's name, breakable after its dots."""
    return Markup(".<wbr>").join(map(text, kernel.split(".")))


def _short(kernel: str | None) -> str:
    return (kernel or "").rpartition(".")[2]


def _code(words: str) -> Markup:
    """Text with parts in backticks as code."""
    parts = words.split("`")
    return Markup("").join(tag("code", part) if place % 2 else text(part) for place, part in enumerate(parts))


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.1f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )


def _quality(case: ReportCase) -> Markup:
    quality = case.stored.quality or "n/a"
    return tag("span", quality, class_=f"chip {quality}")


def _both(compared: Pair | PairSummary, part: int) -> str:
    """Device (0) or toolchain (1) of both sides, once if equal."""
    return " \u2192 ".join(dict.fromkeys(place[part] for place in compared.place[1:]))


def _spans(kernels: Sequence[Any]) -> Any:
    """A function that draws a kernel's range of ratios on a common scale."""
    low = min((one.least for one in kernels if one.least), default=1.0)
    high = max((one.most for one in kernels if one.most), default=1.0)

    def draw(one: Any) -> Markup:
        middle = one.ratio if hasattr(one, "ratio") else one.vs_default
        if not middle:
            return Markup("")
        ends = f"{terminal.ratio_words(one.least)} to {terminal.ratio_words(one.most)}"
        return plots.span(one.least, middle, one.most, low, high) + tag("span", ends, class_="faint")

    return draw


def _costs(parameter: Parameter) -> str:
    worst = f"worst {terminal.ratio_words(parameter.wrong)}"
    return worst if parameter.fixed is None else f"best {terminal.ratio_words(parameter.fixed)}, {worst}"


def _columns(parameter: Parameter) -> Markup:
    return plots.columns([(value.value, value.cost, value.chosen) for value in parameter.values])


def _strip(case: ReportCase) -> Markup:
    dots = [
        Dot(one.median_us, ", ".join([f"{one.label}: {terminal.time_words(one.median_us)}", *one.roles]), one.roles)
        for one in case.configs
        if one.median_us
    ]
    failed = [f"{len(some)} {status}" for status in ("failed", "wrong") if (some := case.failures(status))]
    return plots.strip(dots, ", ".join(failed))


def _fastest(case: ReportCase) -> list[ReportConfig]:
    """The fastest configs, the untuned one, and one for each kind of failure."""
    ordered = sorted(case.configs, key=lambda config: config.usable_us or math.inf)
    shown = [one for place, one in enumerate(ordered) if one.usable_us and (place < FASTEST or one.roles)]
    errors = {(one.status, one.error): one for one in reversed(ordered) if not one.usable_us}
    return [*shown, *list(errors.values())[:FASTEST]]
