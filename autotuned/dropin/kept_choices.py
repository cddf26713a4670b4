"""Choices in a folder of `--binaries`, found like its kernels without hashing Triton's files.

Each is a record of the store, under the call's key with the launch interface instead of the toolchain.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from autotuned import disk, env
from autotuned.dropin.stock_tuner import keeping
from autotuned.key.key import Key
from autotuned.resolve import sources
from autotuned.store import layout, listing, record, records
from autotuned.store.choice import Candidates, Choice, Origin
from autotuned.store.conditions import Conditions
from autotuned.store.record import identity_of
from autotuned.triton_compat import fingerprint


def are_there() -> bool:
    """Whether the folder has any choices."""
    return any(os.path.isdir(layout.schema_folder(folder)) for folder in keeping)


def find(key: Key, candidates: Candidates, needed: Conditions) -> Choice | None:
    """The kept choice for a key among the candidates."""
    places = [(Origin.STORE, lambda key, live, at=at: sources.look_at_record(key, live, needed, at)) for at in keeping]
    return sources.find(key, candidates, places)


def all_of_them() -> Iterator[tuple[Key, str]]:
    """The choices of the folder: the key that each has in the store, and its config's identity."""
    ours = fingerprint.launch_interface()
    for folder in keeping:
        for path, found in listing.all_records(quietly=True, store=folder):
            context = {**found.key.context}
            if context.pop("interface", "") == ours and found.winner is not None and found.key.digest == path.stem:
                toolchain = fingerprint.of(context["device"]["arch"], layout.root())
                yield Key(found.key.kernel, found.key.call, {**context, **toolchain}), identity_of(found.winner)


def keep(stored: Key, key: Key) -> None:
    """Keep the store's choice for a call under the other key; a failure only costs the next start a measurement."""
    found = records.read_of(stored)
    for folder in keeping:
        path = layout.record_path(key, folder)
        try:
            if found is not None and not records.is_of_newer(path):
                disk.write_text(path, disk.text(record.dump(found.replace(key=key))), disk.READABLE)
        except OSError as error:
            env.warn_once(f"choices {folder}", "choices are not kept in %s: %s", folder, error)
