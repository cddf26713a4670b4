"""Which of a kernel's keys is most like another one: in the fewest parts different, then with the nearest sizes."""

from __future__ import annotations

import bisect
import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from autotuned._frozen import Frozen
from autotuned.key.key import Key, differences
from autotuned.typed_json import Json, canonical

_SIZE = 0.5  # stands for a size in an outline: in a key no number is written so
_ROUNDING = 1e-6  # of sums of logarithms
Sizes = tuple[tuple[int, ...], ...]
Rank = tuple[bool, int, float, int]  # whether the calls differ, in how many parts the keys, how far, which of the list


class Outline(Frozen):
    """A key without its sizes: what many keys of one kernel have in common.

    Attributes:
        text: Its canonical text. `data`: the same as JSON.
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
    """

    call: bool
    count: int
    mine: tuple[int, ...]
    theirs: tuple[int, ...]


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
        self._seen = [set(sizes) for sizes in zip(*(member.sizes for member in self.members))]

    def least(self, wanted: Sizes) -> int:
        """In how many sizes every member differs: those that none has."""
        return sum(size not in seen for size, seen in zip(wanted, self._seen))

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

    That is one of the same call if there is any, of these one with the fewest other parts that differ, of these one
    whose sizes differ least, as the sum of the logarithms of their ratios, and of these the first.
    """

    keys: Iterable[Key]
    _groups: dict[Outline, Group] = field(init=False)

    def __post_init__(self) -> None:
        found: dict[Outline, list[Member]] = {}
        for number, key in enumerate(self.keys):
            outline, sizes = _outlined(key)
            found.setdefault(outline, []).append(Member(sizes, _octaves_of(sizes), number, key))
        self._groups = {outline: Group(members) for outline, members in found.items()}

    def nearest(self, key: Key) -> Key | None:
        """The key that is most like `key` and not equal to it; None if there is none."""
        outline, sizes = _outlined(key)
        best: tuple[Rank, Key] | None = None
        for other, group in self._groups.items():
            apart = _apart(outline, other)
            if best is None or (apart.call, apart.count) <= best[0][:2]:
                best = _better(best, apart, sizes, group)
        return best[1] if best is not None else None


def _better(best: tuple[Rank, Key] | None, apart: Apart, sizes: Sizes, group: Group) -> tuple[Rank, Key] | None:
    """The best so far, or a member of a group that is nearer.

    Members come by the sum of the logarithms of their sizes, and two such sums are never further apart than the
    logarithms themselves: once none can differ in fewer parts and none that is left can be as near, the rest is not
    looked at.
    """
    wanted = tuple(sizes[place] for place in apart.mine)
    comparable = apart.mine == apart.theirs == tuple(range(len(sizes)))
    octaves, least = _octaves_of(wanted), group.least(wanted) if comparable else -1  # -1: any
    for member in group.outwards(octaves):
        fewest = best is not None and best[0][:2] == (apart.call or least > 0, apart.count + least)
        if best is not None and fewest and abs(member.octaves - octaves) > best[0][2] + _ROUNDING:
            break
        theirs = member.sizes if comparable else tuple(member.sizes[place] for place in apart.theirs)
        differing = sum(map(operator.ne, wanted, theirs))
        if apart.count + differing == 0:
            continue  # the very key
        rank = (apart.call or differing > 0, apart.count + differing)
        if best is None or rank <= best[0][:2]:
            found = (*rank, sum(map(_octaves_between, wanted, theirs)), member.number)
            best = (found, member.key) if best is None or found < best[0] else best
    return best


def _octaves_of(sizes: Sizes) -> float:
    return sum(_octave(size) for group in sizes for size in group)


@lru_cache(65536)
def _octaves_between(ours: tuple[int, ...], theirs: tuple[int, ...]) -> float:
    return sum(abs(_octave(mine) - _octave(other)) for mine, other in zip(ours, theirs))


def _octave(size: int) -> float:
    """The logarithm of a size; what is none counts as 1."""
    return math.log2(max(size, 1))


def _outlined(key: Key) -> tuple[Outline, Sizes]:
    """A key's outline, and the sizes that it leaves out."""
    sizes: dict[str, tuple[int, ...]] = {}
    call = {name: _without_sizes(part, name, sizes) for name, part in sorted(key.call.items())}
    text = f"{canonical(call)}{key.context_text or canonical(key.context)}"
    places = tuple((place, len(found)) for place, found in sizes.items())
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
    )
