"""Types of tuned objects for type checkers only: Triton is untyped, and the launcher's base is chosen at import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, Protocol, TypeAlias

from triton import Config
from typing_extensions import TypeVar

Grid: TypeAlias = "tuple[Any, ...] | list[Any] | Callable[[dict[str, Any]], tuple[Any, ...] | list[Any]]"


class Kernel(Protocol):
    """A Triton kernel, with or without heuristics."""

    @property
    def run(self) -> Any:
        """Launch."""

    def __getitem__(self, grid: Any, /) -> Any: ...


# A type variable for each number of positional arguments. Whole signatures do not work: overloads would give Any for
# every function that has an Any, and for Triton's kernels under mypy.
K = TypeVar("K", bound=Kernel)
F0 = TypeVar("F0", bound=Callable[..., Any])
F1 = TypeVar("F1", bound=Callable[Concatenate[Any, ...], Any])
F2 = TypeVar("F2", bound=Callable[Concatenate[Any, Any, ...], Any])
F3 = TypeVar("F3", bound=Callable[Concatenate[Any, Any, Any, ...], Any])
F4 = TypeVar("F4", bound=Callable[Concatenate[Any, Any, Any, Any, ...], Any])
F5 = TypeVar("F5", bound=Callable[Concatenate[Any, Any, Any, Any, Any, ...], Any])
F6 = TypeVar("F6", bound=Callable[Concatenate[Any, Any, Any, Any, Any, Any, ...], Any])
Function = TypeVar("Function", bound=Callable[..., Any], covariant=True, default=Callable[..., Any])
Places = TypeVar("Places", default=Any)  # number of positional arguments, such as `Literal[2]`
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
R = TypeVar("R")


class Base:
    """The launcher's base class of a decorated kernel."""

    nargs: Any
    is_left: bool

    def run(self, *args: Any, grid: Grid, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch with the config chosen for these arguments, as `kernel[grid](...)` does.

        Args:
            *args: The kernel's arguments.
            grid: 1 to 3 sizes, or a callable that takes all arguments by name, as one dict, and returns sizes.
            warmup: Compile only.
            **kwargs: Arguments by name, and launch options.

        Returns:
            What Triton's launch returns: the compiled kernel, None in the interpreter.
        """

    def __getitem__(self, grid: Grid, /) -> Callable[..., Any]:
        """Bind a grid: `kernel[grid](x, n)`."""
        raise NotImplementedError

    def _attach(self, table: object) -> None: ...

    @classmethod
    def _native(cls) -> None: ...


class Triton:
    """The part of Triton's classes that both have."""

    fn: Any
    arg_names: list[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def run(self, *args: Any, grid: Grid, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch."""

    def warmup(self, *args: Any, grid: Grid, **kwargs: Any) -> Any:
        """Compile every config, without a launch."""


class Autotuner(Triton):
    """Triton's tuner."""

    configs: list[Config]
    keys: list[str]
    best_config: Config
    cache: Any
    restore_value: list[str]
    reset_to_zero: list[str]
    early_config_prune: Any
    perf_model: Any
    configs_top_k: Any
    base_fn: Any

    def _bench(self, *args: Any, config: Config, **meta: Any) -> Any: ...

    def check_disk_cache(self, tuning_key: Any, configs: Any, bench_fn: Callable[[], Any]) -> Any:
        """Triton's own file of timings."""


class Heuristics(Triton):
    """Triton's heuristics."""

    values: Any
