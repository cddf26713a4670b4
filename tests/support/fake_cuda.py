"""A stand-in for Triton's CUDA driver: real JIT, real ptxas, real caches and hooks; launches are recorded, not run."""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import GPUDriver


class Launcher:
    """Replaces `CompiledKernel.run`: records grid, stream and arguments."""

    launches: list[SimpleNamespace] = []

    def __init__(self, src, metadata):
        self.metadata = metadata
        self.names = src.fn.arg_names

    def __call__(self, x, y, z, stream, function, packed, launch_metadata, enter, leave, *args):
        if enter is not None:
            enter(launch_metadata)
        if x * y * z == 0:
            return  # the real launcher does not launch an empty grid either
        Launcher.launches.append(
            SimpleNamespace(
                grid=(x, y, z),
                stream=stream,
                function=function,
                args=args,
                name=self.metadata.name,
                arguments=dict(zip(self.names, args)),
                metadata=self.metadata,
                warps=self.metadata.num_warps,
                shared=self.metadata.shared,
            )  # fmt: skip
        )
        if leave is not None:
            leave(launch_metadata)


def tritons_launcher(function):
    """Triton's own launcher of a compiled kernel, with a function in place of the C function that calls the driver."""
    from triton.backends.nvidia.driver import CudaLauncher

    launcher = object.__new__(CudaLauncher)  # its constructor needs libcuda
    none = ("global_scratch_size", "profile_scratch_size", "gsan_enabled", "launch_cooperative_grid", "launch_pdl")
    vars(launcher).update(dict.fromkeys(none, 0), global_scratch_align=1, profile_scratch_align=1, num_ctas=1)
    vars(launcher).update(launch=function, arg_annotations=["notes"], kernel_signature=b"signature")
    return launcher


def by_config(times, tunables=("BLOCK",)):
    """A `do_bench` that launches once and returns the time in `times` for the values of the tuned arguments.

    `bench.calls` lists these values in the order of measurement.
    """

    def bench(call, quantiles):
        call()
        launch = Launcher.launches[-1]
        values = tuple(launch.arguments[name] for name in tunables)
        bench.calls.append(values if len(values) > 1 else values[0])
        return [times[bench.calls[-1]]] * 3

    bench.calls = []
    return bench


def same(one, other):
    """Whether two recorded launches have the same binary, stream and tensors, and equal scalars."""
    return (one.function, one.grid, one.stream) == (other.function, other.grid, other.stream) and all(
        a is b or type(a) is type(b) and a == b for a, b in zip(one.args, other.args, strict=True)
    )


class Utils:
    """Device properties of an H100 and binaries that load without a device."""

    loads = 0
    shared_memory = 232448  # bytes available to a block

    def load_binary(self, name, kernel, shared, device):
        Utils.loads += 1
        return Utils.loads, Utils.loads, 32, 0, 1024

    def unload_module(self, module):
        pass

    def get_device_properties(self, device):
        return {"max_shared_mem": Utils.shared_memory, "multiprocessor_count": 132, "warpSize": 32, "max_num_regs": 65536,
                "sm_clock_rate": 1980000, "mem_clock_rate": 2619000, "mem_bus_width": 5120}  # fmt: skip


class Driver(GPUDriver):
    """One or more devices of compute capability 9.0."""

    def __init__(self):
        self.utils = Utils()
        self.launcher_cls = Launcher
        self.device, self.stream = 0, 0
        self.get_current_device = lambda: self.device
        self.set_current_device = lambda index: setattr(self, "device", index)
        self.get_current_stream = lambda index: self.stream
        self.get_device_capability = lambda index: (9, 0)

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    @staticmethod
    def is_active():
        return True

    def map_python_to_cpp_type(self, ty):
        return ty

    def get_active_torch_device(self):
        return torch.device("cpu")

    def get_device_interface(self):
        return torch.cuda

    def get_benchmarker(self):
        return lambda call, quantiles: [1.0, 1.0, 1.0]

    def get_empty_cache_for_benchmark(self):
        return torch.empty(0)

    def clear_cache(self, cache):
        pass


def begin_session(tmp_path_factory) -> None:
    """Use binaries of this session only; the driver stays installed, since compiled kernels unload with it at exit."""
    if "TRITON_CACHE_DIR" not in os.environ:
        os.environ["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    triton.runtime.driver._active = Driver()


def install_with_host_clock(monkeypatch) -> Driver:
    """`install`, with trials timed by the host's clock, since nothing runs on this GPU."""
    from autotuned.search import timers

    monkeypatch.setattr(timers, "CudaTimer", timers.HostTimer)
    return install(monkeypatch)


def limit_shared_memory(monkeypatch, size: int) -> None:
    """Limit shared memory so that even small kernels, which compile quickly, need too much."""
    from triton.compiler import compiler

    monkeypatch.setattr(Utils, "shared_memory", size)
    monkeypatch.setattr(compiler, "max_shared_mem", lambda device: size)  # Triton's own caches the limit


def install(monkeypatch) -> Driver:
    """Pretend one H100 to Triton and torch; undone by `monkeypatch`."""
    driver = Driver()
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    properties = SimpleNamespace(name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132,
                                 L2_cache_size=50 << 20)  # fmt: skip
    for name, value in {
        "is_available": lambda: True,
        "is_initialized": lambda: False,
        "current_device": lambda: driver.device,
        "get_device_properties": lambda index=None: properties,
        "synchronize": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    Launcher.launches.clear()
    return driver


@contextmanager
def traced_by_torch(monkeypatch):
    """Let Dynamo trace kernels for this GPU: torch looks for a real one, and saves its random state around tracing."""
    import torch.utils._triton
    from torch._higher_order_ops import triton_kernel_wrap

    for module in (torch.utils._triton, triton_kernel_wrap):
        for name in ("has_triton", "has_triton_package"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: torch.zeros(1))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state: None)
    if hasattr(torch, "accelerator"):  # a torch built for CUDA would be asked for its current stream, of no GPU
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    triton_kernel_wrap.kernel_side_table.reset_table()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def pointer(value) -> int:
    """The address of a recorded argument."""
    return ctypes.c_void_p(value.data_ptr()).value if hasattr(value, "data_ptr") else value
