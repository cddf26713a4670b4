"""What Triton is made of, as keys hold it: different where anything of it differs, remembered, and cheap."""

import errno
import os
import threading
from pathlib import Path

import counted
import pytest
from faults import faults

pytest.importorskip("triton")

from autotuned import disk
from autotuned.triton_compat import fingerprint, kernel

PTXAS = "#!/bin/sh\n# {0}\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n"


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """A folder with the files of a small Triton; what Triton itself hashes is stood in for by its libtriton."""
    folder = tmp_path / "triton"
    for name in ("__init__.py", "knobs.py", "runtime/jit.py", "language/core.py", "experimental/gluon/_runtime.py",
                 "_C/libtriton.so", "plugins/passes.so", "backends/nvidia/lib/libdevice.10.bc", "profiler/proton.py",
                 "backends/nvidia/include/cuda.h"):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"# {name}\n")
    tool(folder / "backends/nvidia/bin/ptxas", "one")
    monkeypatch.setattr(kernel, "folder", lambda: str(folder))
    monkeypatch.setattr("triton.runtime.cache.triton_key", lambda: (folder / "_C/libtriton.so").read_text())
    again()
    yield folder
    again()


def tool(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PTXAS.format(text))
    path.chmod(0o755)


def again():
    """What a new process starts from."""
    fingerprint._ahead.clear()
    fingerprint._known.clear()
    fingerprint._ptxas_places.cache_clear()


def found(folder, arch="sm_80"):
    again()
    return fingerprint.of(arch, folder.parent / "cache")


@pytest.mark.parametrize(
    "name",
    ["__init__.py", "knobs.py", "runtime/jit.py", "language/core.py", "experimental/gluon/_runtime.py",
     "_C/libtriton.so", "plugins/passes.so", "backends/nvidia/lib/libdevice.10.bc"],
)  # fmt: skip
def test_any_file_of_triton_that_decides_code_makes_another_found(pretended, name):
    before = found(pretended)
    assert found(pretended) == before
    (pretended / name).write_text("edited")
    assert found(pretended)["triton_key"] != before["triton_key"]


@pytest.mark.parametrize("name", ["new.py", "runtime/new.py", "backends/amd/driver.py"])
def test_a_new_file_and_a_lost_one_make_another_found(pretended, name):
    before = found(pretended)
    (pretended / name).parent.mkdir(exist_ok=True)
    (pretended / name).write_text("new")
    assert found(pretended)["triton_key"] != before["triton_key"]
    (pretended / name).unlink()
    assert found(pretended) == before


@pytest.mark.parametrize("name", ["profiler/proton.py", "backends/nvidia/include/cuda.h", "README.md"])
def test_other_files_of_triton_do_not_count(pretended, name):
    before = found(pretended)
    (pretended / name).write_text("edited")
    assert found(pretended) == before


def test_files_that_were_only_touched_or_moved_do_not_count(pretended, monkeypatch):
    before = found(pretended)
    os.utime(pretended / "knobs.py", ns=(1, 1))
    assert found(pretended) == before
    moved = pretended.rename(pretended.with_name("elsewhere"))
    monkeypatch.setattr(kernel, "folder", lambda: str(moved))
    monkeypatch.setattr("triton.runtime.cache.triton_key", lambda: (moved / "_C/libtriton.so").read_text())
    assert found(moved) == before


def test_another_ptxas_of_the_same_version_is_another(pretended, monkeypatch):
    before = found(pretended)
    assert before["ptxas"].startswith("13.0.88 ")
    tool(pretended.parent / "wrapper", "two, with -O0")
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(pretended.parent / "wrapper"))
    other = fingerprint.of("sm_80", pretended.parent / "cache")  # in the same process too
    assert other["ptxas"] != before["ptxas"]
    assert other["triton_key"] == before["triton_key"]
    monkeypatch.delenv("TRITON_PTXAS_PATH")
    assert fingerprint.of("sm_80", pretended.parent / "cache") == before


def test_the_same_ptxas_elsewhere_is_the_same(pretended, monkeypatch):
    """As torch's compiler sets the variable to the one of its own wheel, within the process."""
    before = found(pretended)
    tool(pretended.parent / "copy", "one")
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(pretended.parent / "copy"))
    assert fingerprint.of("sm_80", pretended.parent / "cache") == before
    tool(pretended.parent / "copy", "other")
    assert fingerprint.of("sm_80", pretended.parent / "cache")["ptxas"] != before["ptxas"]
    tool(pretended.parent / "copy", "one")
    tool(pretended / "backends/nvidia/bin/ptxas", "another than the copy")
    assert fingerprint.of("sm_80", pretended.parent / "cache")["ptxas"] == before["ptxas"]


def test_a_program_of_the_same_version_and_build_is_the_same_and_a_script_is_not(tmp_path, monkeypatch):
    again()
    variable, own = fingerprint._ptxas_places("sm_80")
    other, script = tmp_path / "ptxas", tmp_path / "script"
    other.write_bytes(Path(own).read_bytes() + b"packed elsewhere")
    script.write_text(f'#!/bin/sh\nexec {own} -O0 "$@"\n')
    for path in (other, script):
        path.chmod(0o755)
    for path, is_own in ((other, True), (script, False)):
        monkeypatch.setenv(variable, str(path))
        assert fingerprint._ptxas("sm_80") == (own if is_own else str(path))


@pytest.mark.parametrize("arch", [75, 80, 90, 100, 120])
def test_the_ptxas_is_the_one_that_triton_runs(arch):
    from triton.backends.nvidia.compiler import get_ptxas

    fingerprint._ptxas_places.cache_clear()
    assert fingerprint._ptxas(f"sm_{arch}") == get_ptxas(arch).path


def test_a_rule_of_another_form_than_is_known_leaves_the_second_to_the_latest_devices(monkeypatch):
    monkeypatch.setattr("triton.backends.nvidia.compiler.get_ptxas", lambda arch, other: None)
    assert [fingerprint._second_ptxas(arch) for arch in (90, 100)] == [False, True]


def test_ptxas_replaced_in_its_place_is_noticed_in_the_same_process(pretended):
    before = found(pretended)
    tool(pretended / "backends/nvidia/bin/ptxas", "a newer build")
    assert fingerprint.of("sm_80", pretended.parent / "cache")["ptxas"] != before["ptxas"]


def test_a_ptxas_that_does_not_run_is_passed_over_as_triton_does(pretended, monkeypatch):
    before = found(pretended)
    for text in ("not a program", "#!/bin/sh\nexit 1\n"):
        path = pretended.parent / f"broken{len(text)}"
        path.write_text(text)
        path.chmod(0o755)
        monkeypatch.setenv("TRITON_PTXAS_PATH", str(path))
        try:
            assert found(pretended) == before
        except OSError:  # Triton does not catch this one either: its launch fails with the same error
            assert text == "not a program"


def test_what_cannot_be_found_out_is_an_error_and_never_equal_to_anything(pretended):
    (pretended / "backends/nvidia/bin/ptxas").unlink()
    with pytest.raises(FileNotFoundError):
        found(pretended)


def test_the_interpreter_and_other_makers_gpus_have_no_ptxas(pretended):
    assert found(pretended, "interpreter")["ptxas"] is None
    assert found(pretended, "gfx942")["ptxas"] is None


def test_what_is_remembered_is_not_computed_again(pretended, monkeypatch):
    before = found(pretended)
    monkeypatch.setattr(fingerprint, "_hashed", None)
    assert found(pretended) == before
    [path] = (pretended.parent / "cache" / "toolchain").glob("*.json")
    path.write_text("{")  # damaged: computed anew
    with pytest.raises(TypeError):
        found(pretended)
    monkeypatch.undo()


@pytest.fixture
def hashing(monkeypatch):
    """The names of the threads that have hashed Triton's files."""
    threads, hashed = [], fingerprint._hashed
    monkeypatch.setattr(fingerprint, "_hashed", lambda: (threads.append(threading.current_thread().name), hashed())[1])
    return threads


def test_the_files_are_hashed_while_the_driver_is_made(pretended, hashing):
    cache = pretended.parent / "cache"
    fingerprint.begin(cache)
    fingerprint.begin(cache)
    first = fingerprint.of("sm_80", cache)
    assert hashing == ["autotuned-hash"]
    again()
    fingerprint.begin(cache)  # it is remembered: there is nothing to begin
    assert fingerprint.of("sm_80", cache) == first
    assert hashing == ["autotuned-hash"]


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ESTALE], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["stat", "open"])
def test_a_cache_folder_that_cannot_be_read_changes_nothing(pretended, hashing, call, error):
    cache = pretended.parent / "cache"
    with faults(call, error, name="*cache/toolchain*") as failed:
        fingerprint.begin(cache)
        ours = fingerprint.of("sm_80", cache)
    assert failed and ours == found(pretended)


def test_files_that_change_after_hashing_was_begun_are_not_remembered(pretended, hashing):
    fingerprint.begin(pretended.parent / "cache")
    fingerprint._ahead[os.getpid()].result()
    (pretended / "knobs.py").write_text("# a newer one")
    before = fingerprint.of("sm_80", pretended.parent / "cache")
    assert found(pretended) != before


def test_an_error_while_hashing_ahead_is_that_of_the_found(pretended, monkeypatch):
    def broken():
        raise OSError("the disk is gone")

    monkeypatch.setattr(fingerprint, "_hashed", broken)
    fingerprint.begin(pretended.parent / "cache")
    with pytest.raises(OSError, match="the disk is gone"):
        fingerprint.of("sm_80", pretended.parent / "cache")


def test_a_fork_does_not_wait_for_a_thread_that_it_has_not(pretended, hashing):
    fingerprint._ahead[os.getpid() + 1] = None  # its parent's
    assert fingerprint.of("sm_80", pretended.parent / "cache")
    assert hashing == ["MainThread"]


@pytest.mark.parametrize("field", ["files", "folders", "is", "ptxas"])
@pytest.mark.parametrize("value", [None, 3, [], {"a": None}, {"is": 1}], ids=repr)
def test_a_damaged_memory_of_it_is_computed_anew(pretended, field, value):
    before = found(pretended)
    [path] = (pretended.parent / "cache" / "toolchain").glob("*.json")
    whole = disk.read_json(path)
    path.write_text(disk.text({**whole, field: value}))
    assert found(pretended) == before
    assert disk.read_json(path) == whole


def test_a_fingerprint_of_files_that_change_meanwhile_is_not_remembered(pretended, monkeypatch):
    hashed = fingerprint._hashed

    def hash_while_somebody_installs():
        found = hashed()
        (pretended / "knobs.py").write_text("# a newer one")
        return found

    monkeypatch.setattr(fingerprint, "_hashed", hash_while_somebody_installs)
    before = found(pretended)
    monkeypatch.setattr(fingerprint, "_hashed", hashed)
    assert found(pretended) != before


def test_a_warm_process_reads_one_file_to_know_its_fingerprint(tmp_path: Path, monkeypatch):
    fingerprint._known.clear()
    wanted = fingerprint.of("sm_80", tmp_path)
    fingerprint._known.clear()
    for costly in ("_hashed", "_sha256", "_ptxas_version"):
        monkeypatch.setattr(fingerprint, costly, None)
    found = []
    opened = counted.opened(lambda: found.append(fingerprint.of("sm_80", tmp_path)))
    [remembered] = (tmp_path / "toolchain").iterdir()
    assert (found, opened) == ([wanted], [str(remembered)])
    assert disk.read_json(remembered)["is"] == wanted
    assert counted.opened(lambda: fingerprint.of("sm_80", tmp_path)) == []
