import contextlib
import errno
import itertools
import json
import logging
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from filelock import FileLock, Timeout

from autotuned import disk

# -- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"", "Expecting value", id="empty"),
        pytest.param(b"{", "Expecting property name", id="cut off"),
        pytest.param(b"\x00" * 64, "Expecting value", id="binary zeros"),
        pytest.param(b'"\xff"', "can't decode", id="no utf-8"),
        pytest.param(b"[NaN]", "expected finite numbers, got NaN.", id="NaN"),
        pytest.param(b"[Infinity]", "expected finite numbers, got Infinity.", id="Infinity"),
        pytest.param(b"[-Infinity]", "expected finite numbers, got -Infinity.", id="minus Infinity"),
        pytest.param(b"[-1e999]", "expected finite numbers, got -1e999.", id="1e999"),
        pytest.param(b"[" * 100_000, "expected JSON of a sane depth", id="nested without end"),
        pytest.param(b"{} {}", "Extra data", id="two values"),
    ],
)
def test_what_is_no_finite_json_is_a_value_error(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=problem):
        disk.read_json(path)


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("[1, 2]")
    monkeypatch.setattr(disk, "MAX_FILE_BYTES", 5)
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("it was read"))
    with pytest.raises(ValueError, match="expected at most 5 bytes, got 6"):
        disk.read_json(path)


def test_a_missing_file_is_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.read_json(tmp_path / "a.json")


def test_json_is_written_as_one_ascii_line_and_read_back(tmp_path: Path) -> None:
    data = {"b": [1, 2.5, None, True], "a": "é\ud800"}
    assert disk.text(data) == '{"b": [1, 2.5, null, true], "a": "\\u00e9\\ud800"}\n'
    disk.write_text(tmp_path / "a.json", disk.text(data))
    assert disk.read_json(tmp_path / "a.json") == data


def test_what_json_has_not_is_never_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        disk.text({"a": float("nan")})


# -- writing ---------------------------------------------------------------------------------------------------------


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_write_makes_its_folders_and_leaves_nothing_else(tmp_path: Path) -> None:
    disk.write_text(tmp_path / "v1" / "app.k" / "a.json", "new")
    assert everything_in(tmp_path) == ["v1", "v1/app.k", "v1/app.k/a.json"]
    assert (tmp_path / "v1" / "app.k" / "a.json").read_text() == "new"


def test_a_record_can_be_read_by_whom_the_umask_lets_and_its_folder_by_the_owner(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        disk.write_text(tmp_path / "v1" / "a.json", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "v1" / "a.json").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "v1").stat().st_mode & 0o777 == 0o700


def test_a_reader_sees_the_old_text_or_the_new_and_never_a_part(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    texts = [json.dumps([letter * 20_000]) for letter in "ab"]
    disk.write_text(path, texts[0])
    seen = set()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for text in itertools.islice(itertools.cycle(texts), 30):
        disk.write_text(path, text)
    stop.set()
    reader.join()
    assert seen <= set(texts)


def test_the_temporary_file_is_hidden_and_beside_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    monkeypatch.setattr(os, "replace", lambda source, target: moved.append((Path(source), Path(target))))
    disk.write_text(tmp_path / ("long" * 40 + ".json"), "new")
    source, target = moved[0]
    assert target == tmp_path / ("long" * 40 + ".json")
    assert source.parent == tmp_path
    assert source.name.startswith(".")
    assert source.suffix == ".tmp"
    assert len(source.name) < 100


def fail(*args: Any, **kwargs: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


class FullDisk:
    """A file that was made and takes no bytes."""

    def __init__(self, path: Path) -> None:
        path.touch()

    def __enter__(self) -> "FullDisk":
        return self

    def __exit__(self, *error: object) -> None: ...

    write = fail


def interrupt(*args: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("where", "name", "fault", "error"),
    [
        pytest.param(disk, "open", lambda path, *args, **kwargs: fail(), OSError, id="no file can be made"),
        pytest.param(disk, "open", lambda path, *args, **kwargs: FullDisk(path), OSError, id="the disk is full"),
        pytest.param(os, "replace", fail, OSError, id="it cannot be moved"),
        pytest.param(os, "replace", interrupt, KeyboardInterrupt, id="Ctrl-C"),
    ],
)
def test_a_failed_write_leaves_the_old_text_and_no_temporary_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    name: str,
    fault: Callable[..., Any],
    error: type[BaseException],
) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    monkeypatch.setattr(where, name, fault, raising=False)
    with pytest.raises(error):
        disk.write_text(path, "new")
    assert everything_in(tmp_path) == ["a.json"]
    assert path.read_text() == "old"


def test_a_temporary_file_that_cannot_be_removed_does_not_hide_the_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", fail)
    monkeypatch.setattr(Path, "unlink", lambda self: (_ for _ in ()).throw(OSError(errno.EBUSY, "busy")))
    with pytest.raises(OSError, match="No space left"):
        disk.write_text(tmp_path / "a.json", "new")


def test_a_write_where_no_folder_can_be_made_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on the platform
        disk.write_text(tmp_path / "file" / "v1" / "a.json", "new")


# -- damaged files ---------------------------------------------------------------------------------------------------


def make_file(path: Path) -> None:
    path.write_text("damaged")


def make_folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("")


def make_link(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


@pytest.mark.parametrize("make", [make_file, make_folder, make_link])
def test_what_is_damaged_is_moved_into_a_folder_beside_it(tmp_path: Path, make: Callable[[Path], None]) -> None:
    for _ in range(2):  # a second one does not replace the first
        make(tmp_path / "a.json")
        moved = disk.move_aside(tmp_path / "a.json")
        assert moved is not None
        assert moved.parent == tmp_path / "damaged"
        assert (moved.name[:2], moved.suffix) == ("a.", ".json")
        assert not os.path.lexists(tmp_path / "a.json")
    assert len(list((tmp_path / "damaged").iterdir())) == 2


@pytest.mark.parametrize(("where", "name"), [(os, "replace"), (Path, "mkdir")], ids=["replace", "mkdir"])
def test_what_cannot_be_moved_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> None:
    (tmp_path / "a.json").write_text("damaged")
    monkeypatch.setattr(where, name, fail)
    assert disk.move_aside(tmp_path / "a.json") is None
    assert (tmp_path / "a.json").read_text() == "damaged"


# -- locks -----------------------------------------------------------------------------------------------------------

# Waits for a word, takes the lock, and does the work once: the work is done when "result" is there.
WORKER = """
import sys
from pathlib import Path
from autotuned import disk

folder = Path(sys.argv[1])

def say(word):
    print(word, flush=True)

say("ready")
sys.stdin.readline()
say("trying")
with disk.locked(folder / "locks" / "k.lock"):
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


def test_a_lock_ends_with_its_holder_and_a_live_holder_is_not_waited_for_without_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "locks" / "k.lock"
    monkeypatch.setattr(disk, "MESSAGE_AFTER_S", 0.02)
    with lock_of_another_process(tmp_path) as holder:
        with pytest.raises(Timeout):
            FileLock(path).acquire(timeout=0)
        with disk.locked(path, timeout_s=0.05):
            pass
        assert [record.getMessage() for record in caplog.records] == [
            f"waiting for another process or thread that tunes the same key; lock file: {path}",
            f"lock {path} was not free after 0 s; going on without it.",
        ]
        caplog.clear()
        holder.send_signal(signal.SIGKILL)
        holder.wait(30)
        start = time.monotonic()
        with disk.locked(path, timeout_s=30), pytest.raises(Timeout):
            FileLock(path).acquire(timeout=0)  # it is really held now
        assert time.monotonic() - start < 1
    assert caplog.records == []
    assert path.exists()  # unlinking it would split those who wait


@pytest.mark.parametrize(
    "content", [b"", b"12345\nsome-host\n", os.urandom(64)], ids=["empty", "pid and host", "garbage"]
)
def test_a_leftover_lock_file_is_not_waited_for(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "k.lock"
    path.write_bytes(content)
    start = time.monotonic()
    with disk.locked(path, timeout_s=30), pytest.raises(Timeout):
        FileLock(path).acquire(timeout=0)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("taken", ["parent", "lock"])
def test_where_no_lock_file_can_be_made_the_work_goes_on(tmp_path: Path, taken: str, caplog: Any) -> None:
    (tmp_path / "parent").mkdir()
    if taken == "parent":
        (tmp_path / "parent" / "locks").write_text("a file where the folder should be")
    else:
        (tmp_path / "parent" / "locks" / "k.lock").mkdir(parents=True)
    ran = []
    with caplog.at_level(logging.DEBUG, "autotuned"), disk.locked(tmp_path / "parent" / "locks" / "k.lock"):
        ran.append(1)
    assert ran == [1]
    assert "cannot be used" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


def test_a_lock_that_is_not_between_processes_touches_no_file(tmp_path: Path) -> None:
    with disk.locked(tmp_path / "locks" / "k.lock", between_processes=False):
        assert everything_in(tmp_path) == []


def test_of_many_threads_one_does_the_work(tmp_path: Path) -> None:
    done, ran = [], []
    barrier = threading.Barrier(6)

    def work() -> None:
        barrier.wait()
        with disk.locked(tmp_path / "k.lock", between_processes=False):
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


def test_a_thread_that_holds_a_lock_waits_for_no_other(tmp_path: Path) -> None:
    taken, free = threading.Event(), threading.Event()

    def hold() -> None:
        with disk.locked(tmp_path / "b.lock"):
            taken.set()
            free.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait(60)
    start = time.monotonic()
    with disk.locked(tmp_path / "a.lock"):
        with disk.locked(tmp_path / "b.lock", timeout_s=60):
            pass
        with disk.locked(tmp_path / "a.lock", timeout_s=60):  # its own lock again
            pass
        with pytest.raises(Timeout):  # which leaving the inner block did not free
            FileLock(tmp_path / "a.lock").acquire(timeout=0)
    assert time.monotonic() - start < 20
    free.set()
    holder.join()


def test_an_exception_frees_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), disk.locked(tmp_path / "k.lock"):
        1 // 0
    FileLock(tmp_path / "k.lock").acquire(timeout=0).lock.release()
    waited = []

    def enter() -> None:
        with disk.locked(tmp_path / "k.lock", timeout_s=60):
            waited.append(1)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(30)
    assert waited == [1]


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


def test_a_temporary_folder_of_another_user_is_not_used(homeless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    (homeless.parent / f"autotuned-{uid + 1}").mkdir()
    assert disk.cache_dir("").name != f"autotuned-{uid + 1}"
