"""Bad surroundings: damaged records, folders that cannot be written, no GPU, no home; and how the call goes on."""

import os
import sys
from pathlib import Path

import forked
import numpy as np
import pytest
from paths import quick
from stepped import STEPS, halve
from stored import lines

from autotuned import autotune, disk
from autotuned.store import listing


@pytest.fixture
def warnings(caplog):
    return lambda: lines(caplog)


# -- records and folders -------------------------------------------------------------------------------------------------

DAMAGE = {
    "empty": b"",
    "half": b'{"schema": 1, "kernel"',
    "list": b"[]",
    "null": b"null",
    "text": b'"x"',
    "zeros": bytes(100),
    "not-utf8": b"\xff\xfe\x00",
    "nan": b'{"schema": 2, "median_us": NaN}',
    "other-fields": b'{"schema": 2, "winner": {}}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_record_is_tuned_again_with_one_warning(content, warnings):
    make = lambda: autotune(STEPS, do_bench=quick)(halve)
    make()(np.ones(3), 3)
    ((path, record),) = listing.all_records()
    path.write_bytes(content)
    function, x = make(), np.ones(3)
    function(x, 3)
    assert (x == 0.5).all()
    assert function.cache_info().searches == 1
    (line,) = warnings()
    assert f"record {path} is damaged (" in line
    assert "the kernel is tuned again" in line
    ((_, again),) = listing.all_records()
    assert again.winner == record.winner
    healed = make()
    healed(np.ones(3), 3)
    assert healed.cache_info().searches == 0
    assert len(warnings()) == 1


@pytest.mark.parametrize("thing", ["folder", "link-to-nowhere"])
def test_something_else_in_the_place_of_a_record(thing, warnings):
    make = lambda: autotune(STEPS, do_bench=quick)(halve)
    make()(np.ones(3), 3)
    ((path, _),) = listing.all_records()
    path.unlink()
    path.mkdir() if thing == "folder" else path.symlink_to(path.parent / "nowhere")
    for searches in (1, 0):
        function = make()
        function(np.ones(3), 3)
        assert function.cache_info().searches == searches
    assert len(warnings()) == 1


def test_a_record_of_another_key_is_not_believed(warnings):
    make = lambda: autotune(STEPS, do_bench=quick)(halve)
    function = make()
    function(np.ones(3), 3)
    function(np.ones(4), 4)
    (one, _), (other, _) = listing.all_records()
    other.write_bytes(one.read_bytes())
    fresh = make()
    for n in (3, 4):
        fresh(np.ones(n), n)
    assert fresh.cache_info().searches == 1
    (line,) = warnings()
    assert "it holds the record of another key" in line


def test_a_newer_record_is_left_alone(warnings):
    make = lambda: autotune(STEPS, do_bench=quick)(halve)
    make()(np.ones(3), 3)
    ((path, _),) = listing.all_records()
    text = path.read_text().replace('"schema": 2', '"schema": 999')
    path.write_text(text)
    make()(np.ones(3), 3)
    assert path.read_text() == text
    (line,) = warnings()
    assert "has the newer schema 999; it is left alone" in line


@pytest.mark.parametrize("place", ["file", "below-a-file"])
def test_a_cache_folder_that_cannot_be_written(place, monkeypatch, tmp_path, warnings):
    file = tmp_path / "taken"
    file.write_text("mine")
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(file if place == "file" else file / "deeper"))
    function = autotune(STEPS, do_bench=quick)(halve)
    for n in (3, 4, 3):
        x = np.ones(n)
        function(x, n)
        assert (x == 0.5).all()
    assert function.cache_info().searches == 2
    (line,) = warnings()
    assert f"cannot write to the cache folder {os.environ['AUTOTUNED_CACHE_DIR']}" in line
    assert "results are kept in memory only. Set AUTOTUNED_CACHE_DIR to a folder that can be written" in line
    assert file.read_text() == "mine"


def test_a_full_disk(monkeypatch, warnings):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "write_text", full)
    function = autotune(STEPS, do_bench=quick)(halve)
    for n in (3, 4, 3):
        function(np.ones(n), n)
    assert function.cache_info().searches == 2
    (line,) = warnings()
    assert "No space left on device" in line


# -- surroundings: in processes of their own -------------------------------------------------------------------------


def run(tmp_path, text, **environment):
    """Runs a script; a variable that is None is unset."""
    script = tmp_path / "script.py"
    script.write_text(text)
    kept = {name: value for name, value in (os.environ | environment).items() if value is not None}
    return forked.run([sys.executable, script], env=kept)


NO_GPU = """
import torch, triton, triton.language as tl
from autotuned import Config, autotune, errors
@autotune([Config({"BLOCK": 16}), Config({"BLOCK": 32})])
@triton.jit
def double(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), 1.0)
for call in (lambda: double[(1,)](torch.ones(4), 4), lambda: double.run(torch.ones(4), 4, grid=(1,), warmup=True)):
    try:
        call()
    except errors.NoDeviceError as error:
        print(error)
"""


def test_no_gpu_and_no_interpreter(tmp_path):
    done = run(tmp_path, NO_GPU, TRITON_INTERPRET=None, CUDA_VISIBLE_DEVICES="", TRITON_DEFAULT_FP_FUSION="1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("Expected a GPU to launch a compiled Triton kernel on, and torch.cuda sees none.")
        assert "set TRITON_INTERPRET=1 before triton is first imported" in line


NO_HOME = """
import os, pwd
from fakes import FakeConfig as Config
from autotuned import autotune
from autotuned.store import layout
def unknown(*args):
    raise KeyError("getpwuid(): uid not found")
pwd.getpwuid = unknown
@autotune([Config({"step": 1}), Config({"step": 2})])
def add(x, *, step):
    return x + 1
assert add(1) == 2
print(layout.root())
"""


@pytest.mark.parametrize("home", [None, "", "/nonexistent/home", "/dev/null"], ids=repr)
def test_no_home(tmp_path, home):
    surroundings = {"HOME": home, "XDG_CACHE_HOME": None, "USER": None, "LOGNAME": None, "AUTOTUNED_CACHE_DIR": None}
    support = str(Path(__file__).resolve().parents[1] / "support")
    (tmp_path / "temporary").mkdir()
    done = run(tmp_path, NO_HOME, TMPDIR=str(tmp_path / "temporary"), PYTHONPATH=support, **surroundings)
    assert done.returncode == 0, done.stderr
    root = done.stdout.strip()
    assert os.path.isabs(root)
    if not home:
        assert root.startswith(str(tmp_path / "temporary"))
        assert oct(os.stat(root).st_mode & 0o777) == "0o700"
