"""How the C launcher reads tensors: torch's C shim, which says what DLPack says, or else DLPack."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotuned.key.key import KeySpec, call_part
from autotuned.launch import launcher
from autotuned.launch.table import PyLauncher, integer_class

_launch = pytest.importorskip("autotuned._launch")
torch = pytest.importorskip("torch")
SHAPE, ANY = 1, 0  # roles: the shape is in the key, or is not

DTYPES = [getattr(torch, name) for name in (
    "float32", "float16", "bfloat16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool", "complex64",
    "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64",
)]  # fmt: skip
MEMORY = torch.zeros(4096, dtype=torch.uint8)


def table(role=SHAPE):
    return _launch.Table(("x",), 1, {}, (role,), {}, (), None)


def entry():
    return type("Entry", (), {"config": "config", "before": None, "direct": None})()


@pytest.fixture(autouse=True)
def unknown():
    """Each test begins as a process does: nothing is known of the shim."""
    _launch.use_shim(True)
    yield
    _launch.use_shim(True)


def in_use() -> bool:
    """Whether the shim was found to agree; forgets it."""
    return _launch.use_shim(True)


def signature(x, role, by_shim):
    """The signature of one tensor, by the shim once it was compared, or by DLPack."""
    table_ = table(role)
    _launch.use_shim(by_shim)
    bound = table_.bind((x,), entry())
    found = table_.signature((x,))
    assert bound is (found is not None)
    return found


def layouts(x):
    """Views of one tensor: every rank to 8, strides of 0, 1 and more, sizes of 0 and 1, offsets."""
    yield from (x, x[1:], x[::2], x[:0], x[5], x[:1], x.expand(3, x.numel()), x[:8].view(2, 4).T, x[:8].view(2, 4, 1))
    yield from (
        x[:16].view([2] * 4).permute(3, 1, 0, 2),
        x[:8].view([1, 2] * 3 + [1, 1]),
        x[:8].view(2, 1, 4)[:, :, 1:3],
    )
    yield x[:12].view(2, 3, 2).unfold(1, 2, 1)


@pytest.mark.parametrize("role", [SHAPE, ANY], ids=["shape", "any"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_ways_give_the_same_words(dtype, role):
    for x in layouts(MEMORY.view(dtype)[:64]):
        assert signature(x, role, by_shim=True) == signature(x, role, by_shim=False) is not None
        assert signature(x, role, by_shim=True) is not None
        assert in_use()


def test_every_offset_has_the_words_of_its_alignment():
    table_ = table(ANY)
    table_.bind((MEMORY,), entry())
    assert MEMORY.data_ptr() % 16 == 0
    aligned, odd = table_.signature((MEMORY,)), table_.signature((MEMORY[1:],))
    assert aligned != odd
    for offset in range(32):
        assert table_.signature((MEMORY[offset:],)) == (odd if offset % 16 else aligned)
    assert in_use()


def twin(name):
    """A table of one argument outside the key, of either twin."""
    return table(ANY) if name == "c" else PyLauncher(("x",), KeySpec(names=()))


@pytest.mark.parametrize("launcher", ["c", "python"])
def test_tensors_share_an_entry_exactly_where_triton_shares_a_binary(launcher):
    """Offsets of 0 to 31 bytes: what is bound for one of them is found for another of the same alignment only."""
    native = pytest.importorskip("triton._C.libtriton").native_specialize_impl
    backend = pytest.importorskip("triton.backends.nvidia.compiler").CUDABackend
    views = [MEMORY[offset : offset + 64] for offset in range(32)]
    for bound in views[:17]:
        table_ = twin(launcher)
        assert table_.bind((bound,), entry())
        for view in views:
            same = native(backend, view, False, True, True) == native(backend, bound, False, True, True)
            assert (table_.find((view,)) is not None) is same


INTEGERS = [
    0,
    1,
    2,
    15,
    16,
    17,
    32,
    33,
    -1,
    -16,
    2**31 - 1,
    2**31,
    2**31 + 1,
    -(2**31),
    -(2**31) - 1,
    2**62,
    2**63 - 1,
    2**63,
]
INTEGERS += [2**63 + 1, 2**64 - 1, -(2**63), True, False]


@pytest.mark.parametrize("launcher", ["c", "python"])
def test_scalars_share_an_entry_only_where_triton_shares_a_binary(launcher):
    native = pytest.importorskip("triton._C.libtriton").native_specialize_impl
    backend = pytest.importorskip("triton.backends.nvidia.compiler").CUDABackend
    for bound in INTEGERS:
        table_ = twin(launcher)
        assert table_.bind((bound,), entry())
        for value in INTEGERS:
            kinds = [native(backend, one, False, True, True) for one in (bound, value)]
            shared = table_.find((value,)) is not None
            if shared:
                assert kinds[0] == kinds[1]
            elif type(bound) is type(value) is int:
                assert kinds[0] != kinds[1]


EDGES = [
    sign * 2**bits + step
    for sign in (1, -1)
    for bits in (0, 4, 31, 32, 63, 64, 65, 100)
    for step in (-16, -1, 0, 1, 16)
]
ANY_INTEGER = st.one_of(st.sampled_from(EDGES), st.integers(-(2**66), 2**66), st.integers(), st.integers(-40, 40))


def tritons(value):
    """What Triton compiles an integer as; None for one that it refuses."""
    native = pytest.importorskip("triton._C.libtriton").native_specialize_impl
    try:
        return native(pytest.importorskip("triton.backends.nvidia.compiler").CUDABackend, value, False, True, True)
    except OverflowError:
        return None


@settings(max_examples=300, deadline=None)
@given(ANY_INTEGER, ANY_INTEGER | st.sampled_from([0, 1, 16, 2**31, 2**32, 2**63, 2**64]), st.booleans())
def test_any_two_integers_are_of_one_class_exactly_where_triton_says_so(one, other, is_step):
    other = one + other if is_step else other
    kinds, classes = [tritons(value) for value in (one, other)], [integer_class(value) for value in (one, other)]
    if None in kinds:  # what Triton refuses is never taken for what it takes
        assert classes[0] != classes[1] or kinds == [None, None]
    else:
        assert (kinds[0] == kinds[1]) is (classes[0] == classes[1])
    table_ = table()
    words_ = [table_.signature((value,)) for value in (one, other)]
    assert [found is None for found in words_] == [kind is None for kind in kinds]
    assert None in kinds or (words_[0] == words_[1]) is (classes[0] == classes[1])


def test_a_parameter_has_the_words_of_a_tensor_in_both_ways():
    x = torch.zeros(8)
    found = [signature(one, SHAPE, by) for one in (x, torch.nn.Parameter(x)) for by in (True, False)]
    assert len(set(found)) == 1


def test_a_dtype_that_was_never_compared_goes_through_dlpack():
    table_ = table()
    _launch.use_shim(True)
    table_.bind((torch.zeros(8),), entry())
    half = torch.zeros(8, dtype=torch.float16)
    by_dlpack = signature(half, SHAPE, by_shim=False)
    _launch.use_shim(True)
    table_.bind((torch.zeros(8),), entry())
    assert table_.signature((half,)) == by_dlpack
    table_.bind((half,), entry())
    assert table_.signature((half,)) == by_dlpack
    assert in_use()


def test_an_object_that_holds_its_tensor_elsewhere_is_read_through_dlpack(monkeypatch):
    x = torch.zeros(8)
    expected = signature(x, SHAPE, by_shim=False)
    monkeypatch.setattr(torch.Tensor, "_cdata", 4096, raising=False)
    assert signature(x, SHAPE, by_shim=True) == expected
    assert not in_use()


@pytest.mark.parametrize("change", [
    lambda x, y: setattr(x, "data", y), lambda x, y: x.set_(y), lambda x, y: x.set_(y.untyped_storage(), 1, (5,), (1,)),
    lambda x, y: x.resize_(100), lambda x, y: x.resize_(3, 2), lambda x, y: x.t_(), lambda x, y: x.unsqueeze_(0),
    lambda x, y: x.as_strided_((2, 2), (2, 3)), lambda x, y: x.untyped_storage().resize_(4096),
    lambda x, y: x.swap_tensors(y) if hasattr(x, "swap_tensors") else torch.utils.swap_tensors(x, y),
], ids=["data", "set", "set-storage", "grow", "rank", "transpose", "unsqueeze", "strided", "storage", "swap"])  # fmt: skip
def test_a_tensor_that_became_another_has_its_new_words(change):
    x, y = torch.zeros(2, 4), torch.zeros(9)[1:]
    table_ = table()
    table_.bind((x,), entry())
    table_.signature((x,))
    change(x, y)
    now = table_.signature((x,))
    assert now == signature(x, SHAPE, by_shim=False) is not None
    assert now == signature(x, SHAPE, by_shim=True)


def exotic():
    """Tensors of the exact type that hold no plain memory."""
    yield torch.eye(3).to_sparse()
    yield torch.eye(3).to_sparse_csr()
    kept = []
    torch.func.vmap(lambda x: kept.append(x) or x)(torch.ones(3, 3))
    torch.func.grad(lambda x: kept.append(x) or x.sum())(torch.ones(3))
    yield from kept


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_a_tensor_without_memory_has_no_words_in_either_way():
    table_ = table()
    table_.bind((torch.zeros(3, 3),), entry())  # the shim is in use
    count = 0
    for x in exotic():
        assert type(x) is torch.Tensor
        assert table_.signature((x,)) is None
        assert table_.bind((x,), entry()) is False
        count += 1
    assert count == 4
    assert in_use()


def test_a_subclass_has_no_words():
    class Named(torch.Tensor):
        pass

    table_ = table()
    table_.bind((torch.zeros(3),), entry())
    assert table_.signature((torch.zeros(3).as_subclass(Named),)) is None


def test_views_and_tensors_without_data_are_read_as_they_lie():
    x = torch.zeros(8, dtype=torch.complex64)
    functional = torch._to_functional_tensor(torch.ones(3))
    for view in (x, x.conj(), x.imag, x.conj().imag, functional, torch.empty(3, device="meta")):
        assert signature(view, SHAPE, by_shim=True) == signature(view, SHAPE, by_shim=False)


def test_a_copy_on_write_tensor_gets_memory_of_its_own():
    """Both ways ask for memory that may be written, so that a launch never writes into the other's."""
    if not hasattr(torch, "_lazy_clone"):
        pytest.skip("this torch has no lazy clones")
    table_, x = table(), torch.arange(8.0)
    table_.bind((x,), entry())
    clone = torch._lazy_clone(x)
    assert torch._C._is_cow_tensor(clone)
    table_.signature((clone,))
    assert not torch._C._is_cow_tensor(clone)


def test_reading_tensors_keeps_nothing():
    import sys

    table_, x = table(), torch.zeros(8)
    table_.bind((x,), entry())
    counts = sys.getrefcount(x), x._use_count() if hasattr(x, "_use_count") else 0
    for _ in range(1000):
        table_.signature((x,))
    assert (sys.getrefcount(x), x._use_count() if hasattr(x, "_use_count") else 0) == counts
    gc.collect()


def test_the_twins_tell_the_same_tensors_apart():
    spec = KeySpec()
    for one in layouts(MEMORY.view(torch.float32)[:64]):
        for other in layouts(MEMORY.view(torch.float32)[:64]):
            c, python, mark = table(), PyLauncher(("x",), spec), entry()
            assert c.bind((one,), mark) == python.bind((one,), mark) is True
            if python.find((other,)) is mark:  # the finer of the two: exact strides
                assert c.find((other,)) is mark


# -- plain callables: words of tensors from C, in the table in Python ------------------------------------------------

SPECS = {
    "no list": KeySpec(),
    "listed": KeySpec(("x",)),
    "not listed": KeySpec(("n",)),
    "exact": KeySpec(("n",), exact=frozenset({"x"})),
}


def of_callable(spec, *names):
    """The table of a plain callable, as it is made where C launches, and the twin that has no C."""
    made = launcher.make(names, spec, None, None)
    assert made._roles
    return made, PyLauncher(names, spec)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_words_from_c_are_shared_only_where_keys_are(spec):
    every, shared = list(layouts(MEMORY.view(torch.float32)[:64])), 0
    for one in every:
        made, python = of_callable(spec, "x")
        assert made.bind((one,), "bound") and python.bind((one,), "bound")
        for other in every:
            keys = [call_part(spec.replace(exact=frozenset()), {"x": x}, {}, "k") for x in (one, other)]
            if made.find((other,)):
                shared += 1
                assert keys[0] == keys[1]
            else:
                assert python.find((other,)) is None or other.is_contiguous()
    assert shared >= len(every)
    if spec.exact:
        assert shared == sum(one.shape == other.shape and one.stride() == other.stride() and
                             (one.data_ptr() - other.data_ptr()) % 16 == 0 for one in every for other in every)  # fmt: skip


def several():
    """Tensors of the exact type, in which C and Python may read something or nothing."""
    x = torch.zeros(3, 3)
    yield from (x, x.to(torch.int32), torch.nn.Parameter(x), x.T, torch.zeros(12)[3:].view(3, 3), torch.zeros(3))
    yield from (
        torch.empty(3, 3, device="meta"),
        torch.quantize_per_tensor(x, 1.0, 0, torch.qint8),
        x.conj(),
        x.to_mkldnn(),
    )
    yield from exotic()


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:.*quantiz.*:")
def test_a_tensor_that_c_cannot_read_has_the_words_of_python():
    every = list(several())
    for one in every:
        for other in every[3::4]:
            made, python = of_callable(KeySpec(), "x", "y", "n")
            plain = torch.zeros(3)
            assert made.bind((plain, plain, 1), "plain") and python.bind(
                (plain, plain, 1), "plain"
            )  # a plan by C first
            bound = made.bind((one, plain, 1), "one")
            assert bound is python.bind((one, plain, 1), "one")
            assert made.find((one, plain, 1)) == python.find((one, plain, 1)) == ("one" if bound else None)
            if made.find((other, plain, 1)):  # C tells a tensor without data from one of a CPU, which Python need not
                assert python.find((other, plain, 1))
            assert made.find((plain, plain, 2)) is None


def test_tensors_among_other_arguments():
    made, python = of_callable(KeySpec(), "self", "x", "n", "y", "rest")
    x, y, me = torch.zeros(4), torch.zeros(5), object()
    for call in (
        (me, x, 1, y, "a"),
        (me, y, 1, x, "a"),
        (me, x, 2, y, "a"),
        (me, x, 1, None, "a"),
        (None, x, 1, y, (x, 1)),
    ):
        for table_ in (made, python):
            assert table_.find(call) is None
            assert table_.bind(call, str(call))
            assert table_.find(call) == str(call)


def test_a_hit_of_a_plain_callable_asks_no_tensor_in_python(monkeypatch):
    x = torch.zeros(4)
    asked = []
    monkeypatch.setattr(torch.Tensor, "data_ptr", lambda self: asked.append(self) or 0)
    for name, count in {"": 0, "python": 1}.items():
        monkeypatch.setenv("AUTOTUNED_LAUNCHER", name)
        made = launcher.make(("x",), KeySpec(), None, None)
        assert made.bind((x,), "bound")
        asked.clear()
        assert made.find((x,)) == "bound"
        assert len(asked) == count


def test_words_keep_nothing_and_refuse_what_is_no_tensor():
    import sys

    x, other = torch.zeros(8), torch.zeros(8)[1:]
    count = sys.getrefcount(x)
    for _ in range(1000):
        assert _launch.tensor_words(b"\1\0", x, other) != _launch.tensor_words(b"\1\0", other, x)
        assert _launch.tensor_words(b"\1\1", x, 5) is None
    assert sys.getrefcount(x) == count
    assert _launch.tensor_words(bytes(129), *[x] * 129) is None  # more than the extension's limit
    assert _launch.tensor_words(bytes(range(128)), *[x] * 128) is not None
    for wrong in ((), (x,), ("1", x), (b"\1", x, x)):
        with pytest.raises(TypeError, match="as many roles"):
            _launch.tensor_words(*wrong)
