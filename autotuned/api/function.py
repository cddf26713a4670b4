"""`TunedFunction`: a plain callable whose tunables this package chooses."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import GenericAlias, MethodType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from autotuned import env
from autotuned._startup import later
from autotuned.api.pickling import CaseGenerator, Named
from autotuned.errors import DecorationError
from autotuned.resolve.counters import CacheInfo
from autotuned.resolve.request import Options
from autotuned.resolve.tuner import Tuner
from autotuned.store.choice import Choice
from autotuned.tunable.call import Call, Names
from autotuned.tunable.function import TunableFunction

if TYPE_CHECKING:
    from typing import Concatenate, Literal, overload

    from triton import Config
    from typing_extensions import Self

    from autotuned.api.static import A, B, C, D, E, F, Function, Places, R
    from autotuned.recording import recorder
    from autotuned.resolve.explain import Explanation
else:
    Function, Places = TypeVar("Function"), TypeVar("Places")
    recorder = later("recording.recorder")


class TunedFunction(Named, Generic[Function, Places]):
    """A plain callable that runs with its chosen config; called as `f(*args)`, without a grid.

    For type checkers it is generic in the callable: calls return what the callable returns, and the first six
    positional arguments are checked. Keyword arguments are not, since the configs decide which of them are tuned.
    """

    fn: Function
    configs: list[Config]

    if not TYPE_CHECKING:

        def __class_getitem__(cls, parameters: Any) -> Any:
            """For annotations: `typing` would require both parameters."""
            return GenericAlias(cls, parameters)

    def __init__(
        self,
        tunable: TunableFunction,
        names: Names,
        configs: list[Any],
        options: Callable[[Callable[[], list[Any]]], Options],
    ) -> None:
        functools.update_wrapper(self, tunable.fn)
        self.fn = tunable.fn  # type: ignore[assignment]  # the decorated callable
        self.configs = configs
        self.keys = names.key
        self.arg_names = [parameter.name for parameter in tunable.parameters]
        self.restore_value: list[str] = list(names.restore or ())
        self.reset_to_zero = names.zero
        self.cases: list[CaseGenerator] = []
        self._local = threading.local()
        self._seen = (configs, len(configs))
        self.tuner = Tuner(tunable, options(lambda: self.configs), self._note, lambda call: None, self._note_written)
        if env.is_recorded():
            recorder.begin_if_asked()

    if TYPE_CHECKING:
        # fmt: off
        @overload
        def __call__(
            self: TunedFunction[Callable[Concatenate[A, B, C, D, E, F, ...], R], Literal[6]],
            a: A = ..., b: B = ..., c: C = ..., d: D = ..., e: E = ..., f: F = ..., /, *args: Any, **kwargs: Any,
        ) -> R: ...
        @overload
        def __call__(
            self: TunedFunction[Callable[Concatenate[A, B, C, D, E, ...], R], Literal[5]],
            a: A = ..., b: B = ..., c: C = ..., d: D = ..., e: E = ..., /, *args: Any, **kwargs: Any,
        ) -> R: ...
        @overload
        def __call__(
            self: TunedFunction[Callable[Concatenate[A, B, C, D, ...], R], Literal[4]],
            a: A = ..., b: B = ..., c: C = ..., d: D = ..., /, *args: Any, **kwargs: Any,
        ) -> R: ...
        @overload
        def __call__(
            self: TunedFunction[Callable[Concatenate[A, B, C, ...], R], Literal[3]],
            a: A = ..., b: B = ..., c: C = ..., /, *args: Any, **kwargs: Any,
        ) -> R: ...
        @overload
        def __call__(
            self: TunedFunction[Callable[Concatenate[A, B, ...], R], Literal[2]],
            a: A = ..., b: B = ..., /, *args: Any, **kwargs: Any,
        ) -> R: ...
        @overload
        def __call__(
            self: TunedFunction[Callable[Concatenate[A, ...], R], Literal[1]], a: A = ..., /, *args: Any, **kwargs: Any
        ) -> R: ...
        @overload
        def __call__(self: TunedFunction[Callable[..., R], Literal[0]], *args: Any, **kwargs: Any) -> R: ...
        # fmt: on

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with the config chosen for these arguments.

        Raises:
            CallError: The arguments do not fit.
            NotTunedError, AllConfigsFailedError: Depending on the mode; see `docs/modes.md`.
        """
        tuner = self.tuner
        seen = self._seen
        if self.configs is not seen[0] or len(self.configs) != seen[1]:
            self._seen = (self.configs, len(self.configs))
            tuner.configs_changed()
        try:
            values = tuner.order(*args, **kwargs)
        except TypeError:  # the miss is outside this block, or its errors would have this one as context
            values, bound = (), None
        else:
            bound = tuner.launcher.find(values)
        if bound is None and tuner.unseen is not None:
            bound = tuner.unseen.answer(values)
        if bound is None:
            return tuner.miss(args, kwargs, None)
        self._local.best_config = bound.config
        return bound.run(values, None)

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type | None = None) -> Self: ...
        @overload
        def __get__(
            self: TunedFunction[Callable[..., R], Any], instance: object, owner: type | None = None
        ) -> Callable[..., R]: ...

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind as a method, as functions do; a `staticmethod` stays unbound."""
        if instance is None or isinstance(self.fn, staticmethod):
            return self
        return MethodType(self, instance)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Always raises DecorationError: Triton's `kernel[grid]` and heuristics call this, and need a kernel."""
        raise DecorationError(
            f"`{self.tuner.tunable.name}`: this is a plain callable and takes no grid. If it is a Triton "
            "kernel, put @triton.jit between @autotune and the function."
        )

    def __getitem__(self, grid: Any) -> Any:
        return self.run()

    @property
    def best_config(self) -> Config | None:
        """The config of this thread's last call; None before the first."""
        return getattr(self._local, "best_config", None)

    def _note(self, call: Call, choice: Choice, launched: bool = True) -> None:
        if launched:
            self._local.best_config = choice.config

    def _note_written(self, names: list[str]) -> None:
        self.restore_value[:] = names

    def cache_info(self) -> CacheInfo:
        """Counters of this function in this process."""
        return self.tuner.cache_info()

    def cache_clear(self) -> None:
        """Forget this process's choices; records on disk stay."""
        self.tuner.forget()

    def prepare(self, *args: Any, search: bool = False, **kwargs: Any) -> Config:
        """Choose and bind the config for a call ahead of time, and return it. Only a search calls the function.

        Args:
            search: Whether to search if nothing is stored and the mode allows it. Otherwise `default=` is used; without
                one it is an error, except in the modes "serve" and "off", which use the first config.

        Raises:
            NotTunedError: Nothing is stored, and no search is allowed.
            CallError, ValueError: The arguments do not fit.
        """
        return self.tuner.prepare(self.tuner.call(args, kwargs, None), search)

    def explain(self, *args: Any, grid: Any = None, **kwargs: Any) -> Explanation:
        """Explain where the choice for a call comes from, and why not from elsewhere.

        Shows the key part by part, and for a miss the nearest stored key with the parts that differ. `print` it, or see
        `autotuned.resolve.explain.Explanation`. Nothing is searched, measured, launched or moved; callables among the
        options are called as for the call.

        Raises:
            CallError, ValueError: The arguments do not fit.
            NoDeviceError: There is no GPU, and Triton does not interpret.
        """
        return self.tuner.explain(self.tuner.call(args, kwargs, grid))

    def case(self, generator: CaseGenerator) -> CaseGenerator:
        """Register a generator `fn(device)` of calls worth tuning, each `dict(args=(...), kwargs={...})`."""
        self.cases.append(generator)
        return generator
