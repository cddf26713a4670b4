"""Tests of `exchange` and `audit`, through the commands: export, import, merge, diff and check."""

import copy
import importlib.resources
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import run, run_json
from fakes import DEVICE, FakeConfig, form, make_key

from autotuned.configfiles import file, writer
from autotuned.configfiles.file import ConfigFile, Entry, split_context
from autotuned.gpu.device import from_json
from autotuned.key.key import Key
from autotuned.resolve import sources
from autotuned.store import layout, records
from autotuned.store.conditions import Checked, Conditions
from autotuned.store.record import Timing, TuningRecord

SMALL, LARGE = FakeConfig({"BLOCK": 64}), FakeConfig({"BLOCK": 128}, num_warps=8)
SLUG = from_json(DEVICE).slug
DTYPES = sorted({str(value).removeprefix("torch.") for value in vars(torch).values() if isinstance(value, torch.dtype)})


def keep(key: Key, config: FakeConfig = LARGE, us: float = 10.4567, first_us: float = 20.0, **more: Any) -> None:
    """A record of a search in which the first config of the list lost."""
    timings = (Timing(form(SMALL), first_us, first_us, first_us, 40), Timing(form(config), us, us, us, 40))
    assert records.keep(TuningRecord(key, form(config), us, "ok", timings, more))


def write(folder: Path, *found: tuple[Key, FakeConfig, float | None, float | None]) -> Path:
    """A config file with these choices."""
    file = ConfigFile(found[0][0].kernel, from_json(found[0][0].context["device"]))
    for key, config, us, ratio in found:
        file.add(split_context(key.context)[0], Entry(key.call, form(config), us, ratio))
    return writer.write(file, folder)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def entries(path: Path) -> list[Entry]:
    return [entry for _, entry in file.parse(path.read_bytes(), str(path)).entries()]


# -- export and import -----------------------------------------------------------------------------------------------


def test_export_check_import_export_is_the_same_to_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in (3, 1, 20):
        keep(make_key(n))
    keep(make_key(1, triton="3.8.0"), us=0.000123456)
    keep(make_key(1, kernel="App.Other"), FakeConfig({"F": 0.5, "T": (1, 2)}, pre_hook=print))
    keep(make_key(1, device={**DEVICE, "name": "NVIDIA H200"}))
    run("export", "--out", tmp_path / "a")
    run("check", tmp_path / "a")
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "other"))
    assert run_json("import", tmp_path / "a") == {
        "written": 6,
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
    assert run_json("import", tmp_path / "a")["same"] == 6


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


# -- check -----------------------------------------------------------------------------------------------------------


def faults(*paths: Path) -> list[tuple[int | None, str]]:
    return [(one["line"], one["text"]) for one in run_json("check", *paths, code=1)["faults"]]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    write(tmp_path / "good", (make_key(1), SMALL, 10.0, 1.5), (make_key(2), LARGE, 10.0, None))
    return tmp_path / "good"


def test_files_that_are_in_order_pass(good: Path) -> None:
    found = run_json("check", good)
    assert (found["entries"], found["faults"], len(found["files"])) == (2, [], 1)
    assert run("check", good / SLUG / "app.k.json").stdout == "1 file, 2 entries, 0 faults\n"


def test_checking_imports_neither_torch_nor_triton(good: Path) -> None:
    program = (
        "import sys; from autotuned.cli.main import app\n"
        f"try: app(['check', {str(good)!r}])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'torch', 'triton'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def edit(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """A change to the JSON of the one file in a folder, which keeps its lines."""

    def do(folder: Path) -> None:
        path = folder / SLUG / "app.k.json"
        data = json.loads(path.read_text())
        change(data["groups"][0])
        path.write_text(json.dumps(data))

    return do


def entry(number: int, name: str, value: Any) -> Callable[[Path], None]:
    return edit(lambda group: group["entries"][number].update({name: value}))


def set_config(name: str, value: Any) -> Callable[[Path], None]:
    return edit(lambda group: group["entries"][0]["config"].update({name: value}))


def duplicate(changed: bool) -> Callable[[Path], None]:
    def change(group: Any) -> None:
        group["entries"].append(copy.deepcopy(group["entries"][0]))
        group["entries"][-1]["median_us"] = 11.0 if changed else 10.0

    return edit(change)


def to(path: str) -> Callable[[Path], None]:
    def move(folder: Path) -> None:
        (folder / path).parent.mkdir(exist_ok=True, parents=True)
        (folder / SLUG / "app.k.json").rename(folder / path)

    return move


def copy_to(path: str) -> Callable[[Path], None]:
    def copied(folder: Path) -> None:
        (folder / path).parent.mkdir(exist_ok=True, parents=True)
        (folder / path).write_text((folder / SLUG / "app.k.json").read_text())

    return copied


def tensor(**fields: Any) -> Callable[[Path], None]:
    layout = {"dtype": "torch.float16", "strides": "1", "shape": [64], **fields}
    return edit(lambda group: group["entries"][0]["call"]["tensors"].update(x=layout))


def value(other: Any) -> Callable[[Path], None]:
    return edit(lambda group: group["entries"][0]["call"]["values"].update(n=other))


def text(before: str, after: str) -> Callable[[Path], None]:
    """A change to the text, where it is first met."""

    def do(folder: Path) -> None:
        path = folder / SLUG / "app.k.json"
        assert before in path.read_text()
        path.write_text(path.read_text().replace(before, after, 1))

    return do


def text_of(form: str) -> Callable[[Path], None]:
    return lambda folder: (folder / SLUG / "app.k.json").write_text(form % json.dumps(DEVICE)) and None


LOOKED_FOR = f"which is looked for in {{folder}}/{SLUG}/app.k.json"
FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "not JSON": (lambda folder: (folder / SLUG / "app.k.json").write_text("{"), "Expecting property name"),
    "two files joined": (
        lambda folder: (folder / SLUG / "app.k.json").write_text((folder / SLUG / "app.k.json").read_text() * 2),
        "Extra data",
    ),
    "a newer schema": (lambda folder: (folder / SLUG / "app.k.json").write_text('{"schema": 3}'), "expected schema 2"),
    "an unknown field": (entry(0, "author", "me"), "field 'author' is unknown"),
    "NaN": (entry(0, "median_us", float("nan")), "expected finite numbers, got NaN"),
    "three warps": (set_config("num_warps", 3), "num_warps: expected one of 1, 2, 4"),
    "text for a number": (set_config("num_stages", "3"), "num_stages: expected int, got str '3'"),
    "what the caller passes": (set_config("kwargs", {"n": 4}), "sets 'n', which the caller passes"),
    "a duplicate": (duplicate(False), "repeats the entry"),
    "another choice for a call": (duplicate(True), "a second entry for the call"),
    "a context without a source": (edit(lambda group: group["context"].pop("source")), "dead: expected a context of"),
    "a call of another form": (entry(0, "call", {"n": 1}), "dead: expected a call of none, tensors, values"),
    "another name": (to(f"{SLUG}/app.other.json"), LOOKED_FOR),
    "another folder": (to("nvidia-h100/app.k.json"), LOOKED_FOR),
    "no folder": (to("app.k.json"), LOOKED_FOR),
    "a folder too deep": (to(f"{SLUG}/{SLUG}/app.k.json"), LOOKED_FOR),
    "a folder more": (to(f"more/{SLUG}/app.k.json"), LOOKED_FOR),
    "a copy in another folder": (copy_to(f"{SLUG}/old/app.k.json"), LOOKED_FOR),
    "a device in the context": (
        edit(lambda group: group["context"].update(device=DEVICE)),
        "its context names a device too",
    ),
    "a misspelt dtype": (tensor(dtype="torch.flaot16"), "Did you mean 'torch.float16'?"),
    "an alias of a dtype": (tensor(dtype="torch.half"), "expected a dtype as torch or NumPy writes it"),
    "a dtype in capitals": (tensor(dtype="torch.Float16"), "Did you mean 'torch.float16'?"),
    "a dtype of another width": (tensor(dtype="torch.float61"), "expected a dtype as torch or NumPy writes it"),
    "strides as numbers": (tensor(strides="64,1"), "strides: expected 0, 1 or * for each dimension"),
    "a shape of text": (tensor(shape=["64"]), "shape[0]: expected int, got str '64'"),
    "fewer strides than sizes": (tensor(shape=[2, 2]), "expected 1 sizes, as many as strides, got 2"),
    "a tensor with another field": (tensor(layout="rows"), "layout: expected dtype, strides and shape"),
    "a size as text": (value("1"), "values.n: expected a number, as in other entries, got text '1'"),
    "a bare float": (value(1.5), 'expected {"float": ...}'),
    "a float of digits": (value({"float": "1.5"}), "expected what a float is written as"),
    "a float that Python writes otherwise": (value({"float": "0x1.80p+0"}), "expected what a float is written as"),
    "an enum without its value": (value({"enum": ["A.B"]}), "expected what a enum is written as"),
    "an enum of a bare float": (value({"enum": ["A.B", 1.5]}), "values.n[1]: expected {"),
    "a dict of a bare float": (value({"dict": [["a", 1.5]]}), "values.n[0][1]: expected {"),
    "a wide number of digits": (value({"int": "12"}), "expected what a int is written as"),
    "an argument in two parts": (
        edit(lambda group: group["entries"][0]["call"]["none"].append("n")),
        "n: expected in one of tensors, values and none, and once, got it 2 times",
    ),
    "warps of the call as text": (
        edit(lambda group: group["entries"][0]["call"].update(options={"num_warps": "4"})),
        "options.num_warps: expected a number, got str '4'",
    ),
    "a misspelt type": (value({"flaot": "0x1.8p+0"}), "expected a type such as 'float', got 'flaot'"),
    "two types": (value({"float": "0x1.8p+0", "text": ""}), "expected one field, which names the type"),
    "a tuple of a bare float": (value({"tuple": [1, 2.5]}), "values.n[1]: expected {"),
    "a block as text": (set_config("kwargs", {"BLOCK": "64"}), "kwargs.BLOCK: expected a number, as in other entries"),
    "warps as text": (set_config("num_warps", "4"), "num_warps: expected int, got str '4'"),
    "warps as truth": (set_config("num_warps", True), "num_warps: expected int, got bool True"),
    "Triton's version as a number": (
        edit(lambda group: group["context"].update(triton=3.9)),
        "context.triton: expected text",
    ),
    "an environment that is a list": (
        edit(lambda group: group["context"].update(environment=[])),
        "context.environment: expected texts by name",
    ),
    "a name twice in an entry": (text('"num_stages"', '"num_warps": 2, "num_stages"'), "'num_warps' twice"),
    "a name twice in a call": (text('"n": 1', '"n": 3, "n": 1'), "each name once in an object, got 'n' twice"),
    "a name twice in the head": (text(' "kernel"', ' "schema": 1,\n "kernel"'), "got 'schema' twice"),
    "a name twice in a context": (text('"source"', '"source": "x", "source"'), "got 'source' twice"),
    "a group without entries": (
        edit(lambda group: group["entries"].clear()),
        "groups[0]: expected entries, got none: remove the group.",
    ),
    "no groups": (text_of('{"schema": 2, "kernel": "app.k", "device": %s, "groups": []}'), "it has no groups"),
    "an empty entry": (edit(lambda group: group["entries"].append({})), "field 'call' is missing"),
    "an empty call": (entry(0, "call", {}), "dead: expected a call of none, tensors, values"),
    "an empty config": (entry(0, "config", {}), "config.ir_override: expected a value"),
    "an unknown field of a group": (edit(lambda group: group.update(note="x")), "field 'note' is unknown"),
    "an unknown field of a config": (set_config("num_threads", 4), "num_threads: expected no such field"),
    "an unknown field of the device": (
        text('"kind"', '"memory": 80, "kind"'),
        "device: expected a device (",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_and_is_exit_code_1(good: Path, name: str) -> None:
    damage, expected = FAULTS[name]
    damage(good)
    expected = expected.replace("{folder}", str(good))
    assert any(expected in text for _, text in faults(good)), faults(good)
    assert run("check", good, code=1).stderr.startswith("error: ")


@pytest.mark.parametrize("dtype", [f"torch.{name}" for name in DTYPES] + ["float32", "<M8[ns]", "bfloat16", "jax.x"])
def test_a_dtype_that_there_is_is_no_fault(good: Path, dtype: str) -> None:
    tensor(dtype=dtype)(good)
    assert run_json("check", good)["faults"] == []


def test_the_folder_of_one_device_may_be_checked_by_itself(good: Path) -> None:
    assert run_json("check", good / SLUG)["faults"] == []
    (good / SLUG).rename(good / "other")
    assert f"looked for in {good / 'other' / SLUG / 'app.k.json'}" in faults(good / "other")[0][1]


def test_a_fault_has_its_line(good: Path) -> None:
    path = good / SLUG / "app.k.json"
    path.write_text(path.read_text().replace('"num_warps": 8', '"num_warps": 9'))
    assert [line for line, _ in faults(good)] == [8]


def test_what_an_earlier_path_answers_is_shadowed(good: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "b", (make_key(2), SMALL, 1.0, None), (make_key(3), SMALL, 1.0, None))
    [(_, text)] = faults(good, tmp_path / "b")
    assert text.startswith(f"shadowed: {good / SLUG / 'app.k.json'} has the call")
    assert '"n":2' in text
    run("check", other)


def test_a_folder_without_config_files_is_an_error(tmp_path: Path) -> None:
    assert "there is no config file in it" in run("check", tmp_path, code=1).stderr
    assert "there is no such file or folder" in run("check", tmp_path / "x", code=1).stderr


def test_the_files_of_this_package_are_in_order() -> None:
    packaged = Path(str(importlib.resources.files("autotuned.configs")))
    shipped = sorted(path for path in packaged.glob("*/*.json") if path.parent.name != "schema")
    if not shipped:
        pytest.skip("none are here")
    found = run_json("check", packaged)
    assert found["faults"] == []
    assert [Path(path).name for path in found["files"]] == [path.name for path in shipped]
    assert all(path.name.startswith("autotuned.kernels.") for path in shipped)
