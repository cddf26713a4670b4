"""The seal: a search or compilation under it is an error or warning that says what was missing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from autotuned import env, events
from autotuned._startup import Frozen, later
from autotuned.errors import OptionError, SealedError
from autotuned.triton_compat import kernel as kernels

if TYPE_CHECKING:
    from autotuned.binaries import variant
    from autotuned.key import source, words
    from autotuned.key.key import Key
    from autotuned.triton_compat import compiling, specialization
else:
    variant, source, words = later("binaries.variant"), later("key.source"), later("key.words")
    compiling, specialization = later("triton_compat.compiling"), later("triton_compat.specialization")

BEFORE = "Before the seal, compile it with autotuned.prepare(calls=...), or ship it: autotuned export --binaries."
TUNE = "Tune it before the seal, or ship its choice: autotuned tune."


class Seal(Frozen):
    """What is refused, and how."""

    on: env.OnSeal  # "error" or "warn"
    all: bool  # include kernels that are not tuned


class Sealed:
    """A seal that ends with its `with` block."""

    def __init__(self, seal: Seal) -> None:
        self.seal = seal

    def __enter__(self) -> Sealed:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(ValueError):  # lifted by `unseal`
            _seals.remove(self)  # by identity: threads and tasks may leave their blocks in any order
        _tell_lifted()


# Process-wide, since autograd launches on its own threads.
_seals: list[Sealed] = []
_lifted: list[bool] = []  # whether `unseal` lifted AUTOTUNED_SEAL
on_lifted: list[Callable[[], None]] = []  # called when searches are allowed again, to drop what served meanwhile


def _tell_lifted() -> None:
    """Call `on_lifted`, unless searches are still forbidden: then the same choices would serve again."""
    if not forbids() and env.current_mode() not in ("serve", "strict"):
        for callback in on_lifted:
            callback()


def seal(on: env.OnSeal = "error", *, all: bool = False) -> Sealed:
    """Allow no search and no compilation from now on; known and shipped choices and Triton's cache still serve.

    A call of a tuned or replaced kernel that needs more raises `SealedError` before anything is searched, compiled or
    launched, or warns once. The seal covers all threads and forked processes.

    Args:
        on: "error" or "warn".
        all: Include every Triton kernel of this process, also those of libraries.

    Returns:
        A context manager that lifts this seal at its end; using it is optional.

    Raises:
        OptionError: `on` is neither.
    """
    if on not in env.SEALS:
        raise OptionError(f"on: expected 'error' or 'warn', got {on!r}.", option="on", problem=f"got {on!r}")
    made = Sealed(Seal(on, all))
    _seals.append(made)
    events.begin()
    if all:
        watch()
    return made


def unseal() -> None:
    """Lift all seals, also that of `AUTOTUNED_SEAL`."""
    _seals.clear()
    _lifted.append(True)
    _tell_lifted()


def current() -> Seal | None:
    """The seal in force, or None.

    Raises:
        ValueError: `AUTOTUNED_SEAL` is invalid.
    """
    seals = _seals[-1:]
    if seals:
        return seals[0].seal
    kind = "" if _lifted else env.seal_kind()
    return Seal(kind, False) if kind else None


def forbids() -> bool:
    """Whether a search or a compilation is an error now."""
    now = current()
    return now is not None and now.on == "error"


# -- searches ----------------------------------------------------------------------------------------------------------


def refused_search(key: Key, lack: str) -> SealedError:
    """The error of a call that needs a search; `lack`: conditions that its stored choice lacks, or ""."""
    reason = lack or "nothing is stored or shipped for it"
    return _refusal("search", key.kernel, words.call_words(key.call), reason, TUNE, key.digest)


@contextmanager
def searching(key: Key) -> Iterator[None]:
    """Around a search: warn once under a seal that warns, not for each compilation."""
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


_searching: list[str] = []  # kernels; their configs compile on other threads too


# -- compilations ------------------------------------------------------------------------------------------------------


def watch() -> None:
    """See each compilation of this process."""
    compiling.begin(_begins, _ended)


def _name_of(compiled: Any) -> str:
    jit = getattr(compiled, "fn", None)
    known = None if jit is None else kernels.name_of(jit)
    return known or (str(compiled.name) if jit is None else source.public_name(jit))


def _begins(compiled: Any) -> None:
    now, jit = current(), getattr(compiled, "fn", None)
    if now is None or not (now.all or kernels.name_of(jit) is not None):
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
    """The kernel that this thread compiles, and what describes the call and why no binary serves it."""

    name = ""
    by: Callable[[], tuple[str, str]] | None = None


_asked = _Asked()


@contextmanager
def asked_by(name: str, by: Callable[[], tuple[str, str]]) -> Iterator[None]:
    """Let `by` describe the call that is compiled, should it be refused. Hooks may compile other kernels meanwhile."""
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
    """How a source differs from the nearest one that Triton has compiled of the same kernel."""
    own, jit = _form(compiled), getattr(compiled, "fn", None)
    if jit is None:
        return "it is compiled from a file"
    forms = [form for form in map(_form, compiling.sources_of(jit)) if form is not None]
    if own is None or not forms:
        return "it was not compiled or loaded before"
    return variant.difference(forms, own, exact=True) or "an option differs"


def _form(compiled: Any) -> variant.Form | None:
    """A source in the form that tells binaries apart, without options; None if it has none."""
    try:
        parts = compiled.signature, compiled.constants, compiled.attrs, SimpleNamespace(), 0
        constexprs = [parameter.name for parameter in compiled.fn.params if parameter.is_constexpr]
        return variant.form_of(specialization.Specialization(*parts), constexprs)
    except (AttributeError, TypeError, ValueError):
        return None


def _call_of(compiled: Any) -> str:
    """A source's constants and types of arguments, in a line."""
    constants = getattr(compiled, "constants", {})
    parts = [
        f"{name}={constants[place,]!r}" if (place,) in constants else f"{name}: {type_}"
        for place, (name, type_) in enumerate(getattr(compiled, "signature", {}).items())
    ]  # fmt: skip
    return ", ".join(parts)
