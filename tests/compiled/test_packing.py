"""What is launched for each annotation and kind of value: C launcher, Python twin and Triton's own, byte for byte."""

from __future__ import annotations

import enum
import fractions
import importlib.util
import math

import numpy
import pytest
import torch
import tritons_packer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton import Config
from tritons_packer import outcome, seen

from autotuned import autotune

pytest.importorskip("autotuned._launch")
pytestmark = [
    pytest.mark.skipif(not tritons_packer.IS_GENERIC, reason="needs a C compiler, and Triton's generic launcher"),
    pytest.mark.usefixtures("no_machine_code"),
]

ANNOTATIONS = {
    "none": "",
    **{name: f": tl.{name}" for name in (
        "float16", "bfloat16", "float32", "float64", "int1", "int8", "int16", "int32", "int64",
        "uint8", "uint16", "uint32", "uint64",
    )},
    "pointer": ": tl.pointer_type(tl.float32)",
    "float": ": float", "int": ": int", "bool": ": bool",
    "text_float32": ": 'fp32'", "text_float": ": 'float'", "text_pointer": ": '*fp16'", "text_const": ": 'const int8*'",
    "text_unsigned": ": 'u32'", "text_unknown": ": 'Tensor'",
    "constexpr": ": tl.constexpr",
}  # fmt: skip


class Indexed:
    """An integer by its `__index__`."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value

    __hash__, __repr__ = object.__hash__, lambda self: f"Indexed({self.value})"


class Floating(Indexed):
    """A float by its `__float__`."""

    __index__ = None

    def __float__(self) -> float:
        return float(self.value)


class Level(enum.IntEnum):
    LOW, HIGH = 3, 48


class Plain(enum.Enum):
    LOW = 3


EDGES = [
    sign * 2**bits + step for bits in (1, 7, 8, 15, 16, 31, 32, 62, 63, 64) for sign in (1, -1) for step in (-1, 0, 1)
]
INTEGERS = sorted({0, 1, -1, 5, 48, 300, *EDGES})
FLOATS = [0.0, -0.0, 1.0, 2.5, 0.1, 1e300, -1e300, 1e-310, 3.5e38, math.inf, -math.inf, math.nan]
TENSORS = [
    torch.zeros(8), torch.zeros(9)[1:], torch.zeros(0), torch.tensor(3.0), torch.tensor(7), torch.tensor([7]),
    torch.tensor([2.5]), torch.tensor(True), torch.zeros(2, 2, dtype=torch.float16), torch.nn.Parameter(torch.zeros(3)),
]  # fmt: skip
OTHERS = [
    True, False, None, "text", torch.float32, numpy.float32(2.5), numpy.float64(2.5), numpy.int64(7), numpy.bool_(True),
    fractions.Fraction(1, 2), 2 + 1j, Level.LOW, Level.HIGH, Plain.LOW, Indexed(7), Floating(7), (1, 2.5), (torch.zeros(4), 3),
    (), [1], b"bytes",
]  # fmt: skip


def is_beyond(value):
    """Whether Triton has no type for an integer."""
    return isinstance(value, int) and not -(2**63) <= value < 2**64


VALUES = [value for value in (*INTEGERS, *FLOATS, *TENSORS, *OTHERS) if not is_beyond(value)]


# Each is compiled in, so that the edges of types with fewer bits, which a constant does not have, tell nothing.
CONSTANTS = [
    value for value in VALUES if type(value) is not int or abs(value) in (0, 1, 5, 48, 300) or abs(value) > 2**30
]


def kernels(folder, parameters):
    """A kernel for each of several lists of parameters between its pointer and its tuned one, by their names."""
    lines = ["import triton", "import triton.language as tl"]
    for name, text in parameters.items():
        lines += [
            "@triton.jit",
            f"def {name}(out, {text}BLOCK: tl.constexpr):",
            "    tl.store(out + tl.arange(0, BLOCK), BLOCK)",
        ]
    path = folder / "written_kernels.py"
    path.write_text("\n".join(lines))
    spec = importlib.util.spec_from_file_location("written_kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: getattr(module, name) for name in parameters}


def ways(kernel, monkeypatch, pre_hook=None):
    """Triton itself, and tuned kernels over the same function on each launcher, to be called with grid and arguments."""
    config = Config({"BLOCK": 32}, num_warps=2, pre_hook=pre_hook)
    found = {"triton": lambda grid, *args: kernel[grid](*args, **config.all_kwargs())}
    for launcher in ("c", "python"):
        monkeypatch.setenv("AUTOTUNED_LAUNCHER", launcher)
        tuned = autotune([config], key=[], restore_value=[], name=f"packing.{kernel.__name__}.{launcher}")(kernel)
        found[launcher] = lambda grid, *args, tuned=tuned: tuned[grid](*args)
        found[launcher].tuned = tuned
    return found


def differences(device, found, *args, grid=(2,)):
    """The launchers that do not do what Triton does."""
    wanted = seen(device, lambda: found["triton"](grid, *args))
    got = {name: seen(device, lambda name=name: found[name](grid, *args)) for name in ("c", "python")}
    return {name: (wanted, one) for name, one in got.items() if one != wanted}


@pytest.fixture(scope="module")
def annotated(tmp_path_factory):
    return kernels(tmp_path_factory.mktemp("annotated"), {name: f"v{text}, " for name, text in ANNOTATIONS.items()})


@pytest.mark.parametrize("annotation", ANNOTATIONS)
def test_every_kind_of_value_is_passed_as_triton_passes_it(annotation, annotated, shared_device, monkeypatch):
    """In one table: what is bound for one value must not be launched for another that it does not fit."""
    found, out = ways(annotated[annotation], monkeypatch), torch.zeros(64)
    for _ in range(2):
        for value in CONSTANTS if annotation == "constexpr" else VALUES:
            assert not differences(shared_device, found, out, value), value


PAIRS = [
    ("float32", "int16"),
    ("float64", "uint32"),
    ("none", "float16"),
    ("uint64", "none"),
    ("int64", "pointer"),
    ("int1", "int8"),
]
GRIDS = {
    "tuple": (2,), "list": [1, 2], "empty": (4, 0), "numpy": (numpy.int64(3), True), "objects": [Indexed(3), Indexed(2)],
    "computed": lambda meta: (meta["BLOCK"] // 16, 3), "called": lambda meta: [len(meta), Indexed(2), 1],
    "text": ("a",), "float": (1.5,), "none": (),
}  # fmt: skip
ANY = st.one_of(st.sampled_from(VALUES), st.integers(-(2**63), 2**64 - 1), st.floats(), st.floats(width=32))


@pytest.fixture(scope="module")
def paired(tmp_path_factory):
    texts = {"_".join(pair): "".join(f"v{i}{ANNOTATIONS[name]}, " for i, name in enumerate(pair)) for pair in PAIRS}
    return kernels(tmp_path_factory.mktemp("paired"), texts)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls=st.lists(st.tuples(ANY, ANY, st.sampled_from([*GRIDS])), min_size=1, max_size=4), moves=st.booleans())
def test_any_calls_in_any_order_are_launched_as_by_triton(pair, paired, shared_device, monkeypatch, calls, moves):
    """Each one twice, the second time from the table; with a hook that gives the output other memory each time."""
    out = torch.zeros(64)
    resize = lambda arguments: arguments["out"].resize_(arguments["out"].numel() + 64)
    found = ways(paired["_".join(pair)], monkeypatch, resize if moves else None)
    for first, second, grid in [call for call in calls for _ in range(2)]:
        for name in ("c", "python"):
            ours = seen(shared_device, lambda name=name: found[name](GRIDS[grid], out, first, second))
            wanted = seen(shared_device, lambda: found["triton"](GRIDS[grid], out, first, second))
            if grid in ("text", "float", "none"):  # the message is ours, and says more
                assert (ours[1] is None, ours[2]) == (wanted[1] is None, wanted[2])
            else:
                assert ours == wanted


def launched_at_once(device, tuned, values, sizes):
    """What `Table.launch`, the first launch of a shipped binary, does with what is bound for these values."""
    return seen(device, lambda: tuned.tuner.launcher.in_c.launch(values, sizes))


def is_of_the_first_launch(found, device, values, sizes):
    """Whether these values were bound; then their first launch in C is Triton's, and the twin's, byte for byte."""
    outcome(device, lambda: found["c"](sizes, *values))
    ours = launched_at_once(device, found["c"].tuned, values, sizes)
    if found["c"].tuned.tuner.launcher.in_c.find(values) is None:
        assert ours == (None, None, []), values  # whoever asked launches in Python
        return False
    for name in ("triton", "python"):
        assert ours == seen(device, lambda name=name: found[name](sizes, *values)), (name, values)
    return True


@pytest.mark.parametrize("annotation", ANNOTATIONS)
def test_the_first_launch_of_every_kind_of_value_is_as_tritons(annotation, annotated, shared_device, monkeypatch):
    found, out = ways(annotated[annotation], monkeypatch), torch.zeros(64)
    bound = [is_of_the_first_launch(found, shared_device, (out, value), (2,)) for value in VALUES]
    assert sum(bound) >= (len(VALUES) - len(OTHERS)) // 4


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    calls=st.lists(st.tuples(ANY, ANY, st.integers(0, 8)), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=3).map(tuple),  # Triton's product is of 32 bits
)
def test_any_first_launches_are_as_tritons(pair, paired, shared_device, monkeypatch, calls, sizes):
    """In one table: values that an entry of others must not be launched for, outputs at any offset."""
    found, memory = ways(paired["_".join(pair)], monkeypatch), torch.zeros(128)
    for first, second, offset in calls:
        is_of_the_first_launch(found, shared_device, (memory[offset:], first, second), sizes)
