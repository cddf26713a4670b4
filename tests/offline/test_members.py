"""`tune` on several calls of a bucket: from cases, from generators that take sizes, from recordings, and what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import run, run_json
from given import Write

import autotuned

TEXT = """
from autotuned import Config, autotune, pow2

TIMES = {"low": lambda n: 1.0 + n / 8, "high": lambda n: 9.0 - n / 8, "even": lambda n: 2.4}
ran = []

def bench(call, quantiles):
    call()
    return [ran[-1]] * 3

@autotune(configs=[Config({"name": name}) for name in TIMES], key=["n"], bucket={"n": pow2}, members=MEMBERS,
          do_bench=bench)
def work(n, name):
    ran.append(TIMES[name](n))
"""
CASES = """
@work.case
def cases(device):
    for n in (9, 12, 16, 13, 33):
        yield {"args": (n,)}
"""
SIZED = """
@work.case
def cases(device, *, n=None):
    for size in (9, 33) if n is None else (n,):
        yield {"args": (size,)}
"""


def members(result: Any) -> list[list[int] | None]:
    return [case["members"] and [one["n"] for one in case["members"]] for case in result["cases"]]


def write_module(write: Write, text: str, count: int = 3) -> str:
    write("mod_bucket.py", TEXT.replace("MEMBERS", str(count)) + text)
    import sys

    sys.modules.pop("mod_bucket", None)
    return "mod_bucket"


def test_cases_of_one_bucket_are_tuned_together(write: Write) -> None:
    result = run_json("tune", write_module(write, CASES))
    assert members(result) == [[9, 16, 12], [9, 16, 12], [9, 16, 12], [9, 16, 12], None]
    assert [case["source"] for case in result["cases"]] == ["measured", "stored", "stored", "stored", "measured"]
    assert result["cases"][0]["config"]["kwargs"] == {"name": "even"}
    again = run_json("tune", "mod_bucket")
    assert [case["source"] for case in again["cases"]] == ["stored"] * 5 and members(again) == members(result)
    shown = run("show", "mod_bucket.work", again["cases"][0]["digest"]).stdout
    assert all(f"member n={n}" in shown for n in (9, 12, 16)) and "the untuned speed" in shown


def test_generators_that_take_sizes_give_members_of_their_own(write: Write) -> None:
    assert members(run_json("tune", write_module(write, SIZED))) == [[9, 16, 12], [33, 64, 46]]
    assert members(run_json("tune", write_module(write, SIZED, 4))) == [[9, 16, 13, 11], [33, 64, 51, 41]]


def test_without_members_all_is_as_ever(write: Write) -> None:
    result = run_json("tune", write_module(write, CASES, 1))
    assert members(result) == [None] * 5
    assert result["cases"][0]["config"]["kwargs"] == {"name": "low"}


def test_of_a_recording_the_most_frequent_and_the_ends(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    module = write_module(write, "")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    work = __import__(module).work
    with autotuned.record("calls.jsonl"), autotuned.mode("off"):
        for n, count in ((11, 2), (12, 9), (9, 1), (16, 1), (14, 3), (40, 1)):
            for _ in range(count):
                work(n)
    result = run_json("tune", "calls.jsonl")
    first = result["cases"][0]
    assert [one["n"] for one in first["members"]] == [12, 16, 9]
    counts = {one["sizes"]["n"]: one["count"] for one in record(first["digest"]).members}
    assert counts == {12: 9, 9: 1, 16: 1}


def record(digest: str) -> Any:
    from autotuned.store import listing

    return next(found for _, found in listing.all_records() if found.key.digest == digest)


def test_a_call_of_size_zero_is_tuned_alone(write: Write) -> None:
    text = SIZED.replace("(9, 33)", "(0,)")
    [case] = run_json("tune", write_module(write, text))["cases"]
    assert (case["status"], case["members"]) == ("done", None)


def test_a_bucket_that_takes_no_larger_size_ends_there(write: Write) -> None:
    """As one that looks sizes up in a table does."""
    module = write_module(write, SIZED.replace("(9, 33)", "(9,)"))
    table = "next(size for size in (8, 16) if size >= n)"
    write(f"{module}.py", Path(f"{module}.py").read_text().replace('{"n": pow2}', f'{{"n": lambda n: {table}}}'))
    assert members(run_json("tune", module)) == [[9, 16, 12]]


def test_a_size_that_a_generator_cannot_make_is_no_member(write: Write) -> None:
    """As the end of a bucket that has none, for example `lambda n: min(n, 4096)`, may need more memory than there is."""
    text = SIZED.replace("    for size", "    if n == 16:\n        raise MemoryError\n    for size").replace(
        "(9, 33)", "(9,)"
    )
    assert members(run_json("tune", write_module(write, text))) == [[9, 12]]
