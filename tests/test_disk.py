import contextlib
import errno
import itertools
import json
import os
import stat
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import PASSING, READING, everything_in, faults
from hypothesis import given
from hypothesis import strategies as st

from autotuned import disk
from autotuned.store import locks

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
        pytest.param(b"[" * 100_000, "expected JSON nested at most 100 deep", id="nested without end"),
        pytest.param(b'{"a":' * 101 + b"1" + b"}" * 101, "at most 100 deep, got deeper", id="nested once too often"),
        pytest.param(b'["[", ' * 101 + b"1" + b"]" * 101, "at most 100 deep, got deeper", id="and brackets in strings"),
        pytest.param(b'{"a": 1, "b": 2, "a": 1}', "each name once in an object, got 'a' twice", id="a name twice"),
        pytest.param(b'[{"a": {"b": 1, "\\u0062": 2}}]', "got 'b' twice", id="a name twice, spelled in two ways"),
        pytest.param(b"[" + b"1" * 5000 + b"]", "4300", id="an integer of 5,000 digits"),
        pytest.param(b"{} {}", "Extra data", id="two values"),
    ],
)
def test_what_is_no_finite_json_is_a_value_error(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=problem):
        disk.read_json(path)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"[" * 100 + b"]" * 100, id="as deep as may be"),
        pytest.param(b'["' + b"[{" * 500 + b'\\""]', id="brackets in a string"),
        pytest.param(b"[" + b"{}," * 500 + b"[]]", id="many beside each other"),
        pytest.param('["\ud800[{"]'.encode("utf-8", "surrogatepass").replace(b"\xed\xa0\x80", b"\\ud800"), id="odd"),
    ],
)
def test_what_is_not_deep_is_read(content: bytes) -> None:
    assert disk.parse_json(content) == json.loads(content)


Nested = st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(Nested, st.integers(0, 200))
def test_depth_is_that_of_the_value(value: Any, levels: int) -> None:
    text = json.dumps(value)
    for _ in range(levels):
        text = f"[{text}, {json.dumps('[' * levels)}]"
    if depth(json.loads(text)) <= disk.MAX_DEPTH:
        assert disk.parse_json(text) == json.loads(text)
    else:
        with pytest.raises(ValueError, match="nested at most 100 deep"):
            disk.parse_json(text)


def depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(depth, parts), default=0)


@given(st.binary(max_size=200) | st.text(alphabet='[]{}",:\\ue0d1-.', max_size=200).map(str.encode))
def test_whatever_the_bytes_are_they_are_json_or_a_value_error(content: bytes) -> None:
    with contextlib.suppress(ValueError):
        found = disk.parse_json(content)
        assert disk.parse_json(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(
    ("data", "most", "problem"),
    [
        (zlib.compress(bytes(1 << 20)), 1000, "at most 1000 bytes, got more"),
        (zlib.compress(b"abc")[:-2], 1000, "or a part"),
        (b"abc", 1000, "expected compressed data, got"),
    ],
    ids=["a bomb", "cut off", "something else"],
)
def test_what_is_compressed_is_unpacked_within_bounds(data: bytes, most: int, problem: str) -> None:
    assert disk.inflate(zlib.compress(b"abc"), 3) == b"abc"
    with pytest.raises(ValueError, match=problem):
        disk.inflate(data, most)


def test_lines_are_read_one_by_one_and_cut_where_they_are_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "MAX_LINE_BYTES", 8)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\n\n" + b"x" * 100 + b"\n  \ntwo\nlast")
    assert list(disk.lines(path)) == [b"one\n", b"xxxxxxxx", b"two\n", b"last"]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="expected a plain file"):
        next(disk.lines(tmp_path / "pipe"))


def test_a_sparse_terabyte_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "a.json", "wb") as file:
        file.truncate(1 << 40)
    tracemalloc.start()
    with pytest.raises(ValueError, match="expected at most 67108864 bytes, got 1099511627776"):
        disk.read_json(tmp_path / "a.json")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_of_a_file_that_grows_while_it_is_read_no_more_is_read_than_it_had(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"[1]")
    real = os.read

    def growing(descriptor: int, size: int) -> bytes:
        with open(path, "ab") as file:
            file.write(b" " * 100)
        return real(descriptor, min(size, 1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "read", growing)
        assert disk.read_bytes(path) == b"[1]"


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("[1, 2]")
    monkeypatch.setattr(disk, "MAX_FILE_BYTES", 5)
    with faults("read", AssertionError("it was read")), pytest.raises(ValueError, match="at most 5 bytes, got 6"):
        disk.read_json(path)


def test_a_missing_file_is_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.read_json(tmp_path / "a.json")


def test_a_full_disk_is_said_with_the_file_that_did_not_fit(tmp_path: Path) -> None:
    """`tune --out` on a full device said "No space left on device", and not where."""
    path = tmp_path / "a.json"
    for call in ("open", "write", "replace"):  # and without the temporary one, which is gone when this is read
        with faults(call, errno.ENOSPC, name="*a.json"), pytest.raises(OSError) as caught:  # noqa: PT011
            disk.write_text(path, "new")
        assert str(caught.value) == f"[Errno {errno.ENOSPC}] No space left on device: '{path}'"


@pytest.mark.parametrize("error", PASSING, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", READING)
def test_b39_a_read_that_fails_is_done_again_once(tmp_path: Path, call: str, error: int) -> None:
    path = tmp_path / "a.json"
    path.write_text("[1]")
    with faults(call, error, times=1, name="a.json") as failed:
        assert disk.read_json(path) == [1]
    assert len(failed) == 1
    with faults(call, error, name="a.json") as failed, pytest.raises(OSError):  # noqa: PT011
        disk.read_json(path)
    assert len(failed) == 2


def test_an_error_that_does_not_pass_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1]")
    with faults("open", errno.EACCES) as failed, pytest.raises(PermissionError):
        disk.read_json(tmp_path / "a.json")
    assert len(failed) == 1


def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(ValueError, match="expected a plain file"):
        disk.read_json(tmp_path / "a.json")
    with pytest.raises(IsADirectoryError):
        disk.read_json(tmp_path)


def test_json_is_written_as_one_ascii_line_and_read_back(tmp_path: Path) -> None:
    data = {"b": [1, 2.5, None, True], "a": "é\ud800"}
    assert disk.text(data) == '{"b": [1, 2.5, null, true], "a": "\\u00e9\\ud800"}\n'
    disk.write_text(tmp_path / "a.json", disk.text(data))
    assert disk.read_json(tmp_path / "a.json") == data


def test_what_json_has_not_is_never_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        disk.text({"a": float("nan")})


# -- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a/b\\c", "a-b-c"),
        ("..", ""),
        ("../x", "x"),
        ("A  B", "a-b"),
        ("µ-GPU", "gpu"),
        ("-x-", "x"),
        ("a.b_c-1", "a.b_c-1"),
    ],
)
def test_safe_names_hold_no_separators_spaces_or_capitals(text: str, name: str) -> None:
    assert disk.safe_name(text) == name


@pytest.mark.parametrize("name", ["con", "NUL", "aux", "com1", "lpt9", "con.k", "aux.kernels.matmul"])
def test_no_file_is_called_what_windows_takes_for_a_device(name: str) -> None:
    stem = disk.file_stem(name)
    assert stem.partition(".")[0] != name.lower().partition(".")[0] or "-" in stem
    assert stem != name
    assert disk.file_stem("app.con") == "app.con"


# -- writing ---------------------------------------------------------------------------------------------------------


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


def test_every_folder_that_is_made_is_the_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        disk.write_text(tmp_path / "home" / ".cache" / "autotuned" / "a.json", "new")
    finally:
        os.umask(before)
    for folder in ("home", "home/.cache", "home/.cache/autotuned"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("umask", [0o022, 0o077], ids=oct)
def test_b46_a_group_shared_folder_keeps_its_mode_and_what_is_in_it_is_the_groups(tmp_path: Path, umask: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2775)
    before = os.umask(umask)
    try:
        disk.write_text(shared / "v1" / "app.k" / "a.json", "new")
        with locks.locked(shared / "v1" / "locks" / "a.lock"):
            pass
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE((shared / path).stat().st_mode) for path in [".", *everything_in(shared)]}
    assert {modes.pop(folder) for folder in (".", "v1", "v1/app.k", "v1/locks")} == {0o2775}
    assert modes == {"v1/app.k/a.json": 0o664, "v1/locks/a.lock": 0o664}


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


@pytest.mark.parametrize(
    ("call", "error", "raised"),
    [
        pytest.param("open", errno.EACCES, OSError, id="no file can be made"),
        pytest.param("open", errno.EROFS, OSError, id="read-only"),
        pytest.param("write", errno.ENOSPC, OSError, id="B54: full after the file was made"),
        pytest.param("write", errno.EDQUOT, OSError, id="B54: over quota"),
        pytest.param("write", errno.EIO, OSError, id="a broken disk"),
        pytest.param("replace", errno.ENOSPC, OSError, id="it cannot be moved"),
        pytest.param("replace", errno.ESTALE, OSError, id="it can never be moved"),
        pytest.param("replace", KeyboardInterrupt(), KeyboardInterrupt, id="Ctrl-C"),
    ],
)
def test_a_failed_write_leaves_the_old_text_and_no_temporary_file(
    tmp_path: Path, call: str, error: Any, raised: type[BaseException]
) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with faults(call, error, name="*a.json"), pytest.raises(raised):
        disk.write_text(path, "new")
    assert everything_in(tmp_path) == ["a.json"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("error", PASSING, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["open", "write", "replace"])
def test_b39_a_write_that_fails_once_is_done_again_and_nothing_is_read_back(
    tmp_path: Path, call: str, error: int
) -> None:
    path = tmp_path / "a.json"
    with faults(call, error, times=1, name="*a.json") as failed, faults("read", errno.ENOENT):
        disk.write_text(path, "new")
    assert len(failed) == 1
    assert everything_in(tmp_path) == ["a.json"]
    assert path.read_text() == "new"


def test_a_disk_that_takes_a_part_at_a_time_takes_all_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:3]))
    disk.write_text(tmp_path / "a.json", "0123456789")
    assert (tmp_path / "a.json").read_text() == "0123456789"


def test_a_temporary_file_that_cannot_be_removed_does_not_hide_the_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"), faults("unlink", errno.EBUSY):
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
        moved = disk.move_aside(tmp_path / "a.json", tmp_path / "damaged")
        assert moved is not None
        assert moved.parent == tmp_path / "damaged"
        assert (moved.name[:2], moved.suffix) == ("a.", ".json")
        assert not os.path.lexists(tmp_path / "a.json")
    assert len(list((tmp_path / "damaged").iterdir())) == 2


@pytest.mark.parametrize("call", ["replace", "mkdir"])
def test_what_cannot_be_moved_stays(tmp_path: Path, call: str) -> None:
    (tmp_path / "a.json").write_text("damaged")
    with faults(call, errno.EACCES):
        assert disk.move_aside(tmp_path / "a.json", tmp_path / "damaged") is None
    assert (tmp_path / "a.json").read_text() == "damaged"


def test_temporary_files_of_killed_writers_of_one_file_are_removed(tmp_path: Path) -> None:
    for name in (".a.json.12.tmp", ".a.json.ab.tmp", ".b.json.12.tmp", "a.json", ".a.json.x"):
        (tmp_path / name).write_text("")
    disk.remove_temporaries(tmp_path / "a.json")
    assert everything_in(tmp_path) == [".a.json.x", ".b.json.12.tmp", "a.json"]
    disk.remove_temporaries(tmp_path / "no" / "such.json")


def test_a_file_that_is_overwritten_stays_json_and_stays_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    disk.overwrite(path, disk.text({"a": "long " * 20}))
    inode = path.stat().st_ino
    for data in ({"a": 1}, {"a": "long " * 30}, {}):
        disk.overwrite(path, disk.text(data))
        assert disk.read_json(path) == data
    assert path.stat().st_ino == inode
    assert os.listdir(path.parent) == ["a.json"]


def test_what_lies_behind_a_link_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("{}")
    (tmp_path / "a.json").symlink_to(tmp_path / "theirs")
    disk.overwrite(tmp_path / "a.json", "[1]\n")
    assert (tmp_path / "theirs").read_text() == "{}"
    assert disk.read_json(tmp_path / "a.json") == [1]
