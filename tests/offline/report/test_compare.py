"""Two sets of choices side by side."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fakes import DEVICE, FakeConfig, form, make_key

import autotuned
from autotuned.errors import ConfigFileError, KernelNameError, OptionError
from autotuned.gpu.device import INTERPRETER
from autotuned.store import layout, listing, records
from autotuned.store.record import Timing, TuningRecord

H200 = {**DEVICE, "name": "NVIDIA H200"}


def put(n: int, times: dict[int, float], kernel: str = "app.k", **context: object) -> None:
    """A record with the times of blocks."""
    timings = tuple(Timing(form(FakeConfig({"BLOCK": block})), us, us, us, 10) for block, us in times.items())
    best = min(timings, key=lambda one: one.median_us or 0.0)
    assert records.keep(TuningRecord(make_key(n, kernel, **context), best.config, best.median_us, "ok", timings))


def ratios(found: autotuned.offline.report.compare.Comparison) -> dict[int, float | None]:
    return {pair.a.stored.key.call["values"]["n"]: pair.ratio for pair in found.pairs}


def test_toolchains_are_paired_by_call_and_device() -> None:
    put(1, {16: 4.0, 32: 8.0}, triton="3.6.0")
    put(1, {16: 3.0, 32: 2.0})
    put(2, {16: 5.0}, triton="3.6.0")
    put(2, {16: 5.0}, device=H200)
    found = autotuned.compare("triton=3.6.0", "triton=3.9.0")
    [pair] = found.pairs
    assert (pair.ratio, pair.same_config, pair.kept) == (2.0, False, 1.5)
    assert [case.stored.device for case in found.only_b] == ["nvidia-h200-sm_90-132"] and len(found.only_a) == 1
    [one] = found.kernels
    assert (one.pairs, one.ratio, one.faster, one.slower, one.changed, one.kept) == (1, 2.0, 1, 0, 1, 1.5)
    assert autotuned.compare("triton=3.9.0", "triton=3.6.0").slower[0].ratio == 0.5


def test_devices_are_paired_by_call_and_toolchain() -> None:
    for triton, us in (("3.6.0", 4.0), ("3.9.0", 8.0)):
        put(1, {16: us}, triton=triton)
        put(1, {16: us / 4}, triton=triton, device=H200)
    found = autotuned.compare("device=h100", "device=h200")
    assert [pair.ratio for pair in found.pairs] == [4.0, 4.0]
    assert all(pair.a.stored.toolchain == pair.b.stored.toolchain for pair in found.pairs)
    [pair] = autotuned.compare("device = NVIDIA H100, triton=3.6", "device=h200,triton=3.9").pairs
    assert pair.ratio == 2.0
    [pair] = autotuned.compare("device=h100", "device=h200", triton="3.9").pairs
    assert pair.a.stored.median_us == 8.0


def test_a_notebook_shows_a_line_and_print_all() -> None:
    put(1, {16: 4.0})
    put(1, {16: 2.0}, device=H200)
    found = autotuned.compare("device=h100", "device=h200")
    assert repr(found) == (
        "<Comparison of device=h100 (A) with device=h200 (B): calls 1 on both sides, 0 on A only, 0 on B only; "
        "see .kernels, .pairs and .slower>"
    )
    assert str(found).startswith("Comparison(a='device=h100', b='device=h200', pairs=[Pair(")
    assert str(found).endswith(", only_a=[], only_b=[])")


def test_interpreter_and_device_have_no_ratio() -> None:
    put(1, {16: 4.0})
    put(1, {16: 4000.0}, device=INTERPRETER.to_json())
    found = autotuned.compare("device=interpreter", "device=h100")
    assert ratios(found) == {1: None} and found.kernels[0].ratio is None and found.slower == []


def test_releases_are_folders_of_config_files_or_stores(tmp_path: Path) -> None:
    put(1, {16: 4.0, 32: 5.0})
    put(1, {16: 1.0}, kernel="app.other")
    autotuned.export(tmp_path / "one")
    shutil.copytree(layout.root(), tmp_path / "store")
    listing.clear()
    put(1, {16: 4.0, 32: 2.0})
    autotuned.export(tmp_path / "two")
    [before] = (tmp_path / "one").glob("*/app.k.json")
    for a in (tmp_path / "one", tmp_path / "store", before):
        for b in (tmp_path / "two", str(layout.root()), "triton=3.9"):
            found = autotuned.compare(a, b, kernel="k")
            assert ratios(found) == {1: 2.0} and found.only_a == found.only_b == []
    kept = autotuned.compare(tmp_path / "store", layout.root()).pairs[0].kept
    assert kept == 2.0 and autotuned.compare(tmp_path / "one", tmp_path / "two").pairs[0].kept is None


def test_a_newer_release_of_everything_is_paired_across_toolchains(tmp_path: Path) -> None:
    """Some kernels were tuned anew, and one stayed as it was."""
    put(1, {16: 4.0}, triton="3.6.0")
    put(1, {16: 1.0}, kernel="app.same", triton="3.6.0")
    autotuned.export(tmp_path / "one")
    listing.clear("app.k")
    put(1, {16: 2.0}, triton="3.9.0")
    autotuned.export(tmp_path / "two")
    found = autotuned.compare(tmp_path / "one", tmp_path / "two")
    assert {pair.a.stored.key.kernel: pair.ratio for pair in found.pairs} == {"app.k": 2.0, "app.same": 1.0}


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    put(1, {16: 4.0})
    (tmp_path / "empty").mkdir()
    for side, error, words in (
        ("h100", OptionError, "expected device=NAME"),
        ("device=", OptionError, "expected device=NAME"),
        ("triton=3.9,kernel=k", OptionError, "expected device=NAME"),
        ("device=h300", KernelNameError, "no choice for device 'h300'"),
        (tmp_path / "empty", ConfigFileError, "there is no config file in it"),
    ):
        with pytest.raises(error, match=words):
            autotuned.compare("triton=3.9", side)
    listing.clear()
    with pytest.raises(KernelNameError, match="nothing is tuned in 'triton=3.9'"):
        autotuned.compare("triton=3.9", "triton=3.9")


def test_another_store_is_left_as_it_is(tmp_path: Path) -> None:
    put(1, {16: 4.0})
    shutil.copytree(layout.root(), tmp_path / "store")
    damaged = next((tmp_path / "store").glob("v*/*/*.json")).with_name("0" * 64 + ".json")
    damaged.write_text("no record")
    assert len(autotuned.compare(tmp_path / "store", "triton=3.9").pairs) == 1
    assert damaged.read_text() == "no record"
