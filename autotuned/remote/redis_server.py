"""A shared store in Redis: records and files are strings, leases are keys that expire."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from autotuned.errors import StoreError
from autotuned.remote.place import Place, bounded, shown

TIMEOUT_S = 2.0  # of one command; a launch waits less (`wait_s`), since commands run on another thread
FENCE_DIGITS = 16  # before the content: microseconds of the server's clock
_BATCH = 100

# Take or renew the lease of a name, unless another process holds it. Its fencing token is larger than that of any
# earlier lease, even if the server has forgotten all of them. A lost lease is renewed, with its old token, only if
# nobody has written since. A value that is not a string, is empty, or has a token more than a day in the future is not
# ours.
_KNOWN = """
local function text(key)
  if redis.call('TYPE', key).ok ~= 'string' then return '' end
  return redis.call('GET', key)
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function fence_of(value)
  local last = tonumber(string.match(value, '^' .. string.rep('%d', 16)) or 0)
  return last <= now + 86400 * 1000000 and last or 0
end
"""
_LEASE = f"""{_KNOWN}
local held, given = text(KEYS[1]), tonumber(ARGV[4])
local is_ours = string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. ' '
if held ~= '' and not is_ours then return {{0, string.sub(held, 1, 400)}} end
local token = is_ours and string.match(held, '^(%d+) ', #ARGV[1] + 2)
if not token then
  local last = redis.call('TYPE', KEYS[2]).ok == 'string' and fence_of(redis.call('GETRANGE', KEYS[2], 0, 15)) or 0
  if given > 0 and last > given then return {{0, ''}} end
  token = string.format('%.0f', given > 0 and given or math.max(now, last + 1))
end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. token .. ' ' .. ARGV[3], 'PX', ARGV[2])
return {{1, token}}
"""
_RELEASE = f"""{_KNOWN}
if string.sub(text(KEYS[1]), 1, #ARGV[1] + 1) == ARGV[1] .. ' ' then redis.call('DEL', KEYS[1]) end
"""
# Replace the value that was read, but not one written under a later lease.
_WRITE = f"""{_KNOWN}
local old, fence = text(KEYS[1]), tonumber(ARGV[3])
local last = ARGV[4] == '1' and fence_of(old) or 0
if fence > 0 and fence < last then return 'fenced' end
if ARGV[2] ~= '*' and ARGV[2] ~= (old ~= '' and redis.sha1hex(old) or '') then return 'changed' end
redis.call('SET', KEYS[1], string.format('%016.0f', math.max(fence, last)) .. ARGV[1])
return 'written'
"""


class RedisServer:
    """Keys `autotuned:<namespace>:<name>` of a Redis server.

    Raises:
        StoreError: The package `redis` is not installed, or refuses the URL or an option.
    """

    has_leases = True

    def __init__(self, place: Place) -> None:
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise StoreError(
                f"shared store {place.words}: expected the package redis, got {error}. pip install 'autotuned[redis]'"
            ) from None
        options = {
            "socket_timeout": TIMEOUT_S,
            "socket_connect_timeout": TIMEOUT_S,
            "retry": Retry(NoBackoff(), 1),  # once: an idle connection may have been closed
            **place.options,
            "decode_responses": False,
        }
        try:
            self._client: Any = redis.Redis.from_url(place.url, **options)
        except Exception as error:  # it raises many kinds for URLs and options
            raise StoreError(
                f"shared store {place.words}: expected a URL and options of the package redis, got "
                f"{place.scrubbed(error)}. In a password, write characters other than A-Z, a-z and 0-9 as %XX."
            ) from None
        self._wrong: Any = redis.ResponseError
        self._lease, self._release, self._write = map(self._client.register_script, (_LEASE, _RELEASE, _WRITE))
        self._prefix = f"autotuned:{place.namespace}:"

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def read(self, name: str, most: int, for_update: bool = False) -> tuple[bytes | None, str]:
        """Content and its version; None and "" if there is none.

        Raises:
            ValueError: It is larger than `most` bytes.
        """
        try:
            return self._opened(name, self._client.getrange(self._prefix + name, 0, FENCE_DIGITS + most), most)
        except self._wrong as error:
            return self._opened(name, error, most)

    def read_all(self, names: list[str], most: int) -> Iterator[tuple[str, bytes | ValueError | None]]:
        """The content of several names in few round trips; a ValueError for content that cannot be a record."""
        for start in range(0, len(names), _BATCH):
            some = names[start : start + _BATCH]
            with self._client.pipeline(transaction=False) as asked:
                for name in some:
                    asked.getrange(self._prefix + name, 0, FENCE_DIGITS + most)
                answers = asked.execute(raise_on_error=False)
            for name, answer in zip(some, answers):
                try:
                    if isinstance(answer, Exception) and _is_no_string(answer):
                        raise ValueError(f"{name}: expected a string, got a list, a hash or the like.")
                    yield name, self._opened(name, answer, most)[0]
                except ValueError as error:
                    yield name, error

    def _opened(self, name: str, data: Any, most: int) -> tuple[bytes | None, str]:
        if isinstance(data, Exception) and not _is_no_string(data):
            raise data
        if not data or isinstance(data, Exception):
            return None, ""
        return bounded(name, data[FENCE_DIGITS:], most), hashlib.sha1(data, usedforsecurity=False).hexdigest()

    def write(self, name: str, data: bytes, seen: str, fence: int = 0, is_believed: bool = True) -> str:
        """Replace a version: "written", "changed" if another writer came first, "fenced" if it has a later lease.

        Args:
            seen: The version from `read`; "*" for any.
            fence: Token of the lease under which it was measured; 0 for none.
            is_believed: Whether the stored content, and so its token, is trusted.
        """
        return _text(self._write([self._prefix + name], [data, seen, fence, int(is_believed)]))

    def updating(self, name: str) -> AbstractContextManager[Any]:
        """A `with` block around reading and replacing; it does nothing here, since `write` detects other writers."""
        return nullcontext()

    def names(self, prefix: str) -> Iterator[str]:
        """All names with this prefix, unordered."""
        # Neither namespaces nor our prefixes contain special characters of patterns.
        for key in self._client.scan_iter(match=f"{self._prefix}{prefix}*", count=1000):
            name = _text(key)[len(self._prefix) :]
            if not name.endswith(".lease"):
                yield name

    def sizes(self, prefix: str) -> Iterator[tuple[str, int, float]]:
        """Names, with their size in bytes and the approximate seconds since their last use."""
        names = list(self.names(prefix))
        for start in range(0, len(names), _BATCH):
            some = names[start : start + _BATCH]
            with self._client.pipeline(transaction=False) as asked:
                for name in some:
                    asked.strlen(self._prefix + name)
                    asked.object("idletime", self._prefix + name)
                found = asked.execute(raise_on_error=False)
            for name, size, idle in zip(some, found[::2], found[1::2]):
                if isinstance(size, Exception) and not _is_no_string(size):
                    raise size
                yield name, size if isinstance(size, int) else 1, float(idle) if isinstance(idle, int) else 0.0

    def remove(self, name: str) -> None:
        """Remove it if it exists."""
        self._client.delete(self._prefix + name)

    def keep_for(self, name: str, seconds: float) -> None:
        """Let a name expire after this time unless it is written again."""
        self._client.expire(self._prefix + name, round(seconds))

    def lease(self, name: str, nonce: str, seconds: float, who: str, token: int = 0) -> tuple[bool, str]:
        """Take or renew the lease of a name; returns whether that worked, and its fencing token or its holder.

        Args:
            name: The record's name.
            nonce: Identifies this lease.
            seconds: Its lifetime.
            who: The holder, for people.
            token: Token of the lease to renew; 0 for a new one.
        """
        keys = [f"{self._prefix}{name}.lease", self._prefix + name]
        had, answer = self._lease(keys, [nonce, max(1, round(seconds * 1000)), who, token])
        return bool(had), _text(answer) if had else shown(_text(answer).partition(" ")[2].partition(" ")[2], 100)

    def release(self, name: str, nonce: str) -> None:
        """End a lease if the nonce matches."""
        self._release([f"{self._prefix}{name}.lease"], [nonce])


def _is_no_string(error: Exception) -> bool:
    """Whether a list, hash or other non-string is stored there; it counts as missing and is replaced."""
    return str(error).startswith("WRONGTYPE")


def _text(answer: Any) -> str:
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)
