"""What a process does before the first launch of a kernel whose choice is stored, counted: times need an idle machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from started import KERNEL

pytest.importorskip("triton")

PROGRAM = """
import json, sys
import torch, triton
from triton.runtime import autotuner, interpreter
import kernel_file

events = []
sys.addaudithook(lambda event, args: events.append((event, str(args[0]))) if event in COUNTED and on else None)
COUNTED, on = ("open", "os.scandir", "os.listdir", "subprocess.Popen", "os.rename", "os.mkdir", "os.utime"), False
before = set(sys.modules)
import autotuned
configs = [triton.Config({"BLOCK": block}) for block in (64, 128)]
autotuned.autotune, __import__("autotuned.api.tuned")
on = True
tuned = autotuned.autotune(configs, key=["n"], name="start.add")(kernel_file.add)
target, launch = tuned.tuner.tunable, tuned.tuner.tunable.launch

def first(call, config):
    global on
    if on and tuned.tuner.chooser.state.searches == 0:
        on = False
        print(json.dumps([sorted(set(sys.modules) - before), events]))
    return launch(call, config)

target.launch = first
tuned[(1,)](torch.zeros(64), 64)
assert tuned.cache_info().searches == int(sys.argv[1]), tuned.cache_info()
"""
# Each takes about 0.1 ms, and as much for each 15 KB of its byte code: one more here is a decision.
MODULES = [
    "_launch", "_native", "_startup", "api", "api.choices", "api.decorator", "api.pickling", "api.tuned", "disk",
    "env", "events", "gpu", "gpu.device", "key", "key.key", "key.reach", "key.source",
    "key.source_text", "launch", "launch.codegen", "launch.launcher", "resolve", "resolve.active",
    "resolve.chooser", "resolve.request", "resolve.sources", "resolve.tuner",
    "store", "store.choice", "store.conditions", "store.record", "triton_compat",
    "triton_compat.fingerprint", "triton_compat.kernel", "triton_compat.versions", "tunable", "tunable.call",
    "tunable.configs", "tunable.kernel", "typed_json",
]  # fmt: skip


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """The modules that a second process imports, and the files and folders it looks at, until its first launch."""
    folder = tmp_path_factory.mktemp("start")
    (folder / "kernel_file.py").write_text(KERNEL)
    environment = os.environ | {"TRITON_INTERPRET": "1", "AUTOTUNED_CACHE_DIR": str(folder / "cache")}
    environment |= {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    # Not in the checkout: its sources would shadow what is installed.
    forked.run([sys.executable, "-c", PROGRAM, "1"], env=environment, cwd=folder, check=True)
    command = [sys.executable, "-c", PROGRAM, "0"]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    modules, events = json.loads(done.stdout)
    return modules, [(event, Path(path)) for event, path in events], folder


def test_a_stored_choice_needs_no_module_for_searching_listing_or_config_files(start):
    modules, _, _ = start
    ours = [name for name in modules if name.partition(".")[0] == "autotuned"]
    assert ours == ["autotuned", *(f"autotuned.{name}" for name in MODULES)]


def test_a_stored_choice_needs_no_module_that_torch_and_triton_have_not_loaded(start):
    modules, _, _ = start
    assert [name for name in modules if name.partition(".")[0] != "autotuned"] == []


def test_a_stored_choice_takes_three_files_once_each_and_no_folder(start):
    _, events, folder = start
    opened = [path for event, path in events if event == "open"]
    assert [event for event, _ in events if event != "open"] == []
    assert [path.relative_to(folder).parts[:2] for path in opened] == [
        ("kernel_file.py",),
        ("cache", "toolchain"),
        ("cache", "v2"),
    ]
