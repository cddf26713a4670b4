"""Tests of `files`: folders in order, the ladder, the nearest shape, bad files, 10,000 entries."""

import importlib.metadata
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fakes import CONTEXT, DEVICE, FakeConfig, by_identity, form, make_key

from autotuned import configfile, files, nearest, policy, shipping, store
from autotuned.configfile import ConfigFile, Entry, split_context
from autotuned.device import from_json
from autotuned.errors import ConfigFileError
from autotuned.key import Key
from autotuned.store import Rung

SMALL, LARGE, OTHER = FakeConfig({"BLOCK": 64}), FakeConfig({"BLOCK": 128}), FakeConfig({"BLOCK": 256})
LIVE = by_identity(SMALL, LARGE, OTHER)
SLUG = from_json(DEVICE).slug
SISTER = {**DEVICE, "name": "NVIDIA H200"}


def write(folder: Path, *entries: tuple[Key, FakeConfig], name: str = "app.k") -> Path:
    """A config file with these choices below a folder; the device is that of the first key."""
    device = from_json(entries[0][0].context["device"])
    file = ConfigFile(name, device)
    for key, config in entries:
        file.add(split_context(key.context)[0], Entry(key.call, form(config), 10.0, 1.5))
    return shipping.write(file, folder)


def find(key: Key, strict: bool = False, exact: bool = False, factors: Any = None, live: Any = LIVE) -> Any:
    return store.find(key, live, list(store.places(strict, exact, factors or {})), (), strict)


def config_of(choice: Any) -> Any:
    return choice and choice.config


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


# -- the ladder ------------------------------------------------------------------------------------------------------


def test_an_entry_of_the_same_minor_version_serves_without_a_warning(tmp_path: Path, caplog: Any) -> None:
    path = write(tmp_path, (make_key(triton="3.9.1"), LARGE))
    store.register_configs(tmp_path)
    found = find(make_key())
    assert (found.config, found.rung, found.origin) == (LARGE, Rung.LADDER, str(path))
    assert found.note == "Triton 3.9.1, here 3.9.0"
    assert found.key == make_key(triton="3.9.1")
    assert lines(caplog) == []


def test_the_nearest_older_version_serves_with_one_line_a_kernel(tmp_path: Path, caplog: Any) -> None:
    for version, config in (("3.1.0", SMALL), ("3.3.0", LARGE)):
        write(tmp_path / version, (make_key(1, triton=version), config), (make_key(2, triton=version), config))
        store.register_configs(tmp_path / version)
    for n in (1, 2, 1):
        assert config_of(find(make_key(n, triton="3.4.0"))) is LARGE
    [line] = lines(caplog)
    assert line.startswith("`app.k`: served by ")
    assert "older Triton 3.3.0, here 3.4.0" in line


def test_a_newer_version_does_not_serve_unless_it_is_allowed(tmp_path: Path) -> None:
    write(tmp_path, (make_key(triton="3.1.0"), LARGE))
    store.register_configs(tmp_path)
    assert find(make_key(triton="3.0.0")) is None
    store.register_configs(tmp_path, policy={"triton_newer": "warn"})
    assert config_of(find(make_key(triton="3.0.0"))) is LARGE


def test_strict_takes_only_what_the_policy_accepts(tmp_path: Path) -> None:
    write(tmp_path, (make_key(1, triton="3.9.1"), LARGE), (make_key(2, triton="3.8.0"), LARGE))
    store.register_configs(tmp_path)
    assert config_of(find(make_key(1), strict=True)) is LARGE
    assert find(make_key(2), strict=True) is None
    assert config_of(find(make_key(2))) is LARGE
    store.register_configs(tmp_path, policy={"triton": "accept"})
    assert config_of(find(make_key(2), strict=True)) is LARGE


def test_the_command_line_tunes_what_only_the_ladder_has(tmp_path: Path) -> None:
    write(tmp_path, (make_key(triton="3.9.1"), LARGE))
    store.register_configs(tmp_path)
    assert find(make_key(), exact=True, factors={"n": 2.0}) is None


def test_the_same_context_comes_before_another_one_whatever_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "a", (make_key(triton="3.9.1"), SMALL))
    write(tmp_path / "b", (make_key(), LARGE))
    store.register_configs(tmp_path / "b")
    store.register_configs(tmp_path / "a")  # asked first
    assert find(make_key()).rung is Rung.FILE
    assert config_of(find(make_key())) is LARGE


def test_every_folder_has_the_policy_it_was_registered_with(tmp_path: Path) -> None:
    write(tmp_path / "mine", (make_key(source="old"), SMALL))
    write(tmp_path / "theirs", (make_key(source="older"), LARGE))
    store.register_configs(tmp_path / "mine", policy="refuse")
    store.register_configs(tmp_path / "theirs", policy={"source": "warn"})
    assert config_of(find(make_key())) is LARGE


def test_a_changed_source_never_serves_by_default(tmp_path: Path) -> None:
    write(tmp_path, (make_key(source="old"), LARGE))
    store.register_configs(tmp_path)
    assert find(make_key()) is None
    steps = [look(make_key(), LIVE) for _, look in store.places(False, False, {})]
    assert steps[2].detail == f"{tmp_path / SLUG / 'app.k.json'}: another source of the kernel; policy 'retune'"


def test_a_config_of_the_ladder_that_is_gone_leaves_the_next(tmp_path: Path) -> None:
    write(tmp_path, (make_key(triton="3.9.1"), FakeConfig({"BLOCK": 1})), (make_key(triton="3.9.2"), LARGE))
    store.register_configs(tmp_path)
    assert config_of(find(make_key())) is LARGE


# -- sister products -------------------------------------------------------------------------------------------------


def test_a_sister_product_is_a_seed_and_serves_only_where_the_policy_says_so(tmp_path: Path) -> None:
    write(tmp_path, (make_key(device=SISTER), LARGE))
    store.register_configs(tmp_path)
    assert find(make_key()) is None
    assert store.seed(make_key(), LIVE, {}) == next(name for name, config in LIVE.items() if config is LARGE)
    store.register_configs(tmp_path, policy={"device": "accept"})
    assert config_of(find(make_key(), strict=True)) is LARGE


def test_refused_is_no_seed_either(tmp_path: Path) -> None:
    write(tmp_path, (make_key(device=SISTER), LARGE))
    store.register_configs(tmp_path, policy="refuse")
    assert store.seed(make_key(), LIVE, {}) is None


def test_another_architecture_is_neither(tmp_path: Path) -> None:
    write(tmp_path, (make_key(device={**DEVICE, "name": "NVIDIA B200", "arch": "sm_100"}), LARGE))
    store.register_configs(tmp_path, policy="accept")
    assert find(make_key()) is None
    assert store.seed(make_key(), LIVE, {}) is None


def test_the_devices_own_file_comes_before_a_sisters(tmp_path: Path) -> None:
    write(tmp_path, (make_key(device=SISTER), LARGE))
    write(tmp_path, (make_key(), SMALL))
    store.register_configs(tmp_path, policy="accept")
    assert config_of(find(make_key())) is SMALL
    assert config_of(find(make_key(device=SISTER))) is LARGE


# -- the nearest shape -----------------------------------------------------------------------------------------------


def table(folder: Path, *sizes: int, **context: Any) -> None:
    """A file with a config of its own for each size."""
    write(folder, *((make_key(n, **context), FakeConfig({"BLOCK": n})) for n in sizes))
    store.register_configs(folder)


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


# -- bad files -------------------------------------------------------------------------------------------------------


def ten(folder: Path, change: Any) -> Path:
    """A file of ten entries, the fifth of them changed."""
    path = write(folder, *((make_key(n), LARGE) for n in range(10, 20)))
    data = json.loads(path.read_text())
    change(data["groups"][0]["entries"][4])
    path.write_text(text_of(data))
    return path


def text_of(data: Any) -> str:
    """The layout of the package's own files, whatever is in the entries."""
    [group] = data["groups"]
    rows = ",\n".join(f"   {json.dumps(entry)}" for entry in group["entries"])
    head = "\n".join(f" {json.dumps(name)}: {json.dumps(data[name])}," for name in ("schema", "kernel", "device"))
    return f'{{\n{head}\n "groups": [\n  {{"context": {json.dumps(group["context"])}, "entries": [\n{rows}]}}\n ]\n}}\n'


def sets(*path: Any, value: Any) -> Any:
    def change(entry: Any) -> None:
        for step in path[:-1]:
            entry = entry[step]
        entry[path[-1]] = value

    return change


ILLEGAL = {
    "num_warps 3": (sets("config", "num_warps", value=3), "num_warps: expected one of 1, 2, 4, 8, 16, 32, 64, got 3."),
    "num_warps text": (sets("config", "num_warps", value="4"), "num_warps: expected int, got str '4'."),
    "a field less": (lambda entry: entry.pop("config"), "field 'config' is missing."),
    "a field more": (sets("why", value=""), "field 'why' is unknown."),
    "what the caller passes": (sets("config", "kwargs", "n", value=1), "sets 'n', which the caller passes"),
    "a negative time": (sets("median_us", value=-1), "median_us: expected a number above 0 or null, got -1."),
    "no object": (sets("call", value=[]), "call: expected dict, got list []."),
    "the same call again": (
        lambda entry: (sets("call", "values", "n", value=10)(entry), sets("median_us", value=7.5)(entry)),
        "a second entry for the call of line 7.",
    ),
}


@pytest.mark.parametrize("kind", ILLEGAL)
def test_one_bad_entry_among_ten_is_named_by_its_line_and_the_others_serve_b94(
    tmp_path: Path, caplog: Any, kind: str
) -> None:
    change, problem = ILLEGAL[kind]
    path = ten(tmp_path, change)
    store.register_configs(tmp_path)
    for _ in range(2):
        assert [n for n in range(10, 20) if find(make_key(n)) is None] == [14]
    [line] = lines(caplog)
    assert line.startswith(f"config file {path}: line 11: groups[0].entries[4]")
    assert problem in line


@pytest.mark.parametrize("kind", ILLEGAL)
def test_strict_raises_what_is_otherwise_a_warning(tmp_path: Path, kind: str) -> None:
    path = ten(tmp_path, ILLEGAL[kind][0])
    store.register_configs(tmp_path)
    for _ in range(2):
        with pytest.raises(ConfigFileError, match="line 11") as caught:
            find(make_key(10), strict=True)
        assert caught.value.path == str(path)


def test_an_entry_that_is_repeated_to_the_letter_is_nothing_to_speak_of(tmp_path: Path, caplog: Any) -> None:
    path = ten(tmp_path, sets("call", "values", "n", value=10))
    store.register_configs(tmp_path)
    assert config_of(find(make_key(10), strict=True)) is LARGE
    assert lines(caplog) == []
    store.ship(make_key(14), Entry(make_key(14).call, form(LARGE), 1.0, None), tmp_path)
    assert configfile.read(path.read_text(), str(path))[1] == []  # written anew without it


MISFITS = {
    "a value that is pruned": ({"BLOCK": 512}, "it is none of the 3 configs of this call"),
    "text for a number": ({"BLOCK": "64"}, "BLOCK: expected int such as 64, got str '64'"),
    "a float for a number": ({"BLOCK": 64.0}, "BLOCK: expected int such as 64, got float"),
    "a bool for a number": ({"BLOCK": True}, "BLOCK: expected int such as 64, got bool True"),
    "another name": ({"BLOK": 64}, "no config of this kernel sets 'BLOK'. Did you mean 'BLOCK'?"),
    "a name less": ({}, "it does not set 'BLOCK'"),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_a_config_that_the_kernel_cannot_have_is_not_served_and_said_why_b94(
    tmp_path: Path, caplog: Any, kind: str
) -> None:
    values, problem = MISFITS[kind]
    write(tmp_path, (make_key(1), FakeConfig(values)), (make_key(2), LARGE))
    store.register_configs(tmp_path)
    assert find(make_key(1)) is None
    assert config_of(find(make_key(2))) is LARGE
    assert len(lines(caplog)) == 1
    assert problem in lines(caplog)[0]


def hook(arguments: Any) -> None: ...


def test_hooks_are_attached_by_value_or_the_entry_is_refused(tmp_path: Path, caplog: Any) -> None:
    hooked = FakeConfig({"BLOCK": 64}, pre_hook=hook)
    write(tmp_path, (make_key(1), hooked), (make_key(2), SMALL))
    store.register_configs(tmp_path)
    assert config_of(find(make_key(1), live=by_identity(hooked, LARGE))) is hooked
    assert find(make_key(1)) is None
    assert find(make_key(2), live=by_identity(hooked, LARGE)) is None
    assert [line.rpartition(": ")[2] for line in lines(caplog)] == [
        "it had a pre_hook, and the live config of equal values has none to attach",
        "it had no pre_hook, and the live config of equal values has one",
    ]


def test_a_file_with_gits_marks_is_read_by_its_lines(tmp_path: Path, caplog: Any) -> None:
    path = write(tmp_path, *((make_key(n), LARGE) for n in (1, 2, 3)))
    rows = path.read_text().splitlines()
    path.write_text("\n".join([*rows[:7], "<<<<<<< ours", rows[7], "=======", *rows[8:], ">>>>>>> theirs"]))
    store.register_configs(tmp_path)
    assert [config_of(find(make_key(n))) for n in (1, 2, 3)] == [LARGE] * 3
    first, *marks = lines(caplog)
    assert first.startswith(f"config file {path}: line 8: ")
    assert "What can be read line by line is used" in first
    assert marks == [f"config file {path}: line {n}: git's mark of a conflict." for n in (8, 10, 14)]


def test_a_file_that_is_cut_off_serves_what_is_whole(tmp_path: Path, caplog: Any) -> None:
    path = write(tmp_path, *((make_key(n), LARGE) for n in (1, 2, 3)))
    path.write_text("\n".join(path.read_text().splitlines()[:8])[:-40])
    store.register_configs(tmp_path)
    assert [config_of(find(make_key(n))) for n in (1, 2, 3)] == [LARGE, None, None]
    assert len(lines(caplog)) == 2


def test_a_folder_that_may_not_be_read_is_said_once_and_the_next_one_serves(
    tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    closed, opened = tmp_path / "closed", tmp_path / "open"
    closed.mkdir()
    write(opened, (make_key(triton="3.9.1"), LARGE))
    stat = Path.stat

    def refuse(path: Path, **options: Any) -> os.stat_result:
        if path == closed or closed in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(files, "_registered", [files.Folder(closed, policy.DEFAULTS)])
    store.register_configs(opened)
    assert [config_of(find(make_key())) for _ in range(2)] == [LARGE, LARGE]
    assert [line for line in lines(caplog) if line.startswith("config files in")] == [
        f"config files in {closed} are left out: [Errno 13] Permission denied: '{closed}'."
    ]
    assert list(files.shipped()) != []


# -- packages --------------------------------------------------------------------------------------------------------


def publish(patch: pytest.MonkeyPatch, *values: str) -> None:
    """Entry points as installed distributions would have them."""
    points = [importlib.metadata.EntryPoint(f"p{n}", value, files.GROUP) for n, value in enumerate(values)]
    patch.setattr(importlib.metadata, "entry_points", lambda group: points if group == files.GROUP else [])


def package(root: Path, name: str, config: FakeConfig) -> None:
    (root / name).mkdir()
    (root / name / "__init__.py").touch()
    write(root / name, (make_key(), config))


def test_packages_that_an_entry_point_names_are_asked_by_name_after_those_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, config in (("tuned_one", SMALL), ("tuned_two", LARGE)):
        package(tmp_path, name, config)
    monkeypatch.syspath_prepend(str(tmp_path))
    publish(monkeypatch, "tuned_one", "tuned_two")
    assert config_of(find(make_key())) is SMALL
    write(tmp_path / "mine", (make_key(), OTHER))
    store.register_configs(tmp_path / "mine")
    assert config_of(find(make_key())) is OTHER
    for name in ("tuned_one", "tuned_two"):
        sys.modules.pop(name)


def test_an_entry_point_that_cannot_be_imported_is_said_once_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    (tmp_path / "tuned_bad.py").write_text("raise RuntimeError('boom')")
    package(tmp_path, "tuned_good", LARGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    publish(monkeypatch, "tuned_bad", "no_such_package_at_all", "tuned_good")
    for _ in range(2):
        assert config_of(find(make_key())) is LARGE
    assert len(lines(caplog)) == 2
    assert "entry point 'p0' of group autotuned.configs: expected a package of config files" in lines(caplog)[0]
    assert "RuntimeError: boom" in lines(caplog)[0]
    sys.modules.pop("tuned_good")


# -- size ------------------------------------------------------------------------------------------------------------


def test_a_file_of_10_000_entries_is_read_once_and_answers_in_less_than_100_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [make_key(n) for n in range(10_000)]
    write(tmp_path, *((key, LARGE) for key in keys))
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", str(tmp_path))
    reads = []
    parse = configfile.read
    monkeypatch.setattr(configfile, "read", lambda *args: reads.append(args[1]) or parse(*args))
    assert config_of(find(keys[0])) is LARGE
    asked = [make_key(n) for n in range(100, 300)]
    took = []
    for key in asked:
        assert key.digest  # made by the caller
        start = time.perf_counter()
        seen = files.look_exact(key, LIVE)
        took.append(time.perf_counter() - start)
        assert config_of(seen.choice) is LARGE
    assert reads == [str(tmp_path / SLUG / "app.k.json")]
    assert sorted(took)[len(took) // 4] < 100e-6  # a quarter: the machine may be busy with other things


def test_the_nearest_of_10_000_sizes_on_one_axis_is_found(tmp_path: Path) -> None:
    write(tmp_path, *((make_key(3 * n), LARGE) for n in range(1, 10_000)))
    store.register_configs(tmp_path)
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
    store.register_configs(tmp_path)
    factors = dict.fromkeys(axes, 2.0)
    absent = [shaped(**dict.fromkeys(axes, 151)), shaped(**dict(zip(axes, (77, 117, 26))))]
    find(absent[0], factors=factors)  # makes the index
    looked: list[int] = []
    apart = nearest.apart
    monkeypatch.setattr(nearest, "apart", lambda *sides: looked.append(sides[1]) or apart(*sides))
    monkeypatch.setattr(files, "_index", None)
    for key in absent:
        looked.clear()
        find(key, factors=factors)
        assert 0 < len(looked) <= most


def shaped(**values: int) -> Key:
    return Key("app.k", {"tensors": {}, "values": values, "none": []}, CONTEXT)


def test_neighbours_that_are_no_candidates_leave_the_next_however_many_they_are(tmp_path: Path) -> None:
    gone = [(make_key(n), FakeConfig({"BLOCK": 512})) for n in range(101, 150)]
    write(tmp_path, (make_key(100), LARGE), *gone)
    store.register_configs(tmp_path)
    choice = find(make_key(150), factors={"n": 2.0})
    assert choice.key == make_key(100)
    assert choice.note == "nearest shape n=100 for n=150, 0.58 octaves away"


def test_neighbours_among_10_000_entries_are_found_by_an_index_that_is_made_once(tmp_path: Path) -> None:
    calls = [(n, kind) for n in range(1, 101) for kind in range(100)]
    path = write(tmp_path, *((shaped(n=n, kind=kind), LARGE) for n, kind in calls))
    store.register_configs(tmp_path)
    other = shaped(n=150, kind=7)
    assert find(other, factors={"n": 2.0}).note.startswith("nearest shape n=100 for n=150")
    [index] = files.read(path, "app.k").file.indexes.values()  # type: ignore[union-attr]
    assert (len(index), {len(alike) for alike in index.values()}) == (100, {1})
    find(other, factors={"n": 2.0})
    assert files.read(path, "app.k").file.indexes[frozenset({"n"})] is index  # type: ignore[union-attr]
    assert os.path.getsize(path) > 10_000 * 100
