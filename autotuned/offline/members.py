"""Picks the calls that a bucket is tuned on: the most frequent of a recording, the ends, and sizes between."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotuned.offline import ranges, replay, targets
from autotuned.offline.cases import Case, Cases, generated, takes
from autotuned.offline.device import tensors_on
from autotuned.offline.targets import TunedObject
from autotuned.recording.file import RecordedCall
from autotuned.resolve.request import Member
from autotuned.tunable.call import Call
from autotuned.typed_json import Json, canonical

Sizes = Mapping[str, Json]  # of bucketed arguments
MOST = 1 << 40  # the largest size considered


@dataclass(frozen=True)
class _Known:
    """A call of a bucket: its sizes, its count, and what creates it again."""

    sizes: Sizes
    count: int
    given: Any


class BucketMembers:
    """The calls of each bucket of the targets, found among the session's cases."""

    def __init__(self, cases: Cases, device: str) -> None:
        self._cases, self._device = cases, tensors_on(device)
        self._known: dict[int, dict[str, list[_Known]]] = {}  # by tuned object, then by the call part of the key

    def of(self, case: Case, call: Call) -> tuple[Member, ...]:
        """The calls to optimize a case's choice for, its own first; empty if it is the only one."""
        found, options = case.found, case.found.tuner.options
        chooser = found.tuner.chooser
        part, own = canonical(chooser.part(call)), sizes_of(found, call.arguments)
        if id(found.tuned) not in self._known:
            self._known[id(found.tuned)] = self._all(found)
        known = self._known[id(found.tuned)].get(part, [])
        mine = next((one for one in known if one.sizes == own), _Known(own, case.count, case.given))
        others = {canonical(dict(one.sizes)): one for one in known if one.sizes != own}
        if len(others) + 1 < options.members:
            more = self._generated(found, part, mine, options.members - 1)
            others = {**{canonical(dict(one.sizes)): one for one in more}, **others}
        picked = chosen([mine, *others.values()], options.members)
        if len(picked) < 2:
            return ()
        return tuple(self._member(found, one, call if one is mine else None) for one in picked)

    def _member(self, found: TunedObject, known: _Known, call: Call | None) -> Member:
        made, lost = (call, []) if call is not None else self._bound(found, known.given)
        live = found.tuner.chooser.candidates(made)
        left = live.without([name for name, config in live.items() if str(config) in lost])
        return Member(made, left, known.sizes, known.count)

    def _all(self, found: TunedObject) -> dict[str, list[_Known]]:
        """A tuned object's cases by the call part of their key; their tensors are created and freed one by one."""
        groups: dict[str, list[_Known]] = {}
        for case in self._cases:
            if case.found.tuned is not found.tuned or case.error:
                continue
            try:
                call, _ = self._bound(found, case.given)
            except Exception:  # reported when the case is measured
                continue
            sizes = sizes_of(found, call.arguments)
            group = groups.setdefault(canonical(found.tuner.chooser.part(call)), [])
            if all(one.sizes != sizes for one in group):
                given = case.given if isinstance(case.given, RecordedCall) else replace(case, given=None)
                group.append(_Known(sizes, case.count, given))
        return groups

    def _bound(self, found: TunedObject, given: Any) -> tuple[Call, list[str]]:
        """A call, and the configs (as text) that it cannot be launched with."""
        if isinstance(given, Case):  # from a generator: created again, since its tensors were freed
            again = self._cases.at(given.number)
            given = again.given if again is not None else None
        return replay.bound(found, given, self._device)

    def _generated(self, found: TunedObject, part: str, mine: _Known, count: int) -> Iterator[_Known]:
        """More calls of the bucket (its ends and sizes between) from generators that take sizes by keyword.

        Sizes that a generator cannot make, for example for lack of memory, are left out.
        """
        for name, bucket in found.tuner.options.spec.buckets.items():
            size = mine.sizes.get(name)
            takers = [one for one in found.tuned.cases if takes(one, [name])]
            if type(size) is not int or size < 1 or not takers:
                continue
            low, high = ends(bucket, size)
            for other in (one for one in ranges.spread(low, high, count + 1) if one != size):
                sized = (functools.partial(one, **{name: other}) for one in takers)
                for case in (case for one in sized for case in generated(found, one, self._device) if not case.error):
                    call = targets.bind(found, case.given)
                    sizes = sizes_of(found, call.arguments)
                    if canonical(found.tuner.chooser.part(call)) == part and sizes == {**mine.sizes, name: other}:
                        yield _Known(sizes, 0, case.given)


def sizes_of(found: TunedObject, arguments: Mapping[str, Any]) -> dict[str, Json]:
    """The true sizes of a call's bucketed arguments."""
    sizes: dict[str, Json] = {}
    for name in found.tuner.options.spec.buckets:
        value = arguments.get(name)
        shape = getattr(value, "shape", None)
        sizes[name] = list(map(int, shape)) if shape is not None else value if type(value) is int else str(value)
    return sizes


def chosen(known: Sequence[_Known], count: int) -> list[_Known]:
    """At most `count` calls: the first, the most frequent, then repeatedly the one furthest from those chosen."""
    left = sorted(known[1:], key=lambda one: -one.count)
    picked = [known[0]]
    if left and left[0].count > known[0].count:
        picked.append(left.pop(0))
    while left and len(picked) < count:
        furthest = max(left, key=lambda one: min(_distance(one.sizes, other.sizes) for other in picked))
        picked.append(furthest)
        left.remove(furthest)
    return picked[:count]


def _distance(one: Sizes, other: Sizes) -> float:
    pairs = zip(_numbers(one.values()), _numbers(other.values()))
    return sum(abs(math.log2((a + 1) / (b + 1))) for a, b in pairs)


def _numbers(values: Iterable[Json]) -> Iterator[int]:
    for value in values:
        if isinstance(value, list):
            yield from _numbers(value)
        elif type(value) is int and value >= 0:
            yield value


def ends(bucket: Any, size: int) -> tuple[int, int]:
    """The smallest and largest size of a bucket without gaps."""
    mine = bucket(size)

    def is_inside(other: int) -> bool:
        try:
            return 0 < other < MOST and bool(bucket(other) == mine)
        except Exception:  # the user's bucket may refuse a size, such as one that its table lacks
            return False

    def end(step: int) -> int:
        reached, stride = size, 1
        while stride:  # double the stride within the bucket, then halve it
            further = reached + step * stride
            reached, stride = (further, stride * 2) if is_inside(further) else (reached, stride // 2)
        return reached

    return end(-1), end(1)
