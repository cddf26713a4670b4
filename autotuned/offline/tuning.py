"""`tune`: tunes all cases of the targets, in this process or in processes that can be killed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotuned import env
from autotuned.configfiles import writer
from autotuned.errors import refused
from autotuned.offline import cases, ranges
from autotuned.offline.cases import Cases, share
from autotuned.offline.device import check_environment, isolates, use_device
from autotuned.offline.measure import MeasuredCase, Measurer
from autotuned.offline.results import Observer, TuneOptions, TuneResult
from autotuned.offline.shipping import Shipping
from autotuned.offline.targets import texts
from autotuned.offline.workers.local import Local
from autotuned.offline.workers.pool import DevicePool
from autotuned.offline.workers.slots import Executor


@env.interpreter_put_back()
def tune(
    targets: str | Sequence[str],
    *,
    out: str | os.PathLike[str] | None = None,
    devices: str | None = None,
    budget_s: float | None = None,
    force: bool = False,
    binaries: bool = False,
    progress: Observer | None = None,
    isolate: bool | None = None,
    timeout_s: float = 60.0,
    executor: str = "local",
    ray_address: str | None = None,
    cover: Mapping[str, Sequence[int]] | None = None,
) -> TuneResult:
    """Measure all cases of the targets, store the choices and write config files: `autotuned tune` from Python.

    Ctrl-C ends it early and returns the results so far. An exception that ends it has these results as its
    attribute `result`.

    Args:
        targets: What to tune: `pkg.module`, `pkg.module:kernel`, `file.py`, `file.py:kernel`, or a recorded
            `calls.jsonl`.
        out: Write config files into this folder; existing files are added to.
        devices: GPUs to tune on, with a process each: "all", or comma-separated indices or UUIDs.
        budget_s: Limit for all cases together, in seconds; another run continues.
        force: Measure stored cases again.
        binaries: Compile the kernels that the config files in `out` need, and write them next to these
            (docs/ship-without-a-compiler.md).
        progress: Receives progress.
        isolate: Measure in a process that can be killed; default on a GPU.
        timeout_s: Limit for compiling or running one config in such a process, in seconds.
        executor: Where to tune: "local", or "ray" for a cluster.
        cover: Ranges of sizes, `{"M": (1, 8192)}`: tunes as few shapes in them as suffice to serve all others.
            Generators of cases take these sizes by keyword.
        ray_address: The cluster; default `RAY_ADDRESS`, otherwise one on this host, otherwise a new one.

    Returns:
        A result for each case. A failing case is not an error: see `failed` and `unfinished`.

    Raises:
        OptionError: A value is invalid, or two options conflict.
        TargetError: A target cannot be loaded, or none of its kernels has cases.
        RecordingError: A recording cannot be read.
        NoDeviceError: The requested device is missing, or Triton was imported for another one.
        DeviceLostError: Without isolation, a config left the device in an error state.
        OutputError: `out` cannot be written; the other cases are measured nevertheless.
        ConfigFileError: A config file cannot be added to.
        AutotunedError: The measuring processes cannot start, or end without a config to blame.
    """
    options = TuneOptions(
        None if out is None else Path(out), force, budget_s, isolate, timeout_s, devices, executor, ray_address
    )
    if binaries and out is None:
        raise refused("binaries", "expected a folder for them in out=, got none")
    check_environment()
    if options.out is not None:
        writer.refuse_unwritable(options.out)
    targets, observer = texts(targets), progress or Observer()
    if cover is None:
        result = measured(targets, options, observer)
    else:
        from autotuned.offline import covering  # imports NumPy to fit rules

        result = covering.run(options, ranges.checked(cover), lambda options: measured(targets, options, observer))
    if binaries and result.files:
        from autotuned.offline.binaries import build  # imports the part of the library that compiles

        try:
            result.binaries = build(result.files, targets)
        except BaseException as error:
            vars(error)["result"] = result
            raise
    return result


def measured(targets: Sequence[str], options: TuneOptions, observer: Observer) -> TuneResult:
    """Measure all cases of the targets, with checked options."""
    if options.several or isolates(options.isolate):
        return _finished(DevicePool(targets, options, observer, _executor(options)))
    return _finished(_here(targets, options, observer))


def _here(targets: Sequence[str], options: TuneOptions, observer: Observer) -> InProcess:
    used = use_device()
    found = cases.load(targets)
    if options.out is not None:
        for one in found:
            writer.check_all(one.name, options.out)
    return InProcess(Cases(found, used, options.wanted, options.follows), options, used, observer)


def _executor(options: TuneOptions) -> Executor:
    if options.executor != "ray":
        return Local(options.devices)
    from autotuned.offline.workers.ray_cluster import Cluster  # an extra of this package

    return Cluster(options.ray_address)


def _finished(run: InProcess | DevicePool) -> TuneResult:
    try:
        run.run()
    except BaseException as error:
        vars(error)["result"] = run.result()
        raise
    return run.result()


class InProcess:
    """Tunes cases one after the other in this process."""

    def __init__(self, found: Cases, options: TuneOptions, device: str, observer: Observer) -> None:
        self._cases, self._options, self._observer = found, options, observer
        self._measurer = Measurer(found, device, options.force, observer, options.follows)
        self._start = time.monotonic()
        self._result = TuneResult(device, without_cases=found.without_cases, budget_s=options.budget_s)
        self._shipping = None if options.out is None else Shipping(options.out, observer.note)

    def result(self) -> TuneResult:
        """The result so far."""
        self._result.seconds = time.monotonic() - self._start
        if self._shipping is not None:
            self._result.files = sorted(self._shipping.files)
        return self._result

    def run(self) -> None:
        """Tune all cases; Ctrl-C ends it early.

        Raises:
            DeviceLostError: A config left the device in an error state.
            ConfigFileError, OutputError: A config file cannot be added to.
        """
        open_count = self._cases.recorded_count
        try:
            known = self._cases.counted()
            for case in self._cases:
                if known:  # a range of sizes grows after its first round
                    self._observer.count(case.number, known if case.number < known else 0)
                left_s = self._options.left_s(self._start)
                measured = self._measurer.measure(case, left_s and left_s * share(case.count, open_count))
                self._take(measured)
                open_count -= case.count
        except KeyboardInterrupt:
            self._result.interrupted = True
            self._result.cases += filter(None, [self._measurer.cut_off])
        finally:
            if self._shipping is not None:
                self._shipping.finish()

    def _take(self, measured: MeasuredCase) -> None:
        self._result.cases.append(measured.result)
        self._observer.done(measured.result)
        if self._shipping is not None:
            self._shipping.add(measured.key, measured.entry)
            self._shipping.write()
        if measured.lost is not None:
            raise measured.lost
