"""Records waiting to be sent to a shared store: one small file each, which survives the process."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import time
from pathlib import Path
from typing import NamedTuple

from autotuned import disk
from autotuned.store import layout
from autotuned.typed_json import typed, wrong

_SALT_BYTES = 32
_LOST_S = 86400.0  # a record missing by then was deleted or never written


class Letter(NamedTuple):
    """A record to send.

    Attributes:
        record: The record's file.
        again: It replaces the store's record.
        fence: Token of the lease under which it was measured; 0 for none.
        files: The outbox files that name it.
    """

    record: Path
    again: bool
    fence: int
    files: tuple[Path, ...]


def folder(store: str) -> Path:
    """The outbox folder of a store; its name is a salted digest, which reveals nothing about the store."""
    return layout.root() / layout.OUTBOX / salted(store)


def salted(text: str) -> str:
    """A short digest of a text, different in each cache folder, since hosts may share names and paths."""
    salt = _salt(layout.root() / layout.SALT)
    return hmac.new(salt, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()[:16]


def _salt(path: Path) -> bytes:
    """The random number in a file, created by the first process; without it the outbox cannot be written either."""
    made = os.urandom(_SALT_BYTES)
    with contextlib.suppress(OSError):
        disk.make_folder(path.parent)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(made)
    for _ in range(100):
        with contextlib.suppress(OSError, ValueError):
            found = disk.read_bytes(path, _SALT_BYTES)
            if len(found) == _SALT_BYTES:
                return found
            time.sleep(0.001)  # its creator is about to write it
            continue
        break
    with contextlib.suppress(OSError):  # its creator was killed, or the path is not a file
        disk.write_bytes(path, made)
    return made


def put(folder: Path, record: Path, again: bool, fence: int = 0) -> Path | None:
    """Note, before a record is written, that it must be sent; None if the disk refuses."""
    path = folder / f"{record.stem}.{os.urandom(6).hex()}"
    try:
        below = record.relative_to(layout.root()).as_posix()
        disk.write_text(path, disk.text({"record": below, "again": again, "fence": fence}))
    except (OSError, ValueError):
        return None
    return path


def digests(folder: Path) -> list[str]:
    """Digests of the keys to send. Removes an empty outbox, so that a starting process need not list it."""
    try:
        names = [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError:
        return []
    if not names:
        disk.remove_folder(folder)
        disk.remove_folder(folder.parent)
    return sorted({name.partition(".")[0] for name in names})


def letter(folder: Path, digest: str) -> Letter | None:
    """The letter of a key; invalid files are removed."""
    record, again, files, fences = None, False, [], []
    for path in sorted(folder.glob(f"{digest}.*")):
        try:
            fields = typed(disk.read_json(path, 4096), dict, "letter")
            named = layout.root() / typed(fields.get("record"), str, "record")
            if named.stem != digest or named.parent.parent != layout.schema_folder():
                raise wrong("record", "the record of this key", named.name)
            fences.append(typed(fields.get("fence", 0), int, "fence"))
        except OSError:
            continue
        except ValueError:
            disk.remove(path)
            continue
        record, again = named, again or fields.get("again") is True
        files.append(path)
    fence = max(fences) if fences and all(fences) else 0
    return None if record is None else Letter(record, again, fence, tuple(files))


def is_lost(letter: Letter) -> bool:
    """Whether a missing record will never appear."""
    try:
        return time.time() - max(os.stat(path).st_mtime for path in letter.files) > _LOST_S
    except OSError:
        return True
