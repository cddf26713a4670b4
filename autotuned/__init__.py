"""Choose the right configuration of a GPU kernel once, keep it, and launch it cheaply."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autotuned._startup import imported

if TYPE_CHECKING:
    from triton import Config

    from autotuned import errors
    from autotuned import experimental as experimental
    from autotuned.api.decorator import autotune
    from autotuned.api.freeze import freeze
    from autotuned.api.function import TunedFunction
    from autotuned.api.heuristics import heuristics
    from autotuned.api.register import register_configs
    from autotuned.api.tuned import Tuned
    from autotuned.binaries.merge import merge
    from autotuned.configfiles.exchange import diff, import_configs
    from autotuned.configfiles.policy import within
    from autotuned.distributed.agreement import sync
    from autotuned.dropin.install import install, uninstall
    from autotuned.env import mode
    from autotuned.events import counters, on_event
    from autotuned.key.key import pow2
    from autotuned.offline.follow import follow
    from autotuned.offline.plan import plan
    from autotuned.offline.prepare import prepare
    from autotuned.offline.release.check import check
    from autotuned.offline.release.compress import compress
    from autotuned.offline.release.export import export
    from autotuned.offline.release.prune import prune
    from autotuned.offline.release.shared import pull, push
    from autotuned.offline.report.compare import compare
    from autotuned.offline.report.digest import choices_digest
    from autotuned.offline.report.report import report
    from autotuned.offline.tuning import tune
    from autotuned.offline.warmup import warmup
    from autotuned.recording.recorder import record
    from autotuned.remote.connection import connect
    from autotuned.resolve.sealing import seal, unseal
    from autotuned.search.do_bench import FixedLaunches
    from autotuned.search.safety.check import Check
    from autotuned.serving.refresh import refresh
    from autotuned.serving.restored import restored
    from autotuned.space.space import Space, pow2s
    from autotuned.space.strategies import strategy

__version__ = "0.2.0"
__all__ = [
    "Check", "Config", "FixedLaunches", "Space", "Tuned", "TunedFunction", "autotune", "check", "choices_digest",
    "compare", "compress", "connect", "counters", "diff", "errors", "export", "follow", "freeze", "heuristics",
    "import_configs", "install", "merge", "mode", "on_event", "plan", "pow2", "pow2s", "prepare", "prune", "pull",
    "push", "record", "refresh", "register_configs", "report", "restored", "seal", "strategy", "sync", "tune",
    "uninstall", "unseal", "warmup", "within",
]  # fmt: skip

# Imported at first use: `import autotuned` must not load torch (1 s) or triton (0.24 s).
_HOMES = {
    "Check": "autotuned.search.safety.check",
    "Config": "triton",
    "FixedLaunches": "autotuned.search.do_bench",
    "Space": "autotuned.space.space",
    "Tuned": "autotuned.api.tuned",
    "TunedFunction": "autotuned.api.function",
    "autotune": "autotuned.api.decorator",
    "check": "autotuned.offline.release.check",
    "choices_digest": "autotuned.offline.report.digest",
    "compare": "autotuned.offline.report.compare",
    "compress": "autotuned.offline.release.compress",
    "connect": "autotuned.remote.connection",
    "counters": "autotuned.events",
    "diff": "autotuned.configfiles.exchange",
    "export": "autotuned.offline.release.export",
    "follow": "autotuned.offline.follow",
    "freeze": "autotuned.api.freeze",
    "heuristics": "autotuned.api.heuristics",
    "import_configs": "autotuned.configfiles.exchange",
    "install": "autotuned.dropin.install",
    "merge": "autotuned.binaries.merge",
    "mode": "autotuned.env",
    "on_event": "autotuned.events",
    "plan": "autotuned.offline.plan",
    "pow2": "autotuned.key.key",
    "pow2s": "autotuned.space.space",
    "prepare": "autotuned.offline.prepare",
    "prune": "autotuned.offline.release.prune",
    "pull": "autotuned.offline.release.shared",
    "push": "autotuned.offline.release.shared",
    "record": "autotuned.recording.recorder",
    "refresh": "autotuned.serving.refresh",
    "register_configs": "autotuned.api.register",
    "report": "autotuned.offline.report.report",
    "restored": "autotuned.serving.restored",
    "seal": "autotuned.resolve.sealing",
    "strategy": "autotuned.space.strategies",
    "sync": "autotuned.distributed.agreement",
    "tune": "autotuned.offline.tuning",
    "uninstall": "autotuned.dropin.install",
    "unseal": "autotuned.resolve.sealing",
    "warmup": "autotuned.offline.warmup",
    "within": "autotuned.configfiles.policy",
}


if not TYPE_CHECKING:  # a type checker must report unknown names

    def __getattr__(name: str) -> Any:
        if name in ("errors", "experimental"):  # modules
            return importlib.import_module(f"autotuned.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'autotuned' has no attribute {name!r}")
        value = getattr(imported(_HOMES[name]), name)
        globals()[name] = value
        return value
