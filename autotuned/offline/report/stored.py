"""Lists the choices of the user's store and the config files, for listings and reports."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autotuned import disk
from autotuned.configfiles import exchange, lookup
from autotuned.configfiles.file import Entry
from autotuned.errors import KernelNameError
from autotuned.gpu.device import from_json
from autotuned.key import words
from autotuned.key.key import Key
from autotuned.key.nearest_key import parts
from autotuned.store import layout, listing
from autotuned.store.conditions import Conditions
from autotuned.store.record import Quality, TuningRecord
from autotuned.tunable import configs
from autotuned.typed_json import Json

log = logging.getLogger("autotuned")

STORE = "store"


@dataclass(frozen=True)
class Stored:
    """A stored choice."""

    key: Key
    config: Mapping[str, Json] | None  # the chosen config; None if a search is unfinished
    median_us: float | None  # its time
    quality: Quality | None
    vs_default: float | None  # time of the untuned config over this one; None if unknown, as in a record's head
    path: str  # its file; `record` is set if the file is a record of the store
    record: TuningRecord | None = None
    conditions: Conditions | None = None  # of its measurement

    @property
    def source(self) -> str:
        """Where it comes from: "store", or the path of the config file."""
        return STORE if self.record is not None else self.path

    @property
    def place(self) -> str:
        """Either "store" or "file"."""
        return STORE if self.record is not None else "file"

    @property
    def digest(self) -> str:
        """The key's digest; a record's from its file name, since hashing would double the time of a listing."""
        return os.path.basename(self.path).removesuffix(".json") if self.record is not None else self.key.digest

    @property
    def device(self) -> str:
        """Slug of its device."""
        return _of_context(self.key.context)[1]

    @cached_property
    def call_words(self) -> str:
        """The call for people; cached, like the next two, for sorting and printing."""
        return words.call_words(self.key.call)

    @cached_property
    def config_words(self) -> str:
        """The config for people; "unfinished" if the search has not ended."""
        return configs.label(self.config, self.key.is_of_triton)

    @property
    def toolchain(self) -> str:
        """Version of Triton, or of a plain callable's distributions."""
        return _of_context(self.key.context)[2]

    def to_json(self) -> dict[str, Json]:
        """The choice as `list --json` prints it."""
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
            "path": None if layout.is_copy() else self.path,  # of a temporary copy
        }


def _of_context(context: Mapping[str, Json]) -> tuple[Mapping[str, Json], str, str]:
    """A context, its device's slug and its toolchain in words; cached for contexts that records share."""
    known = _contexts.get(id(context))
    if known is None:
        toolchain = words.toolchain_words(context)
        if len(_contexts) >= 64:
            _contexts.clear()
        known = _contexts[id(context)] = context, from_json(context["device"]).slug, toolchain
    return known


_contexts: dict[int, tuple[Mapping[str, Json], str, str]] = {}  # by id, which is unique while the context is kept


@dataclass(frozen=True)
class Filter:
    """Selects choices; all given conditions must hold."""

    kernel: str | None = None  # name or dotted suffix; None also excludes this package's own choices
    # Part of a device's name or slug, such as "H200", "nvidia-h200-sm_90" or "interpreter", in any case.
    device: str | None = None
    # A version of Triton or its beginning: "3.6" matches 3.6.0 and 3.6.1; "none" matches plain callables.
    triton: str | None = None

    def fits(self, key: Key) -> bool:
        """Whether a key matches."""
        return (
            (self.kernel is None or f".{key.kernel}".endswith(f".{self.kernel}"))
            and disk.safe_name(self.device or "") in _of_context(key.context)[1]
            and (self.triton is None or f"{_version(key)}.".startswith(f"{self.triton.rstrip('.')}."))
        )

    def of(self, choices: Iterable[Stored]) -> Iterator[Stored]:
        """The matching choices, in order; KernelNameError if there are choices and none matches."""
        devices, versions, fitting = set(), set(), False
        for stored in choices:
            devices.add(stored.device)
            versions.add(_version(stored.key))
            if self.fits(stored.key):
                fitting = True
                yield stored
        if devices and not fitting:
            wanted = " and ".join(f"{name} {value!r}" for name, value in vars(self).items() if value is not None)
            there = f"Devices are {', '.join(sorted(devices))}; versions of Triton are {', '.join(sorted(versions))}."
            raise KernelNameError(f"no choice for {wanted}. {there}", name=self.kernel or "")


def _version(key: Key) -> str:
    return str(key.context.get("triton") or "none")


def choices(wanted: Filter = Filter(), heads: bool = False, once: bool = False) -> Iterator[Stored]:
    """The wanted choices, by kernel, then in the order of `of_kernel`; KernelNameError if none matches."""
    own = wanted.kernel is not None
    names = kernels(own=own)
    if wanted.kernel is not None and names:
        names = listing.named(names, wanted.kernel)
    return wanted.of(stored for name in names for stored in of_kernel(name, heads, own=own, once=once))


def shipped(kernel: str | None = None, own: bool = True) -> Iterable[tuple[str, Key, Entry]]:
    """`lookup.shipped`, or nothing for a shared store's records."""
    return () if layout.is_copy() else lookup.shipped(kernel, own=own)


def choices_in(path: Path) -> Iterator[Stored]:
    """Every choice in another store's folder or in config files, each key once; ConfigFileError without files."""
    if listing.is_store(path):
        found = _records(listing.all_records(quietly=True, store=path))
    else:
        files = exchange.readable(path, [])
        found = _entries((str(name), key, entry) for name, file in files for key, entry in file.entries())
    return in_order(_first(found))


def kernels(quietly: bool = False, own: bool = True) -> list[str]:
    """Names of all kernels with a record or an entry; without `own`, not those of this package."""
    return sorted({key.kernel for _, key, _ in shipped(own=own)} | listing.kernels(quietly=quietly))


def of_kernel(
    kernel: str, heads: bool = False, quietly: bool = False, own: bool = True, once: bool = False
) -> Iterator[Stored]:
    """A kernel's records and config file entries, by device, call, toolchain and place.

    More than `listing.BLOCK` choices are sorted in blocks of that size, to bound memory.

    Args:
        kernel: The kernel's full name.
        heads: Without timings and provenance of records, which is much faster.
        quietly: Leave damaged records in place.
        own: Include this package's own config files.
        once: For each key only the choice that a call gets, and no unfinished searches.
    """
    kept = (listing.all_heads if heads else listing.all_records)(kernel, quietly)
    found = itertools.chain(_records(kept), _entries(shipped(kernel, own=own)))
    yield from in_order(_first(found) if once else found)


def apart(found: Sequence[Stored]) -> dict[int, str]:
    """By id, for choices with equal call, device, toolchain and place: the other parts of their keys that differ."""
    alike: dict[tuple[str, ...], list[Stored]] = {}
    for stored in found:
        looks = stored.call_words, stored.device, stored.toolchain, stored.place
        alike.setdefault(looks, []).append(stored)
    return {id(stored): words for some in alike.values() if len(some) > 1 for stored, words in _apart(some)}


def _apart(alike: Sequence[Stored]) -> Iterator[tuple[Stored, str]]:
    leaves = [{name: words.value_words(value) for name, value in _not_shown(stored.key)} for stored in alike]
    names = [name for name in dict.fromkeys(itertools.chain(*leaves)) if len({leaf.get(name) for leaf in leaves}) > 1]
    for stored, leaf in zip(alike, leaves):
        yield stored, " ".join(f"{name}={leaf[name]:.12}" for name in names if name in leaf)


def _not_shown(key: Key) -> Iterator[tuple[str, Json]]:
    """The parts of a key that its call and toolchain do not show."""
    return parts({"tuner": key.call.get("tuner", {}), **key.context})


def in_order(found: Iterable[Stored]) -> Iterator[Stored]:
    """Sort choices by device, call, toolchain and place, in blocks of `listing.BLOCK`; drops malformed ones."""
    found = iter(found)
    while block := list(itertools.islice(found, listing.BLOCK)):
        places = [_place(stored) for stored in block]
        in_order = sorted((n for n in range(len(block)) if places[n]), key=places.__getitem__)
        yield from (block[n] for n in in_order)


def _place(stored: Stored) -> tuple[Json, ...]:
    """The sort key; empty, with a warning, if the choice is malformed, for example after an edit."""
    try:
        texts = map(words.in_order, (stored.call_words, stored.toolchain))
        return (stored.device, *texts, stored.source) if stored.config_words else ()
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        log.warning("left out: %s is malformed (%s: %s).", stored.path, type(error).__name__, error)
        return ()


def _first(found: Iterable[Stored]) -> Iterator[Stored]:
    """The first choice of each key, in the order in which a call looks."""
    seen: set[str] = set()
    for stored in found:
        if stored.config is not None and stored.digest not in seen:
            seen.add(stored.digest)
            yield stored


def _records(found: Iterable[tuple[str | Path, TuningRecord]]) -> Iterator[Stored]:
    for path, record in found:
        if record.key.digest != Path(path).stem:
            log.warning("left out: %s is malformed (its key does not match its file name).", path)
            continue
        quality = record.quality if record.winner is not None else None  # of a choice; an unfinished search has none
        chosen = record.winner, record.median_us, quality
        yield Stored(record.key, *chosen, record.vs_default, os.fspath(path), record, record.conditions)


def _entries(found: Iterable[tuple[str, Key, Entry]]) -> Iterator[Stored]:
    for path, key, entry in found:
        chosen = entry.config, entry.median_us, entry.quality
        yield Stored(key, *chosen, entry.vs_default, path, conditions=entry.conditions)
