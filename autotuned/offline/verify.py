"""Checks shipped choices against the program: whether its kernels have the configs, and whether they are fastest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from autotuned.binaries import writer as binary_files
from autotuned.configfiles import lookup, shipped_rules, writer
from autotuned.configfiles.file import ConfigFile, Entry, passed, rounded
from autotuned.errors import DeviceLostError
from autotuned.key import opaque
from autotuned.key.key import Key
from autotuned.offline import cases
from autotuned.offline.cases import Case
from autotuned.offline.targets import TunedObject
from autotuned.resolve.tuner import Tuner
from autotuned.search import search
from autotuned.search.job import Job, Outcome, timer_of
from autotuned.store import records
from autotuned.store.choice import Candidates, Live
from autotuned.store.conditions import Conditions
from autotuned.store.record import Timing
from autotuned.tunable import configs, mismatch
from autotuned.tunable.call import Call
from autotuned.typed_json import Json, canonical

RULE = "rule"


# -- whether the kernel still has the configs ------------------------------------------------------------------------


def stale(file: ConfigFile, found: TunedObject) -> Iterator[str]:
    """A line for each entry that the kernel cannot use, or only if a policy allows it."""
    tuner = found.tuner
    source = tuner.tunable.source
    for group in file.groups():
        if group.context.get("source") != source:
            yield f"tuned for another source of the kernel: the folder's policy decides on it: {_short(group.context)}."
        for entry in group.entries.values():
            if problem := _problem(entry, tuner):
                yield f"dead: {_short(entry.call)}: {problem}."
    for _, rule in file.rules:
        for form in rule.configs:
            if problem := _problem(Entry(rule.call, form, None, None), tuner):
                yield f"dead: the rule over {rule.words} has a config that the kernel cannot use: {problem}."


def _problem(entry: Entry, tuner: Tuner) -> str:
    target = tuner.tunable
    names = {parameter.name for parameter in target.parameters}
    unknown = sorted(name for name in passed(entry.call) if not name.endswith("()") and not target.allows(name))
    if unknown:
        return f"the call has {unknown[0]!r}.{configs.suggestion(unknown[0], names)}".rstrip(".")
    misplaced = sorted(name for name in entry.config["kwargs"] if not target.allows(name))
    if misplaced:
        return f"the config sets {misplaced[0]!r}.{configs.suggestion(misplaced[0], names)}".rstrip(".")
    if tuner.options.computed is not None:
        return ""  # configs depend on the arguments
    live = [configs.identity(config, target.name, opaque.spell) for config in tuner.options.configs()]
    return "" if entry.identity in live else mismatch.misfit(entry.config, live)


def _short(data: Json) -> str:
    return canonical(data)[:160]


# -- whether the configs are fastest ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contest:
    """A shipped choice timed against its alternatives.

    Attributes:
        shipped_us, default_us, rival_us: Medians in microseconds; None if it did not run. The rival is the stored
            record's runner-up, or without a record the fastest other config.
        rival: Label of the rival.
        error: Why the shipped choice did not run.
        beaten: Whether the untuned config is faster by more than a tie, also in a duel of the two.
        path: The config file.
        near: The call that the choice was tuned for, if it is the nearest shape's; `RULE` for a rule's choice.
        untuned: Canonical form of the untuned config, and its conditions.
    """

    key: Key
    config: Mapping[str, Json]
    shipped_us: float | None
    default_us: float | None
    rival_us: float | None
    rival: str
    error: str | None = None
    beaten: bool = False
    path: str = ""
    near: Mapping[str, Json] | None = None
    untuned: tuple[Mapping[str, Json], Conditions] | None = None

    @property
    def is_of_rule(self) -> bool:
        """Whether a rule gave the choice."""
        return self.near is not None and RULE in self.near

    @property
    def loss(self) -> float:
        """Loss against the faster of default and rival; negative if the choice is faster."""
        others = [us for us in (self.default_us, self.rival_us) if us]
        if not self.shipped_us:
            return float("inf")
        return self.shipped_us / min(others) - 1.0 if others else -1.0

    def to_json(self) -> dict[str, Json]:
        """The contest as `autotuned check --json` prints it; loss is None if the shipped choice did not run."""
        return {
            "kernel": self.key.kernel,
            "triton": self.key.context.get("triton"),
            "call": self.key.call,
            "config": dict(self.config),
            "shipped_us": self.shipped_us,
            "default_us": self.default_us,
            "rival_us": self.rival_us,
            "rival": self.rival,
            "loss": None if self.loss == float("inf") else round(self.loss, 4),
            "beaten": self.beaten,
            "nearest": None if self.is_of_rule else self.near,
            "rule": self.near[RULE] if self.near is not None and self.is_of_rule else None,
            "error": self.error,
        }


class Offered(NamedTuple):
    """The choice of config files for a call: the config's identity, its file, and `near` as in `Contest`."""

    identity: str
    path: str
    near: Mapping[str, Json] | None = None


def contest_of(files: Iterable[tuple[Path, ConfigFile]], case: Case) -> Contest | None:
    """Time the choice of files for a case: an exact one, a rule's or the nearest shape's; None without a choice.

    Raises:
        TargetError: The case's generator failed.
        CallError: The case does not fit its kernel.
        DeviceLostError: A config left the device in an error state.
    """
    call, tuner = cases.bound(case), case.found.tuner
    key, live = tuner.chooser.key(call), tuner.chooser.candidates(call)
    offered = _offered(files, key, live, tuner)
    if offered is None or not any(tuner.tunable.launches(call, config) for config in live.values()):
        return None
    try:
        return contest(tuner, call, key, offered)
    except DeviceLostError:
        raise
    except Exception as error:  # the kernel's: it fails with every config
        return _not_run(key, offered, cases.reason(error))


def _not_run(key: Key, offered: Offered, why: str) -> Contest:
    return Contest(key, json.loads(offered.identity), None, None, None, "", why, False, *offered[1:])


def _offered(files: Iterable[tuple[Path, ConfigFile]], key: Key, live: Candidates, tuner: Tuner) -> Offered | None:
    here = {path: file for path, file in files if file.kernel == key.kernel}
    for path, file in here.items():
        if entry := file.find(key):
            return Offered(entry.identity, str(path))
    options, seen = tuner.options, None
    needed = options.needs(key.kernel, live)
    if options.within is not None or lookup.allow_rules():
        seen = shipped_rules.look_rule(key, live, options.within, needed).choice
    if seen is None and options.nearest:
        seen = lookup.look_nearest(key, live, options.nearest, needed).choice
    if seen is None or Path(seen.where).resolve() not in {path.resolve() for path in here}:
        return None
    near = {RULE: seen.note} if seen.key is None else seen.key.call
    return Offered(tuner.chooser.state.identity(seen.config), seen.where, near)


def left_out(files: Iterable[ConfigFile], timed: Iterable[Contest]) -> Iterator[str]:
    """A line for each kernel with choices for this device, toolchain and source that were not timed."""
    by_kernel: dict[str, list[Key]] = {}
    for one in timed:
        by_kernel.setdefault(one.key.kernel, []).append(one.key)
    held: dict[str, list[Key]] = {}
    for file in files:
        held.setdefault(file.kernel, []).extend(key for key, _ in file.entries())
    for kernel, keys in held.items():
        reached = by_kernel.get(kernel)
        if not reached:
            yield f"`{kernel}`: none of its cases has a choice for this device, toolchain and source"
        elif missed := {key for key in keys if key.context == reached[0].context} - {*reached}:
            yield f"`{kernel}`: choices for this device without a case: {len(missed)}"


def contest(tuner: Tuner, call: Call, key: Key, offered: Offered) -> Contest:
    """Time a shipped choice against the untuned config and the fastest rival."""
    live = tuner.chooser.candidates(call)
    shipped, default = offered.identity, live.untuned or next(iter(live))
    if shipped not in live:
        return _not_run(key, offered, mismatch.misfit(json.loads(shipped), live))
    others = _rivals(key, live, shipped, default)
    timings = retime(tuner, call, live.only({shipped, default, *others}), shipped)[1]
    best = min((timings[name] for name in others if timings[name].usable), key=_median, default=None)
    mine, base = timings[shipped], timings[default]
    duel = retime(tuner, call, live.only({shipped, default}), shipped) if _median(base) < _median(mine) else None
    under = Conditions(tuner.options.needs(key.kernel, live).restore, base.passed)
    return Contest(
        key, json.loads(shipped), mine.median_us, base.median_us, best.median_us if best else None,
        configs.label(best.config, key.is_of_triton) if best else "", mine.error,
        duel is not None and duel[0] == default, *offered[1:], (base.config, under),
    )  # fmt: skip


def _median(timing: Timing) -> float:
    return timing.median_us or float("inf")


def _rivals(key: Key, live: Mapping[str, Any], shipped: str, default: str) -> list[str]:
    """The runner-up of an earlier measurement on this device, or all other configs."""
    record = records.read_of(key)
    measured = [t for t in (record.timings if record else ()) if t.usable and t.identity in live]
    ranked = [timing.identity for timing in sorted(measured, key=_median) if timing.identity != shipped]
    return ranked[:1] if ranked else [name for name in live if name not in (shipped, default)]


def retime(tuner: Tuner, call: Call, live: Live, stays: str) -> tuple[str | None, dict[str, Timing]]:
    """Race some configs of a call without storing anything; returns the winner's identity, and the timings.

    Args:
        tuner: The kernel's tuner.
        call: The call.
        live: The configs.
        stays: Identity of the config that wins ties and must be beaten in a final duel.

    Raises:
        AllConfigsFailedError: None of the configs runs; the kernel's own exception if all raised the same.
        DeviceLostError: A config left the device in an error state.
    """
    options, target = tuner.options, tuner.tunable
    checked = next(iter(options.needs(target.name, live).checks), None)
    job = Job(
        target, call, live, timer_of(target, call, options.do_bench, options.objective), objective=options.objective,
        restore=options.restore, zero=options.zero, hooks=options.hooks, check=options.check, checked=checked,
        untuned=stays,
    )  # fmt: skip
    outcome = Outcome()
    with target.trials(records.scratch_folder()):
        search.run(job, outcome)
    return outcome.winner, {timing.identity: timing for timing in outcome.timings}


def drop(one: Contest) -> str:
    """Stop a choice from serving a call for which the untuned config is faster; returns a line about it.

    An entry for this call is removed. A rule or the nearest shape stays valid for other calls, so this call gets an
    entry with the untuned config.

    Raises:
        ConfigFileError, OSError: The file cannot be changed.
    """
    path = Path(one.path)
    if one.near is not None and one.untuned is not None:
        form, under = one.untuned
        entry = Entry(one.key.call, form, rounded(one.default_us), 1.0, under)
        writer.ship(one.key, entry, path.parent.parent)
        whose = "a rule" if one.is_of_rule else "the nearest shape"
        return f"{path}: this call now gets the untuned config instead of the choice of {whose}"
    binary_files.take_out([one.key], path)
    return f"{path}: removed"
