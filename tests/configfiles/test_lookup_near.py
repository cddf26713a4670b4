"""What of another context or shape is served from files: the ladder, sister products, neighbours, among 10,000 entries too."""

import os
from pathlib import Path
from typing import Any

import counted
import pytest
from fakes import CONTEXT, DEVICE, FakeConfig, by_identity, make_key
from shipped import LARGE, LIVE, SLUG, SMALL, find, write
from stored import config_of, lines

from autotuned.configfiles import lazy, lookup, nearest_shape
from autotuned.key.key import Key
from autotuned.resolve import sources
from autotuned.store.choice import Origin

SISTER = {**DEVICE, "name": "NVIDIA H200"}


# -- the ladder ------------------------------------------------------------------------------------------------------


def test_an_entry_of_the_same_minor_version_serves_without_a_warning(tmp_path: Path, caplog: Any) -> None:
    path = write(tmp_path, (make_key(triton="3.9.1"), LARGE))
    lookup.register_configs(tmp_path)
    found = find(make_key())
    assert (found.config, found.origin, found.where) == (LARGE, Origin.LADDER, str(path))
    assert found.note == "Triton 3.9.1, here 3.9.0"
    assert found.key == make_key(triton="3.9.1")
    assert lines(caplog) == []


def test_the_nearest_older_version_serves_with_one_line_a_kernel(tmp_path: Path, caplog: Any) -> None:
    for version, config in (("3.1.0", SMALL), ("3.3.0", LARGE)):
        write(tmp_path / version, (make_key(1, triton=version), config), (make_key(2, triton=version), config))
        lookup.register_configs(tmp_path / version)
    for n in (1, 2, 1):
        assert config_of(find(make_key(n, triton="3.4.0"))) is LARGE
    [line] = lines(caplog)
    assert line.startswith("`app.k`: served by ")
    assert "older Triton 3.3.0, here 3.4.0" in line


def test_a_newer_version_does_not_serve_unless_it_is_allowed(tmp_path: Path) -> None:
    write(tmp_path, (make_key(triton="3.1.0"), LARGE))
    lookup.register_configs(tmp_path)
    assert find(make_key(triton="3.0.0")) is None
    lookup.register_configs(tmp_path, policy={"triton_newer": "warn"})
    assert config_of(find(make_key(triton="3.0.0"))) is LARGE


def test_strict_takes_only_what_the_policy_accepts(tmp_path: Path) -> None:
    write(tmp_path, (make_key(1, triton="3.9.1"), LARGE), (make_key(2, triton="3.8.0"), LARGE))
    lookup.register_configs(tmp_path)
    assert config_of(find(make_key(1), strict=True)) is LARGE
    assert find(make_key(2), strict=True) is None
    assert config_of(find(make_key(2))) is LARGE
    lookup.register_configs(tmp_path, policy={"triton": "accept"})
    assert config_of(find(make_key(2), strict=True)) is LARGE


def test_the_command_line_tunes_what_only_the_ladder_has(tmp_path: Path) -> None:
    write(tmp_path, (make_key(triton="3.9.1"), LARGE))
    lookup.register_configs(tmp_path)
    assert find(make_key(), exact=True, factors={"n": 2.0}) is None


def test_the_same_context_comes_before_another_one_whatever_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "a", (make_key(triton="3.9.1"), SMALL))
    write(tmp_path / "b", (make_key(), LARGE))
    lookup.register_configs(tmp_path / "b")
    lookup.register_configs(tmp_path / "a")  # asked first
    assert find(make_key()).origin is Origin.FILE
    assert config_of(find(make_key())) is LARGE


def test_every_folder_has_the_policy_it_was_registered_with(tmp_path: Path) -> None:
    write(tmp_path / "mine", (make_key(source="old"), SMALL))
    write(tmp_path / "theirs", (make_key(source="older"), LARGE))
    lookup.register_configs(tmp_path / "mine", policy="refuse")
    lookup.register_configs(tmp_path / "theirs", policy={"source": "warn"})
    assert config_of(find(make_key())) is LARGE


def test_a_changed_source_never_serves_by_default(tmp_path: Path) -> None:
    write(tmp_path, (make_key(source="old"), LARGE))
    lookup.register_configs(tmp_path)
    assert find(make_key()) is None
    steps = [look(make_key(), LIVE) for _, look in sources.places(False, False, {})]
    assert steps[2].detail == f"{tmp_path / SLUG / 'app.k.json'}: another source of the kernel; policy 'retune'"


def test_a_config_of_the_ladder_that_is_gone_leaves_the_next(tmp_path: Path) -> None:
    write(tmp_path, (make_key(triton="3.9.1"), FakeConfig({"BLOCK": 1})), (make_key(triton="3.9.2"), LARGE))
    lookup.register_configs(tmp_path)
    assert config_of(find(make_key())) is LARGE


# -- sister products -------------------------------------------------------------------------------------------------


def test_what_a_sister_product_has_is_likely_and_serves_only_where_the_policy_says_so(tmp_path: Path) -> None:
    write(tmp_path, (make_key(device=SISTER), LARGE))
    lookup.register_configs(tmp_path)
    assert find(make_key()) is None
    assert lookup.likely(make_key(), LIVE, {}) == next(name for name, config in LIVE.items() if config is LARGE)
    lookup.register_configs(tmp_path, policy={"device": "accept"})
    assert config_of(find(make_key(), strict=True)) is LARGE


def test_refused_is_not_likely_either(tmp_path: Path) -> None:
    write(tmp_path, (make_key(device=SISTER), LARGE))
    lookup.register_configs(tmp_path, policy="refuse")
    assert lookup.likely(make_key(), LIVE, {}) is None


def test_another_architecture_is_neither(tmp_path: Path) -> None:
    write(tmp_path, (make_key(device={**DEVICE, "name": "NVIDIA B200", "arch": "sm_100"}), LARGE))
    lookup.register_configs(tmp_path, policy="accept")
    assert find(make_key()) is None
    assert lookup.likely(make_key(), LIVE, {}) is None


def test_the_devices_own_file_comes_before_a_sisters(tmp_path: Path) -> None:
    write(tmp_path, (make_key(device=SISTER), LARGE))
    write(tmp_path, (make_key(), SMALL))
    lookup.register_configs(tmp_path, policy="accept")
    assert config_of(find(make_key())) is SMALL
    assert config_of(find(make_key(device=SISTER))) is LARGE


# -- the nearest shape -----------------------------------------------------------------------------------------------


def table(folder: Path, *sizes: int, **context: Any) -> None:
    """A file with a config of its own for each size."""
    write(folder, *((make_key(n, **context), FakeConfig({"BLOCK": n})) for n in sizes))
    lookup.register_configs(folder)


def served(n: int, sizes: tuple[int, ...], strict: bool = False, **context: Any) -> int | None:
    live = by_identity(*(FakeConfig({"BLOCK": size}) for size in sizes))
    found = find(make_key(n, **context), strict, factors={"n": 2.0}, live=live)
    return found and found.config.kwargs["BLOCK"]


@pytest.mark.parametrize(("n", "expected"), [(3, 2), (5, 4), (12, 8), (2048, None), (0, None), (8, 8), (17, None)])
def test_the_nearest_shape_within_the_factor_serves(tmp_path: Path, n: int, expected: int | None) -> None:
    sizes = (1, 2, 4, 8)
    table(tmp_path, *sizes)
    assert served(n, sizes) == expected


def test_without_an_axis_or_in_strict_no_other_shape_serves(tmp_path: Path) -> None:
    table(tmp_path, 2, 4)
    assert find(make_key(3), live=by_identity(FakeConfig({"BLOCK": 2}))) is None
    assert served(3, (2, 4), strict=True) is None


def test_the_neighbour_is_named_once(tmp_path: Path, caplog: Any) -> None:
    table(tmp_path, 4, 8)
    assert [served(n, (4, 8)) for n in (5, 6, 7, 5)] == [4, 4, 4, 4]
    [line] = lines(caplog)
    assert "which was tuned for another shape (nearest shape n=4 for n=5, 0.32 octaves away)" in line


def test_a_neighbour_of_this_context_comes_before_a_nearer_one_of_another(tmp_path: Path) -> None:
    table(tmp_path / "older", 5, triton="3.8.0")
    table(tmp_path / "here", 8)
    assert served(5, (5, 8)) == 5  # the same call
    assert served(6, (5, 8)) == 8
    assert served(4, (5,)) == 5


def test_a_neighbour_that_is_no_candidate_leaves_the_next(tmp_path: Path) -> None:
    table(tmp_path, 4, 8)
    assert served(6, (8,)) == 8


# -- size ------------------------------------------------------------------------------------------------------------


def test_a_file_of_10_000_entries_is_read_once_and_an_answer_costs_what_it_costs_among_ten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    parse = lazy.read_lazily
    monkeypatch.setattr(lazy, "read_lazily", lambda *args: reads.append(args[1]) or parse(*args))
    costs = {}
    for count in (10, 10_000):
        folder = tmp_path / f"of-{count:05}"
        keys = [make_key(n) for n in range(count)]
        write(folder, *((key, LARGE) for key in keys))
        monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", str(folder))
        assert config_of(find(keys[0])) is LARGE
        asked = [make_key(n) for n in range(count - 10, count)]
        assert all(key.digest for key in asked)  # made by the caller
        answers: list[Any] = []
        costs[count] = counted.opcodes(lambda: answers.extend(lookup.look_exact(key, LIVE) for key in asked))
        assert [config_of(seen.choice) for seen in answers] == [LARGE] * 10
        assert reads == [str(folder / SLUG / "app.k.json")]
        reads.clear()
    assert costs[10_000] < 1.1 * costs[10]  # a number of more digits takes a few instructions more


def test_the_nearest_of_10_000_sizes_on_one_axis_is_found(tmp_path: Path) -> None:
    write(tmp_path, *((make_key(3 * n), LARGE) for n in range(1, 10_000)))
    lookup.register_configs(tmp_path)
    found = {n: find(make_key(n), factors={"n": 2.0}) for n in (2, 4, 5000, 29_998, 40_000, 60_000)}
    near = {n: choice and choice.key.call["values"]["n"] for n, choice in found.items()}
    assert near == {2: 3, 4: 3, 5000: 4998, 29_998: 29_997, 40_000: 29_997, 60_000: None}


@pytest.mark.parametrize(
    ("axes", "sizes", "most"),
    [
        pytest.param("n", [(3 * n,) for n in range(10_000)], 4, id="one axis"),
        pytest.param("nm", [(n, m) for n in range(1, 101) for m in range(1, 101)], 40, id="two axes"),
        pytest.param(
            "nmk", [(n, m, k) for n in range(1, 101) for m in (1, 4, 16, 64) for k in range(25)], 64, id="three"
        ),
    ],
)
def test_a_neighbour_among_10_000_entries_is_found_by_looking_at_a_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, axes: str, sizes: list[tuple[int, ...]], most: int
) -> None:
    write(tmp_path, *((shaped(**dict(zip(axes, size))), LARGE) for size in sizes))
    lookup.register_configs(tmp_path)
    factors = dict.fromkeys(axes, 2.0)
    absent = [shaped(**dict.fromkeys(axes, 151)), shaped(**dict(zip(axes, (77, 117, 26))))]
    find(absent[0], factors=factors)  # makes the index
    looked: list[int] = []
    is_near = nearest_shape.is_near
    monkeypatch.setattr(nearest_shape, "is_near", lambda *sides: looked.append(sides[1]) or is_near(*sides))
    monkeypatch.setattr(nearest_shape, "_index", None)
    for key in absent:
        looked.clear()
        find(key, factors=factors)
        assert 0 < len(looked) <= most


def shaped(**values: int) -> Key:
    return Key("app.k", {"tensors": {}, "values": values, "none": []}, CONTEXT)


def test_neighbours_that_are_no_candidates_leave_the_next_however_many_they_are(tmp_path: Path) -> None:
    gone = [(make_key(n), FakeConfig({"BLOCK": 512})) for n in range(101, 150)]
    write(tmp_path, (make_key(100), LARGE), *gone)
    lookup.register_configs(tmp_path)
    choice = find(make_key(150), factors={"n": 2.0})
    assert choice.key == make_key(100)
    assert choice.note == "nearest shape n=100 for n=150, 0.58 octaves away"


def test_neighbours_among_10_000_entries_are_found_by_an_index_that_is_made_once(tmp_path: Path) -> None:
    calls = [(n, kind) for n in range(1, 101) for kind in range(100)]
    path = write(tmp_path, *((shaped(n=n, kind=kind), LARGE) for n, kind in calls))
    lookup.register_configs(tmp_path)
    other = shaped(n=150, kind=7)
    assert find(other, factors={"n": 2.0}).note.startswith("nearest shape n=100 for n=150")
    [index] = lookup.read(path, "app.k").file.indexes.values()  # type: ignore[union-attr]
    assert (len(index), {len(alike) for alike in index.values()}) == (100, {1})
    find(other, factors={"n": 2.0})
    assert lookup.read(path, "app.k").file.indexes[frozenset({"n"})] is index  # type: ignore[union-attr]
    assert os.path.getsize(path) > 10_000 * 100
