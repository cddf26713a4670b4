"""`refresh`: prepares newer choices of the store in the background, and swaps them in between launches."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple, overload

from autotuned import disk, env, events
from autotuned._startup import after_fork, renewed
from autotuned.binaries import libcuda
from autotuned.errors import SealedError, refused
from autotuned.key.key import Key
from autotuned.launch.bound import Bound
from autotuned.remote import connection
from autotuned.resolve import active, sealing, sources, tuner
from autotuned.resolve.request import Chosen, RefusedError
from autotuned.resolve.tuner import Tuner
from autotuned.search import exclusions, failures
from autotuned.store import conditions, layout
from autotuned.store.choice import Choice, Live, Origin
from autotuned.store.conditions import Conditions
from autotuned.triton_compat import kernel
from autotuned.typed_json import Json, canonical

SHARED_S = 5.0  # longest wait of a refresh for the shared store; the next refresh finds later records
# After each key the thread rests this many times as long as the key took: its Python code slows calls of other threads,
# and with these rests fewer than 1% of them overlap with it.
RESTS = 150


@dataclass
class Swap:
    """A key with a newer choice, swapped in or refused.

    Attributes:
        before, after: Labels of the configs.
        launches: Number of entries swapped in the launch table.
        refused: Why it was not swapped, or only in part; "" if it was.
    """

    kernel: str
    digest: str
    before: str
    after: str
    launches: int = 0
    refused: str = ""
    seconds: float = 0.0


@dataclass
class Refreshed:
    """Result of one refresh.

    Attributes:
        keys: Number of keys of this process that may have a newer choice.
        swaps: The keys that have one.
        reason: Why nothing was looked up; "" if it was.
    """

    keys: int = 0
    swaps: list[Swap] = field(default_factory=list)
    reason: str = ""
    seconds: float = 0.0

    @property
    def swapped(self) -> list[Swap]:
        """Keys that launch a newer choice now."""
        return [swap for swap in self.swaps if swap.launches]

    def to_json(self) -> dict[str, Json]:
        """All fields as JSON."""
        return {**asdict(self), "seconds": round(self.seconds, 3)}


class Refresher:
    """A thread that refreshes at intervals, until `close()` or the end of a `with` block.

    Attributes:
        latest: Result of the latest refresh; None before the first.
    """

    def __init__(self, every_s: float, strict: bool) -> None:
        self.latest: Refreshed | None = None
        self._every_s, self._strict = every_s, strict
        _running.append(self)
        self.begin_process()

    def begin_process(self) -> None:
        """Start the thread, also in a forked child."""
        self._stopped = threading.Event()
        threading.Thread(target=self._run, args=(self._stopped,), name="autotuned-refresh", daemon=True).start()

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(min(self._every_s, threading.TIMEOUT_MAX)):
            try:
                self.latest = _refreshed(self._strict, partial(self._rest, stopped))
            except Exception as error:
                env.warn_once(f"refresh {error!r}", "refresh: %s; it is tried again in %g s.", error, self._every_s)

    def _rest(self, stopped: threading.Event, worked_s: float) -> bool:
        return stopped.wait(min(RESTS * worked_s, self._every_s, threading.TIMEOUT_MAX))

    def close(self) -> None:
        """Stop the thread; may be called twice."""
        self._stopped.set()
        if self in _running:
            _running.remove(self)

    def __enter__(self) -> Refresher:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_running: list[Refresher] = []
_lock = renewed(threading.Lock())  # one refresh at a time
#: By tuner and digest: the stamp of the latest record read, and whether a seal refused it.
_seen: weakref.WeakKeyDictionary[Tuner, dict[str, tuple[Any, bool]]] = weakref.WeakKeyDictionary()


def _after_fork_in_child() -> None:
    for one in list(_running):
        one.begin_process()


after_fork(_after_fork_in_child)


@overload
def refresh(every_s: None = None, *, strict: bool = False) -> Refreshed: ...
@overload
def refresh(every_s: float, *, strict: bool = False) -> Refresher: ...


def refresh(every_s: float | None = None, *, strict: bool = False) -> Refreshed | Refresher:
    """Take newer choices from the store for the calls of this process: now, or at intervals in the background.

    Choices that another process made meanwhile, such as `autotuned tune --follow`, are compiled or loaded on this
    thread and then swapped in between two launches; launches that hit the table never wait. The old choice stays if
    the new one does not compile here, a seal refuses it, or `.cache` has a pin. In the background, keys are swapped one
    by one with rests in between, so that fewer than 1% of the calls overlap with this work.

    Nothing is swapped while this thread captures a CUDA graph, nor in the modes "off" and "search". Under
    `autotuned.sync` every rank must call this without `every_s`, equally often and at the same points of the program:
    then all ranks swap the same keys, or none.

    Args:
        every_s: Seconds between refreshes on a daemon thread, also in forked children; None refreshes once, now.
        strict: Also swap in mode "strict", whose choices otherwise stay for the whole run.

    Returns:
        The result; with `every_s` a handle, whose `close()` ends it.

    Raises:
        OptionError: `every_s` is not a number above 0.
        SyncError: Under `autotuned.sync`, a rank did not call it in time; nothing is swapped.
    """
    if every_s is None:
        return _refreshed(strict)
    if isinstance(every_s, bool) or not isinstance(every_s, (int, float)) or not every_s > 0:
        raise refused("every_s", f"expected seconds above 0, got {every_s!r}")
    return Refresher(float(every_s), strict)


class _Used(NamedTuple):
    """A key that this process uses, with its bound launches, for one list of candidates."""

    tuner: Tuner
    key: Key
    live: Live
    needed: Conditions
    bounds: list[Bound]
    known: list[Bound]  # all bound launches of the tuner at that time

    def label(self, config: Any) -> str:
        return self.tuner.chooser.label(config)

    def others(self, choice: Choice) -> list[Bound]:
        """Launches bound with a config other than the choice's."""
        identity = self.tuner.chooser.state.identity
        return [one for one in self.bounds if identity(one.config) != identity(choice.config)]


def _refreshed(strict: bool, rest: Callable[[float], bool] | None = None) -> Refreshed:
    """Refresh once; `rest` is called after each key with the seconds it took, and returns whether to stop."""
    alone, start = rest is not None, time.perf_counter()
    result = Refreshed(reason=_why_not(strict, alone))
    if result.reason:
        env.warn_once(f"refresh {result.reason}", "refresh: nothing is swapped: %s.", result.reason)
        return result
    with _lock:
        used = [one for of in tuner.live() for one in _used_by(of)]
        _ask_shared({one.key for one in used})
        result.keys = len({one.key for one in used})
        changed = _with_news(used)
        if active.agreements:
            news = [(one, newer) for one in changed if (newer := _newer(one)) is not None]
            result.swaps += _swap_together(used, news)
        elif rest is None:
            result.swaps += filter(None, map(_looked_at, changed))
    if rest is not None:
        result.swaps += _one_by_one(changed, strict, rest)
    result.seconds = time.perf_counter() - start
    return result


def _one_by_one(changed: list[_Used], strict: bool, rest: Callable[[float], bool]) -> Iterator[Swap]:
    """Read and swap with pauses, in which others may refresh; the next refresh finds the keys left at a stop."""
    left = changed[::-1]
    while left:
        with _lock:
            start = time.perf_counter()
            if _why_not(strict, alone=True):
                break
            if (swap := _looked_at(left.pop())) is not None:
                yield swap
        if left and rest(time.perf_counter() - start):
            break
    for one in left:
        _seen[one.tuner].pop(one.key.digest, None)


def _looked_at(used: _Used) -> Swap | None:
    """Swap the newer choice of a key, if it has one."""
    newer = _newer(used)
    return None if newer is None else _swapped(_made(used, newer))


def _ask_shared(keys: set[Key]) -> None:
    """Copy newer records from the shared store, if any, to the user's own; waits at most `SHARED_S`."""
    store = connection.store() if env.has_store() else None
    if store is not None:
        store.ask(keys).wait(SHARED_S)


def _why_not(strict: bool, alone: bool) -> str:
    """Why no refresh is possible now; "" if it is."""
    mode = env.current_mode()
    if mode in ("off", "search"):
        return f"mode {mode!r} serves no stored choices"
    if mode == "strict" and not strict:
        return "mode 'strict' keeps its choices for the whole run; refresh(strict=True) swaps nevertheless"
    if kernel.capturing():
        return "a CUDA graph is being captured"
    if active.agreements and alone:
        return "under autotuned.sync all ranks must call refresh() at the same point, which every_s= cannot ensure"
    return ""


def _used_by(of: Tuner) -> Iterator[_Used]:
    found: dict[tuple[Key, int, str], _Used] = {}
    known = of.launcher.bounds()
    for one in known:
        use: Chosen | None = one.use
        if use is None:
            continue
        needed, key = use.needed, use.key
        if key is None:  # bound without a key, from a shipped binary
            key, needed = of.chooser.key(use.call), of.options.needs(of.tunable.name, use.live)
            one.use = use.replace(key=key, needed=needed)
        if of.chooser.state.keeps(key):
            same = key, id(use.live), canonical(needed.to_json())
            found.setdefault(same, _Used(of, key, use.live, needed, [], known)).bounds.append(one)
    yield from found.values()
    bound = {key for key, _, _ in found}
    state = of.chooser.state
    for key in list(state.choices):  # a copy: other threads add choices
        if key not in bound and state.keeps(key) and (stamp := _changed(of, key)) is not None:
            _seen[of][key.digest] = stamp, False
            state.choices.pop(key, None)  # the next call looks it up
            _drop_in_flight(of, key, known)


def _drop_in_flight(of: Tuner, key: Key, known: list[Bound]) -> None:
    """Let no call that began before a key's choice was replaced keep the older one, whose record counts as seen now.

    Calls in flight are not bound. If one was bound since `known` was read, the kernel's launch table is cleared.
    """
    active.drop_in_flight()
    ids = set(map(id, known))
    late = (one.use for one in of.launcher.bounds() if id(one) not in ids and one.use is not None)
    if any(use.key is None or use.key == key for use in late):
        of.launcher.clear()


def _changed(of: Tuner, key: Key) -> Any:
    """Stamp of a key's record if it changed since the last refresh, otherwise None."""
    stamp = disk.stamp(layout.record_path(key))
    seen, was_sealed = _seen.setdefault(of, {}).get(key.digest, (None, False))
    return None if seen == stamp and not (was_sealed and not sealing.forbids()) else stamp


def _with_news(used: list[_Used]) -> list[_Used]:
    """Keys whose record changed since the last refresh."""
    changed = [(one, stamp) for one in used if (stamp := _changed(one.tuner, one.key)) is not None]
    for one, stamp in changed:  # noted before they are read; a key may be used with several lists of candidates
        _seen[one.tuner][one.key.digest] = stamp, False
    return [one for one, _ in changed]


def _newer(used: _Used) -> Choice | None:
    """The store's choice for a key, if a launch is bound with another config."""
    store, excluded = sources.exact_places(used.needed)[:1], used.tuner.chooser.state.excluded_for(used.key)
    choice = sources.find(used.key, used.live, store, excluded)
    return choice if choice is not None and used.others(choice) else None


# -- the swap ----------------------------------------------------------------------------------------------------------


class _Ready(NamedTuple):
    used: _Used
    choice: Choice
    pairs: list[tuple[Bound, Bound]]
    swap: Swap


def _made(used: _Used, choice: Choice) -> _Ready:
    """Compile or load a choice for all bound launches of a key."""
    others, start = used.others(choice), time.perf_counter()
    before = used.label(others[0].config) if others else ""
    choice = choice.replace(note=f"in place of {before}, by refresh")
    ready = _Ready(used, choice, [], Swap(used.key.kernel, used.key.digest, before, used.label(choice.config)))
    for old in others:
        try:
            chosen: Chosen = old.use.replace(choice=choice)
            with _beside_launches(chosen.device):
                if choice.config.pre_hook is not None and chosen.call.has_descriptors:  # it may set block shapes
                    choice.config.pre_hook(chosen.call.full(choice.config))
                ready.pairs.append((old, used.tuner.bound_anew(chosen)))
        except Exception as error:  # user hooks and heuristics may raise anything
            _refuse(ready, error)
    ready.swap.seconds = time.perf_counter() - start
    return ready


@contextlib.contextmanager
def _beside_launches(device: int | None) -> Iterator[None]:
    """Work on a GPU without breaking graph captures of other threads."""
    if device is None:
        yield
        return
    with kernel.on_device(device), libcuda.relaxed_captures():
        yield


def _refuse(ready: _Ready, error: Exception) -> None:
    """Note that a choice cannot be used for a bound launch, which stays in use."""
    used, cause = ready.used, error.error if isinstance(error, RefusedError) else error
    why = ready.swap.refused = failures.describe(cause)
    if isinstance(cause, SealedError):  # already reported
        seen = _seen.setdefault(used.tuner, {})  # the record behind a rank's proposal may be unseen here
        seen[used.key.digest] = seen.get(used.key.digest, (None,))[0], True
        return
    if failures.is_passing(cause):
        _seen[used.tuner].pop(used.key.digest, None)  # tried again
    elif isinstance(error, RefusedError):
        state = used.tuner.chooser.state
        state.excluded.add(used.key.digest, state.identity(ready.choice.config), exclusions.Reason.NOT_LAUNCHED, why)
    label = f"{ready.swap.after} ({ready.choice.where}): {why}; {ready.swap.before} stays"
    events.emit("refuse", used.key.kernel, used.key.digest, 0.0, label)
    used.tuner.chooser.state.warn_once(
        f"refresh {used.key.digest} {why}",
        "`%s`: expected the newer choice %s for key %s to be ready to launch, got %s; the current one stays.",
        used.key.kernel, ready.swap.after, used.key.digest[:12], why,
    )  # fmt: skip


def _swapped(ready: _Ready) -> Swap:
    used, swap = ready.used, ready.swap
    swap.launches = sum(used.tuner.launcher.swap(old, new) for old, new in ready.pairs)
    if swap.launches:
        used.tuner.chooser.state.remember(used.key, ready.choice)
        _drop_in_flight(used.tuner, used.key, [*used.known, *(new for _, new in ready.pairs)])
        used.tuner.on_choice(ready.pairs[0][1].use.call, ready.choice, launched=False)
        words = f"{swap.before} -> {swap.after} ({ready.choice.where})"
        events.emit("swap", swap.kernel, swap.digest, swap.seconds, words)
    return swap


# -- ranks -------------------------------------------------------------------------------------------------------------


def _swap_together(used: list[_Used], found: list[tuple[_Used, Choice]]) -> list[Swap]:
    """Swap the choices found by any rank that all ranks can use.

    Raises:
        SyncError: A rank did not call in time; nothing is swapped.
    """
    ranks = active.agreements[-1]
    proposed = {one.key.digest: _proposal(one, choice) for one, choice in found}
    agreed: Mapping[str, Json] = ranks.proposals(proposed)
    asked = [(one, said) for one in used if (said := agreed.get(one.key.digest)) is not None]
    ready = [_made(one, _proposed(one, said)) for one, said in asked if said["config"] in one.live]
    done = [one for one in ready if not one.swap.refused]
    impossible = {one.key.digest for one, _ in asked} if len(done) < len(asked) else set()
    together = ranks.all_ready(agreed, impossible - {one.used.key.digest for one in done})
    return [_swapped(one) if one.used.key.digest in together else one.swap for one in ready]


def _proposal(used: _Used, choice: Choice) -> Json:
    under = None if choice.conditions is None else choice.conditions.to_json()
    config = used.tuner.chooser.state.identity(choice.config)
    return {"config": config, "origin": Origin.STORE.name, "record": None, "conditions": under}


def _proposed(used: _Used, said: Json) -> Choice:
    """A rank's proposal as a choice among this rank's candidates."""
    under = None if said["conditions"] is None else conditions.load(said["conditions"], "conditions")
    return Choice(used.live[said["config"]], Origin.STORE, where=f"rank {said['rank']}", conditions=under)
