"""The config files of this package: for every call that they are to answer, of the kernels as they are now.

A stand-in, written here with the first config that each call may have, is held to the same: so that these tests say
something also where no file of a real GPU is in the tree.
"""

import importlib.resources
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import run_json
from fakes import CONTEXT

from autotuned.configfiles import file, lookup, writer
from autotuned.configfiles.file import ConfigFile, Entry
from autotuned.kernels import shapes
from autotuned.key.key import Key
from autotuned.offline import targets
from autotuned.offline.targets import TunedObject
from autotuned.resolve import sources
from autotuned.store.choice import Origin
from autotuned.store.conditions import Conditions
from autotuned.tunable import configs
from autotuned.typed_json import canonical

H200 = {"kind": "cuda", "name": "NVIDIA H200", "arch": "sm_90", "sm_count": 132, "mig": None}
OWN = Path(str(importlib.resources.files("autotuned.configs")))
DEVICES = sorted({path.parent.name for path in OWN.glob("*/*.json")} - {"schema"})


@dataclass(frozen=True)
class Problem:
    """One call of our kernels that the files answer."""

    kernel: str
    call: Any
    live: dict[str, Any]
    needed: Conditions

    @property
    def text(self) -> str:
        return canonical(self.call)


class NoGenerator:
    """In place of torch's generator, which there is none of for tensors without data."""

    def __init__(self, device: Any) -> None:
        """No device has it."""

    def manual_seed(self, seed: int) -> "NoGenerator":
        return self


@pytest.fixture(scope="module")
def found() -> dict[str, TunedObject]:
    """Our kernels that are shipped tuned, by name."""
    return {one.name: one for one in targets.load("autotuned.kernels.shapes")}


@pytest.fixture(scope="module")
def problems(found: dict[str, TunedObject]) -> list[Problem]:
    """Every call of `autotuned.kernels.shapes`; its tensors have no data, the largest would be 200 MB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "Generator", NoGenerator)
        patch.setattr(torch, "randn", lambda *size, generator, device: torch.empty(*size, device=device))
        return [
            problem(found[kernel.tuner.tunable.name], make_case("meta", *shape))
            for kernel, make_case, made in shapes.TUNED
            for shape in made
        ]


def problem(kernel: TunedObject, case: dict[str, Any]) -> Problem:
    call = targets.bind(kernel, case)
    chooser = kernel.tuner.chooser
    live = chooser.candidates(call)
    return Problem(kernel.name, chooser.key(call).call, live, chooser.question(call, live, "auto").needed)


@pytest.fixture(scope="module")
def stand_in(problems: list[Problem], found: dict[str, TunedObject], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `tune --out` writes it, of a GPU that nobody has."""
    folder = tmp_path_factory.mktemp("files")
    writer.ship_all((entry_of(one, found[one.kernel].tuner.tunable.source) for one in problems), folder)
    return folder / "nvidia-h200-sm_90-132"


def entry_of(one: Problem, source: str) -> tuple[Key, Entry]:
    config = configs.to_json(next(iter(one.live.values())), one.kernel)
    return Key(one.kernel, one.call, {**CONTEXT, "device": H200, "source": source}), Entry(one.call, config, 10.0, 1.5)


@pytest.fixture(params=["stand-in", *DEVICES])
def folder(request: pytest.FixtureRequest, stand_in: Path) -> Path:
    """The files of one device."""
    return stand_in if request.param == "stand-in" else OWN / request.param


def read(folder: Path) -> Iterator[ConfigFile]:
    for path in sorted(folder.glob("*.json")):
        yield file.parse(path.read_bytes(), str(path))


def test_the_files_pass_check_with_the_kernels_as_they_are(folder: Path) -> None:
    said = run_json("check", folder, "--import")
    assert (said["faults"], len(said["files"])) == ([], len(shapes.TUNED))


def test_every_call_is_in_the_files(folder: Path, problems: list[Problem]) -> None:
    held = {(file.kernel, canonical(entry.call)) for file in read(folder) for _, entry in file.entries()}
    missing = [f"{one.kernel}: {one.text}" for one in problems if (one.kernel, one.text) not in held]
    assert not missing, f"tune them: tests/gpu/tune_own.sh; {len(missing)} are missing, such as {missing[0]}"
    assert len(held) >= len(problems) >= 200


def test_every_entry_was_measured(folder: Path) -> None:
    for one in read(folder):
        assert all(entry.median_us is not None for _, entry in one.entries()), one.kernel


def test_every_call_is_served_from_its_own_file(
    folder: Path, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", str(folder.parent))  # tests see no packaged files otherwise
    contexts = {file.kernel: latest(file) for file in read(folder)}
    for one in problems:
        key = Key(one.kernel, one.call, contexts[one.kernel])
        choice = sources.find(key, one.live, sources.exact_places(one.needed), strict=True)
        assert choice is not None, f"{one.kernel}: {one.text}"
        assert (choice.origin, Path(choice.where).parent) == (Origin.FILE, folder)


def latest(file: ConfigFile) -> Any:
    """The context of the group with the most entries, as a key of this file's device has it."""
    group = max(file.groups(), key=lambda group: len(group.entries))
    return {**group.context, "device": file.device.to_json()}


@pytest.mark.parametrize("environment", [{}, {"TRITON_DEFAULT_FP_FUSION": "true"}], ids=["unset", "as unset"])
def test_a_variable_that_changes_nothing_keeps_no_call_from_its_file(
    folder: Path, problems: list[Problem], monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", str(folder.parent))
    contexts = {file.kernel: latest(file) for file in read(folder)}
    for one in problems:
        key = Key(one.kernel, one.call, {**contexts[one.kernel], "environment": environment})
        exact = lookup.look_exact(key, one.live, one.needed).choice
        choice = exact or lookup.look_ladder(key, one.live, strict=True, needed=one.needed).choice
        assert choice is not None, f"{one.kernel}: {one.text}"
        assert Path(choice.where).parent == folder


def test_another_gpu_of_the_architecture_takes_none_of_them(
    stand_in: Path, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", str(stand_in.parent))
    sister = {**H200, "name": "NVIDIA H20", "sm_count": 78}
    for one in problems:
        [file] = (file for file in read(stand_in) if file.kernel == one.kernel)
        key = Key(one.kernel, one.call, {**latest(file), "device": sister})
        assert sources.find(key, one.live, list(sources.places(False, False, {}))) is None
        assert lookup.likely(key, one.live, {}) in one.live  # but a search measures it first
