"""Deleting what is stored: `autotuned clear` and `autotuned gc`."""

import json
import os
import time
from pathlib import Path

import pytest
from commands import error as _error
from commands import run as _run
from commands import run_json as _json
from given import Write
from given import keep as _keep
from given import work as _work

from autotuned.store import layout

pytestmark = pytest.mark.usefixtures("wide_output")


def test_clear_deletes_what_it_is_told_to(write: Write) -> None:
    _run("tune", _work(write, "1 2"))
    _run("tune", _work(write, "1", name="mod_more"))
    assert "pass --yes" in _run("clear", code=2).stderr
    assert len(_json("list")["choices"]) == 3
    assert _json("clear", "mod_work.work", "--yes") == {
        "kernel": "mod_work.work", "deleted": 2, "cache": str(layout.root()),
    }  # fmt: skip
    assert [choice["kernel"] for choice in _json("list")["choices"]] == ["mod_more.work"]
    assert "Did you mean 'mod_more.work'?" in _error("clear", "mod_mor.work", "--yes")
    assert "deleted 1 record of all kernels" in _run("clear", "--yes").stdout
    assert _json("clear") == {"kernel": None, "deleted": 0, "cache": str(layout.root())}


def test_clear_asks_on_a_terminal(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    from autotuned.cli import terminal

    _run("tune", _work(write, "1"))
    monkeypatch.setattr(terminal, "has_terminal", lambda: True)
    assert "nothing was deleted" in _run("clear", code=1, input="n\n").stderr
    assert "deleted 1 record" in _run("clear", input="y\n").stdout


# -- gc ---------------------------------------------------------------------------------------------------------------


def _age(path: Path, days: float) -> None:
    then = time.time() - days * 86400
    os.utime(path, (then, then))


def test_gc_removes_by_age_and_by_size_and_says_what_is_left():
    paths = _keep(6)
    for n, path in enumerate(paths):
        _age(path, n)
    size = paths[0].stat().st_size
    said = json.loads(_run("gc", "--max-age", "4d", "--json").stdout)
    assert (said["deleted"], said["records"], said["leftovers"]) == (2, 4, 0)
    assert "deleted 0 records" in _run("gc").stdout
    said = json.loads(_run("gc", "--max-size", f"{2 * size + 10}", "--json").stdout)
    assert (said["deleted"], said["records"]) == (2, 2)
    assert {path for path in paths if path.exists()} == set(paths[:2])
    assert json.loads(_run("gc", "--max-size", "0", "--json").stdout)["records"] == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("1.5k", 1500), ("2KiB", 2048), ("3 M", 3_000_000), ("1gib", 1 << 30), ("2GB", 2 * 10**9)],
)
def test_sizes_of_gc(text, size):
    from autotuned.cli.commands import gc

    assert gc._size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("1.5d", 129600), ("1w", 604800)]
)
def test_ages_of_gc(text, seconds):
    from autotuned.cli.commands import gc

    assert gc._age(text) == seconds


@pytest.mark.parametrize(
    "arguments",
    [("--max-size", "big"), ("--max-age", "-3d"), ("--max-size", "-1"), ("--max-age", ""), ("--max-age", "1")],
)
def test_a_limit_that_is_none_is_wrong_usage(arguments):
    paths = _keep(1)
    assert "expected a" in _run("gc", *arguments, code=2).output
    assert paths[0].exists()
