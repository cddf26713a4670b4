"""Configs that do not compile, remembered in this process so that each further key does not compile them again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autotuned._launch_py import integer_class
from autotuned.key import Key, is_tensor
from autotuned.record import Timing
from autotuned.values import canonical

LIMIT = 4096
# What a compiler says of a config wherever it is tried; never a full memory, a time-out or an error at the launch.
COMPILER_ERRORS = ("CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct", "PTXASError",
                   "OutOfResources")  # fmt: skip


class Uncompilable:
    """The configs of one kernel that failed to compile, by all that decides what is compiled."""

    def __init__(self) -> None:
        self._failed: dict[tuple[str, str], Timing] = {}

    def known(self, identity: str, configs: Iterable[str]) -> dict[str, Timing]:
        """Failures that are known already; none where every config failed: then each is given another chance."""
        configs = list(configs)
        found = {config: self._failed[identity, config] for config in configs if (identity, config) in self._failed}
        return found if len(found) < len(configs) else {}

    def learn(self, identity: str, timings: Iterable[Timing]) -> None:
        """Take in what a search measured."""
        for timing in timings:
            if timing.status == "failed" and (timing.error or "").startswith(COMPILER_ERRORS):
                self._failed[identity, timing.identity] = timing
        while len(self._failed) > LIMIT:
            del self._failed[next(iter(self._failed))]


def compile_identity(key: Key, arguments: Mapping[str, Any], constexprs: Iterable[str]) -> str:
    """What a call's binaries depend on besides the config: the context, constexprs, and classes of the arguments."""
    values = key.call["values"]
    compiled_in = {name: value for name, value in values.items() if name.partition("[")[0] in set(constexprs)}
    classes = [[name, _class(value)] for name, value in arguments.items()]
    return canonical([key.context, key.call.get("options"), compiled_in, classes])


def _class(value: Any) -> Any:
    if is_tensor(value):
        return [str(value.dtype), len(value.shape), value.data_ptr() % 16 if hasattr(value, "data_ptr") else None]
    if isinstance(value, int) and not isinstance(value, bool):
        return list(integer_class(value))
    return [type(value).__qualname__, [_class(item) for item in value] if isinstance(value, tuple) else None]
