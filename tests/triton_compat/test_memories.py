"""What is remembered of options and functions while other threads add to it."""

from functools import partial
from itertools import count

import pytest
from anywhere import interrupt

pytest.importorskip("triton")

from autotuned.triton_compat import compiled, specialization  # noqa: E402


class Options:
    pass


class Function:
    used_global_vals: dict[object, object] = {}


def test_threads_may_copy_options_at_once(monkeypatch):
    """A first launch ended in a `RuntimeError` if another thread copied options at the wrong moment."""

    def begin():
        others = count()
        known = {next(others): (None, None, {}) for _ in range(2)}
        monkeypatch.setattr(specialization, "_bases", known)
        copy = partial(specialization._with_counts, Options(), {"num_warps": 8})
        return copy, lambda: known.update({next(others): (None, None, {})})

    monkeypatch.setattr(specialization, "_MOST_BASES", 2)
    interrupt(specialization._with_counts, begin)


def test_threads_may_hold_binaries_of_functions_at_once(monkeypatch):
    """A first launch ended in a `RuntimeError` if another thread's kernel was bound at the wrong moment."""

    def begin():
        others = count()
        known = {(next(others), 0): None for _ in range(2)}
        monkeypatch.setattr(compiled, "_outside", known)
        return partial(compiled._held_outside, Function(), 0), lambda: known.update({(next(others), 0): None})

    monkeypatch.setattr(compiled, "_holds", lambda jit, device, loaded: (lambda: True, (), ()))
    monkeypatch.setattr(compiled, "_MOST_OUTSIDE", 2)
    interrupt(compiled._held_outside, begin)
