"""Pretended GPUs: NVIDIA's management library over a table in the environment, and kernels to tune on them."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
TWO = "GPU-aaaa0000-1|NVIDIA H100 80GB HBM3\nGPU-aaab0000-2|NVIDIA H100 80GB HBM3"
MIXED = "GPU-aaaa0000-1|NVIDIA H100 80GB HBM3\nGPU-bbbb0000-2|NVIDIA A100-SXM4-80GB"
SLICES = (
    "GPU-aaaa0000-1|NVIDIA H100 80GB HBM3\n"
    "  MIG-1111-a|NVIDIA H100 80GB HBM3 MIG 3g.40gb\n"
    "  MIG-1112-b|NVIDIA H100 80GB HBM3 MIG 3g.40gb\n"
    "GPU-bbbb0000-2|NVIDIA H100 80GB HBM3"
)


def library(folder: Path) -> Path:
    """Build the library into a folder; skips the test without a compiler."""
    path = folder / "libnvidia-ml.so.1"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", path, SOURCE], check=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("needs a C compiler")
    return path


# The kernels tuned on them; each launch writes a line to a file: device, process, n and config.
KERNELS = '''
import os, signal, sys, time
from pathlib import Path
import numpy as np
sys.path.insert(0, SUPPORT)
from fakes import FakeConfig as Config  # Triton's own takes a third of a second to import
from autotuned import autotune

HERE = Path(__file__).parent

def gpu():  # no global, which would be part of the key
    return os.environ.get("CUDA_VISIBLE_DEVICES", "none")

if (HERE / "kinds").exists():  # as on real ones: what a choice is made for is the GPU that the process sees
    from autotuned.gpu import device
    is_a100 = gpu().startswith("GPU-bbbb") or os.environ.get("FAKE_KIND") == "a100"
    kind = "NVIDIA A100" if is_a100 else "NVIDIA H100"
    device.cpu = lambda: device.Device("cpu", kind, "sm_80" if "A100" in kind else "sm_90", 100)

def note(what):
    with open(HERE / "log", "a") as log:
        print(gpu(), os.getpid(), what, file=log)

def end_once(n):
    """End this process, as a driver's fault would, the first time that a process comes here with n."""
    try:
        os.close(os.open(HERE / f"died-{n}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

def wait_for_others(n):
    WAIT

def bench(launch, quantiles=None, **rest):
    """Times that no other load of this machine gets into."""
    launch()
    return [4.0 if last == "slow" else 1.0] * 3

@autotune(configs=[Config({"how": how}) for how in ("slow", "fast")], key=["n"], do_bench=bench)
def work(out, n, *, how):
    global last
    last = how
    note(f"{n} {how}")
    wait_for_others(n)
    time.sleep(0.01)
    out[...] = n

@work.case
def cases(device):
    for n in range(COUNT):
        BEFORE
        yield dict(args=(np.zeros(4), n))
'''
# For WAIT: wait for a launch on another device.
MEET = (
    "end = time.monotonic() + 60\n"
    "    while len({line.split()[0] for line in open(HERE / 'log')}) < 2:\n"
    "        assert time.monotonic() < end, 'nobody came'\n"
    "        time.sleep(0.01)"
)


def command(tmp_path: Path, *options: str, count: int = 6, before: str = "pass", wait: str = "pass") -> list[str]:
    file = tmp_path / "kernels.py"
    words = {"SUPPORT": repr(str(SOURCE.parent)), "COUNT": str(count), "BEFORE": before, "WAIT": wait}
    file.write_text(functools.reduce(lambda text, word: text.replace(*word), words.items(), KERNELS))
    return [sys.executable, "-c", "from autotuned.cli.main import app; app()", "tune", str(file), *options]


def environment(**more: str) -> dict[str, str]:
    hidden = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    return {**{name: value for name, value in os.environ.items() if name not in hidden}, **more}


def log(tmp_path: Path) -> list[tuple[str, ...]]:
    """Device, process, n and config of each launch."""
    return [tuple(line.split()) for line in (tmp_path / "log").read_text().splitlines()]


def interrupted(process: "subprocess.Popen[str]", tmp_path: Path) -> tuple[str, str]:
    """Ctrl-C for a command once two devices have measured; what it wrote until it ended."""
    end = time.monotonic() + 120
    while len({line[0] for line in log(tmp_path)} if (tmp_path / "log").exists() else ()) < 2:
        assert time.monotonic() < end and process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=60)
