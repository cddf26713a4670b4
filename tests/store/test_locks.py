import contextlib
import errno
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import faults, no_op_flock
from filelock import FileLock, Timeout
from stored import lines

from autotuned.store import layout, locks

# Waits for a word, takes the lock, and does the work once: the work is done when "result" is there.
WORKER = """
import sys
from pathlib import Path
from autotuned import disk
from autotuned.store import locks

folder = Path(sys.argv[1])

def say(word):
    print(word, flush=True)

say("ready")
sys.stdin.readline()
say("trying")
with locks.locked(folder / "locks" / "k.lock"):
    say("in")
    if not (folder / "result").exists():
        with open(folder / "ran", "a") as file:
            file.write("x")
        sys.stdin.readline()
        disk.write_text(folder / "result", "done")
"""


@contextlib.contextmanager
def worker(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", WORKER, str(folder)], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def hear(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{word}\n"


def tell(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@contextlib.contextmanager
def lock_of_another_process(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    with worker(folder) as process:
        hear(process, "ready")
        tell(process)
        hear(process, "trying")
        hear(process, "in")
        yield process


def test_of_two_processes_one_does_the_work_and_the_other_finds_it_done(tmp_path: Path) -> None:
    with worker(tmp_path) as one, worker(tmp_path) as other:
        for process in (one, other):
            hear(process, "ready")
        for process in (one, other):
            tell(process)
        for process in (one, other):
            hear(process, "trying")
        for process in (one, other):  # whoever is in finishes its work; the other needs no word for it
            tell(process)
        assert [process.wait(30) for process in (one, other)] == [0, 0]
    assert (tmp_path / "ran").read_text() == "x"


def wait_for(path: Path) -> str:
    """The content of a file that another process is about to write."""
    end = time.monotonic() + 20
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.005)
    return path.read_text()


def test_b42_a_lock_ends_with_its_holder_and_a_live_holder_is_named_and_not_waited_for_without_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "locks" / "k.lock"
    monkeypatch.setattr(locks, "MESSAGE_AFTER_S", 0.02)
    with lock_of_another_process(tmp_path) as holder:
        with pytest.raises(Timeout):
            FileLock(path).acquire(timeout=0)
        said = json.loads(wait_for(layout.holder_path(path)))
        assert said.keys() == {"pid", "host", "start"}
        with locks.locked(path, timeout_s=0.4) as lock:
            assert lock is locks.Lock.BUSY
        assert lines(caplog) == [
            f"waiting for process {holder.pid} on {socket.gethostname()} (since {said['start']}), which tunes the same "
            f"key; lock file: {path}",
            f"lock {path} was not free after 0 s; continuing without it.",
        ]
        assert json.loads(layout.holder_path(path).read_text()) == said  # who waited in vain left it as it was
        caplog.clear()
        holder.send_signal(signal.SIGKILL)
        holder.wait(30)
        with locks.locked(path, timeout_s=0) as lock, pytest.raises(Timeout):  # there is nothing to wait for
            assert lock is locks.Lock.HELD
            FileLock(path).acquire(timeout=0)  # it is really held now
    assert lines(caplog) == []
    assert not layout.holder_path(path).exists()
    assert path.exists()  # unlinking it would split those who wait


@pytest.mark.parametrize(
    "content", [b"", b"12345\nsome-host\n", os.urandom(64)], ids=["empty", "pid and host", "garbage"]
)
def test_a_leftover_lock_file_is_not_waited_for(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "k.lock"
    path.write_bytes(content)
    with locks.locked(path, timeout_s=0) as lock, pytest.raises(Timeout):
        assert lock is locks.Lock.HELD
        FileLock(path).acquire(timeout=0)


@pytest.mark.parametrize("taken", ["parent", "lock"])
def test_where_no_lock_file_can_be_made_the_work_goes_on(tmp_path: Path, taken: str, caplog: Any) -> None:
    (tmp_path / "parent").mkdir()
    if taken == "parent":
        (tmp_path / "parent" / "locks").write_text("a file where the folder should be")
    else:
        (tmp_path / "parent" / "locks" / "k.lock").mkdir(parents=True)
    ran = []
    with caplog.at_level(logging.DEBUG, "autotuned"), locks.locked(tmp_path / "parent" / "locks" / "k.lock"):
        ran.append(1)
    assert ran == [1]
    assert "cannot be used" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


def test_a_lock_that_is_not_between_processes_touches_no_file(tmp_path: Path) -> None:
    with locks.locked(tmp_path / "locks" / "k.lock", between_processes=False):
        assert list(tmp_path.iterdir()) == []


def test_of_many_threads_one_does_the_work(tmp_path: Path) -> None:
    done, ran = [], []
    barrier = threading.Barrier(6)

    def work() -> None:
        barrier.wait()
        with locks.locked(tmp_path / "k.lock", between_processes=False):
            if not done:
                ran.append(threading.get_ident())
                time.sleep(0.005)  # lets the others run, so that a lock that does not lock is seen
                done.append(1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ran) == 1


def test_a_thread_that_holds_a_lock_waits_for_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    taken, free = threading.Event(), threading.Event()

    def hold() -> None:
        with locks.locked(tmp_path / "b.lock"):
            taken.set()
            free.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait(60)
    with locks.locked(tmp_path / "a.lock"):
        with locks.locked(tmp_path / "b.lock", timeout_s=60) as other:
            assert other is locks.Lock.BUSY
        with locks.locked(tmp_path / "a.lock", timeout_s=60) as own:
            assert own is locks.Lock.NESTED
        with pytest.raises(Timeout):  # which leaving the inner block did not free
            FileLock(tmp_path / "a.lock").acquire(timeout=0)
    assert lines(caplog) == []  # whoever waited at all would say that it goes on without
    free.set()
    holder.join()


def test_an_exception_frees_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locks.locked(tmp_path / "k.lock"):
        1 // 0
    FileLock(tmp_path / "k.lock").acquire(timeout=0).lock.release()
    waited = []

    def enter() -> None:
        with locks.locked(tmp_path / "k.lock", timeout_s=60):
            waited.append(1)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(30)
    assert waited == [1]


# -- locks that are none: correctness never depends on them ------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EIO, errno.ENOSYS, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_a_file_system_without_locks_costs_no_wait_and_no_exception(tmp_path: Path, error: int, caplog: Any) -> None:
    with faults("flock", error) as failed, locks.locked(tmp_path / "k.lock") as lock:
        assert lock is locks.Lock.NONE
    assert len(failed) == 1  # whoever waits asks again and again
    assert lines(caplog) == []
    with locks.locked(tmp_path / "k.lock") as lock:
        assert lock is locks.Lock.HELD


NOBODY_HOLDS_IT = [
    *((call, error) for call in ("open", "flock") for error in (errno.EACCES, errno.EPERM, errno.EIO, errno.ENOLCK)),
    *(("open", error) for error in (errno.ENOENT, errno.EROFS, errno.ENOSPC, errno.EMFILE, errno.ELOOP, errno.ESTALE)),
    *(("flock", error) for error in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.ESTALE)),
]


@pytest.mark.parametrize(("call", "error"), NOBODY_HOLDS_IT, ids=lambda part: errno.errorcode.get(part, part))
def test_a_lock_that_nobody_holds_and_that_cannot_be_had_is_not_waited_for(
    tmp_path: Path, call: str, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ENOENT when it is opened, and of EACCES when it is locked, the whole 600 s were waited out."""
    monkeypatch.setattr(locks, "_POLL_S", 1e9)  # a wait would not end
    with faults(call, error, name="*k.lock*"), locks.locked(tmp_path / "k.lock") as lock:
        assert lock is locks.Lock.NONE
    with locks.locked(tmp_path / "k.lock") as lock:
        assert lock is locks.Lock.HELD


def test_who_waits_goes_on_when_the_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "MESSAGE_AFTER_S", 0.05)
    path = tmp_path / "locks" / "k.lock"
    path.parent.mkdir()
    with FileLock(path), faults("open", errno.ENOENT, name="k.lock") as failed, locks.locked(path) as lock:
        assert lock is locks.Lock.NONE
    assert failed != []


@pytest.mark.parametrize("error", [errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOLCK], ids=errno.errorcode.get)
def test_a_lock_that_the_file_system_refuses_is_nobodys(tmp_path: Path, error: int) -> None:
    """What was searched without the lock was never stored."""
    (tmp_path / "k.lock").touch()
    with faults("flock", error), locks.if_free(tmp_path / "k.lock") as free:
        assert free


def test_two_may_hold_a_lock_that_locks_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "k.lock"
    with lock_of_another_process(tmp_path), no_op_flock(), locks.locked(path) as lock:
        assert lock is locks.Lock.HELD


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"pid": 1}', b'{"pid": {}, "host": 1, "start": 2}', b'{"pid": 1e999}', os.urandom(4096)],
    ids=["empty", "cut off", "list", "no host", "types", "1e999", "garbage"],
)
def test_b43_whatever_stands_in_the_file_of_a_live_holder_the_wait_is_bounded(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "MESSAGE_AFTER_S", 0.02)
    path = tmp_path / "k.lock"
    path.write_bytes(content)
    os.utime(path, (1, 1))
    with FileLock(path):
        path.write_bytes(content)
        layout.holder_path(path).write_bytes(content)
        with locks.locked(path, timeout_s=0.2) as lock:
            assert lock is locks.Lock.BUSY
        assert path.read_bytes() == layout.holder_path(path).read_bytes() == content
    assert lines(caplog)[0].startswith("waiting for ")


def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "k.lock").symlink_to(tmp_path / "precious")
    with locks.locked(tmp_path / "k.lock") as lock:
        assert lock is locks.Lock.NONE
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_link_planted_for_the_holder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    layout.holder_path(tmp_path / "k.lock").symlink_to(tmp_path / "precious")
    with locks.locked(tmp_path / "k.lock") as lock:
        assert lock is locks.Lock.HELD
    assert (tmp_path / "precious").read_text() == "mine"


def test_b46_a_lock_file_that_another_user_made_and_we_may_not_write_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "k.lock"
    path.write_text("theirs")
    real = os.open

    def readable_only(name: Any, flags: int, *mode: int, **rest: Any) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied", str(name))
        return real(name, flags, *mode, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", readable_only)
        with locks.locked(path, timeout_s=30) as lock:
            assert lock is locks.Lock.NONE
        with locks.if_free(path) as free:
            assert not free
    assert path.read_text() == "theirs"


def test_who_waits_for_a_file_that_was_cleared_away_goes_over_to_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "k.lock"
    first = FileLock(path)
    first.acquire()
    entered = threading.Event()

    def wait() -> None:
        with locks.locked(path, timeout_s=30) as lock:
            assert lock is locks.Lock.HELD
            entered.set()

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    path.unlink()
    assert entered.wait(20)  # the first lock is still held, on a file that is nowhere
    thread.join(30)
    first.release()


def test_threads_wait_as_one_and_say_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "MESSAGE_AFTER_S", 0.02)
    taken, free = threading.Event(), threading.Event()

    def hold() -> None:
        with locks.locked(tmp_path / "k.lock"):
            taken.set()
            free.wait(60)

    def wait() -> None:
        with locks.locked(tmp_path / "k.lock", timeout_s=60):
            pass

    threads = [threading.Thread(target=hold, name="searcher")]
    threads[0].start()
    taken.wait(60)
    threads += [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads[1:]:
        thread.start()
    end = time.monotonic() + 20
    while not lines(caplog) and time.monotonic() < end:
        time.sleep(0.005)
    time.sleep(0.1)  # the others would have said it by now
    free.set()
    for thread in threads:
        thread.join(60)
    assert len(lines(caplog)) == 1
    assert lines(caplog)[0].startswith("waiting for thread 'searcher' of this process, which tunes the same key")


# -- held only if free -------------------------------------------------------------------------------------------------


def test_a_lock_is_taken_only_if_nobody_has_it(tmp_path: Path) -> None:
    path = tmp_path / "k.lock"
    with locks.if_free(path) as free:
        assert free
        assert not path.exists()
    with locks.locked(path), locks.if_free(path) as free:
        assert not free
    with locks.if_free(path) as free, pytest.raises(Timeout):
        assert free
        FileLock(path).acquire(timeout=0)
    with faults("flock", errno.ENOLCK), locks.if_free(path) as free:
        assert free
