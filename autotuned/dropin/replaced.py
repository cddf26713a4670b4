"""Triton's `autotune` with this package's launcher: Triton searches by its own rules, hits launch cheaply."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from triton.runtime.autotuner import Autotuner, AutotunerError, Config

from autotuned import env
from autotuned._startup import later, renewed
from autotuned.api import triton_listener
from autotuned.api.decorator import measured_by
from autotuned.api.tuned import Decoration, Tuned
from autotuned.dropin import seeded, stock_tuner
from autotuned.errors import AutotunedError, DecorationError, EncodingError, NotTunedError
from autotuned.key.key import KeySpec
from autotuned.key.reach import python_function
from autotuned.key.source_text import codes
from autotuned.resolve import sealing
from autotuned.resolve.request import Options, Question
from autotuned.resolve.tuner import Tuner
from autotuned.search import benchmark
from autotuned.store.choice import Choice, Origin
from autotuned.triton_compat import kernel
from autotuned.tunable import configs
from autotuned.tunable.call import Hooks, Names
from autotuned.tunable.kernel import TunableKernel

if TYPE_CHECKING:
    from autotuned.resolve import explain
    from autotuned.resolve.explain import Explanation
else:
    explain = later("resolve.explain")

log = logging.getLogger("autotuned")
_PATIENCE = 16  # this many misses are tolerated before hits are weighed against them
_WORTH = 4  # hits that make up for one such miss
LEFT = "launched by Triton: too few of its calls were in the launch table (launch options, or ever new signatures)"
NOTHING_LEFT = "No valid autotuner configs after pruning. `early_config_prune` should return at least one config."


def autotune(
    configs: Any,
    key: Any,
    prune_configs_by: Any = None,
    reset_to_zero: Any = None,
    restore_value: Any = None,
    pre_hook: Any = None,
    post_hook: Any = None,
    warmup: Any = None,
    rep: Any = None,
    use_cuda_graph: Any = False,
    do_bench: Any = None,
    cache_results: Any = False,
) -> Callable[[Any], Any]:
    """Stands in for `triton.autotune` under `autotuned.install(replace=True)`: the same signature and meaning.

    Names in `key`, `reset_to_zero` or `restore_value` that the kernel lacks are dropped with a warning. Kernels that
    this package cannot bind, such as those with `*args`, get Triton's own tuner.
    """
    bench = measured_by(do_bench, warmup, rep, use_cuda_graph)

    def decorate(fn: Any) -> Any:
        try:
            tunable = TunableKernel.of(fn)
        except (AutotunedError, AttributeError, TypeError) as error:
            log.info("%r is decorated by Triton's own autotune: %s", fn, error)
            return Autotuner(
                fn, fn.arg_names, configs, key, reset_to_zero, restore_value, pre_hook=pre_hook, post_hook=post_hook,
                prune_configs_by=prune_configs_by, warmup=warmup, rep=rep, use_cuda_graph=use_cuda_graph,
                do_bench=do_bench, cache_results=cache_results,
            )  # fmt: skip
        known = [parameter.name for parameter in tunable.parameters]
        lists = (("key", key), ("reset_to_zero", reset_to_zero or ()), ("restore_value", restore_value or ()))
        names = Names(*(_known(label, given, known, tunable.name) for label, given in lists))
        listed = configs or [Config({}, num_warps=4, num_stages=3, num_ctas=1)]
        decoration = Decoration(names, listed, prune_configs_by, Hooks(pre_hook, post_hook), bench)
        return Replaced(tunable, decoration, cache_results)

    return decorate


def _known(label: str, names: Any, known: Sequence[str], kernel: str) -> list[str]:
    """The names that the kernel has."""
    if names is None or isinstance(names, str):
        raise DecorationError(f"`{kernel}`: {label}: expected a list of argument names, got {names!r}.")
    for name in names:
        if name not in known:
            log.warning("`%s`: %s names no argument: %r. It is dropped.%s", kernel, label, name,
                        configs.suggestion(str(name), known))  # fmt: skip
    return [name for name in names if name in known]


class Replaced(Tuned):
    """A kernel decorated while `triton.autotune` is replaced: Triton's search, this package's launcher.

    A second level of inheritance, since torch and others check for Triton's class, and the launcher for `Tuned`.
    """

    _follows_tensors = False  # launches on the current GPU, as Triton does
    prunes_once = True  # keeps the pruned list for the call

    def __init__(self, tunable: TunableKernel, given: Decoration, cache_results: bool) -> None:
        spec = KeySpec(tuple(given.names.key), constexprs=kernel.constexprs(tunable.parameters))
        if given.do_bench is None and tunable.interpreted and not kernel.has_driver():
            given = given.replace(do_bench=_wall_clock)
        super().__init__(
            tunable, given, lambda configs, pruner: Options(configs, spec, pruner=pruner, restore=(), stored=False)
        )
        self.cache_results: bool = kernel.caches_results(cache_results)
        self.restore_copies: dict[str, Any] = {}  # Triton 3.6 to 3.8 sets it only in its own hook
        self.cache = seeded.Memory({}, self._forget_bound)
        self._searching = renewed(threading.RLock())  # Triton's `run` keeps the call in `self.nargs`
        self._vain, self.is_left = 0, False  # `is_left`: left to Triton, which launches it cheaper
        if given.hooks.before is None:
            self.pre_hook = self._set_aside
        if given.hooks.after is None:
            self.post_hook = self._put_back

    # As in Triton 3.8 and later; earlier versions fail if an argument is None.

    def _set_aside(self, arguments: Mapping[str, Any], reset_only: bool = False) -> None:
        for name in self.reset_to_zero:
            if arguments[name] is not None:
                arguments[name].zero_()
        if not reset_only:
            self.restore_copies = {
                name: arguments[name].clone() for name in self.restore_value if arguments[name] is not None
            }

    def _put_back(self, arguments: Mapping[str, Any], exception: Exception | None) -> None:
        for name, value in self.restore_copies.items():
            arguments[name].copy_(value)
        self.restore_copies = {}

    def _make_tuner(self, tunable: TunableKernel, options: Options) -> Tuner:
        return _Through(self, tunable, options, self._note, lambda call: None, self._note_written, self._use_table)

    def tritons_run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any) -> Any:
        """Triton's own look-up, search and launch of a call."""
        with self._searching:
            try:
                return Autotuner.run(self, *args, grid=grid, warmup=False, **kwargs)
            finally:
                self.nargs = None

    def in_vain(self) -> None:
        """Count a launch that is in Triton's cache but not in the table, which costs more than Triton's own.

        If hits do not make up for these, the kernel is left to Triton's launch.
        """
        self._vain += 1
        if self._vain > _PATIENCE and self.tuner.launcher.hits < _WORTH * self._vain and not self.is_left:
            self.is_left, self.cache.proxy = True, False
            log.info("`%s`: %s.", self.tuner.tunable.name, LEFT)
            for config in self.configs:  # Python reads attributes faster out of such a dict, and Triton reads seven
                config.__dict__ = dict(vars(config))

    def _slow_run(self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any, warmup: bool) -> Any:
        if self.is_left and not warmup and grid is not ... and self.configs is self._seen[0]:
            return self.tritons_run(args, kwargs, grid)
        return super()._slow_run(args, kwargs, grid, warmup)

    def _bench(self, *args: Any, config: Any, **meta: Any) -> Any:
        """Triton's benchmark of a config; invalid times count as a failure."""
        times = super()._bench(*args, config=config, **meta)
        try:
            benchmark.microseconds(times)
        except ValueError as error:
            if isinstance(times, (list, tuple)) and times and all(time == math.inf for time in times):
                return times
            benchmark.say_left_out(self.tuner.tunable.name, str(config), error)
            return [*triton_listener.FAILED]
        return times

    def check_disk_cache(self, tuning_key: Any, configs: Any, bench_fn: Callable[[], Any]) -> Any:
        """Triton's file of timings, skipped for keys it cannot hold: Triton would search, then fail to write."""
        if all(isinstance(part, (str, int, float, bool, type(None))) for part in tuning_key):
            return super().check_disk_cache(tuning_key, configs, bench_fn)
        bench_fn()
        return False

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Any]:
        """Triton's pruning, where the pruner may be a generator and a fractional `top_k` keeps at least one config."""
        return seeded.pruned_once(self, lambda: self._prune(kwargs))

    def _prune(self, kwargs: dict[str, Any]) -> list[Any]:
        early = self.early_config_prune
        if early is None:
            return self._of_model(kwargs, self.configs)
        left = list(early(self.configs, self.nargs, **kwargs) or ())
        if not left:
            raise AutotunerError(NOTHING_LEFT)
        return self._of_model(kwargs, left)

    def _of_model(self, kwargs: dict[str, Any], left: list[Any]) -> list[Any]:
        """The fastest configs by `perf_model`."""
        top_k = self.configs_top_k
        if self.perf_model is None:
            return left
        if isinstance(top_k, float) and top_k <= 1.0:
            top_k = max(1, int(len(left) * top_k))
        elif not isinstance(top_k, int):
            raise TypeError(f"top_k: expected an int, or a float of at most 1, got {top_k!r}")
        if len(left) <= top_k:
            return left
        times = {config: self.perf_model(**self.nargs, **kwargs, **config.all_kwargs()) for config in left}
        return sorted(times, key=lambda config: times[config])[:top_k]

    def _configs_changed(self) -> None:
        for key, config in list(self.cache.items()):
            if config not in self.configs:
                self.cache.drop(key)
        super()._configs_changed()

    def _compile_only(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any, warmup: bool) -> Any:
        if not warmup:
            self()  # type: ignore[operator]  # says what Triton says
        with self._searching:
            config = self._known_config(args, kwargs)
        return self.fn.run(*args, grid=grid, warmup=True, **kwargs, **config.all_kwargs())

    def _known_config(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The chosen config, else the first: warm-ups measure nothing."""
        found = seeded.known(self, args, kwargs)
        return self._pruned(args, kwargs)[0] if found is None else found

    def _pruned(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The configs left for a call outside of Triton's `run`."""
        self.nargs = dict(zip(self.arg_names, args))
        try:
            return self.prune_configs(dict(kwargs))
        finally:
            self.nargs = None

    def key_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Triton's own key of a call."""
        given = {**dict(zip(self.arg_names, args)), **kwargs}
        given = {name: value for name, value in given.items() if name in self.arg_names}
        parts = [given[name] for name in self.keys if name in given]
        return tuple(parts + [str(value.dtype) for value in given.values() if hasattr(value, "dtype")])

    def decided(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any = None) -> Any:
        """The config for a call, cached, or searched for by a launch if a grid is given; NotTunedError otherwise."""
        if grid is not None:
            self.run(*args, grid=grid, **kwargs)
            return self.best_config
        config = self.configs[0] if len(self.configs) == 1 else seeded.known(self, args, kwargs)
        if config is None:
            raise NotTunedError(
                f"`{self.tuner.tunable.name}`: expected a tuned choice for these arguments, found none. Launch it once "
                "with them, or give grid=...",
                kernel=self.tuner.tunable.name,
                digest="",
            )
        return config

    def explain(self, *args: Any, grid: Any = None, **kwargs: Any) -> Explanation:
        """Where the choice for a call comes from: Triton's cache, the store, config files, or a search of Triton's.

        Nothing is searched, measured or launched; a pruner is called as for the call.
        """
        found = self._explained(args, kwargs)
        return dataclasses.replace(found, remarks=(*found.remarks, LEFT)) if self.is_left else found

    def _explained(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Explanation:
        name, mode, seed = self.tuner.tunable.name, env.current_mode(), stock_tuner.Seed(self)
        own, left = self.key_of(args, kwargs), self._pruned(args, kwargs)
        if self.cache.has(own) or len(left) == 1:
            choice = Choice(self.cache.get(own, left[0]), Origin.TABLE if self.cache.has(own) else Origin.ONLY)
            return explain.without_key(name, mode, choice, seed.label(choice.config))
        key = seed.key(self.keys, self.configs, call := seed.call(args, kwargs))
        if key is None:
            raise EncodingError(
                f"`{name}`: a value in its key has no JSON form: choices for it are kept in .cache only."
            )
        searched = None if sealing.forbids() else Origin.SEARCH
        ending = {"strict": None, "serve": Origin.DEFAULT}.get(mode, searched)
        places = () if mode in ("off", "search") else seed.places()
        return explain.of_call(Question(call, key, seed.identities(left), mode), places, ending, True, {})

    def is_chosen(self, config: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether calls like this one will have this config too: it is cached, or the only one."""
        return len(self.configs) == 1 or self.cache.get(self.key_of(args, kwargs)) is config


class _Through(Tuner):
    """The miss path: asks Triton, and binds what it launched."""

    def __init__(self, tuned: Replaced, tunable: TunableKernel, options: Options, *told: Any) -> None:
        self._tuned = tuned
        super().__init__(tunable, options, *told)

    def _check_configs(self, configs: list[Any]) -> None:
        """Check nothing, as Triton does: a pruner may drop or complete them."""

    def miss(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any, values: tuple[Any, ...] = ()) -> Any:
        """Let Triton look up or search, and launch; then add the launch to the table."""
        self.misses += 1
        before, choices = self._tuned.__dict__.get("configs_timings"), len(self._tuned.cache)
        start = time.perf_counter()
        result = self._tuned.tritons_run(args, kwargs, grid)
        if self._tuned.__dict__.get("configs_timings") is not before:
            self.chooser.state.searches += 1
            self.chooser.state.search_s += time.perf_counter() - start
        if not self._tuned.is_left:
            self._bind_launched(args, kwargs, grid, result)
        if len(self._tuned.cache) == choices:
            self._tuned.in_vain()
        return result

    def _bind_launched(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any, result: Any) -> None:
        config = self._tuned.best_config
        tuned = self.tuned | frozenset(self.tunable.settings(config))
        if tuned != self.tuned:  # a pruner's own config sets more names than the listed ones
            self._rebuild(tuned)
        try:
            call = self.call(args, kwargs, grid)
        except (AutotunedError, ValueError):  # Triton takes the call, but the table cannot
            return
        if call.options or tuple(call.arguments) != self.names or not self._tuned.is_chosen(config, args, kwargs):
            return
        if _reads_launch(config.pre_hook):
            return
        start = time.perf_counter()
        ready = self._bound(call, config, self._prologue(call, config), result)
        self.launcher.bind(tuple(call.arguments.values()), ready)
        if not self._tuned.is_chosen(config, args, kwargs):  # dropped by another thread just now
            self.launcher.clear()
        self.chooser.state.bind_s += time.perf_counter() - start


def _reads_launch(hook: Any) -> bool:
    """Whether a config's hook may read the grid or `warmup`, which only Triton's own launch passes to it."""
    if hook is None:
        return False
    function = python_function(hook) or python_function(type(hook).__call__)
    found = () if function is None else codes(function.__code__)
    return function is None or any(name in code.co_consts for code in found for name in ("grid", "warmup"))


def _wall_clock(call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
    """Host milliseconds of three calls, for the interpreter, where Triton has no driver to measure with."""
    from autotuned.search.timers import host_us

    least, middle, most = sorted(host_us(call) / 1e3 for _ in range(3))
    return [middle, least, most]
