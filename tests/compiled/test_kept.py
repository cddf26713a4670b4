"""`install(binaries=DIR)`: what every kernel compiled is back at the next start, in another place; nothing else is."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import stat
from pathlib import Path

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from damages import DAMAGES
from kept_library import TEXT, module
from triton.compiler import compiler

import autotuned
from autotuned import disk
from autotuned.dropin import install, stock_tuner
from autotuned.store import listing, record
from autotuned.triton_compat import fingerprint


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Begin as a new process in a new container: Triton's cache is empty, and the library is installed elsewhere."""
    starts = []

    def begin(kept, text=TEXT, **options):
        install.uninstall()
        starts.append(kept)
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / f"triton-{len(starts)}"))
        install.install(binaries=kept, **options)
        return module(tmp_path / f"site-{len(starts)}", "\n" * len(starts) + text), triton.compiler.compile

    yield begin
    install.uninstall()


def run(kernels, n=96):
    x = torch.zeros(128)
    return [kernels.plain[(2,)](x, n, 64), kernels.of_a_tuple[(2,)]((x, x), n, 64)]


def test_the_second_start_compiles_nothing_in_another_place(start, tmp_path, monkeypatch, launches):
    kernels, kept = start(tmp_path / "kept")
    first = run(kernels)
    assert (kept.loaded, kept.compiled) == (0, 2)
    (tmp_path / "kept").rename(tmp_path / "moved")
    kernels, kept = start(tmp_path / "moved")
    monkeypatch.setattr(kept, "_original", lambda *args, **kwargs: pytest.fail("compiled"))
    second = run(kernels)
    assert (kept.loaded, kept.compiled) == (2, 0)
    assert [one.asm["cubin"] for one in first] == [one.asm["cubin"] for one in second]
    for one, other in zip(first, second, strict=True):
        assert (one.name, one.metadata.shared, one.packed_metadata) == (
            other.name,
            other.metadata.shared,
            other.packed_metadata,
        )
    assert len(launches) == 4 and run(kernels) == second


CHANGES = {
    "source": lambda monkeypatch: TEXT.replace("* SCALE", "+ SCALE"),
    "a global": lambda monkeypatch: TEXT.replace("constexpr(2)", "constexpr(3)"),
    "environment": lambda monkeypatch: monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1"),
    "launch interface": lambda monkeypatch: monkeypatch.setattr(fingerprint, "launch_interface", lambda: "of a fork"),
}


def test_two_unknown_launch_interfaces_are_not_one(tune, tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprint, "launch_interface", lambda: "")
    assert tune(tmp_path / "kept") == tune(tmp_path / "kept") == (64, 3, 3)


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_another_kernel_is_compiled(start, tmp_path, monkeypatch, change):
    kernels, _ = start(tmp_path / "kept")
    kernels.plain[(2,)](torch.zeros(128), 96, 64)
    text = CHANGES[change](monkeypatch) or TEXT
    kernels, kept = start(tmp_path / "kept", text)
    kernels.plain[(2,)](torch.zeros(128), 96, 64)
    assert (kept.loaded, kept.compiled) == (0, 1)


@pytest.mark.parametrize("args", [(100, 64), (96, 32)], ids=["alignment", "constant"])
def test_another_specialization_is_compiled(start, tmp_path, args):
    kernels, _ = start(tmp_path / "kept")
    kernels.plain[(2,)](torch.zeros(128), 96, 64)
    kernels, kept = start(tmp_path / "kept")
    kernels.plain[(2,)](torch.zeros(128), *args)
    assert (kept.loaded, kept.compiled) == (0, 1)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_costs_a_compilation_and_is_replaced(start, tmp_path, caplog, damage):
    kernels, _ = start(tmp_path / "kept")
    kernels.plain[(2,)](torch.zeros(128), 96, 64)
    [path] = (tmp_path / "kept").iterdir()
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    kernels, kept = start(tmp_path / "kept")
    with caplog.at_level(logging.WARNING, "autotuned"):
        kernels.plain[(2,)](torch.zeros(128), 96, 64)
    assert kept.compiled == 1 and "its kept binary is not used" in caplog.text
    kernels, kept = start(tmp_path / "kept")
    kernels.plain[(2,)](torch.zeros(128), 96, 64)
    assert kept.loaded == 1


@pytest.mark.parametrize("replace", [False, True])
def test_what_the_driver_refuses_is_compiled_and_replaced(start, tmp_path, monkeypatch, caplog, launches, replace):
    kernels, _ = start(tmp_path / "kept")
    run(kernels)
    load, refused = fake_cuda.Utils.load_binary, iter(range(1))

    def refuse(self, name, *given):
        if next(refused, None) is not None:
            raise RuntimeError("Triton Error [CUDA]: device kernel image is invalid")
        return load(self, name, *given)

    monkeypatch.setattr(fake_cuda.Utils, "load_binary", refuse)
    kernels, kept = start(tmp_path / "kept", replace=replace)
    with caplog.at_level(logging.WARNING, "autotuned"):
        first = run(kernels)
    assert (kept.loaded, kept.compiled, len(launches)) == (2, 1, 4)
    assert "its kept binary is not used: Triton Error [CUDA]: device kernel image is invalid" in caplog.text
    assert run(kernels) == first and len(launches) == 6
    kernels, kept = start(tmp_path / "kept")
    run(kernels)
    assert (kept.loaded, kept.compiled) == (2, 0)


def test_a_device_without_memory_is_no_fault_of_what_is_kept(start, tmp_path, monkeypatch):
    kernels, _ = start(tmp_path / "kept")
    run(kernels)
    kernels, kept = start(tmp_path / "kept")
    with monkeypatch.context() as full:
        error = RuntimeError("Triton Error [CUDA]: out of memory")
        full.setattr(fake_cuda.Utils, "load_binary", lambda self, *given: (_ for _ in ()).throw(error))
        with pytest.raises(RuntimeError, match="out of memory"):
            run(kernels)
    run(kernels)
    assert (kept.loaded, kept.compiled) == (2, 0)


def test_a_file_of_another_kernel_in_its_place_is_not_used(start, tmp_path):
    kernels, _ = start(tmp_path / "kept")
    run(kernels)
    one, other = (tmp_path / "kept").iterdir()
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])
    kernels, kept = start(tmp_path / "kept")
    run(kernels)
    assert (kept.loaded, kept.compiled) == (0, 2)


def test_a_folder_that_cannot_be_written_is_said_once(start, tmp_path, caplog):
    (tmp_path / "kept").write_text("no folder")
    kernels, kept = start(tmp_path / "kept")
    run(kernels)
    assert kept.compiled == 2
    assert [record.getMessage()[:34] for record in caplog.records] == ["compiled kernels are not kept in /"[:34]]


def test_a_folder_that_cannot_be_read_is_said_once(start, tmp_path, caplog):
    (tmp_path / "kept").symlink_to(tmp_path / "kept")
    kernels, kept = start(tmp_path / "kept")
    run(kernels)
    assert kept.compiled == 2 and len(caplog.records) == 1


def test_what_a_later_version_wrote_is_not_replaced(tune, tmp_path):
    tune(tmp_path / "kept")
    contents = {}
    for pattern, word, newer in (
        ("*.json", b'"schema": 2', b'"schema": 99'),
        ("*.bin", b"binaries 1 ", b"binaries 99 "),
    ):
        for path in (tmp_path / "kept").rglob(pattern):
            contents[path] = path.read_bytes().replace(word, newer, 1)
            path.write_bytes(contents[path])
    assert tune(tmp_path / "kept") == (64, 3, 3)
    assert {path: path.read_bytes() for path in contents} == contents


def test_a_knob_that_changes_code_leaves_all_to_triton(start, tmp_path, monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "debug", True)
    kernels, kept = start(tmp_path / "kept")
    run(kernels)
    assert kept.compiled == 2 and not (tmp_path / "kept").exists()


def test_uninstall_takes_it_back(tmp_path):
    before = triton.compiler.compile
    install.install(binaries=tmp_path)
    kept = triton.compiler.compile
    install.install(binaries=tmp_path)  # again: nothing more
    assert before is not triton.compiler.compile is kept
    install.uninstall()
    assert triton.compiler.compile is before is compiler.compile


def test_a_kernel_that_was_launched_before_keeps_to_what_is_installed_now(start, tmp_path):
    kernels, _ = start(tmp_path / "one")
    x = torch.zeros(128)
    kernels.plain[(2,)](x, 96, 64)
    install.install(binaries=tmp_path / "two")
    kernels.plain[(2,)](x, 96, 32)
    install.uninstall()
    kernels.plain[(2,)](x, 96, 16)
    assert [len(list((tmp_path / name).iterdir())) for name in ("one", "two")] == [1, 1]


def test_a_kept_kernel_has_its_ttir(start, tmp_path):
    """A search reads in it which arguments are written."""
    kernels, _ = start(tmp_path / "kept")
    first = kernels.plain[(2,)](torch.zeros(128), 96, 64)
    kernels, kept = start(tmp_path / "kept")
    second = kernels.plain[(2,)](torch.zeros(128), 96, 64)
    assert kept.loaded == 1 and first.asm["ttir"] == second.asm["ttir"] and "tt.store" in second.asm["ttir"]


def test_another_libdevice_is_not_kept(start, tmp_path):
    own = Path(triton.__file__).parent / "backends/nvidia/lib/libdevice.10.bc"
    shutil.copy(own, tmp_path / "other.bc")
    kernels, kept = start(tmp_path / "kept")
    kernels.plain[(2,)](torch.zeros(128), 96, 64, extern_libs={"libdevice": str(tmp_path / "other.bc")})
    assert kept.compiled == 1 and not (tmp_path / "kept").exists()


@pytest.mark.parametrize("replace", [False, True])
def test_a_global_that_changes_later_is_refused_as_by_triton(start, tmp_path, replace):
    """Triton records the globals that a kernel uses when it compiles, which a kept kernel does not."""
    seen = []
    for compiled in (1, 0):
        kernels, kept = start(tmp_path / "kept", replace=replace)
        kernels.plain[(2,)](torch.zeros(128), 96, 64)
        assert kept.compiled == compiled
        kernels.SCALE = tl.constexpr(3)
        try:
            seen.append(kernels.plain[(2,)](torch.zeros(128), 96, 64).name)  # Triton 3.6 compares no constexprs
        except RuntimeError as error:
            seen.append(str(error))
    assert seen[0] == seen[1]


STATE = """
class State:
    def __init__(self):
        self.scale = 0

    def set(self, value):
        self.scale = value
        return self


STATE = State().set(VALUE)


@triton.jit
def of_state(x_ptr, C: tl.constexpr):
    tl.store(x_ptr, C.scale * 1.0)
"""


def test_what_a_method_set_is_compiled_in(start, tmp_path):
    for value in (2, 3):
        kernels, kept = start(tmp_path / "kept", TEXT + STATE.replace("VALUE", str(value)))
        kernels.of_state[(1,)](torch.zeros(4), kernels.STATE)
        assert (kept.loaded, kept.compiled) == (0, 1)


TUNED = """
@triton.autotune([triton.Config({"BLOCK": block}) for block in BLOCKS], key=["n"], do_bench=BENCH)
@triton.jit
def tuned(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, 2.0, mask=i < n)
"""


@pytest.fixture
def tune(start, tmp_path, monkeypatch):
    """Launches a tuned kernel in a new container, whose store is empty; what was chosen, measured and compiled."""
    timed = fake_cuda.by_config({32: 3.0, 64: 1.0, 128: 2.0, 256: 4.0})
    monkeypatch.setattr("builtins.BENCH", timed, raising=False)
    monkeypatch.setattr("builtins.BLOCKS", (32, 64, 128), raising=False)
    stores = itertools.count()

    def tune(kept, store=None, **options):
        monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / f"store-{next(stores) if store is None else store}"))
        kernels, counted = start(kept, TEXT + TUNED, **options)
        timed.calls.clear()
        kernels.tuned[(2,)](torch.zeros(128), 96)
        return kernels.tuned.best_config.kwargs["BLOCK"], len(timed.calls), counted.compiled

    return tune


def test_choices_are_in_the_folder_too(tune, tmp_path, launches):
    assert tune(tmp_path / "kept") == (64, 3, 3)
    (tmp_path / "kept").rename(tmp_path / "moved")
    assert tune(tmp_path / "moved") == (64, 0, 0)
    assert launches[-1].arguments["BLOCK"] == 64


def test_another_user_may_read_the_folder_as_of_an_image_that_root_made(tune, start, tmp_path):
    run(start(tmp_path / "new" / "kept")[0])
    tune(tmp_path / "new" / "kept")
    made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    umask = os.umask(0)
    os.umask(umask)
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in made}
    assert modes == {(True, 0o755 & ~umask), (False, 0o666 & ~umask)}


def test_a_choice_that_the_store_had_before_is_kept_at_its_first_use(tune, tmp_path):
    assert tune(tmp_path / "one", "same")[:2] == (64, 3)
    assert tune(tmp_path / "two", "same")[:2] == (64, 0)
    assert tune(tmp_path / "two")[:2] == (64, 0)


def test_the_digest_of_all_choices_covers_the_folder(tune, tmp_path):
    """As long as it serves: a start whose store is empty has the choices of the one that measured."""
    nothing = autotuned.choices_digest()
    tune(tmp_path / "kept")
    measured = autotuned.choices_digest()
    tune(tmp_path / "kept")
    assert autotuned.choices_digest() == measured != nothing
    [(path, found)] = listing.all_records(store=tmp_path / "kept")
    other = next(one for one in found.timings if one.config != found.winner)
    path.write_text(disk.text(record.dump(found.replace(winner=other.config, median_us=other.median_us))))
    assert autotuned.choices_digest() not in (measured, nothing)
    install.uninstall()
    assert autotuned.choices_digest() == nothing


def test_a_choice_that_is_kept_is_found_without_a_hash_over_triton(tune, tmp_path, monkeypatch):
    tune(tmp_path / "kept")
    monkeypatch.setattr(fingerprint, "of", lambda *args: pytest.fail("hashed"))
    monkeypatch.setattr(fingerprint, "begin", lambda *args: pytest.fail("begun"))
    assert tune(tmp_path / "kept") == (64, 0, 0)


CONTEXTS = {
    "launch interface": lambda patch: patch.setattr(fingerprint, "launch_interface", lambda: "of a fork"),
    "environment": lambda patch: patch.setenv("TRITON_DISABLE_LINE_INFO", "1"),
    "configs": lambda patch: patch.setattr("builtins.BLOCKS", (32, 64, 256)),
}


@pytest.mark.parametrize("change", CONTEXTS)
def test_a_choice_of_another_context_is_measured(tune, tmp_path, monkeypatch, change):
    tune(tmp_path / "kept")
    CONTEXTS[change](monkeypatch)
    assert tune(tmp_path / "kept")[1] > 0


@pytest.mark.parametrize("damage", [*DAMAGES, "of another key"])
def test_a_damaged_choice_is_measured_again_and_replaced(tune, tmp_path, damage):
    tune(tmp_path / "kept")
    [path] = (tmp_path / "kept" / "v2").rglob("*.json")
    other = path.read_bytes().replace(b"tuned", b"other")
    path.write_bytes(DAMAGES.get(damage, lambda content: other)(path.read_bytes()))
    assert tune(tmp_path / "kept")[1] == 3
    assert tune(tmp_path / "kept")[1] == 0


@pytest.mark.parametrize("options", [{"race": True}, {"replace": True}, {"replace": True, "race": True}], ids=str)
def test_what_a_race_or_our_own_tuner_chose_is_kept_too(tune, tmp_path, options):
    assert tune(tmp_path / "kept", **options)[:2] == (64, 3)
    assert tune(tmp_path / "kept", **options) == (64, 0, 0)
    is_raced = "race" in options
    assert tune(tmp_path / "kept", race=not is_raced) == (64, 3, 0)  # of another way to measure


def test_without_the_folder_its_choices_serve_no_more(tune, tmp_path):
    tune(tmp_path / "kept")
    assert tune(tmp_path / "another") == (64, 3, 3)
    install.uninstall()
    assert stock_tuner.keeping == []


def test_where_nothing_can_be_written_choices_are_not_kept_and_it_is_said_once(tune, tmp_path, caplog):
    (tmp_path / "kept").write_text("no folder")
    assert tune(tmp_path / "kept")[:2] == (64, 3)
    assert [one.getMessage()[:16] for one in caplog.records if "choices" in one.getMessage()] == ["choices are not "]
