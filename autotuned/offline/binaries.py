"""Builds the compiled kernels that ship with config files, from the files and the kernels' calls, without a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from autotuned.api.function import TunedFunction
from autotuned.binaries import writer
from autotuned.binaries.build import Builder, Built, WantedBinary
from autotuned.binaries.serve import Server
from autotuned.configfiles import exchange, policy
from autotuned.configfiles.exchange import PathLike
from autotuned.configfiles.file import ConfigFile, Entry
from autotuned.errors import AutotunedError, BinaryError
from autotuned.key import opaque
from autotuned.key.key import call_part
from autotuned.offline import cases, replay, targets
from autotuned.offline.device import check_environment
from autotuned.offline.results import BuildResult, BuiltFile
from autotuned.offline.shapes_only import shapes_only
from autotuned.offline.targets import TunedObject
from autotuned.search.compiling import parallelism
from autotuned.triton_compat import kernel as toolchain
from autotuned.triton_compat import specialization
from autotuned.tunable.call import Call
from autotuned.tunable.kernel import TunableKernel
from autotuned.typed_json import canonical


def build(paths: PathLike | Iterable[PathLike], given: Sequence[str] = (), device: str | None = None) -> BuildResult:
    """Compile the kernels that config files need, and write them next to the files.

    The calls (cases of the kernels, and recordings) determine the specializations, and the config file the
    architecture, so no GPU is needed.

    Args:
        paths: Config files, or folders of them.
        given: Targets and recordings with the calls; by default kernels are imported by name.
        device: Where to create the tensors of cases; by default on the GPU, without one as tensors without memory.

    Raises:
        ConfigFileError: There are no files, or one cannot be written.
        TargetError, RecordingError: A target or recording cannot be loaded.
    """
    check_environment()
    known, paths = _given(given), exchange.files_in(paths)
    with nullcontext() if device is not None or torch.cuda.is_available() else shapes_only():
        files = [_File(path, known, device or "cuda").build() for path in paths]
    compiled = [file for file in files if not file.is_foreign]  # the others are reported only if there are none
    return BuildResult(compiled or files)


def _given(given: Sequence[str]) -> dict[str, list[TunedObject]]:
    recorded, imported = cases.load_all(given)
    known: dict[str, list[TunedObject]] = {}
    for one in [*imported, *recorded]:
        known.setdefault(one.name, []).append(one)
    return known


class _File:
    """Builds the binaries of one config file."""

    def __init__(self, path: Path, known: dict[str, list[TunedObject]], device: str) -> None:
        self._path, self._known, self._device = path, known, device
        self._seen: set[tuple[tuple[str, str], str]] = set()  # an entry's context and call, and a specialization

    def build(self) -> BuiltFile:
        """Build and write; `missing` in the result lists what could not be built."""
        config, faults = exchange.read(self._path)
        if config is None:
            return BuiltFile(str(self._path), "", 0, missing=[str(fault) for fault in faults])
        result = BuiltFile(str(self._path), config.kernel, config.count)
        try:
            self._build(config, result)
        except AutotunedError as error:
            result.missing.append(str(error))
        return result

    def _build(self, config: ConfigFile, result: BuiltFile) -> None:
        if specialization.arch_of(config.device.arch) is None or config.device.kind != "cuda":
            result.is_foreign = True
            result.missing.append(f"expected a file of an NVIDIA GPU, got {config.device.slug}: nothing is compiled.")
            return
        found = self._known.get(config.kernel) or [targets.find_kernel(config.kernel)]
        made: dict[tuple[str, str], list[Built]] = {}
        for one in found:
            if one.tuned is None or isinstance(one.tuned, TunedFunction):
                result.missing.append(getattr(one, "reason", "") or "it is not a Triton kernel.")
            else:
                self._of_kernel(one, config, result, made)
        result.missing += _unmet(config, set(made)) if made else ()
        result.entries = sum(1 for some in made.values() if any(built.variant for built in some))
        if made:
            result.bytes = writer.ship(self._path, made)

    def _of_kernel(
        self, one: TunedObject, config: ConfigFile, result: BuiltFile, made: dict[tuple[str, str], list[Built]]
    ) -> None:
        tunable = one.tuner.tunable
        if not isinstance(tunable, TunableKernel) or tunable.interpreted:
            result.missing.append("the kernel is interpreted here: unset TRITON_INTERPRET to compile it.")
            return
        server = one.tuner.chooser.shipped.server
        wanted = list(self._wanted(one, server, config, result))
        builder = Builder(server)
        with ThreadPoolExecutor(max(parallelism.count(len(wanted)), 1), "autotuned-build") as threads:
            built = list(threads.map(builder.build, [each for _, each in wanted]))
        for (at, each), done in zip(wanted, built):
            made.setdefault(at, []).append(done)
            result.variants += done.variant is not None
            result.generic += done.variant is not None and done.generic
            if done.fault:
                kind = "the generic variant" if each.generic else "the variant"
                types = ", ".join(f"{name}: {type_}" for name, type_ in each.form.launched)
                line = f"{kind} of {types} does not compile: {done.fault}"
                result.missing += [line] if line not in result.missing else []

    def _wanted(
        self, one: TunedObject, server: Server, config: ConfigFile, result: BuiltFile
    ) -> Iterator[tuple[tuple[str, str], WantedBinary]]:
        """The binaries that a kernel's calls need for the file's entries, each specialization of an entry once."""
        code = server.code(config.device)
        if code is None:
            result.missing.append(
                "its code uses values that are valid in one process only: put the relevant part into version=."
            )
            return
        context = {"source": one.tuner.tunable.source, "environment": dict(code.environment), "version": code.version,
                   "triton": toolchain.version()}  # fmt: skip
        groups, builder = writer.matching(config, context), Builder(server)
        if not groups:
            result.missing.append(_no_group(config, context))
        for call, fault in self._calls(one) if groups else ():
            if call is None:
                result.missing.append(fault)
                continue
            for at, entry in _entries(one, call, groups):
                try:
                    for each in builder.wanted(call, _live(one, call, entry), code):
                        if (at, each.form.text) not in self._seen:
                            self._seen.add((at, each.form.text))
                            yield at, each
                except Exception as error:  # from pruners, heuristics or Triton
                    result.missing.append(cases.reason(error))

    def _calls(self, one: TunedObject) -> Iterator[tuple[Call | None, str]]:
        """The known calls of a kernel, or the reason why one cannot be created."""
        for case in cases.of(one, self._device):
            call, fault = None, case.error
            try:
                if not fault:
                    call, _ = replay.bound(one, case.given, self._device)
            except Exception as error:
                fault = cases.reason(error)
            yield call, fault


def _entries(
    one: TunedObject, call: Call, groups: Sequence[tuple[str, Any]]
) -> Iterator[tuple[tuple[str, str], Entry]]:
    spec = one.tuner.options.spec
    part = canonical(call_part(spec, call.arguments, call.options, one.name, opaque.spell))
    for context, entries in groups:
        if part in entries:
            yield (context, part), entries[part]


def _live(one: TunedObject, call: Call, entry: Entry) -> Any:
    """The kernel's config for an entry; BinaryError if the kernel no longer has it."""
    live = one.tuner.chooser.candidates(call)
    if entry.identity not in live:
        raise BinaryError(f"expected one of the kernel's configs, got {entry.identity}: tune again.", path="")
    return live[entry.identity]


def _no_group(config: ConfigFile, context: dict[str, Any]) -> str:
    """Why no entry matches the current kernel."""

    def differing(theirs: dict[str, Any]) -> list[str]:
        environment = policy.that_change_code(theirs.get("environment") or {}, str(theirs.get("triton")))
        theirs = {**theirs, "environment": environment}
        return [name for name, value in context.items() if canonical(theirs.get(name)) != canonical(value)]

    theirs: dict[str, Any] = min(
        (group.context for group in config.groups()), key=lambda one: len(differing(one)), default={}
    )
    words = [f"{name} ({theirs.get(name)}, here {context[name]})" if name == "triton" else name
             for name in differing(theirs)]  # fmt: skip
    return f"its entries were tuned for another {', '.join(words)}: tune again here, and build then."


def _unmet(config: ConfigFile, met: set[tuple[str, str]]) -> Iterator[str]:
    """A line with the number of entries without a known call, if there are any."""
    count = sum((canonical(group.context), call) not in met for group in config.groups() for call in group.entries)
    if count:
        yield f"{count} entries have no case and no recorded call here: name a target or a recording with them."
