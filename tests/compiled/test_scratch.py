"""Where the binaries of a search are kept: the winner's in Triton's cache, the losers' in a folder that is cleared."""

import errno
import os
import threading
import time
from pathlib import Path

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from faults import faults
from triton import Config, knobs
from triton.runtime.cache import FileCacheManager

from autotuned import autotune
from autotuned.store import gc, records
from autotuned.triton_compat import cache

CONFIGS = [Config({"BLOCK": block}) for block in (16, 32, 64, 128)]
TIMES = {16: 4.0, 32: 1.0, 64: 2.0, 128: 3.0}


def scale(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2.0, mask=i < n)


@pytest.fixture(autouse=True)
def triton_cache(tmp_path, monkeypatch):
    """A cache of Triton's own for each test."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return tmp_path / "triton"


def kernel(**options):
    return autotune(CONFIGS, key=["n"], do_bench=fake_cuda.by_config(TIMES), **options)(triton.jit(scale))


def call(tuned, n=100):
    return tuned[lambda meta: (1,)](torch.zeros(128), n)


def cubins(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.rglob("*.cubin")}


class Compilations:
    """Counts what is really compiled."""

    def __enter__(self):
        self.done = []
        self.before = knobs.compilation.listener
        knobs.compilation.listener = lambda **event: self.done.append(event["cache_hit"])
        return self

    def __exit__(self, *error):
        knobs.compilation.listener = self.before

    @property
    def count(self):
        return self.done.count(False)


def test_b54_losers_are_in_the_scratch_folder_and_the_winner_in_tritons_cache(triton_cache):
    tuned = kernel()
    compiled = call(tuned)
    assert tuned.best_config.kwargs == {"BLOCK": 32}
    [home] = cubins(triton_cache)
    assert home in cubins(records.scratch_folder())
    assert len(cubins(records.scratch_folder())) == 4
    assert [path.name for path in triton_cache.iterdir()] == [home]
    group = FileCacheManager(home).get_group(f"{compiled.name}.json")
    assert all(Path(path).parent == triton_cache / home for path in group.values())
    assert {Path(path).suffix for path in group.values()} >= {".cubin", ".json", ".ttir"}


def test_the_winner_is_compiled_once_and_by_nobody_else_again():
    with Compilations() as compilations:
        call(kernel())
        assert compilations.count == 4
        again = kernel()  # as in a new process: nothing is loaded yet
        call(again)
        assert again.cache_info().searches == 0
        plain = triton.jit(scale)
        plain[(1,)](torch.zeros(128), 100, BLOCK=32)
    assert compilations.count == 4


def test_other_shapes_of_the_same_specialization_use_the_losers_binaries():
    with Compilations() as compilations:
        call(kernel(), 100)
        other = kernel()
        call(other, 101)
    assert other.cache_info().searches == 1
    assert compilations.count == 4


def test_what_was_in_tritons_cache_stays_there_and_is_not_compiled_again(triton_cache):
    triton.jit(scale)[(1,)](torch.zeros(128), 100, BLOCK=32)
    before = cubins(triton_cache)
    with Compilations() as compilations:
        call(kernel())
    assert compilations.count == 3
    assert cubins(triton_cache) == before


def test_after_the_search_tritons_cache_is_as_it_was(monkeypatch):
    call(kernel())
    assert knobs.cache.manager_class is None
    assert "TRITON_CACHE_MANAGER" not in os.environ


def test_a_cache_manager_of_the_users_own_is_used(monkeypatch, triton_cache):
    class Own(FileCacheManager):
        made = []

        def __init__(self, key, **options):
            Own.made.append(key)
            super().__init__(key, **options)

    monkeypatch.setitem(knobs.cache.__dict__, "manager_class", Own)
    call(kernel())
    assert knobs.cache.manager_class is Own
    assert len(Own.made) >= 4
    assert cubins(records.scratch_folder()) == set()
    assert len(cubins(triton_cache)) == 4


def test_another_thread_compiles_into_tritons_cache_during_a_search(triton_cache):
    inside, done = threading.Event(), threading.Event()

    def compile_elsewhere():
        inside.wait(60)
        triton.jit(scale)[(1,)](torch.zeros(128), 100, BLOCK=8)
        done.set()

    def bench(call, quantiles):
        call()
        inside.set()
        assert done.wait(60)
        return [1.0] * 3

    thread = threading.Thread(target=compile_elsewhere)
    thread.start()
    tuned = autotune(CONFIGS, key=["n"], do_bench=bench)(triton.jit(scale))
    call(tuned)
    thread.join()
    assert len(cubins(records.scratch_folder())) == 4
    assert len(cubins(triton_cache)) == 2  # the winner's, and the other thread's


def test_where_the_scratch_folder_cannot_be_written_tritons_cache_takes_all(triton_cache):
    records.scratch_folder().parent.mkdir(parents=True, exist_ok=True)
    records.scratch_folder().write_text("a file in its place")
    call(kernel())
    assert len(cubins(triton_cache)) == 4


def test_a_winner_that_cannot_be_copied_is_compiled_once_more_and_nothing_fails():
    with faults("listdir", errno.EIO), Compilations() as compilations:
        call(kernel())
    assert compilations.count == 4
    with Compilations() as compilations:
        call(kernel())
    assert compilations.count == 1


def test_the_scratch_folder_is_cleared_of_what_no_search_used_for_a_week():
    call(kernel())
    folder = records.scratch_folder()
    kept, *old = sorted(folder.iterdir())
    for path in old:
        then = time.time() - gc.SCRATCH_S - 60
        os.utime(path, (then, then))
    gc.clear_scratch(folder)
    assert list(folder.iterdir()) == [kept]
    assert cache.promote(object(), folder) is None
