"""The one distance of two calls, and the stored key of a kernel that is nearest to a given one.

Messages, `nearest=` and the order in which a search tries earlier winners all go by it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from autotuned._startup import Frozen
from autotuned.key.key import Key
from autotuned.typed_json import Json, canonical

OTHER = 8.0  # octaves for each part that differs and is not a size: as much as a size 256 times as large
_SIZE = 0.5  # stands for a size in an outline: in a key no number is written so
Sizes = tuple[tuple[int, ...], ...]
Rank = tuple[bool, float, int]  # whether the calls differ, how far the keys are apart, which of the list


def octaves_between(ours: Iterable[int], theirs: Iterable[int], other_parts: int = 0) -> float:
    """The distance of two calls: the root of the sum of squares of log2 of the ratios of their sizes.

    Args:
        ours, theirs: Sizes, place by place; one below 1 counts as 1.
        other_parts: How many parts differ that are not sizes. Each counts `OTHER` octaves.
    """
    return total([octave(mine) - octave(other) for mine, other in zip(ours, theirs)], other_parts)


def total(octaves: Iterable[float], other_parts: int = 0) -> float:
    """The distance of calls whose sizes differ by so many octaves; rounded, so that equal distances compare equal."""
    return round(math.hypot(OTHER * math.sqrt(other_parts), *octaves), 6)


def octave(size: int) -> float:
    """The logarithm of a size to base 2; a size below 1 counts as 1."""
    return math.log2(max(size, 1))


class Outline(Frozen):
    """A key without its sizes: what many keys of one kernel have in common.

    Attributes:
        text: Its canonical text, with `places`. `data`: the same as JSON.
        places: Where in the call the sizes lie that are left out, and how many there.
    """

    text: str
    data: Json
    places: tuple[tuple[str, int], ...]

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Outline) else NotImplemented


class Apart(Frozen):
    """In what two outlines differ.

    Attributes:
        call: Whether in the call. `count`: in how many parts.
        mine, theirs: Which sizes of the one are to be compared with which of the other.
        whole: Whether these are all sizes of both.
    """

    call: bool
    count: int
    mine: tuple[int, ...]
    theirs: tuple[int, ...]
    whole: bool

    def least(self, octaves: float = 0.0) -> tuple[bool, float]:
        """The smallest rank that keys of these outlines can have whose sums of logarithms differ by so much."""
        return self.call or octaves > 0, total([octaves], self.count)


class Member(Frozen):
    """A key of a group: its sizes, the sum of their logarithms, and its place in the list."""

    sizes: Sizes
    octaves: float
    number: int
    key: Key


class Group:
    """Keys of one outline, in the order of their sizes."""

    def __init__(self, members: Iterable[Member]) -> None:
        self.members = sorted(members, key=lambda member: member.octaves)
        self._octaves = [member.octaves for member in self.members]

    def outwards(self, octaves: float) -> Iterator[Member]:
        """The members, those first whose sizes are as large as `octaves` says."""
        above = bisect.bisect_left(self._octaves, octaves)
        below = above - 1
        while below >= 0 or above < len(self.members):
            if below < 0 or (above < len(self.members) and self._octaves[above] + self._octaves[below] < 2 * octaves):
                yield self.members[above]
                above += 1
            else:
                yield self.members[below]
                below -= 1


@dataclass
class Alike:
    """Keys to find the nearest one among: made ready once, asked for many.

    The nearest is one of the same call if there is any, of these the one at the least distance, and of these the first.
    """

    keys: Iterable[Key]
    _groups: dict[Outline, Group] = field(init=False)

    def __post_init__(self) -> None:
        found: dict[Outline, list[Member]] = {}
        for number, key in enumerate(self.keys):
            outline, sizes = _outlined(key)
            octaves = math.fsum(octave(size) for group in sizes for size in group)
            found.setdefault(outline, []).append(Member(sizes, octaves, number, key))
        self._groups = {outline: Group(members) for outline, members in found.items()}

    def nearest(self, key: Key) -> Key | None:
        """The key that is most like `key` and not equal to it; None if there is none."""
        outline, sizes = _outlined(key)
        best: tuple[Rank, Key] | None = None
        found = [(_apart(outline, other), group) for other, group in self._groups.items()]
        for apart, group in sorted(found, key=lambda pair: pair[0].least()):
            if best is not None and apart.least() > best[0][:2]:
                break
            best = _better(best, apart, sizes, group)
        return best[1] if best is not None else None


def distances(key: Key, others: Iterable[Key]) -> Iterator[float]:
    """How far other keys of its kernel are from a key, one by one."""
    ours, mine = _outlined(key)
    for theirs, sizes in map(_outlined, others):
        apart = _apart(ours, theirs)
        yield octaves_between(_picked(mine, apart.mine), _picked(sizes, apart.theirs), apart.count)


def _better(best: tuple[Rank, Key] | None, apart: Apart, sizes: Sizes, group: Group) -> tuple[Rank, Key] | None:
    """The best so far, or a member of a group that is nearer.

    Members come by the sum of the logarithms of their sizes. Two such sums of n sizes differ by no more than the root
    of n times the distance: once that is larger than the best distance, the rest is not looked at.
    """
    wanted = _picked(sizes, apart.mine)
    octaves, root = math.fsum(map(octave, wanted)), math.sqrt(len(wanted) or 1)
    for member in group.outwards(octaves):
        if best is not None and apart.whole and apart.least(abs(member.octaves - octaves) / root) > best[0][:2]:
            break
        theirs = _picked(member.sizes, apart.theirs)
        if apart.count == 0 and wanted == theirs:
            continue  # the very key
        rank = (apart.call or wanted != theirs, octaves_between(wanted, theirs, apart.count), member.number)
        if best is None or rank < best[0]:
            best = rank, member.key
    return best


def _picked(sizes: Sizes, places: Iterable[int]) -> list[int]:
    return [size for place in places for size in sizes[place]]


def _outlined(key: Key) -> tuple[Outline, Sizes]:
    """A key's outline, and the sizes that it leaves out."""
    sizes: dict[str, tuple[int, ...]] = {}
    call = {name: _without_sizes(part, name, sizes) for name, part in sorted(key.call.items())}
    places = tuple((place, len(found)) for place, found in sizes.items())
    # With the places: a file may hold by itself what stands here for a size.
    text = f"{canonical(call)}{key.context_text or canonical(key.context)}{places}"
    return Outline(text, {"call": call, "context": key.context}, places), tuple(sizes.values())


def _without_sizes(part: Json, path: str, sizes: dict[str, tuple[int, ...]]) -> Json:
    """A part of a call with its sizes put into `sizes` by their places."""
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
def _apart(ours: Outline, theirs: Outline) -> Apart:
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
    """The leaves of a key, `call.tensors.x.dtype` and its value; a typed value such as {"float": ...} is one leaf."""
    for name, value in data.items():
        if isinstance(value, dict) and value and not path.endswith(("values.", "options.")):
            yield from parts(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


class Difference(Frozen):
    """One place in which two keys differ; a part that one of them lacks is None."""

    path: str
    ours: Json
    theirs: Json

    def __str__(self) -> str:
        return f"{self.path}: {self.ours!r} here, {self.theirs!r} there"


def differences(ours: Json, theirs: Json, path: str = "") -> Iterator[Difference]:
    """Every leaf in which two key parts differ, in a stable order."""
    # Compared as text: in Python 1 == True, and a dict of them is equal too.
    if canonical(ours) == canonical(theirs):
        return
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        yield Difference(path, ours, theirs)
        return
    for name in sorted({*ours, *theirs}):
        below = f"{path}.{name}" if path else name
        if name in ours and name in theirs:
            yield from differences(ours[name], theirs[name], below)
        else:  # a difference also where the other side holds None
            yield Difference(below, ours.get(name), theirs.get(name))
