import errno
import json
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeConfig, form, make_key
from faults import faults

from autotuned import disk
from autotuned.store import layout, records
from autotuned.store.record import Timing

KEY = make_key()
TIMINGS = [Timing(form(FakeConfig({"BLOCK": n})), float(n), float(n), float(n), 10) for n in (64, 128, 256)]


def written(path: Path, *timings: Timing, key: Any = KEY) -> Path:
    with records.open_logbook(path, key) as write:
        for timing in timings:
            write(timing)
    return path


def found(path: Path, key: Any = KEY) -> list[Timing]:
    return list(records.timings_in(path, key).values())


def test_it_lies_hidden_beside_the_record(tmp_path: Path) -> None:
    assert layout.logbook_path(tmp_path / "abc.json") == tmp_path / ".abc.logbook"


def test_timings_are_there_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "v2" / ".a.logbook"
    with records.open_logbook(path, KEY) as write:
        for n, timing in enumerate(TIMINGS, 1):
            write(timing)
            assert found(path) == TIMINGS[:n]


def test_the_last_timing_of_a_config_counts_also_over_several_searches(tmp_path: Path) -> None:
    better = Timing(form(FakeConfig({"BLOCK": 64})), 60.0, 59.0, 61.0, 40)
    path = written(tmp_path / ".a.logbook", *TIMINGS[:2])
    written(path, better, TIMINGS[2])
    assert found(path) == [better, *TIMINGS[1:]]


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_torn_last_line_is_left_out_and_the_next_search_goes_on_behind_it(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / ".a.logbook", *TIMINGS[:2])
    path.write_bytes(path.read_bytes()[:-cut])
    assert found(path) == TIMINGS[: 1 + (cut == 1)]
    written(path, TIMINGS[2])
    assert found(path) == [*TIMINGS[: 1 + (cut == 1)], TIMINGS[2]]


def test_of_another_key_nothing_is_taken(tmp_path: Path) -> None:
    path = written(tmp_path / ".a.logbook", TIMINGS[0], key=make_key(True))
    written(path, TIMINGS[1], key=make_key(1))
    assert found(path, make_key(True)) == [TIMINGS[0]]
    assert found(path, make_key(1)) == [TIMINGS[1]]
    assert found(path, make_key(2)) == []


@pytest.mark.parametrize(
    "line", [b"\x00" * 9, b"[]", b"null", b"{", b'{"config": 1}', b'{"key": {}}', b"[" * 10000, b"\xff"]
)
def test_strange_lines_are_left_out(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / ".a.logbook"
    path.write_bytes(line + b"\n")
    written(path, TIMINGS[0])
    assert found(path) == [TIMINGS[0]]


def test_a_timing_with_a_damaged_number_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / ".a.logbook", *TIMINGS)
    path.write_text(path.read_text().replace("128.0", "NaN"))
    assert found(path) == [TIMINGS[0], TIMINGS[2]]


@pytest.mark.parametrize("call", ["mkdir", "open", "write"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO], ids=errno.errorcode.get)
def test_where_it_cannot_be_written_the_search_goes_on(tmp_path: Path, call: str, error: int) -> None:
    with faults(call, error):
        written(tmp_path / "new" / ".a.logbook", *TIMINGS)
    assert found(tmp_path / "new" / ".a.logbook") == []


def test_what_cannot_be_read_is_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / ".a.logbook", *TIMINGS)
    with faults("open", errno.EIO):
        assert found(path) == []
    assert found(tmp_path) == []


def test_a_config_that_json_cannot_write_is_left_out(tmp_path: Path) -> None:
    strange = Timing({**form(FakeConfig({})), "kwargs": {"BLOCK": object()}}, 1.0, 1.0, 1.0, 1)  # type: ignore[dict-item]
    assert found(written(tmp_path / ".a.logbook", strange, TIMINGS[0])) == [TIMINGS[0]]


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".a.logbook").symlink_to(tmp_path / "precious")
    written(tmp_path / ".a.logbook", *TIMINGS)
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_line_is_one_timing(tmp_path: Path) -> None:
    lines = written(tmp_path / ".a.logbook", *TIMINGS).read_text().split("\n")
    assert [bool(line) for line in lines] == [False, True, True, True, True, False]
    assert json.loads(lines[1]) == {"schema": 2, "kernel": "app.k", "key": KEY.to_json(), "restore": None}
    assert disk.parse_json(lines[2])["median_us"] == 64.0  # type: ignore[call-overload, index]
