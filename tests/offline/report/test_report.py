"""What a report finds: summaries, which parameters matter, sizes, the worst choices, what to tune next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import CONTEXT, DEVICE, FakeConfig, form, make_key

import autotuned
from autotuned.errors import KernelNameError
from autotuned.gpu.device import INTERPRETER
from autotuned.key.key import Key
from autotuned.offline.report.parameters import sizes
from autotuned.offline.report.report import Report
from autotuned.recording.file import RecordedCall, Writer
from autotuned.store import records
from autotuned.store.record import Timing, TuningRecord

Config = dict[str, Any]
GRID = [FakeConfig({"BLOCK": block}, warps) for block in (16, 32, 64) for warps in (4, 8)]
H200 = {**DEVICE, "name": "NVIDIA H200"}


def keep(
    key: Key, time: Callable[[int, int], float | None], default: int = 0, quality: str = "ok", **provenance: object
) -> None:
    """A record of `GRID` whose times come from a formula of block and warps; None: it failed."""
    timings = [
        Timing(form(config), us, us, us, 10) if us is not None else Timing(form(config), status="failed", error="E: no")
        for config, us in ((config, time(config.kwargs["BLOCK"], config.num_warps)) for config in GRID)
    ]
    best = min((one for one in timings if one.median_us), key=lambda one: one.median_us or 0.0)
    facts = {"default": form(GRID[default]), "seconds": 2.0, **provenance}
    assert records.keep(TuningRecord(key, best.config, best.median_us, quality, tuple(timings), facts))


def steady(block: int, warps: int) -> float:
    """Block 32 is the best in all calls; warps make 1%."""
    return 10.0 * {16: 2.0, 32: 1.0, 64: 1.5}[block] * {4: 1.0, 8: 1.01}[warps]


def kinds(found: Report) -> list[str]:
    return [one.kind for one in found.suggestions]


def test_nothing_is_averaged_over_devices_and_toolchains() -> None:
    keep(make_key(1), steady)
    keep(make_key(2), lambda block, warps: steady(block, warps) ** 2)
    keep(make_key(1, triton="3.6.0"), lambda *_: 5.0)
    keep(make_key(1, device=H200), lambda block, warps: 80.0 / block)
    keep(make_key(1, device=INTERPRETER.to_json()), steady, default=4)
    found = autotuned.report()
    said = [(one.device.split("-")[1], one.toolchain, one.cases, one.vs_default) for one in found.devices]
    assert said == [
        ("h100", "triton 3.6.0", 1, 1.0),
        ("h100", "triton 3.9.0", 2, pytest.approx((2.0 * 4.0) ** 0.5)),
        ("h200", "triton 3.9.0", 1, 4.0),
        ("interpreter", "triton 3.9.0", 1, 1.5),
    ]
    assert [one.interpreted for one in found.devices] == [False, False, False, True]
    assert len(found.kernels) == 4 and {one.kernel for one in found.kernels} == {"app.k"}


def test_a_notebook_shows_a_line_and_print_all() -> None:
    keep(make_key(1), steady)
    found = autotuned.report()
    assert repr(found) == "<Report on 1 call of 1 kernel: see .kernels, .devices, .worst and .suggestions>"
    assert str(found) == f"Report(cases={found.cases!r}, coverage=None, older=0)"
    assert all(hasattr(found, name) for name in ("kernels", "devices", "worst", "suggestions"))


def test_what_runs_untuned_is_the_default_else_the_first_of_the_list() -> None:
    keep(make_key(1), steady, default=4)
    keep(make_key(2), steady, default=0)
    records_without = make_key(3)
    keep(records_without, steady, default=4)
    path = records.layout.record_path(records_without)
    path.write_text(path.read_text().replace('"default"', '"other"'))
    found = autotuned.report()
    assert [case.vs_default for case in found.cases] == [1.5, 2.0, 2.0]
    roles = [[one.label for one in case.configs if "default" in one.roles] for case in found.cases]
    assert [label.split()[0] for [label] in roles] == ["BLOCK=64", "BLOCK=16", "BLOCK=16"]


def test_a_key_in_the_store_and_in_files_is_one_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(make_key(1), steady)
    autotuned.export(tmp_path)
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", str(tmp_path))
    [case] = autotuned.report().cases
    assert case.stored.place == "store" and len(case.configs) == 6


def test_of_several_sources_of_a_kernel_the_one_tuned_last_counts() -> None:
    for source, date, slow in (("aa", "2026-01-02", 1), ("bb", "2026-03-01", 3), ("cc", "2026-02-01", 2)):
        keep(make_key(1, source=source), lambda b, w, slow=slow: slow * steady(b, w), date=date)  # type: ignore[misc]
    keep(make_key(1, version={"int": "2"}), steady, date="2025-01-01")  # another version is no older source
    found = autotuned.report()
    assert sorted(case.stored.median_us or 0 for case in found.cases) == [10.0, 30.0] and found.older == 2


# -- parameters ---------------------------------------------------------------------------------------------------


def test_a_parameter_that_must_be_tuned_is_told_from_one_that_needs_one_value() -> None:
    """Block 16 is best for one call and 64 for the other, warps hardly matter."""
    keep(make_key(1), lambda block, warps: block * {4: 1.0, 8: 1.01}[warps])
    keep(make_key(2), lambda block, warps: 1024 / block * {4: 1.0, 8: 1.01}[warps])
    [found] = autotuned.report().tunables
    block, warps = found.parameters
    assert (block.name, warps.name) == ("BLOCK", "num_warps") and found.cases == 2
    assert [(one.value, one.chosen) for one in block.values] == [("16", 1), ("32", 0), ("64", 1)]
    assert [one.cost for one in block.values] == pytest.approx([2.0, 2.0, 2.0])
    assert (block.fixed, block.wrong) == pytest.approx((2.0, 2.0))
    assert (warps.fixed, warps.wrong) == pytest.approx((1.0, 1.01))
    assert found.one is not None and (found.one.cost, found.one.worst) == pytest.approx((2.0, 4.0))


def test_a_value_that_did_not_run_everywhere_is_not_the_one_for_all() -> None:
    keep(make_key(1), steady)
    keep(make_key(2), lambda block, warps: None if block == 32 else steady(block, warps))
    [found] = autotuned.report().tunables
    block = found.parameters[0]
    assert block.fixed == pytest.approx((1.5 * 1.0) ** 0.5) and block.values[1].cost == pytest.approx(1.0)
    assert found.one is not None and found.one.label.startswith("BLOCK=64")


def test_without_timings_no_parameter_is_judged() -> None:
    chosen = form(GRID[0])
    records.keep(TuningRecord(make_key(1), chosen, 1.0, "ok", (), {"vs_default": 2.0}))
    found = autotuned.report()
    assert found.tunables == [] and found.cases[0].vs_default == 2.0 and found.suggestions == []


# -- sizes --------------------------------------------------------------------------------------------------------


def tensor(*shape: int) -> Config:
    return {"dtype": "torch.float16", "strides": "*1", "shape": list(shape)}


@pytest.mark.parametrize(
    ("calls", "label", "expected"),
    [
        ([], "", []),
        ([{}, {}], "", []),
        ([{"values": {"n": 3}}, {"values": {"n": 3}}], "", []),
        ([{"values": {"n": 3, "k": 2}}, {"values": {"n": 5, "k": 2}}], "n", [3, 5]),
        ([{"values": {"m": 2, "n": 3}}, {"values": {"m": 4, "n": 5}}], "m * n", [6, 20]),
        # a size of a tensor that is an argument too, and a flag
        (
            [{"values": {"n": n, "flag": n > 3}, "tensors": {"x": tensor(7, n)}} for n in (3, 5)], "n", [3, 5],
        ),
        # an argument that is the product of the others
        (
            [{"values": {"total": m * n}, "tensors": {"x": tensor(m, n)}} for m, n in ((2, 3), (4, 5))],
            "total", [6, 20],
        ),
        ([{"values": {"n": 0}}, {"values": {"n": 5}}], "", []),
        ([{"values": {"n": 3}}, {"values": {"m": 5}}], "", []),
        ([{"values": {"a": i, "b": i + 1, "c": i + 2, "d": i + 3}} for i in (1, 2)], "a * b * c * ...", [24, 120]),
    ],
)  # fmt: skip
def test_a_call_is_as_large_as_the_product_of_what_differs(
    calls: Sequence[Config], label: str, expected: Sequence[float]
) -> None:
    found = sizes(calls)
    assert found[0] == label and (not label or found[1] == expected)


# -- worst, and next ----------------------------------------------------------------------------------------------


def test_what_loses_comes_first_then_what_is_unsure_then_the_least_gain() -> None:
    keep(make_key(1), steady)
    keep(make_key(2), steady, quality="noisy")
    keep(make_key(3), steady, default=4)
    records.keep(TuningRecord(make_key(4), form(GRID[0]), 10.0, "ok", (), {"vs_default": 0.9}))
    keep(make_key(5, device=INTERPRETER.to_json()), steady, default=2, quality="noisy")
    found = autotuned.report()
    assert [case.stored.key.call["values"]["n"] for case in found.worst] == [4, 2, 3, 1]
    said = {one.kind: (one.count, one.text) for one in found.suggestions}
    assert said["slower"] == (
        1,
        "1 of 4 choices is over 1% slower than untuned: `autotuned tune --force` measures again.",
    )
    assert said["noisy"][0] == 1 and set(said) == {"slower", "noisy"}


def test_the_end_of_what_was_tried_is_said_where_it_is_the_best_and_matters() -> None:
    for n in (1, 2, 3):
        keep(make_key(n), lambda block, warps: 640 / block * {4: 1.0, 8: 0.99}[warps])
    [found] = autotuned.report().suggestions
    assert found.kind == "edge" and found.count == 3
    assert found.text == "BLOCK=64 is the largest value tried and the best in 3 of 3 calls: add larger ones."


def test_calls_that_only_an_earlier_toolchain_has_are_to_be_tuned() -> None:
    for n in (1, 2):
        keep(make_key(n, triton="3.9.0"), steady)
    keep(make_key(1, triton="3.10.0"), steady)
    keep(make_key(7, triton="3.9.0", device=H200), steady)
    [found] = autotuned.report().suggestions
    assert (found.kind, found.count, found.toolchain) == ("toolchain", 1, "triton 3.10.0")


def test_configs_that_mostly_fail_and_calls_that_are_missing(tmp_path: Path) -> None:
    keep(make_key(1), lambda block, warps: None if warps == 8 or block == 16 else steady(block, warps), default=2)
    writer = Writer(tmp_path / "calls.jsonl")
    for n, count in ((1, 5), (2, 7), (3, 1)):
        call = RecordedCall("app.k", "app:k", make_key(n), {}, None, count)
        writer.call(call)
    writer.close()
    found = autotuned.report(calls=tmp_path / "calls.jsonl")
    assert kinds(found) == ["missing", "failing"]
    assert found.suggestions[0].text == "8 calls are recorded and not tuned: give the recording to `autotuned tune`."
    assert found.suggestions[1].text.startswith("4 of 6 configs failed")
    other = autotuned.report(calls=tmp_path / "calls.jsonl", triton="3.9").coverage
    assert other is not None and other.calls == 13


def test_a_recording_is_filtered_as_the_choices_are(tmp_path: Path) -> None:
    keep(make_key(1), steady)
    keep(Key("app.other", make_key(1).call, {**CONTEXT, "device": H200}), steady)
    writer = Writer(tmp_path / "calls.jsonl")
    for key in (make_key(1), make_key(2, device=H200), make_key(1, kernel="app.other")):
        call = RecordedCall(key.kernel, "app:k", key, {}, None, 1)
        writer.call(call)
    writer.close()
    counts = [
        autotuned.report(name, calls=tmp_path / "calls.jsonl", device=device).coverage.calls  # type: ignore[union-attr]
        for name, device in ((None, None), (None, "h200"), ("k", None), ("other", None))
    ]
    assert counts == [3, 1, 2, 1]


def test_nothing_tuned_is_an_error() -> None:
    with pytest.raises(KernelNameError, match="nothing is tuned in .*: tune something first"):
        autotuned.report()
