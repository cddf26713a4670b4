"""Config files that are broken, in parts or as a whole, or that a kernel cannot use: what they say, and what still serves."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeConfig, by_identity, form, make_key
from shipped import LARGE, SMALL, find, write
from stored import config_of, lines

from autotuned.configfiles import file, lookup, policy, writer
from autotuned.configfiles.file import Entry
from autotuned.errors import ConfigFileError


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
    lookup.register_configs(tmp_path)
    for _ in range(2):
        assert [n for n in range(10, 20) if find(make_key(n)) is None] == [14]
    [line] = lines(caplog)
    assert line.startswith(f"config file {path}: line 11: groups[0].entries[4]")
    assert problem in line


@pytest.mark.parametrize("kind", ILLEGAL)
def test_strict_raises_what_is_otherwise_a_warning(tmp_path: Path, kind: str) -> None:
    path = ten(tmp_path, ILLEGAL[kind][0])
    lookup.register_configs(tmp_path)
    for _ in range(2):
        with pytest.raises(ConfigFileError, match="line 11") as caught:
            find(make_key(10), strict=True)
        assert caught.value.path == str(path)


def test_an_entry_that_is_repeated_to_the_letter_is_nothing_to_speak_of(tmp_path: Path, caplog: Any) -> None:
    path = ten(tmp_path, sets("call", "values", "n", value=10))
    lookup.register_configs(tmp_path)
    assert config_of(find(make_key(10), strict=True)) is LARGE
    assert lines(caplog) == []
    writer.ship(make_key(14), Entry(make_key(14).call, form(LARGE), 1.0, None), tmp_path)
    assert file.read(path.read_text(), str(path))[1] == []  # written anew without it


MISFITS = {
    "a value that is pruned": ({"BLOCK": 512}, "it is not among the 3 configs of this call"),
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
    lookup.register_configs(tmp_path)
    assert find(make_key(1)) is None
    assert config_of(find(make_key(2))) is LARGE
    assert len(lines(caplog)) == 1
    assert problem in lines(caplog)[0]


def hook(arguments: Any) -> None: ...


def test_hooks_are_attached_by_value_or_the_entry_is_refused(tmp_path: Path, caplog: Any) -> None:
    hooked = FakeConfig({"BLOCK": 64}, pre_hook=hook)
    write(tmp_path, (make_key(1), hooked), (make_key(2), SMALL))
    lookup.register_configs(tmp_path)
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
    lookup.register_configs(tmp_path)
    assert [config_of(find(make_key(n))) for n in (1, 2, 3)] == [LARGE] * 3
    first, *marks = lines(caplog)
    assert first.startswith(f"config file {path}: line 8: ")
    assert "The lines that can be read are used" in first
    assert marks == [f"config file {path}: line {n}: git's mark of a conflict." for n in (8, 10, 14)]


def test_a_file_that_is_cut_off_serves_what_is_whole(tmp_path: Path, caplog: Any) -> None:
    path = write(tmp_path, *((make_key(n), LARGE) for n in (1, 2, 3)))
    path.write_text("\n".join(path.read_text().splitlines()[:8])[:-40])
    lookup.register_configs(tmp_path)
    assert [config_of(find(make_key(n))) for n in (1, 2, 3)] == [LARGE, None, None]
    assert len(lines(caplog)) == 2


@pytest.mark.parametrize("searchable", [True, False])
def test_a_folder_that_may_not_be_read_is_said_once_and_the_next_one_serves(
    searchable: bool, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    closed, opened = tmp_path / "closed", tmp_path / "open"
    (closed / "device").mkdir(parents=True)
    write(opened, (make_key(triton="3.9.1"), LARGE))
    stat, refused = Path.stat, closed if searchable else closed / "device"

    def refuse(path: Path, **options: Any) -> os.stat_result:
        if path == refused or refused in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(lookup, "_registered", [lookup.Folder(closed, policy.DEFAULTS)])
    lookup.register_configs(opened)
    assert [config_of(find(make_key())) for _ in range(2)] == [LARGE, LARGE]
    assert [line for line in lines(caplog) if line.startswith("config files in")] == [
        f"config files in {closed} are left out: [Errno 13] Permission denied: '{refused}'."
    ]
    assert list(lookup.shipped()) != []
