"""`Tuned`: the decorated Triton kernel, a subclass of Triton's own tuner so that torch and others accept it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from triton.runtime.autotuner import Heuristics

from autotuned import _native, env
from autotuned._startup import Frozen, errors, later
from autotuned.api.choices import Choices
from autotuned.api.pickling import CaseGenerator, Named
from autotuned.key.key import TENSORS, is_tensor, sizes_of
from autotuned.launch import launcher
from autotuned.resolve.request import Options
from autotuned.resolve.tuner import Tuner
from autotuned.store.choice import Choice, Origin
from autotuned.triton_compat import kernel
from autotuned.tunable.call import Call, Hooks, Names
from autotuned.tunable.configs import Pruner
from autotuned.tunable.kernel import TunableKernel
from autotuned.typed_json import is_numpy_scalar

if TYPE_CHECKING:
    from triton import Config

    from autotuned.api import places, triton_listener
    from autotuned.api.static import Autotuner, Base
    from autotuned.launch import grid_program
    from autotuned.recording import recorder
    from autotuned.resolve.counters import CacheInfo
    from autotuned.resolve.explain import Explanation
    from autotuned.tunable import readers
else:
    from triton.runtime.autotuner import Autotuner

    Base = launcher.base()
    grid_program, places, readers = map(later, ("launch.grid_program", "api.places", "tunable.readers"))
    recorder, triton_listener = later("recording.recorder"), later("api.triton_listener")

_TRITON_RUN = kernel.own_run()
_NO_GRID: Any = ...  # passed by the launcher's base if there is no grid
_native.index_like(Autotuner, Heuristics)
_native.read_grids(lambda grid: grid_program.program(grid))


class Mirror(Choices):
    """This process's choices in Triton's layout: writing a choice pins it, deleting one forgets it."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        super().__init__()
        self._on_change = on_change
        self.pins: set[Any] = set()

    def note(self, key: Any, config: Any) -> None:
        """Show our choice, without pinning it."""
        super().__setitem__(key, config)

    def __setitem__(self, key: Any, config: Any) -> None:
        super().__setitem__(key, config)
        self.pins.add(key)
        self._on_change()

    def _forget(self, *keys: Any) -> None:
        self.pins.difference_update(keys)
        self._on_change()


class Decoration(Frozen):
    """The decorator's arguments that Triton's tuner also takes."""

    names: Names
    configs: list[Any]
    prune: Mapping[str, Any] | None
    hooks: Hooks
    do_bench: Callable[..., Any] | None


class Tuned(Base, Autotuner, Named):
    """A Triton kernel whose config this package chooses, stores and launches.

    It subclasses Triton's `Autotuner` because torch.compile, vLLM and others check with `isinstance`, and keeps its
    attributes; `docs/migration.md` lists the differences. The launcher's base comes first: it has `run`, and in C also
    `[]`.
    """

    _latest_pruner = Pruner()
    _follows_tensors = True  # launches on the GPU that holds all tensors, even if another one is current

    def __init_subclass__(cls) -> None:
        _native.watch([cls])

    def __init__(
        self,
        tunable: TunableKernel,
        given: Decoration,
        options: Callable[[Callable[[], list[Any]], Callable[[], Pruner]], Options],
    ) -> None:
        # Always plain lists: Triton 3.9 refuses key=None, and others read these attributes.
        super().__init__(
            fn=tunable.fn,
            arg_names=[parameter.name for parameter in tunable.parameters],
            configs=given.configs,
            key=list(given.names.key),
            reset_to_zero=list(given.names.zero),
            restore_value=list(given.names.restore or ()),
            pre_hook=given.hooks.before,
            post_hook=given.hooks.after,
            prune_configs_by=given.prune,
            do_bench=given.do_bench,
        )
        self.cases: list[CaseGenerator] = []
        self.cache: Any = Mirror(self._forget_bound)
        self._seen = (self.configs, len(self.configs))
        self._seen_keys = list(self.keys)
        self._measured: Choice | None = None  # the latest choice that was measured or stored
        self._told: weakref.WeakValueDictionary[int, Choice] = weakref.WeakValueDictionary()
        self.tuner = self._make_tuner(tunable, options(lambda: self.configs, self._pruner))
        if env.is_recorded():
            recorder.begin_if_asked()

    def _make_tuner(self, tunable: TunableKernel, options: Options) -> Tuner:
        return Tuner(tunable, options, self._note, self._pinned, self._note_written, self._use_table)

    def _slow_run(self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any, warmup: bool) -> Any:
        """Answer calls that C does not, and every call of the Python twin, for both `run` and `kernel[grid]`.

        Args:
            grid: 1 to 3 sizes, or a callable that takes all arguments by name, as one dict, called at every launch.
            warmup: Compile the chosen config, or the first one, without a launch or a search.

        Returns:
            What Triton's launch returns: the compiled kernel, None in the interpreter.

        Raises:
            CallError: Arguments or grid are missing.
            NoDeviceError: There is no GPU, and Triton does not interpret.
            NotTunedError, AllConfigsFailedError: Depending on the mode; see `docs/modes.md`.
        """
        # hot path of the Python twin
        if Autotuner.run is not _TRITON_RUN and not self._still_ours():
            return Autotuner.run(self, *args, grid=grid, warmup=warmup, **kwargs)  # `run` was patched
        seen, configs = self._seen, self.configs
        if configs is not seen[0] or len(configs) != seen[1]:
            self._configs_changed()
        if grid is _NO_GRID or warmup:
            return self._compile_only(args, kwargs, grid, warmup)
        tuner = self.tuner
        try:
            values = tuner.order(*args, **kwargs)
        except TypeError:  # the miss is outside this block: Python 3.11 would turn its TypeError into a KeyError
            values, bound = (), None
        else:
            bound = tuner.launcher.find(values)
        if bound is None and tuner.unseen is not None and not self.cache.pins and self.keys == self._seen_keys:
            bound = tuner.unseen.answer(values)
        if bound is None:
            return self._miss(args, kwargs, grid, values)
        self.best_config = bound.config
        return bound.run(values, grid)

    @staticmethod
    def _still_ours() -> bool:
        """Whether the base class's `run` is Triton's, or the one with which `install()` wraps it."""
        run = Autotuner.run
        return run is _TRITON_RUN or getattr(run, "in_front_of", None) is _TRITON_RUN

    # -- cold path -----------------------------------------------------------------------------------------------

    def _miss(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any, values: tuple[Any, ...] = ()) -> Any:
        gpu = self._place(args, kwargs) if self._follows_tensors else None
        if gpu is None:
            return self._miss_here(args, kwargs, grid, values)
        with kernel.on_device(gpu):
            return super().run(*args, grid=grid, **kwargs)  # that GPU's table may have the call

    def _place(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """The GPU that holds all tensors, if it is not the current one; PlaceError if a tensor is not accessible."""
        tunable = self.tuner.tunable
        if not isinstance(tunable, TunableKernel) or not tunable.bindable:
            return None
        constexprs = self.tuner.options.spec.constexprs
        given = {**dict(zip(self.arg_names, args)), **kwargs}
        passed = {name: given[name] for name in given if name not in constexprs}
        return places.gpu_elsewhere(passed, tunable.name)

    def _miss_here(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any, values: tuple[Any, ...] = ()
    ) -> Any:
        if self.keys != self._seen_keys:
            self._seen_keys = list(self.keys)
            self.tuner.keys_changed(self._seen_keys)
        self.nargs = dict(zip(self.arg_names, args))
        if self.early_config_prune is not None or self.perf_model is not None:  # these may read `nargs` too
            self.nargs = readers.Watched(self.nargs, self.tuner.chooser.seen)
        try:
            return self.tuner.miss(args, kwargs, grid, values)
        except errors.PruningError as error:
            raise triton_listener.TritonPruningError(error) from error
        finally:
            self.nargs = None

    def _compile_only(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any, warmup: bool) -> Any:
        if not warmup:
            self()  # type: ignore[operator]  # raises: a grid is missing
        call = self.tuner.call(args, kwargs, grid)
        config = self.tuner.chooser.without_search(call)
        return self.fn.run(*args, grid=grid, warmup=True, **call.kwargs, **config.all_kwargs())

    def _use_table(self, table: launcher.Launcher) -> None:
        self._attach(table.in_c)

    def _configs_changed(self) -> None:
        self._seen = (self.configs, len(self.configs))
        self.tuner.configs_changed()

    def _pruner(self) -> Pruner:
        early, perf_model, top_k = self.early_config_prune, self.perf_model, self.configs_top_k
        made = self._latest_pruner  # read once: another thread may replace it
        if made.early is not early or made.perf_model is not perf_model or made.top_k is not top_k:
            made = self._latest_pruner = Pruner(early, perf_model, top_k)
        return made

    def _forget_bound(self) -> None:
        self.tuner.forget()

    def _triton_key(self, call: Call) -> tuple[Any, ...] | None:
        """Triton's own key of a call; None if it cannot be hashed."""
        arguments, parts = call.arguments, list[Any]()
        for name in self.keys:
            if name in arguments:
                value = arguments[name]
                parts += [value if type(value) in _PLAIN else _without_memory(value)]
        for name in arguments:
            value = arguments[name]
            if type(value) in TENSORS or (type(value) not in _PLAIN and hasattr(value, "dtype")):
                parts += [str(value.dtype)]
        key = tuple(parts)
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def _pinned(self, call: Call) -> Any:
        if not self.cache.pins:
            return None
        key = self._triton_key(call)
        return self.cache.get(key) if key in self.cache.pins else None

    def _note(self, call: Call, choice: Choice, launched: bool = True) -> None:
        if launched:
            self.best_config = choice.config
        key = self._triton_key(call)
        cache = self.cache
        if choice.lasting and key is not None and key not in cache.pins and _holds_nothing(key):
            cache.note(key, choice.config)
        if choice.record is not None and self._told.get(id(choice)) is not choice:
            self._told[id(choice)] = self._measured = choice
            self.__dict__.pop("configs_timings", None)
            if choice.origin is Origin.SEARCH:
                self.bench_time = choice.record.provenance.get("seconds")
            if kernel.autotuning_listener() is not None or kernel.prints_autotuning():
                triton_listener.announce(self, key, choice)

    def _note_written(self, names: list[str]) -> None:
        self.restore_value[:] = names

    def decided(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any = None) -> Any:
        """The pinned or stored config for a call, or a searched one if a grid is given; otherwise NotTunedError."""
        call = self.tuner.call(args, kwargs, grid)
        pinned = self.tuner.chooser.allowed(call, self._pinned(call))
        if grid is not None and pinned is None:
            question, choice = self.tuner.tune(call)
            if question.launches:
                return choice.config
            name, digest = self.tuner.tunable.name, question.key.digest
            raise errors.NotTunedError(
                f"`{name}`: expected a grid with blocks to measure, got an empty one.", kernel=name, digest=digest
            )
        return self.tuner.chooser.choose(call, pinned, mode="strict").choice.config

    # -- queries and preparation ---------------------------------------------------------------------------------

    def cache_info(self) -> CacheInfo:
        """Counters of this kernel in this process."""
        return self.tuner.cache_info()

    def cache_clear(self) -> None:
        """Forget this process's choices and pins; records on disk stay."""
        self.cache.clear()

    @cached_property  # so that it can also be set, as Triton's own tuner does after a search (`replaced` has both)
    def configs_timings(self) -> dict[Any, list[float]]:
        """Timings of the latest choice: config -> median, 20th and 80th percentile in milliseconds.

        Raises:
            AttributeError: Nothing was measured or loaded yet; Triton's tuners also lack the attribute then.
        """
        name, choice = self.tuner.tunable.name, self._measured
        if choice is None or choice.record is None:
            raise AttributeError(f"`{name}`: expected a tuned call before configs_timings is read, got none yet.")
        return triton_listener.timings(choice.record, [*self.configs, choice.config], name)

    def prepare(self, *args: Any, grid: Any = None, search: bool = False, **kwargs: Any) -> Config:
        """Choose, compile, load and bind the config for a call ahead of time, and return it.

        Nothing is launched or zeroed. The config's `pre_hook` runs, since it may decide what is compiled. A search
        launches its trials and restores the tensors.

        Args:
            grid: As for the call; only a search needs it.
            search: Whether to search if nothing is stored and the mode allows it. Otherwise `default=` is used; without
                one it is an error, except in the modes "serve" and "off", which use the first config.

        Raises:
            NotTunedError: Nothing is stored, and no search is allowed.
            CallError, ValueError: The arguments do not fit, or a search has no grid.
            NoDeviceError: There is no GPU, and Triton does not interpret.
        """
        if search and grid is None:
            raise errors.CallError(
                f"`{self.tuner.tunable.name}`: expected a grid for prepare(search=True), got none. Write "
                ".prepare(..., grid=grid, search=True).",
                kernel=self.tuner.tunable.name,
            )
        return self.tuner.prepare(self.tuner.call(args, kwargs, grid), search)

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
        """Register a generator `fn(device)` of calls worth tuning, each `dict(args=(...), kwargs={...}, grid=...)`."""
        self.cases.append(generator)
        return generator


_native.watch([Autotuner, Tuned])


class Decorated(Tuned):
    """A `Tuned` made by `@autotune`. Unlike Triton's tuners it is callable, to report that the grid is missing."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Always raises CallError: a grid is missing."""
        name = self.tuner.tunable.name
        raise errors.CallError(
            f"`{name}`: expected a grid, got none. Write kernel[grid](...), or .run(..., grid=grid).", kernel=name
        )

    @property
    def __signature__(self) -> Any:
        """Always raises TypeError, so that `triton.jit` above `@autotune` fails with this message."""
        raise TypeError(
            f"`{self.tuner.tunable.name}`: expected a function, got a tuned kernel. Put @autotune above @triton.jit."
        )


def _holds_nothing(value: Any) -> bool:
    """Whether part of a Triton key is plain data: the mirror must not keep objects and closures alive."""
    kind = type(value)
    if isinstance(value, tuple):
        return {*map(type, value)} <= _PLAIN or all(map(_holds_nothing, value))
    return kind in _PLAIN or kind.__name__ == "dtype" or isinstance(value, Enum) or is_numpy_scalar(value)


_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))


def _without_memory(value: Any) -> Any:
    """Replace tensors by their shapes, also in tuples: the mirror must not keep memory alive."""
    if type(value) in _PLAIN:
        return value
    if is_tensor(value):
        return sizes_of(value) if getattr(value, "is_nested", False) else tuple(value.shape)
    return tuple(map(_without_memory, value)) if isinstance(value, tuple) else value
