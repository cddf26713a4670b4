"""GPUs that are not there: NVIDIA's management library over a table in the environment, built from `fake_nvml.c`."""

import subprocess
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
    """Build the library into a folder; skips the test where there is no compiler."""
    path = folder / "libnvidia-ml.so.1"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", path, SOURCE], check=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("needs a C compiler")
    return path
