"""Shipped binaries as the miss path asks for them: at once where nothing comes before them, and never for nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autotuned._lazy import later
from autotuned.key.key import Key
from autotuned.launch import launcher
from autotuned.resolve.context import Context
from autotuned.resolve.request import Question
from autotuned.store import layout
from autotuned.store.conditions import Conditions
from autotuned.store.lookup import Candidates, Choice, Look, Origin, Place
from autotuned.triton_compat import fingerprint, kernel
from autotuned.tunable.call import Call, Tunable
from autotuned.tunable.kernel import TunableKernel
from autotuned.typed_json import Json

if TYPE_CHECKING:
    from autotuned.binaries import serve
    from autotuned.configfiles import lookup
    from autotuned.resolve import explain
    from autotuned.resolve.explain import Explanation
else:
    serve, lookup, explain = later("binaries.serve"), later("configfiles.lookup"), later("resolve.explain")

_FROM_FILES = (Origin.BINARY, Origin.FILE, Origin.LADDER, Origin.NEAREST)


class Shipped:
    """The binaries for one tuned function; none for what is no compiled kernel.

    Nothing of this package's half for binaries is imported unless some folder may give code for the kernel.
    """

    def __init__(self, tunable: Tunable, context: Context) -> None:
        self._tunable, self._context = tunable, context
        self.possible = isinstance(tunable, TunableKernel) and not tunable.interpreted

    @cached_property
    def server(self) -> serve.Server:
        """Finds and loads them."""
        assert isinstance(self._tunable, TunableKernel)
        return serve.Server(self._tunable, self._context.version)

    @property
    def _offered(self) -> bool:
        """Whether some folder may give code for the kernel."""
        if not self.possible:
            return False
        module = str(getattr(getattr(self._tunable, "function", None), "__module__", ""))
        return any(folder.may_give_code(module) for folder in lookup.folders())

    def may_be_first(self) -> bool:
        """Whether nothing that comes before a config file can answer: the user's store has no record of the kernel."""
        return self.possible and not _has_records(self._tunable.name) and self._offered

    def look(self, call: Call, part: Json, live: Candidates, needed: Conditions) -> Look:
        """The choice of an entry that comes with a binary, the toolchain not asked."""
        return self.server.look(call, part, self._context.without_toolchain(call), live, needed)

    def place(self, question: Question) -> Callable[[Key, Candidates], Look]:
        """The same as one of the places that a choice may come from."""

        def look(key: Key, live: Candidates) -> Look:
            if not self._offered:
                return Look(None, "absent")
            return self.server.look(question.call, key.call, key.context, live, question.needed)

        return look

    def load(self, call: Call, choice: Choice) -> Any:
        """The binary to launch for a choice; None where the call compiles as ever.

        A choice that did not come from files is asked about only in a process that reads files anyway.
        """
        if not self._worth_asking(choice):
            return None
        if launcher.binds_directly():
            return self.server.load(call, choice.config)
        self.server.fill(call, choice.config)
        return None

    def has(self, call: Call, config: Any) -> bool:
        """Whether there is a binary for a call with a config, loaded or not."""
        return self._worth_asking(Choice(config, Origin.DEFAULT)) and self.server.find(call, config) is not None

    def why_none(self, call: Call, choice: Choice) -> str:
        """Why no binary serves a call with a choice; "" where there are none of the kernel."""
        if not (self._worth_asking(choice) and self.server.has_any(call)):
            return ""
        return self.server.why_none(call, choice.config)

    def noted(self, found: Explanation, question: Question, places: Sequence[Place]) -> Explanation:
        """An explanation with a remark on the binary for what answers, where there are any for the kernel."""
        if not (found.hit and self._offered and self.server.has_any(question.call)):
            return found
        choice, _, _ = explain.ask(places, question.key, question.live)
        if choice is None:
            return found
        why = self.server.why_none(question.call, choice.config)
        return replace(found, remarks=(*found.remarks, f"it compiles: {why}" if why else "a shipped binary is loaded"))

    def _worth_asking(self, choice: Choice) -> bool:
        if choice.origin is Origin.SEARCH or not self.possible:
            return False
        reads = choice.origin in _FROM_FILES or "autotuned.configfiles.lookup" in sys.modules
        return reads and self._offered


def _has_records(name: str) -> bool:
    try:
        return any(file.endswith(".json") for file in os.listdir(layout.kernel_folder(name)))
    except OSError:
        return False


class LazyDevice:
    """The current device's index, asked of a driver found at the first call: decorating must not initialise CUDA.

    Args:
        needs_no_key: Whether the first call may be answered without a hash over Triton's files.
    """

    def __init__(self, needs_no_key: Callable[[], bool]) -> None:
        self._needs_no_key = needs_no_key
        self._get: Callable[[], int] | None = None

    def __call__(self) -> int:
        """Its index."""
        return (self._get or self.getter())()

    def getter(self) -> Callable[[], int]:
        """What tells the index, for those who ask often."""
        if self._get is None:
            if not self._needs_no_key():
                fingerprint.begin(layout.root())
            self._get = kernel.current_device_getter()
        return self._get
