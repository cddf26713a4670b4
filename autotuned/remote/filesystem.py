"""A shared store in a folder or a bucket, through fsspec: one file per record."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from autotuned import disk
from autotuned.errors import StoreError
from autotuned.remote.place import Place, bounded
from autotuned.store import locks

TIMEOUT_S = 5.0
_LOCK_S = 5.0  # a write takes milliseconds; after this wait it goes on without the lock


class FileSystem:
    """Files `<URL>/<namespace>/<name>` in any file system that fsspec opens.

    Files are replaced atomically. S3 refuses a write if another writer came first; in a folder a lock file separates
    writers if the file system has locks; elsewhere the last writer wins.

    Raises:
        StoreError: fsspec, or its package for this URL, is not installed.
    """

    has_leases = False

    def __init__(self, place: Place) -> None:
        self._place, self._protocol = place, place.url.partition("://")[0]
        with self._said():
            from fsspec import get_filesystem_class

            get_filesystem_class(self._protocol.rpartition("::")[2])
            if self._protocol in _OPTIONS:
                self._fs.connect()  # reads megabytes of JSON, which must not count as a slow store

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Turn errors of any file system into StoreError."""
        try:
            yield
        except Exception as error:
            advice = _advice(self._protocol) if isinstance(error, ImportError) else ""
            raise StoreError(
                f"shared store {self._place.words}: expected fsspec, its package for this URL and options that it "
                f"takes, got {self._place.scrubbed(error)}.{advice}"
            ) from None

    @cached_property
    def _made(self) -> tuple[Any, str]:
        """The file system and the namespace's folder; created at first use, since some connect then."""
        from fsspec.core import url_to_fs

        options = {**_OPTIONS.get(self._protocol, {}), "skip_instance_cache": True, "use_listings_cache": False}
        with self._said():
            fs, root = url_to_fs(self._place.url, **options, **self._place.options)
        return fs, f"{root.rstrip('/')}/{self._place.namespace}/"

    @property
    def _fs(self) -> Any:
        return self._made[0]

    @property
    def _root(self) -> str:
        return self._made[1]

    @property
    def _is_s3(self) -> bool:
        return "s3" in self._fs.protocol

    @property
    def _is_folder(self) -> bool:
        return "file" in self._fs.protocol

    @property
    def folder(self) -> Path | None:
        """The local folder that the URL names; None for other file systems."""
        return Path(self._root).parent if self._is_folder else None

    def close(self) -> None:
        """Do nothing: no connection is held."""

    def read(self, name: str, most: int, for_update: bool = False) -> tuple[bytes | None, str]:
        """Content and its version; None and "" if there is none.

        Args:
            name: The name it was written under.
            most: Largest size in bytes.
            for_update: Also read the version, in another round trip.

        Raises:
            ValueError: It is larger than `most` bytes, or not a plain file.
        """
        path = self._root + name
        if self._is_folder:
            try:
                return disk.read_bytes(Path(path), most), ""
            except (FileNotFoundError, NotADirectoryError):
                return None, ""
            except IsADirectoryError:
                raise ValueError(f"{name}: expected a file, got a folder.") from None
        try:  # the version first: if the content is replaced before it is read, the write is refused
            seen = str(self._fs.info(path).get("ETag", "")) if for_update else ""
            data = self._fs.cat_file(path, start=0, end=most + 1)
        except FileNotFoundError:
            return None, ""
        except OSError as error:
            if error.errno != errno.EINVAL or self._fs.info(path)["size"]:
                raise
            data = b""  # S3 has no ranges of empty objects
        return bounded(name, data, most), seen

    def read_all(self, names: list[str], most: int) -> Iterator[tuple[str, bytes | ValueError | None]]:
        """The content of several names; a ValueError for content that cannot be a record."""
        for name in names:
            try:
                yield name, self.read(name, most)[0]
            except ValueError as error:
                yield name, error

    def write(self, name: str, data: bytes, seen: str, fence: int = 0, is_believed: bool = True) -> str:
        """Replace a version: "written", or "changed" if another writer is known to have come first.

        Args:
            name: The name to read it under.
            data: The whole content.
            seen: The version from `read`; "*" for any.
            fence: Not used: there are no leases.
            is_believed: Not used.
        """
        path = self._root + name
        if self._is_folder:
            disk.make_folder(Path(path).parent, 0o777)  # for other users too, as the umask allows
            if os.path.isdir(path):  # in the way: move it aside
                os.rename(path, Path(path).with_name(f".{os.urandom(8).hex()}"))
            disk.write_bytes(Path(path), data)
            return "written"
        condition: dict[str, Any] = {}
        if self._is_s3 and seen != "*":
            condition = {"IfMatch": seen} if seen else {"mode": "create"}
        try:
            self._put(path, data, condition)
        except FileExistsError:
            return "changed"
        except OSError as error:
            if condition and _is_conflict(error):
                return "changed"
            raise
        return "written"

    def _put(self, path: str, data: bytes, condition: dict[str, Any]) -> None:
        try:
            self._fs.pipe_file(path, data, **condition)
        except FileNotFoundError:  # a file system with real folders
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(path, data, **condition)

    def updating(self, name: str) -> Any:
        """A `with` block that excludes other writers of a record; it does so only in a folder."""
        if not self._is_folder:
            return nullcontext()
        path = Path(self._root + name)
        with suppress(OSError):  # the write reports the reason
            disk.make_folder(path.parent, 0o777)
        return locks.locked(path.with_name(".lock"), timeout_s=_LOCK_S)

    def names(self, prefix: str) -> Iterator[str]:
        """All names with this prefix."""
        return (name for name, _, _ in self.sizes(prefix))

    def sizes(self, prefix: str) -> Iterator[tuple[str, int, float]]:
        """Names, with their size in bytes and the seconds since they were written."""
        try:
            found = self._fs.find(self._root + prefix, detail=True)
        except FileNotFoundError:
            return
        root, now = self._fs._strip_protocol(self._root).rstrip("/") + "/", time.time()
        for path, info in sorted(found.items()):
            if info["type"] == "file" and not path.rpartition("/")[2].startswith("."):
                yield path.removeprefix(root), int(info["size"] or 0), _age_s(info, now)

    def remove(self, name: str) -> None:
        """Remove it if it exists."""
        try:
            self._fs.rm_file(self._root + name)
        except FileNotFoundError:
            pass

    def keep_for(self, name: str, seconds: float) -> None:
        """Do nothing: `gc` removes old files by their modification time."""


def _age_s(info: dict[str, Any], now: float) -> float:
    when = info.get("mtime", info.get("LastModified", now))
    return now - (when.timestamp() if hasattr(when, "timestamp") else float(when))


def _is_conflict(error: OSError) -> bool:
    words = str(error)
    return any(word in words for word in ("PreconditionFailed", "ConditionalRequestConflict", "pre-conditions", "412"))


def _advice(protocol: str) -> str:
    """What to install for URLs of this protocol: the extra has fsspec alone, without the packages of others."""
    package = _PACKAGES.get(protocol.rpartition("::")[2], "")
    return f" pip install 'autotuned[fsspec]' {package}".rstrip()


_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs",
    "sftp": "paramiko", "ssh": "paramiko",
}  # fmt: skip
# One attempt with short timeouts: callers can do without the store.
_S3 = {"config_kwargs": {"connect_timeout": TIMEOUT_S, "read_timeout": TIMEOUT_S, "retries": {"max_attempts": 1}}}
_OPTIONS: dict[str, dict[str, Any]] = {"s3": _S3, "s3a": _S3}
