"""Files that survive other processes and bad disks: tolerant reads, atomic writes, damaged files moved aside."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from autotuned.typed_json import Json

if TYPE_CHECKING:
    from importlib.abc import Traversable  # for annotations only: it moves in Python 3.14

MAX_FILE_BYTES = 64 << 20  # a record is a few KiB; a huge file is damage or an attack, and would be read into memory
MAX_LINE_BYTES = 16 << 20  # of a recording, which is read line by line and may be longer than memory
MAX_DEPTH = 100  # of JSON; a key's values are a few levels deep, and code that walks JSON calls itself for each level
# What network file systems answer for a moment while another host replaces a file, and worn disks now and then.
_PASSING = (errno.ENOENT, errno.ESTALE, errno.EIO, errno.EBUSY)
_T = TypeVar("_T")


def read_json(path: Path, most: int | None = None) -> Json:
    """Parse a JSON file; needs no lock and no write access.

    Raises:
        FileNotFoundError: There is none.
        OSError: It cannot be read, also at a second try.
        ValueError: As `read_bytes` and `parse_json` have it.
    """
    return parse_json(read_bytes(path, most))


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """A file's content; an error that may pass is answered by a second try.

    Args:
        most: Bytes that it may have; None for `MAX_FILE_BYTES`.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no plain file, or larger.
    """
    limit = MAX_FILE_BYTES if most is None else most
    return _twice(lambda: _read(path, limit, limit))


def read_resource(path: Traversable) -> bytes:
    """The content of a package's file, which may lie in a zip; OSError and ValueError as `read_bytes`."""
    if isinstance(path, Path):
        return read_bytes(path)
    with path.open("rb") as file:
        content: bytes = file.read(MAX_FILE_BYTES + 1)  # of a zip no more is unpacked
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"{path}: expected at most {MAX_FILE_BYTES} bytes, got more.")
    return content


def read_head(path: str | Path, size: int) -> bytes:
    """At most the first `size` bytes of a file; OSError and ValueError as `read_bytes`."""
    return _twice(lambda: _read(path, size, MAX_FILE_BYTES))


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a plain file of any length, blank ones left out; of one above `MAX_LINE_BYTES` the first so many.

    What is cut is no JSON any more, so that whoever parses lines leaves it out.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no plain file.
    """
    descriptor = opened(path)
    with open(descriptor, "rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            rest = line
            while not rest.endswith(b"\n") and (rest := file.readline(MAX_LINE_BYTES)):
                pass
            if line.strip():
                yield line


def inflate(data: bytes, most: int) -> bytes:
    """What zlib compressed.

    Raises:
        ValueError: It is no such thing, or more than `most` bytes: no more are ever unpacked.
    """
    import zlib  # here: no start of a process needs it

    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(f"expected compressed data, got {error}.") from None
    if len(content) > most or not unpacker.eof:
        raise ValueError(f"expected compressed data of at most {most} bytes, got more, or a part.")
    return content


def _twice(action: Callable[[], _T]) -> _T:
    try:
        return action()
    except OSError as error:
        if error.errno not in _PASSING:
            raise
    return action()


def _read(path: str | Path, wanted: int, most: int) -> bytes:
    descriptor = opened(path)
    try:
        size = os.fstat(descriptor).st_size
        if size > most:
            raise ValueError(f"{path}: expected at most {most} bytes, got {size}.")
        return _content(descriptor, min(wanted, size))  # of a file that grows meanwhile no more than it had
    finally:
        os.close(descriptor)


def opened(path: str | Path) -> int:
    """A descriptor of a plain file; anything else is refused, and a pipe's writer not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise ValueError(f"{path}: expected a plain file.")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _content(descriptor: int, limit: int) -> bytes:
    content = os.read(descriptor, limit)
    while len(content) < limit and (chunk := os.read(descriptor, limit - len(content))):
        content += chunk
    return content


def parse_json(content: str | bytes) -> Json:
    """Parse JSON text.

    Raises:
        ValueError: It is no JSON, nested deeper than `MAX_DEPTH`, has a name twice in one object, or holds NaN,
            Infinity, a number like 1e999, which Python reads as one, or an integer of thousands of digits.
    """
    text = decoded(content)
    _check_depth(text)
    return _decoder.decode(text)


def decoded(content: str | bytes) -> str:
    """Text of a JSON file, in whichever encoding of Unicode; UnicodeDecodeError, a ValueError, if it is none."""
    return content if isinstance(content, str) else content.decode(json.detect_encoding(content))


def first_json(text: str) -> Json:
    """The JSON value that a text begins with, whatever follows; ValueError as `parse_json`."""
    _check_depth(text)
    return _decoder.raw_decode(text)[0]


def _check_depth(text: str) -> None:
    """Refuse what is nested too deeply before anything is made of it; 2 us for a record's head of 2 KiB."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    if not _is_shallow(text):
        strings = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|$)', re.DOTALL)
        if not _is_shallow(strings.sub("", text)):
            raise ValueError(f"expected JSON of a sane depth, at most {MAX_DEPTH}, got one nested too deeply.")


def _is_shallow(text: str) -> bool:
    """Whether brackets lie in each other at most `MAX_DEPTH` times; also False where strings hold odd ones."""
    brackets = text.encode("utf-8", "surrogatepass").translate(_ROUND, _NO_BRACKETS)
    depth = 0
    while b"()" in brackets and depth < MAX_DEPTH:
        brackets = brackets.replace(b"()", b"")  # the innermost, everywhere
        depth += 1
    return depth + len(brackets) <= MAX_DEPTH  # of a text that is cut off some are left


_ROUND = bytes.maketrans(b"[{]}", b"(())")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"expected each name once in an object, got {twice!r:.60} twice.")
    return fields


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"expected finite numbers, got {name:.20}.")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        _refuse_constant(digits)
    return number


# Made once: `json.loads` with these options makes one a call, which a listing of 100,000 records pays for.
_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_object)


def text(data: Json) -> str:
    """JSON as it is written to disk: one line, ASCII; NaN and Infinity are refused."""
    return json.dumps(data, ensure_ascii=True, allow_nan=False) + "\n"


def json_head(content: bytes, last: str) -> dict[str, Json] | None:
    """The fields of an object before the list `last`, from the first bytes of a file that `text` spelled.

    Returns:
        None where `last` is not among these bytes, or what is before it is no JSON: read the whole file then.
    """
    # Inside a string the quotes would be escaped, and inside a nested object the rest would not be balanced.
    head, found, _ = content.partition(f', "{last}": ['.encode())
    try:
        fields = parse_json(head + b"}") if found else None
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None


def write_text(path: Path, content: str) -> None:
    """Replace a file's content in one step: readers see the old text or the new, never a part.

    Not crash-durable: there is no fsync, a power cut may lose the newest write (the old or no file is left). What was
    written is not read back: on a network file system its own writer may not see it yet.

    Raises:
        OSError: The folder cannot be made or written; no temporary file is left behind.
    """
    write_bytes(path, content.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file's content in one step; what holds of `write_text` holds here, also what it raises."""
    _twice(lambda: _replace(path, content))


def overwrite(path: Path, content: str) -> None:
    """Write over a file where it stands; for text of one writer that changes many times a second.

    Replacing a file may wait for the disk (ext4: 3 ms each). A reader beside this may find it half-written, and so may
    those who come after a machine that died; one who comes after a killed process finds the old text or the new.

    Raises:
        OSError: The folder cannot be made or written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        write_text(path, content)  # there is none yet, or it is somebody else's
        return
    try:
        # Blanks over the rest of a longer text: cutting it off would be a second step.
        write_all(descriptor, content.encode().ljust(os.fstat(descriptor).st_size))
    finally:
        os.close(descriptor)


def _replace(path: Path, content: bytes) -> None:
    make_folder(path.parent)
    # Beside its target, or os.replace would cross file systems; hidden and unique, so that readers never see it.
    temporary = path.parent / f"{_prefix(path)}{os.urandom(12).hex()}.tmp"
    try:
        # The umask's own mode: tempfile would make it 0600, which the readers of a shared folder cannot open.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            write_all(descriptor, content)
            share(descriptor, path.parent)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException as error:
        remove(temporary)
        if isinstance(error, OSError) and error.filename is None:  # a write knows no name, and the user must
            error.filename = str(path)
        raise


def _prefix(path: Path) -> str:
    return f".{path.name[:40]}."


def remove_temporaries(path: Path) -> None:
    """Remove the temporary files of writers of `path` who were killed; one who is writing now writes once more."""
    try:
        names = [name for name in os.listdir(path.parent) if name.startswith(_prefix(path)) and name.endswith(".tmp")]
    except OSError:
        return
    for name in names:
        remove(path.parent / name)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it: one call may take a part, when a disk fills up."""
    while content:
        content = content[os.write(descriptor, content) :]


def remove(path: Path) -> bool:
    """Remove a file; whether that was possible. A leftover costs bytes, raising here would cost the result."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def remove_folder(path: Path) -> None:
    """Remove an empty folder; one that is not, or cannot be removed, stays."""
    with contextlib.suppress(OSError):
        os.rmdir(path)


def touch(path: Path) -> None:
    """Set a file's times to now, if that is allowed: readers of a shared folder may not."""
    with contextlib.suppress(OSError):
        os.utime(path)


def make_folder(path: Path, mode: int = 0o700) -> None:
    """Make a folder and those above it with a mode, less the umask, or as open as a group-shared (setgid) one above.

    Raises:
        OSError: It cannot be made.
    """
    # Mostly it is there; and each missing one above gets the private mode too, which `parents=True` would not do.
    if os.path.isdir(path):
        return
    if path.parent != path:
        make_folder(path.parent, mode)
    shared = _group_mode(path.parent)
    try:
        os.mkdir(path, mode)
        if shared:
            os.chmod(path, shared)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def share(descriptor: int, folder: Path) -> None:
    """Let those read, and write, a new file who may do so with its folder, if the folder is group-shared."""
    if mode := shared_mode(folder):
        with contextlib.suppress(OSError):  # some file systems have no modes; the file is as the umask made it
            os.fchmod(descriptor, mode)


def shared_mode(folder: Path) -> int:
    """The mode of files in a group-shared folder; 0 in any other, where the umask decides."""
    return _group_mode(folder) & 0o666


def _group_mode(folder: Path) -> int:
    """The mode of a group-shared folder; 0 for any other."""
    try:
        mode = os.stat(folder).st_mode
    except OSError:
        return 0
    return stat.S_IMODE(mode) if mode & stat.S_ISGID else 0


def move_aside(path: Path, folder: Path) -> Path | None:
    """Move a damaged file into a folder, so that it can be looked at and is not met again.

    Returns:
        Where it lies now, or None if it could not be moved (the next write replaces it).
    """
    target = folder / f"{path.stem}.{os.getpid()}.{time.time_ns():x}{path.suffix}"
    try:
        make_folder(folder)
        os.replace(path, target)
    except OSError:
        return None
    return target


def cache_dir(setting: str) -> Path:
    """The folder of records: an absolute path, made so at first use and then fixed.

    Args:
        setting: The user's choice; empty for the platform's cache folder. Without a usable home folder (HOME unset
            and no passwd entry) a private folder under the system's temporary one is taken.
    """
    if setting not in _cache_dirs:
        _cache_dirs[setting] = _absolute(setting) if setting else _default_dir()
    return _cache_dirs[setting]


_cache_dirs: dict[str, Path] = {}


def _absolute(setting: str) -> Path:
    try:
        return Path(setting).expanduser().absolute()
    except RuntimeError:  # '~' without a home folder
        return _temporary_dir()


def _default_dir() -> Path:
    import platformdirs

    try:
        path = Path(platformdirs.user_cache_dir("autotuned", appauthor=False))
    except (RuntimeError, KeyError, OSError):  # a uid without a passwd entry: which one depends on the Python version
        return _temporary_dir()
    return path if path.is_absolute() else _temporary_dir()


def _temporary_dir() -> Path:
    import tempfile  # here, for it costs a hit some milliseconds

    user = os.getuid() if hasattr(os, "getuid") else "user"
    path = Path(tempfile.gettempdir()) / f"autotuned-{user}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        safe = not isinstance(user, int) or _is_private(path, user)
    except OSError:
        safe = False
    # Under a folder that everybody writes, a name that can be guessed may be somebody else's.
    return path if safe else Path(tempfile.mkdtemp(prefix="autotuned-"))


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A private folder for a `with` block, removed at its end."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="autotuned-") as name:
        yield Path(name)


def _is_private(path: Path, user: int) -> bool:
    """Whether nobody but a user can put files into a folder, or another folder in its place.

    One that was open to others for a while is not made private here: what they put into it would still be there.
    """
    own, above = path.lstat(), path.parent.stat()
    kept = above.st_mode & stat.S_ISVTX or not above.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    closed = stat.S_ISDIR(own.st_mode) and not stat.S_IMODE(own.st_mode) & 0o077
    return bool(closed and own.st_uid == user and kept and above.st_uid in (0, user))
