"""Robust file access: tolerant reads, atomic writes, valid names, damaged files moved aside."""

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
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from autotuned.typed_json import Json, digest

if TYPE_CHECKING:
    from importlib.abc import Traversable  # for annotations only: it moves in Python 3.14

MAX_FILE_BYTES = 64 << 20  # a record is a few KiB; a huge file is damaged or an attack, and would fill memory
MAX_LINE_BYTES = 16 << 20  # of a recording, which is read line by line and may exceed memory
MAX_DEPTH = 100  # of JSON: keys nest a few levels, and code that walks JSON recurses
PRIVATE, READABLE = 0o700, 0o755  # modes of new folders, less the umask
# Transient errors, of network file systems while another host replaces a file, and of worn disks.
_PASSING = (errno.ENOENT, errno.ESTALE, errno.EIO, errno.EBUSY)
_T = TypeVar("_T")


def read_json(path: Path, most: int | None = None) -> Json:
    """Read and parse a JSON file; raises like `read_bytes` and `parse_json`."""
    return parse_json(read_bytes(path, most))


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Read a regular file of at most `most` bytes (default `MAX_FILE_BYTES`), retrying transient errors once.

    Raises OSError, or ValueError if it is larger or not a regular file.
    """
    limit = MAX_FILE_BYTES if most is None else most
    return _twice(lambda: _read(path, limit, limit))


def read_resource(path: Traversable) -> bytes:
    """Read a file of a package, also inside a zip; raises like `read_bytes`."""
    if isinstance(path, Path):
        return read_bytes(path)
    with path.open("rb") as file:
        content: bytes = file.read(MAX_FILE_BYTES + 1)  # limits a zip bomb
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"{path}: expected at most {MAX_FILE_BYTES} bytes, got more.")
    return content


def read_head(path: str | Path, size: int) -> bytes:
    """Read up to the first `size` bytes of a file; raises like `read_bytes`."""
    return _twice(lambda: _read(path, size, MAX_FILE_BYTES))


def lines(path: Path) -> Iterator[bytes]:
    """Yield the non-blank lines of a regular file of any length; raises like `read_bytes`.

    A line longer than `MAX_LINE_BYTES` is truncated, which makes it invalid JSON.
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
    """Decompress zlib data; ValueError if it is invalid, or inflates to more than `most` bytes."""
    import zlib  # not needed at process start

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
        return _content(descriptor, min(wanted, size))  # the file may grow meanwhile
    finally:
        os.close(descriptor)


def opened(path: str | Path) -> int:
    """Open a regular file for reading; refuses other files, and never blocks on a pipe."""
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
        ValueError: It is not JSON, nested deeper than `MAX_DEPTH`, repeats a name in an object, or contains NaN,
            Infinity, a number that overflows (1e999), or an integer of thousands of digits.
    """
    text = decoded(content)
    _check_depth(text)
    return _decoder.decode(text)


def parse_trusting(text: str) -> Json:
    """Parse JSON like `parse_json`, in half the time: it does not detect repeated names."""
    _check_depth(text)
    value, end = _trusting.raw_decode(text)  # `decode` makes six more calls
    return value if end == len(text) else _trusting.decode(text)  # allows blanks, and raises the error


def decoded(content: str | bytes) -> str:
    """Decode JSON bytes in any Unicode encoding; raises UnicodeDecodeError, a ValueError."""
    return content if isinstance(content, str) else content.decode(json.detect_encoding(content))


def first_json(text: str) -> Json:
    """Parse the JSON value at the start of a text and ignore the rest; raises like `parse_json`."""
    _check_depth(text)
    return _decoder.raw_decode(text)[0]


def _check_depth(text: str) -> None:
    """Refuse deeply nested JSON before parsing; 2 us for a record's head of 2 KiB."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    if not _is_shallow(text):
        strings = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|$)', re.DOTALL)
        if not _is_shallow(strings.sub("", text)):
            raise ValueError(f"expected JSON nested at most {MAX_DEPTH} deep, got deeper nesting.")


def _is_shallow(text: str) -> bool:
    """Whether brackets nest at most `MAX_DEPTH` deep; may be wrongly False if strings contain brackets."""
    brackets = text.encode("utf-8", "surrogatepass").translate(_ROUND, _NO_BRACKETS)
    depth = 0
    while b"()" in brackets and depth < MAX_DEPTH:
        brackets = brackets.replace(b"()", b"")  # the innermost pairs
        depth += 1
    return depth + len(brackets) <= MAX_DEPTH  # unbalanced brackets are left if the text is truncated


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


_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_object)
_trusting = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def text(data: Json) -> str:
    """JSON as written to disk: one ASCII line; NaN and Infinity are refused."""
    return json.dumps(data, ensure_ascii=True, allow_nan=False) + "\n"


def write_text(path: Path, content: str, folders: int = PRIVATE) -> None:
    """Replace a file atomically: readers see the old text or the new one, never a part. `folders`: mode of new folders.

    Not crash-durable: without fsync, a power failure may lose the newest write. The file is not read back: on a network
    file system even its writer may not see it at once.

    Raises:
        OSError: The folder cannot be created or written; no temporary file is left behind.
    """
    write_bytes(path, content.encode(), folders)


def write_bytes(path: Path, content: bytes, folders: int = PRIVATE) -> None:
    """Replace a file atomically, like `write_text`."""
    _twice(lambda: _replace(path, content, folders))


def overwrite(path: Path, content: str) -> None:
    """Overwrite a file in place, for text that one writer changes many times a second; raises like `write_text`.

    Replacing a file may wait for the disk (ext4: 3 ms). A concurrent reader may see a half-written file, and a machine
    crash may leave one; after a killed process it holds the old text or the new.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        write_text(path, content)  # it does not exist, or belongs to another user
        return
    try:
        # Pad with blanks: truncating would be a second step.
        write_all(descriptor, content.encode().ljust(os.fstat(descriptor).st_size))
    finally:
        os.close(descriptor)


def _replace(path: Path, content: bytes, folders: int) -> None:
    make_folder(path.parent, folders)
    # In the same folder, since os.replace cannot cross file systems; hidden and unique, so that readers ignore it.
    temporary = path.parent / f"{_prefix(path)}{os.urandom(12).hex()}.tmp"
    try:
        # With the umask's mode: tempfile would use 0600, which other readers of a shared folder cannot open.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            write_all(descriptor, content)
            share(descriptor, path.parent)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException as error:
        remove(temporary)
        if isinstance(error, OSError) and str(error.filename) in ("None", str(temporary)):
            error.filename = str(path)  # `os.write` names no file, the others one that is gone
        raise


def _prefix(path: Path) -> str:
    return f".{path.name[:40]}."


def remove_temporaries(path: Path) -> None:
    """Remove temporary files left by killed writers of `path`; a live writer would retry."""
    try:
        names = [name for name in os.listdir(path.parent) if name.startswith(_prefix(path)) and name.endswith(".tmp")]
    except OSError:
        return
    for name in names:
        remove(path.parent / name)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all bytes: a single system call may write only a part if the disk is nearly full."""
    while content:
        content = content[os.write(descriptor, content) :]


def remove(path: Path) -> bool:
    """Remove a file; returns whether that worked. A leftover file costs less than a result lost to an exception."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def remove_folder(path: Path) -> None:
    """Remove a folder if it is empty and may be removed."""
    with contextlib.suppress(OSError):
        os.rmdir(path)


Stamp = tuple[int, int, int]  # inode, time in nanoseconds, size


def stamp(path: str | Path) -> Stamp | None:
    """A value that changes whenever the file at a path is replaced, or None without a file."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_ino, info.st_mtime_ns, info.st_size


def touch(path: Path) -> None:
    """Set a file's times to now if that is permitted, which it may not be in a shared folder."""
    with contextlib.suppress(OSError):
        os.utime(path)


def make_folder(path: Path, mode: int = PRIVATE) -> None:
    """Create a folder and its parents, with `mode` less the umask, or with that of a group-shared (setgid) parent."""
    # Missing parents get the mode too, unlike with `parents=True`.
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
    """Give a new file the permissions of its folder if that is group-shared."""
    if mode := shared_mode(folder):
        with contextlib.suppress(OSError):  # some file systems have no modes
            os.fchmod(descriptor, mode)


def shared_mode(folder: Path) -> int:
    """Mode for files in a group-shared folder; 0 for other folders, where the umask decides."""
    return _group_mode(folder) & 0o666


def _group_mode(folder: Path) -> int:
    try:
        mode = os.stat(folder).st_mode
    except OSError:
        return 0
    return stat.S_IMODE(mode) if mode & stat.S_ISGID else 0


def move_aside(path: Path, folder: Path) -> Path | None:
    """Move a damaged file into a folder for inspection; returns its new path, or None if that failed."""
    target = folder / f"{path.stem}.{os.getpid()}.{time.time_ns():x}{path.suffix}"
    try:
        make_folder(folder)
        os.replace(path, target)
    except OSError:
        return None
    return target


def safe_name(text: str) -> str:
    """A text reduced to lower-case letters, digits, '.', '_' and '-'; each run of others becomes one '-'."""
    return "-".join("".join([letter if letter in _SAFE else " " for letter in text.lower()]).split()).strip("-.")


_SAFE = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._-")
# Device names on Windows, reserved with any suffix.
_RESERVED = frozenset(["con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))])


@lru_cache(maxsize=1024)
def file_stem(name: str) -> str:
    """A valid file name, without suffix, for any text: the text itself if possible, or a safe form with a hash."""
    safe = safe_name(name)[:120]
    return safe if safe == name and safe.partition(".")[0] not in _RESERVED else f"{safe}-{digest(name)[:8]}"


def cache_dir(setting: str) -> Path:
    """The cache folder, made absolute at first use: the user's choice, otherwise the platform's default.

    Without a usable home (no HOME, no passwd entry) it is a private folder in the system's temporary folder.
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
    except (RuntimeError, KeyError, OSError):  # no passwd entry; the type depends on the Python version
        return _temporary_dir()
    return path if path.is_absolute() else _temporary_dir()


def _temporary_dir() -> Path:
    import tempfile  # takes milliseconds at process start

    user = os.getuid() if hasattr(os, "getuid") else "user"
    path = Path(tempfile.gettempdir()) / f"autotuned-{user}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        safe = not isinstance(user, int) or _is_private(path, user)
    except OSError:
        safe = False
    # In a world-writable folder, another user may own a predictable name.
    return path if safe else Path(tempfile.mkdtemp(prefix="autotuned-"))


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A private folder for a `with` block."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="autotuned-") as name:
        yield Path(name)


def _is_private(path: Path, user: int) -> bool:
    """Whether only `user` can put files into a folder or replace it.

    A folder that was open to others is not made private here: their files may still be in it.
    """
    own, above = path.lstat(), path.parent.stat()
    kept = above.st_mode & stat.S_ISVTX or not above.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    closed = stat.S_ISDIR(own.st_mode) and not stat.S_IMODE(own.st_mode) & 0o077
    return bool(closed and own.st_uid == user and kept and above.st_uid in (0, user))
