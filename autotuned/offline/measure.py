"""Measures one case after another on this process's device."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autotuned.configfiles import file, lookup
from autotuned.configfiles.file import Entry
from autotuned.errors import DeviceLostError, TargetError
from autotuned.gpu.device import from_json
from autotuned.key.key import Key
from autotuned.offline import replay, targets
from autotuned.offline.cases import Case, Cases, reason
from autotuned.offline.device import tensors_on
from autotuned.offline.members import BucketMembers
from autotuned.offline.results import INTERRUPTED, OUT_OF_TIME, CaseResult, Observer
from autotuned.offline.targets import TunedObject
from autotuned.recording.file import RecordedCall
from autotuned.resolve import sources
from autotuned.resolve.request import Question
from autotuned.store import records
from autotuned.store.choice import Choice, Origin
from autotuned.store.record import Timing, TuningRecord
from autotuned.tunable.call import Call
from autotuned.typed_json import Json, portable


@dataclass
class MeasuredCase:
    """The result of a case, and the record and entry to store; `lost` is set if a config broke the device."""

    result: CaseResult
    key: Key | None = None
    entry: Entry | None = None
    record: TuningRecord | None = None
    lost: DeviceLostError | None = None


class Measurer:
    """Tunes cases; an error in one does not stop the others.

    Args:
        cases: The session's cases, among them members of buckets.
        device: "cuda" or "interpreter".
        force: Measure stored cases again.
        observer: Is told of each case.
        follows: The winner must beat the config that serves the call now (another context's choice, a rule's or the
            nearest shape's), not the untuned config.

    Attributes:
        seen: Digests done, so that a case listed twice is measured once even with `force`.
    """

    def __init__(self, cases: Cases, device: str, force: bool, observer: Observer, follows: bool = False) -> None:
        self._device, self._force, self._observer, self._follows = device, force, observer, follows
        self._cases = cases
        self._outdated: set[str] = set()  # kernels reported to have configs without a recorded grid
        self.seen: set[str] = set()
        self.cut_off: CaseResult | None = None  # the case that Ctrl-C ended

    @cached_property
    def _members(self) -> BucketMembers:
        return BucketMembers(self._cases, self._device)

    def measure(self, case: Case, budget_s: float | None) -> MeasuredCase:
        """Choose a config for a case, searching for at most `budget_s`; with 0 nothing is started."""
        measured = MeasuredCase(CaseResult(case.found.name, "failed", sizes=case.sizes, group=case.group))
        result = measured.result
        if isinstance(case.given, RecordedCall):
            result.call = case.given.key.call  # replaced once it is bound here
        try:
            if budget_s == 0:
                self._leave_out(case, measured)
            else:
                call, excluded = self._identified(case, measured)
                self._tune(case, call, measured, excluded, budget_s)
        except KeyboardInterrupt:
            result.status, result.reason = "skipped", INTERRUPTED
            self.cut_off = result
            raise
        except Exception as error:  # any error of the user's kernel, pruners and hooks
            result.reason = reason(error)
            measured.entry = measured.record = None
            measured.lost = error if isinstance(error, DeviceLostError) else None
        return measured

    def identify(self, case: Case) -> tuple[MeasuredCase, Hashable | None]:
        """A case's result before measuring, and what its compiled code depends on."""
        measured = MeasuredCase(CaseResult(case.found.name, "skipped", sizes=case.sizes, group=case.group))
        try:
            call, _ = self._identified(case, measured)
            return measured, case.found.tuner.tunable.compile_class(call)
        except Exception:  # reported when the case is measured
            return measured, None

    def plan(self, case: Case) -> CaseResult:
        """What `measure` would do: status "done" if stored, "skipped" if it would measure."""
        measured = MeasuredCase(CaseResult(case.found.name, "failed"))
        result = measured.result
        try:
            call, excluded = self._identified(case, measured)
            chooser, force = case.found.tuner.chooser, self._force and result.digest not in self.seen
            live = chooser.candidates(call)
            live = live.without([name for name, config in live.items() if str(config) in excluded])
            question = chooser.question(call, live, "auto", must_search=True, force=force, again=True)
            result.status, result.configs = "skipped", len(live)
            if not question.launches:
                result.status = "empty"
            elif (choice := chooser.found(question)) is not None or result.digest in self.seen:
                result.status, result.source = "done", choice.where if choice and choice.record is None else "stored"
            self.seen.add(str(result.digest))
        except Exception as error:  # any error of the user's code
            result.reason = reason(error)
        return result

    def _leave_out(self, case: Case, measured: MeasuredCase) -> None:
        """Only identify the call: no time is left."""
        result = measured.result
        if not isinstance(case.given, RecordedCall):  # a recorded call is known without creating its tensors
            self._identified(case, measured)
        result.status, result.reason = "skipped", OUT_OF_TIME

    def _identified(self, case: Case, measured: MeasuredCase) -> tuple[Call, list[str]]:
        """The bound call, and the configs that it cannot be launched with; fills in the result."""
        if case.error:
            raise TargetError(case.error, target=case.found.name)
        call, excluded = self._bound(case.found, case.given)
        key = measured.key = case.found.tuner.chooser.key(call)
        result = measured.result
        result.digest, result.device, result.call = key.digest, from_json(key.context["device"]).slug, key.call
        result.triton = key.context.get("triton")
        return call, excluded

    def _bound(self, found: TunedObject, given: Any) -> tuple[Call, list[str]]:
        """The call, and the configs that it cannot be launched with."""
        if not isinstance(given, RecordedCall):
            return targets.bind(found, given), []
        call, excluded = replay.call_of(found, given, tensors_on(self._device))
        if excluded and found.name not in self._outdated:  # once per kernel
            self._outdated.add(found.name)
            which = "config is" if len(excluded) == 1 else "configs are"
            self._observer.note(f"{found.name}: {len(excluded)} {which} newer than the recording and skipped")
        return call, excluded

    def _tune(
        self, case: Case, call: Call, measured: MeasuredCase, excluded: Sequence[str], budget_s: float | None
    ) -> None:
        tuner, result, key = case.found.tuner, measured.result, measured.key
        assert key is not None
        is_new = key.digest not in self.seen
        force = self._force and is_new
        self.seen.add(key.digest)
        self._observer.begin(result)
        searches, before = tuner.cache_info().searches, records.read_of(key)
        members = self._members.of(case, call) if is_new and tuner.options.members > 1 else ()
        served = self._served(case.found, call, key) if self._follows else None
        question, choice = tuner.tune(call, force, self._observer.observe, budget_s, excluded, is_new, members, served)
        if not question.launches:
            result.status, result.reason = "empty", "its grid is empty: nothing is measured or stored"
            return
        if choice.origin is Origin.DEFAULT:
            result.reason = "every config failed (the log says why); calls use default="
            return
        result.status = "done"
        form = _form(question, choice)
        result.config, result.configs = form, len(question.live)
        if choice.record is None:
            measured.entry = _note_entry(result, key, choice)
            return
        result.source = "measured" if tuner.cache_info().searches > searches else "stored"
        was_noisy = result.source == "measured" and not force and before is not None and before.is_doubtful
        result.remark = remark(choice.record, was_noisy)
        result.members = [dict(one["sizes"]) for one in choice.record.members] or None
        measured.entry = _note_record(result, choice.record, form, question)
        measured.record = choice.record if measured.entry is not None else None
        if result.source == "measured" and measured.record is not None:
            result.kept = key.digest not in records.unwritten

    def _served(self, found: TunedObject, call: Call, key: Key) -> str | None:
        """The identity of the config that entries for other calls give this call now; None without one."""
        chooser = found.tuner.chooser
        live, options = chooser.candidates(call), chooser.options
        needed = options.needs(key.kernel, live)
        if sources.find(key, live, sources.exact_places(needed)) is not None:
            return None  # an exact choice is served
        others = sources.places(False, False, options.nearest, needed, within=options.within)
        choice = sources.find(key, live, [one for one in others if one[0] in _NOT_EXACT])
        return None if choice is None else chooser.state.identity(choice.config)


_NOT_EXACT = (Origin.LADDER, Origin.RULE, Origin.NEAREST)


def _form(question: Question, choice: Choice) -> dict[str, Json]:
    """The chosen config's canonical form, parsed from its identity."""
    identity = next(identity for identity, config in question.live.items() if config is choice.config)
    form: dict[str, Json] = json.loads(identity)
    return form


def _note_entry(result: CaseResult, key: Key, choice: Choice) -> Entry | None:
    result.source = choice.where
    found = (entry for path, other, entry in lookup.shipped(key.kernel) if path == choice.where and other == key)
    entry = next(found, None)
    if entry is not None:
        result.median_us, result.vs_default = entry.median_us, entry.vs_default
        result.quality = entry.quality
    return entry


def remark(record: TuningRecord, was_noisy: bool) -> str | None:
    """A remark on a doubtful choice, or one that `was_noisy` and was measured again; None for others."""
    if record.unconfirmed is not None and not record.is_doubtful:
        return ("the budget ended before a faster config could be compared once more with the untuned one, which "
                "stays; run `tune` again to compare them")  # fmt: skip
    if not record.is_doubtful:
        return "it was noisy before, and was measured again" if was_noisy else None
    again = "still noisy" if was_noisy else "noisy"
    why = _why_noisy(record.provenance.get("noise"))
    return f"{again}: {why}. It is used anyway; run `tune` again on an idle device"


def _why_noisy(noise: Json) -> str:
    if not isinstance(noise, dict):
        return "its times spread over more than 5%"
    if noise.get("slowed"):
        return "heat or the hardware held the clocks down"
    return f"its times spread over {noise.get('spread') or 0.0:.0%}, as if another program uses the device"


def _note_record(result: CaseResult, record: TuningRecord, form: Json, question: Question) -> Entry | None:
    """Fill a result from a record; returns the config file's entry, None if it is valid only in this process."""
    forms = {identity: json.loads(identity) for identity in question.live}
    first = next(iter(forms.values()))
    if record.timings:  # an imported record has none, only the winner's time
        won = record.timing_of(form) or Timing(form)
        # The config that runs; another one if the record's winner is no longer a candidate.
        record = record.replace(winner=won.config, median_us=won.median_us)
    result.config, result.median_us, result.quality = record.winner, record.median_us, record.quality
    result.measured_configs = sum(timing.identity in forms for timing in record.timings)
    result.vs_first, result.vs_default = record.ratio_of(first), record.vs_default
    if not portable(record.key.to_json(), form):
        return None
    return file.entry_of(record)
