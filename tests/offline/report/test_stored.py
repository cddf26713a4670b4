"""Choices of the store and of config files: filtered, and each key once."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import DEVICE, FakeConfig, form, make_key
from given import keep

import autotuned
from autotuned.errors import KernelNameError
from autotuned.gpu.device import INTERPRETER
from autotuned.offline.report import stored
from autotuned.offline.report.stored import Filter
from autotuned.store import records
from autotuned.store.record import Timing, TuningRecord


def put(n: int, block: int = 64, kernel: str = "app.k", **context: object) -> None:
    config = form(FakeConfig({"BLOCK": block}))
    timing = Timing(config, 10.0, 10.0, 10.0, 40)
    assert records.keep(TuningRecord(make_key(n, kernel, **context), config, 10.0, "ok", (timing,)))


@pytest.fixture
def four() -> None:
    put(1)
    put(2, triton="3.6.1")
    put(3, device=INTERPRETER.to_json())
    put(4, kernel="app.other", device={**DEVICE, "name": "NVIDIA H200"})


@pytest.mark.parametrize(
    ("wanted", "sizes"),
    [
        (Filter(), [3, 2, 1, 4]),
        (Filter(device="H100"), [2, 1]),
        (Filter(device="nvidia-"), [2, 1, 4]),
        (Filter(device="NVIDIA H100 80GB"), [2, 1]),
        (Filter(device="interpreter"), [3]),
        (Filter(triton="3.6"), [2]),
        (Filter(triton="3.6.1"), [2]),
        (Filter(triton="3"), [3, 2, 1, 4]),
        (Filter(kernel="other", triton="3.9"), [4]),
        (Filter(kernel="k", device="h100", triton="3.9.0"), [1]),
    ],
    ids=str,
)
def test_a_filter_leaves_what_fits_all_that_is_given(four: None, wanted: Filter, sizes: list[int]) -> None:
    found = [choice.key.call["values"]["n"] for choice in stored.choices(wanted, heads=True)]
    assert sorted(found) == sorted(sizes)


@pytest.mark.parametrize(
    "wanted", [Filter(triton="3.60"), Filter(triton="3.6.1.2"), Filter(device="h300"), Filter("other", "h100")], ids=str
)
def test_what_fits_nothing_is_refused_with_what_there_is(four: None, wanted: Filter) -> None:
    with pytest.raises(KernelNameError, match=r"no choice for .*Devices are .*nvidia-h200.*; versions of Triton are"):
        list(stored.choices(wanted))


def test_nothing_stored_is_no_error_of_a_filter() -> None:
    assert list(stored.choices(Filter(device="h100"))) == []


def test_a_key_counts_once_and_the_store_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(2)
    autotuned.export(tmp_path)
    put(1, block=128)
    put(7)
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", str(tmp_path))
    assert len(list(stored.choices())) == 5
    once = list(stored.choices(once=True))
    assert [(choice.key.call["values"]["n"], choice.place) for choice in once] == [
        (0, "store"), (1, "store"), (7, "store"),
    ]  # fmt: skip
    assert once[1].config is not None and once[1].config["kwargs"] == {"BLOCK": 128}


def test_an_unfinished_search_does_not_hide_a_shipped_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(1)
    autotuned.export(tmp_path)
    records.keep(TuningRecord(make_key(0), None, None, "unresolved", (), {}))
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", str(tmp_path))
    assert [choice.place for choice in stored.choices(once=True)] == ["file"]
