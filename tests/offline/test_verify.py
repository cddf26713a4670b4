"""Tests of `release`: entries that their kernels have not, and choices that lose."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import run, run_json

import autotuned
from autotuned.errors import TargetError
from autotuned.offline.verify import Contest

Write = Callable[[str, str], Path]

# A plain callable whose times are given: `times.json` says how long each `ms` takes.
WORK = """
import json
from pathlib import Path
from autotuned import Config, autotune

def bench(call, quantiles):
    call()
    return [json.loads(Path("times.json").read_text())[str(WORKING[-1])]] * 3

WORKING = []

@autotune(configs=[Config({"ms": ms}) for ms in (4, 2, 1)], key=["n"], do_bench=bench, **OPTIONS)
def NAME(n, *, ms):
    WORKING.append(ms)

@NAME.case
def cases(device):
    for n in (1, 2):
        yield {"args": (n,)}
"""


def work(write: Write, name: str = "work", options: str = "dict()", **times: float) -> str:
    """Write the module and what its configs take, in ms; returns the module's name."""
    set_times(write, times or {"4": 4.0, "2": 2.0, "1": 1.0})
    write("mod_release.py", WORK.replace("NAME", name).replace("OPTIONS", options))
    sys.modules.pop("mod_release", None)
    return "mod_release"


def set_times(write: Write, times: dict[str, float]) -> None:
    write("times.json", json.dumps(times))


def tuned(write: Write, **options: Any) -> str:
    module = work(write, **options)
    run("tune", module, "--out", "tuned")
    return module


def test_what_was_just_tuned_matches_and_wins(write: Write) -> None:
    tuned(write)
    assert run_json("check", "tuned", "--import")["faults"] == []
    found = run_json("check", "tuned", "--measure")
    assert [(row["call"]["values"]["n"], row["config"]["kwargs"]["ms"]) for row in found["measured"]] == [
        (1, 1),
        (2, 1),
    ]
    assert [(row["shipped_us"], row["default_us"], row["rival_us"]) for row in found["measured"]] == [
        (1000.0, 4000.0, 2000.0)
    ] * 2
    assert {row["loss"] for row in found["measured"]} == {-0.5}


def test_a_choice_that_loses_by_more_than_the_tolerance_is_exit_code_1(write: Write) -> None:
    tuned(write)
    set_times(write, {"4": 4.0, "2": 2.0, "1": 2.2})
    found = run_json("check", "tuned", "--measure", code=1)
    assert [row["loss"] for row in found["measured"]] == [0.1, 0.1]
    text = run("check", "tuned", "--measure", code=1)
    assert "LOSES" in text.stdout
    assert "2 choices lose by more than 5%" in text.stderr
    run("check", "tuned", "--measure", "--tolerance", "0.2")


def test_check_with_the_program_equals_the_command(write: Write) -> None:
    run("tune", work(write), "--out", "tuned")
    found = autotuned.check("tuned", imports=True)
    assert found.passed and found.measured is None and found.to_json() == run_json("check", "tuned", "--import")
    set_times(write, {"4": 4.0, "2": 2.0, "1": 2.2})
    found = autotuned.check("tuned", measure=True)
    assert not found.passed and [round(one.loss, 4) for one in found.lost] == [0.1, 0.1]
    assert found.to_json() == run_json("check", "tuned", "--measure", code=1)
    found = autotuned.check("tuned", measure=True, targets="mod_release:work", tolerance=0.2)
    options = ["--target", "mod_release:work", "--tolerance", "0.2"]
    assert found.passed and found.to_json() == run_json("check", "tuned", "--measure", *options)
    with pytest.raises(TargetError):
        autotuned.check("tuned", imports=True, targets=["no_such_module"])


def test_without_a_record_all_configs_are_timed(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned(write)
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", "another")
    set_times(write, {"4": 0.5, "2": 3.0, "1": 1.0})  # the first, which is what runs untuned, has become the fastest
    found = run_json("check", "tuned", "--measure", code=1)
    assert [(row["default_us"], row["rival_us"], row["loss"]) for row in found["measured"]] == [
        (500.0, 3000.0, 1.0)
    ] * 2


def test_choices_that_belong_to_no_case_are_counted(write: Write) -> None:
    module = tuned(write)
    write(f"{module}.py", Path(f"{module}.py").read_text().replace("for n in (1, 2)", "for n in (2, 3)"))
    sys.modules.pop(module)
    found = run_json("check", "tuned", "--measure")
    assert [row["call"]["values"]["n"] for row in found["measured"]] == [2]
    assert found["untimed"] == ["`mod_release.work`: choices for this device without a case: 1"]
    assert "not timed: `mod_release.work`" in run("check", "tuned", "--measure").stdout


def test_where_nothing_can_be_timed_the_gate_is_not_passed(write: Write) -> None:
    tuned(write)
    replace('"n": 1}', '"n": 7}')
    replace('"n": 2}', '"n": 8}')
    done = run("check", "tuned", "--measure", code=1)
    assert "error: nothing was timed: no case of the kernels has a choice here" in done.stderr
    assert "not timed: `mod_release.work`: none of its cases has a choice for this device" in done.stdout
    run("check", "tuned", "--import")


def test_a_case_or_kernel_that_fails_is_said_and_the_other_cases_are_timed(write: Write) -> None:
    module = tuned(write)
    ends = 'yield {"args": ()}\n        yield {"args": (n,)}\n    raise KeyError("gone")'
    write(f"{module}.py", Path(f"{module}.py").read_text().replace('yield {"args": (n,)}', ends))
    sys.modules.pop(module)
    found = run_json("check", "tuned", "--measure", code=1)
    assert [(row["call"]["values"]["n"], row["error"]) for row in found["measured"]] == [(1, None), (2, None)]
    first, second, last = [fault["text"] for fault in found["faults"]]
    assert first == second and "argument 'n' is missing" in first and last == "cases: KeyError: 'gone'"
    set_times(write, {})
    found = run_json("check", "tuned", "--measure", code=1)
    assert all("all 3 failed" in row["error"] and row["loss"] is None for row in found["measured"])
    assert "expected at least one config" in run("check", "tuned", "--measure", code=1).stdout


def test_a_default_is_what_a_choice_must_beat(write: Write) -> None:
    tuned(write, options="dict(default=Config({'ms': 2}))")
    set_times(write, {"4": 4.0, "2": 0.8, "1": 1.0})
    found = run_json("check", "tuned", "--measure", code=1)
    assert [row["default_us"] for row in found["measured"]] == [800.0, 800.0]


def test_measuring_stores_nothing(write: Write) -> None:
    tuned(write)
    before = run("list", "--json").stdout
    set_times(write, {"4": 1.0, "2": 2.0, "1": 3.0})
    run("check", "tuned", "--measure", code=1)
    assert run("list", "--json").stdout == before


def replace(old: str, new: str) -> None:
    [path] = Path("tuned").glob("*/*.json")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


STALE = {
    "a value that is none": ('"ms": 1}', '"ms": 16}', "it is not among the 3 configs"),
    "text": ('"ms": 1}', '"ms": "1"}', "kwargs.ms: expected a number, as in other entries, got text '1'"),
    "an unknown parameter": ('"ms": 1}', '"mz": 1}', "the config sets 'mz'. Arguments are: "),
    "another argument": ('"values": {"n": 1}', '"values": {"m": 1}', "the call has 'm'."),
}


@pytest.mark.parametrize("name", STALE)
def test_an_entry_that_the_kernel_has_not_is_dead(write: Write, name: str) -> None:
    tuned(write)
    old, new, expected = STALE[name]
    replace(old, new)
    run("check", "tuned", code=int(name == "text"))  # which knows nothing of the kernel, and sees other entries
    faults = [fault["text"] for fault in run_json("check", "tuned", "--import", code=1)["faults"]]
    assert all(text.startswith("dead: ") for text in faults)
    assert any(expected in text for text in faults)


def test_another_source_is_said_once_a_context(write: Write) -> None:
    tuned(write)
    write("mod_release.py", Path("mod_release.py").read_text().replace("WORKING.append(ms)", "WORKING.append(ms + 0)"))
    sys.modules.pop("mod_release")
    [fault] = run_json("check", "tuned", "--import", code=1)["faults"]
    assert fault["text"].startswith("tuned for another source of the kernel")


def test_a_kernel_that_cannot_be_imported_is_a_fault_and_a_target_finds_it(write: Write) -> None:
    module = tuned(write, options="dict(name='app.stable')")
    [fault] = run_json("check", "tuned", "--import", code=1)["faults"]
    assert "kernel 'app.stable' cannot be imported" in fault["text"]
    assert "targets=" in fault["text"]
    run("check", "tuned", "--import", "--target", module)


@pytest.mark.parametrize(
    ("shipped", "default", "rival", "loss"),
    [(1.0, 2.0, 4.0, -0.5), (2.0, 1.0, None, 1.0), (1.0, None, None, -1.0), (None, 1.0, 1.0, float("inf"))],
)
def test_the_loss_is_against_the_faster_of_the_others(shipped: Any, default: Any, rival: Any, loss: float) -> None:
    assert Contest(None, {}, shipped, default, rival, "").loss == loss  # type: ignore[arg-type]


# -- names that last -------------------------------------------------------------------------------------------------


def test_a_kernel_with_a_name_keeps_its_files_when_its_function_is_renamed_and_moved(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned(write, options="dict(name='app.stable')")
    Path("mod_release.py").unlink()
    write("elsewhere.py", WORK.replace("NAME", "renamed").replace("OPTIONS", "dict(name='app.stable')"))
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", "empty")
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", "tuned")
    monkeypatch.setenv("AUTOTUNED_MODE", "strict")
    from autotuned.api import decorator

    decorator._explicit_names.clear()
    sys.modules.pop("mod_release")
    sys.path.insert(0, "")
    import elsewhere  # type: ignore[import-not-found]

    elsewhere.renamed(1)
    assert elsewhere.renamed.explain(2).answer == "config files"
    assert elsewhere.renamed.cache_info().searches == 0


# -- what loses to what runs untuned -------------------------------------------------------------------------------------


SLOWER = {"4": 1.0, "2": 2.0, "1": 1.01}  # of 1 ms, which was tuned, by more than a tie, and less than the tolerance


def test_a_choice_that_loses_to_the_untuned_config_is_named(write: Write) -> None:
    tuned(write)
    set_times(write, SLOWER)
    found = run_json("check", "tuned", "--measure", code=1)
    assert [(row["beaten"], row["loss"], row["nearest"]) for row in found["measured"]] == [(True, 0.01, None)] * 2
    assert found["dropped"] == []
    said = run("check", "tuned", "--measure", code=1)
    assert said.stdout.count("LOSES TO UNTUNED") == 2
    assert "2 choices lose to the untuned config (--fix drops them)" in said.stderr


def test_a_tie_with_the_untuned_config_is_none(write: Write) -> None:
    tuned(write)
    set_times(write, {"4": 1.0, "2": 2.0, "1": 1.002})
    assert [row["beaten"] for row in run_json("check", "tuned", "--measure")["measured"]] == [False, False]


def test_what_is_dropped_is_said_and_gone(write: Write) -> None:
    tuned(write)
    set_times(write, SLOWER)
    said = run("check", "tuned", "--measure", "--fix")
    assert said.stdout.count("dropped: mod_release.work  n=") == 2
    assert not list(Path("tuned").glob("*/*.json"))


def test_only_what_loses_is_dropped(write: Write) -> None:
    tuned(write)
    [file] = Path("tuned").glob("*/*.json")
    text = file.read_text()
    write("mod_release.py", Path("mod_release.py").read_text().replace("for n in (1, 2)", "for n in (2,)"))
    sys.modules.pop("mod_release")
    set_times(write, SLOWER)
    found = autotuned.check("tuned", measure=True, fix=True)
    assert found.passed and len(found.dropped) == 1
    assert '"n": 1' in file.read_text() and '"n": 2' not in file.read_text()
    assert set(file.read_text().splitlines()) - set(text.splitlines()) <= {
        line.rstrip(",") + "]}" for line in text.splitlines()
    }
    assert autotuned.check("tuned").passed


def test_the_choice_of_the_nearest_shape_is_timed_and_no_more_served_where_it_loses(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned(write, options='dict(nearest={"n": 4.0})')
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", "tuned")
    write("mod_release.py", Path("mod_release.py").read_text().replace("for n in (1, 2)", "for n in (4,)"))
    sys.modules.pop("mod_release")
    set_times(write, SLOWER)
    [row] = run_json("check", "tuned", "--measure", code=1)["measured"]
    assert row["beaten"] and row["call"]["values"] == {"n": 4} and row["nearest"]["values"] == {"n": 2}
    said = run("check", "tuned", "--measure", "--fix")
    words = " ".join(said.stdout.split())
    assert "this call now gets the untuned config instead of the choice of the nearest shape" in words
    assert [row["beaten"] for row in run_json("check", "tuned", "--measure")["measured"]] == [False]
    text = next(Path("tuned").glob("*/*.json")).read_text()
    assert all(f'"n": {n}' in text for n in (1, 2, 4)) and text.count('"ms": 4') == 1


RULED = """
import json
from pathlib import Path
import autotuned
from autotuned.errors import TargetError
from autotuned import Config, autotune

def bench(call, quantiles):
    call()
    ms, n = WORKING[-1]
    untuned = json.loads(Path("times.json").read_text())["4"]
    return [untuned if ms == 4 else 10.0 if (ms == 1) == (n % 64 == 0) else 15.0] * 3

WORKING = []

@autotune(configs=[Config({"ms": ms}) for ms in (4, 2, 1)], key=["n"], do_bench=bench,
          nearest=autotuned.within("5%"))
def ruled(n, *, ms):
    WORKING.append((ms, n))

@ruled.case
def cases(device):
    for n in (*range(16, 1296, 16), 1279):
        yield {"args": (n,)}
"""


def test_the_choice_of_a_rule_is_timed_and_serves_no_more_where_it_loses(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_times(write, {"4": 30.0})
    write("mod_ruled.py", RULED)
    sys.modules.pop("mod_ruled", None)
    run("tune", "mod_ruled", "--out", "tuned")
    run("compress", "tuned", "--within", "5%", "--out", "few")
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", "few")
    write("mod_ruled.py", RULED.replace("(*range(16, 1296, 16), 1279)", "(72, 136)"))
    sys.modules.pop("mod_ruled")
    measured = run_json("check", "few", "--measure")["measured"]
    assert [(row["config"]["kwargs"], row["beaten"], row["nearest"]) for row in measured] == [
        ({"ms": 2}, False, None)
    ] * 2
    assert all("n % 64" in row["rule"] for row in measured)
    set_times(write, {"4": 9.0})
    said = " ".join(run("check", "few", "--measure", "--fix").stdout.split())
    assert said.count("(rule)") == 2 and said.count("instead of the choice of a rule") == 2
    after = run_json("check", "few", "--measure")["measured"]
    assert [(row["config"]["kwargs"], row["beaten"], row["rule"]) for row in after] == [({"ms": 4}, False, None)] * 2


def test_what_is_not_measured_cannot_be_repaired(write: Write) -> None:
    tuned(write)
    with pytest.raises(autotuned.errors.OptionError, match="fix: expected measure=True"):
        autotuned.check("tuned", fix=True)
    run("check", "tuned", "--fix", code=2)
