"""A choice made ready to launch: compiled kernel, config, and a plan for the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from autotuned.launch import codegen
from autotuned.launch.entry import Run
from autotuned.tunable.call import Tunable, refuse_grid


def through_triton(tunable: Tunable, names: Sequence[str], config: Any) -> Run:
    """Launch by Triton's own look-up with the chosen config: always right, and as slow as Triton."""
    kernel = tunable.fn

    def launch(**arguments: Any) -> Any:
        try:
            return kernel.run(**arguments)  # looked up at each launch: others replace `JITFunction.run` at any time
        except Exception as error:
            refuse_grid(arguments.pop("grid"), arguments, tunable.name, error)
            raise

    return codegen.by_name(launch, names, (), {**config.all_kwargs(), "warmup": False}, takes_grid=True)


def launching(run: Run, again: Run | None) -> Run:
    """The same launch, of which another config takes the place where its grid launches nothing."""
    if again is None:
        return run

    def launch(values: tuple[Any, ...], grid: Any) -> Any:
        seen: list[Any] = []

        def noted(meta: Any) -> Any:
            seen[:] = [grid(meta)]
            return seen[0]

        launched = run(values, noted if callable(grid) else grid)
        sizes = seen[0] if seen else grid
        return again(values, grid) if min(map(index, sizes)) <= 0 else launched

    return launch


def host_call(tunable: Tunable, names: Sequence[str], config: Any) -> Run:
    """Call a plain callable with the config's values as keywords."""
    nameless = [parameter.name for parameter in tunable.parameters if not parameter.has_name]
    return codegen.by_name(tunable.fn, names, nameless, dict(config.kwargs))
