"""`autotuned tune`: what is measured, what the table and the JSON say, and what goes wrong."""

import errno
import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import error as _error
from commands import run as _run
from commands import run_json as _json
from faults import faults
from given import BEST, WORK, Write
from given import work as _work

from autotuned import errors
from autotuned.gpu import device
from autotuned.resolve import tuner
from autotuned.store import layout, listing

pytestmark = pytest.mark.usefixtures("wide_output")

ROW = {
    "kernel", "status", "reason", "digest", "device", "triton", "call", "config", "median_us", "vs_first", "vs_default",
    "quality", "source", "configs", "measured_configs", "remark", "members",
    "sizes", "group", "kept",
}  # fmt: skip


def test_tune_measures_every_case_and_says_what_it_chose(write: Write) -> None:
    data = _json("tune", _work(write))
    assert data.keys() == {"device", "devices", "cases", "skipped", "files", "interrupted", "seconds"}
    assert data["device"] in ("interpreter", "cuda") and not data["skipped"] and data["interrupted"] is False
    for row, n in zip(data["cases"], (1, 2), strict=True):
        assert row.keys() == ROW
        assert (row["kernel"], row["status"], row["source"]) == ("mod_work.work", "done", "measured")
        assert row["config"]["kwargs"] == {"ms": 1} and row["median_us"] == 1000
        assert (row["vs_first"], row["vs_default"], row["remark"], row["kept"]) == (4, 4, None, True)
        assert (row["configs"], row["measured_configs"]) == (3, 3)
        assert row["call"]["values"] == {"n": n} and row["device"] == device.cpu().slug
        assert len(row["digest"]) == 64 and row["quality"] == "ok" and row["reason"] is None


def test_the_table_holds_the_same_in_words(write: Write) -> None:
    result = _run("tune", _work(write))
    lines = [line for line in result.stdout.splitlines() if line != "printed by the user's code"]
    assert lines[0] == "mod_work.work  measured"
    assert re.split("  +", lines[1].strip()) == [
        "call",
        "config",
        "time",
        "vs default",
        "quality",
    ]
    assert re.split("  +", lines[2].strip()) == ["n=1", BEST, "1 ms", "4.00x", "ok"]
    assert result.stderr == ""  # results are printed once


@pytest.mark.parametrize(
    ("which", "code", "kept"), [("", 1, "nothing was kept"), ("first", 3, "1 of 2 measured choices were kept")]
)
def test_choices_that_cannot_be_stored_are_an_error_after_the_table(
    write: Write, which: str, code: int, kept: str
) -> None:
    """It ended with 0, although all that it had measured was gone."""
    digest = _json("tune", _work(write), "--dry-run")["cases"][0]["digest"] if which else ""
    with faults("replace", errno.ENOSPC, name=f"{digest}.json"):
        result = _run("tune", _work(write), code=code)
    assert sum(BEST in line for line in result.stdout.splitlines()) == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"error: {kept}: ") and str(layout.root()) in last and "AUTOTUNED_CACHE_DIR" in last


def test_choices_that_only_files_hold_are_no_error(write: Write) -> None:
    with records_fail():
        data = _json("tune", _work(write), "--out", "tuned")
    assert [row["kept"] for row in data["cases"]] == [False, False] and len(data["files"]) == 1


def test_choices_that_neither_store_nor_file_can_hold_are_an_error_after_the_table(write: Write) -> None:
    with (
        records_fail(),
        faults("write", OSError(errno.ENOSPC, "No space left on device"), name="*mod_work.work.json*"),
    ):
        result = _run("tune", _work(write), "--out", "tuned", code=1)
    assert sum(BEST in line for line in result.stdout.splitlines()) == 2
    lost, unwritten = result.stderr.splitlines()[-2:]
    assert lost.startswith("error: nothing was kept") and unwritten.startswith("error: --out: tuned/")


def records_fail() -> Any:
    """The disk of the cache folder is full."""
    return faults("replace", errno.ENOSPC, name="*/v2/mod_work.work/*")


def test_what_is_stored_is_not_measured_again_unless_forced(write: Write) -> None:
    def sources(*options: str) -> list[str]:
        return [row["source"] for row in _json("tune", _work(write), *options)["cases"]]

    assert sources() == ["measured"] * 2
    assert sources() == ["stored"] * 2
    assert sources("--force") == ["measured"] * 2


def test_a_case_listed_twice_is_measured_once(write: Write) -> None:
    rows = _json("tune", _work(write, "7 7"), "--force")["cases"]
    assert [row["source"] for row in rows] == ["measured", "stored"]


def test_targets_that_overlap_are_tuned_once(write: Write) -> None:
    module = _work(write)
    assert len(_json("tune", module, f"{module}:work", f"{module}.py")["cases"]) == 2


def test_a_default_is_compared_with(write: Write) -> None:
    text = WORK.replace('key=["n"]', 'key=["n"], default=Config({"ms": 6})')
    [row] = _json("tune", _work(write, "1", text=text), "--out", "tuned")["cases"]
    assert (row["vs_first"], row["vs_default"]) == (4, 6)
    assert '"vs_default": 6.0' in next(Path("tuned").glob("*/*.json")).read_text()


# -- what goes wrong --------------------------------------------------------------------------------------------------


MIXED = """
@autotune(configs=CONFIGS, key=["n"])
def fails(n, ms):
    raise ValueError(f"odd {ms}" if n else "always")

@fails.case
def fails_cases(device):
    yield {"args": (1,)}
    yield {"argz": ()}
    raise KeyError("no data")

@autotune(configs=CONFIGS)
def without(n, ms): ...
"""


def test_a_failing_case_does_not_stop_the_others(write: Write) -> None:
    module = _work(write, name="mod_mixed", text=WORK + MIXED)
    data = _json("tune", module, code=3)
    assert [row["status"] for row in data["cases"]] == ["done", "done", "failed", "failed", "failed"]
    reasons = [row["reason"] for row in data["cases"][2:]]
    assert "all 3 failed" in reasons[0] and "odd 4" in reasons[0]
    assert "got the fields argz" in reasons[1] and "fails_cases: KeyError: 'no data'" in reasons[2]
    assert data["skipped"] == [{"kernel": "mod_mixed.without", "reason": "no cases"}]
    result = _run("tune", module, code=3)
    assert "skipped mod_mixed.without: it has no cases" in result.stdout and "@kernel.case" in result.stdout
    assert result.stderr.splitlines()[-1].startswith("error: 3 of 5 cases failed; the first: `mod_mixed.fails`: ")


def test_if_every_case_fails_the_command_fails(write: Write) -> None:
    module = _work(write, name="mod_all", text=WORK + MIXED)
    assert len(_json("tune", f"{module}:fails", code=1)["cases"]) == 3


def test_a_default_that_would_be_used_untuned_is_a_failure(write: Write) -> None:
    text = WORK + MIXED.replace('configs=CONFIGS, key=["n"]', 'configs=CONFIGS, key=["n"], default=CONFIGS[0]')
    [row, *_] = _json("tune", f"{_work(write, text=text)}:fails", "--out", "tuned", code=1)["cases"]
    assert row["status"] == "failed" and "default=" in row["reason"]
    assert not Path("tuned").exists()


def test_a_lost_device_ends_the_run_at_once(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*args: Any) -> Any:
        raise errors.DeviceLostError("the device is gone", kernel="k", config="c")

    monkeypatch.setattr(tuner.Tuner, "tune", lost)
    result = _run("tune", _work(write), "--json", code=1)
    [row] = json.loads(result.stdout)["cases"]
    assert row["reason"] == "the device is gone" and result.stderr.splitlines()[-1] == "error: the device is gone"


def test_nothing_to_measure_is_a_failure(write: Write) -> None:
    write(
        "mod_none.py", "from autotuned import Config, autotune\n@autotune(configs=[Config({'s': 1})])\ndef f(n, s): ..."
    )
    assert "no cases for mod_none.f. Register some: @kernel.case" in _error("tune", "mod_none")
    result = _run("tune", _work(write, ""), code=1)
    assert "the generators of cases yield none" in result.stderr


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module", "no module named 'no_such_module'"),
        ("no_such_file.py", "there is no file"),
        ("mod_syntax.py", "syntax error at"),
        ("mod_raises", "RuntimeError: why"),
        ("mod_work:wrok", "Did you mean 'work'?"),
        ("autotuned.errors", "nothing in it is tuned"),
    ],
)
def test_a_bad_target_is_one_line(write: Write, target: str, message: str) -> None:
    write("mod_syntax.py", "def f(:")
    write("mod_raises.py", "raise RuntimeError('why')")
    assert message in _error("tune", _work(write), target)
    assert "Nothing is stored" in _run("list").stdout


def test_the_budget_skips_what_is_left(write: Write) -> None:
    text = WORK.replace("    ran.append(ms)", "    time.sleep(0.2)\n    ran.append(ms)")
    result = _run("tune", _work(write, "1 2 3", text=text), "--budget", "0.3", "--json", code=3)
    rows = json.loads(result.stdout)["cases"]
    assert rows[0]["status"] == "done" and 0 < rows[0]["measured_configs"] < 3
    assert [(row["status"], row["reason"]) for row in rows[1:]] == [("skipped", "the budget is used up")] * 2
    assert "3 cases are not finished. Run the same command again" in result.stderr
    assert [row["measured_configs"] for row in _json("tune", _work(write, "1 2 3", text=text))["cases"]] == [3, 3, 3]


# -- without measuring ------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_be_measured_and_measures_nothing(write: Write) -> None:
    module = _work(write)
    found = _json("tune", module, "--dry-run", "--out", "tuned")
    assert found.keys() == {"device", "cases", "skipped", "measure", "configs", "seconds", "unknown"}
    assert [(case["status"], case["configs"], case["seconds"]) for case in found["cases"]] == [("measure", 3, None)] * 2
    assert (found["measure"], found["configs"], found["unknown"]) == (2, 6, 2)
    assert not list(listing.all_records()) and not Path("tuned").exists()
    _run("tune", module)
    _work(write, "1 2 3")
    lines = _run("tune", f"{module}.py", "--dry-run").stdout.splitlines()
    assert [line.split() for line in lines if line.startswith("n=")] == [
        ["n=1", "3", "stored", "n/a"], ["n=2", "3", "stored", "n/a"], ["n=3", "3", "measure", "1", "s"],
    ]  # fmt: skip
    assert lines[-1] == "3 cases, 2 stored, 1 to measure (3 configs): about 1 s by earlier searches."


def test_a_dry_run_of_what_is_stored_and_of_what_fails(write: Write) -> None:
    module = _work(write)
    _run("tune", module)
    assert _run("tune", module, "--dry-run").stdout.splitlines()[-1] == "2 cases, 2 stored, 0 to measure."
    assert "2 to measure (6 configs)" in _run("tune", module, "--dry-run", "--force").stdout
    _work(write, name="mod_mixed", text=WORK + MIXED)
    said = _run("tune", "mod_mixed", "--dry-run", code=3)
    assert "error: 2 of 5 cases failed; the first: `mod_mixed.fails`" in said.stderr
    assert "no earlier search to estimate the time" in said.stdout and "skipped mod_mixed.without" in said.stdout
