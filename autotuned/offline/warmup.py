"""`warmup`: compiles the kernels for a recording's calls into Triton's cache, for later processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from autotuned import env
from autotuned.errors import described
from autotuned.key import opaque
from autotuned.offline import replay
from autotuned.offline.binaries import build
from autotuned.offline.device import tensors_on, use_device
from autotuned.offline.replay import Replayed
from autotuned.offline.results import BuildResult
from autotuned.offline.targets import texts
from autotuned.recording.file import RecordedCall
from autotuned.resolve import explain
from autotuned.tunable import configs
from autotuned.typed_json import Json


@dataclass
class PreparedCall:
    """One recorded call; the fields are those of the command's JSON.

    Attributes:
        triton: Triton's version; None for a plain callable.
        config: The compiled config; None if it is not ready.
        reason: Why it is not ready.
    """

    kernel: str
    triton: str | None
    call: Json
    count: int
    config: Mapping[str, Json] | None = None
    reason: str | None = None


@dataclass
class WarmupResult:
    """The result of `warmup`, call by call; `binaries` are the config files' binaries (None if not requested)."""

    calls: list[PreparedCall] = field(default_factory=list)
    binaries: BuildResult | None = None

    @property
    def failed(self) -> list[PreparedCall]:
        """The calls that are not ready."""
        return [call for call in self.calls if call.config is None]

    def to_json(self) -> dict[str, Json]:
        """What `autotuned warmup --json` prints."""
        built = {} if self.binaries is None else {"binaries": self.binaries.to_json()}
        return {"calls": [asdict(call) for call in self.calls], **built}


@env.interpreter_put_back()
def warmup(
    recording: str | os.PathLike[str],
    files: Sequence[str] | None = None,
    *,
    binaries: str | os.PathLike[str] | None = None,
) -> WarmupResult:
    """Choose and compile each call of a recording, without launches or searches: `autotuned warmup` from Python.

    Args:
        recording: The file written by `autotuned record`.
        files: Files that the recording names and that may be run; kernels of modules are imported by name.
        binaries: A folder of config files: also write the binaries for the calls next to them.

    Returns:
        The compiled calls, and the reasons for the others.

    Raises:
        RecordingError: The recording cannot be read.
        OptionError, NoDeviceError: The device requested by `AUTOTUNED_DEVICE` is not available.
    """
    device, files = tensors_on(use_device()), texts(files or (), 0)
    with explain.reading_once():  # for the nearest key of each untuned call
        found = replay.load(Path(recording), files)
        result = WarmupResult([prepared(one, call, device) for one in found for call in one.calls])
    if binaries is not None:
        result.binaries = build(binaries, [str(recording), *files], device)
    return result


def prepared(found: Replayed, recorded: RecordedCall, device: str) -> PreparedCall:
    """Choose and compile one recorded call, without launches or searches; errors are in the result."""
    key = recorded.key
    made = PreparedCall(key.kernel, key.context.get("triton"), key.call, recorded.count)
    if found.reason:
        made.reason = found.reason
        return made
    try:
        call, _ = replay.call_of(found, recorded, device)
        config = found.tuner.prepare(call, search=False)
        made.config = configs.stored_form(config, key.kernel, opaque.spell)
    except Exception as error:  # any error of the user's kernel, pruners and hooks
        made.reason = described(error)
    return made
