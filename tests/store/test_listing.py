"""Tests of `listing`: what misses and searches ask of stored records is read once, and anew where a file has changed."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeConfig, form, make_key
from given import keep
from shipped import write

from autotuned import disk
from autotuned.configfiles import lookup
from autotuned.errors import NotTunedError
from autotuned.resolve import explain, searcher
from autotuned.store import layout, listing, records
from autotuned.store.record import TuningRecord

COUNT = 150


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The record files that are read from here on."""
    found: list[str] = []
    real = disk._read

    def counted(path: str | Path, *limits: int) -> bytes:
        found.append(os.path.basename(path))
        return real(path, *limits)

    monkeypatch.setattr(disk, "_read", counted)
    return found


def settle() -> None:
    """Let the folder of records look as if nothing had been written in it for a while."""
    folder = layout.record_path(make_key()).parent
    os.utime(folder, (time.time() - 60,) * 2)


def missed(n: int) -> NotTunedError:
    return explain.not_tuned(make_key(n), "mode 'strict' allows no search")


def test_a_kernel_that_misses_again_and_again_reads_each_record_once(reads: list[str]) -> None:
    """Every miss in mode strict read all of them, also that of the same call."""
    keep(COUNT)
    reads.clear()
    for n in (1000, 1000, 2000):
        assert f"the nearest stored key {make_key(COUNT - 1).digest[:12]}" in str(missed(n))
    assert len(reads) == len(set(reads)) == COUNT


def test_where_nothing_has_changed_the_folder_is_not_looked_through(
    reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(COUNT)
    settle()
    missed(1000)
    reads.clear()
    monkeypatch.setattr(os, "scandir", lambda folder: pytest.fail("looked through"))
    missed(1000)
    explain.nearest_words(make_key(2000))
    assert reads == []


def test_what_was_written_replaced_and_removed_meanwhile_is_seen(reads: list[str]) -> None:
    first, *_, last = keep(20)
    missed(1000)
    assert records.keep(TuningRecord(make_key(900), form(FakeConfig({"BLOCK": 64})), 1.0, "ok", ()))
    reads.clear()
    assert make_key(900).digest[:12] in str(missed(1000))
    assert reads == [f"{make_key(900).digest}.json"]
    last.unlink()
    first.write_text("{")
    assert make_key(900).digest[:12] in str(missed(1000))
    known = [head.key.call["values"]["n"] for head in listing.known_heads("app.k")]
    assert sorted(known) == [*range(1, 19), 900]


def test_a_search_reads_what_is_new(reads: list[str]) -> None:
    keep(COUNT)
    reads.clear()
    assert searcher.likely(make_key(5000), [], stored=True)
    assert len(reads) == searcher.LIKELY_READ
    searcher.likely(make_key(6000), [], stored=True)
    assert len(reads) == searcher.LIKELY_READ
    missed(1000)
    assert len(reads) == COUNT
    searcher.likely(make_key(6000), [], stored=True)
    assert len(reads) == COUNT


def test_of_a_large_store_some_are_known(reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    keep(30)
    assert len(listing.known_heads("app.k", 10)) == 10
    monkeypatch.setattr(listing, "MOST_KNOWN", 5)
    for n in range(5, 25):
        listing.known_heads("app.k", 5)
        assert len(listing._known[str(layout.record_path(make_key()).parent)].heads) <= 10
    monkeypatch.setattr(listing, "MOST_FOLDERS", 2)
    listing._known.clear()
    for kernel in ("app.a", "app.b", "app.c"):
        keep(1, kernel)
        assert len(listing.known_heads(kernel)) == 1
    assert len(listing._known) <= 2


def test_config_files_that_are_registered_later_count(tmp_path: Path) -> None:
    keep(1)
    assert make_key(0).digest[:12] in str(missed(1000))
    write(tmp_path, (make_key(999), FakeConfig({"BLOCK": 64})))
    lookup.register_configs(tmp_path)
    assert make_key(999).digest[:12] in str(missed(1000))
    assert json.dumps(explain.nearest(make_key(1000)).call)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("content", "head"),
    [
        ('{"a": 1, "b": {"timings": 2}, "timings": [1, 2', {"a": 1, "b": {"timings": 2}}),
        ('{"a": "\\u00e9,", "timings": [', {"a": "\u00e9,"}),
        ('{"a": ", \\"timings\\": [", "timings": [', {"a": ', "timings": ['}),
        ('{"a": {"b": 1, "timings": []}, "timings": [', None),
        ('{"timings": [', None),
        ('{"a": 1, "b": [1,', None),
        ('{"a": NaN, "timings": [', None),
        ('{"a": 1e999, "timings": [', None),
        ('[1, "timings": [', None),
        ("[" * 5000 + ', "timings": [', None),
        ("", None),
        ('{1: 1, "timings": [', None),
    ],
)
def test_the_first_fields_of_a_file_are_parsed_without_the_rest(content: str, head: Any) -> None:
    assert listing.json_head(content.encode("utf-8"), "timings") == head


class Forgotten(dict[Any, Any]):
    """A memory from which another thread removes an entry just before it is removed here."""

    def pop(self, key: Any, *default: Any) -> Any:
        super().pop(key)
        return super().pop(key, *default)


def test_two_threads_may_forget_the_same_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of a sixteenth kernel and more ended in a `KeyError` if two threads missed at once."""
    monkeypatch.setattr(listing, "_known", Forgotten())
    monkeypatch.setattr(explain, "_latest", Forgotten())
    for number in range(listing.MOST_FOLDERS + 2):
        assert explain.nearest(make_key(kernel=f"app.k{number}")) is None
    assert len(listing._known) <= listing.MOST_FOLDERS >= len(explain._latest)
