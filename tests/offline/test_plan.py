"""`autotuned.plan`: what would be measured, and for how long."""

import pytest
from fakes import FakeConfig, form, make_key
from given import Write, work

import autotuned
from autotuned.errors import OptionError, TargetError
from autotuned.gpu.device import from_json
from autotuned.offline.plan import _paces
from autotuned.store import listing, records
from autotuned.store.record import Timing, TuningRecord


def test_a_plan_is_what_tune_does_then(write: Write) -> None:
    module = work(write)
    before = autotuned.plan(module)
    assert [case.status for case in before.cases] == ["measure"] * 2 and before.configs == 6
    assert len(before.unknown) == 2 and before.seconds == 0.0
    done = autotuned.tune(module)
    assert [case.digest for case in done.cases] == [case.digest for case in before.cases]
    after = autotuned.plan([module])
    assert [(case.status, case.source) for case in after.cases] == [("stored", "stored")] * 2
    again = autotuned.plan(module, force=True)
    assert len(again.to_measure) == 2 and not again.unknown and again.to_json()["measure"] == 2


def test_a_config_file_counts_as_stored_and_a_case_listed_twice_is_measured_once(write: Write, monkeypatch) -> None:
    module = work(write, "1 2")
    autotuned.tune(module, out="tuned")
    listing.clear()
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", "tuned")
    work(write, "1 3 3")
    found = autotuned.plan(f"{module}.py")
    assert [case.status for case in found.cases] == ["stored", "measure", "stored"]
    assert str(found.cases[0].source).endswith("mod_work.work.json")


def test_what_earlier_searches_took_is_told_by_kernel_and_device() -> None:
    config = form(FakeConfig({"BLOCK": 1}))
    for n, (seconds, count) in enumerate(((6.0, 2), (2.0, 2), (None, 1))):
        timings = tuple(Timing({**config, "kwargs": {"BLOCK": b}}, 1.0, 1.0, 1.0, 9) for b in range(count))
        how = {} if seconds is None else {"seconds": seconds}
        assert records.keep(TuningRecord(make_key(n), timings[0].config, 1.0, "ok", timings, how))
    slug = from_json(make_key().context["device"]).slug
    assert _paces("app.k") == {slug: 2.0}  # 8 seconds for 4 configs
    assert _paces("app.other") == {}


def test_targets_are_refused_as_tune_refuses_them(monkeypatch) -> None:
    with pytest.raises(TargetError):
        autotuned.plan("no_such_module")
    monkeypatch.setenv("AUTOTUNED_DEVICE", "tpu")
    with pytest.raises(OptionError):
        autotuned.plan("no_such_module")
