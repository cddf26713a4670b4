"""What Triton's own tests of its tuner assert, with kernels that really compute."""

import contextlib

import pytest
import subjects
import torch
import triton
import triton.language as tl
from triton import Config
from triton.runtime.errors import AutotunerError, OutOfResources, TritonError

CONFIGS = [Config({"BLOCK": 32}), Config({"BLOCK": 128})]
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")


@triton.jit
def copy_scaled(dst, src, stride_dst, stride_src, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + i * stride_dst, tl.load(src + i * stride_src, mask=i < n) * 2, mask=i < n)


@triton.jit
def add_in_place(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


@triton.jit
def add_to(out, extra, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + i, tl.load(x + i, mask=i < n), mask=i < n)


grid = (4,)  # no callable: Triton 3.6's interpreter hands it tensors of its own


def fails_on_stock(subject, because, version):
    """Where Triton's own tuner fails (from 3.6 up to and with a version) and ours must not."""
    if not subject.is_ours and version >= subjects.VERSION:
        return pytest.raises(because)
    return contextlib.nullcontext()


@pytest.mark.parametrize("use_cuda_graph", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_arguments_by_place_and_by_name_in_any_order(subject, device, use_cuda_graph):
    kernel = subject.autotune(CONFIGS, key=["n"], warmup=1, rep=1, use_cuda_graph=use_cuda_graph)(copy_scaled)
    src = torch.arange(100.0, device=device)
    for n in (100, 50):
        for call in (
            lambda dst, n=n: kernel[grid](dst, src, 1, 1, n),
            lambda dst, n=n: kernel[grid](n=n, stride_src=1, src=src, dst=dst, stride_dst=1),
            lambda dst, n=n: kernel[grid](dst, src, n=n, stride_src=1, stride_dst=1),
        ):
            dst = torch.zeros_like(src)
            call(dst)
            assert torch.equal(dst[:n], src[:n] * 2)
            assert not dst[n:].any()
    assert len(kernel.cache) == 2  # the keys; how arguments are passed makes no third


def test_without_a_benchmark_of_the_users(subject, device):
    kernel = subject.autotune(CONFIGS, key=["n"])(copy_scaled)
    src, dst = torch.rand(100, device=device), torch.zeros(100, device=device)
    kernel[grid](dst, src, 1, 1, 100)
    assert torch.equal(dst, src * 2)
    assert len(kernel.cache) == 1


def test_a_dtype_as_key_with_cached_results(subject, device):
    @triton.jit
    def fill(dst, n, dtype: tl.constexpr, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(dst + i, tl.full([BLOCK], 3, dtype), mask=i < n)

    kernel = subject.autotune(CONFIGS, key=["n", "dtype"], cache_results=True)(fill)
    dst = torch.zeros(100, device=device)
    own = subject.name in ("autotuned", "replaced")
    if device == "cuda" and not own:  # Triton's own file, written for real drivers, takes no dtype
        with pytest.raises(TypeError, match="dtype is not JSON serializable"):
            kernel[grid](dst, 100, tl.float32)
        return
    kernel[grid](dst, 100, tl.float32)
    assert torch.equal(dst, torch.full_like(dst, 3))
    assert len(kernel.cache) == 1


@pytest.mark.parametrize("by_name", [False, True], ids=["place", "name"])
def test_m6_restore_value(subject, device, by_name):
    kernel = subject.autotune(CONFIGS, key=["n"], restore_value=["x"], do_bench=run_thrice)(add_in_place)
    for n in (100, 100, 64):
        x = torch.zeros(100, device=device)
        kernel[grid](x=x, n=n) if by_name else kernel[grid](x, n)
        assert torch.equal(x, (torch.arange(100, device=device) < n).float())


@pytest.mark.parametrize("by_name", [False, True], ids=["place", "name"])
def test_m6_reset_to_zero(subject, device, by_name):
    kernel = subject.autotune(CONFIGS, key=["n"], reset_to_zero=["out"], do_bench=run_thrice)(add_to)
    x, out = torch.rand(100, device=device), torch.zeros(100, device=device)
    kernel[grid](out=out, extra=None, x=x, n=100) if by_name else kernel[grid](out, None, x, 100)
    assert torch.equal(out, x)


@pytest.mark.parametrize("argument", ["reset_to_zero", "restore_value"])
@pytest.mark.parametrize("by_name", [False, True], ids=["place", "name"])
def test_s3_none_among_what_is_reset_or_restored(subject, device, argument, by_name):
    kernel = subject.autotune(CONFIGS, key=["n"], do_bench=run_thrice, **{argument: ["out", "extra"]})(add_to)
    x, out = torch.rand(100, device=device), torch.zeros(100, device=device)
    raced = str(getattr(subject, "name", subject)) == "raced" and argument == "restore_value"  # our search puts it back
    with contextlib.nullcontext() if raced else fails_on_stock(subject, AttributeError, (3, 7)):
        kernel[grid](out=out, extra=None, x=x, n=100) if by_name else kernel[grid](out, None, x, 100)
        assert torch.equal(out, x)


def test_m6_hooks_come_in_pairs_and_see_what_was_raised(subject, device):
    events = []

    def before(arguments, reset_only=False):
        events.append("reset" if reset_only else "before")

    def after(arguments, exception):
        events.append(exception)

    benched = []

    def bench(call, quantiles):
        call()
        benched.append(call)
        if len(benched) == 1:
            raise OutOfResources(10, 5, "shared memory")
        return [1.0, 1.0, 1.0]

    kernel = subject.autotune(CONFIGS, key=["n"], pre_hook=before, post_hook=after, do_bench=bench)(copy_scaled)
    src, dst = torch.rand(100, device=device), torch.zeros(100, device=device)
    kernel[grid](dst, src, 1, 1, 100)
    assert torch.equal(dst, src * 2)
    assert events.count("before") == events.count(None) >= 2
    assert kernel.best_config is CONFIGS[1]  # the first ran out of resources


def test_m7_early_pruning_sees_arguments_by_place_and_by_name_apart(subject, device):
    seen = []

    def early(configs, named_args, **kwargs):
        seen.append((set(named_args), set(kwargs) - {"grid", "warmup"}))
        return [config for config in configs if config.kwargs["BLOCK"] == 128]

    kernel = subject.autotune(CONFIGS, key=["n"], prune_configs_by={"early_config_prune": early})(copy_scaled)
    src, dst = torch.rand(100, device=device), torch.zeros(100, device=device)
    kernel[grid](dst, src, 1, stride_src=1, n=100)
    assert torch.equal(dst, src * 2)
    assert seen[0] == ({"dst", "src", "stride_dst"}, {"stride_src", "n"})
    assert kernel.best_config.kwargs == {"BLOCK": 128}


def test_m7_a_performance_model_sees_every_argument(subject, device):
    seen = []

    def model(**arguments):
        seen.append(set(arguments) - {"grid", "warmup"})
        return -arguments["BLOCK"]

    pruning = {"perf_model": model, "top_k": 1}
    kernel = subject.autotune(CONFIGS, key=["n"], prune_configs_by=pruning)(copy_scaled)
    src, dst = torch.rand(100, device=device), torch.zeros(100, device=device)
    kernel[grid](dst, src, 1, stride_src=1, n=100)
    assert torch.equal(dst, src * 2)
    assert kernel.best_config.kwargs == {"BLOCK": 128}
    assert {"dst", "src", "stride_dst", "stride_src", "n", "BLOCK", "num_warps"} <= seen[0]


def test_s3_a_fraction_keeps_at_least_one_config(subject, device):
    pruning = {"perf_model": lambda **arguments: arguments["BLOCK"], "top_k": 0.2}
    kernel = subject.autotune(CONFIGS, key=["n"], prune_configs_by=pruning)(copy_scaled)
    src, dst = torch.rand(100, device=device), torch.zeros(100, device=device)
    with fails_on_stock(subject, ValueError, (3, 8)):
        kernel[grid](dst, src, 1, 1, 100)
        assert torch.equal(dst, src * 2)
        assert kernel.best_config.kwargs == {"BLOCK": 32}


def test_s3_a_fraction_is_of_what_early_pruning_left(subject, device):
    configs = [Config({"BLOCK": block}) for block in (16, 32, 64, 128)]
    seen = []

    def model(**arguments):
        seen.append(arguments["BLOCK"])
        return arguments["BLOCK"]

    pruning = {"early_config_prune": lambda configs, named, **kwargs: configs[2:], "perf_model": model, "top_k": 0.5}
    kernel = subject.autotune(configs, key=["n"], prune_configs_by=pruning)(copy_scaled)
    src, dst = torch.rand(100, device=device), torch.zeros(100, device=device)
    kernel[grid](dst, src, 1, 1, 100)
    assert torch.equal(dst, src * 2)
    if subject.is_ours or subjects.VERSION >= (3, 9):  # before it is a fraction of all: both stay
        assert (set(seen), kernel.best_config.kwargs) == ({64, 128}, {"BLOCK": 64})


def test_m6_pruning_that_leaves_nothing_is_tritons_error(subject, device):
    pruning = {"early_config_prune": lambda configs, named, **kwargs: []}
    kernel = subject.autotune(CONFIGS, key=["n"], prune_configs_by=pruning)(copy_scaled)
    src = torch.rand(100, device=device)
    with pytest.raises(AutotunerError) as caught:
        kernel[grid](src, src, 1, 1, 100)
    assert isinstance(caught.value, TritonError)
    assert str(caught.value).startswith("Autotuner error: No valid autotuner configs after pruning")


@pytest.mark.parametrize("by", ["early", "model"])
def test_s3_one_config_left_is_not_measured(subject, device, by, capsys, monkeypatch):
    monkeypatch.setattr(triton.knobs.autotuning, "print", True)
    benched = []

    def bench(call, quantiles):
        benched.append(call)
        call()
        return [1.0, 1.0, 1.0]

    pruning = {
        "early": {"early_config_prune": lambda configs, named, **kwargs: configs[1:]},
        "model": {"perf_model": lambda **arguments: -arguments["BLOCK"], "top_k": 1},
    }[by]
    kernel = subject.autotune(CONFIGS, key=["n"], prune_configs_by=pruning, do_bench=bench)(copy_scaled)
    src, dst = torch.rand(100, device=device), torch.zeros(100, device=device)
    kernel[grid](dst, src, 1, 1, 100)
    assert torch.equal(dst, src * 2)
    assert kernel.best_config is CONFIGS[1]
    if subject.is_ours or subjects.VERSION >= (3, 8):  # before the only one is measured
        assert benched == []
        assert capsys.readouterr().out == ""


def test_s3_a_generator_may_prune(subject, device):
    def early(configs, named, **kwargs):
        yield from configs
        yield Config({"BLOCK": 64})

    kernel = subject.autotune(CONFIGS, key=["n"], prune_configs_by={"early_config_prune": early})(copy_scaled)
    src, dst = torch.rand(100, device=device), torch.zeros(100, device=device)
    fails = not subject.is_ours and subjects.VERSION >= (3, 8)
    with pytest.raises(TypeError, match="generator") if fails else contextlib.nullcontext():
        kernel[grid](dst, src, 1, 1, 100)
        assert torch.equal(dst, src * 2)


@pytest.mark.parametrize("argument", ["key", "reset_to_zero", "restore_value"])
def test_m1_a_name_that_the_kernel_does_not_have(subject, device, argument, caplog):
    """Triton drops it without a word up to 3.8, 3.9 refuses the kernel; replaced it is dropped and said; ours refuses it."""
    options = {"key": ["n"], argument: ["n", "size"] if argument == "key" else ["size"]}
    refuses = subject.name == "autotuned" or (subject.name != "replaced" and subjects.VERSION >= (3, 9))
    if refuses:
        with pytest.raises(ValueError, match="size"):
            subject.autotune(CONFIGS, **options)(copy_scaled)
        return
    kernel = subject.autotune(CONFIGS, **options)(copy_scaled)
    src, dst = torch.rand(100, device=device), torch.zeros(100, device=device)
    if subject.name == "replaced":
        assert f"{argument} names no argument: 'size'. It is dropped." in caplog.text
        assert "size" not in getattr(kernel, {"key": "keys"}.get(argument, argument))
    elif argument != "key":
        return  # it fails at the launch
    kernel[grid](dst, src, 1, 1, 100)
    assert torch.equal(dst, src * 2)


def run_thrice(call, quantiles):
    for _ in range(3):
        call()
    return [1.0, 1.0, 1.0]
