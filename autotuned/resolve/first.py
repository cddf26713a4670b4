"""The first launch of a shipped binary, through its bound launch."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any

from autotuned._startup import later
from autotuned.resolve.request import Chosen, RefusedError

if TYPE_CHECKING:
    from autotuned.search import failures
else:
    failures = later("search.failures")


def launch_bound(tuner: Any, chosen: Chosen, binary: Any, start: float) -> Any:
    """Bind a shipped binary and launch it, so that the guards of later launches apply to the first.

    With `binary` None it is looked up after the grid is evaluated. Returns None without a launch if none is found.

    Raises:
        RefusedError: As `Tuner.first_launch`.
    """
    call, choice, server = chosen.call, chosen.choice, tuner.chooser.shipped.server
    values, in_c, is_asked = tuple(call.arguments.values()), tuner.launcher.in_c, callable(call.grid)
    arguments, sizes = server.sized(call, choice.config, was_asked=True)
    if is_asked or binary is None:  # a grid may have changed what the binary was compiled for
        binary = server.load(call, choice.config, is_fresh=not is_asked and chosen.key is None)  # by `Chooser._ready`
        if binary is None:
            return None
    may_be_in_c = in_c is not None and bool(sizes) and min(sizes) > 0
    if is_asked and not all(map(is_, map(arguments.get, call.arguments), values)):  # it replaced an argument
        may_be_in_c = False
    try:
        is_bound = tuner.bind(chosen, None, binary, start)
        launched = in_c.launch(values, sizes) if is_bound and may_be_in_c else None
        return server.launch(arguments, sizes, binary) if launched is None else launched
    except Exception as error:
        tuner.launcher.clear()
        if failures.is_refusal(error):
            raise RefusedError(error) from error
        raise
