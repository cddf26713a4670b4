"""The seal: from then on a search or a compilation is an error, or a warning, that says what was missing."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from autotuned import env, events
from autotuned._startup import later
from autotuned.errors import OptionError, SealedError

if TYPE_CHECKING:
    from autotuned.binaries import variant
    from autotuned.key import source, words
    from autotuned.key.key import Key
    from autotuned.triton_compat import compiling, specialization
else:
    variant, source, words = later("binaries.variant"), later("key.source"), later("key.words")
    compiling, specialization = later("triton_compat.compiling"), later("triton_compat.specialization")

BEFORE = "Before the seal, make it known with autotuned.prepare(calls=...), or ship it: autotuned export --binaries."
TUNE = "Tune it before the seal, or ship its choice: autotuned tune."


class Seal(NamedTuple):
    """What is refused, and how.

    Attributes:
        on: "error" or "warn". `all`: whether kernels that are not tuned are meant too.
    """

    on: env.OnSeal
    all: bool


class Sealed:
    """A seal that a `with` block lifts at its end."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    def __enter__(self) -> Sealed:
        """The seal, which is in force already."""
        return self

    def __exit__(self, *error: object) -> None:
        for place in reversed(range(len(_seals))):  # two threads may leave their blocks in either order
            if _seals[place] is self._seal:
                del _seals[place]
                break


# Process-wide, as modes are: autograd launches on threads of its own.
_seals: list[Seal] = []
_lifted: list[bool] = []  # whether `unseal` lifted what the environment said
_tuned: dict[int, tuple[weakref.ref[Any], str]] = {}  # by address: hashing a Triton function hashes its source


def seal(on: env.OnSeal = "error", *, all: bool = False) -> Sealed:
    """Allow no search and no compilation from now on; what is known, shipped, or in Triton's cache is served as ever.

    A call of a tuned or replaced kernel that needs more raises `SealedError`, before anything is searched, compiled or
    launched, or is warned of once. Threads, and processes that are forked, are sealed too.

    Args:
        on: "error" or "warn".
        all: The same for every Triton kernel of this process, those of libraries too.

    Returns:
        What may be used in a `with` statement, whose end lifts this seal.

    Raises:
        OptionError: `on` is neither.
    """
    if on not in env.SEALS:
        raise OptionError(f"on: expected 'error' or 'warn', got {on!r}.", option="on", problem=f"got {on!r}")
    made = Seal(on, all)
    _seals.append(made)
    events.begin()
    if all:
        _watch()
    return Sealed(made)


def unseal() -> None:
    """Lift all seals, that of `AUTOTUNED_SEAL` too."""
    _seals.clear()
    _lifted.append(True)


def current() -> Seal | None:
    """The seal in force; None without one.

    Raises:
        ValueError: `AUTOTUNED_SEAL` holds something else.
    """
    seals = _seals[-1:]
    if seals:
        return seals[0]
    kind = "" if _lifted else env.seal_kind()
    return Seal(kind, False) if kind else None


def forbids() -> bool:
    """Whether a search or a compilation is an error now."""
    now = current()
    return now is not None and now.on == "error"


# -- searches ----------------------------------------------------------------------------------------------------------


def refused_search(key: Key, lack: str) -> SealedError:
    """The error of a call that would be searched for.

    Args:
        lack: What the choice that is stored lacks; "" without one.
    """
    reason = lack or "nothing is stored or shipped for it"
    return _refusal("search", key.kernel, words.call_words(key.call), reason, TUNE, key.digest)


@contextmanager
def searching(key: Key) -> Iterator[None]:
    """Around a search: under a seal that warns it is said, and its compilations are not said one by one."""
    now = current()
    if now is None:
        yield
        return
    _warn(refused_search(key, ""))
    _searching.append(key.kernel)
    try:
        yield
    finally:
        _searching.remove(key.kernel)


_searching: list[str] = []  # kernels, whose configs are compiled on other threads too


# -- compilations ------------------------------------------------------------------------------------------------------


def note(jit: Any, name: str) -> None:
    """Take note of a Triton function that is tuned or replaced, and of its public name."""
    address = id(jit)
    _tuned[address] = weakref.ref(jit, lambda gone: _tuned.pop(address, None)), name
    if events.is_begun() or env.seal_kind():
        _watch()


def _watch() -> None:
    compiling.begin(_begins, _ended)


events.when_begun(lambda: _watch() if _tuned else None)


def _name_of_tuned(jit: Any) -> str | None:
    there, name = _tuned.get(id(jit), (None, ""))
    return name if there is not None and there() is jit else None


def _name_of(compiled: Any) -> str:
    jit = getattr(compiled, "fn", None)
    known = None if jit is None else _name_of_tuned(jit)
    return known or (str(compiled.name) if jit is None else source.public_name(jit))


def _begins(compiled: Any) -> None:
    now, jit = current(), getattr(compiled, "fn", None)
    if now is None or not (now.all or _name_of_tuned(jit) is not None):
        return
    name = _name_of(compiled)
    if now.on == "warn" and name in _searching:
        return
    call, why = _asked.by() if _asked.by is not None and _asked.name == name else (_call_of(compiled), "")
    error = _refusal("compile", name, call, why or difference(compiled), BEFORE)
    if now.on == "error":
        raise error
    _warn(error)


def _ended(compiled: Any, seconds: float) -> None:
    events.emit("compile", _name_of(compiled), "", seconds, _call_of(compiled))


class _Asked(threading.local):
    """What says of which call of a kernel a compilation on this thread is, and why no binary serves it."""

    name = ""
    by: Callable[[], tuple[str, str]] | None = None


_asked = _Asked()


@contextmanager
def asked_by(name: str, by: Callable[[], tuple[str, str]]) -> Iterator[None]:
    """While a call of a kernel is compiled: its words, and why no binary serves it ("" if that is not known), if it is
    refused. Hooks within may have other kernels compiled.
    """
    before = _asked.name, _asked.by
    _asked.name, _asked.by = name, by
    try:
        yield
    finally:
        _asked.name, _asked.by = before


# -- words -------------------------------------------------------------------------------------------------------------


def _refusal(what: str, kernel: str, call: str, reason: str, instead: str, digest: str = "") -> SealedError:
    noun = {"search": "a search", "compile": "a compilation"}[what]
    text = f"`{kernel}`: expected no {what} under autotuned.seal(), and the call ({call}) needs {noun}: {reason}."
    events.emit("refuse", kernel, digest, 0.0, f"sealed: {reason}")
    return SealedError(f"{text} {instead}", kernel=kernel, what=what, reason=reason)


def _warn(error: SealedError) -> None:
    env.warn_once(str(error), "%s", error)


def difference(compiled: Any) -> str:
    """In what a source differs from those that Triton has compiled of the same kernel here, by the nearest."""
    own, jit = _form(compiled), getattr(compiled, "fn", None)
    if jit is None:
        return "it is compiled from a file"
    forms = [form for form in map(_form, compiling.sources_of(jit)) if form is not None]
    if own is None or not forms:
        return "nothing of it was compiled or loaded before"
    return variant.difference(forms, own, exact=True) or "another option was compiled"


def _form(compiled: Any) -> variant.Form | None:
    """A source as binaries are told apart, but for options; None where no binary can say what it is compiled for."""
    try:
        parts = compiled.signature, compiled.constants, compiled.attrs, SimpleNamespace(), 0
        constexprs = [parameter.name for parameter in compiled.fn.params if parameter.is_constexpr]
        return variant.form_of(specialization.Specialization(*parts), constexprs)
    except (AttributeError, TypeError, ValueError):
        return None


def _call_of(compiled: Any) -> str:
    """What a source is compiled for, in a line."""
    constants = getattr(compiled, "constants", {})
    parts = [
        f"{name}={constants[place,]!r}" if (place,) in constants else f"{name}: {type_}"
        for place, (name, type_) in enumerate(getattr(compiled, "signature", {}).items())
    ]  # fmt: skip
    return ", ".join(parts)
