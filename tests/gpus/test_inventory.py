"""Tests of `gpus`: what the management library and the kernel say of a host, in pretended ones."""

import subprocess
import sys

import fake_gpus
import pytest

from autotuned.gpu import inventory
from autotuned.gpu.inventory import Gpu

NONE = "libautotuned-none.so"


@pytest.fixture
def library(tmp_path):
    return str(fake_gpus.library(tmp_path))


def uuids(found):
    return [gpu.uuid for gpu in found]


def test_gpus_come_in_the_order_of_the_bus(library, monkeypatch):
    monkeypatch.setenv("FAKE_GPUS", fake_gpus.MIXED)
    assert inventory.table(library=library) == [
        Gpu("nvidia", 0, "GPU-aaaa0000-1", "NVIDIA H100 80GB HBM3"),
        Gpu("nvidia", 1, "GPU-bbbb0000-2", "NVIDIA A100-SXM4-80GB"),
    ]


def test_a_gpu_in_slices_is_its_slices(library, monkeypatch):
    monkeypatch.setenv("FAKE_GPUS", fake_gpus.SLICES)
    found = inventory.table(library=library)
    assert uuids(found) == ["MIG-1111-a", "MIG-1112-b", "GPU-bbbb0000-2"]
    assert [(gpu.index, gpu.parent) for gpu in found] == [(0, "GPU-aaaa0000-1"), (0, "GPU-aaaa0000-1"), (1, "")]
    assert found[0].name.endswith("MIG 3g.40gb")


def test_a_gpu_that_is_not_for_this_process_is_not_counted(library, monkeypatch):
    monkeypatch.setenv("FAKE_GPUS", "!GPU-denied|X\nGPU-b|NVIDIA GeForce RTX 5090")
    assert inventory.table(library=library) == [Gpu("nvidia", 0, "GPU-b", "NVIDIA GeForce RTX 5090")]


def test_a_library_without_a_driver_is_as_good_as_none(library, monkeypatch, tmp_path):
    monkeypatch.delenv("FAKE_GPUS", raising=False)
    assert inventory.table(tmp_path, library) == []
    assert inventory.table(tmp_path, NONE) == []


def test_without_the_library_nvidias_module_is_asked(tmp_path):
    for bus, uuid in (("0000:c1:00.0", "GPU-b"), ("0000:0a:00.0", "GPU-a")):
        folder = tmp_path / "proc/driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA L4\nIRQ:   \t\t 80\nGPU UUID: \t {uuid}\n")
    assert inventory.table(tmp_path, NONE) == [
        Gpu("nvidia", 0, "GPU-a", "NVIDIA L4"),
        Gpu("nvidia", 1, "GPU-b", "NVIDIA L4"),
    ]


def test_amds_module_lists_processors_too(tmp_path):
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for node, text in {
        "0": "simd_count 0\nunique_id 0\n",
        "10": "simd_count 304\nunique_id 1\ngfx_target_version 90402\ndrm_render_minor 129\n",
        "2": "simd_count 304\nunique_id 255\ngfx_target_version 90402\ndrm_render_minor 128\n",
        "3": "simd_count 304\nunique_id 0\ngfx_target_version 90402\ndrm_render_minor 130\n",
    }.items():
        (nodes / node).mkdir(parents=True)
        (nodes / node / "properties").write_text(text)
    product = tmp_path / "sys/class/drm/renderD128/device/product_name"
    product.parent.mkdir(parents=True)
    product.write_text("AMD Instinct MI300X\n")
    found = inventory.table(tmp_path, NONE)
    assert [(gpu.index, gpu.uuid, gpu.name) for gpu in found] == [
        (0, "GPU-00000000000000ff", "AMD Instinct MI300X"),
        (1, "", "AMD gfx target 90402"),
        (2, "GPU-0000000000000001", "AMD gfx target 90402"),
    ]
    assert found[0].settings["ROCR_VISIBLE_DEVICES"] == "GPU-00000000000000ff"
    assert found[1].settings == {
        "ROCR_VISIBLE_DEVICES": "1",
        "HIP_VISIBLE_DEVICES": None,
        "CUDA_VISIBLE_DEVICES": None,
    }


def test_asking_imports_neither_torch_nor_triton():
    code = "import sys; from autotuned.gpu import inventory as gpus, visible; gpus.table(); print({'torch', 'triton'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
