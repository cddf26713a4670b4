"""Checks of the host functions, with one form of message; without torch, which plain NumPy kernels do not need."""

from typing import Any


def require(holds: bool, name: str, expected: str, got: Any, remedy: str) -> None:
    """Refuse an input of a kernel's host function.

    The parts of the message are joined only on failure: a host function runs on every launch, and one f-string of a
    shape costs as much there as several comparisons.

    Args:
        holds: Whether the input is fine.
        name: Function and argument, such as "softmax: x".
        expected: What the kernel can work with.
        got: What came.
        remedy: What the caller can do, as a sentence.

    Raises:
        ValueError: `holds` is false.
    """
    if not holds:
        raise ValueError(f"{name}: expected {expected}, got {got}. {remedy}")
