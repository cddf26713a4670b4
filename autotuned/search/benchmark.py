"""Answers of a user's benchmark: times in milliseconds, validated."""

from __future__ import annotations

import logging
import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

log = logging.getLogger("autotuned")


class AnswerError(ValueError):
    """A user's benchmark returned an invalid time; the text says what was expected and what it got."""


def microseconds(answer: Any) -> list[float]:
    """The times of an answer: a number of milliseconds or a list of them, also from NumPy or torch.

    Raises:
        AnswerError: It holds no valid time.
    """
    listed = answer.tolist() if _is_array(answer) else answer
    times = listed if isinstance(listed, (list, tuple)) else [listed]
    found = [_milliseconds(time) for time in times]
    if not found or any(time is None or not math.isfinite(time) or time <= 0 for time in found):
        got = " ".join(f"{answer!r:.80}".split())
        raise AnswerError(
            f"expected milliseconds above 0, one number or a list of them, got {got}. Return what "
            "triton.testing.do_bench(call, quantiles=quantiles) returns, and raise if a config cannot be timed."
        )
    return [time * 1e3 for time in found if time is not None]


def _is_array(value: Any) -> bool:
    return hasattr(value, "tolist") and hasattr(value, "dtype") and hasattr(value, "shape")


def _milliseconds(time: Any) -> float | None:
    """A time as a float; None for other types, `True` and "1.0" included."""
    if _is_array(time) and not time.shape:
        time = time.tolist()
    is_number = isinstance(time, numbers.Real) and not isinstance(time, bool)
    try:
        return float(time) if is_number else None
    except OverflowError:
        return None


def say_left_out(kernel: str, config: str, error: ValueError) -> None:
    """Warn about an invalid answer: the config may have been the best."""
    log.warning("`%s`: do_bench for %s: %s The config is left out.", kernel, config, error)


def is_one_answer(samples_us: Iterable[Sequence[float]]) -> bool:
    """Whether several configs got identical times: the benchmark does not tell them apart."""
    listed = [tuple(samples) for samples in samples_us]
    return len(listed) > 1 and len(set(listed)) == 1
