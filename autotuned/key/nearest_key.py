"""The distance between two calls, and the stored key nearest to a given one.

Used for messages, for `nearest=`, and to order earlier winners in a search.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from autotuned._startup import Frozen
from autotuned.key.key import Key
from autotuned.typed_json import Json, canonical

OTHER = 8.0  # octaves for each differing part that is not a size: the same as a size ratio of 256
_SIZE = 0.5  # replaces a size in an outline; keys contain no such number
_Sizes = tuple[tuple[int, ...], ...]  # those at each place
Rank = tuple[bool, float, int]  # whether the calls differ, the distance of the keys, the index in the list


def octaves_between(ours: Iterable[int], theirs: Iterable[int], other_parts: int = 0) -> float:
    """The distance between two calls: the Euclidean norm of the log2 ratios of corresponding sizes (at least 1).

    Each of `other_parts`, which differ and are not sizes, counts as `OTHER` octaves.
    """
    return total([octave(mine) - octave(other) for mine, other in zip(ours, theirs)], other_parts)


def total(octaves: Iterable[float], other_parts: int = 0) -> float:
    """The distance for given differences in octaves; rounded, so that equal distances compare equal."""
    return round(math.hypot(OTHER * math.sqrt(other_parts), *octaves), 6)


def octave(size: int) -> float:
    """log2 of a size; sizes below 1 count as 1."""
    return math.log2(max(size, 1))


class SizelessKey(Frozen):
    """A key without its sizes, shared by many keys of a kernel."""

    text: str  # canonical text of `data` and `places`
    data: Json  # call and context without sizes
    places: tuple[tuple[str, int], ...]  # the paths of removed sizes in the call, and their number at each

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, SizelessKey) else NotImplemented


class Apart(Frozen):
    """How two outlines differ."""

    call: bool  # whether the calls differ
    count: int  # number of differing parts
    mine: tuple[int, ...]  # indices of the places that correspond to `theirs`
    theirs: tuple[int, ...]
    whole: bool  # whether these are all places of both

    def least(self, octaves: float = 0.0) -> tuple[bool, float]:
        """The smallest possible rank of keys with these outlines whose sums of logarithms differ by `octaves`."""
        return self.call or octaves > 0, total([octaves], self.count)


class SizedKey(Frozen):
    """A key in a group: its sizes, the sum of their logarithms, and its index in the list."""

    sizes: _Sizes
    octaves: float
    number: int
    key: Key


class SizeGroup:
    """Keys with one outline, ordered by size."""

    def __init__(self, members: Iterable[SizedKey]) -> None:
        self._members = sorted(members, key=lambda member: member.octaves)
        self._octaves = [member.octaves for member in self._members]

    def outwards(self, octaves: float) -> Iterator[SizedKey]:
        """The members, closest total size first."""
        above = bisect.bisect_left(self._octaves, octaves)
        below = above - 1
        for _ in self._members:  # not `heapq.merge`: the first member would take 2 us
            if below < 0 or (
                above < len(self._octaves) and self._octaves[above] - octaves < octaves - self._octaves[below]
            ):
                yield self._members[above]
                above += 1
            else:
                yield self._members[below]
                below -= 1


class Alike:
    """Keys to search for the nearest one: prepared once, queried often.

    The nearest key has the same call if any has, then the smallest distance, then the lowest index.
    """

    def __init__(self, keys: Iterable[Key]) -> None:
        found: dict[SizelessKey, list[SizedKey]] = {}
        for number, key in enumerate(keys):
            outline, sizes = _outlined(key)
            octaves = math.fsum(octave(size) for group in sizes for size in group)
            found.setdefault(outline, []).append(SizedKey(sizes, octaves, number, key))
        self._groups = {outline: SizeGroup(members) for outline, members in found.items()}

    def nearest(self, key: Key) -> Key | None:
        """The key nearest to `key` and not equal to it, or None."""
        outline, sizes = _outlined(key)
        best: tuple[Rank, Key] | None = None
        found = [(_apart(outline, other), group) for other, group in self._groups.items()]
        for apart, group in sorted(found, key=lambda pair: pair[0].least()):
            if best is not None and apart.least() > best[0][:2]:
                break
            best = _better(best, apart, sizes, group)
        return best[1] if best is not None else None


def distances(key: Key, others: Iterable[Key]) -> Iterator[float]:
    """Distance of each of `others`, keys of the same kernel, from a key."""
    ours, mine = _outlined(key)
    for theirs, sizes in map(_outlined, others):
        apart = _apart(ours, theirs)
        yield octaves_between(_picked(mine, apart.mine), _picked(sizes, apart.theirs), apart.count)


def _better(best: tuple[Rank, Key] | None, apart: Apart, sizes: _Sizes, group: SizeGroup) -> tuple[Rank, Key] | None:
    """The best so far, or a nearer member of a group.

    Sums of n logarithms differ by at most sqrt(n) times the distance, and members are visited in order of that sum:
    once the bound exceeds the best distance, the rest is skipped.
    """
    wanted = _picked(sizes, apart.mine)
    octaves, root = math.fsum(map(octave, wanted)), math.sqrt(len(wanted) or 1)
    for member in group.outwards(octaves):
        if best is not None and apart.whole and apart.least(abs(member.octaves - octaves) / root) > best[0][:2]:
            break
        theirs = _picked(member.sizes, apart.theirs)
        if apart.count == 0 and wanted == theirs:
            continue  # the key itself
        rank = (apart.call or wanted != theirs, octaves_between(wanted, theirs, apart.count), member.number)
        if best is None or rank < best[0]:
            best = rank, member.key
    return best


def _picked(sizes: _Sizes, places: Iterable[int]) -> list[int]:
    return [size for place in places for size in sizes[place]]


def _outlined(key: Key) -> tuple[SizelessKey, _Sizes]:
    sizes: dict[str, tuple[int, ...]] = {}
    call = {name: _without_sizes(part, name, sizes) for name, part in sorted(key.call.items())}
    places = tuple((place, len(found)) for place, found in sizes.items())
    # Including the places: a file may itself contain the number that replaces sizes.
    text = f"{canonical(call)}{key.context_text or canonical(key.context)}{places}"
    return SizelessKey(text, {"call": call, "context": key.context}, places), tuple(sizes.values())


def _without_sizes(part: Json, path: str, sizes: dict[str, tuple[int, ...]]) -> Json:
    """A copy of part of a call with its sizes moved into `sizes`."""
    if type(part) is int:
        sizes[path] = (part,)
        return _SIZE
    if isinstance(part, list) and part and all(type(size) is int for size in part):
        sizes[path] = tuple(part)
        return [_SIZE] * len(part)
    if isinstance(part, Mapping):
        return {name: _without_sizes(value, f"{path}.{name}", sizes) for name, value in sorted(part.items())}
    return part


@lru_cache(1024)
def _apart(ours: SizelessKey, theirs: SizelessKey) -> Apart:
    changed = [change.path for change in differences(ours.data, theirs.data)]
    common = [place for place in ours.places if place in theirs.places]
    return Apart(
        any(path.startswith("call.") for path in changed),
        len(changed),
        tuple(map(ours.places.index, common)),
        tuple(map(theirs.places.index, common)),
        ours.places == theirs.places,
    )


def parts(data: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """The leaves of a key, such as `call.tensors.x.dtype`, and their values; a typed value is one leaf."""
    for name, value in data.items():
        if isinstance(value, dict) and value and not path.endswith(("values.", "options.")):
            yield from parts(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


class Difference(Frozen):
    """One place where two keys differ; None for a missing part."""

    path: str
    ours: Json
    theirs: Json

    def __str__(self) -> str:
        return f"{self.path}: {self.ours!r} here, {self.theirs!r} there"


def differences(ours: Json, theirs: Json, path: str = "") -> Iterator[Difference]:
    """All leaves in which two parts of keys differ, in a stable order."""
    # Compared as text, since 1 == True in Python.
    if canonical(ours) == canonical(theirs):
        return
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        yield Difference(path, ours, theirs)
        return
    for name in sorted({*ours, *theirs}):
        below = f"{path}.{name}" if path else name
        if name in ours and name in theirs:
            yield from differences(ours[name], theirs[name], below)
        else:  # missing differs from None
            yield Difference(below, ours.get(name), theirs.get(name))
