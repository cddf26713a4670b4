"""One line over all choices: what it depends on and what not, and that `diff --exit-code` finds what differs."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from commands import run, run_json
from fakes import FakeConfig as Config
from fakes import form, make_key
from stepped import CONFIGS, make, scale

import autotuned
from autotuned import errors
from autotuned.key.key import Key
from autotuned.store import listing, records
from autotuned.store.record import Timing, TuningRecord

LARGE, SMALL = form(Config({"BLOCK": 256})), form(Config({"BLOCK": 64}))


@pytest.fixture(autouse=True)
def alone() -> None:
    """What a kernel of another test has chosen counts as long as it lives."""
    gc.collect()


def keep(key: Key, winner: dict[str, Any] = SMALL, median_us: float = 10.0) -> None:
    """A record of a choice."""
    timings = (Timing(winner, median_us, median_us, median_us, 40),)
    assert records.keep(TuningRecord(key, winner, median_us, "ok", timings))


def test_it_is_one_line_of_hex_digits() -> None:
    keep(make_key(1))
    said = run("list", "--digest").stdout
    assert len(said.strip()) == 64 and said.count("\n") == 1
    assert said.strip() == autotuned.choices_digest() == run_json("list", "--digest")["digest"]


def test_times_are_no_part_of_it_and_configs_keys_and_kernels_are() -> None:
    seen = {autotuned.choices_digest()}

    keep(make_key(1))
    first = autotuned.choices_digest()
    keep(make_key(1), median_us=99.0)
    assert autotuned.choices_digest() == first
    for change in (
        lambda: keep(make_key(1), winner=LARGE),
        lambda: keep(make_key(2)),
        lambda: keep(make_key(1, kernel="app.other")),
        lambda: keep(make_key(3, triton="3.8.0")),
    ):
        seen.add(autotuned.choices_digest())
        change()
        assert autotuned.choices_digest() not in seen


def test_the_place_of_a_choice_and_the_order_of_tuning_are_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (1, 2):
        keep(make_key(n))
    stored = autotuned.choices_digest()
    run("export", "--out", tmp_path / "out")
    assert autotuned.choices_digest() == stored  # in both places
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "other"))
    assert autotuned.choices_digest() != stored
    for n in (2, 1):
        keep(make_key(n))
    assert autotuned.choices_digest() == stored


def test_the_store_s_choice_counts_before_a_file_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(make_key(1), winner=LARGE)
    run("export", "--out", tmp_path / "out")
    keep(make_key(1))
    alone = autotuned.choices_digest()
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", str(tmp_path / "out"))
    assert autotuned.choices_digest() == alone


def test_one_kernel_s_choices_have_a_digest_of_their_own() -> None:
    keep(make_key(1))
    alone = autotuned.choices_digest("k")
    keep(make_key(1, kernel="app.other"))
    assert autotuned.choices_digest("app.k") == alone != autotuned.choices_digest()
    with pytest.raises(errors.KernelNameError):
        autotuned.choices_digest("nothing")


def test_what_only_this_process_knows_counts_in_it() -> None:
    before = autotuned.choices_digest()
    tuned = make(scale)(CONFIGS, cache_results=False)
    import numpy as np

    tuned(np.ones(32), 32)
    assert autotuned.choices_digest() != before
    tuned.cache_clear()
    assert autotuned.choices_digest() == before


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda: keep(make_key(1), median_us=99.0), 0),
        (lambda: keep(make_key(1), winner=LARGE), 1),
        (lambda: keep(make_key(2)), 1),
        (lambda: None, 0),
    ],
    ids=["another time", "another config", "one more", "nothing"],
)
def test_what_differs_is_found_by_diff_where_digests_differ(tmp_path: Path, change: Any, code: int) -> None:
    keep(make_key(1))
    run("export", "--out", tmp_path / "a")
    change()
    run("export", "--out", tmp_path / "b")
    differ = autotuned.choices_digest(paths=tmp_path / "a") != autotuned.choices_digest(paths=tmp_path / "b")
    assert differ == bool(code)
    run("diff", tmp_path / "a", tmp_path / "b")
    run("diff", tmp_path / "a", tmp_path / "b", "--exit-code", code=code)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "app.k.json").write_text("{")
    with pytest.raises(errors.ConfigFileError):
        autotuned.choices_digest(paths=tmp_path)
    with pytest.raises(errors.ConfigFileError):
        autotuned.choices_digest(paths=[])
    assert not list(listing.all_records())
