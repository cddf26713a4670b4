"""Tests of `visible`: `CUDA_VISIBLE_DEVICES`, `HIP_VISIBLE_DEVICES` and `--devices` in every form."""

import itertools

import pytest

from autotuned.errors import DeviceChoiceError, NoDeviceError
from autotuned.gpu import visible
from autotuned.gpu.inventory import Gpu

H100 = "NVIDIA H100 80GB HBM3"
FOUR = [Gpu("nvidia", index, f"GPU-{uuid}", H100) for index, uuid in enumerate(("aa11", "aa22", "bb33", "cc44"))]
MIG = [
    Gpu("nvidia", 0, "MIG-11aa", f"{H100} MIG 1g.10gb", "GPU-aa11"),
    Gpu("nvidia", 0, "MIG-12bb", f"{H100} MIG 1g.10gb", "GPU-aa11"),
    Gpu("nvidia", 1, "GPU-bb22", H100),
]
OLD_MIG = [Gpu("nvidia", 0, f"MIG-GPU-aa11/{instance}/0", f"{H100} MIG 1g.10gb", "GPU-aa11") for instance in (1, 10)]
AMD = [Gpu("amd", index, f"GPU-00{index}f", "AMD Instinct MI300X") for index in range(4)]
MIXED = [Gpu("nvidia", 0, "GPU-aa11", H100), Gpu("nvidia", 1, "GPU-bb22", "NVIDIA L4")]


def indices(found, table):
    return [table.index(gpu) for gpu in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(None, [0, 1, 2, 3], id="unset"),
        pytest.param("", [], id="empty"),
        pytest.param("   ", [], id="blank"),
        pytest.param("-1", [], id="minus one"),
        pytest.param("NoDevFiles", [], id="slurm's word for none"),
        pytest.param("2", [2], id="one"),
        pytest.param("2,0", [2, 0], id="in its own order"),
        pytest.param(" 2 ,\t0 ", [2, 0], id="whitespace"),
        pytest.param("2,0,", [2, 0], id="comma at the end"),
        pytest.param(",2", [], id="comma at the beginning"),
        pytest.param("+1", [1], id="plus sign"),
        pytest.param("1gpu,2x", [1, 2], id="as the c library reads numbers"),
        pytest.param("0,2,-1,1", [0, 2], id="minus one ends the list"),
        pytest.param("0,7,1", [0], id="so does what is not there"),
        pytest.param("7", [], id="nothing that is there"),
        pytest.param("0,1,0", [], id="named twice"),
        pytest.param("GPU-bb33", [2], id="uuid"),
        pytest.param("GPU-bb33,GPU-aa11", [2, 0], id="uuids"),
        pytest.param("GPU-bb33, GPU-aa11", [2, 0], id="uuids with whitespace"),
        pytest.param("GPU-b,GPU-aa2", [2, 1], id="beginnings of uuids"),
        pytest.param("GPU-a", [], id="beginning of two"),
        pytest.param("GPU-bb33,GPU-zz,GPU-aa11", [2], id="unknown uuid ends the list"),
        pytest.param("GPU-bb33,GPU-b", [], id="uuid named twice"),
        pytest.param("GPU-bb33,0", [2, 0], id="index after uuids"),
        pytest.param("0,GPU-bb33", [0, 2], id="uuid after indices"),
        pytest.param("MIG-11aa", [], id="slice where none is"),
    ],
)  # fmt: skip
def test_cuda_visible_devices(text, expected):
    variables = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert indices(visible.visible(FOUR, variables), FOUR) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, [0, 1, 2]),
        ("MIG-12bb", [1]),
        ("MIG-12bb,MIG-11aa", [1, 0]),
        ("MIG-12", [1]),
        ("MIG-1", []),
        ("0", [0]),  # CUDA shows the first slice of a GPU
        ("1", [2]),
        ("GPU-aa11", [0]),
        ("GPU-b", [2]),
        ("MIG-12bb,GPU-bb22", [1, 2]),
    ],
)
def test_cuda_visible_devices_and_slices(text, expected):
    variables = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert indices(visible.visible(MIG, variables), MIG) == expected


def test_slices_as_old_drivers_name_them():
    variables = {"CUDA_VISIBLE_DEVICES": "MIG-GPU-aa11/1/0"}  # the beginning of nothing else, though "…/1" is of both
    assert indices(visible.visible(OLD_MIG, variables), OLD_MIG) == [0]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
        ({"HIP_VISIBLE_DEVICES": "1,-1,2"}, [1]),
        ({"HIP_VISIBLE_DEVICES": " 1 , 3 "}, [1, 3]),
        ({"HIP_VISIBLE_DEVICES": "1,1"}, []),
        ({"HIP_VISIBLE_DEVICES": "GPU-002"}, [2]),
        ({"CUDA_VISIBLE_DEVICES": "3"}, [3]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "3"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "3,1"}, [3, 1]),
        ({"ROCR_VISIBLE_DEVICES": "0,GPU-003f"}, [0, 3]),
        ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1"}, [1]),  # HIP counts what is left
        ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "2"}, []),
        ({"ROCR_VISIBLE_DEVICES": "3,1", "CUDA_VISIBLE_DEVICES": "0"}, [3]),
    ],
)
def test_hip_visible_devices_and_its_kin(variables, expected):
    assert indices(visible.visible(AMD, variables), AMD) == expected


def test_hips_variables_hide_no_nvidia_gpu():
    assert visible.visible(FOUR, {"HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "1"}) == FOUR


def test_lists_are_read_as_torch_reads_them(monkeypatch):
    torch_cuda = pytest.importorskip("torch.cuda")
    if not hasattr(torch_cuda, "_parse_visible_devices"):
        pytest.skip("this torch keeps its parser elsewhere")
    names = ["0", "1", "3", "-1", "", " 2", "1x", "+2", "x"]
    for length in (1, 2, 3):
        for some in itertools.product(names, repeat=length):
            text = ",".join(some)
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
            theirs = torch_cuda._parse_visible_devices()
            ours = indices(visible.visible(FOUR, {"CUDA_VISIBLE_DEVICES": text}), FOUR)
            assert ours == theirs, text


# -- --devices ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "variables", "expected"),
    [
        ("all", {}, [0, 1, 2, 3]),
        (" ALL ", {"CUDA_VISIBLE_DEVICES": "3,1"}, [3, 1]),
        ("0,2", {}, [0, 2]),
        (" 2 , 0 ", {}, [2, 0]),
        ("0", {"CUDA_VISIBLE_DEVICES": "3,1"}, [3]),  # as a program started here would count
        ("GPU-bb33", {}, [2]),
        ("gpu-BB", {}, [2]),
        ("GPU-cc,1", {}, [3, 1]),
    ],
)
def test_devices_are_named_by_index_or_uuid_among_those_visible(text, variables, expected):
    assert indices(visible.chosen(text, FOUR, variables), FOUR) == expected


def test_slices_are_named_by_their_uuids_or_by_index():
    assert indices(visible.chosen("MIG-12bb,2", MIG, {}), MIG) == [1, 2]
    assert indices(visible.chosen("all", MIG, {}), MIG) == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4", "'4' matches none of the visible GPUs (0: NVIDIA H100 80GB HBM3 (GPU-aa11), 1: "),
        ("GPU-zz", "'GPU-zz' matches none"),
        ("GPU-aa", "'GPU-aa' matches 2"),
        ("", "'' matches none"),
        ("0,,1", "'' matches none"),
        ("-1", "'-1' matches none"),
        ("cuda:0", "'cuda:0' matches none"),
        ("0,GPU-aa11", "expected each GPU once, got 'GPU-aa11'"),
    ],
)
def test_a_name_that_fits_no_single_gpu_is_an_error_that_lists_them(text, words):
    with pytest.raises(DeviceChoiceError) as caught:
        visible.chosen(text, FOUR, {})
    assert words in str(caught.value)


def test_a_gpu_that_the_environment_hides_cannot_be_named():
    with pytest.raises(DeviceChoiceError, match=r"'1' matches none of the visible GPUs \(0: .*GPU-cc44\)"):
        visible.chosen("1", FOUR, {"CUDA_VISIBLE_DEVICES": "3"})


def test_no_gpu_at_all_is_said():
    with pytest.raises(NoDeviceError, match="expected GPUs, and there is none"):
        visible.chosen("all", [], {})


@pytest.mark.parametrize("value", ["", "-1", "9", "0,0"])
def test_an_environment_that_leaves_none_is_named_with_what_is_there(value):
    with pytest.raises(NoDeviceError) as caught:
        visible.chosen("all", FOUR, {"CUDA_VISIBLE_DEVICES": value})
    assert f"CUDA_VISIBLE_DEVICES={value!r} leaves none of the 4 here (0: NVIDIA H100" in str(caught.value)


def test_an_index_whose_gpu_only_cuda_knows_is_handed_on_as_it_is():
    chosen = visible.chosen("all", MIXED, {"CUDA_VISIBLE_DEVICES": "1,GPU-b,0"})
    assert [gpu.settings for gpu in chosen] == [{"CUDA_VISIBLE_DEVICES": value} for value in ("1", "GPU-bb22", "0")]
    assert [str(gpu) for gpu in chosen] == ["GPU (number 1)", "NVIDIA L4 (GPU-bb22)", "GPU (number 0)"]
    assert visible.visible(MIXED, {"CUDA_VISIBLE_DEVICES": "2"}) == []
    by_bus = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert indices(visible.visible(MIXED, by_bus), MIXED) == [1]
    assert indices(visible.visible(MIXED, {"CUDA_VISIBLE_DEVICES": "GPU-b"}), MIXED) == [1]
    assert visible.visible(MIXED, {}) == MIXED


def test_a_gpu_that_is_handed_on_by_index_is_the_one_that_a_program_would_count_so():
    """`--devices` counts entries, each process gets its own entry."""
    [gpu] = visible.chosen("1", MIXED, {"CUDA_VISIBLE_DEVICES": "1,0"})
    assert gpu.settings == {"CUDA_VISIBLE_DEVICES": "0"}


def test_a_gpu_in_slices_is_not_named_by_its_own_uuid():
    with pytest.raises(DeviceChoiceError, match="'GPU-aa11' matches none"):
        visible.chosen("GPU-aa11", MIG, {})
