"""`tune --cover`: a few shapes of a range, further ones where the winner changes, and the same again without a search."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from commands import run, run_json
from fakes import make_key
from given import Write

import autotuned
from autotuned import errors
from autotuned.offline import covering, ranges
from autotuned.recording.file import RecordedCall
from autotuned.rules import fit

TEXT = """
from autotuned import Config, autotune

TIMES = {"low": lambda n: 1.0 + n / 400, "high": lambda n: 2.5 - n / 4000}
ran = []

def bench(call, quantiles):
    call()
    return [ran[-1]] * 3

@autotune(configs=[Config({"name": name}) for name in TIMES], key=["n", "kind"], do_bench=bench)
def work(n, kind, name):
    ran.append(TIMES[name](n if kind == "changes" else 1))

@work.case
def cases(device, SIZES):
    for kind in ("changes", "same"):
        yield {"args": (4 if n is None else n, kind)}
"""


def target(write: Write, sizes: str = "*, n=None") -> str:
    text = TEXT.replace("SIZES", sizes) if sizes else TEXT.replace(", SIZES", "").replace("if n is None else n", "")
    write("mod_cover.py", text)
    sys.modules.pop("mod_cover", None)
    return "mod_cover"


def sizes_of(result: dict[str, Any], kind: str) -> list[int]:
    return [case["sizes"]["n"] for case in result["cases"] if case["call"]["values"]["kind"] == kind]


def test_it_measures_where_the_winner_changes(write: Write) -> None:
    result = run_json("tune", target(write), "--cover", "n=1:4096")
    first = [point for (point,) in ranges.first({"n": (1, 4096)})]
    assert sizes_of(result, "same") == first
    changing = sizes_of(result, "changes")
    assert changing[: len(first)] == first and len(first) < len(changing) <= ranges.MOST
    assert all(300 < n < 1100 for n in changing[len(first) :])  # they are even at 545
    [changes, same] = result["cover"]
    assert (changes["group"], changes["shapes"]) == ("mod_cover.work 0.0", len(changing))
    assert changes["by"] == "nearest" and same["shapes"] == len(first) and changes["finished"] and same["finished"]
    again = run_json("tune", "mod_cover", "--cover", "n=1:4096")
    assert {case["source"] for case in again["cases"]} == {"stored"}
    assert (sizes_of(again, "changes"), again["cover"]) == (changing, result["cover"])
    shown = run("tune", "mod_cover", "--cover", "n=1:4096").stdout
    assert f"mod_cover.work 0.0: tuned {len(changing)} shapes, and no more, since " in shown


@pytest.mark.parametrize(("most", "why"), [(16, "16 is the most for one group"), (40, None)], ids=["cap", "no cap"])
def test_what_is_lost_and_why_it_ended_is_one_sentence_that_is_true(
    write: Write, monkeypatch: pytest.MonkeyPatch, most: int, why: str | None
) -> None:
    monkeypatch.setattr(ranges, "MOST", most)
    monkeypatch.setattr(ranges, "LEAST", 14)
    monkeypatch.setattr(covering, "MANY", f"{most} is the most for one group")
    monkeypatch.setattr(ranges, "MEAN", 1e-6)
    monkeypatch.setattr(fit, "CALLS", 1000)  # no rule
    [found, _] = autotuned.tune(target(write), cover={"n": (1, 4096)}).cover or ()
    shown = " ".join(run("tune", "mod_cover", "--cover", "n=1:4096").stdout.split())
    [line] = [part for part in shown.split("mod_cover.work ") if part.startswith("0.0: ")]
    assert found.shapes == most or why is None
    assert found.mean is not None and found.mean > 1e-6  # it is no end of "enough"
    assert found.by == "nearest"
    lost = f"lose about {found.mean:.1%} on average and {found.worst:.0%} in the worst case"
    why = why or "no shape between them would tell more"
    lost = f"Calls between them run the winner of the nearest shape and {lost}."
    assert line.startswith(f"0.0: tuned {found.shapes} shapes, and no more, since {why}. {lost}")
    assert found.finished and "not finished" not in shown


def test_a_budget_cuts_it_and_the_same_command_goes_on(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    module = target(write)
    monkeypatch.setattr(ranges, "ROUND", 1)
    whole = len(sizes_of(run_json("tune", module, "--cover", "n=1:4096", "--force"), "changes"))
    cut = autotuned.tune(module, cover={"n": (1, 4096)}, budget_s=1e-9)
    assert cut.unfinished and not all(one.finished for one in cut.cover or ())
    assert len(sizes_of(run_json("tune", module, "--cover", "n=1:4096"), "changes")) == whole


def test_it_ends_where_a_rule_is_worth_it() -> None:
    """The winner changes between multiples of 64 and others: neighbours say nothing, and a rule all."""
    known = {(n,): {"{}": 0.5 * (n % 64 > 0), '{"a":1}': 0.5 * (n % 64 == 0)} for n in range(16, 2560, 16)}
    estimate, by = covering._best_estimate(known, ["n"])
    assert (by, estimate) == ("rule", (0.0, 0.0)) and estimate.is_enough
    assert not ranges.estimate(known).is_enough
    few = dict(list(known.items())[: ranges.LEAST - 1])
    assert covering._best_estimate(few, ["n"])[1] == "nearest"


def test_a_dry_run_has_the_first_shapes(write: Write) -> None:
    planned = run_json("tune", target(write), "--cover", "n=1:4096", "--dry-run")
    assert planned["measure"] == 2 * len(ranges.first({"n": (1, 4096)}))


def test_in_processes_it_measures_the_same(write: Write) -> None:
    here = run_json("tune", target(write), "--cover", "n=400:740", "--in-process")
    apart = run_json("tune", "mod_cover", "--cover", "n=400:740", "--isolate", "--force")
    assert len(sizes_of(here, "changes")) > len(sizes_of(here, "same"))
    assert sorted(sizes_of(apart, "changes")) == sorted(sizes_of(here, "changes"))
    assert {case["source"] for case in apart["cases"]} == {"measured"}


@pytest.mark.parametrize("how", ["--in-process", "--isolate"])
def test_without_a_generator_that_takes_sizes_it_says_what_to_write(write: Write, how: str) -> None:
    said = run("tune", target(write, ""), "--cover", "n=1:64", how, code=2).stderr
    words = " ".join(said.replace("│", " ").split())
    assert "got cases(device)" in words and "def cases(device, *, n=None)" in words


def test_what_is_no_range_is_wrong_usage(write: Write) -> None:
    assert run("tune", target(write), "--cover", "n=9:1", code=2).stderr
    with pytest.raises(
        errors.OptionError,
        match=r"cover: n: expected a range of sizes from 1 to 1,099,511,627,776, such as \(1, 8192\)",
    ):
        autotuned.tune("mod_cover", cover={"n": (0, 4)})


def test_recordings_among_the_targets_have_no_ranges(write: Write) -> None:
    """Neither that of a kernel that is gone, nor that of one whose cases are measured anyway."""
    calls = "".join(
        RecordedCall(kernel, f"{module}:{name}", make_key(1, kernel), {"memories": [], "values": {}}, None).line()
        for module, name, kernel in (("gone", "k", "gone.k"), ("mod_cover", "work", "mod_cover.work"))
    )
    write("calls.jsonl", calls)
    alone = run_json("tune", target(write), "--cover", "n=1:16")
    both = run_json("tune", "calls.jsonl", "mod_cover", "--cover", "n=1:16")
    assert [case["sizes"] for case in both["cases"]] == [case["sizes"] for case in alone["cases"]]
