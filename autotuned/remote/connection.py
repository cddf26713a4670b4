"""The shared store of a process: from `connect`, otherwise from the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotuned import env
from autotuned.remote import place
from autotuned.remote.place import LEASE_S, RETRY_S, WAIT_S
from autotuned.store import records
from autotuned.store.record import TuningRecord

if TYPE_CHECKING:
    from autotuned.remote.client import Client

_of_environment: dict[tuple[str, str], Client] = {}


class Connection:
    """A shared store in use, until `close()` or the end of a `with` block."""

    def __init__(self, client: Client) -> None:
        self.client = client
        env.connected.append(client)

    def close(self) -> None:
        """Send waiting records, for at most 2 s, and stop using the store."""
        if self.client in env.connected:
            env.connected.remove(self.client)
            self.client.close()

    def __enter__(self) -> Connection:
        """The connection."""
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Connection({self.client.where})"


def connect(
    url: str,
    *,
    namespace: str | None = None,
    key: str | None = None,
    read_only: bool = False,
    wait_s: float = WAIT_S,
    lease_s: float = LEASE_S,
    retry_s: float = RETRY_S,
    **options: Any,
) -> Connection:
    """Use a shared store for the whole process, instead of `AUTOTUNED_STORE`, for calls that miss in the user's store.

    Args:
        url: `redis://`, `rediss://`, or what fsspec opens, such as `s3://bucket/folder` or `file:///mnt/shared`.
        namespace: Keeps users of one server apart; default: the part of the URL after `#`, or "default".
        key: Signs everything sent; data not signed with it is ignored. Default: `AUTOTUNED_STORE_KEY`.
        read_only: Send nothing; `AUTOTUNED_STORE_READ_ONLY=1` sets it for every store.
        wait_s: Longest wait of a call, in seconds, before it searches.
        lease_s: Seconds after which the lease of a dead host expires.
        retry_s: Seconds without requests after a failure.
        options: Passed to the `redis` client, or to fsspec's file system.

    Returns:
        The connection; `.close()` or the end of a `with` block ends it.

    Raises:
        OptionError: The URL or an option is invalid.
    """
    given = {} if key is None else {"key": key}
    return Connection(_client(place.configured(
        url, namespace=namespace, read_only=read_only, wait_s=wait_s, lease_s=lease_s, retry_s=retry_s,
        options=options, **given,
    )))  # fmt: skip


def _client(where: place.Place) -> Client:
    from autotuned.remote.client import Client

    return Client(where)


def keep(found: TuningRecord, again: bool = False) -> bool:
    """Keep a measured record in the user's store, and send it to the shared one, if any.

    Args:
        found: A record.
        again: It was measured to replace the stored one.

    Returns:
        Whether it was kept.
    """
    client = store()
    return records.keep(found) if client is None else client.keep(found, again)


def store() -> Client | None:
    """The usable shared store, or None."""
    return env.connected[-1] if env.connected else of_environment()


def of_environment() -> Client | None:
    """The store named by `AUTOTUNED_STORE`; None if unset or, with one warning, unusable."""
    url = env.store_url()
    if not url:
        return None
    try:
        at = url, repr(env.store_settings())
        if at not in _of_environment:
            _of_environment[at] = _client(place.configured(url))
        return _of_environment[at]
    except ValueError as error:
        env.warn_once("AUTOTUNED_STORE", "AUTOTUNED_STORE is not used: %s", error)
        return None
