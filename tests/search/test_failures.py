"""Failures of configs: what is kept of their exceptions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import autotuned
from autotuned import Config, errors
from autotuned.distributed import agreement
from autotuned.offline import cases
from autotuned.search import failures


def own_cause() -> None:
    error = ValueError("mine")
    raise error from error


def each_other_s_cause() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__ = second
    raise second from first


def cause_and_context() -> None:
    try:
        raise ValueError("cause")
    except ValueError as error:
        cause = error
    try:
        raise KeyError("context")
    except KeyError:
        raise RuntimeError("mine") from cause


class Textless(Exception):
    def __str__(self) -> str:
        raise AttributeError("message")


def without_text() -> None:
    raise Textless


FAILURES = (own_cause, each_other_s_cause, cause_and_context, without_text)


@pytest.mark.parametrize("fail", FAILURES)
def test_all_that_led_to_an_error_lets_go_of_its_frames(fail: Callable[[], None]) -> None:
    with pytest.raises((ValueError, RuntimeError, Textless)) as raised:
        fail()
    failures.let_go(raised.value)
    linked = (raised.value, raised.value.__cause__, raised.value.__context__)
    assert not any(one.__traceback__ for one in linked if one is not None)


@pytest.mark.parametrize("fail", FAILURES)
def test_a_config_fails_whatever_caused_its_error(fail: Callable[[], None]) -> None:
    @autotuned.autotune(configs=[Config({"step": 1}), Config({"step": 2})])
    def body(n: int, *, step: int) -> None:
        if step == 1:
            fail()

    body(3)
    assert body.best_config is not None and body.best_config.kwargs == {"step": 2}


@pytest.mark.parametrize("fail", FAILURES)
def test_an_error_that_the_caller_handles_keeps_its_frames(fail: Callable[[], None]) -> None:
    """A program that called a kernel in its `except` logged its error without a traceback."""

    @autotuned.autotune(configs=[Config({"step": step}) for step in range(4)])
    def body(n: int, *, step: int) -> None:
        if step < 3:
            fail()

    try:
        raise LookupError
    except LookupError as error:
        body(4)
        assert error.__traceback__ is not None


def test_an_error_that_the_caller_handles_is_not_kept_by_another() -> None:
    try:
        raise LookupError
    except LookupError as handled:
        with pytest.raises(ValueError) as raised:
            own_cause()
        assert raised.value.__context__ is handled
        failures.let_go(raised.value)
        assert raised.value.__context__ is None


# -- errors without a text outside of configs ---------------------------------------------------------------------------


def test_a_reference_whose_error_has_no_text_is_a_failed_check() -> None:
    @autotuned.autotune(configs=[Config({"step": 1}), Config({"step": 2})], check=autotuned.Check(without_text_for))
    def body(out: np.ndarray, *, step: int) -> None:
        out[:] = 1

    with pytest.raises(errors.CheckError, match="Textless: <exception str"):
        body(np.zeros(4))


def without_text_for(**_arguments: object) -> None:
    raise Textless


def test_a_constraint_whose_error_has_no_text_is_named() -> None:
    def where(step: int) -> bool:
        raise Textless

    @autotuned.autotune(configs=autotuned.Space({"step": [1, 2]}, where=where))
    def body(n: int, *, step: int) -> None:
        pass

    with pytest.raises(errors.SpaceError, match="got Textless: <exception str"):
        body(3)


def test_ranks_and_cases_hear_of_an_error_without_text() -> None:
    """Ranks waited in vain for the one whose configs all raised it."""
    assert agreement._failure(Textless(), 0)["message"] == "<exception str() failed>"
    assert cases.reason(Textless()) == "Textless: <exception str() failed>"
