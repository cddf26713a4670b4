"""Where the cache folder is: the setting, the platform's, or a private temporary one; and whether it is on a network."""

import os
import pwd
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from autotuned import disk
from autotuned.store import layout

# -- the cache folder ------------------------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, for the time of a test."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(folder))
    return folder


def no_passwd_entry(uid: int) -> Any:
    raise KeyError(f"getpwuid(): uid not found: {uid}")


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> Path:
    """No HOME, no passwd entry, no cache folder in the environment."""
    for name in ("HOME", "XDG_CACHE_HOME", "USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_passwd_entry)
    return temporary / f"autotuned-{os.getuid()}"


def test_an_absolute_setting_is_taken_as_it_is(tmp_path: Path) -> None:
    assert disk.cache_dir(str(tmp_path / "a b")) == tmp_path / "a b"
    assert disk.cache_dir("/") == Path("/")


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert disk.cache_dir("~/tuned") == tmp_path / "tuned"


def test_a_relative_setting_is_made_absolute_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    assert disk.cache_dir("tuned") == tmp_path / "tuned"
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert disk.cache_dir("tuned") == tmp_path / "tuned"


def test_no_setting_means_the_platforms_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert disk.cache_dir("") == Path(platformdirs.user_cache_dir("autotuned", appauthor=False))
    assert disk.cache_dir("").is_relative_to(tmp_path)


@pytest.mark.parametrize("setting", ["", "~/tuned"])
def test_without_a_home_folder_a_private_temporary_one_is_taken(homeless: Path, setting: str) -> None:
    assert disk.cache_dir(setting) == homeless
    assert homeless.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "error", [KeyError("uid"), RuntimeError("no home"), OSError("no entry")], ids=lambda e: type(e).__name__
)
def test_whatever_finding_the_folder_raises_a_temporary_one_is_taken(
    homeless: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *a, **k: (_ for _ in ()).throw(error))
    assert disk.cache_dir("") == homeless


def squat_link(path: Path) -> None:
    (path.parent / "theirs").mkdir()
    path.symlink_to(path.parent / "theirs")


def squat_file(path: Path) -> None:
    path.write_text("")


@pytest.mark.parametrize("squat", [squat_link, squat_file])
def test_a_temporary_name_that_somebody_else_took_is_not_used(homeless: Path, squat: Callable[[Path], None]) -> None:
    squat(homeless)
    chosen = disk.cache_dir("")
    assert chosen != homeless
    assert chosen.parent == homeless.parent
    assert chosen.name.startswith("autotuned-")
    assert chosen.stat().st_mode & 0o777 == 0o700
    assert disk.cache_dir("") == chosen


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o720, 0o702, 0o755, 0o701])
def test_a_temporary_folder_that_others_may_enter_is_not_used(homeless: Path, mode: int) -> None:
    homeless.mkdir()
    homeless.chmod(mode)
    chosen = disk.cache_dir("")
    assert chosen != homeless
    assert chosen.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("mode", "used"), [(0o1777, True), (0o777, False), (0o775, False), (0o755, True)])
def test_a_temporary_folder_that_others_may_replace_is_not_used(homeless: Path, mode: int, used: bool) -> None:
    homeless.parent.chmod(mode)
    assert (disk.cache_dir("") == homeless) == used


def test_a_temporary_folder_of_another_user_is_not_used(homeless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    (homeless.parent / f"autotuned-{uid + 1}").mkdir()
    assert disk.cache_dir("").name != f"autotuned-{uid + 1}"


# -- network file systems --------------------------------------------------------------------------------------------

MOUNTS = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / /proc rw - proc proc rw
40 21 0:40 / /net rw,relatime shared:20 master:3 - nfs4 server:/net rw,vers=4.2
41 40 0:41 / /net/local\\040disk rw - xfs /dev/sdb1 rw
42 21 0:42 / /scratch rw - lustre 10.0.0.1@o2ib:/scratch rw
43 21 0:43 / /remote rw - fuse.sshfs me@there:/ rw
44 21 0:44 / /overlay rw - fuse.fuse-overlayfs overlay rw
45 42 0:45 / /scratch rw - tmpfs tmpfs rw
46 21 0:46 / /network rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/net/me/.cache", "nfs4"), ("/net", "nfs4"), ("/net/local disk/x", ""), ("/scratch/x", ""),
     ("/remote/x", "fuse.sshfs"), ("/overlay/x", ""), ("/network/x", ""), ("/opt", "")],
)  # fmt: skip
def test_a_network_file_system_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, kind: str
) -> None:
    monkeypatch.setattr(layout, "_MOUNTS", tmp_path / "mountinfo")
    monkeypatch.setattr(os.path, "realpath", str)
    assert layout.network_file_system(Path(path)) == ""
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert layout.network_file_system(Path(path)) == kind
