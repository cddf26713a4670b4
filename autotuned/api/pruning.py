"""`prune_configs_by` as it is given: checked, and taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotuned.errors import DecorationError
from autotuned.tunable import configs


def check(prune: Any) -> None:
    """Refuse what would prune nothing, without a word.

    Raises:
        DecorationError: It is no dict, or has an entry that is no part of a pruner.
    """
    if prune is not None and not isinstance(prune, Mapping):
        raise DecorationError(f"@autotune: prune_configs_by: expected a dict of {', '.join(PARTS)}, got {prune!r:.80}.")
    if unknown := [name for name in prune or () if name not in PARTS]:
        raise DecorationError(
            f"@autotune: prune_configs_by: expected {', '.join(PARTS)}, got {unknown[0]!r}. Remove it or correct "
            "its name."
        )


PARTS = ("early_config_prune", "perf_model", "top_k")


def pruner_of(prune: Mapping[str, Any] | None) -> configs.Pruner:
    """`prune_configs_by` as a pruner."""
    given = prune or {}
    return configs.Pruner(given.get("early_config_prune"), given.get("perf_model"), given.get("top_k", 1.0))
