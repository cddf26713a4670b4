"""What a first launch waits for is made while the program does other things, and not while it imports."""

import sys
import threading

import pytest

from autotuned.dropin import early, kept_choices
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


@pytest.mark.parametrize("why", ["interpreter", "version"])
def test_where_nothing_would_be_compiled_nothing_is_made(done, monkeypatch, why):
    if why == "interpreter":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    else:
        monkeypatch.setattr(versions, "strange_triton", lambda: "Triton 9.9 was never tested")
    early.begin()
    assert early._begun == [] and not any(one.name == "autotuned-early" for one in threading.enumerate())


def test_a_driver_that_cannot_be_built_is_left_to_triton(monkeypatch):
    from triton.backends.nvidia import driver

    def broken(self):
        raise AssertionError("libcuda.so cannot found!")

    monkeypatch.setattr(driver.CudaUtils, "__init__", broken)
    launcher.build_driver()
