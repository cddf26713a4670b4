"""The miss path's interface to a tuned kernel or function."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotuned._startup import Protocol

if TYPE_CHECKING:
    from autotuned.gpu.device import Device
    from autotuned.triton_compat import kernel
    from autotuned.tunable.call import Call
    from autotuned.typed_json import Json


class Tunable(Protocol):
    """A tuned kernel or function as the miss path sees it; defaults are for one without a compiler."""

    fn: Any
    name: str
    parameters: Sequence[kernel.Parameter]
    filled: frozenset[str]  # parameters computed by heuristics under the tuner
    compiles_ahead: bool  # whether it can compile without launching
    has_options: bool  # whether it has launch options such as `num_warps`

    def allows(self, name: str) -> bool:
        """Whether a config may set `name`."""

    def settings(self, config: Any) -> Mapping[str, Any]:
        """Parameters and launch options set by this config."""

    def device(self, call: Call) -> Device:
        """The device this call runs on."""

    def toolchain(self, where: Device, cache_dir: Path) -> dict[str, Json]:
        """The compiler versions in the key's context."""

    def environment(self) -> dict[str, str]:
        """Environment variables that change the code."""
        return {}

    def environment_changed(self) -> None:
        """Called when these differ from an earlier call's."""
        return

    def launch(self, call: Call, config: Any) -> Any:
        """Run once with a config, without hooks and protection."""

    def launches(self, call: Call, config: Any) -> bool:
        """Whether the grid has a block with this config; True if only a launch can tell."""
        return True

    def compile(self, call: Call, config: Any) -> Any:
        """Compile and load without launching; raises the compiler's errors. None if nothing is compiled ahead."""
        return None

    def compile_in(self, executor: Any, call: Call, config: Any) -> Callable[[], Any] | None:
        """Start `compile` in an executor; returns a function that waits for the binary and loads it, or None.

        Errors before the compiler runs are raised at once.
        """
        return None

    def compile_class(self, call: Call) -> Hashable | None:
        """All that decides, besides config and context, whether a config compiles; None if unknown."""
        return None

    def trials(self, folder: Path) -> AbstractContextManager[None]:
        """Around a search: keeps its binaries in a scratch folder, if they can be attributed to configs."""
        return nullcontext()

    def settle(self, call: Call, config: Any, folder: Path) -> None:
        """At the end of a search, inside `trials`: put the winner's binary where the next process looks."""
        return

    @property
    def source(self) -> str:
        """Fingerprint of its code."""

    @property
    def opaque(self) -> list[tuple[str, Any]]:
        """Values used by the code that the last `source` cannot represent."""
