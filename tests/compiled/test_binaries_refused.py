"""When no shipped binary serves a call: Triton compiles it, and what is said of that."""

from __future__ import annotations

import hashlib
import json
import zlib

import fake_libcuda
import pytest
import torch
import triton
from served_binaries import call, compiled_by_triton, fresh

import autotuned
from autotuned.errors import SealedError
from autotuned.triton_compat import fingerprint


def test_explain_says_why_a_call_compiles(shipped, library, monkeypatch):
    """The choice is in the store, so it answers in any case; what differs is said."""
    autotuned.register_configs(shipped, binaries=True)
    add, x = fresh().add, torch.zeros(256)
    assert add.explain(x, x, 96, 1, grid=(4,)).remarks[-1] == "a shipped binary is loaded"
    monkeypatch.setattr(triton.knobs.runtime, "debug", True)
    assert add.explain(x, x, 96, 1, grid=(4,)).remarks[-1] == "it compiles: the knob debug is set"
    monkeypatch.setattr(triton.knobs.runtime, "debug", False)
    assert add.explain(x, x, 96, 2.0, grid=(4,)).remarks[-1] == "it compiles: `s`: fp32; compiled were: i32"


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


def test_an_integer_of_another_width_compiles(served, library):
    """The type of one argument decides that of products with others."""
    call(served, 96, s=1 << 40)
    assert library.launches == []


def test_a_config_with_code_of_its_own_is_given_no_binary(served, library):
    served.configs = [triton.Config({"BLOCK": 32}, num_warps=4, ir_override="its_own.ttir")]
    with autotuned.seal(), autotuned.mode("serve"), pytest.raises(SealedError):
        call(served, 120)
    assert library.launches == []


@pytest.mark.parametrize("error", [fake_libcuda.OUT_OF_MEMORY, fake_libcuda.NO_IMAGE])
def test_a_binary_that_the_driver_refuses_is_said_and_the_call_compiles(served, library, caplog, error):
    library.error = error
    assert compiled_by_triton(call(served))
    assert fake_libcuda.WORDS[error].decode() in caplog.text and "the call compiles" in caplog.text
    assert library.launches == []


def test_memory_that_was_full_is_asked_for_again(served, library):
    library.error = fake_libcuda.OUT_OF_MEMORY
    call(served)
    library.error = 0
    served.cache_clear()
    call(served)
    assert library.loads == ["add"]


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


def test_the_launcher_of_triton_is_given_nothing_generic(served, library, launches, monkeypatch):
    """Under the hash of what Triton would compile for a call lies that, and nothing else."""
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", "triton")
    filled = []
    monkeypatch.setattr("autotuned.triton_compat.specialization.fill_cache", lambda *args: filled.append(args))
    call(served, 96, s=1, offset=1)
    assert filled == []
    call(served, 96)
    assert filled
