"""Which choices of another context may serve: an action per axis that differs, and a ranking."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from autotuned._startup import Frozen
from autotuned.errors import ConfigFileError, OptionError, refused
from autotuned.typed_json import Json, canonical

if TYPE_CHECKING:
    from importlib.abc import Traversable  # for annotations only: it moves in Python 3.14

# From laxest to strictest: if several axes differ, the strictest action applies.
ACTIONS = {
    "accept": "served, with a line in the log at level info",
    "warn": "served, with one warning a kernel; not in mode `strict`",
    "retune": "not served; where a search runs within a budget, it measures the config first",
    "refuse": "not served, and no part of a search",
}
DEFAULTS = {  # older and newer: the Triton that wrote the file
    "source": "retune",
    "triton_patch": "accept",
    "triton_older": "warn",
    "triton_newer": "retune",
    "ptxas": "warn",
    "environment": "retune",
    "device": "retune",
}
RULES = "rules"  # not an axis: what a rule may lose, a `Within`
_TRITON = ("triton_patch", "triton_older", "triton_newer")
Policy = Mapping[str, Any]


class Within(Frozen):
    """What `nearest=` and policies allow a rule to lose."""

    bound: float  # 0.05 is 5% more time than the best config, not exceeded by 95 of 100 calls
    strict: bool = False  # in mode "strict" too
    nearest: Mapping[str, float] = MappingProxyType({})  # how far a neighbour may be if no rule serves, by argument


def within(bound: str | float, *, strict: bool = False, nearest: Mapping[str, float] | None = None) -> Within:
    """Let rules of config files serve untuned calls; for `nearest=` and the policy of `register_configs`.

    Args:
        bound: The allowed loss, "5%" or 0.05. A rule serves if it promises that 95 of 100 calls lose no more, and
            abstains elsewhere.
        strict: Also in mode "strict".
        nearest: Factors by argument within which a neighbour may serve if no rule does.

    Raises:
        OptionError: The bound is not above 0 and at most 1, or another argument is of a wrong type.
    """
    if not isinstance(strict, bool) or not isinstance(nearest or {}, Mapping):
        problem = "no truth value, or no factors by argument"
        raise OptionError(
            f"within: expected strict=True or False, and nearest= a dict of factors, got {strict!r:.40} and "
            f"{nearest!r:.40}.", option="within", problem=problem,
        )  # fmt: skip
    return Within(share(bound, "within"), strict, dict(nearest or {}))


def share(given: Any, option: str) -> float:
    """Parse a share above 0 and at most 1, given as a number or as text such as "5%", else OptionError."""
    try:
        is_percent = isinstance(given, str) and given.rstrip().endswith("%")
        number = float(given.rstrip().removesuffix("%")) / 100 if is_percent else float(given)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number <= 1 or isinstance(given, bool):
        raise refused(option, f"expected a share above 0 and at most 1, such as '5%' or 0.05, got {given!r:.60}")
    return number


class Folder(NamedTuple):
    """A folder of config files and its policy."""

    path: Traversable
    policy: Policy
    code: bool = False  # whether the program allowed loading its binaries
    package: str = ""  # the top-level package it lies in, whose kernels may load its binaries; "" for none

    def may_give_code(self, module: str) -> bool:
        """Whether kernels of a module may load binaries from it; unlike config files, binaries are code."""
        return self.code or (self.package != "" and module.partition(".")[0] == self.package)


def policy(given: str | Mapping[str, Any] | None) -> Policy:
    """The action of each axis.

    Args:
        given: One action for all axes, or actions by axis, where `triton` stands for the three `triton_` axes; axes not
            named keep their default.

    Raises:
        ConfigFileError: An unknown axis or action.
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


class AxisStep(NamedTuple):
    """One axis in which two contexts differ."""

    axis: str
    note: str
    distance: tuple[float, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The decision on a choice of another context."""

    action: str  # the strictest of the axes that differ; "accept" if none does
    notes: tuple[str, ...]  # what differs, theirs before ours, for people
    rank: tuple[Any, ...]  # lower is better; comparable within one policy only

    @property
    def words(self) -> str:
        """What differs, in a line."""
        return "; ".join(self.notes)

    def serves(self, strict: bool) -> bool:
        """Whether the choice may serve, in mode "strict" or another."""
        return self.action == "accept" or (self.action == "warn" and not strict)


def judge(ours: Json, theirs: Json, actions: Policy) -> Verdict | None:
    """A policy's verdict on a choice made in the context `theirs`; None for differences that no policy allows."""
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


# Contexts that differ only in a later axis are nearer.
_RANKED = ("source", "device", "environment", "triton_newer", "triton_older", "triton_patch", "ptxas")


# Values that equal Triton's default, and the first version in which they do not. Setting one, for example to silence a
# warning of Triton 3.9, does not change the binaries.
_AS_UNSET = {"TRITON_DEFAULT_FP_FUSION": ("true", (3, 10))}


def _plain(context: Json) -> Json:
    environment, triton = context.get("environment"), context.get("triton")
    if not environment or not isinstance(environment, dict) or not isinstance(triton, str):
        return context
    return {**context, "environment": that_change_code(environment, triton)}


def that_change_code(environment: Mapping[str, Json], triton: str) -> dict[str, Json]:
    """The environment variables that change what this version of Triton compiles."""
    version = version_order(triton)[0]
    said = {name for name, (value, until) in _AS_UNSET.items() if version < until and environment.get(name) == value}
    return {name: value for name, value in environment.items() if name not in said}


def _steps(ours: Json, theirs: Json) -> Iterator[AxisStep | None]:
    differing = {name for name in ours.keys() | theirs.keys() if not _same(ours.get(name), theirs.get(name))}
    if "device" in differing:
        yield _device(ours["device"], theirs["device"])
    if differing & {"triton", "triton_key"}:
        yield _version("Triton", ours.get("triton"), theirs.get("triton"))
        differing.discard("ptxas")  # it comes with Triton
    if "distributions" in differing:
        yield _distributions(ours.get("distributions"), theirs.get("distributions"))
    for axis in ("source", "ptxas", "environment"):
        if axis in differing:
            yield AxisStep(axis, _note(axis, ours.get(axis), theirs.get(axis)))
    if differing - {"device", "triton", "triton_key", "distributions", "source", "ptxas", "environment"}:
        yield None


def _same(one: Json, other: Json) -> bool:
    # Shortcut for equal texts, the common case: saves 25 us per group of a file (tests/bench/files.py).
    if one is other or (type(one) is str and one == other):
        return True
    return canonical(one) == canonical(other)


def _note(axis: str, ours: Json, theirs: Json) -> str:
    if axis == "source":
        return "another source of the kernel"
    return f"{axis} {_words(theirs)}, here {_words(ours)}"


def _words(value: Json) -> str:
    return value if isinstance(value, str) else canonical(value)


def _device(ours: Json, theirs: Json) -> AxisStep | None:
    if not isinstance(theirs, dict) or any(ours[part] != theirs.get(part) for part in ("kind", "arch")):
        return None
    sizes = max(ours["sm_count"], 1), max(theirs["sm_count"], 1)
    mig = f" MIG {theirs['mig']}" if theirs["mig"] else ""
    return AxisStep("device", f"{theirs['name']}{mig}, here {ours['name']}", (abs(math.log2(sizes[0] / sizes[1])),))


def _distributions(ours: Json, theirs: Json) -> AxisStep | None:
    """The strictest step among a plain callable's distributions; None if it names different ones."""
    if not isinstance(ours, dict) or not isinstance(theirs, dict) or ours.keys() != theirs.keys():
        return None
    steps = [_version(name, ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]]
    if None in steps:
        return None
    worst = max((step for step in steps if step), key=lambda step: (_TRITON.index(step.axis), step.distance))
    return worst._replace(note="; ".join(step.note for step in steps if step))


def _version(name: str, ours: Json, theirs: Json) -> AxisStep | None:
    if not isinstance(ours, str) or not isinstance(theirs, str):
        return None
    mine, other = version_order(ours), version_order(theirs)
    build = " of another build" if ours == theirs else ""
    note = f"{name} {theirs}{build}, here {ours}"
    back = tuple(-float(part) for part in other[0])
    if mine[0][:2] == other[0][:2]:
        return AxisStep("triton_patch", note, (0.0, *back) if other <= mine else (1.0, *map(float, other[0])))
    if other < mine:
        return AxisStep("triton_older", f"older {note}", back)
    return AxisStep("triton_newer", f"newer {note}", tuple(map(float, other[0])))


def _is_released(text: str) -> bool:
    """Whether a version is three short numbers."""
    return (
        text.isascii() and text.count(".") == 2 and all(1 <= len(one) <= 9 and one.isdigit() for one in text.split("."))
    )


@lru_cache(maxsize=256)
def version_order(text: str) -> tuple[tuple[int, int, int, int], int, str]:
    """A sortable version: 3.10 after 3.9, 3.4.0a1 before 3.4.0, 3.4.0+git1 after it."""
    if _is_released(text):  # most; compiling a pattern takes 0.3 ms at the first call
        first, second, third = text.split(".")
        return (int(first), int(second), int(third), 0), 0, ""
    match = re.match(r"v?(\d+(?:\.\d+)*)(.*)", text)
    if match is None:
        return (1 << 30, 0, 0, 0), 0, text  # unknown ones count as newer
    # At most nine digits each: files may hold anything, and a float cannot hold more.
    numbers = ([int(part[:9]) for part in match[1].split(".", 4)[:4]] + [0] * 4)[:4]
    rest = match[2]
    stage = 0 if not rest else -1 if re.match(r"[.\-_]?(a|b|c|rc|dev|pre|alpha|beta)", rest) else 1
    return (numbers[0], numbers[1], numbers[2], numbers[3]), stage, rest
