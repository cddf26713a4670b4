"""Tests of `shipping`: what is added to config files, and what stays as it is."""

import errno
from pathlib import Path

import pytest
from fakes import DEVICE, FakeConfig, form, make_key
from faults import faults
from shipped import BROKEN, KEY, LARGE, LIVE, OTHER, SLUG, SMALL, write_broken
from stored import config_of

from autotuned.configfiles import lookup, writer
from autotuned.configfiles.file import Entry, parse
from autotuned.errors import ConfigFileError
from autotuned.key.key import Key
from autotuned.resolve import sources


def entry_for(key: Key, config: FakeConfig = SMALL) -> Entry:
    return Entry(key.call, form(config), 10.0, None)


def test_shipping_adds_to_the_file_of_kernel_and_device(tmp_path: Path) -> None:
    older = make_key(2, triton="3.6.0")
    for key, config in ((KEY, SMALL), (older, LARGE), (KEY, OTHER)):
        path = writer.ship(key, entry_for(key, config), tmp_path)
    assert path == tmp_path / SLUG / "app.k.json"
    written = sorted(each.relative_to(tmp_path).as_posix() for each in tmp_path.rglob("*"))
    assert written == [".gitattributes", SLUG, f"{SLUG}/app.k.json"]
    lookup.register_configs(tmp_path)
    assert config_of(sources.find(KEY, LIVE)) is OTHER  # the later entry in place of the first
    assert config_of(sources.find(older, LIVE)) is LARGE
    assert [(file, key) for file, key, _ in lookup.shipped("app.k") if file == str(path)] == [
        (str(path), older),
        (str(path), KEY),
    ]


@pytest.mark.parametrize(
    ("config", "us", "gain", "expected"),
    [
        (SMALL, None, None, (10.0, 1.5)),
        (SMALL, None, 1.2, (10.0, 1.5)),
        (SMALL, 8.0, None, (8.0, None)),
        (LARGE, None, None, (None, None)),
    ],
    ids=["without times", "with a gain alone", "measured again", "another config"],
)
def test_shipping_a_config_again_loses_no_time_that_the_file_has(
    tmp_path: Path, config: FakeConfig, us: float | None, gain: float | None, expected: tuple[float | None, ...]
) -> None:
    writer.ship(KEY, Entry(KEY.call, form(SMALL), 10.0, 1.5), tmp_path)
    path = writer.ship(KEY, Entry(KEY.call, form(config), us, gain), tmp_path)
    [(_, entry)] = parse(path.read_text(), str(path)).entries()
    assert (entry.median_us, entry.vs_default) == expected


@pytest.mark.parametrize("kind", BROKEN)
def test_shipping_into_a_broken_file_is_refused_and_leaves_it(tmp_path: Path, kind: str) -> None:
    path = write_broken(tmp_path, kind)
    with pytest.raises(ConfigFileError, match="It is left as it is: repair it, or move it away"):
        writer.ship(KEY, entry_for(KEY), tmp_path)
    assert path.read_text() == BROKEN[kind]


def test_two_devices_whose_names_become_one_slug_are_not_mixed(tmp_path: Path) -> None:
    twin = make_key(device={**DEVICE, "name": DEVICE["name"].lower()})
    path = writer.ship(KEY, entry_for(KEY), tmp_path)
    before = path.read_text()
    with pytest.raises(ConfigFileError, match="expected Device"):
        writer.ship(twin, entry_for(twin), tmp_path)
    assert path.read_text() == before


def test_shipped_entries_of_every_kernel_are_listed_by_file(tmp_path: Path) -> None:
    other = make_key(kernel="app.other")
    first, second = (writer.ship(key, entry_for(key), tmp_path) for key in (KEY, other))
    (tmp_path / "schema").mkdir()
    (tmp_path / "schema" / "config-file.json").write_text("{}")
    lookup.register_configs(tmp_path)
    assert list(lookup.shipped()) == [(str(first), KEY, entry_for(KEY)), (str(second), other, entry_for(other))]
    assert list(lookup.shipped("app.other")) == [(str(second), other, entry_for(other))]


def test_a_folder_says_why_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert writer.unwritable(tmp_path / "new" / "folder") == ""
    assert writer.unwritable(tmp_path / "file" / "folder") == f"{tmp_path / 'file'} is not a folder"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    for call in ("open", "write", "fsync"):  # a full disk takes an empty file, and some say it later
        with faults(call, errno.ENOSPC, name="*.autotuned-*"):
            assert writer.unwritable(tmp_path) == f"{tmp_path}: No space left on device"
    with faults("open", errno.EROFS, name="*.autotuned-*"):  # the file that it tries to write is no news
        assert writer.unwritable(tmp_path) == f"{tmp_path}: Read-only file system"
    with faults("fsync", errno.EINVAL):  # a file system without fsync
        assert writer.unwritable(tmp_path) == ""
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
