"""One run of `tune`: device, targets, every case in turn, and what came of it."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

from autotuned import env
from autotuned.cli import terminal
from autotuned.cli.progress import Display
from autotuned.configfiles import file, lookup, writer
from autotuned.configfiles.file import Entry
from autotuned.errors import DeviceLostError, NoDeviceError, TargetError
from autotuned.gpu.device import from_json
from autotuned.key import opaque
from autotuned.key.key import Key
from autotuned.offline import replay
from autotuned.offline import targets as cases
from autotuned.offline.cases import Unit, Units, reason, share, tensors_on
from autotuned.offline.results import HEADERS, Result, Row, Wishes, cells
from autotuned.offline.targets import Found
from autotuned.offline.workers import process
from autotuned.offline.workers.local import Local
from autotuned.offline.workers.pool import Pool, check_files
from autotuned.offline.workers.slots import Executor
from autotuned.recording.file import SUFFIX, RecordedCall
from autotuned.resolve.request import Question
from autotuned.store.lookup import Choice, Origin
from autotuned.store.record import Timing, TuningRecord
from autotuned.tunable import configs
from autotuned.tunable.call import Call
from autotuned.typed_json import Json

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
CASE_HINT = "Register some: @kernel.case over a generator fn(device) of dict(args=(...), kwargs={...}, grid=...)."


def run(targets: Sequence[str], wishes: Wishes, as_json: bool) -> int:
    """Tune, print, and return the exit code."""
    if wishes.several or process.is_wanted(wishes.isolate):
        return _run_isolated(targets, wishes, as_json)
    with users_output(as_json):
        device = use_device()
        found = load(targets)
    if wishes.out is not None:
        for one in found:
            check_files(one.name, wishes.out)
    session = Session(found, wishes, device)
    try:
        with users_output(as_json):
            session.run()
    finally:  # also when a lost device or a full disk ends it: what was found out is shown
        session.print(as_json)
    return session.exit_code()


def _run_isolated(targets: Sequence[str], wishes: Wishes, as_json: bool) -> int:
    """The same, with the measuring in processes that can be killed."""
    session = Session([], wishes, "")
    with Display() as display:
        pool = Pool(targets, wishes, as_json, display, _executor(wishes, as_json))
        try:
            with users_output(as_json):
                pool.run()
        finally:
            session.adopt(pool)
            if session.rows:
                session.print(as_json)
    return session.exit_code()


def _executor(wishes: Wishes, as_json: bool) -> Executor:
    if wishes.executor != "ray":
        return Local(wishes.devices)
    from autotuned.offline.workers.ray_cluster import Cluster  # an extra of this package

    return Cluster(wishes.ray_address, as_json)


def users_output(as_json: bool) -> AbstractContextManager[object]:
    """Where what the user's modules and kernels print goes: not into the middle of the JSON."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


def use_device() -> str:
    """Decide between GPU and interpreter before Triton is imported: "cuda" or "interpreter".

    Raises:
        NoDeviceError: The one that was asked for cannot be had.
    """
    try:
        asked = env.command_line_device()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if asked == "cuda" and (not _has_gpu() or env.interpreter_requested()):
        why = "torch.cuda sees none. Unset it to use Triton's interpreter."
        if env.interpreter_requested():
            why = "TRITON_INTERPRET is set. Unset one of the two."
        raise NoDeviceError(f"AUTOTUNED_DEVICE=cuda: expected a GPU to tune on, and {why}")
    if asked == "cuda" or (not asked and not env.interpreter_requested() and _has_gpu()):
        return "cuda"
    try:
        env.use_interpreter()
    except RuntimeError as error:
        raise NoDeviceError(f"{error} Set it in the environment.") from error
    return "interpreter"


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False  # plain callables may do without
    return bool(torch.cuda.is_available())


def load(targets: Sequence[str]) -> list[Found]:
    """What is tuned in the targets, each object once.

    Raises:
        TargetError: A target cannot be had, or none of the kernels has cases.
    """
    modules = [target for target in targets if not target.endswith(SUFFIX)]
    recorded = [one for target in targets if target.endswith(SUFFIX) for one in replay.load(Path(target), modules)]
    replayed = {id(one.tuned) for one in recorded}
    found = {id(one.tuned): one for target in modules for one in cases.load(target)}
    # A file may be given because a recording names it: of what is recorded cases are not expected.
    found = {place: one for place, one in found.items() if one.tuned.cases or place not in replayed}
    if not recorded and not any(one.tuned.cases for one in found.values()):
        names = ", ".join(one.name for one in found.values())
        raise TargetError(f"there is nothing to measure: no cases for {names}. {CASE_HINT}", target=targets[0])
    return [*recorded, *found.values()]


class Session:
    """Tunes the cases one after the other; what goes wrong in one does not keep the next from its turn."""

    def __init__(self, found: Sequence[Found], wishes: Wishes, device: str, display: Any = None) -> None:
        self.units = Units(found, device)
        self._wishes, self._device = wishes, device
        self._display = display or Display()
        self._start = time.monotonic()
        self._lost: set[str] = set()  # kernels of which it was said that configs have no grid in the recording
        self._seen: set[str] = set()  # digests: a case listed twice is not measured twice, not even with --force
        self._devices: list[Json] = []
        self.rows: list[Row] = []
        self.without_cases = self.units.without_cases
        self.files: set[str] = set()
        self.interrupted = False

    def run(self) -> None:
        """Go through all cases; Ctrl-C ends it early.

        Raises:
            DeviceLostError: A config left the device in an error state.
            ConfigFileError, OSError: A config file cannot be written.
        """
        with self._display:
            try:
                self._run()
            except KeyboardInterrupt:
                self.interrupted = True

    def _run(self) -> None:
        open_count = self.units.recorded_count
        for unit in self.units:
            if self.units.known:
                self._display.count(unit.number, self.units.known)
            left_s = None if self._wishes.budget_s is None else self.left_s() * share(unit.count, open_count)
            result = self.measure(unit, left_s)
            if self._wishes.out is not None and result.key is not None and result.entry is not None:
                self.files.add(str(writer.ship(result.key, result.entry, self._wishes.out)))
            self._add(result.row)
            open_count -= unit.count

    def adopt(self, pool: Pool) -> None:
        """Take over what other processes have found out."""
        self.rows += pool.rows()
        self.interrupted = pool.interrupted
        self._device = pool.device
        self._devices = pool.devices()
        self.without_cases = pool.without_cases
        self.files |= pool.files

    def _bound(self, found: Found, case: Any) -> tuple[Call, list[str]]:
        """The call of a case, and the configs that cannot be launched for it."""
        if not isinstance(case, RecordedCall):
            return cases.bind(found, case), []
        call, lost = replay.call_of(found, case, tensors_on(self._device))
        if lost and found.name not in self._lost:  # once a kernel: its calls were mostly recorded with one list
            self._lost.add(found.name)
            which = terminal.counted(len(lost), "config is", "configs are")
            self._display.keep(f"{found.name}: {which} newer than the recording and skipped")
        return call, lost

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        if row.status != "skipped":  # thousands of a long recording, in one line at the end
            self._display.keep(row.line)

    # -- one case ------------------------------------------------------------------------------------------------

    def measure(self, unit: Unit, budget_s: float | None) -> Result:
        """Choose for a unit.

        Args:
            unit: One of `units`.
            budget_s: What its search may take; with 0 nothing is begun.

        Raises:
            DeviceLostError: A config left the device in an error state.
        """
        result = Result(Row(unit.found.name, "failed"))
        row = result.row
        try:
            if budget_s == 0:
                self._leave_out(unit, result)
            else:
                call, lost = self._identified(unit, result)
                self._tune(unit.found, call, result, lost, budget_s)
        except DeviceLostError as error:
            row.reason = reason(error)
            self._add(row)
            raise
        except Exception as error:  # any error of the user's kernel, pruners and hooks
            row.reason = reason(error)
            result.entry = result.record = None
        return result

    def _leave_out(self, unit: Unit, result: Result) -> None:
        """No time is left for a unit; its row says which call it is."""
        if isinstance(unit.case, RecordedCall):  # known without making the tensors of each of thousands
            result.row.call = unit.case.key.call
        else:
            self._identified(unit, result)
        result.row.status, result.row.reason = "skipped", "the budget is used up"

    def identify(self, unit: Unit) -> tuple[Result, Hashable | None]:
        """What is known of a unit before it is measured, and what its compiled code depends on."""
        result = Result(Row(unit.found.name, "skipped"))
        try:
            call, _ = self._identified(unit, result)
            return result, unit.found.tuner.tunable.compile_class(call)
        except Exception:  # the row that says so comes when it is its turn
            return result, None

    def _identified(self, unit: Unit, result: Result) -> tuple[Call, list[str]]:
        """The call of a unit, bound, and the configs that it cannot be launched with; its row says which call."""
        if unit.error:
            raise TargetError(unit.error, target=unit.found.name)
        call, lost = self._bound(unit.found, unit.case)
        key = result.key = unit.found.tuner.chooser.key(call)
        row = result.row
        row.digest, row.device, row.call = key.digest, from_json(key.context["device"]).slug, key.call
        row.triton = key.context.get("triton")
        return call, lost

    def _tune(self, found: Found, call: Call, result: Result, lost: Sequence[str], budget_s: float | None) -> None:
        """Choose for a call, and note what came of it and what a config file should hold."""
        tuner, row, key = found.tuner, result.row, result.key
        assert key is not None
        force = self._wishes.force and key.digest not in self._seen
        self._seen.add(key.digest)
        self._display.begin(row.kernel, row.words)
        searches = tuner.cache_info().searches
        question, choice = tuner.tune(call, force, self._display.observe, budget_s, lost)
        if not question.launches:
            row.status, row.reason = "empty", "its grid launches nothing: nothing is measured or stored"
            return
        if choice.origin is Origin.DEFAULT:
            row.reason = "every config failed (the log says why); calls use default="
            return
        row.status = "done"
        form = _form(question, choice)
        row.config, row.configs = form, len(question.live)
        if choice.record is None:
            result.entry = self._note_entry(row, key, choice)
            return
        row.source = "measured" if tuner.cache_info().searches > searches else "stored"
        result.entry = _note_record(row, choice.record, form, question, tuner.options.default)
        result.record = choice.record if result.entry is not None else None

    def _note_entry(self, row: Row, key: Key, choice: Choice) -> Entry | None:
        row.source = choice.where
        found = (entry for path, other, entry in lookup.shipped(key.kernel) if path == choice.where and other == key)
        entry = next(found, None)
        if entry is not None:
            row.median_us, row.vs_default = entry.median_us, entry.vs_default
        return entry

    def left_s(self) -> float:
        """Seconds of the budget that are left; without a budget endlessly many."""
        if self._wishes.budget_s is None:
            return float("inf")
        return max(0.0, self._start + self._wishes.budget_s - time.monotonic())

    # -- what came of it -----------------------------------------------------------------------------------------

    def exit_code(self) -> int:
        """The code that the command's help documents; says in one line on stderr what it stands for, unless 0."""
        failed = [row for row in self.rows if row.status == "failed"]
        done = [row for row in self.rows if row.status == "done"]
        open_ = [row for row in self.rows if row.status == "skipped" or self._is_cut(row)]
        if self.interrupted:
            terminal.remark("interrupted; what was measured is kept. Run the same command again to go on.")
            return INTERRUPTED
        if not self.rows:
            raise TargetError(
                f"there is nothing to measure: the generators of cases yield none. {CASE_HINT}", target=""
            )
        if failed:
            terminal.complain(f"error: {len(failed)} of {len(self.rows)} cases failed; the first: {failed[0].reason}")
        if open_:
            budget = f"the budget of {self._wishes.budget_s:g} s is used up"
            terminal.complain(f"{budget}; {len(open_)} cases are not finished. Run the same command again to go on.")
        if not failed and not open_:
            return 0
        return 3 if done or not failed else 1

    def _is_cut(self, row: Row) -> bool:
        """Whether the command's budget ended the search of this case before every config was measured."""
        short = row.source == "measured" and (row.measured_configs or 0) < (row.configs or 0)
        return short and self.left_s() == 0

    def print(self, as_json: bool) -> None:
        """Print the result."""
        if as_json:
            terminal.print_json(self._json())
            return
        several = len({row.device for row in self.rows if row.device}) > 1
        for (kernel, device), group in groupby(self.rows, lambda row: (row.kernel, row.device if several else None)):
            rows = list(group)
            begun = [cells(row) for row in rows if row.status != "skipped"]
            terminal.print_heading(f"{kernel}  on {device}" if device else kernel)
            if begun:
                terminal.print_table(HEADERS, begun, stack=(1, 1, 1))
            if len(rows) > len(begun):
                terminal.say(f"not begun: {len(rows) - len(begun)} of {len(rows)} cases")
        for name in self.without_cases:
            terminal.say(f"skipped {name}: it has no cases. {CASE_HINT}")
        for path in sorted(self.files):
            terminal.say(f"wrote {path}")

    def _json(self) -> dict[str, Json]:
        return {
            "device": self._device,
            "devices": self._devices,
            "cases": [asdict(row) for row in self.rows],
            "skipped": [{"kernel": name, "reason": "no cases"} for name in self.without_cases],
            "files": sorted(self.files),
            "interrupted": self.interrupted,
            "seconds": round(time.monotonic() - self._start, 3),
        }


def _form(question: Question, choice: Choice) -> dict[str, Json]:
    """The canonical form of the chosen config: the text that identifies it is its JSON."""
    identity = next(identity for identity, config in question.live.items() if config is choice.config)
    form: dict[str, Json] = json.loads(identity)
    return form


def _note_record(row: Row, record: TuningRecord, form: Json, question: Question, default: Any) -> Entry | None:
    """Fill a row from a record; returns the entry for a config file, None where only this process can read it."""
    forms = {identity: json.loads(identity) for identity in question.live}
    first = next(iter(forms.values()))
    untuned = configs.stored_form(default, row.kernel, opaque.spell)
    won = record.timing_of(form) or Timing(form)
    # What runs, which is another than the record's winner where that is no candidate any more.
    record = record.replace(winner=won.config, median_us=won.median_us)
    row.config, row.median_us, row.quality = won.config, won.median_us, record.quality
    row.measured_configs = sum(timing.identity in forms for timing in record.timings)
    row.vs_first = file.entry_of(record, first).vs_default
    row.vs_default = file.entry_of(record, untuned).vs_default
    if not opaque.portable(record.key.to_json(), form):
        return None
    return file.entry_of(record, untuned or first)
