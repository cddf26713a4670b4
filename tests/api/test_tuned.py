"""Tuned Triton kernels that really compute: after any call the caller sees exactly one clean launch."""

import copy
import logging
import pickle

import pytest
import torch
import triton
import triton.language as tl
from paths import PATHS, check_path, on_path, quick
from scaled import CONFIGS, scale
from triton import Config

from autotuned import autotune
from autotuned.errors import DecorationError
from autotuned.kernels import softmax
from autotuned.store import listing

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def accumulate(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + i, tl.load(x + i, mask=i < n), mask=i < n)


def leaky(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(out + i, tl.where(value < 0, value * 0.5, value), mask=i < n)


def scale_rows(x, cols, row_stride, col_stride, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = x + row * row_stride + i * col_stride
    mask = i < cols
    tl.store(at, tl.load(at, mask=mask) * 0.5, mask=mask)


def add_rows(x, out, cols, row_stride, col_stride, out_stride, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * row_stride + i * col_stride, mask=i < cols)
    at = out + row * out_stride + i
    tl.store(at, tl.load(at, mask=i < cols) + value, mask=i < cols)


def optional(x, cache, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    if cache is not None:
        value += tl.load(cache + i, mask=i < n)
        tl.store(cache + i, value, mask=i < n)
    tl.store(y + i, value, mask=i < n)


def half_way(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) * 0.5, mask=i < n)
    tl.static_assert(BLOCK != 32, "not with 32")
    tl.static_assert(BLOCK != 64, "not with 64 either")


def blocks(meta):
    # Not of meta["n"]: in Triton 3.6's interpreter that is a tensor, which NumPy 2.4 makes no integer of.
    return (triton.cdiv(50, meta["BLOCK"]),)


def full(value, *shape):
    return torch.full(shape or (50,), value, device=DEVICE)


def counting(*shape):
    total = torch.Size(shape).numel()
    return torch.arange(1.0, total + 1, device=DEVICE).reshape(shape)


def make(function, **options):
    """Decorates a kernel as `on_path` asks."""
    jit = triton.jit(function)
    return lambda configs, **more: autotune(configs, **({"do_bench": quick} | options | more))(jit)


# -- in place, accumulated, aliased: by every path, called in every way -----------------------------------------------

CALLS = {
    "positional": lambda kernel, *tensors: kernel[blocks](*tensors, 50),
    "mixed": lambda kernel, *tensors: kernel[blocks](*tensors, n=50),
    "keywords": lambda kernel, *tensors: kernel[blocks](n=50, **dict(reversed(list(zip(kernel.arg_names, tensors))))),
    "run": lambda kernel, *tensors: kernel.run(*tensors, n=50, grid=blocks, warmup=False),
}


PROTECTION = {"named": ["x"], "found-out": None, "auto": "auto"}
PROTECTED_CALLS = [("positional", "named"), ("positional", "auto"), *((call, "found-out") for call in CALLS)]


@pytest.mark.parametrize(("call", "restore"), PROTECTED_CALLS, ids=["-".join(case) for case in PROTECTED_CALLS])
@pytest.mark.parametrize("path", PATHS)
def test_in_place(path, call, restore, monkeypatch, tmp_path):
    call, restore = CALLS[call], PROTECTION[restore]
    kernel = on_path(
        path, make(scale, restore_value=restore), CONFIGS, lambda k: call(k, full(1.0)), monkeypatch, tmp_path
    )
    x = full(1.0)
    call(kernel, x)
    assert torch.equal(x, full(0.5))
    check_path(path, kernel)
    call(kernel, x)
    assert torch.equal(x, full(0.25))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("path", PATHS)
def test_accumulated(path, call, monkeypatch, tmp_path):
    kernel = on_path(
        path,
        make(accumulate, reset_to_zero=["out"]),
        CONFIGS,
        lambda k: call(k, counting(50), full(3.0)),
        monkeypatch,
        tmp_path,
    )
    x, out = counting(50), full(7.0)
    call(kernel, x, out)
    assert torch.equal(out, counting(50))
    assert torch.equal(x, counting(50))
    check_path(path, kernel)
    call(kernel, x, out)
    assert torch.equal(out, counting(50))


@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "aliased"])
@pytest.mark.parametrize("restore", [["out"], None], ids=["named", "found-out"])
@pytest.mark.parametrize("path", PATHS)
def test_input_and_output_may_be_one_tensor(path, restore, in_place, monkeypatch, tmp_path):
    kernel = on_path(
        path,
        make(leaky, restore_value=restore),
        CONFIGS,
        lambda k: k[blocks](full(-1.0), full(0.0), 50),
        monkeypatch,
        tmp_path,
    )
    x = -counting(50)
    out = x if in_place else full(0.0)
    kernel[blocks](x, out, 50)
    assert torch.equal(out, -counting(50) * 0.5)
    assert in_place or torch.equal(x, -counting(50))
    check_path(path, kernel)


def test_partly_overlapping_tensors():
    memory, n = -counting(17), 16  # in one block: all is read before anything is written
    make(leaky)(CONFIGS)[(1,)](memory[:n], memory[1:], n)
    assert torch.equal(memory[1:], -counting(17)[:n] * 0.5)
    assert memory[0] == -1


@pytest.mark.parametrize("path", ["cold", "table", "default", "single"])
def test_an_accumulator_that_aliases_an_input_is_refused(path, monkeypatch, tmp_path):
    """Zeroing it would destroy the input: on no path, whatever was bound before."""
    kernel = on_path(
        path,
        make(accumulate, reset_to_zero=["out"]),
        CONFIGS,
        lambda k: k[blocks](counting(50), full(3.0), 50),
        monkeypatch,
        tmp_path,
    )
    x = counting(50)
    with pytest.raises(ValueError) as caught:
        kernel[blocks](x, x, 50)
    assert "reset_to_zero names 'out', which shares memory with argument 'x' in this call" in str(caught.value)
    assert "Pass a separate tensor" in str(caught.value)
    assert torch.equal(x, counting(50))


# -- layouts ---------------------------------------------------------------------------------------------------------

WAYS = {
    "contiguous": (lambda buffer: buffer, (6, 50)),
    "every-second-column": (lambda buffer: buffer[:, ::2], (6, 100)),
    "transposed": (lambda buffer: buffer.t(), (50, 6)),
    "offset": (lambda buffer: buffer.reshape(-1)[3:303].reshape(6, 50), (1, 310)),
    "reversed-in-memory": (lambda buffer: buffer.as_strided((6, 50), (50, 1)), (6, 50)),
    "row-slice": (lambda buffer: buffer[2:8, 5:55], (10, 60)),
    "expanded": (lambda buffer: buffer.expand(6, 50), (1, 50)),
}


def halve(kernel, view):
    rows = 1 if view.stride(0) == 0 else view.shape[0]  # all rows of an expanded tensor are one
    kernel[lambda meta: (*blocks(meta), rows)](view, view.shape[1], *view.stride())


@pytest.mark.parametrize(
    ("path", "restore"),
    [("cold", ["x"]), ("cold", None), ("disk", None)],
    ids=["cold-named", "cold-found-out", "disk"],
)
@pytest.mark.parametrize(("view", "shape"), WAYS.values(), ids=WAYS)
def test_layouts_in_place(view, shape, path, restore, monkeypatch, tmp_path):
    seen = []

    def note(arguments):
        seen.append((arguments["x"].data_ptr(), arguments["x"].stride()))

    configs = [Config({"BLOCK": block}, pre_hook=note) for block in (16, 32)]
    kernel = on_path(
        path,
        make(scale_rows, restore_value=restore),
        configs,
        lambda k: halve(k, view(counting(*shape))),
        monkeypatch,
        tmp_path,
    )
    buffer, expected = counting(*shape), counting(*shape)
    x = view(buffer)
    (expected[:1] if view(expected).stride(0) == 0 else view(expected)).mul_(0.5)
    seen.clear()
    halve(kernel, x)
    assert torch.equal(buffer, expected)  # the bytes between the elements too
    assert set(seen) == {(x.data_ptr(), x.stride())}  # never a clone
    assert len(seen) == (7 if path == "cold" else 1)


@pytest.mark.parametrize(("view", "shape"), WAYS.values(), ids=WAYS)
def test_layouts_of_inputs(view, shape):
    x = view(counting(*shape))
    out = counting(6, 50)
    kernel = make(add_rows)(CONFIGS)
    for times in (1, 2):
        kernel[lambda meta: (*blocks(meta), 6)](x, out, 50, *x.stride(), out.stride(0))
        assert torch.equal(out, counting(6, 50) + times * x)
    assert torch.equal(x, view(counting(*shape)))


# -- what is found to be written --------------------------------------------------------------------------------------


def test_names_found_out_are_shown():
    kernel = make(leaky)(CONFIGS)
    assert kernel.restore_value == []
    kernel[blocks](-counting(50), full(0.0), 50)
    assert kernel.restore_value == ["out"]
    fresh = make(leaky)(CONFIGS)
    fresh[blocks](-counting(50), full(0.0), 50)
    assert fresh.cache_info().searches == 0
    assert fresh.restore_value == ["out"]  # from the record


def test_no_protection_means_none():
    x = full(1.0)
    kernel = make(scale, restore_value=[])(CONFIGS)
    kernel[blocks](x, 50)
    assert torch.equal(x, full(0.5**7))  # a compiling launch and two by the benchmark, of each of two; the caller's


def test_the_own_timer_measures_clean_launches():
    """Without a `do_bench` of the user's: as above, with however many launches the race takes."""
    x, out = full(1.0), full(7.0)
    autotune(CONFIGS)(triton.jit(scale))[blocks](x, 50)
    assert torch.equal(x, full(0.5))
    autotune(CONFIGS, reset_to_zero=["out"])(triton.jit(accumulate))[blocks](counting(50), out, 50)
    assert torch.equal(out, counting(50))
    ((_, first), (_, second)) = listing.all_records()
    for record in (first, second):
        assert [timing.status for timing in record.timings] == ["ok", "ok"]
        assert all(timing.samples >= 3 and timing.low_us <= timing.median_us for timing in record.timings)
        assert record.median_us > 1
        assert record.provenance["timer"] == "race-1"


# -- None ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"restore_value": ["cache"]}, {}], ids=["named", "found-out"])
def test_none_is_skipped_and_in_the_key(options):
    kernel = make(optional, **options)(CONFIGS)
    x, y = counting(50), full(0.0)
    kernel[blocks](x, None, y, 50)
    assert torch.equal(y, x)
    cache = full(10.0)
    kernel[blocks](x, cache, y, 50)
    assert torch.equal(cache, x + 10)
    assert torch.equal(y, x + 10)
    kernel[blocks](x, None, y, 50)
    assert torch.equal(y, x)
    kernel[blocks](x, cache, y, 50)
    assert torch.equal(cache, 2 * x + 10)
    assert (kernel.cache_info().searches, kernel.cache_info().hits) == (2, 2)


def test_none_in_reset_to_zero():
    kernel = make(optional, reset_to_zero=["cache"])(CONFIGS)
    x, y, cache = counting(50), full(0.0), full(10.0)
    for _ in range(2):
        kernel[blocks](x, None, y, 50)
        assert torch.equal(y, x)
        kernel[blocks](x, cache, y, 50)
        assert torch.equal(cache, x)


# -- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restore", [["x"], None], ids=["named", "found-out"])
@pytest.mark.parametrize("order", [(32, 16, 128), (16, 32, 128), (128, 16, 32)], ids=["first", "second", "last"])
def test_a_config_that_writes_and_then_raises(order, restore):
    configs = [Config({"BLOCK": block}) for block in order]
    kernel = make(half_way, restore_value=restore)(configs)
    x = full(1.0)
    kernel[blocks](x, 50)
    assert torch.equal(x, full(0.5))
    ((_, record),) = listing.all_records()
    failed = {timing.config["kwargs"]["BLOCK"] for timing in record.timings if timing.status == "failed"}
    assert failed == {32}
    assert "not with 32" in next(timing.error for timing in record.timings if timing.error)


@pytest.mark.parametrize("restore", [["x"], None], ids=["named", "found-out"])
def test_all_configs_write_and_raise(restore):
    kernel = make(half_way, restore_value=restore)([Config({"BLOCK": block}) for block in (32, 64)])
    x = full(1.0)
    with pytest.raises(RuntimeError, match="all 2 failed"):
        kernel[blocks](x, 50)
    assert torch.equal(x, full(1.0))
    assert list(listing.all_records()) == []


@pytest.mark.parametrize("launches", [0, 1, 3], ids=lambda n: f"after-{n}-launches")
def test_an_interrupt_leaves_the_data_as_given(launches):
    def interrupted(call, quantiles):
        for _ in range(launches):
            call()
        raise KeyboardInterrupt

    x, out = full(1.0), full(7.0)
    with pytest.raises(KeyboardInterrupt):
        make(scale, do_bench=interrupted)(CONFIGS)[blocks](x, 50)
    assert torch.equal(x, full(1.0))
    kernel = make(accumulate, do_bench=interrupted, reset_to_zero=["out"], restore_value=["x"])(CONFIGS)
    with pytest.raises(KeyboardInterrupt):
        kernel[blocks](counting(50), out, 50)
    make(accumulate, reset_to_zero=["out"])(CONFIGS)[blocks](counting(50), out, 50)
    assert torch.equal(out, counting(50))


# -- the key ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "searches"), [(None, 4), (["n"], 3), (["x"], 3), ([], 2)], ids=["all", "n", "x", "nothing"]
)
def test_what_makes_another_problem(key, searches):
    kernel = make(scale, key=key)(CONFIGS)
    for x, n in [
        (full(1.0), 50),
        (full(1.0, 60), 50),
        (full(1.0), 40),
        (torch.ones(50, dtype=torch.float64, device=DEVICE), 50),
        (full(1.0), 50),
    ]:
        kernel[blocks](x, n)
        assert torch.equal(x[:n], torch.full_like(x[:n], 0.5))
    assert kernel.cache_info().searches == searches
    assert len(list(listing.all_records())) == searches


def test_a_constexpr_that_the_caller_passes_is_in_the_key():
    kernel = make(scale, key=[])(CONFIGS)
    for factor, searches in [(0.5, 1), (0.25, 2), (0.5, 2), (2, 3), (2.0, 4)]:
        x = full(1.0)
        kernel[blocks](x, 50, FACTOR=factor)
        assert torch.equal(x, full(1.0 * factor))
        assert kernel.cache_info().searches == searches


def test_a_default_given_or_left_out_is_one_key():
    kernel = make(scale)(CONFIGS)
    kernel[blocks](full(1.0), 50)
    kernel[blocks](full(1.0), 50, FACTOR=0.5)
    assert (kernel.cache_info().searches, kernel.cache_info().hits) == (1, 1)


def test_wrapped_kernels_agree_with_the_plain_one():
    """Two tuners may share one Triton function, and it may be launched plainly in between."""
    jit = triton.jit(scale)
    one, other = autotune(CONFIGS, do_bench=quick)(jit), autotune(CONFIGS[1:])(jit)
    x = full(1.0)
    one[blocks](x, 50)
    other[blocks](x, 50)
    jit[blocks](x, 50, BLOCK=16)
    one.fn[blocks](x, 50, **one.best_config.all_kwargs())
    assert torch.equal(x, full(0.5**4))


def test_log_is_silent_by_default(caplog, capfd):
    caplog.set_level(logging.WARNING)
    make(scale)(CONFIGS)[blocks](full(1.0), 50)
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_b72_a_copy_of_a_tuned_kernel_is_the_kernel_itself():
    kernel = next(value for value in vars(softmax).values() if hasattr(value, "cache_info"))
    assert copy.deepcopy(kernel) is kernel
    assert copy.copy(kernel) is kernel
    assert pickle.loads(pickle.dumps(kernel)) is kernel


def test_a_copy_of_a_kernel_that_no_module_calls_so_is_itself_and_a_pickle_of_it_is_refused():
    kernel = make(scale)(CONFIGS)  # `scale` is the name of the kernel without tuning
    assert copy.deepcopy([kernel])[0] is copy.copy(kernel) is kernel
    with pytest.raises(DecorationError, match="pickled by the name of its function: expected it there, got"):
        pickle.dumps(kernel)
