"""Tests of `files`: folders and packages in order, read once, and what a call gets of them."""

import errno
import importlib.metadata
import importlib.resources
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import DEVICE, FakeConfig, by_identity, form, make_key
from faults import faults
from shipped import BROKEN, KEY, LARGE, LIVE, OTHER, SMALL, find, package, publish, write, write_broken
from stored import config_of, lines

from autotuned.configfiles import lookup
from autotuned.errors import ConfigFileError
from autotuned.key.key import Key
from autotuned.resolve import sources
from autotuned.store import records
from autotuned.store.choice import Choice, Origin
from autotuned.store.conditions import Conditions
from autotuned.store.record import TuningRecord

# -- folders ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Two folders of the environment, two registered ones and the packaged one, in the order they are asked."""
    names = ("env first", "env second", "registered last", "registered first", "packaged")
    paths = {name: tmp_path / name for name in names}
    for path in paths.values():
        path.mkdir()
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", f"{paths['env first']}{os.pathsep}{paths['env second']}")
    lookup.register_configs(paths["registered first"])
    lookup.register_configs(str(paths["registered last"]))
    packaged = {"autotuned.configs": paths["packaged"]}
    lookup._packages.clear()
    monkeypatch.setattr(importlib.resources, "files", packaged.__getitem__)
    return paths


def test_places_are_asked_in_order_and_the_users_record_before_all(folders: dict[str, Path]) -> None:
    assert list(lookup.config_folders()) == list(folders.values())
    configs = {name: FakeConfig({"BLOCK": n}) for n, name in enumerate(folders)}
    live = by_identity(SMALL, *configs.values())
    for name in reversed(folders):  # from the last place to the first: each one hides those behind it
        path = write(folders[name], (KEY, configs[name]))
        lookup.forget_files()
        assert sources.find(KEY, live) == Choice(configs[name], Origin.FILE, where=str(path), conditions=Conditions())
    records.keep(TuningRecord(KEY, form(SMALL), 10.0, "ok", ()))
    assert config_of(sources.find(KEY, live)) is SMALL


def test_the_files_of_this_package_are_found_by_its_name() -> None:
    lookup._packages.clear()
    assert (list(lookup.config_folders())[-1] / "__init__.py").is_file()


@pytest.mark.parametrize(
    "key",
    [make_key(2), make_key(source="cc"), make_key(triton="3.6.0"), make_key(device={**DEVICE, "sm_count": 114})],
    ids=["call", "source", "triton", "device"],
)
def test_a_config_file_answers_the_same_call_in_the_same_context_only(folders: dict[str, Path], key: Key) -> None:
    write(folders["packaged"], (KEY, SMALL))
    assert sources.find(key, LIVE) is None
    assert config_of(sources.find(KEY, LIVE)) is SMALL


def test_a_file_is_read_once_until_files_are_forgotten(folders: dict[str, Path]) -> None:
    path = write(folders["packaged"], (KEY, SMALL))
    assert config_of(sources.find(KEY, LIVE)) is SMALL
    path.unlink()
    assert config_of(sources.find(KEY, LIVE)) is SMALL
    lookup.forget_files()
    assert sources.find(KEY, LIVE) is None


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_config_file_is_reported_once_by_name_and_the_others_serve(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    broken = write_broken(folders["env first"], kind)
    write(folders["packaged"], (KEY, LARGE))
    for _ in range(2):
        assert config_of(sources.find(KEY, LIVE)) is LARGE
    assert len(lines(caplog)) == 1
    assert lines(caplog)[0].startswith(f"config file {broken}: ")
    assert "It is skipped" in lines(caplog)[0]
    assert broken.read_text() == BROKEN[kind]


def test_a_config_file_that_cannot_be_read_is_reported_once_and_skipped(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(folders["packaged"], (KEY, SMALL))
    with faults("open", errno.EACCES, name=str(path)):
        assert sources.find(make_key(2), LIVE) is None
        assert sources.find(make_key(3), LIVE) is None
    assert len(lines(caplog)) == 1
    assert str(path) in lines(caplog)[0]


def test_a_shipped_config_that_is_no_candidate_any_more_is_said_once_and_the_next_place_serves(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    gone = write(folders["env first"], (KEY, FakeConfig({"BLOCK": 1})))
    write(folders["packaged"], (KEY, LARGE))
    for _ in range(2):
        assert config_of(sources.find(KEY, LIVE)) is LARGE
    assert len(lines(caplog)) == 1
    assert lines(caplog)[0].startswith(f"config file {gone}: the config for this call is no longer among")


def test_a_folder_that_is_not_there_is_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", "/nowhere/at/all")
    assert sources.find(KEY, LIVE) is None
    assert sources.find(KEY, LIVE) is None
    assert lines(caplog) == [
        "AUTOTUNED_CONFIG_PATH: there is no folder /nowhere/at/all: no config files are read from it."
    ]


def package_in_zip(root: Path, name: str, config: FakeConfig) -> None:
    package(root / "unpacked", name, config)
    with zipfile.ZipFile(root / "app.zip", "w") as archive:
        for path in sorted((root / "unpacked").rglob("*")):
            archive.write(path, path.relative_to(root / "unpacked"))


@pytest.mark.parametrize(
    ("make", "name", "entry"),
    [(package, "tuned_in_folder", ""), (package_in_zip, "tuned_in_zip", "app.zip")],
    ids=["package", "package in a zip"],
)
def test_the_config_files_of_a_package_are_served(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path, str, FakeConfig], None],
    name: str,
    entry: str,
) -> None:
    make(tmp_path, name, LARGE)
    monkeypatch.syspath_prepend(str(tmp_path / entry))
    lookup.register_configs(name)
    sys.modules.pop(name)
    assert config_of(sources.find(KEY, LIVE)) is LARGE
    assert config_of(sources.find(make_key(2), LIVE)) is None


@pytest.mark.parametrize("source", ["no_such_package_at_all", "./no/such/folder", "no/such"])
def test_a_source_of_config_files_that_is_none_is_refused(source: str) -> None:
    with pytest.raises(ConfigFileError, match="register_configs: expected a package or an existing folder") as caught:
        lookup.register_configs(source)
    assert caught.value.path == source


def test_registering_serves_at_once(tmp_path: Path) -> None:
    assert sources.find(KEY, LIVE) is None
    write(tmp_path, (KEY, LARGE))
    lookup.register_configs(tmp_path)
    assert config_of(sources.find(KEY, LIVE)) is LARGE


def test_a_folder_that_is_registered_again_has_the_later_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path.parent)
    lookup.register_configs(tmp_path, policy="accept", binaries=True)
    lookup.register_configs(tmp_path.name, policy="refuse")
    ours = [folder for folder in lookup.folders() if Path(str(folder.path)).resolve() == tmp_path]
    assert [(set(folder.policy.values()), folder.code) for folder in ours] == [({"refuse"}, False)]


# -- packages that publish -------------------------------------------------------------------------------------------


def test_packages_that_an_entry_point_names_are_asked_by_name_after_those_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, config in (("tuned_one", SMALL), ("tuned_two", LARGE)):
        package(tmp_path, name, config)
    monkeypatch.syspath_prepend(str(tmp_path))
    publish(monkeypatch, "tuned_one", "tuned_two")
    assert config_of(find(make_key())) is SMALL
    write(tmp_path / "mine", (make_key(), OTHER))
    lookup.register_configs(tmp_path / "mine")
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
