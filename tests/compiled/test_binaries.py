"""Compiled kernels that ship: loaded without Triton's compiler, launched as Triton's are."""

from __future__ import annotations

import json
import struct
import sys
import threading
from pathlib import Path

import fake_libcuda
import forked
import no_compiler
import numpy as np
import pytest
import torch
import triton
from counted import profiled
from served_binaries import call, compiled_by_triton, fresh

import autotuned
from autotuned.binaries.loaded import _parameter
from autotuned.errors import SealedError
from autotuned.triton_compat import compiled


def test_a_second_process_compiles_nothing_and_hashes_nothing(second, library):
    for n in (96, 100, 96, 100):
        loaded = call(second, n)
        assert loaded.metadata.num_warps == 4 and loaded.asm["cubin"].startswith(b"\x7fELF")
    assert library.loads == ["add", "add"]
    assert [launch.grid for launch in library.launches] == [(4, 1, 1)] * 4
    assert second.cache_info().hits == 2 and second.cache_info().searches == 0


def test_the_first_call_of_a_shape_takes_few_calls_of_functions(second):
    """After the first of its kernel, as most are at the start of a program."""
    call(second, 96)
    taken = 0

    def note(frame, event, argument):
        nonlocal taken
        taken += event in ("call", "c_call")

    profiled(lambda: call(second, 100), note)
    assert 300 < taken < 850  # 713, with the load


def test_what_a_binary_was_found_for_is_kept_for_its_call_and_config(second):
    """Its later launches are compared with that."""
    tuner, x = second.tuner, torch.zeros(256)
    call_, other = (tuner.call((x[offset:], x.clone(), 96, 1), {}, (4,)) for offset in (0, 1))
    config, server = tuner.chooser.choose(call_).choice.config, tuner.chooser.shipped.server
    assert server.memory(call_, config) == compiled.compiled_for(call_.arguments.values())
    assert server.memory(other, config) is server.memory(call_, triton.Config({})) is None


def test_a_call_that_nobody_foresaw_gets_the_generic_binary(second, library):
    call(second, 96, s=1, offset=1)
    call(second, 96, s=2)
    assert len(library.launches) == 2 and len(library.loads) == 2  # 1 is compiled in, 2 is a parameter


def launched(add, n, empty, given=True):
    """The config that a call gets where the grid has no blocks with some, and the configs that the grid was asked for."""
    asked, x = [], torch.zeros(256)

    def grid(meta):
        asked.append(meta["BLOCK"])
        return (0 if meta["BLOCK"] in empty else 4,)

    add[grid if given else (4,)](x, x.clone(), n, 1)
    return add.best_config.kwargs["BLOCK"], asked


def test_a_grid_is_asked_once_and_about_the_shipped_choice_only(second, library):
    winner, asked = launched(second, 96, empty=(16, 64))
    assert winner == 32 and asked == [32]
    assert launched(second, 96, empty=()) == (32, [32])  # bound
    assert second.cache_info().hits == 1 and len(library.launches) == 2


@pytest.mark.parametrize("empty", [(32,), (32, 64), (16, 32), (16,), (16, 32, 64)], ids=str)
def test_a_shipped_choice_without_blocks_is_none(served, empty, monkeypatch):
    """As if the grid had been asked about all candidates first."""
    chooser, found = served.tuner.chooser, {}
    for way in ("first", "last"):
        if way == "last":
            slow = lambda call, *how: (live := chooser.candidates(call), chooser._ready(call, live, *how))  # noqa: E731
            monkeypatch.setattr(chooser, "_ready_first", slow)
        served.cache.clear()
        with autotuned.mode("serve"):
            found[way] = launched(served, 96, empty)[0]
    assert found["first"] == found["last"] and (found["first"] in empty) == (len(empty) == 3)


def test_a_list_of_configs_is_read_again_when_one_changes(served, library):
    """Its candidates are kept while nothing in it changes."""
    chooser, call_ = served.tuner.chooser, served.tuner.call((torch.zeros(9), torch.zeros(9), 96, 1), {}, (4,))
    before = chooser.candidates(call_)
    assert chooser.candidates(call_) is before
    served.configs[0].kwargs["BLOCK"] = 1
    changed = chooser.candidates(call_)
    assert [one.kwargs["BLOCK"] for one in changed.values()] == [1, 32, 64] and changed.keys() != before.keys()
    served.configs[0].kwargs["BLOCK"] = True  # equal to 1, and of another type
    assert chooser.candidates(call_).keys() != changed.keys()
    served.configs[0] = triton.Config({"BLOCK": True})
    assert next(iter(chooser.candidates(call_).values())) is served.configs[0]
    served.configs[0].pre_hook = print
    assert chooser.candidates(call_) is not chooser.candidates(call_)


def test_under_the_seal_the_generic_binary_serves_and_what_none_serves_is_an_error(served, library):
    with autotuned.seal():
        call(served, 96, s=1, offset=1)
        call(served, 96, s=2)
        with pytest.raises(SealedError) as caught:
            call(served, 96, s=2.0)
    assert len(library.launches) == len(library.loads) == 2
    assert caught.value.reason == "`s`: fp32; compiled were: i32" and "(n=96" in str(caught.value)


def test_untuned_calls_get_the_first_config_that_has_a_binary_under_the_seal(served, library):
    """In mode "serve", of a key that no file has: what its first config would need is not compiled to find out."""
    with autotuned.seal(), autotuned.mode("serve"):
        call(served, 120)
    [launch] = library.launches
    assert library.loads == ["add"]


def test_loads_and_refused_binaries_are_told(served, library):
    seen = []
    with autotuned.on_event(seen.append):
        call(served)
        library.error = fake_libcuda.OUT_OF_MEMORY
        call(served, 100)
    kinds = [event.kind for event in seen]
    assert kinds[:2] == ["load", "miss"] and kinds[2] == "refuse" and kinds[-1] == "miss"
    assert {event.kernel for event in seen} == {"app.add"} and "out of memory" in seen[2].reason
    assert len(seen[0].key) == 32 and seen[0].reason.endswith("app.add.json")


def test_explain_names_the_place(served):
    x = torch.zeros(256)
    found = served.explain(x, x, 96, 1, grid=(4,))
    assert found.answer == "config files, with a binary", str(found)
    assert found.remarks[-1] == "a shipped binary is loaded"


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory):
    """A folder with a library in the place of CUDA's driver."""
    folder = tmp_path_factory.mktemp("libcuda")
    no_compiler.build_library(folder)
    return folder


@pytest.mark.parametrize("launcher", ["c", "python", "verify"])
def test_a_process_without_any_compiler_serves(shipped, libcuda, tmp_path, launcher):
    """No `triton.compile`, no driver of Triton's, no hash over its files, and no program on the path."""
    log = tmp_path / "log"
    environment = no_compiler.environment(tmp_path, libcuda, AUTOTUNED_LAUNCHER=launcher, TRITON_DEFAULT_FP_FUSION="1")
    script = str(Path(__file__).parent / "serving.py")
    done = forked.run([sys.executable, script, str(shipped)], env=environment)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["hits"] == 2 and said["searches"] == 0
    if launcher == "c":  # 2,862 with reading, and 698; on Triton 3.6 2,714 and 698
        assert said["calls"][0] < 3_600 and said["calls"][1] < 850, said
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [line[0] for line in lines] == ["load", "launch", "load", "launch", "launch", "launch"]
    assert [line[2] for line in lines if line[0] == "launch"] == ["4"] * 4
    assert not (tmp_path / "triton").exists()


def test_launch_hooks_see_every_launch_by_name(second, library):
    seen = []
    enter = lambda metadata: seen.append(("enter", metadata.get()["name"]))
    leave = lambda metadata: seen.append(("leave", metadata.get()["name"]))
    call(second)
    triton.knobs.runtime.launch_enter_hook.add(enter)
    triton.knobs.runtime.launch_exit_hook.add(leave)
    try:
        call(second)
        call(second, n=100)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(enter)
        triton.knobs.runtime.launch_exit_hook.remove(leave)
    assert seen == [("enter", "add"), ("leave", "add")] * 2 and len(library.launches) == 3


def test_the_parameters_are_those_that_triton_passes(second, library):
    x, y, library.params = torch.zeros(256), torch.zeros(256), 6
    second[(4,)](x[1:], y, 96, 2)
    [launch] = library.launches
    pointers = [struct.pack("<Q", tensor.data_ptr()) for tensor in (x[1:], y)]
    assert launch.raw[:2] == pointers and launch.raw[4:] == [bytes(8)] * 2  # no scratch memory
    assert [raw[:4] for raw in launch.raw[2:4]] == [struct.pack("<i", 96), struct.pack("<i", 2)]
    assert (launch.block, launch.shared, launch.stream or 0) == ((128, 1, 1), 0, 0)


def test_what_a_launch_returns_says_what_it_has(second):
    kernel = call(second)
    assert (kernel.name, kernel.n_regs, kernel.n_spills, kernel.n_max_threads) == ("add", 32, 0, 1024)
    assert kernel.packed_metadata == (4, 1, 0) and kernel.metadata.shared == 0
    with pytest.raises(KeyError, match="machine code only"):
        kernel.asm["ttir"]
    with pytest.raises(AttributeError, match="expected an attribute that a shipped binary has, got 'metadata_group'"):
        kernel.metadata_group  # noqa: B018


def test_it_can_be_launched_by_hand(second, library):
    x = torch.zeros(256)
    kernel = call(second)
    kernel[(2, 3, 1)](x, x, 96, 1, 32)
    assert library.launches[-1].grid == (2, 3, 1)


def test_a_grid_callable_is_given_all_arguments(second, library):
    x = torch.zeros(256)
    grid = lambda meta: (meta["n"] // meta["BLOCK"], 2)
    for _ in range(2):
        second[grid](x, x, 96, 1)
    assert [launch.grid for launch in library.launches] == [(3, 2, 1)] * 2


def test_an_empty_grid_launches_nothing(second, library):
    x = torch.zeros(256)
    for _ in range(2):
        second[(0,)](x, x, 96, 1)
    assert library.launches == []


def test_prepare_loads_and_launches_nothing(second, library):
    tuner = second.tuner
    x = torch.zeros(256)
    tuner.prepare(tuner.call((x, x, 96, 1), {}, (4,)), search=False)
    assert library.loads == ["add"] and library.launches == []
    call(second)
    assert library.loads == ["add"] and second.cache_info().hits == 1


def test_the_launcher_of_triton_finds_the_binary_in_its_own_cache(served, library, launches, monkeypatch, tmp_path):
    compiled = []
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", "triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    listener = lambda **told: compiled.append(told["cache_hit"])
    monkeypatch.setattr(triton.knobs.compilation, "listener", listener)
    kernel = call(fresh().add)
    assert compiled_by_triton(kernel) and compiled == [True] and list(kernel.asm) == ["cubin"]
    assert library.loads == [] and launches[-1].name == "add"


def test_a_module_that_was_imported_again_has_its_own_kernel(served, library):
    first, again = call(served), call(fresh().add)
    assert first.src.fn is not again.src.fn and again.src.fn is sys.modules["shipped_kernel"].add.fn


@pytest.mark.parametrize(
    ("type_", "value", "error"),
    [("u32", -1, OverflowError), ("i64", 1 << 63, OverflowError), ("i32", 2.5, TypeError), ("u8", "2", TypeError)],
)
def test_scalars_are_refused_as_by_triton(type_, value, error):
    with pytest.raises(error, match="'s'"):
        _parameter("s", type_, value)


@pytest.mark.parametrize(
    "value", [2.5, np.float32(2.5), torch.tensor(2.5), np.float64(2.5)], ids=lambda value: type(value).__name__
)
def test_whatever_is_a_float_is_passed_as_one(value):
    assert _parameter("s", "fp32", value).value == 2.5


def test_memory_that_the_gpu_does_not_reach_is_refused(second, library, monkeypatch):
    monkeypatch.setattr(library, "reaches", False)
    with pytest.raises(ValueError, match="cannot be accessed"):
        call(second)
    with pytest.raises(ValueError, match=r"argument 'x_ptr'.*\(cpu tensor\?\)"):
        _parameter("x_ptr", "*fp32", torch.zeros(8))


def test_heuristics_under_the_tuner_choose_the_binary(second, library):
    """Such kernels are bound through Triton's own look-up otherwise: here a binary is looked up at each launch."""
    padded = sys.modules["shipped_kernel"].padded
    x = torch.zeros(128)
    for n in (96, 100, 96, 100):
        padded[(lambda meta: (meta["n"] // 32 + meta["EVEN"],))](x, n)
    assert library.loads == ["padded"] * 2
    assert [launch.grid[0] for launch in library.launches] == [4, 3, 4, 3]
    assert padded.cache_info().hits == 2


def test_threads_and_other_streams_launch_the_same(second, library, driver):
    call(second)
    driver.stream = 0x55
    threads = [threading.Thread(target=call, args=(second,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [launch.stream for launch in library.launches[1:]] == [0x55] * 4 and library.loads == ["add"]


def test_a_record_of_the_users_own_comes_first(shipped, library, tmp_path, monkeypatch):
    """Where the store has a record of the kernel, the choice is its, and its binary is launched all the same."""
    autotuned.register_configs(shipped, binaries=True)
    add = fresh().add
    assert add.explain(torch.zeros(256), torch.zeros(256), 96, 1, grid=(4,)).answer == "store"
    call(add)
    assert library.loads == ["add"]
