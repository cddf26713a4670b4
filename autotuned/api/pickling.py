"""Pickling of decorated objects, by name like functions, and their `repr`."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from autotuned import env
from autotuned._startup import errors
from autotuned.key import source
from autotuned.triton_compat import kernel as triton_names

if TYPE_CHECKING:
    from typing_extensions import Self

CaseGenerator = Callable[[Any], Iterator[Mapping[str, Any]]]


def by_name(module: str, qualname: str) -> Any:
    """Import an object by module and qualified name; called when a tuned object is unpickled."""
    return functools.reduce(getattr, qualname.split("."), importlib.import_module(module))


class Named:
    """Copied and pickled like a function: a copy is the object itself, a pickle its name."""

    fn: Any

    def __repr__(self) -> str:
        """Name, configs, number of choices and mode; for heuristics the computed names and the kernel."""
        kind, tuner = type(self).__name__, vars(self).get("tuner")
        if tuner is None:
            return f"{kind}({', '.join(getattr(self, 'values', ()))}; {self.fn!r})"
        declared, computed = tuner.options.declared, tuner.options.computed
        configs = declared.space if declared else "by a callable" if computed else len(tuner.options.configs())
        try:
            mode: str = env.current_mode()
        except ValueError:  # AUTOTUNED_MODE is invalid; a call reports it
            mode = "unknown"
        shown, known = "Tuned" if kind == "Decorated" else kind, len(tuner.chooser.state.choices)
        return f"{shown}({tuner.tunable.name}; configs: {configs}, choices: {known}, mode: {mode})"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        function: Any = source.python_function(self.fn)
        place = function.__module__, function.__qualname__
        try:
            found = by_name(*place)
        except (AttributeError, ImportError):
            found = None
        if found is not self and not any(layer is self for layer in triton_names.layers(found)):
            raise errors.DecorationError(
                f"`{'.'.join(place)}`: a tuned object is pickled by the name of its function: expected it there, got "
                f"{found!r:.80}. Give it that name in its module."
            )
        return by_name, place
