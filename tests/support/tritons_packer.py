"""Triton's own C launcher of compiled kernels over a pretended driver: what it passes is seen byte for byte."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType

import fake_cuda
import pytest
from fake_driver import OLD_DRIVER, Device
from triton.backends.nvidia import driver as nvidia

HERE = Path(__file__).resolve().parent
SOURCE = Path(nvidia.__file__).with_name("driver.c")
#: Older Tritons write a launcher in C for each signature instead.
IS_GENERIC = shutil.which("cc") is not None and "build_signature_metadata" in SOURCE.read_text()


@functools.cache
def built(path: Path = SOURCE, name: str = "cuda_utils") -> ModuleType:
    """Triton's module in C, compiled over `tritons_packer.c`; it stays loaded."""
    output = Path(tempfile.mkdtemp()) / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    includes = [f"-I{SOURCE.parent / 'include'}", f"-I{sysconfig.get_path('include')}"]
    define = f'-DTRITONS_DRIVER="{path}"'
    # Without what a run under the address sanitizer preloads: the compiler itself leaks.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = ["cc", "-O1", "-w", "-shared", "-fPIC", *includes, define, HERE / "tritons_packer.c", "-o", output]
    subprocess.run(command, check=True, timeout=120, env=environment)
    spec = importlib.util.spec_from_file_location(name, output)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.path = output
    return module


@functools.cache
def written(text: str) -> Path:
    """A launcher that Triton 3.6 has written, in a file."""
    path = Path(tempfile.mkdtemp()) / "launcher.c"
    path.write_text(text)
    return path


class Utils(fake_cuda.Utils):
    """The pretended device's properties, and Triton's own launch."""

    def __init__(self) -> None:
        for name in ("launch", "build_signature_metadata", "fill_tma_descriptor_tiled", "fill_tma_descriptor"):
            if hasattr(built(), name):
                setattr(self, name, getattr(built(), name))


def install(monkeypatch, driver: fake_cuda.Driver, launch: int, encode: int = 0) -> None:
    """Launch the kernels of this pretended driver by Triton's own launcher, which calls the function at this address."""

    def call(module: ModuleType) -> ModuleType:
        library = ctypes.CDLL(str(module.path))
        library.launch_by(ctypes.c_void_p(launch))
        library.encode_by(ctypes.c_void_p(encode), OLD_DRIVER)
        return module

    module = call(built())
    for name in ("PyKernelArg", "ARG_CONSTEXPR", "ARG_KERNEL", "ARG_TUPLE", "PyCUtensorMap"):
        if hasattr(module, name):
            monkeypatch.setattr(nvidia, name, getattr(module, name))
    if not IS_GENERIC:
        monkeypatch.setattr(nvidia, "library_dirs", list)
        monkeypatch.setattr(
            nvidia, "compile_module_from_src", lambda src, name, **rest: call(built(written(src), name))
        )
    driver.utils = Utils()
    driver.launcher_cls = nvidia.CudaLauncher


@pytest.fixture
def shared_device(driver, monkeypatch):
    """The driver of all launchers, Triton's own too; one stream for all."""
    from autotuned import _launch

    device = Device()
    driver.get_current_stream = lambda index: device.stream
    install(monkeypatch, driver, device.addresses()[0], device.encoder())
    _launch.use_driver(*device.all_addresses())
    yield device
    _launch.use_driver(0, 0, 0, 0)


FLAGS = ["i1", "i1"] if IS_GENERIC else ["i1"]  # padding, and rounding to TF32
SIZES = {"": 128, "1": 1, "8": 1, "16": 2, "32": 4, "64": 8}


def size_of(kind):
    return 8 if kind.startswith("*") else SIZES[kind.strip("biufp")]


def flat(kinds, metas):
    """The types of all that is passed; that of a map is ""."""
    for kind in kinds:
        if isinstance(kind, tuple):
            yield from flat(kind, metas)
        elif kind.startswith("tensordesc"):
            rank = kind.count(",") + 1
            yield from [""] if next(metas, None) else ["*", *["i64"] * 2 * rank, *FLAGS]
            yield from ["i32"] * rank + ["i64"] * rank
        else:
            yield kind


def outcome(device, call):
    """What one call gave the driver, and its error."""
    device.calls.clear()
    compiled, error = None, None
    try:
        compiled = call()
    except Exception as raised:
        error = type(raised), str(raised)
    return compiled, error, list(device.calls)


def seen(device, call):
    """The same with the parameters' bytes, of which the kernel says how many there are: called again for these."""
    compiled, error, calls = outcome(device, call)
    if compiled is None:
        return None, error, [(one.grid, one.function) for one in calls]
    metas = iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
    kinds = [kind for kind in flat(compiled.src.signature.values(), metas) if kind != "constexpr"]
    device.calls.clear()
    device.sizes = [*map(size_of, kinds), 8, 8]
    try:
        assert call() is compiled
    finally:
        device.sizes = None
    return compiled, None, list(device.calls)


def passed(device, call):
    """What one call of a kernel gave the driver."""
    device.calls.clear()
    call()
    return list(device.calls)
