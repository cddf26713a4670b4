"""Checks config files, and on request whether they still fit their kernels and are still the fastest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from autotuned import env
from autotuned.binaries import audit
from autotuned.configfiles.audit import Audit
from autotuned.configfiles.exchange import PathLike
from autotuned.configfiles.file import Fault
from autotuned.errors import DeviceLostError, OptionError, TargetError, refused
from autotuned.typed_json import Json

if TYPE_CHECKING:
    from autotuned.offline.targets import TunedObject
    from autotuned.offline.verify import Contest


class CheckResult(Audit):
    """The faults of config files.

    Attributes:
        measured: The choices timed again; None unless requested.
        untimed: A line for each kernel with choices that were not timed.
        tolerance: Allowed loss against the runner-up.
        dropped: What `fix` did about choices slower than untuned, one line each.
    """

    def __init__(self, paths: PathLike | Iterable[PathLike], tolerance: float) -> None:
        super().__init__(paths)
        self.tolerance = tolerance
        self.measured: list[Contest] | None = None
        self.untimed: list[str] = []
        self.dropped: list[str] = []

    @property
    def lost(self) -> list[Contest]:
        """Choices that are slower than untuned, lose more than the tolerance, or do not run."""
        return [one for one in self.measured or () if one.beaten or not round(one.loss, 4) <= self.tolerance]

    @property
    def passed(self) -> bool:
        """Whether there are no faults and no losing choices; False for a measurement that timed nothing."""
        left = [one for one in self.lost if not (one.beaten and self.dropped)]
        return not self.faults and not left and self.measured != []

    def to_json(self) -> dict[str, Json]:
        """What `autotuned check --json` prints."""
        timed = None if self.measured is None else [one.to_json() for one in self.measured]
        more = {} if timed is None else {"measured": timed, "untimed": self.untimed, "dropped": self.dropped}
        return super().to_json() | more


@env.interpreter_put_back()
def check(
    paths: PathLike | Iterable[PathLike],
    *,
    imports: bool = False,
    measure: bool = False,
    targets: str | Iterable[str] | None = None,
    tolerance: float = 0.05,
    fix: bool = False,
) -> CheckResult:
    """Check config files: schema, values, duplicates, dead or shadowed entries, and their binaries.

    This needs neither torch nor a GPU. Choices of an earlier path shadow those of later ones.

    Args:
        paths: Config files, or folders of them.
        imports: Import the kernels and compare the entries with their signatures, configs and source.
        measure: Also time the choices for this device against the untuned config and the runner-up.
        targets: Files or modules with the kernels, as for `tune`; other kernels are imported by name.
        tolerance: Allowed loss against the runner-up, 0.05 for 5%. Against the untuned config no loss is allowed.
        fix: With `measure`: remove choices slower than untuned; `dropped` lists what was done.

    Raises:
        OptionError: The tolerance is below 0, or `fix` is given without `measure`.
        ConfigFileError: There are no files.
        TargetError: A target cannot be imported.
        NoDeviceError: The requested device is not available.
        DeviceLostError: A config left the device in an error state.
    """
    if not tolerance >= 0:
        raise refused("tolerance", f"expected a share of 0 or more, got {tolerance:g}")
    if fix and not measure:
        message = "fix: expected measure=True as well, got it alone. Only timed choices can be dropped."
        raise OptionError(message, option="fix", problem="expected with --measure")
    checked = CheckResult(paths, tolerance)
    checked.faults += [Fault(str(path), text) for path, file in checked.files for text in audit.faults(path, file)]
    checked.faults += [Fault(str(path), text) for path, text in audit.strays(path for path, _ in checked.files)]
    if imports or measure:
        _with_the_program(checked, targets or (), measure)
    if fix:
        _drop_beaten(checked)
    return checked


def _drop_beaten(checked: CheckResult) -> None:
    from autotuned.key.words import call_words
    from autotuned.offline import verify

    for one in checked.lost:
        if one.beaten:
            checked.dropped.append(f"{one.key.kernel}  {call_words(one.key.call)}: {verify.drop(one)}")


def _with_the_program(checked: CheckResult, targets: Iterable[str], measure: bool) -> None:
    """Compare the files with their kernels, and time them if requested."""
    from autotuned.offline import verify
    from autotuned.offline.device import tensors_on, use_device

    device = tensors_on(use_device())
    kernels = dict(_kernels(checked, targets))
    for path, file in checked.files:
        if file.kernel in kernels:
            checked.faults += [Fault(str(path), text) for text in verify.stale(file, kernels[file.kernel])]
    if measure:
        checked.measured = [contest for found in kernels.values() for contest in _timed(checked, found, device)]
        checked.untimed = list(verify.left_out((file for _, file in checked.files), checked.measured))


def _timed(checked: CheckResult, found: TunedObject, device: str) -> Iterator[Contest]:
    """Time the choices for a kernel's cases; a case that cannot be called is a fault."""
    from autotuned.offline import cases, verify

    for case in cases.of(found, device):
        try:
            if (contest := verify.contest_of(checked.files, case)) is not None:
                yield contest
        except DeviceLostError:
            raise
        except Exception as error:  # of the user's generator, key or pruner
            _blame(checked, found.name, cases.reason(error))


def _kernels(checked: CheckResult, targets: Iterable[str]) -> Iterator[tuple[str, TunedObject]]:
    """The files' kernels by name; one that cannot be imported is a fault."""
    from autotuned.offline import targets as modules

    known = {one.name: one for target in modules.texts(targets, 0) for one in modules.load(target)}
    for name in dict.fromkeys(file.kernel for _, file in checked.files):
        try:
            yield name, known.get(name) or modules.find_kernel(name)
        except TargetError as error:
            _blame(checked, name, str(error))


def _blame(checked: CheckResult, kernel: str, text: str) -> None:
    """Note a fault of a kernel's files."""
    checked.faults += [Fault(str(path), text) for path, file in checked.files if file.kernel == kernel]
