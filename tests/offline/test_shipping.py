"""Tests of `shipping`: config files of a run of `tune` that cannot be written at once, or not at all."""

import errno
from pathlib import Path

import pytest
from fakes import FakeConfig, form, make_key
from faults import faults
from shipped import BROKEN, SLUG, write_broken

from autotuned.configfiles import writer
from autotuned.configfiles.file import Entry, parse
from autotuned.errors import ConfigFileError, OutputError
from autotuned.key.key import Key
from autotuned.offline.shipping import Shipping

OTHER = "app.other"


def shipping(folder: Path | None, notes: list[str], *keys: Key) -> Shipping:
    """A run that has measured these."""
    made = Shipping(folder, notes.append)
    for key in keys:
        made.add(key, Entry(key.call, form(FakeConfig({"BLOCK": 64})), 10.0, 1.5))
    return made


def keys_in(folder: Path) -> set[Key]:
    paths = folder.glob("*/*.json")
    return {key for path in paths for key, _ in parse(path.read_text(), str(path)).entries()}


def test_what_a_full_disk_refuses_is_written_once_there_is_room(tmp_path: Path) -> None:
    keys, notes = (make_key(1), make_key(2)), list[str]()
    run = shipping(tmp_path, notes, keys[0])
    with faults("write", errno.ENOSPC, name="*app.k.json*"):
        run.write()
        run.add(keys[1], Entry(keys[1].call, form(FakeConfig({"BLOCK": 64})), 10.0, 1.5))
        run.write()
    path = tmp_path / SLUG / "app.k.json"
    assert notes == [f"{path} cannot be written: No space left on device; going on, and trying again."]
    assert not run.files
    run.finish()
    assert keys_in(tmp_path) == {*keys} and run.files == {str(path)}


def test_a_file_that_cannot_be_written_at_the_end_is_named_and_the_others_are_written(tmp_path: Path) -> None:
    keys = make_key(1), make_key(1, kernel=OTHER)
    run = shipping(tmp_path, [], *keys)
    with faults("write", errno.ENOSPC, name="*app.k.json*"), pytest.raises(OutputError) as caught:
        run.finish()
    assert caught.value.path == str(tmp_path / SLUG / "app.k.json")
    assert str(caught.value).startswith(f"{caught.value.path} cannot be written: No space left on device. Make room")
    assert keys_in(tmp_path) == {keys[1]} and [Path(path).stem for path in run.files] == [OTHER]


def test_a_file_that_cannot_be_added_to_is_an_error_at_once(tmp_path: Path) -> None:
    path = write_broken(tmp_path, "newer schema")
    with pytest.raises(ConfigFileError):
        shipping(tmp_path, [], make_key(1)).write()
    assert path.read_text() == BROKEN["newer schema"]


def test_ctrl_c_while_files_are_written_loses_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was to be written was forgotten before it was, and was missing in the folder of --out."""
    run = shipping(tmp_path, [], make_key(1))
    with monkeypatch.context() as patch:
        patch.setattr(writer, "ship_all", lambda entries, out: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run.write()
    run.finish()
    assert keys_in(tmp_path) == {make_key(1)}


def test_without_a_folder_nothing_is_written() -> None:
    run = shipping(None, [], make_key(1))
    run.write()
    run.finish()
    assert not run.files
