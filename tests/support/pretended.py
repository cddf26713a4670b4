"""Fixtures of tests that compile for a pretended H100: its driver, launches, and a benchmark."""

import functools
import os
from pathlib import Path

import fake_cuda
import kept_stages
import pytest

from autotuned.binaries import libcuda
from autotuned.errors import BinaryError
from autotuned.key import source_text
from autotuned.offline.workers import compile_pool
from autotuned.store import records


@pytest.fixture(scope="session", autouse=True)
def pretended_session(tmp_path_factory):
    """Use binaries of this session only; the driver stays installed, since compiled kernels unload with it at exit."""
    fake_cuda.begin_session(tmp_path_factory)
    _look_for_the_driver_once()
    _read_sources_once()
    kept_stages.install(Path(os.environ["TRITON_CACHE_DIR"]) / "stages")


def _look_for_the_driver_once():
    """Look for the driver once if it is missing: the linker would search at each miss, a tenth of its time."""
    try:
        libcuda._library()
    except BinaryError as error:
        text = str(error)

        def none():
            raise BinaryError(text, path="")

        libcuda._library = none


def _read_sources_once():
    """Tokenize each source once: hundreds of tests decorate the same few kernels."""
    tokens = source_text._tokens
    source_text._tokens = functools.lru_cache(1024)(lambda source: tuple(tokens(source)))


@pytest.fixture(scope="session")
def session_scratch(pretended_session):
    """The folder for binaries of losing configs, for all tests: in Triton's cache, which sessions may share."""
    return Path(os.environ["TRITON_CACHE_DIR"]) / "losers"


@pytest.fixture(autouse=True)
def compiled_once(session_scratch, monkeypatch):
    """Compile a kernel that loses in many tests once; a test with its own Triton cache starts with neither."""
    of_the_test, sessions = records.scratch_folder, os.environ["TRITON_CACHE_DIR"]

    def scratch_folder():
        own = of_the_test()
        return session_scratch if os.environ.get("TRITON_CACHE_DIR") == sessions else own

    monkeypatch.setattr(records, "scratch_folder", scratch_folder)


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    """The pretended GPU; nothing runs on it, so trials are timed by the host's clock."""
    return fake_cuda.install_with_host_clock(monkeypatch)


@pytest.fixture
def launches(driver):
    """The launches of this test."""
    return fake_cuda.Launcher.launches


@pytest.fixture
def bench():
    """A benchmark in which BLOCK 32 is the fastest of 16, 32 and 64."""
    return fake_cuda.by_config({16: 2.0, 32: 1.0, 64: 3.0})


def limit_only(monkeypatch, *never_ending):
    """Apply compile workers' time limit only to configs with these words: a busy machine delays the others too."""
    ask = compile_pool._Worker.ask

    def patient(worker, request, limit_s, begun):
        is_endless = any(word in repr(request) for word in never_ending)
        return ask(worker, request, limit_s if is_endless else max(limit_s, 120.0), begun)

    monkeypatch.setattr(compile_pool._Worker, "ask", patient)
