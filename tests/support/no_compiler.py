"""A process with a pretended GPU and no compiler: the driver's library is a stand-in, Triton's compiler raises."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).parent
PROPERTIES = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132, L2_cache_size=50 << 20
)


def build_library(folder: Path) -> None:
    """Compile the stand-in for CUDA's driver into a folder."""
    source = HERE / "fake_libcuda.c"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", folder / "libcuda.so.1", source]
    subprocess.run(command, check=True, timeout=60)


def environment(folder: Path, library: Path, *paths: str, **more: str) -> dict[str, str]:
    """The environment of a process with empty caches below a folder, an empty PATH, and the result of `build_library`."""
    return {
        "PATH": str(folder / "nothing"), "LD_LIBRARY_PATH": str(library), "FAKE_LIBCUDA_LOG": str(folder / "log"),
        "PYTHONPATH": os.pathsep.join([*paths, str(HERE), *sys.path]), "HOME": str(folder),
        "AUTOTUNED_CACHE_DIR": str(folder / "empty"), "TRITON_CACHE_DIR": str(folder / "triton"), **more,
    }  # fmt: skip


def refuse(*args, **kwargs):
    """Replaces functions that compile, create Triton's driver, or hash its files."""
    raise AssertionError("expected that nothing is compiled")


def pretend(patch) -> None:
    """Pretend one H100 to torch, and let every compilation raise."""
    import torch
    import triton

    from autotuned.triton_compat import fingerprint

    for name, value in {
        "is_available": lambda: True, "is_initialized": lambda: True, "current_device": lambda: 0,
        "get_device_properties": lambda index=None: PROPERTIES,
    }.items():  # fmt: skip
        patch.setattr(torch.cuda, name, value)
    patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    patch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    for place in ("triton.compile", "triton.compiler.compile", "triton.compiler.compiler.compile"):
        patch.setattr(place, refuse)
    patch.setattr(type(triton.runtime.driver), "active", property(refuse))
    patch.setattr(fingerprint, "of", refuse)
    patch.setattr(fingerprint, "begin", refuse)
