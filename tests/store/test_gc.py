import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeConfig, by_identity, form, make_key
from faults import everything_in, faults

from autotuned import disk
from autotuned.gpu.device import INTERPRETER
from autotuned.resolve import sources
from autotuned.store import gc, layout, listing, locks, record, records
from autotuned.store.record import Timing, TuningRecord

CONFIG = FakeConfig({"BLOCK": 64})
DAY_S = 86400.0


def keep(n: int, age_days: float = 0.0) -> Path:
    key = make_key(n)
    assert records.keep(TuningRecord(key, form(CONFIG), 10.0, "ok", (Timing(form(CONFIG), 10.0, 10.0, 10.0, 40),)))
    return aged(layout.record_path(key), age_days)


def aged(path: Path, days: float) -> Path:
    then = time.time() - days * DAY_S
    os.utime(path, (then, then), follow_symlinks=False)
    return path


def left() -> set[str]:
    return {path.name for path, _ in listing.all_records()}


def test_what_is_older_than_the_limit_goes() -> None:
    old, young = keep(1, age_days=11), keep(2, age_days=9)
    freed = gc.run(layout.root(), max_age_s=10 * DAY_S)
    assert left() == {young.name}
    assert (freed.records, freed.kept_records) == (1, 1)
    assert freed.bytes > 0
    assert not old.exists()


def test_the_least_recently_used_go_until_the_rest_fits() -> None:
    paths = [keep(n, age_days=n) for n in range(1, 7)]
    size = paths[0].stat().st_size
    freed = gc.run(layout.root(), max_bytes=3 * size + size // 2)
    assert left() == {path.name for path in paths[:3]}
    assert freed.kept_bytes == sum(path.stat().st_size for path in paths[:3])
    assert gc.run(layout.root(), max_bytes=3 * size + size // 2).records == 0
    assert gc.run(layout.root(), max_bytes=0).records == 3


def test_without_limits_nothing_good_goes() -> None:
    keep(1, age_days=10_000)
    assert gc.run(layout.root()).records == 0
    assert gc.run(layout.root() / "nowhere", 0, 0) == gc.Freed()


def test_a_record_whose_lock_is_held_stays() -> None:
    held, free = keep(1, age_days=5), keep(2, age_days=3)
    with records.locked(make_key(1), INTERPRETER):
        freed = gc.run(layout.root(), max_bytes=0, max_age_s=DAY_S)
    assert left() == {held.name}
    assert (freed.records, freed.kept_records) == (1, 1)
    assert not free.exists()


def test_a_served_record_counts_as_used_at_most_once_a_day() -> None:
    path = keep(1, age_days=0)
    written = path.stat().st_mtime
    aged(path, 5)
    assert sources.find(make_key(1), by_identity(CONFIG)) is not None
    assert path.stat().st_mtime >= written
    aged(path, 0.5)
    before = path.stat().st_mtime
    sources.find(make_key(1), by_identity(CONFIG))
    assert path.stat().st_mtime == before


def test_a_reader_without_write_access_is_served_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    keep(1, age_days=5)
    with faults("utime", errno.EPERM):
        assert sources.find(make_key(1), by_identity(CONFIG)) is not None
    assert caplog.records == []


@pytest.mark.parametrize(
    ("name", "limit_days"),
    [
        (".a.json.1234.tmp", 1 / 24),
        (".a.logbook", 30),
        (f".{make_key(1).digest}.logbook", 1 / 24),
        ("damaged/a.1.json", 30),
        ("locks/a.lock", 1),
        ("locks/.a.lock.holder.1234.tmp", 1 / 24),
        ("journal/a.json", 30),
        ("../../programs/a.json", 365),
        ("journal/.a.json.1234.tmp", 1 / 24),
    ],
)
def test_leftovers_go_when_nobody_can_want_them(name: str, limit_days: float) -> None:
    record_path = keep(1)
    path = record_path.parent / name
    path.parent.mkdir(exist_ok=True)
    for factor, there in ((0.9, True), (1.1, False)):
        path.write_text("x")
        aged(path, factor * limit_days)
        freed = gc.run(layout.root())
        assert path.exists() is there
        assert freed.leftovers == (not there)
    assert left() == {record_path.name}


def test_a_lock_that_is_held_is_not_unlinked() -> None:
    path = layout.lock_path(keep(1))
    with locks.locked(path):
        aged(path, 5)
        assert gc.run(layout.root()).leftovers == 0
    assert path.exists()


def test_strange_things_in_the_folder_are_left_alone() -> None:
    folder = keep(1).parent
    (folder / "a.json").mkdir()
    (folder / "b.json").symlink_to("/nowhere")
    (folder / "readme.txt").write_text("mine")
    (layout.root() / "v2" / "file").write_text("")
    (layout.root() / "other").mkdir()
    before = everything_in(layout.root())
    for path in layout.root().rglob("*"):
        if path.name != "app.k" and "locks" not in path.parts and path.is_file():
            aged(path, 1000)
    gc.run(layout.root(), max_bytes=0, max_age_s=0)
    after = everything_in(layout.root())
    assert [path for path in before if path not in after] == [f"v2/app.k/{make_key(1).digest}.json"]


@pytest.mark.parametrize("call", ["unlink", "scandir"])
def test_errors_are_ignored(call: str) -> None:
    keep(1, age_days=5)
    with faults(call, errno.EACCES):
        gc.run(layout.root(), 0, 0)
    assert len(left()) == 1


def test_keeping_bounds_the_store_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Any] = []
    monkeypatch.setattr(gc, "run", lambda *limits: runs.append(limits))
    keys = [make_key(n) for n in range(2000)]
    due = [key for key in keys if records.is_gc_due(key.digest)]
    assert 1 <= len(due) <= 30
    for key in [*due, *keys[:20]]:
        records.keep(TuningRecord(key, form(CONFIG), 10.0, "ok", ()))
    assert set(runs) == {(layout.root(), gc.DEFAULT_MAX_BYTES, gc.DEFAULT_MAX_AGE_S)}
    assert len(runs) == len(due) + sum(records.is_gc_due(key.digest) for key in keys[:20])


def test_b54_the_store_holds_timings_only() -> None:
    configs = [FakeConfig({"BLOCK": n}) for n in range(200)]
    timings = tuple(Timing(form(config), 10.0, 10.0, 10.0, 40) for config in configs)
    result = TuningRecord(make_key(), form(configs[0]), 10.0, "ok", timings)
    records.keep(result)
    size = sum(path.stat().st_size for path in layout.root().rglob("*") if path.is_file())
    assert size == len(disk.text(record.dump(result)))
    assert size < 200 * 400
    assert layout.root() == layout.root()
