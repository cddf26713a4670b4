"""One run of `tune`: device, targets, every case in turn, and what came of it."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

from autotuned import candidates, cases, configfile, env, objects, replay, source, store
from autotuned.calls import SUFFIX, Recorded
from autotuned.cases import CaseGenerator, Found
from autotuned.configfile import Entry
from autotuned.device import from_json
from autotuned.errors import AutotunedError, DeviceLostError, EncodingError, NoDeviceError, TargetError
from autotuned.key import Key
from autotuned.question import Question
from autotuned.recordfile import Record, Timing
from autotuned.replay import Replayed
from autotuned.store import Choice, Rung
from autotuned.target import Call

from . import isolation, output
from .progress import Display

Json = Any
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
HEADERS = ("call", "config", "source", "time>", "vs first>", "vs default>", "quality")
CASE_HINT = "Register some: @kernel.case over a generator fn(device) of dict(args=(...), kwargs={...}, grid=...)."


@dataclass(frozen=True)
class Wishes:
    """The command's options; see its help."""

    out: Path | None = None
    force: bool = False
    budget_s: float | None = None
    isolate: bool | None = None
    timeout_s: float = 60.0


@dataclass
class Row:
    """What came of one case; the fields are those of the command's JSON."""

    kernel: str
    status: str
    reason: str | None = None
    digest: str | None = None
    device: str | None = None
    call: Json = None
    config: Mapping[str, Json] | None = None
    median_us: float | None = None
    vs_first: float | None = None
    vs_default: float | None = None
    quality: str | None = None
    source: str | None = None
    configs: int | None = None
    measured_configs: int | None = None

    @property
    def words(self) -> str:
        """The call in few words."""
        return output.call_words(self.call) if self.call is not None else "(case)"


def run(targets: Sequence[str], wishes: Wishes, as_json: bool) -> int:
    """Tune, print, and return the exit code."""
    if isolation.is_wanted(wishes.isolate):
        return _run_isolated(targets, wishes, as_json)
    with users_output(as_json):
        device = use_device()
        found = load(targets)
    if wishes.out is not None:
        check_files(found, wishes.out)
    session = Session(found, wishes, device)
    try:
        with users_output(as_json):
            session.run()
    finally:  # also when a lost device or a full disk ends it: what was found out is shown
        session.print(as_json)
    return session.exit_code()


def _run_isolated(targets: Sequence[str], wishes: Wishes, as_json: bool) -> int:
    """The same, with the measuring in a process that can be killed."""
    session = Session([], wishes, "")
    wanted = {"targets": list(targets), "out": None if wishes.out is None else str(wishes.out.absolute()),
              "force": wishes.force, "budget_s": wishes.budget_s, "as_json": as_json}  # fmt: skip
    with Display() as display:
        supervisor = isolation.Supervisor(wanted, wishes.timeout_s, display)
        try:
            supervisor.run()
        finally:
            session.adopt([Row(**row) for row in supervisor.rows], supervisor.final, supervisor.interrupted)
            if session.rows:
                session.print(as_json)
    return session.exit_code()


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
    recorded = [one for target in targets if target.endswith(SUFFIX) for one in replay.load(Path(target))]
    modules = [target for target in targets if not target.endswith(SUFFIX)]
    found = {id(one.tuned): one for target in modules for one in cases.load(target)}
    if not recorded and not any(one.tuned.cases for one in found.values()):
        names = ", ".join(one.name for one in found.values())
        raise TargetError(f"there is nothing to measure: no cases for {names}. {CASE_HINT}", target=targets[0])
    return [*recorded, *found.values()]


def check_files(found: Sequence[Found], out: Path) -> None:
    """Fail before anything is measured if a config file that is there cannot be added to."""
    for one in found:
        for path in sorted(out.glob(f"*/{configfile.file_name(one.name)}")):
            store.shippable(path, one.name)


class Session:
    """Tunes the cases one after the other; what goes wrong in one does not keep the next from its turn."""

    def __init__(self, found: Sequence[Found], wishes: Wishes, device: str, display: Any = None) -> None:
        self._found, self._wishes, self._device = found, wishes, device
        self._display = display or Display()
        self._start = time.monotonic()
        self._seen: set[str] = set()  # digests: a case listed twice is not measured twice, not even with --force
        self._share = 1.0  # of the time that is left: what the next case may take
        self._open_count = sum(one.count for one in found if isinstance(one, Replayed))
        self.rows: list[Row] = []
        self.without_cases: list[str] = []
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
                for found in self._found:
                    self._kernel(found)
            except KeyboardInterrupt:
                self.interrupted = True

    def adopt(self, rows: Sequence[Row], final: Mapping[str, Json], interrupted: bool) -> None:
        """Take over what another process has found out."""
        self.rows += rows
        self.interrupted = interrupted or bool(final.get("interrupted"))
        self._device = final.get("device", self._device)
        self.without_cases += final.get("without_cases", ())
        self.files |= set(final.get("files", ()))

    def _kernel(self, found: Found) -> None:
        if isinstance(found, Replayed):
            self._recorded(found)
            return
        if not found.tuned.cases:
            self.without_cases.append(found.name)
            return
        for generator in found.tuned.cases:
            for case in self._cases(found, generator):
                self._add(self._row(found, case))

    def _recorded(self, found: Replayed) -> None:
        """Tune the calls of a recording; each gets of the time that is left what it was called of all that is open."""
        if found.reason:
            self._open_count -= found.count
            self._add(Row(found.name, "failed", found.reason))
            return
        for call in found.calls:
            self._share = call.count / max(self._open_count, call.count)
            self._add(self._row(found, call))
            self._open_count -= call.count
        self._share = 1.0

    def _bound(self, found: Found, case: Any) -> tuple[Call, list[str]]:
        """The call of a case, and the configs that cannot be launched for it."""
        if not isinstance(case, Recorded):
            return cases.bind(found, case), []
        call, lost = replay.call_of(found, case, "cpu" if self._device == "interpreter" else "cuda")
        if lost:
            self._display.keep(f"{found.name}: {len(lost)} configs are newer than the recording and are skipped")
        return call, lost

    def _cases(self, found: Found, generator: CaseGenerator) -> Iterator[Any]:
        """The cases of a generator; an exception in it, the user's code, becomes a row."""
        try:
            yield from generator("cpu" if self._device == "interpreter" else "cuda")
        except Exception as error:
            name = getattr(generator, "__name__", "its cases")
            self._add(Row(found.name, "failed", f"{name}: {_reason(error)}"))

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        self._display.keep(f"{row.kernel}  {row.words}: {_outcome(row)}")

    # -- one case ------------------------------------------------------------------------------------------------

    def _row(self, found: Found, case: Any) -> Row:
        row = Row(found.name, "failed")
        try:
            call, lost = self._bound(found, case)
            key = found.tuner.chooser.key(call)
            row.digest, row.device, row.call = key.digest, from_json(key.context["device"]).slug, key.call
            if self._left_s() == 0:
                row.status, row.reason = "skipped", "the budget is used up"
                return row
            entry = self._tune(found, call, key, row, lost)
        except DeviceLostError as error:
            row.reason = _reason(error)
            self._add(row)
            raise
        except Exception as error:  # any error of the user's kernel, pruners and hooks
            row.reason = _reason(error)
            return row
        if self._wishes.out is not None and entry is not None:
            self.files.add(str(store.ship(key, entry, self._wishes.out)))
        return row

    def _tune(self, found: Found, call: Call, key: Key, row: Row, lost: Sequence[str]) -> Entry | None:
        """Choose for a call, note what came of it, and return what a config file should hold."""
        tuner = found.tuner
        force = self._wishes.force and key.digest not in self._seen
        self._seen.add(key.digest)
        self._display.begin(row.kernel, row.words)
        searches = tuner.cache_info().searches
        budget_s = None if self._wishes.budget_s is None else self._left_s() * self._share
        question, choice = tuner.tune(call, force, self._display.observe, budget_s, lost)
        if choice.rung is Rung.DEFAULT:
            row.reason = "every config failed (the log says why); calls use default="
            return None
        row.status = "done"
        form = _form(question, choice)
        row.config, row.configs = form, len(question.live)
        if choice.record is None:
            return self._note_entry(row, key, choice)
        row.source = "measured" if tuner.cache_info().searches > searches else "stored"
        return _note_record(row, choice.record, form, question, tuner.options.default)

    def _note_entry(self, row: Row, key: Key, choice: Choice) -> Entry | None:
        row.source = choice.origin
        found = (entry for path, other, entry in store.shipped(key.kernel) if path == choice.origin and other == key)
        entry = next(found, None)
        if entry is not None:
            row.median_us, row.vs_default = entry.median_us, entry.vs_default
        return entry

    def _left_s(self) -> float:
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
            output.remark("interrupted; what was measured is kept. Run the same command again to go on.")
            return INTERRUPTED
        if not self.rows:
            raise TargetError(
                f"there is nothing to measure: the generators of cases yield none. {CASE_HINT}", target=""
            )
        if failed:
            output.complain(f"error: {len(failed)} of {len(self.rows)} cases failed; the first: {failed[0].reason}")
        if open_:
            budget = f"the budget of {self._wishes.budget_s:g} s is used up"
            output.complain(f"{budget}; {len(open_)} cases are not finished. Run the same command again to go on.")
        if not failed and not open_:
            return 0
        return 3 if done or not failed else 1

    def _is_cut(self, row: Row) -> bool:
        """Whether the command's budget ended the search of this case before every config was measured."""
        short = row.source == "measured" and (row.measured_configs or 0) < (row.configs or 0)
        return short and self._left_s() == 0

    def print(self, as_json: bool) -> None:
        """Print the result."""
        if as_json:
            output.print_json(self._json())
            return
        for kernel, group in groupby(self.rows, lambda row: row.kernel):
            output.print_heading(kernel)
            output.print_table(HEADERS, [_cells(row) for row in group], stack=(1, 1, 1))
        for name in self.without_cases:
            output.say(f"skipped {name}: it has no cases. {CASE_HINT}")
        for path in sorted(self.files):
            output.say(f"wrote {path}")

    def _json(self) -> dict[str, Json]:
        return {
            "device": self._device,
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


def _note_record(row: Row, record: Record, form: Json, question: Question, default: Any) -> Entry | None:
    """Fill a row from a record; returns the entry for a config file, None where only this process can read it."""
    forms = {identity: json.loads(identity) for identity in question.live}
    first = next(iter(forms.values()))
    untuned = candidates.to_json(default, row.kernel, _spelled) if candidates.is_config(default) else None
    won = record.timing_of(form) or Timing(form)
    # What runs, which is another than the record's winner where that is no candidate any more.
    record = record.replace(winner=won.config, median_us=won.median_us)
    row.config, row.median_us, row.quality = won.config, won.median_us, record.quality
    row.measured_configs = sum(timing.identity in forms for timing in record.timings)
    row.vs_first = configfile.entry_of(record, first).vs_default
    row.vs_default = configfile.entry_of(record, untuned).vs_default
    if not objects.portable(record.key.to_json(), form):
        return None
    return configfile.entry_of(record, untuned or first)


def _spelled(value: Any, where: str) -> Json:
    """A value of `default=` as candidates spell it; one without a spelling matches no candidate."""
    try:
        return source.of_value(value, where)
    except EncodingError:
        return None


def _reason(error: BaseException) -> str:
    if isinstance(error, AutotunedError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _outcome(row: Row) -> str:
    """One line for the log of a run."""
    if row.status != "done":
        return f"{row.status}: {' '.join((row.reason or '').split())}"
    place = row.source if row.source in ("measured", "stored") else f"from {row.source}"
    return f"{output.config_words(row.config)}, {output.time_words(row.median_us)}, {place}"


def _cells(row: Row) -> list[str]:
    place = row.source or ""
    return [
        row.words,
        output.config_words(row.config) if row.status == "done" else f"{row.status}: {row.reason}",
        place if place in ("measured", "stored") else Path(place).name,
        output.time_words(row.median_us),
        output.ratio_words(row.vs_first),
        output.ratio_words(row.vs_default),
        row.quality or "n/a",
    ]
