"""`compress`: finds a few configs that serve all tuned calls of a kernel, and rules for untuned ones."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autotuned import env
from autotuned.configfiles import exchange, writer
from autotuned.configfiles.entry import Entry
from autotuned.configfiles.exchange import PathLike
from autotuned.configfiles.file import Fault, entry_of, grave, rounded, split_context
from autotuned.configfiles.policy import share
from autotuned.errors import ConfigFileError, refused
from autotuned.key.key import Key
from autotuned.rules import cover
from autotuned.rules.fit import Fit, fit
from autotuned.rules.table import Table, tables
from autotuned.store import conditions, layout, records
from autotuned.store.conditions import Conditions
from autotuned.store.record import Timing, TuningRecord, inspect, look_up
from autotuned.typed_json import Json, JsonFields, canonical

if TYPE_CHECKING:
    from autotuned.resolve.tuner import Tuner
    from autotuned.tunable.call import Call


@dataclass(frozen=True)
class Left:
    """A call that keeps its config, and why."""

    key: Key
    why: str

    def to_json(self) -> dict[str, Json]:
        """The call as `autotuned compress --json` prints it."""
        return {"kernel": self.key.kernel, "device": self.key.context["device"], "call": self.key.call, "why": self.why}


@dataclass(frozen=True)
class Compressed:
    """The configs chosen for the calls of one kernel on one device in one context.

    Attributes:
        context: The context of their keys, including the device.
        calls: Number of calls with times.
        before: Number of configs that were best for some call.
        configs: The chosen configs, in canonical form.
        least: Proven lower bound of the number of configs.
        is_exact: Whether no smaller number suffices, by proof.
        worst: The largest loss of a served call.
        fits: The fitted rules, one for each group of calls that differ in sizes only.
    """

    kernel: str
    context: Json
    calls: int
    before: int
    configs: tuple[Mapping[str, Json], ...]
    least: int
    is_exact: bool
    worst: float
    fits: tuple[Fit, ...]

    def to_json(self) -> dict[str, Json]:
        """The kernel as `autotuned compress --json` prints it."""
        rules = [{"sizes": list(one.table.names), **one.to_json()} for one in self.fits]
        plain = {"kernel": self.kernel, "context": self.context, "calls": self.calls, "before": self.before}
        chosen = {"configs": list(map(dict, self.configs)), "least": self.least, "exact": self.is_exact}
        return {**plain, **chosen, "worst": round(self.worst, 4), "rules": rules}


@dataclass
class CompressResult(JsonFields):
    """The result of `compress`.

    Attributes:
        files: The written config files.
        kernels: One per kernel, device and context.
        left: Calls that keep their config: without times, or not served well enough by the chosen configs.
        faults: Files and entries that could not be read.
    """

    files: list[str] = field(default_factory=list)
    kernels: list[Compressed] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


@env.interpreter_put_back()
def compress(
    paths: PathLike | Iterable[PathLike],
    *,
    within: str | float,
    out: PathLike,
    max_configs: int | None = None,
    targets: str | Iterable[str] | None = None,
) -> CompressResult:
    """Choose the fewest configs that serve every tuned call, and fit rules for untuned ones.

    Each kernel, device and context is compressed separately. Nothing is guessed: a config serves only calls that it
    was measured for, and a call without times keeps its config.

    Args:
        paths: Config files or folders of them, with times from this user's store; or records, folders of records, or a
            whole cache folder.
        within: Allowed loss of a tuned call against its best config: "5%" or 0.05.
        out: The folder for the config files; may be the input folder.
        max_configs: Largest number of configs per kernel, device and context.
        targets: Modules or files, as for `tune`, whose cases are first measured with the configs that won other calls;
            None measures nothing.

    Raises:
        OptionError: `within` or `max_configs` is not above 0.
        TargetError, NoDeviceError, DeviceLostError: Measuring failed, as for `check`.
        ConfigFileError: There are no files, or nothing in them can be used.
        OutputError: `out` cannot be written.
        OSError: A file cannot be read or written.
    """
    allowed = share(within, "within")
    if max_configs is not None and (type(max_configs) is not int or max_configs < 1):
        raise refused("max_configs", f"expected a number of 1 or more, got {max_configs!r:.60}")
    writer.refuse_unwritable(Path(out))
    result = CompressResult()
    known = _Known(result.faults, paths)
    if not known.calls:
        fault = f" ({result.faults[0]})" if result.faults else ""
        raise ConfigFileError(
            f"{known.where}: expected tuned calls, got none that can be read{fault}.", path=known.where
        )
    if targets is not None:
        _measure_missing(known, targets)
    for calls in known.groups():
        _compress(calls, allowed, max_configs, result, Path(out))
    return result


@dataclass(frozen=True)
class _Call:
    """A call to serve: its entry, and its record if it has times."""

    key: Key
    entry: Entry
    record: TuningRecord | None

    @property
    def times(self) -> dict[str, float]:
        """Microseconds by config, for configs that passed the same checks as the entry's config."""
        found = self.record.timings if self.record is not None else ()
        return {one.identity: one.median_us for one in found if one.serves(self.entry.conditions) and one.median_us}

    def timing(self, config: str) -> Timing | None:
        """The timing of a config."""
        found = self.record.timings if self.record is not None else ()
        return next((one for one in found if one.identity == config), None)


class _Known:
    """The calls in files or records, each once, with their times."""

    def __init__(self, faults: list[Fault], paths: PathLike | Iterable[PathLike]) -> None:
        self.where = ", ".join(map(str, exchange.paths_of(paths)))
        self.calls: dict[Key, _Call] = {}
        self._faults = faults
        for path in exchange.files_in(map(layout.records_in, exchange.paths_of(paths))):
            if path.parent.name not in (layout.DAMAGED, layout.JOURNAL):
                self._read(path)

    def _read(self, path: Path) -> None:
        found, seen = inspect(path)
        if found is not None:
            if found.winner is not None:
                self._note(_Call(found.key, entry_of(found), found if found.timings else None))
            return
        file, faults = exchange.read(path)
        self._faults += grave(faults)
        for key, entry in file.entries() if file is not None else ():
            self._note(_Call(key, entry, _timed(key)))

    def _note(self, call: _Call) -> None:
        before = self.calls.get(call.key)
        if before is None or (before.record is None and call.record is not None):
            self.calls[call.key] = call

    def refresh(self, key: Key) -> None:
        """Read the record of a call again."""
        if (here := _timed(key)) is not None:
            self.calls[key] = _Call(key, entry_of(here), here)

    def groups(self) -> Iterator[list[_Call]]:
        """The calls of each kernel, device and context."""
        found: dict[tuple[str, str], list[_Call]] = {}
        for key in sorted(self.calls, key=lambda key: key.text):
            found.setdefault((key.kernel, canonical(key.context)), []).append(self.calls[key])
        yield from (found[name] for name in sorted(found))


def _timed(key: Key) -> TuningRecord | None:
    """The user's record of a call, if it has a choice and times."""
    here = look_up(key)[0]
    return here if here is not None and here.winner and here.timings else None


def _measure_missing(known: _Known, targets: str | Iterable[str]) -> None:
    """Time cases with configs that won other calls of their group, if these times are missing."""
    from autotuned.offline import cases
    from autotuned.offline import targets as modules
    from autotuned.offline.device import tensors_on, use_device

    device = tensors_on(use_device())
    winners = {call.key: {one.entry.identity for one in calls} for calls in known.groups() for call in calls}
    for found in [one for target in modules.texts(targets) for one in modules.load(target)]:
        for case in cases.of(found, device):
            call = cases.bound(case)
            there = known.calls.get(found.tuner.chooser.key(call))
            if there is not None:
                _time(there, found.tuner, call, winners[there.key])
                known.refresh(there.key)


def _time(there: _Call, tuner: Tuner, call: Call, wanted: Collection[str]) -> None:
    """Add times of the wanted configs to a call's record; without a record, search."""
    from autotuned.offline import verify

    live, before = tuner.chooser.candidates(call), there.record
    if before is None or before.winner is None or there.entry.identity not in live:
        tuner.tune(call, force=True)
        return
    known = {one.identity for one in before.timings}
    missing = {name for name in live if name in wanted and name not in known}
    if not missing or not any(tuner.tunable.launches(call, live[name]) for name in missing):
        return
    stays = there.entry.identity
    timed = verify.retime(tuner, call, live.only({*missing, stays}), stays)[1]
    now, then = timed[stays].median_us, before.median_us
    if now and then:  # clocks may have changed: keep the ratio to the winner
        records.keep(before.extended([_scaled(timed[name], then / now) for name in sorted(missing)]))


def _scaled(timing: Timing, factor: float) -> Timing:
    times = {name: getattr(timing, name) for name in ("median_us", "low_us", "high_us")}
    return timing.replace(**{name: us and us * factor for name, us in times.items()})


def _compress(calls: Sequence[_Call], within: float, most: int | None, result: CompressResult, out: Path) -> None:
    timed, untimed = [call for call in calls if call.times], [call for call in calls if not call.times]
    result.left += [Left(call.key, "it has no times: tune it here") for call in untimed]
    whole = Table((), [()] * len(timed), [call.times for call in timed])
    chosen = cover.fewest(whole.losses, within, most)
    names = [whole.configs[place] for place in chosen.configs]
    entries = [(call.key, call.entry) for call in untimed]
    held = set(chosen.held)
    worst = 0.0
    for row, call in enumerate(timed):
        if row in held:
            place = min(chosen.configs, key=lambda place: (np.nan_to_num(whole.losses[row, place], nan=np.inf), place))
            worst = max(worst, float(whole.losses[row, place]))
            entries.append((call.key, _with_config(call, whole.configs[place])))
        else:
            entries.append((call.key, call.entry))
            result.left.append(Left(call.key, f"none of the {len(names)} configs is within {within:.1%} of its best"))
    key = calls[0].key
    found = tables(((call.key.call, call.times) for call in timed), key.context["device"]["sm_count"])
    among = names if most else None
    fits = [(fit(table, within, most, among), [timed[number] for number in numbers]) for table, numbers in found]
    before = len({call.entry.identity for call in timed})
    forms = tuple(map(json.loads, names))
    made = tuple(one for one, _ in fits)
    result.kernels.append(
        Compressed(key.kernel, key.context, len(timed), before, forms, chosen.least, chosen.is_exact, worst, made)
    )
    result.files += [path for path in _write(entries, fits, out) if path not in result.files]


def _with_config(call: _Call, config: str) -> Entry:
    """The entry with another config of its record, under that config's conditions."""
    timing = call.timing(config)
    if config == call.entry.identity or timing is None or call.record is None:
        return call.entry
    gain = call.entry.vs_default
    loss = (timing.median_us or 0.0) / call.record.median_us if call.record.median_us else None
    return replace(
        call.entry, config=timing.config, median_us=rounded(timing.median_us),
        vs_default=rounded(gain / loss) if gain and loss else None,
        conditions=call.record.conditions.replace(checks=timing.passed), quality=None, binaries=(),
    )  # fmt: skip


def _write(entries: Sequence[tuple[Key, Entry]], fits: Sequence[tuple[Fit, Sequence[_Call]]], out: Path) -> list[str]:
    """Write entries and rules into their kernel's file; rules replace older ones, other entries stay."""
    context, _ = split_context(entries[0][0].context)
    made = [(one, None if one.why_not else one.rule(_under(calls, one.configs))) for one, calls in fits]
    rules = {canonical(one.table.pattern): (rule, len(one.table)) for one, rule in made}
    return list(map(str, writer.ship_all(entries, out, (context, rules))))


def _under(calls: Sequence[_Call], configs: Sequence[str]) -> Conditions:
    """Conditions common to all times of some configs: the least protection, and the checks that all passed."""
    found = [call.record.conditions for call in calls if call.record is not None]
    restores = [one.restore for one in found if one.restore is not None]
    restore = reduce(lambda one, other: tuple(sorted(set(one) & set(other))), restores) if restores else None
    passed = [timing.passed for call in calls for name in configs if (timing := call.timing(name)) is not None]
    common = [check for check in (passed[0] if passed else ()) if all(_passes(check, others) for others in passed)]
    return Conditions(restore, conditions.strongest(common))


def _passes(check: conditions.Checked, passed: Sequence[conditions.Checked]) -> bool:
    return any(other.covers(check) for other in passed)
