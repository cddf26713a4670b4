"""The outcome of a call without a known choice or a search: `default=`, the first config that compiles, an error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from autotuned._startup import later
from autotuned.errors import ConfigError, SealedError
from autotuned.resolve.request import Question, is_sealed
from autotuned.search import failures
from autotuned.store.choice import Candidates, Choice, Live, Origin
from autotuned.tunable import configs
from autotuned.tunable.call import Call
from autotuned.tunable.tunable import Tunable

if TYPE_CHECKING:
    from autotuned.resolve import explain
else:
    explain = later("resolve.explain")

log = logging.getLogger("autotuned")


def untuned(chooser: Any, question: Question) -> Choice:
    """The choice where the mode allows no search; NotTunedError in mode "strict"."""
    key, lack = question.key, chooser.lack(question) if question.mode in ("strict", "serve") else ""
    if question.mode == "strict":
        raise explain.not_tuned(key, "mode 'strict' allows no search", lack)
    if question.mode == "serve":
        chooser.untuned.note(key, lambda key: lack or explain.nearest_words(key))
    gives = chooser.first_that_compiles if chooser.options.default is None else chooser.default
    if chooser.options.default is None and question.mode == "auto":
        message = "`%s`: key %s and later ones run untuned: %d searches were run, the limit of max_searches=."
        chooser.state.warn_once("used up", message, key.kernel, key.digest[:12], chooser.state.searches)
    found: Choice = gives(question.call, question.live)
    return found


def search_forbidden(chooser: Any, question: Question) -> Choice:
    """The choice where a graph capture, the caller or a seal forbids a search; NotTunedError or SealedError if none."""
    stored: Choice | None = chooser.known(question.replace(mode="auto", force=False))  # which mode "search" ignores
    if stored is not None:
        return stored
    if chooser.options.default is None or (question.must_search and is_sealed()):
        raise explain.forbidden(question, chooser.lack(question))
    found: Choice = chooser.default(question.call, question.live)
    return found


def default(tunable: Tunable, found: Any, call: Call, live: Candidates) -> Choice:
    """The choice that `default=` gives, else the first config.

    Raises:
        ConfigError: `default=` gave something else, or a config that does not fit the kernel.
    """
    if found is None:
        found = next(iter(live.values()))
    _check(tunable, found)
    if len(live) and not tunable.launches(call, found):  # its grid is empty: use one whose grid is not
        others = (config for config in live.values() if tunable.launches(call, config))
        if (instead := next(others, None)) is not None:
            return Choice(instead, Origin.DEFAULT, lasting=False)
    return Choice(found, Origin.DEFAULT)


def candidate(tunable: Tunable, live: Live, ask: Callable[[], Any], allows: Callable[[Any], bool]) -> Any:
    """The config of `default=`, if it may be a candidate; otherwise None, with the reason in `live`."""
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
    live.no_default = "the pruner drops it, or it gave None"
    return None


def _check(tunable: Tunable, found: Any) -> None:
    if not configs.is_config(found):
        raise ConfigError(
            f"`{tunable.name}`: default: expected a triton.Config, or a callable of the arguments "
            f"returning one, got {type(found).__name__}.",
            kernel=tunable.name,
        )
    configs.check([found], tunable)


def first_that_compiles(
    tunable: Tunable, call: Call, live: Iterable[Any], is_shipped: Callable[[Call, Any], bool] = lambda call, one: False
) -> Any:
    """The first config that is shipped or compiles, else the first: its launch raises the compiler's error.

    Once a seal has refused a config, only a shipped one serves: that another happens to be compiled in this process is
    no reason to launch it.
    """
    first, is_sealed = None, False
    for config in live:
        first = config if first is None else first
        try:
            if is_shipped(call, config):
                return config
            if not is_sealed:
                tunable.compile(call, config)
                return config
        except SealedError:
            first, is_sealed = config, True
        except Exception as error:
            log.info("`%s`: %s does not compile here (%s)", tunable.name, config, failures.describe(error))
    return first
