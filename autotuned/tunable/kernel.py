"""A Triton kernel as a tunable, with or without `heuristics` under the tuner."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from autotuned._startup import later, once
from autotuned.gpu import device
from autotuned.gpu.device import Device
from autotuned.key import source
from autotuned.key.key import is_tensor
from autotuned.key.source_text import parsed_again
from autotuned.triton_compat import fingerprint
from autotuned.triton_compat import kernel as kernels
from autotuned.tunable.call import Call, is_empty_grid, refuse_grid
from autotuned.typed_json import Json

if TYPE_CHECKING:
    from autotuned.key import exact
    from autotuned.triton_compat import cache, compiled, frontend, unfinished
else:
    compiled, frontend = later("triton_compat.compiled"), later("triton_compat.frontend")
    unfinished = later("triton_compat.unfinished")
    cache, exact = later("triton_compat.cache"), later("key.exact")


class TunableKernel:
    """A Triton kernel, with or without `heuristics` under the tuner."""

    has_options = True

    def __init__(self, fn: Any, function: FunctionType, name: str, is_named: bool = False) -> None:
        kernels.remember_originals()
        self.fn = fn
        self.function = function
        self.name = name
        self._is_named = is_named  # by the user: then the function's name is irrelevant
        self.parameters: Sequence[kernels.Parameter] = kernels.parameters(function)
        self.filled = kernels.filled(fn)
        self.interpreted = kernels.is_interpreted(fn)
        self.compiles_ahead = not self.interpreted
        self.bindable = not self.interpreted and kernels.is_plain_jit(fn)
        self._names = frozenset(parameter.name for parameter in self.parameters)

    @classmethod
    def of(cls, fn: Any) -> TunableKernel:
        """A kernel decorated by something other than this package, named after its function."""
        function: Any = source.python_function(fn)
        return cls(fn, function, source.public_name(fn))

    def allows(self, name: str) -> bool:
        """Whether it is a parameter or a back-end compile option."""
        return name in self._names or name in kernels.option_names()

    def settings(self, config: Any) -> Mapping[str, Any]:
        """Parameters and all options such as `num_warps`."""
        settings: Mapping[str, Any] = config.all_kwargs()
        return settings

    def device(self, call: Call) -> Device:
        """The current GPU, queried each time; the interpreter is one device."""
        return device.INTERPRETER if self.interpreted else device.cuda()

    def toolchain(self, where: Device, cache_dir: Path) -> dict[str, Json]:
        """Triton's version, a hash of all of it, and ptxas's version."""
        return fingerprint.of(where.arch, cache_dir)

    def environment(self) -> dict[str, str]:
        """Triton's cache-invalidating variables."""
        return kernels.environment()

    def environment_changed(self) -> None:
        """Forget binaries, so that trials do not measure those of the earlier environment."""
        kernels.forget_binaries(self.fn)

    @once
    def _fingerprints(self) -> list[tuple[str, source.Fingerprint]]:
        found = [("", source.Fingerprint(kernels.innermost(self.fn), nameless=self._is_named))]
        for layer in kernels.layers(self.fn):
            heuristics = getattr(layer, "values", None) or {}
            found += [(f"{name}:", source.Fingerprint(function)) for name, function in sorted(heuristics.items())]
        return found

    @property
    def source(self) -> str:
        """Fingerprint of kernel, callees, used globals, and heuristics between tuner and kernel."""
        found = self._fingerprints
        if len(found) == 1:
            return found[0][1].value()
        lines = "\n".join(f"{name}{fingerprint.value()}" for name, fingerprint in found)
        return hashlib.sha256(lines.encode()).hexdigest()

    @cached_property
    def _exact(self) -> exact.Exact:
        return exact.Exact(self._fingerprints[0][1])

    @property
    def is_blurred(self) -> bool:
        """Whether the last `source` left out something that machine code may depend on."""
        return self._fingerprints[0][1].is_blurred

    def exact_source(self, source: str) -> str:
        """The latest `source`, with all that machine code may depend on, except for values of heuristics."""
        return source + (self._exact.more() if self.is_blurred else "")

    @property
    def exact_opaque(self) -> list[tuple[str, Any]]:
        """Values that the last `exact_source` cannot represent."""
        return self._exact.opaque if self.is_blurred else self._fingerprints[0][1].opaque

    @property
    def opaque(self) -> list[tuple[str, Any]]:
        """Values used by kernel, callees and heuristics that the last `source` cannot represent."""
        return [(f"{name}{at}", value) for name, found in self._fingerprints for at, value in found.opaque]

    def launch(self, call: Call, config: Any) -> Any:
        """Launch through Triton; returns Triton's result."""
        try:
            return self.fn.run(*call.args, grid=call.grid, warmup=False, **call.kwargs, **self.settings(config))
        except Exception as error:
            kernels.forget_failed_loads(self.fn)
            refuse_grid(call.grid, call.full(config), self.name, error)
            raise

    def launches(self, call: Call, config: Any) -> bool:
        """Whether its grid has a block; True if only a launch can tell."""
        grid = call.grid
        return not is_empty_grid(lambda: grid(self.everything(call, config)) if callable(grid) else grid)

    def everything(self, call: Call, config: Any) -> dict[str, Any]:
        """All arguments, as for a grid callable, including those computed by heuristics."""
        arguments = call.full(config)
        for layer in kernels.layers(self.fn) if self.filled else ():
            for name, heuristic in (getattr(layer, "values", None) or {}).items():
                arguments[name] = heuristic(dict(arguments))
        return arguments

    def compile(self, call: Call, config: Any) -> Any:
        """Warm up through Triton and load the binary, which fails if it needs too many resources."""
        if self.interpreted:
            return None
        return kernels.loaded(self._warm_up(call, config))

    def _warm_up(self, call: Call, config: Any) -> Any:
        settings = self.settings(config)
        return parsed_again(lambda: self.fn.run(*call.args, grid=call.grid, warmup=True, **call.kwargs, **settings))

    def compile_in(self, executor: Any, call: Call, config: Any) -> Callable[[], Any] | None:
        """Warm up through Triton, compiling in the executor; the returned function loads the binary."""
        if self.interpreted:
            return None
        jit = kernels.innermost(self.fn)
        promised = unfinished.promised(jit).items()
        kernel = compiled.compiling_in(executor, lambda: self._warm_up(call, config), promised)
        return unfinished.Compiling(jit, kernel, kernels.loaded)

    def compile_class(self, call: Call) -> Hashable | None:
        """Types, alignment and integer classes; None under heuristics, whose values may depend on anything."""
        if self.interpreted or self.filled:
            return None
        words = [_word(call.arguments.get(p.name), p.constexpr) for p in self.parameters]
        words += [_word((name, value), True) for name, value in sorted(call.options.items())]
        return None if _UNKNOWN in words else tuple(words)

    @contextmanager
    def trials(self, folder: Path) -> Iterator[None]:
        """Around a search: keeps its binaries in a scratch folder, and lets configs share front-end results."""
        if self.interpreted:
            yield
            return
        with cache.trials(folder), frontend.shared(self.fn, folder):
            yield

    def settle(self, call: Call, config: Any, folder: Path) -> None:
        """Copy the winner's binary into Triton's cache; it is already loaded, so nothing is compiled."""
        if self.interpreted:
            return
        try:
            binary = self.compile(call, config)
        except Exception:  # it won by an earlier timing; its launch will report the error
            return
        cache.promote(binary, folder)


_UNKNOWN = "unknown"


def _word(value: Any, constexpr: bool) -> Hashable:
    """An argument's specialization, at least as fine as Triton's."""
    if is_tensor(value):
        return "tensor", str(value.dtype), value.data_ptr() % 16 == 0
    if value is None or isinstance(value, (bool, str)) or (constexpr and isinstance(value, (int, float))):
        return type(value).__name__, repr(value)
    if isinstance(value, int):
        return "int", value == 1, value % 16 == 0, value.bit_length() // 32, value < 0
    if isinstance(value, float):
        return "float"
    if isinstance(value, tuple):
        words = tuple(_word(part, constexpr) for part in value)
        return _UNKNOWN if _UNKNOWN in words else words
    return _UNKNOWN
