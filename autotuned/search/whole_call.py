"""One call of a config as a program makes it: zeroing, the config's hook, and a launch without a look-up."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from autotuned.launch import bound, direct
from autotuned.launch.bound import Bound, Prologue
from autotuned.search.job import Job
from autotuned.triton_compat import compiled
from autotuned.tunable.kernel import TunableKernel


class WholeCall:
    """What `objective="call"` times: the first call goes through Triton, later ones launch directly if possible."""

    def __init__(self, job: Job, config: Any) -> None:
        self._job, self._config = job, config
        self._names, self._values = tuple(job.call.arguments), tuple(job.call.arguments.values())
        needs = job.zero or config.pre_hook is not None
        self._before = Prologue(job.tunable.name, config, self._names, job.zero) if needs else None
        self._bound: Bound | None = None

    def __call__(self) -> Any:
        """Make one call."""
        if self._bound is not None:
            return self._bound.run(self._values, self._job.call.grid)
        if self._before is not None:
            self._before(self._values)
        result = self._job.tunable.launch(self._job.call, self._config)
        self._bind(result)
        return result

    def _bind(self, result: Any) -> None:
        tunable, call = self._job.tunable, self._job.call
        if call.options or not isinstance(tunable, TunableKernel) or not tunable.bindable:
            return
        by_triton = bound.through_triton(tunable, self._names, self._config)
        made = Bound(self._config, by_triton, self._before, by_triton)
        with suppress(compiled.EvictedError, compiled.UnbindableError):
            self._bound = direct.direct(made, tunable, call, result, asks=False)
