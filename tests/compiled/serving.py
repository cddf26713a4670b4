"""One process of `test_binaries.py`: serves a kernel from shipped binaries where nothing can be compiled."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
import triton

import autotuned
from autotuned.triton_compat import fingerprint

PROPERTIES = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132, L2_cache_size=50 << 20
)


def refuse(*args, **kwargs):
    """In the place of whatever compiles, makes Triton's driver, or hashes its files."""
    raise AssertionError("expected that nothing is compiled")


def main(folder):
    """Launch two sizes twice, and print what was counted."""
    with pytest.MonkeyPatch.context() as patch:
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
        autotuned.register_configs(folder, binaries=True)
        from shipped_kernel import add

        for n in (96, 100, 96, 100):
            kernel = add[(4,)](torch.zeros(n), torch.zeros(n), n, 1)
        info = add.cache_info()
        print(
            json.dumps(
                {"hits": info.hits, "searches": info.searches, "name": kernel.name, "c": add.tuner.launcher.name}
            )
        )


if __name__ == "__main__":
    main(sys.argv[1])
