"""Digests of this schema are what they were, in every process, under every hash seed and in every Python there is."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotuned.store import record

PINNED = Path(__file__).parents[1] / "pinned"
ROOT = PINNED.parent.parent
PROGRAM = PINNED / "digests.py"


def python_of(minor: int) -> str | None:
    """An interpreter of a version that runs: on the path, or installed beside this one."""
    name = f"python3.{minor}"
    places = [shutil.which(name), *map(str, sorted(Path(sys.base_prefix).parent.glob(f"*/bin/{name}")))]
    return next((place for place in places if place and _runs(place)), None)


def _runs(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def run(python: str, **variables: str) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    done = subprocess.run([python, PROGRAM], env=environment, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def pinned() -> dict[str, str]:
    # A change here drops every record and shipped file: then the schema number goes up, and a new fixture is added.
    found: dict[str, str] = json.loads((PINNED / f"schema-{record.SCHEMA}.json").read_text())
    return found


@pytest.mark.parametrize("seed", ["0", "1"])
def test_digests_are_the_pinned_ones_whatever_the_hash_seed(seed: str) -> None:
    assert run(sys.executable, PYTHONHASHSEED=seed) == pinned()


@pytest.mark.parametrize("minor", range(10, 16), ids="python3.{}".format)
def test_digests_agree_between_versions_of_python(minor: int) -> None:
    python = python_of(minor)
    if python is None:
        pytest.skip(f"Python 3.{minor} is not here")
    assert run(python) == pinned()


def test_all_pinned_digests_differ() -> None:
    assert len(set(pinned().values())) == len(pinned())
