"""Homes, users and folders as containers and clusters have them, in processes of their own."""

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import forked
import pytest

import autotuned

SUPPORT = Path(__file__).resolve().parents[1] / "support"

# Calls a tuned function twice in one process, and says what was searched and where records would lie.
PROGRAM = f"""
import itertools, sys
sys.path.insert(0, {str(SUPPORT)!r})
from fakes import FakeConfig
from autotuned import autotune
from autotuned.store import layout
tuned = autotune([FakeConfig({{"step": 1}}), FakeConfig({{"step": 2}})], name="app.f",
                 do_bench=lambda call, quantiles, times=itertools.count(1): [float(next(times))] * 3)(lambda x, step: x)
assert (tuned(1), tuned(1), tuned(2)) == (1, 1, 2)
print(tuned.cache_info().searches, layout.root())
"""


def run(cwd: Path, preexec: str = "", **environment: str) -> tuple[int, Path, str]:
    """Searches, folder and what was said on stderr."""
    names = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "TRITON_INTERPRET")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    done = forked.run([sys.executable, "-c", preexec + PROGRAM], cwd=cwd, env=kept | environment)
    assert done.returncode == 0, done.stderr
    searches, _, folder = done.stdout.strip().partition(" ")
    return int(searches), Path(folder), done.stderr


def one_warning(text: str) -> bool:
    return text.count("kept in memory only") == 1 and len(text.strip().splitlines()) == 1


def test_b56_a_tilde_is_expanded_and_a_second_process_searches_nothing(tmp_path: Path) -> None:
    for searches in (2, 0):
        assert run(tmp_path, HOME=str(tmp_path), AUTOTUNED_CACHE_DIR="~/x y") == (searches, tmp_path / "x y", "")
    assert stat.S_IMODE((tmp_path / "x y").stat().st_mode) == 0o700


@pytest.mark.parametrize("setting", ["", "   "])
def test_b56_an_empty_setting_is_none(tmp_path: Path, setting: str) -> None:
    searches, folder, said = run(tmp_path, HOME=str(tmp_path), AUTOTUNED_CACHE_DIR=setting)
    assert (searches, said) == (2, "")
    assert folder == tmp_path / ".cache" / "autotuned"
    for made in (folder, folder.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_b56_a_relative_setting_is_taken_from_the_working_folder(tmp_path: Path) -> None:
    assert run(tmp_path, HOME=str(tmp_path), AUTOTUNED_CACHE_DIR="tuned")[1] == tmp_path / "tuned"


def test_b55_without_home_user_or_passwd_entry_a_private_temporary_folder_is_taken(tmp_path: Path) -> None:
    nobody = "import pwd\ndef missing(uid):\n    raise KeyError(uid)\npwd.getpwuid = missing\n"
    for error in ("KeyError", "OSError"):
        preexec = nobody.replace("KeyError", error)
        searches, folder, said = run(tmp_path, preexec, TMPDIR=str(tmp_path))
        assert said == ""
        assert folder == tmp_path / f"autotuned-{os.getuid()}"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("home", ["", "relative"])
def test_b56_a_home_that_is_no_folder_of_anybody(tmp_path: Path, home: str) -> None:
    entry = f"import pwd, types\npwd.getpwuid = lambda uid: types.SimpleNamespace(pw_dir={str(tmp_path / 'own')!r})\n"
    searches, folder, said = run(tmp_path, entry, HOME=home, TMPDIR=str(tmp_path))
    assert said == ""
    assert folder.is_absolute()
    assert not (tmp_path / "relative").exists()


# As for a user who may write nothing there; root may.
REFUSED = """
import os
real = os.mkdir
def refuse(path, *args, **options):
    if os.fspath(path).startswith(PREFIX):
        raise PermissionError(13, "Permission denied", path)
    return real(path, *args, **options)
os.mkdir = refuse
"""


@pytest.mark.parametrize(("home", "prefix"), [("/", "/.cache"), ("/nonexistent", "/nonexistent")])
def test_b56_a_home_that_cannot_be_written_is_one_warning_and_the_program_goes_on(
    tmp_path: Path, home: str, prefix: str
) -> None:
    searches, folder, said = run(tmp_path, f"PREFIX = {prefix!r}\n{REFUSED}", HOME=home)
    assert searches == 2
    assert folder == Path(home) / ".cache" / "autotuned"
    assert one_warning(said), said


def test_b56_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for setting in ("file", "file/below"):
        searches, _, said = run(tmp_path, AUTOTUNED_CACHE_DIR=setting)
        assert searches == 2
        assert one_warning(said), said


# The interpreter's own files may be root's alone: what is needed of them is imported before root is left.
BECOME = f"""
import filelock, importlib.readers, importlib.resources, os, platformdirs, secrets, sys, tempfile
sys.path.insert(0, {str(SUPPORT)!r})
import autotuned.configs, autotuned.api.decorator, autotuned.store.gc, autotuned.store.records, autotuned.search.search, fakes, uuid
from autotuned.configfiles import lookup
list(lookup.config_folders())
os.setgroups([])
os.setgid(GID)
os.setuid(UID)
"""


def readable_by_all(path: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A folder that every user may enter and write; pytest's own are closed to others."""
    if not readable_by_all(Path(autotuned.__file__).parent):
        pytest.skip("other users cannot read the package where it is installed")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody without an entry")
def test_b55_a_user_id_without_a_passwd_entry(everybodys: Path) -> None:
    become = BECOME.replace("GID", "54321").replace("UID", "54321")
    searches, folder, said = run(everybodys, become, TMPDIR=str(everybodys))
    assert searches == 2
    assert folder == everybodys / "autotuned-54321"
    assert said == ""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize("umask", [0o022, 0o077], ids=oct)
def test_b46_a_member_of_the_group_reads_what_another_wrote_and_tunes_in_memory(everybodys: Path, umask: int) -> None:
    shared = everybodys / "shared"
    shared.mkdir()
    os.chown(shared, 54000, 55000)
    shared.chmod(0o2750)
    become = f"{BECOME.replace('GID', '55000')}os.umask({umask})\n"
    options = {"AUTOTUNED_CACHE_DIR": str(shared), "HOME": str(everybodys)}
    assert run(everybodys, become.replace("UID", "54000"), **options) == (2, shared, "")
    assert run(everybodys, become.replace("UID", "54001"), **options) == (0, shared, "")
    more = PROGRAM.replace("tuned(2)) == (1, 1, 2)", "tuned(3)) == (1, 1, 3)")
    command = [sys.executable, "-c", become.replace("UID", "54001") + more]
    done = forked.run(command, cwd=everybodys, env=os.environ | options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 ")
    assert one_warning(done.stderr), done.stderr


def test_import_and_decoration_look_for_no_folder_and_never_initialise_cuda(tmp_path: Path) -> None:
    program = (
        "import torch, triton, triton.language as tl\n"
        "def fail(*args, **options):\n    raise AssertionError('CUDA was asked')\n"
        "torch.cuda._lazy_init = torch.cuda.is_available = torch.cuda.device_count = fail\n"
        "torch.cuda.current_device = torch.cuda.get_device_properties = fail\n"
    )
    program += (
        "import autotuned, kernel_file\n"
        "configs = [triton.Config({'BLOCK': block}) for block in (16, 32)]\n"
        "tuned = autotuned.autotune(configs, key=['n'])(kernel_file.add)\n"
        "plain = autotuned.autotune(configs)(lambda x, BLOCK: x)\n"
        "from triton.runtime import driver\n"
        "assert driver._active is None, driver._active\n"
        "assert not torch.cuda.is_initialized()\n"
        "from autotuned import disk\nassert not disk._cache_dirs\n"
    )
    (tmp_path / "kernel_file.py").write_text(
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef add(x_ptr, n, BLOCK: tl.constexpr):\n"
        "    i = tl.arange(0, BLOCK)\n    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1.0, mask=i < n)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = forked.run([sys.executable, "-c", program], environment, tmp_path)
    assert done.returncode == 0, done.stderr
