import sys
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import DEVICE

from autotuned.errors import NoDeviceError
from autotuned.gpu import device
from autotuned.gpu.device import INTERPRETER, Device, from_json


def gpu(name: str, arch: str = "sm_90", sm_count: int = 132, mig: str | None = None) -> Device:
    return Device("cuda", name, arch, sm_count, mig)


H100 = gpu("NVIDIA H100 80GB HBM3")


def fake_torch(*gpus: SimpleNamespace, current: int = 0, hip: str | None = None) -> Any:
    cuda = SimpleNamespace(
        is_available=lambda: bool(gpus), current_device=lambda: current, get_device_properties=lambda i: gpus[i]
    )
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=hip))


def properties(name: str, major: int = 9, minor: int = 0, sms: int = 132, gcn: str = "") -> SimpleNamespace:
    return SimpleNamespace(name=name, major=major, minor=minor, multi_processor_count=sms, gcnArchName=gcn)


@pytest.mark.parametrize(
    ("found", "hip", "expected"),
    [
        pytest.param(properties("NVIDIA H100 80GB HBM3"), None, H100, id="whole GPU"),
        pytest.param(
            properties("NVIDIA H100 80GB HBM3 MIG 1g.10gb", sms=16),
            None,
            gpu("NVIDIA H100 80GB HBM3", sm_count=16, mig="1g.10gb"),
            id="MIG slice",
        ),
        pytest.param(
            properties("NVIDIA B200", 10, 0, 148), None, gpu("NVIDIA B200", "sm_100", 148), id="arch of 3 digits"
        ),
        pytest.param(
            properties("AMD Instinct MI300X", sms=304, gcn="gfx942:sramecc+:xnack-"),
            "6.2",
            gpu("AMD Instinct MI300X", "gfx942", 304),
            id="AMD",
        ),
    ],
)
def test_a_gpu_is_what_the_driver_says(
    monkeypatch: pytest.MonkeyPatch, found: Any, hip: str | None, expected: Device
) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(found, hip=hip))
    assert device.cuda() == expected


def test_the_current_gpu_is_asked_for_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = properties("A"), properties("B", 8, 0, 108)
    monkeypatch.setitem(sys.modules, "torch", fake_torch(*gpus))
    assert device.cuda() == gpu("A")
    assert device.cuda(1) == gpu("B", "sm_80", 108)
    monkeypatch.setitem(sys.modules, "torch", fake_torch(*gpus, current=1))
    assert device.cuda() == gpu("B", "sm_80", 108)


def test_without_a_gpu_the_error_says_how_to_run_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    with pytest.raises(NoDeviceError, match="set TRITON_INTERPRET=1 before triton is first imported"):
        device.cuda()


def simulate(monkeypatch: pytest.MonkeyPatch, module: str = "torch.cuda") -> list[int]:
    """A torch with two GPUs whose query function comes from `module`; returns the list of its calls."""
    asked: list[int] = []
    gpus = properties("NVIDIA H100 80GB HBM3"), properties("NVIDIA H100 PCIe", sms=114)

    def query(index: int) -> SimpleNamespace:
        asked.append(index)
        return gpus[index]

    query.__module__ = module
    torch = fake_torch(*gpus)
    torch.cuda.get_device_properties, torch.cuda.is_initialized = query, lambda: True
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(device, "_seen", {})
    return asked


def test_capability_is_remembered_for_each_index(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = simulate(monkeypatch)
    assert [device.cuda(index).sm_count for index in (0, 1, None, 1, 0)] == [132, 114, 132, 114, 132]
    assert asked == [0, 1]


def test_a_query_function_that_was_replaced_is_asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    assert device.cuda(0) == H100
    torch: Any = sys.modules["torch"]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties("X", 8, index, 1))
    assert [device.cuda(index).arch for index in (0, 1)] == ["sm_80", "sm_81"]
    monkeypatch.undo()


def test_that_there_is_no_gpu_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    with pytest.raises(NoDeviceError):
        device.cuda()
    simulate(monkeypatch)
    assert device.cuda() == H100


EDITIONS = [
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition",
]


def test_one_product_under_several_names_is_one_device_b27(monkeypatch: pytest.MonkeyPatch) -> None:
    # Total memory, which differs by 10 MiB between the first two, is in no key.
    found = []
    for name in EDITIONS:
        monkeypatch.setitem(sys.modules, "torch", fake_torch(properties(name, 12, 0, 188)))
        found.append(device.cuda())
    assert len({where.slug for where in found}) == len(set(found)) == 1


@pytest.mark.parametrize(
    "name",
    ["NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H20", "NVIDIA H200", "NVIDIA H200 NVL",
     "NVIDIA GH200 480GB", "NVIDIA RTX 6000 Ada Generation"],
)  # fmt: skip
def test_a_name_that_is_not_in_the_table_is_a_product_b27(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(properties(name)))
    assert device.cuda().name == name


def test_the_table_of_names_leads_to_products_and_not_to_further_names() -> None:
    assert not set(device.PRODUCTS) & set(device.PRODUCTS.values())


PAIRS = {
    "the same device": (H100, gpu("NVIDIA H100 80GB HBM3"), True),
    "SXM and PCIe": (H100, gpu("NVIDIA H100 PCIe", sm_count=114), False),
    "H100 and H200": (H100, gpu("NVIDIA H200"), False),
    "H20, of fewer SMs": (H100, gpu("NVIDIA H20", sm_count=78), False),
    "a slice and the whole": (H100, gpu("NVIDIA H100 80GB HBM3", mig="7g.80gb"), False),
    "two slices": (gpu("NVIDIA H100 80GB HBM3", sm_count=16, mig="1g.10gb"),
                   gpu("NVIDIA H100 80GB HBM3", sm_count=32, mig="2g.20gb"), False),
    "another arch of one name": (gpu("X", "sm_90"), gpu("X", "sm_90a"), False),
    "GPU and CPU of one name": (gpu("X", "x", 1), Device("cpu", "X", "x", 1), False),
}  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS)
def test_which_devices_share_choices(pair: str) -> None:
    one, other, shared = PAIRS[pair]
    assert (one.to_json() == other.to_json()) is shared
    assert (one.slug == other.slug) is shared


@pytest.mark.parametrize(
    ("where", "slug"),
    [
        (H100, "nvidia-h100-80gb-hbm3-sm_90-132"),
        (gpu("NVIDIA H100 PCIe", sm_count=114), "nvidia-h100-pcie-sm_90-114"),
        (gpu("NVIDIA H100 NVL"), "nvidia-h100-nvl-sm_90-132"),
        (gpu("NVIDIA H200"), "nvidia-h200-sm_90-132"),
        (gpu("NVIDIA H200 NVL"), "nvidia-h200-nvl-sm_90-132"),
        (gpu("NVIDIA GH200 480GB"), "nvidia-gh200-480gb-sm_90-132"),
        (gpu("NVIDIA H20", sm_count=78), "nvidia-h20-sm_90-78"),
        (gpu("NVIDIA H20-3e", sm_count=78), "nvidia-h20-3e-sm_90-78"),
        (gpu("NVIDIA H800"), "nvidia-h800-sm_90-132"),
        (gpu("NVIDIA A100-PCIE-40GB", "sm_80", 108), "nvidia-a100-pcie-40gb-sm_80-108"),
        (gpu("NVIDIA L40S", "sm_89", 142), "nvidia-l40s-sm_89-142"),
        (gpu("NVIDIA L4", "sm_89", 58), "nvidia-l4-sm_89-58"),
        (gpu("NVIDIA RTX PRO 6000 Blackwell", "sm_120", 188), "nvidia-rtx-pro-6000-blackwell-sm_120-188"),
        (gpu("AMD Instinct MI300X", "gfx942", 304), "amd-instinct-mi300x-gfx942-304"),
        (gpu("AMD Instinct MI325X", "gfx942", 304), "amd-instinct-mi325x-gfx942-304"),
        (gpu("NVIDIA A100-SXM4-80GB", "sm_80", 16, "1g.10gb"), "nvidia-a100-sxm4-80gb-sm_80-16-1g.10gb"),
        (gpu("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "sm_120", 188),
         "nvidia-rtx-pro-6000-blackwell-workstation-edition-sm_120-188"),
        (gpu("Orin (nvgpu)", "sm_87", 16), "orin-nvgpu--sm_87-16"),
        (gpu("AMD Instinct MI300X VF", "gfx942", 304), "amd-instinct-mi300x-vf-gfx942-304"),
        (gpu("AMD Radeon Graphics", "gfx1100", 48), "amd-radeon-graphics-gfx1100-48"),
        (gpu("", "gfx942", 304), "gfx942-304"),
        (INTERPRETER, "cpu-interpreter"),
        (Device("cpu", "Intel(R) Xeon(R) CPU @ 2.20GHz", "x86_64", 8), "cpu-intel-r-xeon-r-cpu-2.20ghz-x86_64-8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_the_folder_of_a_device_b90(where: Device, slug: str) -> None:
    assert where.slug == slug


@pytest.mark.parametrize("where", [H100, gpu("X", mig="1g.10gb"), INTERPRETER], ids=["GPU", "slice", "interpreter"])
def test_a_device_survives_json(where: Device) -> None:
    assert from_json(where.to_json()) == where


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(None, id="null"),
        pytest.param([], id="a list"),
        pytest.param({}, id="empty"),
        pytest.param({**DEVICE, "memory": 80}, id="unknown field"),
        pytest.param({name: value for name, value in DEVICE.items() if name != "arch"}, id="missing field"),
        pytest.param({**DEVICE, "kind": None}, id="kind null"),
        pytest.param({**DEVICE, "name": 100}, id="name a number"),
        pytest.param({**DEVICE, "sm_count": "132"}, id="sm_count text"),
        pytest.param({**DEVICE, "sm_count": True}, id="sm_count bool"),
        pytest.param({**DEVICE, "mig": 0}, id="mig a number"),
    ],
)
def test_what_is_no_device_is_a_type_error(data: Any) -> None:
    with pytest.raises(TypeError):
        from_json(data)


def test_the_cpu_has_a_name_an_arch_and_cores() -> None:
    here = device.cpu()
    assert here.kind == "cpu"
    assert here.name
    assert here.arch
    assert here.sm_count >= 1
    assert here.slug.startswith("cpu-")
    assert device.cpu() is here
