"""Two people add to one config file, and git puts their branches together."""

import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fakes import DEVICE, FakeConfig, form, make_key

from autotuned.configfiles import file as configfile
from autotuned.configfiles import writer
from autotuned.configfiles.file import ConfigFile, Entry, split_context
from autotuned.gpu.device import from_json
from autotuned.key.key import Key

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
CONFIG = form(FakeConfig({"BLOCK": 64}))


class Repository:
    """A repository with a folder of config files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "--quiet", "--initial-branch", "main")
        (root / "README").write_text("")
        self.commit()

    def git(self, *args: str, check: bool = True) -> int:
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *identity, *args], cwd=self.root, capture_output=True, text=True)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.returncode

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "change")

    def tune(self, keys: Iterable[Key], median_us: float = 10.0) -> None:
        """Write these choices as one run of `tune` does: one after the other into the file that is there."""
        writer._ends.clear()  # another process
        for key in keys:
            writer.ship(key, Entry(key.call, CONFIG, median_us, 1.25), self.root / "tuned")

    def merge(self, mine: Any, yours: Any) -> int:
        """Let two people change the present state, and merge; returns git's exit code."""
        for branch, change in (("mine", mine), ("yours", yours)):
            self.git("checkout", "--quiet", "-b", branch, "main")
            change(self)
            self.commit()
        self.git("checkout", "--quiet", "mine")
        return self.git("merge", "--quiet", "--no-edit", "yours", check=False)

    @property
    def path(self) -> Path:
        return self.root / "tuned" / from_json(DEVICE).slug / "app.k.json"

    def digests(self) -> set[str]:
        file = configfile.parse(self.path.read_bytes(), str(self.path))
        return {key.digest for key, _ in file.entries()}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def keys(*sizes: int, **context: Any) -> list[Key]:
    return [make_key(n, **context) for n in sizes]


def digests(*found: list[Key]) -> set[str]:
    return {key.digest for some in found for key in some}


SAME_GAP = (keys(1, 9), keys(3, 4), keys(5))
CASES = {
    "into one gap": SAME_GAP,
    "into other gaps": (keys(1, 5, 9), keys(3), keys(7)),
    "behind the last": (keys(1, 2), keys(7, 8), keys(9)),
    "before the first": (keys(5), keys(1, 3), keys(2)),
    "on all sides of one": (keys(5), keys(1, 9), keys(2, 8)),
    "many": (keys(*range(100, 200, 7)), keys(*range(101, 200, 7)), keys(*range(102, 200, 7))),
    "around a border between contexts": (
        [*keys(2, 9), *keys(2, 9, triton="3.6.0")],
        [*keys(1, 3, 7), *keys(1, 3, 7, triton="3.6.0")],
        [*keys(0, 4, 8), *keys(0, 4, 8, triton="3.6.0")],
    ),
    "one adds a context": (keys(1, 2), keys(3, triton="3.6.0"), keys(3)),
    "both add a context": (keys(1, 2), keys(3, 4, triton="3.6.0"), keys(3, 5, triton="3.8.0")),
    "both add a context behind the last": (keys(1), keys(3, 4, triton_key="x"), keys(5, triton_key="y")),
}


@pytest.mark.parametrize("name", CASES)
def test_what_two_people_add_is_merged_without_a_conflict_and_is_json(repository: Repository, name: str) -> None:
    base, mine, yours = CASES[name]
    repository.tune(base)
    repository.commit()
    assert repository.merge(lambda r: r.tune(mine, 11.0), lambda r: r.tune(yours, 12.0)) == 0
    json.loads(repository.path.read_text())
    assert repository.digests() == digests(base, mine, yours)
    assert repository.git("diff", "--quiet") == 0


def test_both_may_begin_the_file(repository: Repository) -> None:
    assert repository.merge(lambda r: r.tune(keys(1, 2), 11.0), lambda r: r.tune(keys(3, 4), 12.0)) == 0
    file, faults = configfile.read(repository.path.read_bytes(), str(repository.path))
    assert file is not None  # whether it is JSON or not: it may have to be read by its lines
    assert {key.digest for key, _ in file.entries()} == digests(keys(1, 2, 3, 4))
    assert all("lines that can be read" in str(fault) for fault in faults)


def test_a_call_that_both_tuned_is_said_and_nothing_is_lost(repository: Repository) -> None:
    repository.tune(keys(1, 9))
    repository.commit()
    assert repository.merge(lambda r: r.tune(keys(5), 11.0), lambda r: r.tune(keys(5), 12.0)) == 0
    file, [fault] = configfile.read(repository.path.read_bytes(), str(repository.path))
    assert "a second entry for the call of line" in str(fault)
    assert file is not None
    assert {entry.median_us for _, entry in file.entries()} == {10.0, 11.0}  # that of the branch that is merged into


def test_without_the_attributes_git_asks_and_the_file_is_served_by_its_lines(repository: Repository) -> None:
    base, mine, yours = SAME_GAP
    repository.tune(base)
    (repository.root / "tuned" / writer.ATTRIBUTES).unlink()
    repository.commit()
    assert repository.merge(lambda r: r.tune(mine, 11.0), lambda r: r.tune(yours, 12.0)) == 1
    file, faults = configfile.read(repository.path.read_bytes(), str(repository.path))
    assert file is not None
    assert {key.digest for key, _ in file.entries()} == digests(base, mine, yours)
    assert sum("git's mark of a conflict" in str(fault) for fault in faults) == 3


def test_one_run_writes_in_the_order_of_the_text_whatever_the_order_of_the_cases(tmp_path: Path) -> None:
    texts = set()
    for number, order in enumerate(([3, 1, 2], [1, 2, 3], [2, 3, 1])):
        writer._ends.clear()
        for key in keys(*order):
            path = writer.ship(key, Entry(key.call, CONFIG, 10.0, None), tmp_path / str(number))
        texts.add(path.read_text())
    expected = ConfigFile("app.k", from_json(DEVICE))
    for key in keys(1, 2, 3):
        expected.add(split_context(key.context)[0], Entry(key.call, CONFIG, 10.0, None))
    assert texts == {expected.dump()}


def test_an_addition_is_one_line_in_the_diff(repository: Repository) -> None:
    repository.tune(keys(1, 5, 9))
    before = repository.path.read_text().splitlines()
    for n in (0, 3, 99):
        repository.tune(keys(n))
        after = repository.path.read_text().splitlines()
        assert len(after) == len(before) + 1
        assert [line for line in after if line not in before] == [line for line in after if f'"n": {n}}}' in line]
        before = after


def test_attributes_that_are_there_stay(tmp_path: Path) -> None:
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / writer.ATTRIBUTES).write_text("* text\n")
    writer.ship(make_key(1), Entry(make_key(1).call, CONFIG, 10.0, None), tmp_path / "tuned")
    assert (tmp_path / "tuned" / writer.ATTRIBUTES).read_text() == "* text\n"
