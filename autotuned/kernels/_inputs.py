"""Input checks of the host functions, with one form of message; without torch, which NumPy kernels do not need."""

from typing import Any


def require(holds: bool, name: str, expected: str, got: Any, remedy: str) -> None:
    """Refuse an invalid input of a kernel's host function.

    The message is formatted only on failure: a host function runs at every launch, and an f-string of a shape costs as
    much as several comparisons.

    Args:
        holds: Whether the input is valid.
        name: Function and argument, such as "softmax: x".
        expected: What the kernel accepts.
        got: What was passed.
        remedy: What the caller can do, as a sentence.

    Raises:
        ValueError: `holds` is false.
    """
    if not holds:
        raise ValueError(f"{name}: expected {expected}, got {got}. {remedy}")
