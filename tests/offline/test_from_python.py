"""`autotuned.tune` and `autotuned.warmup`: what the commands do, from Python, and the same results."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import run_json
from given import WORK, Write, work

import autotuned
from autotuned import errors
from autotuned.offline.results import Observer
from autotuned.resolve import tuner

FAILS = (
    '@autotune(configs=CONFIGS, key=["n"], do_bench=bench)\ndef work(n, ms):\n    assert n < 2\n    ran.append(ms)\n'
)


class Told(Observer):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.tried = 0

    def begin(self, case: Any, device: str = "") -> None:
        self.begun.append(case.call["values"]["n"])

    def observe(self, progress: Any, device: str = "") -> None:
        self.tried = max(self.tried, progress.done)

    def done(self, case: Any, device: str = "") -> None:
        self.ended.append((case.status, case.source, device))


def without_seconds(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != "seconds"}


def test_tune_returns_what_the_command_prints(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    module = work(write)
    told = Told()
    result = autotuned.tune(module, out="tuned", progress=told)
    assert [(case.source, case.config["kwargs"]) for case in result.cases if case.config] == [
        ("measured", {"ms": 1})
    ] * 2
    assert told.begun == [1, 2] and told.ended == [("done", "measured", "")] * 2 and told.tried == 3
    assert result.failed == result.unfinished == [] and [Path(path).exists() for path in result.files] == [True]
    assert "printed by the user's code" in capsys.readouterr().out  # as it is, and nothing else
    again = autotuned.tune([module], out=Path("tuned")).to_json()
    assert without_seconds(again) == without_seconds(run_json("tune", module, "--out", "tuned"))
    assert [case["source"] for case in again["cases"]] == ["stored"] * 2 and again["seconds"] > 0


@pytest.mark.parametrize("isolate", [False, True])
def test_a_case_that_fails_is_in_the_result(write: Write, isolate: bool) -> None:
    head, tail = WORK.split("@autotune", 1)
    module = work(write, text=head + FAILS + "\n@work.case" + tail.split("@work.case", 1)[1])
    result = autotuned.tune(module, isolate=isolate)
    assert [case.status for case in result.cases] == ["done", "failed"]
    assert [case.reason for case in result.failed] == [result.cases[1].reason]
    option = "--isolate" if isolate else "--in-process"
    command = run_json("tune", module, option, code=3)
    assert [case["status"] for case in command["cases"]] == ["done", "failed"]
    assert command.keys() == result.to_json().keys()


def test_processes_print_where_this_one_prints(write: Write) -> None:
    code = (
        "import contextlib, sys, autotuned\n"
        "with contextlib.redirect_stdout(sys.stderr):\n"
        f"    autotuned.tune({work(write)!r}, isolate=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "" and "printed by the user's code" in done.stderr


def test_ctrl_c_ends_it_early_and_what_was_measured_is_returned(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    class Impatient(Observer):
        def done(self, case: Any, device: str = "") -> None:
            raise KeyboardInterrupt

    result = autotuned.tune(work(write), progress=Impatient())
    assert result.interrupted and result.to_json()["interrupted"] is True
    assert [case.status for case in result.cases] == ["done"]


def test_an_error_has_what_was_measured_before(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    choose, calls = tuner.Tuner.tune, []

    def lost(self: Any, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise errors.DeviceLostError("the device is gone", kernel="k", config="c")
        return choose(self, *args)

    monkeypatch.setattr(tuner.Tuner, "tune", lost)
    with pytest.raises(errors.DeviceLostError) as caught:
        autotuned.tune(work(write))
    assert [case.status for case in vars(caught.value)["result"].cases] == ["done", "failed"]


def test_what_a_budget_leaves_out_is_unfinished(write: Write) -> None:
    module = work(write, "1 2 3")
    result = autotuned.tune(module, budget_s=1e-9)
    assert result.unfinished == result.cases and not result.failed
    assert [case.status for case in autotuned.tune(module, budget_s=600.0).cases] == ["done"] * 3


@pytest.mark.parametrize(
    ("options", "option", "text"),
    [
        ({"budget_s": 0.0}, "budget_s", "budget_s: expected seconds above 0, got 0."),
        ({"timeout_s": -1.0}, "timeout_s", "timeout_s: expected seconds above 0, got -1."),
        ({"executor": "slurm"}, "executor", "executor: expected local or ray, got 'slurm'."),
        ({"ray_address": "auto"}, "ray_address", "ray_address: expected with executor ray only."),
        ({"devices": "0", "isolate": False}, "isolate", "isolate: expected without devices, which needs processes."),
    ],
)
def test_an_option_that_cannot_be_is_refused(options: dict[str, Any], option: str, text: str) -> None:
    with pytest.raises(errors.OptionError) as caught:
        autotuned.tune("mod", **options)
    assert str(caught.value) == text and caught.value.option == option


def test_a_variable_that_says_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNED_DEVICE", "tpu")
    with pytest.raises(errors.OptionError, match="AUTOTUNED_DEVICE: expected one of cuda, interpreter"):
        autotuned.tune("mod")


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_measured(write: Write) -> None:
    Path("file").write_text("")
    with pytest.raises(errors.OutputError, match=r"nothing can be written to file/tuned: .*file is not a folder"):
        autotuned.tune(work(write), out="file/tuned")


def test_targets_without_a_case_have_an_empty_result(write: Write) -> None:
    assert autotuned.tune(work(write, "")).to_json()["cases"] == []


def test_warmup_returns_what_the_command_prints(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    module = work(write, "1")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    kernel = __import__(module).work
    with autotuned.record("calls.jsonl"), autotuned.mode("search"):
        kernel(1)
        kernel(2)
    with autotuned.mode("strict"):
        result = autotuned.warmup("calls.jsonl")
        assert result.to_json() == run_json("warmup", "calls.jsonl")
    assert [(call.kernel, call.count, call.reason) for call in result.calls] == [("mod_work.work", 1, None)] * 2
    assert not result.failed


def test_no_variable_is_left_behind_and_the_next_run_goes_on(write: Write) -> None:
    code = (
        "import os, autotuned\n"
        "for _ in range(2):\n"
        f"    assert autotuned.tune({work(write)!r}).device == 'interpreter'\n"
        "    assert 'TRITON_INTERPRET' not in os.environ\n"
    )
    alone = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", code], env=alone, timeout=120, check=True)
