"""What an untuned call gets: `default=`, else the first config that compiles."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from autotuned.errors import ConfigError
from autotuned.search import failures
from autotuned.store.lookup import Candidates, Choice, Origin
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
    if not configs.is_config(found):
        raise ConfigError(
            f"`{tunable.name}`: default: expected a triton.Config, or a callable of the arguments "
            f"returning one, got {type(found).__name__}.",
            kernel=tunable.name,
        )
    configs.check([found], tunable)
    if len(live) and not tunable.launches(call, found):  # one that would do nothing where others would do it all
        others = (config for config in live.values() if tunable.launches(call, config))
        if (instead := next(others, None)) is not None:
            return Choice(instead, Origin.DEFAULT, lasting=False)
    return Choice(found, Origin.DEFAULT)


def usable_default(tunable: Tunable, ask: Callable[[], Any]) -> Any:
    """The config that `default=` gives, as a candidate; None where it gives none that can be: that is said when it is
    all there is.
    """
    try:
        found = ask()
        if configs.is_config(found):
            configs.check([found], tunable)
            return found
    except Exception as error:
        log.info("`%s`: default= takes no part in the search: %s", tunable.name, failures.describe(error))
    return None


def first_that_compiles(
    tunable: Tunable, call: Call, live: Iterable[Any], is_shipped: Callable[[Call, Any], bool] = lambda call, one: False
) -> Any:
    """The first config that compiles here; where none does, the first, whose launch raises the compiler's own error.

    Args:
        is_shipped: Whether a call with a config has a compiled kernel that ships, and so need not be tried.
    """
    given = list(live)
    for config in given:
        try:
            if not is_shipped(call, config):
                tunable.compile(call, config)
        except Exception as error:
            log.info("`%s`: %s does not compile here (%s)", tunable.name, config, failures.describe(error))
        else:
            return config
    return given[0]
