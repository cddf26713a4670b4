"""Writes, publishes and looks up config files for tests, with three configs to choose from."""

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
from fakes import DEVICE, FakeConfig, by_identity, form, make_key

from autotuned.configfiles import lookup, writer
from autotuned.configfiles.file import ConfigFile, Entry, split_context
from autotuned.gpu.device import from_json
from autotuned.key.key import Key
from autotuned.resolve import sources

SMALL, LARGE, OTHER = FakeConfig({"BLOCK": 64}), FakeConfig({"BLOCK": 128}), FakeConfig({"BLOCK": 256})
LIVE = by_identity(SMALL, LARGE, OTHER)
KEY = make_key()
SLUG = from_json(DEVICE).slug

# Texts that are not a config file of `KEY`, by their fault.
BROKEN = {
    "cut off": '{"schema": 1,',
    "newer schema": '{"schema": 2}',
    "another kernel's": ConfigFile("app.other", from_json(DEVICE)).dump(),
    "an unknown field": '{"schema": 2, "kernel": "app.k", "device": {}, "groups": [], "author": "me"}',
}


def write(folder: Path, *entries: tuple[Key, FakeConfig], name: str = "app.k") -> Path:
    """A config file with these choices below a folder; the device is that of the first key."""
    return write_measured(folder, *((key, config, 10.0, 1.5) for key, config in entries), name=name)


def write_measured(folder: Path, *found: tuple[Key, FakeConfig, float | None, float | None], name: str = "") -> Path:
    """The same with the time and gain of each choice."""
    file = ConfigFile(name or found[0][0].kernel, from_json(found[0][0].context["device"]))
    forms = {id(config): form(config) for config in {id(one[1]): one[1] for one in found}.values()}
    for key, config, us, ratio in found:
        file.add(split_context(key.context)[0], Entry(key.call, forms[id(config)], us, ratio))
    return writer.write(file, folder)


def write_broken(folder: Path, kind: str) -> Path:
    """One of `BROKEN` in place of the config file of `KEY`."""
    path = write(folder, (KEY, SMALL))
    path.write_text(BROKEN[kind])
    return path


def package(root: Path, name: str, config: FakeConfig) -> None:
    """A package that ships this choice for `KEY`."""
    (root / name).mkdir(parents=True)
    (root / name / "__init__.py").touch()
    write(root / name, (KEY, config))


def publish(patch: pytest.MonkeyPatch, *values: str) -> None:
    """Pretend entry points of installed distributions."""
    points = [importlib.metadata.EntryPoint(f"p{n}", value, lookup.GROUP) for n, value in enumerate(values)]
    patch.setattr(importlib.metadata, "entry_points", lambda group: points if group == lookup.GROUP else [])


def find(key: Key, strict: bool = False, exact: bool = False, factors: Any = None, live: Any = LIVE) -> Any:
    """The choice that a call gets from config files."""
    return sources.find(key, live, list(sources.places(strict, exact, factors or {})), (), strict)
