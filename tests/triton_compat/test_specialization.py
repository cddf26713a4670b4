"""What calls are compiled for: our reading of plain arguments against Triton's own binder, at random."""

import itertools
import random
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.compiler.compiler import make_backend  # noqa: E402
from triton.runtime.jit import JITFunction, create_function_from_signature  # noqa: E402

from autotuned.binaries import variant  # noqa: E402
from autotuned.binaries.variant import form_of, form_of_call  # noqa: E402
from autotuned.triton_compat import specialization  # noqa: E402

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64,
          torch.uint8, torch.bool, torch.float8_e5m2, torch.float8_e4m3fn]  # fmt: skip
EDGES = [0, 1, -1, 2, 15, 16, 17, -16, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]


def plain(a, b, c, d, e=16, C: tl.constexpr = 3):
    pass


def annotated(a: "*fp16", b: "i32", c: "fp32", d: "u1", e: tl.int64 = 5, C: tl.constexpr = "x"):  # noqa: F722, F821
    pass


def constant(a: tl.const, b: "i64", c: "bf16", d, e=None, C: tl.constexpr = None):  # noqa: F821
    pass


def free(a, b, c, d, e=1.5, C: tl.constexpr = 0):
    pass


JITS = [
    JITFunction(plain), JITFunction(annotated), JITFunction(constant),
    JITFunction(free, do_not_specialize=["b", 3], do_not_specialize_on_alignment=["a", "c"]),
    JITFunction(plain, do_not_specialize=["a", "e"], do_not_specialize_on_alignment=["b"]),
]  # fmt: skip


def value(rng):
    kind = rng.randrange(8)
    if kind < 3:
        base = torch.zeros(64, dtype=torch.int8)[rng.choice([0, 8, 16, 32]) :]
        dtype = rng.choice(DTYPES)
        return base.view(dtype) if base.numel() % dtype.itemsize == 0 else base
    if kind < 6:
        return rng.choice([rng.choice(EDGES), rng.randrange(-(2**33), 2**33), rng.randrange(64)])
    return rng.choice([None, True, False, 1.0, -0.0, float("nan"), 2.5])


@pytest.mark.parametrize("jit", JITS, ids=lambda jit: f"{jit.__name__}-{len(jit.do_not_specialize or ())}")
def test_plain_arguments_are_specialized_as_triton_does(jit):
    specializer, rng = specialization.Specializer(jit, 90), random.Random(7)
    theirs = create_function_from_signature(jit.signature, jit.params, specializer._backend)
    own = 0
    for _ in range(400):
        given = {name: value(rng) for name in "abcd"}
        given |= {name: value(rng) for name in "eC" if rng.random() < 0.5}
        given |= {"num_warps": 8} if rng.random() < 0.3 else {}
        found = specializer._bound(given)
        expected = theirs(**given)
        assert repr(found) == repr(expected), given
        own += specializer._each(given) is not None
    assert own > 300  # Triton's is asked for what is no 64-bit integer alone


@pytest.mark.parametrize("jit", JITS, ids=lambda jit: f"{jit.__name__}-{len(jit.do_not_specialize or ())}")
def test_a_call_is_looked_up_by_what_it_is_compiled_for(jit, monkeypatch):
    """By the same form, and options that were read once are read again when the environment or a knob changes."""
    specializer, rng, own = specialization.Specializer(jit, 90), random.Random(8), 0
    for number in range(300):
        given = {name: value(rng) for name in "abcd"}
        given |= {"e": value(rng)} if rng.random() < 0.5 else {}
        given |= (
            {"C": rng.choice([3, True, None, 0.5, "x", "DENSE", (1, "D"), torch.float16])} if rng.random() < 0.8 else {}
        )
        given |= {"num_warps": rng.choice([1, 8]), "num_stages": rng.choice([2, True])} if rng.random() < 0.5 else {}
        if number % 50 == 0:
            monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", str(rng.randrange(2)))
            monkeypatch.setattr(triton.knobs.language, "default_fp_fusion", rng.choice([True, False]))
        exact, quick = specializer.of((), given), specializer.looked_up(given)
        forms = [form_of(exact, ["C"]), form_of_call(specializer, given)]
        assert forms[0] == forms[1] and (forms[0] is None or forms[0].text == forms[1].text), given
        if quick is not None:
            own += 1
            assert repr(quick[1]) == repr(exact.options) and quick[1] is specializer.looked_up(given)[1]
    assert own > 100
    with pytest.raises(KeyError, match="unrecognised"):
        form_of_call(specializer, {"a": 1, "b": 2, "c": 3, "d": 4, "num_wraps": 4})


@pytest.mark.parametrize("more", [{}, {"maxnreg": 64}, {"num_ctas": 2}, {"debug": True}], ids=str)
def test_numbers_of_warps_and_stages_change_no_other_option(more, monkeypatch):
    """As Triton's own options for them; what it must refuse, or what is no plain number, it is asked about."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # unset, Triton 3.9 warns
    specializer, backend, made = specialization.Specializer(JITS[0], 90), make_backend(specialization.target(90)), 0
    given = {"a": 16, "b": 1, "c": 2, "d": 3, **more}
    for warps, stages in [*itertools.product((1, 4, 8, 16, 32), (1, 2, 3, 5)), (4, True), (8, None), (True, 2)]:
        counts = {"num_warps": warps, "num_stages": stages}
        options = specializer.looked_up({**given, **counts})[1]
        theirs = backend.parse_options({"debug": False, **more, **counts})
        assert vars(options) == vars(theirs) and options.hash() == theirs.hash() and type(options) is type(theirs)
        assert [*map(type, vars(options).values())] == [*map(type, vars(theirs).values())]
        assert variant._options_of(options) == variant.plain(specialization.options_json(theirs))
        made += specialization.made_of(options) is not None
    assert made == 19
    for wrong in (3, 0, -4):
        with pytest.raises(AssertionError, match="power of 2"):
            specializer.looked_up({**given, "num_warps": wrong, "num_stages": 2})


def test_what_triton_alone_knows_is_asked_of_it():
    specializer = specialization.Specializer(JITS[0], 90)
    for odd in (
        2**64 - 1,
        (1, 2),
        SimpleNamespace(dtype=torch.float32, data_ptr=lambda: 8),
        torch.nn.Parameter(torch.zeros(4)),
    ):
        given = {"a": odd, "b": 1, "c": 2, "d": 3}
        assert specializer._each(given) is None
        assert repr(specializer._bound(given)) == repr(specializer._bind(**given))
    with pytest.raises(TypeError):
        specializer._bound({"a": 1})
