"""`refresh`: newer choices of the store, made ready aside and put in the place of what is bound between launches."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from autotuned import env, events
from autotuned.binaries import libcuda
from autotuned.errors import OptionError, SealedError
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
from autotuned.typed_json import Json

if TYPE_CHECKING:
    from types import TracebackType

SHARED_S = 5.0  # what a look waits for the shared store; what comes later is there at the next one


@dataclass
class Swap:
    """One key whose newer choice was taken, or was not.

    Attributes:
        before, after: The configs, for people.
        launches: In how many entries of the launch table it has taken the other's place.
        refused: Why it was not taken, or not for all of them; "" if it was.
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
    """What came of one look for newer choices.

    Attributes:
        keys: How many keys this process uses, for which something could be newer.
        swaps: Those for which something was.
        reason: Why no look was taken; "" if one was.
    """

    keys: int = 0
    swaps: list[Swap] = field(default_factory=list)
    reason: str = ""
    seconds: float = 0.0

    @property
    def swapped(self) -> list[Swap]:
        """The keys that have a newer choice now."""
        return [swap for swap in self.swaps if swap.launches]

    def to_json(self) -> dict[str, Json]:
        """All of it."""
        return {**asdict(self), "seconds": round(self.seconds, 3)}


class Refresher:
    """A thread that looks for newer choices now and then, until `close()` or the end of a `with` block.

    Attributes:
        latest: What came of the latest look; None before the first.
    """

    def __init__(self, every_s: float, strict: bool) -> None:
        self.latest: Refreshed | None = None
        self._every_s, self._strict = every_s, strict
        _running.append(self)
        self.begin_process()

    def begin_process(self) -> None:
        """Start the thread, which a forked child needs anew."""
        self._stopped = threading.Event()
        threading.Thread(target=self._run, args=(self._stopped,), name="autotuned-refresh", daemon=True).start()

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(min(self._every_s, threading.TIMEOUT_MAX)):
            try:
                self.latest = _refreshed(self._strict, alone=True)
            except Exception as error:
                env.warn_once(f"refresh {error!r}", "refresh: %s; it is tried again in %g s.", error, self._every_s)

    def close(self) -> None:
        """Look no more; a second time does nothing."""
        self._stopped.set()
        if self in _running:
            _running.remove(self)

    def __enter__(self) -> Refresher:
        """The thread, which runs already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_running: list[Refresher] = []
_lock = threading.Lock()  # one look at a time
#: By tuner, of the records that were looked at: what is equal while a file is, and whether a seal was in the way.
_seen: weakref.WeakKeyDictionary[Tuner, dict[str, tuple[Any, bool]]] = weakref.WeakKeyDictionary()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for one in list(_running):
        one.begin_process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@overload
def refresh(every_s: None = None, *, strict: bool = False) -> Refreshed: ...
@overload
def refresh(every_s: float, *, strict: bool = False) -> Refresher: ...


def refresh(every_s: float | None = None, *, strict: bool = False) -> Refreshed | Refresher:
    """Take newer choices that the store has for the calls of this process: now, or now and then in the background.

    What another process has tuned meanwhile, such as `autotuned tune --follow`, is compiled or loaded on this thread
    and then takes the place of what is bound, between two launches: a launch that hits neither waits nor asks. What
    does not compile here, or may not under a seal, leaves the old choice in its place, and so does a pin in `.cache`.

    Nothing is swapped while this thread captures a CUDA graph, nor in the modes "off" and "search". Under
    `autotuned.sync` every rank must call this without `every_s`, the same number of times and at the same point of the
    program: all ranks then swap the same keys, or none.

    Args:
        every_s: Seconds between two looks of a daemon thread, which goes on in forked children; None looks once, now.
        strict: Swap in the mode "strict" too, whose runs are otherwise equal from beginning to end.

    Returns:
        What was swapped; with `every_s` a handle, whose `close()` ends it.

    Raises:
        OptionError: `every_s` is no number above 0.
        SyncError: Under `autotuned.sync`, a rank did not call it in time; nothing is swapped.
    """
    if every_s is None:
        return _refreshed(strict, alone=False)
    if isinstance(every_s, bool) or not isinstance(every_s, (int, float)) or not every_s > 0:
        problem = f"expected seconds above 0, got {every_s!r}"
        raise OptionError(f"every_s: expected seconds above 0, got {every_s!r}.", option="every_s", problem=problem)
    return Refresher(float(every_s), strict)


class _Used(NamedTuple):
    """A key that this process uses, and what is bound for it, with one list of candidates."""

    tuner: Tuner
    key: Key
    live: Live
    needed: Conditions
    bounds: list[Bound]

    def label(self, config: Any) -> str:
        """A config in a few words."""
        return self.tuner.chooser.label(config)

    def others(self, choice: Choice) -> list[Bound]:
        """What is bound with another config than that of a choice."""
        identity = self.tuner.chooser.state.identity
        return [one for one in self.bounds if identity(one.config) != identity(choice.config)]


def _refreshed(strict: bool, alone: bool) -> Refreshed:
    start, result = time.perf_counter(), Refreshed(reason=_why_not(strict, alone))
    if result.reason:
        env.warn_once(f"refresh {result.reason}", "refresh: nothing is swapped: %s.", result.reason)
        return result
    with _lock:
        used = [one for of in tuner.live() for one in _used_by(of)]
        _ask_shared({one.key for one in used})
        result.keys = len({one.key for one in used})
        found = [(one, choice) for one in used if (choice := _newer(one)) is not None]
        result.swaps = _swap_together(used, found) if active.agreements else _swap_alone(found)
    result.seconds = time.perf_counter() - start
    return result


def _ask_shared(keys: set[Key]) -> None:
    """Have newer records of the shared store kept in the user's own, where there is one; waits a while at most."""
    store = connection.store() if env.has_store() else None
    if store is not None:
        store.ask(keys).wait(SHARED_S)


def _why_not(strict: bool, alone: bool) -> str:
    """Why no look may be taken now; "" if one may."""
    mode = env.current_mode()
    if mode in ("off", "search"):
        return f"mode {mode!r} serves nothing that is stored"
    if mode == "strict" and not strict:
        return "in mode 'strict' a run stays as it began; refresh(strict=True) swaps all the same"
    if kernel.capturing():
        return "a CUDA graph is being captured"
    if active.agreements and alone:
        return "under autotuned.sync all ranks call refresh() at the same point; every_s= cannot know it"
    return ""


def _used_by(of: Tuner) -> Iterator[_Used]:
    """The keys that a tuned function uses now."""
    found: dict[tuple[Key, int, Conditions], _Used] = {}
    for one in of.launcher.bounds():
        use: Chosen | None = one.use
        if use is None:
            continue
        needed, key = use.needed, use.key
        if key is None:  # of what ships with a binary, for which none was made
            key, needed = of.chooser.key(use.call), of.options.needs(of.tunable.name, use.live)
            one.use = use._replace(key=key, needed=needed)
        if of.chooser.state.keeps(key):
            found.setdefault((key, id(use.live), needed), _Used(of, key, use.live, needed, [])).bounds.append(one)
    yield from found.values()
    bound = {key for key, _, _ in found}
    for key in [
        key for key in list(of.chooser.state.choices) if key not in bound
    ]:  # nothing is bound: it is asked anew
        if _changed(of, key) is not None:
            of.chooser.state.choices.pop(key, None)


def _changed(of: Tuner, key: Key) -> Any:
    """What tells a key's record from the one that was looked at last; None if it is the same, or there is none."""
    try:
        found = os.stat(layout.record_path(key))
    except OSError:
        return None
    stamp = found.st_ino, found.st_mtime_ns, found.st_size
    seen, was_sealed = _seen.setdefault(of, {}).get(key.digest, (None, False))
    return None if seen == stamp and not (was_sealed and not sealing.forbids()) else stamp


def _newer(used: _Used) -> Choice | None:
    """The choice that the store has for a key, if what is bound has another one."""
    stamp = _changed(used.tuner, used.key)
    if stamp is None:
        return None
    state, store = used.tuner.chooser.state, sources.exact_places(used.needed)[:1]
    choice = sources.find(used.key, used.live, store, state.excluded_for(used.key))
    _seen[used.tuner][used.key.digest] = stamp, False
    return choice if choice is not None and used.others(choice) else None


# -- the swap ----------------------------------------------------------------------------------------------------------


class _Ready(NamedTuple):
    """What is to be swapped of one key."""

    used: _Used
    choice: Choice
    pairs: list[tuple[Bound, Bound]]
    swap: Swap


def _swap_alone(found: list[tuple[_Used, Choice]]) -> list[Swap]:
    return [_swapped(_made(used, choice)) for used, choice in found]


def _made(used: _Used, choice: Choice) -> _Ready:
    """Compile or load a choice for all that is bound for a key."""
    others, start = used.others(choice), time.perf_counter()
    before = used.label(others[0].config) if others else ""
    choice = choice.replace(note=f"in place of {before}, by refresh")
    ready = _Ready(used, choice, [], Swap(used.key.kernel, used.key.digest, before, used.label(choice.config)))
    for old in others:
        try:
            chosen: Chosen = old.use._replace(choice=choice)
            with _beside_launches(chosen.device):
                if choice.config.pre_hook is not None and chosen.call.has_descriptors:  # whose blocks it may set
                    choice.config.pre_hook(chosen.call.full(choice.config))
                ready.pairs.append((old, used.tuner.bound_anew(chosen)))
        except Exception as error:  # whatever the user's compiler, hooks and heuristics raise
            _refuse(ready, error)
    ready.swap.seconds = time.perf_counter() - start
    return ready


@contextlib.contextmanager
def _beside_launches(device: int | None) -> Iterator[None]:
    """On a GPU, without a harm to graphs that other threads capture meanwhile."""
    if device is None:
        yield
        return
    with kernel.on_device(device), libcuda.beside_captures():
        yield


def _refuse(ready: _Ready, error: Exception) -> None:
    """Note that a choice cannot be had for something that is bound: that stays as it is."""
    used, cause = ready.used, error.error if isinstance(error, RefusedError) else error
    why = ready.swap.refused = failures.describe(cause)
    if isinstance(cause, SealedError):  # it has said so itself
        _seen[used.tuner][used.key.digest] = _seen[used.tuner][used.key.digest][0], True
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
        "`%s`: expected the newer choice %s for key %s to be ready to launch, got %s; the present one stays.",
        used.key.kernel, ready.swap.after, used.key.digest[:12], why,
    )  # fmt: skip


def _swapped(ready: _Ready) -> Swap:
    """Put what is ready in the place of what is bound, each between two launches."""
    used, swap = ready.used, ready.swap
    swap.launches = sum(used.tuner.launcher.swap(old, new) for old, new in ready.pairs)
    if swap.launches:
        used.tuner.chooser.state.remember(used.key, ready.choice)
        used.tuner.on_choice(ready.pairs[0][1].use.call, ready.choice, launched=False)
        words = f"{swap.before} -> {swap.after} ({ready.choice.where})"
        events.emit("swap", swap.kernel, swap.digest, swap.seconds, words)
    return swap


# -- ranks -------------------------------------------------------------------------------------------------------------


def _swap_together(used: list[_Used], found: list[tuple[_Used, Choice]]) -> list[Swap]:
    """Swap what all ranks can, of what any of them has found.

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
    """The choice that a rank has proposed, among the candidates of this one."""
    under = None if said["conditions"] is None else conditions.load(said["conditions"], "conditions")
    return Choice(used.live[said["config"]], Origin.STORE, where=f"rank {said['rank']}", conditions=under)
