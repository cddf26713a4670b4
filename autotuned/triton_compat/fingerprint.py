"""The toolchain part of a key: a hash of Triton, and the version of the ptxas that it runs for a device."""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

from autotuned import disk, env
from autotuned.triton_compat import kernel
from autotuned.typed_json import Json, named, typed

log = logging.getLogger("autotuned")
_MOST_BYTES = 1 << 20  # of a stored result, which has a line for each of some hundred files
# Triton's two ptxas: the variable that overrides each, and its name.
_PTXAS = (("TRITON_PTXAS_PATH", "ptxas"), ("TRITON_PTXAS_BLACKWELL_PATH", "ptxas-blackwell"))


def of(arch: str, cache_dir: Path) -> dict[str, Json]:
    """The toolchain for `arch` (such as "sm_90"): Triton's version, a hash of all its files, and ptxas's version.

    Hashing libtriton takes 0.3 s, so the result is stored in `cache_dir` with the sizes and times of the hashed files;
    any change invalidates it. Within a process only ptxas, which runs for each kernel, is checked again. Errors are
    raised: two unknown toolchains must not have equal fingerprints.
    """
    tool = _ptxas(arch)
    now = _stat(tool) if tool else None
    if now not in _known:
        _known[now] = _remembered(_place(cache_dir, tool), now)
    return _known[now]


_known: dict[tuple[str, int, int] | None, dict[str, Json]] = {}


def begin(cache_dir: Path) -> bool:
    """Start hashing Triton's files on another thread, unless a stored result may exist; returns whether it is hashing.

    The key needs the device from Triton's driver, whose first use runs a C compiler for 0.4 s; hashing takes 0.45 s
    (both on a host with an H200).
    """
    tools = [None, *(env.triton_tool(variable) or _own_tool(name) for variable, name in _PTXAS)]
    if os.getpid() in _ahead:
        return True
    if _known or any(os.path.exists(_place(cache_dir, tool)) for tool in tools):
        return False
    _ahead[os.getpid()] = _on_a_thread(_hashed)
    return True


_ahead: dict[int, Any] = {}  # pending hashes by process id: a forked child does not have the thread


def _on_a_thread(function: Callable[[], Any]) -> Any:
    """A future of a function's result; unlike an executor's, it does not delay the interpreter's exit."""
    from concurrent.futures import Future

    future: Any = Future()

    def settle() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=settle, name="autotuned-hash", daemon=True).start()
    return future


def _place(cache_dir: Path, tool: str | None) -> Path:
    name = hashlib.sha256(f"3 {kernel.version()} {kernel.folder()} {tool}".encode("utf-8", "surrogateescape"))
    return cache_dir / "toolchain" / f"{name.hexdigest()[:32]}.json"


def _remembered(path: Path, tool: tuple[str, int, int] | None) -> dict[str, Json]:
    try:
        data = typed(disk.read_json(path, _MOST_BYTES), dict, "toolchain")
        found = named(data.get("is"), "is", ("triton", "triton_key", "ptxas"))
        if all(part is None or typed(part, str, "is") for part in found.values()) and _is_made_of(data, tool):
            return found
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass  # missing, damaged, or a file is gone
    begun = _ahead.pop(os.getpid(), None)
    before, whole = begun.result() if begun else _hashed()
    known = tool and f"{_ptxas_version(tool[0])} {_sha256(tool[0])[:12]}"
    fresh: dict[str, Json] = {"triton": kernel.version(), "triton_key": whole, "ptxas": known}
    # If anything changed, an installation is in progress, and the hash may mix old and new files.
    if _parts() == before and (tool is None or _stat(tool[0]) == tool):
        try:
            disk.write_text(path, disk.text({"ptxas": list(tool) if tool else None, **before, "is": fresh}))
        except OSError as error:
            log.debug("cannot remember the toolchain fingerprint: %s", error)
    return fresh


def _parts() -> dict[str, Json]:
    """The hashed files, and their folders, whose times reveal added files."""
    root = kernel.folder()
    folders = {folder: os.stat(_below(root, folder)).st_mtime_ns for folder in _folders(root)}
    files = {file: list(_stat(_below(root, file))[1:]) for folder in folders for file in _files(root, folder)}
    return {"folders": folders, "files": files}


def _is_made_of(data: Json, tool: tuple[str, int, int] | None) -> bool:
    """Whether a stored result matches the current files; loops avoid calls: 0.4 ms for 150 files."""
    root = kernel.folder()
    if data["ptxas"] != (list(tool) if tool else None):
        return False
    for folder, time in data["folders"].items():
        if os.stat(f"{root}/{folder}").st_mtime_ns != time:
            return False
    for file, (size, time) in data["files"].items():
        info = os.stat(f"{root}/{file}")
        if info.st_mtime_ns != time or info.st_size != size:
            return False
    return True


def _below(root: str, path: str) -> str:
    return f"{root}/{path}"  # os.path.join takes a microsecond


def _hashed() -> tuple[dict[str, Json], str]:
    from triton.runtime.cache import triton_key

    # Triton's own key omits its runtime, Gluon, plug-ins and the bit code that it links into kernels.
    root, parts = kernel.folder(), _parts()
    files = sorted(file for file in parts["files"] if not os.path.basename(file).startswith("libtriton"))
    # On a second thread, since compiling waits for it; reading and hashing release the GIL.
    whole = _on_a_thread(triton_key)
    lines = [f"{file} {_sha256(_below(root, file))}" for file in files]
    lines.insert(0, whole.result())
    return parts, hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _folders(root: str, folder: str = "") -> Iterator[str]:
    """Triton's folders with code, relative to `root`; all but the first end with a slash."""
    yield folder
    for entry in os.scandir(_below(root, folder)):
        if "." not in entry.name and entry.name not in _NO_CODE and entry.is_dir():
            yield from _folders(root, f"{folder}{entry.name}/")


def _files(root: str, folder: str) -> Iterator[str]:
    """The files of Triton in one folder: Python, libraries, and bit code linked into kernels."""
    for entry in os.scandir(_below(root, folder)):
        if entry.name.endswith((".py", ".so", ".pyd", ".bc")):
            yield f"{folder}{entry.name}"


_NO_CODE = {"__pycache__", "profiler", "include", "bin"}  # folders that do not affect compilation


def _stat(path: str) -> tuple[str, int, int]:
    """A file's path, size and time."""
    info = os.stat(path)
    return path, info.st_size, info.st_mtime_ns


def _ptxas(arch: str) -> str | None:
    """The ptxas that Triton runs for `arch`; Triton's own if a variable names a copy of it."""
    variable, default = _ptxas_places(arch)
    override = env.triton_tool(variable) if variable else ""
    if not override:
        return default
    from triton import knobs

    if knobs.NvidiaTool.from_path(override) is None:  # it does not run, so Triton skips it
        return default
    try:
        return default if default and _are_one(_stat(override), _stat(default)) else override
    except (OSError, subprocess.SubprocessError):
        return override


@lru_cache(maxsize=64)
def _are_one(tool: tuple[str, int, int], own: tuple[str, int, int]) -> bool:
    """Whether two files are the same compiler: the same bytes, or programs that report the same version and build.

    A wrapper script differs even if it reports the same version: it may add options.
    """
    paths = tool[0], own[0]
    if tool[1] == own[1] and _sha256(paths[0]) == _sha256(paths[1]):
        return True
    are_programs = all(disk.read_head(path, 4).startswith((b"\x7fELF", b"MZ")) for path in paths)
    return are_programs and _told_version(paths[0]) == _told_version(paths[1])


@lru_cache
def _ptxas_places(arch: str) -> tuple[str, str | None]:
    """The variable that overrides ptxas for `arch`, and Triton's own ptxas."""
    kind, _, number = arch.partition("_")
    if kind != "sm" or not (number.isascii() and number.isdigit()):
        return "", None
    variable, name = _PTXAS[_second_ptxas(int(number))]
    return variable, _own_tool(name)


def _own_tool(name: str) -> str:
    return os.path.join(kernel.folder(), "backends", "nvidia", "bin", name)


def _second_ptxas(arch: int) -> bool:
    """Whether Triton uses its second ptxas for `arch`, by Triton's own code, run with placeholders as tools."""
    from triton.backends.nvidia.compiler import get_ptxas

    tools = SimpleNamespace(ptxas=False, ptxas_blackwell=True)
    try:
        return bool(FunctionType(inspect.unwrap(get_ptxas).__code__, {"knobs": SimpleNamespace(nvidia=tools)})(arch))
    except (AttributeError, TypeError, NameError):
        return arch >= 100


def _told_version(path: str) -> str:
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout


def _ptxas_version(path: str) -> str:
    text = _told_version(path)
    match = re.search(r"\bV(\d+\.\d+\.\d+)", text)
    return match[1] if match else text.strip()


# Files that define a compiled kernel's launch parameters, their order and form.
_INTERFACE = ("backends/nvidia/driver.py", "backends/nvidia/driver.c", "runtime/jit.py")


@lru_cache(maxsize=1)
def launch_interface() -> str:
    """A hash of the files that define how Triton launches compiled kernels, so that forks of Triton differ.

    "" if a file is missing: then no binary serves, since two unknown interfaces must not be equal.
    """
    digest = hashlib.sha256()
    try:
        for name in _INTERFACE:
            with open(_below(kernel.folder(), name), "rb") as file:
                digest.update(file.read() + b"\0")
    except OSError:
        return ""
    return digest.hexdigest()[:32]
