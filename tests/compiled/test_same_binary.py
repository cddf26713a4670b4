"""Whatever is called in whatever order: ours launches the binary that the plain kernel picks, on a miss and on a hit."""

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

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32}, num_warps=2)]
INTEGERS = [0, 1, 2, 15, 16, 17, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -1, -16]
SCALARS = [*INTEGERS, True, False, 0.0, -0.0, 1.0, 0.5, float("nan")]
DTYPES = [torch.int8, torch.float16, torch.float32, torch.int64]
MEMORY = {dtype: torch.zeros(64, dtype=dtype) for dtype in DTYPES}
DEFAULTS = {"b": 16, "c": 1.0}


# The tuned parameter stands in the middle, and nothing is computed: only the signature is of interest.
def probe(x, a, y, BLOCK: tl.constexpr, b=16, c=1.0, FLAG: tl.constexpr = 3):
    pass


def probe_unspecialized(x, a, y, BLOCK: tl.constexpr, b=16, c=1.0, FLAG: tl.constexpr = 3):
    pass


def probe_annotated(x, a: "i64", y, BLOCK: tl.constexpr, b: tl.int32 = 16, c=1.0, FLAG: tl.constexpr = 3):  # noqa: F821
    pass


@dataclass(frozen=True)
class Arguments:
    """One call: its arguments by name, and how many are passed by place and in what order the others."""

    values: dict[str, Any]
    by_place: int
    order: tuple[str, ...]

    def __call__(self, launch, **more):
        names = ["x", "a", "y"][: self.by_place]
        return launch(
            *(self.values[name] for name in names),
            **{name: self.values[name] for name in self.order if name not in names and name in self.values},
            **more,
        )


@st.composite
def tensors(draw):
    if draw(st.integers(0, 5)) == 0:
        return None
    dtype = draw(st.sampled_from(DTYPES))
    offset = draw(st.integers(0, 31 // dtype.itemsize))
    size = draw(st.sampled_from([1, 7, 32]))
    return MEMORY[dtype][offset : offset + size]


@st.composite
def calls(draw):
    values = {"x": draw(tensors()), "a": draw(st.sampled_from(SCALARS)), "y": draw(tensors())}
    for name, choices in (("b", SCALARS), ("c", SCALARS), ("FLAG", [3, 0, 1, True, 1.5, "text", None])):
        if draw(st.booleans()):
            values[name] = draw(st.sampled_from(choices))
    order = draw(st.permutations(["x", "a", "y", "b", "c", "FLAG"]))
    return Arguments(values, draw(st.integers(0, 3)), tuple(order))


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
SEARCH = {"do_bench": fake_cuda.by_config({16: 2.0, 32: 1.0})}
WAYS = {
    "all-in-key": {"key": None, "default": CHOSEN},
    "nothing-in-key": {"key": [], **SEARCH},
    "some-in-key": {"key": ["a", "x", "FLAG"], "default": CHOSEN},
}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("jit", JIT.values(), ids=JIT)
def test_the_binary_is_the_plain_kernels(jit, options):
    hits = []

    @settings(max_examples=3, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(calls(), min_size=12, max_size=25))
    def check(sequence):
        ours = autotune(CONFIGS, restore_value=[], cache_results=False, **options)(jit)
        for arguments in sequence:
            expected = outcome(jit[(4,)], arguments, **CHOSEN.all_kwargs())
            for _ in range(2):
                assert outcome(ours[(4,)], arguments) == expected
        hits.append(ours.cache_info().hits)

    check()
    assert sum(hits) > 30
    assert len(jit.device_caches[0][0]) > 30  # the calls did meet many binaries


def test_places_count_the_tuned_parameter():
    """`BLOCK` is the fourth: a fourth argument by place is meant for it, whatever was bound before."""
    ours = autotune(CONFIGS, key=[], default=CHOSEN)(JIT["plain"])
    x = MEMORY[torch.float32]
    for _ in range(2):
        ours[(4,)](x, 5, None, b=16)
    assert ours.cache_info().hits == 1
    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        ours[(4,)](x, 5, None, 16)
