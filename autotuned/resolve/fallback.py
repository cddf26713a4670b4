"""What an untuned call gets: `default=`, else the first config that compiles."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from autotuned._lazy import later
from autotuned.errors import ConfigError
from autotuned.resolve.request import Question
from autotuned.search import failures
from autotuned.store.lookup import Candidates, Choice, Origin
from autotuned.tunable import configs
from autotuned.tunable.call import Call, Tunable

if TYPE_CHECKING:
    from autotuned.resolve.chooser import Chooser
    from autotuned.tunable import readers
else:
    readers = later("tunable.readers")

log = logging.getLogger("autotuned")


def given(chooser: Chooser, call: Call, live: Candidates) -> Any:
    """What `default=` says for a call; None where there is none, or it is a config that this call may not use."""
    found = chooser.options.default
    if configs.is_config(found):
        return found if chooser.allows(call, found, live) else None
    if not callable(found):
        return found
    chooser.seen |= readers.read_by(found, call.arguments)
    return found(**call.arguments)


def default(chooser: Chooser, call: Call, live: Candidates) -> Choice:
    """`default=`, else the first config.

    Raises:
        ConfigError: `default=` gave no config, or one that cannot belong to the kernel.
    """
    tunable, found = chooser.tunable, given(chooser, call, live)
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


def for_now(chooser: Chooser, question: Question) -> Choice:
    """What runs while nothing can be measured: there is no room, or nothing to launch; nothing of it lasts."""
    if chooser.options.default is not None:
        return default(chooser, question.call, question.live).replace(lasting=False)
    return first_that_compiles(chooser.tunable, question.call, question.live).replace(lasting=False)


def first_that_compiles(tunable: Tunable, call: Call, live: Candidates) -> Choice:
    """The first config that compiles here; where none does, the first, whose launch raises the compiler's own error."""
    return Choice(_first_that_compiles(tunable, call, live), Origin.DEFAULT)


def _first_that_compiles(tunable: Tunable, call: Call, live: Candidates) -> Any:
    for config in live.values():
        try:
            tunable.compile(call, config)
        except Exception as error:
            log.info("`%s`: %s does not compile here (%s)", tunable.name, config, failures.describe(error))
        else:
            return config
    return next(iter(live.values()))
