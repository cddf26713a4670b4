"""What Triton's tests of launches, hooks, specialization and its cache assert, through every tuner, on a second launch too."""

import contextlib
import gc
import tracemalloc

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config, knobs
from triton.tools.tensor_descriptor import TensorDescriptor

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]
SCALE = tl.constexpr(2)


def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


def scaled(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * SCALE, mask=i < n)


@pytest.fixture
def kernel(subject, bench):
    return subject.autotune(list(CONFIGS), key=["n"], do_bench=bench)(triton.jit(copy))


@pytest.fixture
def launch(kernel):
    x = torch.zeros(128)

    def launch(n=100, **options):
        return kernel[(4,)](x, x, n, **options)

    return launch


@pytest.mark.parametrize("launches_before", [0, 1, 3], ids=["cold", "warm", "bound"])
def test_m9_a_pre_run_hook_may_raise(kernel, launch, launches, launches_before):
    for _ in range(launches_before):
        launch()

    def refuse(*args, **kwargs):
        raise RuntimeError("not now")

    kernel.fn.add_pre_run_hook(refuse)
    before = len(launches)
    with pytest.raises(RuntimeError, match="not now"):
        launch()
    assert len(launches) == before
    kernel.fn.pre_run_hooks.clear()
    launch()
    assert launches[-1].arguments["BLOCK"] == 32


def test_m9_launch_hooks_see_each_launch_and_its_metadata(launch):
    seen = []

    def enter(metadata):
        seen.append(("enter", metadata.get()["name"]))

    def leave(metadata):
        seen.append(("leave", metadata.get()["name"]))

    launch(), launch()
    knobs.runtime.launch_enter_hook.add(enter)
    knobs.runtime.launch_exit_hook.add(leave)
    try:
        launch(), launch()
    finally:
        knobs.runtime.launch_enter_hook.remove(enter)
        knobs.runtime.launch_exit_hook.remove(leave)
    assert seen == [("enter", "copy"), ("leave", "copy")] * 2
    launch()
    assert len(seen) == 4


def test_m9_launch_metadata_of_the_kernel(subject, bench):
    def describe(grid, kernel, arguments):
        return {"name": kernel.name, "grid": grid, "n": arguments["n"], "block": arguments["BLOCK"]}

    jit = triton.jit(launch_metadata=describe)(copy)
    kernel = subject.autotune(CONFIGS, key=["n"], do_bench=bench)(jit)
    x, seen = torch.zeros(100), []
    kernel[(4,)](x, x, 100)
    hook = lambda metadata: seen.append(metadata.get())
    knobs.runtime.launch_enter_hook.add(hook)
    try:
        for n in (100, 100):
            kernel[(4,)](x, x, n)
    finally:
        knobs.runtime.launch_enter_hook.remove(hook)
    assert [(one["name"], one["n"], one["block"]) for one in seen] == [("copy", 100, 32)] * 2
    assert [tuple(one["grid"]) for one in seen] == [(4,)] * 2


@pytest.mark.parametrize("option", [{"maxnreg": 64}, {"num_ctas": 1}], ids=["maxnreg", "num_ctas"])
def test_options_at_the_call(launch, option):
    """What a config sets too is a conflict; what it does not set reaches the compiler, and makes another kernel."""
    usual = launch()
    refused = (
        pytest.raises((TypeError, ValueError), match="num_ctas") if "num_ctas" in option else contextlib.nullcontext()
    )
    with refused:
        for _ in range(2):
            compiled = launch(**option)
            assert compiled.metadata.maxnreg == 64
            assert compiled is not usual
    assert launch() is usual


def test_a_thousand_launches_leave_nothing_behind(launch):
    for _ in range(50):
        launch()
    gc.collect()
    tracemalloc.start()
    try:
        fake_cuda.Launcher.launches.clear()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            launch()
            fake_cuda.Launcher.launches.clear()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 30_000


VALUES = {
    "integers": [100, 96, 101, 1, 0, 2**31 - 1, 2**31, 2**33, -5, 2**64 - 1],
    "kinds": [100, True, 1.5, None],
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_a_launch_runs_the_kernel_that_triton_would_specialize(subject, bench, launches, values):
    """For every value, twice and in turn, the very binary and arguments of a launch without a tuner."""

    def touch(x_ptr, n, BLOCK: tl.constexpr):
        if n is not None:
            tl.store(x_ptr, n + 0)

    jit = triton.jit(touch)
    kernel = subject.autotune(CONFIGS[1:], key=["n"], do_bench=bench)(jit)
    x = torch.zeros(128)
    for value in values + values[::-1]:
        kernel[(1,)](x, value)
        tuned = launches[-1]
        jit[(1,)](x, value, BLOCK=32, **{k: v for k, v in CONFIGS[1].all_kwargs().items() if k != "BLOCK"})
        assert fake_cuda.same(tuned, launches[-1])


def test_alignment_is_specialized_on(kernel, launches):
    x = torch.zeros(256)
    aligned = kernel[(4,)](x, x, 100)
    shifted = kernel[(4,)](x[1:], x, 100)
    assert aligned is not shifted
    assert kernel[(4,)](x[4:], x, 100) is aligned  # 16 bytes further
    assert kernel[(4,)](x[1:], x, 100) is shifted


@pytest.mark.parametrize("kind", ["value", "alignment"])
def test_do_not_specialize(subject, bench, kind):
    option = {"do_not_specialize" if kind == "value" else "do_not_specialize_on_alignment": ["n"]}
    kernel = subject.autotune(CONFIGS[1:], key=[], do_bench=bench)(triton.jit(**option)(copy))
    x = torch.zeros(100)
    first = kernel[(4,)](x, x, 96)
    assert kernel[(4,)](x, x, 97) is first
    assert (kernel[(4,)](x, x, 1) is first) == (kind == "value")


def test_descriptors_are_specialized_by_dtype_and_block(subject, bench, launches):
    def read(desc, y_ptr, BLOCK: tl.constexpr):
        tl.store(y_ptr + tl.arange(0, BLOCK), tl.sum(desc.load([0, 0]), axis=0) * 0 + tl.arange(0, BLOCK))

    jit = triton.jit(read)
    kernel = subject.autotune(CONFIGS[1:], key=[], do_bench=bench)(jit)
    y = torch.zeros(32)
    compiled = {}
    for _ in range(2):
        for dtype in (torch.float16, torch.float32):
            for rows in (8, 16):
                desc = TensorDescriptor.from_tensor(torch.zeros(64, 32, dtype=dtype), [rows, 32])
                compiled.setdefault((dtype, rows), set()).add(kernel[(1,)](desc, y))
    assert all(len(kernels) == 1 for kernels in compiled.values())
    assert len(set().union(*compiled.values())) == 4


def test_defaults_may_be_left_out_or_given(subject, bench, launches):
    def shifted(x_ptr, n, by=7, BLOCK: tl.constexpr = 16):
        tl.store(x_ptr + tl.arange(0, BLOCK), n + by)

    kernel = subject.autotune(
        [Config({}), Config({}, num_warps=2)], key=["n"], do_bench=lambda call, quantiles: [1.0] * 3
    )(triton.jit(shifted))
    x = torch.zeros(100)
    for _ in range(2):
        for arguments in [(x, 5), (x, 5, 7), (x, 5, 7, 16)]:
            kernel[(1,)](*arguments)
            assert launches[-1].arguments == {"x_ptr": x, "n": 5, "by": 7, "BLOCK": 16}
        kernel[(1,)](x, 5, by=9, BLOCK=32)
        assert launches[-1].arguments == {"x_ptr": x, "n": 5, "by": 9, "BLOCK": 32}


@pytest.mark.parametrize("launches_before", [1, 3], ids=["warm", "bound"])
def test_m9_a_changed_global_is_an_error(subject, bench, monkeypatch, launches_before):
    kernel = subject.autotune(CONFIGS, key=["n"], do_bench=bench)(triton.jit(scaled))
    x = torch.zeros(100)
    for _ in range(launches_before):
        kernel[(4,)](x, x, 100)
    monkeypatch.setitem(globals(), "SCALE", tl.constexpr(3))
    with pytest.raises(RuntimeError, match="Global variable SCALE has changed"):
        kernel[(4,)](x, x, 100)


def test_m10_hooks_on_compilation_are_called_once_a_kernel(subject, bench, monkeypatch):
    seen = []
    monkeypatch.setattr(
        knobs.runtime, "jit_post_compile_hook", lambda **info: seen.append(info["compile"]["constants"][(3,)])
    )
    kernel = subject.autotune(CONFIGS, key=["n"], do_bench=bench)(triton.jit(copy))
    x = torch.zeros(100)
    for _ in range(3):
        kernel[(4,)](x, x, 100)
    assert sorted(seen) == [16, 32]


def test_m10_the_inner_function_knows_every_kernel(kernel, launch, driver):
    """torch.export and vLLM read the compiled kernels there, and vLLM removes some to unload them."""
    launch(), launch()
    cache = kernel.fn.device_caches[0][0]
    assert launch() in cache.values()
    assert list(kernel.fn.device_caches) == [0]
    cache.clear()
    again = launch()
    assert list(cache.values()) == [again]
    assert launch() is again


def test_loading_is_told_to_its_hooks_once_a_kernel(launch):
    seen = []

    def told(when):
        return lambda module, function, name, metadata_group, hash: seen.append((when, name))

    start, end = told("start"), told("end")
    knobs.runtime.kernel_load_start_hook.add(start)
    knobs.runtime.kernel_load_end_hook.add(end)
    try:
        for _ in range(3):
            launch()
    finally:
        knobs.runtime.kernel_load_start_hook.remove(start)
        knobs.runtime.kernel_load_end_hook.remove(end)
    assert seen == [("start", "copy"), ("end", "copy")] * 2  # of two configs


def test_of_several_hooks_each_sees_the_launch_in_the_order_they_were_added(launch):
    launch(), launch()
    seen = []
    hooks = [lambda metadata, one=one: seen.append(one) for one in ("first", "second")]
    for hook in hooks:
        knobs.runtime.launch_enter_hook.add(hook)
    try:
        launch()
    finally:
        for hook in hooks:
            knobs.runtime.launch_enter_hook.remove(hook)
    assert seen == ["first", "second"]


def test_a_kernel_whose_compiling_a_hook_forbids_is_not_launched(subject, bench, monkeypatch, launches):
    """What tools do that only gather what would be compiled."""
    asked = []
    monkeypatch.setattr(
        knobs.runtime, "jit_cache_hook", lambda **info: asked.append(info["compile"]["constants"]) or True
    )
    kernel = subject.autotune(CONFIGS[:1], key=["n"], do_bench=bench, restore_value=[])(triton.jit(copy))
    x = torch.zeros(128)
    assert kernel[(4,)](x, x, 100) is None
    assert (len(asked), launches) == (1, [])
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", None)
    assert kernel[(4,)](x, x, 100).metadata.name == "copy"
    assert len(launches) == 1


def test_a_config_may_bring_its_own_code(subject, bench, launch, tmp_path):
    """`ir_override`: compiling starts from the file."""
    text = launch().asm["ttir"]
    path = tmp_path / "own.ttir"
    path.write_text(text.replace("copy", "mine"))
    configs = [Config({"BLOCK": 16}), Config({"BLOCK": 32}, ir_override=str(path))]
    kernel = subject.autotune(configs, key=["n"], do_bench=bench)(triton.jit(copy))
    x = torch.zeros(128)
    for _ in range(3):
        assert kernel[(4,)](x, x, 100).metadata.name == "mine"
