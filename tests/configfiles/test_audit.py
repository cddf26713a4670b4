"""Tests of `audit`, through `autotuned check`: what is in order, and every fault with its line."""

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
from fakes import DEVICE, FakeConfig, make_key
from shipped import SLUG
from shipped import write_measured as write

SMALL, LARGE = FakeConfig({"BLOCK": 64}), FakeConfig({"BLOCK": 128}, num_warps=8)


DTYPES = sorted({str(value).removeprefix("torch.") for value in vars(torch).values() if isinstance(value, torch.dtype)})


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
    "not JSON": (
        lambda folder: (folder / SLUG / "app.k.json").write_text("{"),
        "expected JSON, got an error at column 2: Expecting property name enclosed in double quotes.",
    ),
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
