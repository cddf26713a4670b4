"""The context part of a key: device, toolchain, environment, source and salt, made anew only where one has changed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from autotuned.key import opaque
from autotuned.store import layout
from autotuned.tunable.call import Call, Tunable
from autotuned.typed_json import Json, canonical, encode


class Context:
    """The context in which the calls of one tuned function are made.

    All parts are asked for at each call of `of`; what is spared is writing them as text when they are as before.

    Args:
        trial: What makes times another quantity than by default (`request.trial_part`).
    """

    def __init__(self, tunable: Tunable, version: Any, trial: Mapping[str, Json] = MappingProxyType({})) -> None:
        self._tunable = tunable
        self._trial = {"trial": dict(trial)} if trial else {}
        self._version = encode(version, f"version of '{tunable.name}'", opaque.spell)
        self._latest: tuple[Any, dict[str, Json], str] = (None, {}, "")

    @property
    def version(self) -> Json:
        """The user's salt, as keys have it."""
        return self._version

    def without_toolchain(self, call: Call) -> dict[str, Json]:
        """The context part of a call's key but for the toolchain, of which nothing is read or hashed."""
        tunable = self._tunable
        parts = {"device": tunable.device(call).to_json(), "environment": tunable.environment()}
        return {**parts, **self._rest(tunable.source)}

    def _rest(self, source: str) -> dict[str, Json]:
        tunable = self._tunable
        rest = {"source": source, "version": self._version, **self._trial}
        if self._version is None and tunable.opaque:  # with a version the user says what of them matters
            rest["process"] = {name: opaque.this_very(value) for name, value in tunable.opaque}
        return rest

    def of(self, call: Call) -> tuple[dict[str, Json], str]:
        """The context part of a call's key, and its canonical text."""
        tunable = self._tunable
        where = tunable.device(call)
        now = (where, tunable.toolchain(where, layout.root()), tunable.environment(), tunable.source, _ids(tunable))
        latest = self._latest  # read once: a thread on another device may replace it
        if now != latest[0]:
            if latest[0] is not None and now[2] != latest[0][2]:
                tunable.environment_changed()
            context = {"device": where.to_json(), **now[1], "environment": now[2], **self._rest(now[3])}
            latest = self._latest = (now, context, canonical(context))
        return latest[1], latest[2]


def _ids(tunable: Tunable) -> list[int]:
    return [id(value) for _, value in tunable.opaque]
