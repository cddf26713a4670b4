"""A kernel runs where its tensors are; what that GPU cannot reach is refused before anything is launched."""

import pytest
import torch
import triton
import triton.language as tl
from triton import Config
from triton.tools.tensor_descriptor import TensorDescriptor

import autotuned
from autotuned import autotune
from autotuned.api import places
from autotuned.errors import PlaceError

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]


def copy(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


@pytest.fixture
def gpus(driver, monkeypatch):
    """Says on which GPU a tensor is pretended to lie, by its address, and where each launch went."""
    where = {}
    monkeypatch.setattr(places, "gpu_of", lambda tensor: where.get(tensor.data_ptr()))
    monkeypatch.setattr(places, "_is_reachable", lambda tensor: where.get(tensor.data_ptr()) is None)
    return where


def on(where, gpu):
    tensor = torch.zeros(128, dtype=torch.float16 if gpu == 1 else torch.float32)  # on a GPU its words say where it is
    where[tensor.data_ptr()] = gpu
    return tensor


@pytest.fixture
def launched_on(driver, monkeypatch):
    """The current device of each launch."""
    import fake_cuda

    found, call = [], fake_cuda.Launcher.__call__

    def noted(self, *args):
        found.append(driver.device)
        return call(self, *args)

    monkeypatch.setattr(fake_cuda.Launcher, "__call__", noted)
    return found


@pytest.mark.parametrize("launcher", ["c", "python"], indirect=True)
def test_a_kernel_runs_where_its_tensors_are(launcher, gpus, launches, launched_on, driver):
    tuned = autotune(CONFIGS, default=CONFIGS[1], key=[])(triton.jit(copy))
    for _ in range(3):
        for gpu in (0, 1):
            tuned[(4,)](on(gpus, gpu), on(gpus, gpu), 100)
            assert driver.device == 0
    assert launched_on == [0, 1] * 3
    assert len(tuned.tuner.launcher) == 2  # an entry a device
    assert tuned.cache_info().misses == 2


def test_the_current_device_is_as_before_after_an_error(gpus, launches, driver):
    tuned = autotune(CONFIGS, default=CONFIGS[1], key=[])(triton.jit(copy))

    def grid(meta):
        assert driver.device == 1
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        tuned[grid](on(gpus, 1), on(gpus, 1), 100)
    assert driver.device == 0


def test_what_cannot_be_reached_is_refused_before_a_launch(gpus, launches):
    tuned = autotune(CONFIGS, key=[])(triton.jit(copy))
    for _ in range(2):
        with pytest.raises(PlaceError, match=r"'y' on cpu: it cannot be accessed from Triton") as caught:
            tuned[(4,)](on(gpus, 0), on(gpus, 1), 100)
        assert (caught.value.argument, len(launches)) == ("y", 0)


def test_what_the_driver_lets_through_is_launched(gpus, launches, monkeypatch):
    """Pinned memory of the host, and peers."""
    monkeypatch.setattr(places, "_is_reachable", lambda tensor: True)
    tuned = autotune(CONFIGS, default=CONFIGS[1], key=[])(triton.jit(copy))
    tuned[(4,)](on(gpus, 0), on(gpus, 1), 100)
    assert len(launches) == 1


def test_tensors_in_tuples_and_descriptors_say_where(gpus):
    descriptor = TensorDescriptor.from_tensor(on(gpus, 3), [16])

    def elsewhere(*values):
        return places.gpu_elsewhere({f"a{i}": value for i, value in enumerate(values)}, "app.k")

    assert elsewhere(5, (1, (on(gpus, 2),)), on(gpus, None)) == 2
    assert elsewhere(descriptor) == 3
    assert elsewhere(descriptor, on(gpus, 0)) is None
    assert elsewhere(on(gpus, 0), None, "x") is None
    assert elsewhere(5, None) is None
    with pytest.raises(PlaceError, match="'a1'"):  # whose memory is the CPU's
        elsewhere(descriptor, on(gpus, 2))


def test_a_replaced_tuner_launches_where_triton_would(gpus, launches, launched_on):
    autotuned.install(replace=True)
    try:
        tuned = triton.autotune(CONFIGS[:1], key=[])(triton.jit(copy))
        tuned[(4,)](on(gpus, 1), on(gpus, 1), 100)
    finally:
        autotuned.uninstall()
    assert set(launched_on) == {0}


def test_after_a_restore_nothing_bound_answers(launches):
    from autotuned.gpu import device

    tuned = autotune(CONFIGS, default=CONFIGS[1], key=[])(triton.jit(copy))
    x, y = torch.zeros(100), torch.zeros(100)
    for _ in range(2):
        tuned[(4,)](x, y, 100)
    device._seen[0, 0] = "of another machine"
    autotuned.restored()
    assert len(tuned.tuner.launcher) == 0
    assert not device._seen
    tuned[(4,)](x, y, 100)
    assert tuned.cache_info().misses == 2
