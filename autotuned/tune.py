"""One search: protect the caller's data, measure every candidate, choose."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotuned import candidates, measure
from autotuned.errors import AllConfigsFailedError, DeviceLostError
from autotuned.measure import Timer, Trial
from autotuned.record import Timing
from autotuned.state import Protection
from autotuned.target import Call, Target
from autotuned.values import Json


@dataclass(frozen=True)
class Hooks:
    """The decorator's hooks, with Triton's meaning: before and after each trial, paired also when it raises."""

    before: Callable[..., Any] | None = None
    after: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Progress:
    """How far a search is.

    Attributes:
        kernel: Name of what is tuned.
        done, total: Configs launched at least once, and all that are to be.
        config: Label of the config under test.
        best, best_us: Label and median of the fastest so far.
    """

    kernel: str
    done: int
    total: int
    config: str
    best: str | None
    best_us: float | None


Observer = Callable[[Progress], None]


@dataclass(frozen=True)
class Job:
    """Everything one search needs.

    Attributes:
        forms: Canonical form of each candidate, by identity, in list order.
        configs: The live configs, by identity, in the same order.
        restore: Names to protect, None to find out; `zero`: names zeroed before each trial.
        known: Timings of an earlier search, by identity; these configs are not measured again.
        on_timing: Told of each timing as it is measured, and again when there are more samples of it.
        budget_s: The search stops after this many seconds with what it has; None never.
    """

    target: Target
    call: Call
    forms: Mapping[str, dict[str, Json]]
    configs: Mapping[str, Any]
    timer: Timer
    restore: Sequence[str] | None = None
    zero: Sequence[str] = ()
    hooks: Hooks = field(default_factory=Hooks)
    known: Mapping[str, Timing] = field(default_factory=dict)
    budget_s: float | None = None
    observer: Observer | None = None
    on_timing: Callable[[Timing], None] = lambda timing: None


@dataclass
class Outcome:
    """What a search found; `winner` is None while it is not finished."""

    timings: list[Timing] = field(default_factory=list)
    winner: str | None = None
    quality: str = "unresolved"
    written: list[str] = field(default_factory=list)
    compile_s: float = 0.0


def run(job: Job, outcome: Outcome) -> None:
    """Measure the job's candidates and write what was found into `outcome`.

    The caller's tensors are afterwards as they were given, also after an exception. On `KeyboardInterrupt` the
    timings so far are in `outcome`.

    Raises:
        AllConfigsFailedError: No candidate could be launched and timed.
        DeviceLostError: A config left the device in an error state.
        Exception: The one error that every config raised, if it is the same: it is the user's, not a config's.
    """
    search = _Search(job)
    try:
        with _without_gradients(), contextlib.closing(search):
            search.measure()
            search.raise_if_all_failed()
            search.choose(outcome)
    finally:
        outcome.timings = search.timings()
        outcome.written = search.written
        outcome.compile_s = search.compile_s


@contextlib.contextmanager
def _without_gradients() -> Iterator[None]:
    """Hooks write tensors that may require grad; torch is not imported for a callable that does not use it."""
    if "torch" not in sys.modules:
        yield
        return
    import torch

    with torch.no_grad():
        yield


class _Search:
    """The state of one search."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._protection = Protection(job.call.arguments, job.restore, job.zero)
        fresh = [identity for identity in job.configs if identity not in job.known]
        self._identities = list(job.configs)
        self._trials = [self._trial(identity) for identity in fresh]
        self._errors: list[Exception] = []
        self._transient: set[int] = set()
        self._deadline = time.monotonic() + (job.budget_s or float("inf"))
        self._launched = 0
        self.compile_s = 0.0
        self.written: list[str] = []

    def close(self) -> None:
        """Put the caller's data back and drop what would keep it alive."""
        self.written = self._protection.written
        self._protection.release()
        # What follows breaks reference cycles: the caller's tensors and the flush buffer must go when their last
        # user goes, not when the garbage collector comes by. Tracebacks hold frames, and these the arguments.
        self._errors.clear()
        for trial in self._trials:
            trial.prepare = trial.launch = trial.finish = _nothing

    def _trial(self, identity: str) -> Trial:
        job, config = self._job, self._job.configs[identity]
        arguments = job.call.full(config)

        def prepare() -> None:
            self._protection.prepare()
            if config.pre_hook is not None:
                config.pre_hook(arguments)
            if job.hooks.before is not None:
                job.hooks.before(arguments)

        def launch() -> None:
            try:
                job.target.launch(job.call, config)
            except Exception as error:
                finish(error)
                raise

        def finish(error: Exception | None = None) -> None:
            if job.hooks.after is not None:
                job.hooks.after(arguments, exception=error)

        return Trial(self._identities.index(identity), prepare, launch, finish)

    def measure(self) -> None:
        """Launch each config once, then race those that ran."""
        for trial in self._trials:
            if self._launched and self._out_of_time():
                trial.error = ""  # not tried, which is no failure: it is left out of the timings
                continue
            self._launch_first(trial)
        racing = [trial for trial in self._trials if trial.error is None]
        if racing:
            measure.race(racing, self._sample)
            self._finish_hooks(racing[0])

    def _launch_first(self, trial: Trial) -> None:
        """Compile, load and launch; learn what it writes; blame it if the device does not survive."""
        self._report(trial)
        start = time.perf_counter()
        with self._catching(trial):
            trial.prepare()
            trial.launch()
            trial.finish()
            self._job.timer.synchronize()
            self._protection.learn()
        if trial.error:
            self._tell(trial)
        self.compile_s += time.perf_counter() - start
        self._launched += 1

    def _sample(self, trial: Trial, count: int) -> None:
        if trial.error is not None or (trial.samples_us and self._out_of_time()):
            return
        with self._catching(trial):
            samples = self._job.timer.sample(trial, count)
            measure.check_samples(samples)
            trial.samples_us += samples
        self._tell(trial)
        self._report(trial)

    @contextlib.contextmanager
    def _catching(self, trial: Trial) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            trial.error = describe(error)
            self._errors.append(error)
            if _is_transient(error):
                self._transient.add(trial.index)
        if trial.error:
            self._check_device(trial)
            self._protection.learn()

    def _check_device(self, trial: Trial) -> None:
        try:
            self._job.timer.synchronize()
        except Exception as error:
            kernel = self._job.target.name
            raise DeviceLostError(
                f"`{kernel}`: config {self._label(trial)} left the device in an error state ({error}). Nothing can "
                "run on it in this process any more: restart the process; other configs are not to blame.",
                kernel=kernel,
                config=self._label(trial),
            ) from error

    def _out_of_time(self) -> bool:
        return time.monotonic() > self._deadline

    def _finish_hooks(self, trial: Trial) -> None:
        """Triton's last word to a user's pre_hook: one reset without a launch after it."""
        if self._job.hooks.before is not None:
            config = self._job.configs[self._identities[trial.index]]
            self._job.hooks.before(self._job.call.full(config), reset_only=True)

    def raise_if_all_failed(self) -> None:
        """Raise if nothing can be chosen from."""
        failed = [trial for trial in self._trials if trial.error]
        usable = [t for identity, t in self._job.known.items() if t.status == "ok" and identity in self._job.configs]
        if usable or len(failed) < len(self._trials) or not failed:
            return
        reasons: dict[str, list[str]] = {}
        for trial in failed:
            reasons.setdefault(trial.error or "", []).append(self._label(trial))
        if len(reasons) == 1 and len(failed) > 1 and not _is_resource_error(self._errors[0]):
            raise self._errors[0]
        kernel = self._job.target.name
        lines = "\n".join(f"  {reason}\n    {'; '.join(labels)}" for reason, labels in reasons.items())
        raise AllConfigsFailedError(
            f"`{kernel}`: expected at least one config that compiles and runs here; all {len(failed)} failed. Add a "
            f"config that fits, or give @autotune a default=.\n{lines}",
            kernel=kernel,
            reasons=reasons,
        )

    def choose(self, outcome: Outcome) -> None:
        """Pick the winner among what was measured now and before."""
        ran = [trial for trial in self._trials if trial.samples_us and not trial.error]
        for identity, timing in self._job.known.items():
            if identity in self._job.configs and timing.status == "ok" and timing.median_us:
                ran.append(_as_trial(self._identities.index(identity), timing))
        best, outcome.quality = measure.winner(ran, self._job.timer.resolution_us)
        outcome.winner = self._identities[best.index]

    def timings(self) -> list[Timing]:
        """What is known of each candidate, in list order; configs that were never tried are left out.

        So are those that met a full memory: that says nothing of the config, and it is tried again another time.
        """
        found = dict(self._job.known)
        for trial in self._trials:
            if trial.index not in self._transient and (trial.error or trial.samples_us):
                found[self._identities[trial.index]] = self._timing(trial)
        order = [identity for identity in self._identities if identity in found]
        return [found[identity] for identity in [*order, *(name for name in found if name not in order)]]

    def _tell(self, trial: Trial) -> None:
        if trial.index not in self._transient and (trial.error or trial.samples_us):
            self._job.on_timing(self._timing(trial))

    def _timing(self, trial: Trial) -> Timing:
        form = self._job.forms[self._identities[trial.index]]
        if trial.error:
            return Timing(form, status="failed", error=trial.error[:2000])
        return Timing(form, trial.median_us, trial.percentile(0.2), trial.percentile(0.8), len(trial.samples_us))

    def _label(self, trial: Trial) -> str:
        return candidates.label(self._job.forms[self._identities[trial.index]])

    def _report(self, trial: Trial) -> None:
        if self._job.observer is None:
            return
        measured = [trial for trial in self._trials if trial.samples_us and not trial.error]
        best = min(measured, key=lambda trial: trial.median_us, default=None)
        self._job.observer(
            Progress(
                self._job.target.name,
                self._launched,
                len(self._trials),
                self._label(trial),
                self._label(best) if best else None,
                best.median_us if best else None,
            )
        )


def _nothing() -> None:
    """Stands in for what a finished trial did."""


def describe(error: Exception) -> str:
    """Type and text of an exception: what is kept of it."""
    return f"{type(error).__name__}: {error}"


def _is_resource_error(error: Exception) -> bool:
    """Whether a config asks for more than the device has: every config of a list may, and none is a user's bug."""
    return type(error).__name__ in ("OutOfResources", "OutOfMemoryError", "PTXASError")


def _is_transient(error: Exception) -> bool:
    """Whether the same config may run where more memory is free."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _as_trial(index: int, timing: Timing) -> Trial:
    """An earlier timing as a trial that can be compared with new ones."""
    times = [timing.low_us or timing.median_us, timing.median_us, timing.high_us or timing.median_us]
    return Trial(index, lambda: None, lambda: None, samples_us=[us for us in times if us])
