"""What an untuned call gets: `default=`, else the first config that compiles."""

from __future__ import annotations

import logging
from typing import Any

from autotuned import candidates, failures
from autotuned.errors import ConfigError
from autotuned.look import Candidates, Choice, Rung
from autotuned.question import Options, Question
from autotuned.target import Call, Target

log = logging.getLogger("autotuned")


def given(options: Options, call: Call) -> Any:
    """What `default=` says for a call; None where there is none."""
    found = options.default
    return found(**call.arguments) if callable(found) and not candidates.is_config(found) else found


def default(target: Target, options: Options, call: Call, live: Candidates) -> Choice:
    """`default=`, else the first config.

    Raises:
        ConfigError: `default=` gave no config, or one that cannot belong to the kernel.
    """
    found = given(options, call)
    if found is None:
        found = next(iter(live.values()))
    if not candidates.is_config(found):
        raise ConfigError(
            f"`{target.name}`: default: expected a triton.Config, or a callable of the arguments "
            f"returning one, got {type(found).__name__}.",
            kernel=target.name,
        )
    candidates.check([found], target)
    return Choice(found, Rung.DEFAULT)


def without_room(target: Target, options: Options, question: Question) -> Choice:
    """What runs while there is no room for a search; nothing of it lasts."""
    if options.default is not None:
        return default(target, options, question.call, question.live).replace(lasting=False)
    return first_that_compiles(target, question.call, question.live).replace(lasting=False)


def first_that_compiles(target: Target, call: Call, live: Candidates) -> Choice:
    """The first config that compiles here; where none does, the first, whose launch raises the compiler's own error."""
    return Choice(_first_that_compiles(target, call, live), Rung.DEFAULT)


def _first_that_compiles(target: Target, call: Call, live: Candidates) -> Any:
    for config in live.values():
        try:
            target.compile(call, config)
        except Exception as error:
            log.info("`%s`: %s does not compile here (%s)", target.name, config, failures.describe(error))
        else:
            return config
    return next(iter(live.values()))
