"""The first launch of a choice, compiled or from a shipped binary; what cannot be launched here is refused."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any

from autotuned._startup import later
from autotuned.errors import SealedError
from autotuned.launch import launcher
from autotuned.resolve.request import Chosen, RefusedError
from autotuned.store.choice import Choice, Origin
from autotuned.tunable.call import Call

if TYPE_CHECKING:
    from autotuned.search import failures
else:
    failures = later("search.failures")

_MEASURED = (Origin.STORE, Origin.BINARY, Origin.FILE, Origin.LADDER, Origin.RULE, Origin.NEAREST, Origin.SEARCH)


def compiled(tuner: Any, call: Call, choice: Choice) -> Any:
    """Compile and load.

    Raises:
        RefusedError: A config measured elsewhere does not compile here: choose another.
    """
    try:
        return tuner.chooser.shipped.load(call, choice) or tuner.tunable.compile(call, choice.config)
    except Exception as error:
        if isinstance(error, SealedError) or failures.is_passing(error) or choice.origin not in _MEASURED:
            raise
        raise RefusedError(error) from error


def launch(tuner: Any, call: Call, choice: Choice, binary: Any) -> Any:
    """Launch a shipped binary, or with None through Triton.

    Raises:
        RefusedError: A config measured elsewhere was refused before the kernel ran. Later faults are raised as such.
    """
    if binary is None and choice.origin not in _MEASURED:
        return tuner.tunable.launch(call, choice.config)
    if binary is None:
        compiled(tuner, call, choice)
    try:
        if binary is not None:
            server = tuner.chooser.shipped.server
            return server.launch(*server.sized(call, choice.config), binary)
        return tuner.tunable.launch(call, choice.config)
    except Exception as error:
        if failures.is_refusal(error):
            raise RefusedError(error) from error
        raise


def launch_bound(tuner: Any, chosen: Chosen, binary: Any, start: float) -> Any:
    """Bind a shipped binary, and launch what is bound: what guards later launches guards the first.

    Raises:
        RefusedError: As `launch`.
    """
    call, choice, server = chosen.call, chosen.choice, tuner.chooser.shipped.server
    values, in_c, is_asked = tuple(call.arguments.values()), launcher.in_c(tuner.launcher), callable(call.grid)
    arguments, sizes = server.sized(call, choice.config)
    if is_asked:  # it may have changed what the binary is for
        binary = server.load(call, choice.config)
        if binary is None:
            return launch(tuner, call, choice, None)
    may_be_in_c = in_c is not None and min(sizes) > 0
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
