"""Write the samples in this folder: `python make.py FOLDER`, without a GPU. Only dates, seconds and ids differ each time.

Never write this folder anew: a version that cannot read it, or computes other keys, breaks what users have. A later
format gets a folder of its own, with this script in it.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import autotuned
from autotuned.gpu import device
from autotuned.gpu.device import Device

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "support")]
CPU = Device("cpu", "Any CPU", "x86_64", 8)
TOOLCHAIN = {"triton": "3.9.0", "triton_key": "aa", "ptxas": "13.0.88 bb"}
KEY = "a key of a fleet, not a secret"
CALLS = [
    ("listed", (np.zeros((4, 8), np.float32), 150)),
    ("listed", (np.zeros(16), 1000, "exact")),
    ("spaced", (100,)),
    ("checked", (np.ones(4), np.ones(4), 7)),
]
STOPPED = {5: 6, 6: 6, 7: 1}  # by Ctrl-C, by its end, and by its end in a first launch: n, and in which call


def functions(out: Path) -> None:
    """What plain functions leave: records, a logbook, a recording, a shared store, and config files with a rule."""
    device.cpu, socket.gethostname = (lambda: CPU), (lambda: "host")
    import written

    shared = autotuned.connect(f"file://{out}/shared", namespace="fleet", key=KEY, wait_s=10.0)
    with shared, autotuned.record(out / "calls.jsonl"), autotuned.mode("search"):
        chosen = [getattr(written, name)(*args) for name, args in CALLS]
    with autotuned.record(out / "calls.jsonl"):
        written.spaced(100)
    for n, calls in STOPPED.items():
        os.environ["WRITTEN_STOP"] = str(calls)
        with suppress(KeyboardInterrupt):
            if pid := n != 5 and os.fork():
                os.waitpid(pid, 0)
            else:
                written.stopped(n)
    digest = autotuned.choices_digest("written.listed")
    for m in written.SIZES:
        written.ruled(m)
    with tempfile.TemporaryDirectory() as exported:
        autotuned.export(exported, "written.ruled")
        autotuned.compress(exported, out=out / "configs", within="5%")
    shutil.rmtree(Path(os.environ["AUTOTUNED_CACHE_DIR"], "v2", "written.ruled"))
    (out / "expected.json").write_text(json.dumps({"choices": chosen, "digest": digest}, indent=1) + "\n")


def kernel(out: Path) -> None:
    """What a Triton kernel leaves: a record, a config file, and binaries for an H100."""
    import fake_cuda
    import torch

    from autotuned.offline import binaries
    from autotuned.tunable.kernel import TunableKernel

    TunableKernel.toolchain, TunableKernel.environment = (lambda self, where, folder: TOOLCHAIN), (lambda self: {})
    fake_cuda.begin_session(SimpleNamespace(mktemp=lambda name: tempfile.mkdtemp()))
    fake_cuda.install_with_host_clock(pytest.MonkeyPatch())
    import written_kernel

    x, y = torch.zeros(128), torch.zeros(128)
    written_kernel.add[(4,)](x, y, 96)
    autotuned.export(out / "kernel", "written.add")
    assert binaries.build(out / "kernel", ["written_kernel"], device="cpu").missing == []
    autotuned.push(out / "kernel", f"file://{out}/shared#fleet")


def main(out: Path, part: str = "") -> None:
    """All of it, a process each: kernels are compiled in one, and interpreted or absent in the other."""
    if part:
        {"functions": functions, "kernel": kernel}[part](out)
        return
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "AUTOTUNED_CACHE_DIR": cache,
            "AUTOTUNED_STORE_KEY": KEY,
            "TRITON_DEFAULT_FP_FUSION": "1",
        }
        for part in ("functions", "kernel"):
            subprocess.run([sys.executable, __file__, str(out), part], env=environment, check=True)
        shutil.copytree(Path(cache, "v2"), out / "store" / "v2", ignore=shutil.ignore_patterns("locks"))
        for path in out.rglob(".lock"):
            path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), *sys.argv[2:])
