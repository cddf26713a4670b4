"""Which records are still to be sent to a shared store: a file each, which outlives the process."""

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
_LOST_S = 86400.0  # a record that is not there by then was cleared away, or never written


class Letter(NamedTuple):
    """A record that is to be sent: its file, whether it replaces what is there, and the files that say so.

    Attributes:
        fence: The token of the lease under which it was measured; 0 for none.
    """

    record: Path
    again: bool
    fence: int
    files: tuple[Path, ...]


def folder(store: str) -> Path:
    """The folder that says which records a shared store is still to be sent.

    Its name tells stores apart and says nothing of them: it is a digest with a random number that is kept beside it.
    """
    name = hmac.new(_salt(layout.root() / layout.SALT), store.encode("utf-8", "replace"), hashlib.sha256)
    return layout.root() / layout.OUTBOX / name.hexdigest()[:16]


def _salt(path: Path) -> bytes:
    """The number in a file, made by the first who asks; where the disk does not let us, nothing can be noted anyway."""
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
            time.sleep(0.001)  # its maker is about to write
            continue
        break
    with contextlib.suppress(OSError):  # its maker was killed, or something else lies there
        disk.write_bytes(path, made)
    return made


def put(folder: Path, record: Path, again: bool, fence: int = 0) -> Path | None:
    """Say that a record will have to be sent, before it is written; None where the disk does not let us."""
    path = folder / f"{record.stem}.{os.urandom(6).hex()}"
    try:
        below = record.relative_to(layout.root()).as_posix()
        disk.write_text(path, disk.text({"record": below, "again": again, "fence": fence}))
    except (OSError, ValueError):
        return None
    return path


def digests(folder: Path) -> list[str]:
    """Of the keys whose records are to be sent; an empty outbox is removed, so that a start sees that there is none."""
    try:
        names = [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError:
        return []
    if not names:
        disk.remove_folder(folder)
        disk.remove_folder(folder.parent)
    return sorted({name.partition(".")[0] for name in names})


def letter(folder: Path, digest: str) -> Letter | None:
    """What is to be sent of a key; what is no such thing is removed."""
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
    """Whether a record that is not there will never be."""
    try:
        return time.time() - max(os.stat(path).st_mtime for path in letter.files) > _LOST_S
    except OSError:
        return True
