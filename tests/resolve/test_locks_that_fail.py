"""Locks and folders that do not work: results stay right, and it is said once."""

import logging
import os
from typing import Any

import pytest
from faults import everything_in, faults, no_op_flock
from flights import make, only_record

from autotuned.store import layout


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]


def test_right_results_where_locks_lock_nobody_out() -> None:
    with no_op_flock():
        tuned, measured = make()
        other, _ = make()
        assert tuned(1) == other(1) == 2
    assert sorted(measured) == [0, 1, 2, 3]


@pytest.mark.parametrize("error", ["ENOLCK", "EIO"])
def test_right_results_and_a_record_where_there_are_no_locks(error: str, caplog: pytest.LogCaptureFixture) -> None:
    import errno

    tuned, _ = make()
    with faults("flock", getattr(errno, error)):
        assert tuned(1) == 2
    assert only_record()[1].winner["kwargs"] == {"step": 2}
    assert warned(caplog) == []


@pytest.mark.parametrize(
    ("call", "error"),
    [("mkdir", "EACCES"), ("mkdir", "EROFS"), ("write", "ENOSPC"), ("write", "EDQUOT"), ("replace", "EACCES"),
     ("open", "EACCES"), ("open", "EROFS"), ("open", "EMFILE")],
)  # fmt: skip
def test_b54_b56_where_nothing_can_be_written_the_program_goes_on_with_one_warning(
    call: str, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    import errno

    tuned, measured = make()
    with faults(call, getattr(errno, error), name="*cache-"):
        for n in (1, 2, 1, 2):
            assert tuned(n) == 2
    assert len(measured) == 8
    assert len([line for line in warned(caplog) if "kept in memory only" in line]) == 1
    assert [path for path in everything_in(layout.root()) if path.endswith(".tmp")] == []


def test_b46_a_reader_of_anothers_folder_is_served_and_tunes_new_keys_in_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tuned, _ = make()
    tuned(1)
    real = os.open

    def read_only(path: Any, flags: int, *mode: int, **rest: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, *mode, **rest)

    with pytest.MonkeyPatch.context() as patch, faults("mkdir", 13), faults("utime", 1), faults("unlink", 13):
        patch.setattr(os, "open", read_only)
        reader, measured = make()
        assert reader(1) == 2
        assert measured == []
        assert warned(caplog) == []
        assert reader(2) == reader(2) == 2
    assert len(measured) == 4
    assert len(warned(caplog)) == 1


def test_b39_a_record_that_shows_up_late_is_a_miss_and_there_in_the_end(caplog: pytest.LogCaptureFixture) -> None:
    import errno

    tuned, _ = make()
    with faults("open", errno.ENOENT, times=2, name=".json"), faults("replace", errno.ESTALE, times=1):
        assert tuned(1) == 2
    assert only_record()[1].winner["kwargs"] == {"step": 2}
    assert warned(caplog) == []
