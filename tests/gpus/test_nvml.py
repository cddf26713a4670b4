"""Tests of `nvml`: the library is opened, asked, and let go of, and what it refuses is an error of one kind."""

import ctypes

import fake_gpus
import pytest

from autotuned.gpu.nvml import Nvml, NvmlError


@pytest.fixture
def library(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_GPUS", fake_gpus.TWO)
    return str(fake_gpus.library(tmp_path))


def test_numbers_devices_and_texts_are_asked_for_by_name(library):
    nvml = Nvml(library)
    assert nvml.number("nvmlDeviceGetCount_v2") == 2
    second = nvml.handle("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(1))
    assert nvml.text("nvmlDeviceGetUUID", second) == "GPU-aaab0000-2"


def test_where_there_is_no_library_that_is_said():
    with pytest.raises(NvmlError, match="libautotuned-none"):
        Nvml("libautotuned-none.so")


def test_a_library_without_a_driver_is_refused_with_its_own_number(library, monkeypatch):
    monkeypatch.delenv("FAKE_GPUS")
    with pytest.raises(NvmlError, match="nvmlInit_v2 with error 9"):
        Nvml(library)


def test_an_answer_that_is_no_is_an_error_with_the_functions_name(library):
    with pytest.raises(NvmlError, match="nvmlDeviceGetHandleByIndex_v2 with error 2"):
        Nvml(library).handle("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(2))


def test_of_several_names_the_first_is_taken_that_the_driver_has(library):
    count = ctypes.c_uint()
    Nvml(library).function("nvmlNewName", "nvmlDeviceGetCount_v2")(ctypes.byref(count))
    assert count.value == 2
    with pytest.raises(NvmlError, match="has no nvmlNewName and no nvmlOldName"):
        Nvml(library).function("nvmlNewName", "nvmlOldName")


def test_it_is_closed_quietly_where_the_driver_cannot(library, monkeypatch):
    nvml = Nvml(library)
    monkeypatch.setattr(nvml, "_library", object())
    with pytest.raises(NvmlError):
        nvml.call("nvmlShutdown")
    nvml.close()
