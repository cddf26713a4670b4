"""Why a stored config does not match a call: a name, type or value that the live configs lack."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from autotuned.tunable.configs import OPTIONS, label, suggestion
from autotuned.typed_json import Json


def misfit(form: Mapping[str, Json], identities: Iterable[str]) -> str:
    """One line on why a config, given in canonical form, is not among the live ones; configs are never adapted."""
    live = [json.loads(identity) for identity in identities]
    if not live:
        return f"{label(form)}: the call has no config that launches"
    return (
        f"{label(form)}: {_of_names(form, live) or _of_types(form, live) or _of_hooks(form, live) or _of_values(live)}"
    )


def _of_names(form: Mapping[str, Json], live: list[Any]) -> str:
    known = {name for one in live for name in one["kwargs"]}
    unknown = sorted(form["kwargs"].keys() - known)
    if unknown:
        return f"no config of this kernel sets {unknown[0]!r}.{suggestion(unknown[0], sorted(known))}".rstrip(".")
    missing = sorted(set.intersection(*(set(one["kwargs"]) for one in live)) - form["kwargs"].keys())
    return f"it does not set {missing[0]!r}" if missing else ""


def _of_types(form: Mapping[str, Json], live: list[Any]) -> str:
    for name, value in form["kwargs"].items():
        kinds: dict[str, Json] = {}
        for there in (one["kwargs"][name] for one in live if name in one["kwargs"]):
            kinds.setdefault(_kind(there), there)
        if _kind(value) not in kinds:
            kind, example = next(iter(kinds.items()))
            return f"{name}: expected {kind} such as {example!r:.60}, got {_kind(value)} {value!r:.60}"
    return ""


def _kind(value: Json) -> str:
    """The type of a value in typed JSON: `{"float": ...}` is a float."""
    if isinstance(value, dict) and len(value) == 1:
        return str(next(iter(value)))
    return type(value).__name__


def _of_hooks(form: Mapping[str, Json], live: list[Any]) -> str:
    twins = [one for one in live if all(one[name] == form[name] for name in ("kwargs", *OPTIONS))]
    if not twins:
        return ""
    if form["pre_hook"] and any(one["pre_hook"] for one in twins):
        return "it was measured with another pre_hook than the live config of equal values has"
    if form["pre_hook"]:
        return "it had a pre_hook, and the live config of equal values has none to attach"
    return "it had no pre_hook, and the live config of equal values has one"


def _of_values(live: list[Any]) -> str:
    return f"it is not among the {len(live)} configs of this call: the list was edited, or this call may not use it"
