"""Runs a search for the chooser: reuse earlier timings, measure the rest, store the result."""

from __future__ import annotations

import logging
import math
import operator
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from autotuned import env, events
from autotuned._startup import later
from autotuned.configfiles import lookup
from autotuned.errors import OutOfMemoryError
from autotuned.key import memory, nearest_key, opaque
from autotuned.key.key import Key
from autotuned.remote import connection
from autotuned.resolve import active, explain, sources
from autotuned.resolve.request import Question, State
from autotuned.search import exclusions, failures, job, race, search
from autotuned.search.job import Job, Outcome
from autotuned.store import better, conditions, layout, listing, locks, records
from autotuned.store.choice import Candidates, Choice, Origin
from autotuned.store.conditions import Checked, Conditions, Restore
from autotuned.store.journal import Journal
from autotuned.store.record import Timing, TuningRecord, identity_of, load_timing
from autotuned.tunable import configs
from autotuned.typed_json import canonical, digest, portable

if TYPE_CHECKING:
    from autotuned.resolve import advice, priors
    from autotuned.resolve.request import Member
    from autotuned.search import batches, members
    from autotuned.space import declared
else:  # only for declared spaces: importing NumPy takes as long as all else
    declared, priors = later("space.declared"), later("resolve.priors")
    advice = later("resolve.advice")
    batches, members = later("search.batches"), later("search.members")

log = logging.getLogger("autotuned")

COUNT, WINDOW_S = 16, 60.0  # kernels have a handful of problems; more in a minute is a changing shape
LONG = 16  # order a list of at least this many configs by another device's times
LISTS = 16  # lists per key that a record remembers, from calls whose pruners narrow the list
LIKELY = 3
LIKELY_READ = 100  # records on disk to read, in arbitrary order; each once per process


class _Left(NamedTuple):
    saved: bool  # whether results go to disk: no other process searches for the key
    earlier: TuningRecord | None  # the existing record
    restore: Restore  # what to restore around trials: for this call and for earlier ones
    known: Mapping[str, Timing]  # timings that are still valid, by identity
    incumbent: str | None  # identity of the earlier winner, if it is a candidate
    journal: Journal  # which configs crashed


class Searcher:
    """The searches of one tuned function."""

    def __init__(self, state: State) -> None:
        self._state, self.tunable = state, state.tunable
        self._memory = failures.Backoff()
        self._latest: deque[tuple[float, Key]] = deque(maxlen=COUNT)  # searched keys
        self._is_said = False  # that there are too many

    def search(self, question: Question) -> Choice | None:
        """Measure unknown configs and store the result; returns the choice, or None if out of memory.

        Raises:
            AllConfigsFailedError: No config can be used.
        """
        key = question.key
        memory.refuse_aliases(question.call.arguments, self._state.options.zero, self.tunable.name)
        if not self._memory.is_due(key.digest):
            return None
        left = self._left(question)
        self._say_what_is_cut(question)
        self._say_what_varies(key)
        start = time.perf_counter()
        outcome = Outcome()
        try:
            self._measure(question, left, outcome)
        except OutOfMemoryError as error:
            self._say_no_room(key, error)
            return None
        finally:
            result = self._finish(question, left, outcome, time.perf_counter() - start)
        self._announce(result, outcome)
        left.journal.erase()  # the record has the crashes now
        measured = {timing.identity for timing in outcome.timings}
        ended = bool(outcome.space) or question.live.keys() <= measured  # else the budget ended it
        winner, own = outcome.winner or "", self._state.choices.get(key)
        tried = frozenset(question.live) | (own.tried if own else frozenset())
        under = sources.under(result, winner)
        return Choice(question.live[winner], Origin.SEARCH, result, ended, tried=tried, conditions=under)

    def _say_no_room(self, key: Key, error: OutOfMemoryError) -> None:
        self._memory.failed(key.digest)
        message = "`%s`: not enough free memory to tune now; it runs untuned until there is."
        self._state.warn_once("memory", message, key.kernel)
        log.info("%s", error)

    def _left(self, question: Question) -> _Left:
        key, excluded = question.key, self._state.excluded
        is_stored = self._state.keeps(key)
        saved = is_stored and question.lock is not locks.Lock.BUSY
        earlier = self._earlier(question, is_stored)
        restore = question.needed.restore
        if earlier is not None:
            restore = conditions.union(earlier.conditions.restore, restore)
        known = self._known(question, earlier, restore, is_stored)
        others = {name: timing for name, timing in known.items() if name not in question.live}
        if question.fresh:  # keep the timings of other calls of this key
            known = others if question.narrowed else {}
        journal = Journal(layout.journal_path(key) if is_stored else None, key, saved)
        if question.fresh:
            journal.forget()
        known = exclusions.measured(excluded.without(key.digest, known), journal, again=question.must_search)
        if not any(known[name].status == "ok" for name in known.keys() & question.live.keys()):
            known = others  # only failures, perhaps of a full or broken device: try again
        elif question.doubts(earlier) and earlier is not None and earlier.is_doubtful:
            known = {name: timing for name, timing in known.items() if name in others or not timing.usable}
        elif earlier is not None:
            unraced = question.unraced(earlier)
            known = {name: timing for name, timing in known.items() if name not in unraced}
        fit = excluded.without(key.digest, question.live)
        # By times alone; it is checked again, since a reference must judge more than one config.
        incumbent = sources.best(earlier, fit, Conditions(())) if earlier is not None else None
        is_one = incumbent in known and known[incumbent].usable
        return _Left(saved, earlier, restore, known, incumbent if is_one else None, journal)

    def _known(
        self, question: Question, earlier: TuningRecord | None, restore: Restore, is_stored: bool
    ) -> dict[str, Timing]:
        """Earlier timings taken with the same arguments restored, as this call's check sees them."""
        enough = earlier if earlier is not None and earlier.conditions.restore == restore else None
        if enough is not None and enough.members and enough.winner is None:
            enough = None  # an unfinished search over several calls: its times belong to no single call
        own = {timing.identity: timing for timing in enough.timings} if enough is not None else {}
        found = records.resumable(question.key, enough, restore) if is_stored else own
        seen = ((name, as_seen(timing, question.needed)) for name, timing in found.items())
        return {name: timing for name, timing in seen if timing is not None}

    def _earlier(self, question: Question, is_stored: bool) -> TuningRecord | None:
        """The key's record, from the store or this process's memory."""
        if is_stored:
            return records.read_of(question.key)
        own = self._state.choices.get(question.key)
        return own.record if own else None

    def _measure(self, question: Question, left: _Left, outcome: Outcome) -> None:
        """Run the search: timings into the logbook, losers' binaries into the scratch folder."""
        logged = records.logged(question.key, question.fresh, left.restore)
        writer = logged if left.saved else nullcontext(lambda timing: None)
        with writer as write, self.tunable.trials(folder := records.scratch_folder()):
            if question.members:
                some = [self._member(question, one, left) for one in question.members]
                first = lambda one, to: self._run(one.job, question, to, left)
                members.run(some, outcome, self._state.options.members_by, first)
            else:
                self._run(self._job(question, left, write), question, outcome, left)
            for one in question.members or (question,):
                if outcome.winner in one.live:
                    self.tunable.settle(one.call, one.live[outcome.winner or ""], folder)

    def _run(self, wanted: Job, question: Question, outcome: Outcome, left: _Left) -> None:
        live = next((one.live for one in question.members if one.call is wanted.call), question.live)
        if self._state.options.declared is not None and isinstance(live, declared.Declared):
            batches.run(wanted, outcome, self._source(question, live, left.earlier))
        elif (ranked := self._ranked(question, left)) is not None:
            begun = {name: config for name, config in wanted.configs.items() if name in (question.untuned, *left.known)}
            before = sources.ranked_lists(left.earlier.provenance) if left.earlier is not None else []
            said = {"lists": [*before, digest(sorted(question.live))][-LISTS:]}
            source = batches.Source(ranked, ranked.admit, str(len(question.live)), lambda: said)
            batches.run(replace(wanted, configs=begun), outcome, source)
        else:
            search.run(wanted, outcome)

    def _member(self, question: Question, one: Member, left: _Left) -> members.MemberJob:
        """The search of one call of a bucket, reusing its earlier timings."""
        earlier, known = left.earlier, {}
        same = [] if earlier is None else [call for call in earlier.members if call["sizes"] == one.sizes]
        enough = earlier is not None and earlier.conditions.restore == left.restore and not question.doubts(earlier)
        for data in same[0]["timings"] if same and enough and not question.fresh else ():
            seen = as_seen(load_timing(data, "timings"), question.needed)
            if seen is not None and seen.identity in one.live and (seen.usable or not question.must_search):
                known[seen.identity] = seen
        before = left.incumbent if left.incumbent in known else None
        own = left._replace(known=known, incumbent=before)
        asked = question.replace(call=one.call, live=one.live)
        return members.MemberJob(one.sizes, one.count, self._job(asked, own, lambda timing: None), asked.has_default)

    def _ranked(self, question: Question, left: _Left) -> priors.Ranked | None:
        """A strategy for a list that another device has measured, if it may end before all configs are."""
        if len(question.live) < LONG or question.force or question.members or not self._state.keeps(question.key):
            return None
        return priors.of_list(question.key, question.live)

    def _source(self, question: Question, live: declared.Declared, earlier: TuningRecord | None) -> batches.Source:
        """Source of a space's configs, with times measured under other conditions."""
        declaration = self._state.options.declared
        assert declaration is not None
        prior = priors.of(question.key, live, self._state.keeps(question.key))
        asked = declaration.strategy(live.members, prior)
        mattered = getattr(asked, "importance", dict)
        said = {"prior": len(prior), **live.widest(earlier.provenance if earlier is not None else {})}
        return batches.Source(asked, live.admitted, live.members.words, lambda: {**said, **mattered()})

    def _say_what_is_cut(self, question: Question) -> None:
        for name, value in question.call.arguments.items():
            if memory.is_cut(value):
                message = "`%s`: argument %r holds more than %d objects: tensors beyond those are not protected. Pass "
                message += "written tensors as separate arguments."
                log.warning(message, question.key.kernel, name, memory.LIMIT)

    def _say_what_varies(self, key: Key) -> None:
        """Log how a key differs from the nearest stored one, and warn of too many keys."""
        if log.isEnabledFor(logging.INFO):
            log.info("`%s` %s: %s", key.kernel, key.digest[:12], explain.nearest_words(key))
        now_s = time.monotonic() - self._state.search_s  # excluding searches: only the program's call rate counts
        if any(key == noted for _, noted in self._latest):  # as in mode "search"
            return
        self._latest.append((now_s, key))
        if not self._is_said and len(self._latest) == COUNT and now_s - self._latest[0][0] <= WINDOW_S:
            self._is_said = True
            log.warning(advice.advice([key for _, key in self._latest]))

    def _job(self, question: Question, left: _Left, on_timing: Callable[[Timing], None]) -> Job:
        options, call, key = self._state.options, question.call, question.key
        budget_s = min(math.inf if seconds is None else seconds for seconds in (options.budget_s, question.budget_s))
        words = None if question.fresh else self.tunable.compile_class(call)
        compile_class = (canonical(dict(key.context)), words) if words is not None else None
        chosen = [choice.record for choice in list(self._state.choices.values()) if choice.record is not None]
        checked = next((check.replace(restore=left.restore) for check in question.needed.checks), None)
        return Job(
            self.tunable,
            call,
            self._in_order(question) if budget_s < math.inf else question.live,
            job.timer_of(self.tunable, call, options.do_bench, options.objective),
            restore=left.restore,
            named=options.restore,
            zero=options.zero,
            hooks=options.hooks,
            known=left.known,
            incumbent=left.incumbent,
            is_proven=left.earlier is not None and question.untuned in (left.earlier.untuned, left.incumbent),
            untuned=question.untuned,
            spare=question.spare,
            objective=options.objective,
            patience=options.patience,
            budget_s=budget_s,
            slow=options.slow,
            observer=question.observer,
            check=options.check,
            checked=checked,
            stricter=_stricter(checked, left.earlier),
            watch=log.isEnabledFor(logging.DEBUG),
            compile_class=compile_class,
            journal=left.journal,
            all_cores=left.saved and question.lock is locks.Lock.HELD,
            excluded=exclusions.of_search(key.digest, compile_class, left.journal),
            likely=likely(key, chosen, self._state.keeps(key)),
            on_timing=on_timing,
        )

    def _in_order(self, question: Question) -> Candidates:
        """Candidates with likely winners first, for a search that may run out of time."""
        first = [lookup.likely(question.key, question.live, self._state.options.nearest), question.untuned]
        return {name: question.live[name] for name in [*filter(None, first), *question.live]}

    def _finish(self, question: Question, left: _Left, outcome: Outcome, seconds: float) -> TuningRecord:
        """Count the search and store its timings, also after Ctrl-C, so that they are not measured again."""
        self._state.searches += 1
        self._state.search_s += seconds
        self._state.compile_s += outcome.compile_s
        key = question.key
        made = outcome.record(key, seconds, self._provenance(question, outcome), left.restore)
        chosen = "none was chosen" if made.winner is None else f"chosen: {self._label(made.winner)}"
        events.emit("search", key.kernel, key.digest, seconds, f"{len(made.timings)} configs; {chosen}")
        made = made if left.earlier is None else better.with_verdicts_of(left.earlier, made)
        result = self._of_all_calls(made, question)
        before = records.read_of(key) if result.winner is None and self._state.keeps(key) else None
        if before is not None and before.conditions.restore != left.restore:
            return result  # the logbook has the timings
        if before is not None:  # a complete record stays complete: add to it
            result = before.extended(result.timings)
        spare = question.spare if outcome.winner is None else None
        if self._state.keeps(key) and any(one.status == "ok" and one.identity != spare for one in result.timings):
            self._keep(result, question)
        return result

    def _of_all_calls(self, result: TuningRecord, question: Question) -> TuningRecord:
        """The record with the winner over all calls of its key, which may have other candidates."""
        won = result.timing_of(result.winner) if result.winner is not None else None
        if won is None or (won.status == "ok" and not question.narrowed):
            return result
        timings = {timing.identity: timing for timing in result.timings if timing.status == "ok" and timing.usable}
        options = self._state.options
        ours = {*question.live, *map(self._state.identity, options.configs())}
        samples_us = {
            name: timing.typical_us for name, timing in timings.items() if options.computed is not None or name in ours
        }
        best, quality = race.pick(samples_us, question.untuned) if samples_us else (won.identity, result.quality)
        if best not in timings or (best in question.live and won.status == "ok"):
            return result  # the race has more information than the record
        chosen = timings[best]
        under = result.conditions.replace(checks=chosen.passed)
        return result.replace(winner=chosen.config, median_us=chosen.median_us, quality=quality, conditions=under)

    def _keep(self, result: TuningRecord, question: Question) -> None:
        if question.lock is locks.Lock.BUSY and not records.may_save(result.key):
            log.info("`%s`: another process or thread tunes the same key and saves it.", result.key.kernel)
        elif portable(*(timing.config for timing in result.timings)):
            if (question.force and active.agreements) or not env.has_store():  # the ranks' merged record follows
                records.keep(result)
            else:
                connection.keep(result, again=question.fresh)
        else:
            message = "`%s`: a config has a value or a pre_hook without JSON form; kept in memory only."
            self._state.warn_once("config", message, result.key.kernel)

    def _provenance(self, question: Question, outcome: Outcome) -> dict[str, Any]:
        untuned = question.live.get(question.untuned or "")
        form = configs.stored_form(untuned, self.tunable.name, opaque.spell)
        options, left_out = self._state.options, self._default_left_out(question, outcome)
        objective = {} if options.do_bench is not None else {"objective": options.objective}
        why = {"default_left_out": left_out} if left_out else {}
        return {"timer": options.timer, **objective, "default": form, **why}

    def _default_left_out(self, question: Question, outcome: Outcome) -> str:
        """Why `default=` took no part in a search, with a warning; "" if it did, or was not given."""
        timing = next((one for one in outcome.timings if one.identity == question.untuned), None)
        failed = timing is not None and not timing.usable and self._state.options.default is not None
        why = question.no_default or (f"{timing.status}: {timing.error}" if timing is not None and failed else "")
        if why:
            message = "`%s`: default= takes no part in the search for key %s: %s. The others race without it."
            self._state.warn_once("default left out", message, question.key.kernel, question.key.digest[:12], why)
        return why

    def _announce(self, result: TuningRecord, outcome: Outcome) -> None:
        if self._state.options.restore is None:
            self._state.on_written(outcome.written)
        for about, text in outcome.advice(result.key.kernel, self._state.options.restore is None):
            self._state.warn_once(about, "%s", text)
        won = next(timing for timing in result.timings if timing.identity == outcome.winner)
        failed = sum(timing.status == "failed" for timing in result.timings)
        log.info(
            "`%s`: measured %d configs (%d failed) in %.2f s; chosen %s, %.1f us, %s",
            result.key.kernel, len(result.timings), failed, result.provenance["seconds"],
            self._label(won.config), won.median_us, outcome.quality,
        )  # fmt: skip

    def _label(self, form: Mapping[str, Any]) -> str:
        return configs.label(form, self.tunable.has_options)


def as_seen(timing: Timing, needed: Conditions) -> Timing | None:
    """A timing under this call's check; None if another check rejected it and it must be launched again."""
    right = timing.right_for(needed)
    if right is False and timing.status in ("ok", "same"):
        return timing.replace(status="wrong", error=REFUSED)
    if timing.status != "wrong" or right is False:
        return timing
    return timing.replace(status="ok", error=None) if right and timing.median_us else None


REFUSED = "Wrong: an earlier search found that it differs from this reference"


def _stricter(checked: Checked | None, earlier: TuningRecord | None) -> Checked | None:
    """A check that also covers earlier checks with the same reference; None if it equals `checked`."""
    found = checked
    for timing in earlier.timings if earlier is not None else ():
        for other in timing.passed:
            found = (found and found.joined(other)) or found
    return None if found == checked else found


def likely(key: Key, known: Iterable[TuningRecord | None], stored: bool = False) -> list[str]:
    """Identities of the configs to try first: winners of the nearest calls in the same context, nearest first.

    They are among `known` records and, if `stored`, those on disk.
    """
    on_disk = listing.known_heads(key.kernel, LIKELY_READ) if stored else ()
    tuned = [record for record in chain(known, on_disk) if record is not None]
    alike = [record for record in tuned if record.winner is not None and record.key.context == key.context]
    if len(alike) > 1:
        far = nearest_key.distances(key, (record.key for record in alike))
        alike = [record for record, _ in sorted(zip(alike, far), key=operator.itemgetter(1))]
    return list(dict.fromkeys(identity_of(record.winner or {}) for record in alike))[:LIKELY]
