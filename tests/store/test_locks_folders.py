"""The lock of a config file: also that of its folder, which every writer on a host shares."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from autotuned.store import locks


def test_a_config_file_has_one_writer_whatever_its_folder_is_called(tmp_path: Path) -> None:
    """Under another name, as with another cache folder, its lock file is another one."""
    folder, link, order = tmp_path / "tuned", tmp_path / "link", []
    folder.mkdir()
    link.symlink_to(folder)

    def write() -> None:
        with locks.locked_config_file(link / "k.json"):
            order.append("second")

    second = threading.Thread(target=write)
    with locks.locked_config_file(folder / "k.json"):
        with locks.locked_config_file(link / "other.json"):  # this thread does not wait for itself
            second.start()
        second.join(0.3)
        order.append("first")
    second.join()
    assert order == ["first", "second"]
    assert list(folder.iterdir()) == []


def test_a_forked_child_does_not_release_or_keep_a_folders_lock(tmp_path: Path) -> None:
    import fcntl

    with locks.locked_config_file(tmp_path / "k.json"):
        child = os.fork()
        if not child:
            os._exit(_free(fcntl, tmp_path))
        assert os.waitpid(child, 0)[1] == 0
    assert _free(fcntl, tmp_path)


def _free(fcntl: Any, folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def test_a_config_file_is_written_where_folders_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "no locks")))
    with locks.locked_config_file(tmp_path / "k.json"), locks.locked_config_file(tmp_path / "missing" / "k.json"):
        pass
