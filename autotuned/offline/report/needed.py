"""Which stored choices the calls of a recording may need: all that `list --unused` does not list and `prune` keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from autotuned.key.key import Key
from autotuned.key.nearest_key import differences
from autotuned.typed_json import Json, canonical

_OF_KERNEL = ("source", "version", "trial")  # parts of a context; the others are those of the whole program
_EQUAL = ("device", "environment")


class Needed:
    """The calls of a recording, by kernel, and the contexts they were made in."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._calls: dict[str, dict[str, Json]] = {}  # by kernel and text
        self._own: dict[str, set[str]] = {}  # by kernel: the parts of its contexts that are of the kernel
        self._toolchains: dict[str, list[set[str]]] = {}  # by device and environment
        for key in keys:
            self._calls.setdefault(key.kernel, {})[canonical(key.call)] = key.call
            self._own.setdefault(key.kernel, set()).add(_text(key.context, _OF_KERNEL))
            known = self._toolchains.setdefault(_text(key.context, _EQUAL), [])
            if (tools := set(_tools(key.context))) not in known:
                known.append(tools)

    def by(self, kernel: str, there: Iterable[Key]) -> Callable[[Key], bool]:
        """A predicate: whether a choice of a kernel may be needed, if there are choices for these keys.

        A choice of another device, toolchain, environment or source than those of the recording is for other programs.
        Of the others, one is needed if its call was recorded in any context, since policies may let it serve there, or
        if a recorded call without a choice differs only in sizes, since `nearest=` may serve it.
        """
        calls, known = self._calls.get(kernel, {}), {canonical(key.call) for key in there}
        without = [call for text, call in calls.items() if text not in known]

        def is_needed(key: Key) -> bool:
            is_used = not self._is_concerned(key) or canonical(key.call) in calls
            return is_used or any(_in_sizes_alone(key.call, call) for call in without)

        return is_needed

    def _is_concerned(self, key: Key) -> bool:
        """Whether the recorded program looks for choices of this context."""
        if key.kernel in self._own and _text(key.context, _OF_KERNEL) not in self._own[key.kernel]:
            return False
        tools = set(_tools(key.context))  # of a plain callable: those that it names
        return any(tools <= others for others in self._toolchains.get(_text(key.context, _EQUAL), ()))


def _text(context: Mapping[str, Json], names: Iterable[str]) -> str:
    return canonical({name: context.get(name) for name in names})


def _tools(context: Mapping[str, Json]) -> Iterator[str]:
    """The versions in a context, each as a text."""
    for name, part in context.items():
        if name == "distributions":
            yield from (canonical([name, *one]) for one in part.items())
        elif name not in _OF_KERNEL and name not in _EQUAL:
            yield canonical([name, part])


def _in_sizes_alone(ours: Json, theirs: Json) -> bool:
    """Whether two calls differ only in numbers and shapes."""
    return all(
        change.path.endswith(".shape") or (change.path.startswith("values.") and _are_sizes(change.ours, change.theirs))
        for change in differences(ours, theirs)
    )


def _are_sizes(*values: Json) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)
