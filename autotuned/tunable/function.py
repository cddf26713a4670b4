"""A plain callable as a tunable: CPU code, or a function launching CuPy, CUDA or other kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from autotuned.errors import DecorationError
from autotuned.gpu import device
from autotuned.gpu.device import Device
from autotuned.key import source
from autotuned.key.memory import gpu_of, is_traced
from autotuned.triton_compat import kernel
from autotuned.tunable.call import Call
from autotuned.tunable.tunable import Tunable
from autotuned.typed_json import Json


class TunableFunction(Tunable):
    """A plain callable: CPU code, or a function launching CuPy, CUDA or other kernels."""

    filled: frozenset[str] = frozenset()
    compiles_ahead = False
    has_options = False

    def __init__(self, fn: Callable[..., Any], name: str, distributions: Sequence[str], is_named: bool = False) -> None:
        self.fn = fn
        self.name = name
        self._is_named = is_named
        self.parameters: Sequence[kernel.Parameter] = kernel.parameters(fn)
        self._names = frozenset(parameter.name for parameter in self.parameters)
        self._distributions = {distribution: _installed(distribution, name) for distribution in distributions}

    def allows(self, name: str) -> bool:
        """Whether it is a parameter of the callable."""
        return name in self._names

    def settings(self, config: Any) -> Mapping[str, Any]:
        """The config's parameters only; there are no launch options."""
        settings: Mapping[str, Any] = config.kwargs
        return settings

    def device(self, call: Call) -> Device:
        """The GPU of the first GPU array in the arguments, else this machine's CPU."""
        index = next((index for value in call.arguments.values() if (index := gpu_of(value)) is not None), None)
        return device.cpu() if index is None else device.cuda(index)

    def launches(self, call: Call, config: Any) -> bool:
        """False for tensors without memory, as while torch traces: times with them say nothing about others."""
        return not any(map(is_traced, call.arguments.values()))

    def toolchain(self, where: Device, cache_dir: Path) -> dict[str, Json]:
        """Versions of the distributions in `toolchain=`."""
        return {"distributions": dict(self._distributions)}

    @cached_property
    def _fingerprint(self) -> source.Fingerprint:
        if source.python_function(self.fn) is None:
            raise DecorationError(f"@autotune: expected a Python function, got {self.fn!r:.80}.")
        return source.Fingerprint(self.fn, self._is_named)

    @property
    def source(self) -> str:
        """Fingerprint of the callable, its callees in its own package, and the globals and closure cells used."""
        return self._fingerprint.value()

    @property
    def opaque(self) -> list[tuple[str, Any]]:
        """Values used by the callable and its callees that the last `source` cannot represent."""
        return self._fingerprint.opaque

    def launch(self, call: Call, config: Any) -> Any:
        """Call it with the config's values as keywords."""
        return self.fn(*call.args, **call.kwargs, **self.settings(config))


def _installed(distribution: str, name: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        raise DecorationError(
            f"`{name}`: toolchain: expected names of installed distributions, got {distribution!r}, which is not "
            "installed. Use the name that pip shows."
        ) from None
