"""`@autotune`: checks its arguments and wraps a Triton kernel or a plain callable."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotuned._startup import Frozen, errors, later, loaded
from autotuned.key import source
from autotuned.key.key import KeySpec
from autotuned.resolve.request import Options, is_budget
from autotuned.triton_compat import kernel as triton_names
from autotuned.triton_compat import versions
from autotuned.tunable import configs
from autotuned.tunable.call import Hooks, Names, checked_names
from autotuned.tunable.kernel import TunableKernel

if TYPE_CHECKING:
    from typing import Literal

    from triton import Config

    from autotuned.api import tuned
    from autotuned.api.function import TunedFunction
    from autotuned.api.overloads import Decorator
    from autotuned.configfiles import nearest_shape as neighbours
    from autotuned.configfiles.policy import Within
    from autotuned.search import do_bench as benches
    from autotuned.search.safety import check as checks
    from autotuned.space import declared, strategies
    from autotuned.space.space import Space
    from autotuned.tunable.tunable import Tunable
else:
    checks, benches, tuned = later("search.safety.check"), later("search.do_bench"), later("api.tuned")
    neighbours, declared = later("configfiles.nearest_shape"), later("space.declared")

# name= of a kernel -> its fingerprint and its place of definition.
_explicit_names: dict[str, tuple[str, tuple[str, str] | None]] = {}


def autotune(
    configs: Iterable[Config] | Callable[..., Iterable[Config]] | Space,
    key: Sequence[str | Callable[..., Any]] | None = None,
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | Literal["auto"] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: int | None = None,
    rep: int | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = True,
    *,
    name: str | None = None,
    default: Config | Callable[..., Config] | None = None,
    bucket: Mapping[str, Callable[[Any], Any]] | None = None,
    members: int = 1,
    members_by: str = "mean",
    nearest: Mapping[str, float] | Within | None = None,
    check: checks.Check | Callable[..., Any] | Literal["first"] | None = None,
    version: Any = None,
    toolchain: Sequence[str] | None = None,
    budget_s: float | None = None,
    max_searches: int | None = None,
    strategy: strategies.Name | strategies.AskTell | Callable[[Any], strategies.AskTell] | None = None,
    objective: Literal["kernel", "call"] | None = None,
) -> Decorator:
    """Choose a config per key by benchmarking once, store the choice on disk, and launch with little overhead.

    Decorates a `@triton.jit` kernel (also under `heuristics`), used as before: `kernel[grid](...)`; or a plain callable
    that takes its tunables by keyword. The first twelve parameters are those of `triton.autotune`, in its order;
    `docs/migration.md` lists the differences.

    Args:
        configs: List of `triton.Config`, a callable that takes the bound arguments by keyword and returns such a list,
            or a `Space`. An empty list means one default config.
        key: Argument names (scalars enter by type and value, tensors by shape) and callables of the bound arguments
            (one dict). None: the shapes of all tensors and all integers that are not constexprs. dtypes, stride
            patterns and None-ness of all tensors are always in the key.
        prune_configs_by: `early_config_prune`, `perf_model`, `top_k`, as in Triton; pruners may be generators.
        reset_to_zero: Arguments that the kernel accumulates into: zeroed before every launch, trial or not.
        restore_value: Arguments restored after each trial. None or "auto": detected. []: none.
        pre_hook: Called before each trial with all arguments, and once after the race with `reset_only=True`.
        post_hook: Called after each trial with all arguments and `exception=`.
        warmup: Milliseconds; benchmark with Triton's `do_bench`.
        rep: Milliseconds; also selects Triton's `do_bench`.
        use_cuda_graph: Benchmark with Triton's `do_bench_cudagraph`.
        do_bench: The benchmark to use: `do_bench(call, quantiles=)` returns milliseconds.
        cache_results: False keeps choices in this process only.
        name: Stable public name of the kernel; default `module.qualname`.
        default: Config, or callable of the bound arguments returning one, used if nothing is stored; the kernel then
            never searches on its own.
        bucket: `{"M": autotuned.pow2}`: the key holds the bucket of a key argument, the launch its true value.
        members: Tune a bucket on this many of its calls, if a recording or cases have them; without these only on the
            call itself.
        members_by: How one config is picked for all members: "mean", the geometric mean of its slowdowns against each
            member's best config, or "worst", the largest slowdown.
        nearest: `{"M": 2.0}`: if config files lack the call, use the nearest entry that differs only in M, by at most
            this factor. `autotuned.within("5%")`: use a rule of the files that loses at most this.
        check: The results that a config must match: a reference callable's, the first running config's ("first"), or
            those of an `autotuned.Check`, with tolerances and poisoning.
        version: A salt; change it to tune again.
        toolchain: For plain callables: distributions whose versions are in the key, such as "cupy-cuda13x".
        budget_s: Stop a search after this many seconds (above 0) with the best config so far; None: no limit.
        max_searches: After this many searches in one process, further keys run untuned, with one warning.
        strategy: How a `Space` is searched: "auto", "exhaustive", "random", "guided", or an object with `ask(n)` and
            `tell(results)`.
        objective: "kernel" measures device time, "call" the cost of one call including the host. None: "kernel" for
            kernels, "call" for plain callables. Omit it with your own benchmark.

    Returns:
        A decorator returning a `Tuned` (a subclass of Triton's `Autotuner`) or a `TunedFunction`.

    Raises:
        DecorationError: The decorated object cannot be tuned, or options contradict each other.
        VersionError: Triton is older than 3.6.
        ArgumentNameError: A list names an argument that the kernel does not have.
        ConfigError: An entry is not a config, or sets something that is not a parameter.
    """
    if triton_names.is_kernel(configs):
        raise errors.DecorationError(
            "@autotune: expected configs, got the kernel itself. Write @autotune(configs=[...]) above @triton.jit."
        )
    given = _Given(
        configs=configs,
        key=key,
        prune=prune_configs_by,
        zero=reset_to_zero,
        restore=None if restore_value == "auto" else restore_value,
        hooks=Hooks(pre_hook, post_hook),
        do_bench=measured_by(do_bench, warmup, rep, use_cuda_graph),
        stored=cache_results,
        name=name,
        default=default,
        bucket=_checked_dict("bucket", "callables", bucket),
        members=(members, members_by),
        nearest=_checked_dict(
            "nearest", "factors", getattr(nearest, "nearest", nearest), " For rules write autotuned.within('5%')."
        ),
        within=nearest if hasattr(nearest, "bound") else None,  # a `Within`, tested without importing it
        check=check,
        version=version,
        distributions=_checked_distributions(toolchain),
        budget_s=budget_s,
        max_searches=max_searches,
        strategy=strategy,
        objective=objective,
    )
    return given.decorate


def measured_by(
    do_bench: Callable[..., Any] | None, warmup: int | None, rep: int | None, use_cuda_graph: bool
) -> Callable[..., Any] | None:
    """The user's benchmark, Triton's with the user's times, or None if none was given."""
    if do_bench is not None or (warmup is None and rep is None and not use_cuda_graph):
        return do_bench
    return benches.TritonBench(25 if warmup is None else warmup, 100 if rep is None else rep, use_cuda_graph)


class _Given(Frozen):
    """The decorator's arguments; `decorate` checks them against the decorated function."""

    configs: Any
    key: Sequence[str | Callable[..., Any]] | None
    prune: Mapping[str, Any] | None
    zero: Sequence[str] | None
    restore: Any
    hooks: Hooks
    do_bench: Callable[..., Any] | None
    stored: bool
    name: str | None
    default: Any
    bucket: Mapping[str, Callable[[Any], Any]]
    members: tuple[Any, Any]
    nearest: Mapping[str, float]
    within: Any
    check: Any
    version: Any
    distributions: tuple[str, ...]
    budget_s: float | None
    max_searches: int | None
    strategy: Any
    objective: str | None

    def decorate(self, fn: Any) -> Any:
        function = _decorated_function(fn)
        configs.check_prune(self.prune)
        name = self.name or source.public_name(fn)
        if triton_names.is_kernel(fn):
            return self._kernel(TunableKernel(fn, function, name, self.name is not None))
        return self._function(fn, name)

    def _kernel(self, tunable: TunableKernel) -> Any:
        self._refuse_shared_name(tunable)
        if self.distributions:
            raise errors.DecorationError(
                f"`{tunable.name}`: toolchain: expected none for a kernel, whose key has Triton and ptxas, got "
                f"{list(self.distributions)}. Put other dependencies of the choice into version=."
            )
        listed, names = self._checked_configs(tunable), self._argument_names(tunable)
        return tuned.Decorated(
            tunable,
            tuned.Decoration(names, listed, self.prune, self.hooks, self.do_bench),
            lambda configs, pruner: self._options(tunable, names, configs, pruner),
        )

    def _function(self, fn: Any, name: str) -> TunedFunction:
        from autotuned.api.function import TunedFunction
        from autotuned.tunable.function import TunableFunction

        tunable = TunableFunction(fn, name, self.distributions, self.name is not None)
        self._refuse_shared_name(tunable)
        names = self._argument_names(tunable)
        return TunedFunction(
            tunable,
            names,
            self._checked_configs(tunable),
            lambda listed: self._options(tunable, names, listed, lambda: configs.pruner_of(self.prune)),
        )

    def _refuse_shared_name(self, tunable: Tunable) -> None:
        if self.name is None:
            return
        new = tunable.source, _place(tunable.fn)
        taken, place = _explicit_names.setdefault(self.name, new)
        if place is not None and place == new[1]:
            _explicit_names[self.name] = new
        elif taken != tunable.source:
            raise errors.DecorationError(
                f"@autotune: name={self.name!r} is taken by a kernel with different source. Names must be unique: "
                "records and config files are found by them."
            )

    def _argument_names(self, tunable: Tunable) -> Names:
        known = [parameter.name for parameter in tunable.parameters]
        lists = (("key", self.key), ("reset_to_zero", self.zero), ("restore_value", self.restore))
        names = Names(*(checked_names(label, given, known, tunable.name) for label, given in lists))
        _refuse_both(names.restore or (), names.zero, tunable.name, "restore_value", "keeps the caller's data")
        if self.check is not None:
            poisoned = checked_names("poison", checks.as_check(self.check, tunable.name).poisoned, known, tunable.name)
            _refuse_both(poisoned or (), names.zero, tunable.name, "poison", "fills it before a launch")
        self._check_axes(tunable)
        return names

    def _check_axes(self, tunable: Tunable) -> None:
        """Refuse `bucket=` and `nearest=` for arguments that are not in the key."""
        for argument, function in self.bucket.items():
            if not callable(function):
                raise errors.DecorationError(
                    f"`{tunable.name}`: bucket: expected a callable for {argument!r}, such as autotuned.pow2, got "
                    f"{function!r:.60}."
                )
            if self.key is None or argument not in self.key:
                raise errors.DecorationError(
                    f"`{tunable.name}`: bucket: {argument!r} must be listed in key=[...]; without a list every exact "
                    "shape is in the key and a bucket changes nothing."
                )
        in_key = [p.name for p in tunable.parameters if self.key is None or p.constexpr or p.name in self.key]
        if self.nearest and (wrong := neighbours.check(self.nearest, in_key, tunable.name)):
            raise errors.DecorationError(wrong)

    def _checked_configs(self, tunable: Tunable) -> list[Any]:
        if callable(self.configs):
            return []
        given = self._computed(tunable).sample() if _is_space(self.configs) else self.configs
        listed = configs.listed(given, tunable.name) or [_one_config()]
        configs.check(listed, tunable)
        if self.prune is None:  # a pruner may drop or complete them
            configs.check_complete(listed, tunable)
        if configs.is_config(self.default):
            configs.check([self.default], tunable)
        return listed

    def _options(
        self, tunable: Tunable, names: Names, configs: Callable[[], list[Any]], pruner: Callable[[], configs.Pruner]
    ) -> Options:
        computed = self._computed(tunable)
        return Options(
            configs=configs,
            spec=KeySpec(
                names=None if self.key is None else tuple(names.key),
                functions={_function_name(f, i): f for i, f in enumerate(self.key or ()) if callable(f)},
                buckets=dict(self.bucket),
                constexprs=triton_names.constexprs(tunable.parameters),
            ),
            computed=computed,
            declared=computed if _is_space(self.configs) else None,
            pruner=pruner,
            restore=None if names.restore is None else tuple(names.restore),
            zero=tuple(names.zero),
            hooks=self.hooks,
            do_bench=self.do_bench,
            default=self.default,
            version=self.version,
            stored=self.stored,
            budget_s=_checked_budget(self.budget_s),
            check=None if self.check is None else checks.as_check(self.check, tunable.name),
            max_searches=_checked_searches(self.max_searches),
            nearest=self.nearest,
            within=self.within,
            **self._checked_members(tunable.name),
            **self._objectives(tunable),
        )

    def _computed(self, tunable: Tunable) -> Any:
        """The callable that computes a call's configs; None for a fixed list."""
        if self.strategy is None and not _is_space(self.configs):
            return self.configs if callable(self.configs) else None
        return declared.of(self.configs, self.strategy, tunable.has_options, tunable.name)

    def _checked_members(self, kernel: str) -> dict[str, Any]:
        count, by = self.members
        if type(count) is not int or count < 1:
            raise errors.DecorationError(
                f"`{kernel}`: members: expected a number of calls, 1 or more, got {count!r:.60}."
            )
        if by not in ("mean", "worst"):
            raise errors.DecorationError(f"`{kernel}`: members_by: expected 'mean' or 'worst', got {by!r:.60}.")
        if count > 1 and not self.bucket:
            raise errors.DecorationError(
                f"`{kernel}`: members: expected a bucket= with it, got none: all calls of a key have the same sizes. "
                "Remove members=, or add a bucket."
            )
        return {"members": count, "members_by": by}

    def _objectives(self, tunable: Tunable) -> dict[str, Any]:
        """The objective and its default."""
        if self.objective not in (None, "kernel", "call"):
            raise errors.DecorationError(
                f"`{tunable.name}`: objective: expected 'kernel' or 'call', got {self.objective!r:.60}. The first is "
                "the device's time, the second the cost of one call including the host."
            )
        if self.objective is not None and self.do_bench is not None:
            raise errors.DecorationError(
                f"`{tunable.name}`: objective: expected none with do_bench=, warmup=, rep= or use_cuda_graph=, which "
                f"decide what is measured, got {self.objective!r}. Remove one of them."
            )
        usual = "kernel" if isinstance(tunable, TunableKernel) or self.do_bench is not None else "call"
        return {"objective": self.objective or usual, "usual": usual}


def _checked_dict(label: str, what: str, given: Any, hint: str = "") -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise errors.DecorationError(
            f"@autotune: {label}: expected a dict of {what} by argument name, got {given!r:.60}.{hint}"
        )
    return dict(given or {})


def _checked_distributions(given: Any) -> tuple[str, ...]:
    if isinstance(given, str):
        raise errors.DecorationError(
            f"@autotune: toolchain: expected a list of distributions, got {given!r:.60}. Write "
            f"toolchain=[{given!r:.60}]."
        )
    return tuple(given or ())


def _refuse_both(names: Sequence[str], zeroed: Sequence[str], kernel: str, label: str, does: str) -> None:
    for name in sorted(set(names) & set(zeroed)):
        raise errors.ArgumentNameError(
            f"`{kernel}`: {name!r} is in both {label} and reset_to_zero. The first {does}, the second overwrites it "
            "with zeros: name it in one.",
            name=name,
            kernel=kernel,
        )


def _checked_searches(max_searches: Any) -> float:
    if max_searches is None:
        return math.inf
    if type(max_searches) is not int or max_searches < 0:
        raise errors.DecorationError(
            f"@autotune: max_searches: expected a number of searches or None, got {max_searches!r}."
        )
    return max_searches


def _checked_budget(budget_s: Any) -> float | None:
    if budget_s is not None and not is_budget(budget_s):
        raise errors.DecorationError(
            f"@autotune: budget_s: expected seconds above 0 or None, got {budget_s!r}. default= keeps a kernel from "
            "searching, mode 'off' a whole program."
        )
    return None if budget_s is None else float(budget_s)


def _place(fn: Any) -> tuple[str, str] | None:
    """Module and name of a function, so that a reload or a notebook cell replaces it; None for a nested function."""
    function: Any = source.python_function(fn)
    return None if "<locals>" in function.__qualname__ else (function.__module__, function.__qualname__)


def _one_config() -> Any:
    import triton

    return triton.Config({}, num_warps=4, num_stages=3, num_ctas=1)


def _decorated_function(fn: Any) -> Any:
    """The decorated plain function; raises DecorationError if there is none, or if it is already tuned."""
    is_kernel = triton_names.is_kernel(fn)
    if is_kernel or type(fn).__module__.startswith("triton."):  # also interpreted kernels of an old Triton
        versions.check()
    if is_kernel:
        if any(triton_names.is_tuner(layer) for layer in triton_names.layers(fn)):
            raise errors.DecorationError(
                "@autotune: expected a kernel that is not tuned yet, got one under another autotune. "
                "Keep one of the two decorators."
            )
    elif _is_tuned_function(fn):
        raise errors.DecorationError("@autotune: this callable is tuned already. Keep one of the two decorators.")
    elif inspect.isclass(fn) or not callable(fn):
        raise errors.DecorationError(
            f"@autotune: expected a @triton.jit kernel or a function, got {fn!r:.80}. The order is "
            "@autotune(configs=[...]) on top, then @triton.heuristics if any, then @triton.jit."
        )
    function = source.python_function(fn)
    if function is None:
        raise errors.DecorationError(f"@autotune: expected something with a Python function inside, got {fn!r:.80}.")
    if not is_kernel and function.__code__.co_flags & _LATER:
        raise errors.DecorationError(
            f"@autotune: expected a function that does its work when called, got {fn!r:.80}, which is async or a "
            "generator: only its creation would be measured. Tune the plain function inside."
        )
    return function


_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _is_space(given: Any) -> bool:
    module = loaded("space.space")  # if it is not imported, there are no spaces
    return module is not None and isinstance(given, module.Space)


def _is_tuned_function(fn: Any) -> bool:
    module = loaded("api.function")  # if it is not imported, there are no tuned functions
    return module is not None and isinstance(fn, module.TunedFunction)


def _function_name(function: Callable[..., Any], index: int) -> str:
    name = getattr(function, "__name__", "<lambda>")
    return f"function{index}" if name == "<lambda>" else name
