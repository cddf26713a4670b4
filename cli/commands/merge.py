"""`autotuned merge`: puts config files together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from autotuned import disk
from autotuned.configfiles import exchange, writer
from autotuned.configfiles.exchange import Conflict, Merged
from autotuned.configfiles.file import ConfigFile

from .. import terminal


def merge(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Config files, or folders of them.")],
    out: Annotated[Path, typer.Option("--out", metavar="OUT", help="A folder, or a file that ends in .json.")] = ...,  # type: ignore[assignment]
    as_json: terminal.AsJson = False,
) -> None:
    """Put config files together into new ones.

    The inputs are never written. For a call that several have with other configs, the one that was measured better is
    taken, and the conflict is reported: one with times before one without; then the larger gain over the default; then
    the faster; then the first. A file that git left without commas, or with its marks, is read line by line.

    Exit codes: 0 done; 3 something in the inputs could not be read, and is left out; 1 nothing could.

    JSON: `files`, `entries`, `conflicts` (each with `kernel`, `device`, `call`, `taken`, `left`, `why`) and `faults`.
    """
    merged = exchange.merge(paths)
    faults = terminal.say_faults(merged.faults)
    if not merged.files:
        raise terminal.fail("none of the inputs can be read.")
    targets = _targets(merged, out)
    _refuse_inputs(targets, paths)
    for path, file in targets.items():
        _write(path, file, out)
    for conflict in merged.conflicts:
        terminal.remark(f"conflict: {_words(conflict)}")
    entries = sum(len(group.entries) for file in targets.values() for group in file.groups())
    if as_json:
        conflicts = [_to_json(conflict) for conflict in merged.conflicts]
        terminal.print_json(
            {"files": list(map(str, targets)), "entries": entries, "conflicts": conflicts, "faults": faults}
        )
    else:
        terminal.say("\n".join(f"wrote {path}" for path in targets))
    if faults:
        raise typer.Exit(3)


def _targets(merged: Merged, out: Path) -> dict[Path, ConfigFile]:
    if out.suffix != ".json":
        return {writer.path_of(file.kernel, file.device, out): file for file in merged.files.values()}
    if len(merged.files) > 1:
        names = ", ".join(f"{kernel} on {device.slug}" for kernel, device in merged.files)
        raise terminal.fail(
            f"--out {out}: a file holds one kernel on one device, and these are {names}. Name a folder."
        )
    [file] = merged.files.values()
    return {out: file}


def _refuse_inputs(targets: dict[Path, ConfigFile], paths: list[Path]) -> None:
    inputs = {path.resolve() for path in exchange.files_in(paths)}
    for path, file in targets.items():
        if path.resolve() in inputs:
            raise terminal.fail(f"--out: {path} is an input, and inputs are never written. Name another place.")
        if path.exists() and not _holds(path, file):
            raise terminal.fail(f"--out: {path} is there already. Name it as an input too, or name another place.")
    folder = next(iter(targets)).parent
    if reason := writer.unwritable(folder):
        raise terminal.cannot_write(folder, reason)


def _holds(path: Path, file: ConfigFile) -> bool:
    try:
        return disk.read_bytes(path) == file.dump().encode()
    except ValueError:  # larger than any config file, or no file
        return False


def _write(path: Path, file: ConfigFile, out: Path) -> None:
    if path == out:
        writer.write_to(path, file)
    else:
        writer.write(file, out)


def _words(conflict: Conflict) -> str:
    key, taken, left = conflict.key, conflict.taken, conflict.left
    return (
        f"{key.kernel} {terminal.call_words(key.call)}: took {terminal.config_words(taken.config, key.is_of_triton)} "
        f"({terminal.time_words(taken.median_us)}, {terminal.ratio_words(taken.vs_default)}), left "
        f"{terminal.config_words(left.config, key.is_of_triton)} ({terminal.time_words(left.median_us)}, "
        f"{terminal.ratio_words(left.vs_default)}): {conflict.why}"
    )


def _to_json(conflict: Conflict) -> dict[str, Any]:
    key = conflict.key
    return {
        "kernel": key.kernel,
        "device": key.context["device"],
        "call": key.call,
        "taken": conflict.taken.to_json(),
        "left": conflict.left.to_json(),
        "why": conflict.why,
    }
