"""The page that `report` writes: one file of HTML, its plots inline SVG, without scripts and without the network."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import resources

import autotuned
from autotuned.key.words import call_words
from autotuned.offline.report import Report, ReportCase, ReportConfig, mean
from autotuned.offline.usage import Missing, Usage
from autotuned.typed_json import Json

from .. import terminal
from . import plots
from .plots import escape

MOST_BARS = 40  # of the plot over all cases; the rest is in the tables
MISSING_ROWS = 50


def of(found: Report) -> str:
    """The page as text."""
    cases, covered = found.cases, found.coverage
    style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    names = list(dict.fromkeys(case.stored.key.kernel for case in cases))
    body = [
        _head(found.totals, covered),
        _contents(names) if len(names) > 1 else "",
        _overview(cases),
        *(_kernel(name, [case for case in cases if case.stored.key.kernel == name]) for name in names),
        _missing(covered) if covered is not None else "",
        _legend(),
    ]
    if not cases:
        body.insert(1, "<p>Nothing is tuned yet: <code>autotuned tune</code> measures, and this page shows.</p>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>What tuning bought</title>\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n{''.join(body)}</main>\n</body>\n</html>\n"
    )


def _head(totals: Json, covered: Usage | None) -> str:
    tiles = [
        (terminal.ratio_words(totals[name]), f"the speed of the {what}, on average")
        for name, what in (("vs_first", "first config"), ("vs_default", "default"))
        if totals[name] is not None
    ]
    tiles += [
        (str(totals["cases"]), f"cases of {terminal.counted(totals['kernels'], 'kernel')}"),
        (str(totals["configs"]), f"configs measured, {totals['failed']} failed"),
        (f"{totals['seconds']:.1f} s", "spent searching"),
        (f"{totals['tied']} / {totals['noisy']}", "ties / noisy choices"),
    ]
    if covered is not None:
        tiles.append((f"{covered.share:.1%}", f"of {covered.calls} recorded calls are tuned"))
    made = time.strftime("%Y-%m-%d %H:%M")
    cells = "".join(
        f'<div class="tile"><b>{escape(number)}</b><span>{escape(text)}</span></div>\n' for number, text in tiles
    )
    return (
        f"<h1>What tuning bought</h1>\n<p class=faint>autotuned {escape(autotuned.__version__)}, {made}</p>\n"
        f'<div class="tiles">\n{cells}</div>\n'
    )


def _contents(names: Sequence[str]) -> str:
    links = "".join(f'<li><a href="#{escape(_anchor(name))}">{escape(name)}</a></li>\n' for name in names)
    return f"<nav><ul>\n{links}</ul></nav>\n"


def _anchor(name: str) -> str:
    return "kernel-" + "".join(letter if letter.isalnum() else "-" for letter in name)


def _overview(cases: Sequence[ReportCase]) -> str:
    """Bars of the speed-up of each case, the largest first."""
    known = sorted((case for case in cases if case.vs_first), key=lambda case: -(case.vs_first or 0.0))
    if not known:
        return ""
    shown = [(case.stored, case.vs_first or 1.0) for case in known[:MOST_BARS]]
    bars = [(f"{_short(stored.key.kernel)}  {stored.call_words}", ratio) for stored, ratio in shown]
    more = f"<p class=faint>and {len(known) - MOST_BARS} more, below</p>\n" if len(known) > MOST_BARS else ""
    plot = f'<div class="wide">{plots.bars(bars)}</div>\n'
    how = ", on a logarithmic scale" * (bars[0][1] >= plots.LINEAR)
    return f"<section>\n<h2>Speed against the first config{how}</h2>\n{plot}{more}</section>\n"


def _short(kernel: str) -> str:
    return kernel.rpartition(".")[2]


def _kernel(name: str, cases: Sequence[ReportCase]) -> str:
    average = mean(case.vs_first for case in cases)
    facts = [terminal.counted(len(cases), "case"), *sorted({case.stored.device for case in cases})]
    facts += sorted({case.stored.toolchain for case in cases} - {"n/a"})
    facts += [f"{terminal.ratio_words(average)} the first config on average"] if average else []
    chips = "".join(f"<span class=chip>{escape(fact)}</span> " for fact in facts)
    head = "<th>call</th><th>chosen</th>" + "".join(map(_number_head, ("time", "vs first", "vs default")))
    alike = Counter(case.stored.call_words for case in cases)
    rows = "".join(_row(case, alike[case.stored.call_words] > 1) for case in cases)
    details = "".join(map(_details, (case for case in cases if case.configs)))
    return (
        f'<section id="{escape(_anchor(name))}">\n<h2>{escape(name)}</h2>\n<p>{chips}</p>\n'
        f'<div class="wide"><table>\n<thead><tr>{head}<th>all configs</th><th>quality</th><th>from</th></tr></thead>\n'
        f"<tbody>\n{rows}</tbody>\n</table></div>\n{details}</section>\n"
    )


def _row(case: ReportCase, alike: bool) -> str:
    """The row of a case; `alike`: another has the same words, in another context."""
    stored = case.stored
    notes = [f"key {stored.digest[:12]}"] * alike + [_called(case.count)] * (case.count is not None)
    seen = f"<br><span class=faint>{', '.join(notes)}</span>" if notes else ""
    quality = stored.quality or ""
    cells = [
        f"<td>{escape(case.stored.call_words)}{seen}</td>",
        f"<td><code>{escape(stored.config_words)}</code></td>",
        f'<td class="number">{escape(terminal.time_words(stored.median_us))}</td>',
        _ratio_cell(case.vs_first),
        _ratio_cell(case.vs_default),
        f"<td>{plots.strip([_dot(config) for config in case.configs if config.median_us], _failed_words(case))}</td>",
        f'<td><span class="chip {escape(quality)}">{escape(quality or "n/a")}</span></td>',
        f'<td title="{escape(stored.path)}">{escape(stored.place)}</td>',
    ]
    return f"<tr>{''.join(cells)}</tr>\n"


def _called(count: int | None) -> str:
    return {0: "never called", 1: "called once"}.get(count or 0, f"called {count} times")


def _number_head(text: str) -> str:
    return f'<th class="number">{text}</th>'


def _ratio_cell(ratio: float | None) -> str:
    kind = "" if ratio is None else " good" if ratio >= 1.05 else " bad" if ratio < 0.95 else ""
    return f'<td class="number{kind}">{escape(terminal.ratio_words(ratio))}</td>'


def _dot(config: ReportConfig) -> plots.Dot:
    words = f"{config.label}: {terminal.time_words(config.median_us)}" + "".join(f", {role}" for role in config.roles)
    return plots.Dot(config.median_us or math.nan, words, config.roles)


def _failed_words(case: ReportCase) -> str:
    words = [f"{len(found)} {status}" for status in ("failed", "wrong") if (found := case.failures(status))]
    return ", ".join(words)


def _details(case: ReportCase) -> str:
    """Every config of a case, fastest first, then those that failed."""
    ordered = sorted(case.configs, key=lambda config: config.median_us or math.inf)
    fastest = case.times_us[0] if case.times_us else 0.0
    rows = "".join(_config_row(config, fastest) for config in ordered)
    head = f"<th>config</th>{_number_head('time')}<th>against the fastest</th>"
    head += f"{_number_head('20-80%')}{_number_head('samples')}<th></th>"
    took = "" if case.seconds is None else f", {case.seconds:.1f} s"
    return (
        f"<details>\n<summary>{escape(case.stored.call_words)}: {len(case.configs)} configs{took}</summary>\n"
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n'
        f"<p class=faint>key {case.stored.digest}</p>\n</details>\n"
    )


def _config_row(config: ReportConfig, fastest_us: float) -> str:
    roles = "".join(f'<span class="chip {role}">{role}</span> ' for role in config.roles)
    spread = f"{terminal.time_words(config.low_us)} - {terminal.time_words(config.high_us)}" if config.low_us else ""
    error = "" if config.status == "ok" else f"{config.status}: {config.error}"
    return (
        f"<tr><td><code>{escape(config.label)}</code> {roles}</td>"
        f'<td class="number">{escape(terminal.time_words(config.median_us))}</td>'
        f"<td>{plots.bar(config.median_us / fastest_us if config.median_us and fastest_us else None)}</td>"
        f'<td class="number">{escape(spread)}</td><td class="number">{config.samples or ""}</td>'
        f'<td class="error">{escape(error[:400])}</td></tr>\n'
    )


def _missing(covered: Usage) -> str:
    if not covered.missing:
        return ""
    rows = "".join(map(_missing_row, covered.missing[:MISSING_ROWS]))
    left = len(covered.missing) - MISSING_ROWS
    more = f"<p class=faint>and {left} more</p>\n" if left > 0 else ""
    head = f"<th>kernel</th><th>call</th><th>tuned != called, from the nearest</th>{_number_head('calls')}"
    return (
        "<section>\n<h2>Called, and not tuned</h2>\n"
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}</tbody>\n</table></div>\n{more}</section>\n"
    )


def _missing_row(one: Missing) -> str:
    call, kernel = call_words(one.key.call), one.key.kernel
    return (
        f"<tr><td>{escape(kernel)}</td><td>{escape(call)}</td><td>{escape(one.words)}</td>"
        f'<td class="number">{one.count}</td></tr>\n'
    )


def _legend() -> str:
    items: Iterable[tuple[str, str]] = (
        ("vs first, vs default", "time of that config over the time of the chosen one: above 1 the choice is faster"),
        (
            "all configs",
            "a dot each on a logarithmic scale, the fastest left; filled: chosen; ring: first; orange: default",
        ),
        ("tied", "another config was as fast within what can be told; the earlier in the list was taken"),
        ("noisy", "the samples of the chosen config spread by more than 5%"),
        ("unresolved", "too short for the clock"),
        ("from", "the user's store, or the config file"),
    )
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>\n" for name, text in items)
    return f'<section>\n<h2>How to read this</h2>\n<dl class="legend">\n{rows}</dl>\n</section>\n'
