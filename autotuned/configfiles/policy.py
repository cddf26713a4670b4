"""What of another context may serve: an action for each axis in which contexts differ, and the order of the rest."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from autotuned._startup import Frozen
from autotuned.errors import ConfigFileError, OptionError
from autotuned.typed_json import Json, canonical

if TYPE_CHECKING:
    from importlib.abc import Traversable  # for annotations only: it moves in Python 3.14

# From the laxest to the strictest: of several axes that differ the strictest action holds.
ACTIONS = {
    "accept": "served, with a line in the log at level info",
    "warn": "served, with one warning a kernel; not in mode `strict`",
    "retune": "not served; where a search runs within a budget, it measures the config first",
    "refuse": "not served, and no part of a search",
}
DEFAULTS = {  # older and newer: the Triton that the file was made with
    "source": "retune",
    "triton_patch": "accept",
    "triton_older": "warn",
    "triton_newer": "retune",
    "ptxas": "warn",
    "environment": "retune",
    "device": "retune",
}
RULES = "rules"  # beside the axes: what a rule may lose, a `Within`
_TRITON = ("triton_patch", "triton_older", "triton_newer")
Policy = Mapping[str, Any]


class Within(Frozen):
    """What `nearest=` and policies allow a rule to lose.

    Attributes:
        bound: 0.05 is 5% more time than the best config takes, which 95 of 100 calls are expected not to exceed.
        strict: In mode "strict" too.
        nearest: How far a neighbour may be where no rule serves, by argument.
    """

    bound: float
    strict: bool = False
    nearest: Mapping[str, float] = MappingProxyType({})


def within(bound: str | float, *, strict: bool = False, nearest: Mapping[str, float] | None = None) -> Within:
    """Let rules of config files serve calls that nobody tuned, for `nearest=` and for the policy of `register_configs`.

    Args:
        bound: The loss that is allowed: "5%" or 0.05. A rule serves where it promises that 95 of 100 calls lose no
            more, and abstains elsewhere.
        strict: In mode "strict" too.
        nearest: Where no rule serves, neighbours may: factors by argument, as `nearest=` takes them without rules.

    Raises:
        OptionError: The bound is no share above 0 and at most 1, or another argument is of a wrong type.
    """
    if not isinstance(strict, bool) or not isinstance(nearest or {}, Mapping):
        problem = f"expected strict=True or False and nearest= factors by argument, got {strict!r:.40}, {nearest!r:.40}"
        raise OptionError(f"within: {problem}.", option="within", problem=problem)
    return Within(share(bound, "within"), strict, dict(nearest or {}))


def share(given: Any, option: str) -> float:
    """A share as a number, from a number or from text such as "5%".

    Raises:
        OptionError: It is none above 0.
    """
    try:
        is_percent = isinstance(given, str) and given.rstrip().endswith("%")
        number = float(given.rstrip().removesuffix("%")) / 100 if is_percent else float(given)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number <= 1 or isinstance(given, bool):
        problem = f"expected a share above 0 and at most 1, such as '5%' or 0.05, got {given!r:.60}"
        raise OptionError(f"{option}: {problem}.", option=option, problem=problem)
    return number


class Folder(NamedTuple):
    """A folder of config files, and what of it serves in another context.

    Attributes:
        code: Whether code of the program said that its binaries may be loaded.
        package: The outermost package that it lies in, of which kernels may take binaries from it; "" for none.
    """

    path: Traversable
    policy: Policy
    code: bool = False
    package: str = ""

    def may_give_code(self, module: str) -> bool:
        """Whether a kernel of a module may be loaded from it: config files only choose, and binaries are code."""
        return self.code or (self.package != "" and module.partition(".")[0] == self.package)


def policy(given: str | Mapping[str, Any] | None) -> Policy:
    """The action of each axis.

    Args:
        given: One action for all axes, or actions by axis, where `triton` stands for the three `triton_` axes; what
            is not named has its default.

    Raises:
        ConfigFileError: An axis or an action is none.
    """
    if given is None:
        return DEFAULTS
    wanted: dict[str, Any] = dict.fromkeys(DEFAULTS, given) if isinstance(given, str) else dict(given)
    rules = wanted.pop(RULES, None)
    if rules is not None and not isinstance(rules, Within):
        rules = within(rules)
    if "triton" in wanted:
        wanted = {**dict.fromkeys(_TRITON, wanted.pop("triton")), **wanted}
    for axis, action in wanted.items():
        if axis not in DEFAULTS:
            axes = ", ".join(("triton", *DEFAULTS, RULES))
            raise ConfigFileError(f"policy: expected axes among {axes}, got {axis!r}.", path="")
        if action not in ACTIONS:
            raise ConfigFileError(f"policy: {axis}: expected one of {', '.join(ACTIONS)}, got {action!r:.60}.", path="")
    return {**DEFAULTS, **wanted, **({} if rules is None else {RULES: rules})}


class Step(NamedTuple):
    """One axis in which two contexts differ."""

    axis: str
    note: str
    distance: tuple[float, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What is to be done with a choice of another context.

    Attributes:
        action: The strictest of the axes that differ; "accept" where none does.
        notes: What differs, theirs before ours, for people.
        rank: The lower, the better it serves; of one policy only.
    """

    action: str
    notes: tuple[str, ...]
    rank: tuple[Any, ...]

    @property
    def words(self) -> str:
        """What differs, in a line."""
        return "; ".join(self.notes)


def judge(ours: Json, theirs: Json, actions: Policy) -> Verdict | None:
    """What a policy says of a choice that was made in the context `theirs`; None if it says nothing to ours.

    Nothing are those of another architecture, of another `version=`, and those that differ in what is no axis.
    """
    steps = list(_steps(_plain(ours), _plain(theirs)))
    if None in steps:
        return None
    found = {step.axis: step for step in steps if step is not None}
    action = max((actions[axis] for axis in found), key=list(ACTIONS).index, default="accept")
    notes = [step.note for step in found.values()]
    if "environment" not in found and not _same(ours.get("environment"), theirs.get("environment")):
        notes.append(_note("environment", ours["environment"], theirs["environment"]) + ", which means the same")
    return Verdict(
        action,
        tuple(notes),
        (
            list(ACTIONS).index(action),
            *((axis in found, found[axis].distance if axis in found else ()) for axis in _RANKED),
        ),
    )


# Of two contexts the one is nearer that differs in a later axis of these.
_RANKED = ("source", "device", "environment", "triton_newer", "triton_older", "triton_patch", "ptxas")


# What a variable says that Triton does without it too, and the version from which on it does not. Who sets it to keep
# Triton 3.9 from warning has the binaries of those who do not.
_AS_UNSET = {"TRITON_DEFAULT_FP_FUSION": ("true", (3, 10))}


def _plain(context: Json) -> Json:
    """A context without variables that change nothing."""
    environment, triton = context.get("environment"), context.get("triton")
    if not environment or not isinstance(environment, dict) or not isinstance(triton, str):
        return context
    return {**context, "environment": that_change_code(environment, triton)}


def that_change_code(environment: Mapping[str, Json], triton: str) -> dict[str, Json]:
    """The variables of an environment that change what this version of Triton compiles."""
    version = version_order(triton)[0]
    said = {name for name, (value, until) in _AS_UNSET.items() if version < until and environment.get(name) == value}
    return {name: value for name, value in environment.items() if name not in said}


def _steps(ours: Json, theirs: Json) -> Iterator[Step | None]:
    differing = {name for name in ours.keys() | theirs.keys() if not _same(ours.get(name), theirs.get(name))}
    if "device" in differing:
        yield _device(ours["device"], theirs["device"])
    if differing & {"triton", "triton_key"}:
        yield _version("Triton", ours.get("triton"), theirs.get("triton"))
        differing.discard("ptxas")  # which comes with Triton
    if "distributions" in differing:
        yield _distributions(ours.get("distributions"), theirs.get("distributions"))
    for axis in ("source", "ptxas", "environment"):
        if axis in differing:
            yield Step(axis, _note(axis, ours.get(axis), theirs.get(axis)))
    if differing - {"device", "triton", "triton_key", "distributions", "source", "ptxas", "environment"}:
        yield None


def _same(one: Json, other: Json) -> bool:
    # Most of a context is texts, and most of them are equal: 25 us less a group of a file (tests/bench/files.py).
    if one is other or (type(one) is str and one == other):
        return True
    return canonical(one) == canonical(other)


def _note(axis: str, ours: Json, theirs: Json) -> str:
    if axis == "source":
        return "another source of the kernel"
    return f"{axis} {_words(theirs)}, here {_words(ours)}"


def _words(value: Json) -> str:
    return value if isinstance(value, str) else canonical(value)


def _device(ours: Json, theirs: Json) -> Step | None:
    if not isinstance(theirs, dict) or any(ours[part] != theirs.get(part) for part in ("kind", "arch")):
        return None
    sizes = max(ours["sm_count"], 1), max(theirs["sm_count"], 1)
    mig = f" MIG {theirs['mig']}" if theirs["mig"] else ""
    return Step("device", f"{theirs['name']}{mig}, here {ours['name']}", (abs(math.log2(sizes[0] / sizes[1])),))


def _distributions(ours: Json, theirs: Json) -> Step | None:
    """The gravest step among the versions that a plain callable names; None where it names others."""
    if not isinstance(ours, dict) or not isinstance(theirs, dict) or ours.keys() != theirs.keys():
        return None
    steps = [_version(name, ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]]
    if None in steps:
        return None
    worst = max((step for step in steps if step), key=lambda step: (_TRITON.index(step.axis), step.distance))
    return worst._replace(note="; ".join(step.note for step in steps if step))


def _version(name: str, ours: Json, theirs: Json) -> Step | None:
    if not isinstance(ours, str) or not isinstance(theirs, str):
        return None
    mine, other = version_order(ours), version_order(theirs)
    build = " of another build" if ours == theirs else ""
    note = f"{name} {theirs}{build}, here {ours}"
    back = tuple(-float(part) for part in other[0])
    if mine[0][:2] == other[0][:2]:
        return Step("triton_patch", note, (0.0, *back) if other <= mine else (1.0, *map(float, other[0])))
    if other < mine:
        return Step("triton_older", f"older {note}", back)
    return Step("triton_newer", f"newer {note}", tuple(map(float, other[0])))


def version_order(text: str) -> tuple[tuple[int, int, int, int], int, str]:
    """A version as something to compare: 3.10 comes after 3.9, 3.4.0a1 before 3.4.0, 3.4.0+git1 after it."""
    match = re.match(r"v?(\d+(?:\.\d+)*)(.*)", text)
    if match is None:
        return (1 << 30, 0, 0, 0), 0, text  # unknown ones count as newer
    # Nine digits of each: a file may say anything, and more would be beyond what a float holds.
    numbers = ([int(part[:9]) for part in match[1].split(".", 4)[:4]] + [0] * 4)[:4]
    rest = match[2]
    stage = 0 if not rest else -1 if re.match(r"[.\-_]?(a|b|c|rc|dev|pre|alpha|beta)", rest) else 1
    return (numbers[0], numbers[1], numbers[2], numbers[3]), stage, rest
