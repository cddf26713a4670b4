"""Failures of configs: what is kept of their exceptions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import autotuned
from autotuned import Config
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
    assert body.best_config.kwargs == {"step": 2}


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
