"""Tests of `exchange`, through the commands: export, import, merge and diff; of `audit` beside them: `test_audit.py`."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from commands import run, run_json
from fakes import DEVICE, FakeConfig, form, make_key
from shipped import write_measured as write

from autotuned.configfiles import file, writer
from autotuned.configfiles.file import ConfigFile, Entry, split_context
from autotuned.gpu.device import from_json
from autotuned.key.key import Key
from autotuned.resolve import sources
from autotuned.store import layout, records
from autotuned.store.conditions import Checked, Conditions
from autotuned.store.record import Quality, Timing, TuningRecord

SMALL, LARGE = FakeConfig({"BLOCK": 64}), FakeConfig({"BLOCK": 128}, num_warps=8)
SLUG = from_json(DEVICE).slug


def keep(
    key: Key,
    config: FakeConfig = LARGE,
    us: float = 10.4567,
    first_us: float = 20.0,
    quality: Quality = "ok",
    **more: Any,
) -> None:
    """A record of a search in which the first config of the list lost."""
    timings = (Timing(form(SMALL), first_us, first_us, first_us, 40), Timing(form(config), us, us, us, 40))
    assert records.keep(TuningRecord(key, form(config), us, quality, timings, more))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def entries(path: Path) -> list[Entry]:
    return [entry for _, entry in file.parse(path.read_bytes(), str(path)).entries()]


# -- export and import -----------------------------------------------------------------------------------------------


def test_export_check_import_export_is_the_same_to_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qualities: dict[int, Quality] = {3: "ok", 2: "tied", 20: "noisy", 21: "unresolved"}
    for n, quality in qualities.items():
        keep(make_key(n), quality=quality)
    keep(make_key(1, triton="3.8.0"), us=0.000123456)
    keep(make_key(1, kernel="App.Other"), FakeConfig({"F": 0.5, "T": (1, 2)}, pre_hook=print))
    keep(make_key(1, device={**DEVICE, "name": "NVIDIA H200"}))
    run("export", "--out", tmp_path / "a")
    run("check", tmp_path / "a")
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "other"))
    assert run_json("import", tmp_path / "a") == {
        "written": 7,
        "same": 0,
        "kept": 0,
        "binaries": 0,
        "rules": 0,
        "faults": [],
    }
    run("export", "--out", tmp_path / "b")
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert len(tree(tmp_path / "a")) == 4  # three files, and the attributes
    run("export", "--out", tmp_path / "a")
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert run_json("import", tmp_path / "a")["same"] == 7
    listed = {choice["call"]["values"]["n"]: choice["quality"] for choice in run_json("list", "app.k")["choices"]}
    assert listed == {**qualities, 1: "ok"}


def test_an_exported_entry_has_three_digits_and_the_gain_over_what_runs_untuned(tmp_path: Path) -> None:
    keep(make_key(1))
    keep(make_key(2), default=form(LARGE))
    run("export", "--out", tmp_path)
    found = entries(tmp_path / SLUG / "app.k.json")
    assert [(entry.median_us, entry.vs_default) for entry in found] == [(10.5, 1.91), (10.5, 1.0)]


def test_only_finished_searches_of_the_named_kernels_are_exported(tmp_path: Path) -> None:
    keep(make_key(1))
    keep(make_key(2, kernel="app.other"))
    records.keep(TuningRecord(make_key(3), None, None, "unresolved", (Timing(form(SMALL), 1.0, 1.0, 1.0, 3),)))
    [path] = run_json("export", "k", "--out", tmp_path)["files"]
    assert [entry.call for entry in entries(Path(path))] == [make_key(1).call]
    assert "Did you mean" in run("export", "othr", "--out", tmp_path, code=1).stderr


def test_with_nothing_stored_nothing_is_exported(tmp_path: Path) -> None:
    assert "nothing is stored in" in run("export", "--out", tmp_path / "new", code=1).stderr
    assert not (tmp_path / "new").exists()


def test_what_is_imported_is_served_and_not_measured_again(tmp_path: Path) -> None:
    write(tmp_path, (make_key(1), LARGE, 10.0, 1.5))
    run("import", tmp_path)
    live = {file.canonical(form(config)): config for config in (SMALL, LARGE)}
    found = sources.find(make_key(1), live)
    assert found is not None
    assert (found.config, found.complete) == (LARGE, True)


def test_an_entry_that_does_not_say_its_quality_has_none_in_the_store_and_in_the_next_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a", (make_key(1), SMALL, 10.0, 1.5))
    run("import", tmp_path / "a")
    assert [choice["quality"] for choice in run_json("list")["choices"]] == [None]
    assert ", ok" not in run("show", "app.k").stdout and "n/a" in run("show", "app.k", "--full").stdout
    run("export", "--out", tmp_path / "b")
    path = f"{SLUG}/app.k.json"
    assert (tmp_path / "b" / path).read_bytes() == (tmp_path / "a" / path).read_bytes()


def test_a_merge_keeps_a_quality_that_one_of_the_files_says(tmp_path: Path) -> None:
    keep(make_key(1), quality="tied")
    run("export", "--out", tmp_path / "b")
    [said] = entries(tmp_path / "b" / SLUG / "app.k.json")
    silent = writer.ship(make_key(1), dataclasses.replace(said, quality=None), tmp_path / "a")
    run("merge", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "merged")
    assert entries(tmp_path / "merged" / SLUG / "app.k.json") == [said]
    run("export", "--out", tmp_path / "a")
    assert entries(silent) == [said]


def test_what_was_measured_here_stays(tmp_path: Path) -> None:
    keep(make_key(1), LARGE)
    write(tmp_path, (make_key(1), SMALL, 1.0, 9.0), (make_key(2), SMALL, 1.0, 9.0))
    assert run_json("import", tmp_path) == {"written": 1, "same": 0, "kept": 1, "binaries": 0, "rules": 0, "faults": []}
    there = records.read(layout.record_path(make_key(1)))
    assert there is not None
    assert there.winner == form(LARGE)


def test_importing_a_file_with_a_fault_names_it_and_takes_the_rest(tmp_path: Path) -> None:
    path = write(tmp_path, (make_key(1), LARGE, 1.0, None), (make_key(2), LARGE, 1.0, None))
    path.write_text(path.read_text().replace('"num_warps": 8', '"num_warps": 7', 1))
    result = run("import", path, code=3)
    assert "line 7" in result.stderr
    assert "imported 1 choice" in result.stdout


# -- merge -----------------------------------------------------------------------------------------------------------


def test_merging_keeps_all_and_takes_what_was_measured_better(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    write(a, *((make_key(n), SMALL, 10.0, 1.5) for n in (1, 2, 3, 4, 5)), (make_key(6), SMALL, None, None))
    write(
        b,
        (make_key(1), LARGE, 12.0, 1.6),  # gains more, on a slower machine
        (make_key(2), LARGE, 9.0, 1.4),
        (make_key(3), LARGE, 9.0, 1.5),  # as much, and faster
        (make_key(4), LARGE, None, None),
        (make_key(5), SMALL, 11.0, 1.5),  # the same config: no conflict
        (make_key(6), LARGE, 10.0, None),
        (make_key(7), LARGE, 10.0, None),
        (make_key(1, triton="3.6.0"), LARGE, 10.0, None),
    )
    before = tree(tmp_path)
    found = run_json("merge", a, b, "--out", tmp_path / "c")
    [path] = [Path(file) for file in found["files"]]
    merged = file.parse(path.read_bytes(), str(path))
    large = [1, 3, 6, 7]
    assert [merged.find(make_key(n)).config == form(LARGE) for n in range(1, 8)] == [n in large for n in range(1, 8)]  # type: ignore[union-attr]
    assert merged.find(make_key(1, triton="3.6.0")) is not None
    assert found["entries"] == 8
    assert [(one["call"]["values"]["n"], one["why"]) for one in found["conflicts"]] == [
        (1, "it gains more over the default"), (2, "it gains more over the default"), (3, "it is faster"),
        (4, "it has times"), (6, "it has times"),
    ]  # fmt: skip
    assert {name: text for name, text in tree(tmp_path).items() if not name.startswith("c/")} == before


def test_a_conflict_is_said_in_a_line(tmp_path: Path) -> None:
    a = write(tmp_path / "a", (make_key(1), SMALL, 10.0, 1.5))
    b = write(tmp_path / "b", (make_key(1), LARGE, 9.0, 1.75))
    [line] = run("merge", a, b, "--out", tmp_path / "c.json").stderr.splitlines()
    assert line == (
        "conflict: app.k n=1: took BLOCK=128 num_warps=8 num_stages=3 (9 us, 1.75x), left BLOCK=64 num_warps=4 "
        "num_stages=3 (10 us, 1.50x): it gains more over the default"
    )
    assert file.parse((tmp_path / "c.json").read_bytes(), "c").find(make_key(1)) is not None


def test_what_is_equally_good_is_taken_from_the_first(tmp_path: Path) -> None:
    a = write(tmp_path / "a", (make_key(1), SMALL, 10.0, 1.5))
    b = write(tmp_path / "b", (make_key(1), LARGE, 10.0, 1.5))
    for first, second, config in ((a, b, SMALL), (b, a, LARGE)):
        out = tmp_path / f"{config.kwargs['BLOCK']}.json"
        [conflict] = run_json("merge", first, second, "--out", out)["conflicts"]
        assert conflict["why"] == "it comes first"
        assert entries(out)[0].config == form(config)


def test_one_config_that_passed_two_checks_has_both(tmp_path: Path) -> None:
    checks = [Checked({"function": name}, {"*": 0.1}, True, False, None) for name in ("one", "other")]
    for check, folder in zip(checks, "ab"):
        made = ConfigFile("app.k", from_json(DEVICE))
        key, conditions = make_key(1), Conditions(None, (check,))
        made.add(split_context(key.context)[0], Entry(key.call, form(SMALL), 10.0, 1.5, conditions))
        writer.write(made, tmp_path / folder)
    run("merge", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "c.json")
    [found] = entries(tmp_path / "c.json")
    assert sorted(found.conditions.checks, key=str) == sorted(checks, key=str)


def test_kernels_and_devices_are_kept_apart(tmp_path: Path) -> None:
    sister = {**DEVICE, "name": "NVIDIA H200"}
    write(tmp_path / "a", (make_key(1), SMALL, 1.0, None))
    write(tmp_path / "a", (make_key(1, kernel="app.other"), SMALL, 1.0, None))
    write(tmp_path / "b", (make_key(1, device=sister), LARGE, 1.0, None))
    found = run_json("merge", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "c")
    assert (len(found["files"]), found["conflicts"]) == (3, [])
    error = run("merge", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "c.json", code=1).stderr
    assert "a file holds one kernel on one device, and these are app.k on" in error


@pytest.mark.parametrize("out", ["a", "a/{slug}/app.k.json", "there", "file/x"])
def test_inputs_and_other_files_are_never_written(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("")
    write(tmp_path / "a", (make_key(1), SMALL, 1.0, None))
    write(tmp_path / "b", (make_key(2), SMALL, 1.0, None))
    write(tmp_path / "there", (make_key(3), SMALL, 1.0, None))
    before = tree(tmp_path)
    target = tmp_path / out.format(slug=SLUG)
    assert "--out: " in run("merge", tmp_path / "a", tmp_path / "b", "--out", target, code=1).stderr
    assert tree(tmp_path) == before


def test_merging_again_is_no_error(tmp_path: Path) -> None:
    a = write(tmp_path / "a", (make_key(1), SMALL, 1.0, None))
    for _ in range(2):
        run("merge", a, "--out", tmp_path / "c")
    assert entries(tmp_path / "c" / SLUG / "app.k.json") == entries(a)


def test_a_file_with_gits_marks_is_merged_line_by_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a", (make_key(1), SMALL, 1.0, None), (make_key(2), SMALL, 1.0, None))
    rows = path.read_text().splitlines()
    path.write_text("\n".join([*rows[:6], "<<<<<<< a", rows[6], "=======", rows[7], ">>>>>>> b", *rows[8:]]))
    result = run("merge", path, "--out", tmp_path / "c", code=3)
    assert "line 7" in result.stderr
    assert len(entries(tmp_path / "c" / SLUG / "app.k.json")) == 2


def test_where_nothing_can_be_read_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    assert "none of the inputs can be read" in run("merge", tmp_path / "a.json", "--out", tmp_path / "c", code=1).stderr
    assert "there is no such file" in run("merge", tmp_path / "none", "--out", tmp_path / "c", code=1).stderr
    assert not (tmp_path / "c").exists()


# -- diff ------------------------------------------------------------------------------------------------------------


def test_the_difference_is_what_is_added_removed_and_changed_with_times(tmp_path: Path) -> None:
    write(tmp_path / "a", *((make_key(n), SMALL, 10.0, 1.5) for n in (1, 2, 3, 4)))
    write(
        tmp_path / "b", (make_key(1), SMALL, 10.0, 1.5), (make_key(2), LARGE, 8.0, 1.8), (make_key(3), SMALL, 11.0, 1.4),
        (make_key(5), LARGE, 7.0, None),
    )  # fmt: skip
    found = run_json("diff", tmp_path / "a", tmp_path / "b")["changes"]
    kinds = {one["call"]["values"]["n"]: one["kind"] for one in found}
    assert kinds == {2: "changed", 3: "changed", 4: "removed", 5: "added"}
    assert found[0]["before"]["median_us"] == 10.0
    assert found[0]["after"]["config"] == form(LARGE)
    text = run("diff", tmp_path / "a", tmp_path / "b").stdout
    assert "10 us -> 8 us" in text
    assert text.endswith("1 added, 1 removed, 2 changed\n")


@pytest.mark.parametrize(
    "change",
    [{"triton": {"float": "x"}}, {"triton": ["\x1b[31m"]}, {"triton": 3.9}, {"distributions": ["x"]},
     {"distributions": {"\x1b[31m": {"a": 1}}}, {"distributions": {"jax": "0.6"}, "triton": None}],
    ids=str,
)  # fmt: skip
def test_the_difference_of_a_file_whose_context_somebody_edited(tmp_path: Path, change: dict[str, Any]) -> None:
    """Its toolchain is printed as it stands; one that was no text ended the command with a traceback."""
    path = write(tmp_path / "a", (make_key(1), SMALL, 10.0, 1.5))
    data = json.loads(path.read_text())
    data["groups"][0]["context"].update(change)
    path.write_text(json.dumps(data))
    write(tmp_path / "b", (make_key(1), SMALL, 10.0, 1.5))
    text = run("diff", tmp_path / "a", tmp_path / "b").stdout
    assert "1 added, 1 removed, 0 changed" in text and "\x1b" not in text


def test_the_same_files_have_no_difference(tmp_path: Path) -> None:
    a = write(tmp_path / "a", (make_key(1), SMALL, 10.0, 1.5))
    assert run("diff", a, tmp_path / "a").stdout == "0 added, 0 removed, 0 changed\n"
