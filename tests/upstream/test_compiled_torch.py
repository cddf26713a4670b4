"""torch takes our tuned kernels exactly where it takes Triton's: tracing, custom operators, export, cache keys; `freeze`."""

import fake_cuda
import pytest
import torch
import torch.utils._triton
import triton
import triton.language as tl
from torch._higher_order_ops import triton_kernel_wrap
from torch.library import triton_op, wrap_triton
from triton import Config
from triton.runtime.autotuner import Autotuner, Heuristics

import autotuned
from autotuned.errors import DecorationError, NotTunedError
from autotuned.store import listing

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*:DeprecationWarning", "ignore:.*:UserWarning", "ignore:.*:FutureWarning"
)
CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]


@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)


@triton.jit
def double_even(x_ptr, y_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2 + EVEN, mask=i < n)


@pytest.fixture(autouse=True)
def triton_is_there(monkeypatch):
    with fake_cuda.traced_by_torch(monkeypatch):
        yield


@pytest.fixture
def kernel(subject, bench):
    return subject.autotune(CONFIGS, key=["n"], restore_value=["y_ptr"], do_bench=bench)(double)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_graph_calls_the_tuner(kernel, backend, launches, bench):
    def twice(x):
        y = torch.empty_like(x)
        kernel[grid](x, y, x.numel())
        return y + 1

    compiled = torch.compile(twice, fullgraph=True, backend=backend)
    for _ in range(2):
        compiled(torch.zeros(64))
        assert launches[-1].arguments["BLOCK"] == 32
    assert sorted(bench.calls) == [16, 32]
    assert kernel.best_config is CONFIGS[1]


@pytest.mark.parametrize("what", ["use_cuda_graph", "pre_hook", "config-hook"])
def test_c2_what_torch_refuses_it_refuses_with_the_same_words(subject, what, bench):
    options, configs = {"do_bench": bench}, CONFIGS
    if what == "pre_hook":
        options["pre_hook"] = lambda arguments, reset_only=False: None
    elif what == "config-hook":
        configs = [Config({"BLOCK": block}, pre_hook=lambda arguments: None) for block in (16, 32)]
    kernel = subject.autotune(configs, key=["n"], **options)(double)
    if what == "use_cuda_graph":
        kernel.use_cuda_graph = True

    def twice(x):
        y = torch.empty_like(x)
        kernel[grid](x, y, x.numel())
        return y

    with pytest.raises(Exception) as caught:
        torch.compile(twice, fullgraph=True, backend="eager")(torch.zeros(64))
    words = "pre_hook" if "hook" in what else "Only configs, keys, restore_value, and reset_to_zero are supported"
    assert words in str(caught.value)


@pytest.mark.subjects(["replaced", "autotuned"])
@pytest.mark.filterwarnings("ignore")
def test_s2_use_cuda_graph_is_no_reason_to_refuse_ours(subject):
    """The attribute stays False: torch would refuse the kernel for it, and we need no more than the argument."""
    kernel = subject.autotune(CONFIGS, key=["n"], use_cuda_graph=True)(double)
    assert kernel.use_cuda_graph is False


def test_a_custom_operator(kernel, subject, launches):
    @triton_op(f"autotuned_tests::double_{subject.name}", mutates_args={})
    def op(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        wrap_triton(kernel)[grid](x, y, x.numel())
        return y

    op(torch.zeros(64))
    assert launches[-1].arguments["BLOCK"] == 32
    torch.compile(lambda x: op(x) + 1, fullgraph=True, backend="aot_eager")(torch.zeros(64))
    assert launches[-1].arguments["BLOCK"] == 32


def test_m10_an_exported_program_has_the_kernel(kernel, subject):
    class Model(torch.nn.Module):
        def forward(self, x):
            y = torch.empty_like(x)
            wrap_triton(kernel)[(4,)](x, y, 64)
            return y

    graph = torch.export.export(Model(), (torch.zeros(64),), strict=True).graph
    (node,) = [node for node in graph.nodes if "triton_kernel_wrapper" in str(node.target)]
    assert triton_kernel_wrap.kernel_side_table.get_kernel(node.kwargs["kernel_idx"]) is kernel


def test_the_key_of_compiled_graphs_holds_the_source(kernel, subject):
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCacheDetails

    sources = []

    def backend(graph, inputs):
        details = object.__new__(AOTAutogradCacheDetails)
        sources.extend(details.get_triton_source_codes_from_gm(graph))
        return graph.forward

    @triton_op(f"autotuned_tests::keyed_{subject.name}", mutates_args={})
    def op(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        wrap_triton(kernel)[(4,)](x, y, 64)
        return y

    torch.compile(lambda x: op(x) + 1, fullgraph=True, backend=backend)(torch.zeros(64))
    assert len(sources) == 1
    assert "tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)" in sources[0]


@pytest.mark.subjects(["autotuned"])
def test_what_must_be_protected_is_shown_where_inductor_reads_it(subject, bench):
    kernel = subject.autotune(CONFIGS, key=["n"], do_bench=bench)(double)
    kernel[grid](torch.zeros(64), torch.zeros(64), 64)
    assert (kernel.restore_value, kernel.reset_to_zero) == (["y_ptr"], [])


# -- freeze -----------------------------------------------------------------------------------------------------------


@pytest.mark.subjects(["replaced", "autotuned"])
def test_s4_freeze_gives_tritons_tuner_with_the_winner(kernel, launches, bench):
    x = torch.zeros(64)
    kernel[grid](x, x, 64)
    frozen = autotuned.freeze(kernel, x, x, 64)
    assert type(frozen) is Autotuner
    assert frozen.configs == [CONFIGS[1]]
    bench.calls.clear()
    frozen[grid](x, x, 64)
    assert (launches[-1].arguments["BLOCK"], bench.calls) == (32, [])


@pytest.mark.subjects(["replaced", "autotuned"])
def test_s4_freeze_takes_what_another_process_stored(subject, bench):
    make = lambda: subject.autotune(CONFIGS, key=["n"], do_bench=bench)(double)
    x = torch.zeros(64)
    make()[grid](x, x, 64)
    assert len(list(listing.all_records())) == 1
    bench.calls.clear()
    assert autotuned.freeze(make(), x, y_ptr=x, n=64).configs == [CONFIGS[1]]
    assert bench.calls == []


@pytest.mark.subjects(["replaced", "autotuned"])
def test_s4_freeze_does_not_search_unless_it_is_given_a_grid(subject, bench):
    make = lambda: subject.autotune(CONFIGS, key=["n"], do_bench=bench)(double)
    x = torch.zeros(64)
    with pytest.raises(NotTunedError):
        autotuned.freeze(make(), x, x, 64)
    assert bench.calls == []
    assert autotuned.freeze(make(), x, x, 64, grid=grid).configs == [CONFIGS[1]]


@pytest.mark.subjects(["replaced", "autotuned"])
def test_a_pin_is_frozen_with_and_without_a_grid(kernel):
    x = torch.zeros(64)
    kernel[grid](x, x, 64)
    [key] = kernel.cache
    kernel.cache[key] = CONFIGS[0]
    assert autotuned.freeze(kernel, x, x, 64).configs == [CONFIGS[0]]
    assert autotuned.freeze(kernel, x, x, 64, grid=grid).configs == [CONFIGS[0]]


@pytest.mark.subjects(["autotuned"])
def test_a_pin_that_the_pruner_drops_is_not_frozen(subject, bench):
    early = {"early_config_prune": lambda configs, named, **kwargs: configs[1:]}
    kernel = subject.autotune(CONFIGS, key=["n"], do_bench=bench, prune_configs_by=early)(double)
    x = torch.zeros(64)
    kernel.cache[64, "torch.float32", "torch.float32"] = CONFIGS[0]
    assert autotuned.freeze(kernel, x, x, 64, grid=grid).configs == [CONFIGS[1]]


@pytest.mark.subjects(["autotuned"])
def test_s4_freeze_keeps_heuristics_on_either_side(subject, bench, launches):
    even = triton.heuristics({"EVEN": lambda arguments: arguments["n"] % 2 == 0})
    decorate = subject.autotune(CONFIGS, key=["n"], do_bench=bench)
    x = torch.zeros(64)
    for kernel in (even(decorate(double_even)), decorate(even(double_even))):
        kernel[grid](x, x, 64)
        frozen = autotuned.freeze(kernel, x, x, n=64)
        assert type(frozen) is (Heuristics if type(kernel) is Heuristics else Autotuner)
        frozen[grid](x, x, 63)
        assert (launches[-1].arguments["BLOCK"], launches[-1].arguments["EVEN"]) == (32, False)


@pytest.mark.subjects(["autotuned"])
def test_s4_freeze_under_torch_compile(kernel, launches):
    x = torch.zeros(64)
    kernel[grid](x, x, 64)
    frozen = autotuned.freeze(kernel, x, x, 64)

    def twice(x):
        y = torch.empty_like(x)
        frozen[grid](x, y, x.numel())
        return y

    torch.compile(twice, fullgraph=True, backend="aot_eager")(x)
    assert launches[-1].arguments["BLOCK"] == 32


@pytest.mark.subjects(["autotuned"])
def test_s4_freeze_refuses_what_triton_would_not_zero(subject, bench):
    kernel = subject.autotune(CONFIGS, key=["n"], reset_to_zero=["y_ptr"], do_bench=bench)(double)
    with pytest.raises(DecorationError, match="reset_to_zero"):
        autotuned.freeze(kernel, torch.zeros(64), torch.zeros(64), 64)


def test_s4_freeze_refuses_what_is_no_kernel_of_ours():
    for kernel in (double, triton.autotune(CONFIGS, key=["n"])(double), None):
        with pytest.raises(DecorationError, match="expected a kernel under @autotuned.autotune"):
            autotuned.freeze(kernel)
