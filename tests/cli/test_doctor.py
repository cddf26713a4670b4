"""`autotuned doctor`: what it reports, finds, and leaves behind."""

import errno
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import run as _run
from commands import run_json as _json
from faults import faults

from autotuned.store import layout

pytestmark = pytest.mark.usefixtures("wide_output")

REPORT = {
    "versions", "devices", "no_gpu", "launcher", "launcher_reason", "mode", "cache", "store", "config_folders",
    "options", "problems",
}  # fmt: skip


def test_doctor_reports_what_is_used() -> None:
    data = _json("doctor")
    assert data.keys() == REPORT and data["problems"] == []
    assert data["versions"].keys() == {"autotuned", "python", "torch", "triton", "ptxas"} and all(
        data["versions"].values()
    )
    assert bool(data["devices"]) != bool(data["no_gpu"])
    assert data["cache"] == {"path": str(layout.root()), "unwritable": None, "records": 0, "bytes": 0}
    assert all(option.keys() == {"name", "value", "default", "help"} for option in data["options"])
    text = _run("doctor").stdout
    for option in data["options"]:
        assert option["name"] in text and option["help"].split()[0] in text


def test_doctor_shows_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    gpu = SimpleNamespace(name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", major=9, minor=0, multi_processor_count=16)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    data = _json("doctor")
    assert data["no_gpu"] is None and len(data["devices"]) == 2
    assert data["devices"][0] == {
        "kind": "cuda", "name": "NVIDIA H100 80GB HBM3", "arch": "sm_90", "sm_count": 16, "mig": "1g.10gb",
        "slug": "nvidia-h100-80gb-hbm3-sm_90-16-1g.10gb",
    }  # fmt: skip
    assert "sm_90, 16 SMs" in _run("doctor").stdout


def test_doctor_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "a" / "b"))
    from autotuned.triton_compat import fingerprint

    monkeypatch.setattr(fingerprint, "of", lambda arch, folder: {"ptxas": "1"})  # this one is remembered there
    assert _json("doctor")["cache"]["unwritable"] is None
    assert list(tmp_path.iterdir()) == []


def test_doctor_finds_a_full_disk() -> None:
    """It wrote an empty file, which a full disk takes."""
    with faults("write", errno.ENOSPC, name="*.autotuned-*"):
        data = _json("doctor")
    assert data["cache"]["unwritable"].endswith("No space left on device")
    assert any(problem.startswith("cache folder: cannot be written: ") for problem in data["problems"])


def test_doctor_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", str(tmp_path / "missing"))
    names = ["MODE", "LAUNCHER", "DEVICE", "COMPILE_WORKERS", "SEAL", "INSTALL", "STORE_KEY"]
    for name in names:
        monkeypatch.setenv(f"AUTOTUNED_{name}", "bogus")
    monkeypatch.setenv("AUTOTUNED_STORE", "redis://host/0")
    data = _json("doctor")
    problems = "\n".join(data["problems"])
    assert "is not a folder" in problems
    assert {f"AUTOTUNED_{name}" for name in names} <= {problem.split(": ")[-2] for problem in data["problems"]}
    assert f"config folder {tmp_path / 'missing'}: it does not exist." in data["problems"]
    assert data["mode"] is None and data["launcher"] is None
    assert data["config_folders"][0] == {"path": str(tmp_path / "missing"), "files": None}
    assert "problem: " in _run("doctor").stdout


def test_doctor_works_where_everything_is_missing() -> None:
    code = (
        "import os, pwd, sys\n"
        "sys.modules['torch'] = sys.modules['triton'] = None\n"
        "os.environ.pop('HOME'); pwd.getpwuid = lambda uid: (_ for _ in ()).throw(KeyError(uid))\n"
        "os.environ.pop('AUTOTUNED_CACHE_DIR'); os.environ['AUTOTUNED_CONFIG_PATH'] = '~nobody_here/x'\n"
        "sys.argv = ['autotuned', 'doctor', '--json']\n"
        "from autotuned.cli.main import app\napp()"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    data = json.loads(run.stdout)
    assert data.keys() == REPORT and data["versions"]["torch"] is data["versions"]["triton"] is None
    problems = "\n".join(data["problems"])
    assert "torch: ModuleNotFoundError" in problems and "triton: ModuleNotFoundError" in problems
    assert "config folders: RuntimeError" in problems and data["cache"]["path"]
