"""Keeps what Triton builds with a C compiler: its driver and, up to Triton 3.6, a launcher for each signature."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import platform
import sysconfig
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autotuned import disk, env
from autotuned.binaries import file as binaryfile
from autotuned.triton_compat import kernel, launcher
from autotuned.typed_json import digest

log = logging.getLogger("autotuned")
_HASH_BYTES = hashlib.sha256().digest_size
_MOST_BYTES = 64 << 20  # of a library


def build(
    folder: Path, original: Callable[..., str], name: str, src: str, srcdir: str, library_dirs: Sequence[str],
    include_dirs: Sequence[str], *flags: Any, **more: Any,
) -> str:  # fmt: skip
    """In place of Triton's `_build`, the `original`: look in a folder first, and store there what Triton builds."""
    made = Path(srcdir) / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    path = folder / f"{_digest(made.name, disk.read_bytes(Path(src)), [*flags, more])}{binaryfile.SUFFIX}"
    if not launcher.builds_by_itself() or not _found(path, made):
        made = Path(original(name, src, srcdir, library_dirs, include_dirs, *flags, **more))
        _keep(path, made)
    return str(made)


def _digest(name: str, source: bytes, flags: list[Any]) -> str:
    """Hash of everything that affects the build, except paths; the name has Python's version and platform."""
    return digest([name, platform.machine(), kernel.version(), hashlib.sha256(source).hexdigest(), repr(flags)])


def _found(path: Path, made: Path) -> bool:
    """Write a kept library to the path of the built one; False if no kept one is intact and loads."""
    try:
        data = disk.read_bytes(path)
        code = disk.inflate(data[_HASH_BYTES:], _MOST_BYTES)
        if hashlib.sha256(code).digest() != data[:_HASH_BYTES]:
            raise ValueError(f"expected its hash, got {hashlib.sha256(code).hexdigest()}")
        made.write_bytes(code)
        ctypes.CDLL(str(made))  # of a newer C library, for example, it could not
        disk.touch(path)
        return True
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        env.warn_once(f"kept {path}", "%s is not used, and built again: %s", path, error)
        return False


def _keep(path: Path, made: Path) -> None:
    """Store a library; a failure only costs the next start a C compiler."""
    try:
        code = disk.read_bytes(made, _MOST_BYTES)
        disk.write_bytes(path, hashlib.sha256(code).digest() + zlib.compress(code), disk.READABLE)
    except (OSError, ValueError) as error:
        log.debug("%s is not kept: %s", made.name, error)
