"""What an untuned call gets: `default=`, else the first config that compiles."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from autotuned.errors import ConfigError
from autotuned.search import failures
from autotuned.store.lookup import Candidates, Choice, Live, Origin
from autotuned.tunable import configs
from autotuned.tunable.call import Call, Tunable

log = logging.getLogger("autotuned")


def default(tunable: Tunable, found: Any, call: Call, live: Candidates) -> Choice:
    """What `default=` says for a call, else the first config.

    Raises:
        ConfigError: `default=` gave no config, or one that cannot belong to the kernel.
    """
    if found is None:
        found = next(iter(live.values()))
    _check(tunable, found)
    if len(live) and not tunable.launches(call, found):  # one that would do nothing where others would do it all
        others = (config for config in live.values() if tunable.launches(call, config))
        if (instead := next(others, None)) is not None:
            return Choice(instead, Origin.DEFAULT, lasting=False)
    return Choice(found, Origin.DEFAULT)


def candidate(tunable: Tunable, live: Live, ask: Callable[[], Any], allows: Callable[[Any], bool]) -> Any:
    """What `default=` gives, as a candidate; None where it gives none that can be, and the candidates say why.

    Args:
        live: The other candidates; they keep what was said.
        ask: Gives the config; it may raise, which is raised again where the default is all there is.
        allows: Whether the call may have it.
    """
    try:
        found = ask()
        live.said = (found,)
        if found is not None:
            _check(tunable, found)
    except Exception as error:
        live.no_default = failures.describe(error)
        return None
    if found is not None and allows(found):
        return found
    live.no_default = "the pruner drops it"
    return None


def _check(tunable: Tunable, found: Any) -> None:
    """Refuse what `default=` gave where it is no config of the kernel.

    Raises:
        ConfigError: It is none, or cannot belong to the kernel.
    """
    if not configs.is_config(found):
        raise ConfigError(
            f"`{tunable.name}`: default: expected a triton.Config, or a callable of the arguments "
            f"returning one, got {type(found).__name__}.",
            kernel=tunable.name,
        )
    configs.check([found], tunable)


def first_that_compiles(tunable: Tunable, call: Call, live: Iterable[Any]) -> Any:
    """The first config that compiles here; where none does, the first, whose launch raises the compiler's own error."""
    given = list(live)
    for config in given:
        try:
            tunable.compile(call, config)
        except Exception as error:
            log.info("`%s`: %s does not compile here (%s)", tunable.name, config, failures.describe(error))
        else:
            return config
    return given[0]
