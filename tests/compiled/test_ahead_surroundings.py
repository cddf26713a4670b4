"""Compiling ahead in bad surroundings, and what a long wait says."""

import json
import logging
import os
import re
import threading
from pathlib import Path

import pytest
import torch
import triton
from compiled_ahead import BLOCKS, TIMES, add, blocks_compiled, by_config, configs, tuned
from triton.runtime.autotuner import Autotuner

import autotuned
from autotuned.dropin import ahead
from autotuned.search.compiling import compile, crew, pool

pytestmark = pytest.mark.usefixtures("ahead_cold")

# -- bad surroundings --------------------------------------------------------------------------------------------------


def test_a_compilation_that_hangs_leaves_triton_to_it(x, monkeypatch, caplog):
    """In a thread, as a lock in LLVM would; Triton's own attempt does not."""
    monkeypatch.setattr(crew, "STALL_S", 0.5)
    monkeypatch.setattr(crew, "TICK_S", 0.1)
    released = threading.Event()
    parsed = crew.parsed_again
    monkeypatch.setattr(crew, "parsed_again", lambda compile_: released.wait() and parsed(compile_))
    autotuned.install()
    kernel = tuned()
    try:
        kernel[(4,)](x, 100)
    finally:
        released.set()
    assert kernel.best_config.kwargs == {"BLOCK": 64}
    assert [record.getMessage() for record in caplog.records] == [
        "`add`: compiling ahead is stuck (0 of 4 compiled); Triton compiles the rest."
    ]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("count", [1, 4])
def test_a_tuner_without_a_hash_is_left_to_triton(count, replace, events, x):
    class Compared(Autotuner):
        def __eq__(self, other):
            return self is other

        __hash__ = None

    kernel = tuned(kind=Compared, listed=configs(BLOCKS[:count]), do_bench=events.bench)
    autotuned.install(replace=replace)
    kernel[(4,)](x, 100)
    assert events.measured == [*BLOCKS[:count]] * (count > 1)


def test_no_thread_can_be_started(x, events, monkeypatch, caplog):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(crew, "STALL_S", 0.2)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    autotuned.install()
    tuned(do_bench=events.bench)[(4,)](x, 100)
    assert events.measured == list(BLOCKS) and len(caplog.records) <= 1


@pytest.mark.parametrize("error", [MemoryError(), OSError(28, "No space left on device"), SystemError("odd")])
def test_what_fails_in_a_thread_is_tried_again_by_triton(error, x, monkeypatch, caplog):
    def fail(compile_):
        raise error

    monkeypatch.setattr(crew, "parsed_again", fail)
    autotuned.install()
    kernel = tuned()
    kernel[(4,)](x, 100)
    assert kernel.best_config.kwargs == {"BLOCK": 64} and not caplog.records


def test_what_fails_before_is_said_once(x, monkeypatch, caplog):
    monkeypatch.setattr(ahead, "_compile", lambda *args: 1 / 0)
    autotuned.install()
    kernel = tuned()
    for n in (100, 101):
        kernel[(4,)](x, n)
    assert [record.getMessage() for record in caplog.records] == [
        "`add`: nothing is compiled ahead (ZeroDivisionError: division by zero): Triton compiles as it measures."
    ]


def test_a_wrong_number_of_workers_is_said_once(x, monkeypatch, caplog):
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", "many")
    autotuned.install()
    kernel = tuned()
    kernel[(4,)](x, 100)
    assert kernel.best_config.kwargs == {"BLOCK": 64}
    assert len(caplog.records) == 1 and "AUTOTUNED_COMPILE_WORKERS" in caplog.text


def test_a_store_that_cannot_be_written_changes_nothing(events, x, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "file" / "cache"))
    autotuned.install()
    tuned(do_bench=events.bench)[(4,)](x, 100)
    assert sorted(blocks_compiled(events)) == list(BLOCKS)


def test_a_cache_of_tritons_that_cannot_be_written_fails_as_without(x, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "triton"))

    def error():
        with pytest.raises(OSError) as raised:
            tuned()[(4,)](x, 100)
        return type(raised.value), raised.value.errno

    stock = error()
    autotuned.install()
    assert error() == stock


def test_ctrl_c_while_it_waits_ends_the_call(x, monkeypatch):
    def interrupt(self, tick):
        raise KeyboardInterrupt

    monkeypatch.setattr(crew.Crew, "wait", interrupt)
    autotuned.install()
    kernel = tuned()
    with pytest.raises(KeyboardInterrupt):
        kernel[(4,)](x, 100)
    monkeypatch.undo()
    autotuned.install()
    kernel[(4,)](x, 100)
    assert kernel.best_config.kwargs == {"BLOCK": 64}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_what_ended_two_processes_while_it_was_compiled_is_left_to_triton(events, x, monkeypatch):
    """As a fault in LLVM does, of which nothing says which of the configs under way is to blame."""
    autotuned.install()
    kernel = tuned(do_bench=events.bench)
    parsed = crew.parsed_again
    for process in range(2):
        child = os.fork()
        if child == 0:
            try:
                monkeypatch.setattr(crew, "parsed_again", lambda compile_: os._exit(7))
                kernel[(4,)](x, 100)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] >> 8 == 7, process
    monkeypatch.setattr(crew, "parsed_again", parsed)
    kernel[(4,)](x, 100)
    assert kernel.best_config.kwargs == {"BLOCK": 64}
    left = blocks_compiled(events, "MainThread")
    assert 1 <= len(left) <= 2 and len(blocks_compiled(events)) == 4 - len(left)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_compiles_ahead_by_itself(x):
    autotuned.install()
    tuned()[(4,)](x, 100)
    kernel = tuned()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            kernel[(4,)](torch.zeros(256, dtype=torch.float16), 100)
            code = 0 if kernel.best_config.kwargs == {"BLOCK": 64} else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


# -- progress ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("terminal", "level"), [(True, "WARNING"), (False, "INFO")])
def test_a_long_wait_says_how_far_it_is(terminal, level, x, monkeypatch, caplog):
    monkeypatch.setattr(compile, "SAY_AFTER_S", 0.0)
    monkeypatch.setattr(compile, "_at_a_terminal", lambda: terminal)
    autotuned.install()
    with caplog.at_level(logging.INFO, "autotuned"):
        tuned()[(4,)](x, 100)
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert any(one[0] == level and one[1].startswith("`add`: compiling its configs, ") for one in said)
    assert len([one for one in said if one[0] == "WARNING"]) == terminal
    assert any(message.startswith("`add`: 4 of 4 compiled ahead in ") for _, message in said)


@pytest.mark.parametrize("how", ["race", "decorator"])
def test_a_long_search_says_it_too(how, x, monkeypatch, caplog):
    monkeypatch.setattr(compile, "SAY_AFTER_S", 0.0)
    monkeypatch.setattr(compile, "_at_a_terminal", lambda: True)
    monkeypatch.setattr(pool, "TICK_S", 0.001)
    kernel = tuned()
    if how == "race":
        autotuned.install(race=True)
    else:
        kernel = autotuned.autotune(configs(), key=["n"], do_bench=by_config())(triton.jit(add))
    with caplog.at_level(logging.INFO, "autotuned"):
        kernel[(4,)](x, 100)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 1 and re.fullmatch("`[a-z_.]*add`: compiling its configs, [0-4] of 4 compiled.", lines[0])


def test_a_short_one_says_nothing_by_default(x, caplog):
    autotuned.install()
    with caplog.at_level(logging.WARNING, "autotuned"):
        tuned()[(4,)](x, 100)
    assert not caplog.records


def test_stock_files_of_choices_are_as_ever(x, tmp_path):
    autotuned.install()
    tuned(cache_results=True)[(4,)](x, 100)
    (path,) = Path(tmp_path / "triton").rglob("*.autotune.json")
    assert [times for _, times in json.loads(path.read_text())["configs_timings"]] == [[TIMES[b]] * 3 for b in BLOCKS]
