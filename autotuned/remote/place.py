"""The location of a shared store, how it is used, and how its content is signed."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from autotuned import disk, env
from autotuned._startup import Frozen
from autotuned.errors import OptionError, RecordError, StoreError
from autotuned.store import record
from autotuned.store.record import TuningRecord

WAIT_S = 0.3
LEASE_S = 15.0
RETRY_S = 60.0
MAX_RECORD_BYTES = 8 << 20  # 10,000 configs take 4 MiB
MAX_FILE_BYTES = disk.MAX_FILE_BYTES
LEAST_KEY = 16  # letters: a short key can be guessed from one signed record
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FOLDER, _RELATIVE = re.compile(r"(file|local)://localhost/"), re.compile(r"(file|local)://(?!/)")
_PARTS = r"%[\dA-Fa-f]{2}|[^A-Za-z0-9]+", r"\W+"
_FORMAT = "autotuned-store-1"
_UNSIGNED = "-"


class Place(Frozen):
    """A shared store as a process uses it.

    Attributes:
        url: The URL with its secrets; `words` has none.
        namespace: Keeps users of one server apart.
        key: The signing key; None signs nothing and trusts everything.
        read_only: Send nothing and take no lease.
        wait_s: Longest wait of a call, in seconds, before it searches.
        lease_s: Seconds after which a dead holder's lease expires.
        retry_s: Seconds without requests after a failure.
        options: Passed to the `redis` client, or to fsspec's file system.
    """

    url: str
    namespace: str = "default"
    key: str | None = None
    read_only: bool = False
    wait_s: float = WAIT_S
    lease_s: float = LEASE_S
    retry_s: float = RETRY_S
    options: Mapping[str, Any] = MappingProxyType({})

    def __repr__(self) -> str:
        return f"Place({self.words})"

    @property
    def words(self) -> str:
        """The URL without secrets, for people and provenance."""
        return env.redacted(self.url)

    @property
    def identity(self) -> str:
        """Identifies the store, without passwords and signing key, which may change while the store stays."""
        from urllib.parse import parse_qsl  # imported here: needed only to send

        users, at, rest = self.url.rpartition("@")
        rest, _, query = rest.partition("?")
        scheme, mark, user = users.partition("://")
        url = f"{scheme}{mark}{user.partition(':')[0]}{at}{rest}"
        plain = _without_passwords({**self.options, "?": dict(parse_qsl(query)), "#": self.namespace})
        return json.dumps([url, plain], sort_keys=True, default=lambda value: type(value).__qualname__)

    @property
    def is_redis(self) -> bool:
        """Whether it is a Redis server; fsspec opens all others."""
        return self.url.startswith(("redis://", "rediss://"))

    def scrubbed(self, error: BaseException) -> str:
        """An error as one line without secrets: clients put URLs and passwords into their messages."""
        text = " ".join(f"{type(error).__name__}: {error}".split())
        for secret in sorted(_secrets(self), key=len, reverse=True):
            text = re.sub(re.escape(secret), "***", text, flags=re.IGNORECASE)
        return shown(text, 300)

    # -- signatures ----------------------------------------------------------------------------------------------

    def seal(self, name: str, content: bytes) -> bytes:
        """Content as stored under a name: a line with its signature, then the content."""
        return f"{_FORMAT} {self._signature(name, content)}\n".encode() + content

    def open(self, name: str, data: bytes) -> bytes:
        """The content of sealed data.

        Raises:
            StoreError: It does not come from `seal`, or is not signed with this process's key.
        """
        head, _, content = data.partition(b"\n")
        form, _, signature = head.decode("ascii", "replace").partition(" ")
        if form != _FORMAT:
            raise StoreError(f"{name}: expected the line {_FORMAT} before the content, got another.")
        if self.key is not None and not hmac.compare_digest(signature, self._signature(name, content)):
            how = "none" if signature == _UNSIGNED else "another"
            raise StoreError(f"{name}: expected a signature by AUTOTUNED_STORE_KEY, got {how}.")
        return content

    def _signature(self, name: str, content: bytes) -> str:
        """Covers namespace and name, with the schema and the key's digest, so that content verifies nowhere else."""
        if self.key is None:
            return _UNSIGNED
        parts = [_FORMAT.encode(), self.namespace.encode(), name.encode(), content]
        text = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.new(self.key.encode(), text, hashlib.sha256).hexdigest()

    # -- records -------------------------------------------------------------------------------------------------

    def dump(self, found: TuningRecord) -> bytes:
        """A record as stored."""
        return self.seal(record_name(found.key.digest), disk.text(record.dump(found)).encode())

    def load(self, digest: str, data: bytes) -> TuningRecord:
        """The record of a key from stored data.

        Raises:
            StoreError: It is not trusted, or not a record of this key.
        """
        name = record_name(digest)
        content = self.open(name, data)
        try:
            found = record.load(disk.parse_json(content))
            record.check_winner(found)
        except (ValueError, RecordError) as error:
            raise StoreError(f"{name}: expected a record, got {str(error)!r:.200}.") from None
        if found.key.digest != digest or found.winner is None:
            raise StoreError(f"{name}: expected the choice of this key, got that of {found.key.digest[:12]}.")
        return found


def record_name(digest: str) -> str:
    """The name of a key's record, with the schema, so that two versions of the package can share a store."""
    return f"v{record.SCHEMA}/{digest[:2]}/{digest}"


def bounded(name: str, content: bytes, most: int) -> bytes:
    """Content that was read up to `most` + 1 bytes; ValueError if it is larger than `most`."""
    if len(content) > most:
        raise ValueError(f"shared store: {name}: expected at most {most} bytes, got more.")
    return content


def digest_of(name: str) -> str:
    """The digest in a record's name."""
    return name.rpartition("/")[2]


RECORDS = f"v{record.SCHEMA}/"
FILES = "files/"
RECORDINGS = "recordings/"


def place(
    url: str,
    *,
    namespace: str | None = None,
    key: str | None = None,
    read_only: bool = False,
    wait_s: float = WAIT_S,
    lease_s: float = LEASE_S,
    retry_s: float = RETRY_S,
    options: Mapping[str, Any] | None = None,
) -> Place:
    """The checked place of a shared store; makes no request.

    The URL `-` means that of `AUTOTUNED_STORE`, since other users of the machine see the arguments of commands.

    Raises:
        OptionError: The URL or an option is invalid.
    """
    for name, value, kinds in (("url", url, (str, os.PathLike)), ("key", key, (str, type(None)))):
        if not isinstance(value, kinds):
            raise _wrong(name, "text", type(value).__name__)
    given = str(url)
    url, mark, fragment = (env.store_url() if given == "-" else given).rpartition("#")
    if not mark or "@" in fragment:  # the # belongs to a password
        url, fragment = url + mark + fragment, ""
    url = _FOLDER.sub(r"\1:///", url)
    if "://" not in url or _RELATIVE.match(url):
        raise _wrong("url", "a URL such as redis://host:6379/0 or file:///folder", _no_url(url, given))
    named = str(namespace or fragment or "default")
    if not _NAMESPACE.fullmatch(named):  # from a URL it may be part of a password
        got = repr(named)[:80] if namespace else f"{len(named)} others after the # of the URL"
        raise _wrong("namespace", "at most 64 letters, digits, dots, dashes and underscores", got)
    if key is not None and len(key) < LEAST_KEY:
        raise _wrong("key", f"at least {LEAST_KEY} letters", f"{len(key)}")
    for name, seconds in (("wait_s", wait_s), ("lease_s", lease_s), ("retry_s", retry_s)):
        if not (isinstance(seconds, (int, float)) and math.isfinite(seconds) and seconds >= 0):
            raise _wrong(name, "seconds of 0 or more", repr(seconds))
    return Place(url, named, key, read_only, float(wait_s), float(lease_s), float(retry_s), dict(options or {}))


# Variables of the settings that a command or call did not give.
_VARIABLES = {"key": "AUTOTUNED_STORE_KEY", "wait_s": "AUTOTUNED_STORE_WAIT_S"}


def configured(url: str, **given: Any) -> Place:
    """The checked place of a shared store, with the environment's settings for what is not given; makes no request.

    Raises:
        OptionError: The URL, an option or a variable is invalid.
    """
    try:
        settings = env.store_settings()
        read_only = settings["read_only"] or given.get("read_only", False)
        return place(url, **{**settings, **given, "read_only": read_only})
    except OptionError as error:
        name = None if error.option in given else _VARIABLES.get(error.option)
        if name is None:
            raise
        raise OptionError(f"{name}: {error.problem}.", option="", problem=f"{name}: {error.problem}") from None
    except ValueError as error:
        raise OptionError(str(error), option="", problem=str(error).removesuffix(".")) from None


def _no_url(text: str, given: str) -> str:
    """A description of a value that is not a URL: a path with its URL; anything else without its secret parts."""
    if given == "-" and not text:
        return "- for AUTOTUNED_STORE, which is not set"
    is_path = text.startswith(("/", "./", "../", "~")) or os.path.isdir(text)
    if is_path and not set("@?#") & set(text):
        url = f"file://{os.path.abspath(os.path.expanduser(text))}"
        return f"the path {shown(text, 300)}. Write {shown(url, 300)}"
    return env.redacted(text) or "nothing"


def _wrong(option: str, expected: str, got: str) -> OptionError:
    text = f"shared store: {option}: expected {expected}, got {got}."
    return OptionError(text, option=option, problem=f"expected {expected}, got {got}")


def _secrets(place: Place) -> set[str]:
    """Everything secret in a place, also as written in a URL."""
    from urllib.parse import unquote  # imported here: needed only after a failure

    rest = place.url.partition("://")[2]
    users, query = rest.rpartition("@")[0], rest.partition("?")[2]
    values = [value.partition("=")[2] or value for value in query.split("&")]
    found = {users, users.partition(":")[2], query, place.key or "", *values, *_texts(place.options)}
    found |= {place.url} - {place.words}
    # A client that splits a URL inside the password reports a part of it as host, port or database.
    found |= {part for one in (users, *values) for split in _PARTS for part in re.split(split, one)}
    return {text for one in found for text in (one, unquote(one), repr(one)[1:-1]) if len(text) > 2}


def _without_passwords(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    hidden = ("pass", "secret", "token")
    return {
        str(name): _without_passwords(one) for name, one in value.items()
        if not any(word in str(name).lower() for word in hidden)
    }  # fmt: skip


def shown(text: str, most: int) -> str:
    """Foreign text made safe for a log: truncated, with control characters escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text[:most])


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, str):
        yield value
