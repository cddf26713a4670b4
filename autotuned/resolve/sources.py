"""Where choices come from and go to: the user's records on disk, then config files, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from autotuned._lazy import later
from autotuned.key.key import Key
from autotuned.store import conditions, record, records
from autotuned.store.conditions import BY_DEFAULT, Conditions
from autotuned.store.lookup import Candidates, Choice, Live, Look, Origin, Place, untuned_of
from autotuned.store.record import TuningRecord

if TYPE_CHECKING:
    from autotuned.configfiles import lookup, nearest_shape
    from autotuned.search import race
else:
    lookup, race = later("configfiles.lookup"), later("search.race")


def find(
    key: Key,
    candidates: Candidates,
    places: Iterable[Place] | None = None,
    excluded: Collection[str] = (),
    strict: bool = False,
) -> Choice | None:
    """The choice for a key among the live candidates: that of the first of the places that has one.

    A stored config that is no longer among the candidates is not served: hooks could not be re-attached to it.

    Args:
        places: By default `exact_places`.
        excluded: Candidates that were found not to compile or launch here.
        strict: A fault in a config file of the kernel is an error.

    Raises:
        ConfigFileError: If `strict`, the first fault of a file that was asked.
    """
    fit = Live(candidates) if not isinstance(candidates, Live) else candidates
    fit = fit.only(fit.keys() - {*excluded}) if excluded else fit
    for origin, look in exact_places() if places is None else places:
        seen = look(key, fit)
        if not excluded or seen.problem != "config gone":  # what was left out has been said already
            records.react(seen)
        if origin in (Origin.BINARY, Origin.FILE, Origin.LADDER):  # where files are read
            lookup.report(key.kernel, strict)
        if seen.choice is not None:
            if origin is Origin.STORE:
                records.note_use(Path(seen.choice.where))
            elif origin is not Origin.TABLE:
                lookup.announce(key.kernel, seen.choice)
            return seen.choice
    return None


def _look_at_record(key: Key, candidates: Candidates, needed: Conditions) -> Look:
    found, seen = records.look_up(key)
    if found is None:
        return seen
    if found.winner is not None and not conditions.restore_covers(found.conditions.restore, needed.restore):
        return Look(None, "weaker conditions", f"measured {conditions.lack(found.conditions, needed)}", seen.path)
    winner = best(found, candidates, needed)
    if winner is None and best(found, candidates, needed.replace(checks=())) is not None:
        return Look(None, "weaker conditions", f"measured {conditions.lack(found.conditions, needed)}", seen.path)
    if winner is None:  # without a path: a search follows, which is nothing to warn of
        return Look(
            None, "config gone" if found.winner else "absent", f"{seen.path} has none of the configs of this call"
        )
    chosen = Choice(candidates[winner], Origin.STORE, found, where=seen.path, conditions=under(found, winner))
    return Look(chosen.replace(complete=is_complete(found, candidates, winner, needed)))


def under(found: TuningRecord, identity: str) -> Conditions:
    """What one of a record's configs was measured under."""
    timing = next((timing for timing in found.timings if timing.identity == identity), None)
    return found.conditions if timing is None else found.conditions.replace(checks=timing.passed)


def is_complete(found: TuningRecord, candidates: Candidates, winner: str, needed: Conditions) -> bool:
    """Whether every candidate was measured, and none that may be better waits for this call's check."""
    if not found.timings:  # one that was taken from a config file has none: it is as good as the file
        return True
    measured = {timing.identity: timing for timing in found.timings}
    if not candidates.keys() <= measured.keys():
        return False
    if winner == record.identity_of(found.winner or {}):
        return True
    limit_us = measured[winner].median_us or 0.0
    waiting = (timing for name, timing in measured.items() if name in candidates and timing.waits_for(needed))
    return not any(timing.usable and (timing.median_us or 0.0) < limit_us for timing in waiting)


def best(found: TuningRecord, candidates: Candidates, needed: Conditions) -> str | None:
    """Identity of the record's winner if it serves; else of the fastest measured candidate that does."""
    if found.winner is None:
        return None
    winner = record.identity_of(found.winner)
    if not found.timings:
        return winner if winner in candidates and conditions.covers(found.conditions, needed) else None
    serving = {t.identity: t for t in found.timings if t.serves(needed)}
    samples_us = {name: serving[name].typical_us for name in candidates if name in serving}
    if winner in samples_us:
        return winner
    # By the rule that a search among these goes by.
    return race.pick(samples_us, untuned_of(candidates) or found.untuned)[0] if samples_us else None


def exact_places(needed: Conditions = BY_DEFAULT) -> tuple[Place, ...]:
    """The places that are asked where no policy and no shape is in question, in their order; see `places`."""
    return (
        (Origin.STORE, lambda key, candidates: _look_at_record(key, candidates, needed)),
        (Origin.FILE, lambda key, candidates: lookup.look_exact(key, candidates, needed)),
    )


def places(
    strict: bool,
    exact: bool,
    factors: nearest_shape.Factors,
    needed: Conditions = BY_DEFAULT,
    shipped: Callable[[Key, Candidates], Look] | None = None,
) -> Iterator[Place]:
    """The places a stored choice may come from, in the order in which they are asked; `explain` walks the same list.

    Args:
        strict: Nothing that a policy does not accept, and no nearest shape.
        exact: The same call in the same context only.
        factors: The axes on which a neighbour may serve, and how far.
        needed: What the choice must have been measured under.
        shipped: Asked for the entry of a config file that comes with a compiled kernel for the call; None where no
            kernel is compiled.
    """
    for place in exact_places(needed):
        if place[0] is Origin.FILE and shipped is not None and not exact:
            yield Origin.BINARY, shipped
        yield place
    if not exact:
        yield Origin.LADDER, lambda key, candidates: lookup.look_ladder(key, candidates, strict, needed)
    if factors and not exact and not strict:
        yield Origin.NEAREST, lambda key, candidates: lookup.look_nearest(key, candidates, factors, needed)
