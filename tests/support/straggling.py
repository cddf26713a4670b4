"""Races in which one config compiles until the test lets it go, and what stands for a new process."""

import threading
from contextlib import contextmanager

import pytest
import triton
import triton.language as tl
from triton import Config
from waits import until

import autotuned
from autotuned.dropin import install, raced
from autotuned.search.compiling import pool, stragglers
from autotuned.triton_compat import unfinished

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32}), Config({"BLOCK": 64})]
TIMES = {16: 0.5, 32: 1.0, 64: 3.0}


@triton.jit
def add(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


class Held:
    """The compilation of BLOCK=16, which lasts until it is let go; `error` is what it raises then."""

    def __init__(self, monkeypatch):
        self.released, self.begun, self.error = threading.Event(), 0, None
        self.monkeypatch = monkeypatch
        self.monkeypatch.setattr(stragglers, "LEAST_S", 0.1)

    def let_go(self):
        """From now on races wait for it, however slow this machine is."""
        self.monkeypatch.setattr(stragglers, "LEAST_S", 60.0)
        self.released.set()

    @contextmanager
    def let_go_meanwhile(self):
        """Let it go half a second after the block has begun, which ends no sooner."""
        timer = threading.Timer(0.5, self.let_go)
        timer.start()
        try:
            yield
        finally:
            timer.join()


@pytest.fixture
def held(monkeypatch, tmp_path):
    slow, made = Held(monkeypatch), pool.Pool._made

    def hold(self, one, compile_):
        if one.config.kwargs["BLOCK"] == 16:
            slow.begun += 1
            assert slow.released.wait(60)
            if slow.error is not None:
                raise slow.error
        return made(self, one, compile_)

    monkeypatch.setattr(pool.Pool, "_made", hold)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    yield slow
    slow.let_go()
    install.uninstall()


def tuner_in_a_new_process(bench, cache_results=False, **options):
    """A tuner that knows only what is stored."""
    install.uninstall()
    bench.calls.clear()
    add.device_caches.clear()
    raced._compiling.clear()
    unfinished._lasting.clear()
    autotuned.install(race=True, **options)
    return triton.autotune(CONFIGS, key=["n"], do_bench=bench, cache_results=cache_results)(add)


def await_drop(kernel):
    """Until the next call chooses again."""
    until(lambda: not kernel.cache, limit_s=60)


both = pytest.mark.parametrize("replace", [False, True], ids=["seeded", "replaced"])
