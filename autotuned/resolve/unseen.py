"""Answer calls that were never made before by a rule: from their sizes to a bound kernel, without a key."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from enum import Enum
from operator import itemgetter
from typing import Any

from autotuned import env, events
from autotuned.configfiles import lookup, shipped_rules
from autotuned.configfiles.policy import Within
from autotuned.key.key import Key, stride_pattern
from autotuned.key.sizes import shape_of
from autotuned.launch.bound import Bound
from autotuned.launch.table import integer_class, is_its_own_word, is_plain_tensor
from autotuned.resolve import active
from autotuned.rules.rule import Rule
from autotuned.store import listing
from autotuned.triton_compat import kernel
from autotuned.tunable.call import Call
from autotuned.typed_json import canonical

LIMIT = 256  # families of a kernel: alignments, layouts and dtypes are few
Step = Callable[[Any, list[Any], list[int]], None]  # takes a value; adds words and sizes


class Family:
    """Calls that agree in all but their sizes, and in all that Triton compiles for.

    Args:
        rule: Answers them, as far as `within` allows.
        order: The rule's sizes, as positions in the order that they are met in the arguments.
        known: Sizes with a stored or shipped choice, which comes before a rule.
        where: Name of the rule, for people.
    """

    def __init__(self, rule: Rule, within: Within, order: Sequence[int], known: frozenset[Any], where: str) -> None:
        self._rule, self._within, self._known, self.where = rule, within.bound, known, where
        self._order = itemgetter(*order) if len(order) > 1 else lambda sizes: (sizes[order[0]],)
        #: Bound kernels by the index of their config in the rule.
        self.bound: dict[int, Bound] = {}

    def find(self, met: list[int]) -> Bound | None:
        """The bound kernel for a call; None if no rule answers."""
        sizes = self._order(met)
        if sizes in self._known:
            return None
        values = self._rule.values(sizes)
        place = None if values is None else self._rule.config(values, self._within)
        return None if place is None else self.bound.get(place)


class Reader:
    """Splits the arguments of calls with the same types into words, which select the family, and sizes."""

    def __init__(self, steps: Sequence[Step], device: Callable[[], int] | None) -> None:
        self._steps, self._device = steps, device
        self.families: dict[tuple[Any, ...], Family] = {}

    def read(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[int]]:
        """Words and sizes of a call."""
        words: list[Any] = [] if self._device is None else [self._device()]
        sizes: list[int] = []
        for step, value in zip(self._steps, values):
            step(value, words, sizes)
        return tuple(words), sizes


class Families:
    """The rules' bound answers for one tuned function."""

    def __init__(self, tuner: Any) -> None:
        self._tuner, self._names, self._spec = tuner, tuner.names, tuner.options.spec
        self._device = kernel.current_device_getter() if tuner.is_compiled else None
        self._readers: dict[tuple[type, ...], Reader] = {}
        self._known: tuple[Any, dict[str, frozenset[Any]]] = (None, {})
        self._state = self._now()

    def __len__(self) -> int:
        return sum(len(reader.families) for reader in list(self._readers.values()))

    def _now(self) -> tuple[int, int, int, str]:
        """Equal while nothing was found, read again or forgotten, in one mode."""
        searches, cleared = self._tuner.chooser.state.searches, self._tuner.launcher.cleared
        return searches, lookup.generation(), cleared, env.current_mode()

    def answer(self, values: tuple[Any, ...]) -> Bound | None:
        """The bound kernel for a call that misses the launch table, now added to it; None if the call needs a key."""
        # must open no file, make no key, hash no text and compile nothing
        start = time.perf_counter()
        reader = self._readers.get(tuple(map(type, values)))
        if reader is None or self._state != self._now():
            return None
        try:
            words, sizes = reader.read(values)
            family = reader.families.get(words)
            bound = None if family is None else family.find(sizes)
        except Exception:  # a tensor without memory, or an unhashable value: take the safe path
            return None
        if bound is None or family is None:
            return None
        self._tuner.launcher.bind(values, bound)
        self._tuner.misses += 1
        events.emit("miss", self._tuner.tunable.name, "", time.perf_counter() - start, family.where)
        return bound

    def add(self, call: Call, bound: Bound) -> None:
        """Add the launch bound for a call that a rule answered, for other calls of its family."""
        options, chooser = self._tuner.options, self._tuner.chooser
        if chooser.narrows or self._spec.functions or self._spec.buckets or active.recorders or active.agreements:
            return  # user code or others must see each call
        if self._state != self._now():
            self._readers.clear()
            self._state = self._now()
        key, values = chooser.key(call), tuple(call.arguments.values())
        found = shipped_rules.answering(key, options.within, env.current_mode() == "strict")
        steps = [self._step(name, value) for name, value in zip(self._names, values)]
        if found is None or None in steps or len(self) >= LIMIT or shipped_rules.count(key) > 1:
            return  # with several rules for a call their order matters
        offer, allowed, place = found
        if offer.rule.identities[place] != chooser.state.identity(bound.config):
            return
        types = tuple(map(type, values))
        reader = self._readers.get(types) or Reader([step for step in steps if step is not None], self._device)
        words, met = reader.read(values)
        family = reader.families.get(words) or self._family(values, key, offer, allowed, met)
        if family is not None:
            family.bound[place] = copy.copy(bound)
            family.bound[place].use = None  # other calls have other keys
            reader.families[words] = family
            self._readers[types] = reader

    def _family(
        self, values: tuple[Any, ...], key: Key, offer: shipped_rules.RuleOffer, allowed: Within, met: list[int]
    ) -> Family | None:
        paths: list[str] = []
        for name, value in zip(self._names, values):
            if is_plain_tensor(type(value)):
                paths += [f"{name}.shape[{dim}]" for dim in range(value.ndim)] * self._spec.has_shape(name)
            elif type(value) is int and self._spec.has_value(name, value):
                paths.append(name)
        shape = shape_of(key.call)
        if sorted(paths) != sorted(path for path, _ in shape.sizes):
            return None
        order = [paths.index(path) for path, _ in shape.sizes]
        if [met[at] for at in order] != [size for _, size in shape.sizes]:
            return None
        where = f"{offer.held.path}: a rule over {offer.rule.words}"
        return Family(offer.rule, allowed, order, self._known_sizes(key).get(shape.rest, frozenset()), where)

    def _known_sizes(self, key: Key) -> dict[str, frozenset[Any]]:
        """Sizes of all calls with a stored or shipped choice, by the rest of their key."""
        heads = listing.known_heads(key.kernel)
        state = (lookup.state(), id(heads))
        if self._known[0] != state:
            found: dict[str, set[Any]] = {}
            calls = [head.key.call for head in heads]
            calls += [entry.call for held in lookup.files_for(key) for group in held.file.groups()
                      for entry in group.entries.values()]  # fmt: skip
            for call in {canonical(call): call for call in calls}.values():
                shape = shape_of(call)
                found.setdefault(shape.rest, set()).add(tuple(size for _, size in shape.sizes))
            self._known = state, {rest: frozenset(sizes) for rest, sizes in found.items()}
        return self._known[1]

    def _step(self, name: str, value: Any) -> Step | None:
        """How to read a value of this argument; None if such a call needs a key."""
        kind, spec = type(value), self._spec
        if name in spec.exact:
            return None
        if is_plain_tensor(kind):
            return None if name in spec.constexprs else _shaped if spec.has_shape(name) else _unshaped
        if kind is int:
            if name in spec.constexprs:
                return _compiled_in
            return _size if spec.has_value(name, value) else _integer
        if kind is float:
            return _exact_float if spec.has_value(name, value) else _nothing
        if value is None:
            return _nothing
        return _itself if is_its_own_word(kind) and not issubclass(kind, Enum) else None


def _layout(value: Any, words: list[Any]) -> Any:
    shape = value.shape
    plain = value.is_contiguous() and min(shape, default=1) > 1  # the pattern of strides is that of its rank
    pattern = len(shape) if plain else stride_pattern(shape, value.stride())
    words += (value.dtype, pattern, value.data_ptr() & 15 == 0, value.get_device())
    return shape


def _shaped(value: Any, words: list[Any], sizes: list[int]) -> None:
    sizes += _layout(value, words)


def _unshaped(value: Any, words: list[Any], sizes: list[int]) -> None:
    _layout(value, words)


def _size(value: int, words: list[Any], sizes: list[int]) -> None:
    sizes.append(value)
    words.append(integer_class(value))


def _compiled_in(value: int, words: list[Any], sizes: list[int]) -> None:
    sizes.append(value)
    words.append(value)


def _integer(value: int, words: list[Any], sizes: list[int]) -> None:
    words.append(integer_class(value))


def _exact_float(value: float, words: list[Any], sizes: list[int]) -> None:
    words.append(value.hex())


def _itself(value: Any, words: list[Any], sizes: list[int]) -> None:
    words.append(value)


def _nothing(value: Any, words: list[Any], sizes: list[int]) -> None:
    pass
