"""What the user's store and the config files hold, for the commands that show it."""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import typer

from autotuned.configfiles import lookup
from autotuned.gpu.device import from_json
from autotuned.key.key import Key
from autotuned.store import layout, listing
from autotuned.store.conditions import Conditions
from autotuned.store.record import TuningRecord
from autotuned.typed_json import Json

from .. import terminal

STORE = "store"


@dataclass(frozen=True)
class Stored:
    """One choice.

    Attributes:
        config, median_us: What was chosen and its time; no config while a search is not finished.
        vs_default: From a config file: time of the config used without tuning over that of this one.
        path: The file it is in; `record` is set where that is a record of the store.
        conditions: What it was measured under.
    """

    key: Key
    config: Mapping[str, Json] | None
    median_us: float | None
    quality: str | None
    vs_default: float | None
    path: str
    record: TuningRecord | None = None
    conditions: Conditions | None = None

    @property
    def source(self) -> str:
        """The place it comes from."""
        return STORE if self.record is not None else self.path

    @property
    def place(self) -> str:
        """The same in a word; a file's name would say the kernel's once more."""
        return STORE if self.record is not None else "file"

    @property
    def digest(self) -> str:
        """The key's digest: of a record its file's name, for hashing all keys would double the time of a listing."""
        return os.path.basename(self.path).removesuffix(".json") if self.record is not None else self.key.digest

    @property
    def device(self) -> str:
        """Slug of the device it holds for."""
        return _of_context(self.key.context)[1]

    @cached_property
    def call_words(self) -> str:
        """The call for people; like the next two made once, for ordering and for printing."""
        return terminal.call_words(self.key.call)

    @cached_property
    def config_words(self) -> str:
        """The config for people."""
        return terminal.config_words(self.config, self.key.is_of_triton)

    @property
    def toolchain(self) -> str:
        """Version of Triton, or of what a plain callable names."""
        return _of_context(self.key.context)[2]

    def to_json(self) -> dict[str, Json]:
        """What `list --json` prints of it."""
        return {
            "kernel": self.key.kernel,
            "digest": self.digest,
            "call": self.key.call,
            "config": self.config,
            "median_us": self.median_us,
            "vs_default": self.vs_default,
            "quality": self.quality,
            "device": self.device,
            "triton": self.key.context.get("triton"),
            "source": self.source,
            "path": self.path,
        }


def _of_context(context: Mapping[str, Json]) -> tuple[Mapping[str, Json], str, str]:
    """A context, and the words for its device and toolchain: made once where records share it, as heads do."""
    known = _contexts.get(id(context))
    if known is None:
        toolchain = terminal.toolchain_words(context)
        if len(_contexts) >= 64:
            _contexts.clear()
        known = _contexts[id(context)] = context, from_json(context["device"]).slug, toolchain
    return known


_contexts: dict[int, tuple[Mapping[str, Json], str, str]] = {}  # by id, which is one's own while the context is held


def kernels(quietly: bool = False, own: bool = True) -> list[str]:
    """The names of all kernels with a record or an entry in a config file; without `own`, not those of this package."""
    return sorted({key.kernel for _, key, _ in lookup.shipped(own=own)} | listing.kernels(quietly=quietly))


def of_kernel(kernel: str, heads: bool = False, quietly: bool = False, own: bool = True) -> Iterator[Stored]:
    """A kernel's records and entries of config files, by device, call and place.

    Of a kernel with more than `store.BLOCK` of them each block of so many is in order: no more are held at a time.

    Args:
        kernel: Its whole name.
        heads: Without the timings and the provenance of records, which is far quicker.
        quietly: Leave damaged records where they are.
        own: With what the config files of this package have.
    """
    found = itertools.chain(_entries(kernel, own), _records(kernel, heads, quietly))
    while block := list(itertools.islice(found, listing.BLOCK)):
        places = [_place(stored) for stored in block]
        in_order = sorted((n for n in range(len(block)) if places[n]), key=places.__getitem__)
        yield from (block[n] for n in in_order)


def _place(stored: Stored) -> tuple[Json, ...]:
    """By what it is ordered; empty if it is not built as it should be, which is said. Somebody may have edited it."""
    try:
        place = stored.device, terminal.in_order(stored.call_words), stored.source
        return place if stored.toolchain and stored.config_words else ()
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        terminal.remark(f"left out: {stored.path} is not as it was written ({type(error).__name__}: {error}).")
        return ()


def _records(kernel: str, heads: bool, quietly: bool) -> Iterator[Stored]:
    for path, record in (listing.all_heads if heads else listing.all_records)(kernel, quietly):
        if record.key.digest != Path(path).stem:
            terminal.remark(
                f"left out: {path} is not as it was written (its key is another than its file's name says)."
            )
            continue
        yield Stored(
            record.key,
            record.winner,
            record.median_us,
            record.quality,
            None,
            os.fspath(path),
            record,
            record.conditions,
        )


def _entries(kernel: str, own: bool) -> Iterator[Stored]:
    for path, key, entry in lookup.shipped(kernel, own=own):
        yield Stored(key, entry.config, entry.median_us, None, entry.vs_default, path, conditions=entry.conditions)


def complete(incomplete: str) -> list[str]:
    """Names of kernels for a shell to complete: those of the store, of which a record each is looked at."""
    names = sorted(filter(str.isprintable, listing.kernels(quietly=True)))  # a shell shows them as they are
    whole = [name for name in names if name.startswith(incomplete)]
    ends = {name.rpartition(".")[2] for name in names}
    return whole or sorted(end for end in ends if end.startswith(incomplete))


def _matching(names: Iterable[str], wanted: str) -> list[str]:
    """The kernel names that `wanted` stands for: that very name, else those that end in it after a dot."""
    names = sorted(set(names))
    return [wanted] if wanted in names else [name for name in names if name.endswith(f".{wanted}")]


def _unknown(names: Iterable[str], wanted: str) -> str:
    """Why a kernel cannot be shown, with the nearest names."""
    known = sorted(set(names))
    if not known:
        return f"no kernel {wanted!r}: nothing is stored in {layout.root()}, and there are no config files."
    short = {name.rpartition(".")[2]: name for name in known}
    near = [short.get(name, name) for name in difflib.get_close_matches(wanted, [*known, *short], 3)]
    hint = f"Did you mean {' or '.join(map(repr, dict.fromkeys(near)))}?" if near else f"Known are {', '.join(known)}."
    return f"no kernel {wanted!r}. {hint}"


def all_of(names: Iterable[str], wanted: str) -> list[str]:
    """The kernel names that `wanted` stands for.

    Raises:
        typer.Exit: There is none; the nearest have been said.
    """
    names = list(names)
    found = _matching(names, wanted)
    if not found:
        raise terminal.fail(_unknown(names, wanted))
    return found


def one(names: Iterable[str], wanted: str) -> str:
    """The one kernel name that `wanted` stands for.

    Raises:
        typer.Exit: There is none, or there are several; which ones has been said.
    """
    found = all_of(names, wanted)
    if len(found) > 1:
        raise terminal.fail(f"{wanted!r} is the end of several names: {', '.join(found)}. Give more of the name.")
    return found[0]


def no_key(kernel: str, wanted: str | None, digests: Iterable[str]) -> typer.Exit:
    """Say that none of a kernel's keys begins as wanted; the caller raises what this returns."""
    known = ", ".join(dict.fromkeys(digest[:12] for digest in digests)) or "none"
    return terminal.fail(f"`{kernel}`: no key begins with {wanted!r}. Its keys are {known}.")
