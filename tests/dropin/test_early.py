"""What a first launch waits for is made while the program does other things, and not while it imports."""

import os
import subprocess
import sys
import threading

import pytest
from pids import is_running
from triton.backends.nvidia import driver
from triton.runtime import build, cache
from waits import until

from autotuned.dropin import early, install, kept_choices
from autotuned.triton_compat import compiled, fingerprint, launcher, versions


@pytest.fixture
def done(monkeypatch):
    """What was made, in order; `done.ended` is set by the last of it."""

    class Done(list):
        ended = threading.Event()

    done = Done()
    monkeypatch.setattr(early, "_begun", [])
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(fingerprint, "begin", lambda folder: done.append("hash") or True)
    monkeypatch.setattr(compiled, "prepare_compiler", lambda: done.append("Triton's hash"))
    monkeypatch.setattr(launcher, "build_driver", lambda: (done.append("driver"), done.ended.set()))
    return done


def test_the_hash_is_begun_and_the_driver_built_once_a_process(done):
    early.begin()
    early.begin()
    assert done.ended.wait(30)
    assert done == ["hash", "driver"]


def test_where_the_hash_is_stored_triton_hashes_for_itself(done, monkeypatch):
    monkeypatch.setattr(fingerprint, "begin", lambda folder: False)
    early.begin()
    assert done.ended.wait(30)
    assert done == ["Triton's hash", "driver"]


def test_an_error_is_left_to_the_first_launch(done, monkeypatch, capfd):
    def broken(folder):
        raise OSError("the disk is gone")

    monkeypatch.setattr(fingerprint, "begin", broken)
    early.begin()
    assert done.ended.wait(30)
    assert done == ["driver"] and "the disk is gone" not in capfd.readouterr().err


def test_where_choices_are_kept_nothing_is_hashed(done, monkeypatch):
    monkeypatch.setattr(kept_choices, "are_there", lambda: True)
    early.begin()
    assert done.ended.wait(30)
    assert done == ["driver"]


def test_it_waits_until_the_main_thread_imports_nothing(done, tmp_path, monkeypatch):
    looked = threading.Event()
    is_importing = early._is_importing
    monkeypatch.setattr(early, "_is_importing", lambda: (is_importing(), looked.set())[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("builtins.LOOKED", looked, raising=False)
    monkeypatch.setattr("builtins.DONE", done, raising=False)
    text = "from autotuned.dropin import early\nearly.begin()\nSEEN = [LOOKED.wait(30), LOOKED.clear(), LOOKED.wait(30), list(DONE)]\n"
    (tmp_path / "imported_slowly.py").write_text(text)
    import imported_slowly

    del sys.modules["imported_slowly"]
    assert imported_slowly.SEEN == [True, None, True, []]  # looked at twice, and waited
    assert done.ended.wait(30)
    assert done == ["hash", "driver"]


WHYS = {
    "interpreter": lambda patch: patch.setenv("TRITON_INTERPRET", "1"),
    "version": lambda patch: patch.setattr(versions, "strange_triton", lambda: "Triton 9.9 was never tested"),
    "one worker": lambda patch: patch.setenv("AUTOTUNED_COMPILE_WORKERS", "1"),
    "no worker": lambda patch: patch.setenv("AUTOTUNED_COMPILE_WORKERS", "0"),
}


@pytest.mark.parametrize("why", WHYS)
def test_where_nothing_would_be_compiled_nothing_is_made(done, monkeypatch, why):
    WHYS[why](monkeypatch)
    early.begin()
    assert early._begun == [] and not any(one.name == "autotuned-early" for one in threading.enumerate())


@pytest.mark.parametrize("ahead", [True, False])
def test_it_is_begun_only_where_something_is_compiled_ahead(done, monkeypatch, ahead):
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", "many")  # is said where configs are compiled
    install.install(ahead=ahead)
    install.uninstall()
    assert early._begun == [True] * ahead and (not ahead or done.ended.wait(30))


def test_the_interpreters_exit_waits_for_no_hash(monkeypatch):
    daemons = []
    monkeypatch.setattr(cache, "triton_key", lambda: daemons.append(threading.current_thread().daemon) or "key")
    fingerprint._hashed()
    assert daemons == [True]


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def forget_compiler():
    if hasattr(build, "_find_compiler"):  # before 3.9 Triton looks for one at each build
        build._find_compiler.cache_clear()


def test_an_early_compiler_that_fails_says_nothing_and_others_do(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("CC", script(tmp_path / "cc", "echo no Python.h; echo no Python.h >&2; exit 1"))
    forget_compiler()
    ran = []

    def make(self):
        other = threading.Thread(target=lambda: ran.append(built()))
        other.start()
        other.join()
        ran.append(built())

    def built():
        with pytest.raises(subprocess.CalledProcessError):
            build._build("made", str(tmp_path / "made.c"), str(tmp_path), [], [], [], [])
        return capfd.readouterr().err

    monkeypatch.setattr(driver.CudaUtils, "__init__", make)
    launcher.build_driver()
    forget_compiler()
    assert ran == ["no Python.h\n", ""] and build.subprocess is subprocess


ENDS = """
import os, sys, time
import triton, autotuned
autotuned.install()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


def test_a_compiler_that_hangs_ends_with_the_program_and_holds_no_pipe_open(tmp_path):
    running = tmp_path / "running"
    compiler = script(tmp_path / "cc", f"echo $$ > {running}.tmp; mv {running}.tmp {running}; exec sleep 600")
    (tmp_path / "libcuda.so.1").touch()
    environment = os.environ | {
        "CC": compiler, "TRITON_LIBCUDA_PATH": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        "AUTOTUNED_CACHE_DIR": str(tmp_path / "store"), "TMPDIR": str(tmp_path),
    }  # fmt: skip
    for name in ("TRITON_INTERPRET", "AUTOTUNED_COMPILE_WORKERS"):
        environment.pop(name, None)
    command = [sys.executable, "-c", ENDS, str(running)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    until(lambda: not is_running(int(running.read_text())), limit_s=10.0)
    assert not list(tmp_path.glob("tmp*"))  # Triton's folder for what is compiled


def test_a_driver_that_cannot_be_built_is_left_to_triton(monkeypatch):
    def broken(self):
        raise AssertionError("libcuda.so cannot found!")

    monkeypatch.setattr(driver.CudaUtils, "__init__", broken)
    launcher.build_driver()
