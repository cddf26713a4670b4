"""The conditions under which a choice was measured, and whether they suffice for a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from autotuned._startup import Frozen
from autotuned.typed_json import Json, canonical, is_finite, named, texts, typed, wrong

# Options that change the measurement (`do_bench=`, zeroing, the decorator's hooks) are in the key: see
# `Options.trial`. This file orders options that only make results more certain: a stronger measurement serves a weaker
# request, so that programs that share a store do not keep replacing each other's records.
Restore = tuple[str, ...] | None  # names restored around trials; None for all written arguments
OTHERS = "*"  # in a tolerance: all other dtypes


class Checked(Frozen):
    """A comparison of results with a reference."""

    reference: Json  # the callable by its source, or the config used for "first"
    tolerance: Mapping[str, float]  # by dtype, with `OTHERS`
    equal_nan: bool
    poison: bool | tuple[str, ...]  # names, or True for arguments that are written and not read
    restore: Restore  # what was restored around the compared launches

    def covers(self, needed: Checked) -> bool:
        """Whether a config that passes this check also passes `needed`."""
        return self.lack(needed) == ""

    def lack(self, needed: Checked) -> str:
        """How this check is weaker than `needed`; "" if it is not."""
        if canonical(self.reference) != canonical(needed.reference):
            return "with another reference in check="
        for dtype in sorted({*self.tolerance, *needed.tolerance}):
            if self.allows(dtype) > needed.allows(dtype):
                name = "other dtypes" if dtype == OTHERS else dtype
                return f"with a check that allows {self.allows(dtype):g} in {name}, not {needed.allows(dtype):g}"
        if self.equal_nan and not needed.equal_nan:
            return "with a check in which NaN equals NaN"
        if not _poison_covers(self.poison, needed.poison):
            return f"with poison={_listed(self.poison)}, not {_listed(needed.poison)}"
        return _restore_lack(self.restore, needed.restore)

    def allows(self, dtype: str) -> float:
        """The tolerance for a dtype."""
        return self.tolerance.get(dtype, self.tolerance[OTHERS])

    def joined(self, other: Checked) -> Checked | None:
        """The weakest check that covers both; None if a single search cannot do it."""
        more, less = _poison_covers(self.poison, other.poison), _poison_covers(other.poison, self.poison)
        if canonical(self.reference) != canonical(other.reference) or not (more or less):
            return None
        dtypes = sorted({*self.tolerance, *other.tolerance})
        tolerance = {dtype: min(self.allows(dtype), other.allows(dtype)) for dtype in dtypes}
        poison = self.poison if more else other.poison
        return Checked(self.reference, tolerance, self.equal_nan and other.equal_nan, poison, self.restore)

    def to_json(self) -> dict[str, Json]:
        """As stored in records and config files."""
        poison = self.poison if isinstance(self.poison, bool) else list(self.poison)
        return {**self.fields(), "tolerance": dict(self.tolerance), "poison": poison, "restore": _names(self.restore)}


class Conditions(Frozen):
    """Conditions of a measurement, or those that a call requires (with at most one check)."""

    restore: Restore = None  # what was restored around the timed launches
    checks: tuple[Checked, ...] = ()  # checks that the config passed

    def to_json(self) -> dict[str, Json]:
        """As stored in records and config files."""
        return {"restore": _names(self.restore), "checks": [check.to_json() for check in self.checks]}

    @property
    def words(self) -> str:
        """All conditions in one line, for people."""
        checks = "".join(f"; checked against {check_words(check)}" for check in self.checks)
        return f"protected: {'auto' if self.restore is None else _listed(self.restore)}{checks or '; not checked'}"


BY_DEFAULT = Conditions()  # of a decorator without conditions


def covers(measured: Conditions, needed: Conditions) -> bool:
    """Whether a measurement under some conditions suffices for a call that requires others."""
    return lack(measured, needed) == ""


def lack(measured: Conditions, needed: Conditions) -> str:
    """The first condition that is missing, as a phrase following "measured"; "" if none."""
    if words := _restore_lack(measured.restore, needed.restore):
        return words
    for check in needed.checks:
        lacks = [passed.lack(check) for passed in measured.checks]
        if "" not in lacks:
            return lacks[-1] if lacks else "without check="
    return ""


def is_more(one: Conditions, other: Conditions) -> bool:
    """Whether conditions are strictly stronger than others."""
    return covers(one, other) and not covers(other, one)


def strongest(checks: Iterable[Checked]) -> tuple[Checked, ...]:
    """The checks that no other one covers."""
    found: list[Checked] = []
    for check in checks:
        if not any(other.covers(check) for other in found):
            found = [*(other for other in found if not check.covers(other)), check]
    return tuple(found)


def union(one: Restore, other: Restore) -> Restore:
    """The least protection that covers both."""
    return None if one is None or other is None else names({*one, *other})


def restore_covers(measured: Restore, needed: Restore) -> bool:
    """Whether all arguments that must be protected were protected."""
    return measured is None or (needed is not None and set(needed) <= set(measured))


def names(given: Any) -> Restore:
    """Names in canonical order; None stays None."""
    return None if given is None else tuple(sorted(set(given)))


# -- verdicts --------------------------------------------------------------------------------------------------------


def judge(passed: tuple[Checked, ...], failed: tuple[Checked, ...], check: Checked) -> bool | None:
    """Whether a config passes a check, by the checks it passed and failed; None if unknown."""
    if any(one.covers(check) for one in passed):
        return True
    return False if any(check.covers(one) for one in failed) else None


def with_verdicts(
    new: tuple[tuple[Checked, ...], tuple[Checked, ...]], old: tuple[tuple[Checked, ...], tuple[Checked, ...]]
) -> tuple[tuple[Checked, ...], tuple[Checked, ...]]:
    """Passed and failed checks of a new search and earlier ones; new verdicts take precedence."""
    passed, failed = new
    kept = [one for one in old[0] if judge(passed, failed, one) is None and not any(map(one.covers, failed))]
    lost = [one for one in old[1] if judge(passed, failed, one) is None]
    return strongest((*passed, *kept)), (*failed, *lost)


# -- reading and words -----------------------------------------------------------------------------------------------


def load(data: Json, where: str) -> Conditions:
    """Read conditions from JSON; RecordError if a field is missing, unknown or of the wrong type."""
    if data == {"restore": None, "checks": []}:  # the most common
        return BY_DEFAULT
    fields = data if type(data) is dict and data.keys() == _FIELDS else named(data, where, _FIELDS)
    restore = _load_restore(fields["restore"], f"{where}.restore")
    if fields["checks"] == []:
        return _unchecked(restore)
    return Conditions(restore, load_checks(fields["checks"], f"{where}.checks"))


_FIELDS = {"restore", "checks"}


@lru_cache(maxsize=64)
def _unchecked(restore: Restore) -> Conditions:
    return Conditions(restore)


def load_checks(data: Json, where: str) -> tuple[Checked, ...]:
    """Read checks from JSON; RecordError if a field is missing, unknown or of the wrong type."""
    return tuple(_load_check(one, f"{where}[{index}]") for index, one in enumerate(typed(data, list, where)))


def _load_check(data: Json, where: str) -> Checked:
    fields = named(data, where, ("reference", "tolerance", "equal_nan", "poison", "restore"))
    typed(fields["reference"], dict, f"{where}.reference")
    typed(fields["equal_nan"], bool, f"{where}.equal_nan")
    tolerance, poison = typed(fields["tolerance"], dict, f"{where}.tolerance"), fields["poison"]
    if OTHERS not in tolerance or not all(is_finite(number) and number >= 0 for number in tolerance.values()):
        raise wrong(f"{where}.tolerance", f"numbers of 0 or more by dtype, one of them for {OTHERS!r}", tolerance)
    if not isinstance(poison, bool):
        poison = tuple(texts(poison, f"{where}.poison"))
    restore = _load_restore(fields["restore"], f"{where}.restore")
    return Checked(fields["reference"], tolerance, fields["equal_nan"], poison, restore)


def _load_restore(data: Json, where: str) -> Restore:
    return None if data is None else tuple(texts(data, where))


def check_words(check: Checked) -> str:
    """A check for people: the reference and the tolerance."""
    allowed = f"within {_spread(check.tolerance)}"
    more = [f"poison={_listed(check.poison)}"] * bool(check.poison) + ["NaN differs"] * (not check.equal_nan)
    return ", ".join([_reference_words(check.reference), allowed, *more])


def _spread(tolerance: Mapping[str, float]) -> str:
    numbers = sorted({float(number) for number in tolerance.values()})
    return f"{numbers[0]:g}" if len(numbers) == 1 else f"{numbers[0]:g} to {numbers[-1]:g}"


def _reference_words(reference: Json) -> str:
    """Kind and digest: a reference is identified by its code, not by name."""
    kind = next(iter(reference), "")
    return f"{kind} {str(reference.get(kind))[:12]}"


def _poison_covers(measured: bool | tuple[str, ...], needed: bool | tuple[str, ...]) -> bool:
    if not needed or measured is needed is True:
        return True
    return not isinstance(measured, bool) and not isinstance(needed, bool) and set(needed) <= set(measured)


def _restore_lack(measured: Restore, needed: Restore) -> str:
    if restore_covers(measured, needed):
        return ""
    asked = "the written arguments restored" if needed is None else f"{_listed(needed)} restored"
    return f"with restore_value={_listed(measured or ())}, not with {asked}"


def _listed(value: bool | tuple[str, ...]) -> str:
    return str(value if isinstance(value, bool) else list(value))


def _names(restore: Restore) -> Json:
    return None if restore is None else list(restore)
