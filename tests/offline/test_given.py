"""What the functions of the library take for targets and paths, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import autotuned
from autotuned.errors import ConfigFileError, TargetError
from autotuned.offline.targets import texts


@pytest.mark.parametrize(
    ("given", "found"),
    [("a.py", ["a.py"]), (Path("a.py"), ["a.py"]), (["a", Path("b.py")], ["a", "b.py"]), (("a" for _ in "1"), ["a"])],
)
def test_targets_are_text_or_paths_one_or_several(given: Any, found: list[str]) -> None:
    assert texts(given) == found


@pytest.mark.parametrize("given", [[], (), 3, [1.5], ["a", None]], ids=repr)
def test_what_is_no_target_is_refused(given: Any) -> None:
    with pytest.raises(TargetError, match=r"expected a module \(app.kernels\), .*, got "):
        autotuned.tune(given)


@pytest.mark.parametrize("given", [3, None, [3]], ids=repr)
def test_what_is_no_path_is_said_with_what_came(given: Any) -> None:
    got = "NoneType None" if given is None else "int 3"
    for call in (
        autotuned.check,
        autotuned.merge,
        autotuned.import_configs,
        lambda paths: autotuned.diff(paths, paths),
    ):
        with pytest.raises(
            ConfigFileError, match=f"^expected paths of config files or of folders of them, got {got}.$"
        ):
            call(given)


@pytest.mark.parametrize("source", [3, None, "", autotuned], ids=["number", "nothing", "empty", "module"])
def test_what_is_neither_package_nor_folder_is_not_registered(source: Any) -> None:
    """An empty text was the current folder."""
    with pytest.raises(
        ConfigFileError, match="^register_configs: expected a package such as 'mypkg.tuned', or a folder"
    ):
        autotuned.register_configs(source)


def test_no_path_is_no_success() -> None:
    for call in (
        autotuned.check,
        autotuned.merge,
        autotuned.import_configs,
        lambda paths: autotuned.diff(paths, paths),
    ):
        with pytest.raises(ConfigFileError, match="got none. Give at least one path"):
            call([])
