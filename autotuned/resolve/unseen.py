"""Calls that nobody made before and a rule answers: from their sizes to a kernel that is bound, without a key."""

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
from autotuned.tunable.kernel import TunableKernel
from autotuned.typed_json import canonical

LIMIT = 256  # families of one kernel: of alignments, layouts and dtypes there are few
Step = Callable[[Any, list[Any], list[int]], None]  # takes a value; adds to the words, and to the sizes


class Family:
    """Calls that are equal in all but their sizes, and in all that Triton compiles for.

    Args:
        rule: What answers them, as far as `within` allows.
        order: Which of the sizes, as they are met in the arguments, the rule asks for.
        known: Sizes for which something is stored or shipped, which comes before a rule.
        where: The rule, for people.
    """

    def __init__(self, rule: Rule, within: Within, order: Sequence[int], known: frozenset[Any], where: str) -> None:
        self._rule, self._within, self._known, self.where = rule, within.bound, known, where
        self._order = itemgetter(*order) if len(order) > 1 else lambda sizes: (sizes[order[0]],)
        #: What is bound, by the place of its config in the rule's list.
        self.bound: dict[int, Bound] = {}

    def find(self, met: list[int]) -> Bound | None:
        """What is bound for a call; None where there is none, or the rule abstains."""
        sizes = self._order(met)
        if sizes in self._known:
            return None
        values = self._rule.values(sizes)
        place = None if values is None else self._rule.config(values, self._within)
        return None if place is None else self.bound.get(place)


class Reader:
    """Takes the arguments of calls apart whose types are the same: words that decide the family, and sizes."""

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
    """What the rules of config files answer for one tuned function (a `Tuner`), as far as it is bound."""

    def __init__(self, tuner: Any) -> None:
        self._tuner, self._names, self._spec = tuner, tuner.names, tuner.options.spec
        tunable = tuner.tunable
        is_compiled = isinstance(tunable, TunableKernel) and not tunable.interpreted
        self._device = kernel.current_device_getter() if is_compiled else None
        self._readers: dict[tuple[type, ...], Reader] = {}
        self._known: tuple[Any, dict[str, frozenset[Any]]] = (None, {})
        self._state = self._now()

    def __len__(self) -> int:
        return sum(len(reader.families) for reader in list(self._readers.values()))

    def _now(self) -> tuple[int, int, int, str]:
        """What is equal as long as nothing was found, read anew or forgotten since a family was made, in one mode."""
        searches, cleared = self._tuner.chooser.state.searches, self._tuner.launcher.cleared
        return searches, lookup.generation(), cleared, env.current_mode()

    def answer(self, values: tuple[Any, ...]) -> Bound | None:
        """What is bound for a call that the launch table does not know and then does; None where only a key tells."""
        # no file is opened here, no key made, no text hashed and nothing compiled
        start = time.perf_counter()
        reader = self._readers.get(tuple(map(type, values)))
        if reader is None or self._state != self._now():
            return None
        try:
            words, sizes = reader.read(values)
            family = reader.families.get(words)
            bound = None if family is None else family.find(sizes)
        except Exception:  # a tensor without memory, or what cannot be hashed: the safe path decides
            return None
        if bound is None or family is None:
            return None
        self._tuner.launcher.bind(values, bound)
        self._tuner.misses += 1
        events.emit("miss", self._tuner.tunable.name, "", time.perf_counter() - start, family.where)
        return bound

    def add(self, call: Call, bound: Bound) -> None:
        """Take in what was bound for a call that a rule has answered, for others of its family."""
        options, chooser = self._tuner.options, self._tuner.chooser
        if chooser.narrows or self._spec.functions or self._spec.buckets or active.recorders or active.agreements:
            return  # each call is asked by the user's code, or told to somebody
        if self._state != self._now():
            self._readers.clear()
            self._state = self._now()
        key, values = chooser.key(call), tuple(call.arguments.values())
        found = shipped_rules.answering(key, options.within, env.current_mode() == "strict")
        steps = [self._step(name, value) for name, value in zip(self._names, values)]
        if found is None or None in steps or len(self) >= LIMIT or shipped_rules.count(key) > 1:
            return  # of several rules for a call the usual way says which is asked first
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
        """The sizes of all calls for which something is stored or shipped, by what is equal in them."""
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
        """How a value of this argument is read; None for one that only a key can tell."""
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
