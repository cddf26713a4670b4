"""A search as the chooser asks for it: what earlier ones left, what is measured now, and what of that is kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from autotuned import candidates, explain, failures, fallback, job, likely, locks, memory, objects, race, store, tune
from autotuned.errors import AllConfigsFailedError, OutOfMemoryError
from autotuned.job import Job, Outcome
from autotuned.journal import Journal
from autotuned.key import Key
from autotuned.look import Candidates, Choice, Rung
from autotuned.question import Options, Question
from autotuned.recordfile import Record, Timing
from autotuned.storm import Storm
from autotuned.values import canonical

if TYPE_CHECKING:
    from autotuned.choose import Chooser

log = logging.getLogger("autotuned")


class _Left(NamedTuple):
    """What earlier searches for a key have left.

    Attributes:
        saved: Whether what this one measures goes to disk: no other process searches for the key.
        known: Timings that need not be taken again, by identity.
        incumbent: The config that was chosen before, by identity, as far as it is a candidate.
        journal: What crashed.
    """

    saved: bool
    known: Mapping[str, Timing]
    incumbent: str | None
    journal: Journal


class Searcher:
    """The searches of one tuned function.

    Args:
        chooser: Whose they are: it says what is known and unfit, and counts them.
    """

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self.target = chooser.target
        self._memory = failures.Backoff()
        self._storm = Storm()

    @property
    def options(self) -> Options:
        """The decorator's, as they are now: the user may edit the list of keys."""
        return self._chooser.options

    def search(self, question: Question) -> Choice:
        """Measure what is not known yet and store it; the choice, or an untuned one where there is no room.

        Raises:
            AllConfigsFailedError: None can be used, and there is no `default=`.
        """
        key = question.key
        memory.refuse_aliases(question.call.arguments, self.options.zero, self.target.name)
        if not self._memory.is_due(key.digest):
            return fallback.for_now(self._chooser, question)
        left = self._left(question)
        self._say_what_varies(key)
        start = time.perf_counter()
        outcome = Outcome()
        try:
            self._measure(question, left, outcome)
        except AllConfigsFailedError as error:
            if self.options.default is None:
                raise
            return self._after_failure(question, error)
        except OutOfMemoryError as error:
            return self._without_room(question, error)
        finally:
            result = self._finish(question, outcome, time.perf_counter() - start)
        self._announce(result, outcome)
        left.journal.erase()  # what crashed is in the record now
        complete = question.live.keys() <= {timing.identity for timing in outcome.timings}  # else the budget ended it
        own = self._chooser.own(question.key)
        tried = frozenset(question.live) | (own.tried if own else frozenset())
        return Choice(question.live[outcome.winner or ""], Rung.SEARCH, result, complete, tried=tried)

    def _after_failure(self, question: Question, error: AllConfigsFailedError) -> Choice:
        message = "`%s`: the search for key %s failed; its default= is used, untuned. %s"
        # A handler may keep what it is given: no traceback is logged.
        self._chooser.say_once("failed", message, question.key, str(error))
        return self._chooser.default(question.call, question.live)

    def _without_room(self, question: Question, error: OutOfMemoryError) -> Choice:
        key = question.key
        self._memory.failed(key.digest)
        self._chooser.say_once("memory", "`%s`: there is no room to tune now: it runs untuned until there is.", key)
        log.info("%s", error)
        return fallback.for_now(self._chooser, question)

    def _left(self, question: Question) -> _Left:
        """What earlier searches for a key have left for this one."""
        key, unfit = question.key, self._chooser.unfit
        is_stored = self._chooser.keeps(key)
        saved = is_stored and question.lock is not locks.Lock.BUSY
        earlier = self._earlier(question, is_stored)
        known = store.resumable(key, earlier) if is_stored else _timings(earlier)
        others = {name: timing for name, timing in known.items() if name not in question.live}
        if question.fresh:  # of other calls of this key the timings stay
            earlier, known = None, others if question.narrowed else {}
        journal = Journal(store.journal_path(key) if is_stored else None, writes=saved)
        if question.fresh:
            journal.forget()
        known = journal.judged(unfit.without(key.digest, known), again=question.must_search)
        if not any(known[name].status == "ok" for name in known.keys() & question.live.keys()):
            known = others  # failures alone, perhaps of a full or broken device, are tried again
        incumbent = store.best(earlier, unfit.without(key.digest, question.live)) if earlier else None
        return _Left(saved, known, incumbent, journal)

    def _earlier(self, question: Question, is_stored: bool) -> Record | None:
        """The record of the key; where none is kept, what this process remembers of it."""
        if is_stored:
            return store.read(store.record_path(question.key))
        own = self._chooser.own(question.key)
        return own.record if own else None

    def _measure(self, question: Question, left: _Left, outcome: Outcome) -> None:
        """Run the search, each timing into the logbook, binaries into the scratch folder, the winner's out of it."""
        writer = store.logged(question.key, question.fresh) if left.saved else nullcontext(lambda timing: None)
        with writer as write, self.target.trials(folder := store.scratch_folder()):
            tune.run(self._job(question, left, write), outcome)
            self.target.settle(question.call, question.live[outcome.winner or ""], folder)

    def _say_what_varies(self, key: Key) -> None:
        """In the log, what a key differs in from the nearest stored one, and a storm of keys."""
        if log.isEnabledFor(logging.INFO):
            log.info("`%s` %s: %s", key.kernel, key.digest[:12], explain.nearest_words(key))
        if advice := self._storm.note(key, time.monotonic() - self._chooser.seconds.search):
            log.warning(advice)

    def _job(self, question: Question, left: _Left, on_timing: Callable[[Timing], None]) -> Job:
        options, call, key = self.options, question.call, question.key
        budgets = [seconds for seconds in (options.budget_s, question.budget_s) if seconds is not None]
        words = None if question.fresh else self.target.compile_class(call)
        return Job(
            self.target,
            call,
            self._in_order(question) if budgets else question.live,
            job.timer_of(self.target, call, options.do_bench),
            restore=options.restore,
            zero=options.zero,
            hooks=options.hooks,
            known=left.known,
            incumbent=left.incumbent,
            budget_s=min(budgets, default=None),
            observer=question.observer,
            check=options.check,
            watch=log.isEnabledFor(logging.DEBUG),
            compile_class=(canonical(dict(key.context)), words) if words is not None else None,
            journal=left.journal,
            condemned=failures.condemned(key.digest),
            likely=likely.nearest(key, self._chooser.records(), self._chooser.keeps(key)),
            on_timing=on_timing,
        )

    def _in_order(self, question: Question) -> Candidates:
        """The candidates of a search that may not get to all of them: first what config files have for elsewhere."""
        first = store.likely(question.key, question.live, self.options.nearest)
        return {first: question.live[first], **question.live} if first is not None else question.live

    def _finish(self, question: Question, outcome: Outcome, seconds: float) -> Record:
        """Count the search and store what it measured, also after Ctrl-C: it is not measured again."""
        self._chooser.searches += 1
        self._chooser.seconds.search += seconds
        self._chooser.seconds.compile += outcome.compile_s
        key = question.key
        result = self._of_all_calls(outcome.record(key, seconds, self._provenance()), question)
        before = store.read(store.record_path(key)) if result.winner is None and self._chooser.keeps(key) else None
        if before is not None:  # what is complete stays so: the new search only adds to it
            result = before.extended(result.timings)
        if self._chooser.keeps(key) and any(timing.status == "ok" for timing in result.timings):
            self._keep(result, question)
        return result

    def _of_all_calls(self, result: Record, question: Question) -> Record:
        """The record with the winner of all calls of its key: some of these have candidates that this one has not."""
        won = result.timing_of(result.winner) if result.winner is not None else None
        if won is None or (won.status == "ok" and not question.narrowed):
            return result
        timings = {timing.identity: timing for timing in result.timings if timing.status == "ok" and timing.usable}
        samples_us = {
            name: timing.typical_us
            for name, timing in timings.items()
            if name in question.live or self._chooser.may_serve(name)
        }
        best, quality = race.pick(samples_us) if samples_us else (won.identity, result.quality)
        if best not in timings or (best in question.live and won.status == "ok"):
            return result  # the race's word is better than what was kept of it
        return result.replace(winner=timings[best].config, median_us=timings[best].median_us, quality=quality)

    def _keep(self, result: Record, question: Question) -> None:
        if question.lock is locks.Lock.BUSY and not store.may_save(result.key):
            log.info("`%s`: another process or thread tunes the same key and saves it.", result.key.kernel)
        elif objects.portable(*(timing.config for timing in result.timings)):
            store.keep(result)
        else:
            self._chooser.say_once(
                "config", "`%s`: a config has a value without JSON form; kept in memory only.", result.key
            )

    def _provenance(self) -> dict[str, Any]:
        default = candidates.stored_form(self.options.default, self.target.name, objects.spell)
        return {"timer": self.options.timer, "default": default}

    def _announce(self, result: Record, outcome: Outcome) -> None:
        if self.options.restore is None:
            self._chooser.on_written(outcome.written)
        for about, text in outcome.advice(result.key.kernel, self.options.restore is None):
            self._chooser.say_once(about, text, result.key)
        won = next(timing for timing in result.timings if timing.identity == outcome.winner)
        failed = sum(timing.status == "failed" for timing in result.timings)
        log.info(
            "`%s`: measured %d configs (%d failed) in %.2f s; chosen %s, %.1f us, %s",
            result.key.kernel, len(result.timings), failed, result.provenance["seconds"],
            candidates.label(won.config, self.target.has_options), won.median_us, outcome.quality,
        )  # fmt: skip


def _timings(earlier: Record | None) -> dict[str, Timing]:
    return {timing.identity: timing for timing in earlier.timings} if earlier is not None else {}
