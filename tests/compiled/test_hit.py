"""A hit: the binary, arguments and grid that Triton's own look-up would launch, and nothing done besides."""

import inspect
import threading

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from counted import profiled
from triton import Config

from autotuned import autotune

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32}, num_warps=2, num_stages=2)]


def scale(x_ptr, y_ptr, n, alpha, BLOCK: tl.constexpr, SHIFT: tl.constexpr = 0):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * alpha + SHIFT, mask=i < n)


def kernel(**options):
    """A tuned kernel with no compiled binaries yet, of which BLOCK=32 is the faster config."""
    options = {"key": ["n"], "do_bench": fake_cuda.by_config({16: 2.0, 32: 1.0})} | options
    return autotune(CONFIGS, **options)(triton.jit(scale))


@pytest.fixture
def tensors():
    return torch.zeros(100), torch.zeros(100)


def test_miss_and_hit_launch_what_the_plain_kernel_launches(launches, tensors):
    tuned = kernel()
    miss = tuned[(4, 2)](*tensors, 100, 0.5)
    first = launches[-1]
    hit = tuned[(4, 2)](*tensors, 100, 0.5)
    second = launches[-1]
    plain = tuned.fn[(4, 2)](*tensors, 100, 0.5, **CONFIGS[1].all_kwargs())
    assert tuned.cache_info().hits == 1
    assert miss is hit is plain
    assert fake_cuda.same(first, second)
    assert fake_cuda.same(second, launches[-1])
    assert second.arguments == {
        "x_ptr": tensors[0],
        "y_ptr": tensors[1],
        "n": 100,
        "alpha": 0.5,
        "BLOCK": 32,
        "SHIFT": 0,
    }
    assert list(second.arguments) == ["x_ptr", "y_ptr", "n", "alpha", "BLOCK", "SHIFT"]
    assert second.warps == 2


def test_the_compiled_kernel_is_returned(tensors):
    from triton.compiler.compiler import CompiledKernel

    tuned = kernel()
    results = [tuned[(4,)](*tensors, 100, 0.5) for _ in range(3)]
    assert type(results[0]) is CompiledKernel
    assert results[0] is results[1] is results[2]
    assert results[0].metadata.num_warps == 2


@pytest.mark.parametrize(
    ("grid", "launched"),
    [
        ((7,), (7, 1, 1)),
        ((7, 3), (7, 3, 1)),
        ((7, 3, 2), (7, 3, 2)),
        ([7, 3], (7, 3, 1)),
        (lambda meta: (meta["n"] // meta["BLOCK"],), (3, 1, 1)),
        (lambda meta: [meta["n"], meta["BLOCK"], meta["SHIFT"] + 1], (100, 32, 1)),
        (torch.Size([5, 4]), (5, 4, 1)),
    ],
    ids=["one", "two", "three", "list", "callable", "callable-list", "torch-size"],
)
def test_grid_forms(launches, tensors, grid, launched):
    tuned = kernel()
    for _ in range(2):
        tuned[grid](*tensors, 100, 0.5)
        assert launches[-1].grid == launched
    assert tuned.cache_info().hits == 1


def test_grid_callables_get_every_parameter_and_run_on_every_launch(tensors):
    tuned = kernel()
    seen = []

    def grid(meta):
        seen.append(dict(meta))
        return (1,)

    tuned[grid](*tensors, 100, alpha=0.5)
    seen.clear()
    for _ in range(3):
        tuned[grid](*tensors, 100, alpha=0.5)
    x, y = tensors
    assert len(seen) == 3
    for meta in seen:
        assert {name: meta[name] for name in tuned.arg_names} == {
            "x_ptr": x,
            "y_ptr": y,
            "n": 100,
            "alpha": 0.5,
            "BLOCK": 32,
            "SHIFT": 0,
        }


@pytest.mark.parametrize(
    "call",
    [
        lambda k, x, y: k[(4,)](x, y, 100, 0.5),
        lambda k, x, y: k[(4,)](x, y, n=100, alpha=0.5),
        lambda k, x, y: k[(4,)](alpha=0.5, n=100, y_ptr=y, x_ptr=x),
        lambda k, x, y: k[(4,)](x, y, 100, 0.5, SHIFT=0),
        lambda k, x, y: k.run(x, y, 100, 0.5, grid=(4,), warmup=False),
        lambda k, x, y: k.run(x_ptr=x, y_ptr=y, n=100, alpha=0.5, grid=(4,)),
    ],
    ids=["positional", "mixed", "keywords", "default-given", "run", "run-keywords"],
)
def test_every_way_to_call_is_one_entry(launches, tensors, call):
    tuned = kernel()
    tuned[(4,)](*tensors, 100, 0.5)
    expected = launches[-1]
    call(tuned, *tensors)
    assert fake_cuda.same(launches[-1], expected)
    assert (tuned.cache_info().hits, tuned.cache_info().misses, tuned.cache_info().searches) == (1, 1, 1)


def test_best_config_is_this_threads_last_launch(tensors):
    bench = fake_cuda.by_config({(16, 100): 1.0, (32, 100): 2.0, (16, 64): 2.0, (32, 64): 1.0}, ("BLOCK", "n"))
    tuned = kernel(do_bench=bench)
    assert not hasattr(tuned, "best_config")
    for n in (100, 64):
        tuned[(4,)](*tensors, n, 0.5)
    found = {}
    turn = threading.Barrier(2)

    def launch(n):
        tuned[(4,)](*tensors, n, 0.5)
        turn.wait(10)  # both have launched before either looks
        found[n] = tuned.best_config

    threads = [threading.Thread(target=launch, args=(n,)) for n in (100, 64)]
    [thread.start() for thread in threads]
    [thread.join(10) for thread in threads]
    assert tuned.cache_info().hits == 2
    assert found == {100: CONFIGS[0], 64: CONFIGS[1]}
    assert found[100] is tuned.configs[0]
    assert tuned.best_config is tuned.configs[1]


def test_other_words_of_a_call_launch_the_other_binary(launches):
    """Alignment decides the binary and not the choice: one search, two binaries, both bound."""
    memory = torch.zeros(200)
    tuned = kernel()
    y = torch.zeros(100)
    pairs = [(memory[:100], y), (memory[1:101], y), (memory[4:104], y)]
    aligned, odd, aligned_again = (tuned[(4,)](x, y, 100, 0.5) for x, y in pairs)
    assert aligned is aligned_again
    assert aligned is not odd
    assert tuned.cache_info().searches == 1
    for x, y in pairs:
        assert tuned[(4,)](x, y, 100, 0.5) is tuned.fn[(4,)](x, y, 100, 0.5, **CONFIGS[1].all_kwargs())
        assert launches[-2].arguments["x_ptr"] is x
    assert tuned.cache_info().hits == 4


# What may run on a hit, with the recording launcher at its end.
HIT_FUNCTIONS = {
    ("jit.py", "<lambda>"),  # Triton's kernel[grid]
    ("table.py", "run"),
    ("table.py", "best_config"),
    ("tuned.py", "_slow_run"),
    ("compiled.py", "holds"),
    ("<written>", "written"),
    ("<string>", "find"),
    ("launcher.py", "__call__"),
    ("direct.py", "launch"),
    ("test_hit.py", "grid"),
    ("fake_cuda.py", "<lambda>"),
    ("fake_cuda.py", "__call__"),
}
HIT_BUILTINS = {
    "get",
    "data_ptr",
    "is_contiguous",
    "stride",
    "get_device",
    "all",
    "append",
    "len",
    "callable",
    "isinstance",
    "items",
}


def test_a_hit_is_a_table_lookup_and_a_launch(tensors, launcher):
    """No log, hash, environment, lock, context manager, dataclass, property or device query on the way."""
    tuned = kernel()
    functions, builtins = set(), set()

    def grid(meta):
        return (4,)

    def note(frame, event, argument):
        if event == "call":
            code = frame.f_code
            functions.add((code.co_filename.rpartition("/")[2], code.co_name))
        elif event == "c_call":
            builtins.add(argument.__name__)

    def launch():
        tuned[grid](*tensors, 100, alpha=0.5)

    for _ in range(2):
        launch()
    profiled(launch, note)
    assert tuned.cache_info().hits == 2
    functions -= {("test_hit.py", "launch"), ("test_hit.py", "note"), ("jit.py", "__getitem__")}
    assert functions <= HIT_FUNCTIONS
    assert {("direct.py", "launch"), ("fake_cuda.py", "__call__")} <= functions
    assert (("<string>", "find") in functions) is (launcher == "python")  # else the look-up is in C
    assert builtins - {"setprofile"} <= HIT_BUILTINS


def test_signature_is_tritons_twelve_then_keywords():
    ours = inspect.signature(autotune).parameters
    stock = list(inspect.signature(triton.autotune).parameters)
    assert len(stock) == 12
    assert list(ours)[:12] == stock
    assert all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in list(ours.values())[:12])
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in list(ours.values())[12:])


@pytest.mark.parametrize("n", [2**64, 2**64 + 1, 2**100, -(2**63) - 1, -(2**63) - 16, -(2**100)], ids=str)
@pytest.mark.parametrize(
    "options",
    [{"key": []}, {"key": ["x_ptr"]}, {"key": ["n"], "bucket": {"n": lambda n: 1}}],
    ids=["nothing", "tensor", "bucket"],
)
def test_an_integer_that_triton_refuses_is_refused_beside_all_that_it_takes(launches, tensors, n, options):
    tuned = kernel(**options)
    for known in (3, 2**40 + 1, 2**40, -(2**40) - 1, 2**63 + 1, 2**63, 2**64 - 1, -(2**63)):
        tuned[(1,)](*tensors, known, 0.5)
        tuned[(1,)](*tensors, known, 0.5)
    count = len(launches)
    for _ in range(2):
        with pytest.raises(OverflowError, match="too large"):
            tuned[(1,)](*tensors, n, 0.5)
    assert len(launches) == count
