"""Code of the user's that runs between look-up and launch may change what was looked up: each launcher reads it again."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
import tritons_packer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton import Config, knobs
from tritons_packer import passed

from autotuned import autotune

pytest.importorskip("autotuned._launch")
pytestmark = pytest.mark.skipif(
    not tritons_packer.IS_GENERIC, reason="needs a C compiler, and Triton's generic launcher"
)


@triton.jit
def copies(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


def shift(tensor, by):
    """Give a tensor memory that is or is not at a multiple of 16."""
    tensor.data = torch.zeros(100, dtype=tensor.dtype)[by:]


def narrow(tensor):
    tensor.data = torch.zeros(100, dtype=torch.float16)


class Moved:
    """One tuned kernel, and what its user's code does when it is asked to."""

    def __init__(self, device, driver, moment):
        self.device, self.driver, self.moment = device, driver, moment
        self.x, self.y = torch.zeros(64), torch.zeros(64)
        self.todo, self.did = None, 0
        options = {"key": ["n"]}
        if moment == "bucket":
            options["bucket"] = {"n": self.noted}
        if moment == "key function":
            options["key"] = [lambda arguments: self.noted(1)]
        if moment == "zeroing":
            options["reset_to_zero"] = ["y"]
        self.hook = (lambda arguments: self.noted(None)) if moment in ("hook", "zeroing") else None
        self.config = Config({"BLOCK": 64}, num_warps=2, pre_hook=self.hook)
        self.kernel = autotune([self.config], restore_value=[], name=f"moved.{moment}.{id(self)}", **options)(copies)

    def __reduce__(self):
        raise TypeError("told by object: to read all that its hook reaches takes most of the time")

    def noted(self, value):
        todo, self.todo = self.todo, None
        if todo is not None:
            self.did += 1
            globals()["ACTIONS"][todo](self)  # no global that the hook reads: what it reaches is in the key
        return value

    def __index__(self):
        return self.noted(3)

    def grid(self):
        if self.moment == "grid":
            return lambda meta: self.noted((3,))
        return (self,) if self.moment == "size" else (3,)

    def call(self):
        self.kernel[self.grid()](self.x, self.y, 50)

    def is_right(self):
        """Call, and compare with what Triton launches for the arguments as they are then.

        A miss is launched by Triton itself, which evaluates the grid after it has chosen a binary.
        """
        acts, hits = self.todo is not None, self.kernel.cache_info().hits
        ours = passed(self.device, self.call)
        if acts and self.moment in ("grid", "size") and self.kernel.cache_info().hits == hits:
            return
        launched = passed(self.device, lambda: copies[(3,)](self.x, self.y, 50, **self.config.all_kwargs()))
        assert [one for one in ours if one.kind == "launch"] == launched


def free(moved):
    """But for a tensor that is zeroed: torch itself would write where nothing is."""
    if moved.moment != "zeroing":
        moved.y.untyped_storage().resize_(0)


def on_device(moved, index):
    moved.driver.device, moved.device.context = index, 0x1000 + index


def set_debug(moved, value):
    knobs.runtime.debug = value


ACTIONS = {
    "set_": lambda moved: moved.y.set_(torch.zeros(64, dtype=moved.y.dtype)),
    "resize_": lambda moved: moved.y.resize_(10 * moved.y.numel()),
    "storage": lambda moved: moved.y.untyped_storage().resize_(4000 + moved.y.untyped_storage().nbytes()),
    "freed": free,
    "data": lambda moved: setattr(moved.y, "data", torch.zeros(64)),
    "matrix": lambda moved: setattr(moved.y, "data", torch.zeros(4, 16)),
    "unaligned": lambda moved: shift(moved.y, 1),
    "aligned": lambda moved: shift(moved.y, 0),
    "both": lambda moved: (shift(moved.x, 1), shift(moved.y, 1)),
    "narrow": lambda moved: narrow(moved.y),
    "stream": lambda moved: setattr(moved.device, "stream", moved.device.stream + 1),
    "device": lambda moved: on_device(moved, 1 - moved.driver.device),
    "knob": lambda moved: set_debug(moved, not knobs.runtime.debug),
    "cleared": lambda moved: moved.kernel.cache_clear(),
    "evicted": lambda moved: copies.device_caches[moved.driver.device][0].clear(),
}
MOMENTS = ["hook", "grid", "size", "bucket", "key function", "zeroing"]


@pytest.fixture(params=["c", "python"])
def moved(request, shared_device, driver, monkeypatch):
    """Makes such a kernel on one launcher."""
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", request.param)
    monkeypatch.setattr(knobs.runtime, "debug", False)
    shared_device.sizes = [8, 8, 4, 8, 8]
    return lambda moment: Moved(shared_device, driver, moment)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_change_after_the_look_up_is_launched_with(moment, action, moved):
    one = moved(moment)
    for _ in range(2):
        one.is_right()
    hits = one.kernel.cache_info().hits
    for after in (action, None, "aligned", "unaligned", None):
        one.todo = after
        one.is_right()
        assert one.todo is None
    assert one.did == 3
    assert one.kernel.cache_info().hits > hits


@pytest.mark.parametrize("action", ["unaligned", "narrow", "device", "set_"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_what_is_bound_is_for_what_was_compiled(moment, action, moved):
    """The first call already changes it, on its way to Triton's launch or during that."""
    one = moved(moment)
    one.todo = action
    one.call()
    for _ in range(3):
        one.is_right()


@pytest.mark.parametrize("moment", ["hook", "grid"])
def test_a_workspace_that_grows_stays_with_the_direct_launch(moment, moved, monkeypatch):
    """Shape and address decide about no binary."""
    one = moved(moment)
    for _ in range(2):
        one.is_right()
    monkeypatch.setattr(type(copies), "create_binder", None)
    monkeypatch.setattr(one.kernel.fn, "_pack_args", None)  # what only Triton's look-up of a new kernel calls
    for _ in range(5):
        one.todo = "resize_"
        before = one.y.data_ptr()
        one.is_right()
        assert one.y.data_ptr() != before


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    moment=st.sampled_from(MOMENTS), steps=st.lists(st.sampled_from([None, *ACTIONS]), min_size=2, max_size=8)
)  # fmt: skip
def test_any_sequence_of_changes(moved, moment, steps):
    one = moved(moment)
    one.is_right()
    for step in steps:
        one.todo = step
        one.is_right()
    on_device(one, 0)
    set_debug(one, False)


@pytest.mark.parametrize("name", ["n", "x"])
def test_an_argument_that_a_grid_callable_replaces_is_launched_with(moved, name):
    one = moved("grid")
    given = {"n": 48, "x": torch.zeros(64)}[name]
    for _ in range(2):
        one.call()
    replaces = lambda meta: (meta.__setitem__(name, given), (3,))[1]
    ours = passed(one.device, lambda: one.kernel[replaces](one.x, one.y, 50))
    tritons = passed(one.device, lambda: copies[replaces](one.x, one.y, 50, **one.config.all_kwargs()))
    assert [call for call in ours if call.kind == "launch"] == tritons
