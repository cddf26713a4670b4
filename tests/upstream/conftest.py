"""Every test here runs on Triton's tuner and on ours; some in the interpreter, some on a pretended GPU."""

import os
from types import SimpleNamespace

import pytest
import torch
import triton

COMPILED = os.environ.get("AUTOTUNED_TESTS") == "compiled"
collect_ignore_glob = ["test_interpreted_*.py"] if COMPILED else ["test_compiled_*.py"]


def pytest_generate_tests(metafunc):
    """All four subjects, unless a test names its own."""
    import subjects

    if "subject" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("subjects")
        metafunc.parametrize("subject", mark.args[0] if mark else subjects.SUBJECTS, indirect=True)


@pytest.fixture
def subject(request, driver):
    """Triton's tuner or ours, installed for the test."""
    import subjects

    with subjects.subject(request.param) as one:
        yield one


if COMPILED:
    from contract import make, x  # noqa: F401  (fixtures)
    from pretended import (  # noqa: F401
        bench,
        compiled_once,
        driver,
        launches,
        pretended_session,
        session_scratch,
    )  # fmt: skip
    from straggling import held  # noqa: F401
else:

    class _Event:
        """A CUDA event on a machine without CUDA: the wall clock."""

        def __init__(self, enable_timing=False):
            pass

        def record(self):
            import time

            self.time = time.perf_counter()

        def elapsed_time(self, other):
            return (other.time - self.time) * 1e3

    class _Driver:
        """The driver that Triton's benchmark needs, for the interpreter."""

        get_current_device = staticmethod(lambda: 0)
        get_current_stream = staticmethod(lambda index: 0)
        get_active_torch_device = staticmethod(lambda: torch.device("cpu"))
        get_empty_cache_for_benchmark = staticmethod(lambda: torch.empty(1))
        clear_cache = staticmethod(lambda cache: None)

        def get_device_interface(self):
            return SimpleNamespace(Event=_Event, synchronize=lambda: None)

        def get_benchmarker(self):
            def bench(call, quantiles):
                for _ in range(2):
                    call()
                return [1.0, 1.0, 1.0]

            return bench

    @pytest.fixture(autouse=True)
    def driver():
        """A driver to measure with: the GPU's if there is one, else a stand-in for the interpreter, which has none."""
        if torch.cuda.is_available():
            yield None
            return
        before = triton.runtime.driver._active
        triton.runtime.driver.set_active(_Driver())
        yield None
        triton.runtime.driver._active = before

    @pytest.fixture
    def device():
        """The device of tensors."""
        return "cuda" if torch.cuda.is_available() else "cpu"
