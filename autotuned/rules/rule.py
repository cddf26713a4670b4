"""A rule: a small tree from the sizes of a call to a config, with its loss on left-out calls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from autotuned._startup import Frozen
from autotuned.key.sizes import shape_of
from autotuned.rules.formula import Formula, Predictor, tiles_of, tiles_words
from autotuned.store import record
from autotuned.store.conditions import Conditions
from autotuned.typed_json import Json, canonical, typed, wrong

SIZE = "size"  # in a rule's call, `{"size": "M"}` stands for any size, the same wherever it occurs
FASTEST = "fastest"  # a leaf's config if the rule's formulas choose
Values = tuple[int, ...]  # a call's sizes, in the order of `Rule.sizes`


class Split(Frozen):
    """A test on sizes: whether a number computed from them is at most a limit, or a multiple of it.

    Attributes:
        names: The sizes to multiply. `divides`: whether to test for multiples of `number`, not for at most `number`.
        tiles: Sizes of tiles that divide the sizes, rounded up, so that the product counts tiles. Empty if all are 1.
        processors: If not 0, the test is on how full the waves of these tiles are, in percent, with one tile per
            processor.
    """

    names: tuple[str, ...]
    divides: bool
    number: int
    tiles: tuple[int, ...] = ()
    processors: int = 0

    @property
    def subject(self) -> str:
        """The tested number as text."""
        product = tiles_words(zip(self.names, self.tiles or (1,) * len(self.names)))
        return f"fill({product}, {self.processors})" if self.processors else product

    def __str__(self) -> str:
        return f"{self.subject} {self._words('% {} == 0', '<= {}')}"

    def negated(self) -> str:
        """The negated test as text."""
        return f"{self.subject} {self._words('% {} != 0', '> {}')}"

    def _words(self, divides: str, limits: str) -> str:
        return (divides if self.divides else limits).format(self.number) + ("%" if self.processors else "")

    def holds(self, sizes: Iterable[int]) -> bool:
        """Whether it holds for the values of its sizes."""
        value = number_of(sizes, self.tiles, self.processors)
        return value % self.number == 0 if self.divides else value <= self.number


def number_of(sizes: Iterable[int], tiles: Iterable[int], processors: int) -> int:
    """The number that a split tests."""
    product = tiles_of(sizes, tiles)
    return 100 * product // (processors * max(1, -(-product // processors))) if processors else product


class Loss(Frozen):
    """How much slower a leaf's config was than the best, over left-out calls.

    Attributes:
        calls: Their number. `mean`, `worst`: 0.02 is 2% more time.
        bound: The loss that 95 of 100 calls are expected not to exceed.
    """

    calls: int
    mean: float
    worst: float
    bound: float


class Tree(Frozen):
    """A rule's tree, or a part of it: a `Leaf` or a `Node`."""


class Leaf(Tree):
    """The end of a path through a tree.

    Attributes:
        config: Its index in the rule's list; None for the fastest by the rule's formulas.
        calls: The number of tuned calls that end here.
        along: The loss if only the size `Rule.along` is new. `across`: if the other sizes are new too. None for too
            few calls.
    """

    config: int | None
    calls: int
    along: Loss | None = None
    across: Loss | None = None


class Node(Tree):
    """A split, with the trees for calls where it holds and where it does not."""

    split: Split
    then: Tree
    other: Tree


class Answer(Frozen):
    """A rule's answer for a call.

    Attributes:
        config: Its index in the rule's list; None for a call outside the tuned sizes. `bound`: on the loss; None if
            unknown.
        words: The path through the tree and the bound, or why there is none.
    """

    config: int | None
    bound: float | None
    words: str


Spans = tuple[tuple[int, int], ...]  # ranges of sizes, both ends included


class TunedSizes(Frozen):
    """A tuned combination of sizes.

    Attributes:
        sizes: Values of all sizes but `Rule.along`, in the order of `Rule.sizes`.
        along: The spans of `Rule.along` that the rule serves with them. Values in the gaps are further from tuned ones
            than left-out calls were, so their loss is unknown.
    """

    sizes: Values
    along: Spans


class Rule(Frozen):
    """Chooses configs for calls that differ only in their sizes.

    Attributes:
        call: The call part of a key, with `{"size": name}` for each size that differs.
        sizes: The smallest and largest value that it covers, by name; `Values` are in this order.
        along: The size with the most tuned values.
        tuned: The tuned combinations of the other sizes, each with its spans.
        configs: Canonical forms, indexed by the leaves.
        conditions: Those of all measurements.
        multiples: A divisor of all tuned values of a size, by name; other values are not served.
        times: Formulas for the times of the configs of which the fastest may be chosen.
    """

    call: Json
    sizes: Mapping[str, tuple[int, int]]
    along: str
    tuned: tuple[TunedSizes, ...]
    configs: tuple[Mapping[str, Json], ...]
    conditions: Conditions
    tree: Tree
    multiples: Mapping[str, int] = MappingProxyType({})
    times: tuple[Formula, ...] = ()

    def __hash__(self) -> int:
        return hash(self.rest)

    @cached_property
    def rest(self) -> str:
        """The part that all its calls share, as `shape_of` returns it."""
        return shape_of(filled(self.call, dict.fromkeys(self.sizes, 1))).rest

    @cached_property
    def name(self) -> str:
        """Its name within a file and context: its call as text."""
        return canonical(self.call)

    @cached_property
    def identities(self) -> list[str]:
        """The identities of the configs."""
        return list(map(record.identity_of, self.configs))

    @cached_property
    def _places(self) -> list[int | None]:
        """For each size of a call in order, its index in `sizes`, or None for a fixed one."""
        names = list(self.sizes)
        return [names.index(mark) if isinstance(mark, str) else None for mark in self._marks]

    @cached_property
    def _marks(self) -> list[str | int]:
        return list(marks(self.call))

    def values(self, sizes: Sequence[int]) -> Values | None:
        """The values of a call with this rest; None if a fixed size differs, or one size has two values.

        Args:
            sizes: All sizes of the call, in the order of `shape_of`.
        """
        found: list[int | None] = [None] * len(self.sizes)
        for size, place, mark in zip(sizes, self._places, self._marks):
            if place is None:
                if size != mark:
                    return None
            elif found[place] is None:
                found[place] = size
            elif found[place] != size:
                return None
        return tuple(found)  # type: ignore[arg-type]  # `text.load_rule` refuses names that the call lacks

    @cached_property
    def _ranges(self) -> list[tuple[int, int]]:
        return list(self.sizes.values())

    @cached_property
    def _multiples(self) -> list[tuple[int, int]]:
        return [(list(self.sizes).index(name), number) for name, number in self.multiples.items()]

    @cached_property
    def _at(self) -> int:
        return list(self.sizes).index(self.along)

    @cached_property
    def _known(self) -> dict[Values, Spans]:
        return {one.sizes: one.along for one in self.tuned}

    @cached_property
    def _spans(self) -> Spans:
        return tuple(sorted({span for one in self.tuned for span in one.along}))

    @cached_property
    def _compiled(self) -> Any:
        names = list(self.sizes)

        def compiled(tree: Tree) -> Any:
            if not isinstance(tree, Node):
                return tree
            return tuple(map(names.index, tree.split.names)), tree.split, compiled(tree.then), compiled(tree.other)

        return compiled(self.tree)

    def leaf(self, values: Values) -> Leaf:
        """The leaf of a call, even outside the tuned sizes."""
        node = self._compiled
        while type(node) is tuple:
            places, split, then, other = node
            node = then if split.holds([values[place] for place in places]) else other
        return node  # type: ignore[no-any-return]

    def loss(self, leaf: Leaf, values: Values) -> Loss | None:
        """The loss of a call in its leaf; None if unknown, or for a call outside the tuned sizes."""
        for value, (low, high) in zip(values, self._ranges):
            if not low <= value <= high:
                return None
        if any(values[place] % number for place, number in self._multiples):
            return None
        at = self._at
        if _within(values[at], self._known.get((*values[:at], *values[at + 1 :]), ())):
            return leaf.along
        return leaf.across if _within(values[at], self._spans) else None

    def config(self, values: Values, within: float) -> int | None:
        """The index of a call's config if its loss is bounded by `within`; None if the rule abstains."""
        leaf = self.leaf(values)
        loss = self.loss(leaf, values)
        if loss is None or loss.bound > within:
            return None
        return self.fastest(values)[0] if leaf.config is None else leaf.config

    def fastest(self, values: Values) -> tuple[int | None, float]:
        """The config with the least predicted time, and that time in us; None and inf without a prediction."""
        config, us = self._predictor.fastest(values)
        return (config if us < math.inf else None), us

    @cached_property
    def _predictor(self) -> Predictor:
        return Predictor(list(self.sizes), self.times)

    def answer(self, values: Values, within: float) -> Answer:
        """The answer for a call, with the reason in words."""
        given = dict(zip(self.sizes, values))
        for name, (low, high) in self.sizes.items():
            if not low <= given[name] <= high:
                return Answer(None, None, f"{name}={given[name]} is outside the tuned range {low} to {high}")
        for name, number in self.multiples.items():
            if given[name] % number:
                return Answer(None, None, f"{name}={given[name]} is not a multiple of {number}, as tuned values are")
        if not _within(given[self.along], self._spans):
            spans = ", ".join(f"{low} to {high}" for low, high in self._spans)
            return Answer(None, None, f"{self.along}={given[self.along]} is in a gap between tuned values: {spans}")
        leaf = self.leaf(values)
        path = ", ".join(_path(self.tree, given)) or "any sizes"
        config, loss = leaf.config, self.loss(leaf, values)
        if config is None:
            config, us = self.fastest(values)
            path += f", the fastest by its formulas ({us:.3g} us)"
        if loss is None or config is None:
            return Answer(config, None, f"{path}: too few calls to bound the loss")
        allowed = "" if loss.bound <= within else f", above the allowed {within:.1%}"
        said = f"at most {loss.bound:.1%} of loss in 95 of 100 calls{allowed}"
        return Answer(config, loss.bound, f"{path}: {said} ({loss.calls} left-out calls: {loss.mean:.1%} on average)")

    @property
    def leaves(self) -> list[Leaf]:
        """All leaves in file order."""
        return list(leaves(self.tree))

    @property
    def calls(self) -> int:
        """The number of calls that it was fitted to."""
        return sum(leaf.calls for leaf in self.leaves)

    @property
    def words(self) -> str:
        """The ranges of its sizes as text."""
        return ", ".join(f"{name} {low} to {high}" for name, (low, high) in self.sizes.items())

    def to_json(self) -> dict[str, Json]:
        """As JSON for a config file."""
        return {
            "call": self.call,
            "sizes": {name: list(limits) for name, limits in self.sizes.items()},
            "along": self.along,
            "multiples": dict(self.multiples),
            "tuned": [self._tuned_json(one) for one in self.tuned],
            "configs": list(map(dict, self.configs)),
            "conditions": self.conditions.to_json(),
            **({"times": [{"config": one.config, "tiles": dict(one.tiles), "us": str(one)} for one in self.times]}
               if self.times else {}),
            "tree": _tree_json(self.tree),
        }  # fmt: skip

    def _tuned_json(self, one: TunedSizes) -> dict[str, Json]:
        others = [name for name in self.sizes if name != self.along]
        return {"sizes": dict(zip(others, one.sizes)), "along": [list(span) for span in one.along]}


def _within(value: int, spans: Spans) -> bool:
    return any(low <= value <= high for low, high in spans)


def leaves(tree: Tree) -> Iterator[Leaf]:
    """The leaves of a tree in file order."""
    if isinstance(tree, Leaf):
        yield tree
    elif isinstance(tree, Node):
        yield from leaves(tree.then)
        yield from leaves(tree.other)


def _path(tree: Tree, given: Mapping[str, int]) -> Iterator[str]:
    while isinstance(tree, Node):
        holds = tree.split.holds([given[name] for name in tree.split.names])
        yield str(tree.split) if holds else tree.split.negated()
        tree = tree.then if holds else tree.other


# -- as JSON ---------------------------------------------------------------------------------------------------------


def _tree_json(tree: Tree) -> dict[str, Json]:
    if isinstance(tree, Node):
        return {"if": str(tree.split), "then": _tree_json(tree.then), "else": _tree_json(tree.other)}
    assert isinstance(tree, Leaf)
    losses = {name: loss and loss.fields() for name, loss in (("along", tree.along), ("across", tree.across))}
    return {"config": FASTEST if tree.config is None else tree.config, "calls": tree.calls, **losses}


def marks(call: Json) -> Iterator[str | int]:
    """The sizes of a rule's call in the order of `shape_of`: names, or numbers if fixed."""
    for _, value in sorted(typed(call.get("values", {}), dict, "values").items()):
        mark = value if type(value) is int else _name(value)
        if mark is not None:
            yield mark
    for _, tensor in sorted(typed(call.get("tensors", {}), dict, "tensors").items()):
        for size in typed(typed(tensor, dict, "tensor").get("shape", []), list, "shape"):
            mark = size if type(size) is int else _name(size)
            if mark is None:
                raise wrong("shape", "sizes, or their names", size)
            yield mark


def _name(value: Json) -> str | None:
    found = value.get(SIZE) if isinstance(value, dict) and value.keys() == {SIZE} else None
    return found if isinstance(found, str) else None


def filled(call: Json, sizes: Mapping[str, int]) -> Json:
    """A rule's call with its names replaced by sizes: the call part of a key."""

    def fill(value: Json) -> Json:
        name = _name(value)
        return value if name is None else sizes.get(name, value)

    tensors = {
        path: {**tensor, "shape": list(map(fill, tensor["shape"]))} if "shape" in tensor else tensor
        for path, tensor in call.get("tensors", {}).items()
    }
    return {**call, "values": {path: fill(value) for path, value in call.get("values", {}).items()}, "tensors": tensors}


def pattern_of(call: Json, names: Mapping[str, str]) -> Json:
    """The call of a rule: the call part of a key with names in place of sizes.

    Args:
        names: By path, as in `shape_of`.
    """

    def mark(path: str, size: Json) -> Json:
        return {SIZE: names[path]} if path in names else size

    tensors = {
        path: {**tensor, "shape": [mark(f"{path}.shape[{dim}]", size) for dim, size in enumerate(tensor["shape"])]}
        if "shape" in tensor
        else dict(tensor)
        for path, tensor in call.get("tensors", {}).items()
    }
    values = {path: mark(path, value) for path, value in call.get("values", {}).items()}
    return {**call, "values": values, "tensors": tensors}
