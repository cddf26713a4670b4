"""Reports choices as Triton's tuner does: listener, attributes, printed lines, error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from triton.runtime.autotuner import AutotunerError

from autotuned.errors import PruningError
from autotuned.key import opaque
from autotuned.store.choice import Choice, Origin
from autotuned.store.record import Timing, TuningRecord
from autotuned.triton_compat import kernel as toolchain
from autotuned.tunable import configs
from autotuned.typed_json import Json


def announce(tuner: Any, key: Any, choice: Choice) -> None:
    """Report a choice, with its key in Triton's layout, as Triton's own tuner does.

    Calls `knobs.autotuning.listener` if this Triton has one, and prints after a search if `TRITON_PRINT_AUTOTUNING`
    is set.
    """
    fresh = choice.origin is Origin.SEARCH
    listener = toolchain.autotuning_listener()
    if listener is not None:
        listener(
            fn=toolchain.innermost(tuner),
            key=key,
            best_config=choice.config,
            configs_timings=tuner.configs_timings,
            duration=tuner.bench_time if fresh else None,
            cache_hit=not fresh,
        )
    if fresh and toolchain.prints_autotuning():
        # The only output of the library; other tools enable and parse it.
        print(  # noqa: T201
            f"Triton autotuning for function {tuner.base_fn.__name__},\nwith key as {key},\n"
            f"finished after {tuner.bench_time:.2f}s,\nbest config selected: {choice.config};"
        )


def say_measured(function: str, config: Any) -> None:
    """Print Triton's line for a benchmarked config, if `TRITON_PRINT_AUTOTUNING` is set."""
    if toolchain.prints_autotuning():
        print(f"Autotuning kernel {function} with config {config}")  # noqa: T201


def timings(record: TuningRecord, live: Iterable[Any], kernel: str) -> dict[Any, list[float]]:
    """A record in Triton's form: config (an equal `live` one if any) -> `times_of` its timing."""
    by_identity = {configs.identity(config, kernel, opaque.spell): config for config in live}
    return {by_identity.get(timing.identity) or _config(timing.config): times_of(timing) for timing in record.timings}


FAILED = (math.inf,) * 3  # how Triton marks a failed config


def times_of(timing: Timing) -> list[float]:
    """A timing in Triton's form: median, 20th and 80th percentile in milliseconds."""
    if not timing.usable:
        return [*FAILED]
    low, median, high = timing.typical_us
    return [median / 1e3, low / 1e3, high / 1e3]


def _config(form: Mapping[str, Json]) -> Any:
    import triton

    fields = {name: value for name, value in form.items() if name != "pre_hook"}
    return triton.Config(**fields)


class TritonPruningError(PruningError, AutotunerError):  # type: ignore[misc]  # Triton is untyped
    """Pruning failed; a subclass of Triton's own error, which callers may catch."""

    def __init__(self, error: Exception) -> None:
        PruningError.__init__(self, str(error), **vars(error))
        self.message = str(error)

    def __str__(self) -> str:
        return f"Autotuner error: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return TritonPruningError, (PruningError(self.message, kernel=self.kernel),)
