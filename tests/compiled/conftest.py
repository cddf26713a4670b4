"""Kernels compiled for a pretended H100: collected only in the process that `tests/test_compiled.py` starts."""

import os

import pytest

COMPILED = os.environ.get("AUTOTUNED_TESTS") == "compiled"
collect_ignore_glob = [] if COMPILED else ["*.py"]
if COMPILED:
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not said


@pytest.fixture(scope="session", autouse=True)
def pretended_session(tmp_path_factory):
    """Binaries of this session only, and a driver left in place: compiled kernels unload with it at the very end."""
    import fake_cuda
    import triton

    if "TRITON_CACHE_DIR" not in os.environ:
        os.environ["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    triton.runtime.driver._active = fake_cuda.Driver()


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    """The pretended GPU; nothing runs on it, so trials are timed by the clock of the host."""
    import fake_cuda

    from autotuned import measure, target

    monkeypatch.setattr(target, "CudaTimer", measure.HostTimer)
    return fake_cuda.install(monkeypatch)


@pytest.fixture
def launches(driver):
    """What was launched so far in this test."""
    import fake_cuda

    return fake_cuda.Launcher.launches
