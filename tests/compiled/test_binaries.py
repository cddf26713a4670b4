"""Compiled kernels that ship: built from config files, loaded without Triton's compiler, launched as Triton's are."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import fake_libcuda
import no_compiler
import numpy as np
import pytest
import torch
import triton

import autotuned
from autotuned.binaries import file as binaryfile
from autotuned.binaries import writer as binary_writer
from autotuned.binaries.loaded import _parameter
from autotuned.configfiles import exchange
from autotuned.errors import SealedError
from autotuned.offline import binaries
from autotuned.triton_compat import fingerprint


def fresh():
    """The kernel as a new process imports it."""
    sys.modules.pop("shipped_kernel", None)
    module = importlib.import_module("shipped_kernel")
    module.bench.calls.clear()
    return module


def call(add, n=96, s=1, offset=0):
    x, y = torch.zeros(256), torch.zeros(256)
    return add[(4,)](x[offset:], y[offset:], n, s)


@pytest.fixture
def shipped(driver, tmp_path, monkeypatch):
    """A folder with the choices for both cases, and the binaries for them."""
    add = fresh().add
    for n in (96, 100):
        call(add, n)
        sys.modules["shipped_kernel"].padded[(4,)](torch.zeros(128), n)
    out = tmp_path / "tuned"
    exchange.export(out)
    result = binaries.build(out, ["shipped_kernel"], device="cpu")
    assert result.missing == []
    return out


@pytest.fixture
def library(monkeypatch):
    return fake_libcuda.install(monkeypatch)


@pytest.fixture
def nothing_compiles_later(monkeypatch):
    """From its call on, whatever compiles raises, and so does the hash over Triton's files."""

    def refuse(*args, **kwargs):
        raise AssertionError("compiled")

    def begin():
        for place in ("triton.compiler.compiler.compile", "triton.compile", "triton.compiler.compile"):
            monkeypatch.setattr(place, refuse)
        monkeypatch.setattr("autotuned.triton_compat.fingerprint.of", refuse)

    return begin


@pytest.fixture
def nothing_compiles(nothing_compiles_later):
    nothing_compiles_later()


@pytest.fixture
def served(shipped, library, tmp_path, monkeypatch):
    """The kernel in a process that begins with empty caches and the folder registered."""
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "empty"))
    autotuned.register_configs(shipped, binaries=True)
    return fresh().add


@pytest.fixture
def second(served, nothing_compiles):
    """The same where nothing can be compiled."""
    return served


def test_the_file_holds_what_was_met_and_the_generic_ones(shipped):
    [path] = shipped.glob("*/app.add.bin")
    file = binaryfile.read(path.read_bytes(), str(path))
    forms = {tuple(type_ for _, type_ in variant.form.types) for variant in file.variants}
    pointers = ("*fp32", "*fp32")
    assert forms == {
        (*pointers, "i32", "=1", "constexpr"), (*pointers, "i32", "i32", "constexpr"),
    }  # fmt: skip
    assert len(file.variants) == 4  # n = 96 is divisible by 16, n = 100 is not
    named = {
        digest
        for _, entry in exchange.read(next(shipped.glob("*/app.add.json")))[0].entries()
        for digest in entry.binaries
    }
    assert named == {variant.digest for variant in file.variants}


def test_the_machine_code_is_what_triton_compiles(shipped):
    [path] = shipped.glob("*/app.add.bin")
    file = binaryfile.read(path.read_bytes(), str(path))
    codes = {file.code(variant) for variant in file.variants}
    add = fresh().add
    assert {call(add, n).asm["cubin"] for n in (96, 100)} < codes


def test_a_second_process_compiles_nothing_and_hashes_nothing(second, library):
    for n in (96, 100, 96, 100):
        loaded = call(second, n)
        assert loaded.metadata.num_warps == 4 and loaded.asm["cubin"].startswith(b"\x7fELF")
    assert library.loads == ["add", "add"]
    assert [launch.grid for launch in library.launches] == [(4, 1, 1)] * 4
    assert second.cache_info().hits == 2 and second.cache_info().searches == 0


def test_a_call_that_nobody_foresaw_gets_the_generic_binary(second, library):
    call(second, 96, s=1, offset=1)
    call(second, 96, s=2)
    assert len(library.launches) == 2 and len(library.loads) == 2  # 1 is compiled in, 2 is a parameter


def test_an_integer_of_another_width_compiles(served, library):
    """The type of one argument decides that of products with others."""
    call(served, 96, s=1 << 40)
    assert library.launches == []


def launched(add, n, empty, given=True):
    """The config that a call gets where the grid has no blocks with some, and the configs that the grid was asked for."""
    asked, x = [], torch.zeros(256)

    def grid(meta):
        asked.append(meta["BLOCK"])
        return (0 if meta["BLOCK"] in empty else 4,)

    add[grid if given else (4,)](x, x.clone(), n, 1)
    return add.best_config.kwargs["BLOCK"], asked


def test_a_grid_is_asked_about_the_shipped_choice_only(second, library):
    winner, asked = launched(second, 96, empty=(16, 64))
    assert winner == 32 and {*asked} == {32}
    assert launched(second, 96, empty=()) == (32, [32])  # bound
    assert second.cache_info().hits == 1 and len(library.launches) == 2


@pytest.mark.parametrize("empty", [(32,), (32, 64), (16, 32), (16,), (16, 32, 64)], ids=str)
def test_a_shipped_choice_without_blocks_is_none(served, empty, monkeypatch):
    """As if the grid had been asked about all candidates first."""
    chooser, found = served.tuner.chooser, {}
    for way in ("first", "last"):
        if way == "last":
            slow = lambda call, mode: (live := chooser.candidates(call), chooser._ready(call, live, mode))  # noqa: E731
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


def test_a_config_with_code_of_its_own_is_given_no_binary(served, library):
    served.configs = [triton.Config({"BLOCK": 32}, num_warps=4, ir_override="its_own.ttir")]
    with autotuned.seal(), autotuned.mode("serve"), pytest.raises(SealedError):
        call(served, 120)
    assert library.launches == []


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


def test_explain_says_why_a_call_compiles(shipped, library, monkeypatch):
    """The choice is in the store, so it answers in any case; what differs is said."""
    autotuned.register_configs(shipped, binaries=True)
    add, x = fresh().add, torch.zeros(256)
    assert add.explain(x, x, 96, 1, grid=(4,)).remarks[-1] == "a shipped binary is loaded"
    monkeypatch.setattr(triton.knobs.runtime, "debug", True)
    assert add.explain(x, x, 96, 1, grid=(4,)).remarks[-1] == "it compiles: the knob debug is set"
    monkeypatch.setattr(triton.knobs.runtime, "debug", False)
    assert add.explain(x, x, 96, 2.0, grid=(4,)).remarks[-1] == "it compiles: `s`: fp32; compiled were: i32"


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
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "serving.py"), str(shipped)], env=environment, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["hits"] == 2 and said["searches"] == 0
    if launcher == "c":  # 7,993 with imports and reading, and 1,426; they were 9,310 and 1,842 without what is kept
        assert said["calls"][0] < 9_500 and said["calls"][1] < 1_700, said
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [line[0] for line in lines] == ["load", "launch", "load", "launch", "launch", "launch"]
    assert [line[2] for line in lines if line[0] == "launch"] == ["4"] * 4
    assert not (tmp_path / "triton").exists()


# -- when none serves ------------------------------------------------------------------------------------------------


def compiled_by_triton(kernel):
    return type(kernel).__name__ == "CompiledKernel"


def edit_knob(monkeypatch, add):
    monkeypatch.setattr(triton.knobs.compilation, "disable_line_info", True)


def edit_environment(monkeypatch, add):
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")


def hook_stages(monkeypatch, add):
    monkeypatch.setattr(triton.knobs.runtime, "add_stages_inspection_hook", lambda *stages: ("", ""))


def have_another_launcher(monkeypatch, add):
    monkeypatch.setattr(fingerprint, "launch_interface", lambda: "of a fork")


def have_another_source(monkeypatch, add):
    monkeypatch.setattr(type(add.tuner.tunable), "source", property(lambda self: "edited"))


def replace_run(monkeypatch, add):
    monkeypatch.setattr(add.fn, "run", add.fn.run, raising=False)


@pytest.mark.parametrize(
    "change",
    [edit_knob, edit_environment, hook_stages, have_another_launcher, have_another_source, replace_run],
    ids=lambda change: change.__name__,
)
def test_what_changes_code_or_its_launch_has_the_call_compiled(served, library, monkeypatch, change):
    change(monkeypatch, served)
    assert compiled_by_triton(call(served))
    assert library.loads == []


@pytest.mark.parametrize("when", ["before", "within"])
def test_which_ptxas_there_is_does_not_matter_to_a_binary(served, library, monkeypatch, when):
    """`torch.compile` sets the variable within the process."""
    if when == "within":
        call(served)
    for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        monkeypatch.setenv(name, "/nowhere/ptxas")
    assert not compiled_by_triton(call(served))
    assert library.loads == ["add"]


def test_another_libdevice_has_the_call_compiled(served, library, monkeypatch):
    monkeypatch.setenv("TRITON_LIBDEVICE_PATH", "/nowhere/libdevice.bc")
    with pytest.raises(FileNotFoundError):  # from Triton
        call(served)
    assert library.loads == []


def test_a_knob_that_is_put_back_does_not_count(served, library, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(triton.knobs.compilation, "instrumentation_mode", "some")
    call(served)
    assert library.loads == ["add"]


def test_a_knob_that_changes_later_sends_the_next_launch_to_triton(served, library, monkeypatch):
    call(served)
    with monkeypatch.context() as patch:
        patch.setattr(triton.knobs.runtime, "debug", True)
        assert compiled_by_triton(call(served))
    assert len(library.launches) == 1


@pytest.mark.parametrize("error", [fake_libcuda.OUT_OF_MEMORY, fake_libcuda.NO_IMAGE])
def test_a_binary_that_the_driver_refuses_is_said_and_the_call_compiles(served, library, caplog, error):
    library.error = error
    assert compiled_by_triton(call(served))
    assert fake_libcuda.WORDS[error].decode() in caplog.text and "the call compiles" in caplog.text
    assert library.launches == []


def test_machine_code_that_was_swapped_is_not_launched(shipped, library, tmp_path, monkeypatch, caplog):
    """Two blobs in each other's place, with the index' hash in order."""
    [path] = shipped.glob("*/app.add.bin")
    head, rest = path.read_bytes().split(b"\n", 1)
    size = int(head.split()[2])
    index = json.loads(zlib.decompress(rest[:size]))
    names = list(index["blobs"])
    index["blobs"] = dict(zip(names, [index["blobs"][name] for name in [*names[1:], names[0]]]))
    text = zlib.compress(json.dumps(index).encode())
    path.write_bytes(
        f"autotuned-binaries 1 {len(text)} {hashlib.sha256(text).hexdigest()}\n".encode() + text + rest[size:]
    )
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "empty"))
    autotuned.register_configs(shipped, binaries=True)
    assert compiled_by_triton(call(fresh().add))
    assert library.loads == [] and "expected content that matches its hash" in caplog.text


def test_without_the_users_word_a_folder_gives_no_code(shipped, library, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "empty"))
    autotuned.register_configs(shipped)
    add = fresh().add
    assert compiled_by_triton(call(add)) and library.loads == []
    assert add.cache_info().searches == 0  # the choice serves


# -- what a launch is ------------------------------------------------------------------------------------------------


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


def test_merged_files_have_the_binaries_of_both(shipped, tmp_path):
    [config] = shipped.glob("*/app.add.json")
    halves = []
    for number in (0, 1):
        half = tmp_path / f"half{number}" / config.parent.name
        half.mkdir(parents=True)
        whole, _ = exchange.read(config)
        [group] = whole.groups()
        for place, name in enumerate(list(group.entries)):
            if place != number:
                del group.entries[name]
        binary_writer.write(
            half / config.name, whole, binary_writer.read(next(shipped.glob("*/app.add.bin")), "app.add")
        )
        halves.append(half.parent)
    autotuned.merge(halves, tmp_path / "out")
    assert (
        next((tmp_path / "out").glob("*/app.add.bin")).read_bytes() == next(shipped.glob("*/app.add.bin")).read_bytes()
    )
    assert autotuned.check(tmp_path / "out").faults == []
    [change] = autotuned.diff(halves[0], tmp_path / "out").changes
    assert change.kind == "added"


def test_check_says_what_is_not_there(shipped):
    next(shipped.glob("*/app.add.bin")).unlink()
    assert [str(fault).partition("json: ")[2] for fault in autotuned.check(shipped).faults] == [
        "4 binaries that entries name are not in app.add.bin: autotuned export --binaries."
    ]


def test_check_says_what_was_edited_and_what_lies_there_alone(shipped):
    path = next(shipped.glob("*/app.add.json"))
    text = path.read_text()
    path.write_text(re.sub(r'"BLOCK": \d+', '"BLOCK": 128', text))
    (path.parent / "gone.bin").write_bytes(next(shipped.glob("*/app.add.bin")).read_bytes())
    faults = "".join(map(str, autotuned.check(shipped).faults))
    assert "2 entries name binaries of another config" in faults and "expected a config file beside it" in faults


def test_binaries_of_a_newer_version_are_left_alone(shipped):
    path = next(shipped.glob("*/app.add.bin"))
    content = path.read_bytes().replace(b"autotuned-binaries 1 ", b"autotuned-binaries 2 ", 1)
    path.write_bytes(content)
    result = binaries.build(shipped, ["shipped_kernel"], device="cpu")
    assert any("got a newer one: it is left alone" in line for file in result.files for line in file.missing)
    assert path.read_bytes() == content


def test_memory_that_was_full_is_asked_for_again(served, library):
    library.error = fake_libcuda.OUT_OF_MEMORY
    call(served)
    library.error = 0
    served.cache_clear()
    call(served)
    assert library.loads == ["add"]


def test_a_module_that_was_imported_again_has_its_own_kernel(served, library):
    first, again = call(served), call(fresh().add)
    assert first.src.fn is not again.src.fn and again.src.fn is sys.modules["shipped_kernel"].add.fn


def test_the_launcher_of_triton_is_given_nothing_generic(served, library, launches, monkeypatch):
    """Under the hash of what Triton would compile for a call lies that, and nothing else."""
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", "triton")
    filled = []
    monkeypatch.setattr("autotuned.triton_compat.specialization.fill_cache", lambda *args: filled.append(args))
    call(served, 96, s=1, offset=1)
    assert filled == []
    call(served, 96)
    assert filled


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


def test_building_again_changes_nothing(shipped):
    files = [next(shipped.glob("*/app.add.json")), next(shipped.glob("*/app.add.bin"))]
    before = [file.read_bytes() for file in files]
    binaries.build(shipped, ["shipped_kernel"], device="cpu")
    assert [file.read_bytes() for file in files] == before


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


# -- the functions that build ----------------------------------------------------------------------------------------


def test_tune_builds_what_its_files_need(driver, tmp_path):
    fresh()
    result = autotuned.tune(["shipped_kernel"], out=tmp_path / "tuned", binaries=True, isolate=False)
    assert [(file.kernel, file.entries, file.of, file.missing) for file in result.binaries.files] == [
        ("app.add", 2, 2, []), ("app.only", 1, 1, []), ("app.padded", 2, 2, []),
    ]  # fmt: skip
    assert result.to_json()["binaries"]["files"][0]["generic"] == 4
    assert autotuned.check(tmp_path / "tuned").faults == []


def test_a_kernel_with_one_config_ships_too(driver, library, tmp_path, monkeypatch, nothing_compiles_later):
    """There is nothing to choose, and its binary serves all the same."""
    fresh()
    result = autotuned.tune(["shipped_kernel:only"], out=tmp_path / "tuned", binaries=True, isolate=False)
    [file] = result.binaries.files
    assert (file.kernel, file.entries, file.variants, file.missing) == ("app.only", 1, 2, [])
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "empty"))
    autotuned.register_configs(tmp_path / "tuned", binaries=True)
    fresh()
    only, x = sys.modules["shipped_kernel"].only, torch.zeros(256)
    nothing_compiles_later()
    with autotuned.seal():
        for n in (96, 96, 100):
            only[(4,)](x, n)
    assert len(library.launches) == 3 and only.cache_info().hits == 1


def test_warmup_builds_for_the_calls_of_a_recording(driver, tmp_path):
    add = fresh().add
    with autotuned.record(tmp_path / "calls.jsonl"):
        call(add)
    autotuned.export(tmp_path / "tuned", "app.add")
    result = autotuned.warmup(tmp_path / "calls.jsonl", binaries=tmp_path / "tuned")
    [file] = result.binaries.files
    assert (file.entries, file.variants, file.missing) == (1, 3, [])


def test_export_builds_beside_what_it_writes_and_says_what_it_cannot(driver, tmp_path):
    add = fresh().add
    for n in (96, 100, 104):  # there is no case of the last
        call(add, n)
    result = autotuned.export(tmp_path / "tuned", "app.add", binaries=True, targets=["shipped_kernel"])
    [file] = result.binaries.files
    assert (file.entries, file.of) == (2, 3)
    assert file.missing == ["1 entries have no case and no recorded call here: name a target or a recording with them."]


def test_entries_of_another_source_get_none(shipped, monkeypatch):
    monkeypatch.setattr("autotuned.tunable.kernel.TunableKernel.source", property(lambda self: "edited"))
    [file, _] = binaries.build(shipped, ["shipped_kernel"], device="cpu").files
    assert file.missing == ["its entries were tuned for another source: tune again here, and build then."]


def test_without_a_gpu_tensors_of_cases_have_no_memory(shipped, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = next(shipped.glob("*/app.add.bin")).read_bytes()
    next(shipped.glob("*/app.add.bin")).unlink()
    assert binaries.build(shipped, ["shipped_kernel"]).missing == []
    assert next(shipped.glob("*/app.add.bin")).read_bytes() == before
