"""`compress`: the fewest configs from what was measured, rules beside them, and what cannot be held by its name."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import CONTEXT, DEVICE, form
from ruled import ALIGNED, LIVE, RAGGED, SLOW, TUNED, files, keep, keep_all, key

import autotuned
from autotuned import errors
from autotuned.configfiles import file as configfile
from autotuned.store import layout, listing, records
from autotuned.store.record import Timing, TuningRecord


def written(result) -> configfile.ConfigFile:
    [path] = result.files
    return configfile.parse(Path(path).read_text(), path)


def test_the_fewest_configs_and_a_rule_are_written(tmp_path):
    keep_all()
    result = files(tmp_path)
    [kernel] = result.kernels
    assert (kernel.calls, len(kernel.configs), kernel.is_exact, kernel.worst, result.left) == (80, 2, True, 0.0, [])
    [(context, rule)] = written(result).rules
    assert [str(rule.tree.split), rule.sizes, rule.along] == ["M % 64 == 0", {"M": (16, 1280)}, "M"]
    assert context == {name: value for name, value in CONTEXT.items() if name != "device"}
    assert len(dict(written(result).entries())) == 80


def test_records_can_be_given_themselves(tmp_path):
    keep_all()
    from_files = written(files(tmp_path))
    result = autotuned.compress(layout.kernel_folder("app.k"), within=0.05, out=tmp_path / "direct")
    assert written(result).dump() == from_files.dump()


def test_a_whole_cache_folder_can_be_given(tmp_path):
    keep_all()
    for name in ("toolchain/1.json", f"v2/app.k/{layout.JOURNAL}/1.json", f"v2/app.k/{layout.DAMAGED}/1.json"):
        (layout.root() / name).parent.mkdir(parents=True, exist_ok=True)
        (layout.root() / name).write_text("{}")
    result = autotuned.compress(layout.root(), within=0.05, out=tmp_path / "few")
    assert result.faults == [] and written(result).dump() == written(files(tmp_path)).dump()


def test_rules_alone_are_put_into_files_whose_entries_stay(tmp_path):
    keep_all()
    autotuned.export(tmp_path / "best")
    [before] = (tmp_path / "best").glob("*/*.json")
    entries = dict(configfile.parse(before.read_text(), "").entries())
    files(tmp_path, within="50%")
    [few] = files(tmp_path).files
    support = Path(__file__).parents[2] / "support"
    command = [sys.executable, support / "add_rules.py", Path(few).parents[1], tmp_path / "best"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "app.k.json: 1 rules\n"
    after = configfile.parse(before.read_text(), "")
    assert dict(after.entries()) == entries and after.rules == written(files(tmp_path)).rules


def test_records_may_lie_below_any_name(tmp_path):
    keep_all()
    place = tmp_path / layout.DAMAGED / "records"
    place.parent.mkdir()
    layout.kernel_folder("app.k").rename(place)
    assert autotuned.compress(place, within=0.05, out=tmp_path / "few").kernels[0].calls == 80


def test_each_tuned_call_loses_at_most_what_is_promised(tmp_path):
    keep_all()
    result = files(tmp_path, within="50%")
    [kernel] = result.kernels
    assert (len(kernel.configs), kernel.worst) == (1, 0.5)
    for found, entry in written(result).entries():
        assert entry.median_us <= 15.0 and records.read_of(found).timing_of(entry.config).median_us == entry.median_us


def test_under_a_limit_what_cannot_be_held_is_named_and_keeps_its_config(tmp_path):
    keep_all()
    result = files(tmp_path, max_configs=1)
    [kernel] = result.kernels
    assert kernel.configs == (form(RAGGED),) and kernel.is_exact and kernel.least == 2
    assert {one.key.call["values"]["M"] for one in result.left} == {m for m in TUNED if m % 64 == 0}
    assert all("within 5.0% of its best" in one.why for one in result.left)
    assert all(entry.config == form(ALIGNED if found.call["values"]["M"] % 64 == 0 else RAGGED)
               for found, entry in written(result).entries())  # fmt: skip


def test_under_a_limit_a_dtype_may_have_been_measured_with_other_configs(tmp_path):
    """`compress` ended in NumPy's `ValueError`."""
    keep_all(only=(RAGGED,))
    for m in TUNED[:30]:
        tensors = {"x": {**key(m).call["tensors"]["x"], "dtype": "torch.float16"}}
        half, timing = key(m).replace(call={**key(m).call, "tensors": tensors}), Timing(form(SLOW), 9.0, 9.0, 9.0, 5)
        records.keep(TuningRecord(half, form(SLOW), 9.0, "ok", (timing,), {"default": form(SLOW)}))
    result = files(tmp_path, max_configs=1)
    [kernel] = result.kernels
    assert (kernel.calls, kernel.configs, len(result.left)) == (110, (form(RAGGED),), 30)
    assert any("none of the chosen configs is within 5.0%" in one.why_not for one in kernel.fits)


def test_calls_without_times_are_named_and_never_guessed(tmp_path):
    keep_all()
    autotuned.export(tmp_path / "exported")
    for m in (16, 32, 48):
        layout.record_path(key(m)).unlink()
    keep(64, only=(RAGGED,))
    result = autotuned.compress(tmp_path / "exported", within=0.05, out=tmp_path / "few")
    assert [(one.key.call["values"]["M"], one.why) for one in result.left] == [
        (m, "it has no times: tune it here") for m in (16, 32, 48)
    ]
    assert len(dict(written(result).entries())) == 80


def test_devices_are_apart(tmp_path):
    keep_all()
    for m in TUNED[:5]:
        keep(m, device={**DEVICE, "name": "NVIDIA H200"})
    result = files(tmp_path)
    assert [one.calls for one in result.kernels] == [80, 5] and len(result.files) == 2
    [few] = [one for one in result.kernels if one.calls == 5]
    assert [one.why_not for one in few.fits] == ["expected 20 calls or more, got 5"]


def test_records_of_one_shape_give_no_rule(tmp_path):
    keep(64)
    [kernel] = files(tmp_path).kernels
    assert [one.why_not for one in kernel.fits] == ["all calls have the same sizes"]


def test_a_second_time_changes_nothing_and_fewer_calls_take_no_rule_out(tmp_path):
    keep_all()
    [path] = files(tmp_path).files
    before = Path(path).read_bytes()
    autotuned.compress(tmp_path / "few", within="5%", out=tmp_path / "few")
    assert Path(path).read_bytes() == before
    for m in TUNED[12:]:
        layout.record_path(key(m)).unlink()
    autotuned.compress(tmp_path / "few", within="5%", out=tmp_path / "few")
    assert len(configfile.parse(Path(path).read_text(), path).rules) == 1  # of more calls than are known now
    file = configfile.parse(Path(path).read_text(), path)
    [(context, rule)] = file.rules
    file.set_rule(context, rule.name, None, 79)
    assert file.rules == file.rules_of(rule.rest) == [(context, rule)]
    file.set_rule(context, rule.name, None, 80)
    assert file.rules == file.rules_of(rule.rest) == []


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"within": "five"}, "within: expected a share above 0"),
        ({"within": 0}, "within: expected"),
        ({"within": True}, "within: expected"),
        ({"max_configs": 0}, "max_configs: expected a number of 1 or more"),
        ({"max_configs": 2.5}, "max_configs: expected"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_refused(tmp_path, options, word):
    keep(64)
    with pytest.raises(errors.OptionError, match=word):
        files(tmp_path, **options)


def test_nothing_that_can_be_read_is_an_error(tmp_path):
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(errors.ConfigFileError, match="expected tuned calls, got none"):
        autotuned.compress(tmp_path, within=0.05, out=tmp_path / "out")
    with pytest.raises(errors.ConfigFileError, match="no such file"):
        autotuned.compress(tmp_path / "nowhere", within=0.05, out=tmp_path / "out")


def test_all_failed_is_no_choice(tmp_path):
    from autotuned.store.record import Timing, TuningRecord

    records.keep(TuningRecord(key(64), None, None, "unresolved", (Timing(form(SLOW), status="failed", error="x"),)))
    with pytest.raises(errors.ConfigFileError, match="got none"):
        autotuned.compress(layout.kernel_folder("app.k"), within=0.05, out=tmp_path / "out")


def test_its_json_can_be_written(tmp_path):
    keep_all()
    data = json.loads(json.dumps(files(tmp_path).to_json()))
    assert data["kernels"][0]["rules"][0]["compared"]["rule"] == {"mean": 0.0, "worst": 0.0}
    assert len(LIVE) == 3


MODULE = """
import autotuned
from autotuned import Config

latest, measured = [0], []


def bench(call, quantiles):
    call()
    measured.append(latest[0])
    return [{1: 1.0, 2: 1.01, 3: 5.0}[latest[0]]] * 3


@autotuned.autotune(configs=[Config({"step": step}) for step in (1, 2, 3)], key=["n"], name="app.steps", do_bench=bench)
def steps(n, step=1):
    latest[0] = step


@steps.case
def cases(device):
    yield from ({"args": (n,)} for n in range(3))
"""


def test_times_that_are_missing_are_measured_first(tmp_path):
    path = tmp_path / "steps.py"
    path.write_text(MODULE)
    autotuned.tune([str(path)], out=tmp_path / "tuned", isolate=False)
    for number, (_, found) in enumerate(list(listing.all_records("app.steps"))):
        best = found.timings[number % 2]
        fewer = (best,)  # the others were never measured: no config has times for all calls
        records.keep(found.replace(winner=best.config, median_us=best.median_us, timings=fewer))
    layouts = layout.kernel_folder("app.steps")
    assert len(autotuned.compress(layouts, within="5%", out=tmp_path / "few").kernels[0].configs) == 2
    result = autotuned.compress(layouts, within="5%", out=tmp_path / "few", targets=str(path))
    assert len(result.kernels[0].configs) == 1
    kept = [{one.config["kwargs"]["step"] for one in found.timings} for _, found in listing.all_records("app.steps")]
    assert kept == [{1, 2}] * 3  # what won nowhere is not measured


def test_a_call_listed_twice_is_measured_once_and_a_failing_generator_is_named(tmp_path):
    path = tmp_path / "steps_twice.py"
    path.write_text(MODULE + '    yield {"args": (0,)}\n')
    autotuned.tune([str(path)], out=tmp_path / "tuned", isolate=False)
    for _, found in list(listing.all_records("app.steps")):
        records.keep(found.replace(timings=found.timings[:1]))
    result = autotuned.compress(tmp_path / "tuned", within="5%", out=tmp_path / "few", targets=[str(path), str(path)])
    assert result.kernels[0].calls == 3
    failing = tmp_path / "steps_failing.py"
    failing.write_text(MODULE + '    raise KeyError("gone")\n')
    with pytest.raises(errors.TargetError, match="cases: KeyError: 'gone'"):
        autotuned.compress(tmp_path / "tuned", within="5%", out=tmp_path / "few", targets=str(failing))
