"""A rule's text in a config file: written for git diffs, and fully checked when read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autotuned.errors import RecordError
from autotuned.key.key import check_call
from autotuned.rules.formula import Formula, Term
from autotuned.rules.rule import FASTEST, Leaf, Loss, Node, Rule, Split, Tree, TunedSizes, filled, marks
from autotuned.store import conditions, record
from autotuned.typed_json import INT64_MAX, Json, digest, integer, integers, is_finite, named, typed, wrong

DIGITS = 40  # most digits of a number in a split: a product of two sizes has up to 38
DEPTH = 32  # most levels of a tree; fitted trees have four or five
_TERM = re.compile(r"(?P<name>.+?)(?:/(?P<tile>[1-9]\d{0,17}))?")
_TERMS = r"(?P<{}>\S+(?: \* \S+)*)"
_TEST = re.compile(
    rf"fill\({_TERMS.format('filled')}, (?P<processors>[1-9]\d{{0,8}})\) <= (?P<percent>\d{{1,3}})%|"
    rf"{_TERMS.format('terms')} (?:<= (?P<limit>-?\d+)|% (?P<divisor>[1-9]\d*) == 0)"
)
_PART = re.compile(
    r"(?P<number>\d{1,9}(?:\.\d{1,9})?(?:e[-+]\d{1,2})?)(?P<names>(?: \* \S+){0,8}?)"
    r"(?: \* waves\((?P<processors>[1-9]\d{0,8})\))?"
)


def lines(rule: Rule, context: Json) -> list[str]:
    """A rule's lines in a config file: one for each config and each node of the tree, so that git shows changes.

    Git may mix lines of two rules, so that leaves index the wrong configs: the digest detects that.
    """
    head = {"context": context, **rule.to_json()}
    head = {"context": context, "digest": _digest(head), **head}
    listed, tree = {name: head.pop(name) for name in ("configs", "times") if name in head}, head.pop("tree")
    dumped = [f'   "{name}": {json.dumps(value, sort_keys=True)},' for name, value in head.items()]
    dumped[0] = "  {" + dumped[0].lstrip()
    for name, some in listed.items():
        forms = ",\n".join(f"    {json.dumps(one, sort_keys=True)}" for one in some)
        dumped += [f'   "{name}": [', f"{forms}],"]
    return [*dumped, '   "tree":', *_tree_lines(tree, "    "), "  }"]


def _digest(data: Mapping[str, Json]) -> str:
    """The digest of a rule's JSON."""
    return digest({name: value for name, value in data.items() if name != "digest"})[:16]


def _tree_lines(tree: dict[str, Json], indent: str) -> list[str]:
    if "if" not in tree:
        return [indent + json.dumps(tree)]
    then, other = (_tree_lines(tree[name], indent + " ") for name in ("then", "else"))
    return [
        f'{indent}{{"if": {json.dumps(tree["if"])}, "then":', *then[:-1], f"{then[-1]},",
        f'{indent}"else":', *other[:-1], f"{other[-1]}}}",
    ]  # fmt: skip


def split_of(text: Json, where: str) -> Split:
    """Parse a split.

    Raises:
        RecordError: The text is not a split.
    """
    found = _TEST.fullmatch(text) if isinstance(text, str) else None
    number = found and (found["percent"] or found["limit"] or found["divisor"])
    if not found or not number or len(number) > DIGITS:
        says = "a split such as 'M <= 96', 'M/128 * N/256 <= 132', 'fill(M/128 * N/256, 132) <= 75%' or 'K % 64 == 0'"
        raise wrong(where, says, text)
    terms = [_TERM.fullmatch(term) for term in (found["filled"] or found["terms"]).split(" * ")]
    names, tiles = zip(*((term["name"], int(term["tile"] or 1)) for term in terms if term))
    of_tiles = tiles if max(tiles) > 1 else ()
    return Split(names, found["divisor"] is not None, int(number), of_tiles, int(found["processors"] or 0))


def load_rule(data: Json, where: str) -> tuple[Json, Rule]:
    """Load a rule's JSON as its context and the rule.

    Raises:
        RecordError: A field is missing, unknown or invalid, or the digest does not match.
    """
    names = {"context", "call", "sizes", "along", "multiples", "tuned", "configs", "conditions", "tree"}
    fields = named(data, where, names | ({"digest", "times"} & typed(data, dict, where).keys()))
    context = typed(fields["context"], dict, f"{where}.context")
    sizes = _sizes(fields["sizes"], f"{where}.sizes")
    call = _call(fields["call"], sizes, f"{where}.call")
    forms = typed(fields["configs"], list, f"{where}.configs")
    configs = tuple(record.check_config(form, f"{where}.configs[{i}]") for i, form in enumerate(forms))
    along = typed(fields["along"], str, f"{where}.along")
    if along not in sizes:
        raise wrong(f"{where}.along", f"one of the sizes {', '.join(sizes)}", along)
    listed = typed(fields["tuned"], list, f"{where}.tuned")
    others = [name for name in sizes if name != along]
    tuned = tuple(_tuned(one, others, f"{where}.tuned[{i}]") for i, one in enumerate(listed))
    formulas = typed(fields.get("times", []), list, f"{where}.times")
    loader = _Loader(sizes, len(configs), bool(formulas))
    times = tuple(loader.formula(one, f"{where}.times[{i}]") for i, one in enumerate(formulas))
    tree = loader.tree(fields["tree"], f"{where}.tree")
    under = conditions.load(fields["conditions"], f"{where}.conditions")
    multiples = typed(fields["multiples"], dict, f"{where}.multiples")
    for name, number in multiples.items():
        if name not in sizes:
            raise wrong(f"{where}.multiples", f"sizes among {', '.join(sizes)}", name)
        integer(number, f"{where}.multiples.{name}", 1)
    if fields.get("digest", _digest(fields)) != _digest(fields):
        raise wrong(f"{where}.digest", f"{_digest(fields)}, the digest of its lines", fields["digest"])
    return context, Rule(call, sizes, along, tuned, configs, under, tree, multiples, times)


def _tuned(data: Json, others: Sequence[str], where: str) -> TunedSizes:
    fields = named(data, where, {"sizes", "along"})
    sizes = named(fields["sizes"], f"{where}.sizes", others)
    spans = [_span(one, f"{where}.along[{i}]") for i, one in enumerate(typed(fields["along"], list, f"{where}.along"))]
    values = (integer(sizes[name], f"{where}.sizes.{name}", -INT64_MAX) for name in others)
    return TunedSizes(tuple(values), tuple(spans))


def _span(data: Json, where: str) -> tuple[int, int]:
    numbers = integers(data, where, -INT64_MAX)
    if len(numbers) != 2 or numbers[0] > numbers[1]:
        raise wrong(where, "the least and the largest size", data)
    return numbers[0], numbers[1]


def _sizes(data: Json, where: str) -> dict[str, tuple[int, int]]:
    found = {name: _span(limits, f"{where}.{name}") for name, limits in typed(data, dict, where).items()}
    if not found:
        raise wrong(where, "sizes by name", data)
    return found


def _call(data: Json, sizes: Mapping[str, Any], where: str) -> Json:
    call = typed(data, dict, where)
    marked = {mark for mark in marks(call) if isinstance(mark, str)}
    if marked != sizes.keys():
        raise wrong(where, f"the sizes {', '.join(sizes)} in it, each as {{'size': name}}", sorted(marked))
    check_call(filled(call, dict.fromkeys(sizes, 1)), where)
    return call


def _term(text: str, where: str) -> Term:
    found = _PART.fullmatch(text)
    if found is None:
        raise wrong(where, "terms such as '1.5', '0.002 * K' and '3e-05 * K * waves(132)', joined by ' + '", text)
    names = tuple(found["names"].split(" * ")[1:])
    return Term(float(found["number"]), names, int(found["processors"] or 0))


class _Loader:
    """Checks the tree and the formulas of a rule."""

    def __init__(self, sizes: Iterable[str], configs: int, predicts: bool) -> None:
        self._sizes, self._configs, self._predicts = set(sizes), configs, predicts

    def _named(self, names: Iterable[str], where: str) -> None:
        for name in names:
            if name not in self._sizes:
                raise wrong(where, f"sizes among {', '.join(sorted(self._sizes))}", name)

    def _config(self, data: Json, where: str) -> int:
        config = integer(data, where)
        if config >= self._configs:
            raise wrong(where, f"an index, from 0, into the list of {self._configs} configs", config)
        return config

    def formula(self, data: Json, where: str) -> Formula:
        fields = named(data, where, {"config", "tiles", "us"})
        tiles = typed(fields["tiles"], dict, f"{where}.tiles")
        self._named(tiles, f"{where}.tiles")
        sizes = {name: integer(tile, f"{where}.tiles.{name}", 1) for name, tile in tiles.items()}
        terms = tuple(_term(one, f"{where}.us") for one in typed(fields["us"], str, f"{where}.us").split(" + "))
        self._named((name for term in terms for name in term.names), f"{where}.us")
        return Formula(self._config(fields["config"], f"{where}.config"), sizes, terms)

    def tree(self, data: Json, where: str, depth: int = 0) -> Tree:
        if depth > DEPTH:
            raise RecordError(f"{where}: expected at most {DEPTH} levels, got more.", where=where)
        if "if" not in typed(data, dict, where):
            return self._leaf(data, where)
        fields = named(data, where, {"if", "then", "else"})
        test = split_of(fields["if"], f"{where}.if")
        self._named(test.names, f"{where}.if")
        then, other = (self.tree(fields[name], f"{where}.{name}", depth + 1) for name in ("then", "else"))
        return Node(test, then, other)

    def _leaf(self, data: Json, where: str) -> Leaf:
        fields = named(data, where, {"config", "calls", "along", "across"})
        predicts = self._predicts and fields["config"] == FASTEST
        config = None if predicts else self._config(fields["config"], f"{where}.config")
        losses = [_loss(fields[name], f"{where}.{name}") for name in ("along", "across")]
        return Leaf(config, integer(fields["calls"], f"{where}.calls"), *losses)


def _loss(data: Json, where: str) -> Loss | None:
    if data is None:
        return None
    fields = named(data, where, {"calls", "mean", "worst", "bound"})
    for name in ("mean", "worst", "bound"):
        if not is_finite(fields[name]) or fields[name] < 0:
            raise wrong(f"{where}.{name}", "a loss of 0 or more, such as 0.02 for 2%", fields[name])
    return Loss(integer(fields["calls"], f"{where}.calls"), fields["mean"], fields["worst"], fields["bound"])
