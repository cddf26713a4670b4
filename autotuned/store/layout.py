"""Paths of everything kept between processes, below the cache folder.

v2/KERNEL/DIGEST.json is a key's record. Next to it, for searches: .DIGEST.logbook, journal/DIGEST.json,
locks/DIGEST.lock with its .holder, and damaged/ for unreadable records.
gpu/DEVICE.lock: one search measures at a time. locks/: for writing config files; locks/HOST/: for compiling ahead.
outbox/STORE/: records to send to a shared store, whose URL is hashed with .salt. scratch/: binaries of losing configs.
recordings/: calls to send to a store. programs/: the kernels that a program launched, for its next process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autotuned import disk
from autotuned.key.key import Key
from autotuned.store.record import SCHEMA
from autotuned.store.record import kernel_folder as kernel_folder
from autotuned.store.record import record_path as record_path
from autotuned.store.record import root as root
from autotuned.store.record import schema_folder as schema_folder
from autotuned.typed_json import digest

LOCKS, JOURNAL, DAMAGED, SCRATCH, PROGRAMS = "locks", "journal", "damaged", "scratch", "programs"  # names of folders
OUTBOX, SALT = "outbox", ".salt"

_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "panfs", "pvfs2")
_LOCAL_FUSE = ("fuse.fuse-overlayfs", "fuse.overlayfs", "fuse.lxcfs", "fuse.ntfs", "fuse.ntfs-3g", "fuse.exfat")
_MOUNTS = Path("/proc/self/mountinfo")
_copied: list[str] = []  # the shared store whose records the cache folder holds, within `copy_of`


@contextmanager
def copy_of(store: str) -> Iterator[None]:
    """Say that the cache folder is a copy of a shared store, inside a `with` block.

    Args:
        store: Its URL without secrets.
    """
    _copied.append(store)
    try:
        yield
    finally:
        _copied.pop()


def is_copy() -> bool:
    """Whether the cache folder is a copy of a shared store."""
    return bool(_copied)


def named() -> str:
    """The place of the records in results and messages: the cache folder, or the shared store that it is a copy of."""
    return _copied[-1] if _copied else str(root())


def records_in(path: Path) -> Path:
    """The folder of records in a cache folder; other paths unchanged."""
    below = path / f"v{SCHEMA}"
    return below if below.is_dir() else path


def journal_path(key: Key) -> Path:
    """The journal of a key's search."""
    path = record_path(key)
    return path.parent / JOURNAL / path.name


def ahead_journal_path(key: Key) -> Path:
    """The journal of configs compiled ahead of Triton's own search for the key."""
    return journal_path(key).with_suffix(".ahead.json")


def late_journal_path(key: Key) -> Path:
    """The journal of configs that still compile after a race of the key, which did not wait for them."""
    return journal_path(key).with_suffix(".late.json")


def logbook_path(record_path: Path) -> Path:
    """The logbook of a record's key; a hidden file, which readers of records skip."""
    return record_path.parent / f".{record_path.stem}.logbook"


def lock_path(record_path: Path) -> Path:
    """The lock file of a record's key."""
    return record_path.parent / LOCKS / f"{record_path.stem}.lock"


def holder_path(lock_path: Path) -> Path:
    """The file that names a lock's holder; separate, since a waiter might overwrite the lock file."""
    return lock_path.with_name(f"{lock_path.name}.holder")


def is_unsent() -> bool:
    """Whether records are waiting to be sent to a shared store."""
    return os.path.isdir(root() / OUTBOX)


def gpu_lock_path(device: str) -> Path:
    """The lock of a device."""
    return root() / "gpu" / f"{device}.lock"


def config_file_lock_path(path: Path) -> Path:
    """The lock for writing a config file; not next to it, since lock files stay and the folder may be a source tree."""
    return root() / LOCKS / f"{digest(str(path.absolute()))}.lock"


def program_path(program: str) -> Path:
    """The file that lists the kernels a program launched."""
    return root() / PROGRAMS / f"{disk.file_stem(os.path.basename(program) or 'python')}-{digest(program)[:12]}.json"


def compile_slot_path(host: str, number: int) -> Path:
    """The lock of one processor slot for compiling, shared by the processes of a host."""
    return root() / LOCKS / disk.file_stem(f"host-{host}") / f"{number}.lock"


def network_file_system(path: Path) -> str:
    """Type of the network file system holding a path, such as "nfs4"; "" if local or unknown."""
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        place = os.path.realpath(path)
    except OSError:
        return ""
    kinds = dict(map(_mount, filter(None, mounts)))  # a later mount hides an earlier one
    kind = kinds.get(max((point for point in kinds if _is_below(place, point)), key=len, default=""), "")
    return kind if kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE) else ""


def _mount(line: str) -> tuple[str, str]:
    """Mount point and type from a line of mountinfo, whose optional fields end with a lone dash."""
    fields, _, rest = line.partition(" - ")
    point = fields.split(" ")[4]
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(code, letter)
    return point, rest.split(" ")[0]


def _is_below(place: str, point: str) -> bool:
    return place == point or place.startswith(point.rstrip("/") + "/")
