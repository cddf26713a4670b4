"""Kernels compiled for a pretended H100, collected only in the process that `tests/project/test_compiled.py` starts."""

import os

import pytest

COMPILED = os.environ.get("AUTOTUNED_TESTS") == "compiled"
collect_ignore_glob = [] if COMPILED else ["*.py"]
if COMPILED:
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns without it
    from compiled_ahead import ahead_cold, events, x  # noqa: F401
    from kept_stages import no_machine_code, real_stages  # noqa: F401
    from pretended import (  # noqa: F401
        bench,
        compiled_once,
        driver,
        launches,
        pretended_session,
        session_scratch,
    )  # fmt: skip
    from served_binaries import (  # noqa: F401
        built_once,
        library,
        nothing_compiles,
        nothing_compiles_later,
        second,
        served,
        shipped,
    )  # fmt: skip
    from started_ranks import start  # noqa: F401
    from tritons_packer import shared_device  # noqa: F401

# Every test of these modules runs on both launchers. Without a driver the C one ends in the same recording launcher;
# `test_driver.py` tests its own call of the driver.
TWINS = {
    "test_hit",
    "test_compound",
    "test_guards",
    "test_seal",
    "test_same_binary",
    "test_control",
    "test_hooks",
    "test_heuristics",
    "test_contexts",
    "test_nested",
    "test_unbindable",
    "test_patches",
    "test_refresh",
    "test_unseen",
}


def pytest_generate_tests(metafunc):
    """Both launchers for the modules above."""
    if metafunc.module.__name__.rpartition(".")[2] in TWINS:
        metafunc.parametrize("launcher", ["c", "python"], indirect=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol():
    """Restore the environment: Triton's knobs write there, also when a patch of one is undone."""
    before = set(os.environ)
    try:
        return (yield)
    finally:
        for name in set(os.environ) - before - {"TRITON_CACHE_DIR"}:  # the session's own
            if name.startswith("TRITON_"):
                del os.environ[name]


@pytest.fixture(autouse=True)
def launcher(request, monkeypatch):
    """The launcher to decorate for; the default one in other modules."""
    name = getattr(request, "param", None)
    if name == "c":
        pytest.importorskip("autotuned._launch")
    if name is not None:
        monkeypatch.setenv("AUTOTUNED_LAUNCHER", name)
    return name
