"""A recording that is read while it is written: whole lines, torn ones, files that are rotated, and much at once."""

from __future__ import annotations

import pytest
from recordings import counts, line, more, recorded

from autotuned.recording.file import Tail, Writer

# -- a recording that is written meanwhile ---------------------------------------------------------------------------


@pytest.fixture
def tail(tmp_path):
    return Tail(tmp_path / "calls.jsonl")


def test_what_comes_is_taken_in_once(tail):
    assert not tail.look() and tail.calls == {}
    tail.path.write_bytes(line(recorded(1)))
    assert tail.look() and not tail.look()
    with tail.path.open("ab") as file:
        file.write(more(recorded(1), 4) + line(recorded(2)))
    assert tail.look() and counts(tail) == {1: 5, 2: 1}


def test_half_a_line_waits_for_its_end(tail):
    whole = line(recorded(1)) + line(recorded(2))
    for end in range(0, len(whole), 7):
        tail.path.write_bytes(whole[:end])
        tail.look()
    assert counts(tail) == {1: 1} and tail.strange == 0
    tail.path.write_bytes(whole)
    tail.look()
    assert counts(tail) == {1: 1, 2: 1}


def test_a_torn_line_of_a_killed_writer_is_left_out(tail):
    tail.path.write_bytes(line(recorded(1))[:-20])
    tail.look()
    writer = Writer(tail.path)  # which begins a line of its own
    writer.call(recorded(2))
    writer.close()
    tail.look()
    assert counts(tail) == {2: 1} and tail.strange == 1


def test_counts_may_come_before_their_call(tail):
    tail.path.write_bytes(more(recorded(1), 4) + b"\n\nnonsense\n" + line(recorded(1)))
    tail.look()
    assert counts(tail) == {1: 5} and tail.strange == 1


@pytest.mark.parametrize("how", ["renamed", "truncated", "removed"])
def test_a_file_that_is_rotated_is_read_from_its_beginning(tail, how):
    tail.path.write_bytes(line(recorded(1)) + line(recorded(2)))
    tail.look()
    if how == "renamed":
        tail.path.rename(tail.path.with_suffix(".1"))
    elif how == "removed":
        tail.path.unlink()
        assert not tail.look()
    tail.path.write_bytes(more(recorded(1), 2) + line(recorded(3))[: 20 if how == "truncated" else None])
    tail.look()
    if how == "truncated":
        with tail.path.open("ab") as file:
            file.write(line(recorded(3))[20:])
        tail.look()
    assert counts(tail) == {1: 3, 2: 1, 3: 1} and tail.strange == 0


def test_a_hundred_thousand_lines_are_read_as_they_come(tail):
    calls = [recorded(n) for n in range(20)]
    mores = [more(call, 1) for call in calls]
    with tail.path.open("wb") as file:
        file.writelines(line(call) for call in calls)
        for _ in range(5):
            file.writelines(mores * 1000)
            file.flush()
            assert tail.look()
    assert counts(tail) == dict.fromkeys(range(20), 5001) and tail.strange == 0


def test_a_line_without_an_end_takes_no_memory(tail, monkeypatch):
    monkeypatch.setattr("autotuned.disk.MAX_LINE_BYTES", 100)
    tail.path.write_bytes(b"x" * 10_000)
    tail.look()
    assert len(tail._rest) <= 101
    with tail.path.open("ab") as file:
        file.write(b"y\n" + line(recorded(1)))
    tail.look()
    assert counts(tail) == {1: 1} and tail.strange == 1
