"""Whatever is called in whatever order: ours launches the binary that the plain kernel picks, on misses and hits."""

from dataclasses import dataclass
from typing import Any

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton import Config

from autotuned import autotune

pytestmark = pytest.mark.usefixtures("no_machine_code")
CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32}, num_warps=2)]
INTEGERS = [0, 1, 2, 15, 16, 17, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -1, -16, -(2**31), -(2**31) - 1]
SCALARS = [*INTEGERS, True, False, 0.0, -0.0, 1.0, 0.5, float("nan")]
MEMORY = {dtype: torch.zeros(64, dtype=dtype) for dtype in (torch.int8, torch.float16, torch.float32, torch.int64)}
# Every dtype, and every offset of its elements in the first 32 bytes.
TENSORS = [memory[i : i + 8] for dtype, memory in MEMORY.items() for i in range(0, 32 // dtype.itemsize, 3)]
TENSORS += [MEMORY[torch.float32][:7], MEMORY[torch.float32][:16:2], MEMORY[torch.float32][:8].reshape(2, 4)]
LEFT_OUT = object()
CHANGES = [
    *(("x", value) for value in [*TENSORS, None, 16, 17, 0.5]),
    *(("a", value) for value in [*SCALARS, None, TENSORS[0], TENSORS[1]]),
    *(("y", value) for value in [None, *TENSORS[-6:]]),
    *(("b", value) for value in [*SCALARS, LEFT_OUT]),
    *(("c", value) for value in [0.0, 2.5, 1, True, LEFT_OUT]),
    *(("FLAG", value) for value in [3, 0, 1, True, 1.5, -0.0, 0.0, "text", None, LEFT_OUT]),
]
F32 = MEMORY[torch.float32]
ALIGNED = {"x": F32[:8], "a": 15, "y": F32[:8]}
UNALIGNED = {"x": F32[1:9], "a": 2**31, "y": None, "b": 1, "c": 0.5, "FLAG": True}


# The tuned parameter stands in the middle, and nothing is computed: only the signature is of interest.
def probe(x, a, y, BLOCK: tl.constexpr, b=16, c=1.0, FLAG: tl.constexpr = 3):
    pass


def probe_unspecialized(x, a, y, BLOCK: tl.constexpr, b=16, c=1.0, FLAG: tl.constexpr = 3):
    pass


def probe_annotated(x, a: "i64", y, BLOCK: tl.constexpr, b: tl.int32 = 16, c=1.0, FLAG: tl.constexpr = 3):  # noqa: F821
    pass


@dataclass(frozen=True)
class Arguments:
    """One call: its arguments by name, how many are passed by place, and in what order the others."""

    values: dict[str, Any]
    by_place: int
    order: tuple[str, ...]

    def __call__(self, launch, **more):
        names = ["x", "a", "y"][: self.by_place]
        by_name = [name for name in self.order if name not in names and self.values.get(name, LEFT_OUT) is not LEFT_OUT]
        return launch(*(self.values[name] for name in names), **{name: self.values[name] for name in by_name}, **more)


@st.composite
def sequences(draw, base):
    """Calls that differ from one another in one argument, in any order and passed in any way.

    Calls drawn at large would hardly ever agree in all words but one, which is where a word too few does harm.
    """
    order = st.permutations(["x", "a", "y", "b", "c", "FLAG"])
    changes = draw(st.permutations(CHANGES))
    return [Arguments({**base, name: value}, draw(st.integers(0, 3)), tuple(draw(order))) for name, value in changes]


def outcome(launch, arguments, **more):
    """The binary and the recorded launch, or the type of the error: the plain kernel refuses some calls too."""
    try:
        compiled = arguments(launch, **more)
    except (OverflowError, TypeError, ValueError, triton.CompilationError) as error:
        return type(error)
    recorded = fake_cuda.Launcher.launches[-1]
    return compiled, recorded.function, recorded.grid, [describe(value) for value in recorded.args]


def describe(value):
    """Equal only for the very same tensor, or a scalar of equal type and bits."""
    return id(value) if isinstance(value, torch.Tensor) else (type(value), repr(value))


JIT = {
    "plain": triton.jit(probe),
    "unspecialized": triton.jit(do_not_specialize=["a"], do_not_specialize_on_alignment=["x", "b"])(
        probe_unspecialized
    ),
    "annotated": triton.jit(probe_annotated),
}
CHOSEN = CONFIGS[1]
WAYS = {
    "all": {"key": None, "default": CHOSEN},
    "nothing": {"key": [], "default": CHOSEN},
    "some": {"key": ["a", "x", "FLAG"], "default": CHOSEN},
    "searched": {"key": [], "do_bench": fake_cuda.by_config({16: 2.0, 32: 1.0})},
}
CASES = {
    "all-in-key": ("plain", "all", ALIGNED),
    "nothing-in-key": ("plain", "nothing", ALIGNED),
    "some-in-key": ("plain", "some", ALIGNED),
    "searched": ("plain", "searched", ALIGNED),
    "unaligned": ("plain", "nothing", UNALIGNED),
    "unspecialized": ("unspecialized", "nothing", ALIGNED),
    "annotated": ("annotated", "nothing", ALIGNED),
}


@pytest.mark.parametrize(("name", "way", "base"), CASES.values(), ids=CASES)
def test_the_binary_is_the_plain_kernels(name, way, base):
    jit, hits = JIT[name], []

    @settings(max_examples=2, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(sequences(base))
    def check(sequence):
        ours = autotune(CONFIGS, restore_value=[], cache_results=False, **WAYS[way])(jit)
        for arguments in sequence:
            expected = outcome(jit[(4,)], arguments, **CHOSEN.all_kwargs())
            for _ in range(2):
                assert outcome(ours[(4,)], arguments) == expected
        hits.append(ours.cache_info().hits)

    check()
    assert min(hits) > len(CHANGES)
    assert len(jit.device_caches[0][0]) > 20  # the calls did meet many binaries


def test_places_count_the_tuned_parameter():
    """`BLOCK` is the fourth: a fourth argument by place is meant for it, whatever was bound before."""
    ours = autotune(CONFIGS, key=[], default=CHOSEN)(JIT["plain"])
    x = MEMORY[torch.float32]
    for _ in range(2):
        ours[(4,)](x, 5, None, b=16)
    assert ours.cache_info().hits == 1
    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        ours[(4,)](x, 5, None, 16)
